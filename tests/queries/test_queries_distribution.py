"""A whole distribution: the counts, least squares, shares and quantiles, and intervals that cover."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from query_oracles import fix_bits, policy_of

from tacit.errors import InvalidInput
from tacit.ledger import Column, Ledger
from tacit.queries import Cdf, Count, PrivateTable, Quantiles, Query, register_table
from tacit.queries.distribution import Distribution, _weights
from tacit.queries.measures import Regular
from tacit.queries.plan import collect, compile_query, release_all, sampler
from tacit.queries.private_table import Reading, estimate
from tacit.queries.query import Aggregate
from tacit.queries.sql import parse

fixed_bits = pytest.fixture(autouse=True)(fix_bits)

COLUMNS = {
    "age": Column(kind="integer", lower=0, upper=100),
    "kids": Column(kind="integer", lower=0, upper=8),
    "cost": Column(kind="number", lower=0, upper=1000, bins=(100.0, 500.0)),
}
DRAW = np.random.default_rng(1)
FRAME = pd.DataFrame(
    {
        "age": DRAW.integers(18, 90, 500),
        "kids": DRAW.poisson(1.5, 500).clip(0, 8),
        "cost": DRAW.lognormal(5, 1, 500).clip(0, 1000),
    }
)


@pytest.fixture(scope="module")
def raw() -> Any:
    """The integers without noise of a question, which a private table never returns."""
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("people", policy_of(COLUMNS))
    register_table(FRAME, ledger=ledger, dataset="people")
    table = PrivateTable(FRAME, ledger=ledger, dataset="people")

    def collected(item: Aggregate, **privacy: Any) -> Any:
        compiled = compile_query(Query((item,)), table.policy, **privacy)
        return compiled, collect(compiled, [table._engine.rows(each) for each in compiled.statements])

    return collected


def test_a_run_counts_the_rows_of_its_candidates(raw: Any) -> None:
    compiled, table = raw(Quantiles("age"), epsilon=1.0)
    (release,) = compiled.releases
    measure = release.measure
    assert isinstance(measure, Regular)
    assert (measure.leaves, measure.run, measure.bins) == (101, 11, 111)
    assert (release.bound.whole, release.scale) == (2, 2)  # a row counts twice
    (counts,) = table[measure].values()
    expected = np.bincount(FRAME.age, minlength=101).tolist()
    assert counts[:101] == expected
    assert counts[101:] == [sum(expected[at : at + 11]) for at in range(0, 101, 11)]


def test_few_candidates_need_no_runs(raw: Any) -> None:
    compiled, _ = raw(Quantiles("kids"), epsilon=1.0)
    (release,) = compiled.releases
    assert (release.measure.bins, release.bound.whole, release.scale) == (9, 1, Fraction(1))


@pytest.mark.parametrize(("leaves", "run"), [(20, 4), (23, 5), (9, 0)])
def test_the_counts_are_combined_by_least_squares(leaves: int, run: int) -> None:
    runs = -(-leaves // run) if run else 0
    design = np.vstack([np.eye(leaves)] + [[(np.arange(leaves) // run == at) * 1.0] for at in range(runs)])
    noisy = np.random.default_rng(0).normal(size=leaves + runs)
    fitted, *_ = np.linalg.lstsq(design, noisy)
    assert _weights(leaves, run) @ noisy == pytest.approx(np.cumsum(fitted))


def exact(column: str, q: float) -> tuple[float, float]:
    """The smallest and the largest value that are q-quantiles."""
    values = np.sort(FRAME[column])
    rank = q * len(values)
    return float(values[max(math.ceil(rank) - 1, 0)]), float(values[min(math.floor(rank), len(values) - 1)])


QS = (0.051, 0.251, 0.501, 0.751, 0.951)  # no rank is whole, so one value is the quantile


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("column", list(COLUMNS))
@pytest.mark.parametrize(
    "privacy", [{"epsilon": 0.5}, {"epsilon": 2.0}, {"rho": 0.1, "mechanism": "gaussian"}]
)
def test_intervals_contain_the_answer_without_noise(column: str, privacy: dict[str, Any], raw: Any) -> None:
    points = tuple(dict.fromkeys(map(float, np.quantile(FRAME[column], [0.1, 0.3, 0.6]))))
    for item in (Quantiles(column, QS), Cdf(column, points)):
        compiled, table = raw(item, **privacy)
        hits = []
        for _ in range(80):
            noisy = release_all(compiled, table, sampler())
            found = estimate(item, Reading(compiled, {key: value[0] for key, value in noisy.values.items()}))
            assert isinstance(found, tuple)
            values = [each.value for each in found]
            assert values == sorted(values)
            for each, at in zip(found, item.qs if isinstance(item, Quantiles) else points, strict=True):
                assert each.low is not None
                assert each.high is not None
                assert each.low <= each.value <= each.high
                if isinstance(item, Quantiles):
                    least, most = exact(column, at)
                    hits.append(each.low <= least and most <= each.high)
                else:
                    hits.append(each.low - 1e-12 <= (FRAME[column] <= at).mean() <= each.high + 1e-12)
        assert np.mean(hits) > 0.89  # correlated within an answer; check_curves.py has a thousand answers


def test_intervals_that_know_half_of_the_noise_are_found(raw: Any) -> None:
    compiled, table = raw(Cdf("age", (30, 50, 70)), epsilon=0.5)
    (release,) = compiled.releases
    lows, highs = map(np.array, release.measure.ends(compiled.policy))
    hits = []
    for _ in range(80):
        (counts,) = release_all(compiled, table, sampler()).values[release]
        small = Distribution(
            np.array(counts, dtype=float), lows, lows, highs, release.measure.run, 8.0, 3.0, 0.95
        )
        for (_, low, high), point in zip(small.cdf((30, 50, 70)), (30, 50, 70), strict=True):
            hits.append(low <= (FRAME.age <= point).mean() <= high)
    assert np.mean(hits) < 0.85


def test_without_noise_shares_and_quantiles_are_exact() -> None:
    counts = np.bincount(FRAME.age, minlength=101).astype(float)
    ages = np.arange(101.0)
    exactly = Distribution(counts, ages, ages, ages, 0, 0.0, 3.0, 0.95)
    for point, (value, low, high) in zip((20, 40.5, 99), exactly.cdf((20, 40.5, 99)), strict=True):
        assert value == low == high == pytest.approx((FRAME.age <= point).mean())
    for q, (value, low, high) in zip(QS, exactly.quantiles(QS), strict=True):
        assert (low, high) == exact("age", q)
        assert low <= value <= high


def test_one_charge_pays_for_everything(raw: Any) -> None:
    query = parse(
        "SELECT boxplot(age), quantiles(age, [0.1, 0.9]), cdf(age), cdf(cost) FROM people", policy_of(COLUMNS)
    )
    compiled = compile_query(query, policy_of(COLUMNS), epsilon=1.0)
    assert [release.scale for release in compiled.releases] == [4, 4]  # one for each column
    assert query.aggregates[0] == Quantiles("age", (0.05, 0.25, 0.5, 0.75, 0.95))


@pytest.mark.parametrize("size", [0, 3])
def test_hardly_any_rows_are_answered_too(size: int) -> None:
    frame = FRAME[:size]
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("people", policy_of(COLUMNS))
    register_table(frame, ledger=ledger, dataset="people", accept_missing=list(COLUMNS))
    table = PrivateTable(frame, ledger=ledger, dataset="people")
    answer = table.sql("SELECT boxplot(age), cdf(cost), quantiles(age, [0, 1]) FROM people", epsilon=1.0)
    assert answer.points[1] == (100.0, 500.0)
    for item in answer.rows[0].values:
        assert isinstance(item, tuple)
        assert all(one.value <= other.value for one, other in itertools.pairwise(item))
    assert answer.to_json()
    assert "Intervals of survival" not in answer.to_text()


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("quantiles(age)", "write quantiles(age, [0.25, 0.5, 0.75])"),
        ("quantiles(age, [0.5, 0.25])", "strictly increasing"),
        ("quantiles(age, [0.5, 1.5])", "Each share in qs must be a real number in [0, 1]; got 1.5"),
        ("quantiles(age, 0.5)", "it takes a column and a list"),
        ("boxplot(age, kids)", "it takes a column and a list"),
        ("cdf(age, [65, 18])", "strictly increasing"),
        ("cdf(gone)", "declares no column 'gone'"),
    ],
)
def test_bad_questions_are_refused_before_any_charge(question: str, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(f"SELECT {question} FROM people", policy_of(COLUMNS))
    assert told.lower() in str(caught.value).lower()


def test_a_count_is_a_whole_number_under_replace_one() -> None:
    rules = policy_of(COLUMNS, "replace-one", public=500)
    query = parse("SELECT count(*), sum(kids) FROM people WHERE age > 40", rules)
    compiled = compile_query(query, rules, epsilon=1.0)
    for place, item in enumerate(query.aggregates):
        release = compiled.releases[place]
        for number in (1021, 1022, 1023):
            found = estimate(item, Reading(compiled, {release: (number,)}))
            assert not isinstance(found, tuple)
            assert isinstance(found.low, int)
            assert isinstance(found.high, int)
            assert isinstance(found.value, int)
            assert abs(found.value - Fraction(number, release.bound.factor)) <= Fraction(1, 2)
    assert query.aggregates[0] == Count()


@pytest.mark.parametrize("missing", [False, True])
def test_a_complete_column_needs_no_count_of_its_cells(missing: bool) -> None:
    frame = FRAME[["age", "kids"]].astype(float)
    if missing:
        frame.loc[3, "age"] = math.nan
    rules = policy_of({name: COLUMNS[name] for name in ("age", "kids")}, "replace-one", public=500)
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("people", rules)
    register_table(frame, ledger=ledger, dataset="people", accept_missing=["age"] if missing else [])
    table = PrivateTable(frame, ledger=ledger, dataset="people")
    sum_alone = "sum of age around 50 in steps of 1: discrete Laplace noise of scale 100, sensitivity 50"
    answer = table.sql("SELECT avg(age) FROM people", epsilon=1.0)
    assert ((sum_alone, "number of rows: public") == answer.mechanism) == (not missing)
    found = answer.estimate()
    assert not isinstance(found, tuple)
    assert abs(found.value - frame.age.mean()) < 10
    filtered = table.sql("SELECT avg(age), count(*) FROM people WHERE kids > 0", epsilon=1.0)
    assert len(filtered.mechanism) == 1 + missing  # a pair gives the count too, unless cells are missing
