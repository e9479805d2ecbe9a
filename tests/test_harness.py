"""The harness lets eager itself pass, and catches jits that are wrong in one thing each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from cleanliness import leaves_nothing_behind
from compare import differences
from harness import Program, check_inference, check_training


class Small(nn.Module):
    """A module with a buffer that counts, dropout, an output that is a view, and one that is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Any]:
        y = F.dropout(self.norm(self.linear(x)), 0.5, self.training)
        mask.mul_(2)
        return {"y": (y * mask).t(), "view": mask[1:], "sizes": (y.shape, 1.5)}


def inputs(call: int) -> tuple[Tensor, ...]:
    return torch.randn(3, 4, requires_grad=True), torch.rand(3, 4)


def forwarding(change: Callable[[dict[str, Any], tuple[Any, ...]], Any]) -> Program:
    """A jit that runs eager and then changes the output."""

    def jit(module: nn.Module) -> Program:
        forward = module.forward

        def wrong(*args: Any) -> Any:
            result = forward(*args)
            return change(result, args) or result

        module.forward = wrong
        return module

    return jit


def transparent(module: nn.Module) -> nn.Module:
    return module


def one_ulp(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    result["y"] = torch.nextafter(result["y"], torch.tensor(torch.inf))


def negative_zero(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    result["y"] = torch.where(result["y"] == 0, -result["y"], result["y"])


def other_dtype(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    result["y"] = result["y"].double()


def other_strides(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    result["y"] = result["y"].contiguous()


def detached(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    result["y"] = result["y"].detach()


def requires_grad_lost_in_input(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    args[0].requires_grad_(False)


def copied_view(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    result["view"] = result["view"].clone()


def list_for_tuple(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    result["sizes"] = list(result["sizes"])


def plain_tuple_for_size(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    result["sizes"] = (tuple(result["sizes"][0]), 1.5)


def missing_key(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    del result["sizes"]


def further_random_draw(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    torch.rand(1)


def mutation_undone(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    args[1].data.div_(2.5)


def grad_mode_changed(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    torch.set_grad_enabled(not torch.is_grad_enabled())


def mode_left_active(result: dict[str, Any], args: tuple[Any, ...]) -> None:
    TorchDispatchMode().__enter__()


OUTPUT_MISTAKES = [
    one_ulp,
    other_dtype,
    other_strides,
    copied_view,
    list_for_tuple,
    plain_tuple_for_size,
    missing_key,
    further_random_draw,
    mutation_undone,
    grad_mode_changed,
    mode_left_active,
]
TRAINING_MISTAKES = [detached, negative_zero, requires_grad_lost_in_input]


@pytest.fixture(autouse=True)
def restore_global_state() -> Any:
    yield
    torch.set_grad_enabled(True)
    while torch._C._len_torch_dispatch_stack():
        torch._C._pop_torch_dispatch_stack(None)


def test_eager_passes() -> None:
    check_inference(Small, inputs, jit=transparent)
    check_training(Small, inputs, jit=transparent)


@pytest.mark.parametrize("mistake", OUTPUT_MISTAKES)
def test_inference_catches(mistake: Any) -> None:
    with pytest.raises(AssertionError, match=r"differences from eager|left behind"):
        check_inference(Small, inputs, jit=forwarding(mistake))


@pytest.mark.parametrize("mistake", [*OUTPUT_MISTAKES, *TRAINING_MISTAKES])
def test_training_catches(mistake: Any) -> None:
    with pytest.raises(AssertionError, match=r"differences from eager|left behind"):
        check_training(Small, inputs, jit=forwarding(mistake))


def test_result_of_the_first_call_forever() -> None:
    def jit(module: nn.Module) -> Program:
        results: list[Any] = []

        def stale(*args: Any) -> Any:
            results.append(module(*args))
            return results[0]

        return stale

    with pytest.raises(AssertionError, match="call 1"):
        check_inference(Small, inputs, jit=jit)


def test_buffers_that_are_not_updated() -> None:
    def jit(module: nn.Module) -> Program:
        return lambda *args: copy.deepcopy(module)(*args)

    with pytest.raises(AssertionError, match=r"running_mean.*values differ"):
        check_training(Small, inputs, jit=jit)


def test_gradients_that_are_wrong_in_one_parameter() -> None:
    def jit(module: Small) -> Program:
        module.linear.weight.register_hook(lambda gradient: gradient * 1.0000001)
        return module

    with pytest.raises(AssertionError, match="gradient of module.linear.weight: values differ"):
        check_training(Small, inputs, jit=jit)


def test_zeros_where_eager_has_no_gradient() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    def jit(module: nn.Module) -> Program:
        return lambda x: module(x) + 0 * sum(p.sum() for p in module.unused.parameters())

    check_training(Unused, lambda step: (torch.randn(2, 2),), jit=transparent)
    with pytest.raises(AssertionError, match=r"gradient of module.unused.weight: is a Tensor, eager's is None"):
        check_training(Unused, lambda step: (torch.randn(2, 2),), jit=jit)


def test_fake_tensor_left_in_an_attribute() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    with (
        pytest.raises(AssertionError, match=r"module.0\['cache'\]\[1\]: is a fake tensor"),
        leaves_nothing_behind(module),
    ):
        module[0].cache = [1, FakeTensorMode().from_tensor(torch.zeros(2))]


def test_a_function_is_checked_too() -> None:
    def make() -> Program:
        return lambda x, scale: (x * scale).cumsum(0)

    def function_inputs(call: int) -> dict[str, Any]:
        return {"x": torch.randn(5, requires_grad=True), "scale": call + 1.5}

    check_inference(make, function_inputs, jit=lambda f: f)
    check_training(make, function_inputs, jit=lambda f: f)
    with pytest.raises(AssertionError, match="dtype"):
        check_training(make, function_inputs, jit=lambda f: lambda x, scale: f(x.double(), scale))


@pytest.mark.parametrize(
    ("eager", "jitted"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])),
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64).conj()),
        (torch.eye(2).to_sparse(), torch.eye(2)),
        (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse()),
        (torch.eye(2).to_sparse_csr(), (2 * torch.eye(2)).to_sparse_csr()),
        (torch.zeros(0, 3), torch.zeros(3, 0)),
        (nn.Parameter(torch.zeros(2)), torch.zeros(2, requires_grad=True)),
        (True, 1),
        (1, 1.0),
        (0.0, -0.0),
        ({"a": 1, "b": 2}, {"a": 1}),
        (None, torch.zeros(2)),
    ],
)
def test_values_that_differ(eager: object, jitted: object) -> None:
    assert differences(eager, jitted)
    assert not differences(eager, eager)
    assert not differences(jitted, jitted)


def test_nan_is_equal_to_nan_of_any_payload() -> None:
    quiet = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert not differences(quiet[:1], quiet[1:].clone())
