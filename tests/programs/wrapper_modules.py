"""The jitted module among other modules and libraries: moving, hooking, nesting, replacing."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


@case("wrapper")
def moved_through_the_wrapper(run: Run) -> Any:
    """`.double()`, `.to(dtype)`, `requires_grad_`, `zero_grad` and `half` on the jitted module act on the original."""
    model = mlp()
    jitted, seen = run.jit(model), []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        same = jitted.to(dtype) is jitted
        y = jitted(torch.ones(4, 3, dtype=dtype))
        y.sum().backward()
        seen.append((same, y, model[0].weight.dtype, model[0].weight.grad.clone()))
        jitted.zero_grad()
    jitted.requires_grad_(False)
    return seen, jitted(torch.ones(4, 3)), [p.requires_grad for p in model.parameters()]


@case("wrapper")
def replaces_a_submodule(run: Run) -> Any:
    """`model.block = jit(model.block)`: keys, parameters, moves and training of the whole model."""
    model = nn.Sequential(mlp(), nn.Linear(2, 1))
    keys = list(model.state_dict())
    model[0] = run.jit(model[0])
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), [keys == list(model.state_dict())]
    for training in (True, True, False):
        model.train(training)
        optimizer.zero_grad()
        y = model(torch.randn(4, 3))
        y.square().sum().backward()
        optimizer.step()
        seen.append(y)
    clone = copy.deepcopy(model)
    return seen, model.state_dict(), clone(torch.ones(2, 3)), [n for n, _ in model.named_modules()], str(model)


@case("wrapper")
def applied_and_initialised(run: Run) -> Any:
    """`apply`, `children`, `get_submodule`, `get_parameter` and `named_modules` of the jitted module."""
    model = mlp()
    jitted = run.jit(model)
    seen = [jitted(torch.ones(4, 3))]
    jitted.apply(lambda m: nn.init.ones_(m.weight) if isinstance(m, nn.Linear) else None)
    seen += [jitted(torch.ones(4, 3)), [n for n, _ in jitted.named_children()], [n for n, _ in jitted.named_modules()]]
    return seen, jitted.get_submodule("1") is model[1], jitted.get_parameter("0.weight") is model[0].weight


@case("wrapper")
def container_protocol(run: Run) -> Any:
    """A jitted `Sequential` can be indexed, sliced, iterated, measured and appended to."""
    model = mlp()
    jitted = run.jit(model)
    seen = [len(jitted), jitted[0] is model[0], [type(m).__name__ for m in jitted], jitted[1:3](torch.ones(4, 4))]
    seen.append(jitted(torch.ones(4, 3)))
    jitted.append(nn.Tanh())
    jitted[2] = nn.GELU()
    return seen, len(model), jitted(torch.ones(4, 3)), "3.weight" in jitted.state_dict()


@case("wrapper")
def hooks_registered_on_the_wrapper(run: Run) -> Any:
    """Forward, pre-forward and backward hooks on the jitted module run once per call, and can be removed."""
    model, log = mlp(), []
    jitted, seen = run.jit(model), []
    seen.append(jitted(torch.ones(4, 3)))
    handles = [
        jitted.register_forward_hook(lambda m, i, o: log.append(("forward", m is jitted or m is model)) or o * 2),
        jitted.register_forward_pre_hook(lambda m, i: log.append("pre") or (i[0] + 1,)),
        jitted.register_full_backward_hook(lambda m, gi, go: log.append(("backward", go[0].clone()))),
    ]
    for _ in range(2):
        y = jitted(torch.randn(4, 3, requires_grad=True))
        y.sum().backward()
        seen.append((y, list(log)))
        log.clear()
    for handle in handles:
        handle.remove()
    return seen, jitted(torch.ones(4, 3)), log


@case("wrapper")
def effects_of_a_hook_happen_at_every_call(run: Run) -> Any:
    """A forward hook on the jitted module logs into a list that is emptied between calls."""
    log: list[Any] = []
    jitted, seen = run.jit(nn.Linear(3, 2)), []
    jitted.register_forward_hook(lambda module, args, out: log.append(tuple(out.shape)))
    for _ in range(3):
        log.clear()
        seen.append((jitted(torch.ones(1, 3)), list(log)))
    return seen


@case("wrapper")
def state_dict_hooks_and_prefix(run: Run) -> Any:
    """`state_dict(prefix=...)`, `keep_vars`, and hooks on saving and loading through the wrapper."""
    model = mlp()
    jitted, log = run.jit(model), []
    jitted.register_state_dict_post_hook(lambda m, d, prefix, meta: log.append(prefix))
    jitted.register_load_state_dict_post_hook(lambda m, keys: log.append(list(keys.missing_keys)))
    jitted(torch.ones(4, 3))
    kept = jitted.state_dict(prefix="net.", keep_vars=True)
    jitted.load_state_dict({k: v + 1 for k, v in model.state_dict().items() if "num" not in k}, strict=False)
    return list(kept), kept["net.0.weight"] is model[0].weight, log, model.state_dict(), jitted.eval()(torch.ones(1, 3))


@case("wrapper")
def in_a_swa_and_ema_wrapper(run: Run) -> Any:
    """`AveragedModel(jitted)` copies and averages, and `update_bn` fills its statistics."""
    model = mlp()
    jitted = run.jit(model)
    averaged = torch.optim.swa_utils.AveragedModel(jitted)
    optimizer = torch.optim.SGD(jitted.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        jitted(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        averaged.update_parameters(jitted)
    torch.optim.swa_utils.update_bn([torch.randn(4, 3) for _ in range(2)], averaged)
    return averaged.eval()(torch.ones(1, 3)), averaged.state_dict(), model.state_dict()


@case("wrapper")
def parameters_to_vector_and_clipping(run: Run) -> Any:
    """`parameters_to_vector`, `vector_to_parameters` and `clip_grad_norm_` with the wrapper's parameters."""
    model = nn.Linear(3, 2)
    jitted, seen = run.jit(model), []
    for _ in range(2):
        jitted.zero_grad()
        jitted(torch.randn(4, 3)).sum().backward()
        norm = nn.utils.clip_grad_norm_(jitted.parameters(), 0.5)
        vector = nn.utils.parameters_to_vector(jitted.parameters())
        nn.utils.vector_to_parameters(vector * 0.5, jitted.parameters())
        seen.append((norm, jitted(torch.ones(1, 3)), model.weight.grad.clone()))
    return seen


