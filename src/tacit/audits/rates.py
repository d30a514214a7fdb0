"""What are the error rates of a membership test? Bounds, at a threshold chosen by other records.

A threshold picked for its rates looks better than it is.  Here one half of the scores picks it and the other
half, which is independent of the choice, bounds its rates: Clopper-Pearson from above, for either rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.attacks import Scores
from tacit.attacks.intervals import largest_rate
from tacit.errors import check_real

Array: TypeAlias = NDArray[np.float64]
Objective: TypeAlias = Callable[[Array, Array], Array]

_QUANTILES = np.arange(1, 50) / 50.0  # of the choosing half: the candidate thresholds


@dataclass(frozen=True)
class RateBounds:
    """Upper bounds on both error rates of "member if the score is at least ``threshold``".

    Each is exceeded with probability at most the requested level.
    """

    threshold: float
    false_positives: float
    false_negatives: float


def bounded_rates(scores: Scores, choose: Objective, *, level: float, rng: np.random.Generator) -> RateBounds:
    """The threshold at which ``choose(false positives, false negatives)``, of upper bounds, is largest on a
    random half of the scores, and upper bounds on its rates from the other half.

    :param level: of each of the two bounds.
    """
    choosing, judging = scores.split(rng)
    thresholds = _thresholds(choosing)
    return _judged(judging, thresholds[np.argmax(choose(*_upper(choosing, thresholds, level)))], level)


def _thresholds(scores: Scores) -> Array:
    pooled = np.concatenate([scores.members, scores.non_members])
    return np.unique(np.quantile(pooled, _QUANTILES, method="higher"))


def _judged(scores: Scores, threshold: float, level: float) -> RateBounds:
    false_positives, false_negatives = _upper(scores, np.array([threshold]), level)
    return RateBounds(float(threshold), float(false_positives[0]), float(false_negatives[0]))


def _upper(scores: Scores, thresholds: Array, level: float) -> tuple[Array, Array]:
    """Upper bounds on both rates at each threshold."""
    n, m = scores.members.size, scores.non_members.size
    false_positives, false_negatives = _rates(scores, thresholds)
    return (
        largest_rate(np.round(m * false_positives), m, level),
        largest_rate(np.round(n * false_negatives), n, level),
    )


def _rates(scores: Scores, thresholds: Array) -> tuple[Array, Array]:
    """False positives and false negatives at each threshold, as shares."""
    missed = np.searchsorted(np.sort(scores.members), thresholds, side="left")
    passed = np.searchsorted(np.sort(scores.non_members), thresholds, side="left")
    return 1.0 - passed / scores.non_members.size, missed / scores.members.size


def epsilons_shown(false_positives: Array, false_negatives: Array, delta: float) -> Array:
    """The largest epsilon that these rates contradict at ``delta``: log((1 - delta - FNR) / FPR), or 0.

    Exchange the rates for the bound from the mirrored test (Kairouz, Oh & Viswanath 2015, 1311.0776,
    Theorem 2.1).
    """
    found = np.maximum(1.0 - delta - false_negatives, 1e-300)
    return np.maximum(0.0, np.log(found / np.maximum(false_positives, 1e-300)))


def mus_shown(false_positives: Array, false_negatives: Array) -> Array:
    """The largest mu whose Gaussian these rates contradict: Phi^-1(1 - FPR) - Phi^-1(FNR), or 0."""
    with np.errstate(invalid="ignore"):
        mu = -ndtri(false_positives) - ndtri(false_negatives)
    return np.maximum(0.0, np.nan_to_num(mu, nan=0.0, neginf=0.0))


def check_confidence(confidence: float) -> float:
    """Refuse a confidence below one half, at which nothing is shown."""
    return check_real("confidence", confidence, low=0.5, high=1.0, open_high=True)
