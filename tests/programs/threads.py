"""Several threads: first calls at once, and state that belongs to a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def at_once(jobs: list[Callable[[], Any]]) -> list[Any]:
    """The results of the jobs in their order, each run in its own thread, all started together."""
    barrier, results = threading.Barrier(len(jobs)), [None] * len(jobs)

    def work(index: int) -> None:
        barrier.wait()
        try:
            results[index] = jobs[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


@case("threads")
def six_shapes_at_once(run: Run) -> Any:
    """Six threads call one jitted function with six shapes; each gets its own result, several times."""
    f = run.jit(lambda x: (x * x.shape[0]).cumsum(0).sin())
    inputs = [torch.randn(n + 1) for n in range(6)]
    return [at_once([lambda x=x: [f(x) for _ in range(5)] for x in inputs]) for _ in range(2)]


@case("threads")
def each_thread_jits_its_own(run: Run) -> Any:
    """Threads jit and run functions of their own at the same time, with gradients."""

    def job(k: int) -> Callable[[], Any]:
        x = torch.randn(3, requires_grad=True)

        def work() -> Any:
            f = run.jit(lambda y: y.sin() * k + y.pow(k))
            seen = []
            for _ in range(3):
                x.grad = None
                y = f(x)
                y.sum().backward()
                seen.append((y, x.grad.clone()))
            return seen

        return work

    return at_once([job(k) for k in range(6)])


@case("threads")
def same_shape_at_once(run: Run) -> Any:
    """First calls with one shape from eight threads: equal results, own data."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    jitted = run.jit(model)
    inputs = [torch.randn(2, 3) for _ in range(8)]
    return at_once([lambda x=x: [jitted(x) for _ in range(4)] for x in inputs])


@case("threads")
def gradients_from_several_threads(run: Run) -> Any:
    """Threads run forward and `autograd.grad` of one jitted module with their own data."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    jitted, parameters = run.jit(model), list(model.parameters())
    inputs = [torch.randn(n, 3, requires_grad=True) for n in (1, 2, 3, 2, 1)]

    def work(x: Tensor) -> Any:
        return [torch.autograd.grad(jitted(x).square().sum(), (x, *parameters)) for _ in range(3)]

    return at_once([lambda x=x: work(x) for x in inputs])


@case("threads")
def grad_mode_of_the_calling_thread(run: Run) -> Any:
    """A call in a fresh thread records gradients although the main thread is in `no_grad`, and the reverse."""
    f, x = run.jit(lambda x: x * 2), torch.ones(3, requires_grad=True)
    seen = []
    for _ in range(2):
        with torch.no_grad():
            here = f(x).requires_grad
            (there,) = at_once([lambda: f(x).requires_grad])

        def without() -> bool:
            with torch.no_grad():
                return f(x).requires_grad

        seen.append((here, there, at_once([without]), f(x).requires_grad))
    return seen


@case("threads")
def autocast_of_the_calling_thread(run: Run) -> Any:
    """Autocast in one thread does not reach calls in another one, at the same time."""
    f = run.jit(lambda x: x @ x)

    def job(dtype: torch.dtype | None) -> Callable[[], Any]:
        def work() -> Any:
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                return [f(torch.ones(2, 2)) for _ in range(4)]

        return work

    with torch.autocast("cpu", torch.bfloat16):
        here = f(torch.ones(2, 2))
        there = at_once([job(None), job(torch.bfloat16), job(torch.float16), job(None)])
    return here, there, f(torch.ones(2, 2))


@case("threads")
def modes_while_another_thread_traces(run: Run) -> Any:
    """While one thread is in the middle of its first call, another thread's eager code is undisturbed."""
    inside, done = threading.Event(), threading.Event()

    def slow(x: Tensor) -> Tensor:
        y = x.sin()
        inside.set()
        done.wait(1)
        return y * 2

    f, seen = run.jit(slow), []

    def bystander() -> Any:
        inside.wait(1)
        try:
            a = torch.ones(3).exp()
            return type(a).__name__, a.tolist(), torch.is_grad_enabled(), a.sum().item()
        finally:
            done.set()

    for _ in range(2):
        inside.clear()
        done.clear()
        seen.append(at_once([lambda: f(torch.ones(3)), bystander]))
    return seen


