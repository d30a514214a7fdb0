"""Checks of survival curves and whole distributions: how often intervals cover, and errors beside others'.

1. Survival: the rate at which the 95 % intervals contain the value of the population, over simulated studies.
2. Distribution: the rate at which the 95 % intervals contain the answer without noise, on columns of Adult.
3. The distance from the curve of Kaplan and Meier at epsilon 1 on three tables of lifelines, and the errors
of five quantiles beside those of OpenDP and diffprivlib, which split epsilon among them.
4. The error of the mean age of 1,000 rows at epsilon 1, if 5 % of the ages are missing, beside that of a sum
and a count which get half of epsilon each, as in Tacit 0.3.

``--libraries`` names a folder with lifelines and diffprivlib; ``TACIT_DATA`` names that of ``adult.csv.gz``.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import math
import os
import sys
import types
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import results

from tacit.ledger import Column, Policy, PureBudget
from tacit.queries import Cdf, Mean, Quantiles, Query, Survival
from tacit.queries import survival as estimates
from tacit.queries.engines import DuckDBEngine
from tacit.queries.measures import Present, bound, centred, gaussian_sigma, laplace_scale, rho_within
from tacit.queries.plan import collect, compile_query, release_all, sampler
from tacit.queries.private_table import Reading, estimate
from tacit.queries.survival import Counts

QS = (0.05, 0.25, 0.5, 0.75, 0.95)
ADULT = {"age": ("age", 0, 120), "hours": ("hr_per_week", 0, 100), "gain": ("capital_gain", 0, 100_000)}
STUDIES = {"rossi": ("week", "arrest", 52), "gbsg2": ("time", "cens", 2700), "lung": ("time", "status", 1100)}


def main() -> None:
    """Run all checks and write the results."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=1000)
    options.add_argument("--libraries", type=Path, action="append", default=[])
    options.add_argument("--out", type=Path, default=results.FOLDER / "curves.json")
    given = options.parse_args()
    sys.path += map(str, given.libraries)
    adult = pd.read_csv(Path(os.environ.get("TACIT_DATA", ".")) / "adult.csv.gz")
    rows = [(size, epsilon) for size in (500, 2000) for epsilon in (0.5, 2.0)]
    runs = given.runs
    content = {
        "survival": [survival_row(size, epsilon, runs) for size, epsilon in rows],
        "bins": [survival_row(2000, 1.0, runs, bins) for bins in (20, 10, 5, 2, 1)],
        "log-rank": [test_row(size, epsilon, runs) for size, epsilon in rows],
        "distribution": [
            distribution_row(adult, name, size, epsilon, given.runs)
            for name in ADULT
            for size, epsilon in rows
        ],
        "studies": [study_row(name) for name in STUDIES],
        "averages": [
            average_row(adult, adjacency, mechanism)
            for adjacency in ("replace-one", "add-remove")
            for mechanism in ("laplace", "gaussian")
        ],
        "quantiles": [quantile_row(adult, name, size) for name in ADULT for size in (1000, len(adult))],
    }
    results.write(given.out, "curves", content, packages=("duckdb", "opendp"))
    for part, lines in content.items():
        sys.stdout.write(f"{part}\n{pd.DataFrame(lines).to_string()}\n")


# --- survival ---------------------------------------------------------------------------------------------


def study(draw: np.random.Generator, size: int, epsilon: float, edges: tuple[float, ...]) -> Counts:
    """Return the noisy counts of exponential times with mean 10, censored uniformly between 0 and 40."""
    times, censored = draw.exponential(10.0, size), draw.uniform(0, 40, size)
    seen, events, bins = np.minimum(times, censored), times <= censored, len(edges) - 1
    place = np.clip(np.searchsorted(edges, seen, side="left") - 1, 0, bins - 1)
    cells = np.bincount(np.where(seen > edges[-1], 2 * bins, place + bins * events), minlength=2 * bins + 1)
    r = math.exp(-epsilon)
    noise = draw.geometric(1 - r, len(cells)) - draw.geometric(1 - r, len(cells))
    return Counts(cells + noise.astype(float), edges, 2 * r / (1 - r) ** 2, whole=False)


EDGES = tuple(float(place) for place in range(21))


def survival_row(size: int, epsilon: float, runs: int, bins: int = 20) -> dict[str, Any]:
    """Return the rates at which intervals of survival, hazard and restricted mean contain the truth.

    The bins have equal widths, up to time 20.
    """
    edges = tuple(np.linspace(0, 20, bins + 1).tolist())
    draw, truth = np.random.default_rng(1), np.exp(-np.array(edges[1:]) / 10)
    hits, hazards, means = [], [], []
    for _ in range(runs):
        counts = study(draw, size, epsilon, edges)
        curve = np.array(estimates.survival(counts, 0.95))
        hits.append((curve[:, 1] <= truth) & (truth <= curve[:, 2]))
        hazard = estimates.cumulative_hazard(counts, 0.95)
        ends = np.array([(low, math.inf if high is None else high) for _, low, high in hazard])
        hazards.append((ends[:, 0] <= -np.log(truth)) & (-np.log(truth) <= ends[:, 1]))
        _, low, high = estimates.restricted_mean(counts, 0.95)
        means.append(low <= 10 * (1 - truth[-1]) <= (high or 0.0))
    by_time = np.mean(hits, axis=0)
    return {
        "bins": bins,
        "people": size,
        "epsilon": epsilon,
        "runs": runs,
        "rate": float(by_time.mean()),
        "lowest at a time": float(by_time.min()),
        "rate of hazard": float(np.mean(hazards)),
        "rate of restricted mean": float(np.mean(means)),
    }


