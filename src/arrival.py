"""The order in which gradients arrive at leaves: an optimizer in a hook, or a reducer of gradients, goes by it.

Eager computes the gradients of the last layer first, and accumulates each when it is there. One autograd function for a
whole program hands out all at once; autograd then takes the leaves from a heap in which all have the same priority. So
the order depends on the place of each leaf among the function's inputs, in a way that `_taken` finds out by a trial.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from fulgurite.ir.modes import outside_all_modes, outside_autograd_hooks


def arranged(leaves: Sequence[str], others: Sequence[str], arrivals: Sequence[str], more: int) -> list[str]:
    """The inputs of an autograd function, placed so that the leaves get their gradients in the order of `arrivals`.

    Behind them `more` leaves follow.
    """
    wanted = [*arrivals, *(name for name in leaves if name not in arrivals)]
    placed = dict(zip(_taken(len(leaves), len(others), more), wanted))
    return [*(placed[place] for place in range(len(leaves))), *others]


class _HandOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0].clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return (gradient,) * len(ctx.needs_input_grad)


@functools.cache
def _taken(leaves: int, others: int, more: int) -> tuple[int, ...]:
    """In which order autograd takes the first inputs of a function: leaves, then others, and `more` leaves at last."""
    if leaves < 2:
        return tuple(range(leaves))
    order: list[int] = []
    with (
        outside_all_modes(),
        outside_autograd_hooks(),
        torch._C.DisableTorchFunction(),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        inputs = [_leaf() for _ in range(leaves)]
        for place, leaf in enumerate(inputs):
            leaf.register_post_accumulate_grad_hook(functools.partial(_note, order, place))
        last = [_leaf() for _ in range(more)]
        _HandOut.apply(*inputs, *(_leaf().clone() for _ in range(others)), *last).backward()
    return tuple(order)


def _leaf() -> torch.Tensor:
    return torch.zeros((), dtype=torch.float32, device="cpu", requires_grad=True)


def _note(order: list[int], place: int, leaf: torch.Tensor) -> None:
    order.append(place)
