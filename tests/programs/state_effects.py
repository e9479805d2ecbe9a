"""What forward leaves behind: buffers, attributes, lists and dicts, exceptions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


@case("module state")
def buffers_written_in_place(run: Run) -> Any:
    """A persistent and a non-persistent buffer advance from call to call; eval mode leaves them."""

    class Tracker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.count += 1
                self.mean.lerp_(x.detach().mean(0), 0.1)
            return (x - self.mean) / (self.count + 1)

    net = Tracker()
    f, seen, mean = run.jit(net), [], net.mean
    for mode in (True, True, False, True, False):
        net.train(mode)
        x = torch.randn(4, 3, requires_grad=True)
        f(x).sum().backward()
        seen.append((net.mean.clone(), net.count.clone(), x.grad))
    return seen, net.mean is mean, list(f.state_dict())


@case("module state")
def buffer_bound_anew_in_forward(run: Run) -> Any:
    """`self.mean = 0.9 * self.mean + ...` in forward, and a counter buffer."""

    class Ema(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
                self.steps = self.steps + 1
            return x - self.mean

    net, seen = Ema(), []
    f = run.jit(net)
    for _ in range(3):
        seen.append((f(torch.randn(2, 3)), net.mean.clone(), net.steps.clone()))
    return seen, f.state_dict()


@case("module state")
def key_value_cache(run: Run) -> Any:
    """A cache written at a position in place stays the same memory, and grows right."""

    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(6, 2), persistent=False)
            self.register_buffer("at", torch.zeros(1, dtype=torch.int64), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.keys.index_copy_(0, self.at, x)
            self.at += 1
            return (x @ self.keys.t()).masked_fill(torch.arange(6) >= self.at, float("-inf")).softmax(-1) @ self.keys

    net = Cache()
    f, pointer = run.jit(net), net.keys.data_ptr()
    with torch.no_grad():
        seen = [f(torch.randn(1, 2)) for _ in range(5)]
    return seen, net.keys, net.at, net.keys.data_ptr() == pointer


@case("module state")
def attribute_counter_in_forward(run: Run) -> Any:
    """`self.calls += 1` in forward, read by the caller and by forward."""

    class Counting(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.calls

    net, seen = Counting(), []
    f = run.jit(net)
    for _ in range(4):
        seen.append((f(torch.ones(2)), net.calls))
    return seen


@case("module state")
def activations_kept_on_the_module(run: Run) -> Any:
    """`self.last = h`, a list and a dict of activations: real tensors of this call."""

    class Logging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.last, self.log, self.named = nn.Linear(3, 3), None, [], {}

        def forward(self, x: Tensor) -> Tensor:
            h = self.lin(x)
            self.last = h.detach()
            self.log.append(h.detach().sum())
            self.named["h"] = h.detach()
            return h.relu()

    net, seen = Logging(), []
    f = run.jit(net)
    for _ in range(3):
        f(torch.randn(2, 3))
        seen.append((net.last, list(net.log), dict(net.named), type(net.last).__name__))
    return seen


@case("module state")
def auxiliary_loss_on_the_module(run: Run) -> Any:
    """A router stores its balance loss on itself, which the training loop adds: with gradients."""

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.loss = nn.Linear(3, 2), torch.zeros(())

        def forward(self, x: Tensor) -> Tensor:
            gates = self.gate(x).softmax(-1)
            self.loss = gates.mean(0).square().sum()
            return x * gates[:, :1]

    net, seen = Router(), []
    f = run.jit(net)
    for _ in range(2):
        y = f(torch.randn(4, 3))
        (y.sum() + net.loss).backward()
        seen.append((y, net.loss, [p.grad.clone() for p in net.parameters() if p.grad is not None]))
    return seen


@case("module state", may_refuse=True)
def list_argument_appended_to(run: Run) -> Any:
    """A list argument that the function appends to is changed for the caller at every call."""

    def f(x: Tensor, out: list[Any]) -> Tensor:
        out.append(x * 2)
        out.append(len(out))
        return x + 1

    jitted, out = run.jit(f), []
    return [jitted(torch.randn(2), out) for _ in range(3)], out


@case("module state", may_refuse=True)
def dict_argument_written(run: Run) -> Any:
    """A dict argument that a module writes into, with gradients through what it wrote."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 2)

        def forward(self, batch: dict[str, Any]) -> None:
            batch["logits"] = self.lin(batch["x"])
            batch["seen"] = batch.get("seen", 0) + 1
            batch.pop("once", None)

    net, seen = Net(), []
    f = run.jit(net)
    for batch in ({"x": torch.randn(2, 3), "once": 1}, {"x": torch.randn(2, 3), "seen": 5}):
        seen.append((f(batch), f(batch), batch))
        batch["logits"].sum().backward()
    return seen, [p.grad for p in net.parameters()]


