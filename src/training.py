"""Running a program whose gradients may be asked for: an `autograd.Function` around each compiled stage.

The Function returns the values that are no views; views of them (and of inputs) are made after it by the recorded
view calls, so that their history, and what in-place writes do to it, is eager's.
"""

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from fulgurite.ir import BoundSymbol, Trace
from fulgurite.stages import cut
from fulgurite.trace.history import connection
from fulgurite.trace.program import Cotangent, Cotangents, Program, Stage, record_backward

_REPLAYED = {"CreationMeta.DEFAULT", "CreationMeta.MULTI_OUTPUT_NODE"}


@dataclass
class Plan:
    """How the outputs of a program come about."""

    targets: list[str] = field(default_factory=list)  # what the autograd Function returns with a gradient
    plain: list[str] = field(default_factory=list)  # what it returns without one
    leaves: list[str] = field(default_factory=list)  # leaves that the program makes and returns, or views of
    views: list[BoundSymbol] = field(default_factory=list)  # calls that make the other outputs, run after it
    dirty: list[int] = field(default_factory=list)  # positions of inputs that are written with a gradient
    stages: list[Stage] = field(default_factory=list)  # their targets are `targets` in order, and what they hand on
    retained: list[str] = field(default_factory=list)  # outputs that keep their gradient though they are no leaves


def plan_outputs(program: Program) -> Plan:
    """Sort the outputs of a program by how they are made."""
    plan = Plan()
    inputs = [item.proxy.name for item in program.recorder.inputs]
    makers = {p.name: bsym for bsym in program.trace.flat() for p in bsym.outputs}
    for name in program.written:
        if program.fake(name)._is_view():
            program.recorder.refuse(f"the program writes {name} in place, a view with a gradient", "clone it first")
        plan.targets.append(name)
        plan.dirty.append(inputs.index(name))
    for name, out in program.outputs.items():
        if not out.requires_grad:
            _add(plan.plain, [] if name in inputs else [name])
            continue
        root, views = _view_chain(program, name, makers)
        _add(plan.views, views)
        made = _is_made_leaf(program, root)
        _add(plan.leaves if made else plan.targets, [] if root in inputs else [root])
    leaves = {name: _edge_of_leaf(program, name) for name in plan.leaves}
    plan.stages = cut(program, plan.targets, leaves) if plan.targets else []
    plan.retained = [name for name, out in program.outputs.items() if name not in inputs and out.retains_grad]
    for name in plan.retained:
        if program.is_used(name) and not any(name in stage.sources for stage in plan.stages):
            program.recorder.refuse(f"the program asks {name} to retain its gradient", "do that outside of fg.jit")
    return plan


def _is_made_leaf(program: Program, name: str) -> bool:
    """Whether a value with a gradient is a leaf of the program's own, no view under `no_grad` of one."""
    fake, inputs = program.fake(name), [item.fake for item in program.recorder.inputs]
    if fake._is_view() and fake.is_leaf and not any(fake._base is given for given in inputs):
        program.recorder.refuse("the program returns a view, made under no_grad, of a leaf", "return the leaf")
    return fake.is_leaf and not fake._is_view() and not any(fake is given for given in inputs)


def _edge_of_leaf(program: Program, name: str) -> tuple[Any, int]:
    leaf = program.fake(name)
    if leaf.grad is not None:
        program.recorder.refuse(f"the program returns a leaf with a gradient, {name}", "do that outside of fg.jit")
    node, index, *_ = torch.autograd.graph.get_gradient_edge(leaf)
    return node, index


