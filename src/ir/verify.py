"""The checker: a trace defines every name once and before it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulgurite.ir.errors import InvalidTrace
from fulgurite.ir.printer import DELETE

if TYPE_CHECKING:
    from fulgurite.ir.trace import BoundSymbol, Trace


def check(trace: Trace) -> None:
    """Raise InvalidTrace unless `trace` is a valid program."""
    defined: set[str] = set()
    deleted: set[str] = set()
    for proxy in trace.inputs:
        if proxy.name in defined:
            raise InvalidTrace(f"trace '{trace.name}' has two inputs named {proxy.name}")
        defined.add(proxy.name)
    for i, bsym in enumerate(trace.bound_symbols):
        fault = _fault(bsym, defined, deleted)
        if fault:
            raise InvalidTrace(_show(trace, i, fault))
        defined.update(p.name for p in bsym.outputs)
        if bsym.symbol is DELETE:
            deleted.update(p.name for p in bsym.inputs)
    for proxy in trace.output_proxies:
        if proxy.name not in defined or proxy.name in deleted:
            raise InvalidTrace(_show(trace, len(trace.bound_symbols), f"returns {proxy.name}, which is not defined"))


def _fault(bsym: BoundSymbol, defined: set[str], deleted: set[str]) -> str | None:
    for proxy in bsym.inputs:
        if proxy.name in deleted:
            return f"{proxy.name} is read after it was deleted"
        if proxy.name not in defined:
            return f"{proxy.name} is read before it is defined"
    for proxy in bsym.outputs:
        if proxy.name in defined:
            return f"{proxy.name} is defined twice"
    return None


def _show(trace: Trace, index: int, fault: str) -> str:
    """The fault with the three calls before and after it."""
    body = trace.text(header=False, subsymbols=False).splitlines()
    calls = [line for line in body[1:] if not line.lstrip().startswith("#")]
    first = max(0, index - 3)
    shown = [f"{'--> ' if i == index else '    '}{calls[i].strip()}" for i in range(first, min(len(calls), index + 4))]
    return f"trace '{trace.name}' ({trace.provenance.made_by}): {fault}\n" + "\n".join(shown)
