"""Every kind of question: on Adult with the exact answers, and on two tables with no row and one row.

The test suite and ``check_queries.py`` use them.  A question is compiled and counted once.  Each call of
``answer`` or ``release`` draws fresh noise, the only source of an answer's error, and computes the estimates
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from query_questions import AGES, CAP, HOURS, OCCUPATIONS

from tacit.accounting import account
from tacit.events import ZeroConcentratedDP
from tacit.ledger import Column, Policy, PureBudget
from tacit.ledger.policy import Budget
from tacit.queries import (
    And,
    Compare,
    Count,
    CountUnits,
    Histogram,
    Mean,
    Quantile,
    Query,
    StandardDeviation,
    Sum,
    Variance,
)
from tacit.queries.engines import DuckDBEngine
from tacit.queries.plan import Compiled, OwnSampler, RawTable, collect, compile_query, release_all
from tacit.queries.private_table import Answer, content_of, read_content
from tacit.queries.query import Aggregate

__all__ = [
    "Kind",
    "Pair",
    "adult_policy",
    "counted",
    "on_adult",
    "on_one_row",
    "questions_asked",
    "with_more_columns",
]

EDGES = (17, 25, 35, 45, 55, 65, 90)
RICH = And((Compare("age", ">", 65), Compare("income", "=", ">50K")))
WOMEN = Compare("sex", "=", "Female")


def adult_policy(budget: Budget, *, adjacency: str = "add-remove", household: bool = False) -> Policy:
    """Return the public facts about Adult; three consecutive rows count as a household."""
    return Policy(
        unit="household" if household else "person",
        adjacency=adjacency,
        budget=budget,
        unit_column="household" if household else None,
        rows_per_unit=3 if household else 1,
        largest_table=10**6,
        public_records=30_162 if adjacency == "replace-one" else None,
        columns={
            "age": Column(kind="integer", lower=AGES[0], upper=AGES[-1]),
            "hr_per_week": Column(kind="integer", lower=HOURS[0], upper=HOURS[1]),
            "capital_gain": Column(kind="integer", lower=0, upper=CAP),
            "hours": Column(kind="number", lower=0.0, upper=24.0),
            "sex": Column(kind="category", values=("Female", "Male")),
            "income": Column(kind="category", values=("<=50K", ">50K")),
            "occupation": Column(kind="category", values=tuple(OCCUPATIONS)),
            "country": Column(kind="category"),
        },
    )


@dataclass(frozen=True)
class Counted:
    """A question whose rows are counted."""

    compiled: Compiled
    raw: RawTable

    def answer(self) -> Answer:
        """Return an answer with fresh noise."""
        content = content_of(self.compiled, release_all(self.compiled, self.raw, OwnSampler()))
        return read_content(
            content, self.compiled, charge="", epsilon=0.0, delta=0.0, remaining=0.0, repeated=False
        )


@dataclass(frozen=True)
class Kind(Counted):
    """A question on Adult with a test of its estimates against the exact answer."""

    name: str
    mechanism: str
    holds: Callable[[Any, tuple[Any, ...]], bool]  # arguments: an estimate, the keys of its group and its bin

    def hits(self, answer: Answer) -> list[bool]:
        """Return whether each interval of an answer contains the exact value."""
        return [
            self.holds(item, (*row.keys, number))
            for row in answer.rows
            for values in row.values
            for number, item in enumerate(values if isinstance(values, tuple) else (values,))
        ]


def counted(query: Query, policy: Policy, data: pd.DataFrame, **privacy: Any) -> Counted:
    """Compile a question, and count its rows by DuckDB."""
    compiled = compile_query(query, policy, **privacy)
    engine = DuckDBEngine(data, policy)
    try:
        return Counted(compiled, collect(compiled, [engine.rows(each) for each in compiled.statements]))
    finally:
        engine.close()


# --- on Adult ---------------------------------------------------------------------------------------------


def with_more_columns(adult: pd.DataFrame) -> pd.DataFrame:
    """Return Adult with a column of households, and with hours per day, fractions that are on no grid."""
    return adult.assign(household=np.arange(len(adult)) // 3, hours=adult.hr_per_week / 7.0)


def questions_asked() -> dict[str, tuple[Query, Callable[[Answer], Any]]]:
    """Return the questions of :mod:`query_questions` as queries, with functions that read the answers."""
    return {
        "count": (Query((Count(),), where=RICH), lambda answer: answer.value()),
        "sum": (Query((Sum("capital_gain"),)), lambda answer: answer.value()),
        "mean": (Query((Mean("hr_per_week"),), where=WOMEN), lambda answer: answer.value()),
        "median": (Query((Quantile("age", 0.5),)), lambda answer: answer.value()),
        "groups": (
            Query((Count(),), by=("occupation",)),
            lambda answer: [answer.value(keys=(name,)) for name in OCCUPATIONS],
        ),
    }


def on_adult(adult: pd.DataFrame) -> Iterator[Kind]:
    """Yield every kind of question with Laplace noise at epsilon 1, and with Gaussian noise at (1, 1e-6)."""
    table = with_more_columns(adult)
    plain, household, fixed = (
        adult_policy(PureBudget(1.0)),
        adult_policy(PureBudget(1.0), household=True),
        adult_policy(PureBudget(1.0), adjacency="replace-one"),
    )
    rich, women = table[(table.age > 65) & (table.income == ">50K")], table[table.sex == "Female"]
    job, country = table.groupby("occupation"), table.groupby("country")
    pairs = table.groupby(["occupation", "sex"])
    grid = grid_sum(table.hours, 24.0)
    cases: list[tuple[str, Query, Policy, Callable[..., bool]]] = [
        ("count", Query((Count(),)), plain, number(len(table))),
        ("count where", Query((Count(),), where=RICH), plain, number(len(rich))),
        ("count of a column", Query((Count("age"),), where=WOMEN), plain, number(len(women))),
        ("count of units", Query((CountUnits(),)), household, number(table.household.nunique())),
        ("sum", Query((Sum("capital_gain"),)), plain, number(int(table.capital_gain.clip(0, CAP).sum()))),
        ("sum of fractions", Query((Sum("hours"),)), plain, number(grid)),
        ("sum, households", Query((Sum("hr_per_week"),)), household, number(int(table.hr_per_week.sum()))),
        ("sum, replace-one", Query((Sum("hr_per_week"),)), fixed, number(int(table.hr_per_week.sum()))),
        ("mean", Query((Mean("hr_per_week"),), where=WOMEN), plain, number(women.hr_per_week.mean())),
        ("mean of fractions", Query((Mean("hours"),)), plain, number(table.hours.mean())),
        ("variance", Query((Variance("age"),)), plain, number(table.age.var())),
        ("standard deviation", Query((StandardDeviation("age"),)), plain, number(table.age.std())),
        ("median", Query((Quantile("age", 0.5),)), plain, rank(table.age, 0.5)),
        ("quantile 0.9", Query((Quantile("hours", 0.9),)), plain, rank(table.hours, 0.9)),
        ("maximum", Query((Quantile("age", 1.0),)), plain, rank(table.age, 1.0)),
        ("minimum", Query((Quantile("hours", 0.0),)), plain, rank(table.hours, 0.0)),
        ("histogram", Query((Histogram("age", EDGES),)), plain, bins(np.histogram(table.age, EDGES)[0])),
        ("count by group", Query((Count(),), by=("occupation",)), plain, groups(job.size())),
        ("mean by two groups", Query((Mean("hr_per_week"),), by=("occupation", "sex")), plain,
         groups(pairs.hr_per_week.mean())),
        ("count by group, households", Query((Count(),), by=("occupation",)), household, groups(job.size())),
        ("count by group, replace-one", Query((Count(),), by=("occupation",)), fixed, groups(job.size())),
        ("count by unknown groups", Query((Count(),), by=("country",)), plain, groups(country.size())),
    ]  # fmt: skip
    for name, query, policy, holds in cases:
        found = 1e-6 if query.by == ("country",) else None
        for mechanism, delta in (("laplace", found), ("gaussian", 1e-6)):
            whole = counted(query, policy, table, epsilon=1.0, delta=delta, mechanism=mechanism)
            yield Kind(whole.compiled, whole.raw, name, mechanism, holds)


def number(exact: float) -> Callable[..., bool]:
    """Return the test for one exact number."""
    return lambda item, _key: bool(item.low <= exact <= item.high)


def bins(exact: Any) -> Callable[..., bool]:
    """Return the test for one exact number per bin."""
    return lambda item, key: bool(item.low <= exact[key[-1]] <= item.high)


def groups(exact: pd.Series[Any]) -> Callable[..., bool]:
    """Return the test for one exact number per group, which is 0 for a group without rows."""
    known = {key if isinstance(key, tuple) else (key,): value for key, value in exact.items()}
    return lambda item, key: bool(item.low <= known.get(key[:-1], 0) <= item.high)


def rank(column: pd.Series[Any], q: float) -> Callable[..., bool]:
    """Return the test that the rank of an estimated quantile is within the stated distance of q n.

    Each row counts as the nearest candidate.  For equal values, any of their ranks may match.
    """
    low, step, most = (
        (AGES[0], 1.0, AGES[-1] - AGES[0]) if column.name == "age" else (0, 768 * 2.0**-15, 1024)
    )
    values, n = np.sort(low + step * np.minimum(np.floor((column - low) / step + 0.5), most)), len(column)

    def off(value: Any) -> Any:
        below, upto = np.searchsorted(values, value, "left"), np.searchsorted(values, value, "right")
        return np.maximum(0.0, np.maximum(below - q * n, q * n - upto))

    return lambda item, _key: bool(off(item.value) <= item.rank_error)


def grid_sum(column: pd.Series[Any], upper: float) -> float:
    """Return the exact sum on the policy's grid, whose step is a power of two (2^20 steps in [0, upper])."""
    step = 2.0 ** (math.ceil(math.log2(upper)) - 20)
    return float(np.floor(column.clip(0.0, upper) / step + 0.5).sum() * step)


