"""Attribute inversion of marital status on Adult (Fredrikson, Jha, Ristenpart, CCS 2015, section 4).

The attacker has a decision tree that predicts income.  The results are compared with those of an attacker
without the tree, and with those on people who were not in the tree's training data.

Letters: n people.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.adult import load_adult
from experiments.attributes import (
    AttributeResult,
    People,
    Secret,
    black_box,
    confusion,
    judge_attribute,
    white_box,
)
from experiments.base import NO_SEARCH, Request, Row, write_results
from tacit.datasets import Dataset
from tacit.errors import MissingExtra
from tacit.report.canvas import BLUE, GREEN, ORANGE, PALE, new_figure, save_figure

_NAME = "attribute-inversion"
_SIZES = (1000, 5000)
_MARRIED = ("marital=Married-civ-spouse", "marital=Married-AF-spouse")
_TELL_TALE = ("marital=", "relationship=")  # these columns reveal the secret


@dataclass(frozen=True)
class _Once:
    """The results for one random choice of people; ``accuracy`` is the tree's on people not in its data."""

    accuracy: float
    results: dict[str, AttributeResult]


def run(request: Request) -> list[Row]:
    """Return two rows per size of the training set, and draw ``attribute-inversion.png``."""
    request.choose_dataset(("adult",))
    rows, labels = _table(load_adult())
    found = []
    for n in _SIZES:
        start, draws = time.perf_counter(), []
        for number in range(request.seeds):
            draws.append(_once(rows, labels, n))
            request.listener(f"trees of {n:,} people", number + 1, request.seeds)
        seconds = time.perf_counter() - start
        found += [_row(box, n, draws, seconds) for box in draws[0].results]
    write_results(_NAME, found, request, notes=_NOTES)
    _draw(found, request)
    return found


_NOTES = (
    "the secret is whether a person is married; marital status and relationship are left out of the rows",
    "only the gap between members and non-members is what the tree gives away about those that it was "
    "trained on; only what exceeds imputation is what it adds to an attacker who knows as many other people",
)


def _table(data: Dataset) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return rows, whose last column is the secret, and labels."""
    inputs = np.concatenate([data.train.inputs.numpy(), data.test.inputs.numpy()]).astype(np.float64)
    labels = np.concatenate([data.train.targets.numpy(), data.test.targets.numpy()])
    married = inputs[:, [data.features.index(name) for name in _MARRIED]].sum(axis=1)
    kept = [i for i, name in enumerate(data.features) if not name.startswith(_TELL_TALE)]
    return np.column_stack([inputs[:, kept], married]), labels


def _once(rows: NDArray[np.float64], labels: NDArray[np.int64], n: int) -> _Once:
    """Attack one random choice of n members, n non-members and n public people."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.tree import DecisionTreeClassifier
    except ImportError:
        raise MissingExtra("scikit-learn", "sklearn", "Attribute inversion on a tree") from None
    order = np.random.default_rng().permutation(len(rows))
    members, others, public = (
        People(rows[part], labels[part]) for part in np.split(order[: 3 * n], [n, 2 * n])
    )
    share = float(public.rows[:, -1].mean())
    secret = Secret([rows.shape[1] - 1], [[0.0], [1.0]], [1.0 - share, share])
    tree = DecisionTreeClassifier().fit(members.rows, members.labels)
    matrix = confusion(tree.predict(public.rows), public.labels, classes=2)
    attacks: dict[str, Callable[[People], NDArray[np.int64]]] = {
        "white box": lambda people: white_box(tree, people, secret),
        "black box": lambda people: black_box(tree.predict, people, secret, matrix),
    }
    results = {
        box: judge_attribute(
            attack,
            secret,
            members=members,
            non_members=others,
            public=public,
            imputer=HistGradientBoostingClassifier(max_iter=50),
            confidence=0.95,
        )
        for box, attack in attacks.items()
    }
    return _Once(float((tree.predict(others.rows) == others.labels).mean()), results)


def _row(box: str, n: int, draws: list[_Once], seconds: float) -> Row:
    results = [draw.results[box] for draw in draws]
    accuracies = [draw.accuracy for draw in draws]
    return Row(
        experiment=_NAME,
        dataset="adult",
        model=f"decision tree of {n:,} people, {box}",
        epsilon=math.inf,
        delta=0.0,
        accountant="none",
        noise_multiplier=None,
        accuracy_mean=statistics.mean(accuracies),
        accuracy_std=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        seeds=len(draws),
        wall_seconds=seconds,
        selection=NO_SEARCH,
        details={
            "attacked": {
                "members": statistics.mean(result.members.value for result in results),
                "non-members": statistics.mean(result.non_members.value for result in results),
                "without the model": statistics.mean(result.imputation.value for result in results),
                "always the most frequent": statistics.mean(result.majority for result in results),
            },
            "sentences": [str(result) for result in results],
        },
    )


def _draw(rows: list[Row], request: Request) -> None:
    figure = new_figure(8.0, 3.6)
    axes = figure.add_subplot()
    colours = (BLUE, ORANGE, GREEN, PALE)
    for place, (name, colour) in enumerate(zip(rows[0].details["attacked"], colours, strict=True)):
        heights = [100 * row.details["attacked"][name] for row in rows]
        axes.bar(np.arange(len(rows)) + 0.2 * (place - 1.5), heights, 0.19, color=colour, label=name)
    axes.set_xticks(range(len(rows)), [row.model.replace(", ", ",\n") for row in rows], fontsize=8)
    axes.set_ylabel("secret guessed right, %")
    axes.set_ylim(0, 100)
    axes.legend(fontsize=8, ncols=4, loc="upper center")
    axes.grid(alpha=0.25, axis="y")
    save_figure(figure, request.folder / f"{_NAME}.png")
