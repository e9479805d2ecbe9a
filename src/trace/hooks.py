"""Hooks that run in backward: each call that autograd makes of one is a call of the trace, made with real tensors.

A hook may look at gradients, keep them, or count; so it must not run on stand-ins, and must run at every backward.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fulgurite.ir import Symbol
from fulgurite.ir.tree import map_leaves
from fulgurite.trace.kinds import SIMPLE

if TYPE_CHECKING:
    from fulgurite.trace.recorder import Recorder


def as_call(recorder: Recorder, hook: Callable[..., Any], *first: Any) -> Callable[..., Any]:
    """A hook that records a call of `hook(*first, *given)`; what it may replace is the first of `given`."""

    def run(*given: Any) -> Any:
        found = hook(*first, *given)
        return given[0] if found is None else _like(found, given[0])

    symbol = Symbol(f"hook_{getattr(hook, '__name__', type(hook).__name__)}", run, tags=frozenset({"custom"}))

    def recorded_hook(*given: Any) -> Any:
        out = map_leaves(lambda leaf: _stand_in(recorder, leaf), given[0])
        recorder.note(symbol, given, out)
        return out

    return recorded_hook


def register(recorder: Recorder, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a `register_hook` of the program, with a hook that is recorded."""
    tensor, hook = args
    if any(item.fake is tensor for item in recorder.inputs):
        recorder.refuse("the program registers a hook on a tensor that it was given", "register it outside of fg.jit")
    if any(_is_of_this_call(recorder, value) for value in _held_by(hook)):
        recorder.refuse("the program registers a hook that holds what this call made", "use an autograd.Function")
    return tensor, as_call(recorder, hook)


def _held_by(hook: Any) -> Iterator[Any]:
    """What a function refers to besides globals."""
    if isinstance(hook, functools.partial):
        yield from (*hook.args, *hook.keywords.values())
        yield from _held_by(hook.func)
        return
    bound, function = getattr(hook, "__self__", None), getattr(hook, "__func__", hook)
    if bound is not None and not isinstance(bound, types.ModuleType):
        yield bound
    if not isinstance(function, types.FunctionType):
        yield function
        return
    for value in (*(c.cell_contents for c in function.__closure__ or ()), *(function.__defaults__ or ())):
        yield value
        if isinstance(value, types.FunctionType):
            yield from _held_by(value)


def _is_of_this_call(recorder: Recorder, value: Any) -> bool:
    """Whether the next call may make another one of it."""
    if isinstance(value, FakeTensor):
        return True
    if isinstance(value, _THE_SAME):
        return False
    return recorder.locate.source_of(value) is None


_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_THE_SAME = (*SIMPLE, *_FUNCTIONS, torch.Tensor, torch.nn.Module, type)


def _of_module(recorder: Recorder, hook: Callable[..., Any]) -> Callable[..., Any]:
    return lambda module, *given: as_call(recorder, hook, module)(*given)


@contextmanager
def module_hooks_as_calls(recorder: Recorder) -> Iterator[None]:
    """Let modules find their backward hooks as recorded ones.

    They have no public hook for that: `torch.nn.Module` asks two methods of its own.
    """
    thread, module = threading.get_ident(), torch.nn.Module
    find, find_pre = module._get_backward_hooks, module._get_backward_pre_hooks

    def get_backward_hooks(self: Any) -> Any:
        full, others = find(self)
        if threading.get_ident() != thread:
            return full, others
        if others:
            recorder.refuse("a module has a backward hook of the old kind", "use register_full_backward_hook")
        return [_of_module(recorder, hook) for hook in full], others

    def get_backward_pre_hooks(self: Any) -> Any:
        hooks = find_pre(self)
        return [_of_module(recorder, hook) for hook in hooks] if threading.get_ident() == thread else hooks

    module._get_backward_hooks = get_backward_hooks  # type: ignore[method-assign]
    module._get_backward_pre_hooks = get_backward_pre_hooks  # type: ignore[method-assign]
    try:
        yield
    finally:
        module._get_backward_hooks = find  # type: ignore[method-assign]
        module._get_backward_pre_hooks = find_pre  # type: ignore[method-assign]


def _stand_in(recorder: Recorder, leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    with recorder.fake_mode, torch.no_grad():
        return torch.empty_like(leaf)


def _like(found: Any, replaced: Any) -> Any:
    """What a hook returned, in the structure and layout of what it replaces."""
    if replaced is None:
        return None
    if not isinstance(replaced, torch.Tensor):
        found = found if isinstance(found, (tuple, list)) else (found,)
        if len(found) != len(replaced):
            raise RuntimeError(f"a backward hook returned {len(found)} gradients for {len(replaced)}")
        return tuple(_like(new, old) for new, old in zip(found, replaced))
    if found.shape != replaced.shape or found.dtype != replaced.dtype:
        raise RuntimeError(f"a hook returned a gradient of shape {list(found.shape)} for {list(replaced.shape)}")
    return found if found.stride() == replaced.stride() else torch.empty_like(replaced).copy_(found)
