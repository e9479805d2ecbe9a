"""What a test of a model needs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

OTHER_SIZE = 2
"""The call that gets inputs of another size; those before it share one size."""


@dataclass(frozen=True)
class ModelCase:
    """A model, and inputs for its n-th call in inference and in training.

    `inputs` and `training_inputs` take whether the size is the usual or the other one; without `training_inputs`
    training gets what inference gets. `loss` picks the loss from the output, see `check_training`.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[bool], Any]
    training_inputs: Callable[[bool], Any] | None = None
    loss: Callable[[Any], Tensor] | None = None

    def inference_call(self, call: int) -> Any:
        """The inputs of the n-th call."""
        return self.inputs(call == OTHER_SIZE)

    def training_call(self, step: int) -> Any:
        """The inputs of the n-th step."""
        return (self.training_inputs or self.inputs)(step == OTHER_SIZE)


def tokens(vocabulary: int, batch: int, time: int) -> Tensor:
    """Random tokens, none of them 0 (often padding)."""
    return torch.randint(1, vocabulary, (batch, time))


def images(batch: int, size: int, channels: int = 3) -> Tensor:
    """Random images whose gradient is wanted."""
    return torch.randn(batch, channels, size, size, requires_grad=True)
