"""Checking custom ops while they run: a fake kernel that lies would make every trace with the op a lie."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fulgurite.ir import BoundSymbol, Trace
from fulgurite.ir.errors import TraceError
from fulgurite.ir.printer import compile_trace
from fulgurite.ir.promise import broken_promise


def compile_checked(trace: Trace, *, always: bool) -> Callable[..., Any]:
    """`compile_trace`, where custom ops are compared with their fake kernels in the first run, or in each.

    The result raises TraceError naming the op, what its fake kernel promised, and what it returned.
    """
    plain = compile_trace(trace)
    if not any("custom" in bsym.symbol.tags for bsym in trace.bound_symbols):
        return plain
    checked = compile_trace(replace(trace, bound_symbols=tuple(map(_checking, trace.bound_symbols))))
    if always:
        return checked
    pending = [checked]

    def run(*inputs: Any) -> Any:
        if not pending:
            return plain(*inputs)
        found = checked(*inputs)
        pending.clear()
        return found

    return run


def _checking(bsym: BoundSymbol) -> BoundSymbol:
    if "custom" not in bsym.symbol.tags or "data" in bsym.tags:
        return bsym
    fn = bsym.symbol.fn

    def check(*args: Any, **kwargs: Any) -> Any:
        out = fn(*args, **kwargs)
        broken = broken_promise(bsym, out)
        if broken is not None:
            raise TraceError(broken)
        return out

    return replace(bsym, symbol=replace(bsym.symbol, fn=check))
