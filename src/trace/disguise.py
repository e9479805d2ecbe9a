"""What a program may ask about its surroundings while it is recorded, answered as in eager.

The default random generator: seeding it, and saving and restoring its state, become calls of the trace. Whether torch
functions are overridden: PyTorch's own modules leave their fast paths where they are, and the recorder's mode must
not count. The type of a tensor: `type(x) is torch.Tensor` holds for a stand-in too.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fulgurite.ir import Symbol
from fulgurite.ir.modes import outside_all_modes
from fulgurite.ir.tree import leaves
from fulgurite.trace.number import Number
from fulgurite.trace.opaque import apply_or_keep

if TYPE_CHECKING:
    from fulgurite.trace.inputs import Locator
    from fulgurite.trace.recorder import Recorder


def _symbol(name: str) -> Symbol:
    """A function of `torch` as it is bound now: PyTorch re-binds some when more of it is imported."""
    return Symbol(f"torch.{name}", getattr(torch, name), tags=frozenset({"random", "effect"}))


class _GeneratorCalls:
    """What the program asks of the default generator, as calls of the trace."""

    def __init__(self, recorder: Recorder, real: torch.Generator) -> None:
        self._recorder = recorder
        self._real = real

    def get_state(self) -> torch.Tensor:
        with torch._C.DisableTorchFunction(), outside_all_modes():
            meta = self._real.get_state().to("meta")
            state = FakeTensor(self._recorder.fake_mode, meta, torch.device("cpu"))  # callers may have dispatch off
        self._recorder.note(_symbol("get_rng_state"), (), state)
        return state

    def set_state(self, state: torch.Tensor) -> None:
        self._recorder.note(_symbol("set_rng_state"), (self._recorder.adopt_leaf(state),), None)

    def manual_seed(self, seed: int) -> torch.Generator:
        self._recorder.note(_symbol("manual_seed"), (int(seed),), None)
        return self._real

    def seed(self) -> int:
        self._recorder.refuse("the program asks for a seed from the system", "seed outside of fg.jit")


class _RecordedGenerator:
    """Stands in for `torch.random.default_generator`, which `torch.manual_seed` and its kin work on."""

    def __init__(self, recorder: Recorder, real: torch.Generator) -> None:
        self._calls, self._real, self._thread = _GeneratorCalls(recorder, real), real, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        here = threading.get_ident() == self._thread and hasattr(self._calls, name)
        return getattr(self._calls if here else self._real, name)


_override_query = torch.overrides.has_torch_function


def _has_torch_function(args: Any) -> bool:
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
    return any(isinstance(arg, torch.Tensor) and type(arg) not in plain for arg in args)


def _recorded_apply(recorder: Recorder, original: Any) -> Any:
    thread = threading.get_ident()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            with torch._C.DisableTorchFunction():
                args, kwargs = recorder.adopt(args), recorder.adopt(kwargs)
        return original.__func__(cls, *args, **kwargs)

    return classmethod(apply)


_PRINT = Symbol("print", print, tags=frozenset({"effect"}))


def _recorded_print(recorder: Recorder) -> Callable[..., None]:
    thread = threading.get_ident()

    def record(*values: Any, **options: Any) -> None:
        if threading.get_ident() != thread:
            return _PRINT.fn(*values, **options)
        tensors = [leaf for leaf in leaves(values) if isinstance(leaf, torch.Tensor)]
        if any(tensor.requires_grad for tensor in tensors):
            recorder.refuse("the program prints a tensor with a gradient", "print its detach()")
        return recorder.note(_PRINT, values, None, options)

    return record


class _TypeOf(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:
            return type(*args, **kwargs)
        (value,) = args
        if type(value) is Number:
            return value.proxy.kind
        if type(value) is FakeTensor:
            kinds = (torch.nn.Parameter, torch.nn.Buffer, torch.Tensor)
            return next(kind for kind in kinds if isinstance(value, kind))
        return cls if type(value) is type else type(value)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, type)

    def __subclasscheck__(cls, value: Any) -> bool:
        return issubclass(value, type)


_type_of = _TypeOf("type", (type,), {"__doc__": "`type`, which takes a stand-in for what it stands for."})


@contextmanager
def answering_type(locator: Locator) -> Iterator[None]:
    """Let code of the user's that names `type` find another one: an object can't hide its own."""
    changed: list[dict[str, Any]] = []

    def add(table: dict[str, Any]) -> None:
        if "type" not in table:
            changed.append(table)
            table["type"] = _type_of

    locator.on_type = add
    try:
        yield
    finally:
        for table in changed:
            del table["type"]


@contextmanager
def disguised(recorder: Recorder) -> Iterator[None]:
    """Put the stand-ins in place, for this thread's recording, and leave everything as it was.

    None of these has a public hook. `torch.random` keeps the generator in a module global that its functions read.
    `torch.nn` asks `has_torch_function` through the module attribute; torch's functions have their own references.
    `autograd.Function.apply` is the one entry to autograd that no mode sees: it must be given the stand-ins of real
    tensors, so that its history is theirs; and the backward of such a function is kept whole where it looks at data.
    `print` becomes a call of the trace, which prints at each run.
    """
    generator, function, overrides = torch.random.default_generator, torch.autograd.Function, torch.overrides
    node = torch.autograd.function.BackwardCFunction
    apply, apply_node = function.__dict__["apply"], node.apply
    builtins.print = _recorded_print(recorder)
    torch.random.default_generator = _RecordedGenerator(recorder, generator)  # type: ignore[assignment]
    overrides.has_torch_function = _has_torch_function
    function.apply = _recorded_apply(recorder, apply)  # type: ignore[method-assign]
    node.apply = apply_or_keep(recorder, apply_node)  # type: ignore[method-assign]
    try:
        yield
    finally:
        builtins.print = _PRINT.fn
        node.apply = apply_node  # type: ignore[method-assign]
        function.apply = apply  # type: ignore[method-assign]
        overrides.has_torch_function = _override_query
        torch.random.default_generator = generator
