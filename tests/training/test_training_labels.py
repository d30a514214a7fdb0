"""The figures of several labels, against scikit-learn's; the loss of one record, against torch's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor, nn

from tacit.errors import InvalidInput
from tacit.losses import multilabel
from tacit.report.evaluation import evaluation_data, evaluation_page, evaluation_text, score_line
from tacit.training import Evaluation, evaluate
from tacit.training.evaluation import LabelFigures, measure_of, record_scores

NAMES = ("toxic", "spam", "threat")


def made(records: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of a model that knows the first label well, the second a little, the third not; many ties."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.rand(records, 3, generator=generator) < torch.tensor([0.5, 0.2, 0.05])
    noise = torch.randn(records, 3, generator=generator)
    logits = (labels.float() - 0.5) * torch.tensor([3.0, 1.0, 0.0]) + noise
    return (4 * logits).round() / 4, labels


def test_figures_are_those_of_sklearn() -> None:
    logits, labels = made()
    found = evaluate(nn.Identity(), logits, labels)
    truth, scores, said = labels.numpy(), logits.double().numpy(), (logits >= 0).numpy()
    aucs = metrics.roc_auc_score(truth, scores, average=None)
    assert [one.auc for one in found.labels] == pytest.approx(aucs)
    assert found.score == pytest.approx(metrics.roc_auc_score(truth, scores, average="macro"))
    assert found.loss == pytest.approx(metrics.log_loss(truth.ravel(), torch.sigmoid(logits).numpy().ravel()))
    for k, one in enumerate(found.labels):
        assert one.recall == pytest.approx(metrics.recall_score(truth[:, k], said[:, k]))
        assert one.precision == pytest.approx(metrics.precision_score(truth[:, k], said[:, k]))
        assert one.accuracy == pytest.approx(metrics.accuracy_score(truth[:, k], said[:, k]))
        assert one.share == pytest.approx(truth[:, k].mean())
        assert one.constant_accuracy == pytest.approx(max(truth[:, k].mean(), 1 - truth[:, k].mean()))
    assert (found.measure, found.baseline, found.not_finite) == ("mean AUC of the labels", 0.5, 0)


def test_a_record_scores_the_share_of_labels_that_are_right() -> None:
    logits, labels = made()
    found = record_scores(nn.Identity(), logits, labels)
    assert found.numpy() == pytest.approx(((logits >= 0) == labels).double().mean(1).numpy())
    assert 0.0 <= float(found.min()) <= float(found.max()) <= 1.0
    name, share = measure_of(labels)
    assert (name, share(0.25)) == ("accuracy per label", 0.25)


def test_a_label_that_all_records_have_is_not_in_the_mean() -> None:
    logits, labels = made()
    labels[:, 2] = True
    found = evaluate(nn.Identity(), logits, labels)
    assert found.labels[2].auc is None
    assert found.score == pytest.approx(
        metrics.roc_auc_score(labels[:, :2].numpy(), logits[:, :2].numpy(), average="macro")
    )
    assert "without 1 that all or no test records have" in evaluation_data(found, classes=NAMES)["verdict"]
    none = evaluate(nn.Identity(), logits, torch.zeros_like(labels))
    assert math.isnan(none.score)
    assert "is undefined" in evaluation_data(none, classes=NAMES)["verdict"]


def test_outputs_that_are_not_finite_have_no_auc() -> None:
    logits, labels = made()
    logits[0, 1] = math.nan
    found = evaluate(nn.Identity(), logits, labels)
    assert found.not_finite == 1
    assert [one.auc for one in found.labels] == [None] * 3
    data = evaluation_data(found, classes=NAMES)
    assert data["useless"]
    assert "diverged" in data["verdict"]


@pytest.mark.parametrize(
    ("outputs", "targets", "words"),
    [
        (torch.zeros(4, 2), torch.zeros(4, 3, dtype=torch.bool), r"\(n, k\) logits for \(n, k\) labels"),
        (torch.zeros(4, 2), torch.zeros(4, dtype=torch.bool), r"For classes, use targets\.long\(\)"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(outputs: Tensor, targets: Tensor, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        evaluate(nn.Identity(), outputs, targets)


# --- what is said of them ----------------------------------------------------------------------------------


def told(scale: float, share: float = 0.3, records: int = 2000) -> Evaluation:
    """Evaluate a model whose logits are the labels times ``scale``, plus noise, mostly below zero."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.rand(records, 3, generator=generator) < share
    logits = scale * labels.float() + torch.randn(records, 3, generator=generator)
    return evaluate(nn.Identity(), logits, labels)


