"""Python's control flow inside a program: numbers of tensors, loops, comprehensions, exceptions, contexts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


@case("control flow", may_refuse=True)
def numbers_read_from_a_tensor(run: Run) -> Any:
    """`.item()`, `int()`, `float()`, `bool()` give the numbers of this call."""

    def f(x: Tensor, n: Tensor) -> Any:
        return x * x.sum().item(), x + int(n), x / float(n), x if bool(n > 2) else -x, n.item()

    jitted = run.jit(f)
    return [jitted(torch.randn(2), torch.tensor(k)) for k in (1, 2, 3, 1)]


@case("control flow", may_refuse=True)
def list_of_a_tensor(run: Run) -> Any:
    """`tolist()` as sizes of `split`, and iteration over ids."""
    f = run.jit(lambda x, sizes: [part.sum() for part in x.split(sizes.tolist())])
    g = run.jit(lambda ids: {int(i): i * 2 for i in ids})
    sizes = [torch.tensor(s) for s in ([1, 3], [2, 2], [4], [1, 3])]
    return [f(torch.randn(4), s) for s in sizes], [g(s) for s in sizes]


@case("control flow", may_refuse=True)
def number_as_a_shape_or_an_index(run: Run) -> Any:
    """The length read from a tensor makes a mask, a slice and a range of steps, in a module with gradients."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x: Tensor, length: Tensor) -> Tensor:
            n = int(length.max())
            x = x[:n] * torch.arange(n)[:, None]
            for _ in range(n):
                x = self.lin(x)
            return x

    net, seen = Net(), []
    f = run.jit(net)
    for lengths in ([1, 2], [3, 1], [2, 2]):
        net.zero_grad()
        y = f(torch.randn(4, 2), torch.tensor(lengths))
        y.sum().backward()
        seen.append((y, net.lin.weight.grad))
    return seen


@case("control flow", may_refuse=True)
def number_that_leaves_the_program(run: Run) -> Any:
    """A Python float of the loss is returned beside it, and formatted into a string."""

    def f(x: Tensor) -> Any:
        loss = x.square().mean()
        return loss, loss.item(), f"{loss.item():.3f}", float(x.max()) > 1

    jitted = run.jit(f)
    return [jitted(torch.randn(3) * k) for k in (1, 2, 3)]


@case("control flow", may_refuse=True)
def while_a_tensor_says_so(run: Run) -> Any:
    """A while loop runs as often as this call's data asks for."""

    def f(x: Tensor) -> tuple[Tensor, int]:
        steps = 0
        while x.abs().max() > 1:
            x, steps = x / 2, steps + 1
        return x, steps

    jitted = run.jit(f)
    return [jitted(torch.tensor([k, 0.5])) for k in (0.5, 3.0, 20.0, 1.5)]


@case("control flow", may_refuse=True)
def iteration_until_it_converges(run: Run) -> Any:
    """Newton's method with break on `torch.allclose`, with gradients."""

    def f(a: Tensor) -> Tensor:
        x = torch.ones_like(a)
        for _ in range(20):
            new = (x + a / x) / 2
            if torch.allclose(new, x, atol=1e-3):
                break
            x = new
        return new

    jitted, seen = run.jit(f), []
    for k in (1.0, 4.0, 100.0):
        a = torch.tensor([k, 2.0], requires_grad=True)
        y = jitted(a)
        y.sum().backward()
        seen.append((y, a.grad))
    return seen


@case("control flow", may_refuse=True)
def branch_on_a_tensor(run: Run) -> Any:
    """`if`, `and`, `not`, a conditional expression, `any`, `max` and `sorted` over tensors."""

    def f(x: Tensor) -> Any:
        y = x * 2 if x.sum() > 0 else x * 3
        if not (x > 5).any() and x[0] < 1:
            y = y + 1
        first, second = sorted([x[0], x[1]])
        return y, first, second, max(x[0], x[1])

    jitted = run.jit(f)
    return [jitted(torch.tensor(v)) for v in ([1.0, 2.0], [-1.0, -2.0], [6.0, -2.0], [0.0, 2.0])]


