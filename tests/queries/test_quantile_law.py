"""The candidate that a quantile chooses, from a column in an engine to the answer, follows the exact law.

The oracle has the exponential mechanism's law from its definition, by brute force over all candidates, from
the rows themselves: no places, no bins, no losses of the library.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy import stats

from tacit.ledger import Column, Policy, PureBudget
from tacit.queries.engines import DuckDBEngine
from tacit.queries.plan import collect, compile_query, release_all, sampler
from tacit.queries.query import Quantile, Query

Array = NDArray[np.float64]
SCORES = tuple(range(10))
POLICY = Policy(
    unit="row",
    adjacency="add-remove",
    budget=PureBudget(1.0),
    columns={
        "score": Column(kind="integer", lower=0, upper=9),
        "dose": Column(kind="number", lower=-1.0, upper=4.0),
        "ward": Column(kind="category", values=("a", "b", "none")),
    },
)
COLUMNS: dict[str, Sequence[float | None]] = {
    "spread": [float(x % 10) for x in range(37)],
    "tied": [2.0] * 20 + [3.0] * 19 + [8.0],
    "constant": [4.0] * 25,
    "at the bounds": [0.0] * 12 + [9.0] * 12,
    "beyond the bounds": [-1e300] * 5 + [math.inf] * 6 + [5.0] * 5,
    "missing": [None] * 9 + [math.nan] * 4 + [6.0, 7.0, 7.0],
    "one": [3.0],
    "empty": [],
}
QS = (0.0, 0.01, 0.25, 0.5, 0.77, 0.99, 1.0)
DRAWS = 3000


@pytest.fixture(autouse=True)
def fixed_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the operating system's: a verdict on draws is the same in each run."""
    monkeypatch.setattr(os, "urandom", random.Random(2).randbytes)


def law(values: Sequence[float | None], q: float, candidates: Array, epsilon: float) -> Array:
    """P[c] ~ exp(-epsilon loss(c) / (2 Delta)), the loss being d times the distance of c's ranks from q n."""
    there = [x for x in values if x is not None and not math.isnan(x)]
    clipped = np.clip(np.array(there, np.float64), candidates[0], candidates[-1])
    moved = [max(candidates, key=lambda c, x=x: (-abs(c - x), c)) for x in clipped]  # type: ignore[misc]
    ranks = [(sum(x < c for x in moved), sum(x <= c for x in moved)) for c in candidates]
    if q in (0.0, 1.0):
        reach = math.ceil(2 / epsilon * math.log(len(candidates) / 0.05))
        target, d, delta = (reach if q == 0.0 else len(moved) - reach), 1, 1
    else:
        d = Fraction(str(q)).denominator
        target, delta = q * len(moved), max(round(q * d), d - round(q * d))  # type: ignore[assignment]
    losses = np.array([d * max(0.0, first - target, target - last) for first, last in ranks])
    weights = np.exp(-epsilon * (losses - losses.min()) / (2 * delta))
    return np.asarray(weights / weights.sum())


def answers(
    table: pa.Table, item: Quantile, epsilon: float, draws: int, by: tuple[str, ...] = ()
) -> dict[Any, list[float]]:
    """The values that are chosen, group by group, over many answers to one count."""
    compiled = compile_query(Query((item,), by=by), POLICY, epsilon=epsilon)
    engine = DuckDBEngine(table, POLICY)
    raw = collect(compiled, [engine.rows(each) for each in compiled.statements])
    engine.close()
    (release,) = compiled.releases
    assert release.choice is not None
    found: dict[Any, list[float]] = {}
    for _ in range(draws):
        noisy = release_all(compiled, raw, sampler("own"))
        for group, (place,) in zip(noisy.groups, noisy.values[release], strict=True):
            found.setdefault(group, []).append(release.choice.values[place])
    return found


def table_of(scores: Sequence[float | None], wards: list[str] | None = None) -> pa.Table:
    doses = [None if x is None else x / 2 for x in scores]
    return pa.table(
        {
            "score": pa.array(scores, pa.float64()),
            "dose": pa.array(doses, pa.float64()),
            "ward": pa.array(wards or ["a"] * len(scores), pa.string()),
        }
    )


