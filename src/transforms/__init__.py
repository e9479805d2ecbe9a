"""From trace to trace: a pass is a plain function in the file of its name."""

from fulgurite.transforms.common_subexpressions import common_subexpressions
from fulgurite.transforms.dead_code import dead_code
from fulgurite.transforms.flatten import flatten, open_composites
from fulgurite.transforms.last_use import last_use
from fulgurite.transforms.no_ops import no_ops
from fulgurite.transforms.pipeline import run
from fulgurite.transforms.split import split
from fulgurite.transforms.stop_gradients import stop_gradients

__all__ = [
    "common_subexpressions",
    "dead_code",
    "flatten",
    "last_use",
    "no_ops",
    "open_composites",
    "run",
    "split",
    "stop_gradients",
]
