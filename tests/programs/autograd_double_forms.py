"""Gradients of gradients through functions: orders, views, several outputs, cotangents, mutation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def hessian(fn: Callable[..., Tensor], x: Tensor) -> Tensor:
    """Row by row, with two grads."""
    (g,) = torch.autograd.grad(fn(x), x, create_graph=True)
    rows = [torch.autograd.grad(entry, x, retain_graph=True)[0].flatten() for entry in g.flatten()]
    return torch.stack(rows)


@case("double backward")
def hessian_by_two_grads(run: Run) -> Any:
    """The full Hessian, row by row with `retain_graph`."""
    f = run.jit(lambda x: (x.sin() * x.flip(0)).sum() + x.prod().square())
    return [hessian(f, leaf(3)) for _ in range(2)]


@case("double backward")
def hessian_by_the_public_helpers(run: Run) -> Any:
    """`torch.autograd.functional`'s hessian, hvp, vhp, jacobian and jvp around a jitted function."""
    f, helpers, seen = run.jit(lambda x: (x.exp() * x.sum()).sum()), torch.autograd.functional, []
    for _ in range(2):
        x, v = torch.randn(3), torch.randn(3)
        seen.append((helpers.hessian(f, x), helpers.hvp(f, x, v), helpers.vhp(f, x, v)))
        seen.append((helpers.jacobian(lambda z: f(z).square(), x), helpers.jvp(f, x, v)))
    return seen


@case("double backward")
def third_order_of_a_matrix_function(run: Run) -> Any:
    """Third derivatives through a matrix product and a softmax."""
    f, seen = run.jit(lambda x, w: (x @ w).softmax(-1).square().sum()), []
    for _ in range(2):
        x, w = leaf(2, 3), leaf(3, 2)
        a, b = torch.autograd.grad(f(x, w), (x, w), create_graph=True)
        c, d = torch.autograd.grad(a.square().sum() + b.sum(), (x, w), create_graph=True)
        seen.append((a, b, c, d, torch.autograd.grad(c.sum() + d.sin().sum(), (x, w))))
    return seen


@case("double backward")
def three_orders_by_backward(run: Run) -> Any:
    """Higher orders by `.backward(create_graph=True)` with `.grad` moved away each time."""
    f, seen = run.jit(lambda x: x.tanh() * x.square()), []
    for _ in range(2):
        x = leaf(3)
        current = f(x)
        for _order in range(3):
            current.sum().backward(create_graph=True)
            current, x.grad = x.grad, None
            seen.append(current.detach())
    return seen


@case("double backward")
def views_of_inputs_as_outputs(run: Run) -> Any:
    """Outputs that are views of an input and of an intermediate enter both gradients."""
    f, seen = run.jit(lambda x: (x.view(6), (h := x.exp()).t(), h[0], h.diagonal())), []
    for _ in range(2):
        x = leaf(2, 3)
        a, b, c, d = f(x)
        (g,) = torch.autograd.grad((a**3).sum() + b.square().sum() + (c[:2] * d).sum(), x, create_graph=True)
        seen.append((g, torch.autograd.grad(g.square().sum(), x)))
    return seen


