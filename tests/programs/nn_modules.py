"""Modules from torch.nn: recurrent ones, attention, embeddings, norms, losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


def params(model: nn.Module) -> list[Any]:
    """Gradients of all parameters, which are cleared."""
    found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


@case("nn")
def lstm_with_and_without_state(run: Run) -> Any:
    """Two layers, bidirectional, batch first: outputs, states and gradients, the state passed on and not."""
    model = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    jitted, seen, state = run.jit(model), [], None
    for given in (False, True, False, True):
        x = torch.randn(2, 5, 3, requires_grad=True)
        y, state = jitted(x, state) if given else jitted(x)
        (y.sum() + state[0].square().sum() + state[1].sum()).backward()
        seen.append((y, state, x.grad, params(model)))
        state = tuple(s.detach() for s in state)
    return seen


@case("nn")
def gru_and_rnn_of_any_length(run: Run) -> Any:
    """`GRU` with dropout between layers and `RNN` with relu, sequences of other lengths, and eval."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(3, 4, 2, dropout=0.3)
            self.rnn = nn.RNN(4, 2, nonlinearity="relu")

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h, last = self.gru(x)
            return self.rnn(h)[0], last

    model = Tagger()
    jitted, seen = run.jit(model), []
    for n, training in ((5, True), (5, True), (3, True), (5, False)):
        model.train(training)
        out, last = jitted(torch.randn(n, 2, 3))
        (out.sum() + last.sum()).backward()
        seen.append((out, last, params(model)))
    return seen


