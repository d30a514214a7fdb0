"""A folder where a file is needed, for every verb: said in words, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.cli.app import _VERBS, run

POLICY = """
[policy]
unit = "visit"
adjacency = "add-remove"
[budget]
mode = "pure"
epsilon = 1.0
[columns.age]
kind = "integer"
lower = 0
upper = 120
"""
COUNT = "SELECT count(*) FROM visits"
AT = "--delta 1e-6 --adjacency add-remove"
ASKED = "--ledger budget.db --dataset visits --epsilon 0.1"
CASES = [
    "verify folder",
    "risk folder",
    f"risk --event folder {AT}",
    f"account --event folder {AT}",
    f"account --noise 1 --sampling-rate 0.01 --steps 10 {AT} --figure folder",
    "train folder",
    "train missing.toml --out folder",
    "batches folder --out written",
    "plan folder",
    "predict folder visits.csv",
    "export folder --format onnx --out model.onnx",
    "attack folder",
    "audit folder",
    "init folder",
    "init folder --policy",
    "check folder --policy policy.toml",
    "check visits.csv --policy folder",
    f"query folder {ASKED} COUNT",
    f"query visits.csv {ASKED} folder.sql",
    "query visits.csv --ledger folder --dataset visits --epsilon 0.1 COUNT",
    "certificate folder --dataset visits",
    "certificate budget.db --dataset visits --statements folder",
    "certificate budget.db --dataset visits --sign folder",
    "certificate budget.db --dataset visits --out folder",
    "certificate budget.db --dataset visits --html folder",
    "ledger init folder",
    "ledger template folder",
    "ledger open budget.db --dataset other --policy folder",
    "ledger open folder --dataset other --policy policy.toml",
    "ledger register budget.db folder --dataset visits",
    "ledger status folder",
    "ledger status budget.db --html folder",
    "ledger key folder",
]
WITHOUT_A_FILE = {"demo", "playground", "reproduce"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("folder.sql").mkdir()
    Path("policy.toml").write_text(POLICY, encoding="utf-8")
    Path("visits.csv").write_text("age\n" + "40\n" * 9, encoding="utf-8")
    for line in (
        "ledger init budget.db",
        "ledger open budget.db --dataset visits --policy policy.toml",
        "ledger register budget.db visits.csv --dataset visits",
    ):
        assert run(line.split()) == 0
    capsys.readouterr()
    return tmp_path


@pytest.mark.parametrize("line", CASES)
def test_a_folder_in_place_of_a_file_is_called_one(
    line: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.rglob("*"))
    code = run([COUNT if word == "COUNT" else word for word in line.split()])
    said = capsys.readouterr()
    assert code == 2, said
    assert "Errno" not in said.err
    assert "Usage:" not in said.err, "the case must reach the verb"
    assert "folder" in said.err or "missing.toml" in said.err
    assert not list((place / "folder").iterdir())
    assert [path for path in sorted(place.rglob("*")) if not path.name.startswith("budget.db")] == [
        path for path in before if not path.name.startswith("budget.db")
    ]


def test_every_verb_that_takes_a_file_is_among_the_cases() -> None:
    assert {line.split()[0] for line in CASES} == set(_VERBS) - WITHOUT_A_FILE


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("verify folder", "there is no statement at folder/statement.json"),
        ("check folder --policy policy.toml", "is a folder, and a table is a file"),
        ("check visits.csv --policy folder", "cannot be read: it is a folder, not a file"),
        ("train folder", "cannot read the configuration folder: it is a folder, not a file"),
        ("ledger init folder", "'folder' is a folder, and a ledger is a file"),
        ("ledger status folder", "'folder' is a folder, and a ledger is a file"),
        ("ledger status budget.db --html folder", "folder is a folder, and a file is needed"),
        ("init folder --policy", "these options are for a table: --policy"),
    ],
)
def test_what_is_said_of_it(line: str, told: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    assert told in " ".join(capsys.readouterr().err.split())
