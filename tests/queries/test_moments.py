"""The moments of a table: as the encoder makes them, within the bound of one unit, in every engine."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.columns import Column, Encoder
from tacit.ledger import Policy, PureBudget
from tacit.queries import moments, statements
from tacit.queries.engines import DuckDBEngine
from tacit.queries.moments import RADIUS, TableMoments

WORDS = ("a", "it's", " b ", "NA", "ü%s")
INPUTS = {
    "age": Column(kind="number", lower=0, upper=120, bins=[18, 65], missing="indicator"),
    "dose": Column(kind="number", lower=-1e-3, upper=2.5, missing=1.0),
    "stays": Column(kind="integer", lower=-3, upper=10, missing=2),
    "code": Column(kind="integer", values=(1, 2, 7), missing=7),
    "ward": Column(kind="category", values=("a", "it's", "b", "NA"), missing="b"),
    "other": Column(kind="category", values=("x",), missing="elsewhere"),
    "smoker": Column(kind="boolean", missing="indicator"),
    "born": Column(
        kind="date", lower="1950-01-01", upper="2020-12-31", parts=["weekday", "month"], missing="indicator"
    ),
    "seen": Column(
        kind="datetime", lower="2019-01-01", upper="2021-01-01", parts=["hour"], missing="2020-02-29"
    ),
}  # fmt: skip
COST = Column(kind="number", lower=-5, upper=20)
GRADE = Column(kind="category", values=("low", "mid", "top"))
CODES = [[math.sqrt(2 / 3) if at == place else -math.sqrt(1 / 6) for at in range(3)] for place in range(3)]
DAY = dt.datetime(2020, 1, 1)
CELLS: dict[str, list[Any]] = {
    "age": [
        None, float("nan"), 0.0, -0.0, 17.999, 18.0, 65.0, 120.0, 1e300, -5.0, float("inf"), float("-inf"),
    ],
    "dose": [None, -1e-3, 0.1, 2.5, 1e-30, 7.0],
    "stays": [None, -9, -3, 0, 1, 10, 11, 2**40],
    "code": [None, 1, 2, 7, 8],
    "ward": [None, "", "n/a", "\u2003a\n", "B", *WORDS],
    "other": [None, "x", "X", "null"],
    "smoker": [None, True, False],
    "born": [None, *(dt.date(1940, 2, 28) + dt.timedelta(step) for step in (0, 1, 2, 9999, 29_951, 40_000))],
    "seen": [None, *(DAY + dt.timedelta(0, 3600 * hour, 1) for hour in (-99_999, 0, 23, 59, 1416, 9999))],
    "cost": [-5.0, -7.5, 0.1, 20.0, 1e9],
    "grade": ["low", "mid", " top "],
    "person": ["p", "q", "r", "it's"],
}  # fmt: skip
FEW = {name: INPUTS[name] for name in ("age", "code", "ward", "smoker")}
HALF = {name: INPUTS[name] for name in ("age", "stays", "ward", "smoker")}
OTHERS = {name: column for name, column in INPUTS.items() if name not in HALF}
DAYS = {name: INPUTS[name] for name in ("dose", "code", "other", "born")}
HOURS = {name: INPUTS[name] for name in ("dose", "other", "seen")}
Row = tuple[Any, ...]
INSIDE: Row = (1.0, 1.0, 1, 1, "a", "x", True, dt.date(1999, 1, 1), DAY, 0.1, "mid", "p")  # no bound clips it
TABLES = st.lists(st.tuples(*map(st.sampled_from, CELLS.values())), min_size=12, max_size=40)


def table_of(rows: Sequence[Row]) -> Any:
    import pyarrow as pa

    types = {
        "age": pa.float64(), "dose": pa.float32(), "stays": pa.int64(), "code": pa.int32(),
        "smoker": pa.bool_(), "born": pa.date32(), "seen": pa.timestamp("us"), "cost": pa.float64(),
    }  # fmt: skip
    return pa.table(
        {
            name: pa.array([row[at] for row in rows], types.get(name, pa.string()))
            for at, name in enumerate(CELLS)
        }
    )


def moments_of(
    data: object, *, target: str = "cost", person: bool = False, inputs: Any = INPUTS, engine: Any = None
) -> TableMoments:
    columns = {**inputs, target: COST if target == "cost" else GRADE}
    policy = Policy(
        unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=columns,
        unit_column="person" if person else None,
    )  # fmt: skip
    codes = None if target == "cost" else CODES
    engine = DuckDBEngine(data, policy) if engine is None else engine
    return TableMoments(engine, policy, Encoder(columns, target), normalise=codes is not None, codes=codes)


def matrices(table: TableMoments) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
    """The sums of X X^T and of Y X^T, in exact integers."""
    gram, cross = table.sums()
    d = table.inputs + 1
    whole = np.zeros((d, d), dtype=object)
    whole[np.tril_indices(d)] = gram
    whole = np.where(np.tri(d, dtype=bool), whole, whole.T)
    return whole, np.array(cross, dtype=object).reshape(-1, d)


def expected(
    data: Any, *, target: str, person: bool, inputs: dict[str, Column]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sums by the encoder and the formulas of the head in memory: x and y of norm 1, in doubles."""
    column = COST if target == "cost" else GRADE
    encoder = Encoder({**inputs, target: column}, target)
    features = encoder.frame(data).astype(np.float64)
    x = np.column_stack([features, np.ones(len(features))])
    x /= np.linalg.norm(x, axis=1, keepdims=True) if target == "grade" else math.sqrt(x.shape[1])
    answers = encoder.targets({target: data.column(target).to_pylist()})
    y = answers.astype(np.float64) if target == "cost" else np.array(CODES)[answers]
    owners = pd.Series(data.column("person").to_pylist())
    weight = 1 / owners.map(owners.value_counts()).to_numpy() if person else np.ones(len(x))
    return (x * weight[:, None]).T @ x, (y * weight[:, None]).T @ x


