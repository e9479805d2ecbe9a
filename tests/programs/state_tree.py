"""The module tree as it is at the call: training mode, children, weights, dtypes, hooks, parametrizations."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import fulgurite as fg
from programs.case import Run, case


class Stack(nn.Module):
    def __init__(self, n: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(n))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.drop(x)


class Lora(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.a, self.b = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.t() @ self.b.t()


def gradients(module: nn.Module) -> dict[str, Any]:
    """Gradients by name, taken away so that the next step starts anew."""
    found = {k: None if p.grad is None else p.grad.clone() for k, p in module.named_parameters()}
    module.zero_grad()
    return found


def step(f: Any, module: nn.Module, x: Tensor) -> Any:
    y = f(x)
    if y.requires_grad:
        y.float().square().sum().backward()
    return y, y.requires_grad, gradients(module)


@case("module state")
def train_and_eval_of_the_original(run: Run) -> Any:
    """`train()` and `eval()` on the original are seen by the jitted one, and settle on two traces."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    f, seen, x = run.jit(net), [], torch.randn(5, 3)
    for _ in range(3):
        net.eval()
        seen.append((f(x), f.training))
        net.train()
        seen.append((f(x), f.training))
    return seen, list(net.buffers()), not run.compiled or fg.stats(f).misses == 2


@case("module state")
def train_and_eval_of_the_jitted(run: Run) -> Any:
    """Called on the jitted module they show on the original and on its children."""
    net = Stack()
    f, seen, x = run.jit(net), [], torch.randn(2, 3)
    for mode in (True, False, True, False):
        f.train(mode)
        seen.append((f(x), net.training, net.drop.training, f.training))
    return seen, not run.compiled or fg.stats(f).misses == 2


@case("module state")
def one_submodule_in_eval(run: Run) -> Any:
    """A frozen BatchNorm in a model that trains; a function that closes over the model sees it, too."""
    net, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)), torch.randn(6, 3)
    f, g = run.jit(net), run.jit(lambda t: net(t) * 2)
    seen = [f(x), g(x)]
    net[1].eval()
    seen += [f(x), g(x)]
    net[2].p = 0.9
    seen += [f(x), g(x)]
    net[1].train()
    return [*seen, f(x), g(x), net[1].num_batches_tracked]


@case("module state")
def module_list_as_it_is_now(run: Run) -> Any:
    """A ModuleList appended to, shortened, an entry replaced, emptied."""
    net, x = Stack().eval(), torch.randn(2, 3)
    f = run.jit(net)
    seen = [step(f, net, x)]
    net.blocks.append(nn.Linear(3, 3))
    seen.append(step(f, net, x))
    net.blocks[0] = nn.Linear(3, 3, bias=False)
    seen.append(step(f, net, x))
    del net.blocks[1]
    seen.append(step(f, net, x))
    net.blocks.insert(0, nn.Identity())
    seen.append(step(f, net, x))
    net.blocks = nn.ModuleList()
    return [*seen, step(f, net, x)]


@case("module state")
def module_dict_and_sequential_as_they_are_now(run: Run) -> Any:
    """A ModuleDict gets, loses and reorders entries; a Sequential is extended and popped."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleDict({"a": nn.Linear(3, 1), "b": nn.Linear(3, 2)})
            self.tail = nn.Sequential(nn.ReLU())

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {k: self.tail(head(x)) for k, head in self.heads.items()}

    net, x = Heads(), torch.randn(2, 3)
    f = run.jit(net)
    seen = [f(x)]
    net.heads["c"] = nn.Linear(3, 3)
    seen.append(f(x))
    net.heads.pop("a")
    net.tail.append(nn.Tanh())
    seen.append(f(x))
    net.heads["a"] = net.heads["b"]
    net.tail.pop(0)
    return [*seen, f(x)]


@case("module state")
def adapters_put_in_and_merged(run: Run) -> Any:
    """Linear layers replaced by LoRA ones, trained, merged back; the base is frozen."""
    net, x, seen = Stack().eval(), torch.randn(2, 3), []
    f = run.jit(net)
    seen.append(step(f, net, x))
    net.requires_grad_(False)
    for i, base in enumerate(net.blocks):
        net.blocks[i] = Lora(base)
    seen.append(step(f, net, x))
    for i, lora in enumerate(net.blocks):
        lora.base.weight.data += (lora.b @ lora.a).data
        net.blocks[i] = lora.base
    return [*seen, step(f, net, x)]


@case("module state")
def submodule_set_to_none_and_back(run: Run) -> Any:
    """An optional submodule and an optional bias, present and absent."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.norm: nn.Module | None = nn.LayerNorm(3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.lin(x)
            return x if self.norm is None else self.norm(x)

    net, x = Net(), torch.randn(2, 3)
    f, norm, bias = run.jit(net), net.norm, net.lin.bias
    seen = [step(f, net, x)]
    net.norm = None
    seen.append(step(f, net, x))
    net.lin.bias = None
    seen.append(step(f, net, x))
    net.norm, net.lin.bias = norm, bias
    return [*seen, step(f, net, x)]


