"""Answers of a private table to SQL, compared with those of DuckDB, which runs the text itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tacit.errors import TacitError
from tacit.ledger import ApproximateBudget, Column, Ledger, Policy, PureBudget
from tacit.queries import PrivateTable, register_table
from tacit.queries.private_table import Answer, Estimate

N = 4_000
EPSILON = 200.0
FAR = 20.0  # times the half width of an interval: no noise is ever so far out
WARDS = ("north", "south", "it's", "ü", "empty")

POLICY = Policy(
    unit="visit",
    adjacency="add-remove",
    budget=PureBudget(1e6),
    columns={
        "age": Column(kind="number", lower=0, upper=120),
        "weight": Column(kind="number", lower=-50, upper=150, step=0.01),
        "stays": Column(kind="integer", lower=0, upper=30),
        "code": Column(kind="integer", lower=0, upper=9, values=(1, 2, 3)),
        "ward": Column(kind="category", values=WARDS),
        "smoker": Column(kind="boolean"),
        "note": Column(kind="category"),
    },
)

# The very text that DuckDB runs, too.
SAME = """
SELECT count(*) FROM visits
SELECT count(age) FROM visits
SELECT count(ward) FROM visits
SELECT count(smoker) FROM visits
SELECT count(*), count(age), count(weight) FROM visits
SELECT sum(age) FROM visits
SELECT sum(weight) FROM visits
SELECT sum(stays) FROM visits
SELECT avg(age) FROM visits
SELECT mean(weight) FROM visits
SELECT avg(stays), sum(stays), count(stays) FROM visits
SELECT var_samp(age) FROM visits
SELECT variance(weight) FROM visits
SELECT var_pop(stays) FROM visits
SELECT stddev(age) FROM visits
SELECT stddev_samp(weight), stddev_pop(weight) FROM visits
SELECT count(*) FROM visits WHERE age > 65
SELECT count(*) FROM visits WHERE 65 <= age
SELECT count(*) FROM visits WHERE NOT age > 65
SELECT count(*) FROM visits WHERE age <> 65 AND stays = 2
SELECT count(*) FROM visits WHERE age < 20 OR age >= 80
SELECT count(*) FROM visits WHERE NOT (age < 20 OR ward = 'north')
SELECT count(*) FROM visits WHERE NOT (NOT smoker AND stays > 1)
SELECT count(*) FROM visits WHERE age BETWEEN 18 AND 30.5
SELECT count(*) FROM visits WHERE age NOT BETWEEN 18 AND 30.5
SELECT count(*) FROM visits WHERE age IS NULL
SELECT count(*) FROM visits WHERE age IS NOT NULL AND smoker IS NULL
SELECT count(*) FROM visits WHERE smoker
SELECT count(*) FROM visits WHERE NOT smoker
SELECT count(*) FROM visits WHERE smoker = TRUE
SELECT count(*) FROM visits WHERE smoker IS NOT TRUE
SELECT count(*) FROM visits WHERE ward = 'it''s'
SELECT count(*) FROM visits WHERE ward <> 'ü'
SELECT count(*) FROM visits WHERE ward IN ('north', 'empty')
SELECT count(*) FROM visits WHERE ward NOT IN ('north', 'south')
SELECT count(*) FROM visits WHERE code IN (1, 3)
SELECT count(*) FROM visits WHERE note = 'anything else' OR note = 'rare'
SELECT count(*) FROM visits WHERE ((((age) > 1e1))) AND weight > -3.5 -- a comment
SELECT sum(age) FROM visits WHERE ward = 'empty'
SELECT sum(weight), avg(age) FROM visits WHERE NOT ward = 'south' AND stays >= 1
select COUNT ( * ) , Avg("age") from VISITS where AGE >= 0 ;
SELECT ward, count(*) FROM visits GROUP BY ward
SELECT count(*), ward FROM visits WHERE age > 65 GROUP BY ward
SELECT code, sum(stays), avg(age) FROM visits GROUP BY code
SELECT smoker, count(*), stddev(age) FROM visits GROUP BY smoker
SELECT ward, code, count(*) FROM visits WHERE smoker GROUP BY ward, code
SELECT ward, smoker, code, avg(weight) FROM visits GROUP BY ward, smoker, code
""".strip().splitlines()

QUANTILES = {
    "SELECT median(age) FROM visits": ("age", 0.5),
    "SELECT quantile(age, 0.9) FROM visits": ("age", 0.9),
    "SELECT quantile_cont(weight, 0.25) FROM visits": ("weight", 0.25),
    "SELECT percentile_cont(0.75) WITHIN GROUP (ORDER BY age) FROM visits": ("age", 0.75),
    "SELECT max(age) FROM visits": ("age", 1.0),
    "SELECT min(weight) FROM visits": ("weight", 0.0),
}


@pytest.fixture(scope="module")
def visits() -> pd.DataFrame:
    chance = np.random.default_rng(7)

    def holes(values: Any) -> pd.Series[Any]:
        return pd.Series(values).mask(chance.random(N) < 0.1)

    return pd.DataFrame(
        {
            "age": holes(np.round(chance.uniform(0, 110, N), 1)),
            "weight": holes(np.round(chance.normal(60, 15, N).clip(-50, 150), 2)),
            "stays": holes(chance.poisson(2.0, N)).astype("Int64"),
            "code": holes(chance.integers(1, 4, N)).astype("Int64"),
            "ward": holes(chance.choice(["north", "south", "it's", "ü"], N)).astype("string"),
            "smoker": holes(chance.random(N) < 0.3).astype("boolean"),
            "note": holes(chance.choice(["common", "anything else"], N)).astype("string"),
        }
    )


@pytest.fixture(scope="module")
def plain(visits: pd.DataFrame) -> Iterator[Any]:
    with duckdb.connect() as connection:
        connection.register("visits", visits)
        yield connection


def register(visits: pd.DataFrame, ledger: Ledger) -> None:
    """The curator lets missing cells and values outside the bounds pass."""
    columns = list(POLICY.columns)
    register_table(visits, ledger=ledger, dataset="visits", accept_missing=columns, accept_outside=columns)


@pytest.fixture(scope="module")
def private(visits: pd.DataFrame) -> Iterator[PrivateTable]:
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("visits", POLICY)
    register(visits, ledger)
    with PrivateTable(visits, ledger=ledger, dataset="visits") as table:
        yield table


def steps(name: str) -> float:
    column = name.partition("_")[2]
    known = POLICY.columns.get(column)
    return 0.0 if known is None or known.lower is None else known.grid_step


def assert_close(found: Estimate, expected: float | None, name: str) -> None:
    """As far off as the noise allows, and the rounding to the grid of the column."""
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high
    kind = name.partition("_")[0]
    # rounding of N values; of their mean; of their squares, whose grid is 2^-20 of the range squared
    rounding = {"sum": N * steps(name), "mean": steps(name)}.get(
        kind, 0.05 if kind in ("variance", "stddev") else 0.0
    )
    value = 0.0 if expected is None or math.isnan(expected) else float(expected)
    assert abs(found.value - value) <= FAR * (found.high - found.low) + rounding, name


def by_keys(answer: Answer, text: str, plain: Any) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """DuckDB's rows by the keys of their group, the aggregates in order."""
    cursor = plain.execute(text)
    names = [column[0].lower() for column in cursor.description]
    keys = [names.index(key) for key in answer.by]
    rest = [place for place in range(len(names)) if place not in keys]
    return {tuple(row[i] for i in keys): tuple(row[i] for i in rest) for row in cursor.fetchall()}