@case("nn", may_refuse=True)
def packed_sequences(run: Run) -> Any:
    """`pack_padded_sequence` and `pad_packed_sequence` around an LSTM inside, other lengths each time."""
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    lstm = nn.LSTM(3, 4, batch_first=True)

    def f(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        out, _ = lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return pad_packed_sequence(out, batch_first=True)

    jitted, seen = run.jit(f), []
    for lengths in ([2, 4, 1], [3, 3, 2], [1, 1, 4]):
        out, kept = jitted(torch.randn(3, 4, 3), torch.tensor(lengths))
        out.sum().backward()
        seen.append((out, kept, params(lstm)))
    return seen


@case("nn")
def lstm_cell_unrolled(run: Run) -> Any:
    """`LSTMCell` and `GRUCell` in a Python loop over time steps."""
    a, b = nn.LSTMCell(3, 4), nn.GRUCell(4, 4)

    def f(xs: Tensor) -> tuple[Tensor, Tensor]:
        h, c, g = torch.zeros(2, 4), torch.zeros(2, 4), None
        for x in xs.unbind(0):
            h, c = a(x, (h, c))
            g = b(h, g)
        return g, c

    jitted, seen = run.jit(f), []
    for n in (3, 3, 2):
        g, c = jitted(torch.randn(n, 2, 3))
        (g.sum() + c.sum()).backward()
        seen.append((g, c, params(a), params(b)))
    return seen


@case("nn")
def encoder_layer_in_training(run: Run) -> Any:
    """`TransformerEncoderLayer` with dropout: masks as in eager, gradients and generator too."""
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    jitted, seen = run.jit(model), []
    for _ in range(3):
        y = jitted(torch.randn(2, 5, 8))
        y.square().mean().backward()
        seen.append((y, params(model), torch.get_rng_state()))
    return seen


@case("nn")
def encoder_layer_fast_path(run: Run) -> Any:
    """The eval fast path of `TransformerEncoderLayer`: under `no_grad`, with and without a padding mask."""
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    jitted, seen = run.jit(model), []
    mask = torch.tensor([[False, False, True], [False, True, True]])
    for grad in (False, True, False):
        x = torch.randn(2, 3, 8)
        with torch.set_grad_enabled(grad):
            seen.append((jitted(x), jitted(x, src_key_padding_mask=mask)))
    model.train()
    seen.append(jitted(torch.ones(2, 3, 8)))
    model.eval()
    with torch.no_grad():
        seen.append(jitted(torch.ones(2, 3, 8)))
    return seen


@case("nn", may_refuse=True)
def encoder_with_nested_tensors(run: Run) -> Any:
    """`TransformerEncoder` in eval with a padding mask goes through nested tensors."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    jitted, seen = run.jit(nn.TransformerEncoder(layer, 2).eval()), []
    for lengths in ([3, 2], [1, 3], [3, 3]):
        mask = torch.arange(3)[None] >= torch.tensor(lengths)[:, None]
        with torch.no_grad():
            seen.append(jitted(torch.randn(2, 3, 8), src_key_padding_mask=mask))
    return seen


@case("nn")
def transformer_with_causal_masks(run: Run) -> Any:
    """`nn.Transformer` with target masks, in training and in eval, other lengths."""
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)

    def f(src: Tensor, tgt: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        return model(src, tgt, tgt_mask=mask, tgt_is_causal=True)

    jitted, seen = run.jit(f), []
    for n, training in ((3, True), (3, True), (4, True), (3, False)):
        model.train(training)
        y = jitted(torch.randn(2, 4, 8), torch.randn(2, n, 8))
        y.sum().backward()
        seen.append((y, params(model)))
    return seen


@case("nn")
def multihead_attention_forms(run: Run) -> Any:
    """`MultiheadAttention`: weights asked for or not, averaged or not, masks, other key and value sizes."""
    model = nn.MultiheadAttention(8, 2, kdim=6, vdim=4, dropout=0.1, batch_first=True)
    jitted, seen = run.jit(model), []
    for options in (
        {"need_weights": True},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"need_weights": False, "attn_mask": torch.ones(3, 5, dtype=torch.bool).triu(1)},
        {"need_weights": True},
    ):
        out, weights = jitted(torch.randn(2, 3, 8), torch.randn(2, 5, 6), torch.randn(2, 5, 4), **options)
        out.sum().backward()
        seen.append((out, weights, params(model)))
    return seen


@case("nn", may_refuse=True)
def sparse_embedding_with_sparse_adam(run: Run) -> Any:
    """`Embedding(sparse=True)` gives a sparse gradient that `SparseAdam` accepts."""
    model = nn.Embedding(6, 3, sparse=True)
    jitted, optimizer, seen = run.jit(model), torch.optim.SparseAdam(model.parameters(), lr=0.1), []
    for picks in ([0, 2, 2], [5, 1, 0], [3, 3, 3]):
        optimizer.zero_grad()
        jitted(torch.tensor(picks)).square().sum().backward()
        grad = model.weight.grad
        seen.append((grad.layout, grad.is_coalesced(), grad.clone()))
        optimizer.step()
        seen.append(model.weight.detach().clone())
    return seen


@case("nn")
def embedding_with_padding_and_max_norm(run: Run) -> Any:
    """`padding_idx` gets no gradient; `max_norm` renormalises the weight in place at each call."""
    model = nn.Embedding(6, 3, padding_idx=0, max_norm=1.0)
    f, seen = run.jit(lambda i: model(i) * 2), []
    for picks in ([0, 2, 2], [5, 1, 0]):
        f(torch.tensor(picks)).sum().backward()
        seen.append((params(model), model.weight.detach().clone()))
    return seen


@case("nn")
def embedding_bag_forms(run: Run) -> Any:
    """`EmbeddingBag` with offsets, per-sample weights and the three modes, gradients too."""
    bags = {mode: nn.EmbeddingBag(6, 3, mode=mode, padding_idx=1) for mode in ("sum", "mean", "max")}
    jitted, seen = {mode: run.jit(bag) for mode, bag in bags.items()}, []
    for offsets in ([0, 2], [0, 0, 3], [0, 2]):
        index, weights = torch.tensor([0, 2, 5, 1, 2]), torch.rand(5, requires_grad=True)
        for mode, bag in bags.items():
            extra = {"per_sample_weights": weights} if mode == "sum" else {}
            y = jitted[mode](index, torch.tensor(offsets), **extra)
            y.sum().backward()
            seen.append((y, params(bag), weights.grad))
    return seen


@case("nn")
def cross_entropy_in_all_forms(run: Run) -> Any:
    """`ignore_index`, label smoothing, class weights and all reductions: values and gradients."""
    weight = torch.rand(4)
    losses = [
        nn.CrossEntropyLoss(weight=w, ignore_index=2, label_smoothing=s, reduction=r)
        for w in (None, weight)
        for s in (0.0, 0.1)
        for r in ("none", "mean", "sum")
    ]
    jitted, seen = [run.jit(loss) for loss in losses], []
    for target in ([0, 2, 3, 1, 2], [1, 1, 2, 0, 3], [2, 2, 2, 2, 2]):
        for loss in jitted:
            x = torch.randn(5, 4, requires_grad=True)
            y = loss(x, torch.tensor(target))
            y.sum().backward()
            seen.append((y, x.grad))
    return seen


@case("nn")
def cross_entropy_with_probabilities_and_images(run: Run) -> Any:
    """Class probabilities and then class indices as target of one jitted loss, and targets of images."""
    loss, seen = run.jit(nn.CrossEntropyLoss(label_smoothing=0.2)), []
    for _ in range(2):
        x, image = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4, 3, 3, requires_grad=True)
        a = loss(x, torch.randn(3, 4).softmax(-1))
        b = loss(x, torch.tensor([1, 0, 3]))
        c = loss(image, torch.randint(0, 4, (2, 3, 3)))
        (a + b + c).backward()
        seen.append((a, b, c, x.grad, image.grad))
    return seen


@case("nn")
def regression_and_ranking_losses(run: Run) -> Any:
    """Losses of two tensors with three reductions each, values and gradients."""
    makers = [nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss, nn.SoftMarginLoss, nn.KLDivLoss]
    seen = []
    for make in makers:
        for reduction in ("none", "mean", "sum"):
            loss = run.jit(make(reduction=reduction))
            for _ in range(2):
                x, y = torch.rand(3, 4, requires_grad=True), torch.rand(3, 4)
                out = loss(x, y)
                out.sum().backward()
                seen.append((out, x.grad))
    return seen


@case("nn")
def losses_of_several_inputs(run: Run) -> Any:
    """Triplet, cosine, margin, Gaussian and multi-label losses."""
    f, g, h = (
        run.jit(nn.TripletMarginLoss(swap=True)),
        run.jit(nn.CosineEmbeddingLoss(0.2)),
        run.jit(nn.GaussianNLLLoss()),
    )
    k, m, seen = run.jit(nn.MarginRankingLoss(0.1, reduction="sum")), run.jit(nn.BCEWithLogitsLoss(torch.rand(4))), []
    for _ in range(2):
        a, b, c = (torch.randn(3, 4, requires_grad=True) for _ in range(3))
        sign = torch.randn(3).sign()
        out = (f(a, b, c), g(a, b, sign), h(a, b, c.square()), k(a[:, 0], b[:, 0], sign), m(a, b.detach().sigmoid()))
        seen.append((out, [torch.autograd.grad(o, (a, b, c), retain_graph=True, allow_unused=True) for o in out]))
    return seen


@case("nn")
def ctc_loss_with_lengths(run: Run) -> Any:
    """`CTCLoss` with tensors of lengths, other ones at the second call."""
    loss, seen = run.jit(nn.CTCLoss(zero_infinity=True)), []
    for lengths in ([2, 3], [1, 3]):
        x = torch.randn(6, 2, 5, requires_grad=True)
        y = loss(x.log_softmax(-1), torch.randint(1, 5, (2, 3)), torch.tensor([6, 6]), torch.tensor(lengths))
        y.backward()
        seen.append((y, x.grad))
    return seen


@case("nn")
def batch_norm_statistics(run: Run) -> Any:
    """Running statistics, counters and outputs of BatchNorm with and without momentum, and without tracking."""
    models = [nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=None), nn.BatchNorm1d(3, track_running_stats=False)]
    models += [nn.InstanceNorm1d(3, affine=True, track_running_stats=True), nn.GroupNorm(3, 3)]
    jitted, seen = [run.jit(m) for m in models], []
    for training in (True, True, False, True):
        for model, f in zip(models, jitted):
            model.train(training)
            x = torch.randn(4, 3, 5, requires_grad=True)
            y = f(x)
            y.square().sum().backward()
            state = {k: v.clone() for k, v in model.state_dict().items()}
            seen.append((y, x.grad, state, params(model)))
    return seen
