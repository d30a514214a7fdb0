"""From a table of one's own to predictions on new rows, with nothing typed but public facts."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tacit.cli.app import run
from tacit.columns.sections import find_blanks

pytestmark = pytest.mark.usefixtures("no_pictures")
WARDS = ("surgery", "cardiology", "oncology", "paediatrics", "psychiatry")
HEADER = ("patient_id", "age", "weight", "sex", "ward", "admitted", "emergency", "visits", "readmitted")
FACTS = (
    "--target", "readmitted", "--unit", "visit", "--adjacency", "add-remove", "--epsilon", "3",
    "--bounds", "age=0:120", "--bounds", "weight=0:300", "--bounds", "admitted=2015-01-01:2025-12-31",
    "--bounds", "visits=0:50", "--values", "sex=f,m,x", "--values", f"ward={','.join(WARDS)}",
)  # fmt: skip


def visits(count: int, seed: int = 0) -> tuple[list[list[str]], list[bool]]:
    """Rows of a made-up hospital, 5 % of whose cells are missing, and which patients came again."""
    draw = np.random.default_rng(seed)
    age, weight = draw.normal(55, 20, count).clip(0, 105).round(), draw.normal(75, 15, count).clip(3, 250)
    sex, ward = draw.choice(3, count, p=(0.49, 0.49, 0.02)), draw.choice(5, count)
    day, emergency = draw.integers(0, 4000, count), draw.random(count) < 0.3
    before = draw.poisson(3, count)
    score = (age - 55) / 15 + np.array([0.5, 1.5, 2.0, -1.5, -1.0])[ward] + 2.0 * emergency + 0.3 * before
    again = score + (day - 2000) / 1000 + draw.logistic(0, 0.5, count) > 3.0
    days = np.datetime64("2015-01-01") + day
    columns: list[list[str]] = [
        [f"P{number:06}" for number in range(count)],
        [f"{value:.0f}" for value in age],
        [f"{value:.1f}" for value in weight],
        [("f", "m", "x")[code] for code in sex],
        [WARDS[code] for code in ward],
        [str(one) for one in days],
        ["yes" if one else "no" for one in emergency],
        [str(value) for value in before],
    ]
    for column in columns[1:]:
        for at in np.flatnonzero(draw.random(count) < 0.05):
            column[at] = ""
    return [list(row) for row in zip(*columns, strict=True)], again.tolist()


def german(row: Sequence[str]) -> list[str]:
    """The same row with a decimal comma and the day in front."""
    cells = list(row)
    cells[2] = cells[2].replace(".", ",")
    cells[5] = ".".join(reversed(cells[5].split("-")))
    return cells


def write(path: Path, rows: Sequence[Sequence[str]], header: Sequence[str], separator: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator).writerows([header, *rows])


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("form", ["commas", "semicolons"])
@pytest.mark.parametrize("count", [600, 20_000])
def test_a_table_becomes_a_model_that_predicts(
    count: int, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    separator, other = (",", list) if form == "commas" else (";", german)
    rows, again = visits(count)
    labelled = [[*other(row), "yes" if truth else "no"] for row, truth in zip(rows, again, strict=True)]
    write(Path("visits.csv"), labelled, HEADER, separator)
    new, truth = visits(2000, seed=1)
    write(Path("new.csv"), [other(row) for row in new], HEADER[:-1], separator)

    records = ("--records", str(count * 4 // 5), "--delta", "1e-5" if count > 1000 else "1e-4")
    assert run(["init", "visits.csv", *FACTS, *records]) == 0
    assert find_blanks(Path("visits.toml").read_text()) == []
    assert run(["train", "visits.toml", "--out", "run", "--json"]) == 0
    assert run(["predict", "run", "new.csv", "--out", "predictions.csv"]) == 0
    capsys.readouterr()

    with Path("predictions.csv").open(newline="") as file:
        predicted = [row["prediction"] for row in csv.DictReader(file)]
    assert len(predicted) == len(new)
    right = np.mean([(answer == "yes") == came for answer, came in zip(predicted, truth, strict=True)])
    constant = max(np.mean(truth), 1 - np.mean(truth))
    assert right > constant + (0.15 if count > 1000 else 0.1)
    statement = json.loads(Path("run/statement.json").read_text())
    assert statement["guarantee"]["epsilon"] <= 3.0
