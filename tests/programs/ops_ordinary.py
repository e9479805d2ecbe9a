"""Custom operators in ordinary code: no formula, copies beside what is written, lists, optional arguments."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case
from programs.operators import grads, leaves, numpy_of, scaled, square


@case("ops: ordinary code", operators=True)
def no_formula_in_a_trained_module(run: Run) -> Any:
    """Inference works; a training step raises in backward and says that there is no formula."""
    op = square(run, formula=False)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return op(self.linear(x)).sum()

    net = Net()
    f, seen = run.jit(net), []
    for _ in range(2):
        loss = f(torch.randn(2, 3))
        with torch.no_grad():
            plain = f(torch.ones(2, 3))
        seen.append((loss, plain, run.caught(loss.backward), net.linear.weight.grad))
    return seen


@case("ops: ordinary code", operators=True)
def no_formula_but_detached(run: Run) -> Any:
    """An operator without formula on a detached value, as a weight of a differentiable term."""
    op = scaled(run, formula=False)
    f = run.jit(lambda x, y: (x * op(x.detach(), y.detach(), scale=0.5)).sum() + y.sum())
    return [grads(f, *leaves((2, 3), (2, 3))) for _ in range(2)]


def shift(run: Run) -> Any:
    """`shift_(x, by)` adds in place, where torch does not see it."""

    @torch.library.custom_op(f"{run.ns}::shift_", mutates_args={"x"})
    def op(x: Tensor, by: float) -> None:
        x.detach().numpy()[...] += by

    op.register_fake(lambda x, by: None)
    return run.op(op)


@case("ops: ordinary code", operators=True)
def copies_of_what_is_written(run: Run) -> Any:
    """clone, contiguous copy, cast and an expression taken before the write keep the old values; views do not."""
    op = shift(run)

    def f(x: Tensor) -> Any:
        copy, cast, twice, view = x.clone(), x.double(), x * 2, x[0]
        op(x, 1.0)
        again = x * 2
        op(copy, -1.0)
        return copy, cast, twice, view, again, x.clone()

    jitted, seen = run.jit(f), []
    for n in (2, 2, 3):
        x = torch.randn(2, n)
        seen.append((jitted(x), x))
    return seen


@case("ops: ordinary code", operators=True)
def writes_an_intermediate_with_a_view(run: Run) -> Any:
    """A buffer made inside is written through a slice, and handed on."""
    op = shift(run)

    def f(x: Tensor) -> Any:
        work = torch.zeros(2, 3)
        op(work[1], 2.0)
        op(work.view(-1)[:2], 3.0)
        return work + x, work

    jitted = run.jit(f)
    return [jitted(torch.randn(2, 3)) for _ in range(3)]


@case("ops: ordinary code", operators=True)
def pieces(run: Run) -> Any:
    """A list-of-tensors result arrives as separate tensors that can be unpacked, written and returned."""

    @torch.library.custom_op(f"{run.ns}::pieces", mutates_args=())
    def op(x: Tensor, n: int) -> list[Tensor]:
        return [torch.from_numpy(numpy_of(x) * i) for i in range(n)]

    op.register_fake(lambda x, n: [torch.empty_like(x) for _ in range(n)])
    run.op(op)

    def f(x: Tensor, n: int) -> Any:
        first, *rest = op(x, n)
        first.add_(1)
        return first, rest, type(op(x, n)).__name__, len(rest), sum(rest) + first

    jitted = run.jit(f)
    return [jitted(torch.randn(2), n) for n in (2, 3, 2)]


@case("ops: ordinary code", operators=True)
def affine(run: Run) -> Any:
    """Optional tensors, bools and defaults in all combinations, by position and keyword."""

    @torch.library.custom_op(f"{run.ns}::affine", mutates_args=())
    def op(
        x: Tensor, w: Tensor | None = None, b: Tensor | None = None, negate: bool = False, by: float = 1.0
    ) -> Tensor:
        out = numpy_of(x) * (1 if w is None else numpy_of(w)) + (0 if b is None else numpy_of(b))
        return torch.from_numpy((-out if negate else out) * by).to(x.dtype)

    op.register_fake(lambda x, w=None, b=None, negate=False, by=1.0: torch.empty_like(x))
    run.op(op)
    f, seen = run.jit(lambda x, *args, **kwargs: op(x, *args, **kwargs) * 2), []
    tensors = torch.randn(2), torch.randn(2)
    for w, b, negate in itertools.product((None, tensors[0]), (None, tensors[1]), (False, True)):
        x = torch.randn(2)
        seen += [f(x, w, b, negate), f(x, b=b, w=w), f(x, w, negate=negate, b=b, by=0.5), f(x, negate=negate)]
    return seen
