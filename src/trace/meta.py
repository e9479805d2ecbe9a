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
from fulgurite.ir.modes import keeping_random_state, outside_all_modes
from fulgurite.ir.symbol import BUILTIN_NAMESPACES
from fulgurite.ir.tree import leaves, map_leaves

NEEDS_DATA = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)

_ENTRIES = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("_nnz", "is_coalesced", "_indices", "_values", "indices", "values")
)
_QUANTISED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})


class Unsupported(TraceError):
    """PyTorch's fake tensors can't stand for a tensor of this kind."""


class FakeKernelError(TraceError):
    """A custom op's fake kernel does not tell the truth."""


def probe(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run `fn` once on zero-filled real tensors with the metadata of the fake ones.

    This tells a fake kernel that is missing or wrong from a call that fails in eager too: eager's own exception
    comes out of it. Random draws are undone.
    """
    with outside_all_modes(), torch._C.DisableTorchFunction(), keeping_random_state():
        return fn(*map_leaves(_zeros, args), **map_leaves(_zeros, kwargs))


def _zeros(leaf: Any) -> Any:
    if not isinstance(leaf, FakeTensor):
        return leaf
    with torch.inference_mode(leaf.is_inference()):
        if leaf.layout is not torch.strided:
            return torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.fake_device, layout=leaf.layout)
        real = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.fake_device)
        return real.zero_().requires_grad_(leaf.requires_grad)


def infer(op: torch._ops.OpOverload, args: Any, kwargs: Any, mode: FakeTensorMode) -> Any:
    """Fake outputs of `op` on fake arguments.

    Raises:
        one of NEEDS_DATA: they depend on data.
        Unsupported: an argument or output is of a kind that has no stand-in.
        FakeKernelError: a custom op's fake kernel fails where the op does not.
        Exception: what eager raises for these arguments.
    """
    if any(leaf in _QUANTISED for leaf in leaves((args, kwargs)) if type(leaf) is torch.dtype):
        raise Unsupported("a quantised tensor")
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
    """The stand-in of a real tensor; anything else as it is.

    Raises:
        Unsupported: there are none for its kind.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.is_quantized or leaf.is_nested:
        raise Unsupported("a quantised tensor" if leaf.is_quantized else "a nested tensor")
    if leaf.layout is torch.sparse_coo and leaf.requires_grad:
        raise Unsupported("a sparse tensor that requires grad")
    if leaf.layout is torch.strided and leaf._is_view() and leaf._base.layout is not torch.strided:  # type: ignore
        with mode:  # the converter would want the base too
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    return mode.from_tensor(leaf, static_shapes=True)


def is_without_memory(error: Exception) -> bool:
    """Whether PyTorch raised an error because it read the memory of a fake tensor."""
    return any(text in str(error) for text in ("data is not allocated yet", "access data pointer"))


def takes_undefined(op: torch._ops.OpOverload, args: Any) -> bool:
    """Whether autograd hands an undefined tensor to an op, which makes undefined ones of it."""
    return any(value is None and type(arg.type) is torch.TensorType for value, arg in zip(args, op._schema.arguments))


@functools.cache
def takes_offset(op: torch._ops.OpOverload) -> bool:
    """Whether an argument says where in the memory of the first one a view starts."""
    return any(argument.name == "storage_offset" for argument in op._schema.arguments)


def asks_for_entries(op: torch._ops.OpOverload, args: Any) -> bool:
    """Whether a call asks a sparse tensor for its entries: a stand-in has none."""
    sparse = bool(args) and isinstance(args[0], torch.Tensor) and args[0].layout is torch.sparse_coo
    return sparse and op in _ENTRIES
