"""``[data] user`` and ``rows_per_user``: from the file to the statement, the record is a person."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from run_files import run_file

from tacit.cli.app import run as tacit
from tacit.datasets import Dataset
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.ledger import Column, Ledger, Policy, RenyiBudget
from tacit.queries import PrivateTable, register_table
from tacit.report.certificate import make_certificate
from tacit.runs.attack import audit_folder
from tacit.runs.train import Run, prepare
from tacit.testing import seeded_generator

pytestmark = pytest.mark.usefixtures("no_pictures")
PEOPLE = 160
TOML = run_file(
    data='table = "visits.csv"; target = "sick"; {data}',
    columns_age='kind = "integer"; lower = 0; upper = 99',
    columns_sick='kind = "boolean"; {columns}',
    privacy='epsilon = 4.0; delta = 1e-3; unit = "{unit}"; records = 120; {privacy}',
    optimizer="learning_rate = 1.0",
    training="steps = 12",
    run="rows = 1; {more}",
)
USERS = 'user = "patient"\nrows_per_user = 3\n'


@pytest.fixture(autouse=True)
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A table of visits in the current folder: one to six of each patient."""
    monkeypatch.chdir(tmp_path)
    draws = random.Random(3)
    rows = []
    for patient in range(PEOPLE):
        sick = draws.random() < 0.5
        rows += [
            (patient, min(99, max(0, round(draws.gauss(65 if sick else 35, 10)))), sick)
            for _ in range(draws.randint(1, 6))
        ]
    draws.shuffle(rows)
    lines = "".join(
        f"p{patient},{age},{str(sick).lower()},{number}\n" for number, (patient, age, sick) in enumerate(rows)
    )
    Path("visits.csv").write_text("patient,age,sick,visit\n" + lines)
    return [(patient, age) for patient, age, _ in rows]


def configured(**changes: str) -> str:
    settings = {
        "data": USERS + "test_fraction = 0.25\n", "unit": "patient", "privacy": "", "more": "", "columns": "",
    }  # fmt: skip
    Path("run.toml").write_text(TOML.format(**{**settings, **changes}))
    return "run.toml"


def people_of(data: Dataset) -> tuple[set[Any], set[Any]]:
    return set(data.owners or ()), set(data.test_owners or ())


def prepared(**changes: str) -> Run:
    return prepare(configured(**changes), out="run")


def test_a_run_protects_people_and_says_so() -> None:
    assert tacit(["train", configured(), "--out", "run"]) == 0
    statement = json.loads(Path("run/statement.json").read_text())
    assert statement["guarantee"]["unit"] == "patient"
    assert any(
        "one record is one patient, all rows with one value of 'patient'" in n for n in statement["notes"]
    )
    assert "two values of 'patient'" in " ".join(statement["not_covered"])
    assert not any("several records" in line for line in statement["not_covered"])
    assert json.loads(Path("run/evaluation.json").read_text())["score"] > 0.75
    assert tacit(["verify", "run/statement.json"]) == 0


def test_test_records_are_of_other_people() -> None:
    run = prepared()
    train, test = people_of(run.data)
    assert not train & test
    assert len(train | test) == PEOPLE
    assert len(run.data.owners or ()) == len(run.data.train.inputs)
    assert 0.1 < len(test) / PEOPLE < 0.4
    assert len(run.session._run.records) == len(train)


def test_one_person_more_moves_no_other_to_testing() -> None:
    before = people_of(prepared().data)
    with Path("visits.csv").open("a") as file:
        file.write("new,50,true,0\nnew,51,false,0\n")
    after = people_of(prepared().data)
    for one, other in zip(before, after, strict=True):
        assert other - one <= {"new"}
        assert one <= other


def test_a_person_with_one_row_each_is_checked() -> None:
    with pytest.raises(PrivacyRefusal, match="users have several records for training"):
        prepared(data='user = "patient"\ntest_fraction = 0.25\n')
    run = prepared(data='user = "visit"\ntest_fraction = 0.25\n', unit="visit")
    assert len(run.session._run.records) == len(run.data.train.inputs)


SPLIT = "test_fraction = 0.25\n"


