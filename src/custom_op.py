"""Custom ops as Symbols."""

from typing import Any

import torch

from fulgurite.ir import Symbol, symbol_of
from fulgurite.ir.symbol import callable_of, overloads_of


def register_custom_op(op: Any) -> Symbol:
    """The Symbol of a custom op. Custom ops work without it; it gives a handle to register rules and executors for.

    Args:
        op: what `torch.library.custom_op` or `triton_op` returned, an `OpOverload`, or an `OpOverloadPacket` with
            one overload.

    Raises:
        TypeError: `op` is none of these.
        ValueError: the packet has several overloads.
    """
    op = callable_of(op)
    if isinstance(op, torch._ops.OpOverloadPacket):
        if len(op.overloads()) > 1:
            raise ValueError(f"{op} has the overloads {', '.join(op.overloads())}; register one of them")
        (op,) = overloads_of(op)
    if not isinstance(op, torch._ops.OpOverload):
        raise TypeError(f"expected a torch.library operator, got {type(op).__name__}")
    return symbol_of(op)
