"""Custom operators: what `setup_context` keeps, and what gradients their formulas give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from programs.case import Run, case
from programs.operators import grads, leaves, numpy_of, square, twice


def with_formula(run: Run, name: str, setup_context: Callable[..., Any] | None, backward: Callable[..., Any]) -> Any:
    """`op(x, y, n) = x * y * n` with a formula."""

    @torch.library.custom_op(f"{run.ns}::{name}", mutates_args=())
    def op(x: Tensor, y: Tensor, n: int = 2) -> Tensor:
        return torch.from_numpy(numpy_of(x) * numpy_of(y) * n)

    op.register_fake(lambda x, y, n=2: torch.empty_like(x))
    op.register_autograd(backward, setup_context=setup_context)
    return run.op(op)


@case("ops: setup_context", operators=True)
def attributes_of_every_kind(run: Run) -> Any:
    """Numbers, shapes, bools, lists, dicts on ctx."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, y, n = inputs
        ctx.n, ctx.shape, ctx.flag, ctx.items, ctx.table = n, x.shape, n > 1, [n, 1.0], {"n": n}
        ctx.save_for_backward(x, y)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        assert ctx.flag == (ctx.n > 1) and ctx.shape == x.shape
        return g * y * ctx.table["n"], g * x * ctx.items[0], None

    op = with_formula(run, "kept", setup_context, backward)
    return twice(run.jit(lambda x, y: op(x, y, 3) + op(y, x, 1)), 3, 3)


@case("ops: setup_context", operators=True)
def inputs_outputs_and_computed(run: Run) -> Any:
    """Inputs and outputs in any order, and a computed tensor."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, y, ctx.n = inputs
        ctx.save_for_backward(output, y * ctx.n, x)

    def backward(ctx: Any, g: Tensor) -> Any:
        out, yn, x = ctx.saved_tensors
        return g * yn + 0 * out, g * x * ctx.n, None

    op = with_formula(run, "mixed", setup_context, backward)
    return twice(run.jit(lambda x, y: op(x, y).exp()), 3, 3)


@case("ops: setup_context", operators=True)
def the_output_alone(run: Run) -> Any:
    """exp saves its output."""

    @torch.library.custom_op(f"{run.ns}::exp", mutates_args=())
    def exp(x: Tensor) -> Tensor:
        return torch.from_numpy(numpy_of(x)).exp()

    exp.register_fake(lambda x: torch.empty_like(x))
    exp.register_autograd(
        lambda ctx, g: g * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    run.op(exp)
    return twice(run.jit(lambda x: exp(exp(x) * 0.1)), 3)


@case("ops: setup_context", operators=True)
def branches_on_an_argument(run: Run) -> Any:
    """The branch taken in this call counts."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, y, ctx.n = inputs
        if ctx.n > 2:
            ctx.save_for_backward(y, x)
        else:
            ctx.save_for_backward(x, y)

    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        x, y = (b, a) if ctx.n > 2 else (a, b)
        return g * y * ctx.n, g * x * ctx.n, None

    op = with_formula(run, "branch", setup_context, backward)
    f = run.jit(lambda x, y, n: op(x, y, n))
    return [grads(f, *leaves(3, 3), n=n) for n in (1, 3, 1, 3)]


class Formula:
    """A formula of static methods."""

    @staticmethod
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        *pair, ctx.n = inputs
        ctx.save_for_backward(*pair[::-1])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        y, x = ctx.saved_tensors
        return g * y * ctx.n, g * x * ctx.n, None


NO_SOURCE = """
def setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[-3], inputs[1])
    ctx.n = inputs[-1]

def backward(ctx, g):
    x, y = ctx.saved_tensors
    return g * y * ctx.n, g * x * ctx.n, None
"""


@case("ops: setup_context", operators=True)
def static_methods_and_no_source(run: Run) -> Any:
    """Static methods; functions made by exec."""
    op = with_formula(run, "static", Formula.setup, Formula.backward)
    table: dict[str, Any] = {}
    exec(NO_SOURCE, table)
    other = with_formula(run, "no_source", table["setup"], table["backward"])
    return twice(run.jit(lambda x, y: op(x, y) + other(y, x, 3)), 3, 3)


