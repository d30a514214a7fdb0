"""Intervals for measured rates: exact ones, and the error that shadow models add.

Other shadow models would move the scores of all records.  Most of this movement is independent from record to
record, and intervals over records contain it already.  A jackknife over groups of shadow models estimates the
shared movement (Efron & Stein 1981, Annals of Statistics 9(3)): the attack is repeated without each group,
and the same figure is computed on two random halves of the records.  Independent movements cancel in the
covariance of the halves

    V = (G - 1) / G  sum over g of (a_g - mean a) (b_g - mean b)

Letters: K shadows, G groups, a_g and b_g the figure of the halves without group g.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, stdtrit

from tacit.attacks.scores import Scores
from tacit.errors import InvalidInput, check_integer, check_real

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate and an interval around it that contains the truth with probability ``confidence``.

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
    """Return the upper Clopper-Pearson bound: the rate exceeds it with probability at most ``level``.

    It is the rate at which Pr[Bin(trials, rate) <= hits] = level (Clopper & Pearson 1934, Biometrika 26), or
    1 without trials.

    Args:
        hits: integers, of any shape that broadcasts with ``trials``.
        trials: integers >= ``hits``.
        level: in (0, 1), one-sided.

    >>> largest_rate([0, 5], 500, 0.025).round(5).tolist()
    [0.00735, 0.02318]
    """
    k, n = _counts(hits, trials)
    check_real("level", level, low=0.0, high=1.0, open_low=True, open_high=True)
    inside = k < n
    bound = betaincinv(np.where(inside, k + 1.0, 1.0), np.where(inside, n - k, 1.0), 1.0 - level)
    return np.where(inside, bound, 1.0).astype(np.float64)


def least_rate(hits: ArrayLike, trials: ArrayLike, level: float) -> Array:
    """Return the lower Clopper-Pearson bound: the rate is below it with probability at most ``level``.

    >>> least_rate(10, 10, 0.05).round(5).item()  # 0.05 to the power 1/10
    0.74113
    """
    k, n = _counts(hits, trials)
    return 1.0 - largest_rate(n - k, n, level)


def clopper_pearson(hits: int, trials: int, *, confidence: float) -> Interval:
    """Return the two-sided interval for a rate, from ``hits`` in ``trials``.

    Raises:
        InvalidInput: if there are no trials, or more hits than trials.

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


def _counts(hits: ArrayLike, trials: ArrayLike) -> tuple[Array, Array]:
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    if not (np.isfinite(k).all() and np.isfinite(n).all() and (k >= 0.0).all() and (k <= n).all()):
        raise InvalidInput(f"hits must be counts from 0 to trials; got {hits!r} of {trials!r}.")
    return k, n


Figure: TypeAlias = Callable[[Scores], float]

_GROUPS, _HALVINGS = 8, 8


def shadow_groups(shadows: int) -> list[NDArray[np.int64]]:
    """Group K shadow models for leaving out: up to 8 groups of whole pairs.

    Every record is still in half of the other models.  With fewer than three pairs the groups are single
    models.

    Args:
        shadows: K >= 4, in pairs as :func:`tacit.attacks.shadows.paired_halves` makes them.

    >>> [group.tolist() for group in shadow_groups(6)], len(shadow_groups(4)), len(shadow_groups(64))
    ([[0, 1], [2, 3], [4, 5]], 4, 8)
    """
    check_integer("shadows", shadows, low=4)
    if shadows < 6:
        return [np.array([model]) for model in range(shadows)]
    pairs = np.arange(shadows // 2)
    return [
        np.stack([2 * part, 2 * part + 1], axis=1).ravel()
        for part in np.array_split(pairs, min(_GROUPS, len(pairs)))
    ]


def shadow_reach(
    without: Sequence[Scores], figure: Figure, *, confidence: float, rng: np.random.Generator
) -> float:
    """Return half the width of the interval from the shadow models alone; 0 if they share no movement.

    Args:
        without: the scores of the same records without each of the G groups, G >= 2.
        figure: computes a number from scores.  It must accept either half.
        rng: splits the records in halves.  It must be independent of the scores.

    Raises:
        InvalidInput: if there is one group, or the records differ from group to group.

    >>> rng = np.random.default_rng(0)
    >>> moved = [Scores(rng.normal(size=500) + shift, rng.normal(size=500)) for shift in rng.normal(size=8)]
    >>> shadow_reach(moved, Scores.auc, confidence=0.95, rng=rng) > 0.1
    True
    """
    sizes = {(scores.members.size, scores.non_members.size) for scores in without}
    if len(without) < 2 or len(sizes) != 1:
        raise InvalidInput(
            f"without must hold scores without each of several groups; got {len(without)} tables of "
            f"{len(sizes)} different sizes. Score the same records without each of at least two groups of "
            "shadow models."
        )
    (n, m), groups, covariances = sizes.pop(), len(without), []
    for _ in range(_HALVINGS):
        members, non_members = rng.permutation(n), rng.permutation(m)
        moved = []
        for half in (slice(None, None, 2), slice(1, None, 2)):
            values = np.array([figure(_part(one, members[half], non_members[half])) for one in without])
            moved.append(values - values.mean())
        covariances.append(float((moved[0] * moved[1]).sum()) * (groups - 1) / groups)
    common = max(0.0, float(np.mean(covariances)))
    return float(stdtrit(groups - 1, (1.0 + confidence) / 2.0)) * math.sqrt(common)


def widened(interval: Interval, reach: float, *, low: float = 0.0, high: float = 1.0) -> Interval:
    """Widen ``interval`` by an independent error of ``reach`` to both sides, within [low, high].

    The squares of both distances add (Zou & Donner 2008, Statistics in Medicine 27(10), with one term moved).

    >>> print(widened(Interval(0.5, 0.47, 0.53, 0.95), 0.04))
    0.5 (0.95 interval 0.45 to 0.55)
    """
    return Interval(
        interval.value,
        max(low, interval.value - math.hypot(interval.value - interval.low, reach)),
        min(high, interval.value + math.hypot(interval.high - interval.value, reach)),
        interval.confidence,
    )


def _part(scores: Scores, members: NDArray[np.int64], non_members: NDArray[np.int64]) -> Scores:
    return Scores(scores.members[members], scores.non_members[non_members])
