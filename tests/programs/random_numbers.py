"""Random numbers: eager's stream in eager's order, and the generators' states afterwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from programs.case import Run, case


@case("random")
def three_training_steps_with_dropouts(run: Run) -> Any:
    """A module with several dropouts trains as in eager, and leaves the generator where eager does."""
    model = nn.Sequential(
        nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.AlphaDropout(0.2), nn.Linear(8, 4), nn.Dropout(0.1)
    )
    jitted, optimizer, seen = run.jit(model), torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = jitted(torch.randn(5, 6)).square().mean()
        loss.backward()
        optimizer.step()
        seen.append((loss, [p.detach().clone() for p in model.parameters()], torch.get_rng_state()))
    return seen, torch.rand(2)


@case("random")
def dropouts_of_every_kind(run: Run) -> Any:
    """Functional dropouts in one function: training, evaluation, by feature, in place."""

    def f(x: Tensor, training: bool) -> tuple[Tensor, ...]:
        return (
            nn.functional.dropout(x, 0.3, training),
            nn.functional.dropout1d(x, 0.5, training),
            nn.functional.feature_alpha_dropout(x, 0.5, training),
            nn.functional.dropout(x * 1, 0.5, training, inplace=True),
            torch.dropout(x, 0.25, training),
            nn.functional.dropout(x, 0.0, training),
            nn.functional.dropout(x, 1.0, training),
        )

    jitted, seen = run.jit(f), []
    for training in (True, False, True, True):
        x = torch.randn(2, 3, 4, requires_grad=True)
        out = jitted(x, training)
        seen.append((out, [torch.autograd.grad(o.sum(), x, retain_graph=True) for o in out]))
    return seen


@case("random")
def gradients_of_several_dropouts_add_up(run: Run) -> Any:
    """One tensor enters seven dropouts: their gradients are added in eager's order."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(nn.functional.dropout(x, 0.1 * (i + 1)) for i in range(7))

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = torch.randn(2, 3, 4, requires_grad=True)
        sum(o.sum() for o in jitted(x)).backward()
        seen.append(x.grad)
    return seen


@case("random")
def dropout_with_no_use_still_draws(run: Run) -> Any:
    """A random result that is not used advances the generator all the same."""

    def f(x: Tensor) -> Tensor:
        nn.functional.dropout(x, 0.5)
        torch.rand(3)
        return x + torch.rand_like(x)

    jitted = run.jit(f)
    return [(jitted(torch.ones(3)), torch.get_rng_state()) for _ in range(3)]


@case("random")
def equal_draws_are_not_merged(run: Run) -> Any:
    """Two `rand(3)` of one function are two draws, so are two dropouts of one tensor."""

    def f(x: Tensor) -> list[Tensor]:
        return [torch.rand(3), torch.rand(3), nn.functional.dropout(x), nn.functional.dropout(x), x.bernoulli()]

    jitted = run.jit(f)
    return [jitted(torch.full((4,), 0.5)) for _ in range(3)]


@case("random")
def factories_and_samplers_in_order(run: Run) -> Any:
    """Every sampler of torch draws in the order of the source."""

    def f(p: Tensor) -> dict[str, Tensor]:
        return {
            "randn": torch.randn(2, 3),
            "randperm": torch.randperm(5),
            "randint": torch.randint(3, 10, (4,)),
            "multinomial": torch.multinomial(p, 2),
            "bernoulli": torch.bernoulli(p),
            "poisson": torch.poisson(p * 4),
            "normal": torch.normal(p, 0.5),
            "randn_like": torch.randn_like(p, dtype=torch.float64),
            "randint_like": torch.randint_like(p, 7),
            "binomial": torch.binomial(torch.full_like(p, 9.0), p),
        }

    jitted = run.jit(f)
    return [jitted(torch.rand(4)) for _ in range(2)]


