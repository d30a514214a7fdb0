"""``tacit query``: what it shows, what it charges, and with which code it ends."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from postgres_server import missing, running
from shell import Shell

from tacit.cli.app import run
from tacit.ledger import Column, Ledger, Policy, PureBudget
from tacit.queries import Count, Query, register_table
from tacit.queries.engines import DuckDBEngine, EngineFailure
from tacit.queries.plan import compile_query

ROWS = 400
ASKED = ["visits.csv", "--ledger", "budget.db", "--dataset", "visits"]
COUNT = "SELECT count(*) FROM visits"


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of visits and a ledger with a budget of 1 for it."""
    monkeypatch.chdir(tmp_path)
    lines = [f"p{i // 2},{i % 90},{'AB'[i % 2]}" for i in range(ROWS)]
    (tmp_path / "visits.csv").write_text("\n".join(["patient,age,ward", *lines]))
    policy = Policy(
        unit="patient",
        adjacency="add-remove",
        budget=PureBudget(1.0),
        unit_column="patient",
        rows_per_unit=2,
        columns={
            "age": Column(kind="number", lower=0, upper=120),
            "ward": Column(kind="category", values=("A", "B", "C")),
        },
    )
    ledger = Ledger.create("budget.db")
    ledger.open_dataset("visits", policy)
    register_table("visits.csv", ledger=ledger, dataset="visits")
    return tmp_path


def spent() -> float:
    return Ledger.open("budget.db").status("visits").spent_epsilon


def ask(*arguments: str) -> int:
    return run(["query", *ASKED, *arguments])


def test_an_answer_with_its_cost_and_what_is_left(shell: Shell) -> None:
    out = shell.out(
        "query", *ASKED, "--epsilon", "0.25", "SELECT ward, count(*) AS n, avg(age) FROM visits GROUP BY ward"
    )
    head, rule, *groups = out.splitlines()[:5]
    assert head.split() == ["ward", "n", "mean_age"]
    assert set(rule) == {"─"}
    assert [line.split()[0] for line in groups] == ["A", "B", "C"]
    assert "It cost ε = 0.250." in out
    assert "0.250 of ε = 1.00 spent, 0.750 left" in out
    assert "█" * 10 + "░" * 30 in out
    assert spent() == pytest.approx(0.25)


def test_a_wide_answer_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    text = "SELECT ward, count(*), sum(age), avg(age), var_samp(age), stddev(age) FROM visits GROUP BY ward"
    assert ask("--epsilon", "0.25", text) == 0
    head, rule, *groups = capsys.readouterr().out.splitlines()[:5]
    assert head.split() == ["ward", "count", "sum_age", "mean_age", "variance_age", "stddev_age"]
    assert len(rule) > 80
    assert [line.split()[0] for line in groups] == ["A", "B", "C"]


def test_the_same_question_again_costs_nothing_and_another_attempt_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = []
    for text in (COUNT, "select COUNT(*) as n from visits;"):
        assert ask("--epsilon", "0.25", text) == 0
        shown.append(capsys.readouterr().out.splitlines())
    assert shown[0][2] == shown[1][2]
    assert "Asked before: answered from the ledger, at no cost (then ε = 0.250)." in shown[1]
    assert spent() == pytest.approx(0.25)
    assert ask("--epsilon", "0.25", "--attempt", "2", COUNT) == 0
    assert spent() == pytest.approx(0.5)


