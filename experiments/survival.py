"""Private survival models beside those of scikit-survival, on four public tables.

``python -m experiments.survival`` writes ``searches/survival.json``.  It needs scikit-survival and lifelines,
whose tables flchain and ACTG 175 it reads, and SurvSet for SUPPORT2 and the Rotterdam tumour bank.  A table
of a library that is not installed is skipped.

Each of three splits keeps a fifth of the people for testing.  Bounds and categories were declared from what
is known of such columns.  All models get the same columns.  "without DP" is the same linear model of
hazards at its maximum of the likelihood.  Times after the horizon count as censored there, for all models.
"""

from __future__ import annotations

import importlib
import json
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from tacit.columns import Column, Encoder
from tacit.integrations.sklearn import PrivateSurvival
from tacit.models.survival import LinearHazard, mean_time, survival_of, watched_and_ended
from tacit.training.survival import brier_scores, concordance

OUT = Path(__file__).parent / "searches" / "survival.json"
EPSILONS = (1.0, 3.0)
BINS, SPLITS = 20, 3

number = partial(Column, kind="number", missing="indicator")


def category(*values: str) -> Column:
    return Column(kind="category", values=values, missing="indicator")


@dataclass(frozen=True)
class Study:
    """A table, with its columns and the last time that its models tell apart."""

    library: str
    read: Callable[[Any], Any]
    time: str
    event: str
    horizon: float
    columns: dict[str, Column]


def flchain(library: Any) -> Any:
    frame, ends = library.load_flchain()
    return frame.assign(time=ends["futime"], event=ends["death"])


def actg175(library: Any) -> Any:
    return pd.read_csv(Path(library.__file__).with_name("ACTG175.csv"))


def of_survset(name: str) -> Callable[[Any], Any]:
    def read(library: Any) -> Any:
        return library.SurvLoader().load_dataset(name)["df"]

    return read


STUDIES = {
    "flchain": Study(
        "sksurv.datasets", flchain, "time", "event", 5200,
        {
            "age": number(lower=50, upper=105), "creatinine": number(lower=0, upper=5),
            "kappa": number(lower=0, upper=10), "lambda": number(lower=0, upper=10),
            "flc.grp": number(lower=1, upper=10), "sample.yr": number(lower=1995, upper=2003),
            "mgus": category("no", "yes"), "sex": category("F", "M"),
        },
    ),
    "actg175": Study(
        "lifelines.datasets", actg175, "days", "cens", 1240,
        {
            "age": number(lower=12, upper=80), "wtkg": number(lower=30, upper=160),
            "karnof": number(lower=70, upper=100), "cd40": number(lower=0, upper=1000),
            "cd80": number(lower=0, upper=3000), "strat": category("1", "2", "3"),
            "arms": category("0", "1", "2", "3"),
            **{name: number(lower=0, upper=1)
               for name in ("hemo", "homo", "drugs", "z30", "race", "gender", "symptom")},
        },
    ),
    "support2": Study(
        "SurvSet.data", of_survset("support2"), "time", "event", 1100,
        {
            "num_age": number(lower=18, upper=105), "num_scoma": number(lower=0, upper=100),
            "num_meanbp": number(lower=0, upper=200), "num_wblc": number(lower=0, upper=100),
            "num_hrt": number(lower=0, upper=250), "num_resp": number(lower=0, upper=60),
            "num_temp": number(lower=32, upper=42), "num_pafi": number(lower=0, upper=900),
            "num_alb": number(lower=0, upper=10), "num_bili": number(lower=0, upper=40),
            "num_crea": number(lower=0, upper=15), "num_sod": number(lower=110, upper=180),
            "num_num_co": number(lower=0, upper=9), "num_hday": number(lower=0, upper=100),
            "fac_sex": category("female", "male"), "fac_ca": category("metastatic", "no", "yes"),
            "fac_dzclass": category("ARF/MOSF", "COPD/CHF/Cirrhosis", "Cancer", "Coma"),
            "fac_dementia": category("0", "1"), "fac_diabetes": category("0", "1"),
        },
    ),
    "rotterdam": Study(
        "SurvSet.data", of_survset("rott2"), "time", "event", 240,
        {
            "num_age": number(lower=20, upper=95), "num_nodes": number(lower=0, upper=40),
            "num_progesterone": number(lower=0, upper=2000), "num_estrogen": number(lower=0, upper=2000),
            "fac_meno": category("pre", "post"), "fac_tsize": category("<=20mm", ">20-50mm", ">50mm"),
            "fac_grade": category("2", "3"), "fac_hormon": category("no", "yes"),
            "fac_chemo": category("no", "yes"),
        },
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """The people of one part: cells, the features of the linear model, times and events."""

    frame: Any
    inputs: NDArray[np.float32]
    times: NDArray[np.float64]
    events: NDArray[np.bool_]

    def ends(self) -> Any:
        fields: Any = [self.events, self.times]
        make: Any = np.rec.fromarrays  # its types demand a dtype
        return make(fields, names="event, time")


@cache
def read(name: str) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_]] | None:
    study = STUDIES[name]
    try:
        table = study.read(importlib.import_module(study.library))
    except ImportError:
        return None
    frame = table[[*study.columns]].astype(object)
    for column, facts in study.columns.items():
        if facts.kind == "category":
            words = frame[column].astype(str).str.removesuffix(".0")
            frame[column] = words.where(frame[column].notna(), None)
        else:
            frame[column] = frame[column].astype(float)
    events = table[study.event].astype(float).to_numpy() > 0
    return frame, table[study.time].astype(float).to_numpy(), events


