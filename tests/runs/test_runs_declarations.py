"""Wrong declarations are said to the curator, and to nobody else; right ones are not asked about."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.cli.app import run
from tacit.runs.config import parse_config
from tacit.runs.declarations import doubts

ROWS = 2000
COLUMNS: dict[str, dict[str, Any]] = {
    "age": {"kind": "integer", "lower": 0, "upper": 120, "missing": "indicator"},
    "weight": {"kind": "number", "lower": 0, "upper": 300},
    "gain": {"kind": "number", "lower": 0, "upper": 100_000},
    "loan": {"kind": "category", "values": ["MORTGAGE", "RENT"]},
    "seen": {"kind": "date", "lower": "2015-01-01", "upper": "2025-01-01", "format": "%d/%m/%Y"},
    "y": {"kind": "boolean"},
}
REST = """
[model]
name = "logistic"
[optimizer]
name = "adam"
learning_rate = 0.03
[training]
batch_size = 256
steps = 3
"""


def table(folder: Path) -> Path:
    draw = np.random.default_rng(0)
    header = "pid,patient_id,age,weight,gain,loan,seen,y"
    rows = [
        f"{i // 4},P{i},{draw.integers(20, 80)},{draw.normal(75, 10):.1f},"
        f"{0 if i % 20 else draw.integers(100, 100_000)},{draw.choice(['MORTGAGE', 'RENT'])},"
        f"01/{draw.integers(1, 13):02}/2020,{draw.choice(['yes', 'no'])}"
        for i in range(ROWS)
    ]
    path = folder / "t.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def run_file(folder: Path, *, records: int = 1600, data: str = "", **changed: dict[str, Any]) -> Path:
    columns = COLUMNS | changed
    sections = "".join(
        f"[columns.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in facts.items())
        for name, facts in columns.items()
        if facts
    )
    path = folder / "run.toml"
    path.write_text(
        f'[data]\ntable = "{table(folder)}"\ntarget = "y"\ntest_fraction = 0.2\n{data}\n{sections}'
        f'[privacy]\nepsilon = 3\ndelta = 1e-6\nunit = "woman"\nadjacency = "add-remove"\n'
        f"records = {records}\n{REST}"
    )
    return path


def found(path: Path) -> list[str]:
    return [str(doubt) for doubt in doubts(parse_config(path.read_text(), str(path)))]


PEOPLE = 'user = "pid"\nrows_per_user = 4'


def test_right_declarations_are_not_asked_about(tmp_path: Path) -> None:
    assert found(run_file(tmp_path, data=PEOPLE, records=400)) == []


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "other capitals": (
        {"loan": COLUMNS["loan"] | {"values": ["mortgage", "rent"]}},
        "loan",
        "only in capital letters",
    ),
    "other values": ({"loan": COLUMNS["loan"] | {"values": ["OWN", "RENT"]}}, "loan", "none of the declared"),
    "other units": (
        {"weight": COLUMNS["weight"] | {"upper": 50}},
        "weight",
        "are outside the declared bounds",
    ),
    "far too wide": ({"weight": COLUMNS["weight"] | {"upper": 100_000}}, "weight", "nearly all values are"),
    "day and month": ({"seen": COLUMNS["seen"] | {"format": "%m/%d/%Y"}}, "seen", "day and month exchanged"),
    "a person as a feature": (
        {"pid": {"kind": "integer", "lower": 0, "upper": 1000}},
        "pid",
        "The model would learn to tell people apart",
    ),
    "values that are missing": ({"gain": COLUMNS["gain"] | {"missing_values": ["0"]}}, "gain", "are missing"),
    "another kind": ({"loan": {"kind": "number", "lower": 0, "upper": 1}}, "loan", "cannot be read"),
    "a value that is nowhere": (
        {"loan": COLUMNS["loan"] | {"values": ["MORTGAGE", "RENT", "OWN"]}},
        "loan",
        "1 of the 3 declared values do not occur",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_declaration_is_said(what: str, tmp_path: Path) -> None:
    changed, column, words = WRONG[what]
    assert any(
        said.startswith(f"column '{column}'") and words in said
        for said in found(run_file(tmp_path, **changed))
    )


def test_the_number_of_records(tmp_path: Path) -> None:
    assert any("16,000, and 1,600 records train" in said for said in found(run_file(tmp_path, records=16000)))
    assert any("and 400 records train" in said for said in found(run_file(tmp_path, data=PEOPLE)))


def test_check_says_it_with_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_file(tmp_path, age=COLUMNS["age"] | {"upper": 10})
    assert run(["check", str(path)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("Confidential")
    assert "2,000 of 2,000 values are outside" in said
    assert run(["check", str(run_file(tmp_path, data=PEOPLE, records=400))]) == 0
    assert "fit" in capsys.readouterr().out
    assert run(["check", str(path), "--policy", "p.toml"]) == 2


@pytest.mark.usefixtures("no_pictures")
def test_train_writes_it_for_the_curator_alone_in_one_line_for_every_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    for name, upper in (("right", 120), ("wrong", 10)):
        folder = tmp_path / name
        folder.mkdir()
        wrong_or_right = run_file(folder, age=COLUMNS["age"] | {"upper": upper})
        assert run(["train", str(wrong_or_right), "--out", str(folder / "out")]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "declarations" in line)
        lines.append(line)
        written = (folder / "out/private/declarations.txt").read_text()
        assert ("are outside the declared bounds" in written) == (name == "wrong")
        others = [
            path for path in (folder / "out").iterdir() if path.suffix in (".txt", ".md", ".json", ".html")
        ]
        assert not any("are outside the declared bounds" in path.read_text() for path in others)
    assert lines[0] == lines[1]
    assert not re.search("[0-9]", lines[0])


def test_identifiers_of_any_type_and_those_that_are_missing(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.read_csv(table(tmp_path))
    frame["list_id"] = [[1, 2]] * len(frame)
    frame["ward_id"] = [None, None, *range(len(frame) - 2)]
    frame.to_parquet(tmp_path / "t.parquet")
    text = run_file(tmp_path).read_text().replace("t.csv", "t.parquet")
    said = " ".join(map(str, doubts(parse_config(text, "run.toml"))))
    assert "'list_id'" in said
    assert "'ward_id'" not in said
