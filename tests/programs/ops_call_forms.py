"""Custom operators: more ways in which ordinary programs reach and call them."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from programs.case import Run, case
from programs.operators import grads, leaves, numpy_of, scaled, square, twice


def weighted(run: Run) -> Any:
    """`weighted(x, weight, bias) = x * weight + bias`, with a formula."""

    @torch.library.custom_op(f"{run.ns}::weighted", mutates_args=())
    def op(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.from_numpy(numpy_of(x) * numpy_of(weight) + numpy_of(bias))

    op.register_fake(lambda x, weight, bias: torch.empty_like(x))

    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])

    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return g * weight, g * x, g

    op.register_autograd(backward, setup_context=setup_context)
    return run.op(op)


@case("ops: calling", operators=True)
def gradient_of_a_keyword_tensor(run: Run) -> Any:
    """Only the tensor that is passed by keyword needs a gradient."""
    op = weighted(run)
    f, seen = run.jit(lambda x, b, w: op(x, bias=b, weight=w)), []
    for _ in range(2):
        w, b = leaves(3, 3)
        f(torch.randn(3), torch.randn(3), w).square().sum().backward()
        f(torch.randn(3), b, torch.randn(3)).square().sum().backward()
        seen.append((w.grad, b.grad))
    return seen


@case("ops: calling", operators=True)
def module_passes_its_parameters_by_keyword(run: Run) -> Any:
    """A Parameter as a keyword argument trains; the other entry of the batch does not need a gradient."""
    op = weighted(run)

    class Affine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(3)), nn.Parameter(torch.zeros(3), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return op(bias=self.bias, x=x, weight=self.weight)

    model = Affine()
    jitted, optimizer, seen = run.jit(model), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = jitted(torch.randn(3)).square().sum()
        loss.backward()
        optimizer.step()
        seen.append((loss.detach(), model.weight.detach().clone(), model.weight.grad, model.bias.grad))
    return seen


@case("ops: calling", operators=True)
def only_one_of_three_needs_a_gradient(run: Run) -> Any:
    """Each position in turn, in one jitted function; the others stay without."""
    f, seen = run.jit(weighted(run)), []
    for at in (1, 0, 2, 1):
        args = [torch.randn(3, requires_grad=i == at) for i in range(3)]
        f(*args).exp().sum().backward()
        seen.append([a.grad for a in args])
    return seen


@case("ops: calling", operators=True)
def operator_as_an_argument(run: Run) -> Any:
    """The operator that this call is given is the one that runs."""
    first, second = square(run), square(run, name="other")
    second.register_kernel("cpu", lambda x: torch.from_numpy(numpy_of(x) ** 2 + 1))
    f, seen = run.jit(lambda op, x: op(x.sin())), []
    for op in (first, second, first, getattr(torch.ops, run.ns).other, getattr(torch.ops, run.ns).square.default):
        (x,) = leaves(3)
        out = f(op, x)
        out.sum().backward()
        seen.append((out, x.grad))
    return seen


class Activated(nn.Module):
    """A linear layer and an operator in an attribute."""

    def __init__(self, activation: Callable[..., Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.linear(x))


@case("ops: calling", operators=True)
def operator_held_by_a_module(run: Run) -> Any:
    """An operator in an attribute, replaced by another one between calls, and back."""
    one, two = square(run), square(run, name="other")
    two.register_kernel("cpu", lambda x: torch.from_numpy(numpy_of(x) ** 2 + 1))
    model, seen = Activated(one), []
    f = run.jit(model)
    for activation in (one, two, torch.tanh, getattr(torch.ops, run.ns).other, one):
        model.activation = activation
        seen += [grads(f, *leaves((2, 3))) for _ in range(2)]
    return seen


@case("ops: calling", operators=True)
def partial_held_by_a_module(run: Run) -> Any:
    """A `functools.partial` of an operator in an attribute, replaced by one with other arguments."""
    op, y = scaled(run), torch.full((2, 3), 2.0)
    model, seen = Activated(functools.partial(op, y=y, scale=0.25)), []
    f = run.jit(model)
    for scale in (0.25, 0.5, 0.25):
        model.activation = functools.partial(op, y=y, scale=scale)
        seen += [grads(f, *leaves((2, 3))) for _ in range(2)]
    y.mul_(3)
    return [*seen, grads(f, *leaves((2, 3)))]


@case("ops: calling", operators=True)
def operator_found_by_name(run: Run) -> Any:
    """`getattr(torch.ops.ns, name)` with a name that changes, and a table of operators."""
    square(run), square(run, name="cubic").register_kernel("cpu", lambda x: torch.from_numpy(numpy_of(x) ** 3))
    ns = getattr(torch.ops, run.ns)
    table = {"a": ns.square, "b": ns.cubic.default}
    f, g = run.jit(lambda x, name: getattr(ns, name)(x) + 1), run.jit(lambda x, key: table[key](x))
    seen = [grads(f, *leaves(3), name=name) for name in ("square", "cubic", "square")]
    return seen, [grads(g, *leaves(3), key=key) for key in ("a", "b", "a")]


@case("ops: calling", operators=True)
def through_partial_map_and_helpers(run: Run) -> Any:
    """`functools.partial`, `map`, `reduce`, a comprehension, a helper function."""
    op, one = scaled(run), square(run)
    halved = functools.partial(op, scale=0.5)

    def helper(x: Tensor, *rest: Tensor) -> Tensor:
        return functools.reduce(halved, rest, x)

    def program(x: Tensor, y: Tensor) -> Tensor:
        return helper(x, *map(one, (x, y))) + sum(op(row, y, float(i)) for i, row in enumerate([x, y, x.cos()]))

    return twice(run.jit(program), 3, 3)


@case("ops: calling", operators=True)
def loop_length_from_an_argument(run: Run) -> Any:
    """As many uses as this call asks for."""
    op = square(run)

    def program(x: Tensor, n: int) -> Tensor:
        while n > 0:
            x, n = op(x.sin()), n - 1
        return x

    f = run.jit(program)
    return [grads(f, *leaves(3), n=n) for n in (2, 0, 3, 2)]


@case("ops: calling", operators=True)
def layouts_of_inputs(run: Run) -> Any:
    """Transposed, expanded, sliced and overlapping inputs, in one function."""
    f, seen = run.jit(scaled(run)), []
    for make in (lambda x: x, lambda x: x.t(), lambda x: x[:1].expand(3, 3), lambda x: x.flip(0).t(), lambda x: x.mT):
        x, y = leaves((3, 3), (3, 3))
        out = f(make(x), make(y))
        out.square().sum().backward()
        seen.append((out, x.grad, y.grad))
    return seen


@case("ops: calling", operators=True)
def a_tensor_and_its_own_view(run: Run) -> Any:
    """Two arguments that share memory, one a view of the other or both of a third: each path counts once."""
    f, seen = run.jit(scaled(run)), []
    for _ in range(2):
        seen.append(grads(lambda x: f(x, x.t()), *leaves((3, 3))))
        seen.append(grads(lambda x: f(x[0], x[:, 0]), *leaves((3, 3))))
        seen.append(grads(lambda x: f(x, x.view_as(x)), *leaves((3, 3))))
    return seen


@case("ops: calling", operators=True)
def other_dtypes_and_ranks_later(run: Run) -> Any:
    """One function serves float64, float32, integers, scalars and rank 3."""
    op = square(run)
    op.register_kernel("cpu", lambda x: torch.from_numpy(np.asarray(numpy_of(x) ** 2)))
    f = run.jit(op)
    inputs = [torch.randn(3), torch.randn(3, dtype=torch.float64), torch.arange(3), torch.tensor(2.0)]
    seen = [f(x) for x in [*inputs, torch.randn(2, 1, 2), torch.arange(4, dtype=torch.int8)]]
    return seen, grads(f, torch.randn(2, dtype=torch.float64, requires_grad=True)), grads(f, *leaves(()))


@case("ops: calling", operators=True)
def alternating_grad_modes(run: Run) -> Any:
    """The flag of the result follows the caller's mode, and the gradient is there when it should be."""
    f, seen = run.jit(square(run)), []
    for enabled in (False, True, False, True):
        (x,) = leaves(3)
        with torch.set_grad_enabled(enabled):
            out = f(x)
        seen.append((out, out.requires_grad, out.is_leaf))
        if enabled:
            seen.append(torch.autograd.grad(out.sum(), x))
    return seen


