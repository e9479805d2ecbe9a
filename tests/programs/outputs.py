"""Outputs: their structure, what may be in it, and which objects they are."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from programs.case import Run, case

Stats = namedtuple("Stats", ["mean", "std", "n"])


class Step(NamedTuple):
    state: Tensor
    extra: dict[str, Any] | None = None


@dataclass
class ModelOutput:
    logits: Tensor
    loss: Tensor | None = None
    hidden: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Frozen:
    value: Tensor
    name: str


class Log(list):  # type: ignore[type-arg]
    """A list of results with a class of its own."""


def same(a: Tensor, b: Tensor) -> tuple[bool, bool]:
    return a is b, a.data_ptr() == b.data_ptr()


@case("outputs")
def nested_structures(run: Run) -> Any:
    """dict, list, tuple and namedtuple with None, int, str, sizes, in their order."""

    def f(x: Tensor) -> Any:
        return {
            "z": [x + 1, (x * 2, None)],
            "a": Stats(x.mean(), x.std(), x.numel()),
            "shape": x.shape,
            "size0": x.size(0),
            "text": f"{tuple(x.shape)}",
            3: (x.dtype, x.device, x.dim(), x.requires_grad),
            "nested": {"empty": [], "none": None, "t": (), "d": {}, "step": Step(x.sin(), {"k": 1.5})},
        }

    jitted = run.jit(f)
    given = (torch.randn(2, 3), torch.randn(4), torch.randn(2, 3), torch.randn(2, requires_grad=True))
    outs = [jitted(x) for x in given]
    return outs, [list(out) for out in outs], [type(out["shape"]).__name__ for out in outs]


@case("outputs")
def none_empty_tuple_empty_dict(run: Run) -> Any:
    """A function may return None, () or {}, and still writes its input."""

    def none(x: Tensor) -> None:
        x.add_(1)

    def empty(x: Tensor) -> tuple[()]:
        x.mul_(2)
        return ()

    def empty_dict(x: Tensor) -> dict[str, Tensor]:
        x[0] = 7.0
        return {}

    def lists(x: Tensor) -> list[Any]:
        x.t_() if x.dim() == 2 else x.zero_()
        return [[], {}, (), None]

    jitted, seen = [run.jit(f) for f in (none, empty, empty_dict, lists)], []
    for size in (2, 2, 3):
        for f in jitted:
            x = torch.randn(size)
            seen.append((f(x), x))
    return seen


@case("outputs")
def a_module_that_only_counts(run: Run) -> Any:
    """A module without output whose buffers advance."""

    class Tracker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Tensor) -> None:
            self.count += 1
            self.total.add_(x.sum(0))

    tracker = Tracker()
    f = run.jit(tracker)
    return [(f(torch.randn(2, 3)), tracker.count.clone(), tracker.total.clone()) for _ in range(3)]


@case("outputs")
def numbers_strings_and_types_only(run: Run) -> Any:
    """No tensor comes out: ints, floats, strings, dtypes, classes."""

    def f(x: Tensor, n: int) -> Any:
        return x.shape[0] * n, n / 2, "a" * n, x.dtype, torch.float64, nn.Linear, x.stride(), x.is_contiguous(), n > 1

    jitted = run.jit(f)
    return [jitted(torch.randn(2, 3), 1), jitted(torch.randn(3, 2).t(), 2), jitted(torch.randn(2, 3).double(), True)]


@case("outputs")
def dataclasses_and_ordered_dicts(run: Run) -> Any:
    """Dataclasses, OrderedDict, with tensors and None in them."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            hidden = [x]
            for layer in self.layers:
                hidden.append(layer(hidden[-1]).tanh())
            loss = None if labels is None else nn.functional.cross_entropy(hidden[-1], labels)
            return ModelOutput(hidden[-1], loss, tuple(hidden)), OrderedDict(b=hidden[0], a=Frozen(hidden[1], "first"))

    f, seen = run.jit(Net()), []
    for labels in (None, torch.tensor([0, 2]), None):
        x = torch.randn(2, 3)
        out, named = f(x, labels)
        seen.append((out, named, list(named), out.hidden[0] is x, out.logits is out.hidden[-1], named["b"] is x))
        if out.loss is not None:
            out.loss.backward()
    return seen


@case("outputs")
def other_containers(run: Run) -> Any:
    """defaultdict, deque, Counter keep their classes and contents."""

    def f(x: Tensor) -> Any:
        groups: defaultdict[str, list[Tensor]] = defaultdict(list)
        groups["a"].append(x + 1)
        groups["b"].append(x * 2)
        recent = deque([x.sin(), x.cos()], maxlen=2)
        recent.append(x.tan())
        return groups, list(recent), recent.maxlen, Counter("aab")

    jitted, seen = run.jit(f), []
    for _ in range(2):
        groups, *rest = jitted(torch.randn(2))
        seen.append((dict(groups), type(groups).__name__, len(groups["new"]), rest))
    return seen


