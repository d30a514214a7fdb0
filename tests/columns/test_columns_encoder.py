"""Rows become numbers by the schema alone: each kind, each form of a table, and what is refused."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit.columns.encoder as features_module
from tacit.columns import Column, Dialect, Encoder
from tacit.columns.tables import MISSING_WORDS, numbers_of
from tacit.errors import InvalidInput, PrivacyRefusal

SCHEMA = {
    "age": Column(kind="integer", lower=0, upper=120, missing="indicator"),
    "weight": Column(kind="number", lower=0, upper=300, missing=75),
    "sex": Column(kind="category", values=("f", "m"), missing="indicator"),
    "smoker": Column(kind="boolean", missing=False),
    "admitted": Column(
        kind="date", lower="2015-01-01", upper="2025-01-01", parts=("weekday",), missing="2020-01-01"
    ),
    "seen": Column(
        kind="datetime", lower="2015-01-01", upper="2025-01-01", parts=("hour",), missing="indicator"
    ),
    "rooms": Column(kind="integer", values=(1, 2, 3), missing=2),
    "id": Column(kind="text"),
    "sick": Column(kind="boolean"),
}
ENCODER = Encoder(SCHEMA, "sick")
ROWS: dict[str, list[Any]] = {
    "age": ["30", "200", "", "-1", "1e1"],
    "weight": ["150", "NA", "300", "0", "7.5"],
    "sex": ["f", "m", "?", "x", " f "],
    "smoker": ["yes", "F", "null", "1", "0"],
    "admitted": ["2015-01-01", "2025-01-01", "", "1999-12-31", "2020-01-01"],
    "seen": ["2015-01-01 13:30", "2025-01-01", "NaN", "2030-01-01T23:59:59Z", "2020-01-01T00:00:00"],
    "rooms": ["1", "2.0", "", "7", "3"],
    "id": ["a", "b", "c", "d", "e"],
    "sick": ["no", "yes", "no", "no", "yes"],
}


def encoded(column: Column, cells: Any, dialect: Dialect | None = None) -> list[list[float]]:
    encoder = Encoder({"x": column}, dialect=dialect or Dialect())
    result: list[list[float]] = encoder.inputs({"x": cells}).tolist()
    assert all(len(row) == len(encoder.features) for row in result)
    return result


def test_every_kind_has_its_features() -> None:
    weekdays = [
        f"admitted weekday={day}"
        for day in ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    ]
    assert ENCODER.features == (
        "age",
        "age missing",
        "weight",
        "sex=f",
        "sex=m",
        "sex=other",
        "sex missing",
        "smoker",
        "admitted",
        *weekdays,
        "seen",
        *(f"seen hour={hour:02}" for hour in range(24)),
        "seen missing",
        "rooms=1",
        "rooms=2",
        "rooms=3",
        "rooms=other",
    )
    inputs = ENCODER.inputs(ROWS)
    assert inputs.dtype == np.float32
    found = {name: inputs[:, at].tolist() for at, name in enumerate(ENCODER.features)}
    assert found["age"] == [-0.5, 1.0, 0.0, -1.0, pytest.approx(-5 / 6)]
    assert found["age missing"] == [0, 0, 1, 0, 0]
    assert found["weight"] == [0.0, -0.5, 1.0, -1.0, pytest.approx(-0.95)]
    assert [found[f"sex={value}"] for value in ("f", "m", "other")] == [
        [1, 0, 0, 0, 1],
        [0, 1, 0, 0, 0],
        [0, 0, 0, 1, 0],
    ]
    assert found["sex missing"] == [0, 0, 1, 0, 0]
    assert found["smoker"] == [1, -1, -1, 1, -1]
    assert found["admitted"] == [-1, 1, pytest.approx(0, abs=1e-3), -1, pytest.approx(0, abs=1e-3)]
    days = [
        dt.date(2015, 1, 1),
        dt.date(2025, 1, 1),
        dt.date(2020, 1, 1),
        dt.date(1999, 12, 31),
        dt.date(2020, 1, 1),
    ]
    assert [[found[name][row] for name in weekdays].index(1.0) for row in range(5)] == [
        day.weekday() for day in days
    ]
    assert [found["seen hour=13"][0], found["seen hour=00"][1], found["seen hour=23"][3]] == [1, 1, 1]
    assert [found[name][2] for name in ENCODER.features if name.startswith("seen")] == [0.0] * 25 + [1.0]
    assert [found[f"rooms={value}"] for value in (1, 2, 3, "other")] == [
        [1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1],
        [0, 0, 0, 1, 0],
    ]
    assert (ENCODER.classes, ENCODER.target_bounds) == (("false", "true"), ())
    assert ENCODER.targets(ROWS).tolist() == [0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("facts", "dialect", "cells", "wanted"),
    [
        (
            {},
            {},
            ["1.5", "+2", "-.5", "3.", "1e2", "0x1", "1,5", "1_0", "inf", "٣"],
            [1.5, 2, -0.5, 3, 100, *[None] * 5],
        ),
        ({"decimal": ","}, {}, ["1,5", "1.5", "-2,25", ",5", "12"], [1.5, None, -2.25, 0.5, 12]),
        (
            {},
            {"decimal": ",", "thousands": "."},
            ["1.234,5", "1234,5", "1.23", "12.34.567", "1.234.567"],
            [1234.5, 1234.5, None, None, 1234567],
        ),
        (
            {"thousands": " "},
            {"decimal": ","},
            ["1 234.5", "1 23", "1234", "1,5"],
            [1234.5, None, 1234, None],
        ),
        ({"thousands": "'"}, {}, ["1'234", "1,234"], [1234, None]),
        ({"unit": "kg"}, {}, ["72 kg", "72kg", "72", "kg 72", "72 lb", "kg"], [72, 72, 72, 72, None, None]),
        ({"unit": "$", "thousands": ","}, {}, ["$1,234.50", "5 $"], [1234.5, 5]),
        ({"below": "<"}, {}, ["<5", "< 5", "5", ">5", "<"], [5, 5, 5, None, None]),
        ({"below": "<", "unit": "mg/l", "decimal": ","}, {}, ["<0,5 mg/l", "mg/l 1,5"], [0.5, 1.5]),
    ],
)
def test_forms_of_numbers(
    facts: dict[str, Any], dialect: dict[str, Any], cells: list[str], wanted: list[Any]
) -> None:
    values, unreadable = numbers_of(cells, Column(kind="number", **facts), Dialect(**dialect))
    assert [None if math.isnan(value) else value for value in values.tolist()] == wanted
    assert unreadable.tolist() == [at for at, value in enumerate(wanted) if value is None]


@pytest.mark.parametrize(
    ("kind", "form", "cells", "wanted"),
    [
        (
            "date",
            None,
            ["1970-01-03", "1970-1-3", "19700103", "1970-02-30", "03.01.1970", "1970-01-03 00:00"],
            [2, *[None] * 5],
        ),
        ("date", "%d.%m.%Y", ["03.01.1970", "3.1.1970", "31.02.1970", "1970-01-03"], [2, 2, None, None]),
        ("date", "%m/%d/%y", ["01/03/70", "13/03/70"], [2, None]),
        (
            "datetime",
            None,
            [
                "1970-01-01T00:01:00",
                "1970-01-01 00:01",
                "1970-01-02",
                "1970-01-01 01:00:00+01:00",
                "1970-01-01 00:00:00.5Z",
                "00:01",
            ],
            [60, 60, 86400, 0, 0.5, None],
        ),
        ("datetime", "%d.%m.%Y %H:%M", ["01.01.1970 00:01", "01.01.1970"], [60, None]),
    ],
)
def test_forms_of_dates(kind: str, form: str | None, cells: list[str], wanted: list[Any]) -> None:
    values, unreadable = numbers_of(cells, Column(kind=kind, format=form))
    assert [None if math.isnan(value) else value for value in values.tolist()] == wanted
    assert unreadable.tolist() == [at for at, value in enumerate(wanted) if value is None]


def test_words_of_booleans() -> None:
    german = Column(kind="boolean", true=("ja", "?"), false=("nein",), missing="indicator")
    assert encoded(german, ["ja", "JA", "nein", "?", "", "NA"]) == [
        [1, 0],
        [1, 0],
        [-1, 0],
        [1, 0],
        [0, 1],
        [0, 1],
    ]
    with pytest.raises(
        InvalidInput, match=r"2 values in column 'x' of the table are neither true nor false \(rows 2, 3\)"
    ):
        encoded(german, ["ja", "yes", "1"])


# --- properties ------------------------------------------------------------------------------------------

CELLS = {
    "age": st.one_of(st.integers(-(10**6), 10**6).map(str), st.sampled_from(sorted(MISSING_WORDS))),
    "weight": st.one_of(st.floats(-1e9, 1e9).map(repr), st.sampled_from(sorted(MISSING_WORDS))),
    "sex": st.text(max_size=3),
    "smoker": st.sampled_from(["yes", "No", "T", "0", "", "NULL"]),
    "admitted": st.one_of(st.dates().map(str), st.just("")),
    "seen": st.one_of(st.datetimes().map(str), st.just("NA")),
    "rooms": st.sampled_from(["1", "2", "3", "4", "1e0", "?"]),
}
ROW = st.fixed_dictionaries(CELLS)


def check_each_row_by_itself(rows: list[dict[str, str]]) -> None:
    together = ENCODER.inputs({name: [row[name] for row in rows] for name in CELLS})
    for row, found in zip(rows, together, strict=True):
        assert np.array_equal(ENCODER.inputs({name: [cell] for name, cell in row.items()})[0], found)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=6))
def test_a_row_is_encoded_by_itself_and_within_its_bounds(rows: list[dict[str, str]]) -> None:
    check_each_row_by_itself(rows)
    inputs = ENCODER.inputs({name: [row[name] for row in rows] for name in CELLS})
    assert np.isfinite(inputs).all()
    assert (np.abs(inputs) <= 1.0).all()


def test_bounds_from_the_data_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: scaling by the smallest and the largest value of the rows."""

    def by_data(values: np.ndarray, column: Column) -> np.ndarray:
        low, high = np.nanmin(values), np.nanmax(values) + 1.0
        scaled: np.ndarray = 2.0 * (values - low) / (high - low) - 1.0
        return scaled.astype(np.float32)

    rows = [{name: ROWS[name][at] for name in CELLS} for at in (0, 4)]
    check_each_row_by_itself(rows)
    monkeypatch.setattr(features_module, "_scaled", by_data)
    with pytest.raises(AssertionError):
        check_each_row_by_itself(rows)