@pytest.mark.parametrize("text", SAME)
def test_answers_are_those_of_plain_sql_but_for_the_noise(
    text: str, private: PrivateTable, plain: Any
) -> None:
    answer = private.sql(text, epsilon=EPSILON)
    expected = by_keys(answer, text, plain)
    missing = (0,) * len(answer.columns)
    for row in answer.rows:
        for found, value, name in zip(
            row.values, expected.get(row.keys, missing), answer.columns, strict=True
        ):
            assert isinstance(found, Estimate)
            if row.keys in expected or name.startswith(("count", "sum")):
                assert_close(found, value, name)
    declared = {keys for keys in expected if None not in keys}
    assert declared <= {row.keys for row in answer.rows}


def test_there_are_enough_of_them() -> None:
    assert len(SAME) + len(QUANTILES) >= 50


@pytest.mark.parametrize("text", QUANTILES)
def test_quantiles_lie_between_the_neighbouring_ones(text: str, private: PrivateTable, plain: Any) -> None:
    """The value is a quantile of a share near the one that was asked for, or the next candidate."""
    column, share = QUANTILES[text]
    answer = private.sql(text, epsilon=2.0)
    found = answer.estimate()
    assert isinstance(found, Estimate)
    assert found.rank_error is not None
    bounds = POLICY.columns[column]
    assert bounds.low is not None
    assert bounds.high is not None
    spacing = (bounds.high - bounds.low) / 500
    near = (5 * found.rank_error + 10) / N
    low, high = (min(max(share + sign * near, 0.0), 1.0) for sign in (-1, 1))
    (least, most) = plain.execute(
        f"SELECT quantile_cont({column}, {low}), quantile_cont({column}, {high}) FROM visits"
    ).fetchone()
    if share in (0.0, 1.0):  # all candidates beyond the last value are of the same rank
        least, most = (least, bounds.high) if share else (bounds.low, most)
    assert least - spacing <= found.value <= most + spacing


