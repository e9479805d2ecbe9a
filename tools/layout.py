"""A layered layout of a graph, for pictures that need no Graphviz.

Longest-path layering, barycentre sweeps, and then coordinates by least squares, after Sugiyama, Tagawa and Toda,
"Methods for Visual Understanding of Hierarchical System Structures" (1981).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import networkx

WIDTH, HEIGHT, GAP_X, GAP_Y = 150, 34, 18, 36
BEND_WIDTH = 12
FAR = 10
"""Edges over more layers than this are drawn straight, behind everything; shorter ones bend around nodes."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Centres of nodes and the points that edges pass, in pixels from the upper left; edges point down."""

    places: dict[str, Point]
    bends: dict[tuple[str, str], list[Point]]
    far: frozenset[tuple[str, str]]


def layered(graph: networkx.DiGraph, sweeps: int = 6) -> Layout:
    """Lay out the graph of a trace: the program from top to bottom, gradients below what they differentiate.

    Args:
        sweeps: how often each layer is ordered by the mean place of its neighbours, and then moved towards it.
    """
    depth = _depths(graph)
    chains, far, links = _split(graph, depth)
    layers = _rows(depth)
    _order(layers, links, sweeps)
    x = _coordinates(layers, links, graph, sweeps)
    left = min((x[node] - WIDTH / 2 for node in graph), default=0.0)
    spots = {node: (x[node] - left + GAP_X, (depth[node] + 0.5) * (HEIGHT + GAP_Y)) for node in depth}
    bends = {edge: [spots[bend] for bend in chain] for edge, chain in chains.items()}
    return Layout({node: spots[node] for node in graph}, bends, frozenset(far))


def _depths(graph: networkx.DiGraph) -> dict[str, int]:
    """The layer of each node: below all that lead to it; inputs and views of them right above their first reader."""
    depth: dict[str, int] = {}
    late: dict[str, None] = {}
    order = sorted(graph, key=lambda node: int(graph.nodes[node]["index"]))
    for node in order:
        before = list(graph.predecessors(node))
        forward = graph.nodes[node].get("forward")
        if forward in depth:
            before.append(forward)
        depth[node] = max((depth[other] + 1 for other in before), default=0)
        if not before or ("view" in graph.nodes[node].get("tags", ()) and all(other in late for other in before)):
            late[node] = None
    for node in reversed(late):
        readers = [depth[other] for other in graph.successors(node)]
        depth[node] = max(depth[node], min(readers, default=1) - 1)
    used = {level: i for i, level in enumerate(sorted(set(depth.values())))}
    return {node: used[level] for node, level in depth.items()}


def _split(
    graph: networkx.DiGraph, depth: dict[str, int]
) -> tuple[dict[tuple[str, str], list[str]], set[tuple[str, str]], dict[str, tuple[list[str], list[str]]]]:
    """Put a bend into each layer that an edge passes; returns bends, edges too long for that, and neighbours."""
    chains: dict[tuple[str, str], list[str]] = {}
    far: set[tuple[str, str]] = set()
    links: dict[str, tuple[list[str], list[str]]] = {node: ([], []) for node in graph}
    for source, target in graph.edges:
        chains[source, target] = []
        if depth[target] - depth[source] > FAR:
            far.add((source, target))
            continue
        last = source
        for level in range(depth[source] + 1, depth[target]):
            bend = f"{source}>{target}>{level}"
            depth[bend], links[bend] = level, ([], [])
            chains[source, target].append(bend)
            links[last][1].append(bend)
            links[bend][0].append(last)
            last = bend
        links[last][1].append(target)
        links[target][0].append(last)
    return chains, far, links


def _rows(depth: dict[str, int]) -> list[list[str]]:
    rows: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node, level in depth.items():
        rows[level].append(node)
    return rows


def _order(layers: list[list[str]], links: dict[str, tuple[list[str], list[str]]], sweeps: int) -> None:
    """Sort each layer by the mean place of its neighbours above, then below, and so on."""
    place = {node: float(i) - len(layer) / 2 for layer in layers for i, node in enumerate(layer)}
    for sweep in range(sweeps):
        side = sweep % 2
        for layer in reversed(layers) if side else layers:
            wanted = {node: _mean([place[other] for other in links[node][side]], place[node]) for node in layer}
            layer.sort(key=wanted.__getitem__)
            place.update((node, i - len(layer) / 2) for i, node in enumerate(layer))


def _coordinates(
    layers: list[list[str]], links: dict[str, tuple[list[str], list[str]]], graph: networkx.DiGraph, sweeps: int
) -> dict[str, float]:
    """Move each layer as near to its neighbours as its order and the widths allow."""
    offsets: list[list[float]] = []
    x: dict[str, float] = {}
    for layer in layers:
        widths = [WIDTH if node in graph else BEND_WIDTH for node in layer]
        offset = [0.0]
        for before, after in pairwise(widths):
            offset.append(offset[-1] + (before + after) / 2 + GAP_X)
        offsets.append(offset)
        x.update((node, place - offset[-1] / 2) for node, place in zip(layer, offset))
    rows = list(zip(layers, offsets))
    for sweep in range(sweeps):
        side = sweep % 2
        for layer, offset in reversed(rows) if side else rows:
            near = [links[node][side] or links[node][1 - side] for node in layer]
            wanted = [_mean([x[other] for other in others], x[node]) for node, others in zip(layer, near)]
            steps = _rising([want - place for want, place in zip(wanted, offset)])
            x.update((node, step + place) for node, step, place in zip(layer, steps, offset))
    return x


def _rising(values: list[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` in least squares: neighbours that clash share their mean.

    >>> _rising([1.0, 4.0, 2.0, 5.0])
    [1.0, 3.0, 3.0, 5.0]
    """
    blocks: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            more, members = blocks.pop()
            total, count = total + more, count + members
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default