READ = [
    Column(kind="number"),
    Column(kind="number", decimal=",", thousands=".", unit="kg", below="<"),
    Column(kind="boolean"),
    Column(kind="boolean", true=("?", "ja"), false=("0",)),
    Column(kind="date"),
    Column(kind="date", format="%d.%m.%y"),
    Column(kind="datetime"),
]
CELL = st.one_of(
    st.text(max_size=5),
    st.text("0123456789eE+-.,<kg :TZ", max_size=12),
    st.floats().map(repr),
    st.integers().map(str),
    st.dates().map(str),
    st.datetimes(timezones=st.none() | st.timezones()).map(str),
    st.sampled_from(["", "NA", "?", "ja", "true", "0", "31.12.99", "1.234,5 kg", "< 5", "1e999", "1\n2"]),
)
OBJECT = st.one_of(
    CELL, st.none(), st.floats(), st.integers(), st.booleans(), st.decimals(), st.dates(), st.datetimes(),
    st.complex_numbers(), st.just(pd.NA), st.just(pd.NaT), st.just(np.datetime64("NaT")),
    st.binary(max_size=2), st.lists(st.integers(), max_size=2),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(READ), st.lists(CELL, max_size=5) | st.lists(OBJECT, max_size=5))
def test_each_cell_is_read_by_itself_and_is_a_value_missing_or_unreadable(
    column: Column, cells: list[Any]
) -> None:
    values, unreadable = numbers_of(cells, column)
    for at, cell in enumerate(cells):
        (value,), wrong = numbers_of([cell], column)
        assert value == values[at] or (math.isnan(value) and math.isnan(values[at]))
        assert (at in unreadable) == (len(wrong) == 1)
        if isinstance(cell, str):
            assert math.isnan(value) or math.isfinite(value)
            assert not (cell.strip() in MISSING_WORDS and len(wrong))
            assert math.isnan(value) == (cell.strip() in MISSING_WORDS or len(wrong) == 1) or value in (0, 1)


