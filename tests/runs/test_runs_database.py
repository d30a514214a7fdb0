"""A run on a table that stays in its database: the estimator's model, one charge, a folder, clear errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
import torch
from test_sql_dialects import SERVER

import tacit
from tacit.cli.app import run
from tacit.errors import InvalidInput
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor
from tacit.ledger import ApproximateBudget, Ledger, Policy
from tacit.queries.engines import DuckDBDatabase, EngineFailure
from tacit.queries.moments import TableMoments
from tacit.runs import prepare
from tacit.training import least_squares

pytestmark = pytest.mark.usefixtures("no_pictures")
ROWS = 3000
COLUMNS: dict[str, dict[str, Any]] = {
    "age": {"kind": "number", "lower": 0, "upper": 100, "bins": 5},
    "ward": {"kind": "category", "values": ["a", "b"], "missing": "indicator"},
}
RUN = """
[data]
database = "clinic.duckdb"
table = "visits"
target = "cost"

[columns.age]
kind = "number"
lower = 0
upper = 100
bins = 5

[columns.ward]
kind = "category"
values = ["a", "b"]
missing = "indicator"

[columns.cost]
kind = "number"
lower = -1
upper = 6

[model]
name = "least-squares"

[privacy]
epsilon = 1.0
delta = 1e-6
unit = "visit"
adjacency = "add-remove"
records = 3000
"""
DEAR = RUN.replace('"cost"', '"dear"').replace(
    '[columns.cost]\nkind = "number"\nlower = -1\nupper = 6', '[columns.dear]\nkind = "boolean"'
)
FOLDER = RUN.replace('"clinic.duckdb"\ntable = "visits"', '"visits"')


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """The table, which is also a database of DuckDB and a folder of Parquet in the current folder."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    age, ward = draw.uniform(-5, 110, ROWS), draw.choice(["a", "b", "c"], ROWS)
    cost = 3 * age / 100 + (ward == "a") + draw.normal(0, 0.2, ROWS)
    frame = pd.DataFrame({"age": age, "ward": ward, "cost": cost, "dear": cost > 1.5})
    frame["person"] = [f"p{number}" for number in draw.integers(0, 1000, ROWS)]
    with duckdb.connect("clinic.duckdb") as connection:
        connection.execute("CREATE TABLE visits AS SELECT * FROM frame")
    Path("visits").mkdir()
    frame.head(2000).to_parquet("visits/a.parquet")
    frame.tail(1000).to_parquet("visits/b.parquet")
    frame.head(500).to_parquet("test.parquet")
    return frame


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every release draws the same noise, from a generator that starts anew with it."""

    def drawn(std: int, size: int, *, bits: object) -> list[int]:
        normal = np.random.default_rng(size).normal(0, std, size)
        return [round(each) for each in normal.tolist()]

    monkeypatch.setattr(least_squares, "rounded_gaussian", drawn)


def train(text: str, *options: str) -> int:
    Path("run.toml").write_text(text)
    return int(run(["train", "run.toml", *options]))


@pytest.mark.parametrize(("text", "owner"), [(RUN, None), (FOLDER, None), (RUN, "person")])
def test_a_run_is_the_fit_of_the_estimator(
    text: str, owner: str | None, visits: pd.DataFrame, same_noise: None
) -> None:
    unit, records = "visit", ROWS
    if owner is not None:
        unit, records = "patient", 1000
        text = text.replace("target =", f'user = "{owner}"\ntarget =').replace("3000", "1000")
        text = text.replace('"visit"', '"patient"')
    assert train(text) == 0
    predictor = tacit.load("runs/run")
    model = PrivateRegressor(
        epsilon=1.0, delta=1e-6, unit=unit, adjacency="add-remove", records=records,
        head="least-squares", columns=COLUMNS, target_bounds=(-1, 6),
    )  # fmt: skip
    database: Any = DuckDBDatabase("clinic.duckdb", "visits")
    model.fit(database, "cost", owners=owner)
    database.close()
    # equal to the last bit, as the order of rows changes no sum of integers
    assert torch.equal(predictor.model.get_parameter("linear.weight"), model.model_.linear.weight)
    assert predictor.predict(visits) == pytest.approx(model.predict(visits[list(COLUMNS)]), abs=1e-5)
    own, fitted = json.loads(Path("runs/run/statement.json").read_text()), model.statement_.data
    for part in ("guarantee", "mechanism", "event", "data", "model"):
        assert own[part] == fitted[part]


def test_postgresql_trains_the_same_model(visits: pd.DataFrame, same_noise: None) -> None:
    if SERVER.missing():
        pytest.skip(SERVER.missing())
    import psycopg

    assert train(RUN) == 0
    with SERVER.running("fsync=off") as server:
        with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("CREATE SCHEMA clinic")
            connection.execute("CREATE TABLE clinic.visits (age float8, ward text, cost float8)")
            with connection.cursor().copy("COPY clinic.visits FROM STDIN") as copy:
                for row in visits[["age", "ward", "cost"]].itertuples(index=False):
                    copy.write_row(row)
        text = RUN.replace("clinic.duckdb", server.url).replace('"visits"', '"clinic.visits"')
        assert train(text, "--out", "there") == 0
    here, there = (tacit.load(name).model.get_parameter("linear.weight") for name in ("runs/run", "there"))
    assert torch.equal(here, there)
    assert "a table in PostgreSQL" in Path("there/statement.txt").read_text()


def test_a_classifier_is_tested_in_memory(visits: pd.DataFrame, same_noise: None) -> None:
    assert train(DEAR.replace("target =", 'test_table = "test.parquet"\ntarget =')) == 0
    predictor = tacit.load("runs/run")
    model = PrivateClassifier(
        epsilon=1.0, delta=1e-6, unit="visit", adjacency="add-remove", records=ROWS,
        head="least-squares", columns=COLUMNS, classes=[False, True],
    )  # fmt: skip
    model.fit("visits", "dear")
    assert predictor.predict_proba(visits) == pytest.approx(
        model.predict_proba(visits[list(COLUMNS)]), abs=1e-6
    )
    figures = json.loads(Path("runs/run/evaluation.json").read_text())
    right = (predictor.predict(visits.head(500)) == "true") == visits.dear.head(500)
    assert figures["score"] == pytest.approx(float(right.mean()))
    assert figures["score"] > 0.8
    assert f"{figures['score']:.4f}" in Path("runs/run/README.md").read_text()


def test_the_folder_is_used_as_that_of_any_run(
    visits: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(RUN, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert {Path(name).name for name in printed["files"]} == {
        path.name for path in Path("runs/run").iterdir() if path.name != "private"
    }
    assert Path("runs/run/config.toml").read_text() == RUN
    assert "The run had no test records." in Path("runs/run/README.md").read_text()
    assert run(["verify", "runs/run/statement.json"]) == 0
    assert "README" not in capsys.readouterr().out  # it was verified, and is that of the statement
    assert run(["predict", "runs/run", "test.parquet", "--out", "new.csv"]) == 0
    assert len(Path("new.csv").read_text().splitlines()) == 501
    assert train(RUN) == 2  # the folder is not empty


@pytest.mark.parametrize("command", ["attack", "audit"])
def test_other_commands_say_that_no_rows_are_read(
    command: str, visits: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(RUN) == 0
    assert run([command, "runs/run"]) == 2
    assert run(["check", "run.toml"]) == 2
    assert run(["plan", "run.toml"]) == 2
    assert "which has no batches or steps to choose" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(InvalidInput, match=r"In Python, fit PrivateRegressor"):
        prepare("run.toml", out="other")


def test_a_useless_model_is_told_what_helps(
    visits: pd.DataFrame, same_noise: None, capsys: pytest.CaptureFixture[str]
) -> None:
    text = RUN.replace("target =", 'test_table = "test.parquet"\ntarget =')
    assert train(text.replace("epsilon = 1.0", "epsilon = 0.0001")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "USELESS" in said
    assert "epsilon (now 0.000100)" in said
    assert "learning rate" not in said


# --- the ledger, and what goes wrong ---------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.create(str(tmp_path / "budget.db"))
    policy = Policy(unit="visit", adjacency="add-remove", budget=ApproximateBudget(2.5, 1e-5))
    opened.open_dataset("visits", policy)
    yield opened
    opened.close()


CHARGED = ("--ledger", "budget.db", "--dataset", "visits")


def test_a_run_is_one_charge(
    visits: pd.DataFrame, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    for runs in (1, 2):
        assert train(RUN, *CHARGED, "--out", f"run{runs}") == 0
        assert ledger.status("visits").spent_epsilon == pytest.approx(runs, rel=1e-4)
    stated = json.loads(Path("run2/statement.json").read_text())["ledger"]
    assert (stated["dataset"], stated["steps"]) == ("visits", 1)
    assert train(RUN, *CHARGED, "--out", "run3") == 1  # the budget does not admit it
    assert ledger.status("visits").spent_epsilon == pytest.approx(2, rel=1e-4)


def test_a_crash_between_charge_and_sum_releases_nothing(
    visits: pd.DataFrame, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: TableMoments) -> Any:
        assert ledger.status("visits").spent_epsilon == pytest.approx(1, rel=1e-4)  # charged already
        raise EngineFailure

    with monkeypatch.context() as broken:
        broken.setattr(TableMoments, "sums", crash)
        assert train(RUN, *CHARGED) != 0
    assert [path.name for path in Path("runs/run").iterdir()] == ["private"]
    assert [path.name for path in Path("runs/run/private").iterdir()] == ["lock"]
    assert train(RUN, *CHARGED) == 0  # in the same folder, and charged again
    assert ledger.status("visits").spent_epsilon == pytest.approx(2, rel=1e-4)


def test_test_rows_of_a_data_set_in_the_ledger_are_not_scored_exactly(
    visits: pd.DataFrame, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    in_memory = RUN.replace('database = "clinic.duckdb"\ntable = "visits"', 'table = "test.parquet"')
    in_memory = in_memory.replace("least-squares", "linear").replace("epsilon = 1.0", "epsilon = 0.1")
    visits.tail(100).to_parquet("other.parquet")
    in_memory = in_memory.replace("target =", 'test_table = "other.parquet"\ntarget =')
    assert train(in_memory, *CHARGED, "--no-input", "--out", "first") == 0
    before = ledger.status("visits").spent_epsilon
    capsys.readouterr()
    assert train(RUN.replace("target =", 'test_table = "test.parquet"\ntarget ='), *CHARGED) == 1
    assert "the test records belong to the ledger's data set 'visits'" in " ".join(
        capsys.readouterr().err.split()
    )
    assert ledger.status("visits").spent_epsilon == before


SECRETS = (
    "postgresql://ann:hunter2@host/clinic",
    "postgres://host/clinic?user=ann&password=hunter2",
    "postgresql://ann:hunt/er2@host/clinic",
    "postgresql://host/clinic?%70assword=hunter2",
)


@pytest.mark.parametrize("address", [*(f'"{each}"' for each in SECRETS), f'["{SECRETS[0]}"]'])
@pytest.mark.parametrize("place", ["database", "ledger"])
def test_a_password_is_refused_and_written_nowhere(
    address: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    text = RUN.replace('"clinic.duckdb"', address) if place == "database" else RUN
    text += f"\n[ledger]\nurl = {address}\n" if place == "ledger" else ""
    assert train(text) == 2
    out, err = capsys.readouterr()
    assert "contains a password" in err
    assert "hunt" not in out + err
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_an_address_without_a_password_is_not_refused_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("postgresql://ann@localhost:1/clinic", "postgresql://ann@[::1]:1/clinic"):
        assert train(RUN.replace("clinic.duckdb", address)) == 2
        assert "contains a password" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("", "\n[training]\nsteps = 3")], "[training] steps does not apply to [data] database"),
        ([("", "\n[training]\nepochs = 3")], "[training] epochs does not apply to [data] database"),
        ([("", "\n[training]\nbatch_size = 30")], "[training] batch_size does not apply to [data] database"),
        ([("", 'sampling = "poisson"')], "[privacy] sampling does not apply to [data] database"),
        ([("", "clipping_norm = 2.0")], "[privacy] clipping_norm does not apply to [data] database"),
        ([("", "\n[optimizer]\nlearning_rate = 2.0")], "[optimizer] learning_rate does not apply"),
        ([("", "\n[audit]\nslots = 9")], "[audit] slots does not apply to [data] database"),
        ([("", '\n[table]\ndecimal = ","')], "[table] decimal does not apply to [data] database"),
        ([("target =", "test_fraction = 0.1\ntarget =")], "[data] test_fraction does not apply"),
        ([("target =", "rows_per_user = 3\ntarget =")], "[data] rows_per_user does not apply"),
        ([('target = "cost"', 'target = ["cost", "age"]')], "target = ['cost', 'age'] must be one column"),
        ([('target = "cost"', "")], "[data] target is missing"),
        ([("", "\n[training]\nstepz = 3")], "[training] stepz is not a setting; did you mean 'steps'?"),
        ([("least-squares", "linear")], 'works only with [model] name = "least-squares"'),
        ([('database = "clinic.duckdb"\ntable', "table")], "[data] database works only with"),
        ([('table = "visits"\n', "")], "the table of the database is not named"),
        ([('"visits"', '"nothing"')], "has no table 'nothing'"),
        ([('"clinic.duckdb"', '"visits"')], "[data] table names a table in PostgreSQL or DuckDB"),
        ([('"clinic.duckdb"\ntable = "visits"', '"nowhere"')], "Check the path"),
        ([("columns.age", 'columns."a*"')], '[columns."a*"] is neither an input nor the target'),
        ([("target =", 'user = "ward"\ntarget =')], '[columns."ward"] is neither an input nor the target'),
        ([("columns.age", "columns.price")], "no column 'price'"),
        ([("target =", 'test_table = "no.csv"\ntarget =')], "test_table"),
        ([("records = 3000\n", "")], "[privacy] records is missing"),
    ],
)
def test_wrong_inputs_are_refused(
    changes: Sequence[tuple[str, str]], message: str, visits: pd.DataFrame, ledger: Ledger,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    text = RUN
    for before, after in changes:
        text = text.replace(before, after) if before else text + after + "\n"
    assert train(text, *CHARGED) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert ledger.status("visits").spent_epsilon == 0
    assert not Path("runs/run/model.safetensors").exists()
