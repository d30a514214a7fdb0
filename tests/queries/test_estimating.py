"""Intervals hold the answer without noise as often as they say; values are what the numbers make them."""

from __future__ import annotations

import math
import os
import random
from fractions import Fraction
from typing import Any

import pandas as pd
import pytest

from tacit.ledger import Column, Policy, PureBudget
from tacit.queries import estimating
from tacit.queries.algebra import (
    Aggregate,
    Compare,
    Count,
    CountUnits,
    Histogram,
    Mean,
    Query,
    StandardDeviation,
    Sum,
    Variance,
)
from tacit.queries.answers import content_of
from tacit.queries.compiling import Compiled, compile_query
from tacit.queries.engines.duckdb import DuckDBEngine
from tacit.queries.estimating import Estimate, Reading, estimate
from tacit.queries.measures import Measure, Present
from tacit.queries.noise import sampler
from tacit.queries.releasing import RawTable, collect, release_all

FRAME = pd.DataFrame(
    {"age": [(7 * row) % 101 + 0.25 for row in range(60)], "kids": [row % 5 for row in range(60)]}
)
COLUMNS = {
    "age": Column(kind="number", lower=0, upper=101),
    "kids": Column(kind="integer", lower=0, upper=8),
}
RUNS = 600


@pytest.fixture(autouse=True)
def fixed_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the operating system's: a verdict on draws is the same in each run."""
    monkeypatch.setattr(os, "urandom", random.Random(1).randbytes)


def policy(adjacency: str = "add-remove") -> Policy:
    public = 60 if adjacency == "replace-one" else None
    return Policy(
        unit="row", adjacency=adjacency, budget=PureBudget(1.0), columns=COLUMNS, public_records=public
    )


def counted(compiled: Compiled) -> RawTable:
    engine = DuckDBEngine(FRAME, compiled.policy)
    return collect(compiled, [engine.rows(each) for each in compiled.statements])


kids = FRAME.kids
TRUE: dict[str, tuple[Aggregate, float]] = {
    "count": (Count(), 60),
    "count of a column": (Count("kids"), 60),
    "units": (CountUnits(), 60),
    "sum": (Sum("kids"), float(kids.sum())),
    "sum of numbers": (Sum("age"), float(FRAME.age.sum())),
    "mean": (Mean("kids"), float(kids.mean())),
    "mean of numbers": (Mean("age"), float(FRAME.age.mean())),
    "variance": (Variance("kids"), float(kids.var())),
    "variance of all": (Variance("kids", sample=False), float(kids.var(ddof=0))),
    "variance of numbers": (Variance("age"), float(FRAME.age.var())),
    "deviation": (StandardDeviation("kids"), float(kids.std())),
}
NOISE: dict[str, dict[str, Any]] = {
    "laplace": {"epsilon": 1.0},
    "gaussian": {"rho": 0.5, "mechanism": "gaussian"},
}


def estimates(item: Aggregate, rules: Policy, noise: dict[str, Any], runs: int = RUNS) -> list[Estimate]:
    query = Query((item,), where=Compare("kids", ">=", 0))
    compiled = compile_query(query, rules, **noise)
    raw, source = counted(compiled), sampler()
    found = []
    for _ in range(runs):
        noisy = release_all(compiled, raw, source)
        reading = Reading(compiled, {release: values[0] for release, values in noisy.values.items()})
        one = estimate(item, reading)
        assert isinstance(one, Estimate)
        found.append(one)
    return found


def misses(found: list[Estimate], true: float) -> int:
    slack = 1e-9 * max(1.0, abs(true))
    ends = [(one.low, one.high) for one in found if one.low is not None and one.high is not None]
    return sum(not low - slack <= true <= high + slack for low, high in ends)


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("name", TRUE)
def test_intervals_hold_the_truth_in_95_of_100(name: str, noise: str) -> None:
    """More than 52 misses in 600 have a chance of 1e-4 if each is at most 5 %."""
    item, true = TRUE[name]
    assert misses(estimates(item, policy(), NOISE[noise]), true) <= 52


@pytest.mark.parametrize("name", ["count", "sum", "mean"])
def test_intervals_hold_under_replace_one_too(name: str) -> None:
    item, true = TRUE[name]
    assert misses(estimates(item, policy("replace-one"), NOISE["laplace"]), true) <= 52


def test_an_interval_for_a_lower_level_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimating, "LEVEL", 0.85)
    assert misses(estimates(Sum("age"), policy(), NOISE["laplace"]), float(FRAME.age.sum())) > 52


def test_intervals_are_no_wider_than_they_must_be() -> None:
    """A count's interval is that of its noise: about 5 % of 600 miss, not none."""
    assert misses(estimates(Sum("age"), policy(), NOISE["laplace"]), float(FRAME.age.sum())) >= 8


# --- exact values from exact integers --------------------------------------------------------------------


def without_noise(item: Aggregate, rules: Policy, change: dict[type[Measure], int] | None = None) -> Any:
    """The estimate from the integers themselves, some of them replaced."""
    compiled = compile_query(Query((item,), where=Compare("kids", ">=", 0)), rules, epsilon=1e6)
    raw = counted(compiled)
    values = {}
    for release in compiled.releases:
        counts = [release.bound.factor * count for count in raw[release.measure][()]]
        values[release] = tuple((change or {}).get(type(release.measure), count) for count in counts)
    return estimate(item, Reading(compiled, values))


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("name", TRUE)
def test_without_noise_the_value_is_the_truth(name: str, adjacency: str) -> None:
    item, true = TRUE[name]
    found = without_noise(item, policy(adjacency))
    tolerance = 0.02 if name == "variance of numbers" else 1e-3  # squares are rounded to 2^-20 of their range
    assert math.isclose(found.value, true, rel_tol=tolerance / 10)


def test_a_histogram_leaves_out_what_is_outside() -> None:
    found = without_noise(Histogram("kids", (1, 2, 4)), policy())
    assert tuple(one.value for one in found) == (12, 36)


def test_with_no_rows_nothing_is_known_but_the_bounds() -> None:
    for count in (0, -5):
        mean = without_noise(Mean("kids"), policy(), {Present: count})
        assert (mean.low, mean.high) == (0.0, 8.0)
        assert mean.value == 4.0
        deviation = without_noise(StandardDeviation("kids"), policy(), {Present: count})
        assert 0.0 <= deviation.low <= deviation.value <= deviation.high <= 8.0


def test_values_lie_in_their_intervals() -> None:
    for item, _ in TRUE.values():
        for one in estimates(item, policy(), {"epsilon": 0.05}, runs=50):
            assert one.low is not None
            assert one.high is not None
            assert one.low <= one.value <= one.high


def test_halves_are_shown_as_such() -> None:
    assert estimating._plain(Fraction(7, 2)) == 3.5
    assert isinstance(estimating._plain(Fraction(8, 2)), int)


def test_what_is_stored_is_plain_data() -> None:
    compiled = compile_query(
        Query((Mean("age"), Histogram("kids", (0, 9))), names=("m", "h")), policy(), epsilon=1.0
    )
    stored = content_of(compiled, release_all(compiled, counted(compiled), sampler()))
    assert stored["columns"] == ["m", "h"]
    assert stored["edges"] == [[], [0, 9]]
    assert set(stored["rows"][0]["values"][0]) == {"value", "low", "high"}
