"""Gradients: which outputs carry them, where they stop, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def flags(*tensors: Tensor) -> list[Any]:
    return [(t.requires_grad, t.is_leaf, t.grad_fn is None) for t in tensors]


def trained(f: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    """Outputs, flags and gradients of two calls, with the sum of all differentiable outputs as loss."""
    seen = []
    for _ in range(2):
        inputs = [leaf(*shape) for shape in shapes]
        outputs = f(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        sum((i + 1) * o.sum() for i, o in enumerate(outputs) if o.requires_grad).backward()
        seen.append((outputs, flags(*outputs), [x.grad for x in inputs]))
    return seen


@case("autograd")
def loss_beside_its_detach(run: Run) -> Any:
    """A loss and its `detach()`: two tensors, one of them with a gradient, over one memory."""
    f = run.jit(lambda x: ((loss := x.square().mean()), loss.detach()))
    seen = []
    for _ in range(2):
        x = leaf(4)
        loss, logged = f(x)
        seen.append((logged.clone(), flags(loss, logged), loss is logged, loss.data_ptr() == logged.data_ptr()))
        loss.backward()
        seen.append(x.grad)
    return seen


@case("autograd")
def module_that_returns_loss_and_detached_metrics(run: Run) -> Any:
    """A dict of a loss, its detach and a detached intermediate, as training loops log them."""

    class Trainer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 2)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            logits = self.net(x)
            loss = nn.functional.cross_entropy(logits, y)
            return {"loss": loss, "log": loss.detach(), "acc": (logits.detach().argmax(1) == y).float().mean()}

    model = Trainer()
    jitted, seen = run.jit(model), []
    for _ in range(2):
        out = jitted(torch.randn(4, 3), torch.randint(0, 2, (4,)))
        out["loss"].backward()
        seen.append((out, flags(*out.values()), [p.grad.clone() for p in model.parameters()]))
    return seen


@case("autograd")
def equal_expressions_one_under_no_grad(run: Run) -> Any:
    """Two equal expressions stay apart when one is under `no_grad`, whichever comes first."""

    def frozen_last(x: Tensor) -> tuple[Tensor, Tensor]:
        a = x.sin() * 2
        with torch.no_grad():
            b = x.sin() * 2
        return a, b

    def frozen_first(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            b = x.exp()
        return x.exp(), b

    return trained(run.jit(frozen_last), (3,)), trained(run.jit(frozen_first), (3,))


@case("autograd")
def equal_expressions_that_meet_again(run: Run) -> Any:
    """The frozen one of two equal expressions multiplies the other: straight-through scaling."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            scale = (x @ w).tanh()
        return (x @ w).tanh() * scale + x.sum()

    return trained(run.jit(f), (2, 3), (3, 2))


@case("autograd")
def equal_expressions_of_detached_and_live(run: Run) -> Any:
    """`softmax(x)` and `softmax(x.detach())` are not one value."""
    return trained(run.jit(lambda x: (x.softmax(0), x.detach().softmax(0), x.data.softmax(0) * x)), (4,))


@case("autograd")
def detach_stops_exactly_there(run: Run) -> Any:
    """`detach()`, `.data` and `no_grad` in one function, each in its own term."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        a = x * w
        b = a.detach() * x
        c = a.data * w
        with torch.no_grad():
            d = a * 3
        return a + b.sin() + c.cos() + d * x

    return trained(run.jit(f), (3,), (3,))


@case("autograd")
def straight_through_estimator(run: Run) -> Any:
    """`x + (round(x) - x).detach()` has the identity's gradient."""
    return trained(run.jit(lambda x: x + (x.round() - x).detach()), (5,))


