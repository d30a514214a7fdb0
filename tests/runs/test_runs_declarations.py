"""Wrong declarations are said to the curator, and to nobody else; right ones are not asked about."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.cli import terminal, train
from tacit.cli.app import run
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.runs.config import Config, parse_config
from tacit.runs.declarations import check_fit, doubts

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
batch_size = "full"
steps = 30
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
    "other values": ({"loan": COLUMNS["loan"] | {"values": ["OWN", "RENT"]}}, "loan", "undeclared values"),
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
        "The model could memorise people by it",
    ),
    "values that are missing": ({"gain": COLUMNS["gain"] | {"missing_values": ["0"]}}, "gain", "are missing"),
    "another kind": ({"loan": {"kind": "number", "lower": 0, "upper": 1}}, "loan", "cannot be read"),
    "a value that is nowhere": (
        {"loan": COLUMNS["loan"] | {"values": ["MORTGAGE", "RENT", "OWN"]}},
        "loan",
        "1 of the 3 declared values do not occur",
    ),
}


def test_rows_without_a_target_are_to_be_removed(tmp_path: Path) -> None:
    path = run_file(tmp_path, data=PEOPLE, records=400)
    head, first, *others = (tmp_path / "t.csv").read_text().splitlines()
    cells = first.split(",")
    cells[head.split(",").index("y")] = ""
    (tmp_path / "t.csv").write_text("\n".join([head, ",".join(cells), *others]) + "\n")
    assert [said for said in found(path) if "indicator" in said] == []
    told = r"column 'y': 1 of .* the run refuses rows without a target\. Remove these rows\."
    assert any(re.match(told, said) for said in found(path))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_declaration_is_said(what: str, tmp_path: Path) -> None:
    changed, column, words = WRONG[what]
    assert any(
        said.startswith(f"column '{column}'") and words in said
        for said in found(run_file(tmp_path, **changed))
    )


def test_the_number_of_records(tmp_path: Path) -> None:
    assert any(
        "16,000, but there are 1,600 training records" in said
        for said in found(run_file(tmp_path, records=16000))
    )
    assert any(
        "but there are 400 training records" in said for said in found(run_file(tmp_path, data=PEOPLE))
    )


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
    for name, upper in (("right", 120), ("wrong", 40)):
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
    kept = [
        line.replace(str(tmp_path / name), "") for line, name in zip(lines, ("right", "wrong"), strict=True)
    ]
    assert kept[0] == kept[1]
    assert not re.search("[0-9]", kept[0])


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


def patient_file(folder: Path, privacy: str = "", unit: str = "patient", column: str = "patient_id") -> Path:
    """A run file whose table has four rows for each value of ``column``."""
    path = run_file(folder)
    rows = (folder / "t.csv").read_text().replace("pid,patient_id", f"{column},other")
    (folder / "t.csv").write_text(rows)
    path.write_text(path.read_text().replace('unit = "woman"', f'unit = "{unit}"\n{privacy}'))
    return path


def config_of(path: Path) -> Config:
    return parse_config(path.read_text(), str(path))


@pytest.mark.parametrize("column", ["patient_id", "PatientID", "patient nr", "patient", "pid"])
def test_a_unit_with_several_rows_is_refused(column: str, tmp_path: Path) -> None:
    config = config_of(patient_file(tmp_path, column=column))
    with pytest.raises(PrivacyRefusal, match=rf"but values in column {column!r} repeat") as refusal:
        check_fit(config)
    assert "one_record_per_unit = true" in str(refusal.value)
    assert f'user = "{column}"' in str(refusal.value)


def test_a_unit_that_is_a_row_or_is_stated_to_be_one_is_not_refused(tmp_path: Path) -> None:
    check_fit(config_of(patient_file(tmp_path, unit="visit")))
    check_fit(config_of(patient_file(tmp_path, "one_record_per_unit = true")))
    check_fit(config_of(patient_file(tmp_path, column="visit_id")))


def test_train_stops_before_it_writes_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = patient_file(tmp_path)
    assert run(["train", str(path), "--out", str(tmp_path / "out")]) == 1
    assert "one_record_per_unit" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


NOWHERE: dict[str, dict[str, Any]] = {
    "other capitals": {"loan": COLUMNS["loan"] | {"values": ["mortgage", "rent"]}},
    "bounds off by 1,000": {"weight": {"kind": "number", "lower": 1000, "upper": 1300}},
}


@pytest.mark.parametrize("what", NOWHERE)
def test_a_column_that_fits_nowhere_stops_a_run_without_a_terminal(what: str, tmp_path: Path) -> None:
    config = config_of(run_file(tmp_path, **NOWHERE[what]))
    with pytest.raises(InvalidInput, match="2,000 of 2,000"):
        check_fit(config)


@pytest.mark.parametrize("what", ["records", *NOWHERE])
def test_a_person_in_a_terminal_decides(what: str, tmp_path: Path) -> None:
    path = run_file(tmp_path, records=16_000) if what == "records" else run_file(tmp_path, **NOWHERE[what])
    config, asked = config_of(path), []

    def confirm(text: str, question: str) -> bool:
        asked.append(text)
        return len(asked) == 1

    check_fit(config, confirm)
    with pytest.raises(InvalidInput, match="Nothing was trained, written or charged"):
        check_fit(config, confirm)
    assert ("1,600 training records" if what == "records" else "2,000 of 2,000") in asked[0]


def test_declarations_that_fit_ask_nothing(tmp_path: Path) -> None:
    def confirm(text: str, question: str) -> bool:
        raise AssertionError(text)

    rare = COLUMNS["loan"] | {"values": ["MORTGAGE", "RENT", "OWN"]}
    check_fit(config_of(run_file(tmp_path, loan=rare)), confirm)
    check_fit(config_of(run_file(tmp_path, data=PEOPLE, records=400)), confirm)


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("no", 2), (None, 130)])
@pytest.mark.usefixtures("no_pictures")
def test_train_asks_in_a_terminal_and_does_what_the_answer_says(
    answer: str | None,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def reply(question: str, **_options: Any) -> str:
        assert question.strip() == "Train anyway? [y/N] >"
        if answer is None:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(train, "can_ask", lambda *, no_input, as_json: not no_input and not as_json)
    monkeypatch.setattr(terminal.messages, "input", reply)
    path, out = run_file(tmp_path, **NOWHERE["bounds off by 1,000"]), tmp_path / "out"

    assert run(["train", str(path), "--out", str(out)]) == code
    assert "2,000 of 2,000 values are outside" in capsys.readouterr().err
    released = [file for file in out.glob("*") if file.is_file()]
    assert bool(released) == (code == 0)
    assert not any(b"are outside" in file.read_bytes() for file in released)
    assert run(["train", str(path), "--out", str(tmp_path / "other"), "--no-input"]) == 2


def test_one_section_declares_the_columns_that_it_matches(tmp_path: Path) -> None:
    path = run_file(tmp_path)
    text = path.read_text()
    rows = (tmp_path / "t.csv").read_text().replace("age,weight,gain", "x1,x2,gain", 1)
    (tmp_path / "t.csv").write_text(rows)
    both = '[columns."x*"]\nkind = "number"\nlower = 0\nupper = 300\n'
    ages, rest = text.partition("[columns.age]")[0], text.partition("[columns.gain]")[2]
    path.write_text(f"{ages}{both}[columns.gain]{rest}")
    assert [*config_of(path).columns] == ["x1", "x2", "gain", "loan", "seen", "y"]

    own = '[columns.x2]\nkind = "number"\nlower = 0\nupper = 10\n'
    path.write_text(f"{ages}{own}{both}[columns.gain]{rest}")
    columns = config_of(path).read_columns()
    assert (columns["x1"].upper, columns["x2"].upper) == (300, 10)

    for pattern, words in (("z*", "matches no undeclared column"), ("*1", "both match the column 'x1'")):
        path.write_text(f"{ages}{both}{both.replace('x*', pattern)}[columns.gain]{rest}")
        with pytest.raises(InvalidInput, match=words):
            config_of(path)


def test_init_takes_bounds_for_many_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x1,x2,age\n" + "\n".join(f"{i / 7},{i / 9},{i}" for i in range(50)))
    out = tmp_path / "t.toml"
    options = ["--bounds", "x*=-4:4", "--bounds", "x2=0:1", "--out", str(out)]
    assert run(["init", str(tmp_path / "t.csv"), "--target", "age", *options]) == 0
    text = out.read_text()
    assert re.search(r"\[columns.x1\][^\[]*lower = -4\s+upper = 4", text)
    assert re.search(r"\[columns.x2\][^\[]*lower = 0\s+upper = 1\s", text)


@pytest.mark.usefixtures("no_pictures")
def test_train_says_before_the_first_step_what_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_file(tmp_path)
    path.write_text(path.read_text().replace("epsilon = 3\n", "epsilon = 0.5\n"))
    assert run(["plan", str(path)]) == 0
    planned = " ".join(capsys.readouterr().out.split())
    words = re.search(r"The model learns little: about \d+% of the gain", planned)
    assert words is not None

    monkeypatch.setattr(train, "run_to_end", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(["train", str(path), "--out", str(tmp_path / "out")]) == 130
    assert words[0] in " ".join(capsys.readouterr().err.split())