@case("double backward")
def chunks_stacks_and_slices(run: Run) -> Any:
    """Second order through chunk, stack, cat, slices, flips and expands."""

    def f(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        wide = torch.stack([a * b, a.flip(0) + b[:1]]).expand(2, 3, 2)
        return torch.cat([wide, a[None].sin()]).permute(2, 0, 1).reshape(2, -1).cumsum(-1).exp()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = leaf(3, 4)
        (g,) = torch.autograd.grad(jitted(x * 0.1).sum(), x, create_graph=True)
        seen.append((g, torch.autograd.grad(g.norm(), x)))
    return seen


@case("double backward")
def gather_and_scatter_twice(run: Run) -> Any:
    """Second order through gather, index_add, advanced indexing and masked_fill."""
    index = torch.tensor([0, 2, 2])

    def f(x: Tensor) -> Tensor:
        picked = x[index].square() * x.index_select(0, index)
        return x.index_add(0, index, picked).masked_fill(torch.eye(3) > 0, 0.5).gather(1, index[:, None]).sin()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = leaf(3, 3)
        (g,) = torch.autograd.grad(jitted(x).sum(), x, create_graph=True)
        seen.append((g, torch.autograd.grad(g.square().sum(), x)))
    return seen


@case("double backward")
def partly_used_outputs(run: Run) -> Any:
    """Of three outputs other ones enter the gradient and the loss at each call."""
    f, seen = run.jit(lambda x, w: (x * w, (x + w).sin(), w.exp())), []
    for first, second in ((0, 1), (1, 2), (0, 0), (2, 1), (1, 1)):
        x, w = leaf(3), leaf(3)
        outputs = f(x, w)
        grads = torch.autograd.grad(outputs[first].square().sum(), (x, w), create_graph=True, allow_unused=True)
        loss = sum(g.sum() for g in grads if g is not None) * outputs[second].sum()
        loss.backward()
        seen.append((grads, x.grad, w.grad))
    return seen


@case("double backward")
def gradient_in_one_input_only(run: Run) -> Any:
    """The first gradient in one input, the second in the other; a third input needs none."""
    f, seen = run.jit(lambda x, w, c: ((x * w).tanh() * c).sum()), []
    for _ in range(2):
        x, w, c = leaf(3), leaf(3), torch.randn(3)
        (g,) = torch.autograd.grad(f(x, w, c), x, create_graph=True)
        (mixed,) = torch.autograd.grad(g.sum(), w, create_graph=True)
        seen.append((g, mixed, torch.autograd.grad(mixed.sum(), (x, w))))
    return seen


@case("double backward")
def linear_function_has_no_second_gradient(run: Run) -> Any:
    """Where the gradient does not depend on the input, eager says so by an error, None or `requires_grad`."""
    f, seen = run.jit(lambda x, w: (x @ w).sum()), []
    for _ in range(2):
        x, w = leaf(2, 3), leaf(3, 2)
        (g,) = torch.autograd.grad(f(x, w), x, create_graph=True)
        seen.append((g.requires_grad, run.caught(torch.autograd.grad, g.sum(), x, retain_graph=True)))
        seen.append(torch.autograd.grad(g.square().sum(), (x, w), allow_unused=True))
        y, c = leaf(2, 3), torch.randn(3, 2)
        (h,) = torch.autograd.grad(f(y, c), y, create_graph=True)
        seen.append((h, h.requires_grad, h.is_leaf))
    return seen


@case("double backward")
def jacobian_vector_product_by_two_backwards(run: Run) -> Any:
    """Pearlmutter's trick with a dummy cotangent that is zero."""
    f, seen = run.jit(lambda x: x.sin().cumsum(0) * x[0]), []
    for _ in range(2):
        x, v = leaf(3), torch.randn(3)
        dummy = torch.zeros(3, requires_grad=True)
        (g,) = torch.autograd.grad(f(x), x, dummy, create_graph=True)
        seen.append(torch.autograd.grad(g, dummy, v))
    return seen


@case("double backward")
def cotangents_that_need_gradients_or_not(run: Run) -> Any:
    """Cotangents with and without `requires_grad`, of any layout, in turn."""
    f, seen = run.jit(lambda x: ((x @ x.t()).tanh(), x.exp())), []
    for kind in ("plain", "needs", "transposed", "computed", "expanded"):
        x, base = leaf(3, 3), leaf(3, 3)
        cotangent = {
            "plain": base.detach(),
            "needs": base,
            "transposed": base.t(),
            "computed": base * x,
            "expanded": base.sum().expand(3, 3),
        }[kind]
        (g,) = torch.autograd.grad(f(x), x, (cotangent, cotangent.sin()), create_graph=True)
        seen.append((g, torch.autograd.grad(g.square().sum(), (x, base), allow_unused=True)))
    return seen


@case("double backward")
def program_that_writes_an_intermediate(run: Run) -> Any:
    """In-place operations on intermediates between the two orders."""

    def f(x: Tensor) -> Tensor:
        h = x * x.exp()
        h.mul_(3)
        h[0] = x.sum() ** 2
        h[1:].add_(x[1:].sin())
        return h.tanh()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = leaf(4)
        (g,) = torch.autograd.grad(jitted(x).sum(), x, create_graph=True)
        seen.append((g, torch.autograd.grad(g.square().sum(), x)))
    return seen


@case("double backward")
def non_leaf_inputs(run: Run) -> Any:
    """Inputs made by other operations, with respect to which and to whose leaves the gradients are asked."""
    f, seen = run.jit(lambda h: h.sin() * h), []
    for _ in range(2):
        x = leaf(3)
        h = x.exp()
        y = f(h) + f(x)
        (g,) = torch.autograd.grad(y.sum(), h, create_graph=True)
        (k,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        seen.append((g, k, torch.autograd.grad((g * k).sum(), (h, x), allow_unused=True)))
    return seen


@case("double backward")
def composed_jitted_functions(run: Run) -> Any:
    """A jitted function of a jitted function's output and of its gradient."""
    f, g = run.jit(lambda x: x.tanh() * x), run.jit(lambda y, slope: (y * slope).sin().sum())
    seen = []
    for _ in range(2):
        x = leaf(3)
        y = f(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        loss = g(y, slope)
        loss.backward()
        seen.append((y, slope, loss, x.grad))
    return seen


@case("double backward")
def gradient_that_is_retained_and_reused(run: Run) -> Any:
    """One forward, the gradient graph used twice with `retain_graph`, then an error when it is freed."""
    f, seen = run.jit(lambda x: (x**3).sum()), []
    for _ in range(2):
        x = leaf(3)
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        seen.append(torch.autograd.grad(g.sum(), x, retain_graph=True))
        seen.append(torch.autograd.grad(g.square().sum(), x))
        seen.append(run.caught(torch.autograd.grad, g.sum(), x))
    return seen


@case("double backward")
def checkpointed_function_twice(run: Run) -> Any:
    """A non-reentrant checkpoint inside, differentiated twice."""
    from torch.utils.checkpoint import checkpoint

    f, seen = run.jit(lambda x: checkpoint(lambda z: z.tanh() * z.exp(), x.sin(), use_reentrant=False)), []
    for _ in range(2):
        x = leaf(3)
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        seen.append((g, torch.autograd.grad(g.sum(), x)))
    return seen


@case("double backward")
def complex_input(run: Run) -> Any:
    """Second order in a complex tensor, of a real loss."""
    f, seen = run.jit(lambda z: (z.abs().square() + (z * z.conj() * z).real).sum()), []
    for _ in range(2):
        z = torch.randn(3, dtype=torch.complex64, requires_grad=True)
        (g,) = torch.autograd.grad(f(z), z, create_graph=True)
        seen.append((g, torch.autograd.grad(g.abs().sum(), z)))
    return seen


@case("double backward")
def dtype_casts_and_double_precision(run: Run) -> Any:
    """Second order in double precision, and through a cast to float32 and back."""
    f, seen = run.jit(lambda x: (x.float().tanh() * x.float()).to(x.dtype).sum() + x.sin().sum()), []
    for dtype in (torch.float64, torch.float32, torch.float64):
        x = torch.randn(3, dtype=dtype, requires_grad=True)
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        seen.append((g, torch.autograd.grad(g.sum(), x)))
    return seen


@case("double backward")
def gradgradcheck_passes(run: Run) -> Any:
    """PyTorch's own numeric checks of first and second order accept the jitted function."""
    f = run.jit(lambda x, w: (x @ w).sigmoid() * x.sum())
    x, w = (torch.randn(2, 2, dtype=torch.float64, requires_grad=True) for _ in "xw")
    return torch.autograd.gradcheck(f, (x, w)), torch.autograd.gradgradcheck(f, (x, w))


@case("double backward")
def checkpointed_parts_and_their_output_in_the_loss(run: Run) -> Any:
    """Two checkpointed parts in a row with weights; the loss has a gradient penalty and the square of the output."""
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)

        def part(self, x: Tensor) -> Tensor:
            h = self.first(x).tanh()
            return self.second(h.exp() * h) * x

        def forward(self, x: Tensor) -> Tensor:
            h = checkpoint(self.part, x, use_reentrant=False)
            return checkpoint(lambda z: self.part(z.sin()).cos(), h, use_reentrant=False)

    net = Net()
    f, seen = run.jit(net), []
    for _ in range(2):
        net.zero_grad()
        x = leaf(2, 3)
        y = f(x)
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        (g.norm() + y.exp().sum()).backward()
        seen.append((y, g, x.grad, [p.grad for p in net.parameters()]))
    return seen


@case("double backward")
def hooks_for_saved_tensors_inside(run: Run) -> Any:
    """Hooks inside the program that round what is saved: inputs, intermediates and results, differentiated twice."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()):
            return ((x * w).exp() * x.sin()).tanh()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x, w = leaf(3), leaf(3)
        y = jitted(x, w)
        (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        seen.append((y, g, torch.autograd.grad(g.sin().sum(), (x, w))))
    return seen