@case("module state")
def shared_submodule_untied(run: Run) -> Any:
    """One layer used twice, then a copy takes the second place, then the first layer again."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.two = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x).relu())

    net, x = Twice(), torch.randn(2, 3)
    f = run.jit(net)
    seen = [step(f, net, x)]
    net.two = copy.deepcopy(net.one)
    net.two.weight.data *= 2
    seen.append(step(f, net, x))
    net.two = net.one
    return [*seen, step(f, net, x)]


@case("module state")
def tied_embedding_and_projection(run: Run) -> Any:
    """Tied weights get the sum of both gradients, are listed once, and can be untied."""

    class Lm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embed(ids))

    net, seen = Lm(), []
    f = run.jit(net)
    optimizer = torch.optim.SGD(f.parameters(), lr=0.1, momentum=0.9)
    for i in range(4):
        if i == 2:
            net.head.weight = nn.Parameter(net.embed.weight.detach().clone())
        optimizer.zero_grad()
        f(torch.randint(0, 5, (2, 3))).square().mean().backward()
        optimizer.step()
        seen.append(([n for n, _ in f.named_parameters()], net.embed.weight.grad, net.head.weight.grad))
    return seen, net.embed.weight, net.head.weight is net.embed.weight


@case("module state")
def weight_norm_trains(run: Run) -> Any:
    """`parametrizations.weight_norm`: gradients reach both originals, updates are seen."""
    net, seen = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 2)), nn.Tanh()), []
    f = run.jit(net)
    optimizer = torch.optim.SGD(f.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        y = f(torch.randn(4, 3))
        y.square().sum().backward()
        seen.append((y, {k: p.grad.clone() for k, p in net.named_parameters() if p.grad is not None}))
        optimizer.step()
    return seen, dict(net.state_dict())


@case("module state")
def parametrization_added_cached_and_removed(run: Run) -> Any:
    """A parametrization registered after the first call, `parametrize.cached`, and its removal."""

    class Symmetric(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return w.triu() + w.triu(1).t()

    net, x = nn.Linear(3, 3), torch.randn(2, 3)
    f = run.jit(net)
    seen = [step(f, net, x)]
    parametrize.register_parametrization(net, "weight", Symmetric())
    seen.append(step(f, net, x))
    with parametrize.cached():
        seen.append((f(x) + f(x)).detach())
    seen.append(step(f, net, x))
    parametrize.remove_parametrizations(net, "weight")
    return [*seen, step(f, net, x)]


@case("module state")
def spectral_norm_advances(run: Run) -> Any:
    """`spectral_norm` keeps its power iteration vectors from call to call in training, and not in eval."""
    net, seen = parametrizations.spectral_norm(nn.Linear(4, 3)), []
    f = run.jit(net)
    for mode in (True, True, False, False, True):
        net.train(mode)
        seen.append((f(torch.ones(2, 4)), [b.clone() for b in net.buffers()]))
    return seen


@case("module state")
def hooks_come_and_go(run: Run) -> Any:
    """Forward and pre-forward hooks added, replaced and removed between calls."""
    net, x, log = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.randn(2, 3), []
    f = run.jit(net)
    seen = [f(x)]
    doubled = net[0].register_forward_hook(lambda m, args, out: out * 2)
    seen.append(f(x))
    shifted = net[1].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    logged = net.register_forward_hook(lambda m, args, out: log.append(tuple(out.shape)))
    seen += [f(x), f(x), len(log)]
    doubled.remove()
    seen += [f(x), len(log)]
    shifted.remove(), logged.remove()
    return [*seen, f(x), f(x), log]


@case("module state")
def global_forward_hook(run: Run) -> Any:
    """A hook for all modules, registered after the first call and removed again."""
    net, x, names = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.randn(2, 3), []
    f = run.jit(net)
    seen = [f(x)]

    def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        names.append(type(module).__name__)
        return out + 1 if isinstance(module, nn.ReLU) else None

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        seen.append(f(x))
    finally:
        handle.remove()
    return [*seen, f(x), [n for n in names if n in ("Linear", "ReLU")]]