@case("wrapper")
def attributes_of_a_jitted_function(run: Run) -> Any:
    """A function's own attributes are seen on the jitted one and can be set."""

    def f(x: Tensor) -> Tensor:
        return x * f.factor

    f.factor = 2.0
    jitted, seen = run.jit(f), []
    for factor in (2.0, 5.0):
        f.factor = factor
        seen.append((jitted(torch.ones(2)), jitted.factor))
    jitted.note = "mine"
    return seen, jitted.note


@case("wrapper")
def in_a_dict_and_compared(run: Run) -> Any:
    """Jitted objects are hashable, equal to themselves only, and usable as keys."""
    model = mlp()
    a, b, f = run.jit(model), run.jit(mlp()), run.jit(torch.sin)
    table = {a: "a", b: "b", f: "f"}
    return table[a], table[b], table[f], a == a, a == b, f != a, len({a, b, f, a}), f(torch.ones(2)), bool(a)


@case("wrapper")
def an_error_leaves_the_wrapper_usable(run: Run) -> Any:
    """An exception of the user's code while tracing; attributes are as they were and the next good call works."""

    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(1)
            if x.shape[0] == 2:
                raise KeyError("two")
            return self.lin(x) + self.seen

    model = Picky()
    jitted, seen = run.jit(model), []
    for n in (1, 2, 1, 2, 3):
        seen.append((run.caught(jitted, torch.ones(n, 3)), sorted(vars(model)), list(model.state_dict())))
    return seen, type(model.lin.weight).__name__


@case("wrapper")
def an_error_at_the_first_call_with_effects(run: Run) -> Any:
    """A buffer written before the exception of the first call has been written, once."""

    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(1)
            if x.shape[0] == 2:
                raise KeyError("two")
            return x + self.seen

    model = Picky()
    jitted = run.jit(model)
    return [(run.caught(jitted, torch.ones(n)), model.seen.clone()) for n in (2, 1, 2, 1)]


@case("wrapper")
def unknown_options_are_named(run: Run) -> Any:
    """An unknown option of `jit` is a TypeError that names it."""
    if not run.compiled:
        return "TypeError", True
    kind, text = run.caught(run.jit, torch.sin, nonsense=1)
    return kind, "nonsense" in text[0]


@case("wrapper")
def call_forms_of_a_module(run: Run) -> Any:
    """`jitted(x)`, `jitted.forward(x)`, `jitted.__call__(x)` and another method that calls self."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x)

        def again(self, x: Tensor) -> Tensor:
            return self(self(x))

    jitted = run.jit(Twice())
    calls = (jitted, jitted.forward, jitted.__call__, jitted.again)
    return [[call(torch.randn(1, 2)) for call in calls] for _ in range(2)]
