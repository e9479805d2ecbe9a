"""From a captured program to a callable: plan, passes, executors, code; the stages are kept to look at."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fulgurite.arrival import arranged
from fulgurite.branches import Path, beginning, ending, has_assumptions
from fulgurite.epilogue import epilogue, rebuilding, returns_existing
from fulgurite.executors.base import Executor, claim_all
from fulgurite.executors.check import compile_checked
from fulgurite.executors.grad_mode import without_grad_inside
from fulgurite.ir import BoundSymbol, Trace
from fulgurite.ir.errors import TraceError
from fulgurite.ir.printer import Namespace, compile_source, compile_trace
from fulgurite.ir.trace import Provenance
from fulgurite.trace import settings
from fulgurite.trace.guards import Prologue
from fulgurite.trace.program import Cotangents, Program, Stage, dense, record_backward
from fulgurite.training import Pair, Plan, as_leaf, autograd_function, plan_outputs, without_autocast
from fulgurite.transforms import (
    common_subexpressions,
    dead_code,
    flatten,
    last_use,
    no_ops,
    run,
    split,
    stop_gradients,
)
from fulgurite.transforms.pipeline import Pass

Times = dict[str, float]


@dataclass
class Options:
    """What `fg.jit` was given: executors in order of priority, extra passes, whether to check every run, what to do
    with reads that can't be guarded."""

    executors: tuple[Executor, ...]
    transforms: tuple[Pass, ...] = ()
    check: bool = False
    on_unguarded: str = "warn"


@dataclass
class Specialisation:
    """One compiled variant of a function: its guards, what it runs, and the stages it went through."""

    prologue: Prologue
    run: Callable[..., Any]
    forward: list[Trace]
    backward: list[list[Trace]] = field(default_factory=list)  # of each autograd function
    path: Path | None = None  # of a program that looks at its data
    epilogue: Callable[..., Any] | None = None  # of a program that writes to Python state

    def __post_init__(self) -> None:
        self.check = self.prologue.run
        self.is_plain = self.path is None and self.epilogue is None


