"""Results of a benchmark as JSON with metadata, and as a table."""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

import fulgurite as fg
from fulgurite.tools.timing import Blocks, Ratio, Summary, ratio_of, summarise

HEADER = (
    "workload",
    "mode",
    "bits equal",
    "max error",
    "eager",
    "fulgurite",
    "ratio [95 %]",
    "verdict",
    "first call",
    "of it trace",
    "retraces",
    "calls",
)


@dataclass(frozen=True)
class Result:
    """One comparison; times in seconds.

    `blocks` is None, and there is no speed, unless the arm was right, did not fail, and did not trace again while it
    was timed. `first_call` is the first call of the jitted arm, `trace_time` the part of it that fulgurite spent before
    running. `calls_recorded` and `calls_run` count the calls in the forward trace before and after all passes.
    """

    name: str
    training: bool
    bitwise: bool
    max_error: float
    correct: bool
    retraces: int = 0
    first_call: float = 0.0
    trace_time: float = 0.0
    calls_recorded: int = 0
    calls_run: int = 0
    blocks: Blocks | None = None
    error: str = ""
    seed: int = 0

    @property
    def valid(self) -> bool:
        """Whether it has a speed to speak of."""
        return self.blocks is not None

    @property
    def eager(self) -> Summary | None:
        return summarise(self.blocks.eager) if self.blocks else None

    @property
    def fulgurite(self) -> Summary | None:
        return summarise(self.blocks.fulgurite) if self.blocks else None

    @property
    def ratio(self) -> Ratio | None:
        """Fulgurite's time divided by eager's: below 1 is faster."""
        return ratio_of(self.blocks, self.seed) if self.blocks else None


def metadata(threads: int, seed: int, import_time: float) -> dict[str, Any]:
    """What the figures depend on: versions, machine, threads, seed, date."""
    return {
        "fulgurite": fg.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": _cpu(),
        "threads": threads,
        "seed": seed,
        "import_seconds": import_time,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def as_json(results: Sequence[Result], about: dict[str, Any]) -> dict[str, Any]:
    """Everything, raw blocks included, in types that JSON has (an infinite error becomes None)."""
    return {"metadata": about, "geometric_mean": geometric_mean(results), "results": [_record(r) for r in results]}


def geometric_mean(results: Sequence[Result]) -> float | None:
    """Of the ratios that exist."""
    logs = [math.log(result.ratio.value) for result in results if result.ratio]
    return math.exp(sum(logs) / len(logs)) if logs else None


def markdown(results: Sequence[Result]) -> str:
    """A Markdown table, failures below it."""
    rows = [HEADER, tuple("---" for _ in HEADER), *map(cells, results)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", *notes(results)]) + "\n"


def notes(results: Sequence[Result]) -> list[str]:
    """The geometric mean, what failed, and which times scatter."""
    mean = geometric_mean(results)
    lines = [f"Geometric mean of the ratios: {mean:.3f}."] if mean else []
    for result in results:
        if result.error:
            lines.append(f"{_title(result)}: {result.error}")
        arms = {"eager": result.eager, "fulgurite": result.fulgurite}
        noisy = [name for name, arm in arms.items() if arm and arm.noisy]
        if noisy:
            lines.append(f"{_title(result)}: {' and '.join(noisy)} scatter by more than 10 % (interquartile range).")
    return lines


def cells(result: Result) -> tuple[str, ...]:
    """A row of the table."""
    speed = ("✗", "✗", "✗", "✗")
    if result.eager and result.fulgurite and result.ratio:
        ratio = result.ratio
        interval = f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        speed = (_spread(result.eager), _spread(result.fulgurite), interval, ratio.verdict)
    bits = "yes" if result.bitwise else ("no" if result.correct else "✗")
    mode = "training" if result.training else "inference"
    cold = (seconds(result.first_call), seconds(result.trace_time))
    counts = (str(result.retraces), f"{result.calls_recorded} → {result.calls_run}")
    return (result.name, mode, bits, f"{result.max_error:.1e}", *speed, *cold, *counts)


def seconds(value: float) -> str:
    """
    >>> seconds(2.5e-06), seconds(0.0123), seconds(1.5)
    ('2.50 µs', '12.30 ms', '1.50 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value / 1e-6:.2f} µs"


def _spread(summary: Summary) -> str:
    return f"{seconds(summary.median)} ± {50 * summary.iqr / summary.median:.1f} %"


def _title(result: Result) -> str:
    return f"{result.name}, {'training' if result.training else 'inference'}"


def _record(result: Result) -> dict[str, Any]:
    record = asdict(result)
    record["max_error"] = result.max_error if math.isfinite(result.max_error) else None
    for name in ("eager", "fulgurite", "ratio"):
        value = getattr(result, name)
        record[name] = asdict(value) if value else None
    record["verdict"] = result.ratio.verdict if result.ratio else None
    return record


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
