"""flatten: replace every call by the dispatcher calls that it stands for.

    t2 = torch.nn.functional.linear(x, w)   ->   t0 = torch.ops.aten.t.default(w)
                                                 t1 = torch.ops.aten.mm.default(x, t0)
"""

from __future__ import annotations

from fulgurite.ir import Trace


def flatten(trace: Trace) -> Trace:
    """The same program at the dispatcher's level."""
    return trace.after("flatten", trace.flat())
