"""dead_code: drop calls whose results nothing uses.

Kept whatever uses them: writes to memory that is an input's or is read later, random draws (the stream advances),
custom ops (their body may do anything), calls that define nothing, and all that comes before an assumption: with other
data, the program may go on in a way that uses it.
"""

from fulgurite.ir import BoundSymbol, Trace
from fulgurite.ir.assumption import ASSUME


def dead_code(trace: Trace) -> Trace:
    """The trace without the calls that have no effect on its result."""
    live = {p.name for p in trace.output_proxies}
    storages = {p.storage for p in (*trace.inputs, *trace.output_proxies)}
    kept: list[BoundSymbol] = []
    for i, bsym in reversed(list(enumerate(trace.bound_symbols))):
        if bsym.symbol is ASSUME:
            kept.extend(reversed(trace.bound_symbols[: i + 1]))
            break
        if not _is_needed(bsym, live, storages):
            continue
        kept.append(bsym)
        live.update(p.name for p in bsym.inputs)
        storages.update(p.storage for p in bsym.inputs)
    return trace.after("dead_code", kept[::-1])


def _is_needed(bsym: BoundSymbol, live: set[str], storages: set[int]) -> bool:
    if bsym.all_tags & {"random", "custom"} or bsym.written & storages:
        return True
    return any(p.name in live for p in bsym.outputs) or not (bsym.outputs or bsym.written)
