"""Custom ops of the simplest kinds, for the tests: a formula, no formula, a list, mutation, randomness."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("fulgurite_tests::scaled_add", mutates_args=())
def scaled_add(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
    """`x * y + scale * y`, computed where no tracer sees it."""
    return torch.from_numpy(x.detach().numpy() * y.detach().numpy() + scale * y.detach().numpy())


@scaled_add.register_fake
def _(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    x, y, ctx.scale = inputs
    ctx.save_for_backward(x, y)


def _scaled_add_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, y = ctx.saved_tensors
    return gradient * y, gradient * (x + ctx.scale), None


scaled_add.register_autograd(_scaled_add_backward, setup_context=_save)


@torch.library.custom_op("fulgurite_tests::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    """`x ** 3`, without an autograd formula."""
    return x * x * x


@cube.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("fulgurite_tests::accumulate", mutates_args={"total"})
def accumulate(total: Tensor, x: Tensor) -> None:
    """Adds `x` to `total` in place."""
    total.add_(x)


@accumulate.register_fake
def _(total: Tensor, x: Tensor) -> None:
    return None


@torch.library.custom_op("fulgurite_tests::halves", mutates_args=())
def halves(x: Tensor) -> list[Tensor]:
    """The two halves of `x`, copied."""
    return [half.clone() for half in x.chunk(2)]


@halves.register_fake
def _(x: Tensor) -> list[Tensor]:
    return [torch.empty_like(half) for half in x.chunk(2)]


halves.register_autograd(lambda ctx, gradients: torch.cat(gradients))


@torch.library.custom_op("fulgurite_tests::noise", mutates_args=())
def noise(x: Tensor) -> Tensor:
    """Random numbers in the shape of `x`, from the default generator."""
    return torch.rand(x.shape)


@noise.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.shape)
