"""Hooks: of modules and of tensors, before and after the first call."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks

from programs.case import Run, case


class Net(nn.Module):
    """Two layers, in training used with a sum as loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


def step(f: Any, module: nn.Module, *shape: int) -> Any:
    """Output and gradients of one training step."""
    module.zero_grad()
    x = torch.randn(*(shape or (2, 3)), requires_grad=True)
    out = f(x)
    out.sum().backward()
    return out, x.grad, [None if p.grad is None else p.grad.clone() for p in module.parameters()]


@case("hooks")
def forward_hook_after_the_first_call(run: Run) -> Any:
    """A forward hook on a submodule registered later runs, replaces the output, and goes when removed."""
    net = Net()
    f = run.jit(net)
    seen = [step(f, net)]
    handle = net.first.register_forward_hook(lambda module, args, out: out * 2 + args[0].sum())
    seen += [step(f, net), step(f, net, 4, 3)]
    second = net.second.register_forward_hook(lambda module, args, out: out.relu())
    seen.append(step(f, net))
    handle.remove()
    seen.append(step(f, net))
    second.remove()
    return [*seen, step(f, net)]


@case("hooks")
def forward_hook_before_the_first_call(run: Run) -> Any:
    """A hook with effects on Python state runs at every call: counts, shapes, and a changed output."""
    net, counts = Net(), {"calls": 0}
    shapes: list[Any] = []

    def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        counts["calls"] += 1
        shapes.append((type(module).__name__, tuple(out.shape)))
        return out + 1

    net.first.register_forward_hook(hook)
    f, seen = run.jit(net), []
    for n in (2, 2, 3, 2):
        seen.append((f(torch.randn(n, 3)), dict(counts), list(shapes)))
    return seen


@case("hooks")
def a_hook_that_appends(run: Run) -> Any:
    """A hook that only appends to a list of the caller's, one that counts in an attribute, one that prints."""
    net = Net()
    log: list[Any] = []

    class Counter:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, module: nn.Module, args: Any, out: Tensor) -> None:
            self.calls += 1

    counter = Counter()
    net.first.register_forward_hook(lambda m, args, out: log.append(tuple(out.shape)))
    net.second.register_forward_pre_hook(lambda m, args: log.append("before the second"))
    net.second.register_forward_hook(counter)
    f = run.jit(net)
    return [(f(torch.randn(2, 3)), list(log), counter.calls) for _ in range(3)]


@case("hooks")
def activations_caught_by_a_hook(run: Run) -> Any:
    """The usual feature extractor: a hook stores a layer's output in a dict of the caller's."""
    net, caught = Net(), dict[str, Tensor]()

    def keep(name: str) -> Any:
        return lambda module, args, out: caught.update({name: out.detach()})

    for name, child in net.named_children():
        child.register_forward_hook(keep(name))
    f, seen = run.jit(net), []
    for _ in range(3):
        caught.clear()
        seen.append((f(torch.randn(2, 3)), dict(caught)))
    return seen


@case("hooks")
def a_hook_that_only_looks(run: Run) -> Any:
    """A hook without effects, which returns None, and one that checks shapes."""
    net = Net()

    def check(module: nn.Module, args: Any, out: Tensor) -> None:
        assert out.shape[0] == args[0].shape[0]

    for child in net.children():
        child.register_forward_hook(check)
    f = run.jit(net)
    return [step(f, net), step(f, net, 3, 3)]


@case("hooks")
def forward_pre_hooks(run: Run) -> Any:
    """Pre-hooks replace arguments and keywords, on submodules and on the whole, before and after."""

    class Scale(nn.Module):
        def forward(self, x: Tensor, by: float = 1.0) -> Tensor:
            return x * by

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.linear = Scale(), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.scale(x, by=2.0))

    net = Outer()
    net.scale.register_forward_pre_hook(lambda m, args, kwargs: ((args[0] + 1,), {"by": 3.0}), with_kwargs=True)
    f = run.jit(net)
    seen = [step(f, net), step(f, net)]
    net.linear.register_forward_pre_hook(lambda m, args: args[0].sin())
    seen += [step(f, net), step(f, net)]
    net.register_forward_pre_hook(lambda m, args: (args[0] - 1,))
    return [*seen, step(f, net), step(f, net)]


