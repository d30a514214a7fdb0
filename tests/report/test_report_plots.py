"""The pictures: PNG files of the right size, with their labels, whatever there is to show."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import texts_of
from PIL import Image

from tacit.accounting import account
from tacit.events import Gaussian, Repeat
from tacit.report import canvas, plots
from tacit.report.evaluation import evaluation_data
from tacit.runs.metrics import drawn_score
from tacit.training import evaluate
from tacit.training.loop import MetricsRow

ROWS = [MetricsRow(10 * n, 0.1 * n, 2.0 / n, 0.5 + 0.01 * n, 1.0) for n in range(1, 11)]


def pixels(path: Path) -> Any:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB")).astype(int)


def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the texts of the next figures; none may be outside the picture or on other text."""
    found: list[str] = []
    real = canvas.save_figure

    def listening(figure: Any, path: Path) -> None:
        real(figure, path)
        found.extend(texts_of(figure))

    monkeypatch.setattr(plots, "save_figure", listening)
    return found


def test_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = texts(monkeypatch)
    plots.plot_progress(ROWS, tmp_path / "p.png")
    assert {"test accuracy", "ε spent", "steps", "0.600", "1.00"} <= set(found)
    assert "Score and cost over 100 steps" in found
    picture = pixels(tmp_path / "p.png")
    assert picture.shape == (624, 832, 3)
    for colour in (canvas.BLUE, canvas.ORANGE):
        assert (np.abs(picture - [*bytes.fromhex(colour[1:])]).sum(2) < 40).sum() > 100, (
            "both lines are drawn"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        ROWS[:1],
        [MetricsRow(n, 0.1 * n, None, None, None) for n in (1, 2)],
        [MetricsRow(1, 0.1, None, float("nan"), 0.0)],
    ],
)
def test_progress_with_little_to_show(rows: list[MetricsRow], tmp_path: Path) -> None:
    plots.plot_progress(rows, tmp_path / "p.png", score="test R²")
    assert pixels(tmp_path / "p.png").shape == (624, 832, 3)


@pytest.mark.parametrize("baseline", [0.1, 0.55, 0.9])
def test_progress_with_the_constant_answer(
    baseline: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line lies inside of the picture, wherever the scores are; of a single score it is the loss's."""
    found = texts(monkeypatch)
    plots.plot_progress(ROWS, tmp_path / "p.png", baseline=baseline, loss_baseline=0.693)
    assert f"baseline: {baseline:.3f}" in found
    one = [MetricsRow(row.steps, row.epsilon, row.loss, None, None) for row in ROWS]
    plots.plot_progress(one, tmp_path / "p.png", baseline=baseline, loss_baseline=0.693)
    assert "equal probabilities: 0.693" in found
    assert found.count(f"baseline: {baseline:.3f}") == 1
    plots.plot_progress(ROWS, tmp_path / "p.png", baseline=baseline, known="at least")
    assert f"baseline: at least {baseline:.3f}" in found


def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, float]]:
    """Collect the name and limits of the axis of the score, for each picture from now on."""
    found: list[tuple[str, float, float]] = []

    def listening(figure: Any, _: Path) -> None:
        figure.canvas.draw()
        axes = figure.axes[0]
        found.append((axes.get_ylabel(), *axes.get_ylim()))

    monkeypatch.setattr(plots, "save_figure", listening)
    return found


