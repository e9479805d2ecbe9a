"""Aliasing and mutation: writes to inputs, and what shares memory with what."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def same(a: Tensor, b: Tensor) -> tuple[bool, bool]:
    return a is b, a.data_ptr() == b.data_ptr()


def halves(n: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """A base and two overlapping views of it."""
    base = torch.randn(n)
    return base, base[: n - 2], base[1 : n - 1]


@case("aliasing")
def view_of_the_second_of_two_overlapping_inputs(run: Run) -> Any:
    """The output views the second input: its offset, its memory, its base."""
    f, seen = run.jit(lambda a, b: (b[1:], a.sum())), []
    for _ in range(2):
        base, a, b = halves()
        view, _ = f(a, b)
        view.fill_(9.0)
        seen.append((base, a, b, view.storage_offset(), view.data_ptr() == b[1:].data_ptr(), view._base is base))
    x, y = torch.randn(4), torch.randn(4)
    view, _ = f(x, y)
    view.zero_()
    return seen, x, y, view._base is y


@case("aliasing")
def writing_the_second_of_two_overlapping_inputs(run: Run) -> Any:
    """A write to one of two overlapping views shows in the other; disjoint first and overlapping later."""

    def f(a: Tensor, b: Tensor) -> Tensor:
        b.mul_(2)
        a.add_(1)
        return a + b

    jitted, seen = run.jit(f), []
    for start in (4, 2, 0, 1, 4):
        base = torch.randn(8)
        a, b = base[:4], base[start : start + 4]
        seen.append((jitted(a, b), base, a, b))
    x = torch.randn(4)
    return seen, jitted(x, x), x, jitted(torch.randn(4), torch.randn(4))


@case("aliasing")
def identical_views_and_reshaped_aliases(run: Run) -> Any:
    """Inputs of other shape and stride over one memory, written through one of them."""

    def f(a: Tensor, b: Tensor) -> Any:
        a[0] += 1
        y = b * 2
        b.zero_()
        return y, a.clone()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        base = torch.randn(2, 3)
        seen.append((jitted(base, base.t()), base))
        base = torch.randn(2, 3)
        seen.append((jitted(base, base.view(-1)), base))
        base = torch.randn(2, 3)
        seen.append((jitted(base.view(-1), base[1]), base))
        seen.append((jitted(base, torch.randn(2, 3)), base))
    return seen


@case("aliasing", may_refuse=True)
def resize_of_one_alias(run: Run) -> Any:
    """`resize_` of one alias leaves the other's shape."""

    def f(a: Tensor, b: Tensor) -> Any:
        a.resize_(2)
        a.fill_(1.0)
        return b * 2, a.shape, b.shape

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = torch.randn(4)
        y = x.view(2, 2)
        seen.append((jitted(x, y), x, y))
        x = torch.randn(4)
        seen.append((jitted(x, x.detach()), x))
    return seen


@case("aliasing", may_refuse=True)
def resize_of_a_result(run: Run) -> Any:
    """`resize_` of an intermediate, smaller and to another shape."""

    def f(x: Tensor) -> Any:
        y = x * 2
        z = y.view(-1)
        y.resize_(2, 1)
        return y, z, y.shape

    jitted = run.jit(f)
    return [jitted(torch.randn(2, 2)) for _ in range(2)]


@case("aliasing")
def in_place_on_a_non_leaf(run: Run) -> Any:
    """A write to a non-leaf input is the caller's and part of its history."""

    def f(h: Tensor, w: Tensor) -> Tensor:
        h.mul_(w)
        return h.sum()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        h = x * 2
        loss = jitted(h, w)
        (loss + h.sin().sum()).backward()
        seen.append((h, x.grad, w.grad, h.is_leaf))
    return seen


@case("aliasing")
def in_place_activation_in_a_module(run: Run) -> Any:
    """`ReLU(inplace=True)` on a non-leaf that the caller goes on using, and on a bias of its own."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.linear = nn.ReLU(inplace=True), nn.Linear(3, 3)

        def forward(self, h: Tensor) -> Tensor:
            return self.act(h) + self.act(self.linear(h.detach()))

    block, stem = Block(), nn.Linear(2, 3)
    f, seen = run.jit(block), []
    for _ in range(2):
        h = stem(torch.randn(4, 2))
        out = f(h)
        (out * h).sum().backward()
        seen.append((out, h, stem.weight.grad.clone(), block.linear.bias.grad.clone()))
    return seen


@case("aliasing")
def in_place_on_a_leaf_that_requires_grad(run: Run) -> Any:
    """Eager's error for a leaf, also through a view, and no change to its value; allowed under no_grad."""

    def update(p: Tensor, by: Tensor) -> Tensor:
        with torch.no_grad():
            p.sub_(by, alpha=0.1)
        return p * by

    def direct(p: Tensor) -> Tensor:
        return p.add_(1)

    def through_view(p: Tensor) -> Tensor:
        p[0].zero_()
        return p * 2

    f, g, h, seen = run.jit(update), run.jit(direct), run.jit(through_view), []
    for _ in range(2):
        p = torch.randn(3, requires_grad=True)
        f(p, torch.randn(3)).sum().backward()
        seen.append((p, p.grad, run.caught(g, p), run.caught(h, p), g(p.detach()), p.clone()))
    return seen


@case("aliasing")
def output_view_of_a_non_leaf_is_written(run: Run) -> Any:
    """The caller writes into an output view of a non-leaf input: that enters the input's gradient."""
    f, seen = run.jit(lambda h: (h[1:], h.sum())), []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        h = x * 2
        view, total = f(h)
        view.mul_(3)
        (total + (h * h).sum()).backward()
        seen.append((h, view, x.grad, view._base is h))
    return seen


