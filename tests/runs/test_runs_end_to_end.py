"""Whole runs on a table, on pictures and with TensorBoard, and what their folders hold and do not hold."""

from __future__ import annotations

import csv
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from run_files import run_file
from safetensors.torch import load_file

from tacit.datasets import load_image_folder
from tacit.errors import InvalidInput, MissingExtra
from tacit.runs import Outcome, metrics, prepare
from tacit.testing import seeded_generator
from tacit.training import evaluate
from tacit.training.loop import History, MetricsRow

ADULT = run_file(
    data='table = "adult.csv"; target = "income"; test_fraction = 0.25',
    columns='age = { kind = "number", lower = 17, upper = 90, missing = 53.5 }; '
    'hours = { kind = "number", lower = 0, upper = 100, missing = 50 }; '
    'education = { kind = "category", values = ["school", "college"], missing = "other" }; '
    'income = { kind = "category", values = ["<=50K", ">50K"] }',
    model='name = "mlp"; hidden = [8]',
    privacy='epsilon = 3.0; unit = "person"; records = 1500',
    optimizer='name = "adam"; learning_rate = 0.05',
    training="batch_size = 300; epochs = 8",
)
PICTURES = run_file(
    data='images = "pictures"; size = [8, 8]; classes = ["dark", "light"]; colours = 1',
    privacy='noise_multiplier = 2.0; delta = 1e-3; unit = "picture"; adjacency = "replace-one"; '
    'records = 40; sampling = "shuffled"; report_loss = false',
    optimizer="learning_rate = 0.5; momentum = 0.5",
    training="batch_size = 10; steps = 8; views = 2; crop_padding = 1",
    run="tensorboard = true; rows = 4",
)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_adult() -> None:
    chance = np.random.default_rng(0)
    lines = ["age,hours,education,income"]
    for _ in range(2000):
        age, hours, college = chance.integers(17, 91), chance.integers(0, 101), chance.integers(2)
        rich = age + hours + 40 * college > 120
        cell = "" if chance.random() < 0.02 else str(hours)
        lines.append(f"{age},{cell},{('school', 'college')[college]},{('<=50K', '>50K')[int(rich)]}")
    Path("adult.csv").write_text("\n".join(lines) + "\n")


