"""One description of a column: what it may say, what it refuses, and how it is written in files."""

from __future__ import annotations

import datetime
import datetime as dt
import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from tacit.columns import Column, Dialect
from tacit.columns.column import parse_columns
from tacit.errors import InvalidInput, PrivacyRefusal

COLUMNS: dict[str, dict[str, Any]] = {
    "number": {
        "lower": 0.0, "upper": 300.0, "step": 0.5, "missing": 40.0, "decimal": ",", "thousands": ".",
        "unit": "kg", "below": "<",
    },
    "integer": {"lower": -3.0, "upper": 3.0, "values": [1, 2], "missing": "indicator"},
    "category": {"values": ["f", "m"], "missing": "unknown"},
    "boolean": {"true": ["ja", "J"], "false": ["nein"], "missing": False},
    "date": {
        "lower": "2015-01-01", "upper": "2025-12-31", "format": "%d.%m.%Y", "parts": ["weekday", "month"],
        "missing": "2020-06-01",
    },
    "datetime": {"lower": "2015-01-01 00:00:00", "upper": "2025-12-31 23:59:59", "parts": ["hour"]},
    "text": {},
}  # fmt: skip


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_is_read_back_from_plain_data(kind: str) -> None:
    data = {"kind": kind} | COLUMNS[kind]
    column = Column.from_data(data)
    assert column.to_data() == data
    assert Column.from_data(json.loads(json.dumps(column.to_data()))) == column
    assert pickle.loads(pickle.dumps(column)) == column
    assert hash(replace(column)) == hash(column)
    assert eval(repr(column), {"Column": Column, "datetime": datetime}) == column
    assert parse_columns({"a": column, "b": data}) == {"a": column, "b": column}


def test_defaults_are_not_written() -> None:
    column = Column(kind="number", missing=0.0)
    assert column.to_data() == {"kind": "number", "missing": 0.0}
    assert Column(kind="boolean", missing=False).to_data() == {"kind": "boolean", "missing": False}
    assert Column(kind="number", missing="refuse", parts=[], values=None).to_data() == {"kind": "number"}


