"""Run PyTorch's operator database through `fg.jit` and write down what agrees with eager: `make sweep`.

Writes tests/results/op_db.json, one line for each op, and a summary, docs/op_db.md. With `--only` or `--mode` it
prints verdicts and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence

import torch

from isolated import run_isolated
from op_db_entry import BITWISE, MODES, entries, judge
from op_db_results import RESULTS, Results, counts, percent, read_results, write_results, write_summary

SECONDS = 60.0
"""How long one entry may take in one mode."""


def main() -> int:
    """The command line; the exit status is 1 when an entry is worse than the results file says."""
    args = parse_arguments()
    names = [name for name in entries() if not args.only or matches(name, args.only)]
    modes = [args.mode] if args.mode else list(MODES)
    results: Results = {}
    for name, mode, verdict in sweep(names, modes, args.jobs):
        results.setdefault(name, {})[mode] = verdict
        if args.only or verdict != BITWISE:
            print(f"{name} ({mode}): {verdict}", flush=True)
    before = read_results() if RESULTS.exists() else {}
    print_figures(results, modes)
    if not args.only and not args.mode:
        write_results(results)
        write_summary(results)
    return 1 if report_regressions(before, results) else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="this op alone, in all its variants")
    parser.add_argument("--mode", choices=MODES, help="this mode alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    return parser.parse_args()


def matches(name: str, wanted: str) -> bool:
    """Whether an entry is the op `wanted`, or a variant of it."""
    return wanted in (name, entries()[name].name)


def sweep(names: Sequence[str], modes: Sequence[str], jobs: int) -> Iterator[tuple[str, str, str]]:
    """Judge each op in each mode, in processes of their own; gives (name, mode, verdict) as they come."""
    items = [(name, mode) for name in names for mode in modes]
    start = time.monotonic()
    for done, ((name, mode), verdict) in enumerate(run_isolated(items, judge_item, jobs, SECONDS), start=1):
        if done % 100 == 0:
            print(f"{done} of {len(items)} in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        yield name, mode, verdict


def judge_item(item: tuple[str, str]) -> str:
    """`judge` in a worker process."""
    torch.set_num_threads(1)
    return judge(*item)


def print_figures(results: Results, modes: Sequence[str]) -> None:
    for mode in modes:
        good, judged = counts(results, mode)
        print(f"{mode}: {good} of {judged} bitwise ({percent(good, judged)})")


def report_regressions(before: Results, after: Results) -> list[str]:
    """Print the entries that were bitwise in the last sweep and are not in this one."""
    worse = [
        f"{name} ({mode})"
        for name, verdicts in after.items()
        for mode, verdict in verdicts.items()
        if before.get(name, {}).get(mode) == BITWISE and verdict != BITWISE
    ]
    for line in worse:
        print(f"worse than in {RESULTS.name}: {line}")
    return worse


if __name__ == "__main__":
    sys.exit(main())
