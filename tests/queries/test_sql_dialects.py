"""The integers that PostgreSQL and Spark count are those that DuckDB counts, whatever lies in the table."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from query_oracles import joined

from tacit.errors import InvalidInput
from tacit.ledger import Column, Policy, PureBudget
from tacit.queries.engines import DuckDBEngine, Engine, EngineFailure, PostgresEngine, SparkEngine
from tacit.queries.plan import compile_query
from tacit.queries.query import (
    Aggregate,
    Cdf,
    Compare,
    Count,
    CountUnits,
    Histogram,
    In,
    IsNull,
    Mean,
    Predicate,
    Quantile,
    Quantiles,
    Query,
    Sum,
    Survival,
    Variance,
)
from tacit.queries.statements import Statement
from tacit.queries.table_check import check_table


def load_server() -> ModuleType:
    path = Path(__file__).parent.parent / "ledger" / "postgres_server.py"
    spec = importlib.util.spec_from_file_location("postgres_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


SERVER = load_server()
WARDS = ("A", "it's", "b\\n", "ü%s", "", "'); DROP TABLE v; --", 'a\nb\t"q" :x $1 {y} ?')
COLUMNS = {
    "age": Column(kind="number", lower=0, upper=120),
    "ward": Column(kind="category", values=WARDS),
    "stays": Column(kind="integer", lower=-3, upper=10),
    "code": Column(kind="integer", lower=0, upper=9, values=(1, 2, 3)),
    "smoker": Column(kind="boolean"),
    "note": Column(kind="category"),
}
ROWS = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=COLUMNS)
PERSONS = Policy(
    unit="person",
    adjacency="add-remove",
    budget=PureBudget(1.0),
    columns=COLUMNS,
    unit_column="person",
    rows_per_unit=3,
    groups_per_unit=2,
)
# name: type in Arrow, PostgreSQL, Spark; values
CELLS: dict[str, tuple[Any, str, str, list[Any]]] = {
    "person": (pa.string(), "text", "string", [None, "p1", "p2", "ü", "NaN", "", " "]),
    "age": (
        pa.float64(), "double precision", "double",
        [None, 0.0, -0.0, 1.5, 65.0, 119.99994, 6.103515625e-05, 0.1, 1e300, -5.0, float("nan"), float("inf"),
         float("-inf")],
    ),
    "ward": (pa.string(), "text", "string", [None, *WARDS, "elsewhere", "A ", "a"]),
    "stays": (pa.int64(), "bigint", "bigint", [None, -9, -3, 0, 1, 2, 10, 11, 2**40]),
    "code": (pa.int64(), "bigint", "bigint", [None, 1, 2, 3, 4]),
    "smoker": (pa.bool_(), "boolean", "boolean", [None, True, False]),
    "note": (pa.string(), "text", "string", [None, "x", "b\\n", "é", "e\u0301", "\U0001f600", "'", "a\nb"]),
}  # fmt: skip
Row = tuple[Any, ...]
TABLES = st.lists(st.tuples(*(st.sampled_from(values) for *_, values in CELLS.values())), max_size=40)
LEAVES: st.SearchStrategy[Predicate] = st.one_of(
    st.builds(
        Compare,
        st.just("age"),
        st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
        st.sampled_from([0, 1.5, 65, 0.1]),
    ),
    st.builds(Compare, st.just("stays"), st.sampled_from(["<", ">=", "="]), st.sampled_from([0, 2, 2**40])),
    st.builds(Compare, st.just("ward"), st.sampled_from(["=", "!="]), st.sampled_from(WARDS)),
    st.builds(Compare, st.just("smoker"), st.just("="), st.booleans()),
    st.builds(In, st.just("note"), st.sampled_from([("x", "'"), ("é",), ("b\\n", "a\nb")])),
    st.builds(In, st.just("code"), st.just((1, 4))),
    st.builds(IsNull, st.sampled_from(sorted(COLUMNS))),
)
PREDICATES = joined(LEAVES, 5)
AGGREGATES: list[Aggregate] = [
    Count(), Count("age"), Count("note"), CountUnits(), Sum("age"), Sum("stays"), Mean("age"),
    Variance("stays"), Quantile("age", 0.5), Quantile("stays", 1.0), Histogram("age", (0, 1.5, 65, 120)),
]  # fmt: skip
QUERIES = st.builds(
    Query,
    st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=4, unique=True).map(tuple),
    where=st.none() | PREDICATES,
    by=st.lists(st.sampled_from(["ward", "code", "smoker", "note"]), max_size=2, unique=True).map(tuple),
)


def statements_of(query: Query, policy: Policy) -> tuple[Statement, ...]:
    delta = 1e-9 if "note" in query.by else None
    return compile_query(query, policy, epsilon=1.0, delta=delta).statements


def arrow(rows: list[Row]) -> pa.Table:
    return pa.table(
        {name: pa.array([row[i] for row in rows], type=CELLS[name][0]) for i, name in enumerate(CELLS)}
    )


def integers(engine: Engine, statement: Statement) -> list[Row]:
    """The rows as plain values, in an order of their own."""
    rows = [
        tuple(cell if isinstance(cell, str | bool) else int(cell) for cell in row)
        for row in engine.rows(statement)
    ]
    return sorted(rows, key=repr)


def assert_same(engine: Engine, rows: list[Row], query: Query, policy: Policy) -> None:
    mine = DuckDBEngine(arrow(rows), policy)
    for statement in statements_of(query, policy):
        assert integers(engine, statement) == integers(mine, statement)
    mine.close()


# --- PostgreSQL --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    if SERVER.missing():
        pytest.skip(SERVER.missing())
    with SERVER.running("fsync=off") as server:
        yield server.url


def fill(url: str, rows: list[Row], table: str = "v") -> None:
    import psycopg

    columns = ", ".join(f'"{name}" {CELLS[name][1]}' for name in CELLS)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'DROP TABLE IF EXISTS "{table}"')
        connection.execute(f'CREATE TABLE "{table}" ({columns})')
        with connection.cursor().copy(f'COPY "{table}" FROM STDIN') as copy:
            for row in rows:
                copy.write_row(row)


def execute(url: str, *texts: str) -> None:
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        for text in texts:
            connection.execute(text)


@pytest.mark.untraced
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(TABLES, QUERIES, st.sampled_from([ROWS, PERSONS]))
def test_postgres_counts_what_duckdb_counts(
    database: str, rows: list[Row], query: Query, policy: Policy
) -> None:
    fill(database, rows)
    engine = PostgresEngine(database, "v")
    engine.check(policy)
    assert_same(engine, rows, query, policy)
    engine.close()


@pytest.mark.parametrize("months", ["double precision", "numeric(6, 2)"])
def test_curves_and_distributions_in_postgres_are_those_of_duckdb(database: str, months: str) -> None:
    """At edges that no double equals, with times and events that are missing."""
    times = [None, *(place / 100 for place in range(0, 1300, 7))]
    rows = [(time, (None, True, False)[place % 3]) for place, time in enumerate(times)]
    execute(
        database,
        "DROP TABLE IF EXISTS s",
        f"CREATE TABLE s (months {months}, died boolean)",
        f"INSERT INTO s VALUES {', '.join(f'({a}, {b})' for a, b in rows).replace('None', 'NULL')}",
    )
    columns = {"months": Column(kind="number", lower=0, upper=12), "died": Column(kind="boolean")}
    policy = replace(ROWS, columns=columns)
    table = pa.table({"months": [time for time, _ in rows], "died": [event for _, event in rows]})
    mine = DuckDBEngine(table, policy)
    with contextlib.closing(PostgresEngine(database, "s")) as engine:
        engine.check(policy)
        for item in (Survival("months", "died", (0, 0.07, 0.7, 2.1, 12)), Survival("months", "died"),
                     Quantiles("months"), Cdf("months", (0.07, 2.1))):  # fmt: skip
            for statement in statements_of(Query((item,)), policy):
                found = integers(engine, statement)
                assert found == integers(mine, statement)
                assert len(found) > 3
    mine.close()


def test_postgres_is_asked_of_one_state_and_may_not_write(database: str) -> None:
    fill(database, [("p1", 1.0, "A", 1, 1, True, "x")])
    engine = PostgresEngine(database, "v")
    (statement,) = statements_of(Query((Count(),)), ROWS)
    before = list(engine.content())
    assert integers(engine, statement) == [(1,)]
    execute(database, "INSERT INTO v (person) VALUES ('p2')")
    assert integers(engine, statement) == [(1,)]
    assert list(engine.content()) == before
    later = PostgresEngine(database, "v")
    assert integers(later, statement) == [(2,)]
    assert list(later.content()) != before
    import psycopg

    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        later._connection.execute("DELETE FROM public.v")
    engine.close()
    later.close()


def test_dates_are_compared_and_checked_as_duckdb_does(database: str) -> None:
    """Whatever form of dates the server writes, and a time zone is refused by name."""
    days = ["2019-12-31", "2020-02-29", None, "2030-01-01"]
    seen = ["2020-01-31 14:05:00", "2020-02-01 00:00:00", "2020-02-01 00:00:00.5", None]
    columns = {
        "born": Column(kind="date", lower="2020-01-01", upper="2029-12-31"),
        "seen": Column(kind="datetime", lower="2020-01-01", upper="2029-12-31"),
    }
    policy = replace(ROWS, columns=columns)
    values = ", ".join(
        f"({', '.join('NULL' if cell is None else repr(cell) for cell in row)})"
        for row in zip(days, seen, strict=True)
    )
    execute(
        database,
        "DROP TABLE IF EXISTS d",
        "CREATE TABLE d (born date, seen timestamp)",
        f"INSERT INTO d VALUES {values}",
        "ALTER DATABASE postgres SET datestyle = 'SQL, DMY'",
    )
    table = pa.table(
        {
            "born": pa.array(days).cast(pa.date32()),
            "seen": pa.array(seen).cast(pa.timestamp("us")),
        }
    )
    try:
        with contextlib.closing(PostgresEngine(database, "d")) as engine:
            mine = DuckDBEngine(table, policy)
            for column, op, value, count in [
                ("born", "<", "2020-02-29", 1),
                ("born", ">=", "2020-02-29", 2),
                ("seen", "=", "2020-02-01", 1),
                ("seen", ">", "2020-02-01 00:00", 1),
                ("seen", "<=", "2020-01-31 14:05", 1),
            ]:
                (statement,) = statements_of(Query((Count(),), Compare(column, op, value)), policy)
                assert integers(engine, statement) == integers(mine, statement) == [(count,)]
            found = [(each.column, each.kind, each.count) for each in check_table(engine, policy).findings]
            assert found == [("born", "missing", 1), ("born", "outside", 2), ("seen", "missing", 1)]
        execute(database, "ALTER TABLE d ALTER COLUMN seen TYPE timestamptz")
        with (
            contextlib.closing(PostgresEngine(database, "d")) as engine,
            pytest.raises(InvalidInput) as caught,
        ):
            engine.check(policy)
        assert "'seen' is declared a datetime, but its type is timestamp with" in str(caught.value)
    finally:
        execute(database, "ALTER DATABASE postgres RESET datestyle")


def test_what_the_server_is_set_to_does_not_change_what_a_statement_means(database: str) -> None:
    """A backslash in a literal, and a function of the same name in front of the server's own."""
    rows: list[Row] = [("p1", 1.0, "b\\n", 1, 1, True, "b\\n"), ("p1", 2.0, "A", 1, 1, True, "\\")]
    fill(database, rows)
    shadow = "CREATE OR REPLACE FUNCTION public.md5(text) RETURNS text LANGUAGE sql AS $$ SELECT 'same' $$"
    execute(
        database,
        shadow,
        "ALTER DATABASE postgres SET standard_conforming_strings = off",
        "ALTER DATABASE postgres SET search_path = public, pg_catalog",
    )
    try:
        engine = PostgresEngine(database, "v")
        for value in ("b\\n", "\\"):
            assert_same(engine, rows, Query((Count(),), Compare("note", "=", value)), ROWS)
        first = list(engine.content())
        engine.close()
        fill(database, rows[:1] * 2)
        other = PostgresEngine(database, "v")
        assert list(other.content()) != first
        other.close()
    finally:
        execute(
            database,
            "ALTER DATABASE postgres RESET standard_conforming_strings",
            "ALTER DATABASE postgres RESET search_path",
            "DROP FUNCTION public.md5(text)",
        )


