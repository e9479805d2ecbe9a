"""The errors: a program that cannot be traced, and a trace that is no program."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fulgurite.ir.trace import Trace


class TraceError(RuntimeError):
    """A program cannot be traced, and running it otherwise would not be what was asked for.

    The message names the user's line, the operation, and what to do. `trace` holds what was recorded before it.
    """

    trace: Trace | None = None


class Untraceable(TraceError):
    """A program does what no trace can follow, though eager can. By default such calls run without compiling."""


class DiffersFromEager(AssertionError):
    """With `check=True`, a call did something else than eager: a bug of fulgurite's, or a kernel that is not exact."""


class InvalidTrace(Exception):
    """A trace is no valid program; the message shows the lines around the fault."""
