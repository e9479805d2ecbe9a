"""A program that looks at its data, run: one path for each way that it went, paths that share their beginning.

A path runs piece by piece, each up to an assumption. Where the data is not what the path was recorded for, the call
goes on, from that very place, in another path with the same beginning.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fulgurite.ir import BoundSymbol, Source, Trace, is_proxy
from fulgurite.ir.assumption import ASSUME, seen
from fulgurite.ir.tree import map_leaves
from fulgurite.trace.values import Start, Values

_going_on = threading.local()


@dataclass(frozen=True)
class Piece:
    """A part of a path up to an assumption."""

    code: Callable[..., tuple[Any, ...]]
    needs: tuple[str, ...]
    defines: tuple[str, ...]
    looks_at: tuple[str, ...]  # values that are looked at behind it
    expected: tuple[Any, ...]
    output: Any  # of the call that made them
    text: str
    source: Source | None


class Diverged(Exception):
    """Not an error: a path can't go on with what it saw; `start` is where another one has to."""

    def __init__(self, path: "Path", index: int, values: dict[str, Any]) -> None:
        super().__init__("the program goes another way with this data")
        self.path = path
        self.index = index
        outputs = [piece.output for piece in path.pieces[: index + 1]]
        results = [map_leaves(lambda leaf: values[leaf.name] if is_proxy(leaf) else leaf, out) for out in outputs]
        known = {name: value for name, value in values.items() if name in path.computed}
        self.start = Start(results, known, path.kept[: path.kept_at[index]])
        self.found = tuple(seen(values[name]) for name in path.pieces[index].looks_at)


class Path:
    """The compiled pieces of a trace with assumptions, as a function of the trace's inputs."""

    def __init__(self, trace: Trace, values: Values, compile_piece: Callable[[Trace], Callable[..., Any]]) -> None:
        *bodies, last = pieces_of(trace)
        self.kept, self.kept_at = values.kept, values.kept_at
        self.inputs = [p.name for p in trace.inputs]
        self.pieces = [_piece(body, compile_piece) for body in bodies]
        self.computed = {name for piece in self.pieces for name in piece.defines}
        self._last = compile_piece(last)
        self._last_needs = [p.name for p in last.inputs]

    def __call__(self, *inputs: Any) -> Any:
        start, _going_on.start = getattr(_going_on, "start", None), None
        values = dict(zip(self.inputs, inputs))
        if start is not None:
            values.update((name, value) for name, value in start.values.items() if name in self.computed)
        for index in range(len(start.results) if start else 0, len(self.pieces)):
            piece = self.pieces[index]
            values.update(zip(piece.defines, piece.code(*[values[name] for name in piece.needs])))
            if tuple(seen(values[name]) for name in piece.looks_at) != piece.expected:
                raise Diverged(self, index, values)
        given = [values[name] for name in self._last_needs]
        values.clear()
        return self._last(*given)

    def continues(self, diverged: Diverged) -> bool:
        """Whether this path goes on where another one could not."""
        here, there, index = self.pieces, diverged.path.pieces, diverged.index
        return (
            len(here) > index
            and here[index].expected == diverged.found
            and all(a.text == b.text for a, b in zip(here, there[: index + 1]))
            and all(a.expected == b.expected for a, b in zip(here, there[:index]))
        )


@contextmanager
def going_on(start: Start | None) -> Iterator[None]:
    """Let the path that is called in this block begin at `start`."""
    _going_on.start = start
    try:
        yield
    finally:
        _going_on.start = None


def has_assumptions(trace: Trace) -> bool:
    """Whether a trace holds for some data only."""
    return any(bsym.symbol is ASSUME for bsym in trace.bound_symbols)


def beginning(trace: Trace) -> Trace:
    """The calls up to the last assumption, at the dispatcher's level: what paths may have in common."""
    return replace(trace, bound_symbols=tuple(call for b in trace.bound_symbols[: _end(trace)] for call in b.flat()))


def ending(trace: Trace) -> Trace:
    """The calls behind the last assumption, as a trace that takes what it needs of the others."""
    calls = trace.bound_symbols[_end(trace) :]
    before = {p.name: p for b in trace.bound_symbols[: _end(trace)] for call in b.flat() for p in call.outputs}
    read = [p.name for bsym in calls for p in bsym.inputs] + [p.name for p in trace.output_proxies]
    needed = tuple(before[name] for name in dict.fromkeys(read) if name in before)
    return replace(trace, inputs=(*trace.inputs, *needed), bound_symbols=calls)


def _end(trace: Trace) -> int:
    return max(i for i, bsym in enumerate(trace.bound_symbols) if bsym.symbol is ASSUME) + 1


def pieces_of(trace: Trace) -> list[Trace]:
    """The parts of a trace between its assumptions, each with its assumption; they return all that they compute."""
    pieces: list[Trace] = []
    calls: list[BoundSymbol] = []
    for bsym in trace.bound_symbols[: _end(trace)]:
        calls.append(bsym)
        if bsym.symbol is ASSUME:
            made = {p.name: p for call in calls for p in call.outputs}
            read = {p.name: p for call in calls for p in call.inputs if p.name not in made}
            body = replace(trace, name="piece", inputs=tuple(read.values()), bound_symbols=tuple(calls))
            pieces.append(replace(body, output=tuple(made.values())))
            calls = []
    return [*pieces, ending(trace)]


def _piece(body: Trace, compile_piece: Callable[[Trace], Callable[..., Any]]) -> Piece:
    *calls, looked_at, assumption = body.bound_symbols
    values, expected = assumption.args
    body = replace(body, bound_symbols=(*calls, looked_at))
    return Piece(
        compile_piece(body),
        tuple(p.name for p in body.inputs),
        tuple(p.name for p in body.output),
        tuple(p.name for p in values),
        tuple(map(seen, expected)),
        looked_at.output,
        body.text(header=False),
        looked_at.source,
    )


def place_of(path: Path, index: int) -> str:
    """File and line where a path looks at its data."""
    source = path.pieces[index].source
    return f"{source.file}:{source.line}" if source else "a line that is not known"
