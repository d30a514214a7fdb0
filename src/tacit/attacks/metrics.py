"""How good are an attack's scores? Each figure has an interval.

The largest value over all thresholds is biased upwards, so wherever a threshold is chosen, it is chosen on
one half of the records and judged on the other.  Intervals cover other records of the *same* model; only
several attacked models show how much another training run would differ.

Letters: n members, m non-members, u distinct scores, R resamples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.attacks.intervals import Interval, clopper_pearson, dkw_half_width, least_rate
from tacit.attacks.scores import Scores
from tacit.errors import check_integer, check_real

__all__ = [
    "Measured",
    "OperatingPoint",
    "advantage_at_held_out_threshold",
    "auc_interval",
    "largest_advantage",
    "measure",
    "operating_point",
]

Array: TypeAlias = NDArray[np.float64]

_CELLS = 2_000_000  # numbers held at once while resampling


@dataclass(frozen=True)
class OperatingPoint:
    """One threshold, chosen on half of the records, and its rates on the other half.

    ``target`` is the requested false-positive rate; ``found`` is the share of all members found at
    that rate by the best threshold in hindsight, without interpolation.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = operating_point(scores, 0.05, confidence=0.95, rng=rng)
    >>> found.target, found.true_positive_rate.low < 0.26 < found.true_positive_rate.high
    (0.05, True)
    """

    target: float
    found: float
    threshold: float
    false_positive_rate: Interval
    true_positive_rate: Interval


@dataclass(frozen=True)
class Measured:
    """The figures of one attack on one model; ``points`` has one entry per requested rate.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> measured = measure(scores, false_positive_rates=(0.01, 0.1), confidence=0.95, rng=rng)
    >>> measured.members, [point.target for point in measured.points]
    (2000, [0.01, 0.1])
    """

    members: int
    non_members: int
    auc: Interval
    advantage: Interval
    points: tuple[OperatingPoint, ...]


def measure(
    scores: Scores,
    *,
    false_positive_rates: tuple[float, ...],
    confidence: float,
    rng: np.random.Generator,
) -> Measured:
    """AUC, advantage and the members found at each false-positive rate.

    :param false_positive_rates: each in (0, 1], and each at least 5 / (number of non-members).
    :param confidence: of each interval by itself.
    :param rng: splits the records in halves and resamples; it must be independent of the scores.
    :raises InvalidInput: if there are too few non-members, the scores are constant, or members score lower.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> measured = measure(scores, false_positive_rates=(0.01,), confidence=0.95, rng=rng)
    >>> measured.auc.low < 0.760 < measured.auc.high  # Phi(1 / sqrt 2)
    True
    """
    for rate in false_positive_rates:
        scores.check_enough(rate)
    scores.check_not_constant()
    scores.check_direction()
    return Measured(
        scores.members.size,
        scores.non_members.size,
        auc_interval(scores, confidence=confidence, rng=rng),
        advantage_at_held_out_threshold(scores, confidence=confidence, rng=rng),
        tuple(operating_point(scores, rate, confidence=confidence, rng=rng) for rate in false_positive_rates),
    )


def auc_interval(
    scores: Scores, *, confidence: float, rng: np.random.Generator, resamples: int = 1000
) -> Interval:
    """The AUC with the percentile interval of a bootstrap that resamples either class by itself.

    Where the classes do not overlap at all, every resample gives the same and the bootstrap has no estimate
    of its error; then the interval is the exact one for min(n, m) disjoint pairs that were all in order.

    :raises InvalidInput: if all scores are equal.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = auc_interval(scores, confidence=0.95, rng=rng)
    >>> found.low < 0.76 < found.high
    True
    """
    check_real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
    check_integer("resamples", resamples, low=100)
    scores.check_not_constant()
    value, level = scores.auc(), (1.0 - confidence) / 2.0
    if value in (0.0, 1.0):
        pairs = min(scores.members.size, scores.non_members.size)
        worst = float(least_rate(pairs, pairs, level))
        return Interval(value, *((worst, 1.0) if value else (0.0, 1.0 - worst)), confidence)
    low, high = np.quantile(_resampled_auc(scores, resamples, rng), [level, 1.0 - level])
    return Interval(value, float(min(low, value)), float(max(high, value)), confidence)


def operating_point(
    scores: Scores, false_positive_rate: float, *, confidence: float, rng: np.random.Generator
) -> OperatingPoint:
    """The threshold for ``false_positive_rate`` from a random half; Clopper-Pearson on the other, for *both*
    rates: a threshold from a sample meets its false-positive rate only roughly.

    Guarantee
    ---------
    * Each interval holds the rate of that threshold, for further records like these, with probability at
      least ``confidence``.

    :raises InvalidInput: if ``false_positive_rate`` times the number of non-members is below 5.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = operating_point(scores, 0.1, confidence=0.95, rng=rng)
    >>> found.false_positive_rate.low < 0.1 < found.false_positive_rate.high
    True
    """
    found = scores.true_positive_rate(false_positive_rate)
    choosing, judging = scores.split(rng)
    threshold = choosing.threshold(false_positive_rate)
    return OperatingPoint(
        false_positive_rate,
        found,
        threshold,
        _rate_at_least(judging.non_members, threshold, confidence),
        _rate_at_least(judging.members, threshold, confidence),
    )


def advantage_at_held_out_threshold(
    scores: Scores, *, confidence: float, rng: np.random.Generator
) -> Interval:
    """True less false positives at the threshold that is best on a random half, judged on the other.

    The interval is that of the difference of two rates, each within its Clopper-Pearson interval at half of
    the error probability.

    :raises InvalidInput: if all scores are equal.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = advantage_at_held_out_threshold(scores, confidence=0.95, rng=rng)
    >>> found.low < 0.383 < found.high  # Phi(1/2) - Phi(-1/2)
    True
    """
    scores.check_not_constant()
    choosing, judging = scores.split(rng)
    roc = choosing.roc()
    threshold = float(roc.thresholds[np.argmax(roc.true_positive_rates - roc.false_positive_rates)])
    each = (1.0 + confidence) / 2.0
    found = _rate_at_least(judging.members, threshold, each)
    false = _rate_at_least(judging.non_members, threshold, each)
    return Interval(found.value - false.value, found.low - false.high, found.high - false.low, confidence)


def largest_advantage(scores: Scores, *, confidence: float) -> Interval:
    """The largest true less false positives over all thresholds, which is biased upwards, with a band that
    holds it all the same: Dvoretzky-Kiefer-Wolfowitz at half of the error probability for either class.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = largest_advantage(scores, confidence=0.95)
    >>> found.low < 0.383 < found.high
    True
    """
    check_real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
    roc = scores.roc()
    value = float((roc.true_positive_rates - roc.false_positive_rates).max())
    level = (1.0 - confidence) / 2.0
    band = dkw_half_width(scores.members.size, level) + dkw_half_width(scores.non_members.size, level)
    return Interval(value, max(0.0, value - band), min(1.0, value + band), confidence)


def _rate_at_least(scores: Array, threshold: float, confidence: float) -> Interval:
    return clopper_pearson(int((scores >= threshold).sum()), scores.size, confidence=confidence)


def _resampled_auc(scores: Scores, resamples: int, rng: np.random.Generator) -> Array:
    """The AUC of R resamples of either class; of shape (R,)."""
    values = np.unique(np.concatenate([scores.members, scores.non_members]))
    n, m = scores.members.size, scores.non_members.size
    share_in = np.bincount(np.searchsorted(values, scores.members), minlength=values.size) / n
    share_out = np.bincount(np.searchsorted(values, scores.non_members), minlength=values.size) / m
    found = []
    rows = max(1, _CELLS // values.size)
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        a = rng.multinomial(n, share_in, size)  # (rows, u)
        b = rng.multinomial(m, share_out, size)
        not_above = np.cumsum(b, axis=1)
        found.append(np.einsum("ru,ru->r", a, not_above - b / 2.0) / (n * m))
    return np.concatenate(found)
