"""What an operation returns, without its data: PyTorch's fake kernels, and a real run where they fall short."""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fulgurite.ir.modes import outside_all_modes
from fulgurite.ir.tree import leaves, map_leaves

NEEDS_DATA = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)


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


def infer(op: Callable[..., Any], args: Any, kwargs: Any, mode: FakeTensorMode) -> Any:
    """Fake outputs of `op` on fake arguments; raises one of NEEDS_DATA, or what eager raises for these arguments."""
    try:
        return op(*args, **kwargs)
    except NEEDS_DATA:
        raise
    except Exception as error:
        try:
            real = probe(op, args, kwargs)
        except Exception as eager_error:
            raise eager_error from error
        custom = isinstance(op, torch._ops.OpOverload) and op.namespace != "aten"
        if custom or any(leaf is arg for leaf in leaves(real) for arg in leaves(args)):
            raise
        return map_leaves(lambda leaf: _fake(leaf, mode), real)


def _fake(leaf: Any, mode: FakeTensorMode) -> Any:
    return mode.from_tensor(leaf, static_shapes=True) if isinstance(leaf, torch.Tensor) else leaf
