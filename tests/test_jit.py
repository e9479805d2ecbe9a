"""What `fg.jit` returns: when it traces again, what it reports, and that a module stays that module."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import warnings
import weakref

import pytest
import torch
from torch import Tensor, nn

import fulgurite as fg
from compare import differences
from harness import Program

SCALE = torch.ones(3)


def test_hits_misses_and_reasons() -> None:
    jitted = fg.jit(lambda x, n: x * n)
    for x, n in ((torch.ones(2), 2), (torch.zeros(2), 2), (torch.ones(3), 2), (torch.ones(3), 3)):
        assert torch.equal(jitted(x, n), x * n)
    stats = fg.stats(jitted)
    assert (stats.hits, stats.misses) == (1, 3)
    assert "shape" in stats.retraces[0] and "args[1]" in stats.retraces[1]
    assert stats.times["record"] > 0 and stats.times["codegen"] > 0


def test_numbers_are_guarded_with_their_type() -> None:
    jitted = fg.jit(lambda x, n: x * n)
    x = torch.ones(1, dtype=torch.int64)
    for n in (1, True, 1.0, 0.0, -0.0, float("nan"), float("nan")):
        assert jitted(x, n).dtype == (x * n).dtype
        assert str(jitted(x, n)) == str(x * n)


def test_training_mode_on_either_object() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    jitted = fg.jit(model)
    x = torch.ones(4, 3)
    for switch in (lambda: model.eval(), lambda: jitted.train(), lambda: jitted.eval(), lambda: model.train()):
        switch()
        torch.manual_seed(0)
        expected = model(x)
        torch.manual_seed(0)
        assert torch.equal(jitted(x), expected)
    assert fg.stats(jitted).misses == 2


def test_grad_mode_autocast_and_default_dtype() -> None:
    model = nn.Linear(3, 3)
    jitted = fg.jit(model)
    x = torch.ones(2, 3)
    for _ in range(2):
        assert jitted(x).requires_grad
        with torch.no_grad():
            assert not jitted(x).requires_grad
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert jitted(x).dtype == torch.bfloat16
    assert fg.stats(jitted).misses == 3
    ones = fg.jit(lambda: torch.ones(2))
    assert ones().dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert ones().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast_region_inside() -> None:
    model = nn.Linear(3, 3)

    def program(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        return model(x) + y

    x = torch.randn(2, 3)
    assert torch.equal(fg.jit(program)(x), program(x))


def test_tensors_that_are_no_arguments_are_read_at_every_call() -> None:
    global SCALE
    local = torch.ones(3)
    jitted = fg.jit(lambda x: x * SCALE + local)
    x = torch.ones(3)
    assert jitted(x).tolist() == [2, 2, 2]
    local.add_(1)
    SCALE = torch.full((3,), 5.0)
    assert jitted(x).tolist() == [7, 7, 7]


@pytest.mark.parametrize("change", ["replace", "append", "hook", "freeze", "untie"])
def test_changes_of_the_module_are_seen(change: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    jitted = fg.jit(model)
    x = torch.randn(2, 3)
    assert torch.equal(jitted(x), model(x))
    if change == "replace":
        model[0] = nn.Linear(3, 3)
    elif change == "append":
        model.append(nn.Tanh())
    elif change == "hook":
        model[0].register_forward_hook(lambda module, args, out: out * 2)
    elif change == "freeze":
        model.requires_grad_(False)
    else:
        model[1].weight = nn.Parameter(torch.randn(3, 3))
    assert torch.equal(jitted(x), model(x))
    assert jitted(x).requires_grad == model(x).requires_grad
    assert fg.stats(jitted).misses == 2


def test_a_jitted_module_is_that_module() -> None:
    model = nn.Linear(3, 2)
    jitted = fg.jit(model)
    assert isinstance(jitted, nn.Linear) and repr(jitted) == repr(model)
    assert list(jitted.state_dict()) == list(model.state_dict())
    assert next(jitted.parameters()) is model.weight
    jitted.extra = 3
    assert model.extra == 3
    x = torch.randn(1, 3)
    for other in (copy.deepcopy(jitted), pickle.loads(pickle.dumps(jitted))):
        assert torch.equal(other(x), model(x)) and other.weight is not model.weight
        assert fg.stats(other).misses == 1
    outer = nn.Sequential(jitted, nn.ReLU())
    assert list(outer.state_dict()) == ["0.weight", "0.bias"]
    assert torch.equal(fg.jit(outer)(x), outer(x))


def test_decorator_and_method() -> None:
    class Model(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((2,), factor))

        @fg.jit
        def scaled(self, x: Tensor) -> Tensor:
            return x * self.weight

    models = [Model(2.0), Model(3.0)]
    for model in (*models, *models):
        assert torch.equal(model.scaled(torch.ones(2)), model.weight.detach())


def test_unknown_options_and_arguments() -> None:
    with pytest.raises(TypeError, match="nonsense"):
        fg.jit(torch.sin, nonsense=True)
    with pytest.raises(TypeError, match="function or a module"):
        fg.jit(3)
    jitted = fg.jit(lambda x, *, y: x + y)
    with pytest.raises(TypeError, match="y"):
        jitted(torch.ones(1))


def test_past_the_limit_calls_run_uncompiled_with_one_warning() -> None:
    jitted = fg.jit(lambda x, n: x + n)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(40):
            assert jitted(torch.zeros(1), n).item() == n
    assert len(caught) == 1 and "args[1]" in str(caught[0].message)
    assert fg.stats(jitted).uncompiled == 24


def test_arguments_and_results_are_not_kept_alive() -> None:
    jitted = fg.jit(lambda x: x.sin() * 2)
    for grad in (False, True):
        x = torch.ones(3, requires_grad=grad)
        y = jitted(x)
        if grad:
            y.sum().backward()
        references = [weakref.ref(x), weakref.ref(y)]
        del x, y
        gc.collect()
        assert [reference() for reference in references] == [None, None]


def test_threads() -> None:
    jitted = fg.jit(lambda x: (x * 2).sum())
    results: dict[int, float] = {}

    def call(n: int) -> None:
        results[n] = jitted(torch.ones(n)).item()

    threads = [threading.Thread(target=call, args=(n,)) for n in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: 2.0 * n for n in range(1, 7)}


def test_torch_func_around() -> None:
    jitted = fg.jit(lambda x: x.sin().sum())
    x = torch.randn(3)
    assert torch.equal(torch.func.grad(jitted)(x), torch.func.grad(lambda x: x.sin().sum())(x))
    assert torch.equal(torch.func.vmap(jitted)(x[:, None]), x.sin())


def test_stages_and_prologue_print() -> None:
    jitted = fg.jit(nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="call the jitted function first"):
        fg.traces(jitted)
    jitted(torch.ones(1, 3))
    stages = fg.traces(jitted)
    assert "def prologue(args, kwargs):" in str(stages.prologue)
    made = [trace.provenance.made_by for trace in stages.forward]
    assert made[:2] == ["recorded", "flatten"] and "no_ops" in made and made[-1] == "last_use"
    assert stages.backward[-1].name == "backward" and fg.last_trace(jitted) is stages.forward[-1]
    for trace in (*stages.forward, *stages.backward):
        trace.verify()


def test_partial_cotangents_give_none_and_no_dead_work() -> None:
    jitted = fg.jit(lambda x, w: ((x * w).sin(), (x * w).sum() + w.exp()))
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    jitted(x, w)[0].sum().backward()
    assert torch.equal(w.grad, x.detach().cos())
    jitted = fg.jit(lambda x, w: (x.sin(), w.cos()))
    x.grad = w.grad = None
    first, second = jitted(x, w)
    first.sum().backward()
    assert w.grad is None and torch.equal(x.grad, x.detach().cos())
    second.sum().backward()
    assert torch.equal(w.grad, -w.detach().sin())


def test_a_backward_does_no_work_for_outputs_that_give_it_nothing() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shared = x * 2
        return shared.sin(), shared.exp()

    jitted, x = fg.jit(fn), torch.ones(2, requires_grad=True)
    first, _ = jitted(x)

    def work() -> list[str]:
        (backward,) = fg.traces(jitted).backwards
        return [bsym.symbol.name.removeprefix("torch.") for bsym in backward[-1].bound_symbols if bsym.outputs]

    assert work() == ["mul", "cos", "mul", "add", "mul"]
    first.sum().backward()
    assert work() == ["cos", "mul", "mul"]


def test_a_backward_for_each_layout_of_a_cotangent() -> None:
    jitted, x = fg.jit(lambda x: x.exp().view(2, 6)), torch.ones(3, 4, requires_grad=True)
    expected = torch.autograd.grad(x.exp().view(2, 6), x, torch.arange(12.0).view(6, 2).T)
    assert torch.equal(torch.autograd.grad(jitted(x), x, torch.arange(12.0).view(6, 2).T)[0], expected[0])
    assert torch.equal(torch.autograd.grad(jitted(x), x, torch.ones(()).expand(2, 6))[0], x.exp())


def test_gradient_of_a_gradient() -> None:
    def third(fn: Program) -> list[torch.Tensor]:
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        y, z = fn(x)
        (first,) = torch.autograd.grad(y.sum() + z, x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        return [first, second, *torch.autograd.grad(second.sum() + y.sum(), x)]

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() * x**3, x[0].exp() * x.tanh().sum()

    assert not differences(third(program), third(fg.jit(program)))


def test_arguments_may_be_named_like_functions() -> None:
    def program(mul: torch.Tensor, body: torch.Tensor, run: torch.Tensor) -> torch.Tensor:
        return torch.mul(mul, body) + run.view(-1)

    inputs = [torch.randn(3, requires_grad=True) for _ in range(3)]
    assert torch.equal(fg.jit(program)(*inputs), program(*inputs))
    with torch.no_grad():
        assert torch.equal(fg.jit(program)(*inputs), program(*inputs))
