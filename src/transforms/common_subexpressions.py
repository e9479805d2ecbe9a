"""common_subexpressions: compute equal calls once.

    t0 = torch.sin(x)                t0 = torch.sin(x)
    t1 = torch.sin(x)           ->
    t2 = torch.add(t0, t1)           t2 = torch.add(t0, t0)

Random, mutating and custom ops are left alone, and so is a result whose memory is written or handed out: two tensors
that a caller can tell apart stay two tensors.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from fulgurite.ir import BoundSymbol, Proxy, Symbol, Trace, is_proxy
from fulgurite.ir.tree import map_leaves


def common_subexpressions(trace: Trace) -> Trace:
    """The trace with repeated pure calls replaced by the first one's results."""
    escaping = {p.storage for p in trace.output_proxies} | trace.written
    versions: Counter[int] = Counter()
    first: dict[tuple[Symbol, str, bool], BoundSymbol] = {}
    renames: dict[str, Proxy] = {}
    kept: list[BoundSymbol] = []
    for original in trace.bound_symbols:
        bsym = original.renamed(renames) if renames else original
        twin = first.setdefault(_key(bsym, versions), bsym) if _may_merge(bsym, escaping) else bsym
        if twin is not bsym:
            renames.update(zip((p.name for p in bsym.outputs), twin.outputs))
            continue
        kept.append(bsym)
        versions.update(bsym.written)
    return trace.after("common_subexpressions", kept)


def _may_merge(bsym: BoundSymbol, escaping: set[int] | frozenset[int]) -> bool:
    computes = bool(bsym.is_pure and bsym.outputs and bsym.inputs)
    return computes and not any(p.storage in escaping for p in bsym.outputs)


def _key(bsym: BoundSymbol, versions: Mapping[int, int]) -> tuple[Symbol, str, bool]:
    """Equal for calls that give equal results: the arguments as they are nested, proxies as of their last write."""

    def describe(leaf: Any) -> Any:
        if is_proxy(leaf):
            return leaf.name, versions.get(leaf.storage, 0)
        return id(leaf) if isinstance(leaf, torch.Tensor) else (type(leaf), repr(leaf))

    arguments = repr(map_leaves(describe, [bsym.args, dict(bsym.kwargs)]))
    return bsym.symbol, arguments, "no_grad" in bsym.tags