# --- on tables with no row and one row --------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A question on two neighbouring tables, with no row and with one row."""

    name: str
    mechanism: str
    tables: tuple[Counted, Counted]
    epsilon: float
    delta: float

    def release(self, table: int) -> float:
        """Return the first number of a fresh answer, or -1000 if it has no group."""
        rows = self.tables[table].answer().rows
        item = rows[0].values[0] if rows else None
        first = item[0] if isinstance(item, tuple) else item
        return -1000.0 if first is None else float(first.value)


def on_one_row() -> Iterator[Pair]:
    """Yield every kind of question with Laplace noise at epsilon 1, and with Gaussian noise at rho 1/2."""
    policy = Policy(
        unit="row",
        adjacency="add-remove",
        budget=PureBudget(1.0),
        columns={
            "x": Column(kind="number", lower=0.0, upper=1.0),
            "g": Column(kind="category", values=("a", "b")),
            "u": Column(kind="category"),
        },
    )
    one = pd.DataFrame({"x": [1.0], "g": ["a"], "u": ["z"]})
    aggregates: dict[str, Aggregate] = {
        "count": Count(),
        "count of a column": Count("x"),
        "count of units": CountUnits(),
        "sum": Sum("x"),
        "mean": Mean("x"),
        "variance": Variance("x", sample=False),
        "standard deviation": StandardDeviation("x", sample=False),
        "median": Quantile("x", 0.5, candidates=(0.0, 0.25, 0.5, 0.75, 1.0)),
        "maximum": Quantile("x", 1.0, candidates=(0.0, 0.3, 0.7, 1.0)),
        "histogram": Histogram("x", (0.5, 1.0)),
    }
    cases = {name: Query((item,)) for name, item in aggregates.items()}
    cases["sum where"] = Query((Sum("x"),), where=Compare("x", ">", 0.5))
    cases["sum by group"] = Query((Sum("x"),), by=("g",))
    cases["sum by unknown groups"] = Query((Sum("x"),), by=("u",))
    for name, query in cases.items():
        for mechanism in ("laplace", "gaussian"):
            yield _pair(name, query, policy, one, mechanism)


def _pair(name: str, query: Query, policy: Policy, one: pd.DataFrame, mechanism: str) -> Pair:
    privacy: dict[str, Any] = {"epsilon": 1.0} if mechanism == "laplace" else {"rho": 0.5}
    threshold = 0.01 if query.by == ("u",) else None
    tables = [
        counted(query, policy, data, delta=threshold, mechanism=mechanism, **privacy)
        for data in (one.iloc[:0], one)
    ]
    noise = account(ZeroConcentratedDP(0.5), adjacency="add-remove", method="zcdp")
    epsilon, delta = (1.0, 0.0) if mechanism == "laplace" else (noise.epsilon(1e-5), 1e-5)
    return Pair(name, mechanism, (tables[0], tables[1]), epsilon, delta + (threshold or 0.0))
