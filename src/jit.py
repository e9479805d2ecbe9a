"""`fg.jit` and what it returns: a function or module whose calls go through specialisations."""

import copy
import functools
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fulgurite.checking import CheckedSpecialisations
from fulgurite.compile import Options
from fulgurite.executors.base import Executor, get_executor
from fulgurite.executors.torch_eager import TORCH
from fulgurite.ir import Trace
from fulgurite.ir.trace import Provenance
from fulgurite.specialisations import Specialisations, Stats, tracing_lock
from fulgurite.trace.guards import Prologue
from fulgurite.trace.program import Program, Stage, capture, dense, record_backward
from fulgurite.transforms import open_composites
from fulgurite.transforms.pipeline import Pass


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
        self._specialisations = _made(fn, options)

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


def _made(fn: Any, options: Options) -> Specialisations:
    return (CheckedSpecialisations if options.check else Specialisations)(fn, options)


def _jit_again(fn: Any, options: Options) -> Any:
    if not isinstance(fn, torch.nn.Module):
        return JittedFunction(fn, options)
    kind: Any = type(fn)
    jitted: Any = object.__new__(_jitted_class(kind))
    jitted.__dict__ = fn.__dict__
    JittedModule._specialisations.__set__(jitted, _made(fn, options))  # type: ignore[attr-defined]
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
        check: run eager beside every call and compare outputs, written arguments and the random state, bit for bit;
            and what custom ops return with what their fake kernels promised at every call, not only at the first one
            of each specialisation. Slow; gradients are not compared.
        on_unguarded: what to do where a program does what no trace can follow: it reads a clock, or draws from Python's
            random generator; takes an iterator or a tensor subclass; assigns `.data`. `warn`: such calls run without
            compiling, with one warning. `error`: they raise TraceError.

    Returns:
        A function, or a module: the same class to `isinstance`, sharing the original's parameters and attributes.

    Raises:
        TypeError: `fn` can't be called.
        ValueError: an executor's name, or `on_unguarded`, is not known.

    Calls raise DiffersFromEager with `check`, and TraceError for a custom op whose fake kernel does not tell the truth.

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
        with tracing_lock:
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


def assert_max_traces(jitted: Any, count: int) -> None:
    """For tests: a jitted function was not traced more than so often.

    Raises:
        AssertionError: it was; the message says what each trace but the first was made for.
    """
    found = stats(jitted)
    if found.misses > count:
        reasons = "".join(f"\n  {reason}" for reason in found.retraces)
        raise AssertionError(f"{jitted!r:.80} was traced {found.misses} times, not {count}, again since:{reasons}")


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
