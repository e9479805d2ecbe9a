"""Values with the history of others: what hooks for saved tensors inside the program give back.

A hook (of `checkpoint`, for one) may give another tensor back than the one that was saved. To autograd it is the one
that was saved: a second backward goes on from there. So in a backward that is to be differentiated again, the trace
ties the value to that history; whatever is not saved is there as a stand-in without memory (`connection`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fulgurite.ir import Symbol, TensorProxy
from fulgurite.ir.modes import outside_all_modes
from fulgurite.ir.tree import leaves

if TYPE_CHECKING:
    from fulgurite.trace.recorder import Recorder


class _WithHistory(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, gradient


def with_history(value: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """`value`, whose gradient goes where that of `of` goes."""
    tied: torch.Tensor = _WithHistory.apply(value, of)
    return tied


WITH_HISTORY = Symbol("with_history", with_history)


class Histories:
    """The forward values whose history is that of another value in the backward that is recorded now."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._by_edge: dict[Any, str] | None = None
        self._keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

    def connect(self, recorder: Recorder, arguments: Any) -> None:
        """Note the arguments of a call that have the history of another value, and tie them to it."""
        for leaf in leaves(arguments):
            if isinstance(leaf, FakeTensor) and leaf.requires_grad:
                value = recorder.proxy(leaf)
                name = self._history(recorder, leaf, value)
                if name is not None:
                    self.names[name] = None
                    if recorder.builds_graph:
                        recorder.tie(leaf, value, recorder.proxy(recorder.tensors[name]))

    def _history(self, recorder: Recorder, leaf: FakeTensor, value: TensorProxy) -> str | None:
        known = recorder.tensors[value.name]
        if known is leaf or self._edge(known) == self._edge(leaf):
            return None
        if self._by_edge is None:
            inputs = {item.before.edge[:2]: item.proxy.name for item in recorder.inputs if item.before.edge}
            made = ((self._edge(made), name) for name, made in recorder.tensors.items() if made.grad_fn is not None)
            self._by_edge = {**dict(reversed(list(made))), **inputs}
        return self._by_edge.get(self._edge(leaf))

    def _edge(self, tensor: torch.Tensor) -> Any:
        """Where the gradient of a tensor goes; for a leaf, autograd tells by making a view of it.

        Private: nothing public lets a call out of the dispatcher, in which this runs, to autograd.
        """
        if tensor.grad_fn is not None or not tensor.requires_grad:
            return tensor.grad_fn, tensor.output_nr
        with outside_all_modes(), torch._C.DisableTorchFunction(), torch._C._ForceDispatchKeyGuard(*self._keys):
            node, index, *_ = torch.autograd.graph.get_gradient_edge(tensor)
        return node, index


def connection(fake: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Makes a tensor of the shape of `fake` that takes no memory: for its place in the graph, not for its data."""
    shape, dtype, device = tuple(fake.shape), fake.dtype, fake.device
    return lambda: torch.empty_strided(shape, (0,) * len(shape), dtype=dtype, device=device)
