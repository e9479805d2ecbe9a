"""Gradients: repeated and failing backward calls, unused parts, changes between forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def backward_error(run: Run, loss: Tensor) -> Any:
    """The error of a backward without the part of its text that names the tensor's version."""
    caught = run.caught(loss.backward)
    return caught and (caught[0], caught[1][0].split(": [")[0])


def grads_of(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


@case("autograd")
def second_backward_raises(run: Run) -> Any:
    """A second backward without `retain_graph` raises eager's error."""
    f, seen = run.jit(lambda x: x.sin().exp().sum()), []
    for _ in range(2):
        x = leaf(3)
        y = f(x)
        y.backward()
        seen.append((x.grad.clone(), run.caught(y.backward), x.grad))
    return seen


@case("autograd")
def second_backward_of_a_module_raises(run: Run) -> Any:
    """The same for two losses of one module call, the second by `autograd.grad`."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    jitted, seen = run.jit(model), []
    for _ in range(2):
        y = jitted(torch.randn(2, 3))
        y.sum().backward()
        seen.append(run.caught(torch.autograd.grad, y.square().sum(), list(model.parameters())))
        seen.append(grads_of(model))
    return seen


@case("autograd")
def second_backward_with_nothing_saved(run: Run) -> Any:
    """Where nothing was saved for backward, eager allows a second one."""
    f, seen = run.jit(lambda x, y: (x.view(3) - y.t()).sum()), []
    for _ in range(2):
        x, y = leaf(3), leaf(3)
        loss = f(x, y)
        loss.backward()
        seen.append((run.caught(loss.backward), x.grad, y.grad))
    return seen


@case("autograd")
def retain_graph_accumulates(run: Run) -> Any:
    """Two backward calls with `retain_graph`, then a last one, add up; a fourth raises."""
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1))
    jitted, seen = run.jit(model), []
    for _ in range(2):
        x = leaf(2, 3)
        y = jitted(x).sum()
        y.backward(retain_graph=True)
        seen.append((x.grad.clone(), grads_of(model)))
        y.backward(retain_graph=True)
        y.backward()
        seen.append((x.grad, grads_of(model), run.caught(y.backward)))
    return seen


@case("autograd")
def outputs_one_after_another(run: Run) -> Any:
    """Backward from each output in turn, in both orders, with another cotangent each time."""
    f, seen = run.jit(lambda x, w: ((h := (x * w).tanh()), h.sum(), w.exp())), []
    for order in ((0, 1, 2), (2, 1, 0)):
        x, w = leaf(3), leaf(3)
        outputs = f(x, w)
        for i in order:
            outputs[i].backward(torch.randn_like(outputs[i]), retain_graph=True)
            seen.append([None if t.grad is None else t.grad.clone() for t in (x, w)])
    return seen


@case("autograd")
def unused_outputs_give_none(run: Run) -> Any:
    """Inputs that only an unused output depends on get None, not zeros; another output next time."""
    f, seen = run.jit(lambda x, w, v: (x * w, v.sin(), x + v)), []
    for used in (0, 1, 2, 0):
        inputs = leaf(3), leaf(3), leaf(3)
        outputs = f(*inputs)
        outputs[used].sum().backward()
        seen.append([t.grad for t in inputs])
        again = f(*inputs)[used].sum()
        seen.append(torch.autograd.grad(again, inputs, allow_unused=True))
    return seen


@case("autograd")
def unused_input_without_allow_unused(run: Run) -> Any:
    """`autograd.grad` for an input that the output does not depend on raises eager's error."""
    f, seen = run.jit(lambda x, w: (x * 2, w * 3)), []
    for _ in range(2):
        x, w = leaf(3), leaf(3)
        a, _b = f(x, w)
        seen.append(run.caught(torch.autograd.grad, a.sum(), (x, w), retain_graph=True))
        seen.append(torch.autograd.grad(a.sum(), (x, w), allow_unused=True, materialize_grads=True))
    return seen


@case("autograd")
def unused_parameters_of_a_module(run: Run) -> Any:
    """Parameters of a branch that is not taken keep None; the other branch the next time."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor, first: bool) -> Tensor:
            return self.a(x) if first else self.b(x)

    model = TwoHeads()
    jitted, seen = run.jit(model), []
    for first in (True, False, True):
        jitted(torch.randn(2, 2), first).sum().backward()
        seen.append(grads_of(model))
        model.zero_grad()
    return seen


@case("autograd")
def parameter_changed_before_backward(run: Run) -> Any:
    """An in-place change of a parameter whose old value is needed raises eager's error."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    jitted, seen = run.jit(model), []
    for _ in range(2):
        x = leaf(2, 3)
        loss = jitted(x).sum()
        with torch.no_grad():
            model[1].weight.mul_(0.5)
        seen.append(backward_error(run, loss))
    return seen


@case("autograd")
def parameter_changed_that_is_not_needed(run: Run) -> Any:
    """A bias, or the weight of the first layer without an input gradient, may change before backward."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    jitted, seen = run.jit(model), []
    for _ in range(2):
        loss = jitted(torch.randn(2, 3)).sum()
        with torch.no_grad():
            model[0].weight.add_(1)
            model[0].bias.add_(1)
            model[1].bias.zero_()
        loss.backward()
        seen.append(grads_of(model))
    return seen


@case("autograd")
def optimizer_step_between_two_losses(run: Run) -> Any:
    """The GAN mistake: the step of one loss changes weights that the other loss needs."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    jitted, seen = run.jit(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        y = jitted(leaf(3, 2))
        y[:, 0].sum().backward(retain_graph=True)
        optimizer.step()
        seen.append(backward_error(run, y[:, 1].sum()))
    return seen


@case("autograd")
def input_changed_before_backward(run: Run) -> Any:
    """An input or an output that is saved and then written in place raises, one that is not saved doesn't."""
    f, seen = run.jit(lambda x, y: (x.sin() * y).exp()), []
    for written in ("y", "x", "out", "none"):
        x, y = leaf(3), torch.randn(3)
        shifted = x + 1
        out = f(shifted, y)
        {"y": y, "x": shifted.detach(), "out": out.detach(), "none": torch.zeros(3)}[written].add_(1)
        seen.append((backward_error(run, out.sum()), x.grad if written == "none" else None))
    return seen


@case("autograd")
def accumulation_over_micro_batches(run: Run) -> Any:
    """`.grad` accumulates over calls, and the tensor in `.grad` stays the same one."""
    model = nn.Linear(3, 2)
    jitted, seen = run.jit(model), []
    for _ in range(3):
        before = model.weight.grad
        (jitted(torch.randn(4, 3)).square().mean() / 3).backward()
        seen.append((grads_of(model), before is None or before is model.weight.grad))
    model.zero_grad(set_to_none=False)
    jitted(torch.randn(4, 3)).sum().backward()
    return seen, grads_of(model)


@case("autograd")
def backward_with_inputs_argument(run: Run) -> Any:
    """`backward(inputs=...)` fills the `.grad` of those alone."""
    model = nn.Linear(3, 2)
    jitted, seen = run.jit(model), []
    for _ in range(2):
        x = leaf(2, 3)
        jitted(x).sum().backward(inputs=[x, model.bias])
        seen.append((x.grad, grads_of(model)))
    return seen


@case("autograd")
def batched_cotangents(run: Run) -> Any:
    """`is_grads_batched`: a Jacobian from one backward."""
    f, seen = run.jit(lambda x: x.sin() * x.sum()), []
    for _ in range(2):
        x = leaf(3)
        seen.append(torch.autograd.grad(f(x), x, torch.eye(3), is_grads_batched=True))
    return seen


@case("autograd")
def frozen_then_unfrozen(run: Run) -> Any:
    """`requires_grad_` of parameters toggled between calls decides which get gradients."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    jitted, seen = run.jit(model), []
    for first, last in ((True, True), (False, True), (False, False), (True, False)):
        model[0].requires_grad_(first)
        model[2].requires_grad_(last)
        y = jitted(torch.randn(2, 2))
        if y.requires_grad:
            y.sum().backward()
        seen.append((y, grads_of(model)))
        model.zero_grad()
    return seen


@case("autograd")
def clipping_and_optimizer_steps(run: Run) -> Any:
    """Gradient clipping and Adam steps around a jitted module."""
    model = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 1))
    jitted, optimizer = run.jit(model), torch.optim.Adam(model.parameters(), lr=0.05)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        jitted(torch.randn(4, 3)).square().mean().backward()
        seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
    return seen, list(model.parameters())


@case("autograd")
def anomaly_mode_around_a_step(run: Run) -> Any:
    """Anomaly mode on for the first step and off for the next, or the other way round."""
    seen = []
    for states in ((True, False), (False, True)):
        f = run.jit(lambda x: x.sin().sum())
        for state in states:
            x = leaf(3)
            with torch.autograd.set_detect_anomaly(state):
                f(x).backward()
            seen.append(x.grad)
    return seen


@case("autograd")
def saved_tensor_hooks_around_a_call(run: Run) -> Any:
    """Activations packed to another dtype around the call change the gradient as in eager, or not at all."""
    f, seen = run.jit(lambda x: x.sin().exp()), []
    for _ in range(2):
        x = torch.tensor([0.5, 1.0], requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            y = f(x)
        y.sum().backward()
        seen.append((y, x.grad))
    return seen


@case("autograd")
def error_in_the_backward_of_a_user(run: Run) -> Any:
    """An exception raised by a tensor hook in backward comes out, and the next step works."""
    f, seen = run.jit(lambda x: x.square().sum()), []

    def fail(g: Tensor) -> None:
        raise ValueError("stop here")

    for bad in (True, False, True):
        x = leaf(3)
        if bad:
            x.register_hook(fail)
        y = f(x)
        seen.append((run.caught(y.backward), x.grad))
    return seen
