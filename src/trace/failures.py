"""A call that fails while it is recorded: eager's own exception, or the reason why it can't be traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from fulgurite.ir import TensorProxy, is_proxy, symbol_of
from fulgurite.ir.errors import TraceError
from fulgurite.ir.promise import broken_promise
from fulgurite.ir.tree import leaves, map_leaves
from fulgurite.trace import meta
from fulgurite.trace.source import whereabouts

if TYPE_CHECKING:
    from fulgurite.trace.recorder import Recorder


def call_failed(recorder: Recorder, fn: Callable[..., Any], args: Any, kwargs: Any, error: Exception) -> NoReturn:
    """Give eager's own exception; where eager would not raise, say that the call can't be traced."""
    if isinstance(error, TraceError) or torch._C._current_autograd_node() is not None:
        raise error
    name = symbol_of(fn).name
    try:
        if not meta.is_without_memory(error):  # where it is, zeros would tell nothing
            meta.probe(fn, args, kwargs)
    except Exception as eager_error:
        _refuse_broken_promises(recorder)
        shown = error if _is_about_a_view(error, args) else eager_error  # a probe has no views
        if hasattr(shown, "add_note"):
            shown.add_note(_note_of(recorder, name, args, kwargs))
        raise shown from (None if str(shown) == str(error) else error)
    if type(error).__module__.startswith("torch._subclasses") or not _reached_dispatcher(error):
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        recorder.refuse(
            f"{name} needs real data or memory, which is not there while tracing ({reason})",
            "leave this part outside of fg.jit",
        )
    raise error


def _refuse_broken_promises(recorder: Recorder) -> None:
    """Where a call fails behind a custom op, its fake kernel may be to blame: compare it with a run on zeros."""

    def fake_of(leaf: Any) -> Any:
        return recorder.tensors[leaf.name] if isinstance(leaf, TensorProxy) else leaf

    for bsym in (call for recorded in recorder.calls for call in recorded.flat() if "custom" in call.symbol.tags):
        args, kwargs = map_leaves(fake_of, (bsym.args, dict(bsym.kwargs)))
        try:
            broken = broken_promise(bsym, meta.probe(bsym.symbol.fn, args, kwargs))
        except Exception:  # the op needs other data than zeros
            continue
        if broken:
            recorder.failure = TraceError(broken)
            raise recorder.failure


def _note_of(recorder: Recorder, name: str, args: Any, kwargs: Any) -> str:
    source, module = whereabouts(recorder.modules)
    types = ", ".join(p.type_string for p in leaves(recorder.proxies((args, kwargs))) if is_proxy(p))
    where = f"{source.file}:{source.line}" if source else "unknown line"
    return f"while fulgurite traced {where}{f', in {module}' if module else ''}: {name}({types})"


def _is_about_a_view(error: Exception, args: Any) -> bool:
    """Whether autograd itself refuses a call that may be writing a view."""
    views = any(isinstance(leaf, torch.Tensor) and leaf._is_view() for leaf in leaves(args))
    return views and type(error) is RuntimeError and not _reached_dispatcher(error)


def _reached_dispatcher(error: Exception) -> bool:
    """Whether the exception comes from a dispatcher call below our mode, not from the call itself."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_name == "__torch_dispatch__":
            return True
        step = step.tb_next
    return False
