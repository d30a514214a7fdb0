"""The DuckDB engine: locked, deaf to what the data would like to say, and strict about types."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from query_oracles import policy_of

from tacit.errors import InvalidInput
from tacit.ledger import Column, Ledger, Policy, PureBudget
from tacit.queries.engines import _LOCK, DuckDBEngine, EngineFailure, _fetched, check_types
from tacit.queries.plan import collect, compile_query
from tacit.queries.private_table import PrivateTable
from tacit.queries.query import Compare, Count, IsNull, Query, Sum
from tacit.queries.statements import SOURCE
from tacit.queries.table_check import check_table, register_table

COLUMNS = {
    "age": Column(kind="number", lower=0, upper=100),
    "ward": Column(kind="category", values=("a", "b")),
    "well": Column(kind="boolean"),
}
FRAME = pd.DataFrame({"age": [1.0, 2.0], "ward": ["a", "b"], "well": [True, False], "name": ["Ann", "Bob"]})


def policy(**fields: Any) -> Policy:
    return policy_of(COLUMNS, unit="row", **fields)


def integers(engine: DuckDBEngine, query: Query, rules: Policy) -> list[list[int]]:
    compiled = compile_query(query, rules, epsilon=1.0)
    raw = collect(compiled, [engine.rows(each) for each in compiled.statements])
    return [counts for cells in raw.values() for counts in cells.values()]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("writer", ["pyarrow", "polars"])
def test_one_row_moves_no_count_of_nans_in_a_file(
    dtype: str, writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers leave NaN out of the statistics of a row group, which one ordinary value makes."""
    rules, path = policy(columns={"age": COLUMNS["age"]}), tmp_path / "rows.parquet"

    def counts(ages: list[float]) -> list[int]:
        column = np.array(ages, "float32" if writer == "polars" and dtype == "float16" else dtype)
        if writer == "pyarrow":
            pq.write_table(pa.table({"age": column}), path)
        else:
            pl.DataFrame({"age": column}).write_parquet(path)
        engine = DuckDBEngine(path, rules)
        queries = (
            Query((Count("age"),)),
            Query((Count(),), where=IsNull("age")),
            Query((Count(),), where=Compare("age", ">", 0)),
        )
        return [integers(engine, query, rules)[0][0] for query in queries]

    nothing, one = [math.nan] * 50, [*[math.nan] * 50, 1.0]
    assert counts(nothing) == [0, 50, 0]
    assert counts(one) == [1, 50, 1]
    monkeypatch.setattr(
        "tacit.queries.engines._LOCK", [each for each in _LOCK if "disabled_optimizers" not in each]
    )
    assert counts(one) != [1, 50, 1], "else this shows nothing"


@pytest.mark.parametrize("value", [10**400, "\ud800", 1j, "seven", True])
def test_an_object_that_is_no_number_is_a_missing_one(value: object) -> None:
    """No cell may make the opening fail, which is free; the curator's check says where it is."""
    rules = policy(columns={"age": COLUMNS["age"]})
    frame = pd.DataFrame({"age": pd.Series([1.0, value], dtype=object)})
    assert integers(DuckDBEngine(frame, rules), Query((Count(), Count("age"))), rules) == [[2], [1]]
    (found,) = check_table(frame, rules).findings
    kind = "unreadable" if isinstance(value, str) else "type"
    assert (found.kind, found.count, found.rows) == (kind, 1, (2,))


def test_a_type_that_duckdb_lacks_is_named() -> None:
    table = pa.table({"age": pa.array([1], pa.decimal256(50))})
    with pytest.raises(InvalidInput, match="'age' decimal256"):
        DuckDBEngine(table, policy(columns={"age": COLUMNS["age"]}))


