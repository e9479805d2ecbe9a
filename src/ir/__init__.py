"""The IR: frozen data that knows nothing of how traces are recorded, transformed or run."""

from fulgurite.ir.printer import DELETE
from fulgurite.ir.proxy import NumberProxy, Proxy, TensorProxy, is_proxy
from fulgurite.ir.symbol import Symbol, symbol_of
from fulgurite.ir.trace import BoundSymbol, Provenance, Source, Trace
from fulgurite.ir.verify import InvalidTrace

__all__ = [
    "DELETE",
    "BoundSymbol",
    "InvalidTrace",
    "NumberProxy",
    "Provenance",
    "Proxy",
    "Source",
    "Symbol",
    "TensorProxy",
    "Trace",
    "is_proxy",
    "symbol_of",
]
