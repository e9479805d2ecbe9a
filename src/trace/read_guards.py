"""Guards of plain reads: numbers, strings, functions and the like that a program's code names.

What one object, dict or module holds is fetched and compared in one call, by identity first: some 30 ns for each value.
"""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fulgurite.ir.printer import Namespace
from fulgurite.trace.inputs import Locator, Same
from fulgurite.trace.kinds import OPERATORS, SIMPLE, last_name
from fulgurite.trace.miss import Miss
from fulgurite.trace.source import is_library, is_users

_PASSED = ("__defaults__", "__kwdefaults__", ".args[", ".keywords[")  # arguments that no code names
_IN_CELL = re.compile(r"(\.cell_contents(\[\d+\])*|\.get\(.*\))$")
_TABLE = re.compile(r"__dict__\['_(parameters|buffers|modules|\w*hooks\w*)")  # compared with the modules
_ATTRIBUTE = re.compile(r"(.*)\.([A-Za-z_]\w*)")
_ITEM = re.compile(r"(.*)\[('(?:[^'\\]|\\.)*'|\d+)\]")


@dataclass
class _Group:
    """Reads of one holder, all of attributes or all of items."""

    keys: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


def read_guards(
    locator: Locator, names: Namespace, given: set[str], leaf: Callable[[str, str, Any], None]
) -> Iterator[str]:
    """Lines of a prologue that return a Miss where something that was read has changed.

    `given` are the containers that are compared with the arguments; `leaf` adds the guard of a single value.
    """
    groups: dict[tuple[str, bool], _Group] = {}
    singles: list[tuple[str, Any, str]] = []
    for table, entries in locator.lookups.items():
        for key, value in entries.items():
            _add(groups, (table, False), key, value, key)
    for source, value, name in locator.values:
        if not _is_read(locator, source, value, given):
            continue
        place = _place(source) if _may_join(value) else None
        if place is None:
            singles.append((source, value, name or source))
        else:
            holder, key, is_attribute = place
            _add(groups, (holder, is_attribute), key, value, name or source)
    for (holder, is_attribute), group in groups.items():
        yield _line(holder, is_attribute, group, names)
    for source, value, name in singles:
        yield from _single(source, value, name, names, leaf)


def _add(groups: dict[Any, _Group], place: tuple[str, bool], key: Any, value: Any, label: str) -> None:
    group = groups.setdefault(place, _Group())
    if key not in group.keys:
        group.keys.append(key)
        group.values.append(value)
        group.labels.append(label)


def _is_read(locator: Locator, source: str, value: Any, given: set[str]) -> bool:
    if isinstance(value, (types.FunctionType, *OPERATORS)):
        return True
    inner = source[source.index("(") + 1 : -1] if source.startswith(("len(", "list(")) else source
    if inner in given or _TABLE.search(inner):
        return False
    if any(part in source for part in _PASSED) or _IN_CELL.search(inner):
        return True
    name = last_name(inner.removesuffix(".__dict__"))
    holder = last_name(inner.rpartition(".")[0])
    computed = locator.owners.get(source) in locator.all_of_classes or holder in locator.all_of
    return name != "training" and (computed or name in locator.used_names)


def _may_join(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return is_library(value.__code__.co_filename) or not is_users(value.__code__.co_filename)
    return isinstance(value, (*SIMPLE, *OPERATORS))


def _place(source: str) -> tuple[str, Any, bool] | None:
    """A source as its holder, the last key, and whether that is an attribute."""
    item = _ITEM.fullmatch(source)
    if item is not None:
        key = item[2]
        return item[1], int(key) if key.isdigit() else key[1:-1].encode().decode("unicode_escape"), False
    attribute = _ATTRIBUTE.fullmatch(source)
    return (attribute[1], attribute[2], True) if attribute is not None else None


def _line(holder: str, is_attribute: bool, group: _Group, names: Namespace) -> str:
    getter = operator.attrgetter(*group.keys) if is_attribute else operator.itemgetter(*group.keys)
    if len(group.keys) == 1:
        found = f"({holder}.{group.keys[0]},)" if is_attribute else f"({holder}[{names.literal(group.keys[0])}],)"
    else:
        found = f"{names.bind('get', getter)}({holder})"
    expected = names.bind("expected", tuple(group.values))
    same, identical = names.bind("same", same_values), names.bind("is_", operator.is_)
    changed, labels = names.bind("changed", _changed), names.bind("labels", tuple(group.labels))
    comment = f"  # {', '.join(group.labels)}".replace("\n", " ")[:120]
    condition = f"all(map({identical}, found := {found}, {expected})) or {same}(found, {expected})"
    return f"if not ({condition}): return {changed}(found, {expected}, {labels}){comment}"


def same_values(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether values are equal one by one, types included."""
    return len(found) == len(expected) and all(map(_equal, found, expected))


def _equal(found: Any, expected: Any) -> bool:
    """Whether a program could not tell two values apart."""
    if found is expected or type(found) is not type(expected):
        return found is expected
    if isinstance(found, (float, complex)):
        return repr(found) == repr(expected)  # 0.0 == -0.0, and nan != nan
    return isinstance(found, SIMPLE) and bool(found == expected)


def _changed(found: Sequence[Any], expected: Sequence[Any], labels: Sequence[str]) -> Miss:
    for new, old, label in zip(found, expected, labels):
        if not _equal(new, old):
            shown = f"{old!r:.40}" if isinstance(old, SIMPLE) else f"the {type(old).__name__} that it was"
            return Miss(f"{label} is {shown}")
    return Miss(f"{labels[0]} is what it was")


def _single(
    source: str, value: Any, name: str, names: Namespace, leaf: Callable[[str, str, Any], None]
) -> Iterator[str]:
    def require(condition: str, reason: str) -> str:
        return f"if not ({condition}): return {names.bind('miss', Miss(reason))}  # {reason}".replace("\n", " ")

    if isinstance(value, types.FunctionType):
        yield require(_function(source, value, names), f"function {name}")
    elif isinstance(value, Same):
        yield require(f"{source} is {value.source}", f"{name} is the object that {value.source} is")
    elif isinstance(value, (list, set, frozenset, slice)):
        kind = names.bind(type(value).__name__, type(value))
        same = f"{source} == {names.bind('value', value)}"
        yield require(
            same if type(value) is list else f"type({source}) is {kind} and {same}", f"{name} is {value!r:.40}"
        )
    elif isinstance(value, OPERATORS):
        yield require(f"{source} is {names.bind('op', value)}", f"{name} is the operator it was")
    else:
        leaf(source, name, value)


def _function(source: str, value: types.FunctionType, names: Namespace) -> str:
    function, code = names.bind("read", value), names.bind("code", value.__code__)
    defaults = "None" if value.__defaults__ is None else names.bind("defaults", value.__defaults__)
    same = "" if source in (function, "function") else f"{source} is {function} and "
    return f"{same}{function}.__code__ is {code} and {function}.__defaults__ is {defaults}"
