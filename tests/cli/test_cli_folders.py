"""A folder where a file is needed, for every verb: said in words, and nothing is written."""

from __future__ import annotations

import shutil
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
CASES = {  # what is said of the folder
    "verify folder": "there is no statement at folder/statement.json",
    "risk folder": "folder",
    f"risk --event folder {AT}": "folder",
    f"account --event folder {AT}": "folder",
    f"account --noise 1 --sampling-rate 0.01 --steps 10 {AT} --figure folder": "folder",
    "train folder": "cannot read the run file folder: it is a folder, not a file",
    "train missing.toml --out folder": "missing.toml",
    "batches folder --out written": "folder",
    "plan folder": "folder",
    "predict folder visits.csv": "folder",
    "generate folder": "folder is not the run of a language model",
    "export folder --format onnx --out model.onnx": "folder",
    "attack folder": "folder",
    "audit folder": "folder",
    "init folder": "folder",
    "init folder --policy": "options for tables do not apply (--policy)",
    "check folder --policy policy.toml": "is a folder. Name a file in it",
    "check visits.csv --policy folder": "cannot be read: it is a folder, not a file",
    f"query folder {ASKED} COUNT": "folder",
    f"query visits.csv {ASKED} folder.sql": "folder",
    "query visits.csv --ledger folder --dataset visits --epsilon 0.1 COUNT": "folder",
    "certificate folder --dataset visits": "folder",
    "certificate budget.db --dataset visits --statements folder": "folder",
    "certificate budget.db --dataset visits --sign folder": "folder",
    "certificate budget.db --dataset visits --out folder": "folder",
    "certificate budget.db --dataset visits --html folder": "folder",
    "ledger init folder": "'folder' is a folder. Use a file in it",
    "ledger open budget.db --dataset other --policy folder": "folder",
    "ledger open folder --dataset other --policy policy.toml": "folder",
    "ledger register budget.db folder --dataset visits": "folder",
    "ledger status folder": "'folder' is a folder. Use a file in it",
    "ledger status budget.db --html folder": "folder is a folder. Name a file",
    "ledger key folder": "folder",
}
WITHOUT_A_FILE = {"demo", "playground"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, a policy, a table, and a ledger that knows it."""
    place = tmp_path_factory.mktemp("made")
    (place / "folder").mkdir()
    (place / "folder.sql").mkdir()
    (place / "policy.toml").write_text(POLICY, encoding="utf-8")
    (place / "visits.csv").write_text("age\n" + "40\n" * 9, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for line in (
            "ledger init budget.db",
            "ledger open budget.db --dataset visits --policy policy.toml",
            "ledger register budget.db visits.csv --dataset visits",
        ):
            assert run(line.split()) == 0
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
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
    assert CASES[line] in " ".join(said.err.split())
    assert not list((place / "folder").iterdir())
    assert [path for path in sorted(place.rglob("*")) if not path.name.startswith("budget.db")] == [
        path for path in before if not path.name.startswith("budget.db")
    ]


def test_every_verb_that_takes_a_file_is_among_the_cases() -> None:
    assert {line.split()[0] for line in CASES} == set(_VERBS) - WITHOUT_A_FILE
