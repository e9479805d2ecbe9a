"""Specialisations of a function: a call runs the one whose guards hold, or traces a new one."""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack  # private: no public question for it

from fulgurite.branches import Diverged, going_on, place_of
from fulgurite.compile import Compiler, Options, Specialisation, Times, timed
from fulgurite.ir import Trace
from fulgurite.ir.errors import TraceError, Untraceable
from fulgurite.ir.printer import add_place
from fulgurite.trace.guards import build_prologue, state_guard
from fulgurite.trace.kinds import definition
from fulgurite.trace.miss import Miss
from fulgurite.trace.program import Program, capture, is_tracing
from fulgurite.trace.source import warn
from fulgurite.trace.values import Start, Values

MAX_SPECIALISATIONS = 16
"""Past this many, a function runs calls that fit none of them without compiling."""

MAX_FAILURES = 8
"""A function that could not be traced so often, though it runs in eager, is not tried again; sooner if it never was."""

tracing_lock = threading.RLock()
"""Held while a function is traced."""


class _Failed(Exception):
    """A call could not be traced, for a reason that may be the program's own."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass
class Stats:
    """What a jitted function did: calls that hit or missed, why it traced again, seconds by phase."""

    hits: int = 0
    misses: int = 0
    retraces: list[str] = field(default_factory=list)
    times: Times = field(default_factory=dict)
    uncompiled: int = 0


class Specialisations:
    """The compiled variants of one function, most recent first."""

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        self.fn = fn
        self.options = options
        self.entries: tuple[Specialisation, ...] = ()
        self.stats = Stats()
        self._warned = False
        self._unsettled = False
        self._failures = 0

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the first specialisation whose guards hold, else trace."""
        for entry in self.entries:
            inputs = entry.check(args, kwargs)
            if type(inputs) is not Miss:
                self.stats.hits += 1
                if not entry.is_plain:
                    return self._run_special(entry, inputs, None, args, kwargs)
                try:
                    return entry.run(*inputs)
                except Exception as error:
                    add_place(error)
                    raise
        try:
            traced, inputs, start = self._miss(args, kwargs)
        except _Failed as failed:
            return self._run_after_failure(failed.cause, args, kwargs)
        if traced is None:
            return self._run_uncompiled(args, kwargs)
        return self._run_special(traced, inputs, start, args, kwargs)

    def _run_uncompiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.stats.uncompiled += 1
        return self.fn(*args, **kwargs)

    def _run_after_failure(self, cause: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run what could not be traced: a program that raises does so here, after the effects that it has in eager."""
        try:
            found = self._run_uncompiled(args, kwargs)
        except Exception as error:
            if type(error) is type(cause):
                error.trace = getattr(cause, "trace", None)  # type: ignore[attr-defined]
                for note in getattr(cause, "__notes__", ()):
                    error.add_note(note)
            raise
        self._failures += 1 if self.entries else MAX_FAILURES // 2
        text = str(cause) if isinstance(cause, Untraceable) else f"{type(cause).__name__}: {cause}"
        self._warn(f"fulgurite: {self._name} can't be traced, and runs without compiling: {text}")
        return found

    @property
    def _name(self) -> str:
        return getattr(self.fn, "__qualname__", None) or type(self.fn).__name__

    def _run_special(
        self,
        entry: Specialisation,
        inputs: Any,
        start: Start | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a program; one that looks at its data from path to path as the data wants it."""
        if self._unsettled and start is None and entry.path is not None:
            return self._run_uncompiled(args, kwargs)
        while True:
            try:
                with going_on(start):
                    found = entry.run(*inputs)
                return found if entry.epilogue is None else entry.epilogue(args, kwargs, found)
            except Diverged as diverged:
                entry, inputs, start = self._branch(diverged, args, kwargs)
            except Exception as error:
                add_place(error)
                raise

    def _branch(
        self, diverged: Diverged, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Specialisation, Any, Start | None]:
        """The path in which a call goes on, traced now if there is none."""
        with tracing_lock:
            for entry in self.entries:
                if entry.path is not None and entry.path.continues(diverged):
                    inputs = entry.prologue.run(args, kwargs)
                    if type(inputs) is not Miss:
                        return entry, inputs, diverged.start
            place = place_of(diverged.path, diverged.index)
            self._unsettled = len(self.entries) >= MAX_SPECIALISATIONS
            if self._unsettled:
                self._warn_of_traces(f"the program looked at other data at {place}", "it now runs without compiling")
            made = self._specialise(args, kwargs, [f"other data at {place}"], diverged.start)
        self.stats.misses += 1
        return made

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Specialisation | None, Any, Start | None]:
        """A new specialisation, its inputs, and where to start in it; None where the call is to run without."""
        if self._failures >= MAX_FAILURES or _runs_under_a_transform():
            return None, (), None
        with tracing_lock:
            for entry in self.entries:  # another thread may have traced it meanwhile
                inputs = entry.prologue.run(args, kwargs)
                if type(inputs) is not Miss:
                    return entry, inputs, None
            reasons = [entry.prologue.run(args, kwargs).reason for entry in self.entries[:1]]
            if len(self.entries) >= MAX_SPECIALISATIONS:
                self._warn_of_traces(reasons[0], "calls that fit none of these traces run without compiling")
                return None, (), None
            made = self._specialise(args, kwargs, reasons)
        self.stats.misses += 1
        return made

    def _specialise(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], reasons: list[str], start: Start | None = None
    ) -> tuple[Specialisation, list[torch.Tensor], Start | None]:
        state, values, program = state_guard(), Values(start), None
        try:
            with timed(self.stats.times, "record"):
                program, values = self._capture(args, kwargs, values, start)
            backward: list[list[Trace]] = []
            compiler = Compiler(program, self.options, self.stats.times, backward)
            run, forward = compiler.compile()
            with timed(self.stats.times, "guards"):
                prologue = build_prologue(program, args, kwargs, state)
            if start is None and type(miss := prologue.run(args, kwargs)) is Miss:
                raise Untraceable(f"{definition(self.fn)}: what it reads changes while it is read: {miss.reason}")
            program.locator.forget()
        except BaseException as error:
            values.undo()
            if start is None and self._may_run_uncompiled(error, program is not None):
                raise _Failed(error) from error
            raise
        inputs = program.recorder.release()
        _log_retrace(self._name, len(self.entries), reasons)
        entry = Specialisation(prologue, run, forward, backward, compiler.path, compiler.epilogue)
        self.stats.retraces.extend(reasons)
        if len(self.entries) < MAX_SPECIALISATIONS:
            self.entries = (entry, *self.entries)
        return entry, inputs, values.start()

    def _capture(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], values: Values, start: Start | None
    ) -> tuple[Program, Values]:
        try:
            return capture(self.fn, args, kwargs, values), values
        except Exception as error:
            if isinstance(error, TraceError) or not values.has_numbers:
                raise
        values.undo()
        values = Values(start)  # something may have wanted real numbers
        return capture(self.fn, args, kwargs, values, keeps_numbers=False), values

    def _may_run_uncompiled(self, error: BaseException, traced: bool) -> bool:
        """Whether eager may do what could not be traced: what the program raises itself, it raises there."""
        if isinstance(error, Untraceable):
            return self.options.on_unguarded == "warn"
        return not traced and isinstance(error, Exception) and not isinstance(error, TraceError)

    def _warn_of_traces(self, reason: str, outcome: str) -> None:
        self._warn(
            f"fulgurite: {self._name} was traced {len(self.entries)} times, most recently because another "
            f"call was needed where: {reason}; {outcome}"
        )

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warn(text)


def _log_retrace(name: str, before: int, reasons: list[str]) -> None:
    if reasons and "retrace" in os.environ.get("FULGURITE_LOG", ""):
        print(f"fulgurite: {name} traced again (it has {before} traces): {reasons[0]}", file=sys.stderr)


def _runs_under_a_transform() -> bool:
    """Whether something outside interprets the call (a trace, torch.func, forward-mode AD): it sees the original.

    So does anomaly mode, which looks at the result of every call of the program's own backward.
    """
    if is_tracing() or forward_ad._current_level >= 0 or _get_current_dispatch_mode_stack():
        return True
    if torch.is_anomaly_enabled():
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None  # private: torch.func has no public question
