"""Guards: what a trace assumed, as one Python function, the prologue.

The prologue takes a call's arguments, checks the assumptions, and returns the tensors that the trace takes, in order;
or a `Miss` that says which assumption failed.
"""

import enum
import itertools
import math
import operator
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch

# Private: the C++ guards that torch.compile uses. Nothing public checks many tensors, or all global state, in one call.
from torch._C._dynamo.guards import GlobalStateGuard, TensorGuards
from torch.autograd import forward_ad

from fulgurite.ir.printer import Namespace, compile_source
from fulgurite.trace import rules, settings
from fulgurite.trace.miss import Miss
from fulgurite.trace.program import Program
from fulgurite.trace.read_guards import read_guards, same_values
from fulgurite.trace.structure import parts_of

_BY_IDENTITY = (type(None), bool, type(Ellipsis), torch.dtype, torch.layout, torch.memory_format, type, enum.Enum)
_BY_VALUE = (int, str, bytes, complex, torch.device, torch.Size, range)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True)
class Prologue:
    """The compiled guards of a specialisation, and their source."""

    source: str
    run: Callable[[tuple[Any, ...], dict[str, Any]], Any]

    def __str__(self) -> str:
        return self.source


state_guard = GlobalStateGuard
"""Remembers grad mode, autocast, default dtype, determinism, thread count and the like, of this thread."""


def build_prologue(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any], state: Any) -> Prologue:
    """The prologue of a program that was captured with these arguments under this global state."""
    builder = _Builder(program)
    builder.global_state(state)
    builder.arguments(args, kwargs)
    builder.modules()
    builder.reads()
    builder.tensors()
    return builder.build()