def test_which_rows_postgres_keeps_does_not_hang_on_how_things_are_written(database: str) -> None:
    """Texts in an order of some language, and one person whose number is written in three ways."""
    wards = ("A", "a", "B", "b", "é", "z", "~")
    policy = replace(
        PERSONS,
        columns={"ward": Column(kind="category", values=wards)},
        groups_per_unit=None,
        rows_per_unit=2,
    )
    cells = [(number, ward) for number in ("7", "7.0", "7.00", "-0", "0", "1.50", "1.5") for ward in wards]
    execute(
        database,
        "DROP TABLE IF EXISTS w",
        'CREATE TABLE w (person numeric, ward text COLLATE "en-x-icu")',
        f"INSERT INTO w VALUES {', '.join(map(str, cells))}",
    )
    engine = PostgresEngine(database, "w")
    engine.check(policy)
    table = pa.table({"person": [float(x) for x, _ in cells], "ward": [ward for _, ward in cells]})
    mine = DuckDBEngine(table, policy)
    for query in (Query((Count(),), by=("ward",)), Query((Count(), CountUnits()), by=("ward",))):
        (statement,) = statements_of(query, policy)
        assert integers(engine, statement) == integers(mine, statement)
    engine.close()
    mine.close()
    execute(database, "ALTER TABLE w ALTER COLUMN person TYPE interval USING make_interval(days => 30)")
    engine = PostgresEngine(database, "w")
    with pytest.raises(InvalidInput, match="written in several ways"):
        engine.check(policy)
    engine.close()