@case("ops: setup_context", operators=True)
def no_setup_context(run: Run) -> Any:
    """A backward alone."""
    op = with_formula(run, "alone", None, lambda ctx, g: (g * 2, g * 3, None))
    return twice(run.jit(lambda x, y: op(x.sin(), y)), 3, 3)


@case("ops: setup_context", operators=True)
def needs_input_grad(run: Run) -> Any:
    """Read in setup and in backward."""
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, y, ctx.n = inputs
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, y if ctx.needs_input_grad[0] else None)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return g * y * ctx.n if needs[0] else None, g * x * ctx.n if needs[1] else None, None

    op = with_formula(run, "needs", setup_context, backward)
    f = run.jit(lambda x, y: op(x, y))
    for first, second in ((True, True), (True, False), (False, True)):
        x, y = torch.randn(3, requires_grad=first), torch.randn(3, requires_grad=second)
        seen.append(grads(f, x, y))
    return seen


@case("ops: setup_context", operators=True)
def undefined_gradients(run: Run) -> Any:
    """`set_materialize_grads(False)` gives None for unused outputs."""

    @torch.library.custom_op(f"{run.ns}::two", mutates_args=())
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(numpy_of(x) * 2), torch.from_numpy(numpy_of(x) * 3)

    two.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))

    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        if a is None:
            return b * 3 + 100  # type: ignore[operator]
        return a * 2 if b is None else a * 2 + b * 3

    two.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.set_materialize_grads(False))
    run.op(two)
    return [twice(run.jit(f), 3) for f in (lambda x: two(x)[0], lambda x: two(x)[1], lambda x: two(x))]


@case("ops: gradients", operators=True)
def formula_that_calls_another_operator(run: Run) -> Any:
    """A chain of NumPy operators, second order too."""

    @torch.library.custom_op(f"{run.ns}::cos", mutates_args=())
    def cos(x: Tensor) -> Tensor:
        return torch.from_numpy(numpy_of(x) * 1).cos()

    @torch.library.custom_op(f"{run.ns}::sin", mutates_args=())
    def sin(x: Tensor) -> Tensor:
        return torch.from_numpy(numpy_of(x) * 1).sin()

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    for op in (cos, sin):
        op.register_fake(lambda x: torch.empty_like(x))
    sin.register_autograd(lambda ctx, g: g * cos(ctx.saved_tensors[0]), setup_context=keep)
    cos.register_autograd(lambda ctx, g: -g * sin(ctx.saved_tensors[0]), setup_context=keep)
    run.op(cos), run.op(sin)
    f = run.jit(lambda x: sin(x * x))
    seen = twice(f, 3)
    for _ in range(2):
        (x,) = leaves(3)
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        seen += [first, second, torch.autograd.grad(second.sum(), x)]
    return seen


@case("ops: gradients", operators=True)
def second_order(run: Run) -> Any:
    """Double backward through a formula of torch calls."""
    op = square(run)
    f, seen = run.jit(lambda x: op(op(x).tanh())), []
    for _ in range(2):
        (x,) = leaves(3)
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        first.square().sum().backward()
        seen.append((first, x.grad))
    return seen


@case("ops: gradients", operators=True)
def gradient_that_is_the_cotangent(run: Run) -> Any:
    """Gradients that alias each other or the cotangent."""
    op = with_formula(run, "alias", None, lambda ctx, g: (g, g, None))
    return twice(run.jit(lambda x, y: op(x, y)), 3, 3), twice(run.jit(lambda x: op(x, x)), 3)


