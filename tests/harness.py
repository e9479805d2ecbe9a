"""The oracle: a program runs under eager and under `fg.jit`, and everything that it did is compared bit for bit.

Compared after every call: the output (structure, and for each tensor dtype, shape, strides, requires_grad, values),
what the outputs share with inputs, parameters and each other, the inputs as the call left them, buffers, other
attributes, gradients of parameters and inputs, parameters after the optimizer's step, and the random generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import fulgurite as fg
from cleanliness import generator_state, leaves_nothing_behind, seed_everything
from compare import Difference, differences, tensors_in
from sharing import sharing

Program = Callable[..., Any]
Inputs = tuple[Any, ...] | dict[str, Any]
Loss = Callable[[Any], Tensor]
SHOWN = 20


def check_inference(
    make: Callable[[], Program], make_inputs: Callable[[int], Inputs], calls: int = 3, jit: Program = fg.jit
) -> None:
    """Assert that under `no_grad`, and in eval mode, each of several calls does what eager does.

    Args:
        make: builds the module or function. Called twice under one seed, so that both sides have equal weights.
        make_inputs: the arguments of the n-th call, a tuple, or a dict of keyword arguments. Seeded by n.
        calls: how many calls.
        jit: what is judged.
    """
    eager, jitted = Side.build(make), Side.build(make, jit)
    for call in range(calls):
        expected = eager.infer(make_inputs, call)
        actual = jitted.infer(make_inputs, call)
        assert_same(expected, actual, f"inference, call {call}")


def check_training(
    make: Callable[[], Program],
    make_inputs: Callable[[int], Inputs],
    steps: int = 3,
    loss: Loss | None = None,
    jit: Program = fg.jit,
) -> None:
    """Assert that several steps of training with SGD, in train mode, do what eager does.

    Args:
        make, make_inputs, jit: as for `check_inference`.
        steps: how many steps.
        loss: takes the output to the scalar to differentiate. Without it that is `output.loss` where there is one;
            otherwise all differentiable outputs get fixed random cotangents.
    """
    eager, jitted = Side.build(make), Side.build(make, jit)
    for step in range(steps):
        expected = eager.train(make_inputs, step, loss)
        actual = jitted.train(make_inputs, step, loss)
        assert_same(expected, actual, f"training, step {step}")


def check_turns(
    make: Callable[[], Program],
    training_inputs: Callable[[int], Inputs],
    inference_inputs: Callable[[int], Inputs],
    turns: int = 2,
    loss: Loss | None = None,
    jit: Program = fg.jit,
) -> None:
    """Assert that steps of training and calls in eval mode, by turns on one module, do what eager does."""
    eager, jitted = Side.build(make), Side.build(make, jit)
    for turn in range(turns):
        expected = eager.train(training_inputs, turn, loss)
        assert_same(expected, jitted.train(training_inputs, turn, loss), f"turn {turn}, training")
        expected = eager.infer(inference_inputs, turn)
        assert_same(expected, jitted.infer(inference_inputs, turn), f"turn {turn}, inference")


def assert_same(expected: dict[str, Any], actual: dict[str, Any], when: str) -> None:
    """Raise an `AssertionError` that lists what differs between two observations."""
    found = [d for key in expected.keys() & actual.keys() for d in differences(expected[key], actual[key], key)]
    found += [Difference(key, "only in eager's run") for key in expected.keys() - actual.keys()]
    found += [Difference(key, "not in eager's run") for key in actual.keys() - expected.keys()]
    assert not found, describe(sorted(found, key=str), when)


def describe(found: list[Difference], when: str) -> str:
    """The differences as lines of text."""
    lines = [f"  {difference}" for difference in found[:SHOWN]]
    more = [f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "\n".join([f"{when}: {len(found)} differences from eager", *lines, *more])


@dataclass
class Side:
    """One of the two copies of the program that are compared."""

    program: Program
    module: nn.Module | None
    optimizer: torch.optim.Optimizer | None = field(default=None)

    @staticmethod
    def build(make: Callable[[], Program], jit: Program | None = None) -> Side:
        """A new copy, jitted or not. What is observed of a module is observed on the original, below the jit."""
        seed_everything(0)
        original = make()
        module = original if isinstance(original, nn.Module) else None
        return Side(original if jit is None else jit(original), module)

    def infer(self, make_inputs: Callable[[int], Inputs], call: int) -> dict[str, Any]:
        """Run one call for its value, and observe."""
        if self.outer is not None:
            self.outer.eval()
        inputs = prepare(make_inputs, call)
        with torch.no_grad():
            output = self.call(inputs)
        return self.observe(output, inputs)

    def train(self, make_inputs: Callable[[int], Inputs], step: int, loss: Loss | None) -> dict[str, Any]:
        """Run one step of training, and observe: parameters are those after the step, gradients those before."""
        if self.outer is not None:
            self.outer.train()
            self.optimizer = self.optimizer or torch.optim.SGD(self.outer.parameters(), lr=0.05)
        inputs = prepare(make_inputs, step)
        output = self.call(inputs)
        with self.watched():
            backward(output, loss)
        seen = self.observe(output, inputs)
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return seen

    @property
    def outer(self) -> nn.Module | None:
        """What a user would call `train()` and `parameters()` on: the jitted module."""
        return self.program if isinstance(self.program, nn.Module) else self.module

    def call(self, inputs: Inputs) -> Any:
        """Call the program; the call may change no global state."""
        with self.watched():
            return self.program(**inputs) if isinstance(inputs, dict) else self.program(*inputs)

    def watched(self) -> Any:
        """A context that asserts that nothing of tracing stays in the module or in torch's state."""
        return leaves_nothing_behind(self.module) if self.module is not None else leaves_nothing_behind()

    def observe(self, output: Any, inputs: Inputs) -> dict[str, Any]:
        """All that a call did, by name. Tensors are those of the program itself, not copies."""
        state = module_state(self.module) if self.module is not None else {}
        ours = tensors_in(inputs, "inputs") | state_tensors(state)
        return {
            "output": output,
            "inputs": inputs,
            **state,
            **gradients(ours),
            **sharing(tensors_in(output, "output"), ours),
            "generators": generator_state(),
        }