def test_the_version_of_a_table_in_postgres_is_its_rows_in_any_order(database: str) -> None:
    rows: list[Row] = [("p1", 1.0, "A", 1, 1, True, "x"), ("p2", 2.0, "A", 1, 1, None, "x")]
    found = []
    for some in (rows, rows[::-1], rows[:1] * 2, rows[:1]):
        fill(database, some)
        engine = PostgresEngine(database, "v")
        found.append(list(engine.content()))
        engine.close()
    assert found[0] == found[1]
    assert len({str(content) for content in found}) == 3


def test_a_failure_in_postgres_says_nothing_of_why(database: str) -> None:
    fill(database, [])
    fill(database, [], "x")
    execute(database, "ALTER TABLE x ALTER COLUMN age TYPE numeric", "INSERT INTO x (age) VALUES (1e999)")
    engine = PostgresEngine(database, "x")
    (statement,) = statements_of(Query((Sum("age"),)), ROWS)
    with pytest.raises(EngineFailure) as caught:
        engine.rows(statement)
    assert str(caught.value) == str(EngineFailure())
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    # what is asked next is asked of the same state, under the same settings
    execute(database, "INSERT INTO x (note) VALUES ('later')")
    (rows,) = statements_of(Query((Count(),)), ROWS)
    assert integers(engine, rows) == [(1,)]
    for setting, value in (("search_path", "pg_catalog"), ("standard_conforming_strings", "on")):
        assert engine._connection.execute(f"SHOW {setting}").fetchone() == (value,)
    engine.close()


