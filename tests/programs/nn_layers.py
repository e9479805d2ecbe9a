"""Modules from torch.nn: convolutions, pooling, lazy modules, parametrizations, containers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from programs.case import Run, case
from programs.nn_modules import params


@case("nn")
def convolutions_and_their_layouts(run: Run) -> Any:
    """Convolutions with groups, dilation, padding modes and transposed, contiguous and channels-last inputs."""
    model = nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 8, 3, groups=2, dilation=2, padding="same"),
        nn.ConvTranspose2d(8, 2, 3, stride=2, output_padding=1),
    )
    jitted, seen = run.jit(model), []
    for form in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        x = torch.randn(2, 4, 6, 6).to(memory_format=form).requires_grad_()
        y = jitted(x)
        y.square().sum().backward()
        seen.append((y, x.grad, params(model)))
    return seen


@case("nn")
def pooling_with_indices(run: Run) -> Any:
    """`MaxPool2d(return_indices=True)` and `MaxUnpool2d`, adaptive and fractional pooling."""
    pool, unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
    fractional = nn.FractionalMaxPool2d(2, output_ratio=0.5)

    def f(x: Tensor) -> tuple[Tensor, ...]:
        y, indices = pool(x)
        return unpool(y, indices), indices, nn.functional.adaptive_avg_pool2d(x, (3, None)), fractional(x)

    jitted, seen = run.jit(f), []
    for size in (8, 8, 6):
        x = torch.randn(1, 2, size, size, requires_grad=True)
        out = jitted(x)
        sum(o.square().sum() for o in out if o.requires_grad).backward()
        seen.append((out, x.grad))
    return seen


@case("nn")
def upsampling_of_every_mode(run: Run) -> Any:
    """`Upsample` and `interpolate` in all modes with gradients, `PixelShuffle`, `grid_sample`."""
    up = [nn.Upsample(scale_factor=2, mode=m) for m in ("nearest", "bilinear", "bicubic")]

    def f(x: Tensor) -> list[Tensor]:
        grid = nn.functional.affine_grid(torch.eye(2, 3)[None], [1, 4, 3, 3], align_corners=False)
        rest = [nn.functional.grid_sample(x, grid, align_corners=False), nn.functional.pixel_shuffle(x, 2)]
        return [u(x) for u in up] + rest + [nn.functional.interpolate(x, size=(7, 3), mode="area")]

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = torch.randn(1, 4, 5, 5, requires_grad=True)
        out = jitted(x)
        seen.append((out, [torch.autograd.grad(o.square().sum(), x, retain_graph=True) for o in out]))
    return seen


@case("nn")
def lazy_modules_materialise(run: Run) -> Any:
    """Lazy modules take their shape at the first jitted call and train afterwards."""
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
    jitted, seen = run.jit(model), []
    for _ in range(3):
        y = jitted(torch.randn(5, 3))
        y.sum().backward()
        seen.append((y, params(model), [type(m).__name__ for m in model]))
    return seen, model.state_dict()


@case("nn")
def spectral_norm_trains(run: Run) -> Any:
    """`parametrizations.spectral_norm`: its power iteration moves its vectors in training only."""
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 1))
    jitted, optimizer, seen = run.jit(model), torch.optim.SGD(model.parameters(), lr=0.1), []
    for training in (True, True, False, True):
        model.train(training)
        jitted(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        seen.append((params(model), {k: v.clone() for k, v in model.state_dict().items()}))
    return seen


@case("nn")
def old_weight_norm_and_pruning(run: Run) -> Any:
    """The hook-based `weight_norm` and `prune`, whose pre-forward hooks set the weight, added in between."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    jitted, seen = run.jit(model), []
    for step in range(4):
        if step == 1:
            prune.l1_unstructured(model[0], "weight", amount=0.5)
        if step == 2:
            nn.utils.weight_norm(model[1])
        if step == 3:
            prune.remove(model[0], "weight")
        y = jitted(torch.randn(2, 4))
        y.sum().backward()
        seen.append((y, [n for n, _ in model.named_parameters()], params(model)))
    return seen


@case("nn")
def orthogonal_parametrization(run: Run) -> Any:
    """`parametrizations.orthogonal` and a user's parametrization, cached or not."""

    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).t()

    model = nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 3)), nn.Linear(3, 3))
    nn.utils.parametrize.register_parametrization(model[1], "weight", Symmetric())
    jitted, seen = run.jit(model), []
    for cached in (False, True, False):
        x = torch.randn(2, 3)
        if cached:
            with nn.utils.parametrize.cached():
                y = jitted(x) + jitted(x)
        else:
            y = jitted(x)
        y.sum().backward()
        seen.append((y, params(model)))
    return seen


