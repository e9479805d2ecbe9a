"""Containers of values: taking arguments and results apart, and putting results together again."""

import argparse
import copy
import dataclasses
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree  # private: the registry that libraries put their output classes into

from fulgurite.ir import is_proxy

Path = tuple[str, ...]
"""How to reach a part: source fragments such as `[0]`, `['key']`, `.field`, applied in order."""


@dataclasses.dataclass(frozen=True)
class Existing:
    """In a returned structure, an object that was there before the call, by its source."""

    source: str


@dataclasses.dataclass(frozen=True)
class Parts:
    """A container taken apart: its children, how to reach each, and how to make a like container of others."""

    accessors: tuple[str, ...]
    children: tuple[Any, ...]
    rebuild: Callable[[Sequence[Any]], Any]


def parts_of(value: Any, *, objects: bool = False) -> Parts | None:
    """`value` taken apart, or None for a leaf.

    Lists, tuples, named tuples, dicts, dataclasses, and what is registered with `torch.utils._pytree`. With
    `objects`, also any other object with a `__dict__`, which is rebuilt as a new object of its class.
    """
    kind = type(value)
    if is_proxy(value) or kind is Existing:
        return None
    if kind is list or (isinstance(value, tuple) and kind is not torch.Size):
        return Parts(_keys(range(len(value))), tuple(value), getattr(kind, "_make", kind))
    if kind is dict:
        keys = tuple(value)
        return Parts(_keys(value), tuple(value.values()), lambda items: dict(zip(keys, items)))
    if kind in _pytree.SUPPORTED_NODES and not isinstance(value, (tuple, list)):
        return _registered(value)
    if isinstance(value, (list, dict)):
        return _subclassed(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return _attributes(value, {name: getattr(value, name) for name in names if hasattr(value, name)})
    if objects and is_users_object(value) and not callable(value) and hasattr(value, "__dict__"):
        return _attributes(value, dict(vars(value)))
    return None


KEYS: dict[str, Any] = {}
"""Keys of dicts that have no literal form, by the names that accessors call them."""

_named: dict[Any, str] = {}


def _keys(value: Iterable[Any]) -> tuple[str, ...]:
    return tuple(f"[{_source_of(key)}]" for key in value)


def _source_of(key: Any) -> str:
    if type(key) in (str, int, bool, bytes, type(None)):
        return repr(key)
    name = _named.setdefault(key, f"key_{len(_named)}")
    KEYS[name] = key
    return name


def _registered(value: Any) -> Parts:
    node = _pytree.SUPPORTED_NODES[type(value)]
    children, context = node.flatten_fn(value)
    accessors = _keys(value) if isinstance(value, dict) else tuple(f".flatten[{i}]" for i in range(len(children)))
    return Parts(accessors, tuple(children), lambda items: node.unflatten_fn(list(items), context))


def _subclassed(value: Any) -> Parts:
    """A list or dict of a class of its own: a copy, with its other attributes, is filled anew."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    template = copy.copy(value)
    for key in keys:
        template[key] = None

    def rebuild(items: Sequence[Any]) -> Any:
        made = copy.copy(template)
        for key, item in zip(keys, items):
            made[key] = item
        return made

    return Parts(_keys(keys), tuple(value[key] for key in keys), rebuild)


def _attributes(value: Any, fields: dict[str, Any]) -> Parts:
    kind: Any = type(value)

    def rebuild(items: Sequence[Any]) -> Any:
        made = kind.__new__(kind)
        for name, item in zip(fields, items):
            object.__setattr__(made, name, item)
        return made

    return Parts(tuple(f".{name}" for name in fields), tuple(fields.values()), rebuild)


def is_users_object(value: Any) -> bool:
    """Whether a value is an object of a class of the user's, with attributes to look at."""
    kind = type(value)
    if isinstance(value, (type, torch.Tensor, torch.nn.Module, types.FunctionType, types.ModuleType)):
        return False
    if not hasattr(value, "__dict__") and not hasattr(kind, "__slots__"):
        return False
    root = kind.__module__.split(".")[0]
    return kind in _RECORDS or not (root in ("torch", "numpy", "fulgurite") or root in sys.stdlib_module_names)


_RECORDS = (types.SimpleNamespace, argparse.Namespace, threading.local)


def walk(
    value: Any, path: Path = (), *, objects: bool = False, above: Sequence[int] = ()
) -> Iterator[tuple[Path, Any]]:
    """Every leaf with the path to it, in order. An object met again inside itself (`above`) is a leaf.

    >>> list(walk({"a": [1, 2]}))
    [(("['a']", '[0]'), 1), (("['a']", '[1]'), 2)]
    """
    parts = None if id(value) in above else parts_of(value, objects=objects)
    if parts is None:
        yield path, value
        return
    for accessor, child in zip(parts.accessors, parts.children):
        yield from walk(child, (*path, accessor), objects=objects, above=(*above, id(value)))


def replace_leaves(
    value: Any,
    fn: Callable[[Any], Any],
    *,
    objects: bool = False,
    known: Callable[[Any], str | None] = lambda _: None,
) -> Any:
    """The same structure with `fn` applied to each leaf; a part in which nothing changed is kept as it is.

    Containers that are `known` by a source become `Existing`.
    """
    parts = parts_of(value, objects=objects)
    if parts is None:
        return fn(value)
    source = known(value)
    if source is not None:
        return Existing(source)
    children = [replace_leaves(child, fn, objects=objects, known=known) for child in parts.children]
    if all(new is old for new, old in zip(children, parts.children)) and type(value) not in (list, dict):
        return value
    return parts.rebuild(children)