def test_tables_in_postgres_that_do_not_fit_are_refused(database: str) -> None:
    fill(database, [])
    with pytest.raises(InvalidInput, match="table 'nowhere'"):
        PostgresEngine(database, "nowhere")
    with pytest.raises(InvalidInput, match="does not exist"):
        PostgresEngine(database, 'v"; DROP TABLE v; --')
    with pytest.raises(InvalidInput, match="cannot be reached"):
        PostgresEngine(database.replace("/postgres?", "/nowhere?"), "v")
    execute(
        database,
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "ALTER TABLE v ALTER COLUMN ward TYPE text COLLATE loose",
    )
    engine = PostgresEngine(database, "v")
    with pytest.raises(InvalidInput, match="collation"):
        engine.check(ROWS)
    engine.close()
    execute(database, "ALTER TABLE v DROP COLUMN ward")
    engine = PostgresEngine(database, "v")
    with pytest.raises(InvalidInput, match="'ward'"):
        engine.check(ROWS)
    engine.close()


# --- Spark -------------------------------------------------------------------------------------------------


def no_spark() -> str:
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed; make test-spark installs it"
    return "" if shutil.which("java") else "Java is not installed"


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    if no_spark():
        pytest.skip(no_spark())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        builder = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", "1")
        for setting, value in quiet.items():
            builder = builder.config(setting, value)
        started = builder.getOrCreate()
        started.sparkContext.setLogLevel("ERROR")
        yield started
        started.stop()


