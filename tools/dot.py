"""A trace's graph as DOT: modules as nested boxes, shapes on edges, colours by op class, a legend."""

from __future__ import annotations

import html
from typing import Any

import networkx

from fulgurite.tools.layout import HEIGHT, WIDTH, Point, layered
from fulgurite.tools.modules import boxes
from fulgurite.tools.nodes import COLOURS, LEGEND, describe, op_class, result_type, short_name

LARGE = 300
"""Graphviz takes minutes to place more nodes than this in nested boxes, so they come with places of our own."""

_HEAD = """\
  graph [rankdir=TB, fontname="Helvetica", ranksep=0.35, nodesep=0.25]
  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11, margin="0.12,0.06"]
  edge [fontname="Helvetica", fontsize=9, color="#666666", arrowsize=0.6]"""


def dot_source(graph: networkx.DiGraph) -> str:
    """DOT text for a graph that `Trace.graph()` gave.

    A large graph has fixed places, so that Graphviz only draws it; types then stand in its nodes, not on its edges.
    """
    body = _placed(graph) if graph.number_of_nodes() > LARGE else _nested(graph)
    return "\n".join([f"digraph {quote(graph.graph.get('name', 'trace'))} {{", _HEAD, *body, "}"]) + "\n"


def _nested(graph: networkx.DiGraph) -> list[str]:
    lines = [f"  {_legend()}]"]
    lines.extend(_cluster(graph, _module_tree(graph), "", 1))
    for source, target, data in graph.edges(data=True):
        style = "" if data["kind"] == "data" else ", style=dashed"
        label = f"<{html.escape(data['label'])}>" if data["label"] else '""'
        lines.append(f"  {_edge(source, target, data)}, label={label}{style}]")
    return lines


def _placed(graph: networkx.DiGraph) -> list[str]:
    """The same with `layout=nop`: positions are given in points, upwards from the bottom."""
    layout = layered(graph)
    places = layout.places
    lines = [
        "  graph [layout=nop, splines=line, outputorder=edgesfirst]",
        f"  node [fixedsize=true, width={WIDTH / 72:.2f}, fontsize=9]",
    ]
    for i, box in enumerate(boxes(graph, places)):
        corners = f"{box.left:.0f},{-box.bottom:.0f},{box.right:.0f},{-box.top:.0f}"
        at = f"{box.left + 8 + 2.4 * len(box.path):.0f},{-box.top - 7:.0f}"
        lines.append(f'  subgraph "cluster_{i}" {{ graph [label=<{html.escape(box.path)}>, bb="{corners}", lp="{at}",')
        lines.append('    style="rounded", color="#999999", fontsize=8] }')
    first = min((y for _, y in places.values()), default=0.0)
    lines.append(f'  {_legend()}, fixedsize=false, pos="{-WIDTH},{-first:.0f}"]')
    for node, data in graph.nodes(data=True):
        lines.append(f"  {_node(node, data, clip=24)}, height={HEIGHT / 72:.2f}, {_position(places[node])}]")
    for source, target, data in graph.edges(data=True):
        style = 'style=dashed, label=""' if data["kind"] == "order" else 'label=""'
        far = ', color="#66666640"' if (source, target) in layout.far else ""
        lines.append(f"  {_edge(source, target, data)}, {style}{far}]")
    return lines


def _position(place: Point) -> str:
    return f'pos="{place[0]:.0f},{-place[1]:.0f}"'


def _module_tree(graph: networkx.DiGraph) -> dict[str, Any]:
    """Nodes by module path: `{"nodes": [...], "children": {name: tree}}`."""
    root: dict[str, Any] = {"nodes": [], "children": {}}
    for node, data in graph.nodes(data=True):
        place = root
        for part in (data.get("module") or "").split("."):
            if part:
                place = place["children"].setdefault(part, {"nodes": [], "children": {}})
        place["nodes"].append(node)
    return root


def _cluster(graph: networkx.DiGraph, tree: dict[str, Any], path: str, depth: int) -> list[str]:
    pad = "  " * depth
    lines = [f"{pad}{_node(node, graph.nodes[node])}]" for node in tree["nodes"]]
    for name, child in tree["children"].items():
        inner = f"{path}.{name}" if path else name
        lines.append(f"{pad}subgraph {quote('cluster_' + inner)} {{")
        lines.append(f'{pad}  graph [label=<{html.escape(inner)}>, style="rounded", color="#999999", fontsize=11]')
        lines.extend(_cluster(graph, child, inner, depth + 1))
        lines.append(pad + "}")
    return lines


def _node(node: str, data: dict[str, Any], clip: int = 0) -> str:
    """A node's statement but for the bracket at its end; `clip` is the longest name it may show."""
    name, below = short_name(str(data["label"])), node if data["kind"] == "op" else result_type(data)
    if clip:
        name, below = _clip(name, clip), _clip(result_type(data), clip + 6)
    label = f"<B>{html.escape(name)}</B>"
    if below:
        label += f'<BR/><FONT POINT-SIZE="9">{html.escape(below)}</FONT>'
    forward = data.get("forward")
    link = f", href={quote('#' + forward)}" if forward else ""
    tip = quote(describe(node, data))
    return (
        f'{quote(node)} [label=<{label}>, id={quote(node)}, fillcolor="{COLOURS[op_class(data)]}", tooltip={tip}{link}'
    )


def _edge(source: str, target: str, data: dict[str, Any]) -> str:
    values = ", ".join(data["values"])
    tip = f"{values}: {data['label']}" if values else "order: a read and a write of the same memory"
    return f"{quote(source)} -> {quote(target)} [tooltip={quote(tip)}"


def _legend() -> str:
    rows = "".join(
        f'<TR><TD BGCOLOR="{COLOURS[name]}" BORDER="1" WIDTH="16"></TD><TD ALIGN="LEFT">{text}</TD></TR>'
        for name, text in LEGEND.items()
    )
    rows += '<TR><TD>- -</TD><TD ALIGN="LEFT">order of reads and writes</TD></TR>'
    table = f'<TABLE BORDER="0" CELLSPACING="3" CELLPADDING="1">{rows}</TABLE>'
    return f'"(legend)" [shape=plain, style="", fontsize=9, tooltip="legend", label=<{table}>'


def _clip(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def quote(text: str) -> str:
    r"""A DOT string: what it shows is `text`, backslashes and quotes included.

    >>> print(quote('say "n\\o"'))
    "say \"n\\o\""
    """
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
