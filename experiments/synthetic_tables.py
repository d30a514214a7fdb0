"""A classifier on a synthetic table beside one that is trained directly, at the same epsilon and delta.

``python -m experiments.synthetic_tables FOLDER`` writes ``searches/synthetic_tables.json``.  FOLDER is where
``pip install --target FOLDER dpmm`` put dpmm with the older libraries that it needs; without it nothing is
run.

The tables are Adult and the ten means of scikit-learn's breast cancer, with two thirds of the rows for
training.  dpmm's MST gets whole numbers: the bins of public edges, and the places of declared values.  So it
takes nothing from the records without noise.  Each table is claimed from a ledger whose whole budget is
(epsilon, delta), before MST runs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from experiments.adult import _BINS, _SCHEMA, adult_frame
from tacit.datasets.tables import load
from tacit.events import ZeroConcentratedDP
from tacit.integrations.sklearn import PrivateClassifier
from tacit.ledger import Ledger, Policy, ZeroConcentratedBudget

OUT = Path(__file__).parent / "searches" / "synthetic_tables.json"
EPSILONS = (1.0,)
SEEDS = 3
ITERATIONS = 500  # of dpmm's fit; its default of 5,000 takes minutes
_HELPER = Path(__file__).with_name("dpmm_table.py")

Codes = pd.DataFrame


@dataclass(frozen=True)
class Study:
    """A table: as it is, as whole numbers, and with the settings of the direct classifier."""

    cells: Any
    codes: Codes
    sizes: dict[str, int]
    labels: NDArray[np.int64]
    records: int  # a public estimate of the training rows
    delta: float
    direct: dict[str, Any]


def adult() -> Study:
    frame = adult_frame()
    codes, sizes = {}, {}
    for name, column in _SCHEMA.items():
        if name in _BINS:
            codes[name] = np.digitize(frame[name], _BINS[name])
            sizes[name] = len(_BINS[name]) + 1
        else:
            places = {value: place for place, value in enumerate(column.values or ())}
            codes[name] = frame[name].map(places).fillna(len(places)).astype(int)
            sizes[name] = len(places) + 1  # the last stands for all other values
    sizes["income"] = 2
    labels = np.asarray(frame["income"] == ">50K", dtype=np.int64)
    columns = {name: column for name, column in _SCHEMA.items() if name != "income"}
    coded = pd.DataFrame(codes).rename(columns={"income": "label"}).assign(label=labels)
    sizes["label"] = sizes.pop("income")
    return Study(frame.drop(columns="income"), coded, sizes, labels, 20_000, 1e-5, {"columns": columns})


def cancer() -> Study:
    data = load("breast-cancer")
    inputs = np.concatenate([np.asarray(data.train.inputs), np.asarray(data.test.inputs)])[:, :10]
    labels = np.concatenate([np.asarray(data.train.targets), np.asarray(data.test.targets)]).astype(np.int64)
    edges = np.linspace(-1.0, 1.0, 9)[1:-1]
    names = [f"c{number}" for number in range(inputs.shape[1])]
    codes = pd.DataFrame(np.digitize(inputs, edges), columns=names).assign(label=labels)
    sizes = dict.fromkeys(names, len(edges) + 1) | {"label": 2}
    return Study(inputs, codes, sizes, labels, 380, 1e-4, {"bounds": (-1.0, 1.0)})


STUDIES = {"adult": adult, "breast-cancer": cancer}


def synthetic(study: Study, rows: NDArray[np.int64], epsilon: float, dpmm: Path) -> Codes:
    """Claim a table from a ledger, then make it."""
    policy = Policy(
        unit="person",
        adjacency="add-remove",
        budget=ZeroConcentratedBudget(epsilon, study.delta),
    )
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("people", policy)
    status = ledger.status("people")
    rho = (status.cap[0] - status.spent[0]) / 1e12
    facts: dict[str, Any] = {"tool": "dpmm, MST", "unit": "person", "adjacency": "add-remove"}
    ledger.claim("people", ZeroConcentratedDP(rho), release="synthetic", **facts)
    assert not ledger.price("people", ZeroConcentratedDP(0.001)).fits  # nothing is left
    ledger.close()

    settings = {
        "epsilon": epsilon, "delta": study.delta, "rho": rho, "iterations": ITERATIONS,
        "sizes": study.sizes, "rows": study.records,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study.codes.iloc[rows].to_csv(folder / "codes.csv", index=False)
        (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": str(dpmm), "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, _HELPER, folder], check=True, env=environment, capture_output=True)
        return pd.read_csv(folder / "synthetic.csv")


def scores(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    accuracy = float(np.mean((probabilities >= 0.5) == labels))
    return {"accuracy": accuracy, "auc": float(roc_auc_score(labels, probabilities))}


def of_codes(train: Codes, test: Codes, sizes: dict[str, int]) -> dict[str, dict[str, float]]:
    """Score two ordinary classifiers that learn from a table of whole numbers."""
    names = [name for name in sizes if name != "label"]
    encoder = OneHotEncoder(categories=[range(sizes[name]) for name in names])
    models = {
        "logistic": make_pipeline(encoder, LogisticRegression(max_iter=1000)),
        "boosted": HistGradientBoostingClassifier(random_state=0),
    }
    labels = test["label"].to_numpy()
    if train["label"].nunique() < 2:  # the noise hid one of the classes
        return {kind: scores(np.full(len(labels), float(train["label"].iloc[0])), labels) for kind in models}
    return {
        kind: scores(model.fit(train[names], train["label"]).predict_proba(test[names])[:, 1], labels)
        for kind, model in models.items()
    }


def compare(study: Study, epsilon: float, seed: int, dpmm: Path) -> dict[str, dict[str, float]]:
    order = np.random.default_rng(seed).permutation(len(study.labels))
    cut = 2 * len(order) // 3
    train, test = order[:cut], order[cut:]
    made = synthetic(study, train, epsilon, dpmm)
    on_made = of_codes(made, study.codes.iloc[test], study.sizes)
    on_real = of_codes(study.codes.iloc[train], study.codes.iloc[test], study.sizes)

    direct = {}
    for kind, head in {"direct": "dp-sgd", "direct, least squares": "least-squares"}.items():
        model = PrivateClassifier(
            epsilon=epsilon, delta=study.delta, unit="person", adjacency="add-remove",
            records=study.records, classes=[0, 1], head=head, **study.direct,
        )  # fmt: skip
        cells: Any = study.cells.iloc if hasattr(study.cells, "iloc") else study.cells
        model.fit(cells[train], study.labels[train])
        direct[kind] = scores(model.predict_proba(cells[test])[:, 1], study.labels[test])
    return {
        **direct,
        **{f"synthetic, {kind}": found for kind, found in on_made.items()},
        **{f"without DP, {kind}": found for kind, found in on_real.items()},
    }


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not (Path(arguments[0]) / "dpmm").is_dir():
        sys.stdout.write("skipped: name the folder of `pip install --target FOLDER dpmm`.\n")
        return 0
    rows = []
    for epsilon in EPSILONS:
        for name, read in STUDIES.items():
            study = read()
            found = [compare(study, epsilon, seed, Path(arguments[0])) for seed in range(SEEDS)]
            for kind in found[0]:
                row: dict[str, Any] = {"table": name, "epsilon": epsilon, "delta": study.delta, "kind": kind}
                for score in ("accuracy", "auc"):
                    values = [round(each[kind][score], 4) for each in found]
                    row |= {score: round(statistics.mean(values), 4), f"{score}s": values}
                rows.append(row)
                figures = f"{row['accuracy']:8.3f}{row['auc']:8.3f}"
                sys.stdout.write(f"{name:14}{epsilon:4g}  {kind:26}{figures}\n")
            sys.stdout.flush()
            OUT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main(sys.argv[1:]))