@case("autograd")
def target_network_under_no_grad(run: Run) -> Any:
    """A frozen copy of a network gives targets: no gradients for it."""
    online, target = nn.Linear(3, 2), nn.Linear(3, 2)

    def loss(x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = target(x).max(1).values
        return (online(x).max(1).values - wanted).square().mean()

    f, seen = run.jit(loss), []
    for _ in range(2):
        f(torch.randn(4, 3)).backward()
        seen.append([None if p.grad is None else p.grad.clone() for m in (online, target) for p in m.parameters()])
    return seen


@case("autograd")
def integer_outputs_are_not_differentiable(run: Run) -> Any:
    """Indices of `sort`, `max` and `topk` carry no gradient, the values do."""
    f = run.jit(lambda x: (*x.sort(-1), *x.max(0), *x.topk(2, -1), x.argmin(), x > 0))
    return trained(f, (3, 4))


@case("autograd")
def values_used_through_another_operation(run: Run) -> Any:
    """The values of `topk` enter another operation, the indices a gather."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, indices = x.topk(2, -1)
        return values.softmax(-1), indices, y.gather(-1, indices) * values

    return trained(run.jit(f), (3, 4), (3, 4))


@case("autograd")
def only_the_indices_are_returned(run: Run) -> Any:
    """No output is differentiable although the input is."""
    f = run.jit(lambda x: (x.sort().indices, x.median(-1).indices))
    return [((out := f(leaf(2, 5))), flags(*out)) for _ in range(2)]


@case("autograd")
def advanced_indexing_with_repeats(run: Run) -> Any:
    """Rows picked twice get their gradients twice."""
    index = torch.tensor([0, 2, 2, 0, 1])
    f = run.jit(lambda x: (x[index] * torch.arange(5.0)[:, None], x[[0, 0], [1, 1]], x[:, index[:2]].sin()))
    return trained(f, (3, 4))


@case("autograd")
def gather_and_scatter_with_repeats(run: Run) -> Any:
    """`gather`, `scatter_add`, `index_add` and `index_select` with repeated indices."""

    def f(x: Tensor, y: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        wide = index[:, None].expand(-1, 2)
        return (
            x.gather(0, wide).square(),
            torch.zeros(4, 2).scatter_add(0, wide, y).sin(),
            x.index_add(0, index, y, alpha=0.5),
            x.index_select(0, index).logsumexp(0),
        )

    jitted, seen = run.jit(f), []
    for picks in ([0, 1, 1], [2, 2, 2]):
        x, y = leaf(4, 2), leaf(3, 2)
        out = jitted(x, y, torch.tensor(picks))
        sum(o.sum() for o in out).backward()
        seen.append((out, x.grad, y.grad))
    return seen


@case("autograd")
def gradients_of_reductions(run: Run) -> Any:
    """`prod`, `norm`, `std`, `cumprod`, `amax` with ties: the formulas that look at their result."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x.prod(), x.prod(0), x.norm(dim=1), x.std(0), x.cumprod(1), x.round().amax(1), x.relu().max()

    return trained(run.jit(f), (3, 4))


@case("autograd")
def index_put_that_accumulates(run: Run) -> Any:
    """`index_put_(accumulate=True)` on a copy, and item assignment."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = x.clone().index_put_((torch.tensor([0, 0, 2]),), y, accumulate=True)
        b = x * 2
        b[1:3] = y[:2] * 3
        return a.sin(), b

    return trained(run.jit(f), (4,), (3,))


@case("autograd")
def cotangents_of_any_layout(run: Run) -> Any:
    """Transposed, expanded, sliced and negative-strided-like cotangents give what contiguous ones give."""
    f, seen = run.jit(lambda x, w: ((x @ w).tanh(), x.view(12) * 2)), []
    cotangents = [
        torch.randn(4, 3).t(),
        torch.ones(()).expand(3, 4),
        torch.randn(3, 8)[:, ::2],
        torch.randn(4).expand(3, 4),
        torch.randn(3, 4).contiguous(),
        torch.randn(3, 4).flip(0).t().contiguous().t(),
    ]
    for c in cotangents:
        x, w = leaf(3, 4), leaf(4, 4)
        seen.append(torch.autograd.grad(f(x, w), (x, w), (c, c.reshape(12))))
    return seen


@case("autograd")
def cotangents_of_a_convolution(run: Run) -> Any:
    """A channels-last cotangent first, then an expanded one."""
    conv, seen = nn.Conv2d(2, 3, 3, padding=1), []
    jitted = run.jit(conv)
    cotangents = [torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), torch.ones(1).expand(2, 3, 4, 4)]
    for c in (*cotangents, torch.randn(2, 4, 4, 3).permute(0, 3, 1, 2), torch.randn(2, 3, 4, 4)):
        x = leaf(2, 2, 4, 4)
        seen.append(torch.autograd.grad(jitted(x), (x, *conv.parameters()), c))
    return seen


@case("autograd")
def output_with_respect_to_output(run: Run) -> Any:
    """The gradient of one output with respect to another one."""
    f, seen = run.jit(lambda x: ((h := x.sin()), (h * h).sum())), []
    for _ in range(2):
        x = leaf(3)
        h, loss = f(x)
        seen.append(torch.autograd.grad(loss, h, retain_graph=True))
        seen.append(torch.autograd.grad(loss, (h, x)))
    return seen


@case("autograd")
def hidden_states_of_a_module(run: Run) -> Any:
    """The gradient of a loss made outside with respect to all hidden states that a module returns."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
            h = self.a(x)
            z = h.relu()
            return self.b(z), [h, z]

    model = Net()
    jitted, seen = run.jit(model), []
    for _ in range(2):
        y, states = jitted(torch.randn(2, 3))
        loss = y.square().sum() + states[0].sum()
        seen.append(torch.autograd.grad(loss, [y, *states, *model.parameters()], allow_unused=True))
    return seen


@case("autograd")
def output_with_respect_to_an_unrelated_output(run: Run) -> Any:
    """An output which another one does not depend on gives None, or eager's error."""
    f, seen = run.jit(lambda x: (x.sin(), x.cos(), x.view(-1))), []
    for _ in range(2):
        x = leaf(3)
        a, b, v = f(x)
        seen.append(torch.autograd.grad(a.sum(), (b, v, x), allow_unused=True, retain_graph=True))
        seen.append(run.caught(torch.autograd.grad, a.sum(), b))
    return seen


@case("autograd")
def retained_gradients_of_outputs(run: Run) -> Any:
    """`retain_grad()` on an output that another output is made of."""
    f, seen = run.jit(lambda x: ((h := x.exp()), h.square())), []
    for _ in range(2):
        x = leaf(3)
        h, y = f(x)
        h.retain_grad()
        y.retain_grad()
        y.sum().backward()
        seen.append((h.grad, y.grad, x.grad))
    return seen


@case("autograd")
def formulas_that_look_at_data(run: Run) -> Any:
    """Gradients of `prod` of intermediate values with a zero, of `max` with ties, of `masked_fill` for its value."""

    def f(x: Tensor) -> Tensor:
        filled = (x * 2).masked_fill(x > 0, x.sum()).square().sum()
        return (x.relu() * 3).prod(1).sum() + (x * 2).cumprod(0).sum() + x.round().max() * filled

    jitted, seen = run.jit(f), []
    for _ in range(3):
        x = leaf(3, 4)
        seen.append((y := jitted(x), torch.autograd.grad(y, x)))
    return seen


@case("outputs")
def leaves_made_beside_what_is_trained(run: Run) -> Any:
    """A leaf made inside and returned, a view of it, a parameter, and outputs of them with a trained weight."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Any:
            point = x.detach().clone().requires_grad_()
            scale = nn.Parameter(torch.full((3,), 2.0))
            hidden = self.linear(point).tanh() * scale
            return point, point[0], scale, hidden, (hidden * point).square().sum()

    net = Net()
    f, seen = run.jit(net), []
    for _ in range(2):
        net.zero_grad()
        point, view, scale, hidden, loss = f(torch.randn(2, 3))
        (slope,) = torch.autograd.grad(loss, point, create_graph=True)
        (slope.norm() + hidden.sum() + loss).backward()
        seen.append((point, point.grad, scale, scale.grad, view, [p.grad for p in net.parameters()]))
        seen.append((point.is_leaf, scale.is_leaf, type(scale).__name__, view.is_leaf, point.requires_grad))
    return seen


@case("outputs")
def a_leaf_and_nothing_else(run: Run) -> Any:
    """Only a leaf, and a leaf with a view of it, also under `no_grad`; the caller trains it."""
    f = run.jit(lambda x: x.detach().mul(2).requires_grad_())
    g, seen = run.jit(lambda x: ((p := nn.Parameter(x.detach() + 1)), p.view(-1), p.detach())), []
    for enabled in (True, False, True):
        with torch.set_grad_enabled(enabled):
            a, (p, view, plain) = f(torch.randn(3)), g(torch.randn(2, 2))
        (a.exp().sum() + view.sin().sum() + (p * plain).sum()).backward()
        seen.append((a, a.grad, p, p.grad, view.requires_grad, plain.requires_grad, a.is_leaf, p.is_leaf))
    return seen
