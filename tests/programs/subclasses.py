"""Tensor subclasses: `__torch_dispatch__` wrappers, `__torch_function__`, and objects that are like tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from programs.case import Run, case


class TwoTensor(Tensor):
    """A wrapper of two tensors; every operation is done on both."""

    a: Tensor
    b: Tensor

    @staticmethod
    def __new__(cls, a: Tensor, b: Tensor) -> TwoTensor:
        made = Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )
        made.a, made.b = a, b
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return "TwoTensor"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: Any, size: Any, stride: Any) -> TwoTensor:
        return TwoTensor(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = tree_map(lambda t: t.a if isinstance(t, TwoTensor) else t, (args, kwargs or {}))
        second = tree_map(lambda t: t.b if isinstance(t, TwoTensor) else t, (args, kwargs or {}))
        out_a, out_b = func(*first[0], **first[1]), func(*second[0], **second[1])
        return TwoTensor(out_a, out_b) if isinstance(out_a, Tensor) else out_a


class Logged(Tensor):
    """A `__torch_function__` subclass without a change of behaviour."""


class Metres(Tensor):
    """A subclass that carries a unit, and gives it on to results."""

    unit: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Metres):
            units = [getattr(a, "unit", None) for a in args if isinstance(a, Metres)]
            out.unit = next((u for u in units if u), "?")
        return out


class Scaled:
    """No tensor, but an object that torch functions accept."""

    def __init__(self, value: Tensor, by: float) -> None:
        self.value, self.by = value, by

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.value * a.by if isinstance(a, Scaled) else a for a in args]
        return func(*plain, **(kwargs or {}))


def parts(t: Any) -> Any:
    """What there is to see of a result."""
    return type(t).__name__, tuple(t.shape), t.dtype, *((t.a, t.b) if isinstance(t, TwoTensor) else (t,))


@case("subclasses", may_refuse=True)
def wrapper_with_two_values(run: Run) -> Any:
    """A wrapper subclass comes out as itself, with both inner values right."""
    f, seen = run.jit(lambda x, y: (x * 2 + y.sin()).sum(-1)), []
    for n in (2, 2, 3):
        x = TwoTensor(torch.randn(2, n), torch.randn(2, n))
        seen.append((parts(f(x, torch.randn(2, n))), parts(f(x, x)), parts(f(torch.randn(2, n), x))))
    return seen


@case("subclasses", may_refuse=True)
def wrapper_after_a_plain_tensor(run: Run) -> Any:
    """The function was first called with plain tensors; the wrapper of the same metadata is no plain tensor."""
    f, seen = run.jit(lambda x: x.exp() + 1), []
    for _ in range(2):
        seen.append(parts(f(torch.randn(3))))
        seen.append(parts(f(TwoTensor(torch.randn(3), torch.randn(3)))))
    return seen


@case("subclasses", may_refuse=True)
def wrapper_in_a_container(run: Run) -> Any:
    """The wrapper is an entry of a dict and a list, beside plain tensors."""
    f, seen = run.jit(lambda batch: {"out": batch["x"] * batch["w"][0], "same": batch["x"]}), []
    for _ in range(2):
        x = TwoTensor(torch.randn(2), torch.randn(2))
        out = f({"x": x, "w": [torch.randn(2)]})
        seen.append((parts(out["out"]), out["same"] is x))
    return seen


@case("subclasses", may_refuse=True)
def wrapper_made_inside(run: Run) -> Any:
    """The wrapper is made inside of plain inputs, used, and taken apart again."""

    def f(x: Tensor, y: Tensor) -> Any:
        both = TwoTensor(x, y) * 3
        return both.a, both.b

    jitted = run.jit(f)
    return [jitted(torch.randn(2), torch.randn(2)) for _ in range(2)]


@case("subclasses", may_refuse=True)
def wrapper_returned_from_plain_inputs(run: Run) -> Any:
    """Plain tensors go in, the wrapper comes out."""
    f = run.jit(lambda x, y: TwoTensor(x * 2, y.sin()))
    return [parts(f(torch.randn(2), torch.randn(2))) for _ in range(2)]


@case("subclasses", may_refuse=True)
def wrapper_as_a_parameter(run: Run) -> Any:
    """A module whose weight was replaced by a wrapper (as quantisation libraries do)."""
    linear = nn.Linear(3, 2, bias=False)
    f = run.jit(linear)
    plain = f(torch.randn(1, 3))
    both = TwoTensor(torch.randn(2, 3), torch.randn(2, 3))
    linear.weight = nn.Parameter(both, requires_grad=False)
    seen = [parts(f(torch.randn(1, 3))) for _ in range(2)]
    return plain, seen


@case("subclasses", may_refuse=True)
def wrapper_in_a_closure(run: Run) -> Any:
    """The wrapper is captured, not passed."""
    held = TwoTensor(torch.randn(3), torch.randn(3))
    f = run.jit(lambda x: x * held)
    return [parts(f(torch.randn(3))) for _ in range(2)]


@case("subclasses", may_refuse=True)
def plain_subclass_keeps_its_class(run: Run) -> Any:
    """A subclass without overrides: results are of it, a mixture too."""
    f, seen = run.jit(lambda x, y: (x + y, x.sum(), x.view(-1), y * 2, x)), []
    for _ in range(2):
        x, y = torch.randn(2).as_subclass(Logged), torch.randn(2)
        seen.append([[parts(o) for o in f(x, y)], [parts(o) for o in f(y, x)], [parts(o) for o in f(y, y)]])
    return seen


@case("subclasses", may_refuse=True)
def a_unit_that_results_inherit(run: Run) -> Any:
    """A `__torch_function__` subclass with a Python attribute on its results."""
    f, seen = run.jit(lambda x: (x * 2, x.mean())), []
    for unit in ("m", "km", "m"):
        x = torch.randn(2).as_subclass(Metres)
        x.unit = unit
        seen.append([(type(o).__name__, o.unit, o.as_subclass(Tensor)) for o in f(x)])
    return seen


@case("subclasses", may_refuse=True)
def objects_with_torch_function(run: Run) -> Any:
    """An object that is no tensor is accepted by torch functions inside."""
    f = run.jit(lambda s, x: torch.add(s, x) + torch.mul(x, s))
    return [f(Scaled(torch.randn(2), by), torch.randn(2)) for by in (2.0, 3.0, 2.0)]


@case("subclasses")
def parameters_and_buffers_classes(run: Run) -> Any:
    """`nn.Parameter` and `nn.Buffer` as arguments and results are what eager's are."""
    f, seen = run.jit(lambda p, b: (p, b, p * 1, p.detach(), p.clone(), isinstance(p, nn.Parameter))), []
    for p in (nn.Parameter(torch.randn(2)), torch.randn(2), nn.Parameter(torch.randn(2), requires_grad=False)):
        out = f(p, nn.Buffer(torch.randn(2)))
        seen.append([[(type(o).__name__, o.requires_grad, o.is_leaf) for o in out[:-1]], out[-1], out[0] is p])
    return seen


