"""`torch.autograd.Function` inside jitted programs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def plain(t: Any) -> Any:
    return t.clone() if isinstance(t, Tensor) else t


class Product(torch.autograd.Function):
    """`x * y` with another formula for each slot, so that a lost one shows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return gradient * y, 10 * gradient * x


@case("autograd")
def same_tensor_for_both_slots(run: Run) -> Any:
    """A function given the same tensor twice contributes both gradients; then two tensors."""
    f, seen = run.jit(Product.apply), []
    for _ in range(2):
        x = leaf(3)
        f(x, x).sum().backward()
        a, b = leaf(3), leaf(3)
        f(a, b).sum().backward()
        seen.append((x.grad, a.grad, b.grad))
    return seen


@case("autograd")
def same_intermediate_for_both_slots(run: Run) -> Any:
    """The same with an intermediate, a view of it, and a parameter of a module."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            h = x.sin()
            return Product.apply(h, h) + Product.apply(h, h.view(3)) + Product.apply(self.w, self.w)

    model = Net()
    jitted, seen = run.jit(model), []
    for _ in range(2):
        x = leaf(3)
        jitted(x).sum().backward()
        seen.append((x.grad, plain(model.w.grad)))
    return seen


class Clamped(torch.autograd.Function):
    """New style: `setup_context`, a number, None for it, and a mask that is no input."""

    @staticmethod
    def forward(x: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        mask = x.abs() < limit
        return x.clamp(-limit, limit), mask

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradient * mask + 0.5 * gradient * ~mask, None


@case("autograd")
def function_with_a_mask_output(run: Run) -> Any:
    """`setup_context`, a non-differentiable output and an argument that is a number, other each time."""
    f, seen = run.jit(lambda x, limit: Clamped.apply(x * 2, limit)), []
    for limit in (0.5, 1.0, 0.5):
        x = leaf(5)
        y, mask = f(x, limit)
        y.sum().backward()
        seen.append((y, mask, y.requires_grad, mask.requires_grad, x.grad))
    return seen


class Doubled(torch.autograd.Function):
    """Writes its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 7


@case("autograd")
def mark_dirty_on_an_intermediate(run: Run) -> Any:
    """A function that writes an intermediate in place."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x + 1
        y = Doubled.apply(h)
        return y.sin(), h

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = leaf(3)
        y, h = jitted(x)
        (y.sum() + h.sum()).backward()
        seen.append((y, h, x.grad))
    return seen


@case("autograd")
def mark_dirty_on_an_input(run: Run) -> Any:
    """A function that writes a non-leaf input in place: the caller's tensor has its value and history."""
    f, seen = run.jit(lambda x: Doubled.apply(x) + 1), []
    for _ in range(2):
        leafed = leaf(3)
        x = leafed * 1
        y = f(x)
        (y.sum() + x.sum()).backward()
        seen.append((y, x, leafed.grad))
    return seen


class Needs(torch.autograd.Function):
    """Looks at `needs_input_grad`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x.exp() * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, y = ctx.saved_tensors
        both = all(ctx.needs_input_grad)
        gx = gradient * x.exp() * y * (2 if both else 1) if ctx.needs_input_grad[0] else None
        return gx, gradient * x.exp() if ctx.needs_input_grad[1] else None


@case("autograd")
def needs_input_grad_of_each_call(run: Run) -> Any:
    """`ctx.needs_input_grad` is that of this call's inputs."""
    f, seen = run.jit(lambda x, y: Needs.apply(x, y)), []
    for first, second in ((True, True), (True, False), (False, True), (True, True)):
        x, y = torch.randn(3, requires_grad=first), torch.randn(3, requires_grad=second)
        f(x, y).sum().backward()
        seen.append((x.grad, y.grad))
    return seen


class Materialised(torch.autograd.Function):
    """Tells missing cotangents from zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Tensor:
        return (a * 2 if a is not None else 0) + (b * 3 if b is not None else 100)


@case("autograd")
def cotangents_that_are_none(run: Run) -> Any:
    """With `set_materialize_grads(False)` an unused output's cotangent is None."""
    f, seen = run.jit(lambda x: Materialised.apply(x)), []
    for used in ((0, 1), (0,), (1,), (0, 1)):
        x = leaf(3)
        outputs = f(x)
        sum(outputs[i].sum() for i in used).backward()
        seen.append(x.grad)
    return seen


class Reversal(torch.autograd.Function):
    """Gradient reversal, with a strength that is a Python attribute of ctx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.neg() * ctx.strength, None


@case("autograd")
def gradient_reversal_between_modules(run: Run) -> Any:
    """Domain adaptation: a reversal layer whose strength is an attribute of a module that changes."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.domain, self.strength = nn.Linear(3, 4), nn.Linear(4, 2), 0.1

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.features(x).relu()
            return h, self.domain(Reversal.apply(h, self.strength))

    model = Adapted()
    jitted, seen = run.jit(model), []
    for strength in (0.1, 0.5):
        model.strength = strength
        h, d = jitted(torch.randn(2, 3))
        (h.sum() + d.square().sum()).backward()
        seen.append([plain(p.grad) for p in model.parameters()])
        model.zero_grad()
    return seen


class Branching(torch.autograd.Function):
    """Its backward decides on the data."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if x.sum() > 0:
            return gradient * 2
        return gradient * -3


@case("autograd")
def branch_on_data_in_backward(run: Run) -> Any:
    """A Python branch on data in a function's backward is decided at each call."""
    f, seen = run.jit(lambda x: Branching.apply(x) * 2), []
    for sign in (1, -1, 1):
        x = (torch.rand(3) * sign).requires_grad_()
        f(x).sum().backward()
        seen.append(x.grad)
    return seen


@case("autograd")
def error_raised_in_a_functions_backward(run: Run) -> Any:
    """An exception of the user's backward comes out of `backward()` with its class and text."""

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise ArithmeticError("no gradient here")

    f, seen = run.jit(lambda x, ok: (x * 3, x.sin() if ok else Failing.apply(x))), []
    for ok in (False, True, False):
        x = leaf(3)
        _, b = f(x, ok)
        seen.append((run.caught(b.sum().backward), x.grad))
    return seen


@case("autograd")
def function_in_no_grad_and_inference(run: Run) -> Any:
    """The same jitted function with an autograd.Function with and without gradients."""
    f, seen = run.jit(lambda x: Reversal.apply(x * 2, 3.0)), []
    for enabled in (False, True, False, True):
        x = leaf(3)
        with torch.set_grad_enabled(enabled):
            y = f(x)
        if y.requires_grad:
            y.sum().backward()
        seen.append((y, y.requires_grad, x.grad))
    return seen


class Tripled(torch.autograd.Function):
    """A `jvp` and a `vmap` rule beside the backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * 3


@case("autograd")
def function_with_rules_under_vmap_and_grad(run: Run) -> Any:
    """An autograd.Function with all rules under `torch.func` around the jitted function."""
    f, seen = run.jit(lambda x: Tripled.apply(x).sin().sum()), []
    for _ in range(2):
        x = torch.randn(2, 3)
        seen.append((torch.func.vmap(f)(x), torch.func.grad(f)(x), torch.func.vmap(torch.func.grad(f))(x)))
        seen.append(torch.func.jvp(f, (x,), (torch.ones_like(x),)))
    return seen
