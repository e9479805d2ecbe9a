"""Custom ops as Symbols."""

from typing import Any

import torch

from fulgurite.ir import Symbol, symbol_of
from fulgurite.ir.symbol import callable_of, overloads_of
from fulgurite.trace import rules


def register_custom_op(op: Any) -> Symbol:
    """The Symbol of a custom op: its callable is the op's overload, its `meta` the op's fake kernel.

    Custom ops work without it, their autograd formulas included, and those that are registered or replaced later. The
    Symbol is the handle to give an op other gradients (`register_augmented_forward`, `register_backward`) or another
    implementation (`OperatorExecutor.register`). Twice is harmless.

    Args:
        op: what `torch.library.custom_op` or `triton_op` returned, an `OpOverload`, or an `OpOverloadPacket` with
            one overload or one that is called `default`.

    Raises:
        TypeError: `op` is none of these.
        ValueError: the packet has several overloads, none of them `default`.
    """
    return symbol_of(_overload(op))


def deregister_custom_op(op: Any) -> None:
    """Forget the gradient rules that fulgurite was given for an op; the op itself stays what it is."""
    rules.deregister(_overload(op))


def _overload(op: Any) -> torch._ops.OpOverload:
    op = callable_of(op)
    if isinstance(op, torch._ops.OpOverloadPacket):
        named = op.overloads()
        if len(named) > 1 and "default" not in named:
            raise ValueError(f"{op} has the overloads {', '.join(named)}; register one of them")
        op = op.default if "default" in named else overloads_of(op)[0]
    if not isinstance(op, torch._ops.OpOverload):
        raise TypeError(f"expected an operator of torch.library, got {type(op).__name__}")
    return op
