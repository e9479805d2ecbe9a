"""Custom operators: mutation, randomness, fake kernels, transforms, `torch.library.Library`, executors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fulgurite as fg
from programs.case import Run, case
from programs.operators import grads, leaves, numpy_of, scaled, square, twice


def add_into(run: Run) -> Any:
    """`add_into(total, x)` adds in place."""

    @torch.library.custom_op(f"{run.ns}::add_into", mutates_args={"total"})
    def op(total: Tensor, x: Tensor) -> None:
        total.detach().numpy()[...] += numpy_of(x)

    op.register_fake(lambda total, x: None)
    return run.op(op)


@case("ops: mutation", operators=True)
def an_input_a_view_and_itself(run: Run) -> Any:
    """Writes are visible to the caller, in order."""
    op = add_into(run)

    def program(a: Tensor, b: Tensor) -> Any:
        before = a * 2
        op(a, b)
        op(a[1], b[0])
        op(b, b)
        return before, a * 2, a.sum()

    f, seen = run.jit(program), []
    for size in (2, 2, 3):
        a, b = torch.randn(2, size), torch.randn(2, size)
        seen.append((f(a, b), a, b))
    return seen


@case("ops: mutation", operators=True)
def a_buffer(run: Run) -> Any:
    """A module's buffer advances."""
    op = add_into(run)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            op(self.total, y.detach().sum(0))
            return y * self.total

    model = Layer()
    f = run.jit(model)
    return [(grads(f, *leaves((2, 3))), model.total.clone()) for _ in range(3)]


@case("ops: mutation", operators=True)
def a_clone_stays_a_copy(run: Run) -> Any:
    """A clone passed beside what is written."""
    op = add_into(run)

    def program(a: Tensor) -> Any:
        copy = a.clone()
        op(a, copy)
        op(copy, a)
        return a + 0, copy

    f = run.jit(program)
    return [(f(x), x) for x in leaves(3, 3, 4, requires_grad=False)]


@case("ops: mutation", operators=True)
def two_arguments_and_a_result(run: Run) -> Any:
    """Two writes and a third tensor returned."""

    @torch.library.custom_op(f"{run.ns}::swap", mutates_args={"a", "b"})
    def swap(a: Tensor, b: Tensor, scale: float) -> Tensor:
        old = numpy_of(a).copy()
        a.detach().numpy()[...] = numpy_of(b)
        b.detach().numpy()[...] = old
        return torch.from_numpy(old * scale).to(a.dtype)

    swap.register_fake(lambda a, b, scale: torch.empty_like(a))
    run.op(swap)
    f = run.jit(lambda a, b: (swap(a, b, 2.0), a - b))
    seen = []
    for _ in range(3):
        a, b = torch.randn(3), torch.randn(3)
        seen.append((f(a, b), a, b))
    return seen


@case("ops: mutation", operators=True)
def an_intermediate_with_a_gradient(run: Run) -> Any:
    """A written value that needs a gradient: what eager does."""
    op = add_into(run)

    def program(x: Tensor) -> Tensor:
        y = x * 1
        op(y.detach(), x.detach())
        return y * x

    return twice(run.jit(program), 3)


@case("ops: mutation", operators=True)
def between_forward_and_backward(run: Run) -> Any:
    """A saved input that an operator wrote: eager's error."""
    op, into = square(run), add_into(run)
    f, g, seen = run.jit(lambda x: op(x * 1)), run.jit(lambda t, x: into(t, x)), []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        out = run.jit(op)(x)
        with torch.no_grad():
            g(x, torch.ones(3))
        error = run.caught(out.sum().backward)
        seen.append((error and error[0], f(x)))
    return seen


@case("ops: mutation", operators=True)
def returns_its_input(run: Run) -> Any:
    """Eager's error about aliasing."""

    @torch.library.custom_op(f"{run.ns}::same", mutates_args=())
    def same(x: Tensor) -> Tensor:
        return x

    same.register_fake(lambda x: x)
    run.op(same)
    f = run.jit(lambda x: same(x) + 1)
    return [run.caught(f, torch.ones(2))[0] for _ in range(2)]


