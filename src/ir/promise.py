"""What a call was promised to return, against what it returned: fake kernels of custom ops may lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fulgurite.ir.proxy import TensorProxy
from fulgurite.ir.tree import leaves

if TYPE_CHECKING:
    from fulgurite.ir.trace import BoundSymbol


def broken_promise(bsym: BoundSymbol, out: Any) -> str | None:
    """What is wrong with the metadata of `out` as the result of a custom op's call, and how to mend it."""
    found, promised = list(leaves(out)), list(leaves(bsym.output))
    if len(found) == len(promised) and not any(map(_differs, found, promised)):
        return None
    where = f"{bsym.source.file}:{bsym.source.line}: " if bsym.source else ""
    schema = bsym.symbol.schema
    name = schema.name if schema else bsym.symbol.name.removeprefix("torch.ops.").replace(".", "::", 1)
    return (
        f"{where}the fake kernel of {bsym.symbol.name} promises {_types(promised)}, but the op returned "
        f'{_types(found)}; mend what torch.library.register_fake("{name}") was given'
    )


def _differs(value: Any, proxy: Any) -> bool:
    if not isinstance(proxy, TensorProxy) or not isinstance(value, torch.Tensor):
        return isinstance(proxy, TensorProxy) != isinstance(value, torch.Tensor)
    same = tuple(value.shape) == proxy.shape and value.dtype is proxy.dtype and value.device == proxy.device
    return not same or (
        value.numel() > 0 and _strides(value) != [s for n, s in zip(proxy.shape, proxy.stride or ()) if n > 1]
    )


def _strides(value: torch.Tensor) -> list[int]:
    """Strides of the dimensions in which there is more than one element."""
    return [s for n, s in zip(value.shape, value.stride()) if n > 1] if value.layout is torch.strided else []


def _types(values: list[Any]) -> str:
    return ", ".join(map(_type, values))


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        stride = tuple(value.stride()) if value.layout is torch.strided else None
        value = TensorProxy("", tuple(value.shape), stride, value.dtype, value.device, layout=value.layout)
    if isinstance(value, TensorProxy):
        return f"{value.type_string} with strides {list(value.stride or ())}"
    return repr(value)
