"""Parameters and buffers whose values, dtypes, flags or identity change between calls."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case
from programs.state_tree import Stack, gradients, step


@case("module state")
def data_assigned_and_swapped_back(run: Run) -> Any:
    """Weight averaging: `param.data` is swapped with the average and back, in place and by assignment."""
    net, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(2, 3)
    f, average = run.jit(net), [torch.randn_like(p) for p in net.parameters()]
    seen = [step(f, net, x)]
    kept = [p.data for p in net.parameters()]
    for p, a in zip(net.parameters(), average, strict=True):
        p.data = a
    seen.append(step(f, net, x))
    for p, k in zip(net.parameters(), kept, strict=True):
        p.data = k
    seen.append(step(f, net, x))
    for p, a in zip(net.parameters(), average, strict=True):
        p.data.lerp_(a, 0.5)
    return [*seen, step(f, net, x)]


@case("module state")
def data_of_another_shape_and_layout(run: Run) -> Any:
    """`weight.data` of other sizes (pruning), transposed memory, in inference."""
    net, x = nn.Linear(4, 3), torch.randn(2, 4)
    f = run.jit(net)
    seen = [f(x)]
    net.weight.data = torch.randn(4, 3).t()
    seen.append(f(x))
    net.weight.data, net.bias.data = torch.randn(2, 4), torch.randn(2)
    seen.append(f(x))
    net.weight.data = torch.randn(1, 4).expand(2, 4)
    return [*seen, f(x)]


@case("module state")
def swapped_in_a_closure(run: Run) -> Any:
    """A function that closes over two models, whose weights are exchanged through `.data`."""
    a, b, x = nn.Linear(3, 2), nn.Linear(3, 2), torch.randn(2, 3)
    f = run.jit(lambda t: a(t) - 2 * b(t))
    seen = [f(x)]
    a.weight.data, b.weight.data = b.weight.data, a.weight.data
    seen.append(f(x))
    a.weight, b.weight = b.weight, a.weight
    seen.append(f(x))
    a, b = b, a
    return [*seen, f(x)]


@case("module state")
def exponential_moving_average(run: Run) -> Any:
    """`torch.optim.swa_utils.AveragedModel` beside training; both models are jitted."""
    net = nn.Linear(3, 2)
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    f, g, seen = run.jit(net), run.jit(average), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(4, 3)
        optimizer.zero_grad()
        f(x).square().sum().backward()
        optimizer.step()
        average.update_parameters(net)
        seen.append((f(x), g(x), average.n_averaged.clone()))
    return seen


@case("module state")
def optimizers_step_between_calls(run: Run) -> Any:
    """Adam with clipping: losses, weights and moments over four steps."""
    net, losses = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)), []
    f, optimizer = run.jit(net), torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        loss = f(torch.randn(5, 3)).square().mean()
        loss.backward()
        losses.append((loss.detach(), nn.utils.clip_grad_norm_(net.parameters(), 0.1)))
        optimizer.step()
    return losses, net.state_dict(), optimizer.state_dict()


@case("module state")
def parameters_replaced(run: Run) -> Any:
    """A parameter replaced by a new one, by None, by `load_state_dict(assign=True)`; the old gets no gradient."""
    net, x = Stack().eval(), torch.randn(2, 3)
    f, old = run.jit(net), net.blocks[0].weight
    seen = [step(f, net, x)]
    net.blocks[0].weight = nn.Parameter(torch.randn(3, 3))
    seen.append(step(f, net, x))
    net.blocks[1].register_parameter("bias", None)
    seen.append(step(f, net, x))
    other = {k: torch.full_like(v, 0.1) for k, v in net.state_dict().items()}
    net.load_state_dict(other, assign=True)
    seen.append(step(f, net, x))
    f.load_state_dict({k: v * 2 for k, v in other.items()})
    return [*seen, step(f, net, x), old.grad is None]


@case("module state")
def frozen_and_unfrozen(run: Run) -> Any:
    """`requires_grad_` on the whole model, on one layer, on the jitted one; gradients are exactly those asked for."""
    net, x = Stack().eval(), torch.randn(2, 3)
    f = run.jit(net)
    seen = [step(f, net, x)]
    for which, flag in ((net, False), (net.blocks[1], True), (net.blocks[0].bias, True), (f, True), (f, False)):
        which.requires_grad_(flag)
        seen.append(step(f, net, x))
    return seen


@case("module state")
def moved_to_another_dtype(run: Run) -> Any:
    """`.double()`, `.to(bfloat16)`, `.half()`, `.float()` on the original and on the jitted module."""
    net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    f, seen = run.jit(net), [step(run.jit(net), net, torch.randn(2, 3))]
    net.double()
    seen.append(step(f, net, torch.randn(2, 3).double()))
    f.to(torch.bfloat16)
    seen.append(step(f, net, torch.randn(2, 3).bfloat16()))
    f.half()
    seen.append(step(f, net, torch.randn(2, 3).half()))
    net[0].float()
    seen.append(run.caught(f, torch.randn(2, 3)))
    net.float()
    return [*seen, step(f, net, torch.randn(2, 3))]


@case("module state")
def one_layer_moved_to_another_dtype(run: Run) -> Any:
    """The head is kept in float64 after the first call, with a cast by its dtype in forward."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).to(self.head.weight.dtype))

    net, x = Net(), torch.randn(2, 3)
    f = run.jit(net)
    seen = [step(f, net, x)]
    net.head.double()
    seen.append(step(f, net, x))
    net.to(torch.float32)
    return [*seen, step(f, net, x)]


