"""What a node of a trace's graph shows, in every format: its class, colour, short name and description."""

from __future__ import annotations

from typing import Any

COLOURS = {
    "input": "#d9d9d9",
    "return": "#d9d9d9",
    "view": "#ffffff",
    "mutates": "#e69f00",
    "random": "#cc79a7",
    "custom": "#009e73",
    "op": "#9ecae8",
}
"""Fill by op class, from the colour-blind safe palette of Okabe and Ito."""

LEGEND = {
    "op": "other op",
    "view": "view",
    "mutates": "writes in place",
    "random": "random",
    "custom": "custom op",
    "input": "input, return",
}
"""Op classes in words."""


def op_class(data: dict[str, Any]) -> str:
    """The class that a node is coloured by: its kind, or the tag of its op that matters most."""
    if data["kind"] != "op":
        return str(data["kind"])
    return next((tag for tag in ("custom", "random", "mutates", "view") if tag in data["tags"]), "op")


def short_name(symbol: str) -> str:
    """The name of an op without the path that all ops share.

    >>> short_name("torch.nn.functional.linear"), short_name("torch.ops.aten.mm.default"), short_name("torch.ops.my.op")
    ('linear', 'aten.mm', 'my.op')
    """
    name = symbol.removesuffix(".default")
    if name.startswith("torch.ops."):
        return name.removeprefix("torch.ops.")
    return name.split(".")[-1] if not name.endswith("__get__") else name.split(".")[-2]


def result_type(data: dict[str, Any]) -> str:
    """Types of the values that a node defines, `cpu f32[2, 3]`."""
    if data["kind"] == "input":
        return str(data["proxy"].type_string)
    outputs = data["bsym"].outputs if data["kind"] == "op" else ()
    return ", ".join(p.type_string for p in outputs)


def describe(node: str, data: dict[str, Any]) -> str:
    """What a node is, in a few lines of text."""
    lines = [node] if node == str(data["label"]) else [node, str(data["label"])]
    if result_type(data):
        lines.append(result_type(data))
    for title in ("source", "module", "forward", "executor"):
        if data.get(title):
            lines.append(f"{'gradient of' if title == 'forward' else title}: {data[title]}")
    if data.get("tags"):
        lines.append(f"tags: {', '.join(sorted(data['tags']))}")
    return "\n".join(lines)
