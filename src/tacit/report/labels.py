"""The metrics of each label, as data and as the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tacit.report.pages.document import figure
from tacit.rounding import finite
from tacit.training.evaluation import Evaluation

_COLUMNS = {
    "share": "share",
    "auc": "AUC",
    "recall": "recall",
    "precision": "precision",
    "accuracy": "accuracy",
    "accuracy_of_a_constant": "constant",
}
"""The metrics of a label, and their names in a terminal."""


def data_of_labels(evaluation: Evaluation, names: Sequence[str]) -> dict[str, Any]:
    """Return the metrics of each label, and the mean of the labels' accuracies.

    >>> from tacit.training.evaluation import LabelFigures
    >>> one = LabelFigures(positives=1, negatives=3, true_positives=1, false_positives=1, auc=0.9)
    >>> data = data_of_labels(Evaluation(0.9, 0.3, (), labels=(one,)), ["spam"])
    >>> data["mean_accuracy"], data["labels"][0]["precision"]
    (0.75, 0.5)
    """
    labels = evaluation.labels
    return {
        "mean_accuracy": sum(one.accuracy for one in labels) / len(labels),
        "mean_accuracy_of_a_constant": sum(one.constant_accuracy for one in labels) / len(labels),
        "labels": [
            {
                "label": name,
                "records": one.positives + one.negatives,
                "positives": one.positives,
                "share": one.share,
                "auc": finite(one.auc),
                "recall": one.recall,
                "precision": one.precision,
                "accuracy": one.accuracy,
                "accuracy_of_a_constant": one.constant_accuracy,
            }
            for name, one in zip(names, labels, strict=True)
        ],
    }


def rows_of_labels(
    labels: Sequence[Mapping[str, Any]], short: Callable[[str], str]
) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return the header and the rows of a table of labels, with each label's name shortened by ``short``."""
    rows = [(short(one["label"]), *(figure(one[key]) for key in _COLUMNS)) for one in labels]
    return ("label", *_COLUMNS.values()), [*rows]
