"""A sequence-to-sequence transformer (Vaswani et al., 2017) from torch.nn's layers, with dropout 0.1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Transformer(nn.Module):
    """Source `[batch, s]` and target tokens `[batch, t]` to logits `[batch, t, vocabulary]`."""

    def __init__(self, vocabulary: int = 40, width: int = 32, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        sizes: dict[str, Any] = {
            "d_model": width,
            "nhead": heads,
            "dim_feedforward": 64,
            "dropout": 0.1,
            "batch_first": True,
        }
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(64, width)
        self.dropout = nn.Dropout(0.1)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**sizes) for _ in range(depth))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**sizes) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def embed(self, tokens: Tensor) -> Tensor:
        """Token and position, `[batch, time, width]`."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.embedding(tokens) + self.positions(places))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.embed(target)
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=mask, tgt_is_causal=True)
        return self.head(x)
