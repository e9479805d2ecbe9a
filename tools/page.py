"""The page that `html_page` fills: style and script, with no framework and nothing to load."""

from __future__ import annotations

_STYLE = """
:root { color-scheme: light dark; --bg: #fff; --ink: #1b1b1b; --soft: #666; --line: #bbb; --mark: #d55e00; }
@media (prefers-color-scheme: dark) { :root { --bg: #16181c; --ink: #e6e6e6; --soft: #a0a0a0; --line: #555; } }
* { box-sizing: border-box; }
body { margin: 0; height: 100vh; display: grid; grid-template: auto minmax(0, 1fr) / 3fr 2fr; background: var(--bg);
  color: var(--ink); font: 13px/1.45 system-ui, sans-serif; }
header { grid-column: 1 / 3; display: flex; gap: .3em 1em; align-items: center; padding: .5em 1em;
  border-bottom: 1px solid var(--line); flex-wrap: wrap; }
header h1 { font-size: 1em; margin: 0; } header input { font: inherit; padding: .2em .5em; }
header span span { white-space: nowrap; margin-right: .8em; }
.key { display: inline-block; width: 1em; height: 1em; border: 1px solid #777; vertical-align: -2px;
  margin-right: .3em; }
#graph { width: 100%; height: 100%; cursor: grab; min-height: 0; touch-action: none; user-select: none; }
#graph:active { cursor: grabbing; } :focus-visible { outline: 2px solid var(--mark); outline-offset: -2px; }
#side { display: grid; grid-template-rows: minmax(0, 1fr) auto; border-left: 1px solid var(--line); min-width: 0; }
#text { overflow: auto; padding: .5em 0; font: 12px/1.5 ui-monospace, monospace; }
#text div { white-space: pre; padding: 0 1em; width: max-content; min-width: 100%; }
#text div.comment { color: var(--soft); } #text div[data-node] { cursor: pointer; color: var(--ink); }
#text .on { background: color-mix(in srgb, var(--mark) 30%, transparent); }
#text .near { background: color-mix(in srgb, var(--mark) 13%, transparent); }
#about { margin: 0; padding: .7em 1em; border-top: 1px solid var(--line); white-space: pre-wrap; height: 12em;
  overflow: auto; overflow-wrap: anywhere; font: 12px/1.5 ui-monospace, monospace; }
#about button { font: inherit; } .node { cursor: pointer; } .node rect { stroke: #555; rx: 6px; }
.node text { fill: #111; text-anchor: middle; font-size: 11px; pointer-events: none; }
.node .type { font-size: 8.5px; fill: #333; } .node.near rect { stroke: var(--mark); }
.node.on rect { stroke: var(--mark); stroke-width: 3px; } .node.dim { opacity: .18; }
.edge { fill: none; stroke: var(--soft); stroke-width: 1px; } .edge.order { stroke-dasharray: 4 3; }
.edge.far { opacity: .22; } .edge.dim { opacity: .1; }
.edge.on { stroke: var(--mark); stroke-width: 2px; opacity: 1; }
.box rect { fill: var(--soft); fill-opacity: .07; stroke: var(--line); rx: 8px; }
.box text { fill: var(--soft); font-size: 9px; }
"""

_BUILD = """
const model = /*DATA*/null, $ = id => document.getElementById(id), svg = $("graph"), text = $("text");
const byId = new Map(model.nodes.map(n => [n.id, n])), shapes = new Map(), lines = new Map(), edges = [];
const [W, H] = model.size, home = $("about").textContent;
const make = (tag, attributes, parent) => {
  const e = document.createElementNS(svg.namespaceURI, tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  parent.append(e); return e; };
const clip = (t, n) => t.length > n ? t.slice(0, n - 1) + "…" : t;
const world = make("g", {}, svg);
$("title").textContent = document.title = model.title;
for (const k of model.legend) {
  const s = document.createElement("span"), c = document.createElement("i");
  c.className = "key"; c.style.background = k.colour; s.append(c, k.name); $("legend").append(s); }
for (const b of model.boxes) {
  const g = make("g", { class: "box" }, world);
  make("rect", { x: b.x, y: b.y, width: b.w, height: b.h }, g);
  make("text", { x: b.x + 6, y: b.y + 10 }, g).textContent = b.path; }
for (const e of model.edges) {
  const path = make("path", { class: "edge " + e.kind, d: e.d }, world);
  make("title", {}, path).textContent = e.label; edges.push([e, path]); }
for (const n of model.nodes) {
  const g = make("g", { class: "node" }, world), two = n.type !== "";
  make("rect", { x: n.x - W / 2, y: n.y - H / 2, width: W, height: H, fill: n.colour }, g);
  make("text", { x: n.x, y: n.y + (two ? -2 : 4) }, g).textContent = clip(n.name, 24);
  if (two) make("text", { x: n.x, y: n.y + 11, class: "type" }, g).textContent = clip(n.type, 34);
  make("title", {}, g).textContent = n.about; g.dataset.node = n.id; shapes.set(n.id, g); }
for (const l of model.lines) {
  const d = document.createElement("div");
  d.textContent = l.text || " "; text.append(d);
  if (l.node && byId.has(l.node)) { d.dataset.node = l.node; lines.set(l.node, d); }
  else if (l.text.trim().startsWith("#")) d.className = "comment"; }
"""

