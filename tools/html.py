"""A trace as one HTML file: its graph beside its text, with nothing loaded from elsewhere."""

from __future__ import annotations

import json
from typing import Any

from fulgurite.ir import Trace
from fulgurite.tools.dot import COLOURS, describe, op_class, short_name
from fulgurite.tools.layout import HEIGHT, WIDTH, layered


def html_page(trace: Trace) -> str:
    """The page; names and text reach it as JSON and are shown as text, whatever they hold."""
    data = json.dumps(_model(trace)).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return _PAGE.replace("/*DATA*/null", data)


def _model(trace: Trace) -> dict[str, Any]:
    graph = trace.graph()
    places = layered(graph)
    nodes = [
        {
            "id": node,
            "name": short_name(str(data["label"])),
            "type": _type(data),
            "about": describe(node, data),
            "colour": COLOURS[op_class(data)],
            "x": places[node][0],
            "y": places[node][1],
        }
        for node, data in graph.nodes(data=True)
    ]
    edges = [{"from": a, "to": b, "kind": data["kind"], "label": data["label"]} for a, b, data in graph.edges(data=True)]
    legend = [{"name": name, "colour": colour} for name, colour in COLOURS.items() if name not in ("input", "return")]
    return {
        "title": f"{trace.name}: {len(trace.bound_symbols)} calls",
        "nodes": nodes,
        "edges": edges,
        "legend": legend,
        "lines": _lines(trace),
        "box": [WIDTH, HEIGHT],
    }


def _type(data: dict[str, Any]) -> str:
    if data["kind"] == "input":
        return str(data["proxy"].type_string)
    outputs = data["bsym"].outputs if data["kind"] == "op" else ()
    return ", ".join(p.type_string for p in outputs)


def _lines(trace: Trace) -> list[dict[str, str]]:
    """The text, each line with the node that it stands for."""
    owners = {bsym_name: node for node, bsym_name in _first_names(trace)}
    lines = []
    for line in trace.text(header=False, subsymbols=False).splitlines():
        target = line.strip().split(" = ")[0].strip("(").split(",")[0]
        comment = line.strip().removeprefix("# ").split(":")[0] if line.strip().startswith("#") else ""
        lines.append({"text": line, "node": owners.get(target, owners.get(comment, ""))})
    return lines


