"""Intervals hold the answer without noise as often as they say; values are what the numbers make them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from query_oracles import fix_bits, policy_of
from scipy import integrate

from tacit.ledger import Column, Policy
from tacit.queries.engines import DuckDBEngine
from tacit.queries.measures import (
    Measure,
    Pair,
    bound,
    centred,
    gaussian_sigma,
    laplace_scale,
    laplace_sum_reach,
)
from tacit.queries.plan import Compiled, RawTable, collect, compile_query, release_all, sampler
from tacit.queries.private_table import (
    Estimate,
    Reading,
    _parts,
    _plain,
    content_of,
    estimate,
    read_content,
)
from tacit.queries.query import (
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

fixed_bits = pytest.fixture(autouse=True)(fix_bits)

FRAME = pd.DataFrame(
    {"age": [(7 * row) % 101 + 0.25 for row in range(60)], "kids": [row % 5 for row in range(60)]}
)
COLUMNS = {
    "age": Column(kind="number", lower=0, upper=101),
    "kids": Column(kind="integer", lower=0, upper=8),
}
RUNS = 600


def policy(adjacency: str = "add-remove") -> Policy:
    return policy_of(COLUMNS, adjacency, public=60)


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
    return drawn(item, compiled, counted(compiled), runs)


def drawn(item: Aggregate, compiled: Compiled, raw: RawTable, runs: int = RUNS) -> list[Estimate]:
    found, source = [], sampler()
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


@pytest.mark.thorough(cases=4)
@pytest.mark.untraced
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("name", TRUE)
def test_intervals_hold_the_truth_in_95_of_100(name: str, noise: str) -> None:
    """More than 52 misses in 600 have a chance of 1e-4 if each is at most 5 %."""
    item, true = TRUE[name]
    assert misses(estimates(item, policy(), NOISE[noise]), true) <= 52


@pytest.mark.parametrize("name", ["count", "sum", "mean", "variance of numbers"])
def test_intervals_hold_under_replace_one_too(name: str) -> None:
    item, true = TRUE[name]
    assert misses(estimates(item, policy("replace-one"), NOISE["laplace"]), true) <= 52


@pytest.mark.untraced
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_count_beside_its_mean_is_a_whole_number_whose_interval_holds(adjacency: str) -> None:
    items = (Count("kids"), Mean("kids"))
    compiled = compile_query(Query(items, where=Compare("kids", ">=", 0)), policy(adjacency), epsilon=1.0)
    found = drawn(items[0], compiled, counted(compiled))
    assert all(type(end) is int for one in found for end in (one.value, one.low, one.high))
    assert misses(found, 60) <= 52


@pytest.mark.parametrize(
    ("adjacency", "mechanism", "better"),
    [("replace-one", "laplace", 4), ("replace-one", "gaussian", 2), ("add-remove", "laplace", 2),
     ("add-remove", "gaussian", 1)],
)  # fmt: skip
def test_a_mean_has_less_noise_than_a_sum_and_a_count_of_half_the_budget_each(
    adjacency: str, mechanism: str, better: float
) -> None:
    """By the variances of the two noises at a mean in the middle of the bounds, where the count is free."""
    rules = policy(adjacency)
    noise: dict[str, Any] = (
        {"epsilon": 1.0} if mechanism == "laplace" else {"rho": 0.5, "mechanism": mechanism}
    )
    half = {name: share / 2 if name != "mechanism" else share for name, share in noise.items()}
    (pair,) = compile_query(Query((Mean("kids"),)), rules, **noise).releases
    total = bound(centred("kids", rules), rules, groups=False, filtered=False)
    exchanged = 2 if adjacency == "replace-one" else 1
    separate = float(
        laplace_scale(exchanged * total.whole, Fraction(half["epsilon"]))
        if mechanism == "laplace"
        else gaussian_sigma(exchanged**2 * total.squared, Fraction(half["rho"]))
    )
    assert isinstance(pair.measure, Pair)
    in_sum = sum(float(factor) ** 2 for factor in pair.measure.form(pair.measure.total))
    assert separate**2 / (in_sum * float(pair.scale) ** 2) == pytest.approx(better, rel=1e-6)


def test_an_interval_for_a_lower_level_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.queries.private_table.LEVEL", 0.85)
    assert misses(estimates(Sum("age"), policy(), NOISE["laplace"]), float(FRAME.age.sum())) > 52


def test_intervals_are_no_wider_than_they_must_be() -> None:
    """A count's interval is that of its noise: about 5 % of 600 miss, not none."""
    assert misses(estimates(Sum("age"), policy(), NOISE["laplace"]), float(FRAME.age.sum())) >= 8


@pytest.mark.thorough(cases=2)
@pytest.mark.untraced
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("name", ["mean", "variance of numbers"])
def test_intervals_of_quotients_are_no_wider_than_they_must_be(name: str, noise: str) -> None:
    """On ten times as many rows, where no interval is cut to where the answer must lie."""
    item, _ = TRUE[name]
    rows = 10 * len(FRAME)
    compiled = compile_query(Query((item,)), policy(), **NOISE[noise])
    raw = counted(compiled)
    many = {m: {key: [10 * x for x in cells] for key, cells in table.items()} for m, table in raw.items()}
    found = drawn(item, compiled, many)
    column = (FRAME.kids if "numbers" not in name else FRAME.age).to_numpy()
    mean, square = column.mean(), (column**2).mean()
    variance = (square - mean**2) * (1.0 if "all" in name else rows / (rows - 1))
    assert 8 <= misses(found, float(mean if "mean" in name else variance)) <= 52