def prepare(make_inputs: Callable[[int], Inputs], call: int) -> Inputs:
    """The inputs of the n-th call, with all generators seeded before and after."""
    seed_everything(1000 + call)
    inputs = make_inputs(call)
    seed_everything(2000 + call)
    return inputs


def module_state(module: nn.Module) -> dict[str, Any]:
    """Parameters, buffers and plain attributes of a module and its children, by their paths."""
    state: dict[str, Any] = dict(module.named_parameters()) | dict(module.named_buffers())
    for path, child in module.named_modules():
        plain = {key: value for key, value in vars(child).items() if not key.startswith("_")}
        state |= {f"{path}.{key}".lstrip("."): value for key, value in plain.items()}
    return {f"module.{path}": value for path, value in state.items()}


def state_tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors among the values of `module_state`, also those inside attributes."""
    return {name: tensor for path, value in state.items() for name, tensor in tensors_in(value, path).items()}


def gradients(tensors: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """The `.grad` of the leaves that require one."""
    return {f"gradient of {name}": t.grad for name, t in tensors.items() if t.requires_grad and t.is_leaf}


def backward(output: Any, loss: Loss | None) -> None:
    """Differentiate a program's output, see `check_training`."""
    found = loss(output) if loss is not None else getattr(output, "loss", None)
    if found is not None:
        found.backward()
        return
    differentiable = [tensor for tensor in tensors_in(output).values() if tensor.requires_grad]
    if differentiable:
        torch.autograd.backward(differentiable, cotangents(differentiable))


def cotangents(outputs: Iterable[Tensor]) -> list[Tensor]:
    """A fixed random cotangent for each output, drawn from a generator of its own."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(output.shape, dtype=output.dtype, generator=generator) for output in outputs]
