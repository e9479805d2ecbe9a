"""Ambient state other than grad mode and autocast: determinism, default dtype and device, precision, anomaly mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


@case("modes")
def deterministic_algorithms_between_calls(run: Run) -> Any:
    """Switched on, they fill uninitialised memory; the call leaves the switch as it was."""
    f, seen = run.jit(lambda x: (x * 1, torch.empty(3), torch.empty_like(x), x.new_empty(2, dtype=torch.int64))), []
    try:
        f(torch.zeros(2))
        for on in (True, False, True):
            torch.use_deterministic_algorithms(on)
            out = f(torch.ones(2))
            seen.append((out if on else out[0], torch.are_deterministic_algorithms_enabled()))
    finally:
        torch.use_deterministic_algorithms(False)
    return seen


@case("modes")
def deterministic_algorithms_are_refused(run: Run) -> Any:
    """An operator without a deterministic version raises eager's error while they are on, and works again after."""

    def f(x: Tensor, i: Tensor) -> Tensor:
        return (x * 2).put_(i, torch.ones(2))

    jitted, seen = run.jit(f), []
    try:
        for on in (False, True, False):
            torch.use_deterministic_algorithms(on)
            seen.append(run.caught(jitted, torch.ones(3), torch.tensor([1, 2])))
    finally:
        torch.use_deterministic_algorithms(False)
    return seen


@case("modes")
def branch_on_determinism(run: Run) -> Any:
    """A function asks whether deterministic algorithms are on."""

    def f(x: Tensor) -> Tensor:
        return x.sort(stable=True).values if torch.are_deterministic_algorithms_enabled() else x * 2

    jitted, seen = run.jit(f), []
    try:
        for on in (False, True, False):
            torch.use_deterministic_algorithms(on, warn_only=True)
            seen.append(jitted(torch.tensor([3.0, 1.0])))
    finally:
        torch.use_deterministic_algorithms(False)
    return seen


