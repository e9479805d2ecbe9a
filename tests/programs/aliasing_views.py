"""Aliasing and mutation: views of views, `.data`, `set_`, module state, caches, saved values, order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


@case("aliasing")
def views_of_views_are_written(run: Run) -> Any:
    """A write through a view of a view of an input, of a buffer, of an intermediate."""
    buffer = torch.zeros(2, 3)

    def f(x: Tensor) -> Any:
        x[1].view(-1)[1:].mul_(2)
        x.t()[0].add_(5)
        buffer[0][1:].copy_(x[0][:2])
        y = x.sin()
        z = y.view(-1)[2:].view(2, 2)
        z[0].fill_(3.0)
        z.t_()
        return y, z, x.sum(0)

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = torch.randn(2, 3)
        seen.append((jitted(x), x, buffer.clone()))
    return seen


@case("aliasing")
def view_of_an_intermediate_in_training(run: Run) -> Any:
    """The base is written after the view was taken, and the other way round: gradients of both."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * 2
        head, tail = y[:2], y[2:]
        head.mul_(w)
        y.add_(w.sum())
        tail *= head.detach().clone()
        return y.sum() + head.sin().sum() * tail.detach().sum()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x, w = torch.randn(4, requires_grad=True), torch.randn(2, requires_grad=True)
        jitted(x, w).backward()
        seen.append((x.grad, w.grad))
    return seen


@case("aliasing")
def unbind_split_and_chunk_written(run: Run) -> Any:
    """Writing into outputs of `unbind`, `split`, `chunk`: eager's error with gradients, a plain write without."""

    def f(x: Tensor, how: str) -> Any:
        parts = getattr(x, how)(*(() if how == "unbind" else (1,)))
        parts[0].add_(1)
        return parts[0] * 2

    jitted, seen = run.jit(f), []
    for how in ("unbind", "split", "chunk"):
        for _ in range(2):
            x = torch.randn(2, 2)
            h = torch.randn(2, 2, requires_grad=True) * 1
            seen.append((jitted(x, how), x, run.caught(jitted, h, how), h.detach()))
    return seen


@case("aliasing")
def an_expanded_tensor_is_written(run: Run) -> Any:
    """Eager's error about a single memory location, for an input and an intermediate; nothing is changed."""
    own = run.jit(lambda x: x.add_(1))
    made, seen = run.jit(lambda x: x[:, None].expand(-1, 3).mul_(2)), []
    for _ in range(2):
        x = torch.randn(2)
        seen.append((own(x.clone()), run.caught(own, x[:, None].expand(2, 3)), run.caught(made, x), x))
    return seen


