"""Executors made outside of the package, with public names only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fulgurite as fg


def test_operator_executor_with_a_checker() -> None:
    executor = fg.OperatorExecutor("halves")
    calls: list[tuple[int, ...]] = []

    @executor.register(torch.nn.functional.gelu, checker=lambda x, **kwargs: len(x.shape) == 2)
    def gelu(x: Tensor, approximate: str = "none") -> Tensor:
        calls.append(tuple(x.shape))
        return torch.nn.functional.gelu(x, approximate=approximate)

    jitted = fg.jit(torch.nn.functional.gelu, executors=[executor])
    for x in (torch.randn(2, 3), torch.randn(4)):
        assert torch.equal(jitted(x), torch.nn.functional.gelu(x))
    assert calls == [(2, 3)]
    assert "halves" not in fg.last_trace(jitted).text(header=False)


def test_operator_executor_claims_dispatcher_calls_in_training() -> None:
    executor = fg.register_executor(fg.OperatorExecutor("counting"))
    calls: list[str] = []

    @executor.register(torch.ops.aten.sin.default)  # type: ignore[attr-defined]
    def sin(x: Tensor) -> Tensor:
        calls.append("sin")
        return torch.sin(x)

    @executor.register(torch.ops.aten.cos.default)  # type: ignore[attr-defined]
    def cos(x: Tensor) -> Tensor:
        calls.append("cos")
        return torch.cos(x)

    jitted = fg.jit(lambda x: x.sin(), executors=["counting", "torch"])
    x = torch.randn(3, requires_grad=True)
    jitted(x).sum().backward()
    assert calls == ["sin", "cos"] and torch.equal(x.grad, x.detach().cos())
    assert "counting.sin(x)" in fg.last_trace(jitted).text().replace("counting_sin", "counting.sin")


class Chains(fg.FusionExecutor):
    """Fuses pure calls and runs each region through the region's own printed program."""

    def __init__(self) -> None:
        super().__init__("chains")
        self.regions: list[fg.Trace] = []

    def fuse(self, region: fg.Trace) -> Callable[..., Any]:
        self.regions.append(region.verify())
        return region.python_callable()


def chain(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 2).sin().cos()
    x.add_(1)
    z = y.exp() + x
    return z * 2, y


@pytest.mark.parametrize("grad", [False, True])
def test_fusion_executor(grad: bool) -> None:
    executor = Chains()
    jitted = fg.jit(chain, executors=[executor])
    results = []
    for fn in (chain, jitted):
        x = torch.linspace(0, 1, 5).requires_grad_(grad)
        z, y = fn(x * 1)
        if grad:
            z.sum().backward()
        results.append((z.detach(), y.detach(), x.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results) if a is not None)
    assert len(executor.regions) >= 2
    assert all("add_" not in region.text() for region in executor.regions)


def test_unknown_executor_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no executor named 'nonsense'; there are"):
        fg.jit(torch.sin, executors=["nonsense"])


def test_rules_replace_autograd() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.special.entr(x) * 2

    try:

        @fg.register_augmented_forward(torch.special.entr)
        def forward(x: Tensor) -> tuple[Tensor, tuple[Tensor, int]]:
            return torch.special.entr(x), (x, 3)

        @fg.register_backward(torch.special.entr)
        def backward(x: Tensor, factor: int, cotangent: Tensor) -> Tensor:
            return cotangent * factor

        x = torch.rand(4, requires_grad=True)
        jitted = fg.jit(program)
        assert torch.equal(jitted(x), program(x))
        jitted(x).sum().backward()
        assert torch.equal(x.grad, torch.full((4,), 6.0))
    finally:
        from fulgurite.trace.rules import deregister

        deregister(torch.special.entr)
    x.grad = None
    jitted(x).sum().backward()
    expected = torch.autograd.grad(program(x).sum(), x)[0]
    assert torch.equal(x.grad, expected), "forgetting the rule takes effect at the next call"