def test_a_dry_run_shows_the_price_and_charges_nothing(
    capsys: pytest.CaptureFixture[str], shell: Shell
) -> None:
    out = shell.out("query", *ASKED, "--epsilon", "0.25", "--dry-run", COUNT)
    assert "number of rows: discrete Laplace noise of scale 8, sensitivity 2" in out
    assert "count: ± 24\n" in out  # 8 ln 20, as an integer
    assert "It would cost ε = 0.250. Nothing was charged." in out
    assert "25 % of the budget with this; 0 of ε = 1.00 spent, 1.00 left" in out
    said = shell("query", *ASKED, "--epsilon", "1.5", "--dry-run", COUNT, code=1)
    assert "be refused: the budget of 'visits' is too small for this release: epsilon 0 is spent" in said
    assert "1.50 would be spent with it, and the cap is 1.00." in said
    assert "fits up to epsilon 1" in said
    assert Ledger.open("budget.db").status("visits").head_seq == 1
    assert ask("--epsilon", "0.25", COUNT) == 0
    capsys.readouterr()
    assert "asked before" in shell.out("query", *ASKED, "--epsilon", "0.25", "--dry-run", COUNT)


def test_a_dry_run_foretells_the_intervals_that_do_not_hang_on_the_data(shell: Shell) -> None:
    text = "SELECT count(*), sum(age), avg(age), max(age), histogram(age, [0, 60, 120]) AS h FROM visits"
    foreseen = shell.data("query", *ASKED, "--epsilon", "0.5", "--dry-run", text)["foreseen"]
    count, total, _, largest, bins = shell.data("query", *ASKED, "--epsilon", "0.5", text)["rows"][0][
        "values"
    ]
    half = (count["high"] - count["low"]) // 2  # of a count beside a mean, up to the rounding of its ends
    assert foreseen.pop(0) in (f"count: ± {half}", f"count: ± {half + 1}")
    assert foreseen == [
        f"sum_age: ± {(total['high'] - total['low']) / 2:,.6g}",
        f"max_age: rank ± {largest['rank_error']:,}",
        f"h: ± {(bins[0]['high'] - bins[0]['low']) // 2} in each bin",
    ]


REFUSED = {
    "dataset": "visits",
    "over": ["epsilon"],
    "requested_epsilon": 1.5,
    "remaining_epsilon": 1.0,
    "missing_epsilon": 0.5,
    "would_fit_epsilon": 1.0,
}


@pytest.mark.parametrize("options", [("--dry-run",), ()], ids=["dry-run", "asked"])
def test_a_refusal_has_its_numbers_in_json(options: tuple[str, ...], shell: Shell) -> None:
    found = shell.data("query", *ASKED, "--epsilon", "1.5", *options, COUNT, code=1)["refused"]
    assert "1.50 would be spent with it, and the cap is 1.00" in found.pop("message")
    assert found == REFUSED


def test_any_refusal_by_a_rule_is_json_where_json_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("--epsilon", "0.5", "--json", "SELECT ward FROM visits") != 0
    refused = capsys.readouterr()
    assert refused.out == "" or list(json.loads(refused.out)) == ["refused"]
    assert refused.err


def test_json_is_all_that_is_printed(shell: Shell) -> None:
    price = shell.data("query", *ASKED, "--epsilon", "0.25", "--dry-run", COUNT)
    assert (price["epsilon"], price["fits"], price["asked_before"]) == (0.25, True, False)
    answer = shell.data("query", *ASKED, "--epsilon", "0.25", COUNT)
    assert answer["dataset"] == "visits"
    assert answer["columns"] == ["count"]
    (value,) = answer["rows"][0]["values"]
    assert value["low"] <= value["value"] <= value["high"]
    assert answer["remaining_epsilon"] == pytest.approx(0.75)


def test_the_columns_are_listed_without_any_data(
    capsys: pytest.CaptureFixture[str], workplace: Path, shell: Shell
) -> None:
    (workplace / "visits.csv").unlink()
    out = shell.out(*["query", "--columns", *ASKED[1:]])
    assert "age      number from 0 to 120" in out
    assert "category 'A', 'B', 'C'" in out
    assert "count(DISTINCT patient)" in out
    assert run(["query", "--columns", "--json", *ASKED[1:]]) == 0
    assert json.loads(capsys.readouterr().out)["columns"]["age"] == "number from 0 to 120"


