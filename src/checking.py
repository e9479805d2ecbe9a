"""Checking mode: eager runs beside every call, and the first difference is an error that names where it arose.

Eager runs first, on copies of the tensor arguments and on the function itself; the data of every other tensor in reach,
Python containers and the random generator are put back before the jitted call runs on what it was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fulgurite.ir import BoundSymbol, is_proxy
from fulgurite.ir.errors import DiffersFromEager
from fulgurite.ir.printer import Namespace
from fulgurite.ir.tree import leaves, map_leaves
from fulgurite.specialisations import Specialisations
from fulgurite.trace.code import watching
from fulgurite.trace.inputs import Locator
from fulgurite.trace.miss import Miss
from fulgurite.trace.structure import replace_leaves, walk

_SHALLOW = {"prim", "profiler"}


class CheckedSpecialisations(Specialisations):
    """Specialisations whose calls are compared with eager: outputs, written arguments, random state, bit for bit."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the jitted function returns.

        Raises:
            DiffersFromEager: eager returns, writes or draws something else.
        """
        eager = _Eager(self.fn, args, kwargs)
        try:
            found = super().call(args, kwargs)
        except Exception as error:
            if eager.error is None or type(eager.error) is not type(error):
                raise
            raise error from None
        if eager.error is not None:
            raise DiffersFromEager(f"eager raises {eager.error!r}, and the jitted function does not") from eager.error
        fault = _difference(eager.result, found, "the result") or _difference(
            eager.given, (args, kwargs), "an argument"
        )
        if fault is None and not torch.equal(eager.random_state, torch.get_rng_state()):
            fault = "the random generator is in another state"
        if fault is not None:
            raise DiffersFromEager(f"{fault}{self._first_difference(eager, args, kwargs)}")
        return found

    def _first_difference(self, eager: _Eager, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Where the trace leaves eager's values, found by running both call for call."""
        for entry in self.entries:
            inputs = entry.prologue.run(args, kwargs)
            if type(inputs) is Miss:
                continue
            recorded, final = entry.forward[0], entry.forward[-1]
            calls = [call for call in recorded.flat() if "random" not in call.all_tags]
            values = dict(_eager_values(calls, eager.calls))
            env = dict(zip((p.name for p in final.inputs), eager.originals(inputs)))
            return _first_fault(final.flat(), env, values)
        return ""


def _first_fault(calls: tuple[BoundSymbol, ...], env: dict[str, Any], values: dict[str, Any]) -> str:
    for call in calls:
        args, kwargs = map_leaves(
            lambda leaf: env[leaf.name] if is_proxy(leaf) else leaf, (call.args, dict(call.kwargs))
        )
        try:
            with torch.no_grad():
                out = call.symbol.fn(*args, **kwargs)
        except Exception:  # what it takes is gone, or differs already
            return ""
        for proxy, value in zip(leaves(call.output), leaves(out)):
            if not is_proxy(proxy):
                continue
            env[proxy.name] = value
            fault = _difference(values.get(proxy.name, value), value, proxy.name, flags=False)
            if fault is not None:
                where = f" at {call.source.file}:{call.source.line}" if call.source else ""
                return f"; the first call that differs is {call.symbol.name}{where}: {fault}"
    return ""


