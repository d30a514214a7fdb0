"""A survival model, from a table to predictions: declared bins, bad input, attacks and export."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_files import changed, run_file

import tacit
from tacit.cli.app import run as command
from tacit.columns import Column, Encoder
from tacit.errors import InvalidInput
from tacit.models.survival import LinearHazard
from tacit.runs import prepare
from tacit.runs.config import parse_config
from tacit.runs.kinds import source_of
from tacit.runs.plan import trained_weights

pytestmark = pytest.mark.usefixtures("no_pictures")
RUN = run_file(
    data='table = "study.csv"; test_fraction = 0.4; time = "days"; event = "died"',
    columns='age = { kind = "number", lower = 20, upper = 90 }; '
    'sex = { kind = "category", values = ["f", "m"] }; '
    'days = { kind = "number", lower = 0, upper = 1000, bins = 10 }; died = { kind = "boolean" }',
    privacy='epsilon = 5; unit = "patient"; records = 1200; clipping_norm = 2',
    optimizer="learning_rate = 0.2; momentum = 0.9",
    training='batch_size = "full"; steps = 40',
).replace('name = "logistic"', 'name = "linear"')


def study(count: int = 2000, seed: int = 0) -> list[str]:
    """Lines of a table: hazards grow with age, and follow-up ends at random."""
    draw = np.random.default_rng(seed)
    age, sex = draw.uniform(20, 90, count), draw.integers(0, 2, count)
    death = draw.exponential(600 * np.exp(-(age - 55) / 15 - 0.5 * sex))
    left = draw.uniform(200, 1500, count)
    rows = zip(age, sex, np.minimum(death, left), death <= left, strict=True)
    return [f"{a:.1f},{'fm'[s]},{days:.0f},{int(died)}" for a, s, days, died in rows]


def write(path: Path, rows: list[str]) -> None:
    path.write_text("\n".join(["age,sex,days,died", *rows]) + "\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("survival")
    write(folder / "study.csv", study())
    (folder / "new.csv").write_text("age,sex\n30,f\n85,m\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "run.toml").write_text(RUN)
        assert command(["train", "run.toml", "--out", "run"]) == 0
    return folder


def evaluation(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run" / "evaluation.json").read_text()))


def test_a_run_ranks_people_and_says_how_well(made: Path) -> None:
    figures = evaluation(made)
    assert figures["measure"] == "concordance"
    assert figures["score"] > 0.7
    assert figures["baseline"]["score"] == 0.5
    survival = figures["survival"]
    assert survival["brier"] < survival["constant_brier"]
    assert np.abs(np.subtract(survival["predicted"], survival["observed"])).max() < 0.15
    assert (np.diff(survival["predicted"]) < 0).all()
    page = (made / "run" / "evaluation.html").read_text()
    assert "integrated Brier score" in page
    assert "Kaplan-Meier" in page
    assert "a constant for each time bin and one number for each column" in page
    assert "The constant is" not in page
    # the curves of the columns are log odds of hazards, the same for all bins
    (age, _) = figures["by_column"]["columns"]
    assert age["y"][0][-1] - age["y"][0][0] > 1.5


def test_predictions_are_curves_and_mean_times(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    predictor = tacit.load("run")
    curves = predictor.predict_proba("new.csv")
    assert curves.shape == (2, 10)
    assert predictor.time_edges == tuple(range(0, 1001, 100))
    assert (np.diff(curves, axis=1) <= 0).all()
    assert curves.min() >= 0
    assert curves.max() <= 1
    young, old = predictor.predict("new.csv")
    assert young > old + 200
    assert command(["predict", "run", "new.csv", "--out", "predictions.csv", "--overwrite"]) == 0
    with Path("predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "mean_time", *(f"survival_{edge}" for edge in range(100, 1001, 100))]
    assert float(rows[0]["survival_500"]) == pytest.approx(curves[0, 4], abs=1e-6)
    with pytest.raises(InvalidInput, match="a threshold needs two classes or labels"):
        predictor.predict("new.csv", threshold=0.5)


def test_the_model_is_read_again_as_it_was_trained(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    model = tacit.load("run").model
    assert isinstance(model, LinearHazard)
    assert trained_weights(parse_config(RUN, "run.toml")) == sum(p.numel() for p in model.parameters())
    assert command(["verify", "run"]) == 0


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("verb", [["attack", "run", "--shadows", "4"], ["audit", "run"]])
def test_a_finished_run_can_be_tested(
    made: Path, verb: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    assert command(verb) == 0


@pytest.mark.parametrize("network", ["additive", "mlp"])
def test_other_networks_learn_too(made: Path, network: str, tmp_path: Path) -> None:
    text = RUN.replace('name = "linear"', f'name = "{network}"').replace("study.csv", str(made / "study.csv"))
    if network == "mlp":
        text = text.replace('name = "mlp"', 'name = "mlp"\nhidden = [16]').replace("steps = 40", "steps = 80")
    (tmp_path / "run.toml").write_text(text)
    outcome = prepare(tmp_path / "run.toml", out=tmp_path / "run").start()
    assert outcome is not None
    assert outcome.evaluation.score > 0.65


def test_everybody_censored_is_said_and_ends_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "study.csv", [f"{row[:-1]}0" for row in study(500)])
    (tmp_path / "run.toml").write_text(RUN.replace("study.csv", str(tmp_path / "study.csv")))
    assert command(["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]) == 0
    assert "All may be censored" in " ".join(capsys.readouterr().out.split())


def test_targets_are_cut_at_the_last_edge() -> None:
    columns = {
        "age": Column(kind="number", lower=0, upper=1),
        "days": Column(kind="integer", lower=0, upper=100, bins=[10, 50]),
        "died": Column(kind="boolean"),
    }
    encoder = Encoder(columns, ("days", "died"))
    assert encoder.time_edges == (0.0, 10.0, 50.0, 100.0)
    assert not encoder.labels + encoder.classes
    assert not encoder.target_bounds
    cells = {"days": ["0", "100", "101", "5000"], "died": ["1", "1", "1", "0"]}
    assert encoder.targets(cells).tolist() == [[0.0, 1.0], [100.0, 1.0], [100.0, 0.0], [100.0, 0.0]]
    assert Encoder.from_data(encoder.to_data()) == encoder


BAD_ROWS = {
    "a negative time": ("30,f,-4,1", "times in column 'days' of .* are below the declared lower bound 0"),
    "no time": ("30,f,,1", "rows lack the target, column 'days'"),
    "a time of words": ("30,f,long,1", "are not numbers"),
    "an event of 2": ("30,f,4,2", "are neither true nor false"),
    "no event": ("30,f,4,", "rows lack the target, column 'died'"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_without_a_usable_end_are_refused_without_their_cells(name: str, tmp_path: Path) -> None:
    row, words = BAD_ROWS[name]
    write(tmp_path / "study.csv", [*study(50), row.replace("30", "30.123")])
    (tmp_path / "run.toml").write_text(RUN.replace("study.csv", str(tmp_path / "study.csv")))
    with pytest.raises(InvalidInput, match=words) as problem:
        prepare(tmp_path / "run.toml", out=tmp_path / "run")
    assert "row 51" in str(problem.value)
    assert "30.123" not in str(problem.value)


DAYS = 'kind = "number", lower = 0, upper = 1000, bins = 10'
BAD_FILES = {
    "no event": (('event = "died"', ""), r"\[data\] time \(how long"),
    "a target too": (('event = "died"', 'event = "died"\ntarget = "sex"'), "remove target"),
    "no bins": ((DAYS, DAYS.replace(", bins = 10", "")), "with lower, upper and bins"),
    "no bounds": ((DAYS, 'kind = "number"'), "with lower, upper and bins"),
    "bins of the data": (("bins = 10", 'bins = "auto"'), "."),
    "edges outside": (("bins = 10", "bins = [500, 2000]"), "must be increasing edges between lower"),
    "an event of numbers": (('died = { kind = "boolean"', 'died = { kind = "integer", lower = 0, upper = 1'),
                            'it needs kind = "boolean"'),
    "the same column": (('event = "died"', 'event = "days"'), "it needs kind = \"boolean\""),
    "no such column": (('time = "days"', 'time = "day"'), "target, time and event must be declared columns"),
    "another loss": (("steps = 40", 'steps = 40\nloss = "regression"'), 'Set loss = "survival"'),
    "class weights": (("steps = 40", "steps = 40\nclass_weights = {died = 2}"), "need targets that are"),
    "a noisy score": (("records = 1200", "records = 1200\ntest_noise = 5"), "not support survival"),
    "adaptive clipping": (("records = 1200", 'records = 1200\nclipping = "adaptive"'), "hazard in each bin"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_run_files_that_describe_no_survival_model_are_refused(
    name: str, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old, new), words = BAD_FILES[name]
    monkeypatch.chdir(made)
    with pytest.raises((InvalidInput, tacit.errors.PrivacyRefusal), match=words):
        source_of((config := parse_config(changed(RUN, {old: new}), "run.toml")).data).check(config)


def test_init_proposes_a_survival_model(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(made)
    out = str(tmp_path / "new.toml")
    arguments = ["--time", "days", "--event", "died", "--no-input", "--out", out, "--unit", "patient"]
    facts = ["--bounds", "age=20:90", "--bounds", "days=0:1000", "--values", "sex=f,m", "--epsilon", "3"]
    promise = ["--delta", "1e-5", "--adjacency", "add-remove", "--records", "1200"]
    assert command(["init", "study.csv", *arguments, *facts, *promise]) == 0
    config = parse_config(Path(out).read_text(), "new.toml")
    assert (config.data.time, config.data.event, config.data.target) == ("days", "died", None)
    assert config.columns["days"]["bins"] == 20
    assert config.model.name == "linear"
    assert config.privacy.clipping_norm == pytest.approx(2 * 0.5 * np.sqrt(3), abs=0.01)
    assert "missing" not in config.columns["days"]
    source_of(config.data).check(config)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--time", "days"], "--time (how long"),
        (["--time", "days", "--event", "died", "--target", "sex"], "without --target"),
        (["--time", "sex", "--event", "died"], "--time sex must be of kind number"),
        (["--time", "days", "--event", "age"], "--event age must be of kind boolean"),
        (["--time", "day", "--event", "died"], "day"),
    ],
)
def test_init_refuses_other_columns(
    arguments: list[str], words: str, made: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(made)
    assert command(["init", "study.csv", *arguments, "--no-input", "--out", str(tmp_path / "x.toml")]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_the_released_network_can_be_exported(made: Path, tmp_path: Path) -> None:
    predictor = tacit.load(made / "run")
    predictor.export(tmp_path / "model.pt2", format="torch-export")
    again = torch.export.load(tmp_path / "model.pt2").module()
    inputs = torch.rand(3, 4)
    assert torch.allclose(again(inputs), predictor.model(inputs), atol=1e-5)
