"""Python values that a program reads, and that change between calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fulgurite as fg

CONFIG = {"factor": 2.0}
SHIFT = 3


def helper(x: Tensor) -> Tensor:
    return x * CONFIG["factor"]


def program(x: Tensor) -> Tensor:
    return helper(x) + SHIFT


def other(x: Tensor) -> Tensor:
    return x * 100


class Scaled(nn.Module):
    power = 2

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.sizes = [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        return x**self.power * self.scale + sum(self.sizes)


@pytest.mark.parametrize(
    ("name", "value"), [("SHIFT", 4), ("SHIFT", 3.0), ("helper", other), ("CONFIG", {"factor": 1.0})]
)
def test_globals(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted, x = fg.jit(program), torch.ones(2)
    assert torch.equal(jitted(x), program(x))
    monkeypatch.setitem(globals(), name, value)
    assert torch.equal(jitted(x), program(x))


def test_an_entry_of_a_global_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted, x = fg.jit(program), torch.ones(2)
    assert torch.equal(jitted(x), program(x))
    monkeypatch.setitem(CONFIG, "factor", 7.0)
    assert torch.equal(jitted(x), program(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda module: setattr(module, "scale", 5.0),
        lambda module: module.sizes.append(3),
        lambda module: module.sizes.__setitem__(0, 9),
        lambda module: setattr(module, "power", 3),
    ],
)
def test_attributes(change: Callable[[Scaled], Any]) -> None:
    module = Scaled()
    jitted, x = fg.jit(module), torch.full((2,), 2.0)
    assert torch.equal(jitted(x), module(x))
    change(module)
    assert torch.equal(jitted(x), module(x))


def test_attribute_of_torchs_own_module() -> None:
    module = nn.LeakyReLU(0.1)
    jitted, x = fg.jit(module), -torch.ones(2)
    assert torch.equal(jitted(x), module(x))
    module.negative_slope = 0.5
    assert torch.equal(jitted(x), module(x))


def test_closure_and_defaults() -> None:
    factor = 2.0

    def scaled(x: Tensor, shift: int = 1) -> Tensor:
        return x * factor + shift

    jitted, x = fg.jit(scaled), torch.ones(2)
    assert torch.equal(jitted(x), scaled(x))
    factor = 3.0
    assert torch.equal(jitted(x), scaled(x))
    scaled.__defaults__ = (5,)
    assert torch.equal(jitted(x), scaled(x))
    scaled.__code__ = (lambda x, shift=1: (x - shift) * factor).__code__
    assert torch.equal(jitted(x), scaled(x))


def test_a_list_argument_is_written() -> None:
    def appends(items: list[Tensor]) -> Tensor:
        items.append(items[0] * 2)
        return items[0]

    jitted = fg.jit(appends)
    for value in (1.0, 2.0):
        items = [torch.full((1,), value)]
        jitted(items)
        assert [type(item) for item in items] == [Tensor, Tensor]
        assert items[1].item() == 2 * value
    fg.assert_max_traces(jitted, 1)


def test_assert_max_traces() -> None:
    jitted = fg.jit(lambda x, n: x * n)
    for n in range(3):
        jitted(torch.ones(1), n)
    with pytest.raises(AssertionError, match="traced 3 times"):
        fg.assert_max_traces(jitted, 2)


def test_log_of_retraces(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FULGURITE_LOG", "retrace")
    jitted = fg.jit(lambda x, n: x * n)
    for n in range(2):
        jitted(torch.ones(1), n)
    assert capsys.readouterr().err.count("traced again") == 1


def test_a_forward_that_is_no_plain_function() -> None:
    module = nn.Identity()
    module.forward = functools.partial(torch.mul, 3)  # type: ignore[method-assign]
    assert torch.equal(fg.jit(module)(torch.ones(2)), torch.full((2,), 3.0))

    class Callable_:
        def __call__(self, x: Tensor) -> Tensor:
            return x + 1

    class Odd(nn.Module):
        forward = Callable_()

    assert torch.equal(fg.jit(Odd())(torch.ones(2)), torch.full((2,), 2.0))
