"""Program values: shapes and routes that depend on the data, in inference and in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case
from programs.values import rows, trained


def batches() -> list[Tensor]:
    return [
        *rows([1.0, -2.0, 3.0, -4.0], [1.0, 2.0, 3.0, 4.0], [-1.0, -2.0, -3.0, -4.0]),
        torch.randn(4),
        torch.randn(6),
    ]


@case("values", may_refuse=True)
def boolean_mask(run: Run) -> Any:
    """`x[x > 0]` has as many entries as this call's data."""
    f = run.jit(lambda x: (x[x > 0] * 2, x[x > 0].shape, torch.masked_select(x, x < 0).sum()))
    return [f(x) for x in batches()], trained(f, batches())


@case("values", may_refuse=True)
def nonzero_and_argwhere(run: Run) -> Any:
    """`nonzero`, `argwhere`, `where` with one argument and `flatnonzero` by index."""

    def f(x: Tensor) -> tuple[Any, ...]:
        index = (x > 0).nonzero().squeeze(-1)
        return x[index].exp(), index, torch.argwhere(x), torch.where(x < 0)[0], len(index), index.numel() / x.numel()

    jitted = run.jit(f)
    return [jitted(x) for x in batches()], trained(jitted, batches())


@case("values", may_refuse=True)
def unique_and_counts(run: Run) -> Any:
    """`unique` with inverse and counts, `unique_consecutive`, `bincount`, `histc`."""

    def f(i: Tensor) -> tuple[Tensor, ...]:
        values, inverse, counts = i.unique(return_inverse=True, return_counts=True)
        return values, counts, values[inverse] * counts[inverse], i.unique_consecutive(), i.bincount() * 2

    jitted = run.jit(f)
    return [jitted(torch.tensor(i)) for i in ([1, 1, 2], [0, 3, 0], [5, 5, 5], [1, 2, 3], [4])]


@case("values", may_refuse=True)
def repeat_interleave_by_tensor(run: Run) -> Any:
    """`repeat_interleave` with counts of this call, as length regulators use it."""

    def f(x: Tensor, counts: Tensor) -> Tensor:
        return x.repeat_interleave(counts, dim=0).cumsum(0)

    jitted, seen = run.jit(f), []
    for counts in ([1, 2, 0], [3, 0, 1], [0, 0, 0], [1, 1, 1]):
        x = torch.randn(3, 2, requires_grad=True)
        y = jitted(x, torch.tensor(counts))
        y.sum().backward()
        seen.append((y, x.grad))
    return seen


@case("values", may_refuse=True)
def assignment_through_a_mask(run: Run) -> Any:
    """`x[mask] = values` with as many values as the mask has, on a copy and on the argument."""

    def f(x: Tensor) -> Tensor:
        y = x * 1
        y[y < 0] = y[y < 0].abs() * 0.5
        return y

    def g(x: Tensor) -> int:
        mask = x > 1
        x[mask] = torch.arange(int(mask.sum()), dtype=x.dtype)
        return int(mask.sum())

    jitted, written, seen = run.jit(f), run.jit(g), []
    for x in batches():
        seen.append((written(x), x))
    return seen, trained(jitted, batches())


class Experts(nn.Module):
    """A mixture of experts that visits the experts that were chosen, as Mixtral's first implementation did."""

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.skip = skip
        self.gate = nn.Linear(4, 3, bias=False)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, list[int]]:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out, visited = torch.zeros_like(x), []
        for index, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == index)
            if self.skip and token.numel() == 0:
                continue
            visited.append(index)
            out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
        return out, visited


def routed(run: Run, skip: bool, training: bool) -> Any:
    model = Experts(skip)
    jitted, seen = run.jit(model), []
    for n, scale in ((6, 1.0), (1, 5.0), (1, -5.0), (6, 1.0), (2, 9.0)):
        model.zero_grad()
        x = torch.randn(n, 4) * scale
        with torch.set_grad_enabled(training):
            out, visited = jitted(x)
        if training:
            out.square().sum().backward()
        seen.append((out, visited, [None if p.grad is None else p.grad.clone() for p in model.parameters()]))
    return seen


@case("values", may_refuse=True)
def moe_routing_in_inference(run: Run) -> Any:
    """Tokens go to the experts of this call, with empty experts run or skipped."""
    return routed(run, False, False), routed(run, True, False)


@case("values", may_refuse=True)
def moe_routing_in_training(run: Run) -> Any:
    """The same with gradients: an expert that nobody chose has None where it was skipped, zeros where not."""
    return routed(run, False, True), routed(run, True, True)


