"""`check=True`: eager beside every call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fulgurite as fg


def wrong(x: Tensor) -> Tensor:
    return x.sin() + 1e-6


MINE = fg.OperatorExecutor("nearly")
MINE.register(torch.ops.aten.sin.default)(wrong)


def program(x: Tensor) -> Tensor:
    y = x * 2
    z = y.sin()  # differs here
    return z + 1


def test_the_first_call_that_differs() -> None:
    x = torch.ones(3)
    with pytest.raises(fg.DiffersFromEager, match=r"first call that differs is nearly.wrong at .*test_checking.py:24"):
        fg.jit(program, executors=[MINE], check=True)(x)
    assert torch.equal(fg.jit(program, check=True)(x), program(x))


class Stateful(nn.Module):
    """Draws, writes a buffer, an argument and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("total", torch.zeros(3))
        self.calls = 0
        self.log: list[Tensor] = []

    def forward(self, x: Tensor, out: dict[str, Tensor]) -> Tensor:
        self.calls += 1
        h = nn.functional.dropout(self.linear(x), 0.5)
        self.total += h.detach().sum(0)
        self.log.append(h.detach())
        x.mul_(2)
        out["h"] = h
        return h if self.total.sum() > 0 else -h


def test_eager_beside_leaves_no_trace() -> None:
    seen: list[Any] = []
    for check in (None, True):
        torch.manual_seed(0)
        module = Stateful()
        run = fg.jit(module, check=True) if check else module
        outputs = []
        for _ in range(3):
            x, out = torch.randn(2, 3), dict[str, Tensor]()
            outputs.append((run(x, out).detach(), x, out["h"].detach()))
        seen.append((outputs, module.total, module.calls, module.log, torch.get_rng_state()))
    left, right = seen
    assert all(torch.equal(a, b) for one, two in zip(left[0], right[0]) for a, b in zip(one, two))
    assert torch.equal(left[1], right[1])
    assert left[2] == right[2] == len(left[3]) == len(right[3]) == 3
    assert torch.equal(left[4], right[4])


def test_exceptions_are_eagers() -> None:
    def fails(x: Tensor) -> Tensor:
        if x.sum() > 2:
            raise LookupError("too much")
        return x

    jitted = fg.jit(fails, check=True)
    assert jitted(torch.ones(2)).sum() == 2
    with pytest.raises(LookupError, match="too much"):
        jitted(torch.ones(3))
