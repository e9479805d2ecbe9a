"""Dtypes: empty tensors, integer arithmetic, promotion, complex, low precision, quantised."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


@case("dtypes")
def reductions_of_empty_tensors(run: Run) -> Any:
    """Sums, products, means (NaN), concatenation, `all`, `any` of empty tensors, with their gradients."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return (
            x.sum(),
            x.prod(),
            x.mean(),
            x.sum(0),
            x.mean(0),
            torch.cat([x, x * 2]),
            x.norm(),
            x.var(),
            x.logsumexp(0),
        )

    jitted, seen = run.jit(f), []
    for shape in ((0,), (3,), (0, 3), (3, 0), (0,), (2, 0, 3)):
        x = torch.randn(shape, requires_grad=True)
        out = jitted(x)
        sum(o.sum() for o in out).backward()
        seen.append((out, x.grad))
    return seen


@case("dtypes")
def errors_of_empty_reductions(run: Run) -> Any:
    """`max`, `argmin`, `min(0)` of an empty tensor raise eager's errors; `all` and `any` do not."""
    calls = [run.jit(g) for g in (lambda x: x.max(), lambda x: x.argmin(), lambda x: x.min(0), lambda x: x.median())]
    fine, seen = run.jit(lambda x: (x.all(), x.any(), x.nansum(), x.numel(), x.sort().values, x.cumsum(-1))), []
    for n in (2, 0, 3, 0):
        x = torch.randn(n)
        kinds = [run.caught(g, x) for g in calls]
        seen.append(([k[0] if n == 0 and isinstance(k, tuple) else k for k in kinds], fine(x)))
    return seen


@case("dtypes")
def empty_masks_and_index_lists(run: Run) -> Any:
    """Empty index lists and tensors, slices of no length, `where` and scatter of nothing."""

    def f(x: Tensor, index: Tensor) -> Any:
        y = x.clone()
        y[index] = 1.0
        z = x.clone()
        z[2:2] = 5.0
        picked = x[index], x[[]], x[2:1], x[:, 0:0], x.index_select(0, index), torch.where(x > 9, x, 0.0)
        return y, z, picked, x.index_add(0, index, x[index]), x.new_zeros(0), torch.stack([x[:0], x[:0]])

    jitted, seen = run.jit(f), []
    for picks in ([], [1], [], [0, 2]):
        x = torch.randn(3, 2, requires_grad=True)
        out = jitted(x, torch.tensor(picks, dtype=torch.int64))
        sum(o.sum() for o in out[2]).backward()
        seen.append((out, x.grad))
    return seen


@case("dtypes")
def empty_boolean_masks(run: Run) -> Any:
    """A boolean mask that picks nothing, then something: reading and assigning."""

    def f(x: Tensor, mask: Tensor) -> Any:
        y = x.clone()
        y[mask] = 7.0
        return y, x.masked_fill(mask, 0.0), x[mask].sum(), x[mask]

    jitted = run.jit(f)
    masks = ([False] * 3, [True, False, True], [False] * 3, [True] * 3)
    return [jitted(torch.randn(3), torch.tensor(mask)) for mask in masks]


@case("dtypes")
def empty_batches_through_layers(run: Run) -> Any:
    """A batch of none through linear, convolution, normalisation, dropout and loss, then a real one."""
    net = nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(9, 2), nn.Dropout(0.1)
    )
    f, seen = run.jit(lambda x, y: nn.functional.cross_entropy(net(x), y, reduction="sum")), []
    for n in (0, 2, 0):
        net.zero_grad()
        loss = f(torch.randn(n, 2, 4), torch.zeros(n, dtype=torch.int64))
        loss.backward()
        seen.append((loss, [p.grad.clone() for p in net.parameters()]))
    return seen