def show(session: Any, rows: list[Row], name: str = "v") -> None:
    schema = ", ".join(f"`{name}` {CELLS[name][2]}" for name in CELLS)
    session.createDataFrame(rows, schema).createOrReplaceTempView(name)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(TABLES, QUERIES, st.sampled_from([ROWS, PERSONS]))
def test_spark_counts_what_duckdb_counts(session: Any, rows: list[Row], query: Query, policy: Policy) -> None:
    show(session, rows)
    engine = SparkEngine(session, "v")
    engine.check(policy)
    assert_same(engine, rows, query, policy)


def test_spark_answers_every_kind_of_question_as_duckdb_does(session: Any) -> None:
    """One table with every cell, under a bound on the rows of a person."""
    length = max(len(values) for *_, values in CELLS.values())
    rows = [tuple(values[(i * 7 + j) % len(values)] for j, (*_, values) in enumerate(CELLS.values())) for i in
            range(3 * length)]  # fmt: skip
    show(session, rows)
    engine = SparkEngine(session, "v")
    for query in (
        Query(tuple(AGGREGATES)),
        Query((Count(), Sum("age"), CountUnits()), by=("ward",)),
        Query((Count(), Mean("stays")), where=Compare("note", "=", "b\\n"), by=("note", "smoker")),
    ):
        assert_same(engine, rows, query, PERSONS)


def test_the_version_of_a_table_in_spark_is_its_rows_in_any_order(session: Any) -> None:
    rows: list[Row] = [("p1", 1.0, "A", 1, 1, True, "x"), ("p2", 2.0, "A", 1, 1, None, "x")]
    found = []
    for some in (rows, rows[::-1], rows[:1] * 2, rows[:1]):
        show(session, some)
        found.append(list(SparkEngine(session, "v").content()))
    assert found[0] == found[1]
    assert len({str(content) for content in found}) == 3


