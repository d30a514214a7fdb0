"""Figures of several labels; a record may have any number of them.

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
        positives, negatives: the number of records that have the label, and that lack it.
        true_positives: those of ``positives`` whose logit is at least 0, a probability of one half or more.
        false_positives: those of ``negatives`` whose logit is at least 0.
        auc: how often a record with the label is ranked above one without.  It is None if there are no
            records of one kind, or an output is not finite.

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
        """The share of the records with the label that are predicted to have it; None if there is none."""
        return self.true_positives / self.positives if self.positives else None

    @property
    def precision(self) -> float | None:
        """The share of the records predicted to have the label that have it; None if none is."""
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
        """The share of right predictions if the commoner answer is given for all records."""
        return max(self.share, 1.0 - self.share)


def label_figures(logits: Tensor, labels: Tensor) -> tuple[LabelFigures, ...]:
    """Compute the figures of (n, k) float32 ``logits`` and (n, k) bool ``labels``, one for each label.

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
