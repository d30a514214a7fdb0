"""The metrics (counts and AUC) of each of k labels, if a record may have any number of labels.

Letters: n records, k labels.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tacit.training.ranking import roc_auc


@dataclass(frozen=True)
class LabelFigures:
    """The counts and the AUC of one of k labels.

    Attributes:
        positives, negatives: the number of records with the label, and the number without it.
        true_positives: the number of records with the label whose logit is at least 0, which means a
            probability of at least one half.
        false_positives: the number of records without the label whose logit is at least 0.
        auc: the probability that a record with the label is ranked above a record without it.  It is None if
            all records have the label, if none has it, or if an output is not finite.

    >>> one = LabelFigures(positives=4, negatives=6, true_positives=3, false_positives=1, auc=0.8)
    >>> one.share, one.recall, one.precision, one.accuracy, one.constant_accuracy
    (0.4, 0.75, 0.75, 0.8, 0.6)
    """

    positives: int
    negatives: int
    true_positives: int
    false_positives: int
    auc: float | None

    @property
    def share(self) -> float:
        """The share of the records that have the label."""
        return self.positives / (self.positives + self.negatives)

    @property
    def recall(self) -> float | None:
        """Among the records with the label, the share predicted to have it; None without such records."""
        return self.true_positives / self.positives if self.positives else None

    @property
    def precision(self) -> float | None:
        """Among the records predicted to have the label, the share that has it; None without such records."""
        predictions = self.true_positives + self.false_positives
        return self.true_positives / predictions if predictions else None

    @property
    def accuracy(self) -> float:
        """The share of right predictions."""
        return (self.true_positives + self.negatives - self.false_positives) / (
            self.positives + self.negatives
        )

    @property
    def constant_accuracy(self) -> float:
        """The share of right predictions of a predictor that gives the more frequent answer every time."""
        return max(self.share, 1.0 - self.share)


def label_figures(logits: Tensor, labels: Tensor) -> tuple[LabelFigures, ...]:
    """Compute the metrics of each of the k labels, from (n, k) float32 ``logits`` and (n, k) bool ``labels``.

    >>> import torch
    >>> [one] = label_figures(torch.tensor([[1.0], [-2.0], [-1.0]]), torch.tensor([[True], [False], [True]]))
    >>> one.true_positives, one.false_positives, one.auc
    (1, 0, 1.0)
    """
    ranked = bool(logits.isfinite().all())
    return tuple(
        LabelFigures(
            positives=int(true.sum()),
            negatives=int((~true).sum()),
            true_positives=int((true & (own >= 0)).sum()),
            false_positives=int((~true & (own >= 0)).sum()),
            auc=roc_auc(own.double().numpy(), true.numpy()) if ranked else None,
        )
        for own, true in zip(logits.T, labels.T, strict=True)
    )