def _eager_values(recorded: list[BoundSymbol], ran: list[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Eager's values by the names that the trace gives them, as long as both make the same calls."""
    for call, (op, out) in zip(recorded, (one for one in ran if torch.Tag.nondeterministic_seeded not in one[0].tags)):
        if call.symbol.fn is not op:
            return
        yield from ((proxy.name, value) for proxy, value in zip(leaves(call.output), leaves(out)) if is_proxy(proxy))


class _Log(TorchDispatchMode):
    """Keeps the dispatcher calls with copies of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace not in _SHALLOW:
            copies = map_leaves(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, out)
            self.calls.append((func, copies))
        return out


class _Eager:
    """What eager does with a call: its result or exception, the arguments as it leaves them, the random state."""

    def __init__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.error: Exception | None = None
        self.result: Any = None
        self.calls: list[tuple[Any, Any]] = []
        self._copies: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        self.given = self._copied(args), self._copied(kwargs)
        pristine = {key: value.detach().clone() for key, value in self._copies.items()}
        roots = [(leaf, f"args{''.join(path)}", "") for path, leaf in walk((args, kwargs))]
        locator = Locator(fn, Namespace({}, (), short=True), [r for r in roots if not isinstance(r[0], torch.Tensor)])
        log = _Log()
        with _restored(locator), watching(locator.learn):
            try:
                with log:
                    self.result = fn(*self.given[0], **self.given[1])
            except Exception as error:
                self.error = error
            self.random_state = torch.get_rng_state()
            self.result = replace_leaves(self.result, _kept, objects=True)
        self.calls = log.calls
        self._pristine = pristine

    def originals(self, inputs: Any) -> list[torch.Tensor]:
        """The inputs of a trace as they were before the call."""
        return [self._pristine.get(id(value), value) for value in inputs]

    def _copied(self, tree: Any) -> Any:
        return replace_leaves(tree, self._copy)

    def _copy(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or type(leaf) is not torch.Tensor:
            return leaf
        if id(leaf) not in self._copies:
            storage = leaf.untyped_storage()
            own = self._storages.setdefault(storage._cdata, storage.clone())
            copy = torch.empty(0, dtype=leaf.dtype, device=leaf.device).set_(
                own, leaf.storage_offset(), leaf.shape, leaf.stride()
            )
            self._copies[id(leaf)] = copy.requires_grad_(leaf.requires_grad)
            if leaf.requires_grad and not leaf.is_leaf:
                self._copies[id(leaf)] = self._copies[id(leaf)].view_as(leaf)
        return self._copies[id(leaf)]


def _kept(leaf: Any) -> Any:
    """A result that later writes do not change."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
        return leaf
    kept = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(leaf.detach())
    return kept.requires_grad_(leaf.requires_grad)


@contextmanager
def _restored(locator: Locator) -> Iterator[None]:
    """Put back, behind the block, tensors in reach, Python containers, and the random generator."""
    state = torch.get_rng_state()
    data: dict[int, tuple[torch.Tensor, torch.UntypedStorage, Any]] = {}

    def save(tensor: torch.Tensor) -> None:
        if tensor.layout is torch.strided and id(tensor) not in data:
            data[id(tensor)] = tensor, tensor.untyped_storage().clone(), tensor.grad

    locator.on_tensor(save)
    try:
        yield
    finally:
        for tensor, storage, grad in data.values():
            tensor.untyped_storage().copy_(storage)
            tensor.grad = grad
        locator.snapshot.restore(lambda tensor: tensor)
        torch.set_rng_state(state)


def _difference(eager: Any, found: Any, what: str, *, flags: bool = True) -> str | None:
    """The first thing in which two structures differ."""
    left, right = dict(walk(eager, objects=True)), dict(walk(found, objects=True))
    if left.keys() != right.keys():
        return f"{what} has another structure than eager's"
    for path, expected in left.items():
        fault = _leaf_difference(expected, right[path], flags)
        if fault is not None:
            return f"{what}{''.join(path)}: {fault}"
    return None


def _leaf_difference(expected: Any, found: Any, flags: bool) -> str | None:
    if not isinstance(expected, torch.Tensor):
        same = type(expected) is type(found) and (expected is found or repr(expected) == repr(found))
        return None if same else f"it is {found!r:.60}, eager's is {expected!r:.60}"
    if not isinstance(found, torch.Tensor):
        return f"it is a {type(found).__name__}, eager's is a tensor"
    names = ("dtype", "shape", "layout", *(("requires_grad",) if flags else ()))
    for name in names:
        if getattr(expected, name) != getattr(found, name):
            return f"its {name} is {getattr(found, name)}, eager's is {getattr(expected, name)}"
    if expected.layout is torch.strided and expected.stride() != found.stride():
        return f"its strides are {found.stride()}, eager's are {expected.stride()}"
    if _bytes(expected) != _bytes(found):
        return "its values are not eager's"
    return None


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().to_dense().cpu().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).tolist()) if plain.numel() else b""