@case("values", may_refuse=True)
def moe_grouped_by_sort(run: Run) -> Any:
    """Tokens sorted by expert and split by `bincount(...).tolist()`, as later implementations do."""
    gate, experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def f(x: Tensor) -> Tensor:
        chosen = gate(x).argmax(-1)
        order = chosen.argsort(stable=True)
        parts = x[order].split(chosen.bincount(minlength=3).tolist())
        mixed = torch.cat([expert(part) for expert, part in zip(experts, parts)])
        return torch.empty_like(mixed).index_copy(0, order, mixed)

    jitted, seen = run.jit(f), []
    for n in (5, 5, 1, 7):
        experts.zero_grad()
        y = jitted(torch.randn(n, 4))
        y.square().sum().backward()
        seen.append((y, [None if p.grad is None else p.grad.clone() for p in experts.parameters()]))
    return seen


@case("values", may_refuse=True)
def early_exit_of_a_deep_model(run: Run) -> Any:
    """Layers run until the prediction is certain enough; later layers get no gradient."""
    layers, head = nn.ModuleList(nn.Linear(3, 3) for _ in range(4)), nn.Linear(3, 2)

    def f(x: Tensor) -> tuple[Tensor, int]:
        for depth, layer in enumerate(layers):  # noqa: B007
            x = layer(x).tanh() + x
            logits = head(x)
            if logits.softmax(-1).max() > 0.8:
                break
        return logits, depth

    jitted, seen = run.jit(f), []
    for scale in (0.1, 8.0, 3.0, 0.1):
        layers.zero_grad()
        logits, depth = jitted(torch.randn(1, 3) * scale)
        logits.sum().backward()
        seen.append((logits, depth, [None if p.grad is None else p.grad.clone() for p in layers.parameters()]))
    return seen


@case("values", may_refuse=True)
def greedy_decoding_until_the_end(run: Run) -> Any:
    """Tokens are generated until the end token or a limit; the sequence has this call's length."""
    embed, head = nn.Embedding(6, 4), nn.Linear(4, 6)

    @torch.no_grad()
    def generate(token: Tensor, limit: int) -> Tensor:
        tokens = [token]
        for _ in range(limit):
            token = head(embed(torch.cat(tokens)).mean(0)).argmax(-1, keepdim=True)
            tokens.append(token)
            if token.item() == 0:
                break
        return torch.cat(tokens)

    f, seen = run.jit(generate), []
    for bias in (0.0, 5.0, -5.0, 0.0):
        with torch.no_grad():
            head.bias[0] = bias
        seen.append([f(torch.tensor([start]), 5) for start in (1, 2, 3)])
    return seen


@case("values", may_refuse=True)
def detection_style_filtering(run: Run) -> Any:
    """Boxes filtered by score, sorted, and suppressed in a loop on their overlap."""

    def keep(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        chosen = scores > 0.3
        boxes, scores = boxes[chosen], scores[chosen]
        order, kept = scores.argsort(descending=True), []
        while order.numel() > 0:
            first, rest = order[0], order[1:]
            kept.append(first)
            order = rest[(boxes[rest] - boxes[first]).abs().sum(-1) > 0.5]
        index = torch.stack(kept) if kept else torch.zeros(0, dtype=torch.int64)
        return boxes[index], scores[index]

    jitted, seen = run.jit(keep), []
    for n in (5, 5, 3, 0, 5):
        boxes, scores = torch.rand(n, 4, requires_grad=True), torch.rand(n)
        out, kept = jitted(boxes, scores)
        out.sum().backward()
        seen.append((out, kept, boxes.grad))
    return seen


@case("values", may_refuse=True)
def masked_language_loss(run: Run) -> Any:
    """Only labelled positions are projected: `logits[labels != -100]`, and no position may be labelled."""
    model = nn.Linear(3, 4)

    def f(h: Tensor, labels: Tensor) -> Tensor:
        chosen = labels != -100
        if not chosen.any():
            return h.sum() * 0
        return nn.functional.cross_entropy(model(h[chosen]), labels[chosen])

    jitted, seen = run.jit(f), []
    for labels in ([1, -100, 2], [-100, -100, 3], [-100, -100, -100], [0, 1, 2]):
        model.zero_grad()
        h = torch.randn(3, 3, requires_grad=True)
        loss = jitted(h, torch.tensor(labels))
        loss.backward()
        seen.append((loss, h.grad, None if model.weight.grad is None else model.weight.grad.clone()))
    return seen


@case("values", may_refuse=True)
def result_with_data_dependent_size_then_static(run: Run) -> Any:
    """A shape from data goes through more operators: `view(-1, 2)`, `cat`, `pad`, branches on its length."""

    def f(x: Tensor) -> Tensor:
        kept = x[x > 0]
        if len(kept) % 2:
            kept = nn.functional.pad(kept, (0, 1))
        pairs = kept.view(-1, 2)
        return torch.cat([pairs, pairs.flip(0)]).sum(1) if pairs.shape[0] > 1 else pairs.sum(1)

    jitted = run.jit(f)
    return [jitted(x) for x in batches()], trained(jitted, batches())
