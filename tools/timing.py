"""Timing of two callables against each other: interleaved blocks, medians, a bootstrap interval of the ratio."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
from torch.utils.benchmark import Timer

BLOCK_SECONDS = 0.02
"""Length of a block; reading the clock twice is far below a thousandth of it."""
MARGIN = 0.02
"""A ratio within this of 1 is not called faster or slower."""


@dataclass(frozen=True)
class Blocks:
    """Seconds for one call, a value for each block; the n-th blocks of both arms ran next to each other."""

    eager: tuple[float, ...]
    fulgurite: tuple[float, ...]
    calls: int


@dataclass(frozen=True)
class Summary:
    """Seconds for one call: median, interquartile range, minimum."""

    median: float
    iqr: float
    minimum: float

    @property
    def noisy(self) -> bool:
        """Whether the interquartile range is above a tenth of the median."""
        return self.iqr > 0.1 * self.median


@dataclass(frozen=True)
class Ratio:
    """Fulgurite's time divided by eager's, with a 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`faster` or `slower` when the interval lies outside 1 ± MARGIN.

        >>> Ratio(0.80, 0.78, 0.83).verdict, Ratio(0.97, 0.95, 0.99).verdict
        ('faster', 'no difference shown')
        """
        if self.high < 1 - MARGIN:
            return "faster"
        return "slower" if self.low > 1 + MARGIN else "no difference shown"


def summarise(times: tuple[float, ...]) -> Summary:
    """
    >>> summarise((1.0, 2.0, 3.0))
    Summary(median=2.0, iqr=1.0, minimum=1.0)
    """
    first, median, third = numpy.percentile(times, [25, 50, 75])
    return Summary(float(median), float(third - first), min(times))


def ratio_of(blocks: Blocks, seed: int = 0, resamples: int = 4000) -> Ratio:
    """The median of the ratios of neighbouring blocks, and the bootstrap percentile interval of that median.

    Efron, "Bootstrap Methods: Another Look at the Jackknife" (1979).
    """
    ratios = numpy.array(blocks.fulgurite) / numpy.array(blocks.eager)
    picks = numpy.random.default_rng(seed).integers(len(ratios), size=(resamples, len(ratios)))
    low, high = numpy.percentile(numpy.median(ratios[picks], axis=1), [2.5, 97.5])
    return Ratio(float(numpy.median(ratios)), float(low), float(high))


def interleave(
    eager: Callable[[], Any], fulgurite: Callable[[], Any], *, seconds: float, threads: int, seed: int
) -> Blocks:
    """Time both for about `seconds` in all, after a warm-up: each round runs a block of each, in random order."""
    timers = [Timer("call()", globals={"call": call}, num_threads=threads) for call in (eager, fulgurite)]
    with _no_gc():
        per_call = max(_warm_up(timer, seconds / 10) for timer in timers)
        calls = max(1, math.ceil(BLOCK_SECONDS / per_call))
        # Timer.timeit runs two calls or a hundredth of the block before it starts the clock.
        rounds = round(seconds / (2 * per_call * (calls + max(calls // 100, 2))))
        times: tuple[list[float], list[float]] = ([], [])
        shuffled = random.Random(seed)
        for _ in range(min(max(rounds, 5), 200)):
            for arm in shuffled.sample((0, 1), 2):
                times[arm].append(timers[arm].timeit(calls).median)
    return Blocks(tuple(times[0]), tuple(times[1]), calls)


def _warm_up(timer: Timer, seconds: float) -> float:
    """Run for a while; returns the seconds that a call took in the end."""
    end = time.perf_counter() + seconds
    calls, taken = 1, timer.timeit(1).median
    while time.perf_counter() < end:
        taken = timer.timeit(calls).median
        calls = max(1, min(calls * 2, math.ceil(BLOCK_SECONDS / taken)))
    return float(taken)


@contextmanager
def _no_gc() -> Iterator[None]:
    """Garbage is collected before, and not within."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
