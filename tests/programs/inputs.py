"""Inputs: how arguments bind, and what may be an argument."""

from __future__ import annotations

import enum
import functools
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from programs.case import Run, case

Pair = namedtuple("Pair", ["left", "right"])


class Batch(NamedTuple):
    ids: Tensor
    mask: Tensor | None = None
    scale: float = 1.0


@dataclass
class Sample:
    image: Tensor
    label: Tensor | None = None
    weights: dict[str, float] = field(default_factory=dict)


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


class Reduction(str, enum.Enum):
    NONE = "none"
    SUM = "sum"


def binds(a: Tensor, b: float = 2.0, *rest: Tensor, c: Tensor | None = None, d: int = 1, **more: Any) -> Any:
    total = a * b + d
    for i, r in enumerate(rest):
        total = total + r * (i + 1)
    if c is not None:
        total = total - c
    return total, len(rest), sorted(more), [more[key] * 2 for key in more]


@case("inputs")
def every_call_form(run: Run) -> Any:
    """Positional, defaulted, star, keyword and double-star arguments of a function."""
    f = run.jit(binds)
    x, y, z = torch.randn(3), torch.randn(3), torch.randn(3)
    return [
        f(x),
        f(x, 3.0),
        f(x, b=3.0),
        f(a=x, b=3.0),
        f(b=4.0, a=y),
        f(x, 2.0, y),
        f(x, 2.0, y, z),
        f(*[x, 1.5, z], **{"c": y, "d": 3}),
        f(x, c=y),
        f(x, d=5, c=z),
        f(x, other=y),
        f(x, 2.0, y, c=z, d=2, u=x, v=y),
        f(x, v=y, u=x),
        f(y),
    ]


@case("inputs")
def every_call_form_of_a_module(run: Run) -> Any:
    """Keyword-only arguments and defaults of a module's forward."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, **extra: Any) -> Any:
            y = self.linear(x) * scale
            if mask is not None:
                y = y.masked_fill(mask, 0.0)
            return y, {key: value + 1 for key, value in extra.items()}

    f, mask = run.jit(Net()), torch.tensor([True, False, False])
    x = torch.randn(2, 3)
    forms = [
        f(x),
        f(x=x),
        f(x, mask),
        f(x, mask=mask),
        f(mask=mask, x=x),
        f(x, None),
        f(x, None, scale=2.0),
        f(scale=3, x=x),
        f(x, scale=True),
        f(x, b=x, a=1),
        f(x, a=1, b=x),
    ]
    return forms, f(torch.randn(5, 3))


@case("inputs")
def call_forms_of_methods_and_partials(run: Run) -> Any:
    """A bound method, a static one, a partial with keywords that calls override."""

    class Ops:
        def __init__(self, w: Tensor) -> None:
            self.w = w

        def mix(self, x: Tensor, alpha: float = 0.5) -> Tensor:
            return x * alpha + self.w * (1 - alpha)

        @staticmethod
        def plain(x: Tensor, /, y: Tensor, *, sign: int = 1) -> Tensor:
            return x + sign * y

    first, second = Ops(torch.randn(3)), Ops(torch.randn(3))
    mixes = run.jit(first.mix), run.jit(second.mix)
    plain, part = run.jit(Ops.plain), run.jit(functools.partial(binds, b=5.0, d=2))
    seen = []
    for _ in range(2):
        x, y = torch.randn(3), torch.randn(3)
        seen.append([m(x) for m in mixes] + [m(x, alpha=0.25) for m in mixes] + [m(alpha=1.0, x=y) for m in mixes])
        seen.append([plain(x, y), plain(x, y=y, sign=-1), part(x), part(x, d=3), part(x, b=1.0, c=y), part(a=y, k=x)])
    return seen


@case("inputs")
def positional_only_name_in_double_star(run: Run) -> Any:
    """A positional-only name may come again in `**kwargs`; `self` and `fn` may be keywords as well."""

    def f(x: Tensor, /, **kwargs: Tensor) -> Any:
        return x + sum(kwargs.values()), list(kwargs)

    jitted = run.jit(f)
    return [
        jitted(torch.ones(2) * i, x=torch.randn(2), fn=torch.randn(2), args=torch.ones(2), kwargs=torch.randn(2))
        for i in range(3)
    ] + [jitted(torch.ones(2), self=torch.randn(2))]


@case("inputs")
def wrong_calls_raise_type_errors(run: Run) -> Any:
    """Missing, surplus, unknown and doubled arguments of a function, before and after a good call."""

    def f(a: Tensor, b: Tensor, *, c: float = 1.0) -> Tensor:
        return a * b * c

    jitted, x = run.jit(f), torch.randn(3)
    seen = []
    for _ in range(2):
        seen.append(
            [
                run.caught(jitted),
                run.caught(jitted, x),
                run.caught(jitted, x, x, x),
                run.caught(jitted, x, x, d=1),
                run.caught(jitted, x, x, a=x),
                run.caught(jitted, b=x),
                run.caught(jitted, x, x, 2.0),
            ]
        )
        seen.append([jitted(x, x), jitted(b=x, a=x, c=2.0)])
    return seen


@case("inputs")
def wrong_calls_of_a_module(run: Run) -> Any:
    """The same for a module, in training; and a TypeError from inside."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor, scale: float) -> Tensor:
            return self.linear(x) * scale

    f, x, seen = run.jit(Net()), torch.randn(1, 2), []
    for _ in range(2):
        seen.append(
            [
                run.caught(f),
                run.caught(f, x),
                run.caught(f, x, 1.0, 2.0),
                run.caught(f, x, 1.0, bias=2.0),
                run.caught(f, x, scale="a"),
                run.caught(f, x, None),
                run.caught(f, x, torch.ones(3)),
            ]
        )
        seen.append(f(x, 2.0))
    return seen


