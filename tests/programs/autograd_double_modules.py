"""Gradients of gradients through `torch.nn` modules, in training steps as users write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from programs.case import Run, case


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def penalised(run: Run, module: nn.Module, shape: Sequence[int], steps: int = 2) -> Any:
    """Steps of SGD on an output plus the squared norm of its input gradient."""
    jitted, seen = run.jit(module), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for _ in range(steps):
        x = leaf(*shape)
        y = jitted(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        loss = y.square().mean() + slope.square().sum()
        optimizer.zero_grad()
        loss.backward()
        seen.append((y, slope, loss.detach(), x.grad, gradients(module)))
        optimizer.step()
    return seen


@case("double backward")
def penalty_of_smooth_activations(run: Run) -> Any:
    """Softplus, GELU (both forms), SiLU, ELU, Mish and sigmoid, one after another."""
    activations = (nn.Softplus(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.ELU(), nn.Mish(), nn.Sigmoid())
    return [penalised(run, nn.Sequential(nn.Linear(3, 4), a, nn.Linear(4, 1)), (2, 3)) for a in activations]


@case("double backward")
def penalty_of_kinked_activations(run: Run) -> Any:
    """ReLU, leaky ReLU, PReLU with a trained slope and hardswish: second derivatives that vanish or are None."""
    activations = (nn.ReLU(), nn.LeakyReLU(0.1), nn.PReLU(), nn.Hardtanh(), nn.Softsign(), nn.LogSigmoid())
    return [penalised(run, nn.Sequential(nn.Linear(3, 4), a, nn.Linear(4, 1)), (2, 3)) for a in activations]


@case("double backward")
def penalty_of_a_discriminator(run: Run) -> Any:
    """Strided and transposed convolutions with leaky ReLU, and average pooling."""
    layers = (nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.ConvTranspose2d(3, 2, 2, stride=2))
    return penalised(
        run, nn.Sequential(*layers, nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(18, 1)), (2, 1, 6, 6)
    )


@case("double backward")
def penalty_of_max_pooling_and_norms(run: Run) -> Any:
    """Max pooling, group norm and instance norm in one network."""
    layers = (nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.MaxPool1d(2), nn.InstanceNorm1d(4, affine=True))
    return penalised(run, nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 1)), (2, 2, 8))


@case("double backward")
def penalty_of_layer_norm_alone(run: Run) -> Any:
    """Layer norm with and without its affine part, and RMS norm."""
    norms = (nn.LayerNorm(4), nn.LayerNorm((3, 4), elementwise_affine=False), nn.RMSNorm(4))
    return [penalised(run, nn.Sequential(n, nn.Linear(4, 1)), (2, 3, 4)) for n in norms]


class Attention(nn.Module):
    """Softmax attention with a causal mask and two heads."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused, self.qkv, self.out = fused, nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, 2, 2).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            y = (q @ k.mT / 2**0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, 4))


@case("double backward")
def penalty_of_causal_attention(run: Run) -> Any:
    """Attention written out with a mask."""
    return penalised(run, Attention(fused=False), (2, 3, 4))


@case("double backward")
def penalty_of_fused_attention(run: Run) -> Any:
    """`scaled_dot_product_attention` under the math backend, which alone has a second derivative."""
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        return penalised(run, Attention(fused=True), (2, 3, 4))


@case("double backward")
def fused_attention_without_second_derivative(run: Run) -> Any:
    """Where eager's attention kernel has no second derivative, the same error comes out."""
    f, seen = run.jit(lambda q: F.scaled_dot_product_attention(q, q, q)), []
    for _ in range(2):
        q = leaf(1, 2, 3, 8)
        (g,) = torch.autograd.grad(f(q).sum(), q, create_graph=True)
        seen.append((g.detach(), run.caught(g.square().sum().backward)))
    return seen


