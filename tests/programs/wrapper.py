"""The object that `jit` returns stands for what was jitted."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


class Net(nn.Module):
    """A net with parameters, a buffer and dropout."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width = width
        self.a, self.drop, self.b = nn.Linear(3, width), nn.Dropout(0.5), nn.Linear(width, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        self.count += 1
        return self.b(self.drop(self.a(x).relu()))

    def predict(self, x: Tensor) -> Tensor:
        return self(x).argmax(-1)

    @property
    def size(self) -> int:
        return self.width * 2


@case("wrapper")
def train_and_eval_on_either(run: Run) -> Any:
    """`train()` and `eval()` on the jitted or on the original module show on both."""
    model = Net()
    jitted, seen = run.jit(model), []
    for change in (jitted.eval, model.train, model.eval, jitted.train, lambda: model.drop.eval()):
        change()
        seen.append((model.training, jitted.training, model.drop.training, jitted.drop.training))
        seen.append((jitted(torch.ones(2, 3)), model(torch.ones(2, 3))))
    return seen


@case("wrapper")
def checkpoints_both_ways(run: Run) -> Any:
    """A checkpoint of the jitted module loads strictly into a plain one, and the other way round."""
    model, plain = Net(), Net()
    jitted = run.jit(model)
    jitted(torch.ones(1, 3))
    buffer = io.BytesIO()
    torch.save(jitted.state_dict(), buffer)
    buffer.seek(0)
    loaded = plain.load_state_dict(torch.load(buffer), strict=True)
    before = jitted.eval()(torch.ones(1, 3))
    other = Net()
    back = jitted.load_state_dict(other.state_dict(), strict=True)
    return list(plain.state_dict()), tuple(loaded), tuple(back), before, jitted(torch.ones(1, 3)), plain.state_dict()


@case("wrapper")
def load_errors_and_assign(run: Run) -> Any:
    """Missing keys raise eager's error; `load_state_dict(assign=True)` on the jitted module is seen by both."""
    model = Net().eval()
    jitted, seen = run.jit(model), [run.caught(run.jit(Net()).load_state_dict, {"a.weight": torch.ones(4, 3)})[:1]]
    for fill in (0.5, 2.0):
        state = {k: torch.full_like(v, fill) for k, v in jitted.state_dict().items()}
        jitted.load_state_dict(state, assign=True)
        seen.append((jitted(torch.ones(2, 3)), model.a.weight.data_ptr() == state["a.weight"].data_ptr()))
    return seen


@case("wrapper")
def isinstance_of_the_original(run: Run) -> Any:
    """`isinstance(jitted, Net)` holds, before and after calls, and in code that dispatches on it."""

    def describe(m: nn.Module) -> str:
        return "net" if isinstance(m, Net) else "linear" if isinstance(m, nn.Linear) else "other"

    net, linear = run.jit(Net()), run.jit(nn.Linear(3, 2))
    seen = [describe(net), describe(linear), isinstance(net, nn.Module), issubclass(type(net), nn.Module)]
    net(torch.ones(1, 3))
    return seen, describe(net), [describe(m) for m in nn.Sequential(linear, net)]


@case("wrapper")
def decorator_in_a_class_body(run: Run) -> Any:
    """`@jit` on a method binds self, per instance."""

    class Scaler:
        def __init__(self, k: float) -> None:
            self.k = k
            self.w = torch.full((2,), k, requires_grad=True)

        @run.jit
        def apply(self, x: Tensor, shift: float = 0.0) -> Tensor:
            return x * self.k + self.w + shift

    a, b, seen = Scaler(2.0), Scaler(3.0), []
    for shift in (0.0, 1.0):
        seen.append((a.apply(torch.ones(2)), b.apply(torch.ones(2), shift=shift), Scaler.apply(a, torch.zeros(2))))
        a.k += 1
        b.apply(torch.ones(2)).sum().backward()
    return seen, a.w.grad, b.w.grad


@case("wrapper")
def decorator_on_forward(run: Run) -> Any:
    """`@jit` on a module's `forward`: hooks, several instances, `train()` and gradients."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.drop = nn.Linear(3, 3), nn.Dropout(0.5)

        @run.jit
        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.lin(x))

    first, second = Block(), Block()
    calls: list[int] = []
    first.register_forward_hook(lambda *a: calls.append(1))
    seen = []
    for training in (True, False, True):
        first.train(training)
        y = second(first(torch.randn(2, 3)))
        y.sum().backward()
        seen.append((y, first.lin.weight.grad.clone(), second.lin.bias.grad.clone(), len(calls)))
    return seen


@case("wrapper")
def static_and_class_methods(run: Run) -> Any:
    """`jit` under `staticmethod` and `classmethod`, and on a bound method."""

    class Tools:
        factor = 2.0

        @staticmethod
        @run.jit
        def double(x: Tensor) -> Tensor:
            return x * 2

        @classmethod
        @run.jit
        def scaled(cls, x: Tensor) -> Tensor:
            return x * cls.factor

        def plus(self, x: Tensor) -> Tensor:
            return x + self.factor

    tools, seen = Tools(), []
    bound = run.jit(tools.plus)
    for factor in (2.0, 5.0):
        Tools.factor = factor
        x = torch.randn(2)
        seen.append((Tools.double(x), tools.double(x), Tools.scaled(x), tools.scaled(x), bound(x)))
    return seen


@case("wrapper")
def jitted_twice(run: Run) -> Any:
    """Two wrappers of one function or module do not disturb each other."""
    model = Net()
    f = lambda x: x.sin() * 2  # noqa: E731
    f1, f2, m1, m2 = run.jit(f), run.jit(f), run.jit(model), run.jit(model)
    seen = [(f1(torch.ones(n)), f2(torch.ones(n + 1))) for n in (2, 3)]
    m1.eval()
    seen.append((m1(torch.ones(1, 3)), m2(torch.ones(2, 3)), m2.training, model.count))
    m2.train()
    seen.append((m1(torch.ones(1, 3)), m2(torch.ones(1, 3)), m1.training, model.count))
    return seen


@case("wrapper")
def optimizer_of_the_jitted_parameters(run: Run) -> Any:
    """An optimizer built from `jitted.parameters()` updates the original; parameters appear once."""
    model = Net()
    jitted = run.jit(model)
    optimizer, seen = torch.optim.AdamW(jitted.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        jitted(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        seen.append([p.detach().clone() for p in model.parameters()])
    names = [n for n, _ in jitted.named_parameters()]
    return (
        seen,
        names,
        all(p is q for p, q in zip(model.parameters(), jitted.parameters())),
        len(list(jitted.buffers())),
    )


@case("wrapper")
def attributes_and_methods(run: Run) -> Any:
    """Attributes, properties and methods are the original's, set on the wrapper they are seen by both."""
    model = Net()
    jitted = run.jit(model)
    seen = [jitted.width, jitted.size, jitted.a is model.a, hasattr(jitted, "nothing"), repr(jitted) == repr(model)]
    jitted.width = 7
    seen += [model.width, jitted.size, model.size]
    jitted.a = nn.Linear(3, 4)
    seen += [model.a is jitted.a, jitted.eval()(torch.ones(1, 3)), jitted.predict(torch.ones(2, 3))]
    del jitted.b
    seen += [hasattr(model, "b"), run.caught(jitted, torch.ones(1, 3))]
    return seen


@case("wrapper")
def names_docs_and_signatures(run: Run) -> Any:
    """Name, doc, module, signature and type hints of a jitted function, method and module's forward."""

    def scaled(x: Tensor, /, factor: float = 2.0, *, shift: int = 0) -> Tensor:
        """Scale and shift."""
        return x * factor + shift

    f, m = run.jit(scaled), run.jit(Net())
    seen = [f.__name__, f.__qualname__, f.__doc__, f.__module__, str(inspect.signature(f)), f.__annotations__]
    seen += [callable(f), str(inspect.signature(m.forward)), m.forward.__doc__, m.__doc__, type(m).__name__]
    return seen, f(torch.ones(2), shift=1), m.eval()(torch.ones(1, 3))


@case("wrapper")
def defaults_of_a_jitted_function(run: Run) -> Any:
    """`__defaults__` and `__kwdefaults__` are readable on the jitted function, as libraries read them."""

    def scaled(x: Tensor, factor: float = 2.0, *, shift: int = 0) -> Tensor:
        return x * factor + shift

    f, seen = run.jit(scaled), []
    for factor in (2.0, 3.0):
        scaled.__defaults__ = (factor,)
        seen.append((f(torch.ones(2)), f.__defaults__, f.__kwdefaults__))
    return seen


@case("wrapper")
def deepcopy_is_independent(run: Run) -> Any:
    """`deepcopy` of a jitted module, before and after calls: own weights, still a working module."""
    model = Net().eval()
    jitted = run.jit(model)
    early = copy.deepcopy(jitted)
    seen = [jitted(torch.ones(1, 3)), early(torch.ones(1, 3))]
    late = copy.deepcopy(jitted)
    with torch.no_grad():
        for p in jitted.parameters():
            p.add_(1)
    late(torch.ones(1, 3)).sum().backward()
    seen += [jitted(torch.ones(1, 3)), early(torch.ones(1, 3)), late(torch.ones(1, 3))]
    return seen, model.a.weight.grad, late.a.weight.grad, late.state_dict(), isinstance(late, Net)


@case("wrapper")
def pickle_and_torch_save(run: Run) -> Any:
    """A jitted module goes through `pickle` and `torch.save` after a call, and the copy runs."""
    jitted = run.jit(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))
    first = jitted(torch.ones(2, 3))
    copied = pickle.loads(pickle.dumps(jitted))
    buffer = io.BytesIO()
    torch.save(jitted, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=False)
    with torch.no_grad():
        jitted[0].weight.zero_()
    return first, [m(torch.ones(2, 3)) for m in (copied, saved, jitted)], isinstance(saved, nn.Sequential)