@case("hooks")
def a_hooks_captured_number_changes(run: Run) -> Any:
    """A steering hook whose strength, and whose vector, the caller changes between calls."""
    net, steer = Net(), {"strength": 1.0}
    vector = torch.randn(4)
    net.first.register_forward_hook(lambda m, args, out: out + steer["strength"] * vector)
    f, seen = run.jit(net), []
    for strength in (1.0, 2.0, 0.0, 1.0):
        steer["strength"] = strength
        seen.append(step(f, net))
        vector.mul_(-1)
    return seen


@case("hooks")
def tensor_hooks_on_inputs(run: Run) -> Any:
    """Hooks on leaf and non-leaf inputs registered before the call and after it."""
    net, counts = Net(), [0, 0]
    f, seen = run.jit(net), []
    for factor in (2.0, 3.0):
        x = torch.randn(2, 3, requires_grad=True)
        h = x * 1
        x.register_hook(lambda g, factor=factor: g * factor)
        h.register_hook(lambda g: counts.__setitem__(0, counts[0] + 1))
        out = f(h)
        h.register_hook(lambda g: g.clamp(-0.1, 0.1))
        out.register_hook(lambda g: g * 10)
        out.sum().backward()
        seen.append((out, x.grad, list(counts)))
    return seen


@case("hooks")
def tensor_hooks_on_parameters(run: Run) -> Any:
    """Parameter hooks before and after the first call, and removed: the accumulated gradient is the changed one."""
    net = Net()
    net.first.weight.register_hook(lambda g: g * 2)
    f = run.jit(net)
    seen = [step(f, net), step(f, net)]
    handle = net.second.weight.register_hook(lambda g: torch.zeros_like(g))
    seen += [step(f, net)]
    handle.remove()
    seen += [step(f, net)]
    first, second = (f(torch.randn(2, 3)) for _ in range(2))
    net.second.bias.register_hook(lambda g: g + 1)
    net.zero_grad()
    (first + second).sum().backward()
    return seen, [p.grad for p in net.parameters()]


@case("hooks")
def post_accumulate_grad_hooks(run: Run) -> Any:
    """An optimizer step in a post-accumulate hook (optimizer in backward)."""
    net, order = Net(), []

    def update(p: Tensor) -> None:
        order.append(tuple(p.shape))
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.1)
        p.grad = None

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(update)
    f, seen = run.jit(net), []
    for _ in range(3):
        f(torch.randn(2, 3)).sum().backward()
        seen.append(([p.detach().clone() for p in net.parameters()], [p.grad for p in net.parameters()]))
    return seen, sorted(order)


