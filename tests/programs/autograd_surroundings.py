"""What surrounds a call or its backward: anomaly mode, checkpoints, second backwards, hooks for saved tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from programs.case import Run, case


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


@case("autograd")
def anomaly_mode_around_the_backward_only(run: Run) -> Any:
    """Anomaly mode on in backward, for a cotangent of the usual layout and for one of another."""
    f, seen = run.jit(lambda x: (x.exp() * x).t()), []
    for transposed in (False, True):
        x = leaf(2, 3)
        y = f(x)
        with torch.autograd.set_detect_anomaly(True):
            y.backward(torch.ones(2, 3).t() if transposed else torch.ones(3, 2))
        seen.append((y, x.grad, torch.is_anomaly_enabled()))
    return seen


@case("autograd")
def anomaly_mode_names_the_function(run: Run) -> Any:
    """A NaN that no gradient shows raises all the same, with the name of the function that made it."""
    f, seen = run.jit(lambda x: torch.where(x > 0, x.sqrt() * 2, x)), []
    for on in (False, True, False):
        x = torch.tensor([-1.0, 0.0, 4.0], requires_grad=True)
        with torch.autograd.set_detect_anomaly(on):
            seen.append((run.caught(f(x).sum().backward), x.grad))
    return seen


@case("autograd")
def second_backward_where_something_was_saved(run: Run) -> Any:
    """The error of a second backward, and none where views and sums are all that the program does."""
    f = run.jit(lambda x: x.sin().sum())
    g, seen = run.jit(lambda x: x[1:].view(-1).sum() + x.sum()), []
    for _ in range(2):
        x, y = leaf(3), leaf(3)
        a, b = f(x), g(y)
        a.backward()
        b.backward()
        seen.append((run.caught(a.backward), run.caught(b.backward), x.grad, y.grad))
    return seen


@case("autograd")
def checkpoint_around_a_part_that_is_jitted(run: Run) -> Any:
    """A checkpoint around a function that calls a jitted one among others, without an early stop too."""
    inner = run.jit(lambda x, w: (x @ w).tanh().exp())
    seen = []
    for early_stop in (True, False, True):
        x, w = leaf(2, 3), leaf(3, 3)
        with torch.utils.checkpoint.set_checkpoint_early_stop(early_stop):
            y = checkpoint(lambda x, w: inner(x.sin(), w).cos() * x, x, w, use_reentrant=False)
            y.sum().backward()
        seen.append((y, x.grad, w.grad))
    return seen


@case("autograd")
def counting_what_is_saved(run: Run) -> Any:
    """Hooks for saved tensors around the first call see no stand-ins."""
    f, kinds = run.jit(lambda x: x.sin().exp().sum()), set()

    def pack(t: Tensor) -> Tensor:
        kinds.add(type(t).__name__)
        return t

    for _ in range(2):
        x = leaf(3)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = f(x)
        y.backward()
    return sorted(kinds)


@case("autograd")
def mark_dirty_on_one_of_two_inputs(run: Run) -> Any:
    """A module whose function writes a non-leaf input in place, with a parameter beside it."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            ctx.save_for_backward(w, x.clone())
            return x.mul_(w)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            w, x = ctx.saved_tensors
            return g * w, g * x

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return Scaled.apply(x, self.w).sin()

    net = Net()
    jitted, seen = run.jit(net), []
    for _ in range(2):
        net.zero_grad()
        x = leaf(3)
        h = x * 2
        y = jitted(h)
        (y.sum() + h.sum()).backward()
        seen.append((y, h, x.grad, net.w.grad))
    return seen


@case("hooks")
def hooks_inside_see_every_gradient(run: Run) -> Any:
    """Hooks of intermediates that keep and change gradients, of one that is returned too, also with create_graph."""
    log: list[Tensor] = []

    def look(g: Tensor) -> None:
        log.append(g.clone())

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        h.register_hook(look)
        h.register_hook(lambda g: g * 5)
        return h, h.sin().sum()

    jitted, seen = run.jit(f), []
    for again in (False, True, False, True):
        x = leaf(3)
        h, loss = jitted(x)
        (g,) = torch.autograd.grad(loss + h.sum(), x, create_graph=again)
        seen.append((g, torch.autograd.grad(g.sum(), x) if again else None, log[-1], len(log)))
    return seen


@case("hooks")
def hooks_inside_that_hold_what_the_call_made(run: Run) -> Any:
    """A hook with a mask of this call's, one with a list of this call's, and one on a tensor that was given."""

    def masked(x: Tensor) -> Tensor:
        h, mask = x * 2, (x > 0).float()
        h.register_hook(lambda g: g * mask)
        return h.exp().sum()

    def listed(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        h, kept = x * 3, list[Tensor]()
        h.register_hook(lambda g: kept.append(g))
        return h.exp().sum(), kept

    def given(x: Tensor) -> Tensor:
        x.register_hook(lambda g: g + 1)
        return x.exp().sum()

    f, g, h, seen = run.jit(masked), run.jit(listed), run.jit(given), []
    for _ in range(2):
        x, y, z = leaf(3), leaf(3), leaf(3)
        loss, kept = g(y)
        f(x).backward(), loss.backward(), h(z).backward()
        seen.append((x.grad, y.grad, kept, z.grad))
    return seen


@case("hooks")
def backward_hooks_of_modules_see_every_backward(run: Run) -> Any:
    """Gradients kept by a module's hooks at every backward, a global hook, and a module whose input has no gradient."""
    net, log = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), []
    net[0].register_full_backward_hook(lambda m, gi, go: log.append((gi, go[0].clone())))
    net[2].register_full_backward_pre_hook(lambda m, go: log.append(go[0].clone()))
    net[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    f, seen = run.jit(net), []
    for with_gradient in (True, False, True, False):
        net.zero_grad()
        x = torch.randn(2, 3, requires_grad=with_gradient)
        f(x).square().sum().backward()
        seen.append((x.grad, [p.grad for p in net.parameters()], list(log)))
        log.clear()
    return seen


@case("hooks")
def retain_grad_inside_of_several(run: Run) -> Any:
    """`retain_grad` on an output that another one is made of, on one that it is not, on a view, and on an input."""

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, other = x * 3, x.exp()
        h.retain_grad()
        other.retain_grad()
        view = h.view(-1)
        view.retain_grad()
        return h, other, view, (h * h).sum() + h.sin().sum()

    def of_input(x: Tensor) -> Tensor:
        x.retain_grad()
        return x.sin().sum()

    jitted, own, seen = run.jit(f), run.jit(of_input), []
    for _ in range(2):
        x, y = leaf(3), leaf(3)
        h, other, view, loss = jitted(x)
        given = y * 2
        (loss + other.sum() + view.exp().sum() + own(given)).backward()
        seen.append((h.grad, other.grad, view.grad, x.grad, given.grad))
    return seen


@case("autograd")
def order_of_gradients_of_a_larger_model(run: Run) -> Any:
    """Blocks of several kinds with a tied weight; an input that is a leaf, one that is none."""
    order: list[str] = []

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4, bias=False)
            self.unused = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(self.up(self.norm(x)).relu())

    net = nn.Sequential(*(Block() for _ in range(5)))
    net[3].down.weight = net[1].down.weight
    for name, p in net.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: order.append(name))
    f, seen = run.jit(net), []
    for kind in ("plain", "leaf", "made", "plain"):
        x = torch.randn(2, 4, requires_grad=kind != "plain")
        x.register_hook(lambda g: order.append("x")) if kind != "plain" else None
        f(x * 2 if kind == "made" else x).square().sum().backward()
        seen.append(list(order))
        order.clear()
    return seen