@contextmanager
def timed(times: Times, phase: str) -> Iterator[None]:
    """Add the block's seconds to `times[phase]`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        times[phase] = times.get(phase, 0.0) + time.perf_counter() - start


@dataclass
class Compiler:
    """Compiles one captured program, adding seconds to `times` by phase.

    `backward_stages` receives for each autograd function the stages of its backward that was compiled last.
    """

    program: Program
    options: Options
    times: Times
    backward_stages: list[list[Trace]]
    path: Path | None = None
    epilogue: Callable[..., Any] | None = None

    def compile(self) -> tuple[Callable[..., Any], list[Trace]]:
        """A function of the trace's inputs that returns what the program returns, and the forward's stages."""
        program, names = self.program, list(self.program.outputs)
        body, stages = self._training() if program.needs_grad else self._inference(names)
        has_grad = any(item.fake.requires_grad for item in program.recorder.inputs)
        if has_grad and torch.is_grad_enabled() and not program.needs_grad:
            body = _below_autograd(body)
        if program.writes or returns_existing(program):
            self.epilogue = epilogue(program, names)
        else:
            body = rebuilding(program, body, names)
        if settings.are_changed(program.trace.bound_symbols):
            body = settings.keeping_settings(body)
        if program.in_inference:
            body = torch.inference_mode()(body)
        if program.leaves_grad_mode is not None:
            body = settings.leaving_grad_mode(body, program.leaves_grad_mode)
        return body, stages

    def _inference(self, names: list[str]) -> tuple[Callable[..., Any], list[Trace]]:
        program, recorded = self.program, self.program.trace
        flat = replace(recorded, output=tuple(program.recorder.proxy(program.outputs[name]) for name in names))
        before: tuple[Pass, ...] = (flatten,) if program.recorder.autocast else ()
        final = self._optimise(flat, (*self.options.transforms, *before, no_ops, common_subexpressions, dead_code))
        return self._code(final), [recorded, *final.history[1:]]

    def _training(self) -> tuple[Callable[..., Any], list[Trace]]:
        plan = plan_outputs(self.program)
        if plan.targets:
            run_all, stages = self._differentiable(plan)
        else:
            body, stages = self._inference([*plan.leaves, *plan.plain])
            run_all = self._assemble(plan, _below_autograd(body), [*plan.leaves, *plan.plain], [])
        if not torch.is_grad_enabled():  # the program enables it inside
            run_all = torch.enable_grad()(run_all)
        if self.program.recorder.autocast and plan.views:
            run_all = without_autocast(run_all)
        return run_all, stages

    def _differentiable(self, plan: Plan) -> tuple[Callable[..., Any], list[Trace]]:
        if not self.program.edges and not plan.leaves:
            self.program.recorder.refuse(
                "an output requires grad, but no gradient leads to an input", "make its leaf outside of fg.jit"
            )
        with timed(self.times, "record backward"):
            joints = [self._joint(stage, [*plan.leaves, *plan.plain]) for stage in plan.stages]
        halves = [self._split(joint, sum(kind is not None for kind in given)) for joint, given, *_ in joints]
        augmented = halves[0][0] if len(halves) == 1 else self._merged(plan, [made for made, _ in halves])
        outputs, kept = augmented.output
        augmented = replace(augmented, output=(outputs, tuple(p for p in kept if p.name not in plan.leaves)))
        forward = self._optimise(augmented, (no_ops, common_subexpressions, dead_code))
        pairs = []
        for stage, (_, given, histories, order), (made, pulled) in zip(plan.stages, joints, halves):
            shown: list[Trace] = []
            self.backward_stages.append(shown)
            compile_later = functools.partial(self._backward, shown)
            saved = [p.name for p in made.output[1] if p.name not in plan.leaves]
            connected = [name for name in (*plan.leaves, *histories) if name not in saved]
            pulled = self._placed(pulled, [*saved, *connected], pulled.inputs[len(made.output[1]) :], order)
            pair = Pair(self.program, stage, order, [*saved, *connected], compile_later, connected)
            pair.backwards[given + (None,) * len(pair.inner), False] = self._compile_backward(shown, pulled)
            pairs.append(pair)
        returned = [name for stage in plan.stages for name in stage.targets] + plan.leaves + plan.plain
        body = _below_autograd(self._code(forward))
        return self._assemble(plan, body, returned, pairs), list(forward.history)

    def _joint(self, stage: Stage, plain: list[str]) -> tuple[Trace, Cotangents, list[str], list[str]]:
        """The joint trace for a cotangent at every target; where that fails, for those targets that have a backward.

        With it come the values of whose history other ones are, and the inputs in the order for the function; by name.

        Eager raises the error when backward is called from such a target, and so does recording it then.
        """
        given = dense(map(self.program.fake, stage.targets))
        try:
            joint = record_backward(self.program, stage, plain, given)
        except TraceError:  # eager has one, which can't be recorded
            raise
        except Exception:
            given = tuple(kind if self._has_backward(stage, i) else None for i, kind in enumerate(given))
            joint = record_backward(self.program, stage, plain, given)
        recorder = self.program.recorder
        grads = [item for item in recorder.inputs if item.before.requires_grad]
        leaves = [item.proxy.name for item in grads if item.before.leaf]
        others = [item.proxy.name for item in grads if not item.before.leaf]
        made = sum(self.program.fake(name).is_leaf for name in stage.sources)
        order = arranged(leaves, others, recorder.arrivals, made)
        rest = [item.proxy.name for item in recorder.inputs if not item.before.requires_grad]
        return joint, given, list(recorder.histories.names), [*order, *rest]

    def _has_backward(self, stage: Stage, target: int) -> bool:
        (kind,) = dense([self.program.fake(stage.targets[target])])
        alone = tuple(kind if i == target else None for i in range(len(stage.targets)))
        try:
            record_backward(self.program, stage, (), alone)
        except Exception:
            return False
        return True

    def _merged(self, plan: Plan, made: list[Trace]) -> Trace:
        """One augmented forward for several stages: it returns and saves what each of them does."""
        recorder = self.program.recorder
        names = [name for stage in plan.stages for name in stage.targets] + plan.leaves + plan.plain
        outputs = tuple(recorder.proxy(self.program.fake(name)) for name in names)
        saved = tuple({p.name: p for trace in made for p in trace.output[1]}.values())
        trace = replace(recorder.trace("augmented_forward", (outputs, saved)), provenance=Provenance("merged"))
        with timed(self.times, "passes"):
            return run(trace, (*self.options.transforms, flatten, dead_code))

    def _split(self, joint: Trace, cotangents: int) -> tuple[Trace, Trace]:
        passes = (*self.options.transforms, flatten, dead_code)
        with timed(self.times, "passes"):
            return split(run(joint, passes), cotangents)

    def _backward(
        self, shown: list[Trace], joint: Trace, cotangents: int, saved: list[str], order: list[str], create_graph: bool
    ) -> Callable[..., Any]:
        """A backward for other cotangents than the first, which takes what the forward saves already.

        With `create_graph` it runs under autograd, call for call as it was recorded.
        """
        _, pulled = self._split(joint, cotangents)
        known = {p.name: p for p in pulled.inputs}
        seeds = pulled.inputs[len(pulled.inputs) - cotangents :]
        missing = known.keys() - set(saved) - {p.name for p in seeds}
        if missing:
            self.program.recorder.refuse(
                f"the backward for these outputs needs {', '.join(sorted(missing))}, which was not saved",
                "use all outputs in the loss",
            )
        pulled = self._placed(pulled, saved, seeds, order)
        return compile_trace(stop_gradients(pulled)) if create_graph else self._compile_backward(shown, pulled)

    def _placed(self, pulled: Trace, saved: list[str], seeds: Sequence[Any], order: list[str]) -> Trace:
        """A backward that takes these saved values, also those that it does not read, and returns in this order."""
        known, recorder = {p.name: p for p in pulled.inputs}, self.program.recorder
        inputs = tuple(known.get(name) or recorder.proxy(self.program.fake(name)) for name in saved)
        found = dict(zip((item.proxy.name for item in recorder.inputs), pulled.output))
        gradients = (*(found[name] for name in order), *pulled.output[len(found) :])
        return replace(pulled, inputs=(*inputs, *seeds), output=gradients)

    def _compile_backward(self, shown: list[Trace], pulled: Trace) -> Callable[..., Any]:
        final = self._optimise(pulled, (no_ops, common_subexpressions, dead_code))
        shown[:] = final.history
        return compile_checked(final, always=self.options.check)

    def _assemble(
        self, plan: Plan, body: Callable[..., Any], returned: list[str], pairs: list[Pair]
    ) -> Callable[..., Any]:
        """The forward, then for each stage its autograd function and the view calls that its values allow.

        What the forward returns is `returned`, and, where there are stages, what it saves for them.
        """
        recorder = self.program.recorder
        inputs = [item.proxy.name for item in recorder.inputs]
        claimed = claim_all(Trace("views", (), tuple(plan.views), ()), self.options.executors[-1:]).bound_symbols
        defined = (p.name for bsym in claimed for p in bsym.outputs)
        raw = {name: f"{name}_computed" for name in returned}
        taken = ("assemble", "saved", *inputs, *returned, *raw.values(), *defined)
        names = Namespace(recorder.constants, taken, short=True)
        kept = [pair.saved[: len(pair.saved) - len(pair.connected)] for pair in pairs]
        union = list(dict.fromkeys(name for saved in kept for name in saved))
        call = f"{names.bind('forward', body)}({', '.join(inputs)})"
        lines = [f"def assemble({', '.join(inputs)}):"]
        lines.append(f"    {_tuple(raw.values())}{', saved' if pairs else ''} = {call}")
        lines.extend(f"    {name} = {raw[name]}" for name in plan.plain)
        for name in plan.leaves:
            lines.append(f"    {name} = {names.bind('as_leaf', as_leaf(self.program.fake(name)))}({raw[name]})")
        known, views = {*inputs, *plan.plain, *plan.leaves}, list(claimed)
        for pair, needed in zip((*pairs, None), (*kept, [])):
            views = _emit_views(views, known, lines, names)
            if pair is not None:
                dirty = [pair.order.index(inputs[i]) for i in plan.dirty]
                apply = names.bind("apply", autograd_function(pair, dirty))
                values = _tuple(raw[name] for name in pair.stage.targets)
                saved = "saved" if needed == union else _tuple(f"saved[{union.index(name)}]" for name in needed)
                given = ", ".join((*pair.order, *pair.stage.sources))
                first = f"[:{len(pair.stage.targets)}]" if pair.inner else ""
                lines.append(f"    {_tuple(pair.stage.targets)} = {apply}(({values}, {saved}), {given}){first}")
                known.update(pair.stage.targets)
        lines.extend(f"    {name}.retain_grad()" for name in plan.retained)
        lines.append(f"    return {_tuple(self.program.outputs)}")
        return compile_source(lines, "assemble", names.globals)

    def _optimise(self, trace: Trace, passes: Sequence[Pass]) -> Trace:
        if has_assumptions(trace):
            return self._optimise_ending(trace, passes)
        with timed(self.times, "passes"):
            trace = run(trace, passes)
        with timed(self.times, "executors"):
            return run(claim_all(trace, self.options.executors), (last_use,))

    def _optimise_ending(self, trace: Trace, passes: Sequence[Pass]) -> Trace:
        """What comes before an assumption stays as it is, so that other paths find it so."""
        before = claim_all(beginning(trace), self.options.executors[-1:]).bound_symbols
        last = self._optimise(ending(trace), passes)
        for stage in last.history[1:]:
            whole = replace(trace, bound_symbols=(*before, *stage.bound_symbols), output=stage.output)
            trace = replace(whole, provenance=replace(stage.provenance, parent=trace))
        return trace

    def _code(self, trace: Trace) -> Callable[..., Any]:
        with timed(self.times, "codegen"):
            if torch.is_grad_enabled():
                inputs = self.program.recorder.inputs
                trace = without_grad_inside(trace, {item.proxy.name for item in inputs if item.fake.requires_grad})
            body: Callable[..., Any]
            if has_assumptions(trace):
                body = self.path = Path(
                    trace, self.program.recorder.values, functools.partial(compile_checked, always=self.options.check)
                )
            else:
                body = compile_checked(trace, always=self.options.check)
        return without_autocast(body) if self.program.recorder.autocast else body


def _tuple(names: Iterable[str]) -> str:
    return f"({''.join(name + ', ' for name in names)})"


def _emit_views(views: list[BoundSymbol], known: set[str], lines: list[str], names: Namespace) -> list[BoundSymbol]:
    """Add the view calls whose arguments are known; the others are left for later."""
    later = []
    for bsym in views:
        if all(p.name in known for p in bsym.inputs):
            lines.append(f"    {names.call(bsym)}")
            known.update(p.name for p in bsym.outputs)
        else:
            later.append(bsym)
    return later


def _below_autograd(body: Callable[..., Any]) -> Callable[..., Any]:
    """Run without building a graph, with grad mode as the recorded program had it, which some kernels look at.

    Private: `torch.no_grad` would also change what those kernels see.
    """

    def run_below_autograd(*inputs: Any) -> Any:
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(True)
        try:
            with torch._C._AutoDispatchBelowAutograd():
                return body(*inputs)
        finally:
            torch._C._set_grad_enabled(before)

    return run_below_autograd
