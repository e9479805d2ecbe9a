"""Programs that look at their data: how often they are traced, and that no op runs twice."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fulgurite as fg
from compare import differences


def agrees(jitted: Any, program: Any, *args: Any) -> None:
    """Same results, from the same random state, and the same state afterwards."""
    torch.manual_seed(0)
    expected, state = program(*args), torch.get_rng_state()
    torch.manual_seed(0)
    assert not differences(expected, jitted(*args), "output")
    assert torch.equal(state, torch.get_rng_state())


def test_a_number_that_is_handed_on_never_retraces() -> None:
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, float, dict[str, int]]:
        loss = (x - y).square().mean()
        return loss, loss.item(), {"right": (x > y).sum().item() + 1}

    jitted = fg.jit(step)
    for _ in range(4):
        x = torch.randn(5, requires_grad=True)
        agrees(jitted, step, x, torch.randn(5))
        jitted(x, torch.randn(5))[0].backward()
    fg.assert_max_traces(jitted, 1)


def test_a_comparison_has_two_paths() -> None:
    linear = nn.Linear(3, 3)

    def stochastic_depth(x: Tensor) -> Tensor:
        return linear(x) if torch.rand(()).item() < 0.5 else x * 2

    jitted = fg.jit(stochastic_depth)
    for seed in range(12):
        torch.manual_seed(seed)
        expected, state = stochastic_depth(torch.ones(2, 3)), torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(expected, jitted(torch.ones(2, 3)))
        assert torch.equal(state, torch.get_rng_state())
    fg.assert_max_traces(jitted, 2)


def test_what_wants_a_real_number_gets_one() -> None:
    def uses(x: Tensor) -> Any:
        v = x.sum().item()
        kinds = isinstance(v, float), type(v) is float
        text = f"{v:.2f}", str(v), "%.1f" % v  # noqa: UP031
        return kinds, text, math.sqrt(abs(v)), round(v, 2), max(v, 1.0), sum([v, 2]), sorted([v, 0.5]), int(v), {v: 1}

    jitted = fg.jit(uses)
    for _ in range(3):
        agrees(jitted, uses, torch.randn(3))


def test_too_many_values_run_without_compiling() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * x.sum().item()

    jitted = fg.jit(scaled)
    with pytest.warns(UserWarning, match=r"other data at .*test_values.py"):
        for i in range(20):
            agrees(jitted, scaled, torch.full((3,), float(i)))
    assert fg.stats(jitted).uncompiled >= 3
    assert len(jitted._specialisations.entries) <= 16


def test_no_op_runs_twice_in_one_call() -> None:
    ran: list[float] = []

    @torch.library.custom_op("values::count", mutates_args=())
    def count(x: Tensor) -> Tensor:
        ran.append(float(x.sum()))
        return x.clone()

    count.register_fake(torch.empty_like)

    def program(x: Tensor) -> Tensor:
        y = count(x)
        x.add_(1)
        if y.sum() > 0:
            y = count(y * 2)
        return y + torch.rand(2)

    jitted = fg.jit(program)
    for value in (1.0, -1.0, 2.0, -2.0, 3.0):
        results = []
        for run in (program, jitted):
            ran.clear()
            torch.manual_seed(0)
            x = torch.full((2,), value)
            results.append((run(x), x, list(ran), torch.get_rng_state()))
        assert not differences(results[0], results[1], "call")
    fg.assert_max_traces(jitted, 2)


def test_what_was_run_is_undone_where_tracing_fails() -> None:
    def program(x: Tensor) -> Tensor:
        x.add_(1)
        torch.rand(1)
        if x.sum() > 0:
            x.detach().numpy()
        return x

    x, state = torch.ones(2), torch.get_rng_state()
    with pytest.raises(fg.TraceError):
        fg.jit(program, on_unguarded="error")(x)
    assert torch.equal(x, torch.ones(2))
    assert torch.equal(state, torch.get_rng_state())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fg.jit(program)(x)
    assert torch.equal(x, torch.full((2,), 2.0))


def test_the_trace_shows_what_it_assumes() -> None:
    def program(x: Tensor) -> Tensor:
        return x.sin() if x.sum() > 0 else x.cos()

    jitted = fg.jit(program)
    jitted(torch.ones(2))
    trace = fg.last_trace(jitted)
    assert "assume([n" in str(trace)
    assert torch.equal(trace.python_callable()(torch.ones(2))[0], torch.ones(2).sin())
    with pytest.raises(RuntimeError, match="recorded for"):
        trace.python_callable()(-torch.ones(2))
