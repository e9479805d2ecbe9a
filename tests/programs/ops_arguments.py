"""Custom operators: kinds of arguments, given, omitted and changed between calls."""

from __future__ import annotations

import enum
import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from programs.case import Run, case
from programs.operators import grads, leaves, numpy_of, twice


class Way(enum.IntEnum):
    """A number with a name."""

    ONE = 1
    TWO = 2


def linear(run: Run) -> Any:
    """`linear(x, weight, bias=None, negate=False, scale=1.0)`, with a formula."""

    @torch.library.custom_op(f"{run.ns}::linear", mutates_args=())
    def op(x: Tensor, weight: Tensor, bias: Tensor | None = None, negate: bool = False, scale: float = 1.0) -> Tensor:
        out = numpy_of(x) * numpy_of(weight) * scale
        out = out if bias is None else out + numpy_of(bias)
        return torch.from_numpy(-out if negate else out * 1).to(x.dtype)

    op.register_fake(lambda x, weight, bias=None, negate=False, scale=1.0: torch.empty_like(x))

    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, weight, bias, negate, scale = inputs
        ctx.save_for_backward(x, weight)
        ctx.factor, ctx.sign, ctx.has_bias = (-scale if negate else scale), (-1 if negate else 1), bias is not None

    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return g * weight * ctx.factor, g * x * ctx.factor, g * ctx.sign if ctx.has_bias else None, None, None

    op.register_autograd(backward, setup_context=setup_context)
    return run.op(op)


def recorded(run: Run, schema: str) -> tuple[Any, list[Any]]:
    """An operator `seen(Tensor x, ...) -> Tensor` that notes the arguments it got, and returns x times their number."""
    notes: list[Any] = []

    def kernel(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        notes.append((args, kwargs))
        return torch.from_numpy(numpy_of(x) * (1 + len(args) + len(kwargs)))

    torch.library.define(f"{run.ns}::seen", schema)
    torch.library.impl(f"{run.ns}::seen", "cpu", kernel)
    torch.library.register_fake(f"{run.ns}::seen", lambda x, *args, **kwargs: torch.empty_like(x))
    return run.op(getattr(torch.ops, run.ns).seen), notes


@case("ops: arguments", operators=True)
def optional_bool_default_and_keyword_combined(run: Run) -> Any:
    """Optional tensors, bools, omitted defaults and keywords, in all combinations of one jitted function."""
    op = linear(run)
    f, seen = run.jit(lambda *args, **kwargs: op(*args, **kwargs).sin()), []
    for has_bias, by_name, negate in itertools.product((False, True), (False, True), (None, True, False)):
        x, w, b = leaves(3, 3, 3)
        args, kwargs = [x, w], {} if negate is None else {"negate": negate}
        if has_bias and by_name:
            kwargs["bias"] = b
        elif has_bias:
            args.append(b)
        f(*args, **kwargs).sum().backward()
        seen.append((x.grad, w.grad, b.grad))
    return seen


@case("ops: arguments", operators=True)
def optional_parameter_of_a_module(run: Run) -> Any:
    """A bias that is None, then a Parameter, then None again."""
    op = linear(run)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))
            self.register_parameter("bias", None)

        def forward(self, x: Tensor) -> Tensor:
            return op(x, self.weight, self.bias, scale=0.5)

    model = Layer()
    f, seen = run.jit(model), []
    for bias in (None, nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3), requires_grad=False), None):
        model.bias = bias
        model.zero_grad()
        seen.append(grads(f, *leaves(3)))
        f(torch.randn(3)).sum().backward()
        seen.append([(name, p.grad) for name, p in model.named_parameters()])
    return seen


@case("ops: arguments", operators=True)
def gradient_of_an_optional_tensor_alone(run: Run) -> Any:
    """The Optional[Tensor] argument is the only one that needs a gradient."""
    op = linear(run)
    f, seen = run.jit(lambda x, w, b: op(x, w, b, scale=3.0)), []
    for _ in range(2):
        (b,) = leaves(3)
        f(torch.randn(3), torch.randn(3), b).square().sum().backward()
        seen.append((b.grad, f(torch.randn(3), torch.randn(3), None).requires_grad))
    return seen


@case("ops: arguments", operators=True)
def optional_numbers_and_strings(run: Run) -> Any:
    """`int?`, `float?`, `bool?`, `str?` given and None, by value and by type."""
    op, notes = recorded(run, "(Tensor x, int? a=None, float? b=None, bool? c=None, str? d=None) -> Tensor")
    f = run.jit(lambda x, *args, **kwargs: op(x, *args, **kwargs) * 2)
    calls = [
        ((), {}),
        ((1,), {}),
        ((None, 0.5), {}),
        ((), {"d": "x"}),
        ((), {"c": False}),
        ((), {"c": None}),
        ((2,), {}),
    ]
    return [f(torch.ones(2), *args, **kwargs) for args, kwargs in calls], notes


