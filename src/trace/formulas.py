"""Autograd formulas that take another path for a recording's stand-ins than for plain tensors.

Some of PyTorch's formulas ask whether a tensor is "subclass-like", which a stand-in is, and so is every tensor while a
dispatch mode is active: then they look at no data and compute the gradient in another order. Such a formula can't be
recorded; the trace keeps one call for it, which runs the operation again under autograd and asks for its gradient.

Which ones do is found out, not listed: a formula's own autograd graph (of the gradient, under `create_graph`) differs
with a dispatch mode active.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fulgurite.ir import BoundSymbol, Symbol, TensorProxy
from fulgurite.ir.modes import keeping_random_state, outside_all_modes
from fulgurite.ir.tree import leaves, map_leaves

if TYPE_CHECKING:
    from fulgurite.trace.recorder import Recorder

_SIDE, _LARGE = 3, 4096
"""Trials of calls on more elements than the latter are made with no side longer than the former."""


@contextmanager
def kept_formulas(recorder: Recorder, calls: Sequence[BoundSymbol], roots: Sequence[torch.Tensor]) -> Iterator[None]:
    """Keep formulas that can't be recorded, in the backward recorded in this block from the results of calls."""
    makers = {p.name: call for bsym in calls for call in bsym.flat() for p in call.outputs}
    handles: list[Any] = []
    for node in _nodes(root.grad_fn for root in roots):
        call = makers.get(recorder.forward_of(node) or "")
        if call is not None and _looks_at_kind(recorder, call):
            handles.extend(_keep(recorder, node, call))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _nodes(roots: Iterator[Any]) -> Iterator[Any]:
    queue = [root for root in roots if root is not None]
    seen = set(queue)
    while queue:
        node = queue.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                queue.append(following)


def _keep(recorder: Recorder, node: Any, call: BoundSymbol) -> Iterator[Any]:
    """Hooks that replace what an autograd node records by one call."""
    tensors = [leaf for leaf in leaves((call.args, dict(call.kwargs))) if isinstance(leaf, TensorProxy)]
    needed = [i for i, proxy in enumerate(tensors) if recorder.tensors[proxy.name].requires_grad]
    edges = [i for i, (following, _) in enumerate(node.next_functions) if following is not None]
    if len(edges) != len(needed):
        return
    starts: list[int] = []

    def start(cotangents: Any) -> None:
        starts.append(len(recorder.calls))

    def replace_calls(gradients: Any, cotangents: Any) -> None:
        del recorder.calls[starts.pop() :]
        symbol = Symbol(f"{call.symbol.name}.gradient", _gradient_of(call.symbol.fn, needed), frozenset({"autograd"}))
        recorder.note(symbol, (call.args, dict(call.kwargs), list(cotangents)), [gradients[i] for i in edges])

    yield node.register_prehook(start)
    yield node.register_hook(replace_calls)


def _gradient_of(op: Callable[..., Any], needed: Sequence[int]) -> Callable[..., Any]:
    """A function of arguments and cotangents that gives the gradients of `op` for these of its tensors."""

    def gradient(args: Any, kwargs: Any, cotangents: Sequence[Any]) -> list[Any]:
        builds_graph = torch.is_grad_enabled()
        given: list[torch.Tensor] = []

        def begin(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                index = len(given)
                follows = builds_graph and leaf.requires_grad
                given.append(leaf.view_as(leaf) if follows else leaf.detach().requires_grad_(index in needed))
                return given[-1]
            return leaf

        with torch.enable_grad():
            args, kwargs = map_leaves(begin, (args, kwargs))
            out = [leaf for leaf in leaves(op(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
        pairs = [(value, cotangent) for value, cotangent in zip(out, cotangents) if cotangent is not None]
        wanted = [given[i] for i in needed]
        found = torch.autograd.grad(
            [value for value, _ in pairs],
            wanted,
            [cotangent for _, cotangent in pairs],
            create_graph=builds_graph,
            allow_unused=True,
        )
        return list(found)

    return gradient


def _looks_at_kind(recorder: Recorder, call: BoundSymbol) -> bool:
    """Whether the formula of a call asks of what kind its tensors are."""
    op = call.symbol.fn
    if not isinstance(op, torch._ops.OpOverload) or not call.is_pure or "view" in call.all_tags:
        return False
    known = {
        p.name: replace(p, requires_grad=recorder.tensors[p.name].requires_grad)
        for p in call.inputs
        if isinstance(p, TensorProxy)
    }
    call = call.renamed(known)  # below autograd, where they were recorded, intermediate values require no grad
    if _is_large(call) and any(type(leaf) is int and leaf > _SIDE for leaf in leaves((call.args, dict(call.kwargs)))):
        return False  # a number that may tell a size: with smaller tensors, kernels that trust it crash
    return _differs(op, repr(map_leaves(_kind, [list(call.args), dict(call.kwargs)])), _Arguments(call))


def _is_large(call: BoundSymbol) -> bool:
    return sum(math.prod(p.shape) for p in call.inputs if isinstance(p, TensorProxy)) > _LARGE


class _Arguments:
    """A call's arguments; all are equal, so that they don't count in a cache."""

    def __init__(self, call: BoundSymbol) -> None:
        self.call = call

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Arguments)

    def __hash__(self) -> int:
        return 0


def _kind(leaf: Any) -> str:
    if isinstance(leaf, TensorProxy):
        return f"{leaf.dtype}{len(leaf.shape)}{leaf.requires_grad}"
    return type(leaf).__name__


@functools.lru_cache(maxsize=4096)
def _differs(op: torch._ops.OpOverload, kinds: str, arguments: _Arguments) -> bool:
    """Whether the formula of an op does something else while a dispatch mode is active, tried on small tensors."""
    with outside_all_modes(), torch._C.DisableTorchFunction(), keeping_random_state():
        torch.default_generator.manual_seed(0)
        try:
            plain = _form(op, arguments.call)
            with _Passing():
                return plain != _form(op, arguments.call)
        except Exception:  # no such trial can be made, so no formula is known to differ
            return False


class _Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _form(op: torch._ops.OpOverload, call: BoundSymbol) -> list[Any]:
    """What the gradient of an op is made of: the autograd nodes behind it, and how they hang together."""
    made: list[torch.Tensor] = []
    longest = _SIDE if _is_large(call) else _LARGE

    def trial(leaf: Any) -> Any:
        if not isinstance(leaf, TensorProxy):
            return leaf
        shape = [min(size, longest) for size in leaf.shape]
        if leaf.dtype.is_floating_point or leaf.dtype.is_complex:
            made.append(torch.rand(shape, dtype=leaf.dtype).requires_grad_(leaf.requires_grad))
            return made[-1]
        return torch.zeros(shape, dtype=leaf.dtype)

    with torch.enable_grad():
        args, kwargs = map_leaves(trial, (call.args, dict(call.kwargs)))
        out = [leaf for leaf in leaves(op(*args, **kwargs)) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        seeds = [torch.ones_like(value).requires_grad_() for value in out]
        wanted = [leaf for leaf in made if leaf.requires_grad]
        found = torch.autograd.grad(out, wanted, seeds, create_graph=True, allow_unused=True)
    return [None if gradient is None else _graph(gradient.grad_fn) for gradient in found]


def _graph(root: Any) -> list[Any]:
    nodes = list(_nodes(iter([root])))
    numbers = {node: i for i, node in enumerate(nodes)}
    return [
        (node.name(), [(numbers.get(following), index) for following, index in node.next_functions]) for node in nodes
    ]