@case("module state", may_refuse=True)
def nested_list_argument_sorted(run: Run) -> Any:
    """A list inside a dict argument is extended, sorted and cut."""

    def f(x: Tensor, state: dict[str, list[int]]) -> Tensor:
        state["n"].extend([3, 1])
        state["n"].sort()
        del state["n"][2:]
        return x * state["n"][0]

    jitted, state = run.jit(f), {"n": [2]}
    return [(jitted(torch.ones(n), state), list(state["n"])) for n in (2, 3, 2)]


@case("module state")
def containers_of_a_closure_written(run: Run) -> Any:
    """A closure's list and deque get numbers and tensors at every call."""
    trail: list[Any] = []
    recent: deque[float] = deque(maxlen=2)

    def f(x: Tensor) -> Tensor:
        trail.append(x.sum())
        recent.append(x.shape[0])
        return x * 2

    jitted, seen = run.jit(f), []
    for n in (2, 3, 2, 2):
        seen.append((jitted(torch.ones(n)), len(trail), type(trail[-1]).__name__, list(recent)))
    return seen


@case("module state")
def calls_counted_in_a_closure(run: Run) -> Any:
    """`nonlocal` in the function counts its calls and keeps the last loss."""
    calls, last = 0, None

    def f(x: Tensor) -> Tensor:
        nonlocal calls, last
        calls += 1
        last = x.detach().mean()
        return x / calls

    jitted, seen = run.jit(f), []
    for _ in range(3):
        seen.append((jitted(torch.randn(2)), calls, last))
    return seen


@case("module state")
def field_of_an_object_written(run: Run) -> Any:
    """A state object as an argument, whose fields the function updates."""

    class State:
        def __init__(self) -> None:
            self.total, self.steps = torch.zeros(2), 0

    def f(x: Tensor, state: State) -> Tensor:
        state.total = state.total + x
        state.steps += 1
        return x * state.steps

    jitted, state, seen = run.jit(f), State(), []
    for _ in range(3):
        seen.append((jitted(torch.ones(2), state), state.total, state.steps))
    return seen


@case("module state")
def hook_with_effects_on_python_state(run: Run) -> Any:
    """A hook that was there before the first call counts and stores at every call."""
    net, calls, stored = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), [], {}

    def hook(module: nn.Module, args: Any, out: Tensor) -> None:
        calls.append(1)
        stored["out"] = out.detach()

    net[0].register_forward_hook(hook)
    f, seen = run.jit(net), []
    for _ in range(3):
        f(torch.randn(2, 3))
        seen.append((len(calls), stored["out"]))
    return seen


class Mistake(ValueError):
    """An exception of a user's own."""


def failing(x: Tensor, bad: bool) -> Tensor:
    y = x.sin()
    if bad:
        raise Mistake("not today", 3)
    return y * torch.rand(3)


@case("module state")
def exception_of_the_users_code(run: Run) -> Any:
    """It comes out with class and text, at the first call and later, and the next good call works."""
    f, seen, x = run.jit(failing), [], torch.randn(3)
    for bad in (True, False, True, False):
        seen.append(run.caught(f, x, bad))
        try:
            f(x, bad)
        except Mistake as error:
            seen.append((error.args, type(error) is Mistake, error.__cause__ is None))
    return seen, torch.is_grad_enabled()


@case("module state")
def exception_inside_contexts(run: Run) -> Any:
    """An exception under no_grad, autocast and a user's context in forward leaves no mode behind."""
    log = []

    @contextmanager
    def noted() -> Any:
        log.append("in")
        try:
            yield
        finally:
            log.append("out")

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), noted():
                if x.shape[0] > 2:
                    raise Mistake(f"rows: {x.shape[0]}")
            return x * 2

    f, seen = run.jit(Net()), []
    for n in (3, 2, 4, 2):
        seen.append((run.caught(f, torch.ones(n, requires_grad=True)), torch.is_grad_enabled()))
    return seen, torch.is_autocast_enabled("cpu")


@case("module state")
def errors_of_torch_stay(run: Run) -> Any:
    """Shape, dtype, index and type errors of eager, before and after a good call."""
    net, x = nn.Linear(3, 2), torch.randn(2, 3)
    calls: list[Callable[[], Any]] = [
        lambda: run.caught(f, torch.randn(2, 4)),
        lambda: run.caught(f, x.double()),
        lambda: f(x),
        lambda: run.caught(f, torch.randn(2, 4)),
        lambda: run.caught(g, x, 7),
        lambda: g(x, 0),
        lambda: run.caught(g, x, -5),
        lambda: run.caught(g, x, "a"),
        lambda: run.caught(f, None),
    ]
    f, g = run.jit(net), run.jit(lambda t, i: t[i] + t.sum(i))
    return [call() for call in calls]


@case("module state")
def exception_after_a_write(run: Run) -> Any:
    """A buffer is written before the exception: eager keeps the write."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.n.add_(1)
            if x.dim() == 1:
                raise Mistake("one-dimensional")
            return x * self.n

    net, seen = Net(), []
    f = run.jit(net)
    for shape in ((2,), (1, 2), (2,), (1, 2)):
        seen.append((run.caught(f, torch.ones(shape)), net.n.clone()))
    return seen
