"""Running a program whose gradients may be asked for: one `autograd.Function` around the compiled pair.

The Function returns the values that are no views; views of them (and of inputs) are made after it by the recorded
view calls, so that their history, and what in-place writes do to it, is eager's.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fulgurite.ir import BoundSymbol, Trace
from fulgurite.ir.errors import TraceError
from fulgurite.trace.program import Program, record_backward

_REPLAYED = {"CreationMeta.DEFAULT", "CreationMeta.MULTI_OUTPUT_NODE"}


@dataclass
class Plan:
    """How the outputs of a program come about."""

    targets: list[str] = field(default_factory=list)  # what the autograd Function returns with a gradient
    plain: list[str] = field(default_factory=list)  # what it returns without one
    views: list[BoundSymbol] = field(default_factory=list)  # calls that make the other outputs, run after it
    dirty: list[int] = field(default_factory=list)  # positions of inputs that are written with a gradient


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
        _add(plan.targets, [] if root in inputs else [root])
    return plan


def _add(items: list[Any], new: Sequence[Any]) -> None:
    items.extend(item for item in new if not any(item is old or item == old for old in items))


def _view_chain(program: Program, name: str, makers: dict[str, BoundSymbol]) -> tuple[str, list[BoundSymbol]]:
    """The value that an output is a differentiable view of, and the calls that lead from it to the output."""
    out = program.fake(name)
    creation = str(torch._C._autograd._get_creation_meta(out)) if out._is_view() else ""  # private: tells who made it
    if creation not in _REPLAYED:
        return name, []
    base = program.recorder.proxy(out._base).name  # type: ignore[arg-type]
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
    """The compiled forward and backward of a plan."""

    program: Program
    plan: Plan
    forward: Callable[..., Any]  # takes the inputs, returns `((*targets, *plain), saved)`
    saved: list[str]  # names of what it saves
    compile_backward: Callable[[Trace, int, list[str]], Callable[..., Any]]
    backwards: dict[tuple[bool, ...], Callable[..., Any]] = field(default_factory=dict)
    failure: Exception | None = None
    lock: Any = field(default_factory=threading.RLock)

    def backward(self, given: tuple[bool, ...]) -> Callable[..., Any]:
        """The backward for these cotangents; recorded at first use from the program's own autograd graph."""
        if given in self.backwards:
            return self.backwards[given]
        with self.lock:
            if given not in self.backwards:  # another thread may have made it meanwhile
                joint = record_backward(self.program, self.plan.targets, self.plan.plain, given)
                self.backwards[given] = self.compile_backward(joint, sum(given), self.saved)
        return self.backwards[given]


def without_autocast(body: Callable[..., Any]) -> Callable[..., Any]:
    """What was recorded below autocast has its casts in it, so it runs without."""

    def run_without_autocast(*inputs: Any) -> Any:
        with torch._C._DisableAutocast():  # private: the public one takes one device type
            return body(*inputs)

    return run_without_autocast


def autograd_function(pair: Pair) -> Callable[..., tuple[Any, ...]]:
    """A differentiable function of the inputs that returns `(*targets, *plain)`."""
    count, dirty, forward = len(pair.plan.targets), pair.plan.dirty, pair.forward

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, plain: list[Any], *inputs: torch.Tensor) -> Any:
            outputs, saved = forward(*inputs)
            ctx.save_for_backward(*saved)
            ctx.set_materialize_grads(False)
            if dirty:
                ctx.mark_dirty(*(inputs[i] for i in dirty))
            plain.extend(outputs[count:])
            return outputs[:count]

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            if pair.failure is not None:
                raise pair.failure
            if torch.is_grad_enabled():
                raise TraceError(
                    "create_graph=True through a function of fg.jit is not supported yet; "
                    "call the original function where you need a gradient of a gradient"
                )
            run = pair.backward(tuple(c is not None for c in cotangents))
            if torch._C._is_any_autocast_enabled():
                run = without_autocast(run)
            return (None, *run(*ctx.saved_tensors, *(c for c in cotangents if c is not None)))

    apply: Callable[..., Any] = Compiled.apply

    def call(*inputs: torch.Tensor) -> tuple[Any, ...]:
        plain: list[Any] = []
        return (*apply(plain, *inputs), *plain)

    return call