def fit(found: list[float], candidates: Array, chances: Array) -> float:
    """p of a chi-square test, candidates of small chance taken together."""
    counts = Counter(found)
    seen = np.array([counts[c] for c in candidates], float)
    assert seen.sum() == len(found), "a value that is no candidate"
    expected = chances * len(found)
    rare = expected < 10
    pairs = [(seen[~rare], expected[~rare]), ([seen[rare].sum()], [expected[rare].sum()])]
    one, other = (np.concatenate([np.asarray(pair[side], float) for pair in pairs]) for side in (0, 1))
    if other[-1] < 5:
        if one[-1] > 30:
            return 0.0
        one, other = one[:-1], other[:-1]
    return float(stats.chisquare(one, other * one.sum() / other.sum()).pvalue) if len(one) > 1 else 1.0


@pytest.mark.thorough(cases=2)
@pytest.mark.untraced
@pytest.mark.parametrize("name", COLUMNS)
def test_the_answer_follows_the_law_of_the_exponential_mechanism(name: str) -> None:
    candidates = np.array(SCORES, np.float64)
    for q in QS:
        found = answers(table_of(COLUMNS[name]), Quantile("score", q), 0.6, DRAWS // 4)[()]
        assert fit(found, candidates, law(COLUMNS[name], q, candidates, 0.6)) > 1e-7, q


def test_another_law_is_seen() -> None:
    candidates = np.array(SCORES, np.float64)
    found = answers(table_of(COLUMNS["spread"]), Quantile("score", 0.5), 0.6, DRAWS)[()]
    assert fit(found, candidates, law(COLUMNS["spread"], 0.5, candidates, 0.6)) > 1e-7
    assert fit(found, candidates, law(COLUMNS["spread"], 0.5, candidates, 0.9)) < 1e-7
    assert fit(found, candidates, law(COLUMNS["spread"], 0.25, candidates, 0.6)) < 1e-7


def test_groups_choose_for_themselves_and_an_empty_one_has_no_favourite() -> None:
    scores: Sequence[float | None] = [*COLUMNS["tied"], *COLUMNS["spread"]]
    wards = ["a"] * len(COLUMNS["tied"]) + ["b"] * len(COLUMNS["spread"])
    found = answers(table_of(scores, wards), Quantile("score", 0.5), 0.6, DRAWS // 2, by=("ward",))
    candidates = np.array(SCORES, np.float64)
    for group, values in {"a": COLUMNS["tied"], "b": COLUMNS["spread"], "none": []}.items():
        assert fit(found[(group,)], candidates, law(values, 0.5, candidates, 0.6)) > 1e-7


@pytest.mark.parametrize("candidates", [(0.0, 1.5, 2.0, 3.9), (1.0,)])
def test_candidates_of_ones_own(candidates: tuple[float, ...]) -> None:
    for name, q in itertools.product(("spread", "tied", "constant"), (0.25, 1.0)):
        halves = [None if x is None else x / 2 for x in COLUMNS[name]]
        found = answers(table_of(COLUMNS[name]), Quantile("dose", q, candidates), 0.6, DRAWS // 4)[()]
        assert fit(found, np.array(candidates), law(halves, q, np.array(candidates), 0.6)) > 1e-7


@pytest.mark.untraced
@pytest.mark.parametrize("value", [0.0, 3.99, 2.0, 0.1234567, -1.0])
def test_a_column_of_one_value_has_that_value_for_all_quantiles(value: float) -> None:
    """To half a step of the candidates; also where it lies between two of them."""
    table = table_of([2 * value] * 50)
    for q in (0.0, 0.5, 1.0):
        found = answers(table, Quantile("dose", q), 1000.0, 3)[()]
        assert max(abs(x - value) for x in found) <= 5.0 / 1024 / 2 * (1 + 1e-9), q


def test_no_maximum_is_above_all_values_however_large_epsilon_is() -> None:
    """Beyond half a step of the candidates; the rank is off by one, as is stated."""
    values = [0.3 + 0.01 * place for place in range(100)]
    table = table_of([2 * x for x in values])
    for q, low, high in ((1.0, values[-2], values[-1]), (0.0, values[0], values[1])):
        found = answers(table, Quantile("dose", q), 1e6, 40)[()]
        half = 5.0 / 1024 / 2
        assert all(low - half <= x <= high + half for x in found)
