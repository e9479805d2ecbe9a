"""A multi-layer perceptron."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """`[batch, 16]` to `[batch, 10]`, through two hidden layers of width 32."""

    def __init__(self, sizes: tuple[int, ...] = (16, 32, 32, 10)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.gelu(layer(x))
        return self.layers[-1](x)
