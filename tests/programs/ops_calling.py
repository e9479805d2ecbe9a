"""Custom operators: how they are called, and what arguments and returns they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from programs.case import Run, case
from programs.operators import grads, leaves, numpy_of, scaled, square, twice


def ops(run: Run) -> Any:
    return getattr(torch.ops, run.ns)


@case("ops: calling", operators=True)
def through_the_packet(run: Run) -> Any:
    """`torch.ops.ns.op(x, y)`."""
    scaled(run)
    return twice(run.jit(lambda x, y: ops(run).scaled(x.sin(), y)), 3, 3)


@case("ops: calling", operators=True)
def through_the_overload(run: Run) -> Any:
    """`.default(...)`."""
    scaled(run)
    return twice(run.jit(lambda x, y: ops(run).scaled.default(x, y.cos(), 3.0)), 3, 3)


@case("ops: calling", operators=True)
def through_the_decorated_object(run: Run) -> Any:
    """The object that `custom_op` returned."""
    op = scaled(run)
    return twice(run.jit(lambda x, y: op(x, y, scale=0.5).exp()), 3, 3)


@case("ops: calling", operators=True)
def tensors_by_keyword(run: Run) -> Any:
    """Tensors passed by keyword, in any order."""
    op = scaled(run)
    return twice(run.jit(lambda x, y: op(y=y.sin(), x=x, scale=4.0)), 3, 3), twice(
        run.jit(lambda x, y: op(x, y=y)), 3, 3
    )


@case("ops: calling", operators=True)
def only_the_second_needs_a_gradient(run: Run) -> Any:
    """One gradient, none for the other."""
    f = run.jit(scaled(run))
    seen = []
    for _ in range(2):
        x, y = torch.randn(3), torch.randn(3, requires_grad=True)
        f(x, y).sum().backward()
        seen.append((x.grad, y.grad))
    return seen, grads(f, *leaves(3), torch.randn(3))


@case("ops: calling", operators=True)
def in_a_loop_with_different_numbers(run: Run) -> Any:
    """One ctx per use."""
    op = scaled(run)

    def program(x: Tensor, y: Tensor) -> Tensor:
        for i in range(4):
            x = op(x, y, float(i + 1) / 3)
        return x

    return twice(run.jit(program), 3, 3)


@case("ops: calling", operators=True)
def the_same_tensor_twice(run: Run) -> Any:
    """`op(x, x)`, and two equal calls."""
    op = scaled(run)
    return twice(run.jit(lambda x: op(x, x) + op(x, x)), 3)


@case("ops: calling", operators=True)
def result_returned_and_used(run: Run) -> Any:
    """Both paths contribute gradients."""
    op = square(run)

    def program(x: Tensor) -> Any:
        y = op(x)
        return y, (y * x).sin()

    return twice(run.jit(program), 3)


@case("ops: calling", operators=True)
def result_changed_in_place(run: Run) -> Any:
    """The output may be written afterwards."""
    op = square(run)
    return twice(run.jit(lambda x: op(x).mul_(3.0).add_(x)), 3)


@case("ops: calling", operators=True)
def under_no_grad_and_inference_mode(run: Run) -> Any:
    """Inside and around."""
    op = square(run)

    def program(x: Tensor) -> Any:
        with torch.no_grad():
            a = op(x)
        with torch.inference_mode():
            b = op(x) * 1
        return a + x, b.shape, op(x)

    f = run.jit(program)
    (x,) = leaves(3)
    seen = [f(x)[0].requires_grad, f(x)]
    with torch.inference_mode():
        seen.append(run.jit(op)(torch.ones(2)).is_inference())
    with torch.no_grad():
        seen.append(f(x)[2].requires_grad)
    return seen, grads(lambda x: f(x)[2], *leaves(4))


@case("ops: calling", operators=True)
def in_a_module_that_trains(run: Run) -> Any:
    """Several optimizer steps."""
    op = scaled(run)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return op(self.linear(x), self.weight.expand(2, 3), 0.1)

    model = Layer()
    jitted, optimizer, seen = run.jit(model), torch.optim.Adam(model.parameters(), 0.1), []
    for _ in range(3):
        loss = jitted(torch.randn(2, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((loss.detach(), [p.detach().clone() for p in model.parameters()]))
    return seen


@case("ops: arguments", operators=True)
def many_kinds_of_arguments(run: Run) -> Any:
    """int, float, bool, str, dtype, device, int list."""

    @torch.library.custom_op(f"{run.ns}::kinds", mutates_args=())
    def kinds(
        x: Tensor, n: int, f: float, flag: bool, how: str, shape: list[int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        y = numpy_of(x).reshape(shape) * (n if flag else f)
        return torch.from_numpy(y + len(how)).to(dtype=dtype, device=device)

    @kinds.register_fake
    def _(x, n, f, flag, how, shape, dtype, device):  # type: ignore[no-untyped-def]
        return x.new_empty(shape, dtype=dtype, device=device)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor, ctx.shape = (inputs[1] if inputs[3] else inputs[2]), inputs[0].shape

    def backward(ctx: Any, g: Tensor) -> Any:
        return ((g * ctx.factor).reshape(ctx.shape).float(), *[None] * 7)

    kinds.register_autograd(backward, setup_context=setup_context)
    run.op(kinds)

    def program(x: Tensor, n: int, flag: bool) -> Tensor:
        return kinds(x, n, 0.5, flag, "abc", [3, 2], torch.float64, torch.device("cpu"))

    f = run.jit(program)
    return [grads(f, *leaves((2, 3)), n=n, flag=flag) for n, flag in ((1, True), (1, True), (2, True), (2, False))]


@case("ops: arguments", operators=True)
def optional_tensor_in_the_middle(run: Run) -> Any:
    """Given, None, omitted."""

    @torch.library.custom_op(f"{run.ns}::biased", mutates_args=())
    def biased(x: Tensor, bias: Tensor | None, y: Tensor, extra: Tensor | None = None) -> Tensor:
        out = numpy_of(x) * numpy_of(y)
        out = out if bias is None else out + numpy_of(bias)
        return torch.from_numpy(out if extra is None else out * numpy_of(extra))

    biased.register_fake(lambda x, bias, y, extra=None: torch.empty_like(x))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, bias, y, extra = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, y, extra, bias)

    def backward(ctx: Any, g: Tensor) -> Any:
        x, y, extra, bias = ctx.saved_tensors
        inner = x * y + (bias if ctx.has_bias else 0)
        g_extra = None if extra is None else g * inner
        g = g if extra is None else g * extra
        return g * y, g if ctx.has_bias else None, g * x, g_extra

    biased.register_autograd(backward, setup_context=setup_context)
    run.op(biased)
    f = run.jit(lambda x, b, y, e: biased(x, b, y, e))
    g = run.jit(lambda x, y: biased(x, None, y))
    seen = [twice(g, 3, 3)]
    for has_bias, has_extra in ((True, True), (False, True), (True, False), (True, True)):
        x, b, y, e = leaves(3, 3, 3, 3)
        seen.append(grads(f, x, b if has_bias else None, y, e if has_extra else None))  # type: ignore[arg-type]
    return seen


def stacked(run: Run) -> Any:
    """`stacked(xs, y, weights=None)`: a weighted sum of a list times a tensor."""

    @torch.library.custom_op(f"{run.ns}::stacked", mutates_args=())
    def op(xs: list[Tensor], y: Tensor, scales: list[float]) -> Tensor:
        total = sum(numpy_of(x) * s for x, s in zip(xs, scales))
        return torch.from_numpy(np.asarray(total) * numpy_of(y)).to(y.dtype)

    op.register_fake(lambda xs, y, scales: torch.empty_like(y))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        xs, y, ctx.scales = inputs
        ctx.save_for_backward(*xs, y)

    def backward(ctx: Any, g: Tensor) -> Any:
        *xs, y = ctx.saved_tensors
        total = sum((x * s for x, s in zip(xs, ctx.scales)), torch.zeros_like(y))
        return [g * y * s for s in ctx.scales], g * total, None

    op.register_autograd(backward, setup_context=setup_context)
    return run.op(op)


@case("ops: arguments", operators=True)
def list_of_tensors(run: Run) -> Any:
    """Every entry and the tensor after the list get gradients; other lengths later."""
    op = stacked(run)
    f = run.jit(lambda *xs: op(list(xs[:-1]), xs[-1].sin(), [0.5 * (i + 1) for i in range(len(xs) - 1)]))
    return twice(f, 3, 3, 3), twice(f, 3, 3, 3, 3), twice(f, 3, 3)


@case("ops: arguments", operators=True)
def list_with_one_entry_twice_and_some_without_gradient(run: Run) -> Any:
    """The same tensor twice in a list; entries that need no gradient."""
    op = stacked(run)
    f = run.jit(lambda x, y: op([x, x, y], y, [1.0, 2.0, 3.0]))
    return twice(f, 3, 3), [grads(f, torch.randn(3), *leaves(3)) for _ in range(2)]


@case("ops: arguments", operators=True)
def list_of_optional_tensors(run: Run) -> Any:
    """None inside of a list."""

    @torch.library.custom_op(f"{run.ns}::some", mutates_args=())
    def some(x: Tensor, others: list[Tensor | None]) -> Tensor:
        return torch.from_numpy(sum((numpy_of(o) for o in others if o is not None), numpy_of(x) * 1))

    some.register_fake(lambda x, others: torch.empty_like(x))

    run.op(some)
    f = run.jit(lambda x, y: some(x.detach(), [None, y.detach(), None]) * x)
    return twice(f, 3, 3)


@case("ops: arguments", operators=True)
def keyword_only_and_defaults(run: Run) -> Any:
    """A keyword-only argument, omitted and given."""
    torch.library.define(f"{run.ns}::power", "(Tensor x, *, int p=2, bool half=False) -> Tensor")
    torch.library.impl(
        f"{run.ns}::power",
        "cpu",
        lambda x, p=2, half=False: torch.from_numpy(numpy_of(x) ** p * (0.5 if half else 1.0)).to(x.dtype),
    )
    torch.library.register_fake(f"{run.ns}::power", lambda x, p=2, half=False: torch.empty_like(x))

    def setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.p, ctx.factor = keyword_only_inputs["p"], 0.5 if keyword_only_inputs["half"] else 1.0

    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.p * ctx.saved_tensors[0] ** (ctx.p - 1) * ctx.factor

    torch.library.register_autograd(f"{run.ns}::power", backward, setup_context=setup_context)
    run.op(ops(run).power)
    power = ops(run).power
    return [twice(run.jit(f), 3) for f in (lambda x: power(x), lambda x: power(x, p=3), lambda x: power(x, half=True))]


@case("ops: arguments", operators=True)
def no_tensor_argument(run: Run) -> Any:
    """An operator that makes a tensor of numbers."""

    @torch.library.custom_op(f"{run.ns}::ramp", mutates_args=())
    def ramp(n: int, step: float) -> Tensor:
        return torch.from_numpy(np.arange(n, dtype=np.float32) * np.float32(step))

    ramp.register_fake(lambda n, step: torch.empty(n, dtype=torch.float32))
    run.op(ramp)
    return twice(run.jit(lambda x: x * ramp(x.shape[0], 0.5)), 3)


@case("ops: arguments", operators=True)
def empty_tensors(run: Run) -> Any:
    """Empty tensors pass through and back."""
    f = run.jit(square(run))
    return twice(f, (0, 3)), twice(f, (1,)), twice(f, (2, 3))


@case("ops: returns", operators=True)
def several_tensors(run: Run) -> Any:
    """A tuple; unused outputs give None cotangents or zeros as in eager."""

    @torch.library.custom_op(f"{run.ns}::pair", mutates_args=())
    def pair(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(numpy_of(x) * 2), torch.from_numpy(numpy_of(x) ** 2)

    pair.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
    pair.register_autograd(
        lambda ctx, a, b: a * 2 + b * 2 * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    run.op(pair)
    return [
        twice(run.jit(f), 3) for f in (pair, lambda x: pair(x)[0], lambda x: pair(x)[1] * x, lambda x: pair(x.sin()))
    ]


@case("ops: returns", operators=True)
def list_of_varying_length(run: Run) -> Any:
    """A list whose length depends on an int argument."""

    @torch.library.custom_op(f"{run.ns}::pieces", mutates_args=())
    def pieces(x: Tensor, n: int) -> list[Tensor]:
        return [torch.from_numpy(numpy_of(x) * (i + 1)) for i in range(n)]

    pieces.register_fake(lambda x, n: [torch.empty_like(x) for _ in range(n)])
    pieces.register_autograd(
        lambda ctx, gs: (sum(g * (i + 1) for i, g in enumerate(gs)), None),
        setup_context=lambda ctx, inputs, output: None,
    )
    run.op(pieces)
    f = run.jit(lambda x, n: [p.sin() for p in pieces(x, n)])
    g = run.jit(lambda x, n: pieces(x, n)[0] + 1)
    return [[grads(fn, *leaves(3), n=n) for n in (2, 2, 3, 1)] for fn in (f, g)]


@case("ops: returns", operators=True)
def values_and_indices(run: Run) -> Any:
    """Integer outputs, marked non-differentiable or not."""

    def build(name: str, mark: bool) -> Any:
        @torch.library.custom_op(f"{run.ns}::{name}", mutates_args=())
        def top(x: Tensor) -> tuple[Tensor, Tensor]:
            index = np.argmax(numpy_of(x), -1)
            values = np.take_along_axis(numpy_of(x), index[..., None], -1)[..., 0]
            return torch.from_numpy(values), torch.from_numpy(index)

        top.register_fake(lambda x: (x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1], dtype=torch.int64)))

        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(output[1])
            ctx.shape = inputs[0].shape
            if mark:
                ctx.mark_non_differentiable(output[1])

        def backward(ctx: Any, g: Tensor, _: Any) -> Tensor:
            return g.new_zeros(ctx.shape).scatter(-1, ctx.saved_tensors[0][..., None], g[..., None])

        top.register_autograd(backward, setup_context=setup_context)
        return run.op(top)

    marked, plain = build("marked", True), build("plain", False)
    return [twice(run.jit(f), (3, 4)) for f in (marked, plain, lambda x: marked(x.sin())[0] * 2)]


@case("ops: returns", operators=True)
def a_python_number(run: Run) -> Any:
    """A number that depends on data is this call's."""
    torch.library.define(f"{run.ns}::count", "(Tensor x) -> int")
    torch.library.impl(f"{run.ns}::count", "cpu", lambda x: int((numpy_of(x) > 0).sum()))
    torch.library.register_fake(f"{run.ns}::count", lambda x: torch.library.get_ctx().new_dynamic_size())
    run.op(ops(run).count)
    f = run.jit(lambda x: (x * ops(run).count(x), ops(run).count(x)))
    return [f(torch.tensor(values)) for values in ([1.0, -1.0], [1.0, 1.0], [-1.0, -2.0])]


@case("ops: returns", operators=True)
def nothing_at_all(run: Run) -> Any:
    """An operator called for its side effect is kept, in order, at every call."""
    log: list[Any] = []

    @torch.library.custom_op(f"{run.ns}::note", mutates_args=())
    def note(x: Tensor, label: str) -> None:
        log.append((label, numpy_of(x).tolist()))

    note.register_fake(lambda x, label: None)
    run.op(note)

    def program(x: Tensor) -> Tensor:
        note(x, "before")
        y = x * 2
        note(y, "after")
        note(y, "after")
        return y

    f = run.jit(program)
    return [f(torch.ones(2) * i) for i in range(3)], log, grads(f, *leaves(2))[1:], len(log)
