"""Numbers that are known only when the trace runs, and the places where the program looks at its data.

`.item()` gives a stand-in. What is only handed on (returned, stored, printed), added or multiplied stays a number of
the trace; a comparison is assumed to come out as it does now; anything else assumes the very number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fulgurite.ir import NumberProxy, Symbol, is_proxy, symbol_of
from fulgurite.ir.assumption import ASSUME
from fulgurite.ir.tree import leaves, map_leaves
from fulgurite.trace import meta

if TYPE_CHECKING:
    from fulgurite.trace.recorder import Recorder

_ITEM = symbol_of(torch.ops.aten._local_scalar_dense.default)
_KEPT = ("add", "sub", "mul", "neg", "pos", "abs")
_DECIDED = ("lt", "le", "gt", "ge", "eq", "ne")
_EXACT = ("truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor", "invert")


class Number:
    """In place of a Python number while a program is recorded; to `isinstance` it is that number."""

    __slots__ = ("proxy", "recorder")

    def __init__(self, recorder: Recorder, proxy: NumberProxy) -> None:
        self.recorder = recorder
        self.proxy = proxy

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.proxy.kind

    def exact(self) -> Any:
        """The number that it is now, which the trace assumes from here on."""
        return look_at(self.recorder, Symbol("operator.pos", operator.pos), (self.proxy,), {})

    def __bool__(self) -> bool:
        return bool(look_at(self.recorder, Symbol("operator.truth", operator.truth), (self.proxy,), {}))

    def __float__(self) -> float:
        return float(self.exact())

    def __int__(self) -> int:
        return int(self.exact())

    def __index__(self) -> int:
        return operator.index(self.exact())

    def __complex__(self) -> complex:
        return complex(self.exact())

    def __hash__(self) -> int:
        raise TypeError("a number of a trace is no key")  # then the recording is made with real numbers

    def __repr__(self) -> str:
        return repr(self.exact())

    def __str__(self) -> str:
        return str(self.exact())

    def __format__(self, spec: str) -> str:
        return format(self.exact(), spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.exact().__reduce_ex__(protocol)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a question for the object's nature, not its value
            raise AttributeError(name)
        return getattr(self.exact(), name)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.exact(), digits)

    def __trunc__(self) -> int:
        return math.trunc(self.exact())

    def __floor__(self) -> int:
        return math.floor(self.exact())

    def __ceil__(self) -> int:
        return math.ceil(self.exact())

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*exact(args), **exact(kwargs or {}))


def exact(tree: Any) -> Any:
    """The same arguments with real numbers in place of stand-ins."""
    if any(type(leaf) is Number for leaf in leaves(tree)):
        return map_leaves(lambda leaf: leaf.exact() if type(leaf) is Number else leaf, tree)
    return tree


def read_number(recorder: Recorder, tensor: torch.Tensor) -> Number:
    """Record `tensor.item()` without looking at the data."""
    kind = float if tensor.dtype.is_floating_point else int
    return _number(recorder, _ITEM, (recorder.proxy(tensor),), kind)


def _number(recorder: Recorder, symbol: Symbol, args: tuple[Any, ...], kind: type) -> Number:
    proxy = recorder.number(kind)
    recorder.append(symbol, args, {}, proxy)
    return Number(recorder, proxy)


def look_at(recorder: Recorder, symbol: Symbol, args: Any, kwargs: Any) -> Any:
    """Record a call whose result depends on data, go on with what it gives now, and assume that."""
    try:
        if recorder.backward_phase:
            raise LookupError
        result = recorder.values.result(recorder, symbol.fn, args, kwargs)
    except LookupError:
        recorder.refuse(
            f"{symbol.name} needs the data of a tensor, which is not there",
            "keep the value in a tensor (torch.where instead of if), or leave this part outside of fg.jit",
        )
    out = map_leaves(lambda leaf: meta.fake(leaf, recorder.fake_mode), result)
    if "view" in symbol.tags and isinstance(out, torch.Tensor):
        recorder.share_storage(out, args[0])
    output = map_leaves(lambda leaf: _named(recorder, leaf), out)
    recorder.append(symbol, args, kwargs, output, tags={"data"})
    looked_at = [(p, leaf) for p, leaf in zip(leaves(output), leaves(out)) if is_proxy(p)]
    expected = [leaf.shape if isinstance(leaf, torch.Tensor) else leaf for _, leaf in looked_at]
    recorder.append(ASSUME, ([p for p, _ in looked_at], expected), {}, None)
    recorder.values.passed(recorder, output, result)
    return out


def _named(recorder: Recorder, leaf: Any) -> Any:
    if isinstance(leaf, (bool, int, float, complex)):
        return recorder.number(type(leaf))
    return recorder.define(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _proxied(value: Any) -> Any:
    return value.proxy if type(value) is Number else value


def _kind(value: Any) -> type:
    return value.proxy.kind if type(value) is Number else type(value)


def _method(name: str, reverse: bool = False) -> Callable[..., Any]:
    """An operator of Python on stand-ins."""
    fn = getattr(operator, name)
    symbol = Symbol(f"operator.{name}", fn)

    def method(self: Number, *others: Any) -> Any:
        values = (*others, self) if reverse else (self, *others)
        plain = all(_kind(value) in (int, float) for value in values)
        if not plain or name in _EXACT:
            return fn(*exact(values))
        named = tuple(map(_proxied, values))
        if name in _DECIDED:
            return look_at(self.recorder, symbol, named, {})
        kind = type(fn(*(_kind(value)(1) for value in values)))
        return _number(self.recorder, symbol, named, kind)

    return method


for _name in (*_KEPT, *_DECIDED, *_EXACT):
    setattr(Number, f"__{_name.strip('_')}__", _method(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor"):
    setattr(Number, f"__r{_name.strip('_')}__", _method(_name, reverse=True))
