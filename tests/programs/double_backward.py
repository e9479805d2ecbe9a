"""Gradients of gradients through modules and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


class Attention(nn.Module):
    """Normalised self-attention with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


def penalty(run: Run, module: nn.Module, shape: tuple[int, ...]) -> Any:
    """Two steps of a gradient penalty."""
    jitted, seen = run.jit(module), []
    for _ in range(2):
        x = torch.randn(shape, requires_grad=True)
        y = jitted(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        loss = y.square().mean() + (slope.flatten(1).norm(dim=1) - 1).square().mean()
        loss.backward()
        seen.append((y, slope, loss, x.grad, [p.grad for p in module.parameters()]))
        module.zero_grad()
    return seen


@case("double backward")
def gradient_penalty_of_an_mlp(run: Run) -> Any:
    """The penalty of WGAN-GP on a smooth MLP."""
    return penalty(run, nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)), (5, 4))


@case("double backward")
def gradient_penalty_of_a_convolution(run: Run) -> Any:
    """The same through convolutions."""
    layers = (nn.Conv2d(2, 4, 3), nn.SiLU(), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(48, 2))
    return penalty(run, nn.Sequential(*layers), (3, 2, 8, 8))


@case("double backward")
def gradient_penalty_of_attention(run: Run) -> Any:
    """The same through layer norm, views and softmax."""
    return penalty(run, Attention(), (2, 5, 8))


@case("double backward")
def gradient_penalty_through_batch_norm(run: Run) -> Any:
    """The same through batch statistics."""
    return penalty(run, nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Softplus(), nn.Linear(8, 1)), (5, 4))


@case("double backward")
def gradient_penalty_with_dropout(run: Run) -> Any:
    """One mask for all orders."""
    return penalty(run, nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1)), (5, 4))


def orders(fn: Callable[..., Tensor], inputs: tuple[Tensor, ...], order: int) -> list[Any]:
    seen: list[Any] = [fn(*inputs)]
    for i in range(order):
        last = i == order - 1
        grads = torch.autograd.grad(seen[-1].sum(), inputs, create_graph=not last, allow_unused=True)
        seen.extend(grads[1:])
        seen.append(grads[0])
    return seen


@case("double backward")
def four_orders(run: Run) -> Any:
    """Derivatives up to the fourth."""
    f = run.jit(lambda x: x.sin() * x**4 + x.exp() / (1 + x * x))
    return [orders(f, (torch.randn(4, requires_grad=True),), 4) for _ in range(2)]


@case("double backward")
def two_inputs_and_a_view(run: Run) -> Any:
    """Mixed second derivatives through views."""
    f = run.jit(lambda x, w: (x.t() @ w).view(-1).tanh() * w.sum())
    return [orders(f, (torch.randn(3, 2, requires_grad=True), torch.randn(3, 2, requires_grad=True)), 2) for _ in "ab"]


@case("double backward")
def cotangent_that_requires_grad(run: Run) -> Any:
    """A double backward with respect to the cotangent: forward mode by two backward passes."""
    f = run.jit(lambda x: (x.sin().cumsum(0), x * x))
    seen = []
    for _ in range(2):
        x, v, w = (torch.randn(3, requires_grad=True) for _ in range(3))
        a, b = f(x)
        (g,) = torch.autograd.grad((a, b), x, (v, w), create_graph=True)
        seen.append((g, torch.autograd.grad(g, (v, w), torch.ones(3), retain_graph=True)))
        seen.append(torch.autograd.grad(g.square().sum(), (x, v, w)))
    return seen


@case("double backward")
def one_of_two_outputs(run: Run) -> Any:
    """Only one output enters the first gradient, the other the loss."""
    f = run.jit(lambda x: (x**3, x.exp()))
    seen = []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        a, b = f(x)
        (g,) = torch.autograd.grad(a.sum(), x, create_graph=True)
        (g.sum() * b.sum()).backward()
        seen.append((g, x.grad))
    return seen


@case("double backward")
def backward_with_create_graph(run: Run) -> Any:
    """`.backward(create_graph=True)`, then a backward of the gradient itself."""
    f = run.jit(lambda x: x**3)
    seen = []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        f(x).sum().backward(create_graph=True)
        first = x.grad
        x.grad = None
        first.sum().backward()
        seen.append((first.detach(), first.requires_grad, x.grad))
    return seen


@case("double backward")
def detach_and_no_grad_inside(run: Run) -> Any:
    """Gradients of both orders stop where the program stops them."""

    def program(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.exp()
        return x.tanh() * scale * x.detach() + x.exp()

    return [orders(run.jit(program), (torch.randn(3, requires_grad=True),), 3) for _ in range(2)]


class Cube(torch.autograd.Function):
    """A formula that can be differentiated again, partly under `no_grad`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            frozen = x * 1.0
        return gradient * 3 * x * frozen


@case("double backward")
def autograd_function(run: Run) -> Any:
    """The formula of an `autograd.Function` is differentiated."""
    f = run.jit(lambda x: Cube.apply(x.sin()))
    return [orders(f, (torch.randn(3, requires_grad=True),), 3) for _ in range(2)]


class Once(torch.autograd.Function):
    """A formula that may not be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2 * ctx.saved_tensors[0]


@case("double backward")
def once_differentiable_function(run: Run) -> Any:
    """The second gradient raises what eager raises."""
    f = run.jit(lambda x: Once.apply(x).sum())
    seen = []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        seen.append((g.detach(), g.requires_grad, run.caught(torch.autograd.grad, g.sum(), x)))
    return seen


@case("double backward")
def hessian_of_a_loss_in_parameters(run: Run) -> Any:
    """A Hessian-vector product in all parameters."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Sigmoid(), nn.Linear(5, 2))
    jitted, seen = run.jit(model), []
    for _ in range(2):
        loss = nn.functional.cross_entropy(jitted(torch.randn(4, 3)), torch.tensor([0, 1, 1, 0]))
        parameters = list(model.parameters())
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        product = torch.stack([(g * torch.randn_like(g)).sum() for g in grads]).sum()
        seen.append((grads, torch.autograd.grad(product, parameters)))
    return seen


@case("double backward")
def lstm_cell_twice(run: Run) -> Any:
    """Second order through a recurrent cell that is applied twice."""
    cell = nn.LSTMCell(3, 4)

    def program(x: Tensor) -> Tensor:
        h, c = cell(x)
        h, c = cell(x.flip(0), (h, c))
        return h

    return [orders(run.jit(program), (torch.randn(2, 3, requires_grad=True),), 2) for _ in range(2)]
