"""The torch executor: runs every call as eager PyTorch does, by the cheapest callable with the same bits."""

from collections.abc import Callable
from dataclasses import replace
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fulgurite.executors.base import Executor, register_executor
from fulgurite.ir import BoundSymbol, Symbol, TensorProxy, Trace
from fulgurite.ir.modes import outside_all_modes
from fulgurite.ir.tree import leaves, map_leaves

_cheaper: dict[Any, Symbol] = {}


class TorchExecutor(Executor):
    """Comes last and runs everything.

    A call of the program runs as the program made it, unless that would not repeat what was recorded: a call that ran
    autograd inside runs as its subsymbols. A dispatcher call runs through the builtin of its name (`torch.add` for
    `torch.ops.aten.add.Tensor`, 1 µs less) where that makes exactly this one dispatcher call with these arguments.
    """

    def claim(self, trace: Trace) -> Trace:
        calls: list[BoundSymbol] = []
        for bsym in trace.bound_symbols:
            opened = bsym.all_tags & {"autograd", "open"} and bsym.symbol.executor is None
            calls.extend(map(_cheapest, bsym.flat() if opened else (bsym,)))
        return trace.after("claim_torch", calls)


def _cheapest(bsym: BoundSymbol) -> BoundSymbol:
    op = bsym.symbol.fn
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        return bsym
    key = (op, _signature(bsym))
    if key not in _cheaper:
        _cheaper[key] = _find_builtin(op, bsym) or bsym.symbol
    return replace(bsym, symbol=_cheaper[key])


def _signature(bsym: BoundSymbol) -> str:
    """What overload resolution looks at: the kinds of the arguments, and how they are nested."""
    return repr(map_leaves(_kind, [list(bsym.args), dict(bsym.kwargs)]))


def _kind(leaf: Any) -> str:
    if isinstance(leaf, TensorProxy):
        return f"{leaf.dtype}{len(leaf.shape)}"
    return type(leaf).__name__ if isinstance(leaf, (int, float, complex)) else repr(leaf)


def _find_builtin(op: torch._ops.OpOverload, bsym: BoundSymbol) -> Symbol | None:
    name = op._schema.name.split("::")[1]
    for owner, prefix in ((torch, "torch"), (torch._C._nn, "torch._C._nn"), (torch.Tensor, "torch.Tensor")):
        candidate: Any = getattr(owner, name, None)
        if isinstance(candidate, (BuiltinFunctionType, MethodDescriptorType)) and _makes_only(candidate, op, bsym):
            return Symbol(f"{prefix}.{name}", candidate, tags=bsym.symbol.tags, executor="torch")
    return None


class _Capture(TorchDispatchMode):
    """Notes the dispatcher calls that reach it, and runs none of them."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []
        self.output = output

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return self.output


def _makes_only(candidate: Callable[..., Any], op: torch._ops.OpOverload, bsym: BoundSymbol) -> bool:
    """Whether `candidate` makes the recorded dispatcher call and no other, tried on stand-ins without data."""
    if bsym.all_tags & {"mutates", "random"} or bsym.symbol.tags & {"custom"}:
        return False
    stand_ins: dict[str, torch.Tensor] = {}
    with outside_all_modes(), torch.no_grad():
        try:
            args, kwargs = map_leaves(lambda leaf: _stand_in(leaf, stand_ins), (bsym.args, dict(bsym.kwargs)))
            output = map_leaves(lambda leaf: _stand_in(leaf, stand_ins), bsym.output)
            with _Capture(output) as seen:
                candidate(*args, **kwargs)
        except Exception:  # no stand-ins for this layout, or the builtin takes no such arguments
            return False
    if len(seen.calls) != 1 or seen.calls[0][0] is not op:
        return False
    return _normal(op, *seen.calls[0][1:]) == _normal(op, args, kwargs)


def _stand_in(leaf: Any, made: dict[str, torch.Tensor]) -> Any:
    if not isinstance(leaf, TensorProxy):
        return leaf
    if leaf.name not in made:
        if leaf.stride is None:
            raise TypeError("only strided tensors have stand-ins")
        made[leaf.name] = torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device="meta")
    return made[leaf.name]


def _normal(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> list[Any]:
    """The arguments in schema order with defaults filled in; tensors by identity."""
    values = []
    for i, argument in enumerate(op._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
        values.append([id(leaf) if isinstance(leaf, torch.Tensor) else (type(leaf), leaf) for leaf in leaves(value)])
    return values


TORCH = TorchExecutor("torch")
register_executor(TORCH)