def parts_of(name: str, split: int) -> tuple[Part, Part] | None:
    found, study = read(name), STUDIES[name]
    if found is None:
        return None
    frame, times, events = found
    inputs = Encoder(study.columns).frame(frame)
    order = np.random.default_rng(split).permutation(len(frame))
    cut = round(0.8 * len(frame))
    within = events & (times <= study.horizon)
    times = times.clip(max=study.horizon)
    train, test = (
        Part(frame.iloc[own], inputs[own], times[own], within[own]) for own in (order[:cut], order[cut:])
    )
    return train, test


Scores = tuple[float, float]


def scores(test: Part, risks: NDArray[Any], curves: NDArray[Any], edges: NDArray[Any]) -> Scores:
    """Return the concordance, and the Brier score integrated over the inner edges (n, edges) of curves."""
    inner = edges[1:-1]
    errors = brier_scores(test.times, test.events, curves, inner)
    known = np.isfinite(errors)
    integrated = np.trapezoid(errors[known], inner[known]) / np.ptp(inner[known])
    return concordance(test.times, test.events, risks.round(9)), float(integrated)


def private(name: str, train: Part, test: Part, epsilon: float, **settings: Any) -> Scores:
    study = STUDIES[name]
    model = PrivateSurvival(
        epsilon=epsilon, delta=1e-5, unit="person", adjacency="add-remove", records=len(train.times),
        columns=study.columns, time_bounds=(0, study.horizon), time_bins=BINS, **settings,
    )  # fmt: skip
    model.fit(train.frame, train.ends())
    curves = model.predict_survival(test.frame)
    return scores(test, model.predict(test.frame), curves[:, :-1], model.time_edges_)


def without_dp(train: Part, test: Part, edges: NDArray[Any]) -> Scores:
    """Fit the linear model of hazards to its maximum of the likelihood, with a constant for each bin."""
    bins = len(edges) - 1
    targets = torch.tensor(np.stack([train.times, train.events], axis=1)).double()
    watched, ended = watched_and_ended(targets, edges.tolist())
    model, constants = LinearHazard(train.inputs.shape[1], bins).double(), torch.zeros(bins).double()
    constants.requires_grad_()
    inputs = torch.from_numpy(train.inputs).double()
    optimizer: Any = torch.optim.LBFGS(
        [*model.layer.parameters(), constants], max_iter=500, line_search_fn="strong_wolfe"
    )

    def loss() -> Any:
        optimizer.zero_grad()
        logits = model(inputs) + constants
        likelihood = torch.nn.functional.softplus(logits - np.log(2 * bins - 1)) * watched
        value = (likelihood - (logits - np.log(2 * bins - 1)) * ended).sum() / len(inputs)
        value = value + 1e-6 * sum(p.square().sum() for p in model.layer.parameters())
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        curves = survival_of(model(torch.from_numpy(test.inputs).double()) + constants)
    risks = -mean_time(curves, edges.tolist()).numpy()
    return scores(test, risks, curves[:, :-1].numpy(), edges)


def of_scikit_survival(make: Callable[[], Any], train: Part, test: Part, edges: NDArray[Any]) -> Scores:
    model = make().fit(train.inputs, train.ends())
    steps = model.predict_survival_function(test.inputs)
    curves = np.array([np.interp(edges[1:-1], one.x, one.y) for one in steps])
    return scores(test, model.predict(test.inputs), curves, edges)


def all_scores(name: str, train: Part, test: Part) -> Iterator[tuple[str, Scores]]:
    edges = np.linspace(0, STUDIES[name].horizon, BINS + 1)
    for epsilon in EPSILONS:
        for model in ("linear", "additive"):
            yield f"{model}, epsilon {epsilon:g}", private(name, train, test, epsilon, model=model)
    yield "network, epsilon 3", private(name, train, test, 3.0, hidden=(32,))
    yield "without DP", without_dp(train, test, edges)
    models, forests = map(importlib.import_module, ("sksurv.linear_model", "sksurv.ensemble"))
    cox = partial(models.CoxPHSurvivalAnalysis, alpha=1e-2)
    forest = partial(
        forests.RandomSurvivalForest, 50, min_samples_leaf=15, max_features="sqrt", random_state=0
    )
    yield "Cox, scikit-survival", of_scikit_survival(cox, train, test, edges)
    yield "forest, scikit-survival", of_scikit_survival(forest, train, test, edges)


def main() -> None:
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    for name in STUDIES:
        found: dict[str, list[Scores]] = {}
        for split in range(SPLITS):
            parts = parts_of(name, split)
            if parts is None:
                break
            for model, own in all_scores(name, *parts):
                found.setdefault(model, []).append(own)
        if not found:
            print(f"{name} is skipped: {STUDIES[name].library} is not installed.")  # noqa: T201
            continue
        results[name] = {
            model: {
                "concordance": [round(one, 4) for one, _ in own],
                "brier": [round(one, 4) for _, one in own],
            }
            for model, own in found.items()
        }
        for model, values in found.items():
            means = [statistics.mean(one) for one in zip(*values, strict=True)]
            print(f"{name:10} {model:24} {means[0]:.4f} {means[1]:.4f}", flush=True)  # noqa: T201
    OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