@settings(max_examples=60, deadline=None)
@given(
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
    values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9),
)
def test_numbers_are_clamped_and_keep_their_order(low: float, width: float, values: list[float]) -> None:
    column = Column(kind="number", lower=low, upper=low + width)
    found = [row[0] for row in encoded(column, np.array(sorted(values)))]
    assert found == sorted(found)
    inside = [
        np.float32(2 * (min(max(x, low), column.high or 0) - low) / ((column.high or 0) - low) - 1)
        for x in sorted(values)
    ]
    assert found == pytest.approx(inside, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.permutations(list(SCHEMA)),
    st.sampled_from([None, "sick", "age_", "sex_", ("sick", "smoker"), ("age_",)]),
)
def test_an_encoder_is_read_back_from_json_with_its_order(
    names: list[str], target: str | tuple[str, ...] | None
) -> None:
    schema = {name: SCHEMA[name] for name in names} | {
        "age_": Column(kind="integer", lower=0, upper=9),
        "sex_": Column(kind="category", values=("a",)),
    }
    encoder = Encoder(schema, target, Dialect(separator=";", decimal=","))
    again = Encoder.from_data(json.loads(json.dumps(encoder.to_data(), sort_keys=True)))
    assert again == encoder == pickle.loads(pickle.dumps(encoder))
    assert hash(again) == hash(encoder)
    assert again.features == encoder.features
    assert encoder != Encoder(dict(reversed(schema.items())), target, encoder.dialect)


