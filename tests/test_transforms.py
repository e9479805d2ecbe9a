"""Each pass: the text before and after, and the same result when both run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fulgurite as fg
from fulgurite.transforms import common_subexpressions, dead_code, flatten, last_use, no_ops, run, split


def code(trace: fg.Trace) -> list[str]:
    lines = [line.split("  #")[0].strip() for line in trace.text(header=False, subsymbols=False).splitlines()]
    return [line for line in lines if line and not line.startswith("#")][1:]


def check(program: Callable[..., Tensor], transform: Callable[[fg.Trace], fg.Trace], expected: list[str]) -> None:
    before = fg.make_trace(program)(torch.randn(2, 3))
    after = run(before, [transform], verify=True)
    assert code(after) == expected
    x = torch.randn(2, 3)
    torch.manual_seed(0)
    wanted, first = before.python_callable()(x.clone()), torch.get_rng_state()
    torch.manual_seed(0)
    assert torch.equal(after.python_callable()(x.clone()), wanted)
    assert torch.equal(torch.get_rng_state(), first)
    assert after.history == (before, after) and after.provenance.made_by == transform.__name__


def test_dead_code() -> None:
    def program(x: Tensor) -> Tensor:
        x.sin()
        x.cos().add_(1)
        torch.rand(3)
        x.add_(1)
        return x * 2

    expected = [
        "t3 = torch.rand(3)",
        "torch.Tensor.add_(x, 1)",
        "t4 = torch.Tensor.mul(x, 2)",
        "return t4",
    ]
    check(program, dead_code, expected)


def test_dead_code_keeps_writes_that_are_read_through_a_view() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.clone()
        y.view(-1).add_(1)
        return y

    assert "torch.Tensor.add_(t1, 1)" in code(run(fg.make_trace(program)(torch.ones(2, 3)), [dead_code]))


def test_common_subexpressions() -> None:
    def program(x: Tensor) -> Tensor:
        return x.sin() * x.sin() + torch.rand(3) + torch.rand(3)

    expected = [
        "t0 = torch.Tensor.sin(x)",
        "t2 = torch.Tensor.mul(t0, t0)",
        "t4 = torch.rand(3)",
        "t5 = torch.Tensor.add(t2, t4)",
        "t7 = torch.rand(3)",
        "t8 = torch.Tensor.add(t5, t7)",
        "return t8",
    ]
    check(program, common_subexpressions, expected)


def test_common_subexpressions_respects_writes() -> None:
    def program(x: Tensor) -> Tensor:
        before = x.sin()
        x.add_(1)
        return before + x.sin()

    assert code(run(fg.make_trace(program)(torch.ones(2)), [common_subexpressions])).count("t1 = torch.Tensor.sin(x)")


def test_common_subexpressions_keeps_two_returned_tensors() -> None:
    trace = fg.make_trace(lambda x: (x.sin(), x.sin()))(torch.ones(2))
    assert len(run(trace, [common_subexpressions]).bound_symbols) == 2


def test_no_ops() -> None:
    def program(x: Tensor) -> Tensor:
        return x.detach().view(2, 3).sin()

    check(program, no_ops, ["t2 = torch.Tensor.sin(x)", "return t2"])


def test_no_ops_keeps_a_returned_view() -> None:
    trace = fg.make_trace(lambda x: x.view(2, 3))(torch.ones(2, 3))
    assert code(run(trace, [no_ops])) == ["t0 = torch.Tensor.view(x, 2, 3)", "return t0"]


def test_last_use() -> None:
    def program(x: Tensor) -> Tensor:
        return x.sin().cos()

    expected = ["t0 = torch.Tensor.sin(x)", "t1 = torch.Tensor.cos(t0)", "del t0", "return t1"]
    check(program, last_use, expected)


def test_flatten() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.nn.functional.softplus(x).t()

    expected = [
        "t0 = torch.ops.aten.softplus.default(x)",
        "t1 = torch.ops.aten.t.default(t0)",
        "return t1",
    ]
    check(program, flatten, expected)


def test_split() -> None:
    def program(x: Tensor) -> Tensor:
        return x.sin().exp()

    x = torch.randn(3, requires_grad=True)
    joint = run(fg.make_trace(program, grad=True)(x), [flatten, no_ops, dead_code], verify=True)
    forward, backward = (trace.verify() for trace in split(joint, 1))
    assert [p.name for p in backward.inputs] == ["t1", "x", "grad_t1"]
    with torch.no_grad():
        (out,), saved = forward.python_callable()(x)
        (grad,) = backward.python_callable()(*saved, torch.ones(3))
    wanted = program(x)
    wanted.sum().backward()
    assert torch.equal(out, wanted) and torch.equal(grad, x.grad)


@pytest.mark.parametrize("grad", [False, True])
def test_user_pass_runs_and_shows(grad: bool) -> None:
    seen: list[str] = []

    def my_pass(trace: fg.Trace) -> fg.Trace:
        seen.append(trace.name)
        return trace.after("my_pass", trace.bound_symbols)

    jitted = fg.jit(lambda x: x.sin(), transforms=[my_pass])
    jitted(torch.ones(2, requires_grad=grad))
    assert seen == ["joint" if grad else "computation"]
    assert "my_pass" in [trace.provenance.made_by for trace in fg.traces(jitted).forward]
