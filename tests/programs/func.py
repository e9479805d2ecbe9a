"""torch.func around and inside, forward mode, and jitted functions within jitted ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from programs.case import Run, case


@case("func", may_refuse=True)
def grad_around(run: Run) -> Any:
    """`grad`, `grad_and_value` and nested `grad` around a jitted function, before and after a plain call."""
    f, seen = run.jit(lambda x: (x.sin() * x).sum()), []
    for _ in range(2):
        x = torch.randn(3)
        seen.append(torch.func.grad(f)(x))
        seen.append(torch.func.grad_and_value(f)(x))
        seen.append(torch.func.grad(lambda y: torch.func.grad(f)(y).square().sum())(x))
        seen.append(f(x))
    return seen


@case("func", may_refuse=True)
def grad_with_argnums_and_aux(run: Run) -> Any:
    """`argnums` of several arguments, a dict of parameters, and an auxiliary output."""

    def loss(params: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ params["w"] + params["b"]
        return y.square().mean(), y

    f, seen = run.jit(loss), []
    for _ in range(2):
        params = {"w": torch.randn(3, 2), "b": torch.zeros(2)}
        seen.append(torch.func.grad(f, argnums=(0, 1), has_aux=True)(params, torch.randn(4, 3)))
    return seen


@case("func", may_refuse=True)
def grad_around_a_closure_with_parameters(run: Run) -> Any:
    """`grad` with respect to the input of a jitted module whose parameters require grad themselves."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    jitted, seen = run.jit(model), []
    for _ in range(2):
        x = torch.randn(2, 3)
        g = torch.func.grad(lambda y: jitted(y).sum())(x)
        g.square().sum().backward()
        seen.append((g, [None if p.grad is None else p.grad.clone() for p in model.parameters()]))
    return seen


@case("func", may_refuse=True)
def vjp_and_jacobians_around(run: Run) -> Any:
    """`vjp`, `jacrev`, `jacfwd` and `hessian` of a jitted function."""
    f, seen = run.jit(lambda x: x.exp() * x.sum()), []
    for _ in range(2):
        x = torch.randn(3)
        y, pull = torch.func.vjp(f, x)
        seen.append((y, pull(torch.ones(3))))
        seen.append((torch.func.jacrev(f)(x), torch.func.jacfwd(f)(x), torch.func.hessian(f)(x), f(x)))
    return seen


@case("func", may_refuse=True)
def vmap_around(run: Run) -> Any:
    """`vmap` of a jitted function over other dimensions, and of its gradient: per-sample gradients."""
    f, seen = run.jit(lambda w, x: (x @ w).tanh().sum()), []
    for _ in range(2):
        w, x = torch.randn(3), torch.randn(4, 3)
        seen.append(torch.func.vmap(f, in_dims=(None, 0))(w, x))
        seen.append(torch.func.vmap(f, in_dims=(None, 1))(w, x.t()))
        seen.append(torch.func.vmap(torch.func.grad(f), in_dims=(None, 0))(w, x))
    return seen


@case("func", may_refuse=True)
def vmap_around_with_randomness(run: Run) -> Any:
    """`vmap(randomness=...)` around a jitted function that draws."""
    f, seen = run.jit(lambda x: nn.functional.dropout(x, 0.5)), []
    for randomness in ("different", "same", "error", "different"):
        seen.append(run.caught(torch.func.vmap(f, randomness=randomness), torch.ones(3, 4)))
    return seen, f(torch.ones(3))


