"""Writes to Python state while recording: found by comparing before and after, undone, and made again at each call."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

_ABSENT = object()


@dataclass
class _Before:
    """A container and what it held before."""

    container: Any
    source: str
    contents: Any
    partial: bool = False  # some entries of a large table only


@dataclass(frozen=True)
class Write:
    """What a program did to a container: the entries that it set and deleted, or all that it holds now."""

    source: str
    kind: str  # entries, attributes, sequence, set or cell
    set: dict[Any, Any] = field(default_factory=dict)
    deleted: tuple[Any, ...] = ()
    items: tuple[Any, ...] = ()
    """Of a set, or a cell (none: empty); of a sequence the position of an item of before, or a new one in a tuple."""


class Snapshot:
    """The containers that a program can reach, with copies of what they hold."""

    def __init__(self) -> None:
        self._before: dict[int, _Before] = {}
        self._objects: dict[int, tuple[Any, str]] = {}

    def add(self, container: Any, source: str) -> None:
        """Remember a container: a dict, list, deque, set, closure cell or class; or an object, for its source."""
        if id(container) in self._objects:
            return
        self._objects[id(container)] = container, source
        contents = _contents(container)
        if contents is not None:
            self._before[id(container)] = _Before(container, source, contents)

    def add_names(self, table: dict[str, Any], source: str, names: Iterable[str]) -> None:
        """Remember some entries of a dict."""
        known = self._before.setdefault(id(table), _Before(table, source, {}, partial=True))
        for name in names:
            known.contents.setdefault(name, table.get(name, _ABSENT))

    def source_of(self, value: Any) -> str | None:
        """The source of a container or object that was there before."""
        found, source = self._objects.get(id(value), (None, ""))
        return source if found is value and not source.startswith("type(") else None

    def restore(self, stand_in: Callable[[torch.Tensor], Any]) -> list[Write]:
        """Put everything back as it was; what the program had written.

        `self.buffer += 1` assigns the buffer to itself: a tensor replaced by its own stand-in is no write.
        """
        return [write for before in self._before.values() if (write := _undo(before, stand_in))]


def _contents(container: Any) -> Any:
    if isinstance(container, (dict, set)):
        return dict(container) if isinstance(container, dict) else set(container)
    if isinstance(container, (list, deque)):
        return list(container)
    if isinstance(container, types.CellType):
        return _cell(container)
    return dict(vars(container)) if isinstance(container, type) else None


def _cell(cell: types.CellType) -> Any:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _undo(before: _Before, stand_in: Callable[[torch.Tensor], Any]) -> Write | None:
    container, old = before.container, before.contents

    def same(new: Any, value: Any) -> bool:
        return new is value or (isinstance(value, torch.Tensor) and new is not None and stand_in(value) is new)

    if isinstance(container, (dict, type)):
        return _undo_entries(before, same)
    if isinstance(container, set):
        if container == old:
            return None
        found = tuple(container)
        container.clear()
        container.update(old)
        return Write(before.source, "set", items=found)
    if isinstance(container, types.CellType):
        return _undo_cell(before, same)
    now = list(container)
    if len(now) == len(old) and all(map(same, now, old)):
        if any(a is not b for a, b in zip(now, old)):
            _refill(container, old)
        return None
    _refill(container, old)
    places = {id(item): i for i, item in enumerate(old)}
    for i, item in enumerate(old):
        if isinstance(item, torch.Tensor):
            places[id(stand_in(item))] = i
    items: tuple[Any, ...] = tuple(places.get(id(item), (item,)) for item in now)
    return Write(before.source, "sequence", items=items)


def _refill(container: Any, items: list[Any]) -> None:
    container.clear()
    container.extend(items)


def _undo_cell(before: _Before, same: Callable[[Any, Any], bool]) -> Write | None:
    cell, old, now = before.container, before.contents, _cell(before.container)
    if len(old) == len(now) and all(a is b for a, b in zip(old, now)):
        return None
    if old:
        cell.cell_contents = old[0]
    else:
        del cell.cell_contents
    if old and now and same(now[0], old[0]):
        return None
    return Write(before.source, "cell", items=now)


def _undo_entries(before: _Before, same: Callable[[Any, Any], bool]) -> Write | None:
    container, old = before.container, before.contents
    now: dict[Any, Any] = dict(vars(container) if isinstance(container, type) else container)
    if before.partial:
        now = {key: now[key] for key in old if key in now}
    changed = {key: value for key, value in now.items() if old.get(key, _ABSENT) is not value}
    missing = [key for key, value in old.items() if value is not _ABSENT and key not in now]
    reordered = not missing and not before.partial and list(now)[: len(old)] != list(old)
    _put_back(container, old, now)
    changed = {key: value for key, value in changed.items() if not same(value, old.get(key, _ABSENT))}
    if reordered and not isinstance(container, type):
        return Write(before.source, "entries", now, tuple(old))
    kind = "attributes" if isinstance(container, type) else "entries"
    return Write(before.source, kind, changed, tuple(missing)) if changed or missing else None


def _put_back(container: Any, old: dict[Any, Any], now: dict[Any, Any]) -> None:
    if isinstance(container, type):
        for key in now.keys() - old.keys():
            delattr(container, key)
        for key, value in old.items():
            if now.get(key, _ABSENT) is not value:
                setattr(container, key, value)
        return
    for key in now.keys() - old.keys():
        del container[key]
    for key, value in old.items():
        if value is _ABSENT:
            container.pop(key, None)
        elif key not in now or now[key] is not value:
            container[key] = value
