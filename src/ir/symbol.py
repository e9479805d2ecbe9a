"""Symbols: the operations that a trace calls, with what PyTorch's own schemas tell about them."""

import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._library import simple_registry
from torch._library.custom_ops import OPDEFS, CustomOpDef

BUILTIN_NAMESPACES = frozenset({"aten", "prim", "prims", "_c10d_functional", "profiler", "inductor", "quantized"})


@dataclass(frozen=True)
class Symbol:
    """An operation: what it is called, what runs it, and its tags.

    `name` is how it prints, `torch.nn.functional.linear` or `torch.ops.my_lib.foo.default`.
    """

    name: str
    fn: Callable[..., Any]
    tags: frozenset[str] = frozenset()  # any of view, mutates, random, custom, effect: see tags_of
    executor: str | None = None  # whose implementation this is; None for the operation itself

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Symbol({self.name})"

    @property
    def meta(self) -> Callable[..., Any]:
        """Infers what a call returns from fake arguments: a custom op's fake kernel, else the callable itself.

        >>> symbol_of(torch.mul).meta(torch.ones(2, 1, device="meta"), torch.ones(3, device="meta")).shape
        torch.Size([2, 3])
        """
        return (fake_kernel_of(self.fn) if isinstance(self.fn, torch._ops.OpOverload) else None) or self.fn

    @property
    def schema(self) -> torch.FunctionSchema | None:
        """The dispatcher's schema, when the symbol is one overload of an operator."""
        return self.fn._schema if isinstance(self.fn, torch._ops.OpOverload) else None


def tags_of(op: torch._ops.OpOverload) -> frozenset[str]:
    """Tags of an operator overload, derived from its schema.

    `mutates`: writes an argument. `view`: an output aliases an argument without a write. `random`: draws from a
    generator. `custom`: registered outside PyTorch, so its body may do anything. `effect`: returns nothing.

    >>> sorted(tags_of(torch.ops.aten.add_.Tensor)), sorted(tags_of(torch.ops.aten.bernoulli.default))
    (['mutates'], ['random'])
    """
    schema = op._schema
    rules = {
        "mutates": schema.is_mutable,
        "view": any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        "random": torch.Tag.nondeterministic_seeded in op.tags,
        "custom": op.namespace not in BUILTIN_NAMESPACES,
        "effect": not schema.returns,
    }
    return frozenset(tag for tag, holds in rules.items() if holds)


def definition_of(op: Any) -> CustomOpDef | None:
    """What `torch.library.custom_op` made an operator of. Private: there is no public way back from the operator."""
    return OPDEFS.get(op._schema.name) if isinstance(op, torch._ops.OpOverload) else None


def fake_kernel_of(op: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """The fake kernel that the user registered. Private: `torch.library` has no public way to ask."""
    definition = definition_of(op)
    if definition is not None:
        return definition._abstract_fn
    entry = simple_registry.singleton.find(op._schema.name).fake_impl.kernel
    return getattr(entry, "func", entry)


def callable_of(target: Any) -> Any:
    """The callable behind a Symbol, an object that `torch.library.custom_op` gave, or a callable itself."""
    fn = target.fn if isinstance(target, Symbol) else target
    return getattr(fn, "_opoverload", fn)


def overloads_of(packet: torch._ops.OpOverloadPacket) -> list[torch._ops.OpOverload]:
    """The overloads of an operator."""
    return [getattr(packet, name) for name in packet.overloads()]


@cache
def symbol_of(fn: Callable[..., Any]) -> Symbol:
    """The Symbol of a callable; one object for one callable.

    >>> symbol_of(torch.nn.functional.gelu).name
    'torch.nn.functional.gelu'
    """
    if isinstance(fn, torch._ops.OpOverload):
        return Symbol(f"torch.ops.{fn}", fn, tags=tags_of(fn))
    if isinstance(fn, torch._ops.OpOverloadPacket):
        return Symbol(f"torch.ops.{fn}", fn, tags=frozenset().union(*map(tags_of, overloads_of(fn))))
    return Symbol(qualified_name(fn), fn)


_ROOTS = ("torch", "torch.nn.functional", "torch.Tensor", "torch._C._nn", "torch._VF", "torch.linalg", "torch.fft")


def qualified_name(fn: Callable[..., Any]) -> str:
    """A dotted path that evaluates to `fn` with `import torch`, else a plain description of it.

    >>> qualified_name(torch.Tensor.add), qualified_name(torch.Tensor.T.__get__), qualified_name(torch.relu)
    ('torch.Tensor.add', 'torch.Tensor.T.__get__', 'torch.relu')
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    if isinstance(fn, types.MethodWrapperType):
        descriptor = getattr(fn.__self__, "__name__", "")
        path = f"torch.Tensor.{descriptor}.{name}"
        return path if resolve(path) == fn else name
    module = getattr(fn, "__module__", None) or "torch"
    for root in (*_ROOTS, module):
        if resolve(f"{root}.{name}") is fn:
            return f"{root}.{name}"
    qualname = f"{module}.{getattr(fn, '__qualname__', name)}"
    return re.sub(r"[^\w.]", "_", qualname)


def resolve(path: str) -> Any:
    """What a dotted path below `torch` gives, or None."""
    root, *rest = path.split(".")
    value: Any = torch if root == "torch" else None
    for part in rest:
        value = getattr(value, part, None)
    return value
