"""Measures of how well scores rank the records of one class above the others, over all thresholds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata


def roc_auc(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float | None:
    """Compute how often a positive record has a higher score than a negative one; a tie counts as half.

    Args:
        scores: (n,), finite.
        positive: (n,), whether a record is of the positive class.

    Returns:
        0.5 for guesses, 1 for a perfect ranking; None if all records are of one class.

    >>> roc_auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    0.875
    """
    count = int(positive.sum())
    negatives = len(positive) - count
    if count == 0 or negatives == 0:
        return None
    below = rankdata(scores)[positive].sum() - count * (count + 1) / 2
    return float(below / (count * negatives))


def auc_deviation(negatives: int, positives: int) -> float:
    """Compute the standard deviation of the AUC of uninformative scores (Mann and Whitney 1947).

    >>> round(auc_deviation(50, 50), 3)
    0.058
    """
    return math.sqrt((negatives + positives + 1) / (12 * negatives * positives))


def auc_spread(auc: float, negatives: int, positives: int) -> float:
    """Compute the standard deviation of an AUC over other records (Hanley and McNeil 1982, Radiology 143(1)).

    >>> round(auc_spread(0.5, 50, 50), 3), round(auc_spread(0.8, 900, 13), 3)
    (0.058, 0.074)
    """
    both_positive, both_negative = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (positives - 1) * (both_positive - auc**2)
    variance += (negatives - 1) * (both_negative - auc**2)
    return math.sqrt(variance / (positives * negatives))


def average_precision(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float | None:
    """Compute the mean precision over all thresholds, weighted by the recall that each of them adds.

    Args:
        scores: (n,), finite.
        positive: (n,), whether a record is of the positive class.

    Returns:
        About the share of positive records for guesses, 1 for a perfect ranking; None if all records are of
        one class.

    >>> round(average_precision(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True])), 4)
    0.8333
    """
    count = int(positive.sum())
    if count == 0 or count == len(positive):
        return None
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # the last of tied scores
    hits = np.cumsum(positive[order])[ends]
    return float(np.sum(np.diff(hits, prepend=0) / count * hits / (ends + 1)))