def test_row(size: int, epsilon: float, runs: int) -> dict[str, Any]:
    """Return the rate at which the log-rank test rejects two groups of the same hazard, at 5 %."""
    draw = np.random.default_rng(2)
    found = [
        estimates.log_rank(*(study(draw, size // 2, epsilon, EDGES) for _ in range(2))) for _ in range(runs)
    ]
    rejected = float(np.mean([test is not None and test[1] < 0.05 for test in found]))
    return {"people": size, "epsilon": epsilon, "runs": runs, "rejected": rejected}


def study_row(name: str, runs: int = 200) -> dict[str, Any]:
    """Return the mean distance of the curve at epsilon 1 from the exact one of lifelines, at the edges."""
    lifelines = importlib.import_module("lifelines")
    frame = getattr(importlib.import_module("lifelines.datasets"), f"load_{name}")()
    time, event, upper = STUDIES[name]
    columns = {
        time: Column(kind="integer", lower=0, upper=upper),
        event: Column(kind="integer", lower=0, upper=1),
    }
    rules = Policy(unit="person", adjacency="add-remove", budget=PureBudget(1e6), columns=columns)
    item = Survival(time, event)
    answers = answered(item, rules, frame, 1.0, runs)
    edges = np.linspace(0, upper, 21)[1:]
    kaplan_meier = lifelines.KaplanMeierFitter().fit(frame[time], frame[event])
    exact = kaplan_meier.survival_function_at_times(edges).to_numpy()
    sampling = kaplan_meier.confidence_interval_survival_function_.reindex(edges, method="ffill").to_numpy()
    widths = np.array([[part.high - part.low for part in answer] for answer in answers])
    distance = np.abs(np.array([[part.value for part in answer] for answer in answers]) - exact)
    return {
        "table": name,
        "people": len(frame),
        "distance": float(distance.mean()),
        "largest": float(distance.max(axis=1).mean()),
        "half width": float(widths.mean() / 2),
        "half width without noise": float((sampling[:, 1] - sampling[:, 0]).mean() / 2),
    }


# --- distributions ----------------------------------------------------------------------------------------


def answered(
    item: Any, rules: Policy, frame: pd.DataFrame, epsilon: float, runs: int, **privacy: Any
) -> list[Any]:
    """Return answers to one question: DuckDB counts once, and the noise is drawn again for each answer."""
    compiled = compile_query(Query((item,)), rules, epsilon=epsilon, **privacy)
    engine = DuckDBEngine(frame, rules)
    raw = collect(compiled, [engine.rows(each) for each in compiled.statements])
    source = sampler()
    draws = (release_all(compiled, raw, source).values for _ in range(runs))
    return [estimate(item, Reading(compiled, {key: each[0] for key, each in one.items()})) for one in draws]


def of_adult(adult: pd.DataFrame, name: str, size: int) -> tuple[pd.DataFrame, Policy]:
    """Return some rows of a column, and its policy."""
    column, lower, upper = ADULT[name]
    frame = adult[[column]].sample(size, random_state=0).rename(columns={column: name})
    columns = {name: Column(kind="integer", lower=lower, upper=upper)}
    return frame, Policy(unit="person", adjacency="add-remove", budget=PureBudget(1e6), columns=columns)


def distribution_row(adult: pd.DataFrame, name: str, size: int, epsilon: float, runs: int) -> dict[str, Any]:
    """Return the rates at which intervals of shares and quantiles contain the answer without noise."""
    frame, rules = of_adult(adult, name, size)
    column = np.sort(frame[name].to_numpy())
    points = tuple(dict.fromkeys(float(column[int(q * (size - 1))]) for q in QS))
    shares = [float(np.mean(column <= point)) for point in points]
    values = [float(column[max(math.ceil(q * size) - 1, 0)]) for q in QS]
    rates = []
    for item, truth in ((Cdf(name, points), shares), (Quantiles(name, QS), values)):
        found = answered(item, rules, frame, epsilon, runs)
        hits = [
            each.low - 1e-12 <= at <= each.high + 1e-12
            for answer in found
            for each, at in zip(answer, truth, strict=True)
        ]
        rates.append(float(np.mean(hits)))
    head = {"column": name, "rows": size, "epsilon": epsilon, "runs": runs}
    return head | {"rate of shares": rates[0], "rate of quantiles": rates[1]}


def rank_error(column: Any, found: list[float]) -> float:
    """Return the mean distance of values from the ranks that they should have, in rows."""
    low, high = (np.searchsorted(column, found, side=side) for side in ("left", "right"))
    ranks = np.array(QS) * len(column)
    return float(np.maximum(0, np.maximum(low - ranks, ranks - high)).mean())


def quantile_row(adult: pd.DataFrame, name: str, size: int, runs: int = 50) -> dict[str, Any]:
    """Return the mean errors of five quantiles at epsilon 1: in rows, and in units of the column."""
    frame, rules = of_adult(adult, name, size)
    column, (_, lower, upper) = np.sort(frame[name].to_numpy()), ADULT[name]
    exact = np.array([float(column[max(math.ceil(q * size) - 1, 0)]) for q in QS])
    ways: dict[str, Callable[[], list[float]]] = {"OpenDP": opendp_way(column, lower, upper)}
    tools = diffprivlib_tools()
    if tools is not None:
        ways["diffprivlib"] = lambda: diffprivlib_way(tools, column, lower, upper)
    answers = answered(Quantiles(name, QS), rules, frame, 1.0, runs)
    found = {"Tacit": [[part.value for part in answer] for answer in answers]}
    found |= {library: [way() for _ in range(runs)] for library, way in ways.items()}
    row: dict[str, Any] = {"column": name, "rows": size}
    for library, values in found.items():
        if np.isnan(values).any():
            row[f"{library}, failed answers"] = int(np.isnan(values).any(axis=1).sum())
            continue
        row[f"{library}, rows"] = float(np.mean([rank_error(column, each) for each in values]))
        row[f"{library}, units"] = float(np.abs(np.array(values) - exact).mean())
    return row


def opendp_way(column: Any, lower: int, upper: int) -> Callable[[], list[float]]:
    """Return a function that asks OpenDP for the quantiles, each at a fifth of epsilon 1."""
    dp = importlib.import_module("opendp.prelude")
    dp.enable_features("contrib")
    stride = max(1, (upper - lower) // 1024)
    candidates = [float(each) for each in range(lower, upper + 1, stride)]
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False))
    space = domain, dp.symmetric_distance()
    values = column.astype(float).tolist()

    def measurement(q: float) -> Any:
        return dp.binary_search_chain(
            lambda scale: dp.m.make_private_quantile(
                *space, dp.max_divergence(), candidates=candidates, alpha=q, scale=scale
            ),
            d_in=1,
            d_out=1.0 / len(QS),
            T=float,
        )

    chosen = [measurement(q) for q in QS]
    return lambda: [float(each(values)) for each in chosen]


def diffprivlib_way(tools: Any, column: Any, lower: int, upper: int) -> list[float]:
    """Return diffprivlib's quantiles; NaN if it fails, as it does on long columns with many equal values."""
    try:
        return list(tools.quantile(column.astype(float), list(QS), epsilon=1.0, bounds=(lower, upper)))
    except RuntimeError:
        return [math.nan] * len(QS)


@functools.cache
def diffprivlib_tools() -> Any:
    """Return diffprivlib's quantiles; its models need an older scikit-learn, so only its tools are loaded."""
    spec = importlib.util.find_spec("diffprivlib")
    if spec is None or spec.submodule_search_locations is None:
        return None
    package = types.ModuleType("diffprivlib")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["diffprivlib"] = package
    return importlib.import_module("diffprivlib.tools.quantiles")


# --- averages ---------------------------------------------------------------------------------------------


def average_row(adult: pd.DataFrame, adjacency: str, mechanism: str, runs: int = 2000) -> dict[str, Any]:
    """Return the mean error of a mean age at epsilon 1 (and delta 1e-6): with a pair, and with two halves."""
    frame = adult[["age"]].astype(float).sample(1000, random_state=0).reset_index(drop=True)
    frame.loc[::20, "age"] = np.nan
    rules = Policy(
        unit="person",
        adjacency=adjacency,
        budget=PureBudget(1e6),
        public_records=1000 if adjacency == "replace-one" else None,
        columns={"age": Column(kind="integer", lower=0, upper=120)},
    )
    exact = float(frame.age.mean())
    privacy = {"mechanism": mechanism} | ({"delta": 1e-6} if mechanism == "gaussian" else {})
    found = [each.value for each in answered(Mean("age"), rules, frame, 1.0, runs, **privacy)]
    draw, total = np.random.default_rng(3), centred("age", rules)
    noise = []
    for measure in (total, Present("age")):
        limit = bound(measure, rules, groups=False, filtered=False)
        moved = 2 if adjacency == "replace-one" else 1
        if mechanism == "laplace":
            drawn = draw.laplace(0, float(laplace_scale(moved * limit.whole, Fraction(1, 2))), runs)
        else:
            rho = rho_within(Fraction(1), 1e-6) / 2
            drawn = draw.normal(0, float(gaussian_sigma(moved**2 * limit.squared, rho)), runs)
        noise.append(drawn / limit.factor)
    rows = int(frame.age.notna().sum())
    middle = float(total.centre)
    halves = middle + ((exact - middle) * rows + noise[0]) / (rows + noise[1])
    return {
        "adjacency": adjacency,
        "mechanism": mechanism,
        "runs": runs,
        "error": float(np.abs(np.array(found) - exact).mean()),
        "error with halves": float(np.abs(halves - exact).mean()),
    }


if __name__ == "__main__":
    main()