def test_a_unit_column_with_a_space_is_quoted(shell: Shell) -> None:
    policy = Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0), unit_column="patient id")
    Ledger.open("budget.db").open_dataset("spaced", policy)
    out = shell.out("query", "--columns", "--ledger", "budget.db", "--dataset", "spaced")
    assert 'count(DISTINCT "patient id")' in out


def test_a_statement_comes_from_a_file_or_the_standard_input(
    shell: Shell, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "ages.sql").write_text("SELECT median(age)\nFROM visits -- of all\n")
    assert "median_age" in shell.out("query", *ASKED, "--epsilon", "0.25", "ages.sql")
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT sum(age) FROM visits"))
    assert "sum_age" in shell.out("query", *ASKED, "--epsilon", "0.25", "-")
    (workplace / "bad.sql").write_bytes(b"\xff\xfe")
    assert ask("--epsilon", "0.25", "bad.sql") == 2
    assert ask("--epsilon", "0.25", "nowhere.sql") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--epsilon", "1.5", COUNT], 1, "fits up to epsilon 1"),
        (["--epsilon", "0.5", "SELECT sum(aeg) FROM visits"], 2, "did you mean 'age'?"),
        (["--epsilon", "0.5", f"{COUNT} WHERE patient = 'p1'"], 1, "a single patient"),
        (["--epsilon", "0.5", "SELECT count(*) FROM vists"], 2, "the table is called 'visits'"),
        ([COUNT], 2, "epsilon"),
        (["--epsilon", "0", COUNT], 2, "epsilon"),
        (["--epsilon", "0.5", "--mechanism", "geometric", COUNT], 2, "must be one of laplace, gaussian"),
        (["--epsilon", "0.5", "--block", "men", COUNT], 2, "men"),
        (["--epsilon", "0.5", "--table", "visits", COUNT], 2, "Remove it"),
        (["--epsilon", "0.5"], 2, "give --columns"),
    ],
    ids=[
        "budget", "column", "unit", "table", "no epsilon", "epsilon 0", "mechanism", "block",
        "file and table",
        "no statement",
    ],
)  # fmt: skip
def test_refusals_have_their_code_say_a_way_out_and_cost_nothing(
    arguments: list[str], code: int, said: str, shell: Shell
) -> None:
    assert said.lower() in shell.refused("query", *ASKED, *arguments, code=code).lower()
    assert spent() == 0.0


def test_what_is_missing_is_named(shell: Shell) -> None:
    assert "needs --ledger and --dataset" in shell.err("query", "visits.csv", COUNT, code=2)
    assert "nowhere.csv" in shell.err(
        *["query", "nowhere.csv", *ASKED[1:], "--epsilon", "0.5", COUNT], code=2
    )
    assert run(["query", "visits.csv", "--ledger", "none.db", "--dataset", "visits", COUNT]) == 2
    assert run(["query", "visits.csv", "--ledger", "budget.db", "--dataset", "beds", COUNT]) == 2


def test_who_asks_is_in_the_history() -> None:
    assert ask("--epsilon", "0.25", "--by", "Ada", COUNT) == 0
    assert ask("--epsilon", "0.25", "SELECT sum(age) FROM visits") == 0
    entries = [entry.body for entry in Ledger.open("budget.db").history("visits") if entry.kind == "reserve"]
    assert entries[0]["by"] == "Ada"
    assert entries[1]["by"] not in ("", "Ada")


def test_ctrl_c_after_the_charge_says_that_it_stays(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: DuckDBEngine, statement: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DuckDBEngine, "rows", interrupted)
        said = shell("query", *ASKED, "--epsilon", "0.25", COUNT, code=130)
    assert "stopped after ε = 0.250 was charged, and the charge stays" in said
    assert "--attempt 2" in said
    assert spent() == pytest.approx(0.25)
    assert "attempt" in shell.err("query", *ASKED, "--epsilon", "0.25", COUNT, code=1)
    assert ask("--epsilon", "0.25", "--attempt", "2", COUNT) == 0
    assert spent() == pytest.approx(0.5)


