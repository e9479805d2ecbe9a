"""A case is one small program, run in eager and under `fg.jit`; all that it returns must be equal to the bit.

A case is a function of a `Run`. It builds everything anew (modules, tensors, operators), wraps what is judged in
`run.jit`, calls it at least twice, with other data or after a change, and returns whatever a user could see: outputs,
gradients, mutated inputs, buffers, the class and text of exceptions. Nested structures are welcome.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import fulgurite as fg
from cleanliness import generator_state, global_state, seed_everything
from compare import Difference, differences

CASES: dict[str, Case] = {}
_namespaces = itertools.count()


@dataclass
class Run:
    """One run of a case: `jit` is the identity in eager's, and `op` registers an operator where that is asked for."""

    compiled: bool
    registered: bool = False
    ns: str = field(default_factory=lambda: f"case{next(_namespaces)}")
    """A namespace for operators that no other run uses."""

    def jit(self, fn: Any, **options: Any) -> Any:
        """What the case judges."""
        return fg.jit(fn, **options) if self.compiled else fn

    def op(self, op: Any) -> Any:
        """The operator itself, after `fg.register_custom_op` in runs with registration."""
        if self.compiled and self.registered:
            fg.register_custom_op(op)
        return op

    def caught(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of a call, or the class name and the first line of the exception that it raised."""
        try:
            return fn(*args, **kwargs)
        except fg.TraceError:
            raise
        except Exception as error:
            return type(error).__name__, str(error).replace(self.ns, "case").splitlines()[:1]


@dataclass(frozen=True)
class Case:
    """A program with the area that it belongs to."""

    area: str
    name: str
    program: Callable[[Run], Any]
    may_refuse: bool
    operators: bool

    @property
    def key(self) -> str:
        return f"{self.area}: {self.name}"


def case(area: str, *, may_refuse: bool = False, operators: bool = False) -> Callable[..., Any]:
    """Add a program to the cases.

    Args:
        area: what it is about, for the table.
        may_refuse: whether a TraceError is an acceptable outcome.
        operators: whether it defines custom operators, so that it is run with and without registration.
    """

    def add(program: Callable[[Run], Any]) -> Callable[[Run], Any]:
        made = Case(area, program.__name__, program, may_refuse, operators)
        assert made.key not in CASES, made.key
        CASES[made.key] = made
        return program

    return add


@dataclass(frozen=True)
class Verdict:
    """How a case went: `right`, `refused` (TraceError), `raised`, `wrong`, or `unsound`, which is the case's fault."""

    outcome: str
    detail: str = ""


def judge(judged: Case, registered: bool = False) -> Verdict:
    """Run a case both ways and compare everything, what it leaves behind included."""
    try:
        expected = _observe(judged, Run(compiled=False))
    except Exception as error:
        return Verdict("unsound", f"in eager: {type(error).__name__}: {error}")
    try:
        actual = _observe(judged, Run(compiled=True, registered=registered))
    except fg.TraceError as error:
        return Verdict("refused", str(error))
    except Exception as error:
        return Verdict("raised", f"{type(error).__name__}: {error}")
    found: list[Difference] = differences(expected, actual, "result")
    return Verdict("wrong", "; ".join(map(str, found[:4]))) if found else Verdict("right")


def _observe(judged: Case, run: Run) -> Any:
    seed_everything(0)
    before = global_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = judged.program(run)
    return {"seen": seen, "generators": generator_state(), "left": differences(before, global_state())}
