"""Layouts: strides, conjugate and negative bits, expanded, channels-last, sparse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


@case("dtypes")
def conjugate_and_negative_bits(run: Run) -> Any:
    """Inputs with the bit set are read with it; a later call without it, and one with it again."""

    def f(z: Tensor) -> Any:
        return z * 2, z + 1j, z.is_conj(), z.real, z.imag, z.conj().is_conj(), z.resolve_conj().is_conj(), z.abs()

    jitted, z = run.jit(f), torch.randn(2, 3, dtype=torch.complex64)
    seen = [jitted(z), jitted(z.conj()), jitted(z), jitted(z.mH), jitted(z.conj().conj()), jitted(z.conj()[:, 1:])]
    g = run.jit(lambda x: (x + 1, x.is_neg(), x.resolve_neg(), x.clone().is_neg(), x.view(-1)))
    negative = z.conj().imag
    return seen, negative.is_neg(), [g(x) for x in (negative, torch.randn(2, 3), negative, z.imag)]


@case("dtypes")
def conjugate_views_are_written(run: Run) -> Any:
    """Writing through a conjugate view writes the conjugate; matmul of conjugates with gradients."""

    def write(z: Tensor) -> Tensor:
        z.conj()[0].add_(1j)
        z.imag.mul_(2)
        return z.sum()

    f, g, seen = run.jit(write), run.jit(lambda a, b: (a.conj() @ b).abs().sum()), []
    for conjugate in (False, True, False):
        z = torch.randn(2, 2, dtype=torch.complex64)
        a = torch.randn(2, 2, dtype=torch.complex64, requires_grad=True)
        loss = g(a.mH if conjugate else a, z)
        loss.backward()
        seen.append((f(z.conj() if conjugate else z), z, loss, a.grad))
    return seen


@case("dtypes")
def expanded_inputs_with_gradients(run: Run) -> Any:
    """Stride-0 inputs as first and as later call, expanded from a leaf and as a leaf of their own."""
    seen = []
    for first in (True, False):
        f = run.jit(lambda x, y: ((x * y).sum(0), x.stride(), x.sin()))
        for expanded in (first, not first, first):
            x, y = torch.randn(3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
            given = x.expand(2, 3) if expanded else x * y
            out = f(given, y)
            (out[0].sum() + out[2].sum()).backward()
            seen.append((out, x.grad, y.grad))
    leaf = torch.randn(1, 3).expand(2, 3).requires_grad_()
    f(leaf, torch.ones(2, 3))[2].sum().backward()
    return seen, leaf.grad


@case("dtypes")
def strides_that_intermediates_have(run: Run) -> Any:
    """`view`, `reshape`, `as_strided`, `is_contiguous`, `contiguous` see eager's strides."""

    def f(x: Tensor) -> Any:
        y = (x * 2).t()
        z = y.sin()
        facts = [t.stride() for t in (y, z, y.contiguous(), z.reshape(-1), y + y.t().t(), torch.empty_like(y))]
        flags = y.is_contiguous(), z.t().is_contiguous(), y.contiguous() is y, z.t().contiguous().is_contiguous()
        return facts, flags, y.as_strided((2, 2), (1, 2), 1), z.reshape(-1).add_(1), z, y.flatten()

    jitted = run.jit(f)
    given = (torch.randn(2, 3), torch.randn(3, 2).t(), torch.randn(2, 6)[:, ::2], torch.randn(1, 3).expand(2, 3))
    return [jitted(x) for x in given * 2]


@case("dtypes")
def views_that_eager_refuses(run: Run) -> Any:
    """`view` of a non-contiguous intermediate raises eager's error, before and after a contiguous call."""
    f = run.jit(lambda x: (x * 1).view(-1))
    wide, seen = run.jit(lambda x: x.as_strided((3,), (2,), 1)), []
    for x in (torch.randn(3, 2).t(), torch.randn(2, 3), torch.randn(3, 2).t()):
        seen.append((run.caught(f, x), wide(x)))
    return seen


@case("dtypes")
def same_shape_other_strides(run: Run) -> Any:
    """One function with tensors of one shape and many strides: output strides are eager's."""

    def f(x: Tensor, y: Tensor) -> Any:
        return x + y, x.relu(), torch.cat([x, y]), x @ y.t(), x.cumsum(0), x.clone(), torch.zeros_like(x), x.softmax(1)

    jitted, seen = run.jit(f), []
    forms = (
        lambda: torch.randn(2, 3),
        lambda: torch.randn(3, 2).t(),
        lambda: torch.randn(2, 6)[:, ::2],
        lambda: torch.randn(3).expand(2, 3),
        lambda: torch.randn(8)[2:].view(2, 3),
    )
    for left in forms:
        seen += [jitted(left(), right()) for right in forms]
    return seen


