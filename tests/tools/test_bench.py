"""The benchmark: right first, then fast. Nothing here looks at how fast anything was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fulgurite as fg
from fulgurite.tools import bench
from fulgurite.tools.arm import difference
from fulgurite.tools.report import Result, as_json, cells, geometric_mean, markdown
from fulgurite.tools.timing import Blocks, ratio_of, summarise


def add(a: Tensor, b: Tensor) -> Tensor:
    return a + b


def pair(training: bool = False) -> tuple[Tensor, Tensor]:
    return torch.randn(4, requires_grad=training), torch.randn(4, requires_grad=training)


def quick(jit: Callable[[Any], Any] = fg.jit, **options: Any) -> Result:
    return bench.compare("add", lambda: add, pair, jit=jit, seconds=0.05, **options)


@pytest.mark.parametrize("training", [False, True])
def test_smallest_workload(training: bool) -> None:
    result = bench.compare("add", lambda: add, lambda: pair(training), training, seconds=0.05)
    assert result.valid and result.bitwise and result.max_error == 0.0 and not result.error
    assert result.retraces == 0 and result.calls_recorded >= 1
    assert 0 < result.trace_time <= result.first_call
    assert result.ratio and result.ratio.low <= result.ratio.value <= result.ratio.high


def test_dropout_and_batch_norm_train_with_equal_bits() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))

    result = bench.compare("net", make, lambda: (torch.randn(8, 4),), True, seconds=0.05)
    assert result.valid and result.bitwise, result.error


def test_a_wrong_arm_has_no_speed() -> None:
    result = quick(jit=lambda fn: lambda a, b: fn(a, b) + 0.5)
    assert not result.correct and not result.valid
    assert result.max_error == pytest.approx(0.5) and result.ratio is None
    assert cells(result)[2] == "✗" and cells(result)[4:8] == ("✗",) * 4


def test_wrong_gradients_have_no_speed() -> None:
    def jit(fn: Any) -> Any:
        return lambda a, b: fn(a, b) + (a - a.detach())  # the same values, another gradient of a

    result = bench.compare("add", lambda: add, lambda: pair(True), True, jit=jit, seconds=0.05)
    assert not result.correct and result.ratio is None


def test_an_arm_that_turns_wrong_while_timed_has_no_speed() -> None:
    calls = 0

    def jit(fn: Any) -> Any:
        def late(a: Tensor, b: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return fn(a, b) + (calls > bench.CHECKED_CALLS)

        return late

    assert quick(jit=jit).ratio is None


def test_tolerance_admits_an_arm_that_is_close() -> None:
    def jit(fn: Any) -> Any:
        return lambda a, b: fn(a, b) + 1e-3

    close = quick(jit=jit, tolerance=1e-2)
    assert close.valid and not close.bitwise and cells(close)[2] == "no"
    assert not quick(jit=jit, tolerance=1e-4).valid


def test_a_failing_arm_is_a_result() -> None:
    def jit(fn: Any) -> Any:
        def fail(*args: Any) -> Any:
            raise ValueError("no such luck")

        return fail

    result = quick(jit=jit)
    assert not result.valid and result.error == "✗ ValueError: no such luck"


def test_tracing_while_timed_has_no_speed() -> None:
    class Restless(nn.Module):
        calls = 0

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b

    def jit(module: Any) -> Any:
        jitted = fg.jit(module)

        def forget(*args: Any) -> None:
            jitted._specialisations.entries = ()

        call = jitted._specialisations.call
        jitted._specialisations.call = lambda args, kwargs: (forget(), call(args, kwargs))[1]
        return jitted

    result = bench.compare("restless", Restless, pair, jit=jit, seconds=0.05)
    assert result.correct and result.retraces > 0 and not result.valid and "did not find a trace" in result.error


def test_threads_and_random_stream_are_left_as_they_were() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    quick(threads=2)
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)


def test_difference_sees_bits_strides_and_dtypes() -> None:
    nan = torch.tensor([float("nan"), float("inf")])
    assert difference([nan], [nan.clone()]).bitwise
    zero = difference([torch.tensor([0.0])], [torch.tensor([-0.0])])
    assert not zero.bitwise and zero.largest == 0.0
    assert not difference([torch.ones(2, 3)], [torch.ones(3, 2).t()]).bitwise
    assert difference([torch.ones(2)], [torch.ones(2).double()]).largest == float("inf")
    assert difference([nan], [torch.zeros(2)]).largest == float("inf")
    assert difference([torch.ones(2)], []).largest == float("inf")


def test_statistics() -> None:
    blocks = Blocks(eager=(2.0, 2.0, 4.0, 2.0), fulgurite=(1.0, 1.0, 2.0, 1.0), calls=1)
    ratio = ratio_of(blocks)
    assert (ratio.value, ratio.low, ratio.high, ratio.verdict) == (0.5, 0.5, 0.5, "faster")
    assert ratio_of(blocks, seed=1) == ratio_of(blocks, seed=1)
    assert summarise((1.0, 2.0, 3.0, 4.0, 5.0)).iqr == 2.0 and summarise((1.0, 1.0, 9.0, 9.0)).noisy


def test_json_and_markdown() -> None:
    blocks = Blocks(eager=(2.0,) * 5, fulgurite=(1.0,) * 5, calls=3)
    good = Result("good", False, True, 0.0, True, blocks=blocks)
    bad = Result("bad", True, False, float("inf"), False, error="✗ it differs")
    record = json.loads(json.dumps(as_json([good, bad], {"seed": 0}), allow_nan=False))
    assert record["results"][0]["blocks"]["eager"] == [2.0] * 5 and record["results"][0]["verdict"] == "faster"
    assert record["results"][1]["ratio"] is None and record["results"][1]["max_error"] is None
    assert record["geometric_mean"] == geometric_mean([good, bad]) == pytest.approx(0.5)
    lines = markdown([good, bad]).splitlines()
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert "| good | inference | yes |" in lines[2] and "bad, training: ✗ it differs" in lines


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    command = ["--workload", "a + b", "--mode", "inference", "--seconds", "0.05", "--json", str(path), "--markdown"]
    assert bench.main(command) == 0
    assert "| a + b | inference | yes |" in capsys.readouterr().out
    about = json.loads(path.read_text())["metadata"]
    assert {"torch", "fulgurite", "cpu", "threads", "seed", "python", "import_seconds"} <= set(about)
