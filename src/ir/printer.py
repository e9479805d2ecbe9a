"""A trace as Python source: for people (types, source lines, module paths) and for the interpreter."""

from __future__ import annotations

import builtins
import keyword
import linecache
import math
import os
import re
import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from fulgurite.ir.proxy import Proxy, is_proxy
from fulgurite.ir.symbol import Symbol, resolve
from fulgurite.ir.tree import leaves

if TYPE_CHECKING:
    from fulgurite.ir.trace import BoundSymbol, Trace

DELETE = Symbol("del", lambda *values: None, tags=frozenset({"effect"}))
"""The symbol of a line `del a, b`: the last use of these values is behind."""

_serial = count()


def identifier(text: str, taken: Container[str] = ()) -> str:
    """A Python identifier close to `text` that is not taken.

    >>> identifier("blocks.0.attn"), identifier("t3"), identifier("class"), identifier("x", {"x"})
    ('blocks_0_attn', 't3_', 'class_', 'x_1')
    """
    name = re.sub(r"\W+", "_", text).strip("_") or "value"
    reserved = keyword.iskeyword(name) or name in ("torch", "float", "complex", "slice") or re.fullmatch(r"t\d+", name)
    if name[0].isdigit() or reserved or hasattr(builtins, name):
        name = f"_{name}" if name[0].isdigit() else f"{name}_"
    candidates = (name if i == 0 else f"{name}_{i}" for i in count())
    return next(candidate for candidate in candidates if candidate not in taken)


class Namespace:
    """The objects that printed source refers to by name.

    With `short=True` each callable and constant gets a global of its own (fast to run); otherwise it is written as
    the path that gives it (good to read), and only what has no path becomes a global. No global gets one of the
    names `taken`, which the source uses itself.
    """

    def __init__(self, constants: Mapping[str, Any], taken: Iterable[str] = (), *, short: bool = False) -> None:
        self.globals: dict[str, Any] = {"torch": torch, **constants}
        self._taken = {"torch", *constants, *taken}
        self._constants = {id(value): name for name, value in constants.items()}
        self._bound: dict[Any, str] = {}
        self._short = short

    def symbol(self, symbol: Symbol) -> str:
        """How a call of `symbol` begins."""
        if self._short:
            return self.bind(symbol.name.split(".")[-1], symbol.fn)
        return symbol.name if resolve(symbol.name) == symbol.fn else self.bind(symbol.name, symbol.fn)

    def bind(self, hint: str, value: Any) -> str:
        """A global that holds `value`."""
        if id(value) not in self._bound:
            name = self._bound[id(value)] = identifier(hint, self._taken)
            self._taken.add(name)
            self.globals[name] = value
        return self._bound[id(value)]

    def call(self, bsym: BoundSymbol, *, comments: bool = False) -> str:
        """The line that makes a call."""
        if bsym.symbol is DELETE:
            return f"del {', '.join(p.name for p in bsym.inputs)}"
        args = [self.literal(arg) for arg in bsym.args]
        args.extend(f"{key}={self.literal(arg)}" for key, arg in bsym.kwargs.items())
        text = f"{self.symbol(bsym.symbol)}({', '.join(args)})"
        if not bsym.outputs:
            return text
        text = f"{_target(bsym.output, {p.name for p in bsym.outputs})} = {text}"
        return f"{text}  # {', '.join(map(_typed, bsym.outputs))}" if comments else text

    def literal(self, value: Any) -> str:
        """Source that evaluates to an argument."""
        if is_proxy(value):
            return str(value.name)
        if type(value) is torch.Size:
            return f"torch.Size({list(value)!r})"
        if isinstance(value, (list, tuple)):
            inner = ", ".join(map(self.literal, value)) + ("," if type(value) is tuple and len(value) == 1 else "")
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.literal(k)}: {self.literal(v)}" for k, v in value.items()) + "}"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self.literal, (value.start, value.stop, value.step)))})"
        return self._scalar(value)

    def _scalar(self, value: Any) -> str:
        if value is None or value is Ellipsis or type(value) in (bool, int, str, bytes):
            return repr(value)
        if type(value) is float:
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        if type(value) is complex and math.isfinite(abs(value)):
            return f"complex({value.real!r}, {value.imag!r})"
        if id(value) in self._constants:
            return self._constants[id(value)]
        text = f"torch.device({str(value)!r})" if isinstance(value, torch.device) else str(value)
        readable = isinstance(value, torch.device) or (text.startswith("torch.") and resolve(text) is value)
        return text if readable and not self._short else self.bind("k", value)