@case("dtypes")
def channels_last_networks(run: Run) -> Any:
    """channels_last inputs and weights: outputs and gradients have eager's strides."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Upsample(scale_factor=2))
    f, seen = run.jit(net), []
    for layout, weights in ((0, 0), (1, 0), (1, 1), (0, 1)):
        net.to(memory_format=torch.channels_last if weights else torch.contiguous_format)
        x = torch.randn(2, 3, 6, 6)
        x = (x.contiguous(memory_format=torch.channels_last) if layout else x).requires_grad_()
        net.zero_grad()
        out = f(x)
        (out * torch.arange(out.shape[-1])).sum().backward()
        seen.append(
            (out, x.grad, [p.grad for p in net.parameters()], out.is_contiguous(memory_format=torch.channels_last))
        )
    return seen


@case("dtypes")
def channels_last_inside(run: Run) -> Any:
    """`to(memory_format=...)`, `contiguous(memory_format=...)` and `is_contiguous` inside."""

    def f(x: Tensor) -> Any:
        y = x.to(memory_format=torch.channels_last)
        z = nn.functional.avg_pool2d(y, 2)
        return (
            y,
            y is x,
            z,
            z.contiguous(),
            y.is_contiguous(memory_format=torch.channels_last),
            torch.empty_like(z).stride(),
        )

    jitted, x = run.jit(f), torch.randn(2, 3, 4, 4)
    last = x.contiguous(memory_format=torch.channels_last)
    single = torch.randn(2, 1, 4, 4)
    return [jitted(t) for t in (x, last, single, x, torch.randn(1, 3, 4, 4).expand(2, 3, 4, 4))]


@case("dtypes", may_refuse=True)
def sparse_coo_inputs(run: Run) -> Any:
    """Sparse COO inputs: products, sums, `to_dense`, coalescing, in inference."""
    f, seen = (
        run.jit(lambda s, d: (torch.sparse.mm(s, d), s.to_dense() * 2, s @ d, s * 2, s.is_coalesced(), s.coalesce())),
        [],
    )
    for n in (2, 2, 3):
        s = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.randn(3), (2, n))
        seen += [f(s, torch.randn(n, 2)), f(s.coalesce(), torch.randn(n, 2))]
    return seen


@case("dtypes", may_refuse=True)
def sparse_csr_inputs(run: Run) -> Any:
    """Sparse CSR inputs: products and conversions."""
    f, seen = run.jit(lambda s, d: (s @ d, s.to_dense(), s.values() * 2, s.crow_indices())), []
    for _ in range(2):
        seen.append(f(torch.randn(2, 3).relu().to_sparse_csr(), torch.randn(3, 2)))
    return seen


@case("dtypes", may_refuse=True)
def sparse_inputs_with_gradients(run: Run) -> Any:
    """Gradients of the dense factor and of the sparse one."""
    f, seen = run.jit(lambda s, d: torch.sparse.mm(s, d).square().sum()), []
    for sparse_grad in (False, True, False):
        s = torch.eye(3).to_sparse().requires_grad_(sparse_grad)
        d = torch.randn(3, 2, requires_grad=True)
        loss = f(s, d)
        loss.backward()
        seen.append((loss, d.grad, s.grad.to_dense() if sparse_grad else None))
    return seen


@case("dtypes", may_refuse=True)
def sparse_made_inside(run: Run) -> Any:
    """A sparse matrix built inside from values that require grad; `sparse.sum`, `to_sparse`."""

    def f(values: Tensor, d: Tensor) -> Any:
        s = torch.sparse_coo_tensor([[0, 1], [1, 0]], values, (2, 2))
        return (s @ d).sum(), s.to_dense(), torch.sparse.sum(s, 1).to_dense()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        values, d = torch.randn(2, requires_grad=True), torch.randn(2, 2)
        out = jitted(values, d)
        (out[0] + out[1].sum()).backward()
        seen.append((out, values.grad))
    return seen


@case("dtypes")
def meta_and_zero_dim(run: Run) -> Any:
    """Meta tensors give meta results; 0-dim tensors stay 0-dim and take views and writes."""

    def f(x: Tensor) -> Any:
        y = x * 2
        y += 1
        return y, y.view(1), y.reshape(()), x.expand(3), y.unsqueeze(0).squeeze(), x.shape

    jitted = run.jit(f)
    return [
        jitted(torch.randn(())),
        jitted(torch.ones((), device="meta")),
        jitted(torch.tensor(3)),
        jitted(torch.randn(())),
    ]


@case("dtypes")
def offsets_and_odd_strides(run: Run) -> Any:
    """Slices at other offsets and steps, and overlapping windows, give their own values and gradients."""
    f, seen = run.jit(lambda x: (x * 2, x.sum())), []
    base = torch.randn(12, requires_grad=True)
    for view in (base[:4], base[4:8], base[::3], base[1::3], base.as_strided((4,), (1,), 5), base.flip(0)[:4]):
        out = f(view)
        out[0].sum().backward()
        seen.append((out, base.grad.clone()))
    windows = run.jit(lambda w: (w.sum(1), w.stride()))
    return seen, [windows(base.detach().unfold(0, n, 1)) for n in (3, 4, 3)]


@case("dtypes")
def the_storage_offset_is_read(run: Run) -> Any:
    """`storage_offset()` of an input and of views made inside, used in `as_strided`."""

    def f(x: Tensor) -> Any:
        return x.storage_offset(), x[1:].storage_offset(), x.as_strided((2,), (1,), x.storage_offset() + 1)

    jitted, base = run.jit(f), torch.randn(12)
    return [jitted(view) for view in (base[:4], base[4:8], base[::3], base[1::3], base[:4])]
