"""What an operation returns, without its data: PyTorch's fake kernels, and a real run where they fall short."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._library.utils import has_fake_kernel  # private: no public question for it
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fulgurite.ir.errors import TraceError
from fulgurite.ir.modes import outside_all_modes
from fulgurite.ir.symbol import BUILTIN_NAMESPACES
from fulgurite.ir.tree import leaves, map_leaves

NEEDS_DATA = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)


class FakeKernelError(TraceError):
    """A custom op's fake kernel does not tell the truth."""


def probe(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run `fn` once on zero-filled real tensors with the metadata of the fake ones.

    This tells a fake kernel that is missing or wrong from a call that fails in eager too: eager's own exception
    comes out of it. Random draws are undone.
    """
    with outside_all_modes(), torch._C.DisableTorchFunction(), torch.random.fork_rng(devices=[]):
        return fn(*map_leaves(_zeros, args), **map_leaves(_zeros, kwargs))


def _zeros(leaf: Any) -> Any:
    if not isinstance(leaf, FakeTensor):
        return leaf
    if leaf.layout is not torch.strided:
        return torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.fake_device, layout=leaf.layout)
    real = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.fake_device)
    return real.zero_().requires_grad_(leaf.requires_grad)


def infer(op: torch._ops.OpOverload, args: Any, kwargs: Any, mode: FakeTensorMode) -> Any:
    """Fake outputs of `op` on fake arguments.

    Raises:
        one of NEEDS_DATA: they depend on data.
        FakeKernelError: a custom op's fake kernel fails where the op does not.
        Exception: what eager raises for these arguments.
    """
    try:
        return op(*args, **kwargs)
    except NEEDS_DATA:
        raise
    except Exception as error:
        fake_error = error
    try:
        real = probe(op, args, kwargs)
    except Exception as eager_error:
        raise eager_error from fake_error
    custom = op.namespace not in BUILTIN_NAMESPACES
    if custom and has_fake_kernel(op):
        raise FakeKernelError(f"the fake kernel of {op} raises {type(fake_error).__name__}: {fake_error}")
    if any(leaf is arg for leaf in leaves(real) if leaf is not None for arg in leaves(args)):
        raise fake_error
    if custom:
        _say_once(op)
    return map_leaves(lambda leaf: fake(leaf, mode), real)


@functools.cache
def _say_once(op: torch._ops.OpOverload) -> None:
    warnings.warn(
        f"fulgurite: {op} has no fake kernel, so its outputs' shapes are taken from a run on zeros; "
        f'give it one with torch.library.register_fake("{op._schema.name}")',
        stacklevel=2,
    )


def fake(leaf: Any, mode: FakeTensorMode) -> Any:
    """The stand-in of a real tensor; anything else as it is."""
    return mode.from_tensor(leaf, static_shapes=True) if isinstance(leaf, torch.Tensor) else leaf
