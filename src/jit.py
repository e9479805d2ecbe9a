"""The JIT: specialisations of a function; a call runs the one whose guards hold, or traces a new one."""

import copy
import functools
import threading
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack  # private: no public question for it

from fulgurite.branches import Diverged, going_on, place_of
from fulgurite.compile import Compiler, Options, Specialisation, Times, timed
from fulgurite.executors.base import Executor, get_executor
from fulgurite.executors.torch_eager import TORCH
from fulgurite.ir import Trace
from fulgurite.ir.errors import TraceError, Untraceable
from fulgurite.ir.printer import add_place
from fulgurite.ir.trace import Provenance
from fulgurite.trace.guards import Prologue, build_prologue, state_guard
from fulgurite.trace.inputs import definition
from fulgurite.trace.miss import Miss
from fulgurite.trace.program import Program, Stage, capture, dense, is_tracing, record_backward
from fulgurite.trace.source import warn
from fulgurite.trace.values import Start, Values
from fulgurite.transforms import open_composites
from fulgurite.transforms.pipeline import Pass

MAX_SPECIALISATIONS = 16
"""Past this many, a function runs calls that fit none of them without compiling."""

MAX_FAILURES = 8
"""A function that could not be traced so often, though it runs in eager, is not tried again; sooner if it never was."""

_tracing_lock = threading.RLock()


class _Failed(Exception):
    """A call could not be traced, for a reason that may be the program's own."""

    def __init__(self, cause: Exception) -> None:
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


