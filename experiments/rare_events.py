"""Mean probabilities of the default classifier, against the rate of a rare class, on three tables.

``python -m experiments.rare_events`` adds one line to ``searches/rare-events.jsonl`` for each fit and resumes
after an interruption.  Adult's rare class is a capital gain of 10,000 dollars or more, learned from the other
columns without capital_loss and income.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.machine import machine, versions
from experiments.adult import adult_frame
from experiments.suite import TABLES
from experiments.tries import Tries
from tacit.columns import Column
from tacit.integrations.sklearn import PrivateClassifier

_OUT = Path(__file__).parent / "searches" / "rare-events.jsonl"
_EPSILONS, _RUNS = (1.0, 3.0, 8.0), 3
_Table = tuple[pd.DataFrame, "pd.Series[Any]", dict[str, Column]]


def uniform(rows: int = 30_000, rate: float = 0.02) -> _Table:
    """Return five uniform columns, of which three tell about the class."""
    random = np.random.default_rng(60)
    x = random.uniform(-1, 1, (rows, 5))
    frame = pd.DataFrame(x, columns=list("abcde"))
    columns = {name: Column(kind="number", lower=-1, upper=1) for name in "abcde"}
    return frame, _drawn(x @ [1.0, -0.7, 0.4, 0, 0], rate, random), columns


def claims(rows: int = 48_000, rate: float = 0.014) -> _Table:
    """Return two numbers and three categories, some values rare, and a class by a logistic model."""
    random = np.random.default_rng(61)
    frame = pd.DataFrame({"age": random.uniform(18, 90, rows), "income": random.gamma(2.0, 20.0, rows)})
    log_odds = 0.03 * frame["age"] - 0.01 * frame["income"]
    columns = {
        "age": Column(kind="number", lower=18, upper=90),
        "income": Column(kind="number", lower=0, upper=200),
    }
    for name, values in {"region": 8, "product": 5, "channel": 3}.items():
        shares = random.dirichlet(np.ones(values))
        drawn = random.choice(values, rows, p=shares)
        log_odds += random.normal(0, 0.6, values)[drawn]
        frame[name] = [f"{name[0]}{number}" for number in drawn]
        columns[name] = Column(kind="category", values=[f"{name[0]}{number}" for number in range(values)])
    return frame, _drawn(log_odds.to_numpy(), rate, random), columns


def gains() -> _Table:
    """Return Adult with a large capital gain as its rare class."""
    adult = next(table for table in TABLES if table.name == "adult")
    frame = adult_frame().sample(frac=1.0, random_state=1).reset_index(drop=True)
    left_out = ("income", "capital_gain", "capital_loss")
    columns = {name: column for name, column in adult.columns(frame).items() if name not in left_out}
    return (
        frame[[*columns]].astype({n: str for n, c in columns.items() if not c.is_number}),
        (frame["capital_gain"] >= 10_000).astype(int),
        columns,
    )


def _drawn(log_odds: Any, rate: float, random: np.random.Generator) -> pd.Series[Any]:
    constants = np.linspace(-15, 5, 4001)
    means = [float((1 / (1 + np.exp(-(log_odds + constant)))).mean()) for constant in constants]
    chances = 1 / (1 + np.exp(-(log_odds + np.interp(rate, means, constants))))
    return pd.Series((random.uniform(size=len(chances)) < chances).astype(int))


_TABLES: dict[str, Callable[[], _Table]] = {"uniform": uniform, "claims": claims, "gains of Adult": gains}


def measure(table: _Table, settings: dict[str, Any]) -> list[float]:
    """Return the mean probability over the rate of the training rows, the AUC, and the rate."""
    from sklearn.metrics import roc_auc_score

    frame, target, columns = table
    half = len(frame) // 2
    model = PrivateClassifier(
        delta=1e-5, unit="row", adjacency="add-remove", records=half, classes=[0, 1], columns=columns,
        **settings,
    ).fit(frame[:half], target[:half])  # fmt: skip
    probability = model.predict_proba(frame[half:])[:, 1]
    rate = float(target[:half].mean())
    return [float(probability.mean()) / rate, float(roc_auc_score(target[half:], probability)), rate]


def main() -> None:
    """Make all fits that are not in the file yet."""
    torch.set_num_threads(1)
    tries = Tries(_OUT)
    facts = {"date": date.today().isoformat(), "machine": machine(), "versions": versions()}
    for name, make in _TABLES.items():
        table = make()
        for epsilon in _EPSILONS:
            for run in range(_RUNS):

                def fit(table: _Table = table, epsilon: float = epsilon) -> list[float]:
                    return measure(table, {"epsilon": epsilon})

                found = tries.scores({"table": name, "epsilon": epsilon, "run": run}, fit)
                sys.stdout.write(f"{name} {epsilon:g} {run} {found}\n")
    about = _OUT.with_suffix(".about.json")
    about.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