@case("module state")
def built_on_meta_then_loaded(run: Run) -> Any:
    """A model built on the meta device, jitted, then `to_empty` and loaded."""
    source = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    f = run.jit(net)
    net.to_empty(device="cpu")
    net.load_state_dict(source.state_dict())
    x = torch.randn(5, 3)
    return step(f, net, x), step(f, net, x), f.state_dict()


@case("module state")
def run_on_meta_then_assigned(run: Run) -> Any:
    """It is called on meta tensors first (for its shapes), then loaded with `assign=True` and called for real."""
    source = nn.Linear(3, 2)
    net = nn.Linear(3, 2, device="meta")
    f = run.jit(net)
    shape = f(torch.empty(4, 3, device="meta"))
    net.load_state_dict(source.state_dict(), assign=True)
    x = torch.randn(4, 3)
    return shape.shape, shape.device.type, f(x), f(x * 2), run.caught(f, torch.empty(4, 3, device="meta"))[0]


@case("module state")
def lazy_module_materialised_by_the_first_call(run: Run) -> Any:
    """`LazyLinear` gets its weights at the first call."""
    net = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    f, x = run.jit(net), torch.randn(3, 5)
    seen = [f(x), f(x + 1)]
    f(x).sum().backward()
    return seen, type(net[0]).__name__, gradients(net)


@case("module state")
def channels_last_parameters(run: Run) -> Any:
    """Gradients of channels-last weights have their layout, also inside a post-accumulate hook."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).to(memory_format=torch.channels_last)
    f, strides, seen = run.jit(net), {}, []
    for name, p in net.named_parameters():
        strides[name] = []
        p.register_post_accumulate_grad_hook(lambda p, s=strides[name]: s.append((p.grad.stride(), p.grad.sum())))
    for layout in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        y = f(torch.randn(2, 2, 6, 6).to(memory_format=layout))
        y.square().mean().backward()
        seen.append((y, gradients(net)))
    return seen, strides


@case("module state")
def order_of_accumulated_gradients(run: Run) -> Any:
    """Post-accumulate hooks run from the last layer to the first, as optimizers inside backward expect."""
    net, order = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), []
    for name, p in net.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, n=name: order.append(n[0]))
    f = run.jit(net)
    for _ in range(2):
        f(torch.randn(2, 3)).sum().backward()
    return order


@case("module state")
def parameters_become_channels_last(run: Run) -> Any:
    """The module is converted after the first call; then a transposed weight of a linear layer, too."""
    conv, lin = nn.Conv2d(2, 3, 3), nn.Linear(3, 4)
    f, g, x, y = run.jit(conv), run.jit(lin), torch.randn(2, 2, 5, 5), torch.randn(2, 3)
    seen = [step(f, conv, x), step(g, lin, y)]
    conv.to(memory_format=torch.channels_last)
    lin.weight = nn.Parameter(torch.randn(3, 4).t())
    seen += [step(f, conv, x), step(g, lin, y)]
    return seen, lin.weight.grad


@case("module state")
def deep_copy_after_the_first_call(run: Run) -> Any:
    """A deep copy of the original and of the jitted module go their own ways."""
    net, x = nn.Linear(3, 2), torch.randn(2, 3)
    f = run.jit(net)
    seen = [f(x)]
    twin, plain = copy.deepcopy(f), copy.deepcopy(net)
    with torch.no_grad():
        net.weight.mul_(2)
        twin.weight.add_(1)
    return [*seen, f(x), twin(x), plain(x), f(x + 1)]


@case("module state")
def batch_norm_with_cumulative_average(run: Run) -> Any:
    """`momentum=None` averages over `num_batches_tracked`, which changes at every call."""
    net, seen = nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2)), []
    f = run.jit(net)
    for mode in (True, True, False, True):
        net.train(mode)
        seen.append((step(f, net, torch.randn(4, 3)), [b.clone() for b in net.buffers()]))
    return seen


@case("module state")
def batch_norm_statistics(run: Run) -> Any:
    """Running statistics over calls; reset, another momentum, tracking switched off."""
    net, seen = nn.BatchNorm2d(2), []
    f = run.jit(net)
    changes = [lambda: None, lambda: setattr(net, "momentum", 0.5), net.reset_running_stats, net.eval]
    changes += [net.train, lambda: setattr(net, "momentum", None), lambda: setattr(net, "track_running_stats", False)]
    for change in changes:
        change()
        seen.append((f(torch.randn(2, 2, 3, 3)), [b.clone() for b in net.buffers()]))
    return seen
