"""Draw a trace: DOT, SVG, PNG, PDF or one HTML page.

python -m fulgurite.tools.draw model.py:factory -o model.html
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphviz

import fulgurite as fg
from fulgurite.tools.dot import dot_source
from fulgurite.tools.html import html_page

SUFFIXES = (".dot", ".gv", ".svg", ".png", ".pdf", ".html")


def draw(trace: Any, path: str | Path | None = None) -> graphviz.Source:
    """The graph of a trace, as an object that shows itself in a notebook; also written to `path` if given.

    Args:
        trace: a Trace, or what `fg.jit` returned, whose last forward trace is drawn.
        path: a file; its suffix chooses the format. `.dot`, `.gv` and `.html` need no other program; `.svg`, `.png`
            and `.pdf` need Graphviz, as the program `dot` or the package `pygraphviz`.

    Raises:
        ValueError: the suffix is none of these.
        RuntimeError: a picture is asked for and Graphviz is not installed; or the function was not called yet.
    """
    chosen = trace if isinstance(trace, fg.Trace) else fg.last_trace(trace)
    source = graphviz.Source(dot_source(chosen.graph()))
    if path is not None:
        _write(chosen, source, Path(path))
    return source


def _write(trace: fg.Trace, source: graphviz.Source, path: Path) -> None:
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ValueError(f"can't draw to {path.name!r}; suffixes are {', '.join(SUFFIXES)}")
    if kind == ".html":
        path.write_text(html_page(trace), encoding="utf-8")
    elif kind in (".dot", ".gv"):
        path.write_text(source.source, encoding="utf-8")
    else:
        path.write_bytes(_render(source, kind[1:]))


def _render(source: graphviz.Source, kind: str) -> bytes:
    if shutil.which("dot"):
        return bytes(source.pipe(format=kind, quiet=True))
    if importlib.util.find_spec("pygraphviz"):
        graph = importlib.import_module("pygraphviz").AGraph(string=source.source)
        return bytes(graph.draw(format=kind, prog="dot"))
    raise RuntimeError(
        f"{kind} needs Graphviz: install it with `apt-get install graphviz` or `pip install pygraphviz`, "
        "or draw to .html or .dot, which need neither"
    )


def load_factory(target: str) -> Callable[[], Any]:
    """The function that `path.py:name` names.

    Raises:
        ValueError: `target` has no colon, there is no such file, or no such function in it.
    """
    file, _, name = target.rpartition(":")
    path = Path(file)
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ValueError(f"expected path.py:factory, got {target!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there for the module that they are in
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise ValueError(f"{file} has no function {name!r}")
    factory: Callable[[], Any] = getattr(module, name)
    return factory


def main() -> None:
    """Draw the model that a factory returns with its inputs: `(module, args)`."""
    parser = argparse.ArgumentParser(prog="fulgurite draw", description="Draw the trace of a model.")
    parser.add_argument("factory", help="path.py:function, which returns (module, inputs)")
    parser.add_argument("-o", "--output", default="trace.html", help=f"a file; suffixes are {', '.join(SUFFIXES)}")
    parser.add_argument("--grad", action="store_true", help="the joint trace, with the backward")
    args = parser.parse_args()
    try:
        factory = load_factory(args.factory)
    except ValueError as error:
        parser.error(str(error))
    model, inputs = factory()
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    draw(fg.make_trace(model, grad=args.grad)(*inputs), args.output)
    print(args.output)


if __name__ == "__main__":
    main()
