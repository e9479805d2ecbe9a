"""Autograd used inside the jitted program: backward, grad, requires_grad_, checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from programs.case import Run, case


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def grads_of(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


@case("autograd", may_refuse=True)
def backward_inside_and_optimizer_outside(run: Run) -> Any:
    """`loss.backward()` inside fills `.grad` of a global module's parameters; the optimizer steps outside."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    f, seen = run.jit(step), []
    for _ in range(3):
        optimizer.zero_grad()
        seen.append((f(torch.randn(4, 3)), grads_of(model)))
        optimizer.step()
    return seen, list(model.parameters())


@case("autograd", may_refuse=True)
def backward_inside_accumulates(run: Run) -> Any:
    """Without `zero_grad` the gradients of several calls add up, also those of an input."""
    model = mlp()

    def step(x: Tensor) -> None:
        model(x).sum().backward()

    f, seen = run.jit(step), []
    x = leaf(2, 3)
    for _ in range(3):
        f(x)
        seen.append((x.grad.clone(), grads_of(model)))
    return seen


@case("autograd", may_refuse=True)
def whole_training_step_inside(run: Run) -> Any:
    """`zero_grad`, backward and the optimizer's step inside the program."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    f, seen = run.jit(step), []
    for _ in range(3):
        seen.append((f(torch.randn(4, 3)).detach(), [p.detach().clone() for p in model.parameters()]))
    return seen


@case("autograd")
def grad_inside_of_an_input(run: Run) -> Any:
    """`torch.autograd.grad` inside: a force from an energy, without `create_graph`."""

    def force(x: Tensor) -> Tensor:
        energy = (x.square().sum(1) + 1).sqrt().sum()
        return -torch.autograd.grad(energy, x)[0]

    f = run.jit(force)
    return [((out := f(leaf(3, 2))), out.requires_grad) for _ in range(2)]


@case("autograd")
def grad_inside_that_is_trained_through(run: Run) -> Any:
    """Energy and force of a network, a loss on both: `create_graph` inside, backward outside."""

    class Potential(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 4), nn.Softplus(), nn.Linear(4, 1))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            energy = self.net(x).sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
            return energy, -slope

    model = Potential()
    jitted, seen = run.jit(model), []
    for _ in range(2):
        x = leaf(3, 2)
        energy, force = jitted(x)
        (energy.square() + force.square().sum()).backward()
        seen.append((energy, force, x.grad, grads_of(model)))
        model.zero_grad()
    return seen


@case("autograd")
def gradient_penalty_inside(run: Run) -> Any:
    """A whole gradient penalty inside, on points made by `requires_grad_()` inside."""
    model = mlp()

    def loss(real: Tensor, fake: Tensor) -> Tensor:
        mixed = (0.3 * real + 0.7 * fake).detach().requires_grad_()
        score = model(mixed)
        (slope,) = torch.autograd.grad(score, mixed, torch.ones_like(score), create_graph=True, retain_graph=True)
        return ((slope.norm(2, dim=1) - 1) ** 2).mean() + model(fake).mean() - model(real).mean()

    f, seen = run.jit(loss), []
    for _ in range(2):
        value = f(torch.randn(4, 3), torch.randn(4, 3))
        value.backward()
        seen.append((value, grads_of(model)))
    return seen


@case("autograd")
def inner_loop_of_maml(run: Run) -> Any:
    """One inner gradient step by `autograd.grad`, the outer gradient through it."""

    def outer(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        inner = ((x @ w).tanh() - y).square().mean()
        (g,) = torch.autograd.grad(inner, w, create_graph=True)
        return ((x @ (w - 0.1 * g)).tanh() - y).square().mean()

    f, seen = run.jit(outer), []
    for _ in range(2):
        w = leaf(3, 1)
        loss = f(w, torch.randn(4, 3), torch.randn(4, 1))
        loss.backward()
        seen.append((loss, w.grad))
    return seen


@case("autograd")
def grad_inside_under_no_grad(run: Run) -> Any:
    """`enable_grad` and `autograd.grad` inside a call under `no_grad`: guidance of a sampler."""

    def guided(x: Tensor) -> Tensor:
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            (g,) = torch.autograd.grad(z.sin().square().sum(), z)
        return x - 0.1 * g

    f, seen = run.jit(guided), []
    for enabled in (False, True, False):
        with torch.set_grad_enabled(enabled):
            out = f(torch.randn(3))
        seen.append((out, out.requires_grad))
    return seen


@case("autograd", may_refuse=True)
def requires_grad_of_an_input_inside(run: Run) -> Any:
    """`x.requires_grad_()` inside is visible on the caller's tensor, with its gradient."""
    f, seen = run.jit(lambda x: x.requires_grad_().square().sum()), []
    for _ in range(2):
        x = torch.randn(3)
        y = f(x)
        seen.append((y.detach(), x.requires_grad, y.requires_grad))
        y.backward()
        seen.append(x.grad)
    return seen


