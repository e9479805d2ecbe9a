"""The recorder: builds the calls of a trace from what the recording modes see."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import replace
from types import MethodWrapperType
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fulgurite.ir import BoundSymbol, NumberProxy, Symbol, TensorProxy, Trace, symbol_of
from fulgurite.ir.assumption import ASSUME
from fulgurite.ir.errors import TraceError, Untraceable
from fulgurite.ir.modes import outside_all_modes
from fulgurite.ir.printer import identifier
from fulgurite.ir.tree import leaves, map_leaves
from fulgurite.trace import meta, settings
from fulgurite.trace.failures import call_failed
from fulgurite.trace.history import WITH_HISTORY, Histories
from fulgurite.trace.input_state import AutogradState, Input
from fulgurite.trace.inputs import Locator
from fulgurite.trace.number import Number, look_at
from fulgurite.trace.source import whereabouts
from fulgurite.trace.values import Values

DETACH = torch.ops.aten.detach.default
_GET_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
LIFT = torch.ops.aten.lift_fresh.default
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_FRESH = symbol_of(torch.ops.aten.lift_fresh_copy.default)


class Recorder:
    """Builds the calls of one trace while a program runs on fake tensors.

    `locate` finds where a real tensor lives: the source that gives it, and a name for it. `values` knows the data where
    the program asks for it.
    """

    def __init__(
        self,
        locate: Locator,
        modules: dict[int, str],
        values: Values,
    ) -> None:
        self.fake_mode = FakeTensorMode()
        self.locate = locate
        self.modules = modules
        self.values = values
        self.inputs: list[Input] = []
        self.calls: list[BoundSymbol] = []
        self.open: list[BoundSymbol] | None = None  # the subsymbols of the call that runs now
        self.constants: dict[str, Any] = {}
        self.failure: TraceError | None = None
        self.backward_phase = False
        self.builds_graph = torch.is_grad_enabled()
        self.entered: set[Any] | None = None  # the autograd nodes that get a gradient in this backward; None for all
        self.detaching = False  # whether the call that runs now is a read of `.data`
        self.active_rules: set[str] = set()
        self.tensors: dict[str, Any] = {}  # the fake tensors by name; for a number its proxy
        self.autocast = False
        self.keeps_numbers = True
        self.histories = Histories()
        self.arrivals: list[str] = []  # leaves in the order in which the backward recorded last gives them a gradient
        self.settings = settings.current()
        self.placed: set[int] = set()  # storages in which the place of a tensor matters, since the program asks for it
        self._names: set[str] = set()
        self._count = 0
        self._proxies: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self._storages: dict[int, int] = {}
        self._fakes: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._sequence = -1
        self._forward_of: dict[int, str] = {}

    def add_input(self, real: torch.Tensor, source: str, name: str) -> torch.Tensor:
        """The fake tensor that stands for `real` from now on."""
        known = self.stand_in(real)
        if known is not None:
            return known
        with outside_all_modes(), torch._C.DisableTorchFunction(), torch.inference_mode(real.is_inference()):
            fake = real if isinstance(real, FakeTensor) else self._fake(real)
            before = AutogradState.of(fake)
        proxy = self.define_as(fake, self.unique_name(name))
        self._fakes[id(real)] = (weakref.ref(real), fake)
        self.inputs.append(Input(proxy, fake, real, source, before))
        return fake

    def _fake(self, real: torch.Tensor) -> Any:
        try:
            return meta.fake(real, self.fake_mode)
        except meta.Unsupported as kind:
            self.refuse(f"the program works on {kind}, which can't be traced", "leave this part outside of fg.jit")

    def unique_name(self, hint: str) -> str:
        """A name that no other value of the trace has."""
        name = identifier(hint, self._names)
        self._names.add(name)
        return name

    def proxy(self, tensor: Any) -> Any:
        """The proxy of a fake tensor that the recording has made."""
        if isinstance(tensor, NumberProxy):
            return tensor
        known = self._proxies.get(id(tensor))
        if known is None:
            self.refuse("a tensor that was not made by the traced program is used in it", "pass it as an argument")
        return known[1]

    def define(self, tensor: torch.Tensor) -> TensorProxy:
        """The proxy of an op's output: the known one, or a new one where it is new or changed its metadata."""
        known = self._proxies.get(id(tensor))
        if known is not None and known[1].shape == tuple(tensor.shape) and known[1].stride == _stride(tensor):
            return known[1]
        name = f"t{self._count}"
        self._count += 1
        return self.define_as(tensor, name)

    def define_as(self, tensor: torch.Tensor, name: str) -> TensorProxy:
        """A new proxy of a tensor."""
        strided = tensor.layout is torch.strided
        memory = tensor.untyped_storage()._cdata if strided else id(tensor)
        storage = self._storages.setdefault(memory, len(self._storages))
        offset = int(tensor.storage_offset()) if strided else None
        bits = " ".join(bit for bit, is_set in (("conj", tensor.is_conj()), ("neg", tensor.is_neg())) if is_set)
        shape, stride, kept = tuple(tensor.shape), _stride(tensor), (tensor.dtype, tensor.device, tensor.requires_grad)
        proxy = TensorProxy(name, shape, stride, *kept, storage, offset, tensor.layout, bits)
        self._proxies[id(tensor)] = (tensor, proxy)
        self.tensors[name] = tensor
        return proxy

    def same_value(self, tensor: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        """Let a tensor have the proxy of another."""
        self._proxies[id(tensor)] = (tensor, self.proxy(known))
        return tensor

    def tie(self, tensor: torch.Tensor, value: TensorProxy, of: TensorProxy) -> None:
        """Let a tensor be a value with the history of another one."""
        tied = self.define_as(tensor, self.unique_name(f"{value.name}_as_{of.name}"))
        self.append(WITH_HISTORY, (value, of), {}, tied)

    def adopt(self, tree: Any) -> Any:
        """The same arguments with every real tensor replaced by its stand-in."""
        if any(isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor) for leaf in leaves(tree)):
            return map_leaves(self.adopt_leaf, tree)
        return tree

    def adopt_leaf(self, leaf: Any) -> Any:
        """The stand-in of a real tensor; anything else as it is."""
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor) or _is_wrapped(leaf):
            return leaf
        known = self.stand_in(leaf)
        if known is not None:
            return known
        found = self.locate(leaf)
        if found is None:
            self.refuse(
                f"the program uses a tensor of shape {tuple(leaf.shape)} and Fulgurite can't tell where it lives",
                "pass it as an argument, or keep it in an attribute, a global or a closure variable",
            )
        return self.add_input(leaf, *found)

    def release(self) -> list[torch.Tensor]:
        """Give the real inputs away; the fake ones stay, so that a backward can still be recorded."""
        reals = [item.real for item in self.inputs]
        self.inputs = [replace(item, real=item.fake) for item in self.inputs]
        return reals

    @contextmanager
    def recording_backward(self, create_graph: bool) -> Iterator[list[BoundSymbol]]:
        """Collect the calls made in the block as those of a backward, apart from the program's."""
        before = self.calls, self.backward_phase, self.builds_graph
        self.histories = Histories()
        self.calls, self.backward_phase, self.builds_graph = [], True, create_graph
        try:
            yield self.calls
        finally:
            self.calls, self.backward_phase, self.builds_graph = before

    def stand_in(self, real: torch.Tensor) -> torch.Tensor | None:
        """The fake tensor of a real one that is an input already."""
        reference, fake = self._fakes.get(id(real), (None, None))
        return fake if reference is not None and reference() is real else None

    def proxies(self, tree: Any) -> Any:
        """The same arguments with every fake tensor replaced by its proxy."""
        return map_leaves(self._proxied, tree)

    def _proxied(self, leaf: Any) -> Any:
        if type(leaf) is Number:
            return leaf.proxy
        return self.proxy(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a call of the program and record it with the dispatcher calls that it makes."""
        settings.note_changes(self)
        named = None if isinstance(fn, MethodWrapperType) else (self.proxies(args), self.proxies(kwargs))
        self.autocast |= torch._C._is_any_autocast_enabled()
        self.detaching = fn == _GET_DATA
        if fn is torch.Tensor.storage_offset:
            self.placed.add(self.proxy(args[0]).storage)
        subs = self.open = list[BoundSymbol]()
        try:
            out = fn(*args, **kwargs)
        except Exception as error:
            call_failed(self, fn, args, kwargs, error)
        finally:
            self.open, self.detaching = None, False
        self._refuse_outside_data(fn, out)
        if any(sub.symbol is ASSUME for sub in subs):
            source, module = whereabouts(self.modules)
            self.calls.extend(replace(sub, source=source, module=module) for sub in subs)
        elif subs:
            args, kwargs = named or (self.proxies(args), self.proxies(kwargs))
            self.append(symbol_of(fn), args, kwargs, map_leaves(self._output, out), tuple(subs))
        return out

    def op(self, op: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
        """Run a dispatcher call and record it."""
        if self.backward_phase and meta.takes_undefined(op, args):
            count = len(op._schema.returns)
            return (None,) * count if count > 1 else None
        if self.backward_phase:
            self.histories.connect(self, (args, kwargs))
        if meta.takes_offset(op):
            self.placed.add(self.proxy(args[0]).storage)
        if meta.asks_for_entries(op, args):
            return look_at(self, symbol_of(op), *self.proxies((args, kwargs)))
        named = self.proxies((args, kwargs)) if "mutates" in symbol_of(op).tags else None
        stops = op is DETACH and args[0].requires_grad
        try:
            out = meta.infer(op, args, kwargs, self.fake_mode)
        except meta.NEEDS_DATA:
            return look_at(self, symbol_of(op), *self.proxies((args, kwargs)))
        except meta.Unsupported as kind:
            self.refuse(f"the program works on {kind}, which can't be traced", "leave this part outside of fg.jit")
        except meta.FakeKernelError as error:
            source, _ = whereabouts(self.modules)
            where = f"{source.file}:{source.line}: " if source else ""
            mend = f'mend what torch.library.register_fake("{op._schema.name}") was given'
            self.failure = TraceError(f"{where}{error}; {mend}")
            raise self.failure from error
        args, kwargs = named or self.proxies((args, kwargs))
        self.append(symbol_of(op), args, kwargs, map_leaves(self._output, out), stops=stops)
        return out

    def keeps_number(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor.item()` may stay a number of the trace."""
        plain = tensor.dtype.is_floating_point or tensor.dtype in _INTEGERS
        transformed = torch._C._functorch.peek_interpreter_stack() is not None
        if not plain or tensor.numel() != 1 or transformed or self.open is not None:
            return False
        return self.values.keeps_next_number(self.keeps_numbers)

    def number(self, kind: type) -> NumberProxy:
        """A new number."""
        proxy = NumberProxy(self.unique_name(f"n{self._count}"), kind)
        self.tensors[proxy.name] = proxy
        return proxy

    def share_storage(self, tensor: torch.Tensor, proxy: TensorProxy) -> None:
        """A tensor that is about to be defined lies in the memory of a known one."""
        self._storages[tensor.untyped_storage()._cdata] = proxy.storage

    def flat_calls(self) -> list[BoundSymbol]:
        """What was recorded until now, at the dispatcher's level."""
        return [*(call for bsym in self.calls for call in bsym.flat()), *(self.open or ())]

    def constant(self, real: torch.Tensor) -> Any:
        """A tensor that the program makes of Python data (`torch.tensor([1, 2])`): fresh memory at every call."""
        with outside_all_modes():
            value = real.detach().clone()
        self.constants[self.unique_name("constant")] = value
        out = LIFT(real)
        self.append(_FRESH, (value,), {}, self._output(out))
        return out

    def note(self, symbol: Symbol, args: tuple[Any, ...], output: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        """Record a call that does not reach the dispatcher."""
        with torch._C.DisableTorchFunction():
            self.append(symbol, self.proxies(args), dict(kwargs or {}), map_leaves(self._output, output))

    def _output(self, leaf: Any) -> Any:
        return self.define(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def append(
        self,
        symbol: Symbol,
        args: Any,
        kwargs: Any,
        output: Any,
        subs: tuple[BoundSymbol, ...] = (),
        stops: bool = False,
        tags: Set[str] = frozenset(),
    ) -> None:
        stops = stops or (self.builds_graph and not subs and not torch.is_grad_enabled())
        tags = frozenset({"no_grad"} if stops else ()) | tags
        bsym = self._link(BoundSymbol(symbol, tuple(args), kwargs, output, subs, tags=tags))
        if self.open is not None:
            self.open.append(bsym)
            return
        if not self.backward_phase:
            source, module = whereabouts(self.modules)
            bsym = replace(bsym, source=source, module=module)
        self.calls.append(bsym)

    def _link(self, bsym: BoundSymbol) -> BoundSymbol:
        """Tie ops that an autograd node runs to the forward op that made the node, by autograd's sequence number."""
        if bsym.subsymbols:
            ran_autograd = any("gradient" in sub.tags for sub in bsym.subsymbols)
            return replace(bsym, tags=bsym.tags | {"autograd"}) if ran_autograd else bsym
        tags = bsym.tags | ({"backward"} if self.backward_phase else set())
        node: Any = torch._C._current_autograd_node()  # None outside of a backward pass
        if node is not None:
            forward = self.forward_of(node)
            return replace(bsym, forward=forward, tags=tags | {"gradient"})
        sequence = torch.autograd._get_sequence_nr()  # private: the public profiler shows it only afterwards
        if sequence > self._sequence and bsym.outputs:
            self._forward_of.setdefault(sequence - 1, bsym.outputs[0].name)
        self._sequence = sequence
        return replace(bsym, tags=tags) if tags else bsym

    def forward_of(self, node: Any) -> str | None:
        """The first output of the op that made an autograd node, by name."""
        return self._forward_of.get(node._sequence_nr())

    def refuse(self, what: str, instead: str) -> NoReturn:
        """Raise a TraceError for the user's line, and keep it in case the program swallows it."""
        source, module = whereabouts(self.modules)
        where = f"{source.file}:{source.line}: " if source else ""
        self.failure = Untraceable(f"{where}{what}{f' (in {module})' if module else ''}; {instead}")
        raise self.failure

    def _refuse_outside_data(self, fn: Callable[..., Any], out: Any) -> None:
        for leaf in leaves(out):
            real = isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)
            if real and self.stand_in(leaf) is None and self.locate(leaf) is None:
                self.refuse(f"{symbol_of(fn).name} makes a tensor of data outside of torch", "pass it as an argument")

    def trace(self, name: str, output: Any) -> Trace:
        """What was recorded until now."""
        return Trace(name, tuple(item.proxy for item in self.inputs), tuple(self.calls), output, dict(self.constants))


# Private: torch.func's tensors around tensors, which its interpreters take off before they reach the dispatch mode.
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def _stride(tensor: torch.Tensor) -> tuple[int, ...] | None:
    return tuple(tensor.stride()) if tensor.layout is torch.strided else None