@case("inputs")
def dict_with_other_keys_and_order(run: Run) -> Any:
    """A dict argument is iterated as given: other keys, the same in another order, fewer."""

    def f(batch: dict[str, Tensor]) -> Any:
        out = torch.zeros(2)
        for i, (key, value) in enumerate(batch.items()):
            out = out * 0.5 + value * (i + 1) + len(key)
        return out, list(batch), "mask" in batch, {key: value.sin() for key, value in batch.items()}

    jitted = run.jit(f)
    a, b = torch.randn(2), torch.randn(2)
    given: list[dict[str, Tensor]] = [
        {"x": a, "mask": b},
        {"mask": b, "x": a},
        {"x": b, "mask": a},
        {"x": a},
        {"x": a, "other": b},
        {"xx": a, "mask": b},
        {},
        {"x": a, "mask": b},
    ]
    return [jitted(d) for d in given]


@case("inputs")
def dicts_of_several_classes(run: Run) -> Any:
    """dict, OrderedDict and defaultdict with equal items: `type` is seen, and the default factory works."""

    def f(d: Any) -> Any:
        keys = list(d)
        extra = d["missing"] if isinstance(d, defaultdict) else None
        return type(d).__name__, keys, extra, sum(d[k] for k in keys) * 2

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x, y = torch.randn(2), torch.randn(2)
        seen += [jitted({"a": x, "b": y}), jitted(OrderedDict(b=y, a=x)), jitted(OrderedDict(a=x, b=y))]
    return seen


@case("inputs", may_refuse=True)
def a_defaultdict_that_gets_a_key(run: Run) -> Any:
    """Looking a missing key up writes it to the caller's defaultdict."""
    f, seen = run.jit(lambda d, x: d["total"] + x), []
    for _ in range(2):
        d = defaultdict(lambda: 1.0)
        seen.append((f(d, torch.randn(2)), dict(d), f(d, torch.randn(2)), dict(d)))
    return seen


@case("inputs")
def keys_that_are_no_strings(run: Run) -> Any:
    """Dicts keyed by ints, tuples, dtypes and enums."""

    def f(d: dict[Any, Tensor]) -> Any:
        return {key: value * (i + 1) for i, (key, value) in enumerate(d.items())}, list(d)

    jitted = run.jit(f)
    x, y = torch.randn(2), torch.randn(2)
    return [
        jitted({0: x, 1: y}),
        jitted({1: y, 0: x}),
        jitted({(0, "a"): x, torch.float32: y}),
        jitted({Mode.SUM: x, Mode.MEAN: y}),
        jitted({Mode.MEAN: x, Mode.SUM: y}),
        jitted({True: x, None: y}),
        jitted({1: x, None: y}),
    ]


