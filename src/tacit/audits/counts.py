"""Joint bounds from the two error counts of one test.

At a threshold fixed beforehand, X of m non-members are called members and Y of n members are missed.  X and Y
are binomial with rates a and b.  Let x and y be the observed counts, and w a weight.  The trade-off function
f is contradicted if so few errors are unlikely at all rates that f allows, b >= f(a):

    sup over a of  Pr[w X / m + Y / n <= w x / m + y / n  |  a, f(a)]  <=  level.

This test is stronger than two separate bounds on the rates, each at half of the level.  The probability
decreases in a and in b.  So between two values of a, it is at most the probability for the smaller a and for
f at the larger a.

Letters in shapes: c intervals of a, x numbers of false positives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, gammaln, ndtri

from tacit.accounting.price import halved
from tacit.attacks import Scores
from tacit.attacks.intervals import largest_rate
from tacit.errors import check_real

Array: TypeAlias = NDArray[np.float64]
Tradeoff: TypeAlias = Callable[[Array], Array]
Objective: TypeAlias = Callable[[Array, Array], Array]

_QUANTILES = np.arange(1, 50) / 50.0  # these quantiles of the scores that choose are the thresholds to try
_ROUNDING = 1e-9  # the relative rounding error of a probability that is summed here
_FIRST, _MOST, _ROUNDS = 33, 48, 40  # the first number of interval ends, most intervals, most halvings


@dataclass(frozen=True)
class ErrorCounts:
    """The errors of one test, which calls a record a member if its score is at least ``threshold``.

    ``weight`` is w.  Threshold and weight must not depend on the records whose errors are counted."""

    threshold: float
    weight: float
    false_positives: int
    non_members: int
    false_negatives: int
    members: int

    def contradicts(self, tradeoff: Tradeoff, level: float) -> bool:
        """Return whether so few errors have a probability of at most ``level`` at all allowed rates.

        The allowed rates are those on or above ``tradeoff``, which must be decreasing.  If the largest
        probability is within about 1 % of ``level``, the decision takes too long, and the result is False.

        >>> few = ErrorCounts(0.0, 1.0, false_positives=5, non_members=100, false_negatives=5, members=100)
        >>> few.contradicts(lambda a: 1.0 - a, 0.01), few.contradicts(lambda a: 0.0 * a, 0.01)
        (True, False)
        """
        ends = np.linspace(0.0, 1.0, _FIRST)
        low, high = ends[:-1], ends[1:]
        for _ in range(_ROUNDS):
            f = tradeoff(high)
            still = self._one_by_one(low, f) > level
            still[still] = self._chance(low[still], f[still]) > level
            low, high, f = low[still], high[still], f[still]
            if low.size == 0:
                return True
            if low.size > _MOST or (self._chance(high, f) > level).any():
                return False
            middle = (low + high) / 2.0
            low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        return False

    @cached_property
    def _few(self) -> tuple[int, NDArray[np.int64]]:
        """The number of values x >= 0 that the observed statistic allows, and the largest y for each."""
        m, n, w = self.non_members, self.members, self.weight
        statistic = w * self.false_positives / m + self.false_negatives / n
        x = np.arange(0.0, min(m, np.floor(statistic * m / w + _ROUNDING)) + 1.0)
        y = np.clip(np.floor(n * (statistic - w * x / m) + _ROUNDING), 0.0, n)
        return x.size, y.astype(np.int64)

    def _chance(self, a: Array, b: Array) -> Array:
        """Return the (c,) probabilities of so few errors at (c,) rates ``a`` and ``b``, rounded up."""
        size, y = self._few
        mass = _binomial(size, self.non_members, a)
        below = np.cumsum(_binomial(int(y[0]) + 1, self.members, b), axis=1)
        total: Array = np.einsum("cx,cx->c", mass, below[:, y])
        return total * (1.0 + _ROUNDING)

    def _one_by_one(self, a: Array, b: Array) -> Array:
        """Return a quick upper bound on :meth:`_chance`, from the largest value of each count alone."""
        size, y = self._few
        return np.minimum(bdtr(size - 1.0, self.non_members, a), bdtr(float(y[0]), self.members, b))


def counts_after_halving(
    scores: Scores, choose: Objective, *, level: float, rng: np.random.Generator
) -> ErrorCounts:
    """Count the errors of one random half of ``scores`` at the threshold that the other half chooses.

    The chosen threshold maximises ``choose(a, b)``, with a and b upper bounds on the rates of false positives
    and false negatives, each at ``level`` / 2.
    """
    choosing, judging = scores.split(rng)
    return _judged(judging, choosing, choose, level)


def counts_after_rehearsal(
    scores: Scores, rehearsal: Scores, choose: Objective, *, level: float
) -> ErrorCounts:
    """Count the errors of all ``scores`` at the threshold that an independent simulation chooses."""
    return _judged(scores, rehearsal, choose, level)


def largest_contradicted(contradicted: Callable[[float], bool], most: float, *, halvings: int) -> float:
    """Find the largest number up to ``most`` that is contradicted, or 0 if none is.

    If a number is contradicted, all smaller ones must be too.  The result is rounded down, by the width of
    the last interval after ``halvings`` halvings."""
    if not contradicted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < most and contradicted(high):
        low, high = high, 2.0 * high
    return halved(contradicted, low, high, halvings)[0]


def _judged(scores: Scores, choosing: Scores, choose: Objective, level: float) -> ErrorCounts:
    n, m = scores.members.size, scores.non_members.size
    pooled = np.concatenate([choosing.members, choosing.non_members])
    thresholds = np.unique(np.quantile(pooled, _QUANTILES, method="higher"))
    false_negatives = (
        np.searchsorted(np.sort(choosing.members), thresholds, side="left") / choosing.members.size
    )
    passed = np.searchsorted(np.sort(choosing.non_members), thresholds, side="left")
    false_positives = 1.0 - passed / choosing.non_members.size
    foreseen = (
        largest_rate(np.round(m * false_positives), m, level / 2.0),
        largest_rate(np.round(n * false_negatives), n, level / 2.0),
    )
    best = int(np.argmax(choose(*foreseen)))
    return ErrorCounts(
        float(thresholds[best]),
        _slope((m * false_positives[best] + 0.5) / (m + 1.0), (n * false_negatives[best] + 0.5) / (n + 1.0)),
        int((scores.non_members >= thresholds[best]).sum()),
        m,
        int((scores.members < thresholds[best]).sum()),
        n,
    )


def _binomial(size: int, trials: int, rates: Array) -> Array:
    """Compute Pr[Bin(trials, rate) = k] for k < ``size`` and (c,) rates, of shape (c, size)."""
    k, rate = np.arange(float(size)), rates[:, None]
    ways = gammaln(trials + 1.0) - gammaln(k + 1.0) - gammaln(trials - k + 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = k * np.log(rate) + (trials - k) * np.log1p(-rate)
    edge = np.where(np.where(rate <= 0.0, k == 0.0, k == trials), 0.0, -np.inf)
    mass: Array = np.exp(ways + np.where((rate > 0.0) & (rate < 1.0), inside, edge))
    return mass


def _slope(a: float, b: float) -> float:
    """Return -f'(a), the weight of a false positive, for the Gaussian trade-off function f through (a, b)."""
    return float(np.clip(np.exp((ndtri(a) ** 2 - ndtri(b) ** 2) / 2.0), 1.0 / 16.0, 16.0))


