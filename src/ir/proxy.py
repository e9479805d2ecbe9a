"""Proxies: the named values of a trace."""

import re
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def short_dtype(dtype: torch.dtype) -> str:
    """The dtype as traces print it.

    >>> short_dtype(torch.float32), short_dtype(torch.float8_e5m2)
    ('f32', 'float8_e5m2')
    """
    name = str(dtype).removeprefix("torch.")
    kind = re.fullmatch(r"([a-z]+)(\d+)", name)
    return "b8" if dtype is torch.bool else _SHORT[kind[1]] + kind[2] if kind and kind[1] in _SHORT else name


@dataclass(frozen=True)
class TensorProxy:
    """A tensor of a trace: metadata without data.

    `storage` numbers the memory behind it: two proxies of one trace with the same number alias. `stride` and
    `offset` count elements and are None where the layout has none (sparse tensors). `bits` names the lazy bits that
    are set, `conj` or `neg`.
    """

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False
    storage: int = -1
    offset: int | None = 0
    layout: torch.layout = torch.strided
    bits: str = ""

    @property
    def type_string(self) -> str:
        """
        >>> TensorProxy("x", (4, 64), (64, 1), torch.float32, torch.device("cpu")).type_string
        'cpu f32[4, 64]'
        """
        dims = ", ".join(map(str, self.shape))
        layout = "" if self.layout is torch.strided else f" {str(self.layout).removeprefix('torch.')}"
        bits = f" {self.bits}" if self.bits else ""
        return f"{self.device} {short_dtype(self.dtype)}[{dims}]{layout}{bits}"

    def same_view(self, other: "TensorProxy") -> bool:
        """Whether both name the same elements of the same memory in the same shape and dtype."""
        return replace(self, name=other.name, device=other.device, requires_grad=other.requires_grad) == other


@dataclass(frozen=True)
class NumberProxy:
    """A Python number that is known only when the trace runs (what an op that returns a number gives)."""

    name: str
    kind: type = int
    storage: int = -1
    requires_grad: ClassVar[bool] = False
    grad_fn: ClassVar[None] = None
    retains_grad: ClassVar[bool] = False

    @property
    def type_string(self) -> str:
        return self.kind.__name__


Proxy = TensorProxy | NumberProxy


def is_proxy(value: object) -> bool:
    """Whether `value` is a named value of a trace."""
    return isinstance(value, (TensorProxy, NumberProxy))
