"""Code generation: the final trace as one Python function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fulgurite.ir import Trace
from fulgurite.ir.printer import generate


def compile_trace(trace: Trace) -> Callable[..., Any]:
    """A function of the trace's inputs that returns its output; tracebacks show its lines."""
    return generate(trace)