def make_pictures() -> None:
    chance = np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 8)):
        for label, level in (("dark", 60), ("light", 190)):
            folder = Path("pictures") / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = chance.integers(level - 50, level + 50, (12, 10), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")


def finish(text: str, **options: Any) -> Outcome:
    Path("run.toml").write_text(text)
    outcome = prepare("run.toml", out="out", **options).start()
    assert outcome is not None
    return outcome


def metric_rows() -> list[dict[str, str]]:
    with Path("out/metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_table_from_beginning_to_end() -> None:
    make_adult()
    outcome = finish(ADULT)
    assert outcome.evaluation.score > 0.8
    assert outcome.statement.data["guarantee"]["unit"] == "person"
    assert outcome.statement.epsilon <= 3.0
    assert outcome.statement.data["private"] is True
    assert sorted(path.name for path in Path("out").iterdir()) == sorted([*outcome.files, "private"])
    assert Path("out/config.toml").read_text() == ADULT
    assert load_file("out/model.safetensors")["1.weight"].shape == (8, 5)  # 2 numbers, 2 + 1 places
    rows = metric_rows()
    assert [int(row["steps"]) for row in rows] == [2 * n for n in range(1, 21)]
    spent = [float(row["epsilon"]) for row in rows]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(outcome.statement.epsilon, rel=1e-3)
    assert float(rows[-1]["test_score"]) == outcome.evaluation.score


@pytest.mark.usefixtures("no_pictures")
def test_the_card_says_what_the_run_file_states_of_it() -> None:
    make_adult()
    stated = '\n[card]\nlicense = "mit"\ncurator = "The bureau"\n'
    finish(ADULT.replace("epochs = 8", "steps = 5") + stated)
    card = Path("out/README.md").read_text(encoding="utf-8")
    assert "license: mit" in card
    assert "* Curator: The bureau" in card
    Path("run.toml").write_text(ADULT + '\n[card]\ncurator = ""\n')
    with pytest.raises(InvalidInput, match=r"run.toml: \[card\]: the statement 'curator' must be a string"):
        prepare("run.toml", out="out")
    changed = ADULT.replace("epochs = 8", "steps = 5") + stated.replace("mit", "apache-2.0")
    Path("run.toml").write_text(changed)
    again = prepare("run.toml", out="out", resume=True).start()
    assert again is not None, "what the card says changes no result"
    assert "license: apache-2.0" in Path("out/README.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_pictures")
def test_a_table_with_a_number_as_target() -> None:
    make_adult()
    text = ADULT.replace('target = "income"', 'target = "hours"')
    Path("adult.csv").write_text("\n".join(
        line for line in Path("adult.csv").read_text().splitlines() if ",," not in line
    ))  # fmt: skip
    outcome = finish(text, generator=seeded_generator(2))
    assert outcome.evaluation.per_class == ()
    assert outcome.evaluation.score > 0.05


def test_pictures_and_tensorboard_from_beginning_to_end() -> None:
    make_pictures()
    told: list[tuple[str, int, int]] = []
    outcome = finish(PICTURES, progress=lambda *what: told.append(what))
    again = prepare("run.toml", out="again").session.model
    again.load_state_dict(load_file("out/model.safetensors"))
    loaded = load_image_folder(Path("pictures"), size=(8, 8), classes=("dark", "light"), colours=1)
    assert evaluate(again, *loaded.test) == outcome.evaluation, "what is released is what was evaluated"
    assert told[-1] == ("reading pictures", 56, 56)
    assert outcome.statement.data["mechanism"]["sampler"].startswith("shuffled batches of 10")
    assert outcome.statement.data["event"]["count"] == 2  # 8 steps of 10 of 40 records: two passes
    figures = read_tensorboard(Path("out/tensorboard"))
    assert set(figures) == {"epsilon", "test_score", "test_loss", "test_auc"}  # no loss: none was paid for
    assert figures["epsilon"] == pytest.approx({row.steps: row.epsilon for row in outcome.rows})
    assert figures["test_score"] == pytest.approx({row.steps: row.test_score for row in outcome.rows})


def read_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    name = "tensorboard.backend.event_processing.event_accumulator"  # it has no types
    reader = importlib.import_module(name).EventAccumulator(str(folder)).Reload()
    names = reader.Tags()["scalars"]
    return {name: {event.step: event.value for event in reader.Scalars(name)} for name in names}


@pytest.mark.usefixtures("no_pictures")
def test_tensorboard_after_a_resume_has_each_figure_once() -> None:
    make_pictures()
    Path("run.toml").write_text(PICTURES.replace("report_loss = false", ""))
    stops = iter([False] * 4 + [True])
    assert prepare("run.toml", out="out").start(should_stop=lambda: next(stops)) is None
    outcome = prepare("run.toml", out="out", resume=True).start()
    assert outcome is not None
    figures = read_tensorboard(Path("out/tensorboard"))
    assert list(figures["loss"]) == [2, 4, 6, 8]
    assert figures["loss"] == pytest.approx({row.steps: row.loss for row in outcome.rows})


def test_without_tensorboard_it_is_said_before_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    make_pictures()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    Path("run.toml").write_text(PICTURES)
    run = prepare("run.toml", out="out")
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[tensorboard\]'"):
        run.start()
    assert run.session.steps_done == 0


def test_without_matplotlib_everything_but_the_pictures_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    make_pictures()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    outcome = finish(PICTURES.replace("tensorboard = true", ""))
    assert "pip install -e '.[plots]'" in outcome.remarks[0]
    assert sorted(path.name for path in Path("out").iterdir()) == sorted([*outcome.files, "private"])
    assert "progress.png" not in outcome.files


@pytest.mark.usefixtures("no_pictures")
def test_without_a_loss_report_no_loss_is_written_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The true losses are replaced by a number that would be found and is no part of a time."""
    from tacit.training import step

    real = step._raw_centred_loss
    monkeypatch.setattr(step, "_raw_centred_loss", lambda *a: 0.0 * real(*a) + 12345.678)
    make_pictures()
    outcome = finish(PICTURES)
    assert [row["loss"] for row in metric_rows()] == [""] * 4
    assert all(row.loss is None for row in outcome.rows)
    for path in Path("out").rglob("*"):
        assert not path.is_file() or b"12345.6" not in path.read_bytes()


@pytest.mark.usefixtures("no_pictures")
def test_the_loss_that_is_written_is_the_noisy_one() -> None:
    """Smoothed from the steps' reports, and not the loss of any records."""
    make_adult()
    Path("run.toml").write_text(ADULT)
    run = prepare("run.toml", out="out", generator=seeded_generator(1))
    history = History()
    for batch in run.session.batches():
        history.take(run.session.step(batch).loss)
    finish(ADULT, generator=seeded_generator(1))
    assert float(metric_rows()[-1]["loss"]) == history.smoothed


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize("rows", [1, 3, 7, 8, 100])
def test_number_of_rows(rows: int) -> None:
    make_pictures()
    outcome = finish(PICTURES.replace("rows = 4", f"rows = {rows}").replace("tensorboard = true", ""))
    assert 1 <= len(outcome.rows) <= rows
    assert outcome.rows[-1].steps == 8


def test_released_files_have_no_key_and_no_state() -> None:
    make_pictures()
    finish(PICTURES)
    state = torch.load("out/private/resume.pt", weights_only=True)
    assert set(load_file("out/model.safetensors")) == set(state["model"])
    key = state["key"]
    assert len(key) == 16
    needles = (key, key.hex().encode(), state["run"].encode())
    assert any(needle in Path("out/private/resume.pt").read_bytes() for needle in needles)
    released = [path for path in Path("out").rglob("*") if path.is_file() and "private" not in path.parts]
    assert len(released) == 12
    for path in released:
        assert not any(needle in path.read_bytes() for needle in needles), path


@pytest.mark.usefixtures("no_pictures")
def test_modes_of_files() -> None:
    make_pictures()
    old = os.umask(0)
    try:
        finish(PICTURES)
    finally:
        os.umask(old)
    assert Path("out/private").stat().st_mode & 0o777 == 0o700
    assert Path("out/private/resume.pt").stat().st_mode & 0o777 == 0o600
    assert Path("out/model.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_test_key_is_marked_in_every_file_that_people_read(monkeypatch: pytest.MonkeyPatch) -> None:
    make_pictures()
    marks: list[bool] = []
    for name in ("plot_progress", "plot_privacy_curve"):
        monkeypatch.setattr(metrics, name, lambda *_, private, **__: marks.append(private))
    outcome = finish(PICTURES, generator=seeded_generator(3))
    assert outcome.statement.data["private"] is False
    assert "NOT PRIVATE" in Path("out/statement.txt").read_text()
    assert json.loads(Path("out/statement.json").read_text())["private"] is False
    assert marks == [False, False]
    again = prepare("run.toml", out="out", resume=True)
    assert not again.session.private, "a resumed run keeps the mark"


@pytest.mark.usefixtures("no_pictures")
def test_two_runs_have_different_noise() -> None:
    make_pictures()
    finish(PICTURES)
    first = load_file("out/model.safetensors")
    Path("out").rename("first")
    finish(PICTURES)
    second = load_file("out/model.safetensors")
    assert not torch.equal(first["1.weight"], second["1.weight"])


@pytest.mark.usefixtures("no_pictures")
def test_frozen_parts_stay_in_evaluation_mode() -> None:
    """A frozen BatchNorm would otherwise start to mix records after the first evaluation."""
    Path("net_with_frozen_norm.py").write_text(
        "from torch import nn\n"
        "def net(shape, outputs):\n"
        "    norm = nn.BatchNorm2d(1).eval().requires_grad_(False)\n"
        "    return nn.Sequential(norm, nn.Flatten(), nn.Linear(64, outputs))\n"
    )
    make_pictures()
    Path("run.toml").write_text(PICTURES.replace('name = "logistic"', 'factory = "net_with_frozen_norm:net"'))
    run = prepare("run.toml", out="out")
    assert [module.training for module in run.session.model.children()] == [False, True, True]
    run.start()
    assert [module.training for module in run.session.model.children()] == [False, True, True]


def test_row_figures_are_all_that_the_metrics_hold() -> None:
    figures = {"steps", "epsilon", "loss", "test_score", "test_loss", "loss_std", "test_auc"}
    assert set(vars(MetricsRow(1, 0.1, None, None, None))) == figures
