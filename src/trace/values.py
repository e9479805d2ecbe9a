"""The values behind a recording: what a program looks at, computed by running what was recorded before on real data.

A program that asks for a number (`.item()`, `bool(t)`) or makes a tensor whose size depends on data (`nonzero`) is
recorded up to there without data. To go on, that part runs: on the real inputs, for good, so that the call which is
being traced starts behind it. If tracing fails after all, `undo` puts back what was written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fulgurite.ir import BoundSymbol, is_proxy
from fulgurite.ir.modes import outside_all_modes
from fulgurite.ir.tree import leaves, map_leaves
from fulgurite.trace import settings

if TYPE_CHECKING:
    from fulgurite.trace.recorder import Recorder


@dataclass(frozen=True)
class Start:
    """A place inside of a program to go on from: behind its first assumptions, with all values from before."""

    results: Sequence[Any]
    """What the calls that were looked at returned."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """By name."""
    kept: Sequence[bool] = ()
    """For each `.item()` until then, whether its result stayed a number of the trace."""


class Values:
    """Runs what a recorder has recorded, piece by piece.

    Args:
        start: a place that the call has come to already; until then nothing runs.
    """

    def __init__(self, start: Start | None = None) -> None:
        self._env: dict[str, Any] = dict(start.values) if start else {}
        self._results: list[Any] = list(start.results) if start else []
        self._known = deque(self._results)
        self._goes_on = start is not None
        self.kept: list[bool] = []  # for each `.item()`, whether its result stays a number of the trace
        self.kept_at: list[int] = []  # how many of them come before each assumption
        self._kept_before = deque(start.kept if start else ())
        self._done = 0  # how many dispatcher calls are behind
        self._random_state: torch.Tensor | None = None
        self._settings = settings.current()
        self._inference = torch.is_inference_mode_enabled()
        self._keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        self._storages: dict[int, tuple[Any, Any]] = {}
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []

    @property
    def has_numbers(self) -> bool:
        """Whether the recording has numbers that it does not know."""
        return any(self.kept)

    def keeps_next_number(self, wanted: bool) -> bool:
        """Whether the result of this `.item()` is to stay a number of the trace: as it was where another path began."""
        keep = self._kept_before.popleft() if self._kept_before else wanted and not self._goes_on
        self.kept.append(keep)
        return keep

    def result(self, recorder: Recorder, op: Any, args: Any, kwargs: Any) -> Any:
        """What a call gives at this place; arguments are proxies.

        Raises:
            LookupError: there are no values, the inputs are fake themselves.
        """
        if self._known:
            return self._known.popleft()
        with self._really(recorder):
            self._run_recorded(recorder)
            found = op(*self._real(args), **self._real(kwargs))
        self._results.append(found)
        return found

    def passed(self, recorder: Recorder, output: Any, result: Any) -> None:
        """The call that was looked at is recorded now, with this output."""
        self._env.update(_bindings(output, result))
        self._done, self._settings = len(recorder.flat_calls()), settings.current()
        self.kept_at.append(len(self.kept))

    def start(self) -> Start | None:
        """Where the call that was traced has come to; None for its beginning."""
        if self._random_state is not None:
            torch.default_generator.set_state(self._random_state)
        return Start(self._results, self._env, self.kept) if self._results else None

    def catch_up(self, recorder: Recorder) -> None:
        """Run what was recorded of a call that goes on from another path: the program raises, and that stays done.

        (A call that begins with this recording runs in eager instead.)
        """
        if self._known or not self._goes_on:
            return
        with self._really(recorder):
            self._run_recorded(recorder)
        if self._random_state is not None:
            torch.default_generator.set_state(self._random_state)
        self._storages.clear()
        self._generators.clear()

    def _with_settings(self) -> Iterator[None]:
        program = settings.current()
        settings.restore(self._settings)
        try:
            yield
        finally:
            self._settings = settings.current()
            settings.restore(program)

    def _run_recorded(self, recorder: Recorder) -> None:
        for item in recorder.inputs:
            if isinstance(item.real, FakeTensor):
                raise LookupError(item.proxy.name)
            self._env.setdefault(item.proxy.name, item.real)
        calls = recorder.flat_calls()
        for call in calls[self._done :]:
            self._run(recorder, call)
        self._done = len(calls)

    def undo(self) -> None:
        """Put back the data that was written and the generators that were drawn from."""
        for storage, backup in self._storages.values():
            storage.copy_(backup)
        for generator, state in self._generators:
            generator.set_state(state)

    def _run(self, recorder: Recorder, call: BoundSymbol) -> None:
        for item in recorder.inputs if call.written else ():
            if item.proxy.storage in call.written and item.proxy.storage not in self._storages:
                storage = item.real.untyped_storage()
                self._storages[item.proxy.storage] = storage, storage.clone()
        for leaf in leaves((call.args, dict(call.kwargs))):
            if isinstance(leaf, torch.Generator):
                self._generators.insert(0, (leaf, leaf.get_state()))
        found = call.symbol.fn(*self._real(call.args), **self._real(dict(call.kwargs)))
        self._env.update(_bindings(call.output, found))

    def _real(self, tree: Any) -> Any:
        return map_leaves(lambda leaf: self._env[leaf.name] if is_proxy(leaf) else leaf, tree)

    @contextmanager
    def _really(self, recorder: Recorder) -> Iterator[None]:
        """Out of the recording, below autograd and autocast, with generator and settings as the last run left them.

        Private: nothing public clears the dispatcher's state of this thread.
        """
        generator, stand_in = torch.default_generator, torch.random.default_generator
        before = generator.get_state()
        if self._random_state is not None:
            generator.set_state(self._random_state)
        torch.random.default_generator = generator
        try:
            with (
                outside_all_modes(),
                torch._C.DisableTorchFunction(),
                torch._C._ForceDispatchKeyGuard(*self._keys),
                torch.inference_mode(self._inference),
                torch._C._AutoDispatchBelowAutograd(),
                torch._C._DisableAutocast(),
            ):
                yield from self._with_settings()
        finally:
            torch.random.default_generator = stand_in
            self._random_state = generator.get_state()
            generator.set_state(before)


def _bindings(output: Any, result: Any) -> Iterator[tuple[str, Any]]:
    for proxy, value in zip(leaves(output), leaves(result)):
        if is_proxy(proxy):
            yield proxy.name, value
