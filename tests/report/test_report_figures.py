"""Curves, calibration and intervals of exact answers: against scikit-learn, and by how often they hold."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.calibration import calibration_curve

from tacit.report.evaluation import evaluation_data, evaluation_page
from tacit.report.figures import (
    calibration,
    f1_interval,
    flagged,
    mean_of_shares,
    precision_interval,
    predicted_and_true,
    ranked,
    ratio_interval,
    share_interval,
)
from tacit.training import Evaluation, evaluate
from tacit.training.evaluation import average_precision

NAMES = ("no", "yes")


def drawn(
    n: int = 2000, *, share: float = 0.2, seed: int = 0, ties: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    positive = rng.random(n) < share
    scores = rng.normal(size=n) + 1.5 * positive
    return (scores.round(1) if ties else scores), positive


def evaluated(outputs: np.ndarray, targets: np.ndarray, **given: object) -> Evaluation:
    model = torch.nn.Identity()
    return evaluate(model, torch.tensor(outputs), torch.tensor(targets), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("n", "share"), [(60, 0.5), (2000, 0.2), (5000, 0.02)])
def test_the_points_are_those_of_scikit_learn(n: int, share: float, ties: bool) -> None:
    scores, positive = drawn(n, share=share, ties=ties)
    found = ranked(scores, positive)
    assert found is not None
    curve = found["curve"]
    false, true, _ = metrics.roc_curve(positive, scores, drop_intermediate=False)
    precision, recall, _ = metrics.precision_recall_curve(positive, scores)
    roc = np.stack([false, true], 1).round(4)
    both = np.stack([recall, precision], 1).round(4)
    for x, y, p in zip(*(curve[k] for k in ("false_positive_rate", "recall", "precision")), strict=True):
        assert np.abs(roc - [x, y]).max(1).min() < 1e-9
        assert np.abs(both - [y, p]).max(1).min() < 1e-9
    assert (curve["recall"][0], curve["recall"][-1], curve["false_positive_rate"][-1]) == (0.0, 1.0, 1.0)
    assert len(curve["recall"]) <= 201
    area = np.trapezoid(curve["recall"], curve["false_positive_rate"])
    assert area == pytest.approx(metrics.roc_auc_score(positive, scores), abs=0.03 if n == 60 else 0.005)
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(positive, scores), abs=1e-12)
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(positive, scores))


@pytest.mark.parametrize("n", [30, 500])
def test_no_point_adds_fewer_than_five_records(n: int) -> None:
    scores, positive = drawn(n, share=0.5)
    curve = ranked(scores, positive)["curve"]  # type: ignore[index]
    kinds = np.array([positive.sum(), (~positive).sum()])
    counts = np.array([curve["recall"], curve["false_positive_rate"]]).T @ kinds
    assert np.diff(counts).min() > 4.9


def test_calibration_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    chance = np.append(rng.beta(0.4, 1.2, 3000), [0.1, 0.2, 1.0, 0.0])
    happened = rng.random(len(chance)) < chance**2
    found = calibration(chance, happened)
    share, mean = calibration_curve(happened, chance, n_bins=10, strategy="quantile")
    assert [one["share"] for one in found["bins"]] == pytest.approx(share, rel=1e-3)
    assert [one["probability"] for one in found["bins"]] == pytest.approx(mean, rel=1e-3)
    assert (found["probability"], found["share"]) == pytest.approx((chance.mean(), happened.mean()), rel=1e-3)
    weights = np.array([one["records"] for one in found["bins"]]) / len(chance)
    assert found["error"] == pytest.approx(float(weights @ np.abs(share - mean)), abs=1e-4)
    few = calibration(np.array([0.05] * 9 + [0.95] * 4), np.array([False] * 13))
    assert [one["records"] for one in few["bins"]] == [9]
    assert (few["records_in_bins_left_out"], few["error"]) == (4, pytest.approx((0.45 + 3.8) / 13, abs=1e-4))


def test_a_page_says_how_a_rare_event_is_predicted_and_what_a_threshold_finds() -> None:
    """All probabilities are below a tenth: bins of equal width would show one point."""
    scores, positive = drawn(5000, share=0.02)
    log_odds = scores - 5.5
    logits = np.stack([np.zeros_like(log_odds), log_odds], 1)
    data = evaluation_data(evaluated(logits, positive.astype(np.int64)), classes=NAMES)
    found = data["calibration"]
    assert len(found["bins"]) == 10
    assert found["share"] == pytest.approx(positive.mean(), rel=1e-3)
    page = " ".join(evaluation_page(data, title="x").split())
    predicted, observed = (f"{100 * found[key]:.3g} %" for key in ("probability", "share"))
    assert f"predicted {predicted}, observed {observed} “{NAMES[1]}”" in page
    order = np.argsort(-scores)
    for one, count in zip(data["flagged"], (50, 250, 500), strict=True):
        assert (one["records"], one["found"]) == (count, int(positive[order[:count]].sum()))
        assert f"{one['found']:,} of {int(positive.sum()):,}" in page
    tied = flagged(np.zeros(100), np.arange(100) < 7)
    assert [(one["records"], one["found"]) for one in tied] == [(100, 7)] * 2


def held(truth: float, ends: list[list[float]]) -> float:
    low, high = np.array(ends).T
    return float(((low <= truth) & (truth <= high)).mean())


def test_intervals_of_shares_hold() -> None:
    rng = np.random.default_rng(2)
    rows = rng.multinomial(200, [0.3, 0.1, 0.1, 0.5], size=400)
    assert held(0.3, [share_interval(int(r[0]), 200) for r in rows]) >= 0.93  # type: ignore[misc]
    f1 = [f1_interval(int(r[0]), int(r[1] + r[2])) for r in rows]
    assert held(2 * 0.3 / (2 * 0.3 + 0.2), f1) >= 0.93  # type: ignore[arg-type]
    assert held(0.3, f1) < 0.1, "an interval of another figure"  # type: ignore[arg-type]
    hits = rng.binomial([150, 20], [0.9, 0.4], size=(400, 2))
    assert 0.93 <= held(0.65, [mean_of_shares(row.tolist(), [150, 20]) for row in hits]) <= 0.995


@pytest.mark.parametrize("share", [0.5, 0.05])
def test_the_interval_of_an_average_precision_holds(share: float) -> None:
    truth = average_precision(*drawn(400_000, share=share, seed=9))
    ends = []
    for seed in range(300):
        scores, positive = drawn(1000, share=share, seed=seed)
        value = average_precision(scores, positive)
        assert value is not None
        ends.append(precision_interval(value, int(positive.sum())))
    assert truth is not None
    assert 0.9 <= held(truth, ends) <= 0.99


def test_the_intervals_of_errors_and_of_r2_hold() -> None:
    rng = np.random.default_rng(3)
    ends: dict[str, list[list[float]]] = {"score": [], "mean_absolute_interval": []}
    for _ in range(300):
        true = rng.uniform(-1.0, 1.0, (300, 1))
        found = evaluated(0.8 * true + 0.2 * rng.normal(size=true.shape), true, target_bounds=[(0.0, 10.0)])
        data = evaluation_data(found)
        ends["score"].append(data["intervals"]["score"])
        ends["mean_absolute_interval"].append(data["errors"][0]["mean_absolute_interval"])
    squared = 0.04 / 3 + 0.04  # (0.2 t)^2 on average, and the noise
    assert 0.9 <= held(1.0 - squared * 3, ends["score"]) <= 0.99
    many = rng.uniform(-1.0, 1.0, 10**6)
    absolute = 5.0 * float(np.abs(0.2 * many + 0.2 * rng.normal(size=many.size)).mean())
    assert 0.9 <= held(absolute, ends["mean_absolute_interval"]) <= 0.99
    assert ratio_interval(np.ones(5), np.ones(5)) is None, "no spread, no interval"


def test_cells_count_all_records_but_the_few() -> None:
    rng = np.random.default_rng(4)
    true = np.append(rng.uniform(0.0, 1.0, 999), 50.0)
    predicted = np.append(true[:-1], 0.3)
    found = predicted_and_true(predicted, true)
    assert found is not None
    counts = np.array(found["records"])
    assert counts.sum() + found["records_in_cells_left_out"] == 1000
    assert found["records_in_cells_left_out"] == 1, "the one that is far off"
    assert (counts == np.diag(np.diag(counts))).all()
    assert max(found["edges"]) < 1.1, "no edge shows the largest value"
    assert predicted_and_true(true[:10], true[:10]) is None
    turned = predicted_and_true(np.zeros(999), true[:-1])
    assert turned is not None
    assert (np.array(turned["records"])[:, 1:] == 0).all(), "rows are true values"


def test_a_page_has_its_charts_and_a_noisy_one_none() -> None:
    scores, positive = drawn()
    logits = np.stack([np.zeros_like(scores), scores - 1.5], 1)
    data = evaluation_data(evaluated(logits, positive.astype(np.int64)), classes=NAMES, reference=0.99)
    page = evaluation_page(data, title="x")
    for words in ("ROC", "precision", "Calibration", "Expected calibration error", "F1", "95 %"):
        assert words in page
    assert page.count('<svg xmlns="http://www.w3.org/2000/svg" class="chart"') == 3
    low, high = data["intervals"]["score"]
    assert low < data["score"] < high
    assert f"{low:.4f} to {high:.4f}" in page
    worse = f"worse by {0.99 - data['score']:.3f} ({0.99 - high:.3f} to {0.99 - low:.3f})."
    assert data["verdict"].endswith(f"this one is {worse}")
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(positive, logits.argmax(1))
    for number, one in enumerate(data["classes"]):
        wanted = (precision[number], recall[number], f1[number])
        assert (one["precision"], one["recall"], one["f1"]) == pytest.approx(wanted)
    noisy = Evaluation(0.7, None, (), interval=(0.6, 0.8), noise=5.0, steps=6, baseline=0.5)
    told = evaluation_data(noisy, classes=NAMES, baseline="chance", reference=0.75)
    assert not {"curves", "calibration", "intervals", "classes"} & set(told)
    assert told["verdict"].endswith("no difference is certain (0.050 better to 0.150 worse).")
    assert 'class="chart"' not in (shown := evaluation_page(told, title="x"))
    assert "no curves. Each would be one more release" in " ".join(shown.split())


def test_several_classes_are_each_held_against_the_others() -> None:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 4, 1500)
    logits = rng.normal(size=(1500, 4)) + 1.5 * np.eye(4)[labels]
    data = evaluation_data(evaluated(logits, labels), classes=("a", "b", "c", "<d>"))
    shares = torch.softmax(torch.tensor(logits), 1).numpy()
    for number, one in enumerate(data["curves"]):
        wanted = metrics.roc_auc_score(labels == number, shares[:, number])
        assert one["auc"] == pytest.approx(wanted, abs=1e-9)
        assert one["auc_interval"][0] < wanted < one["auc_interval"][1]
    top = calibration(shares.max(1), shares.argmax(1) == labels)
    assert data["calibration"]["error"] == pytest.approx(top["error"], abs=1e-4)
    page = evaluation_page(data, title="x")
    assert "&lt;d&gt;" in page
    assert "<d>" not in page
    many = evaluation_data(evaluated(rng.normal(size=(500, 11)), rng.integers(0, 11, 500)))
    assert "curves" not in many
    assert "up to 10 classes" in evaluation_page(many, title="x")
    json.dumps(data, allow_nan=False)


def test_answers_that_are_no_numbers_have_no_curves() -> None:
    logits = np.full((30, 2), math.nan)
    data = evaluation_data(evaluated(logits, np.arange(30) % 2), classes=NAMES)
    assert "curves" not in data
    assert data["intervals"]["score"] is not None
    evaluation_page(data, title="x")
    numbers = evaluation_data(evaluated(np.full((30, 1), math.nan), np.random.default_rng(0).random((30, 1))))
    assert "intervals" not in numbers
    evaluation_page(numbers, title="x")
