"""Custom ops of `torch.library` work without being registered: traced, split and trained with eager's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fulgurite as fg
from compare import differences
from custom_ops import accumulate, cube, halves, noise, scaled_add
from harness import Program, check_inference, check_training

OPS = torch.ops.fulgurite_tests


def two_tensors(call: int) -> tuple[Tensor, ...]:
    size = 6 if call == 2 else 4
    return tuple(torch.randn(size, 3, requires_grad=True) for _ in range(2))


WAYS_TO_CALL = {
    "packet": lambda x, y: OPS.scaled_add(x.sin(), y),
    "overload": lambda x, y: OPS.scaled_add.default(x.sin(), y, 3.0),
    "decorated": lambda x, y: scaled_add(x.sin(), y).cos(),
    "keywords": lambda x, y: OPS.scaled_add(y=y, x=x.sin(), scale=0.5),
    "twice": lambda x, y: OPS.scaled_add(OPS.scaled_add(x, y, 3.0), x, 4.0),
    "same tensor": lambda x, y: scaled_add(x, x) + y,
    "views": lambda x, y: scaled_add(x[1:], y[:-1].exp()),
    "list": lambda x, y: [half.sin() for half in halves(x * y)],
    "one of a list": lambda x, y: halves(x * y)[1],
}


@pytest.mark.parametrize("way", WAYS_TO_CALL)
def test_values_and_gradients(way: str) -> None:
    check_inference(lambda: WAYS_TO_CALL[way], two_tensors)
    check_training(lambda: WAYS_TO_CALL[way], two_tensors)


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_one_argument_only(which: int) -> None:
    def inputs(call: int) -> tuple[Tensor, ...]:
        return tuple(torch.randn(3, requires_grad=index == which) for index in range(2))

    check_training(lambda: WAYS_TO_CALL["packet"], inputs)


class Layer(nn.Module):
    """Parameters go through the op with a formula, a buffer through the op that mutates."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.randn(3))
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        accumulate(self.total, y.detach().sum(0))
        return scaled_add(y, self.scale.expand_as(y)) + self.total


def test_module_trains() -> None:
    check_training(Layer, lambda step: (torch.randn(4, 3, requires_grad=True),))
    check_inference(Layer, lambda call: (torch.randn(4, 3),))


def test_the_op_stays_whole_in_the_trace() -> None:
    jitted = fg.jit(WAYS_TO_CALL["packet"])
    jitted(*two_tensors(0))
    assert "torch.ops.fulgurite_tests.scaled_add" in str(fg.last_trace(jitted))


def mutates_input(x: Tensor, y: Tensor) -> Tensor:
    before = x * 2
    accumulate(x, y)
    return before + x


def mutates_view(x: Tensor, y: Tensor) -> Tensor:
    accumulate(x[1:], y[1:])
    return x.sum(0)


def mutates_intermediate(x: Tensor, y: Tensor) -> Tensor:
    z = x.sin()
    accumulate(z, y)
    accumulate(z, z)
    return z


def only_mutates(x: Tensor, y: Tensor) -> None:
    OPS.accumulate(x, y)


@pytest.mark.parametrize("program", [mutates_input, mutates_view, mutates_intermediate, only_mutates])
def test_mutation(program: Program) -> None:
    def inputs(call: int) -> tuple[Tensor, ...]:
        return tuple(tensor.detach() for tensor in two_tensors(call))

    check_inference(lambda: program, inputs)
    check_training(lambda: program, inputs)


def test_random_op_follows_the_generator_and_is_not_merged() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return noise(x.detach()) + x, noise(x.detach())

    check_inference(lambda: program, lambda call: (torch.randn(3),))
    check_training(lambda: program, lambda call: (torch.randn(3, requires_grad=True),))


def backward_error(program: Program, x: Tensor) -> BaseException:
    output = program(x)
    assert output.requires_grad
    with pytest.raises(Exception) as caught:
        output.sum().backward()
    return caught.value


@pytest.mark.parametrize(
    "program",
    [lambda x: OPS.cube(x), lambda x: cube(x.sin()).cos(), lambda x: cube(x) + x],
    ids=["alone", "in the middle", "beside another path"],
)
def test_op_without_formula(program: Program) -> None:
    """It runs; asking for its gradient raises what eager raises; without gradients all is well."""
    x = torch.randn(3, requires_grad=True)
    jitted = fg.jit(program)
    for _ in range(2):
        expected, actual = backward_error(program, x), backward_error(jitted, x)
        assert type(actual) is type(expected)
        assert str(expected).splitlines()[0] in str(actual)
        assert x.grad is None
    check_inference(lambda: program, lambda call: (torch.randn(3),))


def test_op_of_a_library_fragment() -> None:
    with torch.library._scoped_library("fulgurite_fragment", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeExplicitAutograd")
        check_inference(lambda: lambda x: torch.ops.fulgurite_fragment.twice(x).sin(), lambda call: (torch.randn(3),))


def test_formula_registered_after_the_first_trace() -> None:
    @torch.library.custom_op("fulgurite_tests::late", mutates_args=())
    def late(x: Tensor) -> Tensor:
        return x * 3

    late.register_fake(torch.empty_like)
    jitted = fg.jit(lambda x: late(x))
    x = torch.randn(3, requires_grad=True)
    backward_error(jitted, x)
    late.register_autograd(lambda ctx, gradient: gradient * 3)
    jitted(x).sum().backward()
    assert not differences(torch.full((3,), 3.0), x.grad, "gradient")


@pytest.mark.parametrize(
    "op", [scaled_add, OPS.scaled_add, OPS.scaled_add.default], ids=["decorated", "packet", "overload"]
)
def test_registering_gives_the_symbol(op: Any) -> None:
    symbol = fg.register_custom_op(op)
    assert isinstance(symbol, fg.Symbol)
    assert symbol.name.startswith("torch.ops.fulgurite_tests.scaled_add")
    assert fg.register_custom_op(op) is symbol
    check_training(lambda: WAYS_TO_CALL["decorated"], two_tensors)