class _Builder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.names: Namespace = program.namespace
        self.lines: list[str] = []
        self.sources: dict[str, str] = {}
        self.given: set[str] = set()  # containers that are compared with the arguments
        self.same: dict[int, str] = {}
        self._locals = itertools.count()

    def local(self, expr: str, comment: str = "") -> str:
        """A local variable that holds the value of an expression."""
        name = f"v{next(self._locals)}"
        self.lines.append(f"{name} = {expr}{comment}")
        return name

    def require(self, condition: str, reason: str) -> None:
        miss = self.names.bind("miss", Miss(reason))
        self.lines.append(f"if not ({condition}): return {miss}  # {reason}".replace("\n", " "))

    def global_state(self, state: Any) -> None:
        check = self.names.bind("global_state_unchanged", state.check)
        self.require(f"{check}()", "global torch state changed (grad mode, autocast, default dtype, ...)")
        inference = self.names.bind("is_inference_mode_enabled", torch.is_inference_mode_enabled)
        self.require(f"{inference}() is {torch.is_inference_mode_enabled()}", "inference mode changed")
        modes = self.names.bind("function_modes", torch._C._len_torch_function_stack)
        dual = self.names.bind("forward_ad", forward_ad)
        anomaly = self.names.bind("is_anomaly_enabled", torch.is_anomaly_enabled)
        table = self.names.bind("rules", rules)
        self.require(f"{modes}() == {torch._C._len_torch_function_stack()}", "active torch function modes changed")
        self.require(f"{dual}._current_level < 0", "forward-mode AD is active")
        self.require(f"not {anomaly}()", "anomaly mode is on")
        self.require(f"{table}.changes == {rules.changes}", "a gradient rule was registered")
        for setting, value in settings.deciding(self.program.trace.bound_symbols):
            get = self.names.bind(setting.get.__name__, setting.get)
            self.require(f"{get}() == {value!r}", f"{setting.name} was not called")
        ops = {call.symbol.fn for call in self.program.trace.flat() if "custom" in call.symbol.tags}
        for op in sorted(ops, key=str):
            check, name = self.names.bind("formula_of", rules.formula_of), self.names.bind("op", op)
            formula = self.names.bind("formula", rules.formula_of(op))
            self.require(f"{check}({name}) == {formula}", f"autograd formula or fake kernel of {op}")

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.require(f"len(args) == {len(args)}", "number of positional arguments")
        keys = f"list(kwargs) == {list(kwargs)!r}" if kwargs else "not kwargs"
        self.require(keys, "names of keyword arguments")
        named = [*((f"args[{i}]", v) for i, v in enumerate(args)), *((f"kwargs[{k!r}]", v) for k, v in kwargs.items())]
        for source, value in named:
            self._value(source, source, value)

    def _value(self, expr: str, source: str, value: Any) -> None:
        parts = parts_of(value)
        if isinstance(value, torch.Tensor):
            self._tensor(expr, source, value)
        elif parts is None:
            self._leaf(expr, source, value)
        else:
            self._container(expr, source, value, parts)

    def _container(self, expr: str, source: str, value: Any, parts: Any) -> None:
        local = self.local(expr)
        self.given.add(source)
        kind = self.names.bind(type(value).__name__, type(value))
        self.require(f"type({local}) is {kind}", f"type of {source}")
        if isinstance(value, dict):
            keys = self.names.bind("keys", list(value))
            typed = f"{self.names.bind('same_values', same_values)}(list({local}), {keys})"
            plain = all(type(key) is str for key in value)
            self.require(f"list({local}) == {keys}" if plain else typed, f"keys of {source}")
        elif isinstance(value, (list, tuple)):
            self.require(f"len({local}) == {len(value)}", f"length of {source}")
        for accessor, child in zip(parts.accessors, parts.children):
            self._value(local + accessor, source + accessor, child)

    def _tensor(self, expr: str, source: str, value: torch.Tensor) -> None:
        first = self.same.get(id(value))
        if first is not None:
            self.require(f"{expr} is {first}", f"{source} is {first}")
        else:
            self.sources[source] = self.same[id(value)] = self.local(expr)

    def _leaf(self, expr: str, source: str, value: Any) -> None:
        kind = type(value)
        if isinstance(value, _BY_IDENTITY):
            self.require(f"{expr} is {self.names.literal(value)}", f"{source} is {value!r:.40}")
        elif kind is float:
            self.require(_float_test(expr, value), f"{source} is {value!r}")
        elif kind in _BY_VALUE or isinstance(value, numpy.generic):
            name = self.names.bind(kind.__name__, kind)
            same = f"{expr} == {self.names.literal(value)}"
            self.require(f"type({expr}) is {name} and {same}", f"{source} is {value!r:.40}")
        else:
            self._object(expr, source, value)

    def _object(self, expr: str, source: str, value: Any) -> None:
        """Other objects count as the same when they are the same object, which is not kept alive for it."""
        reason = f"{source} is the {type(value).__name__} that it was"
        try:
            reference = self.names.bind("reference", weakref.ref(value))
        except TypeError:
            self.require(f"{expr} is {self.names.bind('value', value)}", reason)
            return
        self.require(f"{expr} is {reference}()", reason)
        if isinstance(value, types.FunctionType):
            self.require(f"{expr}.__code__ is {self.names.bind('code', value.__code__)}", f"code of {source}")

    def modules(self) -> None:
        """Every module that the program could reach is as it was: children, mode, hooks."""
        any_hook = self.names.bind("any_global_hook", torch.nn.modules.module._has_any_global_hook)
        if self.program.locator.modules:
            state = bool(torch.nn.modules.module._has_any_global_hook())
            self.require(f"bool({any_hook}()) is {state}", "global module hooks")
        for module, source, path in self.program.locator.modules.values():
            self._module(module, source, path or "module")

    def reads(self) -> None:
        """Numbers, strings and functions that the program's code can name: globals, closures, defaults, attributes."""
        for line in read_guards(self.program.locator, self.names, self.given, self._leaf):
            self.lines.append(line)

    def _module(self, module: torch.nn.Module, source: str, path: str) -> None:
        name = self.names.bind("m", module)
        if source != name and not source.startswith("args") and "._modules[" not in source:
            self.require(f"{source} is {name}", f"{path} is the module that it was")
        checks = [
            f"len({name}.__dict__) == {len(vars(module))}",
            f"{name}.training is {module.training}",
            f"{name}.__class__ is {self.names.bind('C', type(module))}",
        ]
        if module._modules:
            checks.append(f"{name}._modules == {self.names.bind('children', dict(module._modules))}")
        for hooks in _HOOKS:
            table = getattr(module, hooks)
            same = f"{name}.{hooks} == {self.names.bind('hooks', dict(table))}" if table else f"not {name}.{hooks}"
            checks.append(same)
        self.require(" and ".join(checks), f"{path}: training mode, class, submodules or hooks changed")
        self._tables(module, name, path)

    def _tables(self, module: torch.nn.Module, name: str, path: str) -> None:
        """Parameters and buffers that are there, absent, or tied."""
        sources = {id(item.real): item.source for item in self.program.recorder.inputs}
        for table in ("_parameters", "_buffers"):
            entries = getattr(module, table)
            if entries:
                self.require(f"len({name}.{table}) == {len(entries)}", f"{path}: number of {table[1:]}")
            for key, tensor in entries.items():
                here = f"{name}.{table}[{key!r}]"
                if tensor is None:
                    self.require(f"{here} is None", f"{path}.{key} is None")
                elif id(tensor) in sources and sources[id(tensor)] != here:
                    self.require(f"{here} is {sources[id(tensor)]}", f"{path}.{key} is tied")

    def tensors(self) -> None:
        """Fetch the trace's inputs and check their metadata, all at once."""
        inputs = self.program.recorder.inputs
        for item in inputs:
            if item.source not in self.sources:
                self.sources[item.source] = self.local(item.source, f"  # {item.proxy.name}")
        self._metadata([(item.real, self.sources[item.source]) for item in inputs])
        self._leaves()
        for item in inputs:
            if item.proxy.storage in self.program.recorder.placed:
                offset, name = item.proxy.offset, self.sources[item.source]
                self.require(f"{name}.storage_offset() == {offset}", f"storage offset of {item.source} is {offset}")
        self.lines.append(f"return ({''.join(self.sources[item.source] + ', ' for item in inputs)})")

    def _leaves(self) -> None:
        """Which inputs with a gradient are leaves: at those it arrives in order, and they can't be written."""
        for item in self.program.recorder.inputs if self.program.needs_grad else ():
            if item.before.requires_grad and not isinstance(item.real, torch.nn.Parameter):
                name = self.sources[item.source]
                self.require(f"{name}.is_leaf is {item.before.leaf}", f"{item.source} is a leaf")

    def _metadata(self, inputs: list[tuple[torch.Tensor, str]]) -> None:
        for real, name in inputs:
            if real.layout is not torch.strided:
                same = self.names.bind("same_metadata", _sparse_test(real))
                self.require(f"{same}({name})", "metadata of a sparse tensor")
        strided = [(real, name) for real, name in inputs if real.layout is torch.strided]
        if not strided:
            return
        tensors, names = [real for real, _ in strided], ", ".join(name for _, name in strided)
        # Typed for symbolic sizes; None for a dimension would mean that it may vary.
        sizes: Any = [list(real.shape) for real in tensors]
        strides: Any = [list(real.stride()) for real in tensors]
        guard = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        check = self.names.bind("same_tensor_metadata", guard.check)
        shown = ", ".join(f"{t.dtype} {list(t.shape)}".removeprefix("torch.") for t in tensors[:3])
        more = ", ..." if len(tensors) > 3 else ""
        reason = f"dtype, shape, strides, device or requires_grad of a tensor ({shown}{more})"
        self.require(f"{check}({names})", reason)
        if self.program.trace.written & {item.proxy.storage for item in self.program.recorder.inputs}:
            # Where the trace writes an input, the inputs must share memory as they did.
            pattern = self.names.bind("aliasing", aliasing)
            self.require(f"{pattern}({names}) == {aliasing(*tensors)!r}", "which tensors share memory")

    def build(self) -> Prologue:
        failed = self.names.bind("failed", _failed)
        lines = ["def prologue(args, kwargs):", "    try:", *(f"        {line}" for line in self.lines)]
        lines.append(
            f"    except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error: return {failed}(error)"
        )
        return Prologue("\n".join(lines), compile_source(lines, "prologue", self.names.globals))


def _failed(error: Exception) -> Miss:
    return Miss(f"arguments, attributes or closure have another structure ({type(error).__name__}: {error})")


def aliasing(*tensors: torch.Tensor) -> list[tuple[int, ...]]:
    """Groups of tensors, by position, that share a storage."""
    groups: dict[int, list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(i)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _float_test(expr: str, value: float) -> str:
    if math.isfinite(value) and value != 0.0:
        return f"type({expr}) is float and {expr} == {value!r}"
    return f"type({expr}) is float and str({expr}) == {str(value)!r}"  # 0.0 == -0.0, and nan != nan


def _sparse_test(real: torch.Tensor) -> Callable[[Any], bool]:
    metadata = operator.attrgetter("__class__", "layout", "dtype", "shape", "device", "requires_grad")
    wanted = metadata(real)
    if real.layout is not torch.sparse_coo:
        return lambda tensor: bool(metadata(tensor) == wanted)
    form = operator.methodcaller("is_coalesced"), operator.methodcaller("sparse_dim")
    known = [ask(real) for ask in form]
    return lambda tensor: bool(metadata(tensor) == wanted and [ask(tensor) for ask in form] == known)
