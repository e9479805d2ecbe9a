"""Where to cut a program so that each differentiable output is a value that autograd knows.

One autograd function for a whole program would hide how its outputs depend on each other: eager gives the gradient of
`logits` with respect to the returned `hidden`, and frees one output's graph without touching another's. So a program
whose outputs depend on each other is cut behind those that others are made of, and one whose outputs share nothing
falls apart. Nearly all programs are one stage.

Several functions must not add up gradients in another order than eager, which adds one contribution after the other
where they meet. A program is left whole where they would.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import networkx

from fulgurite.trace.program import Program, Stage

MAX_STAGES = 16
"""More outputs that share nothing than this stay together; more that depend on each other, too."""

_Edge = tuple[Any, int]


def cut(program: Program, targets: Sequence[str], leaves: Mapping[str, Any]) -> list[Stage]:
    """The stages of a program with these differentiable values, in the order in which they run.

    `leaves` are values that the program makes without a history and gives out, with their edges: sources of all stages.
    """
    stages = _cut(program, targets, leaves)
    return [replace(stage, sources={**stage.sources, **leaves}) for stage in stages]


def _cut(program: Program, targets: Sequence[str], leaves: Mapping[str, Any]) -> list[Stage]:
    whole = [Stage(tuple(targets))]
    leaf = any(program.fake(name).grad_fn is None for name in targets)
    if len(program.outputs) < 2 or program.written or leaf:
        return whole
    graph = _Graph(program, targets, leaves)
    stages = graph.stages()
    return stages if stages is not None and len(stages) <= MAX_STAGES else whole


class _Graph:
    """The program's autograd graph on fake tensors, without what lies before its inputs."""

    def __init__(self, program: Program, targets: Sequence[str], leaves: Mapping[str, Any]) -> None:
        self.program = program
        self.targets = targets
        self.inputs = {*leaves.values(), *((edge.node, edge.output_nr) for edge in program.edges.values())}
        self.into_inputs: list[tuple[Any, _Edge]] = []
        self.edges = list(self._edges())
        self.names = {_edge(out): name for name, out in program.outputs.items() if out.grad_fn is not None}
        inner = {self.names[edge] for _, edge in self.edges if edge in self.names}
        self.cuts = sorted({program.outputs[name].grad_fn._sequence_nr() for name in inner})  # type: ignore[union-attr]

    def _edges(self) -> Iterator[tuple[Any, _Edge]]:
        """From each node to what its gradients go to."""
        seen: set[Any] = {self.program.fake(name).grad_fn for name in self.targets}
        seen.update(out.grad_fn for out in self.program.outputs.values() if out.requires_grad)
        seen.discard(None)
        queue = list(seen)
        while queue:
            node = queue.pop()
            for following in node.next_functions:
                if following in self.inputs:
                    self.into_inputs.append((node, following))
                    continue
                if following[0] is None:
                    continue
                yield node, following
                if following[0] not in seen:
                    seen.add(following[0])
                    queue.append(following[0])

    def stage_of(self, node: Any) -> int:
        return bisect_left(self.cuts, node._sequence_nr())

    def stages(self) -> list[Stage] | None:
        """The stages; None where the graph does not fall apart in program order."""
        parts = self._parts()
        sources: dict[tuple[int, int], dict[str, Any]] = {}
        made: dict[tuple[int, int], list[str]] = {}
        for name in self.targets:
            node = self.program.fake(name).grad_fn
            made.setdefault((self.stage_of(node), parts[node]), []).append(name)
        known = {_edge(tensor): name for name, tensor in self.program.recorder.tensors.items() if tensor.requires_grad}
        for node, edge in self.edges:
            user, maker = self.stage_of(node), self.stage_of(edge[0])
            if maker > user or (maker < user and edge not in known):
                return None
            if maker < user:
                name, key = known[edge], (maker, parts[edge[0]])
                sources.setdefault((user, parts[node]), {})[name] = edge
                if edge not in self.names and name not in made.setdefault(key, []):
                    made[key].append(name)
        keys = {node: (self.stage_of(node), part) for node, part in parts.items()}
        if len(made) > 1 and not self._adds_up_as_eager(keys):
            return None
        return [Stage(tuple(made[key]), sources.get(key, {})) for key in sorted(made)]

    def _adds_up_as_eager(self, keys: dict[Any, tuple[int, int]]) -> bool:
        """Whether contributions that meet come singly from all stages but the one that runs backward first."""
        counts: dict[_Edge, Counter[tuple[int, int]]] = {}
        crossing = [(node, edge) for node, edge in self.edges if keys.get(edge[0], keys[node]) != keys[node]]
        for node, edge in (*self.into_inputs, *crossing):
            counts.setdefault(edge, Counter())[keys[node]] += 1
        return all(self._is_exact(edge, count) for edge, count in counts.items())

    def _is_exact(self, edge: _Edge, count: Counter[tuple[int, int]]) -> bool:
        users_too = edge in self.names and edge not in self.inputs
        if count.total() + users_too <= 2 or (len(count) == 1 and not users_too):
            return True
        ordered = [count[key] for key in sorted(count)]
        one_part = len({part for _, part in count}) == 1
        return one_part and all(n == 1 for n in (ordered if users_too else ordered[:-1]))

    def _parts(self) -> dict[Any, int]:
        """For each node, the number of the connected part that it belongs to."""
        graph = networkx.Graph()
        graph.add_nodes_from(node for node, _ in (*self.edges, *self.into_inputs))
        graph.add_nodes_from(self.program.fake(name).grad_fn for name in self.targets)
        graph.add_edges_from((node, edge[0]) for node, edge in self.edges if not hasattr(edge[0], "variable"))
        order = {self.program.fake(name).grad_fn: i for i, name in enumerate(self.targets)}
        parts = sorted(
            networkx.connected_components(graph), key=lambda part: min(order.get(n, len(order)) for n in part)
        )
        return {node: number for number, part in enumerate(parts) for node in part}


def _edge(tensor: Any) -> _Edge:
    return tensor.grad_fn, tensor.output_nr
