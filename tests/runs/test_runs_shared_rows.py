"""``[data] user = ["sender", "receiver"]``: from the file to the statement, a row counts against both."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_files import run_file

from tacit.cli.app import run as tacit
from tacit.datasets import Cutting, Dataset, load_documents
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.runs.train import Run, prepare

pytestmark = pytest.mark.usefixtures("no_pictures")
PEOPLE, MESSAGES = 60, 400
TOML = run_file(
    data='table = "mail.csv"; target = "urgent"; user = {user}; {data}; {test}',
    columns_length='kind = "integer"; lower = 0; upper = 99',
    columns_urgent='kind = "boolean"',
    privacy='epsilon = 8.0; delta = 1e-3; unit = "person"; adjacency = "{adjacency}"; records = {records}',
    optimizer="learning_rate = 1.0",
    training="steps = 8",
    run="rows = 1; {more}",
)
BOTH, CAP = '["sender", "receiver"]', 'rows_per_user = 4\ndraw = "rows"'


@pytest.fixture(autouse=True)
def mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    monkeypatch.chdir(tmp_path)
    draws = random.Random(4)
    lines, pairs = ["sender,receiver,length,urgent"], []
    for _ in range(MESSAGES):
        sender, receiver = (f"p{number}" for number in draws.sample(range(PEOPLE), 2))
        urgent = draws.random() < 0.5
        lines.append(f"{sender},{receiver},{draws.randint(5, 50) + 45 * urgent},{str(urgent).lower()}")
        pairs.append((sender, receiver))
    Path("mail.csv").write_text("\n".join([*lines, ""]))
    return pairs


def configured(**changes: Any) -> str:
    settings = {"user": BOTH, "data": CAP, "adjacency": "zero-out", "records": 1, "more": ""}
    settings["test"] = "test_fraction = 0.25"
    Path("run.toml").write_text(TOML.format(**{**settings, **changes}))
    return "run.toml"


def prepared(**changes: Any) -> Run:
    return prepare(configured(**changes), out="run")


def kept() -> int:
    """Return the number of rows that the run keeps, from its refusal."""
    with pytest.raises(InvalidInput) as caught:
        prepared()
    return int(str(caught.value).split("and the data ")[1].split(".")[0])


def people_of(data: Dataset) -> tuple[set[Any], set[Any]]:
    parts: list[Any] = [data.owners, data.test_owners]
    train, test = ({name for row in part for name in row} for part in parts)
    return train, test


def test_a_run_protects_both_and_says_so(mail: list[tuple[str, str]]) -> None:
    records = kept()
    assert records < MESSAGES * 0.75**2
    assert tacit(["train", configured(records=records), "--out", "run"]) == 0
    statement = json.loads(Path("run/statement.json").read_text())
    said = " ".join(Path("run/statement.txt").read_text().split())
    assert statement["mechanism"]["rows_per_unit"] == 4
    assert "if all training rows in which any one person has a part had been blank" in said
    assert "taken to be public which rows one person has a part in, and with whom" in said
    assert "each person, a value of 'sender or receiver', has a part in at most 4" in said
    assert json.loads(Path("run/evaluation.json").read_text())["score"] > 0.75
    assert tacit(["verify", "run/statement.json"]) == 0
    assert "had been blank" in Path("run/README.md").read_text()


def test_no_person_is_on_both_sides(mail: list[tuple[str, str]]) -> None:
    data = prepared(records=kept()).data
    train, test = people_of(data)
    assert not train & test
    assert len(data.train.inputs) == len(data.owners or ()) > 100
    assert len(data.test.inputs) == len(data.test_owners or ()) > 5
    assert set(data.owners or ()) <= set(mail)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"data": ""}, InvalidInput, "the most rows per person"),
        ({"data": "rows_per_user = 4"}, InvalidInput, 'draw = "rows"'),
        ({"adjacency": "add-remove"}, PrivacyRefusal, "zero-out"),
        ({"user": "[]"}, InvalidInput, "an empty list"),
        ({"user": '["sender", "urgent"]'}, InvalidInput, "the model would learn to tell people apart"),
        ({"user": '["sender", "nobody"]'}, InvalidInput, "nobody"),
        ({"data": CAP.replace("4", "99")}, InvalidInput, "no user has more than"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, str], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        prepared(**changes)
    assert not Path("run").exists()


def test_a_message_without_a_receiver_is_refused() -> None:
    with Path("mail.csv").open("a") as file:
        file.write("".join(f"p{number},,30,true\n" for number in range(PEOPLE)))
    with pytest.raises(InvalidInput, match=f"{PEOPLE} rows have no owner"):
        prepared()


def test_a_ledger_takes_none_of_it() -> None:
    made = Ledger.create("budget.db")
    policy = Policy(
        unit="person", adjacency="zero-out", public_records=MESSAGES,
        budget=RenyiBudget(epsilon=99.0, delta=1e-3),
    )  # fmt: skip
    made.open_dataset("mail", policy)
    Path("test.csv").write_text("sender,receiver,length,urgent\nx,y,98,true\nz,y,1,false\n")
    other = 'test_table = "test.csv"'
    with pytest.raises(InvalidInput, match="records") as caught:
        prepared(test=other)
    records = int(str(caught.value).split("and the data ")[1].split(".")[0])
    with pytest.raises(PrivacyRefusal, match="several owners cannot be charged"):
        prepared(records=records, test=other, more='[ledger]\nurl = "budget.db"\ndataset = "mail"\n')
    assert not made.status("mail").charges["SETTLED"]


# --- documents -------------------------------------------------------------------------------------------


def loaded(path: Path, user: Any, **changes: Any) -> Dataset:
    settings: dict[str, Any] = {"several": True, "test_fraction": 0.3}
    return load_documents(
        path, text="text", encode=lambda text: [*text.encode()], vocabulary=256,
        cutting=Cutting(6, "first", padding=0), user=user, unit="person", **(settings | changes),
    )  # fmt: skip


def written(tmp_path: Path, mail: list[tuple[str, str]], kind: str) -> Path:
    rows = [{"text": "abcdef", "who": [*pair], "from": pair[0], "to": pair[1]} for pair in mail]
    path = tmp_path / f"mail.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_documents_of_several_people(kind: str, tmp_path: Path, mail: list[tuple[str, str]]) -> None:
    path = written(tmp_path, mail, kind)
    first, second = loaded(path, "who"), loaded(path, ["from", "to"])
    assert first.owners == second.owners
    assert first.test_owners == second.test_owners
    train, test = people_of(first)
    assert not train & test
    assert set(first.owners or ()) == {pair for pair in mail if {*pair} <= train}
    with pytest.raises(InvalidInput, match="some records for training belong to several users"):
        loaded(path, "who", several=False)


def test_a_list_of_users_that_lacks_one_is_refused(tmp_path: Path) -> None:
    rows = [{"text": "abcdef", "who": ["a", "b"]}, {"text": "abcdef", "who": ["a", None]}]
    path = tmp_path / "mail.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(InvalidInput, match="row 1: a list of users is empty, or has an empty entry"):
        loaded(path, "who")
    path = tmp_path / "mail.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InvalidInput, match=r'line 2 of .*: the field "who" is neither'):
        loaded(path, "who")
