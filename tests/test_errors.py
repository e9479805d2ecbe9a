"""What cannot be traced, and what eager refuses too: the error names the user's line, and nothing stays behind."""

from __future__ import annotations

import copy
import inspect
import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fulgurite as fg
from cleanliness import generator_state, leaves_nothing_behind
from compare import differences
from harness import Program


def item_decides(x: Tensor) -> Tensor:
    y = x.sin()
    if y.sum().item() > 0:  # fails here
        return y + 1
    return y - 1


def bool_decides(x: Tensor) -> Tensor:
    y = x.sin()
    return y + 1 if (y > 0).all() else y - 1  # fails here


def tensor_is_a_loop_bound(x: Tensor) -> Tensor:
    y = x.sin()
    for _ in range(int(y.abs().sum())):  # fails here
        y = y * 2
    return y


def list_of_values(x: Tensor) -> Tensor:
    y = x.sin()
    return y * len([value for value in y.tolist() if value > 0])  # fails here


def shape_from_values(x: Tensor) -> Tensor:
    y = x.sin()
    return y.new_zeros(len(y.nonzero()))  # fails here


def leaves_torch_for_numpy(x: Tensor) -> Tensor:
    y = x.sin()
    return y + float(y.detach().numpy().max())  # fails here


DECISIONS = [item_decides, bool_decides, tensor_is_a_loop_bound, list_of_values, shape_from_values]


def line_of(program: Program) -> int:
    """The line of a program that says `fails here`."""
    lines, first = inspect.getsourcelines(program)
    return first + next(number for number, line in enumerate(lines) if "fails here" in line)


def assert_names_the_line(error: BaseException, line: int) -> None:
    """The error as a user sees it, with its notes and its traceback, has the user's file and line."""
    text = "".join(traceback.format_exception(error))
    assert re.search(rf'test_errors\.py(:|", line ){line}\b', text), text


def raised(program: Program, *args: Any) -> BaseException:
    """The exception that a call raises; neither torch's state nor the generators may change."""
    before = generator_state()
    with leaves_nothing_behind(), pytest.raises(Exception) as caught:
        program(*args)
    assert not differences(before, generator_state(), "generators")
    return caught.value


@pytest.mark.parametrize("program", DECISIONS)
def test_decision_on_values(program: Program) -> None:
    jitted = fg.jit(program)
    for factor in (1.0, -1.0, 0.1, 1.0, -1.0):
        x = torch.tensor([0.5, 1.0, 2.0]) * factor
        assert not differences(program(x), jitted(x), "output")
    assert not fg.stats(jitted).uncompiled


def test_what_cannot_be_traced() -> None:
    x = torch.tensor([0.5, 1.0, 2.0])
    error = raised(fg.jit(leaves_torch_for_numpy, on_unguarded="error"), x)
    assert isinstance(error, fg.TraceError)
    assert re.search(rf"test_errors\.py:{line_of(leaves_torch_for_numpy)}\b", str(error)), str(error)
    assert "torch.sin" in str(error.trace) or ".sin(" in str(error.trace), "the trace until then comes with the error"
    jitted = fg.jit(leaves_torch_for_numpy)
    with pytest.warns(UserWarning, match=rf"test_errors\.py:{line_of(leaves_torch_for_numpy)}"):
        assert not differences(leaves_torch_for_numpy(x), jitted(x), "output")
    assert fg.stats(jitted).uncompiled == 1


def flagged(x: Tensor, decide: bool) -> Tensor:
    y = F.dropout(x.sin(), 0.5)
    if decide and y.detach().numpy().sum() > 0:
        return y + 1
    return y - 1


def test_the_next_good_call_works() -> None:
    jitted = fg.jit(flagged, on_unguarded="error")
    x = torch.randn(8, requires_grad=True)
    assert isinstance(raised(jitted, x, True), fg.TraceError)
    for seed in range(2):
        torch.manual_seed(seed)
        expected = flagged(x, False)
        torch.manual_seed(seed)
        assert not differences(expected, jitted(x, False), "output")
    assert isinstance(raised(jitted, x, True), fg.TraceError)


class Opaque:
    """Hides a tensor where no tracer looks."""

    __slots__ = ("get",)

    def __init__(self, tensor: Tensor) -> None:
        self.get = lambda: tensor


def uses_opaque(x: Tensor, box: Any) -> Tensor:  # fails here
    return x + box.get() if isinstance(box, Opaque) else x + 1


def uses_iterator(x: Tensor, box: Any) -> Tensor:  # fails here
    return x + (next(box) if hasattr(box, "__next__") else 1)


@pytest.mark.parametrize(
    ("program", "bad"),
    [
        (uses_iterator, lambda: iter([torch.ones(3)])),
        (uses_iterator, lambda: (torch.ones(3) for _ in range(2))),
    ],
    ids=["iterator", "generator"],
)
def test_unsupported_input(program: Program, bad: Callable[[], Any]) -> None:
    jitted = fg.jit(program, on_unguarded="error")
    x = torch.ones(3)
    error = raised(jitted, x, bad())
    assert isinstance(error, fg.TraceError)
    assert "box" in str(error), f"names the argument: {error}"
    assert_names_the_line(error, line_of(program))
    assert not differences(program(x, None), jitted(x, None), "output")
    with pytest.warns(UserWarning, match="box"):
        assert not differences(program(x, bad()), fg.jit(program)(x, bad()), "output")


