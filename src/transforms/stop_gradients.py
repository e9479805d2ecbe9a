"""stop_gradients: detach what was computed while autograd was off, for a trace that runs under autograd.

with torch.no_grad():
    y = x * 2                t0 = torch.ops.aten.mul.Tensor(x, 2)
z = y + x             ->     t0_ = torch.ops.aten.detach.default(t0)
                             t1 = torch.ops.aten.add.Tensor(t0_, x)
"""

from dataclasses import replace

import torch

from fulgurite.ir import BoundSymbol, Proxy, TensorProxy, Trace, symbol_of

_DETACH = symbol_of(torch.ops.aten.detach.default)


def stop_gradients(trace: Trace) -> Trace:
    """The trace with a `detach` behind each call that was recorded under `no_grad`."""
    renames: dict[str, Proxy] = {}
    calls: list[BoundSymbol] = []
    for original in trace.bound_symbols:
        bsym = original.renamed(renames) if renames else original
        calls.append(bsym)
        if "no_grad" in bsym.tags and bsym.symbol is not _DETACH:
            for proxy in bsym.outputs:
                if isinstance(proxy, TensorProxy):
                    stopped = renames[proxy.name] = replace(proxy, name=f"{proxy.name}_")
                    calls.append(replace(bsym, symbol=_DETACH, args=(proxy,), kwargs={}, output=stopped))
    swap = BoundSymbol(_DETACH, (trace.output,), {}, None).renamed(renames)
    return trace.after("stop_gradients", calls, output=swap.args[0])
