"""Kinds of values that a program can reach: which are simple, which are the user's, how to look into them."""

import contextvars
import enum
import functools
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch._subclasses.fake_tensor import FakeTensor

from fulgurite.trace.source import is_users


def length_of(value: Any, source: str) -> tuple[str, Any, str]:
    """The read of a container's length."""
    return f"len({source})", len(value), f"length of {source}"


def contents_of(cell: types.CellType) -> Any:
    """What a closure's cell holds; None before it is assigned."""
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def function_in(item: Any) -> tuple[str, types.FunctionType | None]:
    """The function behind an entry of a class, and how to get there from the entry as an attribute of the class."""
    if isinstance(item, types.FunctionType):
        return "", item
    if isinstance(item, (staticmethod, classmethod)) and isinstance(item.__func__, types.FunctionType):
        return "" if isinstance(item, staticmethod) else ".__func__", item.__func__
    if isinstance(item, property) and isinstance(item.fget, types.FunctionType):
        return ".fget", item.fget
    if isinstance(item, functools.cached_property) and isinstance(item.func, types.FunctionType):
        return ".func", item.func
    return "", None


def is_users_class(kind: type) -> bool:
    """Whether a class is neither Python's nor PyTorch's."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None) or "<unknown>"
    return kind.__module__ not in ("builtins", "types", "abc", "typing") and is_users(file)


def is_clock(value: Any) -> bool:
    """Whether a function gives another result at each call, which no guard could know."""
    return isinstance(value, types.BuiltinFunctionType) and getattr(value, "__module__", "") == "time"


def argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names for positional arguments, taken from the function's signature where it has one."""
    code = code_of(fn)
    names = list(code.co_varnames[: code.co_argcount]) if code else []
    if names[:1] == ["self"]:
        names = names[1:]
    return [names[i] if i < len(names) else f"arg{i}" for i in range(count)]


def code_of(fn: Any) -> Any:
    """The code object of a function, or of a module's forward; None where there is none."""
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    while isinstance(target, functools.partial):
        target = target.func
    return getattr(target, "__code__", None) or getattr(getattr(target, "__func__", None), "__code__", None)


def last_name(source: str) -> str:
    """The attribute, key or variable that a source ends in."""
    key = re.search(r"\['([^']*)'\](\[\d+\])*$", source)
    return key[1] if key else (re.findall(r"[A-Za-z_]\w*", source) or [""])[-1]


def definition(fn: Any) -> str:
    """File and line of a function, or of a module's forward."""
    code = code_of(fn)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)


def can_follow(leaf: Any) -> bool:
    """Whether a trace can tell if an argument is what it was: not so for what changes unseen or hides its contents."""
    if isinstance(leaf, torch.Tensor):
        return type(leaf) in PLAIN_TENSORS or isinstance(leaf, FakeTensor)
    if isinstance(leaf, (numpy.ndarray, bytearray, Iterator)):
        return False
    hides = not hasattr(leaf, "__dict__") and type(leaf).__module__.split(".")[0] not in _KNOWN
    return not hides or isinstance(leaf, numpy.generic) or hasattr(type(leaf), "__slots__")


PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
SIMPLE = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, enum.Enum, type(None))
_KNOWN = ("builtins", "torch", "types", "functools", "collections")
DESCRIPTORS = (property, staticmethod, classmethod, functools.cached_property, types.MemberDescriptorType)

PLAIN = (*SIMPLE, torch.Tensor, types.FunctionType, type, contextvars.ContextVar)
"""What is followed in PyTorch's and the standard library's modules: not their tables, `sys.modules` and so on."""

OPERATORS = (
    types.BuiltinFunctionType,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch._library.custom_ops.CustomOpDef,  # private: torch.library names only its factory
)
"""Callables that have no Python code of their own to follow."""
