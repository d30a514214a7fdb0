"""The effect of classes and overfitting on membership inference (Shokri et al. 2017, 1610.05820, table II).

The paper's attack classifier is run on one network, with labels merged to fewer classes, and with fewer and
more training records (section VI).  The attack uses the gap between training and test accuracy.  Without a
gap, as for income in Adult, it finds almost nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

from experiments.adult import load_adult
from experiments.attacked import attacked
from experiments.base import NO_SEARCH, Request, Row, write_results
from experiments.laboratory.ensembles import MLPEnsemble, train_plainly
from experiments.laboratory.likelihood_ratios import loss_threshold
from experiments.laboratory.shokri import shokri
from experiments.standard import load
from tacit.audits.attacks import log_probability, paired_halves, train_shadows
from tacit.errors import InvalidInput
from tacit.noise.generator import Generator
from tacit.report.canvas import BLUE, GREEN, ORANGE, PALE, new_figure, save_figure

Array: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

_NAME = "shokri"
_DATASETS = ("adult", "mnist")
_TRAINED = (500, 2000)  # the numbers of training records of a model, half of the available records
_TESTED = 4000
_SHADOWS, _HIDDEN = 8, 64
_EPOCHS, _BATCH, _RATE, _MOMENTUM = 40, 50, 0.1, 0.9
_SIDE, _MEAN_PIXEL = 14, 0.13
_NOTES = (
    "MLP with 64 hidden units, 40 epochs, no privacy; 8 shadow models; labels merged to fewer classes",
    "the attack's accuracy, by the sign of its log odds, is on members and as many others: 50 % is guessing; "
    "the paper has 50.3 % for Adult (income), 51.7 % for MNIST, 50.5 to 93.5 % for 2 to 100 classes of "
    "purchases",
)
_OCCUPATION = "occupation="


@dataclass(frozen=True)
class _Task:
    """A task: ``inputs`` (n, d), ``labels`` (n,) in [0, classes), and ``of``, the name of the labels."""

    dataset: str
    of: str
    inputs: Tensor
    labels: Tensor
    classes: int


def run(request: Request) -> list[Row]:
    """Return a row per task and number of records, for ``request.seeds`` targets; draw ``shokri.png``."""
    if request.epsilons is not None:
        raise InvalidInput("this experiment attacks models without privacy; leave --epsilon out.")
    names = _DATASETS if request.dataset is None else (request.choose_dataset(_DATASETS),)
    rows = []
    for task in (task for name in names for task in (_adult() if name == "adult" else _mnist())):
        for trained in _TRAINED:
            rows.append(_row(task, trained, request))
            write_results(_NAME, rows, request, notes=_NOTES)
    _draw(rows, request)
    return rows


def _adult() -> Iterator[_Task]:
    """Yield the tasks on Adult: income, and the occupation, with its 14 values merged into fewer classes."""
    data = load_adult()
    yield _Task("adult", "income", data.train.inputs, data.train.targets, 2)
    asked = torch.tensor([name.startswith(_OCCUPATION) for name in data.features])
    inputs, kinds = data.train.inputs[:, ~asked], data.train.inputs[:, asked].argmax(dim=1)
    for classes in (2, 4, 12):
        yield _Task("adult", "occupation", inputs, kinds % classes, classes)


def _mnist() -> Iterator[_Task]:
    data = load("mnist")
    inputs = avg_pool2d(data.train.inputs, 28 // _SIDE).flatten(1) - _MEAN_PIXEL
    for classes in (2, 5, 10):
        yield _Task("mnist", "digit", inputs, data.train.targets % classes, classes)


def _row(task: _Task, trained: int, request: Request) -> Row:
    start = time.perf_counter()
    pool, targets, rng = 2 * trained, request.seeds, np.random.default_rng()
    chosen = torch.from_numpy(rng.permutation(len(task.inputs))[: pool + _TESTED])
    inputs, labels = task.inputs[chosen].to(request.device), task.labels[chosen].to(request.device)
    title = f"{task.of}, {task.classes} classes, {trained} records"
    models = train_shadows(
        partial(_train, inputs, labels, task.classes, pool),
        np.concatenate([rng.random((targets, pool)) < 0.5, paired_halves(_SHADOWS, pool, rng)]),
        at_once=targets + _SHADOWS,
        progress=partial(request.listener, f"{task.dataset}: {title}"),
    )
    member, y = models.trained_on[:targets], labels.cpu().numpy()
    inside, right = models.outputs[:, :pool], models.outputs[:targets].argmax(axis=2) == y
    train, test = float(right[:, :pool][member].mean()), right[:, pool:].mean(axis=1)
    odds = [
        shokri(inside[t], inside[targets:], models.trained_on[targets:], y[:pool]) for t in range(targets)
    ]
    losses = [loss_threshold(-log_probability(inside[t], y[:pool])) for t in range(targets)]
    return Row(
        experiment=_NAME,
        dataset=task.dataset,
        model=f"{title}: MLP {inputs.shape[1]}-{_HIDDEN}-{task.classes}",
        epsilon=math.inf,
        delta=0.0,
        accountant="none",
        noise_multiplier=None,
        accuracy_mean=float(test.mean()),
        accuracy_std=float(test.std(ddof=1)) if targets > 1 else None,
        seeds=targets,
        wall_seconds=time.perf_counter() - start,
        selection=NO_SEARCH,
        details={
            "task": task.of,
            "classes": task.classes,
            "trained": trained,
            "train_accuracy": train,
            "gap": train - float(test.mean()),
            "attack_accuracy": _balanced_accuracy(odds, member),
            "attacks": [
                attacked(name, scores, member, rng).to_json({})
                for name, scores in (("Shokri", odds), ("loss threshold", losses))
            ],
        },
    )


def _train(inputs: Tensor, labels: Tensor, classes: int, pool: int, trained_on: Bools) -> NDArray[np.float32]:
    generators = [Generator.from_os() for _ in trained_on]
    models = MLPEnsemble((inputs.shape[1], _HIDDEN, classes), "tanh", generators, device=inputs.device)
    train_plainly(
        models, inputs[:pool], labels[:pool], trained_on, learning_rate=_RATE, momentum=_MOMENTUM,
        batch_size=_BATCH, epochs=_EPOCHS, generators=generators,
    )  # fmt: skip
    return models.logits(inputs)


def _balanced_accuracy(odds: list[Array], member: Bools) -> float:
    """Return the mean of the accuracies on members and on non-members, by the sign of the log odds."""
    says = np.stack(odds) > 0.0
    return float((says[member].mean() + (~says[~member]).mean()) / 2.0)


def _draw(rows: list[Row], request: Request) -> None:
    figure = new_figure(9.0, 3.8)
    left, right = np.asarray(figure.subplots(1, 2, sharey=True))
    left.set_xlabel("classes")
    right.set_xlabel("training less test accuracy, points")
    left.set_ylabel("attack accuracy, %")
    colours = {"income": PALE, "occupation": ORANGE, "digit": BLUE}
    markers = {"income": "o", "occupation": "s", "digit": "^"}
    for task in dict.fromkeys(row.details["task"] for row in rows):
        marker = markers.get(task, "v")
        for trained, line in zip(_TRAINED, ("-", "--"), strict=True):
            mine = [r.details for r in rows if (r.details["task"], r.details["trained"]) == (task, trained)]
            leak = [100 * item["attack_accuracy"] for item in mine]
            colour, label = colours.get(task, GREEN), f"{task}, {trained} records"
            left.plot([item["classes"] for item in mine], leak, marker + line, color=colour, label=label)
            right.plot(
                [100 * item["gap"] for item in mine],
                leak,
                marker,
                color=colour,
                fillstyle="full" if line == "-" else "none",
            )
    for axes in (left, right):
        axes.axhline(50.0, color="black", lw=0.8)
        axes.grid(alpha=0.25)
    left.legend(fontsize=8)
    save_figure(figure, request.folder / f"{_NAME}.png")
