"""The pipeline: passes in order, each timed, each result kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from fulgurite.ir import Trace
from fulgurite.transforms.common_subexpressions import common_subexpressions
from fulgurite.transforms.dead_code import dead_code
from fulgurite.transforms.last_use import last_use
from fulgurite.transforms.no_ops import no_ops

Pass = Callable[[Trace], Trace]

DEFAULT_PASSES: tuple[Pass, ...] = (no_ops, common_subexpressions, dead_code)
"""Passes that every trace goes through before executors claim its calls; `last_use` comes after them."""


def run(trace: Trace, passes: Sequence[Pass], *, verify: bool = False) -> Trace:
    """Apply passes in order; `result.history` holds every stage.

    Args:
        verify: check each stage (see `Trace.verify`); tests do.
    """
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


__all__ = ["DEFAULT_PASSES", "Pass", "common_subexpressions", "dead_code", "last_use", "no_ops", "run"]
