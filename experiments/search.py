"""Search for settings on validation records: ``python -m experiments.search tables``.

Each try is a line of ``experiments/searches/NAME.jsonl``, so an interrupted search resumes when it is called
again.  The chosen settings are written into the experiment by hand, so that readers see them.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments import abadi_cifar10, abadi_mnist, public_rows, tables
from experiments.base import Request, Setting
from experiments.linear_on_features import Recipe, repeat_linear
from experiments.standard import load
from experiments.suite import TABLES
from experiments.tries import Tries
from tacit.datasets import Dataset, TensorPair

FOLDER = Path(__file__).parent / "searches"


def search_tables(tries: Tries, epsilons: list[float], runs: int) -> None:
    """Measure AUC or R² of the linear recipe and variations of it, on a quarter of the training rows."""
    for table, epsilon in itertools.product(TABLES, epsilons):
        split = tables.Split.of(table)
        kept = len(split.train) * 3 // 4
        held = dataclasses.replace(split, train=split.train[:kept], test=split.train[kept:])
        for model, rate, norm in itertools.product(("linear", "additive"), (0.5, 1.0, 2.0), (0.5, 1.0, 2.0)):

            def measure(
                held: tables.Split = held,
                epsilon: float = epsilon,
                times: tuple[str, float, float] = (model, rate, norm),
            ) -> list[float]:
                return tables.ours(held, epsilon, runs, times)

            settings = {"table": table.name, "epsilon": epsilon, "model": model, "rate": rate, "norm": norm}
            _say(settings, tries.make(settings, measure))


def search_mnist(tries: Tries, epsilons: list[float], runs: int) -> None:
    """Measure accuracy on the last 10,000 training pictures, of a linear model on features of the others."""
    data = _validation(public_rows.grey_rows(load("mnist"), Request(Path())), 10_000)
    for epsilon, (steps, rate) in itertools.product(epsilons, _MNIST):
        setting = Setting(4096, steps, rate, 0.9, 0.1)
        described = {"epsilon": epsilon, **dataclasses.asdict(setting)}
        _try_linear(tries, described, data, Recipe(epsilon, None, setting), epsilon, runs)


def search_abadi(tries: Tries, epsilons: list[float], runs: int) -> None:
    """Measure accuracy on the last 10,000 training pictures, of networks on DP-PCA, with one change each."""
    part = _validation(load("mnist"), 10_000)
    for epsilon in epsilons:
        for recipe in _abadi_candidates(epsilon):

            def measure(recipe: Any = recipe, epsilon: float = epsilon) -> list[float]:
                plan = recipe.plan(part, epsilon)
                return [abadi_mnist.once(part, plan, recipe, "cpu", run).score for run in range(runs)]

            chosen = {"epsilon": epsilon, "pca_noise": recipe.pca_noise, "whitened": recipe.whitened}
            settings = chosen | dataclasses.asdict(recipe.setting)
            _say(settings, tries.make(settings, measure))


def _abadi_candidates(epsilon: float) -> Iterator[abadi_mnist.Recipe]:
    first = _ABADI[epsilon]
    yield first
    yield dataclasses.replace(first, whitened=not first.whitened)
    for noise in (0.6, 1.6):
        yield dataclasses.replace(first, pca_noise=round(noise * first.pca_noise, 1))
    old = first.setting
    for field, values in {
        "learning_rate": (0.6 * old.learning_rate, 1.6 * old.learning_rate),
        "steps": (round(0.6 * old.steps), round(1.6 * old.steps)),
        "batch_size": (5000, 10_000, 20_000, 40_000),
    }.items():
        for value in values:
            if value != getattr(old, field):
                changed = dataclasses.replace(old, **{field: value})  # type: ignore[arg-type]
                yield dataclasses.replace(first, setting=changed)


_ABADI = {
    0.5: abadi_mnist.Recipe(1.0, 16.0, True, Setting(10_000, 60, 4.0, 0.9, 1.0, 0.9)),
    2.0: abadi_mnist.Recipe(4.0, 13.0, True, Setting(20_000, 200, 2.0, 0.9, 1.0, 0.985)),
    8.0: abadi_mnist.Recipe(float("inf"), 4.0, True, Setting(10_000, 300, 3.0, 0.9, 1.0, 0.98)),
}
_MNIST = ((600, 32.0), (1000, 32.0), (300, 32.0), (300, 16.0), (1000, 64.0))


def search_cifar10(tries: Tries, epsilons: list[float], runs: int) -> None:
    """Measure accuracy on the last 5,000 training pictures, of a linear model on features of the others."""
    records, (_, pictures) = load("cifar10"), public_rows.public_pictures()
    for epsilon in epsilons:
        chosen = next(choice for choice in abadi_cifar10.CHOSEN if epsilon <= choice.upto)
        for choice in _neighbours(chosen):
            data = _validation(choice.rows(records, pictures, Request(Path())), 5_000)
            described = {"epsilon": epsilon, **dataclasses.asdict(choice)}
            del described["upto"]
            _try_linear(tries, described, data, choice.recipe, epsilon, runs)


def _neighbours(chosen: abadi_cifar10.Choice) -> Iterator[abadi_cifar10.Choice]:
    """Yield the chosen settings, and variations with one change each."""
    yield chosen
    for factor in (0.67, 1.5):
        yield dataclasses.replace(chosen, learning_rate=factor * chosen.learning_rate)
    for directions in (1000, 3000):
        yield dataclasses.replace(chosen, directions=directions)
    for cosines in (0.0, 0.2, 0.5):
        yield dataclasses.replace(chosen, cosines=cosines)
    for floor, power in ((50, 0.35), (200, 0.35), (100, 0.25), (100, 0.5)):
        yield dataclasses.replace(chosen, floor=floor, power=power)
    yield dataclasses.replace(chosen, steps=2 * chosen.steps, learning_rate=chosen.learning_rate / 2)


def _validation(data: Dataset, held: int) -> Dataset:
    """Return the data set with its last ``held`` training records as test records."""
    inputs, targets = data.train
    return dataclasses.replace(
        data,
        train=TensorPair(inputs[:-held], targets[:-held]),
        test=TensorPair(inputs[-held:], targets[-held:]),
    )


def _try_linear(
    tries: Tries, described: dict[str, Any], data: Dataset, recipe: Recipe, epsilon: float, runs: int
) -> None:
    def measure() -> list[float]:
        found = repeat_linear("search", Request(Path(), seeds=runs), data, recipe, epsilon)
        return [evaluation.score for evaluation in found.evaluations]

    _say(described, tries.make(described, measure))


def _say(settings: dict[str, Any], score: float) -> None:
    sys.stdout.write(f"{score:.4f} {settings}\n")
    sys.stdout.flush()


SEARCHES = {
    "abadi-cifar10": search_cifar10,
    "abadi-mnist": search_abadi,
    "mnist": search_mnist,
    "tables": search_tables,
}
EPSILONS = {
    "abadi-cifar10": [1.0, 2.0, 3.0, 8.0],
    "abadi-mnist": [0.5, 2.0, 8.0],
    "mnist": [1.0, 2.0, 3.0],
    "tables": [0.5, 1.0, 3.0],
}


def main() -> None:
    """Start or resume a search."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("name", choices=sorted(SEARCHES))
    options.add_argument("--epsilon", type=float, action="append", help="budget; may be repeated")
    options.add_argument("--runs", type=int, default=2, help="runs of each try")
    given = options.parse_args()
    epsilons = given.epsilon or EPSILONS[given.name]
    SEARCHES[given.name](Tries(FOLDER / f"{given.name}.jsonl"), epsilons, given.runs)


if __name__ == "__main__":
    main()
