"""Arguments that change between calls: values, types, structure, shapes, strides, dtypes."""

from __future__ import annotations

import gc
import inspect
import warnings
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fulgurite as fg
from programs.case import Run, case

Pair = namedtuple("Pair", "a b")


class Reduction(Enum):
    SUM = 1
    MEAN = 2


class Axis(IntEnum):
    ROWS = 0
    COLUMNS = 1


class State(NamedTuple):
    hidden: Tensor
    step: int


@dataclass
class Batch:
    x: Tensor
    mask: Tensor | None = None
    scale: float = 1.0


def settled(run: Run, f: Any, most: int) -> bool:
    """Whether it was traced no more than `most` times."""
    return not run.compiled or (fg.stats(f).misses <= most and not fg.stats(f).uncompiled)


@case("guards")
def numbers_as_arguments(run: Run) -> Any:
    """Ints, floats, bools, complex numbers and None in turn for one parameter."""
    f, x = run.jit(lambda x, v=None: x if v is None else x * v), torch.arange(3)
    return [f(x, v) for v in (2, 3, 2.5, -0.5, True, False, None, 2j, 2)] + [f(x), f(x, v=4)]


@case("guards")
def strings_enums_and_dtypes(run: Run) -> Any:
    """Strings, enums, dtypes, devices and memory formats as arguments."""

    def f(x: Tensor, how: str | Reduction, dtype: torch.dtype, axis: int = 0) -> Tensor:
        y = x.to(dtype)
        return y.sum(axis) if how in ("sum", Reduction.SUM) else y.mean(axis)

    jitted, x, seen = run.jit(f), torch.randn(2, 3), []
    for how in ("sum", Reduction.MEAN, Reduction.SUM, "mean"):
        for dtype in (torch.float64, torch.bfloat16):
            seen += [jitted(x, how, dtype), jitted(x, how, dtype=dtype, axis=Axis.COLUMNS), jitted(x, how, dtype, 1)]
    return seen


@case("guards")
def none_in_any_position(run: Run) -> Any:
    """None first, in the middle, in a list, in a dict, and a tensor there at the next call."""

    def f(a: Tensor | None, parts: list[Tensor | None], named: dict[str, Tensor | None]) -> Any:
        found = [t for t in (a, *parts, *named.values()) if t is not None]
        return sum(t * (i + 1) for i, t in enumerate(found)), a, named.get("n")

    jitted, t = run.jit(f), torch.randn(2)
    calls = [(None, [t, None], {"n": None}), (t, [None, t], {"n": t}), (t, [None], {}), (None, [], {"n": t})]
    return [jitted(*c) for c in calls * 2]


@case("guards")
def call_forms(run: Run) -> Any:
    """Positional, keyword, keyword-only, star and double-star arguments, in all ways to call."""

    def f(x: Tensor, y: Any = 2, *rest: Any, scale: float = 1.0, **more: Any) -> Any:
        return (x * y + sum(rest)) * scale + sum(more.values()), list(more), len(rest)

    jitted, x = run.jit(f), torch.randn(2)
    seen = [jitted(x), jitted(x=x), jitted(x, 3), jitted(y=3, x=x), jitted(x, x, x, 1), jitted(x, scale=2.0)]
    seen += [jitted(x, b=1, a=x), jitted(x, a=x, b=1), jitted(*(x, 2, 3), **{"scale": 4.0, "z": x})]
    return seen, [run.caught(jitted), run.caught(jitted, x, x=x)]


@case("guards")
def named_tuples_and_dataclasses(run: Run) -> Any:
    """Named tuples of both kinds and dataclasses in and out, with fields that change."""

    def f(batch: Batch, state: State, pair: Any) -> Any:
        x = batch.x * batch.scale if batch.mask is None else batch.x * batch.mask
        hidden = state.hidden + x * pair.a
        return Batch(x, batch.mask, batch.scale + 1), state._replace(hidden=hidden, step=state.step + 1), pair

    jitted, seen, state = run.jit(f), [], State(torch.zeros(2), 0)
    for mask, scale in ((None, 1.0), (torch.ones(2), 1.0), (None, 2.0), (None, 1.0)):
        out, state, pair = jitted(Batch(torch.randn(2), mask, scale), state, Pair(2, torch.ones(1)))
        seen.append((out, state, pair))
    return seen


@case("guards")
def nested_dicts(run: Run) -> Any:
    """Nested dicts with other keys, other order, other depth, ordered and default dicts."""

    def f(tree: Any) -> Any:
        return {k: f(v) for k, v in tree.items()} if isinstance(tree, dict) else tree * 2

    def g(tree: dict[str, Any]) -> Any:
        return f(tree), list(tree), type(tree).__name__

    jitted, t = run.jit(g), torch.randn(2)
    trees: list[Any] = [{"a": t, "b": {"c": t}}, {"b": {"c": t}, "a": t}, {"a": {"c": {"d": t}}}, {}, {"a": 3}]
    trees += [OrderedDict(a=t, b=t), defaultdict(list, a=t), {1: t, "1": t + 1}, {"a": t, "b": {"c": t + 1}}]
    return [jitted(tree) for tree in trees]


@case("guards")
def lists_tuples_and_sizes(run: Run) -> Any:
    """A list, a tuple, a Size and a range for one parameter; lengths that change."""
    f, x = run.jit(lambda x, shape: (x.sum() + torch.ones(*shape), type(shape).__name__, len(shape))), torch.randn(2)
    return [f(x, s) for s in ([2, 3], (2, 3), torch.Size((2, 3)), range(2, 4), [2, 3, 1], (2,), [3, 2])]


