"""Plain values that a program reads outside its arguments, changed between its calls."""

from __future__ import annotations

import contextvars
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from programs.case import Run, case

SCALE: Any = 2.0
SETTINGS: dict[str, Any] = {}
TEMPERATURE: contextvars.ContextVar[float] = contextvars.ContextVar("temperature", default=1.0)
MODE: contextvars.ContextVar[str] = contextvars.ContextVar("mode")


class Kind(Enum):
    RELU = "relu"
    TANH = "tanh"


class Sizes(NamedTuple):
    rows: int
    factor: float


@dataclass
class Norm:
    eps: float = 1e-5


@dataclass
class Config:
    scale: float = 2.0
    kind: Kind = Kind.RELU
    norm: Norm = field(default_factory=Norm)
    widths: list[int] = field(default_factory=lambda: [1, 2])
    extra: dict[str, float] = field(default_factory=dict)


def after(f: Callable[..., Any], x: Tensor, *changes: Callable[[], Any]) -> list[Any]:
    """Results before the first change and after each."""
    seen = [f(x)]
    for change in changes:
        change()
        seen.append(f(x))
    return seen


def set_global(**values: Any) -> Callable[[], None]:
    return lambda: globals().update(values)


@case("guards")
def global_number_rebound(run: Run) -> Any:
    """A global changes value and type: 2.0, 3.0, 2, True, a tensor, then back."""
    set_global(SCALE=2.0)()
    f = run.jit(lambda x: x * SCALE)
    values = [3.0, 2, True, torch.tensor(4.0), None, 2.0]
    seen, x = [f(torch.arange(3))], torch.arange(3)
    for value in values:
        set_global(SCALE=value)()
        seen.append(run.caught(f, x))
    return [s if isinstance(s, Tensor) else s[0] for s in seen]


@case("guards")
def closure_cells_written_by_a_setter(run: Run) -> Any:
    """`nonlocal` setters change what the jitted closure reads: numbers, a string, None."""
    scale, mode, clamp = 2.0, "relu", None

    def change(*values: Any) -> Callable[[], None]:
        def do() -> None:
            nonlocal scale, mode, clamp
            scale, mode, clamp = values

        return do

    def f(x: Tensor) -> Tensor:
        y = x * scale
        y = y.relu() if mode == "relu" else y.tanh()
        return y if clamp is None else y.clamp(max=clamp)

    changes = [(3.0, "relu", None), (3.0, "tanh", None), (3.0, "tanh", 0.1), (2.0, "relu", None)]
    return after(run.jit(f), torch.randn(5), *(change(*c) for c in changes))


@case("guards")
def one_true_and_one_point_zero(run: Run) -> Any:
    """1, True and 1.0 are equal in Python: as argument, closure value, attribute and dict entry."""
    held, box = {"v": 1}, nn.Identity()
    inside = run.jit(lambda x: x + held["v"])

    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.v

    scaled, passed, seen = Scaled(), run.jit(lambda x, v: (x + v, x.new_full((2,), v), torch.tensor(v))), [box.training]
    attribute, x = run.jit(scaled), torch.tensor([True, False])
    for v in (1, True, 1.0, True, 1, complex(1), 0, False, 0.0, -0.0):
        held["v"], scaled.v = v, v
        seen.append((inside(x), attribute(x), passed(x, v)[0], passed(x, v)[2]))
    return seen


@case("guards")
def negative_zero_and_nan(run: Run) -> Any:
    """0.0 and -0.0 are equal, NaN is not equal to itself."""
    f, x = run.jit(lambda x, v: (x * 0 + 1) / (x * v)), torch.ones(2)
    g = run.jit(lambda x, v: torch.where(x > v, x, v))
    values = [0.0, -0.0, float("nan"), float("nan"), 0.0, float("inf"), -float("inf")]
    return [(f(x, v), g(x, v)) for v in values]


@case("guards")
def fields_of_a_config(run: Run) -> Any:
    """Fields of a dataclass in a closure: number, enum, nested dataclass, list entry, dict entry."""
    c = Config()

    def f(x: Tensor) -> Tensor:
        y = x.relu() if c.kind is Kind.RELU else x.tanh()
        for width in c.widths:
            y = y * c.scale + width
        return y / (c.norm.eps + 1) + c.extra.get("bias", 0.0)

    return after(
        run.jit(f),
        torch.randn(4),
        lambda: setattr(c, "scale", 3.0),
        lambda: setattr(c, "kind", Kind.TANH),
        lambda: setattr(c.norm, "eps", 0.5),
        lambda: setattr(c, "norm", Norm(0.7)),
        lambda: c.widths.append(5),
        lambda: c.widths.__setitem__(0, 9),
        lambda: c.extra.update(bias=2.0),
        lambda: c.extra.clear(),
    )


