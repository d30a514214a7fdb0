"""Metrics of an attack's scores, each with a confidence interval.

The largest value over all thresholds is biased upwards.  If the choice of a threshold depends on the scores
of members, it is therefore made on one half of the records, and the metric is computed on the other half.
Intervals cover the choice of records and of shadow models for the *same* attacked model.  They do not cover
another training run.  Attack several models to see how much runs differ.

Letters: n members, m non-members, x_j the j-th highest score of a non-member, h_j the number of members with
scores of at least x_j.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, stdtrit
from scipy.stats import binom

from tacit.attacks.intervals import (
    Figure,
    Interval,
    clopper_pearson,
    least_rate,
    shadow_reach,
    widened,
)
from tacit.attacks.scores import Scores
from tacit.errors import check_real

Array: TypeAlias = NDArray[np.float64]

_RARE = 1e-9  # the probability mass that a sum leaves out at either end


@dataclass(frozen=True)
class OperatingPoint:
    """One threshold and its two rates.

    ``target`` is the requested false-positive rate.  The pair of rates can be compared with a trade-off
    curve.  For the share of members found at exactly ``target`` see :func:`found_at`.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = operating_point(scores, 0.05, confidence=0.95)
    >>> found.target, found.false_positive_rate.low < 0.05 < found.false_positive_rate.high
    (0.05, True)
    """

    target: float
    threshold: float
    false_positive_rate: Interval
    true_positive_rate: Interval


@dataclass(frozen=True)
class FoundAt:
    """The share of members found at the false-positive rate ``target``.

    >>> FoundAt(0.01, Interval(0.1, 0.05, 0.15, 0.95)).target
    0.01
    """

    target: float
    true_positive_rate: Interval


@dataclass(frozen=True)
class Measured:
    """The metrics of one attack on one model.  ``points`` has one entry for each requested rate.

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
    points: tuple[FoundAt, ...]


def measure(
    scores: Scores,
    *,
    false_positive_rates: tuple[float, ...],
    confidence: float,
    rng: np.random.Generator,
    without: Sequence[Scores] = (),
) -> Measured:
    """Measure AUC, advantage and the share of members found at each false-positive rate.

    Args:
        false_positive_rates: rates in (0, 1], each at least 5 / (number of non-members).
        confidence: the confidence of each single interval.
        rng: the generator that splits the records into halves.  It must be independent of the scores.
        without: the scores of the same records, once without each group of the attack's shadow models
            (:func:`tacit.attacks.membership.attacks_without`).  If this is empty, the intervals leave out
            that error of the shadow models which all records share.

    Raises:
        InvalidInput: if there are too few non-members, the scores are constant, or members score lower.

    **Guarantee**

    * Each interval contains the true metric of the same model with probability of about ``confidence``, over
      the choice of records and of shadow models.

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

    def wide(interval: Interval, figure: Figure, low: float = 0.0) -> Interval:
        if not without:
            return interval
        return widened(interval, shadow_reach(without, figure, confidence=confidence, rng=rng), low=low)

    advantage = advantage_at_held_out_threshold(scores, confidence=confidence, rng=rng)
    points = []
    for rate in false_positive_rates:
        one = found_at(scores, rate, confidence=confidence)
        points.append(FoundAt(rate, wide(one, lambda part, rate=rate: _share_found(part, rate))))  # type: ignore[misc]
    return Measured(
        scores.members.size,
        scores.non_members.size,
        wide(auc_interval(scores, confidence=confidence), Scores.auc),
        wide(advantage, _largest, low=-1.0),
        tuple(points),
    )


def found_at(scores: Scores, false_positive_rate: float, *, confidence: float) -> Interval:
    """Measure the share of members found at false-positive rate a, at the threshold x_k with k = floor(a m).

    All records are used, because the threshold does not depend on members.  The number J of non-members above
    the true threshold has the distribution Bin(m, a).  Given J, the true threshold lies between x_(J + 1) and
    x_J, so Clopper-Pearson bounds for h_J and h_(J + 1) of n members hold.  The interval comes from the
    mixture of these bounds over J.  If the true threshold were known, it would be the Clopper-Pearson
    interval.

    Raises:
        InvalidInput: if the rate is out of range, or all scores are equal.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = found_at(scores, 0.01, confidence=0.95)
    >>> found.low < 0.0924 < found.high  # Phi(1 + Phi^-1(0.01))
    True
    """
    a = check_real("false_positive_rate", false_positive_rate, low=0.0, high=1.0, open_low=True)
    check_real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
    scores.check_not_constant()
    n, m, level = scores.members.size, scores.non_members.size, (1.0 - confidence) / 2.0
    x = np.sort(scores.non_members)[::-1]
    members = np.sort(scores.members)
    above = np.concatenate([[0], n - np.searchsorted(members, x, side="right"), [n]])
    at_least = np.concatenate([[0], n - np.searchsorted(members, x, side="left"), [n]])  # h_j
    j = np.arange(int(binom.ppf(_RARE, m, a)), int(binom.isf(_RARE, m, a)) + 1)
    weights = binom.pmf(j, m, a)
    fewest, most = np.minimum(at_least[j], above[j + 1]), at_least[j + 1]  # a tie is never split
    value = _share_found(scores, a)
    low = _mixed_quantile(weights, fewest, n - fewest + 1, level)
    high = _mixed_quantile(weights, most + 1, n - most, 1.0 - level)
    return Interval(value, min(low, value), max(high, value), confidence)


def auc_interval(scores: Scores, *, confidence: float) -> Interval:
    """Measure the AUC, with an interval by DeLong's method.

    The interval comes from the variance of each record's rank among the records of the other class (DeLong,
    DeLong & Clarke-Pearson 1988, Biometrics 44(3)).  It is computed for the log odds, so that it stays in
    [0, 1], and uses Student's t for the size of the smaller class.  If the scores of the two classes do not
    overlap, this variance is 0.  Then the interval is the exact one for min(n, m) disjoint pairs that are all
    in order.

    Raises:
        InvalidInput: if all scores are equal.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = auc_interval(scores, confidence=0.95)
    >>> found.low < 0.76 < found.high
    True
    """
    check_real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
    scores.check_not_constant()
    value, level = scores.auc(), (1.0 - confidence) / 2.0
    fewest = min(scores.members.size, scores.non_members.size)
    if value in (0.0, 1.0) or fewest < 2:
        worst = float(least_rate(fewest, fewest, level))
        low, high = (worst, 1.0) if value == 1.0 else (0.0, 1.0 - worst) if value == 0.0 else (0.0, 1.0)
        return Interval(value, low, high, confidence)
    places = (
        _places(scores.members, scores.non_members),
        _places(scores.non_members, scores.members),
    )
    error = math.sqrt(sum(float(part.var(ddof=1)) / part.size for part in places))
    reach = float(stdtrit(fewest - 1, 1.0 - level)) * error / (value * (1.0 - value))
    odds = math.log(value / (1.0 - value))
    low, high = (1.0 / (1.0 + math.exp(-(odds + side * reach))) for side in (-1, 1))
    return Interval(value, low, high, confidence)


def operating_point(scores: Scores, false_positive_rate: float, *, confidence: float) -> OperatingPoint:
    """Measure both rates of the threshold just above x_(k + 1), with k = floor(a m).

    The true false-positive rate of a threshold from a sample is only roughly a, so *both* rates have an
    interval.  All records of either class are used.  k is fixed beforehand, so the true false-positive rate
    has the distribution Beta(k + 1, m - k) of an order statistic, or is smaller if scores are tied.  The
    threshold does not depend on members, so the true-positive rate has a Clopper-Pearson interval.

    **Guarantee**

    * Each interval contains the true rate of this threshold with probability at least ``confidence``.  If
      scores of non-members are tied, only the upper end of the false-positive rate's interval holds.

    Raises:
        InvalidInput: if ``false_positive_rate`` times the number of non-members is below 5.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = operating_point(scores, 0.1, confidence=0.95)
    >>> found.false_positive_rate.low < 0.1 < found.false_positive_rate.high
    True
    """
    scores.check_enough(false_positive_rate)
    scores.check_not_constant()
    check_real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
    n, m, level = scores.members.size, scores.non_members.size, (1.0 - confidence) / 2.0
    k = _allowed(false_positive_rate, m)
    below = float(np.partition(scores.non_members, m - k - 1)[m - k - 1]) if k < m else -math.inf
    ends = (betaincinv(k + 1, m - k, part) if k < m else 1.0 for part in (level, 1.0 - level))
    falsely = float((scores.non_members > below).mean())
    low, high = (float(end) for end in ends)
    return OperatingPoint(
        false_positive_rate,
        float(np.nextafter(below, math.inf)),
        Interval(falsely, min(low, falsely), max(high, falsely), confidence),
        clopper_pearson(int((scores.members > below).sum()), n, confidence=confidence),
    )


def advantage_at_held_out_threshold(
    scores: Scores, *, confidence: float, rng: np.random.Generator
) -> Interval:
    """Measure the advantage, the true-positive rate minus the false-positive rate, on held-out records.

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


