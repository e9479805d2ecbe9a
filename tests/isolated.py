"""Work in processes of its own: an item that crashes or hangs loses its process, and nothing else."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

Work = Callable[[Any], str]
START_UP = 120.0
"""Seconds that a process may take until it is ready: it imports torch and the operator database."""


@dataclass
class Worker:
    """A process, the item that it works on, and when it has to be done."""

    process: BaseProcess
    pipe: Connection
    item: Any = None
    deadline: float = 0.0


def run_isolated(items: Sequence[Any], work: Work, jobs: int, seconds: float) -> Iterator[tuple[Any, str]]:
    """Do `work` on each item in `jobs` processes; gives (item, result) as they come.

    The result of an item that ends its process is `crashed: …`, of one that takes longer than `seconds` it is
    `timed out`. `work` and the items must be picklable, and what `work` needs importable by a new interpreter.
    """
    waiting = list(reversed(items))
    workers: list[Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_start(work, waiting.pop(), seconds))
            yield from _collect(workers, waiting, seconds)
    finally:
        for worker in workers:
            worker.process.kill()


def _start(work: Work, item: Any, seconds: float) -> Worker:
    context = multiprocessing.get_context("spawn")
    pipe, other_end = context.Pipe()
    process = context.Process(target=_serve, args=(other_end, work), daemon=True)
    process.start()
    other_end.close()
    pipe.send(item)
    return Worker(process, pipe, item, time.monotonic() + START_UP + seconds)


def _serve(pipe: Connection, work: Work) -> None:
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        pipe.send(work(item))


def _collect(workers: list[Worker], waiting: list[Any], seconds: float) -> Iterator[tuple[Any, str]]:
    """Take what has come since, hand out new items, and remove workers that ended, hang or have nothing to do."""
    ready = wait([worker.pipe for worker in workers], timeout=1.0)
    for worker in list(workers):
        result = _result_of(worker) if worker.pipe in ready else None
        if result is None and time.monotonic() > worker.deadline:
            result = (False, "timed out")
        if result is None:
            continue
        yield worker.item, result[1]
        if result[0] and waiting:
            worker.item, worker.deadline = waiting.pop(), time.monotonic() + seconds
            worker.pipe.send(worker.item)
        else:
            workers.remove(worker)
            worker.pipe.close()
            worker.process.kill()


def _result_of(worker: Worker) -> tuple[bool, str]:
    """Whether the worker can go on, and its result."""
    try:
        return True, worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join(5)
        return False, f"crashed: exit code {worker.process.exitcode}"
