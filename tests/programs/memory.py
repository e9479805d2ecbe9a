"""What a jitted function keeps alive, and for how long."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import fulgurite as fg
from programs.case import Run, case


def watch(*tensors: Tensor) -> list[StorageWeakRef]:
    return [StorageWeakRef(t.untyped_storage()) for t in tensors]


def gone(refs: list[Any]) -> list[bool]:
    gc.collect()
    return [ref.expired() if isinstance(ref, StorageWeakRef) else ref() is None for ref in refs]


def misses_at_most(run: Run, f: Any, most: int) -> bool:
    """Whether a jitted function compiled at most so often; eager never does."""
    return not run.compiled or fg.stats(f).misses <= most


@case("memory")
def arguments_and_results_are_not_kept(run: Run) -> Any:
    """Neither the arguments nor the result of the last call stay alive, in inference and in training."""
    f, seen = run.jit(lambda x, y: ((x @ y).relu(), x.view(-1))), []
    for grad in (False, True, True):
        x, y = torch.randn(3, 3, requires_grad=grad), torch.randn(3, 3)
        out = f(x, y)
        refs = [*watch(x, y, *out), weakref.ref(x), weakref.ref(out[0])]
        del x, y, out
        seen.append(gone(refs))
    return seen


@case("memory")
def arguments_in_containers_are_not_kept(run: Run) -> Any:
    """A dict, a list and an object given as arguments are freed after the call, and their tensors too."""

    class Batch:
        def __init__(self) -> None:
            self.x, self.items = torch.randn(3), {"a": [torch.randn(3)]}

    f, seen = run.jit(lambda batch: {"y": batch.x * 2, "z": batch.items["a"][0].sin()}), []
    for _ in range(2):
        batch = Batch()
        refs = [weakref.ref(batch), *watch(batch.x, batch.items["a"][0])]
        out = f(batch)
        del batch
        seen.append((out, gone(refs)))
    return seen


@case("memory")
def arguments_of_a_failed_call_are_not_kept(run: Run) -> Any:
    """After an exception that was handled, the arguments are freed."""

    def fail(x: Tensor) -> Tensor:
        y = x.exp()
        if x.shape[0] == 3:
            raise ValueError("three")
        return y

    f, seen = run.jit(fail), []
    for n in (3, 2, 3):
        x = torch.randn(n)
        refs = [*watch(x), weakref.ref(x)]
        out = run.caught(f, x)
        del x
        seen.append((out, gone(refs)))
    return seen


@case("memory")
def saved_input_is_freed_by_backward(run: Run) -> Any:
    """A non-leaf input saved for backward is freed by backward although the output lives on."""
    f, seen = run.jit(lambda h: h.exp() * h), []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        h = x * 2
        y = f(h)
        refs = watch(h)
        del h
        alive = gone(refs)
        y.sum().backward()
        seen.append((alive, gone(refs), y, x.grad))
    return seen


@case("memory")
def saved_input_is_freed_with_the_output(run: Run) -> Any:
    """Without a backward, what was saved goes with the output; a detached copy of it keeps nothing."""
    f, seen = run.jit(lambda h, w: (h @ w).tanh()), []
    for _ in range(2):
        w = torch.randn(3, 3, requires_grad=True)
        h = torch.randn(3, 3, requires_grad=True) * 2
        y = f(h, w)
        refs, log = watch(h), y.detach()
        del h
        first = gone(refs)
        del y
        seen.append((first, gone(refs), log))
    return seen


@case("memory")
def unsaved_input_is_freed_at_once(run: Run) -> Any:
    """An input whose value no gradient needs is freed after the forward."""
    f, seen = run.jit(lambda h: h.sum(0) + 1), []
    for _ in range(2):
        x = torch.randn(3, 3, requires_grad=True)
        h = x * 2
        y = f(h)
        refs = watch(h)
        del h
        seen.append(gone(refs))
        y.sum().backward()
        seen.append(x.grad)
    return seen


@case("memory")
def retained_graph_keeps_until_released(run: Run) -> Any:
    """`retain_graph=True` keeps the saved input, the last backward frees it."""
    f, seen = run.jit(lambda h: h.square() * h), []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        h = x * 2
        y = f(h).sum()
        refs = watch(h)
        del h
        y.backward(retain_graph=True)
        first = gone(refs)
        y.backward()
        seen.append((first, gone(refs), x.grad))
    return seen


@case("memory")
def freed_after_an_exception_in_backward(run: Run) -> Any:
    """A hook that raises in backward does not keep the activations once the output is gone."""

    def explode(g: Tensor) -> Tensor:
        raise RuntimeError("in a hook")

    f, seen = run.jit(lambda h: h.exp() * h), []
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        h = x * 2
        h.register_hook(explode)
        y = f(h)
        refs = watch(h)
        del h
        caught = run.caught(y.sum().backward)
        del y
        seen.append((caught, gone(refs)))
    return seen


@case("memory")
def changing_int_argument(run: Run) -> Any:
    """An int that is different at every call: right values, and no endless compiling."""
    f = run.jit(lambda x, step: x * step + step // 3)
    seen = [f(torch.ones(2), step) for step in range(60)]
    return seen, misses_at_most(run, f, 20)


@case("memory")
def changing_counter_attribute(run: Run) -> Any:
    """A module that counts its own calls in an attribute: right values, and memory that does not grow."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.step

    model = Counting()
    jitted, seen, sizes = run.jit(model), [], []
    for step in range(80):
        model.step = step
        seen.append(jitted(torch.ones(2)))
        if step in (40, 79):
            gc.collect()
            sizes.append(len(gc.get_objects()))
    return seen, sizes[1] - sizes[0] < 2000, misses_at_most(run, jitted, 20)


