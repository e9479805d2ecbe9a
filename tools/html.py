"""A trace as one HTML file: its graph beside its text, with nothing loaded from elsewhere."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import networkx

from fulgurite.ir import Trace
from fulgurite.tools.layout import HEIGHT, WIDTH, Layout, Point, layered
from fulgurite.tools.modules import boxes
from fulgurite.tools.nodes import COLOURS, LEGEND, describe, op_class, result_type, short_name
from fulgurite.tools.page import PAGE


def html_page(trace: Trace) -> str:
    """The page; names and text reach it as JSON and are shown as text, whatever they hold."""
    data = json.dumps(page_data(trace), separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return PAGE.replace("/*DATA*/null", data)


def page_data(trace: Trace) -> dict[str, Any]:
    """What the page shows, as JSON: nodes and edges with their places, boxes of modules, lines of text, legend."""
    graph = trace.graph()
    layout = layered(graph)
    lines = _lines(trace, graph)
    calls = {line["node"]: line["text"].strip() for line in lines if line["node"]}
    return {
        "title": f"{trace.name}: {len(trace.bound_symbols)} calls, {trace.provenance.made_by}",
        "nodes": [_node(graph, node, layout.places[node], calls.get(node, "")) for node in _in_order(graph)],
        "edges": [_edge(a, b, data, layout) for a, b, data in graph.edges(data=True)],
        "boxes": [
            {"path": b.path, "x": round(b.left), "y": round(b.top), "w": b.right - b.left, "h": b.bottom - b.top}
            for b in boxes(graph, layout.places)
        ],
        "legend": [{"name": text, "colour": COLOURS[name]} for name, text in LEGEND.items()],
        "lines": lines,
        "size": [WIDTH, HEIGHT],
    }


def _in_order(graph: networkx.DiGraph) -> list[str]:
    return sorted(graph, key=lambda node: int(graph.nodes[node]["index"]))


def _node(graph: networkx.DiGraph, node: str, place: Point, call: str) -> dict[str, Any]:
    data = graph.nodes[node]
    forward = data.get("forward")
    return {
        "id": node,
        "name": short_name(str(data["label"])),
        "type": result_type(data),
        "about": describe(node, data) + (f"\n\n{call}" if call and data["kind"] == "op" else ""),
        "forward": forward if forward in graph else None,
        "colour": COLOURS[op_class(data)],
        "x": round(place[0], 1),
        "y": round(place[1], 1),
    }


def _edge(source: str, target: str, data: dict[str, Any], layout: Layout) -> dict[str, Any]:
    far = (source, target) in layout.far
    values = ", ".join(data["values"])
    return {
        "from": source,
        "to": target,
        "kind": data["kind"] + (" far" if far else ""),
        "label": f"{values}: {data['label']}" if values else "order: a read and a write of the same memory",
        "d": _path(layout, source, target),
    }


def _path(layout: Layout, source: str, target: str) -> str:
    (x, y), (end_x, end_y) = layout.places[source], layout.places[target]
    points = [(x, y + HEIGHT / 2), *layout.bends[source, target], (end_x, end_y - HEIGHT / 2)]
    parts = [f"M{points[0][0]:.0f},{points[0][1]:.0f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        parts.append(f"C{x0:.0f},{middle:.0f} {x1:.0f},{middle:.0f} {x1:.0f},{y1:.0f}")
    return "".join(parts)


def _lines(trace: Trace, graph: networkx.DiGraph) -> list[dict[str, str]]:
    """The text, each line with the node that it stands for."""
    by_index = {data["index"]: node for node, data in graph.nodes(data=True)}
    inputs = iter(trace.inputs)
    statements = iter(range(len(trace.bound_symbols)))
    lines = []
    for line in trace.text(header=False, subsymbols=False).splitlines():
        stripped, node = line.strip(), ""
        if stripped.startswith("# "):
            proxy = next(inputs, None)
            node = proxy.name if proxy is not None and stripped.startswith(f"# {proxy.name}:") else ""
        elif stripped.startswith("return"):
            node = "return"
        elif line.startswith(" ") and stripped:
            node = by_index.get(next(statements, -2), "")
        lines.append({"text": line, "node": node})
    return lines
