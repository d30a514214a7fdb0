"""Several labels at once, from a run file to predictions, attacks and one noisy score."""

from __future__ import annotations

import csv
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_files import changed, run_file
from sklearn.metrics import roc_auc_score

import tacit
from tacit.cli.app import run as command
from tacit.errors import InvalidInput
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.runs import prepare
from tacit.runs.attack import open_run
from tacit.runs.config import parse_config
from tacit.runs.kinds import source_of

LABELS = ("toxic", "spam", "threat")
RUN = run_file(
    data='table = "posts.csv"; test_fraction = 0.4; target = ["toxic", "spam", "threat"]',
    columns='a = { kind = "number", lower = -1, upper = 1 }; b = { kind = "number", lower = -1, upper = 1 }; '
    'toxic = { kind = "boolean" }; spam = { kind = "boolean" }; '
    'threat = { kind = "boolean", true = ["ja"], false = ["nein"] }',
    privacy='epsilon = 5; unit = "post"; records = 500',
    optimizer="learning_rate = 2",
    training="steps = 12",
)
MORE = '\n[ledger]\nurl = "budget.db"\ndataset = "posts"\nchunk = 6\n'


@pytest.fixture(autouse=True)
def pages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the charts of pages, which have one for each label, and no figures."""
    monkeypatch.setattr("tacit.runs.train.draw_run", lambda *_: ())


def posts(count: int, seed: int) -> tuple[str, np.ndarray[Any, Any]]:
    """A table, and its labels (n, 3): one by each column, and a rare one by both."""
    draw = np.random.default_rng(seed)
    x = draw.uniform(-1, 1, (count, 2))
    spread = x + draw.normal(0, 0.3, x.shape)
    labels = np.column_stack([spread[:, 0] > 0, spread[:, 1] > 0.3, spread.sum(1) > 1.1])
    rows = [
        f"{a:.4f},{b:.4f},{int(toxic)},{'yes' if spam else 'no'},{'ja' if threat else 'nein'}"
        for (a, b), (toxic, spam, threat) in zip(x, labels, strict=True)
    ]
    return "\n".join(["a,b,toxic,spam,threat", *rows]) + "\n", labels


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, its table, and new rows without labels."""
    folder = tmp_path_factory.mktemp("labels")
    (folder / "posts.csv").write_text(posts(800, 0)[0])
    new = [line.rsplit(",", 3)[0] for line in posts(300, 1)[0].splitlines()]
    (folder / "new.csv").write_text("\n".join(new) + "\n")
    (folder / "run.toml").write_text(RUN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert command(["train", "run.toml", "--out", "run"]) == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def test_the_figures_of_a_run_are_those_of_its_test_records(folder: Path) -> None:
    found = json.loads((folder / "run" / "evaluation.json").read_text())
    run = open_run(folder / "run")
    with torch.no_grad():
        logits = run.model(run.data.test.inputs)
    aucs = roc_auc_score(run.data.test.targets.numpy(), logits.numpy(), average=None)
    assert [one["label"] for one in found["labels"]] == [*LABELS]
    assert [one["auc"] for one in found["labels"]] == pytest.approx(aucs)
    assert found["score"] == pytest.approx(np.mean(aucs))
    assert (found["measure"], found["baseline"]["score"]) == ("mean AUC of the labels", 0.5)
    assert found["score"] > 0.85
    assert not found["useless"]
    rows = [*csv.DictReader((folder / "run" / "metrics.csv").read_text().splitlines())]
    assert float(rows[-1]["test_score"]) == pytest.approx(found["score"], abs=1e-4)
    assert "Label by label" in (folder / "run" / "evaluation.html").read_text()
    card = (folder / "run" / "README.md").read_text()
    assert "pipeline_tag: tabular-classification" in card
    assert "Test mean AUC of the labels" in card
    statement = json.loads((folder / "run" / "statement.json").read_text())
    assert statement["guarantee"]["epsilon"] <= 5.0


def test_predictions_of_each_label(folder: Path) -> None:
    assert command(["predict", "run", "new.csv", "--keep", "a"]) == 0
    rows = [*csv.DictReader((folder / "predictions.csv").read_text().splitlines())]
    probabilities = [f"probability_{label}" for label in LABELS]
    assert [*rows[0]] == ["row", "a", *LABELS, *probabilities]
    predictor = tacit.load("run")
    outputs = predictor.outputs("new.csv")
    wanted = torch.sigmoid(outputs.double()).numpy()
    assert predictor.labels == LABELS
    assert predictor.classes == ()
    assert predictor.predict_proba("new.csv") == pytest.approx(wanted)
    found = predictor.predict("new.csv")
    assert found.dtype == np.bool_
    assert found.shape == (300, 3)
    assert (found == (outputs.numpy() >= 0)).all()
    words = (("false", "true"), ("false", "true"), ("nein", "ja"))  # as the columns are declared
    assert [[row[label] for label in LABELS] for row in rows] == [
        [own[there] for own, there in zip(words, row, strict=True)] for row in found.astype(int).tolist()
    ]
    assert [[float(row[name]) for name in probabilities] for row in rows] == pytest.approx(wanted, abs=1e-8)
    truth = posts(300, 1)[1]
    assert roc_auc_score(truth, wanted) > 0.85


def test_a_threshold_is_for_each_label(folder: Path) -> None:
    predictor = tacit.load("run")
    probabilities = predictor.predict_proba("new.csv")
    assert (predictor.predict("new.csv", threshold=0.2) == (probabilities >= 0.2)).all()
    assert (probabilities >= 0.2).sum() > (probabilities >= 0.5).sum()
    assert command(["predict", "run", "new.csv", "--threshold", "0.2"]) == 0
    rows = [*csv.DictReader((folder / "predictions.csv").read_text().splitlines())]
    assert [row["threat"] == "ja" for row in rows] == (probabilities[:, 2] >= 0.2).tolist()


def test_an_exported_network_gives_the_logits(folder: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    predictor = tacit.load("run")
    predictor.export("model.onnx", format="onnx")
    inputs = torch.rand(7, 2)
    with torch.no_grad():
        wanted = predictor.model(inputs).numpy()
    session = runtime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"inputs": inputs.numpy()})[0] == pytest.approx(wanted, abs=1e-5)