@case("aliasing")
def output_view_of_a_view_is_written(run: Run) -> Any:
    """The same where the input is itself a view of a non-leaf, and through `view`, `t`, `unbind`-like `select`."""
    forms = [lambda h: h.view(-1), lambda h: h.t(), lambda h: h[0], lambda h: h.unsqueeze(0), lambda h: h[None, :, 1]]
    seen = []
    for form in forms:
        f = run.jit(form)
        for _ in range(2):
            x = torch.randn(3, 2, requires_grad=True)
            h = (x * 2)[1:]
            view = f(h)
            view.mul_(2)
            view.add_(h.detach().sum())
            (h * h).sum().backward()
            seen.append((h, view, x.grad))
    return seen


@case("aliasing")
def view_of_a_parameter_follows_updates(run: Run) -> Any:
    """An output that views a parameter or buffer shares its memory and follows in-place updates."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 2))
            self.register_buffer("stat", torch.zeros(3))

        def forward(self, x: Tensor) -> Any:
            return x @ self.weight, self.weight.t(), self.stat[1:], self.weight.view(-1), self.weight.detach()

    net = Net()
    f, seen = run.jit(net), []
    for _ in range(2):
        y, *views = f(torch.randn(1, 3))
        with torch.no_grad():
            net.weight.add_(1)
            net.stat.add_(2)
        seen.append((y, [v.clone() for v in views], [v.requires_grad for v in views], [v.is_leaf for v in views]))
        views[1].fill_(7.0)
        (views[0] * 2).sum().backward()
        seen.append((net.stat.clone(), net.weight.grad.clone(), views[0]._base is net.weight))
    return seen


@case("aliasing")
def copies_and_casts_that_are_written(run: Run) -> Any:
    """Writing into a clone, a contiguous copy or a cast leaves the input alone; into no-ops it does not."""

    def f(x: Tensor) -> Any:
        results = []
        for y in (
            x.clone(),
            x.t().contiguous(),
            x.double(),
            x.contiguous(),
            x.float(),
            x.to(torch.float32, copy=True),
            x.reshape(-1),
            x.t().reshape(-1),
            torch.as_tensor(x),
            x.flatten(),
            x.type_as(x),
            x.expand_as(x),
        ):
            y.add_(1)
            results.append(y)
        return results, results[3] is x, results[4] is x, results[8] is x

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = torch.randn(2, 3)
        results, *facts = jitted(x)
        seen.append((results, facts, x, [r.data_ptr() == x.data_ptr() for r in results]))
    return seen


@case("aliasing")
def contiguous_of_a_contiguous_tensor(run: Run) -> Any:
    """`contiguous`, `to`, `float`, `requires_grad_(False)`, `expand` and friends that return the tensor itself."""

    def f(x: Tensor) -> list[Tensor]:
        return [
            x.contiguous(),
            x.float(),
            x.to("cpu"),
            x.to(x.dtype),
            x.cpu(),
            x.reshape(x.shape),
            x.expand(x.shape),
            x.type(torch.float32),
            x.squeeze(),
            torch.Tensor.contiguous(x),
            x[...],
            x[:],
            nn.functional.dropout(x, 0.5, training=False),
            x.coalesce() if x.is_sparse else x,
            x.resolve_conj(),
            x.real,
        ]

    jitted, seen = run.jit(f), []
    for x in (
        torch.randn(2, 3),
        torch.randn(3, 2).t(),
        torch.randn(2, 3, requires_grad=True),
        torch.randn(2, 3).double(),
    ):
        seen.append([(same(y, x), y.requires_grad, y.grad_fn is None) for y in jitted(x)])
    return seen


@case("aliasing")
def views_and_non_leaves_written_before_the_call(run: Run) -> Any:
    """Views and non-leaf tensors that were written in place before the call: values and gradients."""
    f, seen = run.jit(lambda a, b: (a * b).sum() + a.sin().sum()), []
    for _ in range(2):
        x = torch.randn(4, requires_grad=True)
        h = x * 2
        view = h[1:3]
        view.mul_(3)
        h.add_(1)
        f(view, h[:2]).backward()
        seen.append((h, view, x.grad))
        y = torch.randn(4, requires_grad=True)
        g = y.clone()
        g[0] = 5.0
        f(g, g).backward()
        seen.append((g, y.grad))
    return seen


@case("aliasing")
def in_place_with_gradient_on_a_view_input(run: Run) -> Any:
    """A view of a non-leaf is written inside: the base's history knows."""

    def f(view: Tensor, w: Tensor) -> Tensor:
        view.mul_(w)
        return view.sum()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x, w = torch.randn(4, requires_grad=True), torch.randn(2, requires_grad=True)
        h = x * 2
        loss = jitted(h[1:3], w)
        (loss + h.square().sum()).backward()
        seen.append((h, x.grad, w.grad))
    return seen


@case("aliasing")
def in_place_chain_on_one_input(run: Run) -> Any:
    """Several writes with reads between them, in the right order; the second is not lost."""

    def f(x: Tensor) -> Any:
        a = x + 0
        x.add_(1)
        b = x * 2
        x.mul_(3)
        x.add_(b)
        c = x.sum()
        x[0] = c
        return a, b, c, x

    jitted, seen = run.jit(f), []
    for _ in range(3):
        x = torch.randn(3)
        out = jitted(x)
        seen.append((out, x, out[-1] is x))
    return seen
