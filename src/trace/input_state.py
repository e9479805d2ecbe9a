"""A tensor that a trace reads, and what autograd knew of it before the program ran."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from fulgurite.ir import TensorProxy


@dataclass(frozen=True)
class AutogradState:
    """What a program may change about a tensor besides its data."""

    edge: Any
    grad: Any
    requires_grad: bool
    leaf: bool

    @staticmethod
    def of(fake: torch.Tensor, before: "AutogradState | None" = None) -> "AutogradState":
        if before is not None and before.leaf and fake.is_leaf and fake.requires_grad == before.requires_grad:
            return replace(before, grad=fake.grad)  # a leaf keeps its edge, which takes time to ask for
        with torch.inference_mode(False):  # where a tensor has no edge
            edge = torch.autograd.graph.get_gradient_edge(fake) if fake.requires_grad else None
        return AutogradState(edge, fake.grad if fake.is_leaf else None, fake.requires_grad, fake.is_leaf)


@dataclass(frozen=True)
class Input:
    """A tensor that a trace reads: the real one, its stand-in, its proxy, and the source that gives it at a call."""

    proxy: TensorProxy
    fake: torch.Tensor
    real: torch.Tensor
    source: str
    before: AutogradState
