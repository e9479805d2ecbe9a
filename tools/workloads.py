"""The models that the benchmark runs: a call that does almost nothing, an MLP, a GPT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    """A model and its inputs.

    Args:
        name: what tables and the command line call it.
        make: gives a new function or module.
        make_inputs: gives the arguments of a call; takes whether they are for a training step.
    """

    name: str
    make: Callable[[], Callable[..., Any]]
    make_inputs: Callable[[bool], tuple[Any, ...]]


class Attention(nn.Module):
    """Causal self-attention, `[batch, time, width]` to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        split = (batch, time, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    """A transformer block with its layer norms in front."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """A small GPT: the logits of `tokens`, or with `targets` the loss."""

    def __init__(self, layers: int = 6, width: int = 128, heads: int = 4, vocabulary: int = 256) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(128, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def add(a: Tensor, b: Tensor) -> Tensor:
    """The smallest program: what is measured is the cost of a call."""
    return a + b


def make_mlp() -> nn.Module:
    """Three linear layers with a GELU between them."""
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))


def _pair(training: bool) -> tuple[Any, ...]:
    return tuple(torch.randn(4, requires_grad=training) for _ in range(2))


def _features(training: bool) -> tuple[Any, ...]:
    return (torch.randn(32 if training else 4, 64),)


def _tokens(training: bool) -> tuple[Any, ...]:
    if not training:
        return (torch.randint(256, (1, 16)),)
    return torch.randint(256, (4, 64)), torch.randint(256, (4, 64))


WORKLOADS = (
    Workload("a + b", lambda: add, _pair),
    Workload("mlp", make_mlp, _features),
    Workload("gpt", GPT, _tokens),
)