def test_a_useful_model_is_told_from_a_useless_one() -> None:
    good = evaluation_data(told(2.0), classes=NAMES)
    assert not good["useless"]
    assert good["verdict"].startswith("Test mean AUC of the labels 0.9")
    for scale, amount in ((0.0, "no"), (0.2, "hardly")):
        bad = evaluation_data(told(scale), classes=NAMES)
        assert bad["useless"]
        assert f"the model is {amount} better than guessing" in bad["verdict"]
    # chance reaches these counts too
    few = LabelFigures(positives=3, negatives=9, true_positives=2, false_positives=3, auc=0.7)
    assert evaluation_data(Evaluation(0.7, 0.6, (), "mean AUC of the labels", labels=(few,)))["useless"]


def test_a_label_that_is_never_said_is_named_with_what_helps() -> None:
    logits, labels = made(2000)
    logits[:, 1] -= 20.0
    data = evaluation_data(evaluate(nn.Identity(), logits, labels), classes=NAMES)
    assert 'No record that has "spam" gets a probability of one half or more.' in data["verdict"]
    assert data["advice"][0] == "a lower threshold, at no cost (tacit predict --threshold 0.1)"
    assert not data["useless"]


def test_figures_label_by_label_as_data_text_and_page() -> None:
    logits, labels = made()
    logits[:, 1] -= 20.0
    found = evaluate(nn.Identity(), logits, labels)
    data = evaluation_data(found, classes=("a name that is much too long for a line", *NAMES[1:]))
    (first, second, _) = data["labels"]
    assert second["label"] == "spam"
    assert (second["recall"], second["precision"]) == (0.0, None)
    assert first["positives"] == int(labels[:, 0].sum())
    accuracies = [metrics.accuracy_score(labels[:, k], logits[:, k] >= 0) for k in range(3)]
    assert data["mean_accuracy"] == pytest.approx(np.mean(accuracies))
    assert score_line(data) == f"test mean AUC of the labels {found.score:.4f} (baseline: 0.5000)"
    text = evaluation_text(data)
    assert max(map(len, text.splitlines())) <= 79
    head = next(line for line in text.splitlines() if line.startswith("label"))
    assert head.split() == ["label", "share", "AUC", "recall", "precision", "accuracy", "majority"]
    assert any(line.startswith("mean accuracy of the labels") for line in text.splitlines())
    page = evaluation_page(data, title="run")
    assert "Label by label" in page
    for one in data["labels"]:
        assert one["label"] in page
        assert f"{one['share']:.4f}" in page


# --- the loss ----------------------------------------------------------------------------------------------


def test_the_loss_is_the_mean_of_torchs_own_over_the_labels_of_a_record() -> None:
    logits, labels = made(20)
    found = multilabel()(nn.Identity(), logits, labels.float())
    assert found.shape == (20,)
    for one, row, own in zip(found, logits, labels.float(), strict=True):
        assert float(one) == pytest.approx(float(nn.BCEWithLogitsLoss()(row, own)), abs=1e-6)
    large = multilabel()(nn.Identity(), torch.tensor([[1e4, -1e4]]), torch.tensor([[0.0, 0.0]]))
    assert float(large) == pytest.approx(5e3)  # no infinity, as a logarithm of a probability would be


def test_a_target_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidInput, match="one value per value of the target"):
        multilabel()(nn.Identity(), torch.zeros(4, 2), torch.zeros(4, 3))
