"""A program captured: its trace, what it returns, and the autograd graph that its backward can be recorded from."""

import functools
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import GradientEdge

from fulgurite.ir import BoundSymbol, TensorProxy, Trace
from fulgurite.ir.errors import TraceError, Untraceable
from fulgurite.ir.printer import Namespace
from fulgurite.trace import settings
from fulgurite.trace.code import watching
from fulgurite.trace.disguise import answering_type
from fulgurite.trace.effects import Write
from fulgurite.trace.formulas import kept_formulas
from fulgurite.trace.input_state import AutogradState
from fulgurite.trace.inputs import Locator
from fulgurite.trace.kinds import SIMPLE, argument_names, can_follow, definition
from fulgurite.trace.number import Number
from fulgurite.trace.recorder import Recorder
from fulgurite.trace.recording import recording
from fulgurite.trace.settings import GlobalModes
from fulgurite.trace.structure import KEYS, Existing, parts_of, replace_leaves, walk
from fulgurite.trace.unguarded import watching_state
from fulgurite.trace.values import Values

_active = threading.local()


def is_tracing() -> bool:
    """Whether this thread is recording a program."""
    return getattr(_active, "depth", 0) > 0


@dataclass
class Program:
    """What recording a call of a function gave."""

    trace: Trace  # its output has the structure that the program returned
    recorder: Recorder  # keeps the fake tensors, so that the backward can be recorded later
    result: Any  # the returned structure with proxies at its leaves
    outputs: dict[str, torch.Tensor]  # the returned fake tensors by proxy name
    edges: dict[str, Any]  # for each input that requires grad, its autograd edge before the program ran
    written: list[str]  # inputs whose autograd history the program changed in place
    locator: Locator
    namespace: Namespace  # the names that sources use
    writes: list[Write]  # to Python containers that it can reach; the values are structures like `result`
    in_inference: bool = False  # whether all of it runs in inference mode, which it enters itself
    leaves_grad_mode: bool | None = None  # what the program sets the caller's grad mode to

    @property
    def needs_grad(self) -> bool:
        """Whether a gradient can flow out of the program."""
        return any(out.requires_grad for out in self.outputs.values()) or bool(self.written)

    def fake(self, name: str) -> torch.Tensor:
        """The fake tensor that a proxy stands for."""
        return self.recorder.tensors[name]

    def uses(self, more: Mapping[str, tuple[Any, int]]) -> Counter[str]:
        """For each input and for each of `more`, how many edges of the program's autograd graph lead to it."""
        names = {(edge.node, edge.output_nr): name for name, edge in self.edges.items()}
        names.update((edge, name) for name, edge in more.items())
        return Counter(names[edge] for edge in self._graph(names) if edge in names)

    def is_used(self, name: str) -> bool:
        """Whether another output has a gradient with respect to this one."""
        out = self.fake(name)
        return (out.grad_fn, out.output_nr) in self._graph({})

    def _graph(self, stop: Container[Any]) -> Iterator[Any]:
        """The edges of the autograd graph behind the outputs, each as often as it is there, and none behind `stop`."""
        queue = [out.grad_fn for out in self.outputs.values() if out.grad_fn is not None]
        seen = set(queue)
        while queue:
            for following in queue.pop().next_functions:
                yield following
                if following not in stop and following[0] is not None and following[0] not in seen:
                    seen.add(following[0])
                    queue.append(following[0])


