"""The face of the command line: the help, the first line, the last lines, errors, colours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from shell import Shell

from tacit.cli.app import _GROUPED, _SLOW, run
from tacit.errors import suggested_delta
from tacit.ledger import Column, Ledger, Policy, ZeroConcentratedBudget
from tacit.queries import register_table
from tacit.report import make_certificate
from tacit.report.spending import NOT_ADDED
from tacit.rounding import shown_epsilon
from tacit.runs.config import read_config
from tacit.runs.plan import batch_taken, make_plan

TABLE = """
[data]
table = "people.csv"
target = "sick"
[columns.age]
kind = "number"
lower = 0
upper = 100
[columns.sick]
kind = "category"
values = ["no", "yes"]
[model]
name = "auto"
[privacy]
epsilon = 3.0
delta = 1e-4
unit = "person"
adjacency = "add-remove"
records = 400
"""


def test_the_help_fits_a_screen_and_groups_the_verbs(shell: Shell) -> None:
    lines = shell.out("--help").splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    titles = [line.rstrip(":") for line in lines if re.fullmatch(r"[A-Z][a-z ]+:", line)]
    assert titles == ["Options", *_GROUPED]
    assert len(_GROUPED) == 5
    assert "reproduce" not in "\n".join(lines)


def test_the_help_uses_the_width_of_the_terminal_and_names_values(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = shell.out("train", "--help")
    assert 80 < max(map(len, out.splitlines())) <= 120
    for option in ("--out DIR", "--chunk N", "--batches DIR", "--ledger TEXT"):
        assert option in out
    assert "--figure FILE" in shell.out("plan", "--help")
    assert "FILE" in out.partition("Arguments:")[2]


@pytest.mark.parametrize("verb", _SLOW)
def test_a_slow_verb_says_what_it_reads_before_it_imports_torch(verb: str, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from tacit.cli import app\n"
        "app.make_app = lambda *_: sys.exit('torch' in sys.modules or 'scipy' in sys.modules)\n"
        f"app.run([{verb!r}, '.'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "Reading . …\n")


@pytest.mark.parametrize(
    "words", [["train", "--wrong"], ["trian"], ["ledger", "wrong"], ["query", "--attempt", "0"]]
)
def test_errors_have_one_form(words: list[str], shell: Shell) -> None:
    message = shell.err(*words, code=2)
    assert message.startswith("error: ")
    assert message.rstrip().endswith("--help.")


def test_an_epsilon_has_three_digits_and_is_never_rounded_down() -> None:
    rng = np.random.default_rng(0)
    for value in [3.0, 2.99999, 9.995, 0.1, 99.95, 1e-3, *np.exp(rng.uniform(-6, 6, 500)).tolist()]:
        shown = shown_epsilon(value)
        assert value <= float(shown) <= value * 1.01
        assert len(shown.replace(".", "").lstrip("0")) == max(3, len(shown.partition(".")[0].lstrip("0")))


def test_the_suggested_delta_is_a_tenth_of_one_over_the_records() -> None:
    for records in (1, 10, 375, 1000, 99_999, 10**6):
        assert (
            suggested_delta(records)
            <= 0.1 / records * (1 + 1e-9)
            < 10 * suggested_delta(records) * (1 + 1e-9)
        )


def test_plan_recommends_the_batch_that_train_takes(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(TABLE)
    plan = make_plan(read_config("run.toml"))
    found = shell.data("plan", "run.toml")
    assert found["recommended_batch_size"] == plan.expected_batch_size == 400
    assert found["options"][0]["noise_multiplier"] == plan.noise_multiplier
    words = shell.out("plan", "run.toml")
    assert '[training] batch_size = "full": smaller batches would mean more noise' in words
    Path("run.toml").write_text(f"{TABLE}[training]\nbatch_size = 20\n")
    assert batch_taken(Path("run.toml")) is None
    assert shell.data("plan", "run.toml")["recommended_batch_size"] not in (20, 400)


def test_the_note_on_adding_epsilons_comes_once(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("visits.csv").write_text("age\n" + "".join(f"{i % 90}\n" for i in range(200)))
    policy = Policy(
        unit="visit",
        adjacency="add-remove",
        budget=ZeroConcentratedBudget(3.0, 1e-6),
        columns={"age": Column(kind="number", lower=0, upper=120)},
    )
    ledger = Ledger.create("budget.db")
    ledger.open_dataset("visits", policy)
    register_table("visits.csv", ledger=ledger, dataset="visits")
    ask = ("query", "visits.csv", "--ledger", "budget.db", "--dataset", "visits", "--epsilon", "0.1")
    outs = [shell(*ask, f"SELECT {what} FROM visits") for what in ("count(*)", "sum(age)", "avg(age)")]
    assert [NOT_ADDED in out for out in outs] == [True, False, False]
    assert all("It cost ε = 0.100." in out for out in outs)


def test_a_certificate_proves_nothing_that_is_no_promise() -> None:
    ledger = Ledger.create("sqlite://")
    policy = Policy(unit="visit", adjacency="add-remove", budget=ZeroConcentratedBudget(8.0, 1e-3))
    ledger.open_dataset("visits", policy)
    lines = make_certificate(ledger, "visits").data["lines"]
    groups = {line["name"]: line for line in lines if line["name"].startswith("Groups")}
    assert groups["Groups of 5"]["grade"] == "not covered"
    assert all("no finite" not in str(line["value"]) for line in lines if line["grade"] == "proved")


def test_colours_follow_no_color(tmp_path: Path) -> None:
    code = (
        "from rich.console import Console\n"
        "from tacit.cli import terminal\n"
        "terminal.console = Console(force_terminal=True, highlight=False)\n"
        "terminal.say('verdict', 'bold green')"
    )
    for more, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        environment = os.environ | {"TERM": "xterm-256color"} | more
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert ("\x1b[1;32m" in done.stdout) == coloured
        assert "verdict" in done.stdout


def test_a_file_with_blanks_ends_with_them(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text(
        "age,sick\n" + "".join(f"{20 + i % 50},{'no' if i % 3 else 'yes'}\n" for i in range(60))
    )
    out = shell.out("init", "people.csv", "--target", "sick", "--no-input")
    *_, last = out.splitlines()
    assert re.fullmatch(r"  line \d+: \[privacy\] records", last)
    assert "Then: " not in out
    facts = (
        "--bounds",
        "age=0:120",
        "--unit",
        "person",
        "--adjacency",
        "add-remove",
    )
    one_left = (*facts, "--epsilon", "3", "--delta", "1e-5", "--out", "one.toml")
    assert "fill in 1 public fact, never" in shell(
        "init", "people.csv", "--target", "sick", "--no-input", *one_left
    )
    assert (
        run(
            [
                "init",
                "people.csv",
                "--target",
                "sick",
                *one_left[:-1],
                "two.toml",
                "--records",
                "400",
                "--no-input",
            ]
        )
        == 0
    )
