"""Which tensors are one object, and which look at the same memory."""

from __future__ import annotations

import torch
from torch import Tensor


def sharing(outputs: dict[str, Tensor], others: dict[str, Tensor]) -> dict[str, str]:
    """For each output: the earlier outputs and others (inputs, parameters) that it is, or shares memory with.

    >>> x = torch.zeros(3)
    >>> sharing({"a": x, "b": x[1:], "c": x + 1}, {"x": x})
    {'a is': 'x', 'a shares memory with': 'x', 'b shares memory with': 'x, a'}
    """
    found: dict[str, str] = {}
    before = dict(others)
    for name, output in outputs.items():
        same = ", ".join(other for other, tensor in before.items() if tensor is output)
        memory = _memory(output)
        overlapping = ", ".join(other for other, tensor in before.items() if memory and memory == _memory(tensor))
        found |= {f"{name} is": same} if same else {}
        found |= {f"{name} shares memory with": overlapping} if overlapping else {}
        before[name] = output
    return found


def _memory(tensor: Tensor) -> int:
    """A number for the memory behind a tensor, 0 when it has none that could be shared."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return 0
    storage = tensor.untyped_storage()
    return storage._cdata if storage.nbytes() else 0
