"""The figures of a model on test records, against scikit-learn's, and those of the constant predictor."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor, nn

from tacit.errors import InvalidInput
from tacit.training import Evaluation, evaluate
from tacit.training.evaluation import average_precision, roc_auc


class Table(nn.Module):
    """A model that looks up outputs by the record's number."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = nn.Parameter(outputs)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.outputs[numbers[:, 0].long()]


def found_of(outputs: Tensor, targets: Tensor, **given: object) -> Evaluation:
    return evaluate(Table(outputs), torch.arange(float(len(outputs)))[:, None], targets, **given)  # type: ignore[arg-type]


def drawn(classes: int, seed: int, count: int = 300) -> tuple[Tensor, Tensor]:
    """Return logits with ties, and imbalanced labels that correlate with them."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, size=count, p=np.arange(1, classes + 1) / (classes * (classes + 1) / 2))
    logits = rng.integers(-3, 3, (count, classes)) + 1.5 * np.eye(classes)[labels]
    return torch.tensor(logits, dtype=torch.float32), torch.tensor(labels)


def differs(found: Evaluation, outputs: Tensor, targets: Tensor) -> list[str]:
    """Return the names of figures that differ from scikit-learn's."""
    answers, labels, classes = outputs.argmax(1).numpy(), targets.numpy(), outputs.shape[1]
    matrix = metrics.confusion_matrix(labels, answers, labels=range(classes))
    wanted: dict[str, object] = {
        "score": metrics.accuracy_score(labels, answers),
        "balanced": metrics.balanced_accuracy_score(labels, answers),
        "per_class": tuple(metrics.recall_score(labels, answers, average=None)),
        "confusion": tuple(map(tuple, matrix.tolist())),
        "records": tuple(matrix.sum(1).tolist()),
        "predicted": tuple(matrix.sum(0).tolist()),
        "baseline": matrix.sum(1).max() / len(labels),
        "constant": matrix.sum(1).argmax(),
    }
    if classes == 2:
        scores = (outputs[:, 1] - outputs[:, 0]).numpy()
        wanted["auc"] = metrics.roc_auc_score(labels, scores)
        wanted["average_precision"] = metrics.average_precision_score(labels, scores)
    return [
        name
        for name, value in wanted.items()
        if not np.allclose(getattr(found, name), value, rtol=0.0, atol=1e-12)  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_figures_of_classes_are_those_of_scikit_learn(classes: int, seed: int) -> None:
    outputs, targets = drawn(classes, seed)
    assert differs(found_of(outputs, targets), outputs, targets) == []


def test_swapped_axes_and_the_other_class_are_found() -> None:
    """Plant two bugs: a transposed matrix, and the ranks of the first class."""
    outputs, targets = drawn(2, 0)
    found = found_of(outputs, targets)
    turned = {"confusion": tuple(zip(*found.confusion, strict=True))}
    assert differs(Evaluation(**{**vars(found), **turned}), outputs, targets) == ["confusion"]
    other = found_of(outputs.flip(1), targets)
    assert {"auc", "average_precision"} <= set(differs(other, outputs, targets))


@pytest.mark.parametrize("values", [1, 2, 5, 10**6], ids=lambda values: f"{values} values")
@pytest.mark.parametrize("seed", range(4))
def test_ranking_with_ties(values: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, positive = rng.integers(0, values, 200).astype(float), rng.random(200) < 0.2
    assert roc_auc(scores, positive) == pytest.approx(metrics.roc_auc_score(positive, scores), abs=1e-12)
    wanted = metrics.average_precision_score(positive, scores)
    assert average_precision(scores, positive) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("label", [0, 1])
def test_of_one_class_there_is_nothing_to_rank(label: int) -> None:
    found = found_of(torch.randn(5, 2), torch.full((5,), label))
    assert (found.auc, found.average_precision) == (None, None)
    assert found.balanced == found.score
    assert found.records[1 - label] == 0


def test_outputs_that_are_no_numbers_are_counted_and_not_ranked() -> None:
    outputs, targets = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    outputs[2, 0], outputs[4] = math.nan, math.inf
    found = found_of(outputs, targets)
    assert (found.not_finite, found.auc) == (2, None)
    assert found_of(torch.full((6, 1), math.nan), torch.randn(6, 1)).not_finite == 6
    text = torch.zeros(6, 3, 4)
    text[1, 2, 0] = math.nan
    assert found_of(text, torch.ones(6, 3, dtype=torch.int64)).not_finite == 1


def test_a_thousand_classes_have_recalls_and_no_matrix() -> None:
    found = found_of(torch.randn(50, 1000), torch.arange(50))
    assert found.confusion == ()
    assert (len(found.per_class), sum(found.records), sum(found.predicted)) == (1000, 50, 50)
    assert len(found_of(torch.randn(50, 200), torch.arange(50)).confusion) == 200


def test_errors_of_numbers_are_in_their_own_units() -> None:
    rng = np.random.default_rng(3)
    bounds = ((0.0, 120.0), (-5.0, 5.0))
    low, high = np.array(bounds).T
    true = rng.uniform(low, high, (80, 2))
    said = true + rng.normal(0, [10.0, 0.5], (80, 2))
    scaled = [torch.tensor(2 * (v - low) / (high - low) - 1) for v in (said, true)]
    model = Table(scaled[0].double())
    found = evaluate(model.double(), torch.arange(80.0)[:, None], scaled[1].float(), target_bounds=bounds)
    for k, error in enumerate(found.errors):
        constant = np.full(80, true[:, k].mean())
        for name, value in (("mean_absolute", said[:, k]), ("constant_mean_absolute", constant)):
            wanted = metrics.mean_absolute_error(true[:, k], value)
            assert getattr(error, name) == pytest.approx(wanted, rel=1e-5)
        for name, value in (("root_mean_squared", said[:, k]), ("constant_root_mean_squared", constant)):
            wanted = metrics.root_mean_squared_error(true[:, k], value)
            assert getattr(error, name) == pytest.approx(wanted, rel=1e-5)
    weighted = metrics.r2_score(scaled[1], scaled[0], multioutput="variance_weighted")
    assert found.score == pytest.approx(weighted, abs=1e-6)
    assert found.baseline == 0.0
    assert found.loss == pytest.approx(metrics.mean_squared_error(scaled[1], scaled[0]), rel=1e-5)
    plain = evaluate(model, torch.arange(80.0)[:, None], scaled[1].float())
    assert plain.errors[0].mean_absolute == pytest.approx(found.errors[0].mean_absolute / 60.0)
    with pytest.raises(InvalidInput, match="one pair for each of the 2 targets; got 1"):
        evaluate(model, torch.arange(80.0)[:, None], scaled[1].float(), target_bounds=bounds[:1])


def test_the_constant_answer_to_text_is_the_commonest_character() -> None:
    targets = torch.tensor([[3, 3, 1], [3, 2, -100]])
    found = found_of(torch.randn(2, 3, 5), targets)
    assert (found.constant, found.baseline) == (3, 3 / 5)
