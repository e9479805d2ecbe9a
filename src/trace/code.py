"""What code objects tell about the program: the names they use, the chains of attributes that they look up."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fulgurite.trace.source import is_users

_COMPUTED = {"vars", "__dict__", "asdict", "astuple"}
"""Names by which a program reads attributes that it does not name."""


@dataclass(frozen=True)
class Facts:
    """What a code object names."""

    names: frozenset[str]  # attributes, globals, closure variables, and string constants: config["scale"]
    chains: tuple[tuple[str, ...], ...]  # lookups rooted at a global: ("torch", "nn", "functional", "relu")
    stored: frozenset[str]  # globals that it assigns
    computed: frozenset[str]  # where it may read attributes that it does not name: its variables, the objects may be in
    strings: frozenset[str]


@functools.lru_cache(maxsize=10_000)
def facts(code: types.CodeType) -> Facts:
    """The facts of a code object and of those inside of it."""
    names = {*code.co_names, *code.co_freevars}
    strings = {constant for constant in code.co_consts if isinstance(constant, str)}
    instructions = list(dis.get_instructions(code))
    chains, stored = dict.fromkeys(_chains(instructions)), set(_stored(instructions))
    is_computed = bool(names & _COMPUTED) or _has_computed_getattr(instructions)
    computed = {*code.co_varnames, *code.co_freevars, *code.co_names} if is_computed else set()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = facts(constant)
            names |= inner.names
            strings |= inner.strings
            stored |= inner.stored
            chains.update(dict.fromkeys(inner.chains))
            computed |= inner.computed
    return Facts(frozenset(names | strings), tuple(chains), frozenset(stored), frozenset(computed), frozenset(strings))


def _chains(instructions: list[dis.Instruction]) -> Iterator[tuple[str, ...]]:
    chain: tuple[str, ...] = ()
    for instruction in instructions:
        if chain and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain = (*chain, instruction.argval)
            continue
        if chain:
            yield chain
        chain = (instruction.argval,) if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    if chain:
        yield chain


def _stored(instructions: list[dis.Instruction]) -> Iterator[str]:
    return (i.argval for i in instructions if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"))


def _has_computed_getattr(instructions: list[dis.Instruction]) -> bool:
    """Whether `getattr` is called with a name that is no constant."""
    for start, instruction in enumerate(instructions):
        if instruction.argval in ("getattr", "hasattr", "setattr") and instruction.opname.startswith("LOAD"):
            arguments = []
            for following in instructions[start + 1 :]:
                if following.opname.startswith("CALL"):
                    break
                arguments.append(following)
            if not any(a.opname == "LOAD_CONST" and isinstance(a.argval, str) for a in arguments):
                return True
    return False


@contextmanager
def watching(learn: Callable[[types.CodeType, dict[str, Any]], None]) -> Iterator[None]:
    """Call `learn` with each code object of the user's and its globals, before it runs for the first time.

    The interpreter's own hook for debuggers; one that is there already goes on working.
    """
    seen: set[types.CodeType] = set()
    before = sys.gettrace()

    def trace(frame: types.FrameType, event: Any, arg: Any) -> Any:
        code = frame.f_code
        if code not in seen:
            seen.add(code)
            if is_users(code.co_filename):
                learn(code, frame.f_globals)
        return before(frame, event, arg) if before is not None else None

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def unwatched() -> Iterator[None]:
    """Nothing of the user's runs in this block, so nothing is looked for."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)