@case("wrapper")
def partials_and_lambdas(run: Run) -> Any:
    """`jit` of a `functools.partial` over a function and over a module, and a partial of a jitted function."""
    model = nn.Linear(3, 2)

    def f(m: nn.Module, x: Tensor, k: float = 1.0) -> Tensor:
        return m(x) * k

    a, b = run.jit(functools.partial(f, model, k=2.0)), functools.partial(run.jit(f), model)
    c, seen = run.jit(functools.partial(torch.clamp, min=0.0)), []
    for k in (2.0, 3.0):
        x = torch.randn(2, 3)
        seen.append((a(x), a(x, k=k), b(x, k), b(x, k=k), c(x), c(x, max=0.5)))
    return seen, a.func is f if not run.compiled else True


@case("wrapper")
def a_class_with_call(run: Run) -> Any:
    """`jit` of an object with `__call__` whose state changes between calls."""

    class Affine:
        def __init__(self) -> None:
            self.k, self.bias = 2.0, torch.ones(3, requires_grad=True)

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.k + self.bias

    obj = Affine()
    f, seen = run.jit(obj), []
    for k in (2.0, 4.0, 2.0):
        obj.k = k
        f(torch.ones(3)).sum().backward()
        seen.append((f(torch.ones(3)), obj.bias.grad.clone()))
    return seen