def test_sessions_and_tables_of_spark_that_do_not_fit_are_refused(session: Any) -> None:
    show(session, [])
    with pytest.raises(InvalidInput, match="table 'nowhere'"):
        SparkEngine(session, "nowhere")
    with pytest.raises(InvalidInput, match="does not exist"):
        SparkEngine(session, "v` JOIN `v")
    for setting in ("spark.sql.ansi.enabled", "spark.sql.parser.escapedStringLiterals"):
        before = session.conf.get(setting)
        session.conf.set(setting, "false" if before == "true" else "true")
        with pytest.raises(InvalidInput, match=setting):
            SparkEngine(session, "v")
        session.conf.set(setting, before)
    session.sql("SELECT *, 1 AS extra, 2 AS WARD FROM v").toDF(
        *CELLS, "extra", "WARD"
    ).createOrReplaceTempView("w")
    with pytest.raises(InvalidInput, match="differ only in case"):
        SparkEngine(session, "w").check(ROWS)
    loose = "SELECT person, age, stays, code, smoker, note, ward COLLATE UTF8_LCASE AS ward FROM v"
    session.sql(loose).createOrReplaceTempView("l")
    with pytest.raises(InvalidInput, match="collation"):
        SparkEngine(session, "l").check(ROWS)
    engine = SparkEngine(session, "v")
    engine.close()


def test_a_failure_in_spark_says_nothing_of_why(session: Any) -> None:
    show(session, [("p1", 1.0, "A", 1, 1, True, "x")])
    failing = "SELECT * EXCEPT (age), CAST(raise_error('secret') AS DOUBLE) AS age FROM v"
    session.sql(failing).createOrReplaceTempView("f")
    (statement,) = statements_of(Query((Sum("age"),)), ROWS)
    with pytest.raises(EngineFailure) as caught:
        SparkEngine(session, "f").rows(statement)
    assert "secret" not in str(caught.value)


# --- without a server --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["duckdb", "postgres", "spark"])
def test_every_literal_is_quoted_by_the_dialect(dialect: str) -> None:
    """A user's text stays one literal: the parser of the dialect reads the same value back."""
    import sqlglot
    from sqlglot import exp

    for value in [*WARDS, "\\", "\\'", "''", "--", "/*"]:
        (statement,) = statements_of(Query((Count(),), Compare("note", "=", value)), ROWS)
        text = statement.sql(dialect, exp.to_table("v"))
        read = sqlglot.parse(text, read=dialect)
        assert len(read) == 1
        assert read[0] is not None
        found = [node.this for node in read[0].find_all(exp.Literal) if node.is_string]
        assert value in found, (dialect, text)


def test_fractions_in_a_column_of_integers_are_missing_in_postgres_too_and_the_check_counts_alike(
    database: str,
) -> None:
    values = [None, 1.0, 2.5, -0.5, float("nan"), float("inf"), float("-inf"), 1e300, 2.0**53 + 2, 3.0]
    policy = replace(ROWS, columns={"n": Column(kind="integer", lower=0, upper=9, values=(1, 3))})
    execute(database, "DROP TABLE IF EXISTS n", "CREATE TABLE n (n double precision)")
    written = ", ".join("(NULL)" if value is None else f"('{value!r}'::float8)" for value in values)
    execute(database, f"INSERT INTO n VALUES {written}")
    engine, mine = PostgresEngine(database, "n"), DuckDBEngine(pa.table({"n": values}), policy)
    queries = (
        Query((Sum("n"), Count("n"))),
        Query((Count(),), where=IsNull("n")),
        Query((Count(),), where=Compare("n", ">", -1)),
        Query((Count(),), by=("n",)),
        Query((Histogram("n", (0, 2, 9)),)),
    )
    for query in queries:
        (statement,) = statements_of(query, policy)
        assert integers(engine, statement) == integers(mine, statement)
    (there,) = statements_of(queries[1], policy)
    assert integers(mine, there) == [(4,)], "NULL, NaN and two fractions"
    found, here = (
        {each.kind: each.count for each in check_table(one, policy).findings} for one in (engine, mine)
    )
    assert found == here == {"missing": 2, "fraction": 2, "outside": 4}
    assert all(not each.rows for each in check_table(engine, policy).findings), "rows there have no order"
    engine.close()
    mine.close()
    execute(database, "ALTER TABLE n ALTER COLUMN n TYPE numeric", "INSERT INTO n VALUES (1e999)")
    engine = PostgresEngine(database, "n")
    assert [each.kind for each in check_table(engine, policy).findings] == ["failed"]
    engine.close()
