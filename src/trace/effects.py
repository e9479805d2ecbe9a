"""Writes to Python state while recording: found by comparing before and after, and undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_TABLES = ("_parameters", "_buffers", "_modules")


@dataclass
class _Before:
    module: torch.nn.Module
    attributes: dict[str, Any]
    tables: dict[str, dict[str, Any]]
    containers: dict[str, Any]


def snapshot(modules: list[torch.nn.Module]) -> list[_Before]:
    """The attributes, parameter tables, and list and dict attributes of modules, one level deep."""
    return [_before(module) for module in modules]


def _before(module: torch.nn.Module) -> _Before:
    attributes = dict(vars(module))
    tables = {name: dict(attributes[name]) for name in _TABLES}
    containers = {key: value.copy() for key, value in attributes.items() if type(value) in (list, dict, set)}
    return _Before(module, attributes, tables, containers)


def restore(before: list[_Before], stand_in: Callable[[torch.Tensor], Any]) -> tuple[str, str] | None:
    """Undo what changed; the first change found, with what to do instead, for an error message.

    `self.buffer += 1` assigns the buffer to itself: a tensor replaced by its own stand-in is put back and no change.
    """
    for item in before:
        for current, table in [(vars(item.module), item.attributes), *_tables(item)]:
            _put_back(current, table, stand_in)
    changes = [change for item in before for change in _undo(item)]
    if not changes:
        return None
    return f"the program writes {changes[0]} of a module", "keep state in buffers that are written in place"


def _tables(item: _Before) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(item.attributes[name], table) for name, table in item.tables.items()]


def _put_back(current: dict[str, Any], before: dict[str, Any], stand_in: Callable[[torch.Tensor], Any]) -> None:
    for key, old in before.items():
        new = current.get(key)
        if new is not None and new is not old and isinstance(old, torch.Tensor) and stand_in(old) is new:
            current[key] = old


def _undo(item: _Before) -> list[str]:
    module, changes = item.module, []
    now = vars(module)
    if now.keys() != item.attributes.keys() or any(now[key] is not item.attributes[key] for key in now):
        names = [key for key in now.keys() | item.attributes.keys() if now.get(key) is not item.attributes.get(key)]
        changes.extend(f"attribute '{key}'" for key in sorted(names))
        now.clear()
        now.update(item.attributes)
    for name, table in [*item.tables.items(), *item.containers.items()]:
        current = item.attributes[name]
        if _same(current, table):
            continue
        changes.append(f"an entry of '{name}'")
        current.clear()
        current.extend(table) if isinstance(current, list) else current.update(table)
    return changes


def _same(current: Any, before: Any) -> bool:
    if isinstance(current, dict):
        return list(current) == list(before) and all(current[key] is before[key] for key in before)
    if isinstance(current, list):
        return len(current) == len(before) and all(a is b for a, b in zip(current, before))
    return bool(current == before)