def bounded_rates(
    scores: Scores, choose: Objective, *, level: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return upper Clopper-Pearson bounds on the rates of false positives and false negatives of one half.

    The other half chooses the threshold, because a threshold looks too good on the scores that chose it.

    Args:
        level: the largest probability with which each of the two bounds may fail.
    """
    counts = counts_after_halving(scores, choose, level=2.0 * level, rng=rng)
    return (
        float(largest_rate(counts.false_positives, counts.non_members, level)),
        float(largest_rate(counts.false_negatives, counts.members, level)),
    )


def epsilons_shown(false_positives: Array, false_negatives: Array, delta: float) -> Array:
    """Return the largest epsilon that the rates contradict at ``delta``: log((1 - delta - FNR) / FPR), or 0.

    See Kairouz, Oh & Viswanath 2015, 1311.0776, Theorem 2.1.  Exchange the rates to get the bound for the
    other direction.
    """
    true_positives = np.maximum(1.0 - delta - false_negatives, 1e-300)
    return np.maximum(0.0, np.log(true_positives / np.maximum(false_positives, 1e-300)))


def mus_shown(false_positives: Array, false_negatives: Array) -> Array:
    """Return the largest mu for which the rates contradict mu-GDP: Phi^-1(1 - FPR) - Phi^-1(FNR), or 0."""
    with np.errstate(invalid="ignore"):
        mu = -ndtri(false_positives) - ndtri(false_negatives)
    return np.maximum(0.0, np.nan_to_num(mu, nan=0.0, neginf=0.0))


def check_confidence(confidence: float) -> float:
    """Return ``confidence``, and refuse a value below one half, which would show nothing."""
    return check_real("confidence", confidence, low=0.5, high=1.0, open_high=True)