@case("memory")
def changing_float_and_string_arguments(run: Run) -> Any:
    """A learning rate that decays and a name that changes: right values each time."""
    f = run.jit(lambda w, g, lr, name: (w - lr * g, f"step {name}"))
    seen = [f(torch.ones(2), torch.ones(2), 0.1 * 0.9**i, str(i)) for i in range(40)]
    return seen, misses_at_most(run, f, 20)


@case("memory")
def cotangents_and_gradients_are_not_kept(run: Run) -> Any:
    """Incoming gradients and parameter gradients are freed once the user drops them."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    jitted, seen = run.jit(model), []
    for _ in range(2):
        y = jitted(torch.randn(2, 3))
        cotangent = torch.randn(2, 2)
        y.backward(cotangent)
        refs = watch(cotangent, *(p.grad for p in model.parameters()))
        del cotangent
        model.zero_grad(set_to_none=True)
        seen.append((gone(refs), y))
    return seen


@case("memory")
def replaced_parameters_are_freed(run: Run) -> Any:
    """Parameters that were replaced, and old buffers, are not kept by what was compiled with them."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    jitted, seen = run.jit(model), []
    for _ in range(3):
        jitted(torch.randn(4, 3)).sum().backward()
        refs = [*watch(model[0].weight, model[1].running_mean), weakref.ref(model[0].weight), weakref.ref(model[1])]
        model[0].weight = nn.Parameter(torch.randn(4, 3))
        model[1] = nn.BatchNorm1d(4)
        seen.append(gone(refs))
    return seen, jitted(torch.ones(4, 3))


@case("memory")
def module_and_function_go_with_the_wrapper(run: Run) -> Any:
    """When the wrapper and the module are dropped, the weights and the closure's objects are freed."""

    class Held:
        pass

    seen = []
    for _ in range(2):
        model, held = nn.Linear(3, 2), Held()
        held.scale = torch.ones(2)
        jitted = run.jit(model)
        f = run.jit(lambda x, held=held: x * held.scale)
        f(jitted(torch.ones(1, 3))).sum().backward()
        refs = [*watch(model.weight, model.weight.grad, held.scale), weakref.ref(model), weakref.ref(held)]
        del model, held, jitted, f
        seen.append(gone(refs))
    return seen


@case("memory")
def closure_tensor_rebound_is_freed(run: Run) -> Any:
    """A closure's tensor that is rebound is freed although a compiled call used it."""
    table = torch.randn(3)
    f, seen = run.jit(lambda x: x + table), []
    for _ in range(3):
        seen.append(f(torch.ones(3)))
        refs = [*watch(table), weakref.ref(table)]
        table = torch.randn(3)
        seen.append(gone(refs))
    return seen


@case("memory")
def outputs_of_a_long_loop(run: Run) -> Any:
    """A state passed from call to call keeps only the last one alive, under `no_grad`."""
    f, refs = run.jit(lambda x, w: (x @ w).tanh()), []
    w, x = torch.randn(3, 3), torch.randn(1, 3)
    with torch.no_grad():
        for _ in range(10):
            x = f(x, w)
            refs += watch(x)
    return gone(refs), x
