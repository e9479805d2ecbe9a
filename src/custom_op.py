"""Custom ops as Symbols."""

from __future__ import annotations

from typing import Any

import torch

from fulgurite.ir import Symbol, symbol_of
from fulgurite.trace.rules import register_augmented_forward, register_backward


def register_custom_op(op: Any) -> Symbol:
    """The Symbol of a custom op. Custom ops work without it; it gives a handle to register rules and executors for.

    Args:
        op: what `torch.library.custom_op` or `triton_op` returned, an `OpOverload`, or an `OpOverloadPacket` with
            one overload.

    Raises:
        TypeError: `op` is none of these.
        ValueError: the packet has several overloads.
    """
    return symbol_of(_overload(op))


def _overload(op: Any) -> torch._ops.OpOverload:
    op = getattr(op, "_opoverload", op)
    if isinstance(op, torch._ops.OpOverloadPacket):
        names = op.overloads()
        if len(names) > 1:
            raise ValueError(f"{op} has the overloads {', '.join(names)}; register one of them")
        op = getattr(op, names[0])
    if not isinstance(op, torch._ops.OpOverload):
        raise TypeError(f"expected a torch.library operator, got {type(op).__name__}")
    return op


__all__ = ["register_augmented_forward", "register_backward", "register_custom_op"]