@case("func")
def transforms_inside(run: Run) -> Any:
    """`grad`, `vmap` and `vmap(grad)` inside the jitted function, with gradients through them."""

    def f(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def energy(row: Tensor) -> Tensor:
            return (row @ w).tanh().sum()

        force = -torch.func.vmap(torch.func.grad(energy))(x)
        return torch.func.vmap(energy)(x).sum(), force

    jitted, seen = run.jit(f), []
    for _ in range(2):
        w, x = torch.randn(3, 2, requires_grad=True), torch.randn(4, 3)
        energy, force = jitted(w, x)
        (energy + force.square().sum()).backward()
        seen.append((energy, force, w.grad))
    return seen


@case("func")
def jacobians_inside(run: Run) -> Any:
    """`jacrev`, `jacfwd`, `hessian` and `jvp` inside the jitted function."""

    def f(x: Tensor) -> tuple[Any, ...]:
        g = lambda y: y.sin() * y.sum()  # noqa: E731
        tangent = torch.func.jvp(g, (x,), (torch.ones_like(x),))
        return torch.func.jacrev(g)(x), torch.func.jacfwd(g)(x), torch.func.hessian(lambda y: g(y).sum())(x), tangent

    jitted = run.jit(f)
    return [jitted(torch.randn(n)) for n in (3, 3, 2)]


@case("func", may_refuse=True)
def jvp_around(run: Run) -> Any:
    """`torch.func.jvp` through a jitted function carries the tangent, also after a plain call."""
    f, seen = run.jit(lambda x, y: (x * y).sin() @ y), []
    for _ in range(2):
        x, y, t = torch.randn(3, 3), torch.randn(3), torch.randn(3)
        seen.append(torch.func.jvp(f, (x, y), (torch.zeros(3, 3), t)))
        seen.append(torch.func.jvp(lambda z, f=f, x=x: f(x, z), (y,), (t,)))
        seen.append(f(x, y))
    return seen


@case("func", may_refuse=True)
def dual_numbers(run: Run) -> Any:
    """Dual numbers through a jitted function keep their tangent, whether a plain call came first or not."""
    early, late, seen = run.jit(lambda x: x.exp() * 2), run.jit(lambda x: x.exp() * 2), []
    late(torch.ones(3))
    for _ in range(2):
        for f in (early, late):
            with forward_ad.dual_level():
                x = forward_ad.make_dual(torch.randn(3), torch.ones(3))
                primal, tangent = forward_ad.unpack_dual(f(x))
                seen.append((primal.clone(), None if tangent is None else tangent.clone()))
            seen.append(f(torch.ones(3)))
    return seen


@case("func", may_refuse=True)
def dual_parameters_of_a_module(run: Run) -> Any:
    """Dual numbers in a module's parameters, through `functional_call` on the jitted module."""
    model, seen = nn.Linear(3, 2), []
    jitted = run.jit(model)
    for plain in (True, False, True):
        x = torch.randn(2, 3)
        params = {k: p.detach() for k, p in model.named_parameters()}
        if plain:
            seen.append(jitted(x))
        out = torch.func.jvp(lambda p, x=x: functional_call(jitted, p, (x,)), (params,), (params,))
        seen.append(out)
    return seen


@case("func")
def functional_call_inside(run: Run) -> Any:
    """`functional_call` inside differentiates with respect to the passed parameters, not to the module's."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    f, seen = run.jit(lambda params, x: functional_call(model, params, (x,)).square().mean()), []
    for _ in range(2):
        params = {k: torch.randn_like(p, requires_grad=True) for k, p in model.named_parameters()}
        f(params, torch.randn(5, 3)).backward()
        seen.append(({k: p.grad for k, p in params.items()}, [p.grad for p in model.parameters()]))
    return seen, [p is q for p, q in zip(model.parameters(), model.state_dict(keep_vars=True).values())]


@case("func")
def functional_call_with_buffers_and_some_parameters(run: Run) -> Any:
    """A part of the parameters and the buffers are passed; the rest is the module's own."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def f(weight: Tensor, mean: Tensor, x: Tensor) -> Tensor:
        return functional_call(model, {"0.weight": weight, "1.running_mean": mean}, (x,))

    jitted, seen = run.jit(f), []
    for _ in range(2):
        weight, mean = torch.randn(4, 3, requires_grad=True), torch.zeros(4)
        jitted(weight, mean, torch.randn(6, 3)).sum().backward()
        seen.append((weight.grad, mean, model[0].weight.grad, model[2].weight.grad.clone(), model.state_dict()))
    return seen


@case("func")
def functional_call_on_the_jitted_module(run: Run) -> Any:
    """`functional_call(jitted, params, x)`, as meta-learning writes it, in turn with plain calls."""
    model = nn.Linear(3, 2)
    jitted, seen = run.jit(model), []
    for _ in range(2):
        x = torch.randn(2, 3)
        params = {k: torch.randn_like(p, requires_grad=True) for k, p in model.named_parameters()}
        y = functional_call(jitted, params, (x,))
        y.sum().backward()
        seen.append((y, {k: p.grad for k, p in params.items()}, jitted(x), model.weight.grad))
    return seen


@case("func")
def inner_loop_of_maml(run: Run) -> Any:
    """A gradient step on passed parameters inside with `create_graph=True`, and an outer gradient."""
    model = nn.Linear(3, 1)

    def f(x: Tensor, y: Tensor) -> Tensor:
        params = dict(model.named_parameters())
        inner = (functional_call(model, params, (x,)) - y).square().mean()
        grads = torch.autograd.grad(inner, tuple(params.values()), create_graph=True)
        stepped = {k: p - 0.1 * g for (k, p), g in zip(params.items(), grads)}
        return (functional_call(model, stepped, (x,)) - y).square().mean()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        model.zero_grad()
        loss = jitted(torch.randn(4, 3), torch.randn(4, 1))
        loss.backward()
        seen.append((loss, [p.grad.clone() for p in model.parameters()]))
    return seen


@case("func", may_refuse=True)
def ensemble_with_vmap(run: Run) -> Any:
    """`stack_module_state` and `vmap(functional_call)` over a jitted model of an ensemble."""
    models = [nn.Linear(3, 2) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    jitted = run.jit(models[0])

    def member(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(jitted, (p, b), (x,))

    def ensemble(x: Tensor) -> Tensor:
        return torch.func.vmap(member, in_dims=(0, 0, None))(params, buffers, x)

    seen = [ensemble(torch.randn(4, 3)) for _ in range(2)]
    seen[-1].sum().backward()
    return seen, {k: p.grad for k, p in params.items()}


@case("func")
def ensemble_inside(run: Run) -> Any:
    """The same with everything inside the jitted function."""
    models = [nn.Linear(3, 2) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    base = nn.Linear(3, 2)

    def ensemble(p: dict[str, Tensor], x: Tensor) -> Tensor:
        call = lambda q, b, x: functional_call(base, (q, b), (x,))  # noqa: E731
        return torch.func.vmap(call, in_dims=(0, 0, None))(p, buffers, x)

    f = run.jit(ensemble)
    seen = [f(params, torch.randn(4, 3)) for _ in range(2)]
    seen[-1].sum().backward()
    return seen, {k: p.grad for k, p in params.items()}


@case("func", may_refuse=True)
def transform_first_then_error(run: Run) -> Any:
    """An error inside `grad` of a jitted function leaves no functorch level, and the next call works."""

    def f(x: Tensor) -> Tensor:
        if x.shape[0] == 2:
            raise ValueError("two")
        return x.exp().sum()

    jitted, seen = run.jit(f), []
    for n in (2, 3, 2, 3):
        seen.append(run.caught(torch.func.grad(jitted), torch.ones(n)))
        seen.append(run.caught(jitted, torch.ones(n)))
    return seen


@case("func")
def jitted_called_in_a_jitted_function(run: Run) -> Any:
    """A jitted function in a jitted one, its closure rebound between calls, with gradients."""
    scale = 2.0

    def inner(x: Tensor) -> Tensor:
        return x.sin() * scale

    inner_jit = run.jit(inner)
    outer, seen = run.jit(lambda x, y: inner_jit(x) * inner_jit(y).sum()), []
    for scale in (2.0, 3.0, 2.0):  # noqa: B007
        x, y = torch.randn(3, requires_grad=True), torch.randn(2, requires_grad=True)
        out = outer(x, y)
        out.sum().backward()
        seen.append((out, x.grad, y.grad, inner_jit(x.detach())))
    return seen


@case("func")
def jitted_module_as_submodule(run: Run) -> Any:
    """A jitted block in a jitted model: keys, training mode and gradients."""

    class Model(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block, self.head = block, nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.block(x))

    model = Model(run.jit(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))))
    jitted, seen = run.jit(model), []
    for training in (True, False, True):
        jitted.train(training)
        model.zero_grad()
        y = jitted(torch.randn(2, 3))
        y.sum().backward()
        seen.append((y, [p.grad.clone() for p in model.parameters()], model.block.training))
    return seen, model.state_dict(), [n for n, _ in model.named_parameters()]


@case("func")
def jit_of_a_jit(run: Run) -> Any:
    """`jit(jit(f))` and `jit(jit(module))`, the attribute of the module changed between calls."""
    module = nn.LeakyReLU(0.1)
    f, m, seen = run.jit(run.jit(lambda x: x * 2 + 1)), run.jit(run.jit(module)), []
    for slope in (0.1, 0.5, 0.1):
        module.negative_slope = slope
        x = torch.randn(4, requires_grad=True)
        out = f(m(x))
        out.sum().backward()
        seen.append((out, x.grad, m.negative_slope))
    return seen


@case("func")
def recursion_through_the_jitted_name(run: Run) -> Any:
    """A function that calls its jitted self, with an int that counts down."""
    table: dict[str, Callable[..., Tensor]] = {}

    def power(x: Tensor, n: int) -> Tensor:
        return torch.ones_like(x) if n == 0 else x * table["power"](x, n - 1)

    table["power"] = run.jit(power)
    seen = []
    for n in (3, 2, 4, 0):
        x = torch.randn(3, requires_grad=True)
        y = table["power"](x, n)
        seen.append((y, torch.autograd.grad(y.sum(), x) if n else None))
    return seen


@case("func")
def jitted_passed_as_an_argument(run: Run) -> Any:
    """A jitted function takes jitted and plain functions as arguments, other ones at each call."""
    double, sine = run.jit(lambda x: x * 2), run.jit(torch.sin)
    apply = run.jit(lambda f, x: f(x) + f(x + 1))
    return [apply(f, torch.randn(3)) for f in (double, sine, torch.cos, double, lambda x: x - 1)]


@case("func")
def attribute_of_a_jitted_submodule(run: Run) -> Any:
    """A plain attribute of a jitted block and a table that its method reads change between calls of the outer model."""
    table = {"shift": 1.0}

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k, self.w = 2.0, nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.k * self.w + table["shift"]

    block = run.jit(Block())
    outer, seen = run.jit(nn.Sequential(block, nn.Tanh())), []
    for k, shift in ((2.0, 1.0), (3.0, 1.0), (3.0, 2.0), (2.0, 1.0)):
        block.k, table["shift"] = k, shift
        y = outer(torch.ones(3))
        y.sum().backward()
        seen.append((y, block.w.grad.clone()))
    return seen


@case("func")
def decorated_helper_in_a_jitted_function(run: Run) -> Any:
    """A helper decorated with `jit`, with a list and an int argument, called in a jitted function."""

    @run.jit
    def mix(parts: list[Tensor], k: int) -> Tensor:
        return sum(p * (i + k) for i, p in enumerate(parts))

    @run.jit
    def outer(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        h = mix([x, x.sin()], k)
        return h, mix([h, x, x], k + 1)

    seen = []
    for k in (1, 2, 1):
        out = outer(x := torch.randn(3, requires_grad=True), k)
        (out[0] * out[1]).sum().backward()
        seen.append((out, x.grad))
    return seen