@case("nn")
def containers_of_every_kind(run: Run) -> Any:
    """`ModuleDict`, `ParameterList`, `ParameterDict`, a sliced `Sequential` and an `OrderedDict` of layers."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
            self.scales = nn.ParameterList([torch.ones(2), torch.zeros(2)])
            self.named = nn.ParameterDict({"g": torch.ones(3)})
            self.body = nn.Sequential(OrderedDict(one=nn.Linear(3, 3), act=nn.ReLU(), two=nn.Linear(3, 3)))

        def forward(self, x: Tensor, head: str, depth: int) -> Tensor:
            x = self.body[:depth](x) * self.named["g"]
            return self.heads[head](x) * self.scales[0] + self.scales[1]

    model = Mixed()
    jitted, seen = run.jit(model), []
    for head, depth in (("a", 1), ("b", 3), ("a", 2), ("a", 1)):
        y = jitted(torch.randn(2, 3), head, depth)
        y.sum().backward()
        seen.append((y, params(model)))
    return seen


@case("nn")
def activations_of_every_kind(run: Run) -> Any:
    """Activation modules, in place and with learned slopes, values and gradients."""
    made = [nn.PReLU(3), nn.GELU("tanh"), nn.SiLU(), nn.Hardswish(), nn.Softplus(2.0), nn.ELU(), nn.GLU(1), nn.Mish()]
    made += [nn.LogSoftmax(1), nn.Threshold(0.1, 20), nn.Hardtanh(inplace=True), nn.ReLU6(inplace=True)]
    jitted, seen = [run.jit(m) for m in made], []
    for _ in range(2):
        for f in jitted:
            x = torch.randn(2, 3, 4, requires_grad=True)
            y = f(x.clone() if getattr(f, "inplace", False) else x[:, :2] if isinstance(f, nn.GLU) else x)
            seen.append((y, torch.autograd.grad(y.square().sum(), x)))
    return seen


@case("nn")
def layers_of_two_inputs(run: Run) -> Any:
    """`Bilinear`, `CosineSimilarity` and `PairwiseDistance` of batches."""
    bilinear, cosine, distance = nn.Bilinear(3, 4, 2), nn.CosineSimilarity(), nn.PairwiseDistance(p=1.5)
    f, seen = run.jit(lambda x, y: (bilinear(x, y), cosine(x, y[:, :3]), distance(x, y[:, 1:]))), []
    for _ in range(2):
        x, y = torch.randn(5, 3, requires_grad=True), torch.randn(5, 4, requires_grad=True)
        out = f(x, y)
        sum(o.sum() for o in out).backward()
        seen.append((out, x.grad, y.grad, params(bilinear)))
    return seen


@case("nn", may_refuse=True)
def adaptive_log_softmax(run: Run) -> Any:
    """`AdaptiveLogSoftmaxWithLoss` picks rows by their targets: masks and `nonzero` inside."""
    model = nn.AdaptiveLogSoftmaxWithLoss(4, 10, cutoffs=[2, 5])
    jitted, seen = run.jit(model), []
    for targets in ([0, 1, 7, 3], [9, 9, 2, 0], [0, 1, 0, 1]):
        out, loss = jitted(torch.randn(4, 4), torch.tensor(targets))
        loss.backward()
        seen.append((out, loss, params(model)))
    return seen


@case("nn")
def module_errors_are_eagers(run: Run) -> Any:
    """Wrong shapes and one value per channel raise eager's errors, before and after a good call."""
    linear, norm = run.jit(nn.Linear(3, 2)), run.jit(nn.BatchNorm1d(3))
    seen = []
    for _ in range(2):
        seen.append((run.caught(linear, torch.ones(2, 4)), run.caught(norm, torch.ones(1, 3))))
        seen.append((run.caught(linear, torch.ones(2, 3)), run.caught(norm, torch.randn(4, 3))))
        seen.append(run.caught(linear, torch.ones(2, 3, dtype=torch.int64)))
    return seen


@case("nn")
def cell_called_in_an_outer_loop(run: Run) -> Any:
    """A jitted cell that uses its weight twice is called for each step of a sequence: the weight's summed gradient."""

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, h: Tensor) -> Tensor:
            return self.out((self.inner(x) + self.inner(h)).tanh())

    model = Cell()
    jitted, seen = run.jit(model), []
    for steps in (1, 2, 4):
        h = torch.zeros(2, 4)
        for x in torch.randn(steps, 2, 4):
            h = jitted(x, h)
        h.square().sum().backward()
        seen.append((h, params(model)))
    return seen


@case("nn")
def input_used_inside_and_outside(run: Run) -> Any:
    """A residual connection around a jitted function that uses its input several times: the summed gradient."""
    f, seen = run.jit(lambda x: x.sin() * x.exp() + x.cos()), []
    for _ in range(3):
        x = torch.randn(4, 5, requires_grad=True)
        y = x.tanh() + f(x)
        y.square().sum().backward()
        seen.append((y, x.grad))
    return seen