@case("control flow", may_refuse=True)
def tensor_in_assert_and_membership(run: Run) -> Any:
    """`assert` on data, `in` a list, and a tensor as an index of a Python list."""
    table = [2.0, 3.0, 4.0]

    def f(x: Tensor, i: Tensor) -> Any:
        assert x.isfinite().all(), "not finite"
        return x * table[i], i in [0, 2]

    jitted, x = run.jit(f), torch.ones(2)
    seen = [run.caught(jitted, x, torch.tensor(i)) for i in (0, 1, 2)]
    return seen, run.caught(jitted, x / 0, torch.tensor(0)), run.caught(jitted, x, torch.tensor(9))


@case("control flow")
def generators_zip_and_map(run: Run) -> Any:
    """Generator expressions, zip, enumerate, map, filter, reversed, reduce and itertools."""

    def f(x: Tensor, weights: list[float]) -> Any:
        rows = [r * w for r, w in zip(x, weights, strict=False)]
        total = sum(r.sum() * i for i, r in enumerate(rows, 1))
        parts = list(map(torch.tanh, filter(lambda r: r.shape[0] > 1, reversed(rows))))
        product = functools.reduce(torch.mul, itertools.chain(parts, [x[-1]]))
        return total, product, {i: r for i, r in enumerate(rows) if i}, torch.stack([*itertools.islice(x, 2)])

    jitted = run.jit(f)
    return [jitted(torch.randn(n, 2), [1.0, 0.5, k]) for n, k in ((3, 2.0), (3, 4.0), (2, 2.0), (4, 2.0))]


@case("control flow")
def unpacking_and_walrus(run: Run) -> Any:
    """Star unpacking of a tensor and of results, swaps, walrus, chained comparison, starred calls."""

    def f(x: Tensor) -> Any:
        first, *middle, last = x
        low, high = x.aminmax()
        a, b = x.split([1, x.shape[0] - 1])
        a, b = b, a
        if (n := len(middle)) > 1 and 1 < n < 9:
            last = last * n
        y = torch.cat([*middle, *(first, last)]) if middle else first
        return y, low, high, a, *b

    jitted = run.jit(f)
    return [jitted(torch.randn(n, 2)) for n in (4, 3, 2, 4)]


