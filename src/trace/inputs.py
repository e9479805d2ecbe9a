"""Where tensors live: from the traced function, the source that gives each tensor or module at a call."""

import enum
import functools
import re
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch
from torch._subclasses.fake_tensor import FakeTensor

from fulgurite.ir.printer import Namespace
from fulgurite.trace.source import is_users
from fulgurite.trace.structure import is_plain_object

_LIMIT = 50_000


class Locator:
    """Finds tensors and modules below a function: its module, closure, globals, and what hangs on them.

    Sources are Python expressions over names that `namespace` binds. The search follows attributes, containers and
    the closures and globals of the user's functions, and runs only when a tensor is met that is no argument.
    """

    def __init__(self, fn: Any, namespace: Namespace, arguments: Sequence[tuple[Any, str, str]]) -> None:
        self.namespace = namespace
        self.modules: dict[int, tuple[torch.nn.Module, str, str]] = {}
        self.values: list[tuple[str, Any, str]] = []
        self.used_names: set[str] = set()
        self._tensors: dict[int, tuple[str, str]] = {}
        root = namespace.bind("module" if isinstance(fn, torch.nn.Module) else "function", fn)
        self._search([(fn, root, ""), *arguments])

    def __call__(self, tensor: torch.Tensor) -> tuple[str, str] | None:
        """The source and the name of a tensor; None when it is not found."""
        return self._tensors.get(id(tensor))

    def _search(self, roots: list[tuple[Any, str, str]]) -> None:
        """Walk everything below the roots once, nearest first."""
        queue, seen = deque(roots), dict[int, Any]()
        while queue and len(seen) < _LIMIT:
            value, source, name = queue.popleft()
            if isinstance(value, _SIMPLE):
                self.values.append((source, value, name))
                continue
            if id(value) in seen:
                continue
            seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                self._tensors[id(value)] = (source, name or "x")
            elif isinstance(value, torch.nn.Module):
                queue.extend(self._below_module(value, source, name))
            else:
                queue.extend(self._below(value, source, name))

    def _below_module(self, module: torch.nn.Module, source: str, name: str) -> Iterator[tuple[Any, str, str]]:
        """A module's tensors under their paths; a submodule is bound to a name of its own, guarded by its parent."""
        bound = self.namespace.bind(f"m_{name}" if name else "module", module)
        self.modules[id(module)] = (module, source, name)
        prefix = f"{name}." if name else ""
        yield type(module), f"type({bound})", name
        code = _code(module)
        self.used_names.update(_names(code) if code else ())
        for table in ("_parameters", "_buffers"):
            for key, tensor in getattr(module, table).items():
                if tensor is not None:
                    yield tensor, f"{bound}.{table}[{key!r}]", prefix + key
        for key, child in module._modules.items():
            if child is not None:
                yield child, f"{bound}._modules[{key!r}]", prefix + key
        skip = ("_parameters", "_buffers", "_modules")
        for key, value in vars(module).items():
            if key not in skip and key.isidentifier():
                yield value, f"{bound}.__dict__[{key!r}]", prefix + key

    def _below(self, value: Any, source: str, name: str) -> Iterator[tuple[Any, str, str]]:
        if isinstance(value, functools.partial):
            yield value.func, f"{source}.func", name
            yield value.args, f"{source}.args", name
            yield value.keywords, f"{source}.keywords", name
        elif isinstance(value, OPERATORS):
            self.values.append((source, value, name))
        elif isinstance(value, types.MethodType):
            yield value.__self__, f"{source}.__self__", name
            yield value.__func__, f"{source}.__func__", name
        elif isinstance(value, types.FunctionType):
            yield from self._below_function(value, source)
        elif isinstance(value, (list, tuple)):
            self.values.append((f"len({source})", len(value), f"length of {name}"))
            for i, item in enumerate(value):
                yield item, f"{source}[{i}]", f"{name}.{i}"
        elif isinstance(value, dict):
            for key, item in value.items():
                if isinstance(key, (str, int, bool)):
                    yield item, f"{source}[{key!r}]", f"{name}.{key}"
        elif isinstance(value, (types.ModuleType, type)):
            yield from self._below_namespace(value, source, name)
        elif is_plain_object(value):
            yield type(value), f"type({source})", name
            for key, item in vars(value).items():
                yield item, f"{source}.{key}", f"{name}.{key}" if name else key

    def _below_function(self, fn: types.FunctionType, source: str) -> Iterator[tuple[Any, str, str]]:
        if not is_users(fn.__code__.co_filename):
            return
        for key, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
            try:
                yield cell.cell_contents, f"{self.namespace.bind(f'cell_{key}', cell)}.cell_contents", key
            except ValueError:  # not assigned yet
                continue
        self.values.append((source, fn, fn.__name__))
        self.used_names.update(_names(fn.__code__), fn.__code__.co_freevars)
        table = self.namespace.bind("globals_", fn.__globals__)
        for key in _names(fn.__code__):
            if key in fn.__globals__:
                yield fn.__globals__[key], f"{table}[{key!r}]", key
        for part in ("__defaults__", "__kwdefaults__", "__wrapped__"):
            yield getattr(fn, part, None), f"{source}.{part}", ""

    def _below_namespace(self, value: Any, source: str, name: str) -> Iterator[tuple[Any, str, str]]:
        """Tensors of the user's Python modules and classes; functions of classes, for what they refer to."""
        file = getattr(value, "__file__", None) or _file_of_class(value)
        if file is None or not is_users(file):
            return
        kinds: tuple[type, ...] = (torch.Tensor, torch.nn.Module, list, dict, *_SIMPLE)
        if isinstance(value, type):
            kinds = (*kinds, types.FunctionType)
        for key, item in list(vars(value).items()):
            if isinstance(item, kinds) and not key.startswith("__"):
                yield item, f"{source}.{key}", key


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from (constant for constant in code.co_consts if isinstance(constant, str))  # keys: config["scale"]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _file_of_class(value: Any) -> str | None:
    functions = [item for item in vars(value).values() if isinstance(item, types.FunctionType)]
    return functions[0].__code__.co_filename if functions else None


def argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names for positional arguments, taken from the function's signature where it has one."""
    code = _code(fn)
    names = list(code.co_varnames[: code.co_argcount]) if code else []
    if names[:1] == ["self"]:
        names = names[1:]
    return [names[i] if i < len(names) else f"arg{i}" for i in range(count)]


def _code(fn: Any) -> Any:
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    while isinstance(target, functools.partial):
        target = target.func
    return getattr(target, "__code__", None) or getattr(getattr(target, "__func__", None), "__code__", None)


def last_name(source: str) -> str:
    """The attribute, key or variable that a source ends in."""
    return (re.findall(r"[A-Za-z_]\w*", source) or [""])[-1]


def definition(fn: Any) -> str:
    """File and line of a function, or of a module's forward."""
    code = _code(fn)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)


def can_follow(leaf: Any) -> bool:
    """Whether a trace can tell if an argument is what it was: not so for what changes unseen or hides its contents."""
    if isinstance(leaf, torch.Tensor):
        return type(leaf) in PLAIN_TENSORS or isinstance(leaf, FakeTensor)
    if isinstance(leaf, (numpy.ndarray, set, bytearray, Iterator)):
        return False
    hides = not hasattr(leaf, "__dict__") and type(leaf).__module__.split(".")[0] not in _KNOWN
    return not hides or isinstance(leaf, numpy.generic)


PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_SIMPLE = (bool, int, float, complex, str, torch.dtype, torch.device, enum.Enum, type(None))
_KNOWN = ("builtins", "torch", "types", "functools")

OPERATORS = (
    types.BuiltinFunctionType,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch._library.custom_ops.CustomOpDef,  # private: torch.library names only its factory
)
"""Callables that have no Python code of their own to follow."""