# --- steps ------------------------------------------------------------------------------------------------


def _allowed(rate: float, non_members: int) -> int:
    """Return k, the largest number of non-members that may score above a threshold."""
    return math.floor(rate * non_members + 1e-9)


def _share_found(scores: Scores, rate: float) -> float:
    """Return the share of members at or above the threshold for ``rate``.

    The threshold is a score of a non-member, and does not split ties.  If ``rate`` allows no false positive,
    only members with a score above all non-members count.
    """
    x = np.sort(scores.non_members)[::-1]
    allowed = _allowed(rate, x.size)
    at_least = np.searchsorted(-x, -x, side="right")  # non-members at or above each
    fits = np.flatnonzero(at_least <= allowed)
    passed = scores.members >= x[fits[-1]] if fits.size else scores.members > x[0]
    return float(passed.mean())


def _mixed_quantile(weights: Array, hits: NDArray[np.int64], rest: NDArray[np.int64], level: float) -> float:
    """Return the quantile of a mixture of Beta(hits, rest).

    A component is the constant 0 if its ``hits`` is 0, and the constant 1 if its ``rest`` is 0.
    """
    zero, one = hits == 0, rest == 0
    inside = ~(zero | one)
    weights = weights / weights.sum()
    w, a, b, nought = weights[inside], hits[inside], rest[inside], float(weights[zero].sum())

    def above(t: float) -> float:
        return nought + float((w * betainc(a, b, t)).sum()) - level

    if above(0.0) >= 0.0:
        return 0.0
    return 1.0 if above(1.0) <= 0.0 else float(brentq(above, 0.0, 1.0, xtol=1e-12))


def _places(scores: Array, reference: Array) -> Array:
    """Return the share of ``reference`` that is below each score.  Ties count half."""
    ordered = np.sort(reference)
    sides = (np.searchsorted(ordered, scores, side=side) for side in ("left", "right"))
    return np.asarray(sum(sides) / 2.0 / reference.size, dtype=np.float64)


def _best_threshold(scores: Scores) -> float:
    roc = scores.roc()
    return float(roc.thresholds[np.argmax(roc.true_positive_rates - roc.false_positive_rates)])


def _largest(scores: Scores) -> float:
    """Return the advantage of the threshold that is best on these same scores."""
    roc = scores.roc()
    return float((roc.true_positive_rates - roc.false_positive_rates).max())


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