_ACT = """
let view = { x: 0, y: 0, k: 1 }, current = null, matches = [];
const show = () => world.setAttribute("transform", `translate(${view.x},${view.y}) scale(${view.k})`);
function fit(least) {
  const b = world.getBBox(), r = svg.getBoundingClientRect(), first = model.nodes[0];
  const whole = Math.min(1.2, r.width / (b.width + 40), r.height / (b.height + 40)), k = Math.max(least, whole);
  const x = k > whole && b.width * k > r.width ? first.x : b.x + b.width / 2;
  view = { k, x: r.width / 2 - x * k, y: 20 - b.y * k }; show(); }
function zoom(factor, x, y) {
  view.x = x - (x - view.x) * factor; view.y = y - (y - view.y) * factor; view.k *= factor; show(); }
function centre(id) {
  const n = byId.get(id), r = svg.getBoundingClientRect();
  view.x = r.width / 2 - n.x * view.k; view.y = r.height / 2 - n.y * view.k; show(); }
function select(id, move) {
  current = id;
  for (const [k, g] of shapes) g.classList.toggle("on", k === id);
  for (const [e, p] of edges) p.classList.toggle("on", e.from === id || e.to === id);
  for (const [k, d] of lines) d.classList.toggle("on", k === id);
  const n = byId.get(id);
  $("about").textContent = n ? n.about : home;
  if (!n) return;
  if (n.forward) {
    const b = document.createElement("button");
    b.textContent = "show " + n.forward; b.onclick = () => select(n.forward, true); $("about").append("\\n\\n", b); }
  lines.get(id)?.scrollIntoView({ block: "nearest" });
  if (move) centre(id); }
function hover(id) {
  for (const e of document.querySelectorAll(".near")) e.classList.remove("near");
  shapes.get(id)?.classList.add("near"); lines.get(id)?.classList.add("near"); }
function search(q) {
  q = q.toLowerCase();
  matches = q ? model.nodes.filter(n => n.about.toLowerCase().includes(q)).map(n => n.id) : [];
  const hit = new Set(matches);
  for (const [k, g] of shapes) g.classList.toggle("dim", q !== "" && !hit.has(k));
  for (const [, p] of edges) p.classList.toggle("dim", q !== "");
  $("found").textContent = q ? `${matches.length} of ${model.nodes.length}` : ""; }
const owner = e => e.target.closest("[data-node]")?.dataset.node;
for (const area of [svg, text]) {
  area.addEventListener("click", e => { const id = owner(e); if (id && !dragged) select(id, area === text); });
  area.addEventListener("mouseover", e => hover(owner(e))); }
$("search").addEventListener("input", e => search(e.target.value));
$("search").addEventListener("keydown", e => {
  if (e.key === "Enter" && matches.length)
    select(matches[(matches.indexOf(current) + (e.shiftKey ? matches.length - 1 : 1)) % matches.length], true);
  if (e.key === "Escape") { e.target.value = ""; search(""); svg.focus(); } });
svg.addEventListener("wheel", e => {
  e.preventDefault(); const r = svg.getBoundingClientRect();
  zoom(Math.exp(-e.deltaY / 400), e.clientX - r.left, e.clientY - r.top); }, { passive: false });
let dragged = false;
svg.addEventListener("pointerdown", e => {
  const start = { ...view, px: e.clientX, py: e.clientY }; dragged = false;
  const move = m => {
    dragged ||= Math.hypot(m.clientX - start.px, m.clientY - start.py) > 4;
    if (dragged) { view.x = start.x + m.clientX - start.px; view.y = start.y + m.clientY - start.py; show(); } };
  addEventListener("pointermove", move);
  addEventListener("pointerup", () => removeEventListener("pointermove", move), { once: true }); });
addEventListener("keydown", e => {
  if (e.target.tagName === "INPUT" || e.ctrlKey || e.metaKey || e.altKey) return;
  const r = svg.getBoundingClientRect(), step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[e.key];
  if (e.key === "/") { e.preventDefault(); $("search").focus(); }
  if (e.key === "f") fit(0);
  if (e.key === "+" || e.key === "=") zoom(1.25, r.width / 2, r.height / 2);
  if (e.key === "-") zoom(.8, r.width / 2, r.height / 2);
  if (e.key === "Escape") select(null);
  if (step) {
    e.preventDefault(); const i = current ? model.nodes.findIndex(n => n.id === current) + step : 0;
    select(model.nodes[Math.max(0, Math.min(model.nodes.length - 1, i))].id, true); } });
fit(.8);
"""

_BODY = """<header><h1 id="title"></h1>
<input id="search" type="search" placeholder="search ( / )" aria-label="search names, types, modules, source lines">
<span id="found" role="status"></span><span id="legend"></span></header>
<svg id="graph" tabindex="0" role="img" aria-label="graph of the trace"></svg>
<div id="side"><div id="text" tabindex="0" aria-label="text of the trace"></div>
<pre id="about" aria-live="polite">Click a node or a line for its details. Drag to pan, wheel or + and - to zoom,
f to see all, arrow keys to walk along the program, / to search, Enter for the next match.
Dashed edges keep the order of reads and writes.</pre></div>"""

PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Fulgurite trace</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>
{_BODY}
<script>{_BUILD}{_ACT}</script></body></html>
"""
"""The page, with `/*DATA*/null` where the data go."""