@pytest.mark.parametrize("values", [(0.964, 0.966), (0.1, 0.9), (0.0, 1.0)])
def test_progress_does_not_make_a_line_of_what_chance_does(
    values: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two scores within a standard error of 2 % are close together, and no axis passes 0 or 1 by much."""
    seen = limits(monkeypatch)
    rows = [MetricsRow(n, 0.1, None, value, None) for n, value in enumerate(values, start=1)]
    plots.plot_progress(rows, Path(), error=0.02, within=(0.0, 1.0), baseline=0.96)
    ((_, low, high),) = seen
    assert low <= max(0.0, min(values) - 0.08) + 1e-9
    assert high >= min(1.0, max(values) + 0.08) - 1e-9
    assert -0.03 <= low < high <= 1.03
    assert values[1] - values[0] < 0.05 * (high - low) or values[1] - values[0] > 0.1


def test_the_noise_of_a_loss_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = limits(monkeypatch)
    rows = [MetricsRow(n, 0.1, loss, None, None, 0.3) for n, loss in enumerate((0.10, -0.05, 0.02), start=1)]
    plots.plot_progress(rows, Path(), within=(0.0, 1.0))
    ((name, low, high),) = seen
    assert name == "noisy training loss"
    assert low <= -0.05 - 4 * 0.3
    assert high >= 0.10 + 4 * 0.3


@pytest.mark.parametrize("share", [0.03, 0.4])
def test_where_one_class_is_rare_the_auc_is_drawn(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = limits(monkeypatch)
    torch.manual_seed(0)
    labels = (torch.arange(400) < 400 * share).long()
    inputs = torch.stack([0.8 - torch.rand(400), labels - torch.rand(400)], 1)
    evaluation = evaluate(torch.nn.Identity(), inputs, labels)
    figures = evaluation_data(evaluation, classes=("no", "yes"))
    rows = [MetricsRow(n, 0.1, None, evaluation.score, None, None, evaluation.auc) for n in (1, 2)]
    drawn = drawn_score(figures, 400)
    plots.plot_progress(rows, Path(), **drawn)
    assert seen[0][0] == ("test AUC of “yes”" if share == 0.03 else "test accuracy")
    assert drawn["baseline"] == (0.5 if share == 0.03 else pytest.approx(0.6))
    positives, negatives = 400 * share, 400 * (1 - share)
    chance = math.sqrt(401 / (12 * positives * negatives)) if share == 0.03 else 0.5 / 20
    assert drawn["error"] == pytest.approx(chance)


def confusion(classes: int, *, name: str = "class {}") -> dict[str, Any]:
    matrix = [[(50 if i == j else (i + 2 * j) % 7) for j in range(classes)] for i in range(classes)]
    return {
        "confusion_matrix": matrix,
        "classes": [{"class": name.format(i), "records": sum(row)} for i, row in enumerate(matrix)],
        "score": 0.9,
        "baseline": {"score": 0.5},
        "private": True,
    }


@pytest.mark.parametrize("classes", [2, 12])
def test_confusion(classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = texts(monkeypatch)
    data = confusion(classes)
    assert plots.plot_confusion(data, tmp_path / "c.png")
    assert {"predicted class", "true class (test records)"} <= set(found)
    assert found.count("50") == classes
    assert pixels(tmp_path / "c.png").shape[0] > 300


def test_rows_of_the_confusion_picture_are_true_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: dict[tuple[float, float], str] = {}

    def listening(figure: Any, _: Path) -> None:
        placed.update({text.get_position(): text.get_text() for text in figure.axes[0].texts})

    monkeypatch.setattr(plots, "save_figure", listening)
    data = confusion(2) | {"confusion_matrix": [[80, 20], [3, 7]]}
    plots.plot_confusion(data, tmp_path / "c.png")
    assert placed == {(0, 0): "80", (1, 0): "20", (0, 1): "3", (1, 1): "7"}  # (predicted, true)


def test_what_cannot_be_read_is_not_drawn(tmp_path: Path) -> None:
    assert plots.plot_confusion(confusion(30), tmp_path / "c.png")
    (tmp_path / "c.png").unlink()
    assert not plots.plot_confusion(confusion(31), tmp_path / "c.png")
    assert not plots.plot_confusion({"confusion_matrix": None}, tmp_path / "c.png")
    assert not plots.plot_confusion({}, tmp_path / "c.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("sigma", "steps"), [(8.0, 30), (60.0, 1), (0.3, 40)])
def test_privacy_curve(sigma: float, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = texts(monkeypatch)
    curve = account(Repeat(Gaussian(sigma), steps), adjacency="add-remove")
    plots.plot_privacy_curve(curve, 1e-5, tmp_path / "c.png")
    assert any(words.startswith("stated: ε = ") and words.endswith("δ = 1e-05") for words in found)
    assert {"the promise holds here", "nothing is promised here"} <= set(found)
    assert pixels(tmp_path / "c.png").shape == (520, 832, 3)


def test_a_test_key_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = texts(monkeypatch)
    plots.plot_progress(ROWS, tmp_path / "p.png", private=False)
    curve = account(Gaussian(2.0), adjacency="add-remove")
    plots.plot_privacy_curve(curve, 1e-5, tmp_path / "c.png", private=False)
    assert sum(words == "NOT PRIVATE: fixed test key" for words in found) == 2
