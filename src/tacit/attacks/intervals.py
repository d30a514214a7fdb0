"""Confidence intervals for measured rates: exact intervals, and the error that shadow models add.

With other shadow models, the scores of all records would change.  Most of this change is independent from
record to record, and intervals over records include it already.  The rest is shared by all records, and a
jackknife over groups of shadow models estimates it (Efron & Stein 1981, Annals of Statistics 9(3)).  The
attack is repeated without each group, and each time its metric is computed on two random halves of the
records.  Independent changes cancel in the covariance of the halves

    V = (G - 1) / G  sum over g of (a_g - mean a) (b_g - mean b)

Letters: K shadow models, G groups, a_g and b_g the metric on either half without group g.
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
    """An estimate and a confidence interval, which contains the true value with probability ``confidence``.

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
    """Return the upper Clopper-Pearson bound, which the true rate exceeds with probability at most ``level``.

    The bound is the rate at which Pr[Bin(trials, rate) <= hits] = level (Clopper & Pearson 1934, Biometrika
    26).  It is 1 if there are no trials.

    Args:
        hits: integers, of any shape that broadcasts with ``trials``.
        trials: integers >= ``hits``.
        level: the one-sided level, in (0, 1).

    >>> largest_rate([0, 5], 500, 0.025).round(5).tolist()
    [0.00735, 0.02318]
    """
    k, n = _counts(hits, trials)
    check_real("level", level, low=0.0, high=1.0, open_low=True, open_high=True)
    inside = k < n
    bound = betaincinv(np.where(inside, k + 1.0, 1.0), np.where(inside, n - k, 1.0), 1.0 - level)
    return np.where(inside, bound, 1.0).astype(np.float64)


def least_rate(hits: ArrayLike, trials: ArrayLike, level: float) -> Array:
    """Return the lower Clopper-Pearson bound; the true rate is below it with probability at most ``level``.

    >>> least_rate(10, 10, 0.05).round(5).item()  # 0.05 to the power 1/10
    0.74113
    """
    k, n = _counts(hits, trials)
    return 1.0 - largest_rate(n - k, n, level)


def clopper_pearson(hits: int, trials: int, *, confidence: float) -> Interval:
    """Return the two-sided Clopper-Pearson interval for a rate, from ``hits`` in ``trials``.

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
    """Divide K shadow models into at most 8 groups of whole pairs.  The jackknife leaves out each once.

    Without one group, every record is still in the training data of half of the other models.  If there are
    fewer than three pairs, the groups are single models.

    Args:
        shadows: K >= 4, the number of models, paired as by :func:`tacit.attacks.shadows.paired_halves`.

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
    """Return half the width of an interval for the error that comes from the choice of shadow models.

    It is 0 if the estimate of the shared change is not positive.

    Args:
        without: the scores of the same records without each of the G groups, G >= 2.
        figure: a function that computes a metric from scores.  It must also accept half of the scores.
        rng: the generator that splits the records into halves.  It must be independent of the scores.

    Raises:
        InvalidInput: if there is only one group, or the numbers of records differ between groups.

    >>> rng = np.random.default_rng(0)
    >>> moved = [Scores(rng.normal(size=500) + shift, rng.normal(size=500)) for shift in rng.normal(size=8)]
    >>> shadow_reach(moved, Scores.auc, confidence=0.95, rng=rng) > 0.1
    True
    """
    sizes = {(scores.members.size, scores.non_members.size) for scores in without}
    if len(without) < 2 or len(sizes) != 1:
        raise InvalidInput(
            f"the argument 'without' needs scores of equal size from several groups; got {len(without)} "
            f"tables of {len(sizes)} different sizes. Score the same records without each of at least two "
            "groups of shadow models."
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
    """Widen ``interval`` for an independent error of up to ``reach`` in both directions, within [low, high].

    On each side, the new distance from the value is sqrt(old distance^2 + reach^2), as in Zou & Donner 2008,
    Statistics in Medicine 27(10).

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