@case("guards")
def config_of_a_module(run: Run) -> Any:
    """A config object that modules of a tree share, as in transformers; a method of it is called, too."""

    class Options:
        heads = 2
        dropout = 0.0

        def size(self, width: int) -> int:
            return width // self.heads

    class Attention(nn.Module):
        def __init__(self, config: Options) -> None:
            super().__init__()
            self.config = config

        def forward(self, x: Tensor) -> Tensor:
            heads = x.view(x.shape[0], self.config.heads, self.config.size(x.shape[1])).softmax(-1)
            return nn.functional.dropout(heads, self.config.dropout).flatten(1)

    options = Options()
    net = nn.Sequential(Attention(options), Attention(options))
    return after(
        run.jit(net),
        torch.randn(2, 8),
        lambda: setattr(options, "heads", 4),
        lambda: setattr(options, "dropout", 0.5),
        lambda: setattr(net[1], "config", Options()),
        lambda: setattr(Options, "heads", 1),
    )


@case("guards")
def computed_attribute_names(run: Run) -> Any:
    """`getattr` with a name made in a loop, and `vars(...)`."""

    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w0, self.w1 = 1.0, 2.0

        def forward(self, x: Tensor) -> Tensor:
            for i in range(2):
                x = x * getattr(self, f"w{i}") + 1
            return x + sum(v for k, v in vars(self).items() if k.startswith("w"))

    m = Weights()
    return after(run.jit(m), torch.randn(3), lambda: setattr(m, "w1", 5.0), lambda: setattr(m, "w2", 7.0))


@case("guards")
def global_dict_and_membership(run: Run) -> Any:
    """A global dict asked for keys, its length and its items."""
    SETTINGS.clear()

    def f(x: Tensor) -> Tensor:
        if "scale" in SETTINGS:
            x = x * SETTINGS["scale"]
        for value in SETTINGS.values():
            x = x + value
        return x * (1 + len(SETTINGS)) + float(SETTINGS.get("off", True))

    seen = after(
        run.jit(f),
        torch.randn(3),
        lambda: SETTINGS.update(scale=2),
        lambda: SETTINGS.update(scale=2.5),
        lambda: SETTINGS.update(off=False),
        lambda: SETTINGS.pop("scale"),
    )
    SETTINGS.clear()
    return seen


@case("guards")
def counter_in_a_closure(run: Run) -> Any:
    """A step number that the training loop counts up scales the loss."""
    step = 0
    f, seen, x = run.jit(lambda x: x * min(1.0, (step + 1) / 3)), [], torch.randn(3)
    for step in range(6):  # noqa: B007
        seen.append(f(x))
    return seen


@case("guards", may_refuse=True)
def context_variable(run: Run) -> Any:
    """A ContextVar is current at every call, in another context, too."""
    f, x = run.jit(lambda x: x / TEMPERATURE.get()), torch.randn(3)
    seen = [f(x)]
    token = TEMPERATURE.set(2.0)
    seen.append(f(x))
    seen.append(contextvars.copy_context().run(lambda: (TEMPERATURE.set(4.0), f(x))[1]))
    TEMPERATURE.reset(token)
    return [*seen, f(x)]


@case("guards", may_refuse=True)
def context_variable_behind_a_helper(run: Run) -> Any:
    """A module asks a helper, which reads a ContextVar without a default."""

    def current() -> str:
        return MODE.get("train")

    class Head(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1) if current() == "serve" else x.log_softmax(-1)

    f, x = run.jit(Head()), torch.randn(2, 3)
    seen = [f(x)]
    token = MODE.set("serve")
    seen.append(f(x))
    MODE.reset(token)
    return [*seen, f(x)]


