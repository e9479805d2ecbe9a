"""no_ops: drop views that view everything as it is.

    t0 = torch.ops.aten.detach.default(x)
    t1 = torch.ops.aten.sin.default(t0)      ->      t1 = torch.ops.aten.sin.default(x)

A view that is returned stays (it is an object of its own), and so does one of a tensor whose metadata changes, and one
at which gradients stop.
"""

from fulgurite.ir import BoundSymbol, Proxy, TensorProxy, Trace


def no_ops(trace: Trace) -> Trace:
    """The trace without views that change nothing."""
    returned = {p.name for p in trace.output_proxies}
    reshaped = {p.storage for bsym in trace.bound_symbols if bsym.written for p in bsym.outputs}
    renames: dict[str, Proxy] = {}
    kept: list[BoundSymbol] = []
    for original in trace.bound_symbols:
        bsym = original.renamed(renames) if renames else original
        source = _viewed(bsym)
        if source is not None and bsym.outputs[0].name not in returned and source.storage not in reshaped:
            renames[bsym.outputs[0].name] = source
        else:
            kept.append(bsym)
    return trace.after("no_ops", kept)


def _viewed(bsym: BoundSymbol) -> TensorProxy | None:
    """The tensor that the call's only result is an identical view of."""
    is_view = bsym.is_pure and "view" in bsym.all_tags and "no_grad" not in bsym.tags
    if not is_view or len(bsym.outputs) != 1 or len(bsym.inputs) != 1:
        return None
    source, view = bsym.inputs[0], bsym.outputs[0]
    if isinstance(source, TensorProxy) and isinstance(view, TensorProxy) and source.same_view(view):
        return source
    return None