@case("ops: calling", operators=True)
def grad_mode_regions_inside(run: Run) -> Any:
    """no_grad as a decorator, enable_grad inside it, a flag argument."""
    op = square(run)

    @torch.no_grad()
    def frozen(x: Tensor) -> Any:
        with torch.enable_grad():
            inner = op(x)
        return op(x), inner

    def program(x: Tensor, flag: bool) -> Any:
        with torch.set_grad_enabled(flag):
            a = op(x * 2)
        return a, *frozen(x)

    f = run.jit(program)
    seen = [grads(f, *leaves(3), flag=flag) for flag in (True, False, True)]
    with torch.no_grad():
        outs = f(*leaves(3), flag=True)
    return seen, outs, [o.requires_grad for o in outs]


@case("ops: calling", operators=True)
def jitted_function_inside_another(run: Run) -> Any:
    """An operator in an inner jitted function and in a jitted module."""
    op, one = scaled(run), square(run)
    inner = run.jit(lambda x, y: op(x, y, 3.0))
    model = nn.Sequential(nn.Linear(3, 3))
    model.register_forward_hook(lambda module, args, output: one(output))
    layer = run.jit(model)
    seen = twice(run.jit(lambda x, y: layer(inner(x, y)) + inner(y, x)), (2, 3), (2, 3))
    return seen, twice(inner, 3, 3)