@case("hooks")
def tensor_hooks_on_intermediates_inside(run: Run) -> Any:
    """`register_hook` and `retain_grad` on an intermediate inside the function."""

    def hooked(x: Tensor) -> Tensor:
        h = x * 2
        if h.requires_grad:
            h.register_hook(lambda g: g * 5)
        return (h.sin() + h).sum()

    def retained(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 3
        h.retain_grad()
        return h, h.square().sum()

    f, g, seen = run.jit(hooked), run.jit(retained), []
    for _ in range(2):
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        f(x).backward()
        h, loss = g(y)
        loss.backward()
        seen.append((x.grad, y.grad, h.grad))
    return seen


@case("hooks")
def retain_grad_outside(run: Run) -> Any:
    """`retain_grad` on a non-leaf input and on outputs."""
    f, seen = run.jit(lambda h: (h.sin(), h.cos())), []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        h = x * 2
        h.retain_grad()
        a, b = f(h)
        a.retain_grad()
        (a * 3 + b).sum().backward()
        seen.append((x.grad, h.grad, a.grad))
    return seen


@case("hooks")
def forward_hook_on_the_jitted_module(run: Run) -> Any:
    """A hook on the jitted module itself runs once per call; so does one on the original."""
    net = Net()
    f, calls = run.jit(net), []
    seen = [step(f, net)]
    handle = f.register_forward_hook(lambda m, args, out: calls.append(tuple(out.shape)) or out * 2)
    seen += [step(f, net), step(f, net, 3, 3)]
    net.register_forward_hook(lambda m, args, out: calls.append("original") or out + 1)
    seen += [step(f, net), step(f, net)]
    handle.remove()
    return [*seen, step(f, net)], calls


@case("hooks")
def pre_hook_on_the_jitted_module_from_the_start(run: Run) -> Any:
    """Pre-hook and hook on the jitted module before its first call, once per call."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    f, calls = run.jit(net), []
    f.register_forward_pre_hook(lambda m, args: calls.append("pre") or (args[0] * 2,))
    f.register_forward_hook(lambda m, args, kwargs, out: calls.append("post"), with_kwargs=True)
    return [(f(torch.randn(2, 3)), list(calls), isinstance(f, nn.Sequential)) for _ in range(3)]


@case("hooks")
def full_backward_hooks(run: Run) -> Any:
    """Full backward hooks and pre-hooks of a submodule and of the whole see and change gradients."""
    net, seen_by_hook = Net(), []

    def change(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        seen_by_hook.append((type(module).__name__, grad_output[0].clone()))
        return tuple(None if g is None else g * 2 for g in grad_input)

    net.second.register_full_backward_hook(change)
    f = run.jit(net)
    seen = [step(f, net), step(f, net)]
    net.first.register_full_backward_pre_hook(lambda m, grad_output: (grad_output[0] + 1,))
    seen.append(step(f, net))
    net.register_full_backward_hook(change)
    return [*seen, step(f, net)], seen_by_hook


@case("hooks")
def always_call_and_prepend(run: Run) -> Any:
    """Order of several hooks, `prepend`, and `always_call` when the forward raises."""

    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] == 1:
                raise ValueError("too small")
            return x * 2

    net, calls = nn.Sequential(Picky()), []
    net[0].register_forward_hook(lambda m, a, o: calls.append("first"))
    net[0].register_forward_hook(lambda m, a, o: calls.append("second"), prepend=True)
    net[0].register_forward_hook(lambda m, a, o: calls.append("always"), always_call=True)
    f, seen = run.jit(net), []
    for n in (2, 1, 2, 1):
        seen.append((run.caught(f, torch.ones(n)), list(calls)))
    return seen


@case("hooks")
def global_module_hooks(run: Run) -> Any:
    """A global forward hook added and removed between calls."""
    net = Net()
    f = run.jit(net)
    seen = [f(torch.ones(1, 3))]
    handle = global_hooks.register_module_forward_hook(
        lambda m, args, out: out * 2 if isinstance(m, nn.Linear) else None
    )
    try:
        seen += [f(torch.ones(1, 3)), f(torch.ones(1, 3))]
    finally:
        handle.remove()
    return [*seen, f(torch.ones(1, 3))]


@case("hooks")
def hooks_that_keep_state_in_buffers(run: Run) -> Any:
    """A hook that updates a running statistic in a buffer of the module, at every call."""
    net = Net()
    net.register_buffer("seen", torch.zeros(4))

    def track(module: nn.Module, args: Any, out: Tensor) -> None:
        net.seen.add_(out.detach().mean(0))

    net.first.register_forward_hook(track)
    f = run.jit(net)
    return [(step(f, net), net.seen.clone()) for _ in range(3)]


@case("hooks")
def saved_tensor_hooks_around(run: Run) -> Any:
    """Saved-tensor hooks around a call pack and unpack; the gradients are eager's."""
    net = Net()
    f, seen = run.jit(net), []
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
            out = f(torch.randn(2, 3))
        net.zero_grad()
        out.sum().backward()
        with torch.autograd.graph.save_on_cpu():
            again = f(torch.ones(2, 3))
        again.sum().backward()
        seen.append((out, [p.grad.clone() for p in net.parameters()]))
    return seen


@case("hooks")
def a_hook_that_writes_a_log(run: Run) -> Any:
    """A hook that prints shapes to a stream, one line at every call."""
    net, stream = Net(), io.StringIO()
    net.first.register_forward_hook(lambda m, args, out: print(m.out_features, tuple(out.shape), file=stream))
    f = run.jit(net)
    return [(f(torch.randn(2, 3)), stream.getvalue()) for _ in range(3)]