BOTH = pytest.mark.parametrize("target", ["cost", "grade"])
UNITS = pytest.mark.parametrize("person", [False, True])


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize(
    ("target", "person", "inputs"),
    [("cost", False, HALF), ("grade", True, HALF), ("grade", True, DAYS), ("cost", False, DAYS),
     ("grade", False, HOURS), ("cost", True, HOURS)],
)  # fmt: skip
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=TABLES.map(lambda rows: [INSIDE, *rows]))
def test_the_sums_are_those_of_the_encoder_in_memory(
    target: str, person: bool, inputs: dict[str, Column], rows: list[Row]
) -> None:
    data = table_of(rows)
    table = moments_of(data, target=target, person=person, inputs=inputs)
    table.check()
    gram, cross = matrices(table)
    of_x, of_y = table.radii
    of_memory = expected(data, target=target, person=person, inputs=inputs)
    # each integer is rounded by half a step
    near: dict[str, Any] = {"rtol": 0, "atol": 2 * len(rows) / RADIUS}
    np.testing.assert_allclose((gram / of_x**2).astype(float), of_memory[0], **near)
    np.testing.assert_allclose((cross / (of_x * of_y)).astype(float), of_memory[1], **near)


# --- one unit more or less -------------------------------------------------------------------------------


def check_bound(rows: Sequence[Row], *, target: str, person: bool) -> None:
    """Leave out one unit after the other: in exact integers, no matrix of sums moves by more than R^2."""
    data = table_of(rows)
    whole = matrices(moments_of(data, target=target, person=person, inputs=FEW))
    who = list(CELLS).index("person")
    units = sorted({row[who] for row in rows}) if person else range(len(rows))
    for unit in units:
        kept = [row for at, row in enumerate(rows) if (row[who] if person else at) != unit]
        less = matrices(moments_of(table_of(kept), target=target, person=person, inputs=FEW))
        for more, fewer in zip(whole, less, strict=True):
            assert int(((more - fewer) ** 2).sum()) <= RADIUS**4, f"{unit} moves the sums too far"


@pytest.mark.thorough(cases=2)
@BOTH
@UNITS
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(st.tuples(*map(st.sampled_from, CELLS.values())), min_size=1, max_size=6))
def test_no_unit_moves_the_sums_beyond_the_bound(target: str, person: bool, rows: list[Row]) -> None:
    check_bound(rows, target=target, person=person)


def some_rows(count: int, seed: int = 0) -> list[Row]:
    draw = np.random.default_rng(seed)
    return [tuple(cells[draw.integers(len(cells))] for cells in CELLS.values()) for _ in range(count)]


def test_a_bound_without_the_allowance_for_rounding_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "_radius", lambda count: float(RADIUS))
    # It lets all rows pass. Without any test, DuckDB would compute the features anew for each sum.
    monkeypatch.setattr(TableMoments, "_bounded", statements.sql(f'"x0" <= {2 * RADIUS}'))
    with pytest.raises(AssertionError, match="too far"):
        check_bound(some_rows(4), target="grade", person=False)


def test_a_person_whose_rows_all_count_in_full_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant clips by row what is promised by person."""
    columns = TableMoments._features.func  # type: ignore[attr-defined]

    def each_row(self: TableMoments) -> Any:
        tree = columns(self)
        tree.expressions[-1].replace(statements.sql('CAST(1 AS BIGINT) AS "number"'))
        return tree

    monkeypatch.setattr(TableMoments, "_features", property(each_row))
    with pytest.raises(AssertionError, match="too far"):
        check_bound(some_rows(12), target="cost", person=True)


def test_integers_that_the_floats_of_an_engine_let_slip_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the floats do, here twice too much: the test of integers holds the bound."""
    monkeypatch.setattr(moments, "_radius", lambda count: 2.0 * RADIUS)
    for person in (False, True):
        check_bound(some_rows(4), target="grade", person=person)
    gram, _ = matrices(moments_of(table_of(some_rows(12)), target="grade", inputs=FEW))
    assert not gram.any()
