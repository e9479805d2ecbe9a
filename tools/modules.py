"""Modules as boxes around the calls that they made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import networkx

from fulgurite.tools.layout import HEIGHT, WIDTH, Point

PAD, STEP, LABEL = 6, 7, 9


@dataclass(frozen=True)
class Box:
    """A module's path and its rectangle: left, top, right, bottom."""

    path: str
    left: float
    top: float
    right: float
    bottom: float

    def holds(self, place: Point) -> bool:
        """Whether a node at `place` would touch the box."""
        x, y = place
        inside = self.left < x + WIDTH / 2 and x - WIDTH / 2 < self.right
        return inside and self.top < y + HEIGHT / 2 and y - HEIGHT / 2 < self.bottom


def members(graph: networkx.DiGraph) -> dict[str, list[str]]:
    """The calls below each module path, outer modules first; of modules with the same calls the innermost."""
    found: dict[str, list[str]] = {}
    for node, data in graph.nodes(data=True):
        parts = (data.get("module") or "").split(".")
        for i in range(len(parts)):
            if parts[i]:
                found.setdefault(".".join(parts[: i + 1]), []).append(node)
    innermost = {tuple(nodes): path for path, nodes in sorted(found.items(), key=lambda item: item[0].count("."))}
    return {path: list(nodes) for nodes, path in innermost.items()}


def boxes(graph: networkx.DiGraph, places: Mapping[str, Point]) -> list[Box]:
    """Boxes of modules with several calls, outer ones first; none where another module's call would be inside."""
    groups = {path: nodes for path, nodes in members(graph).items() if len(nodes) > 1}
    calls = [(node, data.get("module") or "") for node, data in graph.nodes(data=True) if data["kind"] == "op"]
    found: list[Box] = []
    for path, nodes in groups.items():
        levels = {other.count(".") for other in groups if other.startswith(f"{path}.")}
        pad = PAD + STEP * len(levels)
        xs, ys = [places[node][0] for node in nodes], [places[node][1] for node in nodes]
        box = Box(
            path,
            min(xs) - WIDTH / 2 - pad,
            min(ys) - HEIGHT / 2 - pad - LABEL,
            max(xs) + WIDTH / 2 + pad,
            max(ys) + HEIGHT / 2 + pad,
        )
        inside = set(nodes)
        if not any(node not in inside and box.holds(places[node]) for node, _ in calls):
            found.append(box)
    return found
