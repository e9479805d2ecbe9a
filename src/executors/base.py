"""Executors: who runs a call. Operator executors claim calls one by one, fusion executors whole regions."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from fulgurite.ir import BoundSymbol, Proxy, Symbol, Trace
from fulgurite.ir.symbol import callable_of, overloads_of


class Executor:
    """Something that can run calls of a trace.

    Args:
        name: how traces name it; unique among registered executors.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def claim(self, trace: Trace) -> Trace:
        """The trace with the calls that this executor takes replaced by its own; the rest as it was."""
        return trace


class OperatorExecutor(Executor):
    """Runs single calls with implementations registered for their symbols.

    >>> mine = OperatorExecutor("mine")
    >>> @mine.register(torch.sin)
    ... def sin(x): return torch.sin(x)
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._table: dict[Any, tuple[Symbol, Callable[..., bool] | None]] = {}

    def register(
        self, target: Symbol | Callable[..., Any], *, checker: Callable[..., bool] | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register, as a decorator, an implementation of a symbol.

        Args:
            target: a Symbol, a torch function as the program calls it, or an operator (`torch.ops.ns.op`, one of
                its overloads, or the object that `torch.library.custom_op` gives).
            checker: takes the call's arguments, with proxies for tensors, and says whether to claim it.

        The implementation takes the call's arguments and returns what the call returns, in the same layout.
        """

        def add(fn: Callable[..., Any]) -> Callable[..., Any]:
            symbol = Symbol(f"{self.name}.{getattr(fn, '__name__', 'call')}", fn, executor=self.name)
            self._table[callable_of(target)] = (symbol, checker)
            return fn

        return add

    def claim(self, trace: Trace) -> Trace:
        if not self._table:
            return trace
        calls = tuple(self._claim(bsym) for bsym in trace.bound_symbols)
        return trace if calls == trace.bound_symbols else trace.after(f"claim_{self.name}", calls)

    def _claim(self, bsym: BoundSymbol) -> BoundSymbol:
        found = self._find(bsym)
        if found is not None:
            return replace(bsym, symbol=replace(found, tags=bsym.all_tags - {"autograd"}))
        subs = tuple(map(self._claim, bsym.subsymbols))
        if all(new is old for new, old in zip(subs, bsym.subsymbols)):
            return bsym
        return replace(bsym, subsymbols=subs, tags=bsym.tags | {"open"})

    def _find(self, bsym: BoundSymbol) -> Symbol | None:
        if bsym.symbol.executor is not None:
            return None
        fn = bsym.symbol.fn
        found = self._table.get(fn) or self._table.get(getattr(fn, "overloadpacket", None))
        if found is None and isinstance(fn, torch._ops.OpOverloadPacket):
            found = self._table.get(overloads_of(fn)[0])
        symbol, checker = found or (None, None)
        return None if checker and not checker(*bsym.args, **bsym.kwargs) else symbol


class FusionExecutor(Executor):
    """Runs regions of calls as one. Subclasses say what may join a region, and what runs it."""

    min_size = 2

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether a call may be part of a region; by default every pure call of torch's own."""
        return bsym.is_pure and bsym.symbol.executor is None

    def fuse(self, region: Trace) -> Callable[..., Any]:
        """A callable for a region: takes its inputs in order, returns a tuple of its outputs."""
        raise NotImplementedError

    def claim(self, trace: Trace) -> Trace:
        calls: list[BoundSymbol] = []
        count, body = 0, trace.bound_symbols
        for joins, group in itertools.groupby(range(len(body)), lambda i: self.can_fuse(body[i])):
            indices = list(group)
            start, end = indices[0], indices[-1] + 1
            if joins and len(indices) >= self.min_size:
                calls.append(self._fused(trace, start, end, count))
                count += 1
            else:
                calls.extend(body[start:end])
        return trace.after(f"claim_{self.name}", calls) if count else trace

    def _fused(self, trace: Trace, start: int, end: int, index: int) -> BoundSymbol:
        region = _region(trace, start, end, f"{self.name}_{index}")
        symbol = Symbol(f"{self.name}.fusion_{index}", self.fuse(region), executor=self.name)
        body, first = region.bound_symbols, region.bound_symbols[0]
        return BoundSymbol(symbol, region.inputs, {}, region.output, body, first.module, first.source)


def _region(trace: Trace, start: int, end: int, name: str) -> Trace:
    """The calls `start` to `end` as a trace of their own: inputs from before, outputs that are used after."""
    calls = trace.bound_symbols[start:end]
    made: dict[str, Proxy] = {p.name: p for bsym in calls for p in bsym.outputs}
    read: dict[str, Proxy] = {p.name: p for bsym in calls for p in bsym.inputs}
    later = {p.name for bsym in trace.bound_symbols[end:] for p in bsym.inputs} | {p.name for p in trace.output_proxies}
    inputs = tuple(p for key, p in read.items() if key not in made)
    return Trace(name, inputs, calls, tuple(p for key, p in made.items() if key in later), trace.constants)


_executors: dict[str, Executor] = {}


def register_executor(executor: Executor) -> Executor:
    """Make an executor known by its name; the same name again replaces it."""
    _executors[executor.name] = executor
    return executor


def get_executor(executor: Executor | str) -> Executor:
    """An executor, by itself or by name.

    Raises:
        ValueError: no executor of that name is registered.
    """
    if isinstance(executor, Executor):
        return executor
    if executor not in _executors:
        raise ValueError(f"no executor named {executor!r}; there are {', '.join(sorted(_executors))}")
    return _executors[executor]


def claim_all(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """Let each executor claim what it can, in order of priority."""
    for executor in executors:
        trace = executor.claim(trace)
    return trace
