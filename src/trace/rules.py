"""Gradient rules of symbols: an augmented forward and a backward that replace what autograd would do."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._library.utils import fill_defaults  # private: what torch.library itself fills defaults with
from torch.autograd.function import FunctionCtx

from fulgurite.ir import Symbol
from fulgurite.ir.symbol import callable_of, definition_of, fake_kernel_of, overloads_of
from fulgurite.ir.tree import leaves, map_leaves


@dataclass
class Rule:
    """The two halves of a gradient rule; either may be registered first, or alone."""

    fn: Any
    name: str
    augmented_forward: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None

    @property
    def formula(self) -> Any:
        """The definition of a custom op with an autograd formula of its own, or None."""
        found = definition_of(self.fn)
        return found if found is not None and found._backward_fn is not None else None

    @property
    def is_complete(self) -> bool:
        """Whether the rule can run: it has a backward, or one half and the op's own formula."""
        return self.backward is not None or (self.augmented_forward is not None and self.formula is not None)

    def run_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Output and what is saved, as the registered forward gives them, or the symbol itself."""
        if self.augmented_forward is None:
            output = self.fn(*args, **kwargs)
            return output, (args, output)
        output, saved = self.augmented_forward(*args, **kwargs)
        return output, saved if self.backward is not None else self._set_up_context(args, kwargs, output)

    def run_backward(self, saved: tuple[Any, ...], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """One gradient for each positional argument, as the registered backward or the op's formula gives them."""
        if self.backward is not None:
            grads = self.backward(*saved, *cotangents)
        else:
            context = Context()
            context.__dict__, context.saved_tensors = saved
            grads = self.formula._backward_fn(context, *cotangents)
        return tuple(grads) if isinstance(grads, tuple) else (grads,)

    def _set_up_context(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> tuple[Any, ...]:
        context, setup = Context(), self.formula._setup_context_fn
        args, kwargs = fill_defaults(self.fn._schema, args, kwargs)
        context.needs_input_grad = tuple(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
        if setup is not None:
            keyword_only = {"keyword_only_inputs": kwargs} if kwargs else {}
            setup(ctx=context, inputs=args, output=output, **keyword_only)
        saved = context.__dict__.pop("saved_tensors", ())
        return context.__dict__, saved


class Context(FunctionCtx):
    """What an op's own `setup_context` and `backward` see as `ctx` when one half of its rule is replaced."""

    saved_tensors: tuple[Any, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        self.saved_tensors = tensors


_rules: dict[Any, Rule] = {}

changes = 0
"""How often a rule was registered or forgotten; traces that were made before are made again."""


def _register(target: Any, half: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    key = callable_of(target)
    rule = _rules.setdefault(key, Rule(key, getattr(target, "name", None) or str(key)))
    setattr(rule, half, fn)
    _changed()
    return fn


def register_augmented_forward(symbol: Symbol | Callable[..., Any]) -> Callable[..., Any]:
    """Register, as a decorator, how a symbol runs when its gradient may be asked for.

    The decorated function takes the call's arguments and returns `(output, saved)`: the symbol's output (a tensor, or
    a tuple or list of tensors) and a tuple of what the backward needs (tensors, anything else, and lists, tuples and
    dicts of them). It is written in torch and is traced; inside of it, the symbol itself is the ordinary one.

    Without a registered backward, the backward is the autograd formula that the custom op has: its `setup_context`
    gets the arguments and this function's output, and what this function saves is not used.

    Args:
        symbol: a Symbol, or the torch function or operator itself, as the program calls it.
    """
    return functools.partial(_register, symbol, "augmented_forward")


def register_backward(symbol: Symbol | Callable[..., Any]) -> Callable[..., Any]:
    """Register, as a decorator, how the gradients of a symbol are made.

    The decorated function takes what the augmented forward saved, then one cotangent for each output: of the output's
    shape, None where it is unused; a list for an output that is a list. It returns one gradient for each positional
    argument, of the argument's shape, or None: for a list of tensors a list. Those at the end that are None may be left
    out, and a single gradient need not be in a tuple. Arguments that the caller named count as positional where the
    signature tells their place; other named tensors follow, in the order of the call.

    Without a registered augmented forward, the symbol itself runs, and what is saved is `(args, output)`.

    Raises, when the gradient is asked for:
        RuntimeError: too many or too few gradients, or one of another shape; names the symbol and the argument.
    """
    return functools.partial(_register, symbol, "backward")


def deregister(symbol: Symbol | Callable[..., Any]) -> None:
    """Forget the rules of a symbol."""
    if _rules.pop(callable_of(symbol), None) is not None:
        _changed()


def _changed() -> None:
    global changes
    changes += 1


def rule_for(fn: Callable[..., Any]) -> Rule | None:
    """The rule of a function that the program calls; None for nearly all."""
    if not _rules:
        return None
    found = _rules.get(fn)
    if found is None and isinstance(fn, torch._ops.OpOverloadPacket):
        found = next((_rules[op] for op in overloads_of(fn) if op in _rules), None)
    if found is None and isinstance(fn, torch._ops.OpOverload):
        found = _rules.get(fn.overloadpacket)
    return found if found is not None and found.is_complete else None


def formula_of(op: Any) -> tuple[Any, ...]:
    """What a custom op's gradient and metadata come from; another value when the user registers something new.

    Private: `torch.library` has no public way to ask what is registered.
    """
    found = definition_of(op)
    definition = (found._setup_context_fn, found._backward_fn) if found else ()
    kernels = tuple(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in ("Autograd", "Meta"))
    return (*definition, *kernels, fake_kernel_of(op))


@dataclass
class _Call:
    """A call's arguments with the positions of its tensors in place of them, and the structure of its output."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None

    def arguments(self, fn: Callable[..., Any]) -> list[tuple[str, Any]]:
        """Those that gradients are returned for, by name: positional ones, omitted ones too, then keyword tensors."""
        names = [*argument_names(fn)]
        names += [str(i) for i in range(len(names), len(self.args))]
        given = itertools.zip_longest(names, self.args)
        named = [(key, value) for key, value in self.kwargs.items() if any(isinstance(v, _Slot) for v in leaves(value))]
        return [*given, *named]


@dataclass(frozen=True)
class _Slot:
    index: int


def call_with_rule(rule: Rule, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a symbol by its rule; autograd sees the rule's backward."""
    args, kwargs = _positional(fn, args, kwargs)
    tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    call = _Call(*_emptied((args, kwargs)))
    found = iter(RuleFunction.apply(rule, call, *tensors))
    return map_leaves(lambda leaf: next(found) if isinstance(leaf, _Slot) else leaf, call.output)


def _emptied(tree: Any) -> Any:
    count = itertools.count()
    return map_leaves(lambda leaf: _Slot(next(count)) if isinstance(leaf, torch.Tensor) else leaf, tree)


def _filled(tree: Any, tensors: tuple[Any, ...]) -> Any:
    return map_leaves(lambda leaf: tensors[leaf.index] if isinstance(leaf, _Slot) else leaf, tree)


def _positional(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments with those that were named put in their places, as far as the signature tells."""
    names = list(argument_names(fn))
    args, kwargs = tuple(args), dict(kwargs)
    while len(args) < len(names) and names[len(args)] in kwargs:
        args = (*args, kwargs.pop(names[len(args)]))
    return args, kwargs


def argument_names(fn: Callable[..., Any]) -> Iterator[str]:
    """Names of what may be passed by position: from an operator's schema or a function's signature."""
    if isinstance(fn, torch._ops.OpOverloadPacket) and len(fn.overloads()) == 1:
        (fn,) = overloads_of(fn)
    if isinstance(fn, torch._ops.OpOverload):
        yield from (argument.name for argument in fn._schema.arguments if not argument.kwarg_only)
        return
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return
    yield from (p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


class RuleFunction(torch.autograd.Function):
    """A rule as an autograd function: `RuleFunction.apply(rule, call, *tensors)`, all outputs in a tuple."""

    @staticmethod
    def forward(ctx: Any, rule: Rule, call: _Call, *tensors: torch.Tensor) -> Any:
        args, kwargs = _filled((call.args, call.kwargs), tensors)
        output, saved = rule.run_forward(args, kwargs)
        call.output = _emptied(output)
        ctx.rule, ctx.call, ctx.saved = rule, call, _emptied(saved)
        ctx.shapes = [tensor.shape for tensor in tensors]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(leaf for leaf in leaves(saved) if isinstance(leaf, torch.Tensor)))
        return tuple(leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor))

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        rule, call = ctx.rule, ctx.call
        given = _filled(call.output, cotangents)
        grads = rule.run_backward(
            _filled(ctx.saved, ctx.saved_tensors), given if isinstance(given, tuple) else (given,)
        )
        found: list[Any] = [None] * len(ctx.shapes)
        arguments = call.arguments(rule.fn)
        if len(grads) > len(arguments):
            raise RuntimeError(
                f"the backward of {rule.name} returned {len(grads)} gradients for {len(arguments)} arguments"
            )
        for i, (name, argument) in enumerate(arguments):
            slots = [leaf for leaf in leaves(argument) if isinstance(leaf, _Slot)]
            needed = any(ctx.needs_input_grad[2 + slot.index] for slot in slots)
            if i >= len(grads) and needed:
                raise RuntimeError(f"the backward of {rule.name} returned no gradient for its argument '{name}'")
            grad = grads[i] if i < len(grads) else None
            for slot, part in zip(slots, [None] * len(slots) if grad is None else leaves(grad)):
                _check_shape(rule, name, part, ctx.shapes[slot.index])
                found[slot.index] = part
        return (None, None, *found)


def _check_shape(rule: Rule, name: str, grad: Any, shape: torch.Size) -> None:
    if grad is not None and (not isinstance(grad, torch.Tensor) or grad.shape != shape):
        is_one = list(grad.shape) if isinstance(grad, torch.Tensor) else type(grad).__name__
        raise RuntimeError(
            f"the backward of {rule.name} returned a gradient of shape {is_one} for its argument '{name}' of shape "
            f"{list(shape)}"
        )
