"""Program values: numbers and bools read from tensors decide what the program does, call by call."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def trained(f: Any, inputs: list[Tensor]) -> list[Any]:
    """Outputs and input gradients of one call per input; the loss is the sum of what is differentiable."""
    seen = []
    for data in inputs:
        x = data.clone().requires_grad_()
        out = f(x)
        outputs = [o for o in (out if isinstance(out, tuple) else (out,)) if isinstance(o, Tensor) and o.requires_grad]
        sum(o.sum() for o in outputs).backward() if outputs else None
        seen.append((out, x.grad))
    return seen


def rows(*values: list[float]) -> list[Tensor]:
    return [torch.tensor(v) for v in values]


@case("values", may_refuse=True)
def item_scales_the_result(run: Run) -> Any:
    """`.item()` is the number of this call, returned and used."""
    f = run.jit(lambda x: (x * x.max().item(), x.max().item()))
    data = rows([1.0, 2.0], [5.0, 3.0], [1.0, -2.0])
    return [f(x) for x in data], trained(f, data)


@case("values", may_refuse=True)
def int_float_complex_and_index(run: Run) -> Any:
    """`int(t)`, `float(t)`, `complex(t)`, `range(t)` and a list indexed by a tensor."""

    def f(x: Tensor, n: Tensor) -> Any:
        total = sum((x[i] for i in range(n)), torch.zeros(()))
        return total, [1.5, 2.5, 3.5, 4.5][n] * x, int(x.sum()), float(x[0]) + 1, complex(x[1]), int(n) // 2

    jitted = run.jit(f)
    return [jitted(torch.randn(3) * 3, torch.tensor(n)) for n in (2, 3, 1, 3)]


@case("values", may_refuse=True)
def branch_on_the_sum(run: Run) -> Any:
    """`if x.sum() > 0` takes this call's branch, in inference and in training."""

    def f(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x * 2
        return x.exp() - 1

    jitted, data = run.jit(f), rows([1.0, 2.0], [-1.0, -2.0], [3.0, -1.0], [-3.0, 1.0])
    return [jitted(x) for x in data], trained(jitted, data)


@case("values", may_refuse=True)
def branch_in_a_module_with_parameters(run: Run) -> Any:
    """A module goes through one of two layers by its input's mean; the other's gradient stays None."""

    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.high(x) if bool(x.mean() > 0) else self.low(x).relu()

    model = Gate()
    jitted, seen = run.jit(model), []
    for sign in (1, -1, 1, -1):
        model.zero_grad()
        y = jitted(torch.rand(3, 2) * sign)
        y.sum().backward()
        seen.append((y, [None if p.grad is None else p.grad.clone() for p in model.parameters()]))
    return seen


@case("values", may_refuse=True)
def while_loop_on_a_tensor(run: Run) -> Any:
    """A while loop whose condition is a tensor runs as often as this call's data asks for."""

    def f(x: Tensor) -> tuple[Tensor, int]:
        steps = 0
        while x.norm() > 1:
            x = x * 0.5
            steps += 1
        return x, steps

    jitted, data = run.jit(f), rows([8.0, 1.0], [0.5, 0.1], [100.0, 3.0], [2.0, 0.0])
    return [jitted(x) for x in data], trained(jitted, data)


@case("values", may_refuse=True)
def fixed_point_iteration(run: Run) -> Any:
    """A solver that stops when it has converged, with a limit, as implicit layers have it."""
    layer = nn.Linear(2, 2)

    def f(x: Tensor) -> tuple[Tensor, int]:
        z = torch.zeros_like(x)
        for step in range(50):  # noqa: B007
            new = torch.tanh(0.3 * layer(z) + x)
            if (new - z).abs().max().item() < 1e-3:
                break
            z = new
        return new, step

    jitted, seen = run.jit(f), []
    for scale in (1.0, 0.1, 3.0):
        layer.zero_grad()
        z, step = jitted(torch.ones(2, 2) * scale)
        z.sum().backward()
        seen.append((z, step, layer.weight.grad.clone()))
    return seen


@case("values", may_refuse=True)
def tolist_decides_the_order(run: Run) -> Any:
    """`tolist()` gives this call's numbers: lengths for `split`, an order for a loop."""

    def f(x: Tensor, lengths: Tensor) -> list[Tensor]:
        return [part.sum() * n for part, n in zip(x.split(lengths.tolist()), lengths.tolist())]

    jitted, seen = run.jit(f), []
    for lengths in ([2, 4], [1, 5], [2, 2, 2], [6]):
        x = torch.randn(6, requires_grad=True)
        out = jitted(x, torch.tensor(lengths))
        sum(out).backward()
        seen.append((out, x.grad))
    return seen


@case("values", may_refuse=True)
def assert_and_raise_on_values(run: Run) -> Any:
    """Checks on data: an assertion, a ValueError with the number in its text, and a NaN guard."""

    def f(x: Tensor) -> Tensor:
        assert (x < 10).all(), "too large"
        if x.isnan().any():
            raise FloatingPointError("nan")
        if x.min() < 0:
            raise ValueError(f"minimum {x.min().item():.1f}")
        return x.sqrt()

    jitted = run.jit(f)
    data = rows([1.0, 4.0], [11.0, 1.0], [-1.5, 2.0], [math.nan, 1.0], [-3.5, 2.0], [9.0, 4.0])
    return [run.caught(jitted, x) for x in data]


@case("values", may_refuse=True)
def formatted_and_logged(run: Run) -> Any:
    """A number that goes into a string, a dict and a list outside."""
    log: list[str] = []

    def f(x: Tensor) -> dict[str, Any]:
        mean = x.mean().item()
        log.append(f"mean {mean:.2f}")
        return {"y": x - mean, "mean": mean, "text": f"{mean:.1f}", "round": round(mean), "shape": tuple(x.shape)}

    jitted = run.jit(f)
    return [jitted(x) for x in rows([1.0, 2.0], [3.0, 5.0], [1.0, 2.0])], log


@case("values", may_refuse=True)
def arithmetic_with_an_item(run: Run) -> Any:
    """Python arithmetic on the number: promotions, division, comparison chains, `math` functions."""

    def f(x: Tensor) -> tuple[Any, ...]:
        n, v = x.long().sum().item(), x.sum().item()
        return n % 3, n / 2, -n, abs(v), math.sqrt(abs(v)), 0 < n < 5, max(n, 2), x * n, x // max(n, 1), divmod(n, 4)

    jitted = run.jit(f)
    return [jitted(x) for x in rows([1.0, 2.0], [7.0, 5.5], [-4.0, 2.0])]


@case("values", may_refuse=True)
def size_from_a_value(run: Run) -> Any:
    """A tensor's size is a number read from another: `arange(int(n))`, slices, `narrow`, `zeros`."""

    def f(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        k = int(n)
        return x[:k] * 2, torch.arange(k), torch.zeros(k, 2) + 1, x.narrow(0, 0, k).sum(), x.repeat(k)

    jitted, seen = run.jit(f), []
    for n in (2, 4, 1, 2, 0):
        x = torch.randn(4, requires_grad=True)
        out = jitted(x, torch.tensor(n))
        sum(o.sum() for o in out).backward()
        seen.append((out, x.grad))
    return seen


@case("values", may_refuse=True)
def variable_length_batches(run: Run) -> Any:
    """Padding to the longest of the lengths: `lengths.max()` decides the mask's size."""

    def f(x: Tensor, lengths: Tensor) -> Tensor:
        longest = int(lengths.max())
        mask = torch.arange(longest)[None] < lengths[:, None]
        return (x[:, :longest] * mask).sum(1) / lengths

    jitted, seen = run.jit(f), []
    for lengths in ([2, 4], [1, 3], [4, 4]):
        x = torch.randn(2, 5, requires_grad=True)
        y = jitted(x, torch.tensor(lengths))
        y.sum().backward()
        seen.append((y, x.grad))
    return seen


@case("values", may_refuse=True)
def equality_of_whole_tensors(run: Run) -> Any:
    """`torch.equal`, `allclose`, `in`, `any`/`all` of Python over a tensor, `is_nonzero`."""

    def f(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        same = torch.equal(x, y)
        near = torch.allclose(x, y, atol=0.1)
        return same, near, 1.0 in x, any(x > 1), all(x > 0), torch.is_nonzero(x[0]), (x if same else y) * 2

    jitted = run.jit(f)
    pairs = (([1.0, 2.0], [1.0, 2.0]), ([0.0, 2.0], [0.05, 2.0]), ([0.5, 0.2], [1.0, 3.0]), ([1.0, 2.0], [1.0, 2.0]))
    return [jitted(torch.tensor(a), torch.tensor(b)) for a, b in pairs]


@case("values", may_refuse=True)
def sorting_by_value_in_python(run: Run) -> Any:
    """`sorted(tensors, key=...)`, `max(list_of_tensors)` and a set of ids."""

    def f(x: Tensor) -> tuple[Any, ...]:
        parts = list(x.unbind(0))
        ordered = sorted(parts, key=lambda t: float(t.sum()))
        best = max(range(len(parts)), key=lambda i: parts[i].abs().sum().item())
        return torch.stack(ordered), best, sorted({int(v) for v in x.flatten()})

    jitted, data = run.jit(f), [torch.randn(3, 2) * 3 for _ in range(4)]
    return [jitted(x) for x in data], trained(jitted, data)


@case("values", may_refuse=True)
def state_that_branches(run: Run) -> Any:
    """A buffer that is counted up decides: warm-up for two calls, then the trained path; `reset` in between."""

    class Warm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.lin = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls <= 2:
                return x
            return self.lin(x) * self.calls.item()

    model = Warm()
    jitted, seen = run.jit(model), []
    for step in range(6):
        if step == 4:
            model.calls.zero_()
        seen.append((jitted(torch.ones(1, 2)), model.calls.clone()))
    return seen


@case("values", may_refuse=True)
def value_after_a_write(run: Run) -> Any:
    """A number is read before and after a write in place, of the argument."""

    def f(x: Tensor) -> tuple[float, float, Tensor]:
        before = x[0].item()
        x.add_(1)
        after = x[0].item()
        if after > 3:
            x.zero_()
        return before, after, x * 2

    jitted, seen = run.jit(f), []
    for x in rows([1.0, 2.0], [5.0, 3.0], [2.0, -2.0], [2.5, 0.0]):
        seen.append((jitted(x), x))
    return seen


@case("values", may_refuse=True)
def value_of_a_detached_loss(run: Run) -> Any:
    """A loss that is scaled by its own number and logged, as balanced losses are."""
    model = nn.Linear(3, 1)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        a = (model(x) - y).square().mean()
        b = model.weight.abs().sum()
        return a + b * (a.detach() / b.detach()).item() * 0.1, a.item()

    f, seen = run.jit(step), []
    for _ in range(3):
        model.zero_grad()
        loss, logged = f(torch.randn(4, 3), torch.randn(4, 1))
        loss.backward()
        seen.append((loss, logged, model.weight.grad.clone()))
    return seen


@case("values", may_refuse=True)
def numpy_of_an_intermediate(run: Run) -> Any:
    """`.numpy()` and `np.asarray` inside, and back with `from_numpy`."""
    f = run.jit(lambda x: torch.from_numpy((x.detach() * 2).numpy().cumsum()) + x)
    data = [torch.randn(3) for _ in range(3)]
    return [f(x) for x in data], trained(f, data)
