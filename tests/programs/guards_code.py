"""Functions and classes that a program calls, changed between its calls."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def double(x: Tensor) -> Tensor:
    return x * 2


def triple(x: Tensor) -> Tensor:
    return x * 3


def inner(x: Tensor) -> Tensor:
    return x + 1


def outer(x: Tensor) -> Tensor:
    return inner(x).sin()


def call_helper(x: Tensor) -> Tensor:
    return helper(x) + 1


def call_activation(x: Tensor, name: str) -> Tensor:
    return ACTIVATIONS[name](x) - x


helper = double
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"act": torch.relu}


@case("guards")
def global_helper_rebound(run: Run) -> Any:
    """A module-level helper that is bound to another function, and back."""
    f, seen, x = run.jit(call_helper), [], torch.randn(3)
    for fn in (double, triple, torch.sigmoid, lambda t: t - 1, double):
        globals()["helper"] = fn
        seen.append(f(x))
    globals()["helper"] = double
    return seen


@case("guards")
def helper_of_a_helper_rebound(run: Run) -> Any:
    """The function that a called function calls is replaced: two levels down."""
    f, seen, x, before = run.jit(lambda t: outer(t) * 2), [], torch.randn(3), inner
    for fn in (before, double, triple, before):
        globals()["inner"] = fn
        seen.append(f(x))
    return seen


@case("guards")
def entry_of_a_table_of_functions_replaced(run: Run) -> Any:
    """Dispatch through a global dict whose entry is replaced or added."""
    f, seen, x = run.jit(call_activation), [], torch.randn(4)
    for fn in (torch.relu, torch.tanh, torch.relu):
        ACTIVATIONS["act"] = fn
        seen.append(f(x, "act"))
    ACTIVATIONS["late"] = torch.exp
    seen.append(f(x, "late"))
    ACTIVATIONS["act"] = torch.relu
    del ACTIVATIONS["late"]
    return seen, run.caught(f, x, "late")


@case("guards")
def function_of_a_namespace_replaced(run: Run) -> Any:
    """A function that is an attribute of a module-like object is patched."""
    ops = types.SimpleNamespace(act=torch.tanh, nested=types.SimpleNamespace(norm=torch.sum))
    f, seen, x = run.jit(lambda t: ops.act(t) * ops.nested.norm(t)), [], torch.randn(3)
    seen.append(f(x))
    ops.act = torch.exp
    seen.append(f(x))
    ops.nested.norm = torch.amax
    seen.append(f(x))
    return seen


@case("guards")
def function_of_torch_patched(run: Run) -> Any:
    """`torch.nn.functional.silu` is monkey-patched, as kernel libraries do, and restored."""
    f, seen, x, before = run.jit(lambda t: nn.functional.silu(t) + 1), [], torch.randn(3), nn.functional.silu
    try:
        for fn in (before, lambda t, inplace=False: t * 100, before):
            nn.functional.silu = fn
            seen.append(f(x))
    finally:
        nn.functional.silu = before
    return seen


@case("guards")
def method_of_a_class_replaced(run: Run) -> Any:
    """A method that forward calls is assigned anew on the class, then on the instance, then removed there."""

    class Block(nn.Module):
        def scale(self, x: Tensor) -> Tensor:
            return x * 2

        def forward(self, x: Tensor) -> Tensor:
            return self.scale(x) + 1

    block, x = Block(), torch.randn(3)
    f = run.jit(block)
    seen = [f(x)]
    Block.scale = lambda self, t: t * 5
    seen.append(f(x))
    block.scale = lambda t: t * 7
    seen.append(f(x))
    del block.scale
    seen.append(f(x))
    return seen


@case("guards")
def code_of_a_method_replaced(run: Run) -> Any:
    """`__code__` of a method that forward calls is replaced in place."""

    class Block(nn.Module):
        def scale(self, x: Tensor) -> Tensor:
            return x * 2

        def forward(self, x: Tensor) -> Tensor:
            return self.scale(x) + 1

    def other(self: Any, x: Tensor) -> Tensor:
        return x * 5

    f, x = run.jit(Block()), torch.randn(3)
    seen, before = [f(x)], Block.scale.__code__
    Block.scale.__code__ = other.__code__
    seen.append(f(x))
    Block.scale.__code__ = before
    seen.append(f(x))
    return seen


@case("guards")
def code_of_a_helper_and_of_the_function_replaced(run: Run) -> Any:
    """`__code__` of a closure's helper is replaced, then that of the jitted function itself."""

    def shift(x: Tensor) -> Tensor:
        return x + 1

    def f(x: Tensor) -> Tensor:
        return x.sin()

    g, h, x = run.jit(lambda t: shift(t) * 2), run.jit(f), torch.randn(3)
    seen = [g(x), h(x)]
    shift.__code__ = triple.__code__
    f.__code__ = (lambda x: x.cos()).__code__
    return [*seen, g(x), h(x)]


@case("guards")
def code_of_a_method_of_a_plain_object_replaced(run: Run) -> Any:
    """A method of an object that is no module, called by a function: its `__code__`, then the method."""

    class Scaler:
        def __call__(self, x: Tensor) -> Tensor:
            return self.apply(x) - 1

        def apply(self, x: Tensor) -> Tensor:
            return x * 2

    def replaced(self: Any, x: Tensor) -> Tensor:
        return x * 3

    scaler = Scaler()
    f, x = run.jit(lambda t: scaler(t).exp()), torch.randn(3)
    seen = [f(x)]
    Scaler.apply.__code__ = replaced.__code__
    seen.append(f(x))
    Scaler.__call__ = lambda self, t: t - 9
    seen.append(f(x))
    return seen