@case("dtypes")
def empty_matrix_products(run: Run) -> Any:
    """Products over an empty inner dimension are zeros; batched ones too."""
    f = run.jit(
        lambda a, b: (
            a @ b,
            torch.einsum("ij,jk->ik", a, b),
            torch.bmm(a[None], b[None]),
            nn.functional.linear(a, b.t()),
        )
    )
    return [f(torch.randn(n, k), torch.randn(k, m)) for n, k, m in ((2, 0, 3), (0, 2, 3), (2, 2, 0), (2, 3, 2))]


@case("dtypes")
def integer_arithmetic_of_negatives(run: Run) -> Any:
    """Floor division, remainder, fmod, true division, shifts of negative integers."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            x // y,
            x % y,
            x.fmod(y),
            x / y,
            torch.div(x, y, rounding_mode="trunc"),
            torch.div(x, y, rounding_mode="floor"),
            x // 3,
            x % -3,
            7 // x.clamp(1),
            2 ** x.abs().clamp(max=4),
            x << 1,
            x >> 1,
            x.remainder(-4),
            -x,
            x.abs(),
        )

    jitted, seen = run.jit(f), []
    for dtype in (torch.int64, torch.int32, torch.int8, torch.int16, torch.int64):
        x = torch.tensor([-7, 7, -8, 5, 0], dtype=dtype)
        seen.append(jitted(x, torch.tensor([2, -2, 3, -5, 1], dtype=dtype)))
    return seen


@case("dtypes")
def bitwise_operations_and_bool(run: Run) -> Any:
    """and, or, xor, not, shifts, on ints of all kinds and on bool."""

    def f(x: Tensor, y: Tensor) -> Any:
        out = [x & y, x | y, x ^ y, ~x, x == y, x.logical_not(), x.sum(), x.any(), x.bitwise_and(1), x.logical_xor(y)]
        return out if x.dtype is torch.bool else [*out, x << 2, x >> 1, x * 2, -x, x + True]

    jitted, seen = run.jit(f), []
    for dtype in (torch.int8, torch.uint8, torch.bool, torch.int32, torch.uint8):
        seen.append(jitted(torch.tensor([0, 1, 100, 127]).to(dtype), torch.tensor([1, 1, 3, 64]).to(dtype)))
    return seen


@case("dtypes")
def overflow_wraps(run: Run) -> Any:
    """Integer overflow wraps; sums of small ints are int64; casts of large and negative floats."""

    def f(x: Tensor, one: Tensor) -> Any:
        high = x + one
        return high, x * 2, x.sum(), x.cumsum(0), x.prod(), x.to(torch.int8), x.to(torch.uint8), x.add_(one), x - 1

    jitted, seen = run.jit(f), []
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.int8):
        top = torch.iinfo(dtype).max
        seen.append(jitted(torch.tensor([top, top - 1, 0], dtype=dtype), torch.tensor(1, dtype=dtype)))
    return seen


@case("dtypes")
def integer_errors(run: Run) -> Any:
    """Division by zero, negative powers, float results written into ints: eager's errors."""
    divide, power = run.jit(lambda x, y: x // y), run.jit(lambda x: x**-1)
    into, mean = run.jit(lambda x: x.div_(2)), run.jit(lambda x: x.mean())
    seen = []
    for y in ([1, 2], [0, 1], [2, 2]):
        x = torch.tensor([4, 5])
        seen.append(
            (run.caught(divide, x, torch.tensor(y)), run.caught(power, x), run.caught(into, x), run.caught(mean, x), x)
        )
    return seen


@case("dtypes")
def promotion_between_dtypes(run: Run) -> Any:
    """Every pair of dtypes, dimensioned, 0-dim and Python numbers on either side."""
    f, seen = run.jit(lambda a, b: (a + b, b * a, torch.where(a > 0, a, b), torch.stack([a + b, b + a]), a / b)), []
    kinds = [torch.bool, torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float32, torch.float64]
    values: list[Any] = [torch.ones(2, dtype=d) for d in kinds] + [torch.ones((), dtype=d) for d in kinds]
    for i, a in enumerate(values):
        seen += [f(a, values[(i + k) % len(values)]) for k in (1, 3, 7)]
    g = run.jit(lambda a, n: (a * n, n / a, a.pow(n)))
    return seen, [g(a, n) for a in values[1:7] for n in (1, 2.5, True)], [run.caught(g, a, 1j)[:1] for a in values[5:7]]


@case("dtypes")
def complex_arithmetic_and_gradients(run: Run) -> Any:
    """Complex inputs, `view_as_real`, `real`, `imag`, `abs`, FFT, and their gradients."""

    def f(z: Tensor, x: Tensor) -> Tensor:
        w = z * z.conj() + z.exp() * x
        y = torch.fft.ifft(torch.fft.fft(w) * z)
        return (
            (y.abs() + y.real * x - y.imag).sum()
            + torch.view_as_real(w).square().sum()
            + torch.polar(x, x).angle().sum()
        )

    jitted, seen = run.jit(f), []
    for dtype, real in (
        (torch.complex64, torch.float32),
        (torch.complex128, torch.float64),
        (torch.complex64, torch.float32),
    ):
        z, x = torch.randn(3, dtype=dtype, requires_grad=True), torch.rand(3, dtype=real, requires_grad=True)
        loss = jitted(z, x)
        loss.backward()
        seen.append((loss, z.grad, x.grad))
    return seen


@case("dtypes")
def low_precision_training(run: Run) -> Any:
    """bfloat16 and float16 networks, gradients in their dtype; float8 casts."""
    seen = []
    for dtype in (torch.bfloat16, torch.float16):
        net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 1)).to(dtype)
        f = run.jit(net)
        for _ in range(2):
            out = f(torch.randn(2, 3, dtype=dtype))
            out.sum().backward()
            seen.append((out, [p.grad.clone() for p in net.parameters()]))
    cast = run.jit(
        lambda x: (x.to(torch.float8_e4m3fn).float(), x.to(torch.float8_e5m2), x.half(), x.bfloat16().double())
    )
    return seen, [cast(torch.randn(3) * 100) for _ in range(2)]