@case("outputs")
def a_subclass_of_list(run: Run) -> Any:
    """A list subclass keeps its class and holds real tensors."""
    f = run.jit(lambda x: Log([x.exp(), 1]))
    return [f(torch.randn(2)) for _ in range(2)]


@case("outputs")
def deque_as_an_output(run: Run) -> Any:
    """A deque of tensors with a maxlen, returned itself."""
    f, seen = run.jit(lambda x: deque([x.sin(), x.cos()], maxlen=2)), []
    for _ in range(2):
        out = f(torch.randn(2))
        seen.append((type(out).__name__, list(out), out.maxlen))
    return seen


@case("outputs")
def sets_slices_and_ranges(run: Run) -> Any:
    """A set, a frozenset, a range, a slice, a complex and a bytes object."""
    f = run.jit(lambda x, n: ({1, n}, frozenset((n,)), range(n), slice(0, n), 1j * n, b"ab", ..., x + n))
    return [f(torch.randn(2), n) for n in (2, 3, 2)]


@case("outputs")
def named_results_of_torch(run: Run) -> Any:
    """`torch.return_types` come out as such: fields and class names."""
    f = run.jit(lambda x: (x.max(1), x.sort(), torch.linalg.qr(x), torch.svd(x), x.topk(1), x.unbind(), x.split(1)))
    outs = [f(torch.randn(2, n)) for n in (2, 3, 2)]
    return outs, [[type(o).__name__ for o in out] for out in outs], [out[0].values + out[0].indices for out in outs]


@case("outputs")
def one_tensor_at_several_places(run: Run) -> Any:
    """One object returned several times is one object; equal values are several."""

    def f(x: Tensor) -> Any:
        y = x * 2
        return {"a": y, "b": [y, x * 2], "c": (x, y)}

    jitted, seen = run.jit(f), []
    for grad in (False, True, False):
        x = torch.randn(2, requires_grad=grad)
        out = jitted(x)
        facts = [
            same(out["a"], out["b"][0]),
            same(out["a"], out["b"][1]),
            same(out["c"][0], x),
            same(out["c"][1], out["a"]),
        ]
        seen.append((out, facts))
        with torch.no_grad():
            out["a"].add_(1)
        seen.append((out["b"][0], out["b"][1], x))
    return seen


@case("outputs")
def containers_are_fresh_or_given(run: Run) -> Any:
    """A list made inside is new at every call; a dict given and returned is the caller's own."""
    f, seen = run.jit(lambda x, d, xs: ([x + 1], d, xs, {"d": d})), []
    previous = None
    d: dict[str, Any] = {"k": torch.randn(2), "n": 1}
    xs = [torch.randn(2)]
    for _ in range(2):
        made, own, same_list, wrapped = f(torch.randn(2), d, xs)
        seen.append((made, own is d, same_list is xs, wrapped["d"] is d, made is previous))
        made.append(1)
        own["n"] = 1
        previous = made
    return seen


@case("outputs")
def an_input_next_to_a_view_of_it(run: Run) -> Any:
    """Identity for the input, shared memory for its view, twice in a row."""
    f, seen = run.jit(lambda x: (x, x[1:], x.view(-1), x.t(), x.detach(), x.view_as(x))), []
    for grad in (False, False, True, True):
        x = torch.randn(2, 2, requires_grad=grad)
        out = f(x)
        seen.append(([same(o, x) for o in out], [o._is_view() for o in out], [o._base is x for o in out]))
        with torch.no_grad():
            out[1].fill_(3.0)
        seen.append((x.clone(), [o.clone() for o in out], [o.requires_grad for o in out]))
    return seen


@case("outputs")
def views_of_an_intermediate(run: Run) -> Any:
    """Two outputs that are views of one tensor made inside share its memory, as does the tensor itself."""

    def f(x: Tensor) -> Any:
        y = x * 2
        return y[0], y[1], y, y.view(-1), y.clone()

    jitted, seen = run.jit(f), []
    for grad in (False, True, False):
        out = jitted(torch.randn(2, 2, requires_grad=grad))
        with torch.no_grad():
            out[0].fill_(5.0)
            out[3][3] = -1.0
        seen.append((out, out[0]._base is out[2], [o._is_view() for o in out], out[1].storage_offset()))
    return seen