@case("guards")
def forward_replaced(run: Run) -> Any:
    """`forward` is replaced on the class, then on the instance, as adapters and quantisers do."""

    class Block(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    block, x = Block(), torch.randn(3)
    f = run.jit(block)
    seen = [f(x)]
    Block.forward = lambda self, t: t * 5
    seen.append(f(x))
    before = block.forward
    block.forward = lambda t: before(t) + 100
    seen.append(f(x))
    return seen


@case("guards")
def forward_of_a_submodule_wrapped(run: Run) -> Any:
    """The forward of one layer of a Sequential is wrapped after the first call."""
    net, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.randn(2, 3)
    f = run.jit(net)
    seen, before = [f(x)], net[0].forward
    net[0].forward = lambda t: before(t) * 10
    seen.append(f(x))
    del net[0].forward
    seen.append(f(x))
    return seen


@case("guards")
def class_of_a_module_changed(run: Run) -> Any:
    """`module.__class__` is assigned, as patching libraries do."""

    class Swapped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 10

    net, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 3)
    f = run.jit(net)
    seen = [f(x)]
    net[0].__class__ = Swapped
    seen.append(f(x))
    net[0].__class__ = nn.Linear
    seen.append(f(x))
    return seen


@case("guards")
def closures_that_share_a_code_object(run: Run) -> Any:
    """Two closures of one factory, each jitted, and both called by a third that is handed either."""

    def scaled_by(factor: float) -> Callable[[Tensor], Tensor]:
        return lambda x: x * factor

    two, three, x = scaled_by(2.0), scaled_by(3.0), torch.randn(3)
    a, b, apply = run.jit(two), run.jit(three), run.jit(lambda fn, t: fn(t) + 1)
    return [(a(x), b(x), apply(two, x), apply(three, x)) for _ in range(2)]


@case("guards")
def methods_of_two_instances(run: Run) -> Any:
    """A bound method of each of two objects of one class, jitted, then changed attributes."""

    class Scaler:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def scale(self, x: Tensor) -> Tensor:
            return x * self.factor

    one, two, x = Scaler(2.0), Scaler(3.0), torch.randn(3)
    f, g = run.jit(one.scale), run.jit(two.scale)
    seen = [f(x), g(x)]
    one.factor, two.factor = 5.0, 7.0
    return [*seen, f(x), g(x)]


@case("guards")
def class_attributes_changed(run: Run) -> Any:
    """Attributes of a module's class and of its base: changed, shadowed by the instance, uncovered again."""

    class Base(nn.Module):
        factor = 2.0

    class Block(Base):
        shift = 1

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor + self.shift + type(self).shift

    block, x = Block(), torch.randn(3)
    f = run.jit(block)
    seen = [f(x)]
    Base.factor = 3.0
    seen.append(f(x))
    Block.shift = 4
    seen.append(f(x))
    block.shift = 9
    seen.append(f(x))
    del block.shift
    seen.append(f(x))
    return seen


@case("guards")
def properties(run: Run) -> Any:
    """A property computed from an attribute; then the property itself is replaced."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.width = 2

        @property
        def scale(self) -> float:
            return self.width**0.5

        def forward(self, x: Tensor) -> Tensor:
            return x / self.scale

    block, x = Block(), torch.randn(3)
    f = run.jit(block)
    seen = [f(x)]
    block.width = 3
    seen.append(f(x))
    Block.scale = property(lambda self: 10.0)
    seen.append(f(x))
    return seen


@case("guards")
def static_and_class_methods(run: Run) -> Any:
    """A static method and a class method that read class state, replaced between calls."""

    class Block(nn.Module):
        factor = 2

        @staticmethod
        def act(x: Tensor) -> Tensor:
            return x.relu()

        @classmethod
        def scaled(cls, x: Tensor) -> Tensor:
            return x * cls.factor

        def forward(self, x: Tensor) -> Tensor:
            return self.scaled(self.act(x))

    f, x = run.jit(Block()), torch.randn(5)
    seen = [f(x)]
    Block.factor = 3
    seen.append(f(x))
    Block.act = staticmethod(torch.tanh)
    seen.append(f(x))
    return seen


@case("guards")
def partial_in_a_closure_rebound(run: Run) -> Any:
    """A `functools.partial` that the function calls is bound anew with another keyword."""
    act = functools.partial(nn.functional.leaky_relu, negative_slope=0.1)
    f, x = run.jit(lambda t: act(t) * 2), torch.randn(5)
    seen = [f(x)]
    act = functools.partial(nn.functional.leaky_relu, negative_slope=0.5)
    seen.append(f(x))
    act.keywords["negative_slope"] = 0.9
    seen.append(f(x))
    return seen


@case("guards")
def decorated_helper_replaced_underneath(run: Run) -> Any:
    """The function behind a `functools.wraps` decorator is replaced through its cell."""

    def wrap(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        @functools.wraps(fn)
        def wrapped(x: Tensor) -> Tensor:
            return fn(x) + 1

        return wrapped

    wrapped = wrap(double)
    f, x = run.jit(lambda t: wrapped(t)), torch.randn(3)
    seen = [f(x)]
    wrapped.__closure__[0].cell_contents = triple
    return [*seen, f(x)]
