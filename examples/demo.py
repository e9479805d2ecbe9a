"""Train a GPT with fulgurite and with eager PyTorch, and compare: bits, traces, graphs, time.

Run it with `make demo`, or `python examples/demo.py --help`. The text it learns is Python's own reference manual,
which every interpreter ships as `pydoc_data.topics`. The exit status is 1 when any bit differs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

import fulgurite as fg
from gpt import GPT, GPTConfig
from terminal import excerpt, heading, table, track


@dataclass
class Learner:
    """A model with its optimizer and its own stream of batches; the same seed gives the same run."""

    name: str
    model: GPT
    optimizer: torch.optim.Optimizer
    batches: torch.Generator
    text: Tensor
    batch_size: int

    def step(self) -> Tensor:
        """One step of training on the next batch; returns the loss."""
        size = self.model.config.block_size
        starts = torch.randint(len(self.text) - size, (self.batch_size,), generator=self.batches)
        windows = torch.stack([self.text[start : start + size + 1] for start in starts.tolist()])
        _, loss = self.model(windows[:, :-1], windows[:, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


@dataclass(frozen=True)
class Comparison:
    """One row of the final table; times in seconds for one call."""

    what: str
    eager: float
    jitted: float
    ratio: float
    first_call: float
    bits_equal: bool

    def cells(self) -> list[str]:
        """The row as text."""
        times = [f"{self.eager * 1e3:.2f} ms", f"{self.jitted * 1e3:.2f} ms", f"{self.ratio:.2f}"]
        return [self.what, *times, f"{self.first_call:.2f} s", "yes" if self.bits_equal else "NO"]


def read_text() -> Tensor:
    """Python's reference manual as bytes, an int64 tensor of some 460,000 tokens below 256."""
    manual = "\n\n".join(topics[name] for name in sorted(topics))
    return torch.tensor(list(manual.encode()))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in dtype, shape, strides and every bit (-0.0 is not 0.0, a NaN is itself)."""
    if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
        return False
    bits_a, bits_b = (t.detach().contiguous().flatten().view(torch.uint8) for t in (a, b))
    return torch.equal(bits_a, bits_b)


def same_state(a: GPT, b: GPT) -> bool:
    """Whether all parameters and buffers of two models have the same names and the same bits."""
    state_a, state_b = a.state_dict(), b.state_dict()
    return list(state_a) == list(state_b) and all(same_bits(state_a[name], state_b[name]) for name in state_a)


def timed(call: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """What `call` returns, and how many seconds it took."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def measure(
    eager: Callable[[], Tensor], jitted: Callable[[], Tensor], rounds: int, calls: int
) -> tuple[float, float, float]:
    """Time two callables in interleaved blocks: median seconds for a call of each, and the median ratio.

    Each round runs `calls` calls of one and then of the other, in alternating order, so that a machine that
    becomes slower or faster meanwhile does so for both.
    """

    def block(call: Callable[[], Tensor]) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls

    pairs = []
    for i in range(rounds):
        if i % 2 == 0:
            eager_time = block(eager)
            jitted_time = block(jitted)
        else:
            jitted_time = block(jitted)
            eager_time = block(eager)
        pairs.append((eager_time, jitted_time))
    ratio = statistics.median(jitted_time / eager_time for eager_time, jitted_time in pairs)
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs), ratio


def make_learners(args: argparse.Namespace) -> tuple[Learner, Learner]:
    """Two learners that start from the same bits: eager's and fulgurite's."""
    torch.manual_seed(args.seed)
    config = GPTConfig(block_size=args.block, n_layer=args.layers, n_embd=args.width, dropout=args.dropout)
    eager = GPT(config)
    jitted = fg.jit(copy.deepcopy(eager))
    text = read_text()

    def learner(name: str, model: GPT) -> Learner:
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        return Learner(name, model, optimizer, torch.Generator().manual_seed(args.seed), text, args.batch)

    return learner("eager", eager), learner("fulgurite", jitted)


def train(learner: Learner, steps: int, seed: int) -> tuple[list[Tensor], float]:
    """Train for `steps` steps; returns the losses, and how many seconds the first step took."""
    torch.manual_seed(seed)
    first_loss, first_call = timed(learner.step)
    losses = [first_loss]
    for _ in track(range(steps - 1), description=f"{learner.name:>9}"):
        losses.append(learner.step())
    return losses, first_call