@case("ops: arguments", operators=True)
def numbers_keep_their_type(run: Run) -> Any:
    """A Scalar arrives as int, float or bool; equal numbers of other types are not confused."""
    op, notes = recorded(run, "(Tensor x, Scalar a) -> Tensor")
    f = run.jit(lambda x, a: op(x, a))
    values = (1, 1.0, True, 1, 0, 0.0, -0.0, False, 2**40, Way.TWO, np.float64(0.5))
    return [f(torch.ones(2), value) for value in values], notes, [type(args[0]) for args, _ in notes]


@case("ops: arguments", operators=True)
def special_floats(run: Run) -> Any:
    """Negative zero, infinities, NaN and tiny numbers as arguments."""
    op, notes = recorded(run, "(Tensor x, float a, float[] b) -> Tensor")
    f = run.jit(lambda x, a: op(x, a, [a, 1.0]))
    values = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), float("nan"), 5e-324, 0.0)
    return [f(torch.ones(2), value) for value in values], notes


@case("ops: arguments", operators=True)
def integers_for_floats_and_floats_for_integers(run: Run) -> Any:
    """An int is taken for a float; a float for an int raises eager's error."""
    op, notes = recorded(run, "(Tensor x, float a, int b) -> Tensor")
    f = run.jit(lambda x, a, b: op(x, a, b))
    seen = [f(torch.ones(2), a, b) for a, b in ((2, 1), (2.0, True), (True, Way.ONE), (2, 2**40))]
    return seen, notes, [type(args[0]) for args, _ in notes], run.caught(f, torch.ones(2), 1.0, 1.5)[0]


@case("ops: arguments", operators=True)
def lists_of_numbers(run: Run) -> Any:
    """int, float and bool lists, tuples and sizes; other contents and lengths later."""
    op, notes = recorded(run, "(Tensor x, int[] a, float[] b, bool[] c) -> Tensor")
    f = run.jit(lambda x, a, b, c: op(x, a, b, c))
    calls = [([1, 2], [0.5], [True]), ((1, 2), (0.5,), (True,)), ([], [], []), ([3], [1, 2.0], [False, True])]
    seen = [f(torch.ones(2), *call) for call in calls]
    g = run.jit(lambda x: op(x, x.shape, [float(n) for n in x.stride()], [x.requires_grad, x.is_contiguous()]))
    return seen, [g(x) for x in (torch.ones(2, 3), torch.ones(3, 2).t(), torch.ones(4))], notes


@case("ops: arguments", operators=True)
def default_lists_and_expanded_numbers(run: Run) -> Any:
    """`int[2] a=1` takes a number for both; a default list is used when omitted."""
    op, notes = recorded(run, "(Tensor x, int[2] a=1, int[] b=[3, 4], str how='mean') -> Tensor")
    f = run.jit(lambda x, **kwargs: op(x, **kwargs))
    seen = [f(torch.ones(2), **k) for k in ({}, {"a": 2}, {"a": [2, 3]}, {"b": []}, {"how": "sum"}, {})]
    return seen, [[list(map(str, args)), sorted(kwargs.items())] for args, kwargs in notes]


