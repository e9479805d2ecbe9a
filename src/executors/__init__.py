"""From trace to callable: executors claim calls, and what they claim becomes one Python function."""

from fulgurite.executors.base import (
    Executor,
    FusionExecutor,
    OperatorExecutor,
    claim_all,
    get_executor,
    register_executor,
)
from fulgurite.executors.codegen import compile_trace
from fulgurite.executors.torch_eager import TORCH

__all__ = [
    "TORCH",
    "Executor",
    "FusionExecutor",
    "OperatorExecutor",
    "claim_all",
    "compile_trace",
    "get_executor",
    "register_executor",
]
