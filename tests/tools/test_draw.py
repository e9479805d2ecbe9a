"""Pictures of traces: DOT, HTML, and what Graphviz makes of them."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch
from torch import Tensor, nn

import fulgurite as fg
from fulgurite.tools import draw as drawing
from fulgurite.tools.dot import LARGE, dot_source, quote
from fulgurite.tools.html import html_page
from fulgurite.tools.layout import HEIGHT, WIDTH, layered
from fulgurite.tools.modules import boxes
from fulgurite.tools.nodes import op_class

NASTY = '</script><img src=x onerror="alert(1)">&\\'


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin().mul_(2)


class Outer(nn.Module):
    def __init__(self, name: str = "inner") -> None:
        super().__init__()
        self.add_module(name, Inner())
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return next(self.children())(x) + self.w


def traced(name: str = "inner", grad: bool = False) -> fg.Trace:
    return fg.make_trace(Outer(name), grad=grad)(torch.ones(2, 3))


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r"const model = (\{.*\}), \$ =", page)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


GOLDEN = """\
  "x" [label=<<B>x</B><BR/><FONT POINT-SIZE="9">cpu f32[2, 3]</FONT>>, id="x", fillcolor="#d9d9d9"]
  "w" [label=<<B>w</B><BR/><FONT POINT-SIZE="9">cpu f32[3]</FONT>>, id="w", fillcolor="#d9d9d9"]
  "t1" [label=<<B>add</B><BR/><FONT POINT-SIZE="9">t1</FONT>>, id="t1", fillcolor="#9ecae8"]
  "return" [label=<<B>return</B>>, id="return", fillcolor="#d9d9d9"]
  subgraph "cluster_inner" {
    graph [label=<inner>, style="rounded", color="#999999", fontsize=11]
    "t0" [label=<<B>sin</B><BR/><FONT POINT-SIZE="9">t0</FONT>>, id="t0", fillcolor="#9ecae8"]
    "op1" [label=<<B>mul_</B><BR/><FONT POINT-SIZE="9">op1</FONT>>, id="op1", fillcolor="#e69f00"]
  }
  "x" -> "t0" [label=<cpu f32[2, 3]>]
  "w" -> "t1" [label=<cpu f32[3]>]
  "t0" -> "op1" [label=<cpu f32[2, 3]>]
  "t0" -> "t1" [label=<cpu f32[2, 3]>]
  "op1" -> "t1" [label="", style=dashed]
  "t1" -> "return" [label=<cpu f32[2, 3]>]
}
"""


def test_dot_text() -> None:
    text = dot_source(traced().graph())
    head, _, body = text.partition('  "x" [')
    body = re.sub(r',? ?tooltip="(\\.|[^"\\])*"', "", f'  "x" [{body}').replace("[, ", "[")
    assert body == GOLDEN
    assert '"(legend)"' in head and "writes in place" in head and "shape=record" not in text


def test_every_node_has_a_label_and_says_where_it_comes_from() -> None:
    graph = traced(grad=True).graph()
    text = dot_source(graph)
    for node in graph:
        assert f"{quote(node)} [label=<" in text
    assert "test_draw.py:" in text and "gradient of: " in text and 'href="#t' in text


def test_colours_follow_tags() -> None:
    op: dict[str, Any] = {"kind": "op"}
    for tag in ("view", "mutates", "random", "custom"):
        assert op_class({**op, "tags": frozenset({tag})}) == tag
    assert op_class({**op, "tags": frozenset()}) == "op" and op_class({"kind": "input"}) == "input"
    assert op_class({**op, "tags": frozenset({"random", "mutates"})}) == "random"


def test_names_are_escaped_in_dot() -> None:
    text = dot_source(traced(NASTY).graph())
    assert f"label=<{html.escape(NASTY)}>" in text and "<img" not in re.sub(r'"(\\.|[^"\\])*"', "", text)
    if shutil.which("dot"):
        done = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr and "<img" not in done.stdout


@pytest.mark.parametrize("text", ['a"b', "a\\", "a\nb", 'x\\"y'])
def test_quoting_ends_where_it_should(text: str) -> None:
    assert re.fullmatch(r'"(\\.|[^"\\\n])*"', quote(text))


def test_page_shows_names_as_text() -> None:
    page = html_page(traced(NASTY))
    assert page.count("</script>") == 1 and "<img" not in page
    data = data_of(page)
    assert any(NASTY in node["about"] for node in data["nodes"])
    assert any(NASTY in line["text"] for line in data["lines"])


def test_page_stands_alone() -> None:
    page = html_page(traced(grad=True))
    assert not re.search(r"https?://|src=|@import|<link|url\(", page)
    assert "prefers-color-scheme: dark" in page


def test_page_holds_the_graph_and_the_text_in_step() -> None:
    trace = traced(grad=True)
    graph, data = trace.graph(), data_of(html_page(trace))
    assert {node["id"] for node in data["nodes"]} == set(graph)
    assert {(edge["from"], edge["to"]) for edge in data["edges"]} == set(graph.edges)
    assert "\n".join(line["text"] for line in data["lines"]) + "\n" == trace.text(header=False, subsymbols=False)
    assert [line["node"] for line in data["lines"] if line["node"]] == [node["id"] for node in data["nodes"]]
    by_id = {node["id"]: node for node in data["nodes"]}
    linked = [node for node in data["nodes"] if node["forward"]]
    assert linked and all(by_id[node["forward"]]["y"] < node["y"] for node in linked)
    for line in data["lines"]:
        if " = " in line["text"]:
            assert line["text"].strip().strip("(").startswith(line["node"])


def test_page_of_the_trace_that_runs() -> None:
    jitted = fg.jit(Outer())
    jitted(torch.ones(2, 3))
    for line in data_of(html_page(fg.last_trace(jitted)))["lines"]:
        if " = " in line["text"]:
            assert line["text"].strip().strip("(").startswith(line["node"]) and line["node"]


def chain(length: int) -> networkx.DiGraph:
    def grow(x: Tensor) -> Tensor:
        first = x
        for i in range(length):
            x = x.sin() + first.cos() if i % 3 else x.exp()
        return x

    return fg.make_trace(grow)(torch.ones(2)).graph()


def test_layout_points_down_and_nothing_overlaps() -> None:
    graph = chain(40)
    layout = layered(graph)
    assert set(layout.places) == set(graph) and set(layout.bends) == set(graph.edges)
    assert all(layout.places[a][1] < layout.places[b][1] for a, b in graph.edges)
    places = sorted(layout.places.values(), key=lambda place: (place[1], place[0]))
    for (x0, y0), (x1, y1) in pairwise(places):
        assert y1 - y0 > HEIGHT or x1 - x0 > WIDTH


def test_boxes_hold_their_calls() -> None:
    graph = traced().graph()
    places = layered(graph).places
    (box,) = boxes(graph, places)
    assert box.path == "inner" and box.holds(places["t0"]) and box.holds(places["op1"])
    assert not box.holds(places["t1"])


def test_large_graphs_come_with_their_places(tmp_path: Path) -> None:
    graph = chain(LARGE)
    text = dot_source(graph)
    assert "layout=nop" in text and text.count("pos=") == len(graph) + 1
    if shutil.which("dot"):
        done = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout.count('class="node"') == len(graph) + 1


@pytest.mark.parametrize("suffix", [".dot", ".gv", ".html", ".HTML"])
def test_files_that_need_no_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setenv("PATH", "")
    path = tmp_path / f"trace{suffix}"
    source = fg.draw(traced(), path)
    text = path.read_text()
    assert text == source.source if suffix in (".dot", ".gv") else text.startswith("<!doctype html>")


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz's program dot is not installed")
@pytest.mark.parametrize("suffix, start", [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_pictures(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / f"trace{suffix}"
    fg.draw(traced(), str(path))
    assert path.read_bytes().startswith(start)


@pytest.mark.skipif(importlib.util.find_spec("pygraphviz") is None, reason="pygraphviz is not installed")
def test_pictures_with_pygraphviz_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    fg.draw(traced(), tmp_path / "trace.svg")
    assert b"<svg" in (tmp_path / "trace.svg").read_bytes()


def test_without_graphviz_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="apt-get install graphviz.*pip install pygraphviz"):
        fg.draw(traced(), tmp_path / "trace.svg")


@pytest.mark.parametrize("name", ["trace.jpg", "trace"])
def test_unknown_suffix_names_the_good_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"\.dot, \.gv, \.svg, \.png, \.pdf, \.html"):
        fg.draw(traced(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_jitted_function_draws_its_last_trace() -> None:
    jitted = fg.jit(Outer())
    with pytest.raises(RuntimeError, match="call the jitted function first"):
        fg.draw(jitted)
    jitted(torch.ones(2, 3))
    assert fg.draw(jitted).source == dot_source(fg.last_trace(jitted).graph())
    with pytest.raises(TypeError, match=r"expected what fg\.jit returned"):
        fg.draw(torch.sin)


@pytest.mark.parametrize("grad", [False, True])
def test_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], grad: bool
) -> None:
    (tmp_path / f"parts_{grad}.py").write_text("import torch\n\ndef make():\n    return torch.nn.Linear(2, 3)\n")
    source = (
        "from __future__ import annotations\nimport dataclasses, torch\n"
        f"from parts_{grad} import make\n\n"
        "@dataclasses.dataclass\nclass Config:\n    size: int = 2\n\n"
        "def factory():\n    return make(), (torch.ones(1, Config().size),)\n"
    )
    (tmp_path / "model.py").write_text(source)
    out = tmp_path / "out.html"
    options = ["--grad"] if grad else []
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["draw", f"{tmp_path / 'model.py'}:factory", "-o", str(out), *options])
    drawing.main()
    assert capsys.readouterr().out.strip() == str(out)
    assert ("gradient of" in out.read_text()) == grad


@pytest.mark.parametrize("target", ["factory", "model.py:nothing", "absent.py:factory"])
def test_command_line_names_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["draw", target])
    with pytest.raises(SystemExit):
        drawing.main()
    assert re.search(r"expected path\.py:factory|has no function 'nothing'", capsys.readouterr().err)