@case("guards", may_refuse=True)
def environment_variable(run: Run) -> Any:
    """An environment variable read inside is the one of this call (SEMANTICS: refuse or re-run)."""

    def f(x: Tensor) -> Tensor:
        return x * 2 if os.environ.get("CASE_FAST") == "1" else x * float(os.getenv("CASE_SCALE", "3"))

    try:
        return after(
            run.jit(f),
            torch.randn(3),
            lambda: os.environ.update(CASE_FAST="1"),
            lambda: os.environ.update(CASE_FAST="0", CASE_SCALE="5"),
        )
    finally:
        os.environ.pop("CASE_FAST", None), os.environ.pop("CASE_SCALE", None)


@case("guards", may_refuse=True)
def python_random_numbers(run: Run) -> Any:
    """`random.random()` inside is drawn at every call (SEMANTICS: refuse or re-run)."""
    f, x = run.jit(lambda x: x * random.random()), torch.ones(2)
    return [f(x) for _ in range(4)], random.random()


@case("guards", may_refuse=True)
def python_random_choice_of_a_layer(run: Run) -> Any:
    """`random.choice` over layers and `random.sample` of channels."""
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
    f = run.jit(lambda x: random.choice(layers)(x)[:, random.sample(range(3), 2)])
    x = torch.randn(2, 3)
    return [f(x) for _ in range(6)], random.random()


@case("guards", may_refuse=True)
def numpy_random_numbers(run: Run) -> Any:
    """NumPy's global generator inside is drawn from at every call, and advances."""
    f, x = run.jit(lambda x: x * float(numpy.random.rand()) + int(numpy.random.randint(10))), torch.ones(2)
    return [f(x) for _ in range(4)], float(numpy.random.rand())


@case("guards", may_refuse=True)
def time_read_inside(run: Run) -> Any:
    """A clock read inside goes on between calls (SEMANTICS: refuse or re-run)."""
    f = run.jit(lambda x: (x * 2, time.perf_counter_ns()))
    ticks = [f(torch.ones(1))[1] for _ in range(3)]
    return ticks[0] < ticks[1] < ticks[2]


@case("guards")
def defaults_of_a_function_changed(run: Run) -> Any:
    """`__defaults__` and `__kwdefaults__` of the jitted function and of a helper."""

    def helper(x: Tensor, shift: float = 1.0) -> Tensor:
        return x + shift

    def f(x: Tensor, scale: float = 2.0, *, power: int = 1) -> Tensor:
        return helper(x * scale) ** power

    return after(
        run.jit(f),
        torch.randn(3),
        lambda: setattr(f, "__defaults__", (3.0,)),
        lambda: setattr(f, "__kwdefaults__", {"power": 2}),
        lambda: setattr(helper, "__defaults__", (5.0,)),
    )


@case("guards")
def mutable_default_changed(run: Run) -> Any:
    """The contents of a list, dict and config default of the function and of a helper."""
    options, config, sizes = {"scale": 2.0}, Config(), [1.0]

    def helper(x: Tensor, c: Config = config) -> Tensor:
        return x * c.scale

    def f(x: Tensor, o: dict[str, float] = options, s: list[float] = sizes) -> Tensor:
        return helper(x) * o["scale"] + sum(s)

    return after(
        run.jit(f),
        torch.randn(3),
        lambda: options.update(scale=3.0),
        lambda: sizes.append(4.0),
        lambda: setattr(config, "scale", 7.0),
        lambda: sizes.clear(),
    )


@case("guards")
def attributes_of_every_kind(run: Run) -> Any:
    """Attributes of a module that are int, str, dtype, tuple, named tuple, set, slice, enum."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.mode, self.dtype, self.dims = 2, "sum", torch.float32, (0,)
            self.sizes, self.skip, self.part, self.kind = Sizes(2, 0.5), {1}, slice(0, 2), Kind.RELU

        def forward(self, x: Tensor) -> Tensor:
            y = x.to(self.dtype)[self.part] * self.sizes.factor * (1 if self.n in self.skip else self.n)
            y = y.relu() if self.kind == Kind.RELU else y.tanh()
            return y.sum(self.dims) if self.mode == "sum" else y.mean(self.dims)

    m = Block()
    changes: list[tuple[str, Any]] = [("n", 3), ("mode", "mean"), ("dtype", torch.float64), ("dims", (0, 1))]
    changes += [("sizes", Sizes(2, 0.25)), ("skip", {3}), ("part", slice(1, 4)), ("kind", Kind.TANH), ("n", 2)]
    return after(run.jit(m), torch.randn(4, 3), *(lambda c=c: setattr(m, *c) for c in changes))
