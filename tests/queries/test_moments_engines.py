"""The moments of a table in PostgreSQL, a DuckDB database, a folder of files, Spark: those of DuckDB."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from test_moments import (
    CELLS,
    DAYS,
    FEW,
    HOURS,
    INPUTS,
    INSIDE,
    OTHERS,
    TABLES,
    Row,
    moments_of,
    some_rows,
    table_of,
)
from test_sql_dialects import SERVER, execute, session

from tacit.errors import InvalidInput
from tacit.ledger import Policy, PureBudget
from tacit.queries.engines import (
    DuckDBDatabase,
    DuckDBEngine,
    EngineFailure,
    PostgresEngine,
    SparkEngine,
    database_at,
)

SPARK = {
    "age": "double", "dose": "float", "stays": "bigint", "code": "int", "smoker": "boolean", "born": "date",
    "seen": "timestamp_ntz", "cost": "double",
}  # fmt: skip
POSTGRES = {
    "age": "double precision", "dose": "real", "stays": "bigint", "code": "integer", "smoker": "boolean",
    "born": "date", "seen": "timestamp", "cost": "double precision",
}  # fmt: skip


__all__ = ["session"]  # the fixture of Spark


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    if SERVER.missing():
        pytest.skip(SERVER.missing())
    with SERVER.running("fsync=off") as server:
        yield server.url


def fill(url: str, rows: list[Row]) -> None:
    import psycopg

    columns = ", ".join(f'"{name}" {POSTGRES.get(name, "text")}' for name in CELLS)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute('DROP TABLE IF EXISTS "v"')
        connection.execute(f'CREATE TABLE "v" ({columns})')
        with connection.cursor().copy('COPY "v" FROM STDIN') as copy:
            for row in rows:
                copy.write_row(row)


@pytest.mark.thorough(cases=1)
@pytest.mark.untraced
@pytest.mark.parametrize(("target", "person"), [("cost", True), ("grade", False), ("grade", True)])
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=TABLES.map(lambda rows: [INSIDE, *rows]))
def test_postgres_sums_what_duckdb_sums(database: str, target: str, person: bool, rows: list[Row]) -> None:
    fill(database, rows)
    with contextlib.closing(PostgresEngine(database, "v")) as engine:
        for inputs in (FEW, DAYS, HOURS):
            there = moments_of(None, target=target, person=person, inputs=inputs, engine=engine)
            there.check()
            mine = moments_of(table_of(rows), target=target, person=person, inputs=inputs)
            assert there.sums() == mine.sums()


def test_postgres_is_summed_in_blocks_of_one_state(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [INSIDE, *some_rows(20)]
    fill(database, rows)
    monkeypatch.setattr("tacit.queries.moments._MOST", 50)
    with contextlib.closing(PostgresEngine(database, "v")) as engine:
        there = moments_of(None, inputs=FEW, engine=engine)
        there.check()
        execute(database, "DELETE FROM v")
        assert there.sums() == moments_of(table_of(rows), inputs=FEW).sums()


def test_a_server_that_dies_in_the_middle_is_one_constant_message() -> None:
    if SERVER.missing():
        pytest.skip(SERVER.missing())
    with SERVER.running("fsync=off") as server:
        fill(server.url, [INSIDE])
        engine = PostgresEngine(server.url, "v")
        there = moments_of(None, inputs=FEW, engine=engine)
        there.check()
        server.stop("immediate")
        with pytest.raises(EngineFailure, match="the charge stays"):
            there.sums()
        engine.close()


# --- DuckDB: a database, and a folder of files -------------------------------------------------------------


def test_a_duckdb_database_is_read_as_it_was_at_the_start(tmp_path: Path) -> None:
    import duckdb

    rows, path = [INSIDE, *some_rows(20)], tmp_path / "clinic.duckdb"
    with duckdb.connect(path) as connection:
        connection.register("rows", table_of(rows))
        connection.execute('CREATE SCHEMA "a b"; CREATE TABLE "a b"."visits" AS SELECT * FROM rows')
        connection.execute(f"CREATE VIEW beyond AS SELECT * FROM read_text('{__file__}')")
    engine = database_at(str(path), "a b.visits")
    assert isinstance(engine, DuckDBDatabase)
    there = moments_of(None, person=True, inputs=FEW, engine=engine)
    there.check()
    assert there.sums() == moments_of(table_of(rows), person=True, inputs=FEW).sums()
    assert len(list(there.content())) == 2
    engine.close()
    for table in ("visits", "a b.visit"):
        with pytest.raises(InvalidInput, match="has no table"):
            database_at(str(path), table)
    with pytest.raises(InvalidInput, match="cannot be opened as a DuckDB database"):
        DuckDBDatabase(tmp_path / "none.duckdb", "visits")
    with pytest.raises(InvalidInput, match="has no table"):  # a view of a file outside
        DuckDBDatabase(path, "beyond")
    with contextlib.closing(DuckDBDatabase(path, "visits", schema="a b")):
        DuckDBDatabase(path, "visits", schema="a b").close()  # a cell of a notebook, run again


def a_folder(tmp_path: Path, *parts: list[Row]) -> Path:
    folder = tmp_path / "visits"
    folder.mkdir()
    for number, rows in enumerate(parts):
        pq.write_table(table_of(rows), folder / f"part-{number}.parquet")
    return folder


def test_a_folder_is_the_rows_of_its_files(tmp_path: Path) -> None:
    rows = [INSIDE, *some_rows(20)]
    folder = a_folder(tmp_path, rows[:7], rows[7:])
    there = moments_of(folder, person=True, inputs=FEW)
    there.check()
    assert there.sums() == moments_of(table_of(rows), person=True, inputs=FEW).sums()
    content = b"".join(there.content())
    assert content == b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    pq.write_table(table_of(rows), folder / "part-2.parquet")
    with pytest.raises(InvalidInput, match="has changed since it was opened"):
        there.sums()


def policy_of(inputs: Any) -> Policy:
    return Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=inputs)


def test_folders_that_are_no_table_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InvalidInput, match=r"a folder of \.parquet files"):
        DuckDBEngine(empty, policy_of(FEW))
    folder = a_folder(tmp_path, [INSIDE])
    whole = table_of([INSIDE])
    pq.write_table(whole.drop_columns(["person"]), folder / "part-1.parquet")
    with pytest.raises(InvalidInput, match="have different columns"):
        DuckDBEngine(folder, policy_of(FEW))
    pq.write_table(whole.set_column(0, "age", [["12"]]), folder / "part-1.parquet")
    with pytest.raises(InvalidInput, match="reads only from a single file"):
        DuckDBEngine(folder, policy_of(FEW))


# --- Spark -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "person"), [("cost", True), ("grade", False)])
def test_spark_sums_what_duckdb_sums(session: Any, target: str, person: bool) -> None:
    rows = [INSIDE, *some_rows(40)]
    columns = ", ".join(f"`{name}` {SPARK.get(name, 'string')}" for name in CELLS)
    session.createDataFrame(rows, columns).createOrReplaceTempView("v")
    numbers = {name: column for name, column in INPUTS.items() if not column.is_moment}
    there = moments_of(None, target=target, person=person, inputs=numbers, engine=SparkEngine(session, "v"))
    there.check()
    assert there.sums() == moments_of(table_of(rows), target=target, person=person, inputs=numbers).sums()
    with pytest.raises(InvalidInput, match=r"'born' is a date, which Spark converts"):
        moments_of(None, inputs=OTHERS, engine=SparkEngine(session, "v"))


def test_the_statement_for_spark_is_one_and_is_read_again() -> None:
    """Without Spark: the SQL in its dialect is what sqlglot reads back from it."""
    import sqlglot

    texts = []

    class Recording(DuckDBEngine.__base__):  # type: ignore[misc, name-defined]
        def check(self, policy: Policy) -> None: ...

        def rows(self, statement: Any) -> list[tuple[Any, ...]]:
            texts.append(statement.sql("spark", sqlglot.exp.to_table("clinic.v")))
            return [(0,) * len(statement.tree.expressions)]

        def content(self) -> list[bytes]:
            return []

        def close(self) -> None: ...

    moments_of(None, person=True, inputs=FEW, engine=Recording()).sums()
    (text,) = texts
    assert sqlglot.transpile(text, read="spark", write="spark") == [text]
    assert "DIV" in text
    assert "`number`" in text