def test_ctrl_c_around_the_charge_says_what_became_of_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is reserved, and after the answer is stored."""
    reserve, settle = Ledger.reserve, Ledger.settle

    def before(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    def after(*arguments: Any, **options: Any) -> Any:
        settle(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "reserve", before)
        assert "before anything was charged" in shell.err(
            "query", *ASKED, "--epsilon", "0.25", COUNT, code=130
        )
    assert spent() == 0.0
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "settle", after)
        assert "at no cost" in shell("query", *ASKED, "--epsilon", "0.25", COUNT, code=130)
    assert Ledger.reserve is reserve
    assert ask("--epsilon", "0.25", COUNT) == 0
    assert spent() == pytest.approx(0.25)


def test_ctrl_c_while_the_table_is_read_costs_nothing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: DuckDBEngine) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(DuckDBEngine, "content", interrupted)
    assert "before anything was charged" in shell.err("query", *ASKED, "--epsilon", "0.25", COUNT, code=130)
    assert spent() == 0.0


def test_duckdb_draws_no_bar_among_the_answers(workplace: Path) -> None:
    engine = DuckDBEngine(
        workplace / "visits.csv", Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0))
    )
    setting = engine._connection.execute("SELECT current_setting('enable_progress_bar')").fetchone()
    assert setting == (False,)


@pytest.mark.parametrize(
    ("said", "raised"), [("Query interrupted", KeyboardInterrupt), ("anything else", EngineFailure)]
)
def test_how_duckdb_tells_of_a_ctrl_c(said: str, raised: type[BaseException], workplace: Path) -> None:
    class Interrupted:
        def execute(self, text: str) -> Any:
            raise RuntimeError(said)

    policy = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0))
    engine = DuckDBEngine(workplace / "visits.csv", policy)
    engine.load()
    engine._connection.close()
    engine._connection = Interrupted()
    (statement,) = compile_query(Query((Count(),)), policy, epsilon=1.0).statements
    with pytest.raises(raised):
        engine.rows(statement)


def test_a_table_in_postgres_is_asked_by_its_url(capsys: pytest.CaptureFixture[str]) -> None:
    if why := missing():
        pytest.skip(why)
    import psycopg

    with running("fsync=off") as server:
        url = server.url.replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA clinic")
            connection.execute("CREATE TABLE clinic.seen (patient text, age double precision, ward text)")
            connection.execute("INSERT INTO clinic.seen SELECT i, i, 'A' FROM generate_series(1, 90) AS i")
        arguments = [*ASKED[1:], "--epsilon", "1", "--table", "clinic.seen", "--json"]
        registered = ["ledger", "register", "budget.db", server.url, "--dataset", "visits"]
        assert run([*registered, "--table", "clinic.seen"]) == 0
        assert "Every cell is what its column declares" in capsys.readouterr().out
        assert run(["query", server.url, *arguments, COUNT]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["rows"][0]["values"][0]["value"] == pytest.approx(90, abs=60)


def test_curves_are_drawn_and_others_refused_before_the_charge(shell: Shell, workplace: Path) -> None:
    out = shell.out(
        "query", *ASKED, "--epsilon", "0.25", "--figure", "ages.svg", "SELECT boxplot(age) FROM visits"
    )
    assert [line.split()[0] for line in out.splitlines()[:7]][2:] == ["0.05", "0.25", "0.5", "0.75", "0.95"]
    assert (workplace / "ages.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert ask("--epsilon", "0.25", "--figure", "count.png", COUNT) == 2
    assert ask("--epsilon", "0.25", "--figure", "ages.jpg", "SELECT cdf(age) FROM visits") == 2
    assert spent() == pytest.approx(0.25)
