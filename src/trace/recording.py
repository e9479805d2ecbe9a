"""Recording: what the program called, over what the dispatcher did, over fake tensors.

Method: a `TorchFunctionMode` sees the program's calls, a `TorchDispatchMode` below it the dispatcher calls that each
of them makes, and a `FakeTensorMode` below that gives metadata without data. Autograd runs in between as it always
does, so whatever depends on it behaves as in eager.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodWrapperType
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fulgurite.ir.modes import outside_autograd_hooks
from fulgurite.trace.code import unwatched
from fulgurite.trace.disguise import disguised
from fulgurite.trace.hooks import module_hooks_as_calls, register
from fulgurite.trace.number import exact, read_number
from fulgurite.trace.recorder import DETACH, LIFT, Recorder
from fulgurite.trace.rules import call_with_rule, rule_for

_one_at_a_time = threading.RLock()
"""Held while a thread records: what `disguised` puts in place is global."""

_SHALLOW = {"prim", "profiler"}


class _Mode:
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder


class _OpMode(_Mode, TorchDispatchMode):
    """Sees every dispatcher call, below autograd and autocast."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in _SHALLOW:  # metadata queries such as prim.device are no ops
            return func(*args, **kwargs)
        if func is LIFT and not isinstance(args[0], FakeTensor) and self.recorder.stand_in(args[0]) is None:
            return self.recorder.constant(args[0])
        args, kwargs = self.recorder.adopt(args), self.recorder.adopt(kwargs)
        if func is DETACH and not self.recorder.detaching and _is_bookkeeping():
            return self.recorder.same_value(func(*args), args[0])
        return self.recorder.op(func, args, kwargs)


def _is_bookkeeping() -> bool:
    """Whether autograd detaches a tensor to save or unpack it: that comes without passing through the dispatcher.

    Private: nothing public tells.
    """
    excluded: bool = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView)
    return not excluded


class _CallMode(_Mode, TorchFunctionMode):
    """Sees every call that the program makes of a torch function, method or property."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _may_run_the_users(func, args, kwargs or {}):
            return self._called(func, args, kwargs)
        with unwatched():
            return self._called(func, args, kwargs)

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self.recorder
        if func is _FORMAT and args[0].dim() == 0:
            return format(args[0].item(), *args[1:])  # the method itself does so for plain tensors only
        if func is _TEXT or func is _FORMAT:
            recorder.refuse(
                "the program makes text of a tensor's data", "format its .item(), or do it outside of fg.jit"
            )
        args, kwargs = recorder.adopt(exact(args)), recorder.adopt(exact(kwargs or {}))
        if func is _READ and recorder.keeps_number(args[0]):
            return read_number(recorder, args[0])
        if isinstance(func, MethodWrapperType) and func.__name__ != "__get__":
            _check_setter(recorder, func, args)
        if func is torch.Tensor.register_hook:
            args = register(recorder, args)
        elif func is torch.Tensor.register_post_accumulate_grad_hook:
            recorder.refuse("the program registers a hook of a leaf", "register it outside of fg.jit")
        rule = rule_for(func)
        if rule is not None and rule.name not in recorder.active_rules:
            recorder.active_rules.add(rule.name)
            try:
                with self:
                    return call_with_rule(rule, func, args, kwargs)
            finally:
                recorder.active_rules.discard(rule.name)
        if recorder.open is not None or torch._C._functorch.peek_interpreter_stack() is not None:
            return func(*args, **kwargs)  # inside of a call, or of torch.func, which shows in what it dispatches
        return recorder.call(func, args, kwargs)


_READ, _TEXT, _FORMAT = torch.Tensor.item, torch.Tensor.__repr__, torch.Tensor.__format__


def _may_run_the_users(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call may run code of the user's: a function that it is given, or hooks."""
    given = any(callable(arg) and not isinstance(arg, type) for arg in (*args, *kwargs.values()))
    return given or getattr(func, "__name__", "") in ("backward", "grad")


def _check_setter(recorder: Recorder, setter: Any, args: tuple[Any, ...]) -> None:
    attribute = getattr(setter.__self__, "__name__", "")
    if attribute == "_backward_hooks":  # autograd itself moves them when `mark_dirty` hands an input's history on
        return
    is_input = any(item.fake is args[0] for item in recorder.inputs)
    if attribute == "data" or is_input:
        recorder.refuse(f"the program assigns .{attribute} of a tensor", "do that outside of fg.jit")


_fake_log = logging.getLogger(fake_tensor.__name__)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's fake kernels from logging that they failed: the program raises what eager does, or is refused."""
    thread = threading.get_ident()

    def not_ours(record: logging.LogRecord) -> bool:
        return record.thread != thread

    _fake_log.addFilter(not_ours)
    try:
        yield
    finally:
        _fake_log.removeFilter(not_ours)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Run the block under the recorder's modes; everything global is afterwards as it was."""
    try:
        with (
            _one_at_a_time,
            _quiet(),
            outside_autograd_hooks(),
            disguised(recorder),
            module_hooks_as_calls(recorder),
            recorder.fake_mode,
            _OpMode(recorder),
            _CallMode(recorder),
        ):
            yield
    except Exception as error:
        if getattr(error, "trace", None) is None:
            error.trace = recorder.trace("partial", ())  # type: ignore[attr-defined]
        error.args = tuple(a.replace("FakeTensor", "Tensor") if type(a) is str else a for a in error.args)
        raise
    finally:
        torch.clear_autocast_cache()
    if recorder.failure is not None:
        raise recorder.failure
