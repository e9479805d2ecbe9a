"""The IR: frozen data that knows nothing of how traces are recorded, transformed or run."""

from fulgurite.ir.proxy import NumberProxy, Proxy, TensorProxy, is_proxy
from fulgurite.ir.symbol import Symbol, symbol_of
from fulgurite.ir.trace import BoundSymbol, Source, Trace

__all__ = ["BoundSymbol", "NumberProxy", "Proxy", "Source", "Symbol", "TensorProxy", "Trace", "is_proxy", "symbol_of"]
