"""Torch's global state at the call: grad mode, autocast, dtypes, determinism, and whose thread it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def in_thread(fn: Callable[[], Any]) -> Any:
    """What a call in a fresh thread gives."""
    box: list[Any] = []
    thread = threading.Thread(target=lambda: box.append(fn()))
    thread.start()
    thread.join()
    return box[0]


def flags(t: Tensor) -> tuple[Any, ...]:
    return t.requires_grad, t.grad_fn is None, t.is_inference()


@case("guards")
def grad_mode_alternates(run: Run) -> Any:
    """A module that is called with grad mode off first, then on, then off, then in inference mode, then on."""
    net, seen, grads = nn.Linear(3, 2), [], []
    f, x = run.jit(net), torch.randn(4, 3)
    for mode in (torch.no_grad, torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            y = f(x)
        seen.append((flags(y), y.clone()))
        if y.requires_grad:
            y.sum().backward()
            grads.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    return seen, grads


@case("guards")
def grad_mode_of_a_function_with_leaf_inputs(run: Run) -> Any:
    """`set_grad_enabled` as function and as decorator around one jitted function of a leaf."""
    f, x = run.jit(lambda t: (t * 2, t.detach() + 1)), torch.randn(3, requires_grad=True)
    seen = [flags(t) for t in f(x)]
    torch.set_grad_enabled(False)
    try:
        seen += [flags(t) for t in f(x)]
    finally:
        torch.set_grad_enabled(True)
    seen += [flags(t) for t in f(x)]
    seen += [flags(t) for t in torch.no_grad()(lambda: f(x))()]
    return seen, [flags(t) for t in f(x.detach())], [flags(t) for t in f(x)]


@case("guards")
def program_asks_for_the_grad_mode(run: Run) -> Any:
    """A branch on `torch.is_grad_enabled()` and one on `requires_grad`."""

    def f(x: Tensor) -> Tensor:
        y = x * 2 if torch.is_grad_enabled() else x * 3
        return y + 1 if y.requires_grad else y - 1

    jitted, seen = run.jit(f), []
    for needs in (True, False, True):
        for mode in (torch.no_grad, torch.enable_grad):
            with mode():
                seen.append(jitted(torch.ones(2, requires_grad=needs)).detach())
    return seen


@case("guards")
def grad_mode_of_a_fresh_thread(run: Run) -> Any:
    """A fresh thread has grad mode on although the main thread is in no_grad, and the other way round."""
    net, x = nn.Linear(3, 2), torch.randn(4, 3)
    f = run.jit(net)
    with torch.no_grad():
        seen = [flags(f(x)), in_thread(lambda: flags(f(x))), flags(f(x))]
    seen.append(in_thread(lambda: torch.no_grad()(lambda: flags(f(x)))()))
    seen.append(flags(f(x)))
    in_thread(lambda: f(x).sum().backward())
    return seen, [p.grad for p in net.parameters()]


@case("guards")
def first_call_in_a_thread(run: Run) -> Any:
    """The first call is in a thread under no_grad, the second in the main one."""
    net, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(2, 3)
    f = run.jit(net)
    seen = [in_thread(lambda: torch.no_grad()(lambda: flags(f(x)))()), flags(f(x))]
    f(x).square().sum().backward()
    return seen, [p.grad for p in net.parameters()]


@case("guards")
def autocast_of_the_calling_thread(run: Run) -> Any:
    """Autocast is per thread: the main thread's does not reach a fresh one."""
    net, x = nn.Linear(3, 2), torch.randn(4, 3)
    f = run.jit(net)
    with torch.autocast("cpu", torch.bfloat16):
        seen = [f(x), in_thread(lambda: f(x)), f(x)]
    return seen, f(x)


@case("guards")
def autocast_switched(run: Run) -> Any:
    """Without, with bfloat16, with float16, nested off, without: dtypes and gradients."""
    net, x, seen = nn.Linear(3, 2), torch.randn(4, 3), []
    f = run.jit(net)
    for enabled, dtype in ((False, torch.bfloat16), (True, torch.bfloat16), (True, torch.float16), (False, None)):
        with torch.autocast("cpu", dtype, enabled=enabled):
            y = f(x)
            with torch.autocast("cpu", enabled=False):
                z = f(x)
        y.float().sum().backward()
        seen.append((y, z, [p.grad.clone() for p in net.parameters() if p.grad is not None]))
    return seen


@case("guards")
def default_dtype_switched(run: Run) -> Any:
    """Factories and Python numbers follow `torch.set_default_dtype`."""
    f, x = run.jit(lambda x: (torch.ones(2), torch.tensor(0.5), x * 1.5, x / 2, torch.zeros(2) + x)), torch.arange(2)
    seen = [f(x)]
    try:
        for dtype in (torch.float64, torch.bfloat16, torch.float32):
            torch.set_default_dtype(dtype)
            seen.append(f(x))
    finally:
        torch.set_default_dtype(torch.float32)
    return seen


