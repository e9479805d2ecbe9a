"""What a program may ask about its surroundings while it is recorded, answered as in eager.

The default random generator: seeding it, and saving and restoring its state, become calls of the trace. Whether torch
functions are overridden: PyTorch's own modules leave their fast paths where they are, and the recorder's mode must
not count.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fulgurite.ir import Symbol

if TYPE_CHECKING:
    from fulgurite.trace.recorder import Recorder


def _symbol(name: str) -> Symbol:
    """A function of `torch` as it is bound now: PyTorch re-binds some when more of it is imported."""
    return Symbol(f"torch.{name}", getattr(torch, name), tags=frozenset({"random", "effect"}))


class _RecordedGenerator:
    """Stands in for `torch.random.default_generator`, which `torch.manual_seed` and its kin work on."""

    def __init__(self, recorder: Recorder, real: torch.Generator) -> None:
        self._recorder = recorder
        self._real = real
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _elsewhere(self) -> bool:
        return threading.get_ident() != self._thread

    def get_state(self) -> torch.Tensor:
        if self._elsewhere():
            return self._real.get_state()
        with torch._C.DisableTorchFunction():
            meta = self._real.get_state().to("meta")
            state = FakeTensor(self._recorder.fake_mode, meta, torch.device("cpu"))  # callers may have dispatch off
        self._recorder.note(_symbol("get_rng_state"), (), state)
        return state

    def set_state(self, state: torch.Tensor) -> None:
        if self._elsewhere():
            self._real.set_state(state)
        else:
            self._recorder.note(_symbol("set_rng_state"), (self._recorder.adopt((state,))[0],), None)

    def manual_seed(self, seed: int) -> torch.Generator:
        if self._elsewhere():
            return self._real.manual_seed(seed)
        self._recorder.note(_symbol("manual_seed"), (int(seed),), None)
        return self._real

    def seed(self) -> int:
        if self._elsewhere():
            return self._real.seed()
        self._recorder.refuse("the program asks for a seed from the system", "seed outside of fg.jit")


@contextmanager
def recorded_generator(recorder: Recorder) -> Iterator[None]:
    """Put the stand-in in place, and leave the real generator's state as it was.

    `torch.random` keeps the generator in a module global that all its functions read; there is no public hook.
    """
    real = torch.random.default_generator
    state = real.get_state()
    torch.random.default_generator = _RecordedGenerator(recorder, real)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.random.default_generator = real
        real.set_state(state)


_override_query = torch.overrides.has_torch_function


def _has_torch_function(args: Any) -> bool:
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
    return any(isinstance(arg, torch.Tensor) and type(arg) not in plain for arg in args)


@contextmanager
def unseen_mode() -> Iterator[None]:
    """Answer `torch.overrides.has_torch_function` as if no mode were active.

    `torch.nn` asks it through the module attribute; torch's functions have their own references, which stay.
    """
    torch.overrides.has_torch_function = _has_torch_function
    try:
        yield
    finally:
        torch.overrides.has_torch_function = _override_query


@contextmanager
def recorded_functions(recorder: Recorder) -> Iterator[None]:
    """Give `autograd.Function.apply` the stand-ins of real tensors, so that its history is theirs.

    `apply` is the one entry to autograd that no mode sees.
    """
    original, thread = torch.autograd.Function.__dict__["apply"], threading.get_ident()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            with torch._C.DisableTorchFunction():
                args, kwargs = recorder.adopt(args), recorder.adopt(kwargs)
        return original.__func__(cls, *args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original
