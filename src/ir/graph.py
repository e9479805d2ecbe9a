"""A trace as a networkx graph: calls are nodes, values are edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx

from fulgurite.ir.printer import DELETE
from fulgurite.ir.proxy import Proxy

if TYPE_CHECKING:
    from fulgurite.ir.trace import BoundSymbol, Trace


def graph_of(trace: Trace) -> networkx.DiGraph:
    """The data flow of a trace.

    A node is named after the first value it defines (`op3` when it defines none; `return` is the end) and carries
    `kind` (`input`, `op`, `return`), `label`, `bsym` or `proxy`, `module`, `source`, `tags`, `executor`, `forward`
    and `index` (its place in the program). An edge carries `kind`: `data` with the names it transports in `values`,
    or `order` where a read and a write of one storage may not be exchanged.
    """
    graph = networkx.DiGraph(name=trace.name)
    builder = _Builder(graph)
    for proxy in trace.inputs:
        graph.add_node(proxy.name, kind="input", label=proxy.name, proxy=proxy, index=-1)
        builder.made_by[proxy.name] = proxy.name
    for index, bsym in enumerate(trace.bound_symbols):
        if bsym.symbol is not DELETE:
            builder.add(index, bsym)
    graph.add_node("return", kind="return", label="return", index=len(trace.bound_symbols))
    for proxy in trace.output_proxies:
        builder.connect(proxy, "return")
    return graph


class _Builder:
    def __init__(self, graph: networkx.DiGraph) -> None:
        self.graph = graph
        self.made_by: dict[str, str] = {}
        self.writer: dict[int, str] = {}
        self.readers: dict[int, list[str]] = {}

    def add(self, index: int, bsym: BoundSymbol) -> None:
        node = bsym.outputs[0].name if bsym.outputs else f"op{index}"
        source = f"{bsym.source.file}:{bsym.source.line}" if bsym.source else ""
        executor, tags = bsym.symbol.executor or "torch", bsym.all_tags
        self.graph.add_node(node, kind="op", label=bsym.symbol.name, bsym=bsym, module=bsym.module, source=source)
        self.graph.add_node(node, tags=tags, executor=executor, forward=bsym.forward, index=index)
        for proxy in bsym.inputs:
            self.connect(proxy, node)
        for storage in bsym.written:
            for reader in self.readers.pop(storage, []):
                self.order(reader, node)
            self.writer[storage] = node
        self.made_by.update((proxy.name, node) for proxy in bsym.outputs)

    def connect(self, proxy: Proxy, node: str) -> None:
        maker = self.made_by.get(proxy.name)
        if maker is not None:
            edge = self.graph.edges.get((maker, node))
            values = (*edge["values"], proxy.name) if edge else (proxy.name,)
            self.graph.add_edge(maker, node, kind="data", values=values, label=proxy.type_string)
        if proxy.storage >= 0:
            if proxy.storage in self.writer:
                self.order(self.writer[proxy.storage], node)
            self.readers.setdefault(proxy.storage, []).append(node)

    def order(self, before: str, after: str) -> None:
        if before != after and not self.graph.has_edge(before, after):
            self.graph.add_edge(before, after, kind="order", values=(), label="")
