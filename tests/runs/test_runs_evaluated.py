"""The report of a run on its model: the first line calls a useless model useless."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_files import run_file
from undrawn import undrawn

from tacit import load
from tacit.cli.app import run as tacit


def configuration(target: str, **privacy: str) -> str:
    """The only place here that knows how a table and its columns are written."""
    settings = {"epsilon": "8.0", "delta": "1e-4", "records": "3200"} | privacy
    return run_file(
        data=f'table = "people.csv"; test_fraction = 0.2; target = "{target}"',
        columns='a = { kind = "number", lower = -1, upper = 1 }; '
        'b = { kind = "number", lower = -1, upper = 1 }; '
        'age = { kind = "number", lower = 0, upper = 100 }; '
        'sick = { kind = "category", values = ["no", "yes"] }',
        privacy='unit = "person"; ' + "; ".join(f"{name} = {value}" for name, value in settings.items()),
        optimizer="learning_rate = 0.5",
        training="batch_size = 256; steps = 60",
        run="rows = 3",
    )


def people(share: float, told: float) -> str:
    """4,000 people, of whom a ``share`` are sick; the columns say so much of it, and of the age."""
    rng = np.random.default_rng(7)
    sick = np.arange(4000) % 1000 < 1000 * share
    age = rng.uniform(0, 100, 4000)
    a = np.clip(told * (2.0 * sick - 1.0) / 2 + 0.4 * rng.normal(size=4000), -1, 1)
    b = np.clip((age / 50 - 1) * told + 0.1 * rng.normal(size=4000), -1, 1)
    lines = [
        f"{x:.4f},{y:.4f},{n:.1f},{'yes' if s else 'no'}" for x, y, n, s in zip(a, b, age, sick, strict=True)
    ]
    return "\n".join(["a,b,age,sick", *lines]) + "\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(capsys: pytest.CaptureFixture[str], out: str = "out") -> tuple[list[str], dict[str, Any]]:
    """The lines that are printed after the training, and the JSON of the same run."""
    with undrawn():
        assert tacit(["train", "run.toml", "--out", out]) == 0
    printed = capsys.readouterr().out
    assert tacit(["train", "run.toml", "--out", out, "--resume", "--json"]) == 0  # which draws
    announced = printed.index("USELESS") if "USELESS" in printed else printed.index("Test ")
    before = printed[:announced].partition("\nChosen ")[0].strip()  # without the lines on what was chosen
    assert before.endswith("(add-remove)."), "nothing comes between the announcement and the verdict"
    return printed[announced:].splitlines(), json.loads(capsys.readouterr().out)


def test_a_useless_model_of_an_imbalanced_table_is_called_useless_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("people.csv").write_text(people(0.137, 0.0))
    Path("run.toml").write_text(configuration("sick"))
    lines, data = trained(capsys)
    assert lines[0].startswith('USELESS: the model predicts "no" for every test record.')
    said = " ".join(" ".join(lines).split())
    found = data["evaluation"]
    assert said.startswith(found["verdict"])
    assert 'never predicts "yes"' in found["verdict"]
    assert "Try another threshold, at no cost (tacit predict --threshold 0.1), a weight" in found["verdict"]
    assert "more epsilon (now 8.00), more steps (now 60), a larger batch (now 256 of 3,200 records)" in said
    share = found["classes"][1]["records"] / sum(one["records"] for one in found["classes"])
    assert 0.11 < share < 0.16
    assert found["score"] == found["baseline"]["score"] == pytest.approx(1 - share)
    assert found["balanced_accuracy"] == 0.5
    assert [one["recall"] for one in found["classes"]] == [1.0, 0.0]
    (kept, none), (missed, also_none) = found["confusion_matrix"]
    assert (none, also_none) == (0, 0)
    assert missed / (kept + missed) == pytest.approx(share)
    assert 0.4 < found["auc"] < 0.6
    card = Path("out/README.md").read_text()
    for words in ('AUC of "yes"', 'average precision of "yes"', "balanced accuracy", "true \\ predicted"):
        assert words in card
    assert len(lines) <= 10
    assert any(line.startswith("Private: ε = 8.00 at δ = ") for line in lines)
    page = Path("out/evaluation.html").read_text()
    assert "USELESS: the model predicts “" not in page
    for words in ("USELESS", "AUC", "Confusion matrix", "recall", f">{kept:,}<", f">{missed:,}<"):
        assert words in page
    assert json.loads(Path("out/evaluation.json").read_text()) == found
    assert Path("out/confusion.png").read_bytes().startswith(b"\x89PNG")
    assert {"out/evaluation.json", "out/evaluation.html", "out/confusion.png"} <= set(data["files"])


@pytest.mark.usefixtures("no_pictures")
def test_a_useful_model_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    Path("people.csv").write_text(people(0.137, 1.0))
    Path("run.toml").write_text(configuration("sick"))
    lines, data = trained(capsys)
    assert re.fullmatch(r"Test accuracy 0\.9\d{3} \(majority class: 0\.8\d{3}\)", lines[0])
    assert not data["evaluation"]["useless"]
    assert data["evaluation"]["auc"] > 0.95


@pytest.mark.parametrize("told", [0.0, 1.0])
def test_a_regression_has_errors_in_years(told: float, capsys: pytest.CaptureFixture[str]) -> None:
    Path("people.csv").write_text(people(0.137, told))
    Path("run.toml").write_text(configuration("age"))
    lines, data = trained(capsys)
    (error,) = data["evaluation"]["errors"]
    assert error["target"] == "age"
    assert error["constant_mean_absolute"] == pytest.approx(25, abs=1)  # of ages spread evenly to 100
    assert error["constant_root_mean_squared"] == pytest.approx(100 / 12**0.5, abs=1)
    assert lines[0].startswith("USELESS: the model is" if told == 0.0 else "Test R² 0.")
    assert (data["evaluation"]["score"] > 0.7) == (told == 1.0)  # 0.87 to 0.95, by the noise
    assert (error["mean_absolute"] < 10) == (told == 1.0)
    assert f"{error['mean_absolute']:.4g}" in Path("out/README.md").read_text()
    assert data["evaluation"]["baseline"]["score"] == 0.0
    assert not Path("out/confusion.png").exists()


@pytest.mark.parametrize(
    ("target", "of", "outputs"), [("sick", "log odds", ["yes"]), ("age", "numbers", ["age"])]
)
def test_a_linear_model_is_shown_column_by_column(
    capsys: pytest.CaptureFixture[str], target: str, of: str, outputs: list[str]
) -> None:
    Path("people.csv").write_text(people(0.3, 1.0))
    text = configuration(target).replace('"logistic"', '"additive"')
    Path("run.toml").write_text(text)
    _, data = trained(capsys)
    found = data["evaluation"]["by_column"]
    assert (found["of"], found["outputs"]) == (of, outputs)
    columns = {one["column"]: one for one in found["columns"]}
    assert [len(columns[name]["x"]) for name in "ab"] == [20, 20]
    row = {"a": [1.0], "b": [-1.0], "age": [100.0], "sick": ["yes"]}
    (out,) = load("out").outputs(row).tolist()
    added = columns["a"]["y"][0][-1] + columns["b"]["y"][0][0]
    added += columns["age"]["y"][0][-1] if target == "sick" else columns["sick"]["y"][0][1]
    wanted = out[1] - out[0] if target == "sick" else 50 + 50 * out[0]
    assert found["constant"][0] + added == pytest.approx(wanted, rel=1e-3)
    assert "out/columns.png" in data["files"]
    assert Path("out/columns.png").read_bytes().startswith(b"\x89PNG")
    assert "What the model says, column by column" in Path("out/evaluation.html").read_text()


def test_a_network_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    Path("people.csv").write_text(people(0.3, 1.0))
    Path("run.toml").write_text(configuration("sick").replace('"logistic"', '"mlp"'))
    _, data = trained(capsys)
    assert "by_column" not in data["evaluation"]
    assert not Path("out/columns.png").exists()
    assert "column by column" not in Path("out/evaluation.html").read_text()
