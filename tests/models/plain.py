"""The models written in plain torch, as test cases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpt import GPT, GPTConfig
from models.case import ModelCase, images, tokens
from models.lstm import LSTMLanguageModel
from models.mlp import MLP
from models.resnet import ResNet18
from models.transformer import Transformer
from models.unet import UNet
from models.vit import ViT


def make_gpt() -> GPT:
    return GPT(GPTConfig(vocab_size=65, block_size=16, n_layer=2, n_head=2, n_embd=32, dropout=0.1))


def gpt_with_targets(other: bool) -> tuple[Tensor, Tensor]:
    window = tokens(65, 2, 12 if other else 9)
    return window[:, :-1], window[:, 1:]


def rows(other: bool) -> tuple[Tensor]:
    return (torch.randn(5 if other else 4, 16, requires_grad=True),)


def lstm_with_state(other: bool) -> dict[str, Any]:
    batch = 2 if other else 3
    state = tuple(torch.randn(2, batch, 24, requires_grad=True) for _ in range(2))
    return {"tokens": tokens(50, batch, 5), "state": state}


PLAIN = (
    ModelCase("mlp", MLP, rows),
    ModelCase("resnet18", ResNet18, lambda other: (images(3 if other else 2, 32),)),
    ModelCase("lstm", LSTMLanguageModel, lambda other: (tokens(50, 3, 9 if other else 7),)),
    ModelCase("lstm_with_state", LSTMLanguageModel, lstm_with_state),
    ModelCase("vit", ViT, lambda other: (images(3 if other else 2, 32),)),
    ModelCase("unet", UNet, lambda other: (images(2, 24 if other else 16),)),
    ModelCase("transformer", Transformer, lambda other: (tokens(40, 2, 8 if other else 6), tokens(40, 2, 5))),
    ModelCase("gpt", make_gpt, lambda other: gpt_with_targets(other)[:1], gpt_with_targets, lambda output: output[1]),
)
