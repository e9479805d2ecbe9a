"""Fulgurite: a small tracing JIT compiler for PyTorch.

>>> import torch, fulgurite as fg
>>> model = fg.jit(torch.nn.Linear(4, 2))
>>> model(torch.ones(3, 4)).shape
torch.Size([3, 2])
"""

import importlib
from typing import Any

from fulgurite.custom_op import deregister_custom_op, register_custom_op
from fulgurite.executors.base import Executor, FusionExecutor, OperatorExecutor, get_executor, register_executor
from fulgurite.ir import BoundSymbol, NumberProxy, Symbol, TensorProxy, Trace, symbol_of
from fulgurite.ir.errors import DiffersFromEager, InvalidTrace, TraceError
from fulgurite.jit import Stages, assert_max_traces, last_trace, make_trace, stats, traces
from fulgurite.jit import jit as jit
from fulgurite.opcheck import Check, OpReport, opcheck
from fulgurite.specialisations import Stats
from fulgurite.trace.rules import register_augmented_forward, register_backward

__version__ = "0.1.0"

_TOOLS = {"draw": "fulgurite.tools.draw"}


def __getattr__(name: str) -> Any:
    """Tools are loaded when first asked for: they stand above this package and import it."""
    if name in _TOOLS:
        return getattr(importlib.import_module(_TOOLS[name]), name)
    raise AttributeError(f"module 'fulgurite' has no attribute {name!r}")


__all__ = [
    "BoundSymbol",
    "Check",
    "DiffersFromEager",
    "Executor",
    "FusionExecutor",
    "InvalidTrace",
    "NumberProxy",
    "OpReport",
    "OperatorExecutor",
    "Stages",
    "Stats",
    "Symbol",
    "TensorProxy",
    "Trace",
    "TraceError",
    "assert_max_traces",
    "deregister_custom_op",
    "draw",
    "get_executor",
    "jit",
    "last_trace",
    "make_trace",
    "opcheck",
    "register_augmented_forward",
    "register_backward",
    "register_custom_op",
    "register_executor",
    "stats",
    "symbol_of",
    "traces",
]
