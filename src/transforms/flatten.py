"""flatten: replace calls by the dispatcher calls that they stand for.

t2 = torch.nn.functional.linear(x, w)   ->   t0 = torch.ops.aten.t.default(w)
                                             t1 = torch.ops.aten.mm.default(x, t0)
"""

from fulgurite.ir import BoundSymbol, Trace


def flatten(trace: Trace) -> Trace:
    """The same program at the dispatcher's level."""
    return trace.after("flatten", trace.flat())


def open_composites(trace: Trace) -> Trace:
    """The same program with those calls opened that hide a value which is read outside of them."""
    read = {p.name for bsym in trace.bound_symbols for p in bsym.inputs} | {p.name for p in trace.output_proxies}
    calls: list[BoundSymbol] = []
    for bsym in trace.bound_symbols:
        inner = {p.name for call in bsym.flat() for p in call.outputs} - {p.name for p in bsym.outputs}
        calls.extend(bsym.flat() if inner & read else (bsym,))
    return trace.after("open_composites", calls)
