"""Operators that the cases share, made anew for each run. Their bodies leave torch for NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from programs.case import Run

Program = Callable[..., Any]


def numpy_of(x: Tensor) -> Any:
    """A tensor's memory, where no tracer sees what happens to it."""
    return x.detach().numpy()


def scaled(run: Run, *, formula: bool = True) -> Any:
    """`scaled(x, y, scale=2.0) = x * y * scale`."""

    @torch.library.custom_op(f"{run.ns}::scaled", mutates_args=())
    def op(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
        return torch.from_numpy(numpy_of(x) * numpy_of(y) * scale).to(x.dtype)

    @op.register_fake
    def _(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
        return torch.empty_like(x)

    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, y, ctx.scale = inputs
        ctx.save_for_backward(x, y)

    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return gradient * y * ctx.scale, gradient * x * ctx.scale, None

    if formula:
        op.register_autograd(backward, setup_context=setup_context)
    return run.op(op)


def square(run: Run, *, fake: bool = True, formula: bool = True, name: str = "square") -> Any:
    """`square(x) = x * x`."""

    @torch.library.custom_op(f"{run.ns}::{name}", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return torch.from_numpy(numpy_of(x) ** 2)

    if fake:
        op.register_fake(lambda x: torch.empty_like(x))
    if formula:
        op.register_autograd(
            lambda ctx, gradient: gradient * 2 * ctx.saved_tensors[0],
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        )
    return run.op(op)


def leaves(*sizes: int | Sequence[int], requires_grad: bool = True) -> list[Tensor]:
    """Fresh random leaves."""
    return [torch.randn(size, requires_grad=requires_grad) for size in sizes]


def grads(fn: Program, *inputs: Tensor, **options: Any) -> Any:
    """The outputs of a call, and the gradients of the sum of squares of its floating outputs."""
    out = fn(*inputs, **options)
    flat = out if isinstance(out, (list, tuple)) else [out]
    differentiable = [o for o in flat if isinstance(o, Tensor) and o.requires_grad]
    wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    loss = sum((o.square().sum() for o in differentiable), torch.zeros(()))
    found = torch.autograd.grad(loss, wanted, allow_unused=True) if differentiable else None
    return out, [isinstance(o, Tensor) and o.requires_grad for o in flat], found


def twice(fn: Program, *sizes: Any, **options: Any) -> Any:
    """Outputs and gradients of three calls on fresh leaves, the last ones of another size where that is an int."""
    seen = [grads(fn, *leaves(*sizes), **options) for _ in range(2)]
    larger = [size + 2 if isinstance(size, int) else size for size in sizes]
    with torch.no_grad():
        without = fn(*leaves(*larger, requires_grad=False), **options)
    return [*seen, without, grads(fn, *leaves(*larger), **options)]
