"""Whether a custom op is registered as it behaves: one report for its author."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fulgurite.custom_op import register_custom_op
from fulgurite.ir import Symbol
from fulgurite.ir.tree import leaves, map_leaves
from fulgurite.jit import jit, make_trace


@dataclass(frozen=True)
class Check:
    """One question and its answer; `passed` is None where it could not be asked."""

    name: str
    passed: bool | None
    detail: str = ""


@dataclass(frozen=True)
class OpReport:
    """What `opcheck` found. It is true when nothing failed, and prints as a list with what to change."""

    op: str
    checks: tuple[Check, ...]

    def __bool__(self) -> bool:
        return all(check.passed is not False for check in self.checks)

    def __str__(self) -> str:
        words = {True: "ok     ", False: "FAILED ", None: "skipped"}
        lines = [f"{self.op}: {'nothing to change' if self else 'needs changes'}"]
        for check in self.checks:
            detail = f": {check.detail}" if check.detail else ""
            lines.append(f"  {words[check.passed]} {check.name}{detail}")
        return "\n".join(lines)


class _NotApplicable(Exception):
    """A check does not apply; the message says why."""


def opcheck(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> OpReport:
    """Check that a custom op traces, and that its schema, fake kernel and gradients tell the truth.

    What PyTorch tests already is asked of `torch.library.opcheck` (schema, autograd registration, fake kernel) and
    `torch.autograd.gradcheck` (finite differences, in float64); that `fg.jit` gives eager's bits is tested here.

    Args:
        op: what `fg.register_custom_op` takes.
        args, kwargs: a sample call. Gradients are checked where a tensor in it requires grad. They are not written.

    >>> @torch.library.custom_op("opcheck_example::double", mutates_args=())
    ... def double(x: torch.Tensor) -> torch.Tensor:
    ...     return x * 2
    >>> print(opcheck(double, (torch.ones(3),)))  # doctest: +ELLIPSIS
    opcheck_example.double.default: needs changes
      ok      schema
      ok      autograd registration
      FAILED  fake kernel: ...register_fake...
    """
    symbol = register_custom_op(op)
    call = _Call(symbol, tuple(args), dict(kwargs or {}))
    return OpReport(str(symbol.fn), tuple(_ask(name, question, call) for name, question in _QUESTIONS.items()))


@dataclass(frozen=True)
class _Call:
    """A sample call; each use gets tensors of its own."""

    symbol: Symbol
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def op(self) -> torch._ops.OpOverload:
        assert isinstance(self.symbol.fn, torch._ops.OpOverload)
        return self.symbol.fn

    def fresh(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return map_leaves(_copy, (self.args, self.kwargs))

    @property
    def needs_grad(self) -> bool:
        return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves((self.args, self.kwargs)))


def _copy(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    copied = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    return copied.copy_(leaf.detach()).requires_grad_(leaf.requires_grad)


def _ask(name: str, question: Callable[[_Call], None], call: _Call) -> Check:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.random.fork_rng(devices=[]):
                question(call)
    except _NotApplicable as reason:
        return Check(name, None, str(reason))
    except Exception as error:
        advice = _ADVICE[name].format(name=call.op._schema.name)
        return Check(name, False, f"{_first_lines(error)}; {advice}")
    return Check(name, True)


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"[:400]


def _torch_test(test: str) -> Callable[[_Call], None]:
    def question(call: _Call) -> None:
        args, kwargs = call.fresh()
        torch.library.opcheck(call.op, args, kwargs, test_utils=test)

    return question


def _traces(call: _Call) -> None:
    args, kwargs = call.fresh()
    trace = make_trace(call.symbol.fn)(*args, **kwargs)
    if not any(bsym.symbol.fn is call.symbol.fn for bsym in trace.flat()):
        raise RuntimeError("the op is not in its own trace: it decomposes into others (CompositeImplicitAutograd)")


def _same_bits(call: _Call) -> None:
    seen = [_run(fn, call) for fn in (call.symbol.fn, jit(call.symbol.fn), jit(call.symbol.fn))]
    for other in seen[1:]:
        torch.testing.assert_close(other, seen[0], rtol=0, atol=0, equal_nan=True, check_stride=True)


def _run(fn: Callable[..., Any], call: _Call) -> list[Any]:
    """Outputs, arguments as the call left them, and gradients."""
    torch.manual_seed(0)
    args, kwargs = call.fresh()
    with torch.set_grad_enabled(call.needs_grad and _has_gradient(call)):
        outputs = [leaf for leaf in leaves(fn(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    inputs = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    grads = _gradients(outputs, inputs)
    return [tensor.detach() for tensor in (*outputs, *inputs, *grads)]


def _has_gradient(call: _Call) -> bool:
    args, kwargs = call.fresh()
    outputs = [leaf for leaf in leaves(call.symbol.fn(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    try:
        _gradients(outputs, [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)])
    except RuntimeError:
        return False
    return True


def _gradients(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    roots = [out for out in outputs if out.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    if not roots or not wanted:
        return iter(())
    found = torch.autograd.grad(roots, wanted, [torch.ones_like(out) for out in roots], allow_unused=True)
    return (grad for grad in found if grad is not None)


def _finite_differences(call: _Call) -> None:
    if not call.needs_grad:
        raise _NotApplicable("no tensor of the sample call requires grad")
    if call.symbol.tags & {"random", "mutates"}:
        raise _NotApplicable("the op is random or writes its arguments")
    args, kwargs = map_leaves(_to_double, call.fresh())
    try:
        with torch.no_grad():
            call.symbol.fn(*args, **kwargs)
    except Exception as error:
        raise _NotApplicable(f"the op takes no float64 ({type(error).__name__})") from error
    tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]

    def run(*given: torch.Tensor) -> Any:
        found = {id(old): new for old, new in zip(tensors, given)}
        swapped = map_leaves(lambda leaf: found.get(id(leaf), leaf), (args, kwargs))
        outputs = [leaf for leaf in leaves(call.symbol.fn(*swapped[0], **swapped[1])) if isinstance(leaf, torch.Tensor)]
        return tuple(out for out in outputs if out.is_floating_point() or out.is_complex())

    torch.autograd.gradcheck(run, tensors)


def _to_double(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf.detach().double().requires_grad_(leaf.requires_grad)
    return leaf


_QUESTIONS: dict[str, Callable[[_Call], None]] = {
    "schema": _torch_test("test_schema"),
    "autograd registration": _torch_test("test_autograd_registration"),
    "fake kernel": _torch_test("test_faketensor"),
    "traces": _traces,
    "same bits under fg.jit": _same_bits,
    "gradients agree with finite differences": _finite_differences,
}
_ADVICE = {
    "schema": "name what the op writes in mutates_args of torch.library.custom_op, and return no alias of an argument",
    "autograd registration": 'give the formula to torch.library.register_autograd("{name}"), not to another key',
    "fake kernel": 'return what the op returns (shape, dtype, strides) from torch.library.register_fake("{name}")',
    "traces": 'give the op a fake kernel with torch.library.register_fake("{name}")',
    "same bits under fg.jit": "mend what failed above first; if nothing did, this is a bug of fulgurite's",
    "gradients agree with finite differences": 'mend the formula given to torch.library.register_autograd("{name}")',
}