@case("random")
def samplers_in_place(run: Run) -> Any:
    """`uniform_`, `normal_`, `exponential_`, `random_` and others, on intermediates and on the argument."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        x.uniform_(-1, 1)
        a = torch.empty(3).normal_(2, 0.5)
        b = torch.empty(3).exponential_() + x
        c = torch.zeros(3, dtype=torch.int64).random_(0, 9)
        d = torch.zeros(3).bernoulli_(0.4).cauchy_().log_normal_().geometric_(0.3)
        return a, b, c, d, x.clone()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = torch.zeros(3)
        seen.append((jitted(x), x))
    return seen


@case("random")
def manual_seed_inside(run: Run) -> Any:
    """`torch.manual_seed` inside: the same numbers at each call, and the generator continues from there."""

    def f(x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        before = torch.rand(2)
        torch.manual_seed(seed)
        return before, x + torch.rand(2)

    jitted = run.jit(f)
    return [(jitted(torch.zeros(2), seed), torch.rand(1)) for seed in (1, 2, 2, 1)]


@case("random")
def explicit_generator(run: Run) -> Any:
    """A generator given as argument or held by a module advances as in eager, the default one does not."""
    generator = torch.Generator().manual_seed(4)
    f = run.jit(lambda x, g: x + torch.rand(3, generator=g) + torch.empty(3).normal_(generator=g))
    g = run.jit(lambda x: x * torch.randn(3, generator=generator))
    seen = [(f(torch.ones(3), generator), g(torch.ones(3)), generator.get_state()) for _ in range(3)]
    generator.manual_seed(4)
    return seen, f(torch.ones(3), generator), f(torch.ones(3), torch.Generator().manual_seed(9))


@case("random")
def fork_rng_inside(run: Run) -> Any:
    """What is drawn in `fork_rng` does not count afterwards."""

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = torch.rand(2) + x
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            b = torch.rand(2)
        return a, b, torch.rand(2)

    jitted = run.jit(f)
    return [jitted(torch.zeros(2)) for _ in range(3)]


@case("random")
def state_saved_and_restored_inside(run: Run) -> Any:
    """`get_rng_state` and `set_rng_state` around a draw: both draws are equal, and fresh at each call."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.get_rng_state()
        first = x + torch.rand(3)
        torch.set_rng_state(state)
        return first, x + torch.rand(3)

    jitted = run.jit(f)
    return [jitted(torch.zeros(3)) for _ in range(3)]


@case("random")
def tracing_leaves_the_generator(run: Run) -> Any:
    """The first call, a call of another shape and one in between draw as if nothing was traced."""
    f, seen = run.jit(lambda x: nn.functional.dropout(x, 0.5) + torch.randn_like(x)), []
    for n in (3, 3, 5, 3, 5):
        torch.manual_seed(11)
        seen.append((f(torch.ones(n)), torch.get_rng_state(), torch.rand(1)))
    return seen


@case("random")
def draws_before_an_error(run: Run) -> Any:
    """A function that draws and then raises has drawn, once."""

    def f(x: Tensor) -> Tensor:
        noise = torch.rand(3)
        if x.shape[0] != 3:
            raise ValueError("three, please")
        return x + noise

    jitted = run.jit(f)
    return [(run.caught(jitted, torch.zeros(n)), torch.get_rng_state()) for n in (4, 3, 4, 3)]


@case("random")
def rrelu_and_gumbel_softmax(run: Run) -> Any:
    """Random activations: `rrelu`, hard and soft `gumbel_softmax`, with gradients."""

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        soft = nn.functional.gumbel_softmax(x, tau=0.5)
        hard = nn.functional.gumbel_softmax(x, hard=True)
        return nn.functional.rrelu(x, 0.1, 0.4, training=True), soft, hard

    jitted, seen = run.jit(f), []
    for _ in range(3):
        x = torch.randn(2, 4, requires_grad=True)
        out = jitted(x)
        sum((o * torch.arange(4.0)).sum() for o in out).backward()
        seen.append((out, x.grad))
    return seen