def capture(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    values: Values | None = None,
    *,
    keeps_numbers: bool = True,
) -> Program:
    """Run `fn` once on fake tensors that stand for the real ones, and keep what it did; TraceError if that can't be.

    With `keeps_numbers`, what `.item()` gives may be a number that only looks like a Python number.
    """
    namespace = Namespace({}, ("prologue", "args", "kwargs"), short=True)
    leaves = list(_argument_leaves(fn, args, kwargs))
    namespace.globals.update(KEYS)
    locator = Locator(fn, namespace, [leaf for leaf in leaves if not isinstance(leaf[0], torch.Tensor)])
    modules = {key: path for key, (_, _, path) in locator.modules.items()}
    recorder = Recorder(locator, modules, values or Values())
    recorder.keeps_numbers = keeps_numbers
    for leaf, source, name in leaves:
        if isinstance(leaf, torch.Tensor):
            recorder.add_input(leaf, source, name)
    fake_args, fake_kwargs = replace_leaves(args, recorder.adopt_leaf), replace_leaves(kwargs, recorder.adopt_leaf)
    _remember_containers(locator, "args", args, fake_args)
    _remember_containers(locator, "kwargs", kwargs, fake_kwargs)
    _active.depth = getattr(_active, "depth", 0) + 1
    modes = GlobalModes()
    try:
        with watching_state(locator), answering_type(locator), watching(locator.learn), recording(recorder):
            returned = fn(*fake_args, **fake_kwargs)
            result, outputs = _result(recorder, locator, returned)
            writes = locator.snapshot.restore(recorder.stand_in)
            writes = [_described(recorder, locator, write, outputs) for write in writes]
            settings.note_changes(recorder)
        grad_mode = modes.restore()
    except BaseException as error:
        modes.restore()
        if isinstance(error, Exception) and not isinstance(error, TraceError):
            recorder.values.catch_up(recorder)
        raise
    finally:
        _active.depth -= 1
        locator.snapshot.restore(recorder.stand_in)
    if not modes.unchanged():
        recorder.refuse("the program leaves torch's global state changed", "change it outside of fg.jit")
    in_inference = settings.take_inference_mode(recorder)
    program = _program(recorder, (result, outputs), locator, namespace, writes)
    return replace(program, leaves_grad_mode=grad_mode, in_inference=in_inference)


def _remember_containers(locator: Locator, source: str, real: Any, fake: Any) -> None:
    """The program sees copies of containers that hold tensors; what it writes to a copy is written to the original."""
    parts, copied = parts_of(real), parts_of(fake)
    if parts is None or copied is None:
        return
    if source not in ("args", "kwargs"):
        locator.snapshot.add(fake, source)
    for accessor, child, other in zip(parts.accessors, parts.children, copied.children):
        _remember_containers(locator, source + accessor, child, other)


def _described(recorder: Recorder, locator: Locator, write: Write, outputs: dict[str, torch.Tensor]) -> Write:
    """A write with proxies in place of tensors, and the containers that are there already by their sources."""

    def describe(value: Any) -> Any:
        found, more = _result(recorder, locator, value)
        outputs.update(more)
        return found

    items = tuple(
        item if isinstance(item, int) and write.kind == "sequence" else describe(item) for item in write.items
    )
    return replace(write, set={key: describe(value) for key, value in write.set.items()}, items=items)


def _argument_leaves(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, str, str]]:
    """What the arguments hold, with the source and a name for each; TraceError for what a trace can't follow."""
    names = argument_names(fn, len(args))
    labelled = [(f"args[{i}]", names[i], value) for i, value in enumerate(args)]
    labelled += [(f"kwargs[{key!r}]", key, value) for key, value in kwargs.items()]
    for source, name, value in labelled:
        for path, leaf in walk(value):
            place = "".join(path)
            if not can_follow(leaf):
                raise Untraceable(
                    f"{definition(fn)}: argument {name}{place} is a {type(leaf).__name__}, which a trace can't follow; "
                    "pass plain tensors, numbers, or lists, tuples, dicts and dataclasses of them"
                )
            yield leaf, source + place, name + place.replace("'", "")


