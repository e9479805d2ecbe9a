"""The epilogue: Python source that makes a program's result of the flat tensors, and what it wrote to Python state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fulgurite.ir import is_proxy
from fulgurite.ir.printer import Namespace, compile_source
from fulgurite.trace.effects import Write
from fulgurite.trace.program import Program
from fulgurite.trace.structure import Existing, parts_of, walk


def returns_existing(program: Program) -> bool:
    """Whether the program's result holds an object that was there before the call."""
    return any(isinstance(leaf, Existing) for _, leaf in walk(program.result, objects=True))


def rebuilding(program: Program, body: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """`body`, with the flat outputs put back into the structure that the program returned."""
    inputs = [item.proxy.name for item in program.recorder.inputs]
    namespace = Namespace({}, ("run", *inputs, *names), short=True)
    text = _expression(program.result, namespace)
    single = f"({''.join(name + ', ' for name in names)})" if names else "_"
    given = ", ".join(inputs)
    call = f"{namespace.bind('body', body)}({given})"
    lines = [f"def run({given}):", f"    {single} = {call}", f"    return {text}"]
    return compile_source(lines, "run", namespace.globals)


def epilogue(program: Program, names: list[str]) -> Callable[..., Any]:
    """A function `(args, kwargs, flat outputs)` that writes what the program wrote and returns what it returned.

    Containers are looked up first, since a write may replace what leads to another one.
    """
    namespace = program.namespace
    local = {name: f"value_{name}" for name in names}
    lines = ["def epilogue(args, kwargs, outputs):"]
    lines.append(f"    {''.join(value + ', ' for value in local.values())} = outputs" if names else "    pass")
    sources = list(dict.fromkeys(write.source for write in program.writes))
    containers = {source: f"c{i}" for i, source in enumerate(sources)}
    lines.extend(f"    {name} = {source}" for source, name in containers.items())
    existing = {leaf.source: f"e{i}" for i, leaf in enumerate(_existing(program))}
    lines.extend(f"    {name} = {source}" for source, name in existing.items())
    known = {**existing, **{name: value for name, value in local.items()}}
    for write in program.writes:
        lines.extend(f"    {line}" for line in _lines(write, containers[write.source], namespace, known))
    lines.append(f"    return {_expression(program.result, namespace, known)}")
    return compile_source(lines, "epilogue", namespace.globals)


def _existing(program: Program) -> list[Existing]:
    values = [program.result, *(list(write.set.values()) + list(write.items) for write in program.writes)]
    return [leaf for value in values for _, leaf in walk(value, objects=True) if isinstance(leaf, Existing)]


def _lines(write: Write, name: str, namespace: Namespace, known: dict[str, str]) -> list[str]:
    """The statements of one write."""

    def text(value: Any) -> str:
        return _expression(value, namespace, known)

    if write.kind == "cell":
        return [f"{name}.cell_contents = {text(write.items[0])}" if write.items else f"del {name}.cell_contents"]
    if write.kind == "set":
        items = "".join(f"{text(item)}, " for item in write.items)
        return [f"new = ({items})", f"{name}.clear()", f"{name}.update(new)"]
    if write.kind == "sequence":
        old = [f"old[{item}]" if isinstance(item, int) else text(item[0]) for item in write.items]
        new = "".join(f"{item}, " for item in old)
        return [f"old = list({name})", f"new = ({new})", f"{name}.clear()", f"{name}.extend(new)"]
    if write.kind == "attributes":
        set_, delete = namespace.bind("setattr", setattr), namespace.bind("delattr", delattr)
        lines = [f"{delete}({name}, {key!r})" for key in write.deleted]
        return [*lines, *(f"{set_}({name}, {key!r}, {text(value)})" for key, value in write.set.items())]
    lines = [f"{name}.pop({namespace.literal(key)}, None)" for key in write.deleted]
    return [*lines, *(f"{name}[{namespace.literal(key)}] = {text(value)}" for key, value in write.set.items())]


def _expression(value: Any, namespace: Namespace, known: dict[str, str] | None = None) -> str:
    """Source that makes a structure from its proxies; `known` says how to write some of them."""
    known = known or {}
    if is_proxy(value):
        return known.get(value.name, str(value.name))
    if isinstance(value, Existing):
        return known[value.source]
    parts = parts_of(value, objects=True)
    if parts is None:
        return namespace.literal(value)
    made_here = any(is_proxy(leaf) or isinstance(leaf, Existing) for _, leaf in walk(value, objects=True))
    if type(value) not in (list, dict, tuple) and not made_here:
        return namespace.bind("constant", value)
    items = [_expression(child, namespace, known) for child in parts.children]
    if type(value) is list:
        return f"[{', '.join(items)}]"
    if type(value) is tuple:
        return f"({''.join(item + ', ' for item in items)})"
    if type(value) is dict:
        return "{" + ", ".join(f"{namespace.literal(key)}: {item}" for key, item in zip(value, items)) + "}"
    return f"{namespace.bind('rebuild', parts.rebuild)}(({''.join(item + ', ' for item in items)}))"