@case("guards")
def slices_and_ellipsis(run: Run) -> Any:
    """Indices as arguments: ints, slices, Ellipsis, None, tuples and lists of them."""
    f, x = run.jit(lambda x, i: x[i] * 2), torch.randn(3, 4)
    indices = [0, 1, slice(0, 2), slice(0, 3, 2), ..., None, (slice(None), 1), (..., 2), [0, 2], (0, [1, 2]), True]
    return [f(x, i) for i in indices]


@case("guards")
def rank_dtype_and_size_in_any_order(run: Run) -> Any:
    """One function serves other ranks, dtypes and sizes, and comes back to earlier ones."""
    f, seen = run.jit(lambda x: (x * 2 + x.shape[0], x.sum(-1), x.dim(), x.flatten().shape[0], x.dtype)), []
    inputs = [torch.randn(3), torch.randn(2, 3), torch.arange(4), torch.randn(3).double(), torch.ones(1, 2, 3)]
    inputs += [torch.zeros(0, 3), torch.randn(2, 3).bfloat16(), torch.tensor([True]), torch.randn(2, 3) * 1j]
    for _ in range(2):
        seen += [f(x) for x in (*inputs, *reversed(inputs))]
    return seen


@case("guards")
def requires_grad_of_inputs_changes(run: Run) -> Any:
    """Either input requires a gradient, both, none, or is no leaf."""
    f, seen = run.jit(lambda x, y: x.sin() * y), []
    for a, b in ((False, False), (True, False), (False, True), (True, True), (False, False)):
        x, y = torch.randn(3, requires_grad=a), torch.randn(3, requires_grad=b)
        out = f(x, y * 1)
        if out.requires_grad:
            out.sum().backward()
        seen.append((out, out.requires_grad, x.grad, y.grad))
    return seen


@case("guards")
def same_shape_other_strides(run: Run) -> Any:
    """`view`, `flatten`, `as_strided` of other strides: eager's result or eager's error."""
    views = [run.jit(lambda x: x.view(-1)), run.jit(lambda x: x.flatten()), run.jit(lambda x: x.as_strided((2,), (1,)))]
    views += [run.jit(lambda x: x.view(2, 2, 2) + 1), run.jit(lambda x: (x.stride(), x.is_contiguous(), x * 2))]
    inputs = [torch.randn(2, 4), torch.randn(4, 2).t(), torch.randn(2, 8)[:, ::2], torch.randn(4).expand(2, 4)]
    inputs += [torch.randn(2, 6)[:, 1:5], torch.randn(2, 4)]
    return [[run.caught(f, x) for f in views] for x in inputs]


@case("guards")
def strides_of_a_module_input(run: Run) -> Any:
    """A convolution is fed contiguous, channels-last and sliced images of one shape."""
    f, x = run.jit(nn.Conv2d(2, 3, 3)), torch.randn(2, 2, 5, 5)
    inputs = [x, x.to(memory_format=torch.channels_last), torch.randn(2, 2, 5, 10)[..., ::2], x.transpose(2, 3), x]
    return [f(i) for i in inputs]


@case("guards")
def storage_offset_changes(run: Run) -> Any:
    """Slices of one buffer at other offsets: right values, and no retracing for them."""
    f, data = run.jit(lambda x: x.sin() + 1), torch.randn(50)
    return [f(data[2 * i : 2 * i + 3]) for i in range(20)], settled(run, f, 1)


@case("guards")
def storage_offset_read_inside(run: Run) -> Any:
    """A program that asks for the offset gets this call's, and so does `as_strided`."""
    f = run.jit(lambda x: (x * 2, x.storage_offset(), x.as_strided((2,), (1,), x.storage_offset() + 1)))
    data = torch.randn(9)
    return [f(data[i : i + 4]) for i in range(5)]


@case("guards")
def int_argument_that_changes_each_call(run: Run) -> Any:
    """A step number: right values at 60 calls, and one warning at most."""
    f, x = run.jit(lambda x, step: x * step + 1), torch.randn(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = [f(x, step) for step in range(60)]
    return seen, len(caught) <= 1


@case("guards")
def counter_attribute_that_changes_each_call(run: Run) -> Any:
    """A module's counter, counted up by the caller: right values, no growth of memory."""

    class Counting(nn.Module):
        step = 0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.step + 1

    module, x, seen, sizes = Counting(), torch.randn(2), [], []
    f = run.jit(module)
    for module.step in range(90):
        seen.append(f(x))
        if module.step in (40, 80):
            gc.collect()
            sizes.append(len(gc.get_objects()))
    return seen, sizes[1] - sizes[0] < 200


@case("guards")
def shape_of_an_unused_argument(run: Run) -> Any:
    """An unused argument changes shape, and the values are right; it needn't be traced for each."""
    f, seen = run.jit(lambda x, unused: x * 2), []
    for n in range(1, 20):
        seen.append(f(torch.randn(2), torch.zeros(n)))
    return seen


@case("guards")
def lengths_of_a_sequence_change(run: Run) -> Any:
    """Thirty sequence lengths, as in decoding, with a mask made from the shape."""

    def f(x: Tensor) -> Tensor:
        n = x.shape[0]
        scores = (x @ x.t()).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        return scores.softmax(-1) @ x

    jitted = run.jit(f)
    return [jitted(torch.randn(n, 4)) for n in (*range(1, 31), 3, 7)]


@case("guards")
def signature_and_defaults_are_kept(run: Run) -> Any:
    """Tensor defaults are the same objects at every call."""
    bias = torch.zeros(2)

    def f(x: Tensor, b: Tensor = bias) -> tuple[Tensor, Tensor]:
        return x + b, b

    jitted = run.jit(f)
    seen: list[Any] = [jitted(torch.ones(2))[1] is bias]
    bias.add_(3)
    return seen, jitted(torch.ones(2)), jitted(torch.ones(2), torch.ones(2)), list(inspect.signature(jitted).parameters)