def _first_names(trace: Trace) -> list[tuple[str, str]]:
    names = [(p.name, p.name) for p in trace.inputs]
    for bsym in trace.bound_symbols:
        if bsym.outputs:
            names.append((bsym.outputs[0].name, bsym.outputs[0].name))
    return names


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Fulgurite trace</title><style>
:root { color-scheme: light dark; --bg: #fff; --ink: #1b1b1b; --soft: #666; --line: #bbb; --mark: #d55e00; }
@media (prefers-color-scheme: dark) { :root { --bg: #16181c; --ink: #e6e6e6; --soft: #a0a0a0; --line: #555; } }
* { box-sizing: border-box; }
body { margin: 0; height: 100vh; display: grid; grid-template: auto 1fr / 3fr 2fr; background: var(--bg);
  color: var(--ink); font: 13px/1.45 system-ui, sans-serif; }
header { grid-column: 1 / 3; display: flex; gap: 1em; align-items: center; padding: .5em 1em;
  border-bottom: 1px solid var(--line); flex-wrap: wrap; }
header h1 { font-size: 1em; margin: 0; } header input { font: inherit; padding: .2em .5em; }
.key { display: inline-block; width: 1em; height: 1em; border: 1px solid #777; vertical-align: -2px; margin-right: .3em; }
#graph { width: 100%; height: 100%; cursor: grab; min-height: 0; outline-offset: -2px; }
#side { display: grid; grid-template-rows: 1fr auto; border-left: 1px solid var(--line); min-height: 0; min-width: 0; }
#text { margin: 0; overflow: auto; padding: .5em 0; font: 12px/1.5 ui-monospace, monospace; }
#text div { white-space: pre; padding: 0 1em; } #text div[data-node] { cursor: pointer; }
#text .on, #text div[data-node]:hover { background: color-mix(in srgb, var(--mark) 22%, transparent); }
#about { margin: 0; padding: .7em 1em; border-top: 1px solid var(--line); white-space: pre-wrap; min-height: 7em;
  max-height: 35vh; overflow: auto; font: 12px/1.5 ui-monospace, monospace; }
.node rect { stroke: #555; rx: 6; } .node text { fill: #111; text-anchor: middle; font-size: 11px; }
.node .type { font-size: 8.5px; fill: #333; } .node { cursor: pointer; } .node.on rect { stroke: var(--mark); stroke-width: 3; }
.node.dim, .edge.dim { opacity: .18; } .edge { fill: none; stroke: var(--soft); stroke-width: 1; }
.edge.order { stroke-dasharray: 4 3; } .edge.on { stroke: var(--mark); stroke-width: 2; }
</style></head><body>
<header><h1 id="title"></h1><input id="search" type="search" placeholder="search ( / )" aria-label="search">
<span id="found"></span><span id="legend"></span></header>
<svg id="graph" tabindex="0" role="img" aria-label="graph of the trace"></svg>
<div id="side"><div id="text" tabindex="0"></div><pre id="about">Click a node or a line. Drag to pan, wheel to zoom,
f to fit, arrow keys to walk along the program.</pre></div>
<script>
const model = /*DATA*/null, svg = document.getElementById("graph"), NS = "http://www.w3.org/2000/svg";
const byId = new Map(model.nodes.map(n => [n.id, n])), shapes = new Map(), lines = new Map(), edges = [];
const make = (tag, attributes, parent) => { const e = document.createElementNS(NS, tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v); parent.append(e); return e; };
const [W, H] = model.box, world = make("g", {}, svg);
document.getElementById("title").textContent = document.title = model.title;
for (const k of model.legend) { const s = document.createElement("span"), c = document.createElement("i");
  c.className = "key"; c.style.background = k.colour; s.append(c, k.name + "  "); document.getElementById("legend").append(s); }
for (const e of model.edges) { const a = byId.get(e.from), b = byId.get(e.to), m = (a.y + b.y) / 2;
  const d = `M${a.x},${a.y + H / 2} C${a.x},${m} ${b.x},${m} ${b.x},${b.y - H / 2}`;
  const path = make("path", { class: "edge " + e.kind, d }, world);
  make("title", {}, path).textContent = e.label; edges.push([e, path]); }
const clip = (t, n) => t.length > n ? t.slice(0, n - 1) + "…" : t;
for (const n of model.nodes) { const g = make("g", { class: "node" }, world);
  make("rect", { x: n.x - W / 2, y: n.y - H / 2, width: W, height: H, fill: n.colour }, g);
  make("text", { x: n.x, y: n.y - 2 }, g).textContent = clip(n.name, 24);
  make("text", { x: n.x, y: n.y + 11, class: "type" }, g).textContent = clip(n.type, 34);
  make("title", {}, g).textContent = n.about; g.addEventListener("click", () => select(n.id)); shapes.set(n.id, g); }
const text = document.getElementById("text");
for (const l of model.lines) { const d = document.createElement("div"); d.textContent = l.text || " ";
  if (l.node && byId.has(l.node)) { d.dataset.node = l.node; if (!lines.has(l.node) || !l.text.trim().startsWith("#")) lines.set(l.node, d);
    d.addEventListener("click", () => select(l.node, true)); } text.append(d); }
let view = { x: 0, y: 0, k: 1 }, current = null;
const draw = () => world.setAttribute("transform", `translate(${view.x},${view.y}) scale(${view.k})`);
function fit() { const b = world.getBBox(), r = svg.getBoundingClientRect();
  view.k = Math.max(.25, Math.min(1.2, r.width / (b.width + 40), r.height / (b.height + 40)));
  view.x = (r.width - b.width * view.k) / 2 - b.x * view.k; view.y = 20 - b.y * view.k; draw(); }
function select(id, centre) { current = id; for (const [k, g] of shapes) g.classList.toggle("on", k === id);
  for (const [e, p] of edges) p.classList.toggle("on", e.from === id || e.to === id);
  for (const d of text.children) d.classList.toggle("on", d.dataset.node === id);
  document.getElementById("about").textContent = byId.get(id).about + "\\n" + byId.get(id).type;
  lines.get(id)?.scrollIntoView({ block: "nearest" });
  if (centre) { const n = byId.get(id), r = svg.getBoundingClientRect();
    view.x = r.width / 2 - n.x * view.k; view.y = r.height / 2 - n.y * view.k; draw(); } }
function search(q) { q = q.toLowerCase(); let count = 0;
  for (const n of model.nodes) { const hit = (n.about + " " + n.type).toLowerCase().includes(q); count += hit;
    shapes.get(n.id).classList.toggle("dim", q !== "" && !hit); }
  for (const [, p] of edges) p.classList.toggle("dim", q !== "");
  document.getElementById("found").textContent = q ? `${count} of ${model.nodes.length}` : ""; }
document.getElementById("search").addEventListener("input", e => search(e.target.value));
svg.addEventListener("wheel", e => { e.preventDefault(); const f = Math.exp(-e.deltaY / 400), r = svg.getBoundingClientRect();
  const x = e.clientX - r.left, y = e.clientY - r.top; view.x = x - (x - view.x) * f; view.y = y - (y - view.y) * f;
  view.k *= f; draw(); }, { passive: false });
svg.addEventListener("pointerdown", e => { const s = { ...view, px: e.clientX, py: e.clientY };
  const move = m => { view.x = s.x + m.clientX - s.px; view.y = s.y + m.clientY - s.py; draw(); };
  addEventListener("pointermove", move); addEventListener("pointerup", () => removeEventListener("pointermove", move), { once: true }); });
addEventListener("keydown", e => { if (e.target.tagName === "INPUT") return;
  if (e.key === "/") { e.preventDefault(); document.getElementById("search").focus(); } if (e.key === "f") fit();
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[e.key];
  if (step) { e.preventDefault(); const i = model.nodes.findIndex(n => n.id === current);
    select(model.nodes[Math.max(0, Math.min(model.nodes.length - 1, i + step))].id, true); } });
fit();
</script></body></html>
"""
