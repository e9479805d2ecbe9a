"""One entry of PyTorch's operator database, judged: does the op do under `fg.jit` what it does in eager?

One jitted function serves all calls of an entry: its first samples in turn, then the same samples with other data.
"""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import fulgurite as fg
from cleanliness import generator_state, global_state, seed_everything
from compare import Difference, differences, tensors_in
from harness import Program, cotangents
from sharing import sharing

SAMPLES = 4
ROUNDS = 2
REPEATS = 3
"""How often eager runs again to see whether it does the same each time."""
PATIENCE = 20
"""How often it runs again before a difference is held against the jit."""
DIRT = itertools.count(1.5)
"""What free memory is filled with before each run."""
MODES = ("forward", "training")
BITWISE = "bitwise"
NOT_DIFFERENTIABLE = "not differentiable"
EAGER_FAILS = "eager fails"
NOT_REPRODUCIBLE = "eager not reproducible"
UNSTABLE = ("linalg_lstsq", "linalg_lstsq_grad_oriented")
"""Ops that are now and then not reproducible: the driver gelsy gets its pivots from uninitialised memory."""
NOT_RUN = (NOT_DIFFERENTIABLE, EAGER_FAILS, NOT_REPRODUCIBLE)
"""Beginnings of the verdicts on entries that say nothing about a jit."""


@dataclass
class Outcome:
    """What one call of an op did, or the exception that it raised."""

    seen: dict[str, Any]
    error: Exception | None = None


@functools.cache
def entries() -> dict[str, OpInfo]:
    """The entries that take float32 on the CPU, sorted by name (`name.variant`)."""
    found = {op.formatted_name: op for op in op_db if torch.float32 in op.supported_dtypes("cpu")}
    return dict(sorted(found.items()))


def judge(name: str, mode: str, jit: Program = fg.jit) -> str:
    """`bitwise`, or in one line why not; the line is the same on every machine."""
    op = entries()[name]
    if mode == "training" and not op.supports_autograd:
        return NOT_DIFFERENTIABLE
    if name in UNSTABLE:
        return NOT_REPRODUCIBLE
    program = jit(program_of(op))
    verdict = f"{EAGER_FAILS}: no samples"
    for seed in range(ROUNDS):
        supply = Supply(op, mode, seed)
        for number in range(len(supply)):
            verdict = judge_call(Call(op, mode, number, supply), program)
            if verdict != BITWISE:
                return verdict
    return verdict


def program_of(op: OpInfo) -> Program:
    """The function to jit: it calls the op with the parts of a sample."""

    def program(input: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return op.op(input, *args, **kwargs)

    return program


class Supply:
    """The first samples of an op, each as often as wanted, in tensors of its own each time."""

    def __init__(self, op: OpInfo, mode: str, seed: int) -> None:
        self.op, self.mode, self.seed = op, mode, seed
        self.stock: list[list[SampleInput]] = [[sample] for sample in self.make()]

    def __len__(self) -> int:
        return len(self.stock)

    def make(self) -> list[SampleInput]:
        """A new copy of all samples: their values follow from the seed."""
        seed_everything(self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = self.op.sample_inputs("cpu", torch.float32, requires_grad=self.mode == "training")
            return list(islice(wanted, SAMPLES))

    def take(self, number: int) -> SampleInput:
        """A copy of one sample that nothing else has or gets."""
        if not self.stock[number]:
            for copies, sample in zip(self.stock, self.make(), strict=True):
                copies.append(sample)
        return self.stock[number].pop()


def judge_call(call: Call, program: Program) -> str:
    """Compare one call with eager's; eager runs several times, to see whether there is something to compare with."""
    eager = call.run(program_of(call.op))
    if eager.error is not None:
        return f"{EAGER_FAILS}: {first_line(eager.error)}"
    if not call.is_reproducible(eager, REPEATS):
        return NOT_REPRODUCIBLE
    state = global_state()
    jitted = call.run(program)
    left = differences(state, global_state(), "left behind")
    if jitted.error is not None:
        return first_line(jitted.error)
    found = left + compare(eager, jitted)
    if not found:
        return BITWISE
    if not call.is_reproducible(eager, PATIENCE):
        return NOT_REPRODUCIBLE
    return stable(f"{found[0].where}: {found[0].what}")


@dataclass(frozen=True)
class Call:
    """An op to call with one sample."""

    op: OpInfo
    mode: str
    number: int
    supply: Supply

    def run(self, program: Program) -> Outcome:
        """Call a program with the sample, in training also its gradients, and note all that happened."""
        sample = self.supply.take(self.number)
        inputs = (sample.input, sample.args, sample.kwargs)
        fill_free_memory(next(DIRT))
        seed_everything(100 + 10 * self.supply.seed + self.number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                output = program(*inputs)
                gradients = input_gradients(output, inputs) if self.mode == "training" else {}
            except Exception as error:
                return Outcome({}, error)
        shared = sharing(tensors_in(output, "output"), tensors_in(inputs, "inputs"))
        return Outcome({"output": output, "inputs": inputs, **gradients, **shared, "generators": generator_state()})

    def is_reproducible(self, eager: Outcome, times: int) -> bool:
        """Whether eager does the same `times` more times."""
        return not any(compare(eager, self.run(program_of(self.op))) for _ in range(times))


def compare(eager: Outcome, other: Outcome) -> list[Difference]:
    """What the two calls did differently."""
    if other.error is not None:
        return [Difference("call", first_line(other.error))]
    keys = [*eager.seen, *(key for key in other.seen if key not in eager.seen)]
    return [d for key in keys for d in differences(eager.seen.get(key), other.seen.get(key), key)]


def input_gradients(output: Any, inputs: Any) -> dict[str, Tensor | None]:
    """Gradients of all differentiable outputs, with fixed cotangents, for all inputs that require one."""
    outputs = [tensor for tensor in tensors_in(output).values() if tensor.requires_grad]
    outputs = [tensor if tensor.layout is torch.strided else tensor.to_dense() for tensor in outputs]
    wanted = {name: tensor for name, tensor in tensors_in(inputs, "inputs").items() if tensor.requires_grad}
    if not outputs or not wanted:
        return {}
    found = torch.autograd.grad(outputs, list(wanted.values()), cotangents(outputs), allow_unused=True)
    return {f"gradient of {name}": gradient for name, gradient in zip(wanted, found, strict=True)}


def fill_free_memory(value: float) -> None:
    """Leave `value` in the memory that small tensors get next, so that reading it uninitialised shows."""
    blocks = [torch.full((size,), value) for size in (1, 4, 16, 25, 50, 100, 400, 1000) for _ in range(8)]
    del blocks


def first_line(error: BaseException) -> str:
    """The class and the first line of an exception, without the advice that follows a semicolon."""
    lines = str(error).strip().splitlines()
    return stable(f"{type(error).__name__}: {lines[0].split(';')[0] if lines else ''}")


def stable(text: str) -> str:
    """Text without what differs between machines and runs: addresses, paths, line numbers; at most 200 characters."""
    text = re.sub(r"0x[0-9a-fA-F]+", "0x…", text)
    text = re.sub(r"(/[\w.+-]+)+/([\w.+-]+)", r"\2", text)
    text = re.sub(r"(\.py|line)([: ]+)\d+", r"\1\2…", text)
    return text if len(text) <= 200 else text[:199] + "…"