@case("dtypes")
def special_values(run: Run) -> Any:
    """NaN, infinities, -0.0 and subnormals go through as in eager."""

    def f(x: Tensor) -> Any:
        return (
            x.max(),
            x.min(0),
            x.sort(),
            x * 0,
            x.relu(),
            x.clamp(-1, 1),
            x.sign(),
            x == x,
            x.nan_to_num(),
            x.softmax(0),
        )

    jitted, nan, inf = run.jit(f), float("nan"), float("inf")
    rows = ([nan, 1.0, -0.0], [inf, -inf, 0.0], [-0.0, 0.0, 1e-42], [inf, inf, nan])
    return [jitted(torch.tensor(row)) for row in rows]


@case("dtypes", may_refuse=True)
def quantised_inputs(run: Run) -> Any:
    """A quantised tensor is dequantised, compared and returned (or a clear error)."""
    f = run.jit(lambda q: (q.dequantize() * 2, q.int_repr(), q.q_scale(), q))
    return [f(torch.quantize_per_tensor(torch.randn(3), scale, 0, torch.qint8)) for scale in (0.1, 0.1, 0.2)]


@case("dtypes", may_refuse=True)
def quantising_inside(run: Run) -> Any:
    """`quantize_per_tensor` and `fake_quantize_per_tensor_affine` inside, the latter with gradients."""
    f = run.jit(lambda x: torch.quantize_per_tensor(x, 0.1, 2, torch.quint8).dequantize())
    g, seen = run.jit(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127)), []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        out = g(x)
        out.sum().backward()
        seen.append((out, x.grad, f(x.detach())))
    return seen


@case("dtypes")
def default_dtype_between_calls(run: Run) -> Any:
    """The default dtype changes between calls: constants, `arange`, integer division follow it."""
    f = run.jit(lambda n: (torch.tensor([1.5]), torch.zeros(2), n / 2, torch.linspace(0, 1, 3), n.float(), n * 1.5))
    seen = []
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            seen.append(f(torch.arange(3)))
        finally:
            torch.set_default_dtype(torch.float32)
    return seen
