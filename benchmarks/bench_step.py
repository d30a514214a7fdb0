"""One training step, private and plain, side by side: ``make bench``.

Engines run interleaved in one process, round after round; a ratio is that of an engine's step to the plain
step of the same round, and the table shows the median with the quartiles.  Every step is zero_grad, forward,
backward, clipping to norm 1, noise and an SGD step; ours draws cryptographic noise, Opacus draws torch's own
(its secure mode has no build for current PyTorch).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from tacit.experiments.base import machine, versions
from tacit.models import papernot_mnist_cnn
from tacit.plan import Plan
from tacit.training import PrivateSession


class Block(nn.Module):
    """A pre-norm transformer block with its own attention from linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, T, d) to (n, T, d)."""
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SmallTransformer(nn.Module):
    """Two blocks over tokens, predicting the next of each."""

    def __init__(self, vocabulary: int = 1000, width: int = 128, length: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(n, T) tokens to (n, T, vocabulary) logits."""
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).contiguous()
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))


def token_loss(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over the T tokens of each record: (n,)."""
    return F.cross_entropy(model(ids).transpose(1, 2), targets, reduction="none").mean(1)


def class_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy per record: (n,)."""
    return F.cross_entropy(model(x), y, reduction="none")


@dataclass(frozen=True)
class Workload:
    """A model with a batch of ``batch`` records; ``criterion`` is the loss as Opacus wants it."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]

    @property
    def batch(self) -> int:
        """Records per step."""
        return len(self.inputs)


def workloads() -> list[Workload]:
    """MLP, CNN and a small transformer, on random inputs."""
    mlp = lambda: nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))  # noqa: E731
    ids = torch.randint(0, 1000, (32, 65))
    return [
        Workload("MLP 784-1000-10", mlp, torch.randn(600, 784), torch.randint(0, 10, (600,)), class_loss),
        Workload(
            "tanh CNN",
            papernot_mnist_cnn,
            torch.randn(512, 1, 28, 28),
            torch.randint(0, 10, (512,)),
            class_loss,
        ),
        Workload(
            "transformer, T = 64",
            SmallTransformer,
            ids[:, :-1].contiguous(),
            ids[:, 1:].contiguous(),
            token_loss,
        ),
    ]


def plain(load: Workload) -> Callable[[], None]:
    """The step without privacy."""
    model = load.make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        load.loss(model, load.inputs, load.targets).mean().backward()
        optimizer.step()

    return step


def ours(load: Workload, engine: str) -> Callable[[], None]:
    """Our step, with every record of the workload in it."""
    model = load.make()
    plan = Plan.with_noise(
        noise_multiplier=1.0, delta=1e-9, records=load.batch, steps=10**6, clipping=1.0,
        adjacency="add-remove", unit="record",
    )  # fmt: skip
    session = PrivateSession(
        model, torch.optim.SGD(model.parameters(), lr=1e-3), (load.inputs, load.targets), plan,
        loss=load.loss, engine=engine, physical_batch_size=load.batch,
    )  # fmt: skip
    turns = session.batches()

    def step() -> None:
        session.step(next(turns))

    return step


def opacus(load: Workload, mode: str) -> Callable[[], None]:
    """Opacus: ``hooks`` materialises per-example gradients, ``ghost`` takes two backward passes."""
    from opacus import PrivacyEngine
    from opacus.optimizers import get_optimizer_class
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = load.make()
    module = PrivacyEngine(accountant="rdp")._prepare_model(
        model, grad_sample_mode=mode, **({"max_grad_norm": 1.0} if mode == "ghost" else {})
    )
    kind = get_optimizer_class(clipping="flat", distributed=False, grad_sample_mode=mode)
    optimizer = kind(
        torch.optim.SGD(model.parameters(), lr=1e-3), noise_multiplier=1.0, max_grad_norm=1.0,
        expected_batch_size=load.batch,
    )  # fmt: skip

    class Criterion(nn.Module):
        reduction = "mean"

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            """Per-record losses, reduced as asked for."""
            if outputs.dim() == 3:
                losses = F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)
            else:
                losses = F.cross_entropy(outputs, targets, reduction="none")
            return losses if self.reduction == "none" else losses.mean()

    criterion: Callable[..., object] = Criterion()
    if mode == "ghost":
        criterion = DPLossFastGradientClipping(module, optimizer, Criterion())

    def step() -> None:
        optimizer.zero_grad()
        criterion(module(load.inputs), load.targets).backward()
        optimizer.step()

    return step


ENGINES: dict[str, Callable[[Workload], Callable[[], None]]] = {
    "plain PyTorch": plain,
    "Tacit, fast": lambda load: ours(load, "fast"),
    "Tacit, reference": lambda load: ours(load, "reference"),
    "Opacus, hooks": lambda load: opacus(load, "hooks"),
    "Opacus, ghost": lambda load: opacus(load, "ghost"),
}


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a step and its ratio to the plain one: median and quartiles over the rounds."""

    workload: str
    engine: str
    milliseconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int


def measure(load: Workload, rounds: int) -> Iterator[Timing]:
    """Time all engines on one workload, interleaved."""
    steps = {name: make(load) for name, make in ENGINES.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in track(range(rounds + 2), f"{load.name}", console=Console(stderr=True)):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number >= 2:
                times[name].append(time.perf_counter() - start)
    base = times["plain PyTorch"]
    for name, values in times.items():
        ratios = [value / other for value, other in zip(values, base, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        milliseconds = 1e3 * statistics.median(values)
        yield Timing(load.name, name, milliseconds, middle, low, high, rounds)


def main() -> int:
    """Measure, print, and write the JSON and the table of the docs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    for message in ("Full backward hook is firing", "Secure RNG turned off"):
        warnings.filterwarnings("ignore", message=message)
    torch.manual_seed(0)
    timings = [timing for load in workloads() for timing in measure(load, options.rounds)]
    table = Table("workload", "engine", "ms", "ratio to plain", "quartiles")
    for t in timings:
        quartiles = f"{t.ratio_low:.2f}-{t.ratio_high:.2f}"
        table.add_row(t.workload, t.engine, f"{t.milliseconds:.1f}", f"{t.ratio:.2f}", quartiles)
    Console().print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    found = versions()
    from importlib import metadata

    found["opacus"] = metadata.version("opacus")
    data = {
        "benchmark": "one training step", "date": date.today().isoformat(), "machine": machine(),
        "versions": found, "seed": 0, "timings": [asdict(t) for t in timings],
    }  # fmt: skip
    (options.out / "step.json").write_text(json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