def test_rows_may_be_drawn_at_the_price_of_all_of_them() -> None:
    """Each patient keeps two; the statement can be checked by its own words."""
    drawn = USERS.replace("3", "2") + 'draw = "rows"\ntest_fraction = 0.25\n'
    text = Path(configured(data=drawn)).read_text().replace("records = 120", "records = 240")
    Path("run.toml").write_text(text)
    assert tacit(["train", "run.toml", "--out", "run"]) == 0
    statement = json.loads(Path("run/statement.json").read_text())
    assert statement["mechanism"]["rows_per_unit"] == 2
    assert statement["event"]["event"] == "GroupPrivacy"
    assert any("each patient, a value of 'patient', keeps at most 2" in note for note in statement["notes"])
    assert tacit(["verify", "run/statement.json"]) == 0
    del statement["mechanism"]["rows_per_unit"]  # a statement that is silent about it
    Path("run/statement.json").write_text(json.dumps(statement))
    assert tacit(["verify", "run/statement.json"]) == 1


WRONG: dict[str, tuple[dict[str, str], type[Exception], str]] = {
    "rows without users": (
        {"data": "rows_per_user = 3\n" + SPLIT}, InvalidInput, "that identifies the person",
    ),
    "rows without a cap": (
        {"data": 'user = "patient"\ndraw = "rows"\n' + SPLIT}, InvalidInput, "rows per person",
    ),
    "a unit of rows": ({"unit": "row"}, PrivacyRefusal, "each record is a whole person"),
    "a column that repeats": (
        {"data": SPLIT},
        PrivacyRefusal,
        r'(?s)repeat\..*user = "patient".*unit = "row"',
    ),
    "no such column": ({"data": USERS.replace('"patient"', '"nurse"') + SPLIT}, InvalidInput, "nurse"),
    "trained on": (
        {"columns": '[columns.patient]\nkind = "category"\nvalues = ["p1", "p2"]\n'},
        InvalidInput,
        "the model would learn to tell people apart",
    ),
    "too many rows": (
        {"data": USERS.replace("3", "7") + SPLIT}, InvalidInput, "no user has more than 6",
    ),
    "zero rows": ({"data": USERS.replace("3", "0") + SPLIT}, InvalidInput, "rows_per_user"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_settings_are_refused(case: str) -> None:
    changes, kind, words = WRONG[case]
    with pytest.raises(kind, match=words):
        prepared(**changes)
    assert not Path("run").exists()


def test_a_row_without_an_owner_is_refused() -> None:
    with Path("visits.csv").open("a") as file:
        file.write(",50,true,0\n")
    with pytest.raises(InvalidInput, match="1 rows have no owner"):
        prepared()


def test_one_patient_with_all_rows_is_refused() -> None:
    lines = Path("visits.csv").read_text().splitlines()
    first = [",".join(["p0", *line.split(",")[1:]]) for line in lines[1:]]
    Path("visits.csv").write_text("\n".join([lines[0], *first, ""]))
    with pytest.raises(InvalidInput, match="no value of patient is left for"):
        prepared()
    with pytest.raises(InvalidInput, match="all rows have one owner"):
        prepared(data=USERS + 'test_table = "visits.csv"\n')


def test_a_word_for_the_unit_is_not_looked_up() -> None:
    assert prepared(data="test_fraction = 0.25\n", unit="visit of a patient").data.owners is None


def test_such_a_run_is_audited_by_people_and_attacks_on_rows_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tacit(["train", configured(), "--out", "run"]) == 0
    assert capsys.readouterr().out.endswith("\n  tacit audit run\n")
    assert tacit(["attack", "run"]) == 2
    assert "its limits are for people" in " ".join(capsys.readouterr().err.split())
    assert tacit(["audit", "run", "--json"]) == 0  # a false alarm has probability 1e-3
    data = json.loads(capsys.readouterr().out)
    assert data.keys() == {"run", "risk", "audits"}
    assert data["run"]["unit"] == "patient"
    assert data["audits"][0]["results"][0]["canaries"] == 1000
    assert "the promise of" in Path("run/private/audit/report.html").read_text()


def test_a_run_that_no_command_tests_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    by_rows = 'user = "patient"\nrows_per_user = 3\ndraw = "rows"\ntest_fraction = 0.25\n'
    assert tacit(["train", configured(data=by_rows), "--out", "run"]) == 0
    assert "No command tests it: attacks test single rows, and audit slots do not" in capsys.readouterr().out
    assert tacit(["audit", "run"]) == 1


def test_canaries_of_such_a_run_are_people() -> None:
    path = configured(more="[audit]\nslots = 10\n")
    assert prepare(path, out="run", generator=seeded_generator(3)).start() is not None
    found = audit_folder("run", confidence=0.95, rng=np.random.default_rng(0))
    assert not found.rehearsal
    assert found.audit.claim.eps_lower <= 4.0


def test_a_plan_by_rows_is_not_taken_for_one_of_records(capsys: pytest.CaptureFixture[str]) -> None:
    configured(data=USERS + 'draw = "rows"\n' + SPLIT)
    assert tacit(["plan", "run.toml"]) == 2
    assert "docs/how-to/people-and-sites.md" in " ".join(capsys.readouterr().err.split())


# --- the ledger ------------------------------------------------------------------------------------------

LEDGER = '[ledger]\nurl = "budget.db"\ndataset = "visits"\n'


def ledger(**changes: Any) -> Ledger:
    made = Ledger.create("budget.db")
    budget = RenyiBudget(epsilon=20.0, delta=1e-3)
    settings: dict[str, Any] = {"unit": "patient", "unit_column": "patient", "adjacency": "add-remove"}
    made.open_dataset("visits", Policy(**{**settings, **changes}, budget=budget))
    return made


def test_a_policy_by_person_takes_training_by_people() -> None:
    made = ledger()
    scored = {"privacy": "test_noise = 8.0\n", "more": LEDGER}
    with pytest.raises(PrivacyRefusal, match="counts by column 'patient'"):
        prepared(data="test_fraction = 0.25\n", **scored)
    assert tacit(["train", configured(**scored), "--out", "run"]) == 0
    assert made.status("visits").charges["SETTLED"] > 0
    score = json.loads(Path("run/evaluation.json").read_text())
    assert score["noise"] == 8.0


def test_training_and_queries_by_person_are_one_certificate() -> None:
    """No line of it is of rows: what trains and what is asked speak of the same people."""
    made = ledger(rows_per_unit=2, columns={"age": Column(kind="integer", lower=0, upper=99)})
    visits = pd.read_csv("visits.csv")
    register_table(visits, ledger=made, dataset="visits")
    PrivateTable(visits, ledger=made, dataset="visits").sql("SELECT count(*) FROM visits", epsilon=0.5)
    scored = configured(privacy="test_noise = 8.0\n", more=LEDGER)
    assert tacit(["train", scored, "--out", "run"]) == 0
    certificate = make_certificate(made, "visits")
    assert certificate.data["kinds"].keys() == {"query", "training by people"}
    said = " ".join(certificate.to_text().split())
    assert "one patient with all rows, by the column 'patient'" in said
    assert "in every query at most 2 of one patient" in said
    assert "one training record is taken to be one" not in said


def test_training_by_another_column_is_refused() -> None:
    ledger(unit_column="nurse")
    with pytest.raises(PrivacyRefusal, match="may mean different people"):
        prepared(privacy="test_noise = 8.0\n", more=LEDGER)


# --- documents -------------------------------------------------------------------------------------------


def test_documents_of_one_person_are_one_record(tmp_path: Path) -> None:
    from tacit.datasets import Cutting, load_documents

    lines = [{"text": "abcdefgh" * (1 + number % 3), "user": f"u{number % 20}"} for number in range(90)]
    path = tmp_path / "letters.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = load_documents(
        path, text="text", encode=lambda text: [*text.encode()], vocabulary=256,
        cutting=Cutting(6, "split", padding=0), user="user", several=True, test_fraction=0.3, unit="user",
    )  # fmt: skip
    train, test = people_of(data)
    assert len(train | test) == 20
    assert not train & test
    assert data.owners is not None
    assert len(data.owners) == len(data.train.inputs)
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text("".join(json.dumps({"text": "abcdefgh", "user": u}) + "\n" for u in (7, "7", 8, "9")))
    with pytest.raises(InvalidInput, match="partly texts"):
        load_documents(
            mixed, text="text", encode=lambda text: [*text.encode()], vocabulary=256,
            cutting=Cutting(6, "first", padding=0), user="user", test_path=path, unit="user",
        )  # fmt: skip
    with pytest.raises(PrivacyRefusal, match="several records"):
        load_documents(
            path, text="text", encode=lambda text: [*text.encode()], vocabulary=256,
            cutting=Cutting(6, "first", padding=0), user="user", test_fraction=0.3, unit="user",
        )  # fmt: skip
