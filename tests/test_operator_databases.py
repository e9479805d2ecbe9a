"""PyTorch's databases of custom operators and of autograd functions, values and gradients, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.custom_op_db import custom_op_db
from torch.utils import _pytree

import fulgurite as fg
from compare import differences


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def observe(fn: Any, sample: Any) -> Any:
    """Outputs, inputs as the call left them, and gradients."""

    def copied(leaf: Any) -> Any:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf

    first, args = _pytree.tree_map(copied, (sample.input, sample.args))
    torch.manual_seed(0)
    out = fn(first, *args, **sample.kwargs)
    roots = [leaf for leaf in tensors(out) if leaf.requires_grad]
    inputs = [leaf for leaf in tensors((first, args)) if leaf.requires_grad]
    seeds = [torch.ones_like(root) for root in roots]
    return out, first, args, torch.autograd.grad(roots, inputs, seeds, allow_unused=True) if roots else None


@pytest.mark.filterwarnings("ignore:fulgurite")
@pytest.mark.parametrize("op", [*custom_op_db, *autograd_function_db], ids=lambda op: op.name)
def test_operator(op: Any) -> None:
    jitted, seen = fg.jit(op.op), 0
    for sample in op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd):
        expected = observe(op.op, sample)
        for _ in range(2):
            assert not differences(expected, observe(jitted, sample))
        seen += 1
    assert seen
