"""Inputs: numbers, slices, nesting, tensors twice, and arguments whose contents change between calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from programs.case import Run, case


@case("inputs")
def numbers_of_every_kind(run: Run) -> Any:
    """1, True, 1.0, 1j, NaN, infinities, -0.0 and large ints, as they come."""
    f = run.jit(lambda x, n: (x * n, torch.full((2,), n), n, type(n).__name__))
    numbers: list[Any] = [1, True, 1.0, 1j, 0, -0.0, 0.0, False, math.inf, -math.inf, math.nan, math.nan, 2**40, -1, 1]
    return [f(torch.tensor([1.5, -2.0]), n) for n in numbers]


@case("inputs")
def ints_that_shape_the_result(run: Run) -> Any:
    """Ints as dim, size, count, repeat; floats as eps and p."""

    def f(x: Tensor, dim: int, n: int, eps: float) -> Any:
        return x.sum(dim), x.repeat(n, 1), x.roll(n, dim), torch.zeros(n), [x[i % 2] for i in range(n)], x.norm(p=eps)

    jitted = run.jit(f)
    return [
        jitted(torch.randn(2, 3), dim, n, eps) for dim, n, eps in [(0, 1, 1.0), (1, 2, 2.0), (-1, 3, 0.5), (0, 0, 2)]
    ]


@case("inputs")
def numpy_scalars(run: Run) -> Any:
    """NumPy scalars beside tensors."""
    f, x = run.jit(lambda x, n: x * n), torch.randn(3)
    return [
        f(x, np.float32(2.5)),
        f(x, np.float64(1.5)),
        f(x, np.int64(3)),
        f(x, np.float32(0.5)),
        f(x, np.bool_(True)),
    ]


@case("inputs")
def zero_dim_tensors_beside_numbers(run: Run) -> Any:
    """A number and a 0-dim tensor of the same value promote differently; so do 0-dim dtypes."""
    f, x = run.jit(lambda x, n: x * n + n), torch.arange(3, dtype=torch.int32)
    half = torch.randn(3).half()
    factors: list[Any] = [
        2,
        torch.tensor(2),
        torch.tensor(2.0),
        2.0,
        torch.tensor([2.0]),
        torch.tensor(2, dtype=torch.int8),
    ]
    return [f(x, n) for n in factors] + [f(half, n) for n in factors]


@case("inputs")
def slices_ellipsis_and_indices(run: Run) -> Any:
    """Slices, Ellipsis, None, tuples and index tensors as arguments."""
    f, x = run.jit(lambda x, index: x[index]), torch.randn(4, 5)
    indices: list[Any] = [
        slice(0, 2),
        slice(1, 3),
        slice(None, None, 2),
        ...,
        None,
        (slice(None), 1),
        (..., 0),
        (..., None),
        1,
        -1,
        [0, 2],
        torch.tensor([1, 1]),
        (torch.tensor([0, 1]), torch.tensor([2, 3])),
        slice(0, 2),
    ]
    return [f(x, index) for index in indices]


@case("inputs")
def deep_nesting(run: Run) -> Any:
    """Lists in tuples in dicts, with a tuple where a list was and other lengths."""

    def f(tree: Any) -> Any:
        def walk(node: Any, depth: int) -> Any:
            if isinstance(node, Tensor):
                return node * depth
            if isinstance(node, dict):
                return {k: walk(v, depth + 1) for k, v in node.items()}
            if isinstance(node, (list, tuple)):
                return type(node)(walk(v, depth + 1) for v in node)
            return node

        return walk(tree, 1)

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x, y = torch.randn(2), torch.randn(1, 2)
        seen.append(
            [jitted(t) for t in ([x, [y]], [x, (y,)], (x, [y, x]), {"a": [x, {"b": (y, None, 1)}]}, [], [[]], x)]
        )
    return seen


@case("inputs")
def one_tensor_in_several_places(run: Run) -> Any:
    """The same tensor twice, then two tensors, then again: identity tests and gradients."""

    def f(a: Tensor, b: Tensor, more: list[Tensor]) -> Any:
        return a * b + sum(more), a is b, [m is a for m in more]

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x, y = torch.randn(2, requires_grad=True), torch.randn(2, requires_grad=True)
        for given in ((x, x, [x]), (x, y, [x, y]), (y, y, [x]), (x, y, [])):
            out = jitted(*given)
            out[0].sum().backward()
            seen.append((out, x.grad.clone(), None if y.grad is None else y.grad.clone()))
    return seen


@case("inputs")
def a_list_argument_changed_by_the_caller(run: Run) -> Any:
    """The caller appends to, replaces in and clears the list and dict between calls."""
    f = run.jit(lambda xs, d: (sum(xs) * d["scale"], len(xs)))
    xs, d = [torch.randn(2)], {"scale": 2.0}
    seen = [f(xs, d)]
    xs.append(torch.randn(2))
    seen.append(f(xs, d))
    d["scale"] = 3.0
    seen.append(f(xs, d))
    xs[0] = torch.randn(2)
    seen.append(f(xs, d))
    xs.clear()
    return [*seen, f(xs, d)]


@case("inputs")
def an_objects_fields_change(run: Run) -> Any:
    """A plain object and a dataclass as arguments: numbers, tensors and nested containers in their fields change."""

    @dataclass
    class Config:
        scale: float
        bias: Tensor
        sizes: list[int]

    class Holder:
        def __init__(self, config: Config) -> None:
            self.config = config

    def f(x: Tensor, holder: Holder) -> Tensor:
        config = holder.config
        return x * config.scale + config.bias + sum(config.sizes)

    jitted, x = run.jit(f), torch.randn(2)
    holder = Holder(Config(2.0, torch.randn(2), [1, 2]))
    seen = [jitted(x, holder)]
    holder.config.scale = 3.0
    seen.append(jitted(x, holder))
    holder.config.bias = torch.randn(2)
    seen.append(jitted(x, holder))
    holder.config.bias.add_(1)
    seen.append(jitted(x, holder))
    holder.config.sizes.append(5)
    seen.append(jitted(x, holder))
    holder.config = Config(1.0, torch.zeros(2), [])
    return [*seen, jitted(x, holder), jitted(x, Holder(Config(7.0, torch.ones(2), [1])))]


@case("inputs")
def defaults_that_are_tensors_and_containers(run: Run) -> Any:
    """A default tensor changed in place, and a mutable default extended, between calls."""
    shift, sizes = torch.randn(2), [1]

    def f(x: Tensor, by: Tensor = shift, n: list[int] = sizes) -> Tensor:
        return x + by * sum(n)

    jitted, x = run.jit(f), torch.randn(2)
    seen = [jitted(x)]
    shift.mul_(2)
    seen.append(jitted(x))
    sizes.append(3)
    seen.append(jitted(x))
    seen.append(jitted(x, torch.ones(2)))
    f.__defaults__ = (torch.zeros(2), [4])
    return [*seen, jitted(x)]


@case("inputs")
def requires_grad_of_inputs_varies(run: Run) -> Any:
    """Each combination of inputs that require grad, non-leaves included, in any order."""
    f, seen = run.jit(lambda x, y: x * y + y.sin()), []
    for first, second in [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (0, 2), (2, 2), (0, 0)]:
        x, y = torch.randn(2, requires_grad=first > 0), torch.randn(2, requires_grad=second > 0)
        out = f(x * 2 if first == 2 else x, y * 2 if second == 2 else y)
        if out.requires_grad:
            out.sum().backward()
        seen.append((out, x.grad, y.grad))
    return seen


@case("inputs")
def parameters_and_buffers_as_arguments(run: Run) -> Any:
    """A functional layer given a module's own parameters, and a Parameter beside a plain tensor."""
    net = nn.BatchNorm1d(3)
    f = run.jit(lambda x, p: (nn.functional.linear(x, p), isinstance(p, nn.Parameter), p.is_leaf))
    weights = [nn.Parameter(torch.randn(2, 3)), torch.randn(2, 3), torch.randn(2, 3, requires_grad=True)]
    norm = run.jit(nn.functional.batch_norm)
    seen = [norm(torch.randn(4, 3), net.running_mean, net.running_var, net.weight, net.bias, True) for _ in range(2)]
    return [f(torch.randn(1, 3), w) for w in weights * 2], seen, net.running_mean, net.running_var


