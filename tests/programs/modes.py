"""Grad modes, autocast and other ambient state, inside and around the jitted function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def state() -> list[Any]:
    return [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")]


@case("modes")
def call_under_autocast_backward_after(run: Run) -> Any:
    """Output dtype, gradient dtypes and values, with the backward outside the region."""
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    jitted, seen = run.jit(model), []
    for _ in range(2):
        x = torch.randn(3, 4, requires_grad=True)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = jitted(x)
        y.float().square().mean().backward()
        seen.append((y, x.grad, [p.grad.clone() for p in model.parameters()]))
    return seen


@case("modes")
def backward_under_another_autocast(run: Run) -> Any:
    """The forward without autocast and the backward within it, and the other way round."""
    f, seen = run.jit(lambda x, w: (x @ w).tanh() @ w), []
    for inside in (False, True, False, True):
        x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            y = f(x, w)
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            seen.append((y, torch.autograd.grad(y.sum(), (x, w))))
    return seen


@case("modes")
def autocast_dtypes_in_turn(run: Run) -> Any:
    """Without, with bfloat16, with float16 and without again: each call its own dtype."""
    layer = nn.Linear(4, 4)
    f, seen = run.jit(lambda x: layer(x).relu() @ x.t()), []
    for enabled, dtype in ((0, torch.bfloat16), (1, torch.bfloat16), (1, torch.float16), (0, torch.float16)) * 2:
        with torch.autocast("cpu", dtype, enabled=bool(enabled)):
            seen.append(f(torch.randn(2, 4)))
    return seen


@case("modes")
def autocast_inside(run: Run) -> Any:
    """A region inside the function, with a disabled one within it, as loss code does."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            with torch.autocast("cpu", torch.bfloat16):
                h = self.a(x)
                with torch.autocast("cpu", enabled=False):
                    g = self.b(h.float())
                k = self.b(g)
            return h, g, k

    model = Net()
    jitted, seen = run.jit(model), []
    for _ in range(2):
        model.zero_grad()
        out = jitted(torch.randn(2, 3))
        sum(o.float().sum() for o in out).backward()
        seen.append((out, [p.grad.clone() for p in model.parameters()], state()))
    return seen


@case("modes")
def autocast_as_decorator_and_in_place_dtype(run: Run) -> Any:
    """`@torch.autocast` over the jitted function, and a dtype chosen by an argument inside."""

    def f(x: Tensor, dtype: torch.dtype) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return x @ x

    inner = run.jit(f)
    outer = torch.autocast("cpu", torch.bfloat16)(
        run.jit(lambda x: (x @ x, torch.get_autocast_dtype("cpu") is x.dtype))
    )
    seen = [inner(torch.randn(2, 2), dtype) for dtype in (torch.bfloat16, torch.float16, torch.bfloat16)]
    return seen, outer(torch.randn(2, 2)), outer(torch.randn(2, 2)), state()


@case("modes")
def autocast_promotions(run: Run) -> Any:
    """Operators that autocast runs in float32, that it promotes, and that it leaves alone."""

    def f(x: Tensor, h: Tensor) -> list[Tensor]:
        return [x @ x, (x @ x).sum(), torch.cat([x, h]), nn.functional.mse_loss(h, x), h.softmax(0), h.exp(), h + x]

    jitted, seen = run.jit(f), []
    for enabled in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            seen.append(jitted(torch.randn(2, 2), torch.randn(2, 2).bfloat16()))
    return seen


@case("modes")
def user_asks_for_autocast_inside(run: Run) -> Any:
    """A branch on `is_autocast_enabled` takes the state of this call."""

    def f(x: Tensor) -> tuple[Tensor, torch.dtype]:
        if torch.is_autocast_enabled("cpu"):
            return x @ x + 1, torch.get_autocast_dtype("cpu")
        return x @ x - 1, x.dtype

    jitted, seen = run.jit(f), []
    for enabled, dtype in ((False, torch.bfloat16), (True, torch.bfloat16), (True, torch.float16), (False, None)):
        with torch.autocast("cpu", dtype, enabled=enabled):
            seen.append(jitted(torch.ones(2, 2)))
    return seen