@case("subclasses", may_refuse=True)
def training_through_a_wrapper(run: Run) -> Any:
    """Gradients of a wrapper with requires_grad, and of a plain weight beside it."""
    f, seen = run.jit(lambda x, w: (x * w).sum()), []
    for _ in range(2):
        w = torch.randn(3, requires_grad=True)
        f(torch.randn(3), w).backward()
        x = TwoTensor(torch.randn(3), torch.randn(3)).requires_grad_()
        f(x, torch.ones(3)).backward()
        seen.append((w.grad, parts(x.grad)))
    return seen


@case("subclasses", may_refuse=True)
def nested_and_masked_tensors(run: Run) -> Any:
    """A jagged nested tensor is multiplied, and padded."""
    f, seen = run.jit(lambda n: (n * 2, torch.nested.to_padded_tensor(n, 0.0))), []
    for sizes in ((2, 3), (2, 3), (1, 4)):
        n = torch.nested.nested_tensor([torch.randn(s) for s in sizes], layout=torch.jagged)
        out, padded = f(n)
        seen.append((out.unbind(), padded))
    return seen


@case("subclasses", may_refuse=True)
def old_style_nested_tensors(run: Run) -> Any:
    """A strided nested tensor through `unbind`, a product and padding."""
    f, seen = run.jit(lambda n: (n * 2, torch.nested.to_padded_tensor(n, 0.0), [t + 1 for t in n.unbind()])), []
    for sizes in ((2, 3), (2, 3), (1, 4)):
        doubled, padded, more = f(torch.nested.nested_tensor([torch.randn(s, 2) for s in sizes]))
        seen.append((doubled.is_nested, doubled.unbind(), padded, more))
    return seen