def mask(run: Run) -> Any:
    """`mask(x, p)`: random zeros from the default generator."""

    @torch.library.custom_op(f"{run.ns}::mask", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
    def op(x: Tensor, p: float) -> Tensor:
        return x * (torch.rand(x.shape) > p)

    op.register_fake(lambda x, p: torch.empty_like(x))

    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)

    op.register_autograd(lambda ctx, g: (g * (ctx.saved_tensors[0] != 0), None), setup_context=setup_context)
    return run.op(op)


@case("ops: random", operators=True)
def equal_calls_draw_twice(run: Run) -> Any:
    """Never merged, in the generator's order."""
    op = mask(run)
    return twice(run.jit(lambda x: op(x, 0.5) * 2 + op(x, 0.5) + torch.rand_like(x)), 8)


@case("ops: random", operators=True)
def unused_draw(run: Run) -> Any:
    """The stream advances although nothing uses the result."""
    op = mask(run)

    def program(x: Tensor) -> Tensor:
        op(x, 0.5)
        return torch.nn.functional.dropout(x, 0.5)

    return twice(run.jit(program), 8)


@case("ops: random", operators=True)
def a_generator_argument(run: Run) -> Any:
    """A Generator is drawn from at every call, and without one the default."""
    torch.library.define(f"{run.ns}::noise", "(Tensor x, *, Generator? generator=None) -> Tensor")
    torch.library.impl(f"{run.ns}::noise", "cpu", lambda x, generator=None: torch.rand(x.shape, generator=generator))
    torch.library.register_fake(f"{run.ns}::noise", lambda x, generator=None: torch.empty(x.shape))
    op = run.op(getattr(torch.ops, run.ns).noise)
    own = torch.Generator().manual_seed(3)
    f, g = run.jit(lambda x: op(x, generator=own)), run.jit(lambda x: op(x))
    return [(f(torch.ones(3)), g(torch.ones(3)), own.get_state()) for _ in range(3)]


@case("ops: random", operators=True)
def in_a_checkpoint(run: Run) -> Any:
    """One mask for both passes."""
    op = mask(run)
    f = run.jit(lambda x: checkpoint(lambda y: op(y.sin(), 0.5).exp(), x, use_reentrant=False))
    return twice(f, 8)


@case("ops: random", operators=True, may_refuse=True)
def in_a_reentrant_checkpoint(run: Run) -> Any:
    """The same where checkpoint is reentrant."""
    op = mask(run)
    f = run.jit(lambda x: checkpoint(lambda y: op(y.sin(), 0.5).exp(), x, use_reentrant=True))
    seen = []
    for (x,) in [leaves(8), leaves(8)]:
        f(x).sum().backward()
        seen.append(x.grad)
    return seen


@case("ops: fake kernels", operators=True)
def missing(run: Run) -> Any:
    """Inferred by running once on real data, and said."""
    op = square(run, fake=False)
    return twice(run.jit(lambda x: op(x) + 1), 3)


@case("ops: fake kernels", operators=True, may_refuse=True)
def data_dependent_size(run: Run) -> Any:
    """`new_dynamic_size`: each call its own size."""

    @torch.library.custom_op(f"{run.ns}::positive", mutates_args=())
    def positive(x: Tensor) -> Tensor:
        return torch.from_numpy(np.flatnonzero(numpy_of(x) > 0))

    positive.register_fake(lambda x: torch.empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64))
    run.op(positive)
    f, g = run.jit(lambda x: positive(x)), run.jit(lambda x: x[positive(x)].sum())
    data = [torch.tensor(v) for v in ([1.0, -1.0, 2.0], [-1.0, -1.0, -2.0], [1.0, 1.0, 2.0])]
    return [(f(x), g(x)) for x in data]


def lying(run: Run, name: str, fake: Any) -> Any:
    @torch.library.custom_op(f"{run.ns}::{name}", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numpy_of(x).T * 2))

    op.register_fake(fake)
    return run.op(op)


