"""Each artefact that one verb writes is read by another, for every kind of table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import missing, running

from tacit.cli.app import run
from tacit.columns.column import Column, Dialect
from tacit.ledger import Policy, PureBudget
from tacit.report.certificate import read_certificate
from tacit.report.verification import check_against, read_schema

ROWS = "\n".join(
    f"{1000 + i // 2};{20 + i % 60},5;{'ABC'[i % 3]};{('no', 'yes')[i % 2]};{i % 28 + 1:02}.03.2026;{i % 7}"
    for i in range(300)
)
HEADER = "pid;age;ward;ill;seen;visits"
SQL_TYPES = "pid BIGINT, age DOUBLE PRECISION, ward TEXT, ill BOOLEAN, seen DATE, visits INTEGER"
FACTS = [
    "--unit", "patient", "--adjacency", "add-remove", "--epsilon", "3", "--delta", "1e-6",
    "--bounds", "age=0:120", "--bounds", "seen=2026-01-01:2026-12-31", "--bounds", "visits=0:10",
    "--values", "ward=A,B,C", "--kind", "seen=date", "--kind", "ill=boolean", "--no-input",
]  # fmt: skip
OF_POLICY = ["--unit-column", "pid", "--largest-table", "1000", "--note", "the board"]
READ = "read_csv('visits.csv', delim=';', all_varchar=true)"
BY_HAND = '[columns.pid]\nkind = "integer"\nlower = 0\nupper = 9999\n'
"""As an earlier version wrote it, or a person."""


@pytest.fixture(params=["csv", "parquet", "postgresql"])
def table(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """A table of 300 rows, semicolons and a decimal comma in its CSV form; the arguments that name it."""
    monkeypatch.chdir(tmp_path)
    Path("visits.csv").write_text(f"{HEADER}\n{ROWS}\n", encoding="utf-8")
    if request.param == "csv":
        yield ["visits.csv"]
    elif request.param == "parquet":
        import duckdb

        duckdb.sql(f"COPY ({_as_table(READ)}) TO 'visits.parquet' (FORMAT parquet)")
        yield ["visits.parquet"]
    else:
        if why := missing():
            pytest.skip(why)
        import duckdb
        import psycopg

        rows = duckdb.execute(_as_table(READ)).fetchall()
        with running() as server:
            url = server.url.replace("+psycopg", "")
            with psycopg.connect(url) as connection:
                connection.execute(f"CREATE TABLE visits ({SQL_TYPES})")
                with connection.cursor() as cursor:
                    cursor.executemany("INSERT INTO visits VALUES (%s, %s, %s, %s, %s, %s)", rows)
            yield [server.url, "--table", "public.visits"]


def _as_table(source: str) -> str:
    return (
        "SELECT pid::BIGINT AS pid, replace(age, ',', '.')::DOUBLE AS age, ward, ill = 'yes' AS ill, "
        f"strptime(seen, '%d.%m.%Y')::DATE AS seen, visits::INTEGER AS visits FROM {source}"
    )


def test_a_ledger_and_its_certificate_are_read(table: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    data, *where = table
    source = "visits.csv" if where else data
    form = ["--format", "seen=%d.%m.%Y"] if source.endswith("csv") else []
    assert run(["init", source, "--policy", "--out", "policy.toml", *FACTS, *OF_POLICY, *form]) == 0
    policy = Path("policy.toml")
    assert "columns.pid" not in policy.read_text()
    if where:  # a database has types of its own
        policy.write_text(
            "\n".join(line for line in policy.read_text().splitlines() if "format" not in line) + "\n"
        )
    policy.write_text(policy.read_text() + BY_HAND)
    Path("said.toml").write_text('bounds = "from the forms"\nproduct = "Visits"\ncurator = "A hospital"\n')
    ask = ["query", data, "SELECT ward, count(*) FROM v GROUP BY ward", "--ledger", "b.db", "--dataset", "v"]
    for arguments in (
        ["check", data, "--policy", "policy.toml", *where],
        ["ledger", "init", "b.db"],
        ["ledger", "open", "b.db", "--dataset", "v", "--policy", "policy.toml"],
        ["ledger", "register", "b.db", data, "--dataset", "v", *where],
        [*ask, "--epsilon", "0.4", *where],
        ["ledger", "key", "key.pem"],
        ["ledger", "certificate", "b.db", "--dataset", "v", "--out", "c.json", "--html", "c.html",
         "--statements", "said.toml", "--sign", "key.pem"],
        ["verify", "c.json"],
        ["verify", "c.json", "--ledger", "b.db", "--json"],
        ["ledger", "verify", "b.db"],
        ["ledger", "status", "b.db"],
        ["ledger", "history", "b.db", "--dataset", "v"],
    ):  # fmt: skip
        assert run(arguments) == 0, (arguments, capsys.readouterr())
    certificate = read_certificate("c.json")
    assert Policy.from_data(certificate["policy"]).unit_column == "pid"


@pytest.mark.usefixtures("no_pictures")
def test_a_run_and_what_it_leaves_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("visits.csv").write_text(f"{HEADER}\n{ROWS}\n", encoding="utf-8")
    form = ["--format", "seen=%d.%m.%Y", "--target", "ill", "--records", "240", "--leave-out", "pid"]
    nobody = ["--unit-column", "none", "--leave-out", "pid", *OF_POLICY[2:]]
    assert run(["init", "visits.csv", "--policy", "--out", "p.toml", *FACTS, *nobody, *form[:2]]) == 0
    assert run(["init", "visits.csv", "--out", "run.toml", *FACTS, *form]) == 0
    # the table's pid repeats, and this test is not about people
    each = Path("run.toml").read_text().replace("[privacy]", "[privacy]\none_record_per_unit = true")
    Path("run.toml").write_text(each + "\n[training]\nsteps = 5\n")
    scored = Path("run.toml").read_text().replace("[privacy]", "[privacy]\ntest_noise = 5.0")
    Path("p.toml").write_text(Path("p.toml").read_text().replace("epsilon = 3.0", "epsilon = 10.0"))
    Path("charged.toml").write_text(scored)
    for arguments in (
        ["plan", "run.toml", "--batch-size", "40", "--steps", "5"],
        ["ledger", "init", "b.db"],
        ["ledger", "open", "b.db", "--dataset", "v", "--policy", "p.toml"],
        ["train", "run.toml", "--out", "r"],
        ["train", "charged.toml", "--out", "charged", "--ledger", "b.db", "--dataset", "v"],
        ["verify", "r/statement.json"],
        ["verify", "r"],
        ["verify", "charged/statement.json", "--ledger", "b.db"],
        ["predict", "r", "visits.csv", "--out", "predictions.csv"],
        ["ledger", "certificate", "b.db", "--dataset", "v", "--run", "charged", "--out", "c.json"],
        ["verify", "c.json", "--ledger", "b.db"],
    ):
        assert run(arguments) == 0, (arguments, capsys.readouterr())
    assert json.loads(Path("r/statement.json").read_text())["mechanism"]["steps"] == 5


def test_the_schema_knows_each_public_fact_of_a_policy() -> None:
    """A fact that a policy may state, and its certificate would be refused for."""
    columns = {
        "a": Column(kind="number", lower=0, upper=9, bins=3, step=0.5, missing=1, decimal=",", thousands="."),
        "b": Column(kind="integer", lower=0, upper=9, unit="kg", below="<", values=[1, 2]),
        "c": Column(kind="category", values=["x"], missing="x"),
        "d": Column(kind="boolean", true=["ja"], false=["nein"], missing=True),
        "e": Column(
            kind="datetime", lower="2026-01-01", upper="2027-01-01", format="%d.%m.%Y %H:%M", parts=["hour"]
        ),
        "f": Column(kind="text"),
    }
    dialect = Dialect(separator=";", decimal=",", thousands=".", encoding="latin-1", quote="'")
    policy = Policy(
        unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=columns, dialect=dialect
    )
    schema = read_schema("certificate.schema.json")
    part = {**schema["properties"]["policy"], "$defs": schema["$defs"]}
    check_against(part, json.loads(policy.to_json()), what="the policy")
