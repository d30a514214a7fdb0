"""How precise is a measured rate? Confidence intervals, exact at every sample size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from tacit.errors import InvalidInput, check_integer, check_real

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate and an interval around it that holds the truth with probability ``confidence``.

    >>> print(Interval(0.76, low=0.74, high=0.78, confidence=0.95))
    0.76 (0.95 interval 0.74 to 0.78)
    """

    value: float
    low: float
    high: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.confidence:.4g} interval {self.low:.4g} to {self.high:.4g})"


def largest_rate(hits: ArrayLike, trials: ArrayLike, level: float) -> Array:
    """The upper Clopper-Pearson bound: the rate exceeds it with probability at most ``level``.

    It is the rate at which Pr[Bin(trials, rate) <= hits] = level (Clopper & Pearson 1934, Biometrika 26);
    1 where there are no trials.

    :param hits: integers, of any shape that broadcasts with ``trials``.
    :param trials: integers >= ``hits``.
    :param level: in (0, 1), one-sided.

    >>> largest_rate([0, 5], 500, 0.025).round(5).tolist()
    [0.00735, 0.02318]
    """
    k, n = _counts(hits, trials)
    check_real("level", level, low=0.0, high=1.0, open_low=True, open_high=True)
    inside = k < n
    bound = betaincinv(np.where(inside, k + 1.0, 1.0), np.where(inside, n - k, 1.0), 1.0 - level)
    return np.where(inside, bound, 1.0).astype(np.float64)


def least_rate(hits: ArrayLike, trials: ArrayLike, level: float) -> Array:
    """The lower Clopper-Pearson bound: the rate is below it with probability at most ``level``.

    >>> least_rate(10, 10, 0.05).round(5).item()  # 0.05 to the power 1/10
    0.74113
    """
    k, n = _counts(hits, trials)
    return 1.0 - largest_rate(n - k, n, level)


def clopper_pearson(hits: int, trials: int, *, confidence: float) -> Interval:
    """The two-sided interval for a rate of which ``hits`` of ``trials`` were seen.

    :raises InvalidInput: if there are no trials, or more hits than trials.

    >>> interval = clopper_pearson(5, 500, confidence=0.95)
    >>> round(interval.low, 5), round(interval.high, 5)
    (0.00325, 0.02318)
    """
    check_integer("trials", trials, low=1)
    check_integer("hits", hits, low=0, high=trials)
    check_real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
    level = (1.0 - confidence) / 2.0
    return Interval(
        hits / trials,
        float(least_rate(hits, trials, level)),
        float(largest_rate(hits, trials, level)),
        confidence,
    )


def dkw_half_width(trials: int, level: float) -> float:
    """How far an empirical distribution function strays from the true one, anywhere, with probability at
    most ``level``: sqrt(ln(2 / level) / (2 n)) (Massart 1990, Annals of Probability 18(3), Corollary 1).

    >>> round(dkw_half_width(1000, 0.05), 5)
    0.04295
    """
    check_integer("trials", trials, low=1)
    check_real("level", level, low=0.0, high=1.0, open_low=True, open_high=True)
    return math.sqrt(math.log(2.0 / level) / (2.0 * trials))


def _counts(hits: ArrayLike, trials: ArrayLike) -> tuple[Array, Array]:
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    if not (np.isfinite(k).all() and np.isfinite(n).all() and (k >= 0.0).all() and (k <= n).all()):
        raise InvalidInput(
            f"hits must be counts between 0 and the number of trials; got {hits!r} of {trials!r}."
        )
    return k, n