@case("control flow")
def generator_function_and_recursion(run: Run) -> Any:
    """A generator function that yields tensors, sends, and a recursive function on the shape."""

    def halves(x: Tensor) -> Iterator[Tensor]:
        while x.shape[0] > 1:
            x = x[: x.shape[0] // 2] + x[x.shape[0] // 2 :]
            yield x

    def tree(x: Tensor) -> Tensor:
        return x if x.shape[0] == 1 else tree(x[::2]) * 2 - tree(x[1::2])

    jitted = run.jit(lambda x: (list(halves(x)), tree(x), next(halves(x), None)))
    return [jitted(torch.randn(n)) for n in (4, 8, 1, 4)]


@case("control flow")
def loops_with_else_break_and_continue(run: Run) -> Any:
    """for-else, while-else, break and continue by Python values."""

    def f(x: Tensor, stops: list[int], limit: int) -> Tensor:
        for i, stop in enumerate(stops):
            if stop < 0:
                continue
            if stop > limit:
                break
            x = x * stop + i
        else:
            x = x - 100
        while limit:
            limit -= 1
            x = x.sin()
        else:
            x = x + 1
        return x

    jitted, x = run.jit(f), torch.randn(3)
    return [jitted(x, s, n) for s, n in (([1, 2], 2), ([1, 3], 2), ([-1, 2], 2), ([], 0), ([1, 2], 3))]


@case("control flow")
def match_and_isinstance(run: Run) -> Any:
    """A `match` statement over structures, `isinstance` dispatch, `type(x) is Tensor`."""

    def f(value: Any) -> Any:
        match value:
            case {"x": Tensor() as x, "scale": float(s)}:
                return x * s
            case [Tensor() as x, *rest]:
                return x + len(rest)
            case Tensor() if type(value) is Tensor and value.dim() == 2:
                return value.t()
            case nn.Parameter():
                return value * 7
            case _:
                return value

    jitted, t = run.jit(f), torch.randn(2)
    calls = [{"x": t, "scale": 2.0}, [t, 1, 2], t[None], t, nn.Parameter(t), {"x": t, "scale": 2}, None, (t,)]
    return [jitted(v) for v in calls for _ in range(2)]


@case("control flow")
def sorting_and_strings(run: Run) -> Any:
    """`sorted` with a key, f-strings as dict keys, `min` of shapes, lambdas in loops with bound defaults."""

    def f(parts: dict[str, Tensor]) -> Any:
        named = {f"{k}/{i}": v.sum() for i, (k, v) in enumerate(sorted(parts.items(), key=lambda kv: len(kv[1])))}
        scalers = [lambda t, k=k: t * k for k in range(1, 4)]
        shortest = min(parts.values(), key=len)
        return named, [s(shortest) for s in scalers], "-".join(named)

    jitted = run.jit(f)
    sizes = [{"a": 3, "b": 1}, {"a": 1, "b": 3}, {"b": 2, "a": 2}, {"a": 3, "b": 1}]
    return [jitted({k: torch.randn(n) for k, n in s.items()}) for s in sizes]


@case("control flow")
def try_except_else_finally(run: Run) -> Any:
    """try/except/else/finally around torch errors and Python ones, with a return in between."""

    def f(x: Tensor, w: Tensor, key: str) -> Any:
        log = []
        try:
            y = x @ w
        except RuntimeError:
            y = x * 2
            log.append("shapes")
        else:
            log.append("fine")
        finally:
            log.append("done")
        try:
            return {"a": y, "b": y + 1}[key], log
        except KeyError as error:
            return y.sum(), [*log, error.args[0]]
        finally:
            log.append("last")

    jitted = run.jit(f)
    calls = [((2, 3), (3, 2), "a"), ((2, 3), (2, 3), "b"), ((2, 3), (3, 2), "c"), ((2, 3), (3, 2), "a")]
    return [jitted(torch.randn(a), torch.randn(b), key) for a, b, key in calls]


@case("control flow")
def exceptions_translated_and_suppressed(run: Run) -> Any:
    """`raise ... from`, re-raise, `suppress`, and an exception that leaves through `finally`."""

    def f(x: Tensor, how: str) -> Any:
        with suppress(IndexError, RuntimeError):
            x = x[5]
        try:
            try:
                if how == "bad":
                    raise ValueError("inner")
            except ValueError as error:
                raise LookupError(f"outer of {error}") from error
            finally:
                x = x + 1
        except LookupError:
            if x.shape[0] == 2:
                raise
            x = x * 10
        return x

    jitted = run.jit(f)
    return [run.caught(jitted, torch.ones(n), how) for n in (2, 3) for how in ("ok", "bad", "ok", "bad")]


@case("control flow")
def failing_write_that_is_caught(run: Run) -> Any:
    """An in-place op that fails is caught; the writes before it stay."""

    def f(x: Tensor) -> Tensor:
        try:
            x[0] = 5.0
            x[1:].copy_(torch.ones(7))
        except RuntimeError:
            x.mul_(2)
        return x.sum()

    jitted, seen = run.jit(f), []
    for n in (3, 8, 3):
        x = torch.zeros(n)
        seen.append((jitted(x), x))
    return seen


class Scaling:
    """A user's context manager with state that it puts back."""

    def __init__(self) -> None:
        self.factor, self.entered = 1.0, 0

    def __enter__(self) -> Scaling:
        self.factor = 3.0
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        self.factor = 1.0
        return kind is ZeroDivisionError


@case("control flow")
def user_context_manager(run: Run) -> Any:
    """A context manager class that swallows an exception, and one made with `contextmanager`."""

    @contextmanager
    def scaled(x: Tensor, k: float) -> Iterator[Tensor]:
        try:
            yield x * k
        finally:
            x.add_(1)

    def f(x: Tensor, n: int) -> Any:
        with Scaling() as s, scaled(x, 2.0) as y:
            y = y * s.factor
            y = y + 1 // n
        return y, s.factor, x * 2

    jitted, seen = run.jit(f), []
    for n in (1, 0, 2, 0):
        x = torch.ones(2)
        seen.append((run.caught(jitted, x, n), x))
    return seen


@case("control flow")
def stacked_contexts(run: Run) -> Any:
    """`ExitStack`, `nullcontext` and torch's contexts chosen by an argument."""

    def f(x: Tensor, frozen: bool, low: bool) -> Any:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad() if frozen else nullcontext())
            if low:
                stack.enter_context(torch.autocast("cpu", torch.bfloat16))
            stack.callback(lambda: None)
            y = x @ x
        return y, y.requires_grad, torch.is_grad_enabled(), x @ x

    jitted = run.jit(f)
    x = torch.randn(2, 2, requires_grad=True)
    return [jitted(x, frozen, low) for frozen in (False, True) for low in (True, False)] + [jitted(x, False, True)]