# --- forms of tables -------------------------------------------------------------------------------------


def write(path: Path, rows: dict[str, list[str]]) -> Path:
    lines = [",".join(rows), *(",".join(cells) for cells in zip(*rows.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def typed_frame() -> pd.DataFrame:
    """The rows as a data frame with types, as a data base or a Parquet file would give them."""
    return pd.DataFrame(
        {
            "age": pd.array([30, 200, None, -1, 10], dtype="Int64"),
            "weight": [150.0, math.nan, 300.0, 0.0, 7.5],
            "sex": pd.Categorical(["f", "m", None, "x", "f"]),
            "smoker": pd.array([True, False, None, True, False], dtype="boolean"),
            "admitted": pd.to_datetime(["2015-01-01", "2025-01-01", "NaT", "1999-12-31", "2020-01-01"]),
            "seen": pd.to_datetime(
                [
                    "2015-01-01 13:30:00",
                    "2025-01-01 00:00:00",
                    "NaT",
                    "2030-01-01 23:59:59",
                    "2020-01-01 00:00:00",
                ]
            ).tz_localize("UTC"),
            "rooms": [1.0, 2.0, math.nan, 7.0, 3.0],
            "id": list("abcde"),
            "sick": [False, True, False, False, True],
        }
    )


def test_every_form_of_a_table_gives_the_same(tmp_path: Path) -> None:
    wanted, targets = ENCODER.inputs(ROWS), ENCODER.targets(ROWS)
    frame = typed_frame()
    texts = pd.DataFrame(ROWS)
    table = pa.Table.from_pandas(frame)
    forms: dict[str, Any] = {
        "typed pandas": frame,
        "objects": frame.astype(object),
        "texts in pandas": texts,
        "typed Polars": pl.from_pandas(frame),
        "texts in Polars": pl.from_pandas(texts),
        "Arrow": table,
        "a mapping": {name: frame[name].to_numpy(dtype=object) for name in frame},
        "pyarrow types in pandas": frame.astype({"age": "int64[pyarrow]", "smoker": "bool[pyarrow]"}),
        "dates of Arrow": table.set_column(4, "admitted", table.column("admitted").cast(pa.date32())),
    }
    for name, form in forms.items():
        assert np.array_equal(ENCODER.frame(form), wanted), name
        assert np.array_equal(ENCODER.targets(form), targets), name
    pq.write_table(table, tmp_path / "typed.parquet", row_group_size=2)
    texts.to_parquet(tmp_path / "texts.parquet")
    write(tmp_path / "rows.csv", ROWS)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress((tmp_path / "rows.csv").read_bytes()))
    for name in ("typed.parquet", "texts.parquet", "rows.csv", "rows.csv.gz"):
        for rows in (1, 2, 1000):
            found = list(ENCODER.chunks(tmp_path / name, rows=rows))
            assert np.array_equal(np.concatenate([inputs for inputs, _ in found]), wanted), name
            assert [row for _, part in found for row in part] == [1, 2, 3, 4, 5]
            assert all(len(inputs) == len(part) <= rows for inputs, part in found)


def test_the_target_may_be_absent_for_prediction(tmp_path: Path) -> None:
    rows = {name: cells for name, cells in ROWS.items() if name not in ("sick", "id")}
    ((inputs, _),) = ENCODER.chunks(write(tmp_path / "new.csv", rows))
    assert np.array_equal(inputs, ENCODER.inputs(ROWS))
    with pytest.raises(InvalidInput, match="has no column 'sick'"):
        ENCODER.targets(rows)


def test_targets_of_every_kind() -> None:
    def targets(column: Column, cells: list[str]) -> list[Any]:
        encoder = Encoder({"x": Column(kind="boolean"), "y": column}, "y")
        return list(encoder.targets({"y": cells}).tolist())

    assert targets(Column(kind="number", lower=0, upper=10), ["0", "15"]) == [[-1.0], [1.0]]
    assert targets(Column(kind="integer", values=(5, 7)), ["7", "5.0"]) == [1, 0]
    assert targets(Column(kind="category", values=("a", "b")), ["b", " a"]) == [1, 0]
    german = Column(kind="boolean", true=("ja",), false=("nein",))
    assert targets(german, ["ja", "nein"]) == [1, 0]
    assert Encoder({"x": Column(kind="boolean"), "y": german}, "y").classes == ("nein", "ja")
    date = Column(kind="date", lower="2020-01-01", upper="2020-01-03")
    assert targets(date, ["2020-01-02"]) == [[0.0]]
    assert Encoder({"x": Column(kind="boolean"), "y": date}, "y").target_bounds == ((18262.0, 18264.0),)


def test_several_targets_are_labels_or_numbers() -> None:
    schema = {
        "x": Column(kind="boolean"),
        "toxic": Column(kind="boolean"),
        "spam": Column(kind="boolean", true=("ja",), false=("nein",)),
        "age": Column(kind="integer", lower=0, upper=100),
        "weight": Column(kind="number", lower=0, upper=200),
    }
    labels = Encoder(schema, ["spam", "toxic"])  # in the order of the list, not of the columns
    found = labels.targets({"toxic": ["1", "no", "T"], "spam": ["nein", "ja", "ja"]})
    assert found.dtype == np.float32
    assert found.tolist() == [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    assert (labels.labels, labels.classes, labels.target_bounds) == (("spam", "toxic"), (), ())
    assert labels.features == ("x", "age", "weight")
    one = Encoder(schema, ["toxic"])
    assert one.labels == ("toxic",)
    assert one.targets({"toxic": ["yes", "no"]}).tolist() == [[1.0], [0.0]]
    numbers = Encoder(schema, ["weight", "age"])
    found = numbers.targets({"age": ["0", "100"], "weight": ["100", "300"]})
    assert found.dtype == np.float32
    assert found.tolist() == [[0.0, -1.0], [1.0, 1.0]]
    assert (numbers.labels, numbers.target_bounds) == ((), ((0.0, 200.0), (0.0, 100.0)))
    assert Encoder(schema, "toxic").labels == ()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (["toxic", "ward"], r"only booleans.*got 'toxic' of kind boolean, 'ward' of kind category"),
        (["toxic", "age"], r"only booleans.*got 'toxic' of kind boolean, 'age' of kind integer"),
        (["ward"], r"only booleans.*got 'ward' of kind category"),
        (["toxic", "toxic"], r"target contains 'toxic' twice"),
        (["toxic", "spam"], r"must be declared columns .*got 'spam'"),
        ([], "target is an empty list"),
        (["toxic", "note"], "'note' is of kind text, which cannot be predicted"),
    ],
)
def test_lists_of_targets_that_are_refused(target: list[str], message: str) -> None:
    columns = {
        "x": Column(kind="boolean"),
        "toxic": Column(kind="boolean"),
        "age": Column(kind="integer", lower=0, upper=9),
        "ward": Column(kind="category", values=("a", "b")),
        "note": Column(kind="text"),
    }
    with pytest.raises(InvalidInput, match=message):
        Encoder(columns, target)


def test_a_row_that_lacks_a_label_is_refused() -> None:
    columns = {name: Column(kind="boolean", missing=False) for name in ("x", "toxic", "spam")}
    encoder = Encoder(columns, ["toxic", "spam"])
    with pytest.raises(InvalidInput, match=r"1 of 2 rows lack the target, column 'spam' .*\(row 2\)"):
        encoder.targets({"toxic": ["1", "0"], "spam": ["1", ""]})
    with pytest.raises(InvalidInput, match=r"1 values in column 'spam' .*neither true nor false \(row 1\)"):
        encoder.targets({"toxic": ["1", "0"], "spam": ["2", "1"]})
    with pytest.raises(InvalidInput, match=r"equal lengths; got \{'toxic': 2, 'spam': 1\}"):
        encoder.targets({"toxic": ["1", "0"], "spam": ["1"]})


# --- refusals --------------------------------------------------------------------------------------------

SECRET = "S3CRET"
SHARE = Column(kind="number", lower=0, upper=1)
DAY = Column(kind="date", lower="2020-01-01", upper="2021-01-01")


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        (
            SHARE,
            ["1", SECRET, SECRET],
            "2 values in column 'x' of t.csv are not numbers (rows 12, 13). Correct the table or "
            "the column's declaration: its kind, the form of its numbers",
        ),
        (
            Column(kind="integer", lower=0, upper=9),
            ["1", "1.5"],
            "1 values in column 'x' of t.csv are no whole numbers (row 12)",
        ),
        (Column(kind="integer", values=(1, 2)), ["1", SECRET], "are not numbers (row 12)"),
        (Column(kind="boolean"), ["yes", SECRET], "are neither true nor false (row 12)"),
        (
            Column(kind="date", lower="2020-01-01", upper="2021-01-01", format="%d.%m.%Y"),
            [SECRET],
            "are not dates of the form '%d.%m.%Y' (row 11)",
        ),
        (
            Column(kind="datetime", lower="2020-01-01", upper="2021-01-01"),
            [SECRET],
            "are not datetimes (row 11)",
        ),
        (
            SHARE,
            ["1", "", "NA"],
            "2 of the first 13 rows lack a value, column 'x' of t.csv (rows 12, 13). Remove these rows, or "
            "set missing for the column",
        ),
        (
            Column(kind="category", values=("a",)),
            ["", SECRET],
            "1 of the first 12 rows lack a value, column 'x' of t.csv (row 11)",
        ),
        (SHARE, np.array([SECRET, "1"]), "are not numbers (row 11)"),
        (
            SHARE,
            [1, object(), 10**400, 2j],
            "3 values in column 'x' of t.csv are not numbers (rows 12, 13, 14)",
        ),
        (
            SHARE,
            np.array([True]),
            "column 'x' of t.csv: declared as number, but bool in the table",
        ),
        (DAY, np.array([1.0]), "declared as date, but float64 in the table"),
        (
            DAY,
            np.array(["2020-01-01T01:00"], dtype="datetime64[s]"),
            "1 values in column 'x' of t.csv are not dates (row 11)",
        ),
        (Column(kind="boolean"), np.array([0, 1, 2]), "are neither true nor false (row 13)"),
    ],
)
def test_a_refusal_names_rows_and_no_cell(column: Column, cells: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Encoder({"x": column}).inputs({"x": cells}, source="t.csv", before=10)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            ["a", SECRET, SECRET],
            r"2 labels in column 'y' .* not among the declared classes \(a, b\): rows 2, 3",
        ),
        (["a", ""], r"1 of 2 rows lack the target, column 'y' of the table \(row 2\).*nothing can be learnt"),
    ],
)
def test_targets_that_teach_nothing_are_refused(cells: list[str], message: str) -> None:
    target = Column(kind="category", values=("a", "b"), missing="indicator")  # which is of features alone
    encoder = Encoder({"x": Column(kind="boolean"), "y": target}, "y")
    with pytest.raises(InvalidInput, match=message) as caught:
        encoder.targets({"y": cells})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "target", "error", "message"),
    [
        (
            {"x": Column(kind="boolean")},
            "y",
            InvalidInput,
            r"target, time and event must be declared columns \(x\)",
        ),
        ({"x": Column(kind="boolean")}, "x", InvalidInput, "no input column besides the target"),
        ({"x": Column(kind="text")}, None, InvalidInput, "kind is not text"),
        (
            {"x": Column(kind="boolean"), "y": Column(kind="text")},
            "y",
            InvalidInput,
            "text, which cannot be predicted",
        ),
        (
            {"x": Column(kind="number")},
            None,
            PrivacyRefusal,
            "'x' lacks lower and upper.*depend on single records",
        ),
        ({"x": Column(kind="date")}, None, PrivacyRefusal, "'x' lacks lower and upper"),
        ({"x": Column(kind="category")}, None, PrivacyRefusal, "'x' lacks values"),
    ],
)
def test_schemas_that_encode_nothing(
    columns: dict[str, Column], target: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Encoder(columns, target)


def test_tables_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    encoder = Encoder({"x": Column(kind="boolean"), "z": Column(kind="boolean")})
    with pytest.raises(InvalidInput, match="has no column 'z'; it has x, y"):
        encoder.inputs({"x": ["1"], "y": ["1"]})
    with pytest.raises(InvalidInput, match=r"must have equal lengths; got \{'x': 1, 'z': 2\}"):
        encoder.inputs({"x": ["1"], "z": ["1", "0"]})
    with pytest.raises(InvalidInput, match=r"must be a table in memory; got builtins\.list"):
        encoder.frame([["1", "0"]])
    with pytest.raises(InvalidInput, match="2 columns named 'x'"):
        encoder.frame(pd.DataFrame([[True, True, True]], columns=["x", "x", "z"]))
    twins = {"x": ["1"], "X": ["0"], "z": ["1"]}
    frames = {"mapping": twins, "pandas": pd.DataFrame(twins), "arrow": pa.table(twins)}
    for frame in frames.values():
        with pytest.raises(InvalidInput, match="'x', 'X', which differ only in case"):
            encoder.frame(frame)
    pd.DataFrame(twins).to_csv(tmp_path / "twins.csv", index=False)
    pq.write_table(pa.table(twins), tmp_path / "twins.parquet")
    (tmp_path / "twins.jsonl").write_text('{"x": "1", "X": "0", "z": "1"}\n')
    for ending in ("csv", "parquet", "jsonl"):
        with pytest.raises(InvalidInput, match="which differ only in case"):
            list(encoder.chunks(tmp_path / f"twins.{ending}"))
    with pytest.raises(InvalidInput, match="there is no table at"):
        list(encoder.chunks(tmp_path / "absent.csv"))
    with pytest.raises(InvalidInput, match="has no target"):
        encoder.targets({"x": ["1"]})
    with pytest.raises(InvalidInput, match="an encoder's data must have"):
        Encoder.from_data({"columns": []})
    with pytest.raises(InvalidInput, match="columns of an encoder must have distinct names"):
        Encoder.from_data({"columns": [{"kind": "boolean"}], "target": None, "dialect": {}})


# --- bins ------------------------------------------------------------------------------------------------


def _bin_by_hand(value: float, edges: list[float]) -> list[float]:
    return [float(sum(value >= edge for edge in edges) == place) for place in range(len(edges) + 1)]


@given(
    values=st.lists(st.floats(-50, 150), min_size=1, max_size=5),
    edges=st.lists(st.integers(1, 99), min_size=1, max_size=5, unique=True).map(sorted),
)
@settings(max_examples=50, deadline=None)
def test_a_number_with_bins_is_itself_and_one_of_them(values: list[float], edges: list[int]) -> None:
    column = Column(kind="number", lower=0, upper=100, bins=edges)
    found = Encoder({"age": column}).inputs({"age": np.array(values)})
    for value, row in zip(values, found.tolist(), strict=True):
        clamped = min(max(value, 0.0), 100.0)
        assert row[0] == pytest.approx(clamped / 50 - 1, abs=1e-6)
        assert row[1:] == _bin_by_hand(clamped, list(map(float, edges)))


def test_bins_are_named_written_and_of_equal_width_where_they_are_counted() -> None:
    encoder = Encoder({"age": Column(kind="integer", lower=0, upper=120, bins=3, missing="indicator")})
    assert encoder.features == ("age", "age < 40", "age 40 to 80", "age >= 80", "age missing")
    assert encoder.inputs({"age": ["40", ""]}).tolist() == [
        [pytest.approx(-1 / 3), 0.0, 1.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 1.0],
    ]
    assert Encoder.from_data(json.loads(json.dumps(encoder.to_data()))) == encoder


@pytest.mark.parametrize(
    ("bins", "problem", "words"),
    [
        ("quantile", PrivacyRefusal, "declared bounds or values, not ones from the data"),
        ([30, 20], InvalidInput, "must be increasing"),
        ([20, 200], InvalidInput, "increasing edges between"),
        (1, InvalidInput, "bins of a column"),
        ([], InvalidInput, "must be increasing"),
        (True, InvalidInput, "must be a list"),
    ],
)
def test_bins_that_are_none_are_refused(bins: Any, problem: type[Exception], words: str) -> None:
    with pytest.raises(problem, match=words):
        Column(kind="number", lower=0, upper=120, bins=bins)


def test_bins_need_bounds_and_numbers() -> None:
    with pytest.raises(InvalidInput, match="Declare lower and upper"):
        Column(kind="number", bins=[3])
    with pytest.raises(InvalidInput, match="has no bins"):
        Column(kind="category", values=("a", "b"), bins=[3])


# --- groups -----------------------------------------------------------------------------------------------

GROUPED = Encoder(
    {
        "age": Column(kind="integer", lower=0, upper=120, bins=3, missing="indicator"),
        "sick": Column(kind="boolean"),
        "site": Column(kind="category", values=("east", "west")),
        "day": Column(kind="date", lower="2020-01-01", upper="2021-01-01"),
    },
    "sick",
)


@given(
    values=st.lists(st.floats(-50, 150), min_size=1, max_size=5),
    bands=st.lists(st.integers(1, 99), min_size=1, max_size=5, unique=True).map(sorted),
)
@settings(max_examples=50, deadline=None)
def test_bands_of_a_number_begin_at_their_lower_edge(values: list[float], bands: list[int]) -> None:
    encoder = Encoder({"age": Column(kind="number", lower=0, upper=100)})
    cells = np.array([*values, *bands], dtype=float)
    names, numbers = encoder.groups(encoder.inputs({"age": cells}), "age", bands)
    far = [min(abs(value - band) for band in bands) for value in cells]  # float32 does not tell others apart
    wanted = [sum(value >= band for band in bands) for value in cells]
    assert all(
        one == two
        for one, two, apart in zip(numbers.tolist(), wanted, far, strict=True)
        if apart == 0.0 or apart > 1e-4
    )
    assert len(names) == len(bands) + 1


def test_groups_are_declared_values_and_others_and_missing() -> None:
    cells = {"age": ["30", "", "60"], "site": ["west", "north", "east"], "day": ["2020-02-02"] * 3}
    inputs = GROUPED.inputs(cells)
    names, numbers = GROUPED.groups(inputs, "age", [45])
    assert (names, numbers.tolist()) == (("under 45", "45 and over", "missing"), [0, 2, 1])
    names, numbers = GROUPED.groups(inputs, "site")
    assert (names, numbers.tolist()) == (("east", "west", "other"), [1, 2, 0])
    booleans = Encoder({"old": Column(kind="boolean"), "age": GROUPED.columns["age"]})
    names, numbers = booleans.groups(booleans.inputs({"old": ["yes", "no"], "age": ["1", "2"]}), "old")
    assert (names, numbers.tolist()) == (("false", "true"), [1, 0])
    assert GROUPED.groups(inputs[:0], "site")[1].tolist() == []


@pytest.mark.parametrize(
    ("by", "bands", "message"),
    [
        ("sick", [], "by must be a declared input column.*got 'sick'"),
        ("sex", [], "got 'sex'. Take one of age, site, day"),
        ("age", [], r"bands of 'age' must be increasing edges between the bounds 0 and 120"),
        ("age", [60, 30], "must be increasing edges"),
        ("age", [math.nan], "must be increasing edges"),
        ("age", [0], "must be increasing edges"),
        ("day", [3], "of a column of numbers"),
    ],
)
def test_groups_that_are_not_declared_are_refused(by: str, bands: list[float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        GROUPED.groups(np.zeros((0, len(GROUPED.features))), by, bands)
