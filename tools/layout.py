"""A layered layout of a graph, for pictures that need no Graphviz.

Longest-path layering and barycentre sweeps, after Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of
Hierarchical System Structures" (1981).
"""

from __future__ import annotations

import networkx

WIDTH, HEIGHT, GAP_X, GAP_Y = 150, 34, 18, 30


def layered(graph: networkx.DiGraph, sweeps: int = 4) -> dict[str, tuple[float, float]]:
    """The centre of each node, in pixels, edges pointing down.

    Args:
        sweeps: how often each layer is ordered by the mean place of its neighbours.
    """
    layers = _layers(graph)
    order = {node: float(i) for layer in layers for i, node in enumerate(layer)}
    for sweep in range(sweeps):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            near = graph.predecessors if down else graph.successors
            layer.sort(key=lambda node: _mean([order[other] for other in near(node)], order[node]))  # noqa: B023
            order.update((node, float(i)) for i, node in enumerate(layer))
    widest = max(map(len, layers), default=0)
    return {
        node: ((i + (widest - len(layer)) / 2 + 0.5) * (WIDTH + GAP_X), (depth + 0.5) * (HEIGHT + GAP_Y))
        for depth, layer in enumerate(layers)
        for i, node in enumerate(layer)
    }


def _layers(graph: networkx.DiGraph) -> list[list[str]]:
    """Each node below all that lead to it; inputs right above their first reader."""
    depth: dict[str, int] = {}
    for node in networkx.topological_sort(graph):
        depth[node] = max((depth[other] + 1 for other in graph.predecessors(node)), default=0)
    for node, data in graph.nodes(data=True):
        readers = [depth[other] for other in graph.successors(node)]
        if data["kind"] == "input" and readers:
            depth[node] = max(0, min(readers) - 1)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for node, level in depth.items():
        layers[level].append(node)
    return [layer for layer in layers if layer]


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default
