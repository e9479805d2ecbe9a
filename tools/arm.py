"""One side of a comparison: a model with its inputs and optimizer, and what a call of it leaves behind."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Difference:
    """How two lists of tensors differ; `largest` is the largest absolute difference, infinite where none exists."""

    bitwise: bool = True
    largest: float = 0.0

    def join(self, other: Difference) -> Difference:
        """The difference of both together."""
        return Difference(self.bitwise and other.bitwise, max(self.largest, other.largest))


class Arm:
    """A model that is run in the same way as its rival.

    A call in training is a whole step: gradients cleared, forward, loss, backward, and AdamW where there are
    parameters. `seconds` is how long the call took that was observed last.
    """

    def __init__(self, model: Callable[..., Any], inputs: tuple[Any, ...], training: bool, loss: Loss) -> None:
        self.model = model
        self.inputs = copy.deepcopy(inputs)
        self.loss = loss
        self.optimizer: torch.optim.Optimizer | None = None
        self.seconds = 0.0
        parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
        if isinstance(model, nn.Module):
            model.train(training)
        if parameters and training:
            self.optimizer = torch.optim.AdamW(parameters, lr=1e-4)
        self.call: Callable[[], Any] = self.step if training else functools.partial(model, *self.inputs)

    def step(self) -> Any:
        """One training step; returns the model's output."""
        for leaf in self.leaves():
            leaf.grad = None
        output = self.model(*self.inputs)
        self.loss(output).backward()
        if self.optimizer is not None:
            self.optimizer.step()
        return output

    def leaves(self) -> list[Tensor]:
        """Inputs and parameters that can have a gradient."""
        parameters = self.model.parameters() if isinstance(self.model, nn.Module) else ()
        return [t for t in (*tensors(self.inputs), *parameters) if t.requires_grad]

    def observe(self, seed: int) -> list[Tensor]:
        """Run one call; all that it gave: outputs, gradients, inputs, state, and the random stream after it."""
        torch.manual_seed(seed)
        start = time.perf_counter()
        called = self.call()
        self.seconds = time.perf_counter() - start
        output = [t.detach().clone() for t in tensors(called)]
        gradients = [leaf.grad.clone() if leaf.grad is not None else torch.empty(0) for leaf in self.leaves()]
        state = self.model.state_dict().values() if isinstance(self.model, nn.Module) else ()
        after = [t.detach().clone() for t in (*tensors(self.inputs), *state)]
        return [*output, *gradients, *after, torch.get_rng_state()]


def tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors in nested sequences and mappings, model outputs among them.

    >>> len(list(tensors({"a": torch.ones(1), "b": [torch.ones(2), 3]})))
    2
    """
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors(item)
    elif isinstance(tree, Sequence) and not isinstance(tree, (str, bytes)):
        for item in tree:
            yield from tensors(item)


def scalar_loss(output: Any) -> Tensor:
    """The output itself if it is one number, else the mean of its squares."""
    if isinstance(output, Tensor) and output.dim() == 0:
        return output
    parts = [t.square().mean() for t in tensors(output) if t.requires_grad]
    return torch.stack(parts).sum()


def difference(expected: list[Tensor], found: list[Tensor]) -> Difference:
    """Compare dtype, shape, strides and bits: -0.0 is not 0.0, and a NaN is itself."""
    if len(expected) != len(found):
        return Difference(False, float("inf"))
    return functools.reduce(Difference.join, map(_difference, expected, found), Difference())


def _difference(a: Tensor, b: Tensor) -> Difference:
    if a.shape != b.shape or a.dtype != b.dtype:
        return Difference(False, float("inf"))
    if a.stride() == b.stride() and torch.equal(_bits(a), _bits(b)):
        return Difference()
    wide = torch.complex128 if a.is_complex() else torch.float64
    gap = (a.to(wide) - b.to(wide)).abs()
    gap[(a == b) | ((a != a) & (b != b))] = 0.0  # equal infinities and NaNs are no gap
    return Difference(False, gap.nan_to_num(nan=float("inf"), posinf=float("inf")).max().item() if a.numel() else 0.0)


def _bits(t: Tensor) -> Tensor:
    return t.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
