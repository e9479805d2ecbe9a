"""The pipeline: passes in order, each timed, each result kept."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from fulgurite.ir import Trace

Pass = Callable[[Trace], Trace]


def run(trace: Trace, passes: Sequence[Pass], *, verify: bool = False) -> Trace:
    """Apply passes in order, and verify each stage if asked to; `result.history` holds every stage."""
    for transform in passes:
        start = time.perf_counter()
        made = transform(trace)
        if made is not trace and made.provenance.parent is None:
            made = replace(made, provenance=replace(made.provenance, parent=trace))
        seconds = time.perf_counter() - start
        name = getattr(transform, "__name__", type(transform).__name__)
        trace = replace(made, provenance=replace(made.provenance, made_by=name, seconds=seconds))
        if verify:
            trace.verify()
    return trace
