"""Tensors that are neither arguments nor parameters: in globals, closures, attributes, or made inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case
from programs.guards_values import after

TABLE: Tensor = torch.zeros(3)
LAYERS: list[Tensor] = []


@case("guards")
def captured_tensor_changed_in_place(run: Run) -> Any:
    """A closure's tensor, a global's and an attribute's, written in place between calls."""
    global TABLE
    TABLE = torch.ones(3)
    weight, box = torch.ones(3), {"t": torch.ones(3)}

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.many = torch.ones(3), [torch.ones(3), torch.ones(3)]

        def forward(self, x: Tensor) -> Tensor:
            return x * self.plain + weight * TABLE + box["t"] - self.many[1]

    m = Held()
    return after(
        run.jit(m),
        torch.randn(3),
        lambda: weight.mul_(2),
        lambda: TABLE.fill_(5),
        lambda: m.plain.add_(3),
        lambda: box["t"].zero_(),
        lambda: m.many[1].copy_(torch.arange(3.0)),
    )


@case("guards")
def captured_tensor_bound_anew(run: Run) -> Any:
    """The same places bound to other tensors: other shape, dtype, requires_grad, None."""
    box: dict[str, Any] = {"t": torch.ones(3)}

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain: Any = torch.ones(3)

        def forward(self, x: Tensor) -> Tensor:
            return (x if self.plain is None else x * self.plain) + box["t"]

    m = Held()
    seen = after(
        run.jit(m),
        torch.randn(3),
        lambda: box.update(t=torch.full((2, 3), 2.0)),
        lambda: box.update(t=torch.full((3,), 2, dtype=torch.int64)),
        lambda: setattr(m, "plain", torch.ones(3, dtype=torch.float64)),
        lambda: setattr(m, "plain", torch.ones(3, requires_grad=True)),
        lambda: setattr(m, "plain", None),
        lambda: box.update(t=4.0),
    )
    return seen, [t.requires_grad for t in seen]


@case("guards")
def captured_tensor_with_a_gradient(run: Run) -> Any:
    """A weight in a closure that is no parameter of anything is trained, then replaced."""
    w = torch.randn(3, requires_grad=True)
    f, grads = run.jit(lambda x: (x * w).sin().sum()), []
    for _ in range(2):
        f(torch.randn(3)).backward()
        assert w.grad is not None
        grads.append(w.grad.clone())
        with torch.no_grad():
            w -= w.grad
    old, w = w, torch.randn(3, requires_grad=True)
    f(torch.randn(3)).backward()
    return grads, old.grad, w.grad


@case("guards")
def global_list_of_tensors(run: Run) -> Any:
    """A global list that is summed grows, shrinks and is reordered."""
    LAYERS[:] = [torch.full((2,), 1.0), torch.full((2,), 2.0)]

    def f(x: Tensor) -> Tensor:
        for i, t in enumerate(LAYERS):
            x = x * (i + 1) + t
        return x

    return after(
        run.jit(f),
        torch.randn(2),
        lambda: LAYERS.append(torch.full((2,), 7.0)),
        lambda: LAYERS.reverse(),
        lambda: LAYERS.pop(),
        lambda: LAYERS.__setitem__(0, torch.zeros(2)),
        lambda: LAYERS.clear(),
    )


@case("guards")
def tensor_of_a_list(run: Run) -> Any:
    """`torch.tensor(list)` inside sees later changes: a closure's list, an attribute, an argument."""
    values = [1.0, 2.0, 3.0]

    class Anchors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sizes = [[1, 2], [3, 4]]

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor(self.sizes)

    m = Anchors()
    f, g, h = run.jit(lambda x: x + torch.tensor(values)), run.jit(m), run.jit(lambda x, v: x + torch.as_tensor(v))
    x, y, seen = torch.randn(3), torch.randn(2, 2), []
    for step in range(3):
        seen.append((f(x), g(y), h(x, values)))
        values[step] = 10.0 * step
        m.sizes[1][step % 2] += 1
    return [*seen, f(x), g(y), h(x, values)]


@case("guards")
def constants_made_inside_are_fresh(run: Run) -> Any:
    """A tensor made from a list inside and returned is a new one at every call, though the caller writes into it."""
    f, seen = run.jit(lambda x: (torch.tensor([1.0, 2.0]), torch.zeros(2), torch.arange(2), x + 1)), []
    for _ in range(3):
        out = f(torch.randn(2))
        seen.append([o.clone() for o in out])
        for o in out:
            o.add_(5)
    return seen


@case("guards")
def global_tensor_bound_anew(run: Run) -> Any:
    """A global table is replaced by a larger one, as rotary caches are."""
    global TABLE
    TABLE = torch.arange(4.0)
    f, seen = run.jit(lambda x: x * TABLE[: x.shape[0]]), []
    for n in (4, 8, 4, 6):
        if TABLE.shape[0] < n:
            TABLE = torch.arange(float(n)) * 2
        seen.append(f(torch.ones(n)))
    return seen


@case("guards")
def cached_mask_of_an_attribute(run: Run) -> Any:
    """A plain tensor attribute, moved to another dtype and enlarged by the caller."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = torch.ones(4, 4, dtype=torch.bool).tril()

        def forward(self, x: Tensor) -> Tensor:
            n = x.shape[0]
            return x.masked_fill(~self.mask[:n, :n], 0.0) if self.mask.dtype == torch.bool else x * self.mask[:n, :n]

    m = Masked()
    return after(
        run.jit(m),
        torch.ones(3, 3),
        lambda: setattr(m, "mask", torch.ones(8, 8, dtype=torch.bool).triu()),
        lambda: setattr(m, "mask", m.mask.float() * 2),
        lambda: m.mask.zero_(),
    )