@case("ops: gradients", operators=True)
def too_few_or_misshapen_gradients(run: Run) -> Any:
    """Eager's errors, when backward is called."""
    seen = []
    for name, backward in {
        "few": lambda ctx, g: g,
        "many": lambda ctx, g: (g, g, None, None),
        "shape": lambda ctx, g: (g[:1].expand(2, 7), g, None),
        "kind": lambda ctx, g: (g, 3.0, None),
    }.items():
        op = with_formula(run, name, None, backward)
        f = run.jit(lambda x, y, op=op: op(x, y).sum())
        for _ in range(2):
            x, y = leaves(3, 3)
            out = f(x, y)
            error = run.caught(out.backward)
            seen.append((out, error[0] if error else (x.grad, y.grad)))
    return seen


@case("ops: gradients", operators=True)
def formula_registered_later(run: Run) -> Any:
    """After a first call with and without grad the formula takes effect."""
    op = square(run, formula=False)
    f = run.jit(lambda x: op(x).sum())
    seen = [f(*leaves(3)), f(torch.randn(3))]
    seen.append(run.caught(lambda: f(*leaves(3)).backward())[0])
    op.register_autograd(
        lambda ctx, g: g * 5 * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return [*seen, *twice(f, 3)]


@case("ops: gradients", operators=True)
def formula_replaced(run: Run) -> Any:
    """A second formula replaces the first at the next call; a replaced fake kernel and kernel too."""
    op = square(run)
    f = run.jit(lambda x: op(x))
    seen = twice(f, 3)
    op.register_autograd(lambda ctx, g: g * 7)
    seen += twice(f, 3)
    op.register_kernel("cpu", lambda x: torch.from_numpy(numpy_of(x) ** 2 + 1))
    return seen + twice(f, 3)


@case("ops: gradients", operators=True)
def branch_on_data_in_the_backward(run: Run) -> Any:
    """Decided at run time."""

    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        if x.sum() > 0:
            return g * y, g * x, None
        return g * 10, g * 20, None

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])

    op = with_formula(run, "data", setup_context, backward)
    f = run.jit(lambda x, y: op(x.sin(), y).exp())
    seen = []
    for sign in (1.0, -1.0, 1.0):
        x, y = torch.full((3,), sign, requires_grad=True), torch.randn(3, requires_grad=True)
        seen.append(grads(f, x, y))
    return seen


@case("ops: no formula", operators=True)
def gradient_asked_for(run: Run) -> Any:
    """Raises what eager raises in backward, and is not dropped beside another path."""
    op = square(run, formula=False)
    f, g = run.jit(lambda x: op(x)), run.jit(lambda x: op(x) + x)
    seen = []
    for fn in (f, g, f, g):
        (x,) = leaves(3)
        out = fn(x)
        seen.append((out.detach(), out.requires_grad, run.caught(out.sum().backward), x.grad))
        seen.append(fn(torch.randn(3)))
    return seen


@case("ops: no formula", operators=True)
def beside_a_differentiable_output(run: Run) -> Any:
    """The other output's gradient is right."""
    op = square(run, formula=False)
    f, seen = run.jit(lambda x: (op(x), x.sin())), []
    for _ in range(2):
        (x,) = leaves(3)
        out = f(x)
        out[1].sum().backward()
        seen.append((x.grad.clone(), out[0].requires_grad, run.caught(out[0].sum().backward)))
    return seen


@case("ops: no formula", operators=True)
def of_library_define(run: Run) -> Any:
    """`define` and `impl` without an Autograd kernel warn or raise as eager does."""
    torch.library.define(f"{run.ns}::twice", "(Tensor x) -> Tensor")
    torch.library.impl(f"{run.ns}::twice", "cpu", lambda x: torch.from_numpy(numpy_of(x) * 2))
    torch.library.register_fake(f"{run.ns}::twice", lambda x: torch.empty_like(x))
    op = run.op(getattr(torch.ops, run.ns).twice)
    f, seen = run.jit(lambda x: op(x) + x), []
    for _ in range(2):
        (x,) = leaves(3)
        out = f(x)
        seen.append((out.detach(), out.requires_grad, run.caught(out.sum().backward), x.grad))
    return seen
