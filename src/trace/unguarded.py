"""Reads that no guard can follow: clocks, and Python's and NumPy's random generators, which also have to advance."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy

from fulgurite.ir.errors import Untraceable
from fulgurite.trace.inputs import Locator
from fulgurite.trace.source import whereabouts


def _state_of(generator: Any) -> Any:
    if isinstance(generator, numpy.random.Generator):
        return repr(generator.bit_generator.state)
    return repr(generator.get_state()) if isinstance(generator, numpy.random.RandomState) else generator.getstate()


def _set_state(generator: Any) -> Callable[[], None]:
    """A function that puts a generator back to where it is now."""
    if isinstance(generator, numpy.random.Generator):
        state = generator.bit_generator.state
        return lambda: setattr(generator.bit_generator, "state", state)
    if isinstance(generator, numpy.random.RandomState):
        legacy = generator.get_state()
        return lambda: generator.set_state(legacy)
    python_state = generator.getstate()
    return lambda: generator.setstate(python_state)


class _Watch:
    """What was read of clocks and generators, with a way to put everything back."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._undo: list[Callable[[], None]] = []
        self._generators: list[tuple[Any, Any]] = []

    def generator(self, generator: Any) -> None:
        self._generators.append((generator, _state_of(generator)))
        self._undo.append(_set_state(generator))

    def clock(self, holder: dict[str, Any], key: str) -> None:
        fn = holder[key]

        def called(*args: Any, **kwargs: Any) -> Any:
            source, _ = whereabouts({})
            where = f"{source.file}:{source.line}: " if source else ""
            self.found.append(f"{where}the program calls {fn.__module__}.{fn.__name__}")
            return fn(*args, **kwargs)

        holder[key] = called
        self._undo.append(lambda: holder.__setitem__(key, fn))

    def close(self) -> None:
        for generator, before in self._generators:
            if _state_of(generator) != before:
                self.found.append(f"the program draws from a random generator of {type(generator).__module__}")
        for undo in reversed(self._undo):
            undo()


@contextmanager
def watching_state(locator: Locator) -> Iterator[None]:
    """Find such reads in the block, and put the generators back.

    Raises:
        Untraceable: there was one.
    """
    watch = _Watch()
    numpy_generator = numpy.random.mtrand._rand  # private: the RandomState behind numpy.random's functions
    for generator in (random._inst, numpy_generator):  # private: behind random's functions
        watch.generator(generator)
    locator.on_generator, locator.on_clock = watch.generator, watch.clock
    for known in locator.generators:
        watch.generator(known)
    for holder, key in locator.clocks:
        watch.clock(holder, key)
    try:
        yield
    finally:
        watch.close()
        if watch.found:
            raise Untraceable(f"{watch.found[0]}, which is another at each call; pass what it gives as an argument")
