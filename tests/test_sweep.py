"""The sweep itself: its verdicts are right about jits that are wrong, and a crash loses one item only."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch

from isolated import run_isolated
from op_db_entry import BITWISE, EAGER_FAILS, NOT_DIFFERENTIABLE, NOT_REPRODUCIBLE, judge, stable
from op_db_results import counts, verdict_table


def transparent(program: Any) -> Any:
    return program


def raising(program: Any) -> Any:
    def wrong(*args: Any) -> Any:
        raise RuntimeError(f"no kernel at {hex(id(args))}\nand more")

    return wrong


def doubling(program: Any) -> Any:
    return lambda *args: program(*args).double()


def detaching(program: Any) -> Any:
    return lambda *args: program(*args).detach()


def drawing(program: Any) -> Any:
    def wrong(*args: Any) -> Any:
        result = program(*args)
        torch.rand(1)
        return result

    return wrong


def copying(program: Any) -> Any:
    return lambda *args: program(*args).clone()


@pytest.mark.parametrize(
    ("name", "mode", "jit", "verdict"),
    [
        ("add", "forward", transparent, BITWISE),
        ("add", "training", transparent, BITWISE),
        ("nn_functional_dropout", "training", transparent, BITWISE),
        ("to_sparse", "training", transparent, BITWISE),
        ("argmax", "training", transparent, NOT_DIFFERENTIABLE),
        ("empty", "forward", transparent, NOT_REPRODUCIBLE),
        ("jiterator_unary", "forward", transparent, f"{EAGER_FAILS}: AssertionError: Jiterator is only supported"),
        ("add", "forward", raising, "RuntimeError: no kernel at 0x…"),
        ("add", "forward", doubling, "output: dtype is torch.float64, eager's is torch.float32"),
        ("add", "training", detaching, "output: requires_grad is False, eager's is True"),
        ("mul", "forward", drawing, "generators['torch']: values differ"),
        ("t", "forward", copying, "output shares memory with: is None, eager's is 'inputs[0]'"),
    ],
)
def test_verdict(name: str, mode: str, jit: Any, verdict: str) -> None:
    assert judge(name, mode, jit).startswith(verdict)


def test_a_verdict_is_the_same_on_every_machine() -> None:
    assert stable("at 0x7f12 in /usr/lib/x/torch/a.py:12, line 4") == "at 0x… in a.py:…, line …"
    assert len(stable("word " * 100)) == 200


def work(item: str) -> str:
    if item == "crash":
        os._exit(3)
    if item == "hang":
        time.sleep(60)
    return item.upper()


def test_a_crash_or_hang_loses_one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isolated.START_UP", 20.0)
    items = ["a", "crash", "b", "hang", "c"]
    results = dict(run_isolated(items, work, jobs=2, seconds=0.5))
    assert results == {"a": "A", "b": "B", "c": "C", "crash": "crashed: exit code 3", "hang": "timed out"}


def test_summary() -> None:
    results = {
        "a": {"forward": BITWISE},
        "b": {"forward": "output: values differ"},
        "c": {"forward": NOT_REPRODUCIBLE},
        "d": {"forward": f"{EAGER_FAILS}: ValueError: x"},
    }
    assert counts(results, "forward") == (1, 2)
    assert verdict_table(results, "forward", judged=True).splitlines()[2:] == ["| output: values differ | `b` |"]
    assert len(verdict_table(results, "forward", judged=False).splitlines()) == 4