@case("inputs")
def a_tuple_subclass_and_sizes(run: Run) -> Any:
    """`torch.Size`, ranges, and the result of `max` as arguments."""

    def f(x: Tensor, size: Any, steps: Any, pair: Any) -> Any:
        return x.expand(size), [x * i for i in steps], pair.values + 1, pair.indices, size, type(size).__name__

    jitted = run.jit(f)
    return [jitted(torch.randn(1), torch.Size([n]), range(n), torch.randn(2, n).max(1)) for n in (2, 3, 2)]


@case("inputs")
def iterators_and_generators(run: Run) -> Any:
    """An iterator argument is consumed at every call."""

    def f(xs: Iterator[Tensor]) -> Tensor:
        return next(xs) * 2 + sum(xs)

    jitted = run.jit(f)
    return [jitted(iter([torch.randn(2) for _ in range(n)])) for n in (2, 3)]


@case("inputs")
def unused_arguments(run: Run) -> Any:
    """Arguments that the program ignores: tensors of any shape, objects, None; their gradients stay None."""
    f, seen = run.jit(lambda x, unused=None, *more, **named: x * 2), []
    for unused in (None, torch.randn(3, requires_grad=True), torch.randn(2, 2), "text", {"a": torch.ones(1)}, [None]):
        x = torch.randn(2, requires_grad=True)
        f(x, unused, named=unused).sum().backward()
        seen.append((x.grad, unused.grad if isinstance(unused, Tensor) else None))
    return seen


@case("inputs")
def callables_that_are_objects(run: Run) -> Any:
    """An object with `__call__` is jitted, and another is an argument; their fields change."""

    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.by

    def apply(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return f(x) + 1

    own, given = Scale(2.0), Scale(3.0)
    direct, indirect, seen = run.jit(own), run.jit(apply), []
    for _ in range(3):
        x = torch.randn(2)
        seen.append((direct(x), indirect(given, x), indirect(own, x)))
        own.by += 1
        given.by -= 1
    return seen