@case("guards")
def default_dtype_read_inside(run: Run) -> Any:
    """A module that casts to `torch.get_default_dtype()`."""

    class Cast(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(torch.get_default_dtype()) * torch.finfo(torch.get_default_dtype()).eps

    f, x = run.jit(Cast()), torch.arange(3)
    seen = [f(x)]
    try:
        torch.set_default_dtype(torch.float64)
        seen.append(f(x))
    finally:
        torch.set_default_dtype(torch.float32)
    return [*seen, f(x)]


@case("guards")
def default_device_switched(run: Run) -> Any:
    """Factories follow the default device: set by a context, by `set_default_device`, and reset."""
    f, x = run.jit(lambda x: (torch.ones(2), x + 1, torch.zeros(3, device="cpu"))), torch.randn(2)
    seen = [[t.device.type for t in f(x)]]
    with torch.device("meta"):
        seen.append([t.device.type for t in f(x)])
    seen.append([t.device.type for t in f(x)])
    try:
        torch.set_default_device("meta")
        seen.append([t.device.type for t in f(x)])
    finally:
        torch.set_default_device(None)
    return seen, f(x)


@case("guards")
def deterministic_algorithms_switched(run: Run) -> Any:
    """`use_deterministic_algorithms` fills uninitialised memory; it is followed, and survives the call."""
    f, g = run.jit(lambda x: torch.empty(4).add(x)), run.jit(lambda x: x.new_empty(3).sum() + x.sum())
    x, seen = torch.ones(4), []
    f(x), g(x)
    try:
        for _ in range(2):
            torch.use_deterministic_algorithms(True)
            seen.append((f(x), g(x), torch.are_deterministic_algorithms_enabled()))
            torch.use_deterministic_algorithms(False)
            seen.append((f(x).shape, torch.are_deterministic_algorithms_enabled()))
    finally:
        torch.use_deterministic_algorithms(False)
    return seen


@case("guards")
def modes_that_the_program_leaves_on(run: Run) -> Any:
    """A function that switches grad mode off for good: it stays off after every call."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        torch.set_grad_enabled(False)
        return y + x * 3

    jitted, seen = run.jit(f), []
    try:
        for _ in range(2):
            torch.set_grad_enabled(True)
            y = jitted(torch.ones(2, requires_grad=True))
            seen.append((flags(y), torch.is_grad_enabled()))
    finally:
        torch.set_grad_enabled(True)
    return seen


@case("guards")
def matmul_precision_read_inside(run: Run) -> Any:
    """A branch on `torch.get_float32_matmul_precision()` and on the number of threads."""
    before = torch.get_float32_matmul_precision()

    def f(x: Tensor) -> Tensor:
        return x * (2 if torch.get_float32_matmul_precision() == "highest" else 3) + 1

    jitted, x = run.jit(f), torch.ones(2)
    seen = [jitted(x)]
    try:
        torch.set_float32_matmul_precision("medium")
        seen.append(jitted(x))
    finally:
        torch.set_float32_matmul_precision(before)
    return [*seen, jitted(x)]


@case("guards")
def seed_set_inside(run: Run) -> Any:
    """`torch.manual_seed` inside starts the stream anew at every call, with this call's seed."""

    def f(x: Tensor, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return x + torch.rand(2)

    jitted = run.jit(f)
    return [(jitted(torch.zeros(2), seed), torch.rand(2)) for seed in (1, 1, 2, 1)]


@case("guards")
def twenty_modules_of_one_class(run: Run) -> Any:
    """Twenty modules, each jitted, keep their own weights, settings and training mode."""

    class Block(nn.Module):
        def __init__(self, i: int) -> None:
            super().__init__()
            self.lin, self.drop, self.scale = nn.Linear(2, 2), nn.Dropout(0.5), i / 2
            self.act = [torch.relu, torch.tanh, torch.sin][i % 3]

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.act(self.lin(x))) * self.scale

    blocks = [Block(i).train(i % 2 == 0) for i in range(20)]
    jitted = [run.jit(b) for b in blocks]
    seen = [[f(torch.ones(1, 2)) for f in jitted]]
    for i, block in enumerate(blocks):
        block.scale += i
    return [*seen, [f(torch.ones(1, 2)) for f in jitted]]


@case("guards")
def twenty_closures_of_one_factory(run: Run) -> Any:
    """Twenty closures over weight and number, each jitted, called in turns, then again in reverse."""

    def made(i: int) -> Callable[[Tensor], Tensor]:
        w = torch.full((2,), float(i), requires_grad=True)
        return lambda x: (x * w + i) if i % 2 else (x - w * i)

    jitted, x = [run.jit(made(i)) for i in range(20)], torch.randn(2)
    return [f(x) for f in jitted], [f(x) for f in reversed(jitted)]


@case("guards")
def twenty_modules_through_one_function(run: Run) -> Any:
    """One jitted function that is handed twenty modules; a limit of variants must not change results."""
    f, layers, x = run.jit(lambda layer, x: layer(x).tanh()), [nn.Linear(2, 2) for _ in range(20)], torch.randn(3, 2)
    seen = [f(layer, x) for layer in layers for _ in range(2)]
    sum(s.sum() for s in seen).backward()
    return seen, [p.grad for layer in layers for p in layer.parameters()]