@case("modes")
def custom_fwd_and_bwd(run: Run) -> Any:
    """An `autograd.Function` with `torch.amp.custom_fwd` and `custom_bwd`, under autocast and not."""

    class Mul(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return g * y, g * x

    f, seen = run.jit(lambda x: Mul.apply(x @ x, x)), []
    for enabled in (True, False, True):
        x = torch.randn(2, 2, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = f(x)
        y.sum().backward()
        seen.append((y, x.grad))
    return seen


@case("modes")
def grad_scaler_around(run: Run) -> Any:
    """A training step with `GradScaler` on the CPU, autocast and clipping around the jitted model."""
    model = nn.Linear(4, 2)
    jitted, scaler = run.jit(model), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(jitted(torch.randn(3, 4)), torch.zeros(3, 2))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        seen.append((loss, norm, [p.detach().clone() for p in model.parameters()]))
    return seen


@case("modes", may_refuse=True)
def inference_mode_inside(run: Run) -> Any:
    """`inference_mode` in a part of the function stops gradients there."""

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            frozen = (x * w).exp()
        return frozen, x * w

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        a, b = jitted(x, w)
        b.sum().backward()
        seen.append((a.clone(), a.is_inference(), a.requires_grad, b, x.grad, w.grad, state()))
    return seen


@case("modes", may_refuse=True)
def inference_result_used_in_training_inside(run: Run) -> Any:
    """An inference tensor that a trained part multiplies by is eager's error; its clone is not."""

    def bad(x: Tensor, w: Tensor) -> Tensor:
        with torch.inference_mode():
            frozen = x.exp()
        return frozen * w

    def good(x: Tensor, w: Tensor) -> Tensor:
        with torch.inference_mode():
            frozen = x.exp()
        return frozen.clone() * w

    f, g, seen = run.jit(bad), run.jit(good), []
    for _ in range(2):
        x, w = torch.randn(3), torch.randn(3, requires_grad=True)
        seen.append((run.caught(f, x, w), run.caught(g, x, w), state()))
    return seen


@case("modes")
def inference_mode_around(run: Run) -> Any:
    """Calls inside and outside of `inference_mode` in turn: results are inference tensors or differentiable."""
    model = nn.Linear(3, 2)
    jitted, seen = run.jit(model), []
    for on in (True, False, True, False):
        with torch.inference_mode(on):
            y = jitted(torch.ones(2, 3))
        seen.append((y.is_inference(), y.requires_grad, y.detach().clone()))
        if not on:
            y.sum().backward()
            seen.append(model.weight.grad.clone())
    return seen


@case("modes")
def inference_tensor_as_argument(run: Run) -> Any:
    """A tensor made in `inference_mode` is passed outside of it: eager's result or eager's error."""
    f, g = run.jit(lambda x: x.sin() * 2), run.jit(lambda x, w: x * w)
    seen = []
    for _ in range(2):
        with torch.inference_mode():
            x = torch.ones(3)
        w = torch.ones(3, requires_grad=True)
        seen.append((f(x), f(torch.ones(3)), f(x).is_inference(), run.caught(g, x, w), run.caught(g, x.clone(), w)))
    return seen


@case("modes")
def inference_mode_decorates_forward(run: Run) -> Any:
    """`@torch.inference_mode()` on a method, as generation loops have it."""

    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        @torch.inference_mode()
        def generate(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = self.net(x).tanh()
            return x

    model = Generator()
    generate, seen = run.jit(model.generate), []
    for _ in range(2):
        y = generate(torch.randn(1, 3))
        seen.append((y.clone(), y.is_inference(), y.requires_grad, state()))
    return seen


@case("modes")
def regions_nest_under_either_outer_mode(run: Run) -> Any:
    """`no_grad`, `enable_grad` and `set_grad_enabled(flag)` regions, with grad mode on and off around them."""

    def f(x: Tensor, flag: bool) -> tuple[Tensor, ...]:
        a = x * 2
        with torch.no_grad():
            b = a * x
            with torch.enable_grad():
                c = b * x
                with torch.set_grad_enabled(flag):
                    d = c * a
            e = c + d
        return a, b, c, d, e, a + b + c + d + e

    jitted, seen = run.jit(f), []
    for outer, flag in ((True, True), (False, True), (True, False), (False, False), (True, True)):
        x = torch.randn(3, requires_grad=True)
        with torch.set_grad_enabled(outer):
            out = jitted(x, flag)
        sum(o.sum() for o in out if o.requires_grad).backward()
        seen.append((out, [o.requires_grad for o in out], x.grad, state()))
    return seen


@case("modes")
def decorated_helpers(run: Run) -> Any:
    """`@torch.no_grad()` and `@torch.enable_grad()` on functions that the jitted one calls, and on itself."""

    @torch.no_grad()
    def target(x: Tensor) -> Tensor:
        return x.exp() + energy(x).detach()

    @torch.enable_grad()
    def energy(x: Tensor) -> Tensor:
        return x.square()

    f = run.jit(lambda x: (target(x), energy(x), x * target(x)))
    g, seen = torch.no_grad()(run.jit(lambda x: (x * 2, energy(x)))), []
    for outer in (True, False, True):
        x = torch.randn(3, requires_grad=True)
        with torch.set_grad_enabled(outer):
            seen.append((f(x), g(x)))
    return seen, state()


@case("modes")
def set_grad_enabled_as_a_statement(run: Run) -> Any:
    """`torch.set_grad_enabled(False)` without `with`: it lasts until switched back inside."""

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = torch.is_grad_enabled()
        a = x * 2
        torch.set_grad_enabled(False)
        b = a * x
        torch.set_grad_enabled(before)
        return a, b, a * b

    jitted, seen = run.jit(f), []
    for outer in (True, False, True):
        x = torch.randn(3, requires_grad=True)
        with torch.set_grad_enabled(outer):
            seen.append((jitted(x), state()))
    return seen


@case("modes")
def grad_mode_left_changed(run: Run) -> Any:
    """A function that switches grad mode off for its caller does so at every call."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        torch.set_grad_enabled(False)
        return y

    jitted, seen = run.jit(f), []
    for _ in range(3):
        y = jitted(torch.ones(2, requires_grad=True))
        seen.append((y, state()))
        torch.set_grad_enabled(True)
    return seen


@case("modes")
def first_call_under_no_grad(run: Run) -> Any:
    """A model that is first evaluated under `no_grad` trains afterwards."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    jitted, seen = run.jit(model), []
    with torch.no_grad():
        seen.append(jitted(torch.randn(4, 3)))
    y = jitted(torch.randn(4, 3))
    y.sum().backward()
    seen.append((y, [p.grad.clone() for p in model.parameters()]))
    with torch.no_grad():
        seen.append(jitted(torch.randn(4, 3)))
    return seen, model.state_dict()


@case("modes")
def settings_that_the_program_leaves_changed(run: Run) -> Any:
    """Default dtype and determinism that a function sets for good are set at every call."""

    def f(x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        return x + torch.ones(2)

    jitted, seen = run.jit(f), []
    for _ in range(3):
        try:
            y = jitted(torch.ones(2, requires_grad=True))
            seen.append((y, torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()))
        finally:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
    return seen