@case("random")
def distributions_with_reparameterisation(run: Run) -> Any:
    """A VAE step with `torch.distributions`: `rsample`, `log_prob`, `kl_divergence`."""

    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(4, 4), nn.Linear(2, 4)

        def forward(self, x: Tensor) -> Tensor:
            mean, scale = self.encode(x).chunk(2, -1)
            q = torch.distributions.Normal(mean, scale.exp(), validate_args=False)
            p = torch.distributions.Normal(0.0, 1.0, validate_args=False)
            loss = (self.decode(q.rsample()) - x).square().sum()
            return loss + torch.distributions.kl_divergence(q, p).sum()

    model = Vae()
    jitted, seen = run.jit(model), []
    for _ in range(3):
        model.zero_grad()
        loss = jitted(torch.randn(3, 4))
        loss.backward()
        seen.append((loss, [p.grad.clone() for p in model.parameters()]))
    return seen


@case("random")
def initialisation_inside(run: Run) -> Any:
    """`nn.init` on a parameter inside: drawn anew at each call, without history."""
    layer = nn.Linear(3, 2)

    def reset(gain: float) -> Tensor:
        nn.init.xavier_uniform_(layer.weight, gain)
        nn.init.normal_(layer.bias)
        return layer.weight.detach().sum()

    f = run.jit(reset)
    return [(f(gain), layer.weight.detach().clone(), layer.bias.detach().clone()) for gain in (1.0, 2.0, 1.0)]


@case("random")
def checkpoint_keeps_its_mask(run: Run) -> Any:
    """Dropout in a non-reentrant checkpoint: one mask in both passes, and eager's generator state."""
    layer = nn.Linear(4, 4)

    def f(x: Tensor) -> Tensor:
        inner = lambda y: nn.functional.dropout(layer(y).relu(), 0.5)  # noqa: E731
        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False) * torch.rand(4)

    jitted, seen = run.jit(f), []
    for _ in range(3):
        x = torch.randn(3, 4, requires_grad=True)
        y = jitted(x)
        y.sum().backward()
        seen.append((y, x.grad, torch.get_rng_state()))
    return seen


@case("random")
def draws_in_the_backward_of_a_function(run: Run) -> Any:
    """An `autograd.Function` whose backward draws noise: in the backward, after what was drawn between."""

    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * torch.rand_like(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g + torch.rand_like(g)

    f, seen = run.jit(lambda x: Noisy.apply(x).sin()), []
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        y = f(x)
        between = torch.rand(1)
        y.sum().backward()
        seen.append((y, between, x.grad))
    return seen


@case("random")
def gradients_of_mixed_dropouts_add_up(run: Run) -> Any:
    """Two plain dropouts, one by channel and one in place of a copy: the input's gradient to the bit."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        a, b = nn.functional.dropout(x, 0.3), nn.functional.dropout1d(x, 0.5)
        return a, b, nn.functional.dropout(x * 1, 0.5, inplace=True), torch.dropout(x, 0.25, True)

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = torch.randn(2, 3, 4, requires_grad=True)
        sum(o.sum() for o in jitted(x)).backward()
        seen.append(x.grad)
    return seen


@case("random")
def gradients_of_dropout_that_keeps_nothing(run: Run) -> Any:
    """Dropout with probability 1, and with 0 in eval, which returns its input, beside other uses of it."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        drop = nn.functional.dropout
        return drop(x, 0.3), drop(x, 1.0), torch.dropout(x, 0.25, True), x.exp(), drop(x, 0.0), drop(x, 0.5, False)

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = torch.randn(2, 3, 4, requires_grad=True)
        sum(o.sum() for o in jitted(x)).backward()
        seen.append(x.grad)
    return seen


@case("random")
def gradients_of_feature_alpha_dropout_add_up(run: Run) -> Any:
    """`feature_alpha_dropout` and `alpha_dropout` beside other uses of the same tensor."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        a = nn.functional.feature_alpha_dropout(x, 0.5, True)
        return x.sin(), a, x.exp(), nn.functional.alpha_dropout(x, 0.2, True), x.cos()

    jitted, seen = run.jit(f), []
    for _ in range(2):
        x = torch.randn(2, 3, 4, requires_grad=True)
        sum(o.sum() for o in jitted(x)).backward()
        seen.append(x.grad)
    return seen
