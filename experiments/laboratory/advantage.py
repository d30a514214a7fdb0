"""The advantage of a membership attack: true-positive rate minus false-positive rate, on held-out records.

The threshold depends on members, so it is chosen on one half of the records, and judged on the other half.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.audits.scores import Interval, Scores, clopper_pearson


def advantage_at_held_out_threshold(
    scores: Scores, *, confidence: float, rng: np.random.Generator
) -> Interval:
    """Measure the advantage at thresholds that the other half of the records chose.

    Each random half is judged at the threshold that is best on the other half, so each record is judged once.
    The interval is for the largest advantage of any threshold.  It is that of a difference of two rates with
    Clopper-Pearson intervals (Zou & Donner 2008, Statistics in Medicine 27(10)).  Its upper end is at least
    that for the best threshold on all records, because a threshold from half of them is seldom the best.

    Raises:
        InvalidInput: if all scores are equal.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = advantage_at_held_out_threshold(scores, confidence=0.95, rng=rng)
    >>> found.low < 0.383 < found.high  # Phi(1/2) - Phi(-1/2)
    True
    """
    scores.check_not_constant()
    one, other = scores.split(rng)
    hits = [_hits(judging, _best_threshold(choosing)) for choosing, judging in ((one, other), (other, one))]
    value, low, high = _difference(
        scores, hits[0][0] + hits[1][0], hits[0][1] + hits[1][1], confidence=confidence
    )
    _, _, best = _difference(scores, *_hits(scores, _best_threshold(scores)), confidence=confidence)
    return Interval(value, max(-1.0, low), min(1.0, max(high, best)), confidence)


def largest_advantage(scores: Scores) -> float:
    """Return the advantage of the threshold that is best on these same scores."""
    roc = scores.roc()
    return float((roc.true_positive_rates - roc.false_positive_rates).max())


def _best_threshold(scores: Scores) -> float:
    roc = scores.roc()
    return float(roc.thresholds[np.argmax(roc.true_positive_rates - roc.false_positive_rates)])


def _hits(scores: Scores, threshold: float) -> tuple[int, int]:
    """Count the members and the non-members at or above the threshold."""
    return int((scores.members >= threshold).sum()), int((scores.non_members >= threshold).sum())


def _difference(scores: Scores, hits: int, falsely: int, *, confidence: float) -> tuple[float, float, float]:
    """Return the difference of two rates, and its bounds."""
    true = clopper_pearson(hits, scores.members.size, confidence=confidence)
    false = clopper_pearson(falsely, scores.non_members.size, confidence=confidence)
    value = true.value - false.value
    return (
        value,
        value - math.hypot(true.value - true.low, false.high - false.value),
        value + math.hypot(true.high - true.value, false.value - false.low),
    )
