"""Grad mode inside custom ops: a body in Python may ask for it, `x.numpy()` does."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

import torch

from fulgurite.ir import BoundSymbol, Trace


def without_grad_inside(trace: Trace, differentiable: Set[str]) -> Trace:
    """The trace with grad mode off in those custom ops, and implementations of users, that take one of these values.

    Eager runs the body of an op with an autograd formula so, since that is inside of an `autograd.Function`.
    """

    def quiet(bsym: BoundSymbol) -> BoundSymbol:
        symbol = bsym.symbol
        users = "custom" in symbol.tags or symbol.executor not in (None, "torch")
        if not users or not any(p.name in differentiable for p in bsym.inputs):
            return bsym
        return replace(bsym, symbol=replace(symbol, fn=_without_grad(symbol.fn)))

    return replace(trace, bound_symbols=tuple(map(quiet, trace.bound_symbols)))


def _without_grad(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return fn(*args, **kwargs)

    return call