@case("autograd", may_refuse=True)
def leaf_made_inside_and_returned(run: Run) -> Any:
    """A leaf that the program makes and returns is a leaf, and gets the gradient of later use."""
    f, seen = run.jit(lambda x: ((z := x.detach().requires_grad_()), (z * 2).sum())), []
    for _ in range(2):
        z, loss = f(torch.randn(3))
        seen.append((z.is_leaf, z.requires_grad, loss.requires_grad))
        loss.backward()
        seen.append(z.grad)
    return seen


def block(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh() @ w.t()


@case("autograd", may_refuse=True)
def checkpoint_of_either_kind(run: Run) -> Any:
    """Reentrant and non-reentrant checkpoints of a function."""
    seen: list[Any] = []
    for reentrant in (False, True):
        f = run.jit(lambda x, w, reentrant=reentrant: checkpoint(block, x.sin(), w, use_reentrant=reentrant).cos())
        for _ in range(2):
            x, w = leaf(2, 3), leaf(3, 3)
            y = f(x, w)
            y.sum().backward()
            seen.append((y, x.grad, w.grad))
    return seen


class Checkpointed(nn.Module):
    """Two blocks with dropout, each recomputed in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.4)) for _ in "ab")

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.blocks:
            x = x + checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def checkpointed_steps(run: Run, reentrant: bool) -> Any:
    model = Checkpointed(reentrant)
    jitted, seen = run.jit(model), []
    for _ in range(3):
        x = leaf(3, 4)
        y = jitted(x)
        y.square().sum().backward()
        seen.append((y, x.grad, grads_of(model), torch.rand(2)))
        model.zero_grad()
    return seen


@case("autograd")
def checkpoint_with_dropout(run: Run) -> Any:
    """A non-reentrant checkpoint draws one mask for both passes and leaves the generator where eager does."""
    return checkpointed_steps(run, False)


@case("autograd", may_refuse=True)
def reentrant_checkpoint_with_dropout(run: Run) -> Any:
    """The same for the reentrant kind."""
    return checkpointed_steps(run, True)


@case("autograd")
def checkpoint_that_keeps_no_random_state(run: Run) -> Any:
    """`preserve_rng_state=False` draws a second mask in the backward pass, as eager does."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def f(x: Tensor) -> Tensor:
        return checkpoint(layer, x.sin(), use_reentrant=False, preserve_rng_state=False)

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = leaf(3, 4)
        y = jitted(x)
        y.sum().backward()
        seen.append((y, x.grad, torch.rand(1)))
    return seen


@case("autograd")
def checkpoint_around_a_jitted_module(run: Run) -> Any:
    """A checkpoint outside recomputes the jitted module in backward."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.3))
    jitted, seen = run.jit(layer), []
    for reentrant in (False, True, False):
        x = leaf(3, 4)
        y = checkpoint(jitted, x.sin(), use_reentrant=reentrant)
        y.square().sum().backward()
        seen.append((y, x.grad, grads_of(layer), torch.rand(1)))
    return seen