ESCAPES = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM glob('/*')",
    "COPY (SELECT 1) TO 'stolen.csv'",
    "ATTACH 'other.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SELECT * FROM FRAME",
]


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("kind", ["frame", "parquet"])
@pytest.mark.parametrize("place", range(len(ESCAPES)))
def test_even_a_text_that_got_in_would_get_nowhere(
    place: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rows.parquet"
    FRAME.to_parquet(path)
    engine = DuckDBEngine(FRAME if kind == "frame" else path, policy())
    with pytest.raises(engine._error):
        engine._connection.execute(ESCAPES[place])
    assert [file.name for file in tmp_path.iterdir()] == ["rows.parquet"]


def test_only_the_policys_columns_of_a_frame_are_there() -> None:
    engine = DuckDBEngine(FRAME, policy())
    described = engine._connection.execute(f"DESCRIBE {SOURCE}").fetchall()
    assert [row[0] for row in described] == ["age", "ward", "well"]


FAULTS = {
    "a column too few": FRAME.drop(columns="ward"),
    "numbers as booleans": FRAME.assign(age=[True, False]),
    "a category of floats": FRAME.assign(ward=[1.5, 2.5]),
    "a category of booleans": FRAME.assign(ward=[True, False]),
    "polars": pl.from_pandas(FRAME.drop(columns="age")),
    "arrow": pa.Table.from_pandas(FRAME.drop(columns="age")),
    "arrow with a name twice": pa.table([[1.0], [2.0], ["a"], [True]], names=["age", "age", "ward", "well"]),
    "a dictionary": {"age": [1.0]},
    "nothing": None,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_table_that_does_not_fit_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidInput):
        DuckDBEngine(FAULTS[name], policy()).check(policy())


NAMES = {
    "whole numbers": ([1, 1, 2], True),
    "numbers": ([1.0, 1.0, math.nan], True),
    "texts": (["a", "a", "b"], True),
    "categories": (pa.array(["a", "a", "b"]).dictionary_encode(), True),
    "decimals": (pa.array([1, 1, 2], pa.decimal128(5, 2)), True),
    "days": ([datetime.date(2020, 1, 1)] * 3, True),
    "nothing at all": (pa.nulls(3), True),
    "stretches of time": (pa.array([1, 1, 2], pa.duration("s")), False),
    "lists": ([[1.0], [1.0], [-0.0]], False),
    "structures": ([{"a": 1}] * 3, False),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_of_a_row_has_one_text(name: str) -> None:
    """The text of a unit's name decides which of its rows count, so a unit must have one text."""
    who, fits = NAMES[name]
    person = Policy(
        unit="person", adjacency="add-remove", budget=PureBudget(1.0), unit_column="who", rows_per_unit=2
    )
    table = pa.table({"who": who})
    if fits:
        DuckDBEngine(table, person).check(person)
        return
    with pytest.raises(InvalidInput, match="written in several ways"):
        DuckDBEngine(table, person).check(person)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for name in ("none.parquet", "none.csv", "data.xlsx", "data"):
        with pytest.raises(InvalidInput):
            DuckDBEngine(tmp_path / name, policy())
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"John Doe, 65")
    with pytest.raises(InvalidInput) as problem:
        DuckDBEngine(broken, policy())
    assert "John" not in str(problem.value)
    ragged = tmp_path / "ragged.csv"
    ragged.write_text("age,ward,well\n1,a,true\n2,b,true,John Doe\n")
    engine = DuckDBEngine(ragged, policy())  # what its rows are is found by the curator's check
    with pytest.raises(InvalidInput) as problem:
        engine.load()
    assert "John" not in str(problem.value)
    assert str(*check_table(ragged, policy()).findings).endswith("from the header (row 2)")
    starred = tmp_path / "all[1].parquet"
    FRAME.to_parquet(starred)
    with pytest.raises(InvalidInput, match="wildcards"):
        DuckDBEngine(starred, policy())


@pytest.mark.parametrize("unit", ["PID", "pid", "pid_1"])
@pytest.mark.parametrize("names", [("PID", "pid", "pid_1"), ("PID", "pid", "date")])
def test_no_column_is_read_in_place_of_another(unit: str, names: tuple[str, ...], tmp_path: Path) -> None:
    """DuckDB renames a second ``pid`` to ``pid_1``, which may be another column: the wrong one is bounded."""
    person = Policy(
        unit="person", adjacency="add-remove", budget=PureBudget(1.0), unit_column=unit, rows_per_unit=2
    )
    table = pa.table(dict(zip(names, (["1", "2"], ["p", "p"], ["3", "4"]), strict=True)))
    path = tmp_path / "visits.parquet"
    pq.write_table(table, path)
    with pytest.raises(InvalidInput, match="'PID', 'pid', which differ only in case"):
        DuckDBEngine(path, person)
    if unit in names and unit != "pid_1":
        for data in (table, table.to_pandas(), pl.from_arrow(table)):
            with pytest.raises(InvalidInput, match="which differ only in case"):
                DuckDBEngine(data, person)


def test_a_database_has_no_two_columns_equal_but_for_case() -> None:
    types = {"age": "DOUBLE", "ward": "TEXT", "well": "BOOLEAN", "AGE": "DOUBLE"}
    with pytest.raises(InvalidInput, match="'age', 'AGE', which differ only in case"):
        check_types(types, policy())


def test_columns_with_fields_are_no_renamed_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    nested = {"a": [{"age": 1, "ward": [1]}] * 2, "b": [[1], []]}
    pq.write_table(pa.table(nested | {name: FRAME[name] for name in COLUMNS}), path)
    assert integers(DuckDBEngine(path, policy()), Query((Count(),)), policy()) == [[2]]


def test_a_quote_in_a_path_is_a_quote(tmp_path: Path) -> None:
    for suffix, write in ((".parquet", FRAME.to_parquet), (".csv", lambda p: FRAME.to_csv(p, index=False))):
        path = tmp_path / f"it's; DROP{suffix}"
        write(path)
        assert integers(DuckDBEngine(path, policy()), Query((Count(),)), policy()) == [[2]]


def test_csv_types_come_from_the_policy_not_from_the_rows(tmp_path: Path) -> None:
    """A cell that is no number is missing, and no row decides how others are read."""
    path = tmp_path / "rows.csv"
    path.write_text('"ward",age,well,x\na, 7 ,true,\nb,n/a,yes,\n,nan,,\na,1e999,0,\n"a,b",120,1,\n')
    engine = DuckDBEngine(path, policy())
    assert integers(engine, Query((Count(), Count("age"), Count("well"), Count("ward"))), policy()) == [
        [5],
        [2],
        [4],
        [4],
    ]
    assert integers(
        engine,
        Query((Sum("age"),)),
        policy(columns=COLUMNS | {"age": Column(kind="number", lower=0, upper=100, step=1)}),
    ) == [[107]]
    leading = tmp_path / "leading.csv"
    leading.write_text("age,ward,well\n1,007,true\n")
    rules = policy(columns=COLUMNS | {"ward": Column(kind="category", values=("007",))})
    assert integers(DuckDBEngine(leading, rules), Query((Count(),), by=("ward",)), rules) == [[1]]


@pytest.mark.parametrize("text", ["", "age;ward;well\n1;a;true\n", "\xff\xfe"])
def test_a_csv_without_the_columns_in_its_first_line_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInput):
        DuckDBEngine(path, policy())


