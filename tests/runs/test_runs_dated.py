"""``[privacy] sampling = "dates"``: a run takes the days of a table, and goes on with the next ones."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import numpy as np
import pytest
from run_files import run_file

from tacit.cli.app import run as tacit
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.sampling import ByDate

pytestmark = pytest.mark.usefixtures("no_pictures")
TOML = run_file(
    data='table = "january.csv"; test_table = "test.csv"; target = "late"; date = "day"; '
    'first_day = "2026-01-01"; until = "2026-02-01"; {data}',
    columns_amount='kind = "number"; lower = 0.0; upper = 1.0',
    columns_late='kind = "boolean"',
    privacy='epsilon = 4.0; delta = 1e-5; unit = "{unit}"; records = 1200; sampling = "dates"; '
    'correlation = "inverse"; bands = 3; report_loss = false; {privacy}',
    optimizer="learning_rate = 2.0",
    training='batch_size = "auto"; steps = 60',
    run="rows = 4",
)


def table(path: str, first: int, stop: int, seed: int) -> None:
    """Twenty rows a day; large amounts are late."""
    rng = np.random.default_rng(seed)
    lines = ["day,who,amount,late"]
    for number in range(first, stop):
        day = datetime.date(2026, 1, 1) + datetime.timedelta(days=number)
        for who, amount in enumerate(rng.random(20)):
            lines.append(f"{day},p{number % 20}-{who},{amount:.4f},{str(bool(amount > 0.5)).lower()}")
    Path(path).write_text("\n".join(lines) + "\n")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    table("january.csv", 0, 31, 1)
    table("february.csv", 31, 60, 2)
    table("test.csv", 0, 20, 3)
    write()
    return tmp_path


def write(
    data: str = "", privacy: str = "", unit: str = "payment", changes: dict[str, str] | None = None
) -> None:
    text = TOML.format(data=data, privacy=privacy, unit=unit)
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    Path("run.toml").write_text(text)


def further(folder: str = "run", table: str = "february.csv") -> list[str]:
    """Let the run file name the next days; return the arguments that train on them."""
    text = Path("run.toml").read_text()
    text = text.replace('table = "january.csv"', f'table = "{table}"')
    Path("run.toml").write_text(text.replace('until = "2026-02-01"', 'until = "2026-03-02"'))
    return ["train", "run.toml", "--out", folder, "--resume"]


def statement(folder: str = "run") -> dict[str, object]:
    return json.loads(Path(folder, "statement.json").read_text())  # type: ignore[no-any-return]


def test_a_run_goes_on_with_the_days_of_another_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit(["train", "run.toml", "--out", "run"]) == 0
    printed = capsys.readouterr().out
    assert (
        "Trained up to 2026-02-01 (excluded), 31 of 60 steps. The next step needs complete data before"
        in printed
    )
    assert "set [data] until" in printed
    first = statement()
    assert first["mechanism"]["steps"] == 31  # type: ignore[index]
    assert "31 of 60 steps" in json.dumps(first)
    assert tacit(["verify", "run/statement.json"]) == 0
    assert tacit(further()) == 0
    last = statement()
    assert last["mechanism"]["steps"] == 60  # type: ignore[index]
    assert last["guarantee"]["epsilon"] <= 4.0  # type: ignore[index]
    assert last["mechanism"]["sampler"] == ByDate().describe()  # type: ignore[index]
    assert tacit(["verify", "run/statement.json"]) == 0
    assert json.loads(Path("run/evaluation.json").read_text())["score"] > 0.8
    assert "To continue" not in capsys.readouterr().out
    trained = Path("run/model.safetensors").read_bytes()
    assert tacit(further()) == 0
    assert Path("run/model.safetensors").read_bytes() == trained, "all is done"


def test_days_are_waited_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit(["train", "run.toml", "--out", "run"]) == 0
    before = Path("run/model.safetensors").read_bytes()
    assert tacit(["train", "run.toml", "--out", "run", "--resume"]) == 0
    assert "The next step needs complete data before 2026-02-02" in capsys.readouterr().out
    assert Path("run/model.safetensors").read_bytes() == before
    assert tacit(further(table="january.csv")) == 2
    assert "january.csv has no records from 2026-02-01" in capsys.readouterr().err
    assert Path("run/model.safetensors").read_bytes() == before


def test_a_whole_table_does_the_same_as_its_parts(here: Path) -> None:
    both = Path("january.csv").read_text() + Path("february.csv").read_text().partition("\n")[2]
    assert tacit(["train", "run.toml", "--out", "parts", "--json"]) == 0
    Path("all.csv").write_text(both)
    assert tacit(further("parts", "all.csv")) == 0
    table_of = np.genfromtxt("parts/metrics.csv", delimiter=",", names=True)
    assert table_of["steps"].tolist() == [15, 30, 31, 45, 60]


def test_people_in_a_stream(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people = 'user = "who"\nrows_per_user = 1'
    write(people, "participations = 3\nseparation = 20", unit="person")
    assert tacit(["train", "run.toml", "--out", "run"]) == 0  # each comes every 20 days
    text = json.dumps(statement())
    assert "each at most 3 times, 20 steps apart" in text
    assert tacit(["verify", "run/statement.json"]) == 0
    assert tacit(further()) == 0
    write(people, "participations = 3\nseparation = 21", unit="person")
    assert tacit(["train", "run.toml", "--out", "other"]) == 1
    assert "at least 21 steps apart" in capsys.readouterr().err
    assert not Path("other/statement.json").exists()
    write(people + '\ntoo_often = "skip"', "participations = 3\nseparation = 21", unit="person")
    assert tacit(["train", "run.toml", "--out", "other"]) == 0


def test_a_stream_is_charged_once(here: Path) -> None:
    ledger = Ledger.create("sqlite:///budget.db")
    budget = RenyiBudget(epsilon=9.0, delta=1e-4)
    ledger.open_dataset("payments", Policy(unit="payment", adjacency="add-remove", budget=budget))
    section = '[ledger]\nurl = "budget.db"\ndataset = "payments"\none_record_per_unit = true\n[run]'
    write(changes={"[run]": section})
    assert tacit(["train", "run.toml", "--out", "run"]) == 0
    spent = ledger.status("payments").spent_epsilon
    assert tacit(further()) == 0
    assert ledger.status("payments").spent_epsilon == spent > 0.0
    assert ledger.status("payments").charges["SETTLED"] == 1
    assert tacit(["verify", "run/statement.json"]) == 0


@pytest.mark.parametrize(
    ("data", "changes", "words"),
    [
        ("", {'date = "day"': ""}, "go together"),
        ("", {'sampling = "dates"': ""}, "go together"),
        ("", {'first_day = "2026-01-01"': ""}, "first_day is missing"),
        ("", {"steps = 60": "epochs = 1"}, "needs steps"),
        ("", {'"auto"': '"full"'}, "needs steps"),
        ("", {'date = "day"': 'date = "late"'}, "is the date, so it cannot also be"),
        ("", {'date = "day"': 'date = "week"'}, "week"),
        ("", {'date = "day"': 'date = "amount"'}, "is the date, so it cannot also be"),
        ("", {'date = "day"': 'date = "who"'}, "a date cannot be read"),
        ("", {'until = "2026-02-01"': 'until = "1.2.2026"'}, "until must be a day"),
        ("", {'until = "2026-02-01"': 'until = "2025-02-01"'}, "before the first day"),
        ("", {"bands = 3": "bands = 3\nparticipations = 2"}, "Set user"),
        ('user = "who"', {}, "may appear in the next file"),
        ("", {'unit = "payment"': 'unit = "who"'}, "may appear in the next file"),
    ],
)
def test_what_does_not_fit_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], data: str, changes: dict[str, str], words: str
) -> None:
    write(data, changes=changes)
    assert tacit(["train", "run.toml", "--out", "run"]) in (1, 2)
    assert words in capsys.readouterr().err
    assert not Path("run/model.safetensors").exists()


def test_attacks_on_a_stream_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tacit(["train", "run.toml", "--out", "run"]) == 0
    assert tacit(["attack", "run"]) == 2
    assert "do not support runs by date" in capsys.readouterr().err
