"""`fg.opcheck` finds each way in which an operator's registration can lie, and says what to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fulgurite as fg
from programs.case import Run
from programs.operators import numpy_of, scaled, square
from programs.ops_effects import add_into, mask


def failed(report: fg.OpReport) -> list[str]:
    return [check.name for check in report.checks if check.passed is False]


@pytest.mark.parametrize(
    ("make", "args"),
    [
        (scaled, (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True), 3.0)),
        (square, (torch.randn(2, 3, requires_grad=True),)),
        (add_into, (torch.randn(3), torch.randn(3))),
        (mask, (torch.randn(8, requires_grad=True), 0.5)),
    ],
    ids=["formula", "numpy", "mutates", "random"],
)
def test_honest_operators(make: Callable[[Run], Any], args: Any) -> None:
    before = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
    report = fg.opcheck(make(Run(compiled=False)), args)
    assert report and failed(report) == [], str(report)
    assert "nothing to change" in str(report)
    assert all(torch.equal(a, b) for a, b in zip(args, before) if isinstance(a, Tensor))


def lies(fake: Any, backward: Any) -> Any:
    @torch.library.custom_op(f"{Run(False).ns}::lies", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return torch.from_numpy(numpy_of(x) * 2)

    op.register_fake(fake)
    op.register_autograd(backward)
    return op


def test_a_lying_fake_kernel() -> None:
    report = fg.opcheck(lies(lambda x: x.new_empty(7), lambda ctx, g: g * 2), (torch.randn(3, requires_grad=True),))
    assert not report and "fake kernel" in failed(report)
    assert "register_fake" in str(report)


def test_a_wrong_formula() -> None:
    report = fg.opcheck(lies(torch.empty_like, lambda ctx, g: g * 3), (torch.randn(3, requires_grad=True),))
    assert failed(report) == ["gradients agree with finite differences"]
    assert "register_autograd" in str(report)


def test_an_undeclared_write() -> None:
    @torch.library.custom_op(f"{Run(False).ns}::writes", mutates_args=())
    def writes(x: Tensor) -> Tensor:
        numpy_of(x)[...] = 0
        return torch.from_numpy(numpy_of(x) * 2)

    writes.register_fake(torch.empty_like)
    report = fg.opcheck(writes, (torch.randn(3),))
    assert "schema" in failed(report) and "mutates_args" in str(report)
    assert report.checks[-1].passed is None, "nothing requires grad"