def test_attack_and_audit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["attack", "run", "--shadows", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    attacks = [one["attack"] for one in found["membership"]["models"][0]["attacks"]]
    assert "loss threshold" in attacks
    assert found["membership"]["models"][0]["test_score"] > 0.8  # a mean AUC, not R²
    assert command(["audit", "run", "--quick", "--out", "report"]) == 0


def test_several_numbers_are_predicted_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("posts.csv").write_text(posts(300, 0)[0])
    text = changed(RUN, {'["toxic", "spam", "threat"]': '["b", "a"]'}).replace(
        "records = 500", "records = 180"
    )
    Path("run.toml").write_text(changed(text, {"learning_rate = 2": "learning_rate = 0.1"}))
    assert command(["train", "run.toml", "--out", "run"]) == 0
    found = json.loads(Path("run/evaluation.json").read_text())
    assert [one["target"] for one in found["errors"]] == ["b", "a"]
    assert command(["predict", "run", "posts.csv"]) == 0
    assert Path("predictions.csv").read_text().startswith("row,prediction_b,prediction_a\n")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({'spam = { kind = "boolean" }': 'spam = { kind = "category", values = ["no", "yes"] }'}, "only boo"),
        ({'"spam", "threat"]': '"spam", "toxic"]'}, "'toxic' twice"),
        ({"steps = 12": 'steps = 12\nloss = "regression"'}, 'targets that are labels.*loss = "multilabel"'),
        ({"steps = 12": "steps = 12\nclass_weights = { toxic = 2 }"}, "class_weights need targets"),
        ({'["toxic", "spam", "threat"]': '["a", "b"]', "steps = 12": 'steps = 12\nloss = "multilabel"'},
         'targets that are numbers.*loss = "regression"'),
        ({'["toxic", "spam", "threat"]': "[]"}, "empty list"),
    ],
)  # fmt: skip
def test_run_files_that_are_refused(folder: Path, changes: dict[str, str], words: str) -> None:
    config = parse_config(changed(RUN, changes), "run.toml")
    with pytest.raises(InvalidInput, match=words):
        source_of(config.data).check(config)


# --- a ledger: one score, with noise -----------------------------------------------------------------------


def test_held_out_labels_have_one_noisy_score_and_a_public_baseline(folder: Path) -> None:
    with closing(Ledger.create("budget.db")) as made:
        budget = RenyiBudget(epsilon=20.0, delta=1e-4)
        made.open_dataset("posts", Policy(unit="post", adjacency="add-remove", budget=budget))
    one = "one_record_per_unit = true\n"
    text = changed(RUN, {"epsilon = 5": "noise_multiplier = 3.0\ntest_noise = 4.0"}) + MORE + one
    Path("charged.toml").write_text(text)
    run = prepare("charged.toml", out=folder / "charged")
    outcome = run.start()
    assert outcome is not None
    found = outcome.figures
    assert found["measure"] == "accuracy per label"
    assert "labels" not in found
    assert "mean_accuracy" not in found
    assert found["baseline"]["score"] == 0.5
    assert found["baseline"]["predictor"] == "the baseline, if each label is as often true as false"
    with torch.no_grad():
        right = (run.session.current_model(run.data.test.inputs) >= 0).float() == run.data.test.targets
    exact = float(right.float().mean())
    low, high = found["interval"]
    assert abs(found["score"] - exact) < 0.1  # four records' noise on some 320
    assert low < found["score"] < high
    assert high - low < 0.15
