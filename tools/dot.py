"""A trace's graph as DOT: modules as nested boxes, shapes on edges, colours by op class."""

from __future__ import annotations

import html
from typing import Any

import networkx

COLOURS = {
    "input": "#d9d9d9",
    "return": "#d9d9d9",
    "view": "#ffffff",
    "mutates": "#e69f00",
    "random": "#cc79a7",
    "custom": "#009e73",
    "op": "#9ecae8",
}
"""Fill by op class, from the colour-blind safe palette of Okabe and Ito."""


LARGE = 200
"""Above this many nodes the boxes of modules are left out and edges are straight: Graphviz takes minutes otherwise."""


def op_class(data: dict[str, Any]) -> str:
    """The class that a node is coloured by: its kind, or the tag of its op that matters most."""
    if data["kind"] != "op":
        return str(data["kind"])
    return next((tag for tag in ("custom", "random", "mutates", "view") if tag in data["tags"]), "op")


def short_name(symbol: str) -> str:
    """The name of an op without the path that all ops share.

    >>> short_name("torch.nn.functional.linear"), short_name("torch.ops.aten.mm.default"), short_name("torch.ops.my.op")
    ('linear', 'aten.mm', 'my.op')
    """
    name = symbol.removesuffix(".default")
    if name.startswith("torch.ops."):
        return name.removeprefix("torch.ops.")
    return name.split(".")[-1] if not name.endswith("__get__") else name.split(".")[-2]


def describe(node: str, data: dict[str, Any]) -> str:
    """What a node is, in a few lines of text."""
    lines = [str(data["label"])]
    if data["kind"] == "input":
        lines.append(data["proxy"].type_string)
    for title in ("source", "module", "forward", "executor"):
        if data.get(title):
            lines.append(f"{'gradient of' if title == 'forward' else title}: {data[title]}")
    if data.get("tags"):
        lines.append(f"tags: {', '.join(sorted(data['tags']))}")
    return "\n".join([f"{node}", *lines])


def dot_source(graph: networkx.DiGraph) -> str:
    """DOT text for a graph that `Trace.graph()` gave."""
    large = graph.number_of_nodes() > LARGE
    lines = [
        f"digraph {_quote(graph.graph.get('name', 'trace'))} {{",
        '  graph [rankdir=TB, fontname="Helvetica", ranksep=0.35, nodesep=0.25]',
        '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11, margin="0.12,0.06"]',
        '  edge [fontname="Helvetica", fontsize=9, color="#666666", arrowsize=0.6]',
    ]
    if large:
        lines.append("  graph [nslimit=1, nslimit1=1, mclimit=0.3, splines=line]")
    tree = _module_tree(graph, flat=large)
    lines.extend(_cluster(graph, tree, "", 1))
    for source, target, data in graph.edges(data=True):
        style = "" if data["kind"] == "data" else ", style=dashed, constraint=true"
        label = html.escape(data["label"])
        shown = f"<{label}>" if label else '""'
        lines.append(f"  {_quote(source)} -> {_quote(target)} [label={shown}{style}]")
    return "\n".join([*lines, "}"]) + "\n"


def _module_tree(graph: networkx.DiGraph, flat: bool) -> dict[str, Any]:
    """Nodes by module path: `{"nodes": [...], "children": {name: tree}}`; all in one with `flat`."""
    root: dict[str, Any] = {"nodes": [], "children": {}}
    for node, data in graph.nodes(data=True):
        place = root
        for part in ("" if flat else data.get("module") or "").split("."):
            if part:
                place = place["children"].setdefault(part, {"nodes": [], "children": {}})
        place["nodes"].append(node)
    return root


def _cluster(graph: networkx.DiGraph, tree: dict[str, Any], path: str, depth: int) -> list[str]:
    pad = "  " * depth
    lines = [pad + _node(node, graph.nodes[node]) for node in tree["nodes"]]
    for name, child in tree["children"].items():
        inner = f"{path}.{name}" if path else name
        lines.append(f"{pad}subgraph {_quote('cluster_' + inner)} {{")
        lines.append(f'{pad}  graph [label=<{html.escape(inner)}>, style="rounded", color="#999999", fontsize=11]')
        lines.extend(_cluster(graph, child, inner, depth + 1))
        lines.append(pad + "}")
    return lines


def _node(node: str, data: dict[str, Any]) -> str:
    name = html.escape(short_name(str(data["label"])))
    below = html.escape(node) if data["kind"] == "op" else html.escape(getattr(data.get("proxy"), "type_string", ""))
    label = f'<B>{name}</B><BR/><FONT POINT-SIZE="9">{below}</FONT>' if below else f"<B>{name}</B>"
    tip = _quote(describe(node, data))
    return f'{_quote(node)} [label=<{label}>, fillcolor="{COLOURS[op_class(data)]}", tooltip={tip}]'


def _quote(text: str) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
