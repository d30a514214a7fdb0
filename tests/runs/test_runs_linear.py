"""A run file that leaves the training of a table's model to Tacit: what is filled in, and what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from undrawn import undrawn

import tacit
from tacit.errors import TacitError
from tacit.recipes import linear_recipe
from tacit.runs import Run, prepare
from tacit.runs.config import parse_config, reasons
from tacit.training import Evaluation

pytestmark = pytest.mark.usefixtures("no_pictures")
FILE = """
[data]
table = "rows.csv"
target = "{target}"
test_fraction = 0.25

[columns.x]
kind = "number"
lower = -1
upper = 1

[columns.kind]
kind = "category"
values = ["a", "b"]

[columns.y]
kind = "number"
lower = -100
upper = 100

[columns.up]
kind = "boolean"

[model]
name = "{name}"

[privacy]
epsilon = 5
delta = 1e-5
unit = "row"
adjacency = "add-remove"
records = {records}
"""


def text(target: str = "y", name: str = "auto", records: int = 1500) -> str:
    file = FILE.format(target=target, name=name, records=records)
    other = "up" if target == "y" else "y"
    start = file.index(f"[columns.{other}]")
    return file[:start] + file[file.index("\n[", start) + 1 :]


def write_rows() -> None:
    random = np.random.default_rng(0)
    x, kind = random.uniform(-1, 1, 2000), random.choice(["a", "b"], 2000)
    y = 40 + 3 * np.abs(x) + 2 * (kind == "a") + random.normal(0, 0.5, 2000)
    pd.DataFrame({"x": x, "kind": kind, "y": y, "up": y > 42.5}).to_csv("rows.csv", index=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """2,000 rows, whose numbers are far inside their bounds."""
    monkeypatch.chdir(tmp_path)
    write_rows()
    return tmp_path


def run(content: str, name: str = "run", **how: Any) -> Run:
    Path("run.toml").write_text(content)
    return prepare(Path("run.toml"), out=Path(name), **how)


def evaluation(prepared: Run) -> Evaluation:
    outcome = prepared.start()
    assert outcome is not None
    return outcome.evaluation


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Evaluation]:
    """A run on these rows that leaves everything to Tacit, which takes an additive model, and its scores."""
    with pytest.MonkeyPatch.context() as patch, undrawn():
        patch.chdir(tmp_path_factory.mktemp("learnt"))
        write_rows()
        prepared = run(text(), str(Path("run").absolute()))
        return prepared, evaluation(prepared)


def test_a_run_predicts_a_rare_event_at_its_rate(folder: Path) -> None:
    rows = pd.concat([pd.read_csv("rows.csv")] * 5)
    rows["up"] = np.random.default_rng(1).random(len(rows)) < 0.03
    rows.to_csv("rows.csv", index=False)
    outcome = run(text("up", records=7500)).start()
    assert outcome is not None
    predicted = tacit.load(outcome.folder).predict_proba(rows.drop(columns=["y", "up"]))
    assert predicted[:, 1].mean() == pytest.approx(rows["up"].mean(), rel=0.25)  # noise: 5 %; before: 0.02


# --- what is filled in -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("records", "name", "bins"), [(289, "linear", None), (290, "additive", 10)])
def test_auto_takes_bins_where_records_are_enough_for_the_columns(
    records: int, name: str, bins: int | None
) -> None:
    config = parse_config(text(records=records), "run.toml")
    assert config.model.name == name
    assert (config.read_columns()["x"].bins, config.read_columns()["y"].bins) == (bins, None)


@pytest.mark.parametrize(("target", "classes"), [("y", 1), ("up", 2)])
def test_the_recipe_is_that_of_the_estimators(target: str, classes: int) -> None:
    config = parse_config(text(target), "run.toml")
    usual = linear_recipe(1500, 5.0, classes=classes, longest=2.0)  # the bias, x, its bins, and kind
    assert config.privacy.clipping_norm == usual.clipping_norm
    assert config.optimizer.learning_rate == usual.learning_rate
    assert config.optimizer.momentum == usual.momentum
    assert (config.training.steps, config.training.batch_size) == (usual.steps, "full")


def test_what_the_file_says_is_kept() -> None:
    said = text("up") + '\n[optimizer]\nname = "adam"\nlearning_rate = 0.5\n\n[training]\nsteps = 7\n'
    said = said.replace("upper = 1\n", "upper = 1\nbins = 4\n").replace(
        "epsilon = 5", "epsilon = 5\nclipping_norm = 9"
    )
    config = parse_config(said, "run.toml")
    assert (config.optimizer.name, config.optimizer.learning_rate, config.optimizer.momentum) == (
        "adam",
        0.5,
        0,
    )
    assert (config.training.steps, config.privacy.clipping_norm) == (7, 9)
    assert config.read_columns()["x"].bins == 4


def test_a_sampler_that_takes_a_part_in_a_step_gets_no_full_batch() -> None:
    config = parse_config(text().replace("epsilon = 5", 'epsilon = 5\nsampling = "shuffled"'), "run.toml")
    assert config.training.batch_size == "auto"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("lower = -1\n", "", "both bounds or none"),
        ('name = "auto"', 'name = "automatic"', "must be one of linear, additive"),
        ("records = 1500", "records = 0", "records"),
        ('target = "y"', 'target = "z"', "'z'"),
        ("epsilon = 5", 'epsilon = 5\nclipping = "automatic"', 'got "automatic"'),
        ("[model]", '[optimizer]\nname = "adam"\nlearning_rate = 0.01\n\n[model]', 'got "adam"'),
    ],
)
def test_mistakes_are_named(old: str, new: str, words: str, folder: Path) -> None:
    assert old in text()
    with pytest.raises(TacitError) as problem:
        run(text().replace(old, new))
    assert words in str(problem.value)


def test_each_choice_is_said_with_its_reason() -> None:
    lines = reasons(text())
    assert len(lines) == 5
    assert lines[0].startswith('[model] name = "additive": at least 230 + 300 / epsilon records')
    said = text(name="linear") + "\n[optimizer]\nlearning_rate = 0.5\n\n[training]\nsteps = 7\n"
    assert [line.partition(" =")[0] for line in reasons(said)] == [
        "[training] batch_size", "[privacy] clipping_norm",
    ]  # fmt: skip
    assert reasons(text(name="mlp")) == []


# --- what comes out --------------------------------------------------------------------------------------


def test_a_bent_target_far_inside_its_bounds_is_learnt(folder: Path, learnt: tuple[Run, Evaluation]) -> None:
    straight = evaluation(run(text(name="linear"))).score
    bent = learnt[1].score
    assert bent > 0.8  # R^2, of at most 0.88
    assert straight < bent - 0.3


def test_the_saved_model_is_the_trained_one(learnt: tuple[Run, Evaluation]) -> None:
    prepared, _ = learnt
    predictor = tacit.load(prepared.folder)
    inputs = prepared.data.test.inputs
    with torch.no_grad():
        wanted = prepared.session.current_model(inputs)
        found = predictor.model(inputs)
    assert torch.equal(wanted, found)
    low, high = np.quantile(predictor.predict(prepared.folder.with_name("rows.csv")), [0.01, 0.99])
    assert 35 < low < high < 50


@pytest.mark.parametrize("stop", [4, 60])
def test_a_run_that_was_stopped_goes_on_where_it_was(stop: int, folder: Path) -> None:
    """While the spread is learnt, and after."""
    steps: list[int] = []

    def should_stop() -> bool:
        steps.append(1)
        return len(steps) == stop

    assert run(text()).start(should_stop=should_stop) is None
    again = run(text(), resume=True)
    assert again.session.steps_done == stop
    assert evaluation(again).score > 0.8
    assert len(steps) == stop


def test_people_with_several_rows_count_once(folder: Path) -> None:
    table = pd.read_csv("rows.csv")
    table["person"] = np.arange(len(table)) // 4
    table.to_csv("rows.csv", index=False)
    said = text(records=380).replace(
        "test_fraction = 0.25", 'test_fraction = 0.25\nuser = "person"\nrows_per_user = 4'
    )
    prepared = run(said.replace('unit = "row"', 'unit = "person"'))
    assert prepared.plan.records == 380
    # 380 people, and a fresh key for the noise: 0.43 to 0.85 in 41 of 42 runs, and 0.297 in one
    assert evaluation(prepared).score > 0.1