def test_a_histogram_counts_what_lies_between_its_edges(private: PrivateTable, plain: Any) -> None:
    answer = private.sql("SELECT histogram(age, [0, 20, 40.5, 110]) AS ages FROM visits", epsilon=EPSILON)
    expected = [
        plain.execute(f"SELECT count(*) FROM visits WHERE {condition}").fetchone()[0]
        for condition in ("age >= 0 AND age < 20", "age >= 20 AND age < 40.5", "age BETWEEN 40.5 AND 110")
    ]
    assert list(answer.value("ages")) == expected


def test_groups_that_are_not_declared_are_those_with_rows_enough(visits: pd.DataFrame, plain: Any) -> None:
    text = "SELECT note, count(*) FROM visits GROUP BY note"
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("visits", dataclasses.replace(POLICY, budget=ApproximateBudget(1e3, 1e-6)))
    register(visits, ledger)
    with PrivateTable(visits, ledger=ledger, dataset="visits") as private:
        answer = private.sql(text, epsilon=EPSILON, delta=1e-9)
    expected = {keys: values for keys, values in by_keys(answer, text, plain).items() if keys != (None,)}
    assert {row.keys: answer.value(keys=row.keys) for row in answer.rows} == {
        keys: count for keys, (count,) in expected.items()
    }


def test_with_little_epsilon_the_answer_is_not_the_plain_one(private: PrivateTable) -> None:
    """The comparison above would see noise: without it, eight counts in a row would be exact."""
    found = [
        private.sql("SELECT count(*) FROM visits", epsilon=0.01, attempt=attempt).value()
        for attempt in range(1, 9)
    ]
    assert len(set(found)) > 4


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "csv", "parquet"])
def test_rows_are_counted_where_the_policy_declares_no_column(kind: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2, 3]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    frames = {"pandas": frame, "polars": pl.from_pandas(frame), "arrow": pa.Table.from_pandas(frame)}
    data = frames.get(kind, tmp_path / f"a.{kind}")
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("a", Policy(unit="row", adjacency="add-remove", budget=PureBudget(1e3)))
    register_table(data, ledger=ledger, dataset="a")
    with PrivateTable(data, ledger=ledger, dataset="a") as table:
        assert table.sql("SELECT count(*) FROM a", epsilon=EPSILON).value() == 3


HOSTILE = [
    "SELECT patient FROM visits",
    "SELECT count(*) FROM visits; DROP TABLE visits",
    "SELECT count(*) FROM visits GROUP BY ALL",
    "SELECT count(*) FROM read_csv('/etc/passwd')",
    "SELECT sum(age) FROM visits WHERE 1 / 0 = 1",
    "SELECT sum(note) FROM visits",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("epsilon", [1.0])
def test_a_refused_statement_leaves_no_trace_in_the_ledger(
    private: PrivateTable, text: str, epsilon: float
) -> None:
    before = private._ledger.status("visits").head_seq
    with pytest.raises(TacitError):
        private.sql(text, epsilon=epsilon)
    assert private._ledger.status("visits").head_seq == before


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 5e-324, 1e-300])
def test_an_epsilon_that_is_none_is_refused_before_any_charge(private: PrivateTable, epsilon: float) -> None:
    before = private._ledger.status("visits").spent_epsilon
    with pytest.raises(TacitError):
        private.sql("SELECT count(*) FROM visits", epsilon=epsilon)
    assert private._ledger.status("visits").spent_epsilon == before