@case("double backward")
def penalty_of_an_embedding_model(run: Run) -> Any:
    """The slope with respect to looked-up embeddings: adversarial training of a text model."""

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn, self.head = nn.Embedding(6, 3, padding_idx=0), nn.RNNCell(3, 4), nn.Linear(4, 1)

        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
            e = self.embed(ids)
            h = self.rnn(e[:, 0])
            return self.head(self.rnn(e[:, 1], h)), e

    model = Text()
    jitted, seen = run.jit(model), []
    for _ in range(2):
        y, e = jitted(torch.randint(0, 6, (3, 2)))
        (slope,) = torch.autograd.grad(y.sum(), e, create_graph=True)
        (y.mean() + slope.square().sum()).backward()
        seen.append((y, slope, gradients(model)))
        model.zero_grad()
    return seen


@case("double backward")
def penalty_of_batch_norm_in_both_modes(run: Run) -> Any:
    """Batch norm in training, then in evaluation, then in training again; statistics advance as in eager."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    seen = []
    for training in (True, False, True):
        model.train(training)
        seen.append((penalised(run, model, (4, 3), 1), model[1].running_mean.clone(), model[1].running_var.clone()))
    return seen


@case("double backward")
def penalty_under_bfloat16_autocast(run: Run) -> Any:
    """Forward under autocast, both backward passes outside."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    jitted, seen = run.jit(model), []
    for _ in range(2):
        x = leaf(2, 3)
        with torch.autocast("cpu", torch.bfloat16):
            y = jitted(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.float().mean() + slope.square().sum()).backward()
        seen.append((y, slope, gradients(model)))
        model.zero_grad()
    return seen


@case("double backward")
def same_module_without_and_with_penalty(run: Run) -> Any:
    """Plain steps first, a penalty on every second step (lazy regularisation)."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 1))
    jitted, optimizer, seen = run.jit(model), torch.optim.Adam(model.parameters()), []
    for i in range(4):
        x = leaf(2, 3)
        y = jitted(x)
        loss = y.mean()
        if i % 2:
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            loss = loss + 10 * slope.norm(2, 1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((loss.detach(), gradients(model)))
    return seen


@case("double backward")
def penalty_on_two_calls_of_one_module(run: Run) -> Any:
    """Real and fake batches through one discriminator, the penalty on both (R1 and R2)."""
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1))
    jitted, seen = run.jit(model), []
    for _ in range(2):
        real, fake = leaf(2, 3), leaf(4, 3)
        a, b = jitted(real), jitted(fake)
        slopes = torch.autograd.grad(a.sum() + b.sum(), (real, fake), create_graph=True)
        (F.softplus(b).mean() + F.softplus(-a).mean() + sum(s.square().sum() for s in slopes)).backward()
        seen.append((a, b, slopes, real.grad, fake.grad, gradients(model)))
        model.zero_grad()
    return seen


@case("double backward")
def sobolev_loss_of_a_network(run: Run) -> Any:
    """A physics-informed loss: first and second derivative of the network in one of two inputs."""
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1))
    u = run.jit(lambda x, t: model(torch.stack([x, t], -1)).squeeze(-1))
    seen = []
    for _ in range(2):
        x, t = leaf(4), leaf(4)
        value = u(x, t)
        u_x, u_t = torch.autograd.grad(value.sum(), (x, t), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        loss = (u_t + value * u_x - 0.01 * u_xx).square().mean()
        loss.backward()
        seen.append((value, u_x, u_t, u_xx, loss, gradients(model)))
        model.zero_grad()
    return seen


@case("double backward")
def maml_around_a_jitted_loss(run: Run) -> Any:
    """Two inner steps with `create_graph` around a jitted loss, the outer gradient through both."""
    loss_of = run.jit(lambda w, b, x, y: F.mse_loss(torch.tanh(x @ w + b), y))
    seen = []
    for _ in range(2):
        w, b = leaf(3, 1), leaf(1)
        x, y = torch.randn(4, 3), torch.randn(4, 1)
        fast = [w, b]
        for _step in range(2):
            grads = torch.autograd.grad(loss_of(*fast, x, y), fast, create_graph=True)
            fast = [p - 0.3 * g for p, g in zip(fast, grads)]
        loss_of(*fast, x.flip(0), y).backward()
        seen.append((fast, w.grad, b.grad))
    return seen
