"""The results of a sweep over PyTorch's operator database: the file that keeps them, figures, and a summary."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import torch

from op_db_entry import BITWISE, MODES, NOT_DIFFERENTIABLE, NOT_RUN, SAMPLES

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tests" / "results" / "op_db.json"
SUMMARY = ROOT / "docs" / "op_db.md"

Results = dict[str, dict[str, str]]
"""Verdicts by op and mode."""


def counts(results: Results, mode: str) -> tuple[int, int]:
    """How many entries are bitwise, and how many run in eager at all."""
    verdicts = [result[mode] for result in results.values() if mode in result]
    judged = [verdict for verdict in verdicts if not verdict.startswith(NOT_RUN)]
    return judged.count(BITWISE), len(judged)


def read_results(path: Path = RESULTS) -> Results:
    """The verdicts of the last sweep."""
    results: Results = json.loads(path.read_text())["entries"]
    return results


def recorded_torch_version() -> str:
    """The release of torch that the results file was made with."""
    return str(json.loads(RESULTS.read_text())["torch"])


def write_results(results: Results) -> None:
    """Write the results file: sorted, one line an op, the same text for the same verdicts."""
    lines = [
        f"  {json.dumps(name)}: {json.dumps(results[name], sort_keys=True, ensure_ascii=False)}"
        for name in sorted(results)
    ]
    body = ",\n".join(lines)
    version = json.dumps(torch_version())
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f'{{"torch": {version}, "samples": {SAMPLES}, "entries": {{\n{body}\n}}}}\n')


def torch_version() -> str:
    """The release of torch, without the build."""
    return torch.__version__.split("+")[0]


def percent(part: int, whole: int) -> str:
    """
    >>> percent(1, 3), percent(0, 0)
    ('33.3 %', '–')
    """
    return f"{100 * part / whole:.1f} %" if whole else "–"


def write_summary(results: Results) -> None:
    """Write the Markdown summary: figures, then each entry that is not bitwise with its reason."""
    parts = [
        "# PyTorch's operator database under fg.jit",
        f"Made by `make sweep` with torch {torch_version()}; not to be edited. Each entry of "
        "`torch.testing._internal.common_methods_invocations.op_db` that takes float32 on the CPU runs its first "
        f"{SAMPLES} samples, twice with different data, through one jitted function. *Bitwise* means that outputs, "
        "gradients, mutated inputs, dtypes, shapes, strides, `requires_grad`, what shares memory with what, and the "
        "random generators afterwards are exactly those of eager. *Training* also takes the gradients of all float "
        "inputs.",
        figures_table(results),
    ]
    for mode in MODES:
        parts.append(f"## Not bitwise: {mode}\n\n{verdict_table(results, mode, judged=True)}")
    for mode in MODES:
        parts.append(f"## Nothing to compare with: {mode}\n\n{verdict_table(results, mode, judged=False)}")
    SUMMARY.write_text("\n\n".join(parts) + "\n")


def figures_table(results: Results) -> str:
    """One row a mode: how many entries are bitwise, differ, or do not run in eager."""
    rows = ["| mode | entries | run in eager | bitwise | of those that run |", "| --- | --- | --- | --- | --- |"]
    for mode in MODES:
        good, judged = counts(results, mode)
        total = sum(verdicts.get(mode) != NOT_DIFFERENTIABLE for verdicts in results.values())
        rows.append(f"| {mode} | {total} | {judged} | {good} | {percent(good, judged)} |")
    return "\n".join(rows)


def verdict_table(results: Results, mode: str, judged: bool) -> str:
    """The entries that are not bitwise; ops with the same verdict share a row, the most frequent comes first."""
    wanted = {
        name: verdicts[mode]
        for name, verdicts in sorted(results.items())
        if verdicts[mode] not in (BITWISE, NOT_DIFFERENTIABLE) and verdicts[mode].startswith(NOT_RUN) != judged
    }
    if not wanted:
        return "None."
    rows = ["| verdict | ops |", "| --- | --- |"]
    for verdict, _ in sorted(Counter(wanted.values()).items(), key=lambda item: (-item[1], item[0])):
        ops = ", ".join(f"`{name}`" for name in wanted if wanted[name] == verdict)
        rows.append(f"| {verdict.replace('|', '∣')} | {ops} |")
    return "\n".join(rows)
