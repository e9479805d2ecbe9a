"""Random decisions: Python's and NumPy's generators, and branches on what torch draws."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from programs.case import Run, case


@case("random", may_refuse=True)
def shuffle_and_choice_inside(run: Run) -> Any:
    """`random.shuffle` and `random.choice` give a fresh order at each call."""

    def f(x: Tensor) -> tuple[Tensor, float]:
        order = list(range(4))
        random.shuffle(order)
        scale = random.choice([1.0, 2.0, 3.0])
        return x[order] * scale, scale

    jitted = run.jit(f)
    return [jitted(torch.randn(4)) for _ in range(6)]


@case("random", may_refuse=True)
def module_that_draws_from_python(run: Run) -> Any:
    """LayerDrop with `random.random()`, in training only."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                if not self.training or random.random() < 0.5:
                    x = layer(x).tanh()
            return x

    model = Net()
    jitted, seen = run.jit(model), []
    for step in range(8):
        model.train(step != 3)
        model.zero_grad()
        jitted(torch.randn(2, 3, requires_grad=True)).sum().backward()
        seen.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    return seen


@case("random", may_refuse=True)
def numpy_draws_inside(run: Run) -> Any:
    """`numpy.random` inside, from the global state and from a generator made outside."""
    rng = np.random.default_rng(3)

    def f(x: Tensor) -> Tensor:
        lam = float(np.random.beta(0.4, 0.4))
        order = torch.from_numpy(rng.permutation(x.shape[0]))
        return lam * x + (1 - lam) * x[order]

    jitted = run.jit(f)
    return [jitted(torch.randn(5, 2)) for _ in range(4)]


@case("random", may_refuse=True)
def random_instance_of_the_module(run: Run) -> Any:
    """A `random.Random` that a module holds advances at every call."""

    class Jitter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rng = random.Random(5)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.rng.uniform(-1, 1)

    jitted = run.jit(Jitter())
    return [jitted(torch.zeros(2)) for _ in range(4)]


@case("random", may_refuse=True)
def stochastic_depth(run: Run) -> Any:
    """A branch on `torch.rand(()).item()` is drawn at every call."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            if self.training and torch.rand(()).item() < 0.5:
                return x
            return x + self.inner(x)

    model = nn.Sequential(Block(), Block(), Block())
    jitted, seen = run.jit(model), []
    for _ in range(6):
        x = torch.randn(2, 3, requires_grad=True)
        y = jitted(x)
        y.sum().backward()
        seen.append((y, x.grad))
    return seen, jitted.eval()(torch.ones(1, 3))


@case("random", may_refuse=True)
def branch_on_a_drawn_bool(run: Run) -> Any:
    """Random flips as data augmentation writes them: `if torch.rand(1) < p`."""

    def f(x: Tensor) -> Tensor:
        if torch.rand(1) < 0.5:
            x = x.flip(-1)
        if bool(torch.randint(0, 2, ())):
            x = -x
        return x * 2

    jitted = run.jit(f)
    return [jitted(torch.arange(3.0)) for _ in range(8)]


@case("random")
def drop_path_by_tensor(run: Run) -> Any:
    """Stochastic depth as timm writes it: a mask per sample, no branch."""

    def drop_path(x: Tensor, drop: float, training: bool) -> Tensor:
        if drop == 0.0 or not training:
            return x
        keep = 1 - drop
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask.div_(keep)

    jitted, seen = run.jit(drop_path), []
    for drop, training in ((0.3, True), (0.3, False), (0.0, True), (0.3, True)):
        x = torch.randn(4, 2, requires_grad=True)
        y = jitted(x, drop, training)
        y.square().sum().backward()
        seen.append((y, y is x, x.grad))
    return seen