@case("aliasing")
def data_assignment_inside(run: Run) -> Any:
    """`x.data = ...` inside: the same object with new values, for an input and for a parameter."""

    class Decay(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            self.weight.data = self.weight.data * 0.5
            return x * self.weight

    def swap(x: Tensor, y: Tensor) -> Tensor:
        x.data = y * 2
        return x + 1

    net, seen = Decay(), []
    f, g = run.jit(net), run.jit(swap)
    for _ in range(2):
        out = f(torch.randn(3))
        out.sum().backward()
        x, y = torch.randn(3), torch.randn(3)
        seen.append((out, net.weight.detach().clone(), net.weight.grad.clone(), g(x, y), x))
    return seen


@case("aliasing")
def data_is_written_in_place(run: Run) -> Any:
    """`x.data.mul_` and `x.detach().add_` write the tensor without entering its history."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        x.data.mul_(2)
        x.detach().add_(1)
        return (x * w).sum()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        jitted(x, w).backward()
        seen.append((x, x.grad, w.grad))
    return seen


@case("aliasing")
def set_inside(run: Run) -> Any:
    """`set_` makes one tensor look at another's memory."""

    def f(x: Tensor, y: Tensor) -> Any:
        x.set_(y)
        x.add_(1)
        return x * 2, y * 3

    jitted, seen = run.jit(f), []
    for size in (2, 2, 3):
        x, y = torch.randn(2), torch.randn(size)
        seen.append((jitted(x, y), x, y, x.data_ptr() == y.data_ptr()))
    return seen


@case("aliasing")
def set_and_data_outside_between_calls(run: Run) -> Any:
    """A tensor made to look elsewhere by the caller between calls, a view with another offset."""
    x, y = torch.randn(4), torch.randn(4)
    f = run.jit(lambda a, b: (a.add_(1), b * 2))
    seen = [[o.clone() for o in f(x, y)]]
    x.set_(y)
    seen.append([o.clone() for o in f(x, y)])
    x.data = torch.randn(4)
    seen.append([o.clone() for o in f(x, y)])
    x.data = y[1:]
    seen.append([o.clone() for o in f(x, y[1:])])
    return seen, x, y


@case("aliasing")
def buffers_reassigned_in_forward(run: Run) -> Any:
    """`self.mean = ...` in forward: the buffer is the new tensor afterwards."""

    class Ema(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("last", None)

        def forward(self, x: Tensor) -> Tensor:
            self.mean = self.mean * 0.9 + x.mean(0).detach() * 0.1
            self.last = x.detach()
            return x - self.mean

    net = Ema()
    f, seen = run.jit(net), []
    for _ in range(3):
        out = f(torch.randn(4, 2, requires_grad=True))
        seen.append((out, net.mean, list(net.state_dict()), net.last))
    return seen


@case("aliasing")
def attributes_lists_and_dicts_of_the_module_are_written(run: Run) -> Any:
    """A plain attribute, a list and a dict of the module written in forward hold real tensors afterwards."""

    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.calls = 0
            self.kept: list[Tensor] = []
            self.named: dict[str, Tensor] = {}

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            h = self.linear(x)
            self.kept.append(h)
            self.named["h"] = h * self.calls
            return h.tanh()

    net = Probe()
    f, seen = run.jit(net), []
    for _ in range(3):
        seen.append((f(torch.randn(1, 2)), net.calls, list(net.kept), dict(net.named)))
    return seen


@case("aliasing")
def a_key_value_cache_stays_in_place(run: Run) -> Any:
    """A cache given as an argument is written at a moving position; one in a buffer, by `index_copy_`."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Linear(4, 8)
            self.register_buffer("keys", torch.zeros(1, 6, 4), persistent=False)

        def forward(self, x: Tensor, values: Tensor, pos: Tensor, start: int) -> Tensor:
            k, v = self.proj(x).chunk(2, -1)
            self.keys.index_copy_(1, pos, k)
            values[:, start : start + x.shape[1]] = v
            scores = x @ self.keys[:, : start + x.shape[1]].transpose(1, 2)
            return scores.softmax(-1) @ values[:, : start + x.shape[1]]

    net = Attention()
    f, values, at = run.jit(net), torch.zeros(1, 6, 4), net.keys.data_ptr()
    where, seen = values.data_ptr(), []
    with torch.no_grad():
        for start, n in ((0, 3), (3, 1), (4, 1), (5, 1)):
            out = f(torch.randn(1, n, 4), values, torch.arange(start, start + n), start)
            seen.append((out, values.clone(), net.keys.clone()))
    return seen, at == net.keys.data_ptr(), where == values.data_ptr()


@case("aliasing")
def in_place_on_a_saved_value_raises(run: Run) -> Any:
    """A write inside to what `exp` or `mul` saved: eager's error at backward, for intermediates and inputs."""

    def saved_output(x: Tensor) -> Tensor:
        y = x.exp()
        z = y * 1
        y.add_(1)
        return z.sum()

    def saved_input(x: Tensor, w: Tensor) -> Tensor:
        y = (x * w).sum()
        w.add_(1)
        return y

    f, g, seen = run.jit(saved_output), run.jit(saved_input), []
    for _ in range(2):
        x, w = torch.randn(3, requires_grad=True), torch.randn(3)
        first = f(x)
        seen.append((first.detach(), run.caught(first.backward)))
        second = g(x, w)
        seen.append((second.detach(), w, run.caught(second.backward), x.grad))
    return seen


@case("aliasing")
def written_between_forward_and_backward(run: Run) -> Any:
    """The caller writes an input, an output, a parameter after the forward: eager's error or none, as needed."""
    linear = nn.Linear(2, 2)
    f, seen = run.jit(lambda x: (linear(x).exp(), x.sum())), []
    for what in ("input", "output", "weight", "bias", "total", "input"):
        x = torch.randn(1, 2, requires_grad=True)
        h = x * 1
        out, total = f(h)
        with torch.no_grad():
            {"input": h, "output": out, "weight": linear.weight, "bias": linear.bias, "total": total}[what].add_(1)
        raised = run.caught((out.sum() + total).backward)
        seen.append((what, raised[0] if raised else None, x.grad))
    return seen


@case("aliasing")
def no_grad_updates_of_parameters_inside(run: Run) -> Any:
    """A whole SGD step inside: gradients by `autograd.grad`, updates in place under no_grad."""
    linear = nn.Linear(2, 1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = (linear(x) - y).square().mean()
        grads = torch.autograd.grad(loss, list(linear.parameters()))
        with torch.no_grad():
            for p, g in zip(linear.parameters(), grads):
                p -= 0.1 * g
        return loss.detach()

    f = run.jit(step)
    seen = [(f(torch.randn(4, 2), torch.randn(4, 1)), linear.weight.detach().clone()) for _ in range(3)]
    return seen, [(p.requires_grad, p.is_leaf, p.grad) for p in linear.parameters()]


@case("aliasing")
def out_arguments(run: Run) -> Any:
    """`out=` with an input, an intermediate, a slice, and one of the wrong size."""

    def f(x: Tensor, out: Tensor) -> Any:
        y = torch.empty(2)
        torch.add(x, 1, out=out)
        same = torch.mul(x, 2, out=y)
        torch.sin(x, out=out[:2])
        values, indices = torch.empty(0), torch.empty(0, dtype=torch.int64)
        torch.max(x[None], 1, out=(values, indices))
        return same is y, y, out * 1, values, indices

    jitted, seen = run.jit(f), []
    for _ in range(2):
        out = torch.zeros(2)
        seen.append((jitted(torch.randn(2), out), out))
    return seen


@case("aliasing")
def dict_and_list_entries_written_in_place(run: Run) -> Any:
    """Tensors in a list and a dict argument, and of a closure, are written in place."""
    state = {"total": torch.zeros(2), "n": torch.zeros((), dtype=torch.int64)}

    def f(batch: dict[str, Any], xs: list[Tensor]) -> Tensor:
        batch["x"].mul_(2)
        batch["more"][0][0] = 1.0
        for i, x in enumerate(xs):
            x += i
        state["total"].add_(batch["x"])
        state["n"].add_(1)
        return state["total"] / state["n"]

    jitted, seen = run.jit(f), []
    for n in (1, 2, 2):
        batch = {"x": torch.randn(2), "more": [torch.randn(2)]}
        xs = [torch.randn(2) for _ in range(n)]
        seen.append((jitted(batch, xs), batch, xs, {k: v.clone() for k, v in state.items()}))
    return seen


@case("aliasing")
def augmented_assignment_of_a_captured_entry(run: Run) -> Any:
    """`state["n"] += 1` writes the captured tensor and assigns it to its own entry."""
    state, history = {"n": torch.zeros(2)}, [torch.zeros(2)]
    kept = state["n"]

    def f(x: Tensor) -> Tensor:
        state["n"] += x
        history[0] -= 1
        return x * 2

    jitted = run.jit(f)
    return [(jitted(torch.randn(2)), state["n"].clone(), state["n"] is kept, history[0].clone()) for _ in range(3)]


@case("aliasing")
def copy_between_overlapping_slices(run: Run) -> Any:
    """Shifting a ring buffer: `x[:-1] = x[1:].clone()`, `roll`, `copy_` of a clone, of itself."""

    def f(x: Tensor, new: Tensor) -> Tensor:
        x[:-1] = x[1:].clone()
        x[-1] = new
        x.copy_(x.roll(1))
        x.copy_(x)
        return x[0] * 2

    jitted, x = run.jit(f), torch.zeros(3)
    return [(jitted(x, torch.randn(())), x.clone()) for _ in range(4)]


@case("aliasing")
def detach_of_an_output_is_written(run: Run) -> Any:
    """`detach()` of an output shares its memory inside and outside; the write shows in the output."""

    def f(x: Tensor) -> Any:
        y = x * 2
        z = y.detach()
        z[0] = 9.0
        return y, z

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        y, z = jitted(x)
        z[1] = -9.0
        y.sum().backward()
        seen.append((y, z, z.requires_grad, x.grad))
    return seen
