"""Stepping out of what PyTorch has active around a call, for what must run on its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

outside_all_modes = _disable_current_modes
"""A context in which no mode is active. Private: PyTorch has no public one."""


@contextmanager
def keeping_random_state() -> Iterator[None]:
    """A context whose draws from the default generator are undone.

    (`torch.random.fork_rng` asks the generator that `torch.random` names, which a recording replaces.)
    """
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


@contextmanager
def outside_autograd_hooks() -> Iterator[None]:
    """A context without the hooks for saved tensors that are active, and without anomaly mode.

    Private: the public context for saved tensors can only add hooks.
    """
    hooks: list[Any] = []
    top: Any = torch._C._autograd._top_saved_tensors_default_hooks  # its stub leaves out that it may give None
    while (found := top(False)) is not None:
        hooks.append(found)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        with torch.autograd.set_detect_anomaly(False):
            yield
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