@case("ops: arguments", operators=True)
def dtype_and_device_of_this_call(run: Run) -> Any:
    """A dtype and a device as arguments, by object, by default and by name; taken from another tensor."""

    @torch.library.custom_op(f"{run.ns}::cast", mutates_args=())
    def cast(x: Tensor, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        return torch.from_numpy(numpy_of(x) * 2).to(dtype or x.dtype).to(device or "cpu")

    cast.register_fake(lambda x, dtype=None, device=None: torch.empty_like(x, dtype=dtype, device=device))
    cast.register_autograd(lambda ctx, g: (g.float() * 2, None, None))
    run.op(cast)
    f = run.jit(lambda x, dtype=None: cast(x, dtype))
    seen = [grads(f, *leaves(3), **k) for k in ({}, {"dtype": torch.float64}, {"dtype": torch.bfloat16}, {})]
    g = run.jit(lambda x, y: cast(x, y.dtype, y.device) + cast(x, device="cpu"))
    return seen, [grads(g, *leaves(3), torch.ones(3, dtype=d)) for d in (torch.float32, torch.float64, torch.half)]


@case("ops: arguments", operators=True)
def a_string_that_changes(run: Run) -> Any:
    """The branch inside operator and formula follows this call's string."""

    @torch.library.custom_op(f"{run.ns}::act", mutates_args=())
    def act(x: Tensor, how: str = "double") -> Tensor:
        return torch.from_numpy(numpy_of(x) * 2 if how == "double" else numpy_of(x) ** 2)

    act.register_fake(lambda x, how="double": torch.empty_like(x))

    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.how = inputs[1]
        if ctx.how != "double":
            ctx.save_for_backward(inputs[0])

    def backward(ctx: Any, g: Tensor) -> Any:
        return g * 2 * (1 if ctx.how == "double" else ctx.saved_tensors[0]), None

    act.register_autograd(backward, setup_context=setup_context)
    run.op(act)
    f = run.jit(lambda x, how: act(x, how) + act(x))
    return [grads(f, *leaves(3), how=how) for how in ("double", "square", "double", "")]


@case("ops: arguments", operators=True)
def sizes_as_integers(run: Run) -> Any:
    """Integers that come from shapes are those of this call."""

    @torch.library.custom_op(f"{run.ns}::spread", mutates_args=())
    def spread(x: Tensor, rows: int, shape: list[int]) -> Tensor:
        return torch.from_numpy(np.tile(numpy_of(x).reshape(-1), rows).reshape(shape))

    spread.register_fake(lambda x, rows, shape: x.new_empty(shape))
    spread.register_autograd(
        lambda ctx, g: (g.reshape(ctx.rows, -1).sum(0).reshape(ctx.shape), None, None),
        setup_context=lambda ctx, inputs, output: (
            setattr(ctx, "rows", inputs[1]) or setattr(ctx, "shape", inputs[0].shape)
        ),
    )
    run.op(spread)
    f = run.jit(lambda x: spread(x.sin(), x.shape[0] + 1, [x.size(0) + 1, x.numel() // 1]))
    return twice(f, 2), twice(f, 5)


@case("ops: arguments", operators=True, may_refuse=True)
def a_number_read_from_a_tensor(run: Run) -> Any:
    """An int by `.item()` and a float by `float()` are of this call (a refusal names the line)."""
    op, notes = recorded(run, "(Tensor x, int a, float b) -> Tensor")
    f = run.jit(lambda x, n: op(x, n.item(), float(x[0])))
    return [f(torch.ones(2) * i, torch.tensor(i)) for i in (1, 2, 3)], notes


@case("ops: arguments", operators=True)
def no_tensor_but_dtype_and_default(run: Run) -> Any:
    """Without tensor arguments: values are fresh, need no gradient and may be written."""

    @torch.library.custom_op(f"{run.ns}::grid", mutates_args=())
    def grid(n: int, dtype: torch.dtype = torch.float32, reverse: bool = False) -> Tensor:
        out = np.arange(n)
        return torch.from_numpy(out[::-1].copy() if reverse else out).to(dtype)

    grid.register_fake(lambda n, dtype=torch.float32, reverse=False: torch.empty(n, dtype=dtype))
    run.op(grid)
    f = run.jit(lambda n: (grid(n), grid(n, dtype=torch.int64).add_(1), grid(n, reverse=True)))
    seen = [f(n) for n in (2, 2, 3, 0)]
    g = run.jit(lambda: grid(3))
    first = g()
    first.add_(10)
    return seen, first, g(), first.requires_grad, twice(run.jit(lambda x: grid(x.shape[0]) * x), 3)


@case("ops: arguments", operators=True)
def zero_sized_tensors_among_others(run: Run) -> Any:
    """Empty, then full, then empty again through one function, with gradients."""
    op = linear(run)
    f = run.jit(lambda x, w: op(x, w, scale=2.0).sum(0))
    shapes = [(0,), (2,), (0,), (0, 2), (3, 0), (2, 2)]
    return [grads(f, *leaves(shape, shape)) for shape in shapes]


@case("ops: arguments", operators=True)
def keyword_only_tensor(run: Run) -> Any:
    """A keyword-only Optional tensor of an operator without formula."""
    torch.library.define(f"{run.ns}::plus", "(Tensor x, *, Tensor? other=None, Scalar alpha=1) -> Tensor")

    def kernel(x: Tensor, other: Tensor | None = None, alpha: float = 1) -> Tensor:
        return torch.from_numpy(numpy_of(x) * 1 if other is None else numpy_of(x) + numpy_of(other) * alpha)

    torch.library.impl(f"{run.ns}::plus", "cpu", kernel)
    torch.library.register_fake(f"{run.ns}::plus", lambda x, other=None, alpha=1: torch.empty_like(x))
    plus = run.op(getattr(torch.ops, run.ns).plus)
    f, g = run.jit(lambda x, y: plus(x, other=y, alpha=2)), run.jit(lambda x: plus(x) + plus(x, other=x))
    x, y = torch.randn(3), torch.randn(3)
    return f(x, y), f(x, None), f(y, x), g(x), g(y), f(x.double(), y.double())
