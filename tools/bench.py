"""Measure fulgurite against eager PyTorch: first whether it is right, then how fast.

    python -m fulgurite.tools.bench --json out.json --markdown

Ratios are fulgurite's time divided by eager's: below 1 is faster. An arm that is wrong gets ✗ and no speed. The exit
status is 1 when an arm is wrong, fails, or traces again while it is timed.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import fulgurite as fg
from fulgurite.tools.arm import Arm, Difference, Loss, difference, scalar_loss
from fulgurite.tools.report import HEADER, Result, as_json, cells, markdown, metadata, notes
from fulgurite.tools.timing import interleave
from fulgurite.tools.workloads import WORKLOADS

CHECKED_CALLS = 3


def compare(
    name: str,
    make: Callable[[], Callable[..., Any]],
    make_inputs: Callable[[], tuple[Any, ...]],
    training: bool = False,
    *,
    loss: Loss = scalar_loss,
    jit: Callable[[Any], Any] = fg.jit,
    seconds: float = 2.0,
    threads: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
) -> Result:
    """Compare a model in eager PyTorch with the same model under `jit`.

    Args:
        make: gives the function or module; it is copied, so that both arms start from the same bits.
        make_inputs: gives the arguments of a call.
        training: time whole training steps (forward, backward, AdamW) instead of calls without gradients.
        loss: what is minimised, from the model's output; by default the output if it is a number, else the mean of
            its squares.
        jit: what makes the second arm.
        seconds: how long to time.
        threads: PyTorch's threads in both arms; by default as many as it has now.
        tolerance: largest absolute difference that counts as right where bits differ; 0 demands equal bits.
    """
    threads = threads or torch.get_num_threads()
    before = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(threads)
    try:
        with torch.set_grad_enabled(training):
            torch.manual_seed(seed)
            model, inputs = make(), make_inputs()
            arms = [Arm(m, inputs, training, loss) for m in (model, jit(copy.deepcopy(model)))]
            result = _check(Result(name, training, True, 0.0, True, seed=seed), arms, tolerance)
            return _time(result, arms, seconds, threads, tolerance) if result.correct else result
    finally:
        torch.set_num_threads(before[0])
        torch.set_rng_state(before[1])


def _check(result: Result, arms: Sequence[Arm], tolerance: float) -> Result:
    """Run some calls in both arms, the first of them timed, and compare all that they gave."""
    eager, jitted = arms
    found = Difference(result.bitwise, result.max_error)
    try:
        for i in range(CHECKED_CALLS):
            expected = eager.observe(seed=i)
            got = jitted.observe(seed=i)
            if i == 0:
                result = _cold(result, jitted, jitted.seconds)
            found = found.join(difference(expected, got))
    except Exception as error:  # an arm that fails is a result
        return _failed(result, error)
    correct = found.bitwise or found.largest <= tolerance
    wrong = "" if correct else f"✗ differs from eager by up to {found.largest:.1e}, so it has no speed"
    return replace(result, bitwise=found.bitwise, max_error=found.largest, correct=correct, error=wrong)


def _cold(result: Result, jitted: Arm, first_call: float) -> Result:
    try:
        stats, stages = fg.stats(jitted.model), fg.traces(jitted.model)
    except (TypeError, RuntimeError):  # another jit, or one that has not traced
        return replace(result, first_call=first_call)
    counts = [len(stage.bound_symbols) for stage in stages.forward]
    spent = sum(stats.times.values())
    return replace(result, first_call=first_call, trace_time=spent, calls_recorded=counts[0], calls_run=counts[-1])


def _time(result: Result, arms: Sequence[Arm], seconds: float, threads: int, tolerance: float) -> Result:
    """Time both arms, then check again, and that nothing was traced meanwhile."""
    eager, jitted = arms
    traced = _traced(jitted)
    try:
        blocks = interleave(eager.call, jitted.call, seconds=seconds, threads=threads, seed=result.seed)
    except Exception as error:  # as above
        return _failed(result, error)
    retraces = _traced(jitted) - traced
    if retraces:
        return replace(result, retraces=retraces, error=f"✗ {retraces} calls of the timed loop did not find a trace")
    for arm in arms:
        _restore(arm, eager)
    result = _check_again(result, arms, tolerance)
    return replace(result, blocks=blocks) if result.correct else result


def _check_again(result: Result, arms: Sequence[Arm], tolerance: float) -> Result:
    cold = {name: getattr(result, name) for name in ("first_call", "trace_time", "calls_recorded", "calls_run")}
    return replace(_check(result, arms, tolerance), **cold)


def _restore(arm: Arm, source: Arm) -> None:
    """Give an arm the state of another: random draws were interleaved, so both went their own ways."""
    if not isinstance(arm.model, torch.nn.Module) or not isinstance(source.model, torch.nn.Module):
        return
    arm.model.load_state_dict(source.model.state_dict())
    if arm.optimizer is not None and source.optimizer is not None:
        arm.optimizer.load_state_dict(copy.deepcopy(source.optimizer.state_dict()))


def _traced(arm: Arm) -> int:
    try:
        stats = fg.stats(arm.model)
    except TypeError:  # another jit
        return 0
    return stats.misses + stats.uncompiled


def _failed(result: Result, error: Exception) -> Result:
    said = str(error).strip().splitlines() or [""]
    message = f"✗ {type(error).__name__}: {said[0]}"
    return replace(result, bitwise=False, max_error=float("inf"), correct=False, error=message)


def import_time() -> float:
    """Seconds of one trivial call: the first in a process imports what tracing needs."""
    start = time.perf_counter()
    fg.jit(torch.neg)(torch.ones(1))
    return time.perf_counter() - start


def print_table(results: Sequence[Result]) -> None:
    """Print the results, through `rich` if it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(markdown(results))
        return
    table = Table(*HEADER)
    for result in results:
        table.add_row(*cells(result))
    Console().print(table)
    print("\n".join(notes(results)))


def run(args: argparse.Namespace) -> list[Result]:
    """The comparisons that the command line asks for."""
    chosen = [w for w in WORKLOADS if not args.workload or w.name in args.workload]
    modes = {"inference": (False,), "training": (True,), "both": (False, True)}[args.mode]
    jit = functools.partial(fg.jit, executors=args.executors)
    options = {key: getattr(args, key) for key in ("seconds", "threads", "tolerance", "seed")}
    results = []
    for workload, training in ((w, t) for w in chosen for t in modes):
        inputs = functools.partial(workload.make_inputs, training)
        print(f"{workload.name}, {'training' if training else 'inference'} ...", file=sys.stderr, flush=True)
        results.append(compare(workload.name, workload.make, inputs, training, jit=jit, **options))
    return results


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="fulgurite bench", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--workload", action="append", choices=[w.name for w in WORKLOADS], help="default: all")
    parser.add_argument("--mode", choices=("inference", "training", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=2.0, help="to time each comparison, default 2")
    parser.add_argument("--threads", type=int, help="PyTorch's threads in both arms; default: as many as it takes")
    parser.add_argument("--executors", nargs="+", default=["torch"], help="in order of priority, default torch")
    parser.add_argument("--tolerance", type=float, default=0.0, help="absolute error that is right; 0: equal bits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write everything, raw blocks included, to this file")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    args = parse_arguments(argv)
    about = metadata(args.threads or torch.get_num_threads(), args.seed, import_time())
    results = run(args)
    if args.json:
        args.json.write_text(json.dumps(as_json(results, about), indent=1, allow_nan=False) + "\n")
    if args.markdown:
        print(markdown(results))
    else:
        print_table(results)
    return 0 if all(result.valid for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