@case("ops: calling", operators=True)
def from_several_threads(run: Run) -> Any:
    """A fresh thread has its own grad mode; both get their gradients."""
    op = square(run)
    f, seen = run.jit(lambda x: op(x).sin()), {}

    def work(index: int, x: Tensor) -> None:
        out = f(x)
        out.sum().backward()
        seen[index] = (out, x.grad)

    with torch.no_grad():
        for index, x in enumerate(leaves(3, 4, 3)):
            thread = threading.Thread(target=work, args=(index, x))
            thread.start()
            thread.join()
    return seen


@case("ops: calling", operators=True)
def exception_from_the_body(run: Run) -> Any:
    """What the operator raises at run time comes out with its class and text; good calls work before and after."""

    @torch.library.custom_op(f"{run.ns}::root", mutates_args=())
    def root(x: Tensor) -> Tensor:
        if (numpy_of(x) < 0).any():
            raise ValueError("negative input")
        return torch.from_numpy(numpy_of(x) ** 0.5)

    root.register_fake(lambda x: torch.empty_like(x))
    root.register_autograd(lambda ctx, g: g * 3)
    run.op(root)
    f = run.jit(lambda x: root(x) + 1)
    return [run.caught(f, torch.tensor(v)) for v in ([-1.0], [4.0], [-4.0], [9.0])], grads(f, torch.ones(2))


@case("ops: calling", operators=True)
def wrong_arguments(run: Run) -> Any:
    """A missing, an unknown and a mistyped argument raise eager's error, before and after a good call."""
    op = scaled(run)
    calls = [lambda x: op(x), lambda x: op(x, x, factor=2.0), lambda x: op(x, x, "a"), lambda x: op(x, 3.0)]
    bad, good = [run.jit(call) for call in calls], run.jit(lambda x: op(x, x))
    seen = [run.caught(f, torch.ones(2))[0] for f in bad]
    return seen, good(torch.ones(2)), [run.caught(f, torch.ones(2))[0] for f in bad]


@case("ops: calling", operators=True)
def copied_module(run: Run) -> Any:
    """A deep copy of a module with an operator has its own weights and settings."""
    op = scaled(run)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.randn(3)), 2.0

        def forward(self, x: Tensor) -> Tensor:
            return op(x, self.weight, self.scale)

    model = Layer()
    other = copy.deepcopy(model)
    other.scale = 5.0
    f, g, seen = run.jit(model), run.jit(other), []
    for _ in range(2):
        seen += [grads(f, *leaves(3)), grads(g, *leaves(3))]
        with torch.no_grad():
            other.weight.mul_(2)
        model.scale += 1
    return seen


@case("ops: calling", operators=True)
def result_is_a_fresh_tensor(run: Run) -> Any:
    """Two calls do not share memory, and neither does the result with the input."""
    op = square(run)
    f = run.jit(lambda x: (op(x), op(x)))
    seen = []
    for _ in range(2):
        x = torch.randn(3)
        (a, b), (c, _) = f(x), f(x)
        a.add_(1)
        seen.append((a is b, a.data_ptr() == b.data_ptr(), a.data_ptr() == c.data_ptr(), a, b, c, x))
    return seen


@case("ops: calling", operators=True)
def a_triton_op_without_kernels(run: Run) -> Any:
    """`torch.library.triton_op` whose body is torch calls, with a formula."""

    @torch.library.triton_op(f"{run.ns}::soft", mutates_args=())
    def soft(x: Tensor, beta: float = 1.0) -> Tensor:
        return torch.log1p(torch.exp(x * beta))

    soft.register_autograd(
        lambda ctx, g: (g * torch.sigmoid(ctx.saved_tensors[0]) * 2, None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    run.op(soft)
    return twice(run.jit(lambda x: soft(x.sin(), 2.0)), 3)
