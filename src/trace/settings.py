"""Torch's global settings, which a program may change while it runs: each change is a call of the trace.

    torch.set_default_dtype(torch.float64)
    t0 = torch.ones(2) ...

Where a call that makes others picks them by a setting, the setting is guarded too. Grad mode is no setting: it is in
what was recorded, and only what a program leaves behind is set at each call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

# Private: nothing public compares all global state in one call.
from torch._C._dynamo.guards import GlobalStateGuard

from fulgurite.ir import BoundSymbol, Symbol
from fulgurite.ir.assumption import ASSUME

if TYPE_CHECKING:
    from fulgurite.trace.recorder import Recorder


@dataclass(frozen=True)
class Setting:
    """How to ask for a setting, and how to set it; `decides` are parts of the names of calls that are made by it."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    decides: tuple[str, ...] = ()

    @property
    def symbol(self) -> Symbol:
        """The call that sets it."""
        return Symbol(self.name, self.set, tags=frozenset({"effect"}))


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_determinism(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


_inference = threading.local()


def _set_inference_mode(enabled: bool) -> None:
    """Private: the guard behind `torch.inference_mode`, which as a context can't be two calls of a trace."""
    if torch.is_inference_mode_enabled() == enabled:
        return
    held = getattr(_inference, "guards", None) or []
    if held:
        held.pop()
    else:
        held.append(torch._C._InferenceMode(enabled))
    _inference.guards = held


_INFERENCE = Setting("set_inference_mode", torch.is_inference_mode_enabled, _set_inference_mode)
_cuda, _mha = torch.backends.cuda, torch.backends.mha
_ATTENTION = ("attention", "transformer")
SETTINGS = (
    _INFERENCE,
    Setting("torch.set_default_dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("set_determinism", _determinism, _set_determinism),
    Setting(
        "torch.set_float32_matmul_precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    ),
    Setting("torch.set_num_threads", torch.get_num_threads, torch.set_num_threads),
    Setting("torch.backends.cuda.enable_flash_sdp", _cuda.flash_sdp_enabled, _cuda.enable_flash_sdp, _ATTENTION),
    Setting("torch.backends.cuda.enable_math_sdp", _cuda.math_sdp_enabled, _cuda.enable_math_sdp, _ATTENTION),
    Setting("torch.backends.cuda.enable_cudnn_sdp", _cuda.cudnn_sdp_enabled, _cuda.enable_cudnn_sdp, _ATTENTION),
    Setting(
        "torch.backends.cuda.enable_mem_efficient_sdp",
        _cuda.mem_efficient_sdp_enabled,
        _cuda.enable_mem_efficient_sdp,
        _ATTENTION,
    ),
    Setting(
        "torch.backends.mha.set_fastpath_enabled", _mha.get_fastpath_enabled, _mha.set_fastpath_enabled, _ATTENTION
    ),
    # Private: torch.backends.mkldnn has a public switch for it as a context only.
    Setting(
        "torch._C._set_mkldnn_enabled",
        torch._C._get_mkldnn_enabled,
        torch._C._set_mkldnn_enabled,
        ("rnn", "lstm", "gru"),
    ),
)
_GETTERS = tuple(setting.get for setting in SETTINGS)
Values = tuple[Any, ...]
"""What the settings are, in the order of `SETTINGS`."""


def current() -> Values:
    """What the settings are now."""
    return tuple([get() for get in _GETTERS])


def restore(values: Values) -> None:
    """Set what is not as it was."""
    for setting, old, now in zip(SETTINGS, values, current()):
        if old != now:
            setting.set(old)


class GlobalModes:
    """Torch's global state before a program was recorded."""

    def __init__(self) -> None:
        self._settings, self._grad_mode, self.unchanged = current(), torch.is_grad_enabled(), GlobalStateGuard().check

    def restore(self) -> bool | None:
        """Put settings and grad mode back; the grad mode that was left instead of that one."""
        restore(self._settings)
        left = torch.is_grad_enabled()
        torch.set_grad_enabled(self._grad_mode)
        return None if left == self._grad_mode else left


def note_changes(recorder: Recorder) -> None:
    """Record what the program has set since the last call."""
    before, recorder.settings = recorder.settings, current()
    if before != recorder.settings:
        for setting, old, now in zip(SETTINGS, before, recorder.settings):
            if old != now:
                recorder.note(setting.symbol, (now,), None)


def deciding(calls: Iterable[BoundSymbol]) -> Iterator[tuple[Setting, Any]]:
    """The settings that picked calls of a trace, with what they are now."""
    names = " ".join(sorted({name for bsym in calls for name in _names(bsym)}))
    for setting in SETTINGS:
        if any(part in names for part in setting.decides):
            yield setting, setting.get()


def _names(bsym: BoundSymbol) -> Iterator[str]:
    yield bsym.symbol.name
    for sub in bsym.subsymbols:
        yield from _names(sub)


def take_inference_mode(recorder: Recorder) -> bool:
    """Whether all of a program runs in inference mode, as a decorator has it; then the calls that set it go."""
    places = [i for i, bsym in enumerate(recorder.calls) if bsym.symbol == _INFERENCE.symbol]
    if not places:
        return False
    if len(places) == 2 and not any(
        bsym.subsymbols for bsym in (*recorder.calls[: places[0]], *recorder.calls[places[1] :])
    ):
        enabled: bool = recorder.calls[places[0]].args[0]
        del recorder.calls[places[1]], recorder.calls[places[0]]
        return enabled
    if any(bsym.symbol is ASSUME for bsym in recorder.calls):
        recorder.refuse(
            "the program looks at its data and switches inference mode in between", "use torch.no_grad inside of it"
        )
    return False


def are_changed(calls: Sequence[BoundSymbol]) -> bool:
    """Whether a trace changes settings."""
    names = {setting.name for setting in SETTINGS}
    return any(bsym.symbol.name in names for bsym in calls)


def leaving_grad_mode(body: Callable[..., Any], enabled: bool) -> Callable[..., Any]:
    """`body`, which leaves the caller's grad mode like this, as the program did."""

    def run_and_set_grad_mode(*inputs: Any) -> Any:
        found = body(*inputs)
        torch.set_grad_enabled(enabled)
        return found

    return run_and_set_grad_mode


def keeping_settings(body: Callable[..., Any]) -> Callable[..., Any]:
    """`body`, whose changes of settings are taken back when it fails."""

    def run_or_restore(*inputs: Any) -> Any:
        before = current()
        try:
            return body(*inputs)
        except BaseException:
            restore(before)
            raise

    return run_or_restore
