"""What differs between two values: nested structures, and tensors down to their bits."""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FUNCTIONS = (types.FunctionType, types.MethodType)
ATOMS = (type, enum.Enum, torch.nn.Module, types.ModuleType, *FUNCTIONS)
INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


@dataclass(frozen=True)
class Difference:
    """One thing that differs. `what` is the same on every machine, `detail` may hold numbers that are not."""

    where: str
    what: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" ({self.detail})" if self.detail else "")


def differences(eager: object, jitted: object, where: str = "value") -> list[Difference]:
    """Everything in which `jitted` is not what `eager` is; empty when they agree to the bit.

    >>> a, b = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    >>> print(*differences({"x": a}, {"x": b}, "output"))
    output['x']: values differ (1 of 2, largest error 0, first at [0]: eager 0.0, jitted -0.0)
    >>> print(*differences([a], [a.double()], "output"))
    output[0]: dtype is torch.float64, eager's is torch.float32
    """
    left, right = dict(flatten(eager, where)), dict(flatten(jitted, where))
    found = [Difference(path, "is missing") for path in left if path not in right]
    found += [Difference(path, "is not in eager's") for path in right if path not in left]
    for path in left:
        if path in right:
            found += _leaf_differences(left[path], right[path], path)
    return found


def flatten(value: object, where: str, above: tuple[int, ...] = ()) -> Iterator[tuple[str, object]]:
    """The leaves of a nested structure with their paths, and before its items the type of each container."""
    children = _children(value)
    if children is None:
        yield where, value
    elif id(value) in above:
        yield where, "<the same object again>"
    else:
        yield f"type of {where}", type(value)
        for suffix, child in children:
            yield from flatten(child, where + suffix, (*above, id(value)))


def tensors_in(value: object, where: str = "value") -> dict[str, Tensor]:
    """The tensors of a nested structure by their paths."""
    return {path: leaf for path, leaf in flatten(value, where) if isinstance(leaf, Tensor)}


def _children(value: object) -> list[tuple[str, object]] | None:
    if isinstance(value, dict):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    if isinstance(value, (Tensor, *ATOMS)) or not hasattr(value, "__dict__"):
        return None
    return [(f".{name}", child) for name, child in vars(value).items()]


def _leaf_differences(eager: object, jitted: object, where: str) -> list[Difference]:
    if isinstance(eager, Tensor) and isinstance(jitted, Tensor):
        return _tensor_differences(eager, jitted, where)
    if _same_leaf(eager, jitted):
        return []
    return [Difference(where, f"is {_short(jitted)}, eager's is {_short(eager)}")]


def _short(value: object) -> str:
    text = f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _same_leaf(eager: object, jitted: object) -> bool:
    if isinstance(eager, torch.nn.Module):
        return isinstance(jitted, type(eager))
    if type(eager) is not type(jitted):
        return False
    if isinstance(eager, FUNCTIONS) and isinstance(jitted, FUNCTIONS):
        return eager.__code__ is jitted.__code__
    if isinstance(eager, (float, complex)):  # tells -0.0 from 0.0, and a NaN equals itself
        return repr(eager) == repr(jitted)
    if type(eager).__eq__ is object.__eq__ and not isinstance(eager, ATOMS):
        return True  # objects without a notion of equality: the type is all that can be said
    return bool(eager == jitted)


def _tensor_differences(eager: Tensor, jitted: Tensor, where: str) -> list[Difference]:
    mine, other = _metadata(eager), _metadata(jitted)
    wrong = [name for name in mine if mine[name] != other[name]]
    found = [Difference(where, f"{name} is {other[name]}, eager's is {mine[name]}") for name in wrong]
    comparable = not {"type", "dtype", "shape", "device", "layout"} & set(wrong)
    return found + (_value_differences(eager, jitted, where) if comparable else [])


def _metadata(tensor: Tensor) -> dict[str, Any]:
    """What must be equal apart from the values. `leaf` only says something where gradients flow."""
    strided = tensor.layout is torch.strided and not tensor.is_nested
    return {
        "type": type(tensor).__name__,
        "dtype": tensor.dtype,
        "shape": str(tensor.size()) if tensor.is_nested else tuple(tensor.shape),
        "device": tensor.device,
        "layout": tensor.layout,
        "strides": tensor.stride() if strided else None,
        "requires_grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "conj bit": tensor.is_conj(),
        "neg bit": tensor.is_neg(),
        "coalesced": tensor.is_coalesced() if tensor.layout is torch.sparse_coo else None,
    }


def _value_differences(eager: Tensor, jitted: Tensor, where: str) -> list[Difference]:
    if eager.device.type == "meta":
        return []
    eager, jitted = eager.detach(), jitted.detach()
    for part in SPARSE_PARTS.get(eager.layout, ()):
        found = differences(getattr(eager, part)(), getattr(jitted, part)(), f"{where}.{part}()")
        if found:
            return found
    if eager.layout is not torch.strided:
        return []
    if eager.is_nested:
        return differences(eager.unbind(), jitted.unbind(), where)
    if eager.is_quantized:
        return differences((eager.int_repr(), eager.dequantize()), (jitted.int_repr(), jitted.dequantize()), where)
    wrong = ~_same_bits(eager, jitted)
    return [Difference(where, "values differ", _how_far(eager, jitted, wrong))] if wrong.any() else []


def _same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Which elements have the same bits; one NaN is as good as another, but -0.0 is not 0.0."""
    a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    if a.is_complex():
        return _same_bits(torch.view_as_real(a), torch.view_as_real(b)).all(-1)
    integer = INTEGER_OF_SIZE[a.dtype.itemsize]
    same = a.contiguous().view(integer) == b.contiguous().view(integer)
    if not a.dtype.is_floating_point:
        return same
    return same | (a.to(torch.float64).isnan() & b.to(torch.float64).isnan())


def _how_far(eager: Tensor, jitted: Tensor, wrong: Tensor) -> str:
    kind = torch.complex128 if eager.is_complex() else torch.float64
    errors = (eager.to(kind) - jitted.to(kind)).abs()[wrong]
    largest = max((e for e in errors.tolist() if not math.isnan(e)), default=math.nan)
    first = tuple(wrong.nonzero()[0].tolist())
    values = f"eager {eager[first].item()!r}, jitted {jitted[first].item()!r}"
    return f"{int(wrong.sum())} of {wrong.numel()}, largest error {largest:.3g}, first at {list(first)}: {values}"