def print_trace(trace: Trace, *, header: bool = True, subsymbols: bool = True) -> str:
    """The trace as a Python module with one function."""
    lines = [_header(trace), "import torch", ""] if header else []
    lines.extend(_function(trace, _namespace(trace), comments=True, subsymbols=subsymbols))
    return "\n".join(lines) + "\n"


def _namespace(trace: Trace, *, short: bool = False) -> Namespace:
    outputs = (p.name for bsym in trace.bound_symbols for p in bsym.outputs)
    return Namespace(trace.constants, (trace.name, *(p.name for p in trace.inputs), *outputs), short=short)


def _header(trace: Trace) -> str:
    how = f"{trace.provenance.made_by} in {trace.provenance.seconds * 1e3:.1f} ms"
    constants = "".join(f"\n# {name} = <{type(value).__name__}>" for name, value in trace.constants.items())
    return f"# Fulgurite trace '{trace.name}', {how}, {len(trace.bound_symbols)} calls{constants}"


def _function(trace: Trace, names: Namespace, *, comments: bool, subsymbols: bool = False) -> list[str]:
    lines = [f"def {trace.name}({', '.join(p.name for p in trace.inputs)}):"]
    if comments:
        lines.extend(f"    # {_typed(p)}" for p in trace.inputs)
    here: tuple[Any, ...] = ("", None, None)
    for bsym in trace.bound_symbols:
        if comments:
            place = (bsym.module, bsym.source, bsym.forward)
            if place != here and any(place):
                lines.append(f"    # {_place(bsym)}")
            here = place
        lines.append(f"    {names.call(bsym, comments=comments)}")
        if subsymbols:
            lines.extend(f"    #   {names.call(sub, comments=comments)}" for sub in bsym.subsymbols)
    lines.append(f"    return {names.literal(trace.output)}")
    return lines


def _place(bsym: BoundSymbol) -> str:
    parts = []
    if bsym.source is not None:
        path = os.path.relpath(bsym.source.file)
        parts.append(f"{bsym.source.file if path.startswith('..') else path}:{bsym.source.line}")
    if bsym.module:
        parts.append(f"in {bsym.module}")
    if bsym.forward:
        parts.append(f"gradient of {bsym.forward}")
    return ", ".join(parts)


def _typed(proxy: Proxy) -> str:
    return f'{proxy.name}: "{proxy.type_string}"'


def _target(output: Any, defined: set[str]) -> str:
    """Left side of the assignment: what is not defined here is dropped into `_`."""
    if isinstance(output, (list, tuple)):
        if not any(is_proxy(leaf) and leaf.name in defined for leaf in leaves(output)):
            return "_"
        inner = ", ".join(_target(item, defined) for item in output)
        return f"({inner},)" if len(output) == 1 else f"({inner})"
    return output.name if is_proxy(output) and output.name in defined else "_"


def compile_source(lines: list[str], name: str, namespace: dict[str, Any]) -> Callable[..., Any]:
    """Execute source that defines function `name`; tracebacks show its lines."""
    source = "\n".join(lines) + "\n"
    file = f"<fulgurite {name} {next(_serial)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), namespace)
    weakref.finalize(namespace[name], linecache.cache.pop, file, None)
    return namespace[name]


def execute(trace: Trace) -> Callable[..., Any]:
    """The function that the printed trace defines."""
    names = _namespace(trace)
    return compile_source(_function(trace, names, comments=True), trace.name, names.globals)


_places: dict[str, dict[int, str]] = {}


def compile_trace(trace: Trace) -> Callable[..., Any]:
    """The same function as `execute` gives, with every callable and constant bound to a global of its own."""
    names = _namespace(trace, short=True)
    body = compile_source(_function(trace, names, comments=False), trace.name, names.globals)
    file = body.__code__.co_filename
    _places[file] = {i + 2: _place(bsym) for i, bsym in enumerate(trace.bound_symbols)}
    weakref.finalize(body, _places.pop, file, None)
    return body


def add_place(error: BaseException) -> None:
    """Add to an exception from generated code a note with the user's line behind it (Python 3.11 and later)."""
    step = error.__traceback__
    while step is not None:
        place = _places.get(step.tb_frame.f_code.co_filename, {}).get(step.tb_lineno)
        if place and hasattr(error, "add_note"):
            error.add_note(f"traced from {place}")
        step = step.tb_next
