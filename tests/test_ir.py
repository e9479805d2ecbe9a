"""The IR: traces print as programs that run, the checker shows faults in place, the graph is the data flow."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import Tensor

import fulgurite as fg


def program(x: Tensor, w: Tensor) -> Tensor:
    y = torch.nn.functional.linear(x, w)
    y.relu_()
    return y.sum(dim=-1)


def traced() -> fg.Trace:
    return fg.make_trace(program)(torch.ones(2, 3), torch.ones(4, 3))


def test_text() -> None:
    lines = traced().text(header=False, subsymbols=False).splitlines()
    code = [line.split("  # ")[0] for line in lines if not line.lstrip().startswith("#")]
    assert code == [
        "def computation(x, w):",
        "    t1 = torch.nn.functional.linear(x, w)",
        "    torch.Tensor.relu_(t1)",
        "    t2 = torch.Tensor.sum(t1, dim=-1)",
        "    return t2",
    ]


def test_text_has_types_source_and_header() -> None:
    text = str(traced())
    assert text.startswith("# Fulgurite trace 'computation', recorded in ")
    assert '# x: "cpu f32[2, 3]"' in text and '# t2: "cpu f32[2]"' in text
    assert f"test_ir.py:{program.__code__.co_firstlineno + 1}" in text


def test_text_is_the_same_every_time() -> None:
    assert traced().text(header=False) == traced().text(header=False)


def test_module_paths_in_text() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Tanh()))
    text = fg.make_trace(model)(torch.ones(1, 2)).text()
    assert "in 1.0" in text and "_0_weight" in text


@pytest.mark.parametrize("grad", [False, True])
def test_printed_text_runs(grad: bool) -> None:
    x, w = torch.randn(2, 3), torch.randn(4, 3, requires_grad=grad)
    trace = fg.make_trace(program, grad=grad)(x, w)
    namespace: dict[str, object] = {}
    exec(str(trace), namespace)
    run = namespace[trace.name]
    with torch.no_grad():
        got = run(x, w, torch.ones(2)) if grad else run(x, w)  # type: ignore[operator]
        called = trace.python_callable()(x, w, torch.ones(2)) if grad else trace.python_callable()(x, w)
    expected = program(x, w)
    outputs, again = (got[0][0], called[0][0]) if grad else (got, called)
    assert torch.equal(outputs, expected) and torch.equal(again, expected)
    if grad:
        expected.sum().backward()
        assert torch.equal(got[1][1], w.grad)


def test_data_is_frozen() -> None:
    trace = traced()
    with pytest.raises(FrozenInstanceError):
        trace.name = "other"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        trace.bound_symbols[0].module = "other"  # type: ignore[misc]


def test_checker_shows_the_lines_around_a_fault() -> None:
    trace = traced().verify()
    broken = replace(trace, bound_symbols=trace.bound_symbols[1:])
    with pytest.raises(fg.InvalidTrace, match="t1 is read before it is defined") as caught:
        broken.verify()
    assert "--> torch.Tensor.relu_(t1)" in str(caught.value)
    assert "t2 = torch.Tensor.sum(t1, dim=-1)" in str(caught.value)


def test_checker_finds_names_defined_twice() -> None:
    trace = traced()
    twice = replace(trace, bound_symbols=(trace.bound_symbols[0], *trace.bound_symbols))
    with pytest.raises(fg.InvalidTrace, match="t1 is defined twice"):
        twice.verify()


def test_graph_follows_data_and_order() -> None:
    graph = traced().graph()
    assert set(graph.nodes) == {"x", "w", "t1", "op1", "t2", "return"}
    kinds = {(a, b): data["kind"] for a, b, data in graph.edges(data=True)}
    assert kinds[("x", "t1")] == kinds[("t1", "op1")] == kinds[("t2", "return")] == "data"
    assert kinds[("op1", "t2")] == "order", "the sum comes after the write"
    assert graph.nodes["op1"]["tags"] >= {"mutates"}


def test_meta_and_fake_inputs() -> None:
    trace = fg.make_trace(program)(torch.ones(2, 3, device="meta"), torch.ones(4, 3, device="meta"))
    assert [p.type_string for p in trace.output_proxies] == ["meta f32[2]"]


def test_backward_calls_know_their_forward() -> None:
    trace = fg.make_trace(program, grad=True)(torch.ones(2, 3), torch.ones(4, 3, requires_grad=True))
    links = {bsym.symbol.name: bsym.forward for bsym in trace.bound_symbols if bsym.forward}
    assert links["torch.ops.aten.mm.default"] == "t1"
