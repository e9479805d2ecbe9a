"""Gradient rules of symbols: an augmented forward and a backward that replace what autograd would do."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._library import simple_registry
from torch._library.custom_ops import OPDEFS

from fulgurite.ir import Symbol
from fulgurite.ir.symbol import callable_of, overloads_of


@dataclass
class Rule:
    """The two halves of a gradient rule; either may be registered first."""

    name: str
    augmented_forward: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None


_rules: dict[Any, Rule] = {}

changes = 0
"""How often a rule was registered or forgotten; traces that were made before are made again."""


def _register(target: Any, half: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    key = callable_of(target)
    rule = _rules.setdefault(key, Rule(getattr(target, "name", None) or str(key)))
    setattr(rule, half, fn)
    _changed()
    return fn


def register_augmented_forward(symbol: Symbol | Callable[..., Any]) -> Callable[..., Any]:
    """Register, as a decorator, how a symbol runs when its gradient may be asked for.

    The decorated function takes the call's arguments and returns `(output, saved)`: the symbol's output (a tensor or
    a tuple of tensors) and a tuple of what the backward needs (tensors or anything else). It is written in torch and
    is traced. It counts only once a backward is registered too.

    Args:
        symbol: a Symbol, or the torch function or operator itself, as the program calls it.
    """
    return functools.partial(_register, symbol, "augmented_forward")


def register_backward(symbol: Symbol | Callable[..., Any]) -> Callable[..., Any]:
    """Register, as a decorator, how the gradients of a symbol are made.

    The decorated function takes what the augmented forward saved, then one cotangent for each output (None where an
    output is unused), and returns one gradient for each positional argument of the call, None for those that have
    none; a single gradient need not be in a tuple. A gradient has the shape of its argument.
    """
    return functools.partial(_register, symbol, "backward")


def deregister(symbol: Symbol | Callable[..., Any]) -> None:
    """Forget the rules of a symbol."""
    _rules.pop(callable_of(symbol), None)
    _changed()


def _changed() -> None:
    global changes
    changes += 1


def rule_for(fn: Callable[..., Any]) -> Rule | None:
    """The complete rule of a function that the program calls; None for nearly all."""
    if not _rules:
        return None
    found = _rules.get(fn)
    if found is None and isinstance(fn, torch._ops.OpOverloadPacket):
        found = next((_rules[op] for op in overloads_of(fn) if op in _rules), None)
    if found is None and isinstance(fn, torch._ops.OpOverload):
        found = _rules.get(fn.overloadpacket)
    return found if found and found.augmented_forward and found.backward else None


def formula_of(op: Any) -> tuple[Any, ...]:
    """What a custom op's gradient and metadata come from; another value when the user registers something new.

    Private: `torch.library` has no public way to ask what is registered.
    """
    name = op._schema.name
    found = OPDEFS.get(name)
    entry = simple_registry.singleton.find(name)
    definition = (found._setup_context_fn, found._backward_fn, found._abstract_fn) if found else ()
    kernels = tuple(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in ("Autograd", "Meta"))
    return (*definition, *kernels, entry.fake_impl.kernel)


class RuleFunction(torch.autograd.Function):
    """A rule as an autograd function: `RuleFunction.apply(rule, kwargs, *args)`."""

    @staticmethod
    def forward(ctx: Any, rule: Rule, kwargs: dict[str, Any], *args: Any) -> Any:
        assert rule.augmented_forward is not None
        output, saved = rule.augmented_forward(*args, **kwargs)
        ctx.rule, ctx.count = rule, len(args)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(value for value in saved if isinstance(value, torch.Tensor)))
        ctx.other = [None if isinstance(value, torch.Tensor) else (value,) for value in saved]
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        tensors = iter(ctx.saved_tensors)
        saved = [next(tensors) if other is None else other[0] for other in ctx.other]
        grads = ctx.rule.backward(*saved, *cotangents)
        grads = tuple(grads) if isinstance(grads, (tuple, list)) else (grads,)
        if len(grads) > ctx.count:
            raise RuntimeError(f"backward of {ctx.rule.name} returned {len(grads)} gradients for {ctx.count} arguments")
        return (None, None, *grads, *[None] * (ctx.count - len(grads)))
