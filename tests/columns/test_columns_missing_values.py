"""Words that stand for a missing value: declared for a column or a table, found, and read in every way."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.columns import Column, Dialect
from tacit.columns.sniffing import sniff
from tacit.columns.tables import numbers_of, words_of
from tacit.errors import InvalidInput
from tacit.ledger import Policy, PureBudget
from tacit.queries.engines import DuckDBEngine

NOTHING: list[str | float] = ["n/a", "-", -999]


@pytest.mark.parametrize(
    "cells",
    [
        ["34", "n/a", " - ", "-999", "-999.0", ""],
        [34, "n/a", "-", -999, -999.0, None],
        np.array([34.0, np.nan, -999.0, -999.0, -999, -999]),
    ],
    ids=["texts", "objects", "typed"],
)
@pytest.mark.parametrize("where", ["column", "table"])
def test_numbers(cells: Any, where: str) -> None:
    column = Column(kind="number", missing_values=NOTHING if where == "column" else ())
    table = Dialect(missing_values=tuple(NOTHING) if where == "table" else ())  # type: ignore[arg-type]
    values, unreadable = numbers_of(cells, column, table)
    assert values[0] == 34.0
    assert np.isnan(values[1:]).all()
    assert not len(unreadable)


def test_the_same_cells_without_a_declaration() -> None:
    values, unreadable = numbers_of(["34", "n/a", "-", "-999"], Column(kind="number"))
    assert unreadable.tolist() == [1, 2]
    assert values[3] == -999.0


@pytest.mark.parametrize(
    ("column", "cells", "expected"),
    [
        (Column(kind="boolean", missing_values=["9"]), ["yes", "9", "no"], [1, None, 0]),
        (Column(kind="boolean", missing_values=[9]), np.array([1, 9, 0]), [1, None, 0]),
        (Column(kind="boolean", missing_values=[9]), [True, 9, 0], [1, None, 0]),
        (Column(kind="boolean"), ["1.0", "0.0"], [1, 0]),
        (Column(kind="date", missing_values=["1900-01-01"]), ["1970-01-02", "1900-01-01"], [1, None]),
        (Column(kind="date", missing_values=["1900-01-01"]), [date(1970, 1, 2), date(1900, 1, 1)], [1, None]),
        (
            Column(kind="date", missing_values=["1900-01-01"]),
            np.array(["1970-01-02", "1900-01-01"], dtype="datetime64[D]"),
            [1, None],
        ),
        (Column(kind="number", decimal=",", missing_values=["-9,5"]), ["1,5", "-9,50"], [1.5, None]),
    ],
)
def test_other_kinds(column: Column, cells: Any, expected: list[float | None]) -> None:
    values, unreadable = numbers_of(cells, column)
    assert [None if math.isnan(value) else value for value in values.tolist()] == expected
    assert not len(unreadable)


def test_categories() -> None:
    assert words_of(["a", "-", -999.0, "?"], missing_words=("-", "-999")) == ["a", None, None, None]
    assert words_of(["unknown"], declared=["unknown"], missing_words=("unknown",)) == ["unknown"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"kind": "number", "missing_values": "n/a"}, "must be a list of words or numbers"),
        ({"kind": "number", "missing_values": [True]}, "must be a list of words or numbers"),
        (
            {"kind": "category", "values": ["a"], "missing_values": ["a"]},
            "in missing_values and in values",
        ),
        ({"kind": "boolean", "missing_values": ["No"]}, "and in false"),
        ({"kind": "text", "missing_values": ["-"]}, "has no missing_values"),
    ],
)
def test_what_cannot_be(facts: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Column.from_data(facts)


def test_a_policy_keeps_them() -> None:
    policy = _policy(Column(kind="integer", lower=0, upper=120, missing_values=NOTHING))
    assert Policy.from_json(policy.to_json()) == policy
    assert policy.columns["age"].missing_values == ("n/a", "-", "-999")


def _policy(age: Column, **more: Any) -> Policy:
    return Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns={"age": age}, **more)


def _table(folder: Path, ending: str, cells: list[Any]) -> Path:
    path = folder / f"t.{ending}"
    if ending == "csv":
        path.write_text("age\n" + "".join(f"{cell}\n" for cell in cells))
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table({"age": cells}), path)
    return path


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("where", ["column", "table"])
def test_a_query_reads_them(ending: str, where: str, tmp_path: Path) -> None:
    path = _table(tmp_path, ending, [10, -999, 20])
    words = {"missing_values": ("-999",)}
    age = Column(kind="integer", lower=0, upper=120, **(words if where == "column" else {}))  # type: ignore[arg-type]
    policy = _policy(age, dialect=Dialect(**(words if where == "table" else {})))  # type: ignore[arg-type]
    engine = DuckDBEngine(path, policy)
    engine.check(policy)
    engine.load()
    assert engine._fetch('SELECT count("age"), sum("age") FROM tacit_rows') == [(2, 30.0)]


@pytest.mark.parametrize(
    ("cells", "kind", "words"),
    [
        (["34", "n/a", "-", "61"], "integer", ["-", "n/a"]),
        (["1.5", ".", "2.0"], "number", ["."]),
        (["2020-01-31", "unknown"], "date", ["unknown"]),
        (["yes", "no", "unknown"], "boolean", ["unknown"]),
        (["34", "-999", "61"], "integer", ["-999"]),
        (["34", "-5", "-999"], "integer", None),
        (["red", "unknown", "blue"], "category", ["unknown"]),
        (["-", "-"], "category", None),
    ],
)
def test_what_is_proposed(cells: list[str], kind: str, words: list[str] | None, tmp_path: Path) -> None:
    found = sniff(_table(tmp_path, "csv", cells)).columns["age"]
    assert found.kind == kind
    assert found.settings.get("missing_values") == words


def test_numbers_with_words_that_no_list_knows_are_asked_about(tmp_path: Path) -> None:
    cells = ["34", "61", "27", "not measured"]
    assert "most cells are numbers" in sniff(_table(tmp_path, "csv", cells)).columns["age"].doubt