def test_an_empty_table_has_counts_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("age,ward,well\n")
    for data in (FRAME.iloc[:0].astype({"age": float, "ward": "string", "well": bool}), path):
        engine = DuckDBEngine(data, policy())
        assert integers(engine, Query((Count(), Sum("age"))), policy()) == [[0], [0]]
        assert integers(engine, Query((Count(),), by=("ward",)), policy()) == []


def test_a_file_that_changes_is_refused_before_any_charge(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    FRAME.to_parquet(path)
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("d", policy())
    register_table(path, ledger=ledger, dataset="d")
    table = PrivateTable(path, ledger=ledger, dataset="d")
    pd.concat([FRAME, FRAME]).to_parquet(path)
    with pytest.raises(InvalidInput, match="changed"):
        table.ask(Query((Count(),)), epsilon=0.5)
    path.unlink()
    with pytest.raises(InvalidInput, match="cannot be read"):
        table.ask(Query((Count(),)), epsilon=0.5)
    assert ledger.status("d").spent_epsilon == 0.0


def test_an_error_of_the_engine_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    FRAME.to_parquet(path)
    engine = DuckDBEngine(path, policy())
    compiled = compile_query(Query((Count(),)), policy(), epsilon=1.0)
    path.write_bytes(b"PAR1 no more PAR1")
    with pytest.raises(EngineFailure) as failure:
        engine.rows(compiled.statements[0])
    assert str(failure.value) == str(EngineFailure())
    assert failure.value.__suppress_context__
    engine.close()


HOSTILE = ["'; DROP TABLE tacit_rows; --", '"', "\\", "\\'", "%", "ö\u202e", "a' OR '1'='1", "$$", "{}", "\n"]


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_texts_are_texts(place: int) -> None:
    frame = FRAME.assign(ward=[HOSTILE[place], "b"])
    rules = policy(columns=COLUMNS | {"ward": Column(kind="category", values=(HOSTILE[place], "c"))})
    engine = DuckDBEngine(frame, rules)
    where = Query((Count(),), where=Compare("ward", "=", HOSTILE[place]))
    assert integers(engine, where, rules) == [[1]]
    assert integers(engine, Query((Count(),), by=("ward",)), rules) == [[1]]


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_names_of_columns_are_names(place: int) -> None:
    frame = FRAME.rename(columns={"ward": HOSTILE[place]})
    rules = policy(columns={HOSTILE[place]: COLUMNS["ward"]})
    assert integers(DuckDBEngine(frame, rules), Query((Count(),), by=(HOSTILE[place],)), rules) == [[1], [1]]


def test_the_content_is_the_columns_of_the_policy() -> None:
    def content(data: object) -> bytes:
        return b"".join(DuckDBEngine(data, policy()).content())

    assert content(FRAME) == content(FRAME.assign(name=["x", "y"]))
    assert content(FRAME) == content(pa.concat_tables([pa.Table.from_pandas(FRAME.iloc[:1]),
                                                       pa.Table.from_pandas(FRAME.iloc[1:])]))  # fmt: skip
    assert content(FRAME) != content(FRAME.assign(age=[1.0, 3.0]))
    assert content(FRAME) != content(FRAME.iloc[::-1])


@pytest.mark.parametrize("form", [duckdb.InterruptException("INTERRUPT"), RuntimeError("Query interrupted")])
def test_both_forms_of_a_ctrl_c_in_duckdb_are_a_ctrl_c(form: Exception) -> None:
    class Connection:
        def execute(self, text: str) -> Any:
            raise form

    with pytest.raises(KeyboardInterrupt):
        _fetched(Connection(), "SELECT 1")