@case("ops: fake kernels", operators=True, may_refuse=True)
def that_lies_about_the_shape(run: Run) -> Any:
    """Right, or an error naming the operator."""
    op = lying(run, "shape", lambda x: torch.empty_like(x))
    f = run.jit(lambda x: op(x).reshape(-1).view(3, 2) + 1)
    return [f(torch.randn(2, 3)) for _ in range(2)]


@case("ops: fake kernels", operators=True, may_refuse=True)
def that_lies_about_the_dtype(run: Run) -> Any:
    """Right, or an error naming the operator."""
    op = lying(run, "dtype", lambda x: torch.empty(x.shape[1], x.shape[0], dtype=torch.float64))
    f = run.jit(lambda x: op(x).sum() * torch.ones((), dtype=torch.float32))
    return [f(torch.randn(2, 3)) for _ in range(2)]


@case("ops: fake kernels", operators=True, may_refuse=True)
def that_lies_about_strides(run: Run) -> Any:
    """Right where strides matter later, or an error naming the operator."""
    op = lying(run, "stride", lambda x: torch.empty_like(x).t())
    f = run.jit(lambda x: (op(x).is_contiguous(), op(x) * 1, op(x).view(-1)))
    return [f(torch.randn(2, 3)) for _ in range(2)]


@case("ops: transforms", operators=True)
def register_autocast(run: Run) -> Any:
    """The rule is honoured, with gradients."""
    op = scaled(run)
    op.register_autocast("cpu", torch.bfloat16)

    def program(x: Tensor, y: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return op(x, y)

    f = run.jit(lambda x, y: op(x, y))
    kernel = lambda x, y, scale=2.0: (x.float() * y.float() * scale).to(x.dtype)  # noqa: E731
    op.register_kernel("cpu", kernel)
    seen = [twice(run.jit(program), 3, 3), twice(f, 3, 3)]
    with torch.autocast("cpu", torch.bfloat16):
        seen.append([f(*leaves(3, 3)) for _ in range(2)])
    return seen


@case("ops: transforms", operators=True)
def register_vmap(run: Run) -> Any:
    """Under `torch.func.vmap`, inside and around."""
    op = scaled(run)

    def rule(info: Any, in_dims: Any, x: Tensor, y: Tensor, scale: float = 2.0) -> Any:
        x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.expand(info.batch_size, *x.shape)
        y = y.movedim(in_dims[1], 0) if in_dims[1] is not None else y.expand(info.batch_size, *y.shape)
        return op(x, y, scale), 0

    op.register_vmap(rule)
    f, around = run.jit(lambda x, y: torch.func.vmap(op)(x, y)), torch.func.vmap(run.jit(lambda x, y: op(x, y) + x))
    seen = [twice(f, (2, 3), (2, 3))]
    for dims in ((0, 0), (1, 0), (0, None)):
        x, y = torch.randn(2, 3), torch.randn(2, 3)
        args = (x.t() if dims[0] == 1 else x, y if dims[1] is not None else y[0])
        seen.append(torch.func.vmap(run.jit(lambda x, y: op(x, y)), in_dims=dims)(*args))
    return [*seen, around(torch.ones(2, 3), torch.ones(2, 3))]


@case("ops: transforms", operators=True)
def torch_func_grad(run: Run) -> Any:
    """`torch.func.grad` inside and around: what eager says of an operator without rules for it."""
    op = square(run)

    def inside_of(f: Any) -> Any:
        return run.caught(f, torch.randn(3))[0]

    inside = run.jit(lambda x: torch.func.grad(lambda y: op(y.sin()).sum())(x))
    around = torch.func.grad(run.jit(lambda x: op(x.sin()).sum()))
    return [(inside_of(inside), inside_of(around)) for _ in range(2)]


@case("ops: transforms", operators=True)
def in_a_checkpoint_without_randomness(run: Run) -> Any:
    """Recomputed in backward."""
    op = scaled(run)
    return twice(run.jit(lambda x, y: checkpoint(lambda a, b: op(a, b).sin(), x, y, use_reentrant=False)), 3, 3)


@case("ops: Library", operators=True)
def define_and_impl(run: Run) -> Any:
    """`torch.library.define`/`impl` with an autograd formula."""
    torch.library.define(f"{run.ns}::cube", "(Tensor x, Scalar a) -> Tensor")
    torch.library.impl(f"{run.ns}::cube", "cpu", lambda x, a: torch.from_numpy(numpy_of(x) ** 3 * a).to(x.dtype))
    torch.library.register_fake(f"{run.ns}::cube", lambda x, a: torch.empty_like(x))
    torch.library.register_autograd(
        f"{run.ns}::cube",
        lambda ctx, g: (g * 3 * ctx.saved_tensors[0] ** 2 * ctx.a, None),
        setup_context=lambda ctx, inputs, output: (setattr(ctx, "a", inputs[1]), ctx.save_for_backward(inputs[0]))[0],
    )
    op = run.op(getattr(torch.ops, run.ns).cube)
    f = run.jit(lambda x, a: op(x, a))
    return [grads(f, *leaves(3), a=a) for a in (2, 2.0, 2, 3)]


@case("ops: Library", operators=True)
def overloads_and_fragments(run: Run) -> Any:
    """Overloads of one name resolve as in eager; a fragment adds one."""
    library = torch.library.Library(run.ns, "DEF")
    library.define("scale.number(Tensor x, Scalar a) -> Tensor")
    library.define("scale.tensor(Tensor x, Tensor a) -> Tensor")
    library.impl("scale.number", lambda x, a: x * a if isinstance(a, int) else x + a, "CompositeExplicitAutograd")
    library.impl("scale.tensor", lambda x, a: x - a, "CompositeImplicitAutograd")
    fragment = torch.library.Library(run.ns, "FRAGMENT")
    fragment.define("composed(Tensor x) -> Tensor")
    fragment.impl("composed", lambda x: x.sin() * 2, "CompositeImplicitAutograd")
    ns = getattr(torch.ops, run.ns)
    run.op(ns.scale.number), run.op(ns.scale.tensor), run.op(ns.composed)
    f = run.jit(lambda x, a: ns.scale(ns.composed(x), a))
    seen = [f(torch.randn(3), a) for a in (2, 2.5, 2, torch.ones(3))]
    g = run.jit(lambda x: ns.scale(ns.composed(x), x))
    return [*seen, twice(g, 3), library is not fragment]


@case("ops: Library", operators=True)
def an_autograd_function_as_kernel(run: Run) -> Any:
    """An Autograd kernel written as an `autograd.Function`."""
    library = torch.library.Library(run.ns, "DEF")
    library.define("sine(Tensor x) -> Tensor")
    library.impl("sine", lambda x: torch.from_numpy(numpy_of(x) * 1).sin(), "CPU")
    torch.library.register_fake(f"{run.ns}::sine", lambda x: torch.empty_like(x), lib=library)
    op = getattr(torch.ops, run.ns).sine

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            with torch._C._AutoDispatchBelowAutograd():
                return op(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0].cos()

    library.impl("sine", lambda x: Sine.apply(x), "Autograd")
    run.op(op)
    return twice(run.jit(lambda x: op(x * x)), 3)


@case("ops: executors", operators=True)
def an_implementation_with_a_checker(run: Run) -> Any:
    """Taken when the checker says so; in training too."""
    op = scaled(run)
    calls: list[str] = []
    mine = fg.OperatorExecutor(f"mine_{run.ns}")

    @mine.register(op, checker=lambda x, y, scale=2.0: x.shape[0] < 5)
    def fast(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
        calls.append("fast")
        return torch.from_numpy(numpy_of(x) * numpy_of(y) * scale)

    f = run.jit(lambda x, y: op(x, y).sin(), executors=[mine]) if run.compiled else (lambda x, y: op(x, y).sin())
    seen = twice(f, 4, 4)
    return seen, not run.compiled or len(calls) == 2
