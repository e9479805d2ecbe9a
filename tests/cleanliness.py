"""What tracing must not leave behind: active modes, changed global state, fake tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from compare import Difference, differences, flatten


def global_state() -> dict[str, object]:
    """The state of torch that a program's call may depend on, apart from the random generators."""
    return {
        "function modes": [type(mode).__name__ for mode in _get_current_function_mode_stack()],
        "dispatch modes": [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()],
        "functorch level": functorch_level(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def functorch_level() -> int:
    """How many torch.func transforms are active."""
    interpreter = torch._C._functorch.peek_interpreter_stack()
    return 0 if interpreter is None else interpreter.level()


def generator_state() -> dict[str, object]:
    """The states of torch's, Python's and NumPy's default random generators."""
    return {
        "torch": torch.random.get_rng_state(),
        "python": hash(random.getstate()),
        "numpy": hash(str(numpy.random.get_state())),
    }


def seed_everything(seed: int) -> None:
    """Seed the generators of torch, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def fake_tensors(holder: object, where: str = "module") -> list[str]:
    """Paths of fake tensors in the attributes of a module and its children, or in any nested structure."""
    if not isinstance(holder, torch.nn.Module):
        return [path for path, leaf in flatten(holder, where) if isinstance(leaf, FakeTensor)]
    found = []
    for name, child in holder.named_modules():
        attributes = {key: value for key, value in vars(child).items() if key != "_modules"}
        found += fake_tensors(attributes, f"{where}.{name}" if name else where)
    return found


@contextmanager
def leaves_nothing_behind(*holders: object) -> Iterator[None]:
    """Assert that the block, also one that raises, changes no global state and leaves no fake tensor in `holders`."""
    before = global_state()
    try:
        yield
    finally:
        found = differences(before, global_state(), "global state")
        found += [Difference(path, "is a fake tensor") for holder in holders for path in fake_tensors(holder)]
        assert not found, "left behind: " + "; ".join(map(str, found))
