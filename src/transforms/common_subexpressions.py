"""common_subexpressions: compute equal calls once.

    t0 = torch.sin(x)                t0 = torch.sin(x)
    t1 = torch.sin(x)           ->
    t2 = torch.add(t0, t1)           t2 = torch.add(t0, t0)

Random, mutating and custom ops are left alone, and so is a result whose memory is written or handed out: two tensors
that a caller can tell apart stay two tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from fulgurite.ir import BoundSymbol, Proxy, Trace, is_proxy
from fulgurite.ir.tree import leaves


def common_subexpressions(trace: Trace) -> Trace:
    """The trace with repeated pure calls replaced by the first one's results."""
    escaping = {p.storage for p in trace.output_proxies} | trace.written
    versions: Counter[int] = Counter()
    first: dict[Any, BoundSymbol] = {}
    renames: dict[str, Proxy] = {}
    kept: list[BoundSymbol] = []
    for original in trace.bound_symbols:
        bsym = original.renamed(renames) if renames else original
        key = _key(bsym, versions) if _may_merge(bsym, escaping) else None
        twin = first.setdefault(key, bsym) if key is not None else bsym
        if twin is not bsym:
            renames.update(zip((p.name for p in bsym.outputs), twin.outputs))
            continue
        kept.append(bsym)
        versions.update(bsym.written)
    return trace.after("common_subexpressions", kept)


def _may_merge(bsym: BoundSymbol, escaping: set[int] | frozenset[int]) -> bool:
    if not bsym.is_pure or not bsym.outputs or not bsym.inputs:
        return False
    return not any(p.storage in escaping for p in bsym.outputs)


def _key(bsym: BoundSymbol, versions: Mapping[int, int]) -> Any:
    """Equal for calls that give equal results; None when an argument can't be compared."""
    parts: list[Any] = [bsym.symbol, len(bsym.args), tuple(bsym.kwargs), _shape((bsym.args, dict(bsym.kwargs)))]
    for leaf in leaves((bsym.args, dict(bsym.kwargs))):
        if is_proxy(leaf):
            parts.append((leaf.name, versions.get(leaf.storage, 0)))
        elif isinstance(leaf, torch.Tensor):
            parts.append(id(leaf))
        else:
            parts.append((type(leaf), repr(leaf)))
    return tuple(parts)


def _shape(tree: Any) -> Any:
    """The nesting of arguments, so that `f([a], b)` is not taken for `f([a, b])`."""
    if isinstance(tree, (list, tuple)):
        return (type(tree).__name__, *map(_shape, tree))
    if isinstance(tree, dict):
        return ("dict", *((key, _shape(value)) for key, value in tree.items()))
    return None