@case("inputs")
def functions_as_arguments(run: Run) -> Any:
    """The function given in this call is called: lambdas, builtins, methods, partials."""

    def apply(f: Callable[..., Tensor], x: Tensor) -> Tensor:
        return f(x) + 1

    def scaled(by: float) -> Callable[[Tensor], Tensor]:
        return lambda x: x * by

    jitted, x = run.jit(apply), torch.randn(3)
    return [
        jitted(torch.sin, x),
        jitted(torch.cos, x),
        jitted(scaled(2.0), x),
        jitted(scaled(3.0), x),
        jitted(lambda t: t - 1, x),
        jitted(nn.functional.relu, x),
        jitted(functools.partial(torch.clamp, min=0.1), x),
        jitted(functools.partial(torch.clamp, min=0.5), x),
        jitted(x.add, x),
        jitted(Tensor.exp, x),
        jitted(torch.sin, x),
    ]


@case("inputs")
def modules_as_arguments_with_gradients(run: Run) -> Any:
    """A module passed as an argument is this call's, and its parameters get their gradients."""
    f = run.jit(lambda module, x: module(x).square().sum())
    nets = [nn.Linear(3, 2), nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))]
    seen = []
    for net in [*nets, *nets]:
        loss = f(net, torch.randn(2, 3))
        loss.backward()
        seen.append((loss, [p.grad.clone() for p in net.parameters()]))
    nets[0].weight.data.mul_(2)
    nets[1].weight.requires_grad_(False)
    return seen, [f(net, torch.ones(1, 3)) for net in nets]


@case("inputs")
def modules_in_a_list_and_a_dict(run: Run) -> Any:
    """Modules in containers, in training and eval, in another order."""

    def f(x: Tensor, layers: list[nn.Module], named: dict[str, nn.Module]) -> Tensor:
        for layer in layers:
            x = layer(x)
        return named["head"](x)

    jitted = run.jit(f)
    a, b, head = nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 1)
    seen = []
    for layers in ([a, b], [b, a], [a], [a, b]):
        out = jitted(torch.randn(2, 3), layers, {"head": head})
        out.sum().backward()
        seen.append((out, a.weight.grad.clone()))
        b.eval()
    return seen


@case("inputs")
def named_tuples_and_dataclasses(run: Run) -> Any:
    """Named tuples and dataclasses with tensors, None and numbers in their fields."""

    def f(batch: Batch, sample: Sample, pair: Any) -> Any:
        y = batch.ids * batch.scale + pair.left
        if batch.mask is not None:
            y = y * batch.mask
        if sample.label is not None:
            y = y - sample.label
        for name, weight in sample.weights.items():
            y = y + weight * len(name)
        return y, Sample(y, sample.image), Pair(pair.right, y), batch._replace(scale=3.0)

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x, y = torch.randn(2), torch.randn(2)
        seen.append(jitted(Batch(x), Sample(y), Pair(x, y)))
        seen.append(jitted(Batch(x, y), Sample(y, x), Pair(y, 1)))
        seen.append(jitted(Batch(x, None, 2.0), Sample(y, None, {"a": 1.0}), Pair(1.0, None)))
        seen.append(jitted(Batch(x, None, 2.0), Sample(y, None, {"bb": 2.0}), Pair(1.0, None)))
    return seen


@case("inputs")
def none_enum_dtype_and_string(run: Run) -> Any:
    """None in any position, enums, string enums, dtypes, devices, strings and bools select what runs."""

    def f(x: Tensor | None, how: Any, dtype: Any, flag: Any = None, y: Tensor | None = None) -> Any:
        if x is None:
            return y if y is None else y.sum()
        out = x.to(dtype) if dtype is not None else x
        if how is Mode.SUM or how == "sum":
            out = out.sum()
        elif how is Mode.MEAN:
            out = out.mean()
        return out * 2 if flag else out, how, dtype, flag

    jitted, x = run.jit(f), torch.randn(3)
    forms: list[tuple[Any, ...]] = [
        (x, Mode.SUM, None),
        (x, Mode.MEAN, torch.float64),
        (x, "sum", torch.float64),
        (x, Reduction.SUM, torch.bfloat16),
        (x, Reduction.NONE, torch.float64, True),
        (x, None, torch.int64, False),
        (x, None, None, 1),
        (x, None, None, True),
        (x, None, None, "yes"),
        (x, None, None, ""),
        (None, None, None, None, x),
        (None, None, None, None, None),
        (x, Mode.SUM, None),
    ]
    return [jitted(*form) for form in forms]
