"""Proxies: the named values of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def short_dtype(dtype: torch.dtype) -> str:
    """The dtype as traces print it.

    >>> short_dtype(torch.float32), short_dtype(torch.float8_e5m2)
    ('f32', 'float8_e5m2')
    """
    return _SHORT.get(dtype) or str(dtype).removeprefix("torch.")


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

    @property
    def nbytes(self) -> int:
        """Bytes of the elements (not of the storage, which a view may share)."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize

    def same_view(self, other: TensorProxy) -> bool:
        """Whether both name the same elements of the same memory in the same shape and dtype."""
        fields = ("storage", "shape", "stride", "offset", "dtype", "layout", "bits")
        return all(getattr(self, name) == getattr(other, name) for name in fields)


@dataclass(frozen=True)
class NumberProxy:
    """A Python number that is known only when the trace runs (what an op that returns a number gives)."""

    name: str
    kind: type = int
    storage: int = -1

    @property
    def type_string(self) -> str:
        return self.kind.__name__


Proxy = TensorProxy | NumberProxy


def is_proxy(value: object) -> bool:
    """Whether `value` is a named value of a trace."""
    return isinstance(value, (TensorProxy, NumberProxy))