@case("threads")
def other_jitted_function_while_one_traces(run: Run) -> Any:
    """A compiled function can be called in one thread while another thread traces."""
    inside, done = threading.Event(), threading.Event()
    ready = run.jit(lambda x: x + 1)
    seen = [ready(torch.ones(2))]

    def slow(x: Tensor) -> Tensor:
        inside.set()
        done.wait(1)
        return x * 2

    f = run.jit(slow)

    def other() -> Any:
        inside.wait(1)
        out = ready(torch.zeros(2))
        done.set()
        return out

    return seen, at_once([lambda: f(torch.ones(3)), other]), f(torch.ones(3))


@case("threads")
def an_error_in_one_thread(run: Run) -> Any:
    """One thread's call raises while others trace: they get their results, and later calls work."""

    def f(x: Tensor) -> Tensor:
        if x.shape[0] == 3:
            raise ValueError("three")
        return x.exp().sum()

    jitted = run.jit(f)
    return [at_once([lambda n=n: run.caught(jitted, torch.ones(n)) for n in (1, 2, 3, 4, 3)]) for _ in range(2)]


@case("threads")
def thread_pool_of_models(run: Run) -> Any:
    """A pool of workers evaluates several jitted models on many batches, as servers do."""
    models = [nn.Sequential(nn.Linear(3, k), nn.GELU(), nn.Linear(k, 1)).eval() for k in (2, 3, 4)]
    jitted = [run.jit(m) for m in models]
    batches = [torch.randn(1 + i % 3, 3) for i in range(12)]

    def serve(i: int) -> Tensor:
        with torch.inference_mode():
            return jitted[i % 3](batches[i])

    with ThreadPoolExecutor(4) as pool:
        return [y.clone() for y in pool.map(serve, range(12))]


@case("threads")
def backward_in_another_thread(run: Run) -> Any:
    """The forward in the main thread and the backward in another one, and the other way round."""
    f, seen = run.jit(lambda x: x.exp() * x.sin()), []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        y = f(x)
        at_once([lambda y=y: y.sum().backward()])
        first = x.grad.clone()
        (z,) = at_once([lambda x=x: f(x)])
        z.sum().backward()
        seen.append((first, x.grad))
    return seen


@case("threads")
def thread_local_values(run: Run) -> Any:
    """A `threading.local` that the function reads has the value of the calling thread."""
    local = threading.local()

    def f(x: Tensor) -> Tensor:
        return x * local.scale

    jitted = run.jit(f)

    def job(k: float) -> Callable[[], Any]:
        def work() -> Any:
            local.scale = k
            return [jitted(torch.ones(2)) for _ in range(3)]

        return work

    return [at_once([job(k) for k in (2.0, 3.0, 4.0)]) for _ in range(2)]


@case("threads")
def threads_started_inside(run: Run) -> Any:
    """Work that the function itself hands to another thread gets done, every call."""

    def f(x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            parts = list(pool.map(torch.sin, x.chunk(2)))
        return torch.cat(parts) * 2

    jitted = run.jit(f)
    return [jitted(torch.randn(4)) for _ in range(3)]


@case("threads")
def draws_while_another_thread_traces(run: Run) -> Any:
    """What another thread draws from the default generator during a first call stays drawn."""
    inside, done = threading.Event(), threading.Event()

    def slow(x: Tensor) -> Tensor:
        inside.set()
        done.wait(1)
        return x * 2

    f = run.jit(slow)

    def draws() -> Tensor:
        inside.wait(1)
        try:
            return torch.rand(3)
        finally:
            done.set()

    first = at_once([lambda: f(torch.ones(3)), draws])
    return first, torch.rand(3), torch.get_rng_state(), f(torch.ones(3))


@case("threads")
def first_backwards_at_once(run: Run) -> Any:
    """Two first backwards overlap, the earlier one ending first: PyTorch is left as it was."""
    inside, done = [threading.Event(), threading.Event()], threading.Event()

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, index: int) -> Tensor:
            ctx.index = index
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            inside[ctx.index].set()
            (done if ctx.index else inside[1]).wait(1)
            return g * 3, None

    def job(index: int) -> Callable[[], Any]:
        f, x = run.jit(lambda x: Waits.apply(x, index).sin()), torch.ones(3, requires_grad=True)

        def work() -> Any:
            y = f(x)
            if index:
                inside[0].wait(1)
            y.sum().backward()
            if not index:
                done.set()
            return x.grad

        return work

    function, generator = torch.autograd.Function.__dict__["apply"], torch.random.default_generator
    try:
        grads = at_once([job(0), job(1)])
        left = torch.autograd.Function.__dict__["apply"] is function, torch.random.default_generator is generator
        return grads, left, torch.get_rng_state(), at_once([job(0), job(1)])
    finally:
        torch.autograd.Function.apply = function  # type: ignore[method-assign]
        torch.random.default_generator = generator
