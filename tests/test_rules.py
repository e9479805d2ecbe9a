"""Gradient rules that a user registers: for custom ops and torch's own, whole or one half."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fulgurite as fg
from compare import differences
from programs.case import Run
from programs.operators import grads, leaves, scaled
from programs.ops_calling import stacked


@pytest.fixture
def op() -> Iterator[Any]:
    made = scaled(Run(compiled=False))
    yield made
    fg.deregister_custom_op(made)


def test_a_backward_alone(op: Any) -> None:
    """The op itself runs; the rule gets arguments and output."""
    before = fg.jit(lambda x, y: op(x, y, 3.0))
    first = grads(before, *leaves(3, 3))

    @fg.register_backward(fg.register_custom_op(op))
    def backward(args: Any, output: Tensor, cotangent: Tensor) -> Any:
        _x, _y, scale = args
        return cotangent * 10 * scale, cotangent * output

    x, y = leaves(3, 3)
    out, _, (gx, gy) = grads(before, x, y)
    out = out.detach()
    assert not differences(out, (x * y * 3.0).detach()) and first[0].shape == out.shape
    assert not differences(gx, 2 * out * 10 * 3.0) and not differences(gy, 2 * out * out)
    fg.deregister_custom_op(op)
    assert not differences(grads(before, x, y), grads(lambda x, y: op(x, y, 3.0), x, y))


def test_an_augmented_forward_alone(op: Any) -> None:
    """The op's own `setup_context` and backward run, with defaults filled in, also for a named argument."""

    @fg.register_augmented_forward(fg.register_custom_op(op))
    def forward(x: Tensor, y: Tensor, scale: float = 2.0) -> Any:
        return x * y * scale, ()

    x, y = leaves(3, 3)
    for call in (lambda x, y: op(x, y), lambda x, y: op(x, y=y, scale=5.0), lambda x, y: op(x, y, 1.0).sin()):
        assert not differences(grads(fg.jit(call), x, y), grads(call, x, y))
    jitted = fg.jit(lambda x, y: op(x, y))
    jitted(x, y)
    assert "scaled" not in str(fg.last_trace(jitted))


def test_lists_in_and_structures_saved() -> None:
    op = stacked(Run(compiled=False))

    @fg.register_augmented_forward(op)
    def forward(xs: list[Tensor], y: Tensor, scales: list[float]) -> Any:
        return sum(x * s for x, s in zip(xs, scales)) * y, ({"xs": xs, "y": [y]}, scales)

    @fg.register_backward(op)
    def backward(saved: Any, scales: list[float], cotangent: Tensor) -> Any:
        (y,) = saved["y"]
        return [cotangent * y * s for s in scales], cotangent * sum(x * s for x, s in zip(saved["xs"], scales))

    def program(a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        return op([a, b], y, [0.5, 2.0])

    inputs = leaves(3, 3, 3)
    found = grads(fg.jit(program), *inputs)
    fg.deregister_custom_op(op)
    for ours, eager in zip(found[2], grads(program, *inputs)[2]):
        torch.testing.assert_close(ours, eager)  # another formula than the op's: not the same bits


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda g: (g,), "no gradient for its argument 'y'"),
        (lambda g: (g, g, None, None), "4 gradients for 3 arguments"),
        (lambda g: (g[:2], g), r"shape \[2\] for its argument 'x' of shape \[3\]"),
    ],
    ids=["too few", "too many", "wrong shape"],
)
def test_wrong_gradients_name_the_argument(op: Any, returned: Any, message: str) -> None:
    fg.register_backward(op)(lambda args, output, cotangent: returned(cotangent))
    out = fg.jit(lambda x, y: op(x, y, 2.0))(*leaves(3, 3))
    with pytest.raises(RuntimeError, match=message):
        out.sum().backward()


def test_a_rule_for_a_torch_function() -> None:
    """A function of torch's own, with a tensor by keyword; second order flows through the rule."""
    weight, x = leaves((2, 3), (4, 3))

    @fg.register_augmented_forward(torch.nn.functional.linear)
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        return torch.nn.functional.linear(x, weight, bias), (x, weight)

    @fg.register_backward(torch.nn.functional.linear)
    def backward(x: Tensor, weight: Tensor, cotangent: Tensor) -> Any:
        return 3 * cotangent @ weight, cotangent.t() @ x

    try:
        jitted = fg.jit(lambda x, w: torch.nn.functional.linear(x, weight=w))
        (gx,) = torch.autograd.grad(jitted(x, weight).sum(), x, create_graph=True)
        assert not differences(gx.detach(), (torch.full((4, 2), 3.0) @ weight).detach())
        gx.sum().backward()
        assert not differences(weight.grad, torch.full((2, 3), 12.0))
    finally:
        from fulgurite.trace.rules import deregister

        deregister(torch.nn.functional.linear)


def test_symbols() -> None:
    made = scaled(Run(compiled=False))
    symbol = fg.register_custom_op(made)
    assert symbol.fn is made._opoverload and fg.register_custom_op(made) is symbol
    assert symbol.meta(torch.ones(2, device="meta"), torch.ones(2, device="meta")).device.type == "meta"
    with pytest.raises(TypeError, match="operator of torch.library"):
        fg.register_custom_op(len)