@case("modes")
def default_dtype_between_calls(run: Run) -> Any:
    """Factories and promotion of ints follow the default dtype of this call."""
    f, seen = run.jit(lambda x, i: (torch.zeros(2) + x, torch.tensor(1.5), i / 2, i * 0.5)), []
    try:
        for dtype in (torch.float32, torch.float64, torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            seen.append(f(torch.ones(2, dtype=torch.float32), torch.tensor([1, 2])))
    finally:
        torch.set_default_dtype(torch.float32)
    return seen


@case("modes")
def default_dtype_set_inside(run: Run) -> Any:
    """A function that sets the default dtype and puts it back, as model builders do."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            a = torch.ones(2) * 0.1
        finally:
            torch.set_default_dtype(before)
        return a + x, torch.ones(2) * 0.1

    jitted = run.jit(f)
    return [(jitted(torch.ones(2)), torch.get_default_dtype()) for _ in range(3)]


@case("modes")
def default_device_around_and_inside(run: Run) -> Any:
    """`with torch.device("meta")` around a call and in the function decides where factories put tensors."""

    def inside(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.device("meta"):
            a = torch.ones(2)
        return a, torch.ones(2) + x

    f, g, seen = run.jit(inside), run.jit(lambda: torch.ones(3) * 2), []
    for _ in range(2):
        seen.append((f(torch.ones(2)), g()))
        with torch.device("meta"):
            seen.append(g())
    return seen


@case("modes")
def anomaly_mode_around(run: Run) -> Any:
    """Under `detect_anomaly`, a NaN gradient raises, a good one does not."""
    f, seen = run.jit(lambda x: x.sqrt() * 0), []
    for start in (1.0, -1.0, 2.0):
        x = torch.tensor([start], requires_grad=True)
        with torch.autograd.detect_anomaly(check_nan=True):
            caught = run.caught(lambda y: y.sum().backward(), f(x))
        seen.append((caught if caught is None else caught[0], torch.is_anomaly_enabled()))
    return seen


@case("modes")
def sdpa_backend_chosen_around(run: Run) -> Any:
    """`sdpa_kernel` around and inside picks the kernel of this call, to the bit."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend = nn.functional.scaled_dot_product_attention

    def inside(q: Tensor, k: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return attend(q, k, k)

    f, g, seen = run.jit(lambda q, k: attend(q, k, k)), run.jit(inside), []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        q, k = torch.randn(1, 2, 16, 8, requires_grad=True), torch.randn(1, 2, 16, 8)
        with sdpa_kernel(backend):
            y = f(q, k)
        seen.append((y, g(q, k), torch.autograd.grad(y.sum(), q)))
    return seen


@case("modes")
def function_mode_around(run: Run) -> Any:
    """A user's `TorchFunctionMode` around the call sees the operators or changes them, as in eager."""

    class SinIsCos(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.cos(*args) if func is torch.sin else func(*args, **(kwargs or {}))

    f, seen = run.jit(lambda x: torch.sin(x) + 1), []
    for on in (False, True, False, True):
        if on:
            with SinIsCos():
                seen.append(f(torch.ones(2)))
        else:
            seen.append(f(torch.ones(2)))
    return seen


@case("modes")
def dispatch_mode_around(run: Run) -> Any:
    """A user's `TorchDispatchMode` around the call changes what it changes in eager."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Doubled(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            return out * 2 if func is torch.ops.aten.sin.default else out

    f, seen = run.jit(lambda x: torch.sin(x) + 1), []
    for on in (False, True, False):
        x = torch.ones(2)
        if on:
            with Doubled():
                seen.append(f(x))
        else:
            seen.append(f(x))
    return seen


@case("modes")
def saved_tensor_hooks_around(run: Run) -> Any:
    """`saved_tensors_hooks` that halve what is saved act on a jitted call, and only within their region."""
    f, seen = run.jit(lambda x: x.exp() * x), []
    for on in (False, True, False):
        x = torch.randn(3, requires_grad=True)
        if on:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
                y = f(x)
        else:
            y = f(x)
        y.sum().backward()
        seen.append((y, x.grad))
    return seen


@case("modes")
def grad_mode_after_an_exception_inside(run: Run) -> Any:
    """An exception in a `no_grad` and autocast region leaves the modes as they were."""

    def f(x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            y = x @ x
            if x.shape[0] == 3:
                raise RuntimeError("three")
        return y * x

    jitted, seen = run.jit(f), []
    for n in (3, 2, 3, 2):
        out = run.caught(jitted, torch.ones(n, n, requires_grad=True))
        seen.append((out, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
    return seen


@case("modes")
def flush_denormal_between_calls(run: Run) -> Any:
    """`set_flush_denormal` acts on this call and not on what was traced."""
    f, seen = run.jit(lambda x: x * 0.5), []
    try:
        for on in (False, True, False):
            torch.set_flush_denormal(on)
            seen.append(f(torch.full((16,), 2e-38)))
    finally:
        torch.set_flush_denormal(False)
    return seen


@case("modes")
def jit_of_a_decorated_function(run: Run) -> Any:
    """`jit` of functions under `@torch.no_grad()` and `@torch.inference_mode()` that close over a module."""
    model = nn.Linear(2, 2)

    @torch.no_grad()
    def evaluate(x: Tensor) -> Tensor:
        return model(x) * 2

    @torch.inference_mode()
    def infer(x: Tensor) -> Tensor:
        return model(x) * 3

    f, g, seen = run.jit(evaluate), run.jit(infer), []
    for fill in (1.0, 2.0):
        nn.init.constant_(model.weight, fill)
        seen.append((f(torch.ones(1, 2)), g(torch.ones(1, 2)).clone(), torch.is_grad_enabled()))
    return seen


@case("modes")
def matmul_precision_between_calls(run: Run) -> Any:
    """A branch on `get_float32_matmul_precision`, which code sets between calls."""

    def f(x: Tensor) -> Tensor:
        return x @ x if torch.get_float32_matmul_precision() == "highest" else (x.double() @ x.double()).float() * 2

    jitted, seen = run.jit(f), []
    try:
        for precision in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            seen.append(jitted(torch.ones(2, 2)))
    finally:
        torch.set_float32_matmul_precision("highest")
    return seen


@case("modes")
def an_error_inside_of_changed_settings(run: Run) -> Any:
    """What a function wrote before it raised stays, and the settings are what its blocks put back."""

    def f(x: Tensor, n: Tensor) -> Tensor:
        with torch.inference_mode():
            n.add_(x.sum())
            if x.dim() == 1:
                raise ValueError("one-dimensional")
        return x * 2

    jitted, n, seen = run.jit(f), torch.zeros(()), []
    for shape in ((3,), (1, 3), (3,), (1, 3)):
        result = run.caught(jitted, torch.ones(shape), n)
        seen.append((result, n.clone(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
    return seen