def _result(recorder: Recorder, locator: Locator, returned: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    outputs: dict[str, Any] = {}

    def name(leaf: Any) -> Any:
        if type(leaf) is Number:
            outputs[leaf.proxy.name] = leaf.proxy
            return leaf.proxy
        source = None if isinstance(leaf, (torch.Tensor, *SIMPLE)) else locator.source_of(leaf)
        if source is not None:
            return Existing(source)
        leaf = recorder.adopt_leaf(leaf)
        if not isinstance(leaf, FakeTensor):
            return leaf
        proxy = recorder.proxy(leaf)
        outputs[proxy.name] = leaf
        return proxy

    return replace_leaves(returned, name, objects=True, known=locator.source_of), outputs


def _program(recorder: Recorder, result: Any, locator: Locator, namespace: Namespace, writes: list[Write]) -> Program:
    structure, outputs = result
    edges: dict[str, Any] = {}
    written: list[str] = []
    for item in recorder.inputs:
        state, now = item.before, AutogradState.of(item.fake, item.before)
        if state.edge is not None:
            edges[item.proxy.name] = state.edge
        if now.grad is not state.grad:
            recorder.refuse(f"the program writes the .grad of {item.proxy.name}", "call backward outside of fg.jit")
        if state.leaf and now.leaf and now.requires_grad != state.requires_grad:
            recorder.refuse(f"the program changes requires_grad of {item.proxy.name}", "do that outside of fg.jit")
        if item.fake.retains_grad and not item.real.retains_grad:
            recorder.refuse(f"the program asks {item.proxy.name} to retain its gradient", "do that outside of fg.jit")
        if now.requires_grad and now.edge != state.edge:
            written.append(item.proxy.name)
    trace = recorder.trace("computation", readable(structure))
    return Program(trace, recorder, structure, outputs, edges, written, locator, namespace, writes)


def readable(structure: Any) -> Any:
    """A returned structure in lists, tuples and dicts, which traces can print."""
    from_parts = [leaf for _, leaf in walk(structure, objects=True)]
    if isinstance(structure, TensorProxy) or not from_parts:
        return structure
    if type(structure) is dict:
        return {key: readable(value) for key, value in structure.items()}
    if type(structure) in (list, tuple):
        return type(structure)(readable(value) for value in structure)
    tensors = tuple(leaf for leaf in from_parts if isinstance(leaf, TensorProxy))
    return tensors if tensors else structure


@dataclass(frozen=True)
class Cotangent:
    """What the recorded backward depends on in a cotangent: `view` works or not with its strides."""

    requires_grad: bool
    layout: torch.layout
    stride: tuple[int, ...]
    """Empty for sparse layouts, which have none."""

    @staticmethod
    def of(tensor: torch.Tensor, requires_grad: bool = False) -> "Cotangent":
        stride = tensor.stride() if tensor.layout is torch.strided else ()
        return Cotangent(requires_grad, tensor.layout, stride)


Cotangents = tuple[Cotangent | None, ...]
"""For each target of a backward, its cotangent; None where none is given."""


def dense(fakes: Iterable[torch.Tensor]) -> Cotangents:
    """Cotangents for every one of these values, laid out as autograd itself makes them."""
    return tuple(Cotangent.of(torch.empty_like(fake, device="meta")) for fake in fakes)


@dataclass(frozen=True)
class Stage:
    """A part of a program that is one function to autograd, by names of values.

    Gradients flow from `targets` to the program's inputs and to `sources`, values of earlier stages with their
    autograd edges, and no further.
    """

    targets: tuple[str, ...]
    sources: Mapping[str, tuple[Any, int]] = field(default_factory=dict)


def record_backward(
    program: Program, stage: Stage, plain: Sequence[str], given: Cotangents, *, create_graph: bool = False
) -> Trace:
    """The joint trace: the program, then the backward of a stage for the cotangents that are given.

    The gradient is autograd's own, recorded from the graph that the program built on fake tensors. `plain` are values
    that the program returns without a gradient, by name. The trace takes the program's inputs and one cotangent for
    each given target, and returns `((*targets, *plain), gradients)`, one gradient for each of the program's inputs and
    of the stage's sources, None where none flows. With `create_graph` the backward is what autograd runs when it is to
    be differentiated again.
    """
    recorder = program.recorder
    chosen = {name: kind for name, kind in zip(stage.targets, given) if kind is not None}
    edges = {**program.edges, **{name: GradientEdge(*edge) for name, edge in stage.sources.items()}}
    with recorder.recording_backward(create_graph) as calls:
        outs = [program.fake(name) for name in chosen]
        seeds = [_cotangent(recorder, out, *item) for out, item in zip(outs, chosen.items())]
        cotangents = tuple(recorder.proxy(seed) for seed in seeds)
        found: Any = [None] * len(edges)
        if outs and edges:
            kept = kept_formulas(recorder, program.trace.bound_symbols, outs)
            with (
                _arrivals(recorder),
                recording(recorder),
                torch._C.DisableTorchFunction(),
                _stopping_at(stage, program),
                kept,
            ):
                found = torch.autograd.grad(
                    outs, list(edges.values()), seeds, retain_graph=True, create_graph=create_graph, allow_unused=True
                )
        named = {key: None if g is None else recorder.define(g) for key, g in zip(edges, found)}
    outputs = tuple(recorder.proxy(program.fake(name)) for name in (*stage.targets, *plain))
    primals = tuple(item.proxy for item in recorder.inputs)
    gradients = tuple(named.get(name) for name in (*(p.name for p in primals), *stage.sources))
    body = (*recorder.calls, *(_settled(recorder, call) for call in calls))
    return Trace("joint", (*primals, *cotangents), body, (outputs, gradients), dict(recorder.constants))


@contextmanager
def _arrivals(recorder: Recorder) -> Iterator[None]:
    """Note in which order gradients arrive at the inputs that are leaves."""
    order = recorder.arrivals = list[str]()
    leaves = [item for item in recorder.inputs if item.before.leaf and item.fake.is_leaf and item.fake.requires_grad]
    with torch._C.DisableTorchFunction():
        handles = [item.fake.register_hook(functools.partial(_arrived, order, item.proxy.name)) for item in leaves]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _arrived(order: list[str], name: str, gradient: torch.Tensor) -> None:
    order.append(name)


@contextmanager
def _stopping_at(stage: Stage, program: Program) -> Iterator[None]:
    """Let no gradient through the nodes that made the stage's sources, or an input that is a view of another one."""
    recorder = program.recorder
    made_outside = {edge.node for edge in program.edges.values() if edge.node.next_functions}
    nodes = {node for node, _ in stage.sources.values() if node.next_functions} | made_outside
    handles = [node.register_prehook(lambda grads: (None,) * len(grads)) for node in nodes]
    recorder.entered = _before(nodes, [recorder.tensors[name].grad_fn for name in stage.targets]) if nodes else None
    try:
        yield
    finally:
        recorder.entered = None
        for handle in handles:
            handle.remove()


def _before(nodes: set[Any], roots: Sequence[Any]) -> set[Any]:
    """The autograd nodes that roots lead to before they come to these."""
    queue = [root for root in roots if root is not None and root not in nodes]  # an input that is a leaf has no node
    seen = set(queue)
    while queue:
        for node, _ in queue.pop().next_functions:
            if node is not None and node not in seen and node not in nodes:
                seen.add(node)
                queue.append(node)
    return seen


def _settled(recorder: Recorder, call: BoundSymbol) -> BoundSymbol:
    """A call under `no_grad` inside an autograd function's forward has a gradient after all."""
    if "no_grad" in call.tags and any(recorder.tensors[p.name].requires_grad for p in call.outputs):
        return replace(call, tags=call.tags - {"no_grad"})
    return call


def _cotangent(recorder: Recorder, fake: torch.Tensor, name: str, kind: Cotangent) -> torch.Tensor:
    with recorder.fake_mode, torch.no_grad():
        if kind.layout is torch.strided:
            seed = torch.empty_strided(fake.shape, kind.stride, dtype=fake.dtype, device=fake.device)
        else:
            seed = torch.empty(fake.shape, layout=kind.layout, dtype=fake.dtype, device=fake.device)
        seed.requires_grad_(kind.requires_grad)
    recorder.define_as(seed, recorder.unique_name(f"grad_{name}"))
    return seed