@dataclass(frozen=True)
class Stages:
    """The traces behind a jitted function's most recent specialisation: every stage, first to last."""

    prologue: Prologue
    forward: tuple[Trace, ...]
    backwards: tuple[tuple[Trace, ...], ...]
    """Of each autograd function: a program whose outputs depend on each other has several."""

    @property
    def backward(self) -> tuple[Trace, ...]:
        """The stages of the backward, of the longest where there are several."""
        return max(self.backwards, key=lambda stages: len(stages[-1].bound_symbols), default=())


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
        start = None
        for entry in self.entries:
            inputs = entry.prologue.run(args, kwargs)
            if type(inputs) is not Miss:
                self.stats.hits += 1
                break
        else:
            try:
                traced, inputs, start = self._miss(args, kwargs)
            except _Failed as failed:
                return self._run_after_failure(failed.cause, args, kwargs)
            if traced is None:
                return self._run_uncompiled(args, kwargs)
            entry = traced
        if entry.path is not None:
            return self._run_path(entry, inputs, start, args, kwargs)
        try:
            if entry.epilogue is not None:
                return entry.epilogue(args, kwargs, entry.run(*inputs))
            return entry.run(*inputs)
        except Exception as error:
            add_place(error)
            raise

    def _run_uncompiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.stats.uncompiled += 1
        return self.fn(*args, **kwargs)

    def _run_after_failure(self, cause: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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

    def _run_path(
        self,
        entry: Specialisation,
        inputs: Any,
        start: Start | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a program that looks at its data, from path to path as the data wants it."""
        if self._unsettled and start is None:
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
        with _tracing_lock:
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
        with _tracing_lock:
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
                program = capture(self.fn, args, kwargs, values)
            backward: list[list[Trace]] = []
            compiler = Compiler(program, self.options, self.stats.times, backward)
            run, forward = compiler.compile()
            with timed(self.stats.times, "guards"):
                prologue = build_prologue(program, args, kwargs, state)
            if start is None and type(miss := prologue.run(args, kwargs)) is Miss:
                raise Untraceable(f"{definition(self.fn)}: what it reads changes while it is read: {miss.reason}")
            program.locator.forget()
        except Exception as error:
            values.undo()
            if start is None and self._may_run_uncompiled(error, program is not None):
                raise _Failed(error) from error
            raise
        inputs = program.recorder.release()
        entry = Specialisation(prologue, run, forward, backward, compiler.path, compiler.epilogue)
        self.stats.retraces.extend(reasons)
        if len(self.entries) < MAX_SPECIALISATIONS:
            self.entries = (entry, *self.entries)
        return entry, inputs, values.start()

    def _may_run_uncompiled(self, error: Exception, traced: bool) -> bool:
        """Whether eager may do what could not be traced: what the program raises itself, it raises there."""
        if isinstance(error, Untraceable):
            return self.options.on_unguarded == "warn"
        return not traced and not isinstance(error, TraceError)

    def _warn_of_traces(self, reason: str, outcome: str) -> None:
        self._warn(
            f"fulgurite: {self._name} was traced {len(self.entries)} times, most recently because another "
            f"call was needed where: {reason}; {outcome}"
        )

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warn(text)


def _runs_under_a_transform() -> bool:
    """Whether something outside interprets the call (a trace, torch.func, forward-mode AD): it sees the original."""
    if is_tracing() or forward_ad._current_level >= 0 or _get_current_dispatch_mode_stack():
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None  # private: torch.func has no public question


class _Jitted:
    """Calls go through specialisations; a copy or an unpickled one has its own."""

    __slots__ = ()
    _specialisations: Specialisations

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._specialisations.call(args, kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _jit_again, (self._specialisations.fn, self._specialisations.options)


class JittedFunction(_Jitted):
    """A function that `fg.jit` compiles at its first call; in a class body it binds like a method."""

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._specialisations = Specialisations(fn, options)

    def __getattr__(self, name: str) -> Any:
        if name == "_specialisations":  # not there yet
            raise AttributeError(name)
        return getattr(self._specialisations.fn, name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<fulgurite.jit of {self._specialisations.fn!r}>"


class JittedModule(_Jitted, torch.nn.Module):
    """Mixed into a module's class: all but calls is the module's own.

    The jitted object shares the `__dict__` of the original, so that state set on one shows on the other.
    """

    __slots__ = ("_specialisations",)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _jit_again(copy.deepcopy(self._specialisations.fn, memo), self._specialisations.options)


@functools.cache
def _jitted_class(kind: type) -> type:
    def plain(cls: type, *args: Any, **kwargs: Any) -> Any:
        return kind(*args, **kwargs)  # `type(jitted)(...)`, as containers make their slices: a module of its own

    body = {
        "__new__": plain,
        "__slots__": (),
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    return type(kind.__name__, (JittedModule, kind), body)


def _jit_again(fn: Any, options: Options) -> Any:
    if not isinstance(fn, torch.nn.Module):
        return JittedFunction(fn, options)
    kind: Any = type(fn)
    jitted: Any = object.__new__(_jitted_class(kind))
    jitted.__dict__ = fn.__dict__
    JittedModule._specialisations.__set__(jitted, Specialisations(fn, options))  # type: ignore[attr-defined]
    return jitted


def jit(
    fn: Any = None,
    *,
    executors: Sequence[Executor | str] = ("torch",),
    transforms: Sequence[Pass] = (),
    check: bool = False,
    on_unguarded: str = "warn",
) -> Any:
    """Compile a function or module by tracing it at its first call, and again when what it assumed changes.

    Args:
        fn: a function, method, `functools.partial`, or `torch.nn.Module`. Without it, `jit` is a decorator.
        executors: in order of priority; `torch`, which runs everything, is always the last.
        transforms: passes `Trace -> Trace`, run on what was recorded (in training on the joint trace) before the
            built-in ones.
        check: compare what custom ops return with what their fake kernels promised at every call, not only at the
            first one of each specialisation.
        on_unguarded: what to do where a program does what no trace can follow: it reads a clock, or draws from Python's
            random generator; takes an iterator or a tensor subclass; assigns `.data`. `warn`: such calls run without
            compiling, with one warning. `error`: they raise TraceError.

    Returns:
        A function, or a module: the same class to `isinstance`, sharing the original's parameters and attributes.

    Raises:
        TypeError: `fn` can't be called.
        ValueError: an executor's name, or `on_unguarded`, is not known.

    At its first call the result raises TraceError, naming the user's line, for what can't be traced.

    >>> @jit
    ... def double(x): return x * 2
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """
    chosen = [get_executor(executor) for executor in executors]
    if on_unguarded not in ("warn", "error"):
        raise ValueError(f"on_unguarded is 'warn' or 'error', not {on_unguarded!r}")
    options = Options((*(e for e in chosen if e is not TORCH), TORCH), tuple(transforms), check, on_unguarded)
    if fn is None:
        return functools.partial(
            jit, executors=executors, transforms=transforms, check=check, on_unguarded=on_unguarded
        )
    if not callable(fn):
        raise TypeError(f"fg.jit takes a function or a module, not {type(fn).__name__}")
    return _jit_again(_original(fn), options)


def _original(fn: Any) -> Any:
    return fn._specialisations.fn if isinstance(fn, _Jitted) else fn


def make_trace(fn: Callable[..., Any], *, grad: bool = False) -> Callable[..., Trace]:
    """A function that traces `fn` without compiling it, also from meta or fake tensors.

    Args:
        grad: give the joint trace, the program followed by its backward, which takes cotangents as further inputs
            and returns `(outputs, gradients)`.

    >>> print(make_trace(lambda x: x.sin())(torch.ones(2)).text(header=False, subsymbols=False))  # doctest: +ELLIPSIS
    def computation(x):
        # x: "cpu f32[2]"
        ...
        t0 = torch.Tensor.sin(x)  # t0: "cpu f32[2]"
        return t0
    <BLANKLINE>
    """

    def trace(*args: Any, **kwargs: Any) -> Trace:
        with _tracing_lock:
            start = time.perf_counter()
            program = capture(_original(fn), args, kwargs)
            made = _joint(program) if grad else program.trace
            return replace(made, provenance=Provenance(seconds=time.perf_counter() - start))

    return trace


def _joint(program: Program) -> Trace:
    targets = tuple(name for name, out in program.outputs.items() if out.requires_grad)
    plain = [name for name in program.outputs if name not in targets]
    return open_composites(
        record_backward(program, Stage(targets), plain, dense(program.outputs[name] for name in targets))
    )


def _specialisations(jitted: Any) -> Specialisations:
    if isinstance(jitted, types.MethodType):
        jitted = jitted.__func__
    if not isinstance(jitted, _Jitted):
        raise TypeError(f"expected what fg.jit returned, got {type(jitted).__name__}")
    return jitted._specialisations


def stats(jitted: Any) -> Stats:
    """Hits, misses, retrace reasons, and seconds by phase of a jitted function."""
    return _specialisations(jitted).stats


def traces(jitted: Any) -> Stages:
    """Prologue, and every stage of forward and backward, of the most recent specialisation.

    Raises:
        RuntimeError: it has not been called yet.
    """
    entries = _specialisations(jitted).entries
    if not entries:
        raise RuntimeError("no trace yet: call the jitted function first")
    return Stages(entries[0].prologue, tuple(entries[0].forward), tuple(map(tuple, entries[0].backward)))


def last_trace(jitted: Any) -> Trace:
    """The final forward trace of the most recent specialisation: what runs.

    Raises:
        RuntimeError: it has not been called yet.
    """
    return traces(jitted).forward[-1]