@case("outputs")
def parameters_and_buffers_come_out_as_themselves(run: Run) -> Any:
    """A module that returns its own parameter, buffer and a submodule's weight."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("steps", torch.zeros(2))

        def forward(self, x: Tensor) -> Any:
            self.steps.add_(1)
            return self.linear(x), self.linear.weight, self.steps, self.steps.clone(), self.linear.bias.detach()

    net = Net()
    f, seen = run.jit(net), []
    for _ in range(2):
        y, weight, steps, copy, bias = f(torch.randn(1, 2))
        seen.append((y, weight is net.linear.weight, steps is net.steps, copy, same(bias, net.linear.bias)))
        seen.append((isinstance(weight, nn.Parameter), type(weight).__name__, bias.requires_grad))
        with torch.no_grad():
            weight.mul_(0.5)
    return seen, list(net.parameters())


@case("outputs")
def modules_and_functions_as_outputs(run: Run) -> Any:
    """A function returns the module and the function that it was given, or one of several."""
    linear, relu = nn.Linear(2, 2), nn.ReLU()
    f = run.jit(lambda x, m, n: (m(x), m, torch.sin, (linear, relu)[n]))
    outs = [f(torch.randn(2), m, n) for m, n in ((linear, 0), (relu, 1), (linear, 1))]
    return [(o[0], o[1] is linear, o[1] is relu, o[2] is torch.sin, o[3] is linear) for o in outs]


@case("outputs")
def constants_are_fresh_at_every_call(run: Run) -> Any:
    """Tensors made without inputs are new at every call: writing to them is not seen by the next."""

    def f(x: Tensor) -> Any:
        return x + 1, torch.zeros(2), torch.arange(3), torch.tensor([1.0, 2.0]), torch.tensor(3), torch.ones_like(x)

    jitted, seen = run.jit(f), []
    for _ in range(3):
        out = jitted(torch.randn(2))
        seen.append([o.clone() for o in out])
        for o in out:
            o.add_(5)
    return seen, len({o.data_ptr() for o in (jitted(torch.zeros(2))[1], jitted(torch.zeros(2))[1])})


@case("outputs")
def a_closure_tensor_comes_out_as_itself(run: Run) -> Any:
    """A captured tensor and a global one are returned as the same objects, re-bound ones too."""
    held = {"w": torch.randn(2)}
    table = [torch.randn(2)]
    f, seen = run.jit(lambda x: (x + held["w"], held["w"], table[0], table[0][1:])), []
    for _ in range(3):
        y, w, t, view = f(torch.randn(2))
        seen.append((y, w is held["w"], t is table[0], view.data_ptr() == table[0][1:].data_ptr()))
        view.add_(1)
        seen.append(table[0].clone())
        held["w"], table[0] = torch.randn(2), torch.randn(2)
    return seen


@case("outputs")
def flags_of_outputs(run: Run) -> Any:
    """requires_grad, is_leaf and grad_fn's presence of each output."""

    def f(x: Tensor, y: Tensor) -> Any:
        with torch.no_grad():
            a = x * 2
        b = (x * y).mul_(2)
        return a, b, x > 0, x.detach() + 1, y.argmax(), torch.zeros(2), *x.unbind(), x.max(0)

    jitted, seen = run.jit(f), []
    for x_grad, y_grad in ((True, False), (False, False), (False, True), (True, True)):
        out = jitted(torch.randn(2, requires_grad=x_grad), torch.randn(2, requires_grad=y_grad))
        flat = [*out[:-1], *out[-1]]
        seen.append([(o.requires_grad, o.is_leaf, o.grad_fn is None) for o in flat])
    return seen


@case("outputs")
def nothing_but_an_input(run: Run) -> Any:
    """Identity functions: the input itself, in a list, one of two, a module that passes through."""
    own, listed = run.jit(lambda x: x), run.jit(lambda x, y, first: [x if first else y])
    module, seen = run.jit(nn.Sequential(nn.Identity(), nn.Dropout(0.0))), []
    eval_module = run.jit(nn.Sequential(nn.Identity(), nn.Dropout(0.5)).eval())
    for grad in (False, True, False):
        x, y = torch.randn(2, requires_grad=grad), torch.randn(2)
        seen.append((own(x) is x, listed(x, y, True)[0] is x, listed(x, y, False)[0] is y, listed(x, x, False)[0] is x))
        seen.append((same(module(x), x)[0], same(eval_module(x), x), eval_module(x).grad_fn is None))
    return seen


@case("outputs")
def a_leaf_that_is_made_inside(run: Run) -> Any:
    """A leaf that requires grad is made inside and returned next to a loss of it."""

    def f(x: Tensor) -> Any:
        leaf = torch.ones(2, requires_grad=True)
        return leaf, (leaf * x).sum()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        leaf, loss = jitted(torch.randn(2))
        loss.backward()
        seen.append((leaf, leaf.grad, leaf.is_leaf))
    return seen


@case("outputs")
def a_parameter_that_is_made_inside(run: Run) -> Any:
    """`nn.Parameter(...)` and a whole module made inside are returned."""

    def f(x: Tensor) -> Any:
        parameter = nn.Parameter(x.detach() * 2)
        return parameter, parameter * x

    jitted, seen = run.jit(f), []
    for _ in range(2):
        parameter, y = jitted(torch.randn(2))
        y.sum().backward()
        seen.append((type(parameter).__name__, parameter, parameter.grad))
    return seen
