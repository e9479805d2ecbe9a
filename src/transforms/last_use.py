"""last_use: delete each value after the last call that reads it, so that its memory is free from there on.

t1 = torch.sin(t0)
t2 = torch.cos(t1)      ->      t2 = torch.cos(t1); del t1
"""

from fulgurite.ir import BoundSymbol, Proxy, Trace
from fulgurite.ir.printer import DELETE


def last_use(trace: Trace) -> Trace:
    """The trace with a `del` line behind the last use of what it computed."""
    seen = {p.name for p in (*trace.inputs, *trace.output_proxies)}
    lines: list[BoundSymbol] = []
    for bsym in reversed(trace.bound_symbols):
        done: dict[str, Proxy] = {p.name: p for p in (*bsym.inputs, *bsym.outputs) if p.name not in seen}
        seen.update(done)
        if done:
            lines.append(BoundSymbol(DELETE, tuple(done.values()), {}, None))
        lines.append(bsym)
    return trace.after("last_use", lines[::-1])
