"""Writes to Python state while recording: found by comparing before and after, and undone."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

_TABLES = ("_parameters", "_buffers", "_modules")


class _Before(NamedTuple):
    """A container of a module, named unless it is its attributes, and a copy of it from before."""

    name: str
    container: Any
    copy: Any


def snapshot(modules: list[torch.nn.Module]) -> list[_Before]:
    """The attributes, parameter tables, and list, dict and set attributes of modules, one level deep."""
    return [before for module in modules for before in _containers(module)]


def _containers(module: torch.nn.Module) -> Iterator[_Before]:
    attributes = vars(module)
    yield _Before("", attributes, dict(attributes))
    for name, value in attributes.items():
        if name in _TABLES or type(value) in (list, dict, set):
            yield _Before(name, value, value.copy())


def restore(snapshot: list[_Before], stand_in: Callable[[torch.Tensor], Any]) -> tuple[str, str] | None:
    """Undo what changed; the first change found, with what to do instead, for an error message.

    `self.buffer += 1` assigns the buffer to itself: a tensor replaced by its own stand-in is put back and no change.
    """
    for before in snapshot:
        if isinstance(before.container, dict):
            _put_back(before.container, before.copy, stand_in)
    changes = [change for before in snapshot if (change := _undo(before))]
    if not changes:
        return None
    return f"the program writes {changes[0]} of a module", "keep state in buffers that are written in place"


def _put_back(now: dict[str, Any], old: dict[str, Any], stand_in: Callable[[torch.Tensor], Any]) -> None:
    for key, value in old.items():
        new = now.get(key)
        if new is not None and new is not value and isinstance(value, torch.Tensor) and stand_in(value) is new:
            now[key] = value


def _undo(before: _Before) -> str | None:
    """Put a container back as it was; what had changed in it."""
    name, now, old = before
    if _same(now, old):
        return None
    changed = (
        f"an entry of '{name}'" if name else f"attribute {', '.join(map(repr, _different_keys(now, old))) or 'order'}"
    )
    now.clear()
    now.extend(old) if isinstance(now, list) else now.update(old)
    return changed


def _same(now: Any, old: Any) -> bool:
    if isinstance(now, dict):
        return list(now) == list(old) and all(now[key] is old[key] for key in old)
    if isinstance(now, list):
        return len(now) == len(old) and all(a is b for a, b in zip(now, old))
    return bool(now == old)


def _different_keys(now: dict[str, Any], old: dict[str, Any]) -> list[str]:
    return sorted(key for key in now.keys() | old.keys() if now.get(key, now) is not old.get(key, now))