def law_of(scale: float) -> NDArray[np.float64]:
    """Discrete Laplace noise from -2000 to 2000."""
    mass = np.exp(-np.abs(np.arange(-2000, 2001)) / scale)
    return np.asarray(mass / mass.sum())


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 3.0, 20.0])
def test_spread_over_units_discrete_noise_is_no_further_out_than_the_continuous(scale: float) -> None:
    """Tails at many points: the density is a step for each integer."""
    mass, wide = law_of(scale)[2000:], 0.5 / math.tanh(0.5 / scale)
    t = np.linspace(0.0, 12 * scale + 2, 5001)
    at = np.floor(t + 0.5).astype(int)
    beyond = np.cumsum(mass[::-1])[::-1]  # on one side, from k on
    tail = 2 * (beyond[at] - mass[at] * (t - at + 0.5))
    tail = np.where(at == 0, 1.0 - 2 * mass[0] * t, tail)
    assert np.all(tail <= np.exp(-t / wide) * (1 + 1e-9) + 1e-12)


def less_that_of_one(x: float, scales: tuple[float, ...]) -> float:
    """The characteristic function without that of scale 1, whose law is known, by x."""
    return 0.0 if x == 0.0 else (math.prod(1 / (1 + (b * x) ** 2) for b in scales) - 1 / (1 + x * x)) / x


@pytest.mark.parametrize("scales", [(1.0,), (1.0, 1.0), (5.0, 2.0, 0.1), (3.0, 3.0, 3.0), (40.0, 1e-3)])
def test_a_sum_of_laplace_noises_reaches_as_far_as_its_transform_says(scales: tuple[float, ...]) -> None:
    """P(|noise| > t) by Gil-Pelaez inversion of the product of the characteristic functions."""
    for missed in (0.05, 0.002):
        t = laplace_sum_reach(scales, missed)
        rest, _ = integrate.quad(less_that_of_one, 0.0, np.inf, weight="sin", wvar=t, args=(scales,))
        inside = math.pi / 2 * (1 - math.exp(-t)) + rest
        beyond = 1.0 - 2 / math.pi * inside
        assert 0.9 * missed <= beyond <= missed * (1 + 1e-6)
    alone = laplace_sum_reach([1.0], 0.05)
    assert math.exp(-alone) == pytest.approx(0.05)


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


@pytest.mark.thorough(cases="values")
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
    for nothing in (0, -5):  # on replacing both numbers of the pair: none, or fewer than none
        mean = without_noise(Mean("kids"), policy("replace-one"), {Pair: nothing})
        assert (mean.low, mean.high) == (0.0, 8.0)
        assert mean.value == 4.0
        deviation = without_noise(StandardDeviation("kids"), policy("replace-one"), {Pair: nothing})
        assert 0.0 <= deviation.low <= deviation.value <= deviation.high <= 8.0


def test_values_lie_in_their_intervals() -> None:
    for item, _ in TRUE.values():
        for one in estimates(item, policy(), {"epsilon": 0.05}, runs=20):
            assert one.low is not None
            assert one.high is not None
            assert one.low <= one.value <= one.high


@pytest.mark.thorough(cases=4)
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("by", [(), ("ward",)])
@pytest.mark.parametrize("rows", [1, 3])
def test_counts_are_whole_numbers(rows: int, by: tuple[str, ...], adjacency: str, noise: str) -> None:
    """Those of rows, values, units and bins, beside a mean or not, in groups or not, printed or as data."""
    columns = COLUMNS | {"ward": Column(kind="category", values=("a", "b"))}
    rules = policy_of(columns, adjacency, public=20, unit_column="person", rows_per_unit=rows)
    frame = FRAME.assign(person=[row // 3 for row in range(60)], ward=["a", "b"] * 30)
    counts = (Count(), Count("age"), CountUnits(), Histogram("kids", (0, 2, 4)))
    for items in (counts, (Mean("age"), *counts), (Variance("age"), Mean("kids"), *counts)):
        compiled = compile_query(Query(items, by=by, where=Compare("kids", ">", 0)), rules, **NOISE[noise])
        engine = DuckDBEngine(frame, rules)
        raw = collect(compiled, [engine.rows(each) for each in compiled.statements])
        content = content_of(compiled, release_all(compiled, raw, sampler()))
        answer = read_content(
            content, compiled, charge="", epsilon=1.0, delta=0.0, remaining=0.0, repeated=False
        )
        places = range(len(items) - len(counts), len(items))
        for row in answer.rows:
            found = [part for place in places for part in _parts(row.values[place])]
            assert all(type(end) is int for one in found for end in (one.value, one.low, one.high))
        heads, *lines = answer.cells()
        shown = [line[heads.index("count")] for line in lines]
        assert all("." not in cell for cell in shown)


def test_halves_are_shown_as_such() -> None:
    assert _plain(Fraction(7, 2)) == 3.5
    assert isinstance(_plain(Fraction(8, 2)), int)


def test_stored_content_is_plain_data() -> None:
    compiled = compile_query(
        Query((Mean("age"), Histogram("kids", (0, 9))), names=("m", "h")), policy(), epsilon=1.0
    )
    stored = content_of(compiled, release_all(compiled, counted(compiled), sampler()))
    assert stored["columns"] == ["m", "h"]
    assert stored["edges"] == [[], [0, 9]]
    assert set(stored["rows"][0]["values"][0]) == {"value", "low", "high"}