def as_leaf(fake: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Makes a leaf with a gradient of a value: a parameter where the program made one."""
    return torch.nn.Parameter if isinstance(fake, torch.nn.Parameter) else torch.Tensor.requires_grad_


def _add(items: list[Any], new: Sequence[Any]) -> None:
    items.extend(item for item in new if not any(item is old or item == old for old in items))


def _view_chain(program: Program, name: str, makers: dict[str, BoundSymbol]) -> tuple[str, list[BoundSymbol]]:
    """The value that an output is a differentiable view of, and the calls that lead from it to the output."""
    out = program.fake(name)
    creation = str(torch._C._autograd._get_creation_meta(out)) if out._is_view() else ""  # private: tells who made it
    if creation not in _REPLAYED:
        return name, []
    base = program.recorder.proxy(out._base).name
    chain: list[BoundSymbol] = []
    current = name
    while current != base:
        call = makers.get(current)
        if call is None or "view" not in call.all_tags or not call.is_pure:
            return name, []
        chain.append(call)
        current = call.inputs[0].name
    return base, chain[::-1]


@dataclass
class Pair:
    """A stage with its compiled backwards, one for each pattern of cotangents.

    Its autograd Function returns the stage's targets, then those of the saved values that gradients flow through
    (`inner`): so what is saved is connected to the graph, and a backward can be differentiated like any function.
    """

    program: Program
    stage: Stage
    order: list[str]  # of the program's inputs, as its autograd function takes them
    saved: list[str]  # names of what the forward saves for it, then `connected`
    compile_backward: Callable[[Trace, int, list[str], list[str], bool], Callable[..., Any]]
    connected: list[str] = field(default_factory=list)  # what other values have the history of, see trace/history.py
    backwards: dict[tuple[Cotangents, bool], Callable[..., Any]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)

    @cached_property
    def shared(self) -> list[str]:
        """Saved inputs, and leaves made inside, that the program's graph leads to from several places.

        They are returned too, as views of themselves, so that a second backward adds up in eager's order.
        """
        made = {name: edge for name, edge in self.stage.sources.items() if self.program.fake(name).is_leaf}
        uses = self.program.uses(made)
        return [name for name in self.saved if uses.get(name, 0) > 1 and name not in self.stage.targets]

    @cached_property
    def inner(self) -> list[str]:
        """The saved values that gradients flow through, apart from targets, sources and inputs that are not shared."""
        inputs = {item.proxy.name for item in self.program.recorder.inputs}
        known = (inputs | {*self.stage.targets, *self.stage.sources}) - {*self.shared}
        return [
            name for name in dict.fromkeys(self.saved) if name not in known and self.program.fake(name).requires_grad
        ]

    def backward(self, given: Cotangents, create_graph: bool) -> Callable[..., Any]:
        """The backward for these cotangents; recorded at first use from the program's own autograd graph."""
        key = given, create_graph
        if key in self.backwards:
            return self.backwards[key]
        with self.lock:
            if key not in self.backwards:  # another thread may have made it meanwhile
                stage = replace(self.stage, targets=(*self.stage.targets, *self.inner))
                joint = record_backward(self.program, stage, (), given, create_graph=create_graph)
                count = sum(kind is not None for kind in given)
                self.backwards[key] = self.compile_backward(joint, count, self.saved, self.order, create_graph)
        return self.backwards[key]


def without_autocast(body: Callable[..., Any]) -> Callable[..., Any]:
    """What was recorded below autocast has its casts in it, so it runs without."""

    def run_without_autocast(*inputs: Any) -> Any:
        with torch._C._DisableAutocast():  # private: the public one takes one device type
            return body(*inputs)

    return run_without_autocast


def autograd_function(pair: Pair, dirty: Sequence[int] = ()) -> Callable[..., tuple[Any, ...]]:
    """A function of `(values, saved)` and the inputs that gives the stage's values their history.

    `values` are the stage's targets as the forward computed them, `dirty` the positions of inputs that it wrote. It
    takes the program's inputs in the pair's order and then the stage's sources, and returns the targets and the inner
    values.
    """
    inner = [pair.saved.index(name) for name in pair.inner]
    shared = [pair.saved.index(name) for name in pair.shared]
    connections = [_connection(pair, name) for name in pair.connected]

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, computed: tuple[Any, Any], *inputs: torch.Tensor) -> Any:
            values, saved = computed
            if connections:
                there = (*values, *inputs)
                saved = [*saved, *(connect(there) for connect in connections)]
            if shared:
                saved = list(saved)
                for i in shared:
                    saved[i] = saved[i].view_as(saved[i])
            ctx.save_for_backward(*saved)
            ctx.set_materialize_grads(False)
            if dirty:
                ctx.mark_dirty(*(inputs[i] for i in dirty))
            return (*values, *(saved[i] for i in inner))

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            create_graph = torch.is_grad_enabled()
            given = tuple(None if c is None else Cotangent.of(c, create_graph and c.requires_grad) for c in cotangents)
            run = pair.backward(given, create_graph)
            if torch._C._is_any_autocast_enabled():
                run = without_autocast(run)
            saved = ctx.saved_tensors if pair.saved else ()  # where nothing was saved, backward may run again
            return (None, *run(*saved, *(c for c in cotangents if c is not None)))

    apply: Callable[..., tuple[Any, ...]] = Compiled.apply
    return apply


def _connection(pair: Pair, name: str) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """What stands for a value that is only connected to: a target or an input itself, else a tensor without memory."""
    known = [*pair.stage.targets, *pair.order, *pair.stage.sources]
    if name in known:
        return operator.itemgetter(known.index(name))
    make = connection(pair.program.fake(name))
    return lambda there: make()