def compare_training(eager: Learner, jitted: Learner, args: argparse.Namespace) -> Comparison:
    """Train both, print their losses, then time further steps."""
    eager_losses, _ = train(eager, args.steps, args.seed)
    jitted_losses, first_call = train(jitted, args.steps, args.seed)
    shown = sorted({*range(0, args.steps, max(1, args.steps // 5)), args.steps - 1})
    rows = [[str(i), f"{eager_losses[i]:.9f}", f"{jitted_losses[i]:.9f}"] for i in shown]
    print(table(["step", "eager loss", "fulgurite loss"], rows))

    losses_equal = all(map(same_bits, eager_losses, jitted_losses))
    parameters_equal = same_state(eager.model, jitted.model)
    print(f"\nall {args.steps} losses bitwise equal: {losses_equal}")
    print(f"all {len(eager.model.state_dict())} parameters bitwise equal: {parameters_equal}")

    times = measure(eager.step, jitted.step, args.rounds, calls=5)
    return Comparison(
        f"training step, {args.batch} x {args.block} tokens", *times, first_call, losses_equal and parameters_equal
    )


def compare_inference(eager: GPT, jitted: GPT, args: argparse.Namespace) -> Comparison:
    """Time both on one sequence of 16 tokens without gradients.

    The steps that were timed drew dropout masks by turns from one random stream, so the weights are set equal again.
    """
    jitted.load_state_dict(eager.state_dict())
    eager.eval()
    jitted.eval()
    tokens = torch.arange(16)[None] + 97
    with torch.no_grad():
        logits, first_call = timed(lambda: jitted(tokens)[0])
        bits_equal = same_bits(eager(tokens)[0], logits)
        times = measure(lambda: eager(tokens)[0], lambda: jitted(tokens)[0], args.rounds, calls=50)
        bits_equal = bits_equal and same_bits(eager(tokens)[0], jitted(tokens)[0])
    return Comparison("inference, 1 x 16 tokens", *times, first_call, bits_equal)


def show_traces(jitted: GPT, out: Path, suffix: str) -> None:
    """Print the latest traces of `jitted`, shortened, and write them in full as Python files."""
    traces = fg.traces(jitted)
    stages = {
        "prologue: what a call must look like": ("prologue", traces.prologue),
        "forward, as recorded": ("forward_recorded", traces.forward[0]),
        "forward, as it runs after all passes": ("forward", traces.forward[-1]),
    }
    if traces.backward:
        stages["backward, as it runs"] = ("backward", traces.backward[-1])
    for title, (name, trace) in stages.items():
        path = out / f"{name}_{suffix}.py"
        path.write_text(f"{trace}\n")
        print(f"\n--- {title} (all of it: {path})\n{excerpt(str(trace), head=24, tail=6)}")


def show_graph(jitted: GPT, out: Path) -> None:
    """Draw the latest forward trace of `jitted`."""
    for suffix in ("svg", "html"):
        fg.draw(fg.last_trace(jitted), out / f"inference.{suffix}")
    for path in sorted(out.glob("inference.*")):
        print(f"{path}  {path.stat().st_size / 1024:.0f} KiB")


def show_stats(jitted: GPT) -> None:
    """Print what the jit did over the whole run."""
    stats = fg.stats(jitted)
    print(f"calls that found a trace: {stats.hits}, calls that made one: {stats.misses}")
    for reason in stats.retraces:
        print(f"retraced because {reason}")
    for phase, seconds in stats.times.items():
        print(f"{phase:>12}  {seconds * 1e3:8.1f} ms")


def parse_arguments() -> argparse.Namespace:
    """The command line; `block` is the length of the training sequences in tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 6, "width": 128, "batch": 8, "block": 64, "steps": 150, "rounds": 15}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate, default 1e-3")
    parser.add_argument("--dropout", type=float, default=0.0, help="default 0: no dropout")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="folder for traces and graphs")
    return parser.parse_args()


def main() -> int:
    """Run the demo; returns the exit status."""
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    _, import_time = timed(lambda: fg.jit(torch.add)(torch.ones(2), torch.ones(2)))
    eager, jitted = make_learners(args)
    size = sum(p.numel() for p in eager.model.parameters())
    print(f"A GPT of {args.layers} layers and {size:,} parameters learns Python's manual, {len(eager.text):,} bytes.")
    print(f"One trivial call took {import_time:.2f} s: it imports what tracing needs, once in a process.")

    heading("Training: the same model twice, from the same bits")
    training = compare_training(eager, jitted, args)
    heading("The traces of the training step")
    show_traces(jitted.model, args.out, "training")
    heading("The traces of inference")
    inference = compare_inference(eager.model, jitted.model, args)
    show_traces(jitted.model, args.out, "inference")
    heading("The graph of inference")
    show_graph(jitted.model, args.out)
    heading("What the jit did")
    show_stats(jitted.model)

    heading("eager and fulgurite")
    rows = [inference, training]
    header = ["what", "eager", "fulgurite", "ratio", "first call", "bits equal"]
    print(table(header, [row.cells() for row in rows]))
    return 0 if all(row.bits_equal for row in rows) and same_state(eager.model, jitted.model) else 1


if __name__ == "__main__":
    sys.exit(main())