def test_dates_of_toml_and_texts_are_the_same() -> None:
    texts = Column(kind="date", lower="2015-01-01", upper="2025-12-31")
    assert texts == Column(kind="date", lower=dt.date(2015, 1, 1), upper=dt.date(2025, 12, 31))
    assert (texts.low, texts.high) == (16436.0, 20453.0)  # days since 1970-01-01
    zoned = Column(kind="datetime", lower="1970-01-01T01:00:00+01:00", upper=dt.date(1970, 1, 2))
    assert (zoned.low, zoned.high) == (0.0, 86_400.0)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"kind": "numbers"}, "kind of a column must be one of number, integer, category"),
        ({"kind": "number", "lower": 0}, "both bounds or none; got lower 0.0, upper None"),
        ({"kind": "number", "lower": 3, "upper": 3}, "lower must be below upper; got 3.0 and 3.0"),
        ({"kind": "number", "lower": 0, "upper": 1e308}, "are too far apart"),
        ({"kind": "number", "lower": -1e308, "upper": 1e308}, "are too far apart"),
        ({"kind": "number", "lower": 0, "upper": float("inf")}, "upper of a column must be a real number"),
        ({"kind": "number", "step": 0}, "step of a column must be a real number"),
        ({"kind": "boolean", "lower": 0, "upper": 1}, "kind 'boolean' has no lower; it may have values"),
        ({"kind": "number", "values": [1]}, "kind 'number' has no values"),
        ({"kind": "text", "missing": "indicator"}, "kind 'text' has no missing; it may have nothing else"),
        ({"kind": "category", "values": "ab"}, "values must be a list"),
        ({"kind": "category", "values": []}, "at least one"),
        ({"kind": "category", "values": ["a", "a"]}, "values must be distinct"),
        ({"kind": "category", "values": [1]}, "values of a column of kind 'category' must be str; got 1"),
        ({"kind": "integer", "values": [True]}, "must be int; got True"),
        ({"kind": "number", "decimal": ".", "thousands": "."}, "decimal and thousands must differ"),
        ({"kind": "number", "decimal": "5"}, "decimal must be one character"),
        ({"kind": "number", "unit": "m2"}, "unit must be a string without digits"),
        ({"kind": "number", "below": ""}, "below must be a string without digits"),
        ({"kind": "boolean", "true": ["ja"]}, "true and false must both be declared"),
        ({"kind": "boolean", "true": "ja", "false": "nein"}, "true must be a list"),
        ({"kind": "boolean", "true": ["ja"], "false": ["JA"]}, "a word cannot be both true and false: ja"),
        (
            {"kind": "date", "lower": "01.02.2015", "upper": "01.02.2016"},
            "must be a date, such as 2015-01-31",
        ),
        ({"kind": "date", "lower": "2015-02-31", "upper": "2015-03-01"}, "must be a date"),
        ({"kind": "date", "lower": dt.datetime(2015, 1, 1), "upper": "2016-01-01"}, "must be a date"),
        ({"kind": "datetime", "lower": 5, "upper": 6}, "must be a datetime, such as 2015-01-31 14:05:00"),
        ({"kind": "date", "format": "%d.%m."}, "format must contain day, month and year"),
        ({"kind": "datetime", "format": "%d.%m.%Y"}, "format must contain day, month, year and time"),
        ({"kind": "date", "format": 7}, "format must contain"),
        ({"kind": "date", "parts": ["hour"]}, "parts of a date must be one of weekday, month"),
        ({"kind": "date", "parts": "month"}, "parts must be a list"),
        ({"kind": "integer", "missing": 1.5}, "missing must be an integer"),
        (
            {"kind": "number", "missing": "40"},
            'missing must be "refuse", "indicator" or a number; got \'40\'',
        ),
        ({"kind": "number", "missing": True}, "missing must be a real number"),
        ({"kind": "boolean", "missing": 1}, 'indicator" or a boolean; got 1'),
        (
            {"kind": "number", "lower": 0, "upper": 1, "missing": 2},
            "`missing` must be between `lower` and `upper`",
        ),
        (
            {"kind": "number", "bounds": [0, 1]},
            "unknown setting 'bounds'; there are kind, lower",
        ),
        ({"lower": 0, "upper": 1}, "needs a kind: number, integer"),
    ],
)
def test_facts_that_do_not_fit_are_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_columns({"age": facts})
    assert str(caught.value).startswith("[columns.age]")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "facts",
    [
        {"kind": "number", "lower": "min", "upper": "max"},
        {"kind": "category", "values": "auto"},
        {"kind": "number", "missing": "median"},
        {"kind": "date", "lower": "data", "upper": "data"},
    ],
)
def test_facts_from_the_data_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(PrivacyRefusal, match="data"):
        Column(**facts)


@pytest.mark.parametrize("facts", [[0, 120], {"values": ["a"]}, {"kind": "category", "keys": ["a"]}])
def test_a_section_that_is_none_is_refused_with_its_place(facts: object) -> None:
    with pytest.raises(InvalidInput, match=r"^\[columns.a\]"):
        parse_columns({"a": facts})


@pytest.mark.parametrize("old", [None, "auto"])
def test_columns_that_are_left_to_the_data_are_refused(old: object) -> None:
    with pytest.raises(
        PrivacyRefusal, match=r"\[columns.age\]: .*depend on single records.*lower = 0, upper = 120"
    ):
        parse_columns({"age": old})


def test_a_dialect_is_read_back_and_refuses_what_it_cannot_read() -> None:
    dialect = Dialect(separator=";", decimal=",", thousands=".", encoding="latin-1", quote="'")
    assert Dialect.from_data(dialect.to_data()) == dialect
    assert Dialect().to_data() == {}
    assert Dialect(encoding="UTF8") == Dialect(encoding="utf-8") == Dialect()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"separator": ", "}, "separator must be one character"),
        ({"separator": '"'}, "separator and quote must differ"),
        ({"decimal": ""}, "decimal must be one character"),
        ({"decimal": ",", "thousands": ","}, "decimal and thousands must differ"),
        ({"encoding": "latin-99"}, "encoding must be the name of a text encoding"),
        ({"encoding": "base64"}, "encoding must be the name of a text encoding"),
        ({"quote": ""}, "quote must be one character"),
        ({"delimiter": ";"}, "unknown setting 'delimiter'; there are separator, decimal"),
        ({"decimal": 5}, "decimal must be a string; got 5"),
    ],
)
def test_dialects_that_make_no_sense(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Dialect.from_data(facts)
    assert str(caught.value).startswith("[table]")
    assert message in str(caught.value)
