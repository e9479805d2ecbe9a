"""Backward formulas in Python that can't be recorded: kept as one call that runs the formula itself.

A formula (of a custom op or an `autograd.Function`) is recorded by running it on fake tensors. Where it branches on a
value, leaves torch, or raises, the trace gets one call of it instead, with what its `ctx` held as arguments; so what it
raises is raised when backward is called, as in eager.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import FunctionCtx

from fulgurite.ir import Symbol

if TYPE_CHECKING:
    from fulgurite.trace.recorder import Recorder


class _Context(FunctionCtx):
    """What a formula sees as `ctx` when it runs from a trace."""

    def __init__(self, attributes: dict[str, Any], saved: tuple[Any, ...], needs: tuple[bool, ...]) -> None:
        self.__dict__.update(attributes)
        self.saved_tensors = saved
        self.needs_input_grad = needs


def apply_or_keep(recorder: Recorder, apply: Callable[..., Any]) -> Callable[..., Any]:
    """`apply` of autograd's Python nodes, with the call kept whole where it can't be recorded."""

    thread = threading.get_ident()

    def recorded_apply(node: Any, *cotangents: Any) -> Any:
        if not recorder.backward_phase or threading.get_ident() != thread:
            return apply(node, *cotangents)
        if recorder.entered is not None and node not in recorder.entered:
            return (None,) * len(node.needs_input_grad)
        before = len(recorder.calls)
        try:
            return apply(node, *cotangents)
        except Exception:
            recorder.failure = None
            del recorder.calls[before:]
            return _keep(recorder, node, cotangents)

    return recorded_apply


def _keep(recorder: Recorder, node: Any, cotangents: tuple[Any, ...]) -> Any:
    formula: Callable[..., Any] = node._forward_cls.backward
    needs = tuple(node.needs_input_grad)
    edges = (edge for edge in node.next_functions if edge[0] is not None)  # of the tensors that need a gradient
    tensors = [_like(recorder, *next(edges)) if need else None for need in needs]

    def run(attributes: dict[str, Any], saved: Any, *given: Any) -> list[torch.Tensor | None]:
        found = formula(_Context(attributes, tuple(saved), needs), *given)
        found = found if isinstance(found, tuple) else (found,)
        return [_laid_out(new, old) for new, old in zip(found, tensors)]

    symbol = Symbol(f"{node._forward_cls.__name__}.backward", run, tags=frozenset({"custom"}))
    recorder.note(symbol, (dict(vars(node)), list(node.saved_tensors), *cotangents), tensors)
    return tuple(tensors)


def _like(recorder: Recorder, node: Any, index: int) -> torch.Tensor:
    wanted = node._input_metadata[index]
    with recorder.fake_mode, torch.no_grad():
        return torch.empty(tuple(wanted.shape), dtype=wanted.dtype, device=wanted.device)


def _laid_out(found: torch.Tensor | None, planned: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient in the layout that the trace was told."""
    if found is None or planned is None:
        return None
    if found.shape != planned.shape:
        raise RuntimeError(f"a formula returned a gradient of shape {list(found.shape)} for {list(planned.shape)}")
    return found.contiguous()
