"""What a program can reach: from the traced function, the source of each tensor, module, value and container.

Sources are Python expressions over names that a namespace binds; the prologue evaluates them at every call.
"""

import contextvars
import enum
import functools
import inspect
import os
import random
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from fulgurite.ir.printer import Namespace
from fulgurite.trace.code import facts
from fulgurite.trace.effects import Snapshot
from fulgurite.trace.kinds import (
    DESCRIPTORS,
    OPERATORS,
    PLAIN,
    SIMPLE,
    code_of,
    contents_of,
    function_in,
    is_clock,
    is_users_class,
    length_of,
)
from fulgurite.trace.source import is_library, is_users
from fulgurite.trace.structure import is_users_object

_LIMIT = 50_000
_MANY = 256
"""Longer lists and dicts are guarded by their length, and entries that are no tensors are not looked at."""

Place = tuple[Any, str, str]
"""A value, the source that gives it, and a name for it."""


@dataclass(frozen=True)
class Same:
    """In place of a value: the object that another source gives."""

    source: str


class Locator:
    """Finds tensors, modules, values and containers below a function: its module, closure, globals, and so on.

    What the arguments and the function hold is searched at once, what the code that runs looks up when it first runs
    (`learn`).
    """

    def __init__(self, fn: Any, namespace: Namespace, arguments: Sequence[Place]) -> None:
        self.namespace = namespace
        self.modules: dict[int, tuple[torch.nn.Module, str, str]] = {}
        self.values: list[tuple[str, Any, str]] = []
        self.lookups: dict[str, dict[str, Any]] = {}  # by the name that a namespace of PyTorch's or so is bound to
        self.used_names: set[str] = set()
        self.owners: dict[str, type] = {}  # of an attribute's source, the class of the object
        self.all_of: set[str] = set()  # names of variables of whose objects the program may read anything
        self.all_of_classes: set[type] = set()
        self.snapshot = Snapshot()
        self.generators: list[Any] = []
        self.clocks: list[tuple[dict[str, Any], str]] = []
        self.on_generator: Callable[[Any], None] = self.generators.append
        self.on_clock: Callable[[dict[str, Any], str], None] = lambda holder, key: self.clocks.append((holder, key))
        self.on_type: Callable[[dict[str, Any]], None] = lambda table: None
        self._tensors: dict[int, tuple[str, str]] = {}
        self._on_tensor: Callable[[torch.Tensor], None] = lambda tensor: None
        self._functions: dict[types.CodeType, list[tuple[str, Any, str, type | None]]] = {}
        self._seen: dict[int, Any] = {}
        root = namespace.bind("module" if isinstance(fn, torch.nn.Module) else "function", fn)
        self._search([(fn, root, ""), *arguments])

    def __call__(self, tensor: torch.Tensor) -> tuple[str, str] | None:
        """The source and the name of a tensor; None when it is not found."""
        return self._tensors.get(id(tensor))

    def on_tensor(self, act: Callable[[torch.Tensor], None]) -> None:
        """Do something with each tensor that is found, those that were found already included."""
        self._on_tensor = act
        for value in list(self._seen.values()):
            if isinstance(value, torch.Tensor):
                act(value)

    def source_of(self, value: Any) -> str | None:
        """The source of a container or an object that is in reach."""
        return self.snapshot.source_of(value)

    def forget(self) -> None:
        """Let go of all objects: what was traced must not keep them alive."""
        self.snapshot = Snapshot()
        self.values, self.lookups = [], {}
        self.owners = {}
        self.all_of_classes = set()
        for table in (self.modules, self._tensors, self._functions, self._seen):
            table.clear()
        self.on_generator, self.on_clock = self.generators.append, lambda holder, key: None
        self.generators.clear()

    def learn(self, code: types.CodeType, table: dict[str, Any]) -> None:
        """This code of the user's is about to run: what it names counts as read."""
        known = facts(code)
        self.used_names.update(known.names)
        self.all_of.update(known.computed)
        running = self._functions.pop(code, ())
        if known.computed:
            self.all_of_classes.update(kind for _, _, _, kind in running if kind is not None)
        functions = [place for source, fn, name, _ in running for place in self._running(source, fn, name)]
        self._search([*functions, *self._globals(code, table), *self._environment(known.strings, code)])
        if "type" in known.names:
            self.on_type(table)

    def _search(self, roots: list[Place]) -> None:
        """Walk everything below the roots once, nearest first."""
        queue, seen = deque(roots), self._seen
        while queue and len(seen) < _LIMIT:
            value, source, name = queue.popleft()
            if isinstance(value, SIMPLE):
                self.values.append((source, value, name))
                continue
            if id(value) in seen:
                self._again(value, source, name)
                continue
            seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                self._tensors[id(value)] = (source, name or "x")
                self._on_tensor(value)
            elif isinstance(value, torch.nn.Module):
                queue.extend(self._below_module(value, source, name))
            else:
                queue.extend(self._below(value, source, name))

    def _again(self, value: Any, source: str, name: str) -> None:
        """An object that two places hold: guarded to be one."""
        first = self.source_of(value)
        if first and source and first != source and (isinstance(value, (list, dict)) or is_users_object(value)):
            self.values.append((source, Same(first), name))

    def _below_module(self, module: torch.nn.Module, source: str, name: str) -> Iterator[Place]:
        """A module's tensors under their paths; a submodule is bound to a name of its own, guarded by its parent."""
        bound = self.namespace.bind(f"m_{name}" if name else "module", module)
        self.modules[id(module)] = (module, source, name)
        self.snapshot.add(module, bound)
        self.snapshot.add(vars(module), f"{bound}.__dict__")
        prefix = f"{name}." if name else ""
        yield type(module), f"type({bound})", name
        code = code_of(module)
        self.used_names.update(facts(code).names if code else ())
        for table in ("_parameters", "_buffers", "_modules"):
            entries = getattr(module, table)
            self.snapshot.add(entries, f"{bound}.{table}")
            for key, item in entries.items():
                if item is not None:
                    yield item, f"{bound}.{table}[{key!r}]", prefix + key
        skip = ("_parameters", "_buffers", "_modules")
        for key, value in vars(module).items():
            if key not in skip:
                self.owners[f"{bound}.__dict__[{key!r}]"] = type(module)
                yield value, f"{bound}.__dict__[{key!r}]", prefix + key

    def _below(self, value: Any, source: str, name: str) -> Iterator[Place]:
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
        elif isinstance(value, (list, tuple, deque)):
            yield from self._below_sequence(value, source, name)
        elif isinstance(value, dict):
            yield from self._below_dict(value, source, name)
        elif isinstance(value, (set, frozenset, slice, range)):
            self.snapshot.add(value, source)
            self.values.append((source, value.copy() if isinstance(value, set) else value, name))
        elif isinstance(value, contextvars.ContextVar):
            yield value.get(None), f"{source}.get(None)", value.name
        elif isinstance(value, (random.Random, numpy.random.Generator, numpy.random.RandomState)):
            self.on_generator(value)
        elif isinstance(value, type):
            yield from self._below_class(value, source)
        elif is_users_object(value):
            yield from self._below_object(value, source, name)
        elif isinstance(getattr(value, "__wrapped__", None), Callable):  # type: ignore[arg-type]
            yield value.__wrapped__, f"{source}.__wrapped__", name
        elif not isinstance(value, (types.ModuleType, types.GeneratorType)):
            self.values.append((source, value, name))  # guarded to be the same object

    def _below_sequence(self, value: Any, source: str, name: str) -> Iterator[Place]:
        self.snapshot.add(value, source)
        self.values.append((f"len({source})", len(value), f"length of {name}"))
        for i, item in enumerate(value):
            if i < _MANY or isinstance(item, (torch.Tensor, torch.nn.Module)):
                yield item, f"{source}[{i}]", f"{name}.{i}"

    def _below_dict(self, value: dict[Any, Any], source: str, name: str) -> Iterator[Place]:
        self.snapshot.add(value, source)
        few = len(value) <= _MANY
        self.values.append((f"list({source})", list(value), f"keys of {name}") if few else length_of(value, source))
        for i, (key, item) in enumerate(value.items()):
            if i < _MANY or isinstance(item, (torch.Tensor, torch.nn.Module)):
                yield item, f"{source}[{self.namespace.literal(key)}]", f"{name}.{key}"

    def _below_object(self, value: Any, source: str, name: str) -> Iterator[Place]:
        yield type(value), f"type({source})", name
        self.snapshot.add(value, source)
        attributes = getattr(value, "__dict__", None)
        if attributes is not None:
            self.snapshot.add(attributes, f"{source}.__dict__")
            self.values.append((f"len({source}.__dict__)", len(attributes), f"attributes of {name}"))
            for key, item in attributes.items():
                self.owners[f"{source}.{key}"] = type(value)
                yield item, f"{source}.{key}", f"{name}.{key}" if name else key
        for kind in type(value).__mro__:
            for key in (slots,) if isinstance(slots := vars(kind).get("__slots__", ()), str) else slots:
                if key not in ("__dict__", "__weakref__") and hasattr(value, key):
                    yield getattr(value, key), f"{source}.{key}", f"{name}.{key}" if name else key

    def _below_function(self, fn: types.FunctionType, source: str) -> Iterator[Place]:
        """A function counts when it runs, one that is not the user's at once."""
        if is_users(fn.__code__.co_filename):
            self._functions.setdefault(fn.__code__, []).append((source, fn, fn.__name__, None))
            return
        self.values.append((source, fn, fn.__name__))
        yield from self._cells(fn)
        if hasattr(fn, "__wrapped__"):
            yield fn.__wrapped__, f"{source}.__wrapped__", ""

    def _running(self, source: str, fn: types.FunctionType, name: str) -> Iterator[Place]:
        self.values.append((source, fn, name))
        yield from self._cells(fn)
        for i, value in enumerate(fn.__defaults__ or ()):
            if not isinstance(value, SIMPLE):
                yield value, f"{source}.__defaults__[{i}]", ""
        if fn.__kwdefaults__:
            yield fn.__kwdefaults__, f"{source}.__kwdefaults__", ""
        self.snapshot.add(vars(fn), f"{source}.__dict__")
        for key, value in vars(fn).items():
            yield value, f"{source}.{key}", key

    def _cells(self, fn: types.FunctionType) -> Iterator[Place]:
        for key, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
            if key != "__class__":
                bound = self.namespace.bind(f"cell_{key}", cell)
                self.snapshot.add(cell, bound)
                value = contents_of(cell)
                if not (isinstance(value, SIMPLE) and is_library(fn.__code__.co_filename)):
                    yield value, f"{bound}.cell_contents", key

    def _below_class(self, kind: type, source: str) -> Iterator[Place]:
        """What a class of the user's and its bases hold; a method counts when it runs."""
        if not is_users_class(kind) or issubclass(kind, enum.Enum):
            return
        bound = self.namespace.bind(f"C_{kind.__name__}", kind)
        self.snapshot.add(kind, bound)
        for key in {key: None for base in kind.__mro__ if is_users_class(base) for key in vars(base)}:
            item = inspect.getattr_static(kind, key)
            part, fn = function_in(item)
            here = f"{bound}.{key}{part}"
            if fn is not None:
                self._functions.setdefault(fn.__code__, []).append((here, fn, key, kind))
            elif not key.startswith("__") and not isinstance(item, DESCRIPTORS):
                yield item, f"{bound}.{key}", key

    def _globals(self, code: types.CodeType, table: dict[str, Any]) -> Iterator[Place]:
        """What code looks up in its globals, and from there in modules and classes."""
        known = facts(code)
        bound = self.namespace.bind("globals_", table)
        if known.stored:
            self.snapshot.add_names(table, bound, known.stored)
        for chain in known.chains:
            yield from self._chain(chain, table, bound)

    def _chain(self, chain: tuple[str, ...], table: dict[str, Any], bound: str) -> Iterator[Place]:
        first, *rest = chain
        if first not in table:
            return
        value = table[first]
        if not isinstance(value, types.ModuleType):
            if is_clock(value):
                self.on_clock(table, first)
            yield value, f"{bound}[{first!r}]", first
            return
        if not is_library(table.get("__file__") or "<unknown>"):
            self.lookups.setdefault(bound, {})[first] = value
        for key in rest:
            holder = vars(value)
            if key not in holder:
                return
            value, last = holder[key], value
            name = self.namespace.bind(f"ns_{last.__name__}", holder)
            if is_clock(value):
                self.on_clock(holder, key)
            elif isinstance(value, types.ModuleType) or not is_users(getattr(last, "__file__", None) or "<frozen"):
                self.lookups.setdefault(name, {})[key] = value
            if not isinstance(value, types.ModuleType):
                if is_users(getattr(last, "__file__", None) or "<frozen") or isinstance(value, PLAIN):
                    yield value, f"{name}[{key!r}]", key
                return

    def _environment(self, strings: frozenset[str], code: types.CodeType) -> Iterator[Place]:
        """Environment variables: those that the code can name, where it looks at the environment at all."""
        if not {"environ", "getenv"} & set(code.co_names):
            return
        environ = self.namespace.bind("environ", os.environ)
        for key in sorted(strings):
            if key.isidentifier():
                yield os.environ.get(key), f"{environ}.get({key!r})", key