def test_an_object_that_hides_a_tensor() -> None:
    jitted, x = fg.jit(uses_opaque), torch.ones(3)
    for value in (1.0, 2.0, 3.0):
        box = Opaque(torch.full((3,), value))
        assert not differences(uses_opaque(x, box), jitted(x, box), "output")


def wrong_shape(x: Tensor) -> Tensor:
    y = x.sin()
    return F.linear(y, torch.ones(2, 4))  # fails here


def wrong_argument(x: Tensor) -> Tensor:
    y = x.sin()
    return y.sum(dim="no such dimension") if len(x) == 3 else y  # fails here


def no_such_attribute(x: Tensor) -> Tensor:
    y = x.sin()
    return y.no_such_method() if len(x) == 3 else y  # fails here


def raises_itself(x: Tensor) -> Tensor:
    y = F.dropout(x.sin(), 0.5)
    if len(x) == 3:
        raise LookupError(f"no rows of {len(x)}")  # fails here
    return y


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [wrong_shape, wrong_argument, no_such_attribute, raises_itself])
def test_errors_of_eager_stay_what_they_are(program: Program, grad: bool) -> None:
    bad, good = torch.ones(3, requires_grad=grad), torch.ones(4, requires_grad=grad)
    jitted = fg.jit(program)
    with pytest.raises(Exception) as eager:
        program(bad)
    for seed in range(2):
        torch.manual_seed(seed)
        with pytest.raises(type(eager.value)):
            program(bad)
        drawn = generator_state()
        torch.manual_seed(seed)
        with leaves_nothing_behind(), pytest.raises(type(eager.value)) as caught:
            jitted(bad)
        assert not differences(drawn, generator_state(), "generators")
        error = caught.value
        assert type(error) is type(eager.value)
        assert str(eager.value).splitlines()[0] in str(error)
        assert_names_the_line(error, line_of(program))
    for _ in range(2):
        torch.manual_seed(0)
        expected = program(good)
        torch.manual_seed(0)
        assert not differences(expected, jitted(good), "output")


def looks_up(indices: Tensor, weight: Tensor) -> Tensor:
    scaled = weight * 2
    return F.embedding(indices, scaled)  # fails here


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("good_first", [False, True])
def test_error_that_only_the_data_shows(good_first: bool, grad: bool) -> None:
    jitted = fg.jit(looks_up)
    weight = torch.randn(4, 2, requires_grad=grad)
    good, bad = torch.tensor([0, 3]), torch.tensor([0, 4])
    if good_first:
        assert not differences(looks_up(good, weight), jitted(good, weight), "output")
    error = raised(jitted, bad, weight)
    assert type(error) is IndexError
    assert_names_the_line(error, line_of(looks_up))
    assert not differences(looks_up(good, weight), jitted(good, weight), "output")


class Counting(nn.Module):
    """Writes a buffer; where it fails, or is asked to, also attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0
        self.history: list[Tensor] = []
        self.last: Tensor | None = None
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor, fail: bool, write: bool = False) -> Tensor:
        y = self.linear(x)
        if fail or write:
            self.calls += 1
            self.last = y.detach()
            self.history.append(y.detach())
        self.total += y.detach().sum(0)
        if fail:
            raise ArithmeticError("in the middle")
        return y

    def state(self) -> dict[str, Any]:
        """All that a call may change."""
        return {"calls": self.calls, "last": self.last, "history": list(self.history), "total": self.total.clone()}


def test_module_attributes_after_an_exception() -> None:
    module = Counting()
    jitted = fg.jit(module)
    with leaves_nothing_behind(module, module.history), pytest.raises(ArithmeticError, match="in the middle"):
        jitted(torch.randn(2, 3), True)
    eager = copy.deepcopy(module)
    for _ in range(2):
        x = torch.randn(2, 3)
        with leaves_nothing_behind(module, module.history):
            assert not differences(eager(x, False), jitted(x, False), "output")
        assert not differences(eager.state(), module.state(), "module")


def test_attributes_that_are_written_are_right_or_refused() -> None:
    module = Counting()
    eager, before = copy.deepcopy(module), module.state()
    jitted = fg.jit(module)
    x = torch.randn(2, 3)
    with leaves_nothing_behind(module, module.history):
        try:
            output = jitted(x, False, write=True)
        except fg.TraceError as error:
            assert "calls" in str(error)
            assert not differences(before, module.state(), "module")
        else:
            assert not differences(eager(x, False, write=True), output, "output")
            assert not differences(eager.state(), module.state(), "module")


class Broken(torch.autograd.Function):
    """The identity, whose gradient raises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ArithmeticError("in the backward")


def test_exception_in_the_backward() -> None:
    """The forward works as in eager, and the exception comes when the gradient is asked for."""

    def program(x: Tensor) -> Tensor:
        return Broken.apply(x.sin())

    jitted = fg.jit(program)
    x = torch.randn(3, requires_grad=True)
    output = jitted(x)
    assert not differences(program(x), output, "output")
    with leaves_nothing_behind(), pytest.raises(ArithmeticError, match="in the backward"):
        output.sum().backward()
    with torch.no_grad():
        assert not differences(program(x), jitted(x), "output")


def test_missing_and_surplus_arguments() -> None:
    jitted = fg.jit(flagged)
    for args in ((), (torch.ones(2),), (torch.ones(2), False, 3)):
        assert isinstance(raised(jitted, *args), TypeError)
    assert jitted(torch.ones(2), decide=False).shape == (2,)


def test_unknown_option() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        fg.jit(flagged, no_such_option=1)
