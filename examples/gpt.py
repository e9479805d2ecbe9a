"""A GPT in plain PyTorch: the model of `demo.py`. Nothing in this file knows of fulgurite.

The architecture is GPT-2's (Radford et al., 2019), in the arrangement of Karpathy's nanoGPT.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT.

    Args:
        vocab_size: number of distinct tokens.
        block_size: longest sequence, in tokens.
        n_layer: number of transformer blocks.
        n_head: attention heads in a block; divides `n_embd`.
        n_embd: width of the residual stream.
        dropout: probability of dropping a value in training.
        bias: whether linear layers and layer norms have a bias.
    """

    vocab_size: int = 256
    block_size: int = 128
    n_layer: int = 6
    n_head: int = 4
    n_embd: int = 128
    dropout: float = 0.0
    bias: bool = True


class CausalSelfAttention(nn.Module):
    """Each token looks at itself and at those before it: `[batch, time, n_embd]` to the same shape."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.proj_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        heads = (batch, time, self.n_head, width // self.n_head)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, time, width)
        return self.proj_dropout(self.proj(y))


class MLP(nn.Module):
    """Two linear layers with a GELU between them, four times as wide inside."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.down = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(F.gelu(self.up(x))))


class Block(nn.Module):
    """A transformer block with the layer norms before attention and MLP."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.norm_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """A decoder-only language model whose output layer shares its weight with the token embedding.

    >>> model = GPT(GPTConfig(vocab_size=65, block_size=16, n_layer=2, n_head=2, n_embd=32))
    >>> tokens = torch.zeros(4, 16, dtype=torch.long)
    >>> logits, loss = model(tokens)
    >>> logits.shape, loss
    (torch.Size([4, 16, 65]), None)
    >>> model(tokens, tokens)[1].shape
    torch.Size([])
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions = nn.Embedding(config.block_size, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        self._init_weights()

    def _init_weights(self) -> None:
        """Normal weights of deviation 0.02, smaller where a layer writes into the residual stream (GPT-2)."""
        for name, parameter in self.named_parameters():
            if name.endswith(("proj.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.n_layer))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Predict the next token at each position.

        Args:
            tokens: int64 `[batch, time]`, time at most `block_size`.
            targets: int64 `[batch, time]`, the token that follows each one; None when there is nothing to learn.

        Returns:
            Logits `[batch, time, vocab_size]`, and the mean cross-entropy as a scalar (None without targets).

        Raises:
            ValueError: when the sequence is longer than `block_size`.
        """
        time = tokens.shape[1]
        if time > self.config.block_size:
            raise ValueError(f"a sequence of {time} tokens is longer than block_size = {self.config.block_size}")
        where = torch.arange(time, device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(where))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
