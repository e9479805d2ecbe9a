"""Assumptions: what a program saw of its data while it was recorded, checked at the place where it looked.

    n0 = torch.ops.aten._local_scalar_dense.default(t3)  # n0: "int"
    assume([n0], [5])

What follows is the program for these values alone. A trace that runs by itself raises where it meets others; a jitted
function goes on in the branch that fits.
"""

from collections.abc import Sequence
from typing import Any

import torch

from fulgurite.ir.symbol import Symbol


class BrokenAssumption(RuntimeError):
    """A trace was run by itself on data for which the program goes another way."""


def seen(value: Any) -> Any:
    """What counts of a value: a number's type and bits, a tensor's shape. Equal for values that look the same."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, torch.Size):
        return tuple(value)
    if type(value) is float:
        return value.hex()
    return (type(value), seen(value.real), seen(value.imag)) if type(value) is complex else (type(value), value)


def _assume(values: Sequence[Any], expected: Sequence[Any]) -> None:
    if list(map(seen, values)) != list(map(seen, expected)):
        found = [value.shape if isinstance(value, torch.Tensor) else value for value in values]
        raise BrokenAssumption(f"recorded for {list(expected)}, run with {found}")


ASSUME = Symbol("assume", _assume, tags=frozenset({"effect", "assume"}))
"""`assume([values], [what they were])`."""
