"""Dates, texts and declared forms in queries: one meaning in every form of a table, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tacit.columns import Column, Dialect
from tacit.errors import InvalidInput
from tacit.ledger import Ledger, Policy, PureBudget
from tacit.queries import (
    Compare,
    Count,
    CountUnits,
    Histogram,
    In,
    IsNull,
    Mean,
    PrivateTable,
    Query,
    Sum,
    check_table,
    register_table,
)
from tacit.queries.query import check_query
from tacit.queries.sql import parse

POLICY = Policy(
    unit="patient",
    unit_column="who",
    rows_per_unit=1,
    adjacency="add-remove",
    budget=PureBudget(1e6),
    dialect=Dialect(separator=";", decimal=","),
    columns={
        "weight": Column(kind="number", lower=0, upper=200, unit="kg"),
        "admitted": Column(kind="date", lower="2015-01-01", upper="2025-12-31", format="%d.%m.%Y"),
        "seen": Column(kind="datetime", lower="2015-01-01", upper="2025-12-31", missing="indicator"),
        "smoker": Column(kind="boolean", true=("ja",), false=("nein",)),
        "note": Column(
            kind="text",
        ),
    },
)
TEXTS = {
    "who": ["p1", "p2", "p3", "p4"],
    "weight": ["72,5 kg", "80 kg", "65", "90 kg"],
    "admitted": ["31.01.2020", "01.02.2020", "29.02.2020", "24.12.2021"],
    "seen": ["2020-01-31 14:05:00", "2020-02-01 00:00", "", "2021-12-24T23:59:59"],
    "smoker": ["ja", "nein", "JA", "nein"],
    "note": ["a", "b", "c", "d"],
}
TYPED = pd.DataFrame(
    {
        "who": TEXTS["who"],
        "weight": [72.5, 80.0, 65.0, 90.0],
        "admitted": pd.to_datetime(TEXTS["admitted"], format="%d.%m.%Y"),
        "seen": pd.to_datetime(["2020-01-31 14:05:00", "2020-02-01 00:00:00", "NaT", "2021-12-24 23:59:59"]),
        "smoker": [True, False, True, False],
        "note": TEXTS["note"],
    }
)
EPSILON = 1e4
FORMS = [
    *("CSV", "typed Parquet", "time stamps in Parquet", "texts in Parquet", "pandas", "objects", "texts"),
    *("a time zone", "Polars", "texts in Polars", "Arrow", "booleans as numbers"),
]


def csv(folder: Path, rows: dict[str, list[str]] = TEXTS) -> Path:
    lines = [";".join(rows), *(";".join(cells) for cells in zip(*rows.values(), strict=True))]
    (folder / "rows.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "rows.csv"


def forms(folder: Path) -> dict[str, Any]:
    texts, arrow = pd.DataFrame(TEXTS), pa.Table.from_pandas(TYPED)
    days = arrow.set_column(2, "admitted", arrow.column("admitted").cast(pa.date32()))
    pq.write_table(days, folder / "typed.parquet")
    pq.write_table(arrow, folder / "stamps.parquet")
    pq.write_table(pa.Table.from_pandas(texts), folder / "texts.parquet")
    return {
        "CSV": csv(folder),
        "typed Parquet": folder / "typed.parquet",
        "time stamps in Parquet": folder / "stamps.parquet",
        "texts in Parquet": folder / "texts.parquet",
        "pandas": TYPED,
        "objects": TYPED.astype(object),
        "texts": texts,
        "a time zone": TYPED.assign(seen=TYPED["seen"].dt.tz_localize("UTC")),
        "Polars": pl.from_pandas(TYPED),
        "texts in Polars": pl.from_pandas(texts),
        "Arrow": days,
        "booleans as numbers": TYPED.assign(smoker=[1, 0, 1, 0]),
    }


def opened(data: Any, policy: Policy = POLICY) -> PrivateTable:
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("visits", policy)
    register_table(data, ledger=ledger, dataset="visits")
    return PrivateTable(data, ledger=ledger, dataset="visits")


ASKED: list[tuple[Any, int]] = [
    (Compare("admitted", "<", "2020-02-01"), 1),
    (Compare("admitted", "=", "2020-02-01"), 1),
    (In("admitted", ("2020-01-31", "2021-12-24")), 2),
    (Compare("seen", ">", "2020-01-31 14:05"), 2),
    (IsNull("seen"), 1),
    (Compare("smoker", "=", True), 2),
    (Compare("weight", ">", 72.0), 3),
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_gives_the_same_answers(form: str, tmp_path: Path) -> None:
    data = forms(tmp_path)[form]
    assert check_table(data, POLICY).findings == ()
    with opened(data) as table:
        found = [table.ask(Query((Count(),), where=where), epsilon=EPSILON).value() for where, _ in ASKED]
        assert found == [count for _, count in ASKED]
        sums = table.ask(Query((Sum("weight"), Count("admitted"), Count("note"))), epsilon=EPSILON)
        assert [sums.value(name) for name in ("sum_weight", "count_admitted", "count_note")] == [
            pytest.approx(307.5, abs=1.0), 4, 4,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "where"),
    [
        ("admitted >= '2020-02-01'", Compare("admitted", ">=", "2020-02-01")),
        ("'2020-02-01' > admitted", Compare("admitted", "<", "2020-02-01")),
        ("seen < '2020-02-01T10:00'", Compare("seen", "<", "2020-02-01 10:00:00")),
        ("admitted IN ('2020-02-01')", In("admitted", ("2020-02-01",))),
    ],
)
def test_dates_in_sql(condition: str, where: Any) -> None:
    query = parse(f"SELECT count(*) FROM visits WHERE {condition}", POLICY)
    assert query.where == where


def test_a_range_of_dates_in_sql(tmp_path: Path) -> None:
    with opened(csv(tmp_path)) as table:
        query = "SELECT count(*) FROM visits WHERE admitted BETWEEN '2020-02-01' AND '2020-12-31'"
        assert table.sql(query, epsilon=EPSILON).value() == 2


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT avg(admitted) FROM visits", "'admitted' is a date, which you can only count"),
        ("SELECT count(*) FROM visits GROUP BY admitted", "every day would be a group"),
        ("SELECT count(*) FROM visits GROUP BY note", "every person could be a group"),
        (
            "SELECT count(*) FROM visits WHERE note = 'a'",
            "its values identify persons",
        ),
        ("SELECT count(*) FROM visits WHERE admitted > 5", "a date as a string, such as '2020-01-31'"),
        ("SELECT count(*) FROM visits WHERE admitted > '31.01.2020'", "must be a date"),
        ("SELECT count(*) FROM visits WHERE admitted > DATE '2020-01-31'", "Write a date as a string"),
        ("SELECT count(*) FROM visits WHERE seen > 'noon'", "must be a datetime"),
        (
            "SELECT count(*) FROM visits WHERE admitted BETWEEN '2021-01-01' AND '2020-01-01'",
            "nothing lies between",
        ),
    ],
)
def test_sql_that_dates_and_texts_do_not_answer(statement: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(parse(statement, POLICY))
    assert message in str(caught.value)


def check(query: Query) -> None:
    check_query(query, POLICY)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            Query((Mean("admitted"),)),
            "Mean needs a numeric column; 'admitted' is a date, which you can only count",
        ),
        (Query((Histogram("seen", (0, 1)),)), "'seen' is a datetime, which you can only count and compare"),
        (Query((Sum("note"),)), "'note' is of kind 'text'"),
        (Query((Count(),), by=("seen",)), "every moment would be a group"),
        (
            Query((Count(),), where=Compare("note", "=", "a")),
            "Compare it with nothing, because its values identify persons",
        ),
        (Query((Count(),), where=Compare("admitted", ">", 5)), "Compare it with a date as a string"),
        (Query((Count(),), where=Compare("admitted", ">", "5.6.2020")), "must be a date, such as"),
    ],
)
def test_queries_that_dates_and_texts_do_not_answer(query: Query, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(query)
    assert message in str(caught.value)
    check(Query((CountUnits(),)))


@pytest.mark.parametrize(
    ("column", "cell", "kind"),
    [
        ("weight", "72.5 kg", "unreadable"),
        ("weight", "72 lb", "unreadable"),
        ("weight", "201 kg", "outside"),
        ("admitted", "2020-01-31", "unreadable"),
        ("admitted", "31.12.2014", "outside"),
        ("admitted", "NA", "missing"),
        ("seen", "31.01.2020", "unreadable"),
        ("seen", "2026-01-01", "outside"),
        ("smoker", "yes", "unreadable"),
        ("note", "", "missing"),
    ],
)
def test_the_check_finds_cells_that_are_not_as_declared(
    column: str, cell: str, kind: str, tmp_path: Path
) -> None:
    rows = TEXTS | {column: [*TEXTS[column][:2], cell, TEXTS[column][3]]}
    data = [csv(tmp_path, rows), pd.DataFrame(rows), pl.DataFrame(rows)][: 1 if column == "note" else 3]
    for each in data:
        (found,) = check_table(each, POLICY).findings
        assert (found.kind, found.column, found.count, found.rows) == (kind, column, 1, (3,))


def test_a_type_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pandas(TYPED.assign(admitted=[1, 2, 3, 4])), tmp_path / "rows.parquet")
    for data in (tmp_path / "rows.parquet", TYPED.assign(admitted=[1, 2, 3, 4])):
        with pytest.raises(InvalidInput, match="'admitted' is declared a date, but its type is BIGINT"):
            check_table(data, POLICY)


def test_a_moment_that_an_engine_cannot_compare_is_found_before_any_question() -> None:
    """Else a question would fail after its charge, because of a cell."""
    beyond = pa.table({"seen": pa.array([0, 10**15], pa.timestamp("s"))})
    for bounds in ({}, {"lower": "2015-01-01", "upper": "2025-12-31"}):
        column = Column.from_data({"kind": "datetime"} | bounds)
        policy = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns={"seen": column})
        assert "failed" in [each.kind for each in check_table(beyond, policy).findings]
        assert not check_table(beyond, policy, accept_outside=["seen"], accept_missing=["seen"]).clean


# --- policies as JSON ------------------------------------------------------------------------------------


def test_a_policy_with_dates_is_read_as_it_was_written() -> None:
    new = replace(POLICY, columns={"d": Column(kind="date", lower="2020-01-01", upper="2021-01-01")})
    assert json.loads(new.to_json())["columns"]["d"]["lower"] == "2020-01-01"
    assert Policy.from_json(new.to_json()).columns["d"].lower == dt.date(2020, 1, 1)
    assert Policy.from_json(POLICY.to_json()) == POLICY
