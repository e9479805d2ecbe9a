"""Every small program does under `fg.jit` what it does in eager, or what `results/programs.json` records.

`python tests/test_programs.py` runs them all and writes the table; it may only get better.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

import programs  # noqa: F401  (defines the cases)
from programs.case import CASES, Case, Verdict, judge

PAGE = Path(__file__).parents[1] / "docs" / "programs.md"
KNOWN = Path(__file__).parent / "results" / "programs.json"
RUNS = [(case, registered) for case in CASES.values() for registered in ([False, True] if case.operators else [False])]


def label(case: Case, registered: bool) -> str:
    return f"{case.key}{' (registered)' if registered else ''}"


def known_failures() -> dict[str, list[str]]:
    """Outcome and detail of the programs that are not right yet."""
    return json.loads(KNOWN.read_text()) if KNOWN.exists() else {}


@pytest.mark.parametrize(("case", "registered"), RUNS, ids=[label(*run) for run in RUNS])
def test_program(case: Case, registered: bool) -> None:
    verdict = judge(case, registered)
    allowed = known_failures().get(label(case, registered), ["right", ""])[0]
    accepted = {"right", allowed} | ({"refused"} if case.may_refuse else set())
    assert verdict.outcome in accepted, f"{verdict.outcome}: {verdict.detail}"


def stable(detail: str) -> str:
    """Without what another checkout or run changes: folders, addresses, the numbers of operators' namespaces."""
    detail = detail.replace(f"{Path(__file__).parents[1]}/", "")
    return re.sub(r"\bcase\d+\b", "case", re.sub(r" at 0x[0-9a-f]+", "", detail))


def main() -> None:
    wanted = [run for run in RUNS if not sys.argv[1:] or sys.argv[1] in run[0].key]
    found: dict[str, Verdict] = {label(*run): judge(*run) for run in wanted}
    failing = {key: [v.outcome, stable(v.detail)] for key, v in found.items() if v.outcome != "right"}
    for key, (outcome, detail) in failing.items():
        print(f"{outcome:8} {key}\n         {detail[:300]}")
    print(f"{len(found) - len(failing)} of {len(found)} right")
    if not sys.argv[1:]:
        KNOWN.write_text(json.dumps(failing, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(page(found))


def page(found: dict[str, Verdict]) -> str:
    """How the programs of each area went, as a page of the documentation."""
    areas: dict[str, list[str]] = {}
    for key, verdict in found.items():
        areas.setdefault(key.rpartition(":")[0], []).append(verdict.outcome)
    rows = [f"| {area} | {len(runs)} | {runs.count('right')} |" for area, runs in sorted(areas.items())]
    others = [f"| {key} | {v.outcome} |" for key, v in sorted(found.items()) if v.outcome != "right"]
    total = sum(verdict.outcome == "right" for verdict in found.values())
    return "\n".join(
        [
            "# Small programs under fg.jit",
            "",
            f"Made by `python tests/test_programs.py` with torch {torch.__version__.split('+')[0]}; not to be edited.",
            "Each program of `tests/programs` runs in eager and under `fg.jit`, at least twice, with other data or",
            "after a change; *right* means that all that a user could see is eager's to the bit. Those with operators",
            "of their own run with and without `fg.register_custom_op`.",
            f"{total} of {len(found)} runs are right.",
            "",
            "| area | runs | right |",
            "| --- | --- | --- |",
            *rows,
            "",
            "Not right (operators whose fake kernel lies are to be refused):",
            "",
            "| program | outcome |",
            "| --- | --- |",
            *others,
            "",
        ]
    )


if __name__ == "__main__":
    main()
