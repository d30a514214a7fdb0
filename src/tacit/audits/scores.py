"""The scores of a membership attack, and their metrics with confidence intervals.

Letters: n members, m non-members, u distinct scores, a a false-positive rate, k = floor(a m), x_j the j-th
highest score of a non-member, h_j the number of members that score at least x_j.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, ndtr, stdtrit
from scipy.stats import binom

from tacit.errors import InvalidInput, check_integer, check_real

Array: TypeAlias = NDArray[np.float64]

_FEWEST_FALSE_POSITIVES = 5  # a rate is meaningful only with this many expected false positives
_SWAPPED = 1e-6  # level of the test for swapped files, which must not reject an attack that is only useless
_RARE = 1e-9  # the probability mass that a sum leaves out at either end


# --- scores -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Roc:
    """The rates of every threshold, of shape (u + 1,); a record is called a member from the threshold on.

    The first threshold calls no record a member. Thresholds split no ties.
    """

    thresholds: Array
    false_positive_rates: Array
    true_positive_rates: Array


@final
@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of records that were in the training set (members), and of records that were not.

    A higher score must mean that the record is more likely a member. :func:`measure` raises an error if your
    scores have the opposite sign.

    Raises:
        InvalidInput: if a class is empty, or a score is NaN or infinite.

    >>> scores = Scores(members=[2.0, 3.0, 3.0], non_members=[1.0, 2.0])
    >>> round(scores.auc(), 6)
    0.916667
    """

    members: Array
    non_members: Array

    def __init__(self, members: ArrayLike, non_members: ArrayLike) -> None:
        object.__setattr__(self, "members", _checked("members", members))
        object.__setattr__(self, "non_members", _checked("non-members", non_members))

    @staticmethod
    def of(values: ArrayLike, is_member: ArrayLike) -> Scores:
        """Make scores from one array of values and one boolean for each value.

        Args:
            values: the scores of all records.
            is_member: whether the record was in the training set, for each score.

        Raises:
            InvalidInput: if the lengths differ, or ``is_member`` is not boolean.

        >>> Scores.of([0.1, 0.9], [False, True]).members.tolist()
        [0.9]
        """
        score = np.asarray(values, dtype=np.float64)
        member = np.asarray(is_member)
        if member.dtype != np.bool_ or score.shape != member.shape:
            raise InvalidInput(
                f"is_member must be one boolean per score; got {member.dtype} of shape {member.shape} for "
                f"scores of shape {score.shape}."
            )
        return Scores(score[member], score[~member])

    @property
    def constant(self) -> bool:
        """Whether all records have the same score, so the attack cannot distinguish them."""
        first = self.members[0]
        return bool((self.members == first).all() and (self.non_members == first).all())

    def roc(self) -> Roc:
        """Compute the true- and false-positive rate at every threshold.

        :meth:`auc` is the area below this curve.

        >>> roc = Scores(members=[2.0, 3.0], non_members=[1.0, 2.0]).roc()
        >>> roc.true_positive_rates.tolist(), roc.false_positive_rates.tolist()
        ([0.0, 0.5, 1.0, 1.0], [0.0, 0.0, 0.5, 1.0])
        """
        values = np.unique(np.concatenate([self.members, self.non_members]))[::-1]

        def share_at_least(scores: Array) -> Array:
            below = np.searchsorted(np.sort(scores), values, side="left")
            return np.concatenate([[0.0], (scores.size - below) / scores.size])

        thresholds = np.concatenate([[np.inf], values])
        return Roc(thresholds, share_at_least(self.non_members), share_at_least(self.members))

    def auc(self) -> float:
        """Compute the probability that a random member scores higher than a random non-member.

        A tie counts as one half.
        """
        ordered = np.sort(self.non_members)
        below = np.searchsorted(ordered, self.members, side="left")
        not_above = np.searchsorted(ordered, self.members, side="right")
        return float((below.mean() + not_above.mean()) / 2.0 / ordered.size)

    def split(self, rng: np.random.Generator) -> tuple[Scores, Scores]:
        """Split members and non-members into random halves.

        Raises:
            InvalidInput: if a class has fewer than two records.
        """
        if min(self.members.size, self.non_members.size) < 2:
            raise InvalidInput(
                f"to split the scores, give at least 2 members and 2 non-members; got {self.members.size} "
                f"and {self.non_members.size}."
            )
        members = rng.permutation(self.members)
        others = rng.permutation(self.non_members)
        a, b = members.size // 2, others.size // 2
        return Scores(members[:a], others[:b]), Scores(members[a:], others[b:])

    def check_not_constant(self) -> None:
        """Raise an error if all scores are equal."""
        if self.constant:
            raise InvalidInput(
                f"all {self.members.size + self.non_members.size} scores equal {self.members[0]:g}, so they "
                "do not tell members from non-members. Check which column is read as the score."
            )

    def check_direction(self) -> None:
        """Raise an error if members score significantly *lower* than non-members.

        The usual cause is a wrong sign, or that members and non-members are swapped. The check is a
        Mann-Whitney test at level 1e-6.

        >>> Scores(range(100), range(50, 150)).check_direction()
        Traceback (most recent call last):
            ...
        tacit.errors.InvalidInput: members score lower than non-members (AUC 0.125, ...
        """
        n, m = self.members.size, self.non_members.size
        total = n + m
        _, ties = np.unique(np.concatenate([self.members, self.non_members]), return_counts=True)
        tied = float((ties.astype(np.float64) ** 3 - ties).sum()) / (total * (total - 1.0))
        variance = n * m / 12.0 * (total + 1.0 - tied)
        if variance <= 0.0:
            return

        z = (self.auc() - 0.5) * n * m / np.sqrt(variance)
        if float(ndtr(z)) < _SWAPPED:
            raise InvalidInput(
                f"members score lower than non-members (AUC {self.auc():.3f}, {-z:.1f} standard deviations "
                "below 0.5), but they must score higher. Swap the files, or change the sign."
            )


def check_enough(false_positive_rate: float, non_members: int) -> None:
    """Refuse a false-positive rate that needs more non-members."""
    check_real("false_positive_rate", false_positive_rate, low=0.0, high=1.0, open_low=True)
    fewest = _FEWEST_FALSE_POSITIVES
    if non_members < fewest / false_positive_rate * (1.0 - 1e-12):
        raise InvalidInput(
            f"a false-positive rate of {false_positive_rate:g} needs at least "
            f"{int(np.ceil(fewest / false_positive_rate))} non-members; got {non_members}. Pass more "
            "non-members, or choose a larger rate."
        )


def _checked(name: str, values: ArrayLike) -> Array:
    scores = np.array(values, dtype=np.float64)
    if scores.ndim != 1:
        raise InvalidInput(f"{name} must be a vector of scores; got shape {scores.shape}.")
    if scores.size == 0:
        raise InvalidInput(f"{name} is empty. Pass scores of both members and non-members.")
    wrong = np.flatnonzero(~np.isfinite(scores))
    if wrong.size:
        raise InvalidInput(
            f"{wrong.size} of {scores.size} scores of {name} are not finite, first at position {wrong[0]}: "
            f"{scores[wrong[0]]}. Check whether the model's loss overflows on these records."
        )
    scores.setflags(write=False)
    return scores


# --- intervals of rates -----------------------------------------------------------------------------------


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
    26).  It is 1 if there are no trials.  ``hits`` and ``trials`` are counts of shapes that broadcast.
    """
    k, n = _counts(hits, trials)
    check_real("level", level, low=0.0, high=1.0, open_low=True, open_high=True)
    inside = k < n
    bound = betaincinv(np.where(inside, k + 1.0, 1.0), np.where(inside, n - k, 1.0), 1.0 - level)
    return np.where(inside, bound, 1.0).astype(np.float64)


def least_rate(hits: ArrayLike, trials: ArrayLike, level: float) -> Array:
    """Return the lower Clopper-Pearson bound: the true rate is below it with probability <= ``level``."""
    k, n = _counts(hits, trials)
    return 1.0 - largest_rate(n - k, n, level)


def clopper_pearson(hits: int, trials: int, *, confidence: float) -> Interval:
    """Return a confidence interval for the success rate, given ``hits`` successes in ``trials`` trials.

    It is the interval of Clopper and Pearson.

    Raises:
        InvalidInput: if there are no trials, or more hits than trials.

    >>> interval = clopper_pearson(5, 500, confidence=0.95)
    >>> round(interval.low, 5), round(interval.high, 5)
    (0.00325, 0.02318)
    """
    check_integer("trials", trials, low=1)
    check_integer("hits", hits, low=0, high=trials)
    level = _level(confidence)
    low, high = least_rate(hits, trials, level), largest_rate(hits, trials, level)
    return Interval(hits / trials, float(low), float(high), confidence)


def _counts(hits: ArrayLike, trials: ArrayLike) -> tuple[Array, Array]:
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    if not (np.isfinite(k).all() and np.isfinite(n).all() and (k >= 0.0).all() and (k <= n).all()):
        raise InvalidInput(f"hits must be counts from 0 to trials; got {hits!r} of {trials!r}.")
    return k, n


def _level(confidence: float) -> float:
    """Return the error probability at either end of an interval."""
    check_real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
    return (1.0 - confidence) / 2.0


# --- metrics ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OperatingPoint:
    """One threshold and its two rates, for the requested false-positive rate ``target``.

    Compare the pair of rates with a trade-off curve. For the share of members found at exactly ``target``,
    use :func:`found_at`.
    """

    target: float
    threshold: float
    false_positive_rate: Interval
    true_positive_rate: Interval


@dataclass(frozen=True)
class FoundAt:
    """The share of members found at false-positive rate ``target`` (the TPR)."""

    target: float
    true_positive_rate: Interval


@dataclass(frozen=True)
class Measured:
    """The metrics of one attack on one model, from :func:`measure`.

    ``points`` has one entry for each requested false-positive rate.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> measured = measure(scores, false_positive_rates=(0.01, 0.1), confidence=0.95, rng=rng)
    >>> measured.members, [point.target for point in measured.points]
    (2000, [0.01, 0.1])
    """

    members: int
    non_members: int
    auc: Interval
    points: tuple[FoundAt, ...]


def measure(
    scores: Scores,
    *,
    false_positive_rates: tuple[float, ...],
    confidence: float,
    rng: np.random.Generator,
    without: Sequence[Scores] = (),
) -> Measured:
    """Measure the AUC and the share of members found at each false-positive rate.

    Args:
        scores: the attack's scores.
        false_positive_rates: rates in (0, 1], each at least 5 / (number of non-members).
        confidence: the confidence of each single interval, such as 0.95.
        rng: splits the records into halves. It must be independent of the scores.
        without: for an attack with shadow models: scores of the same records, computed without one group of
            these models, for each group of :func:`tacit.audits.attacks.shadow_groups`. The intervals then
            cover the choice of the models too.

    Raises:
        InvalidInput: if there are too few non-members, all scores are equal, or members score lower.

    **Guarantee**

    * Each interval contains the true metric of this model with probability of about ``confidence``, over the
      choice of records and of shadow models.  It does not cover the variation between training runs.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> measured = measure(scores, false_positive_rates=(0.01,), confidence=0.95, rng=rng)
    >>> measured.auc.low < 0.760 < measured.auc.high  # Phi(1 / sqrt 2)
    True
    """
    for rate in false_positive_rates:
        check_enough(rate, scores.non_members.size)
    scores.check_not_constant()
    scores.check_direction()

    def wide(interval: Interval, figure: Callable[[Scores], float]) -> Interval:
        if not without:
            return interval
        return widened(interval, shadow_reach(without, figure, confidence=confidence, rng=rng))

    points = []
    for rate in false_positive_rates:
        found = found_at(scores, rate, confidence=confidence)
        points.append(FoundAt(rate, wide(found, lambda part, rate=rate: _share_found(part, rate))))  # type: ignore[misc]
    auc = wide(auc_interval(scores, confidence=confidence), Scores.auc)
    return Measured(scores.members.size, scores.non_members.size, auc, tuple(points))


def found_at(scores: Scores, false_positive_rate: float, *, confidence: float) -> Interval:
    """Measure the share of members that an attack finds (true-positive rate) at a false-positive rate.

    The attack finds a record if its score exceeds a threshold, which comes from the scores of the
    non-members. The interval covers two errors: the threshold is only roughly right, and the members are a
    random sample.

    Raises:
        InvalidInput: if the rate is out of range, or all scores are equal.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = found_at(scores, 0.01, confidence=0.95)
    >>> found.low < 0.0924 < found.high  # Phi(1 + Phi^-1(0.01))
    True
    """
    a = check_real("false_positive_rate", false_positive_rate, low=0.0, high=1.0, open_low=True)
    level = _level(confidence)
    scores.check_not_constant()
    n, m = scores.members.size, scores.non_members.size
    x = np.sort(scores.non_members)[::-1]
    members = np.sort(scores.members)
    above = np.concatenate([[0], n - np.searchsorted(members, x, side="right"), [n]])
    at_least = np.concatenate([[0], n - np.searchsorted(members, x, side="left"), [n]])  # h_j

    # The distribution of J, and for each J the fewest and the most members found.  A tie is never split.
    j = np.arange(int(binom.ppf(_RARE, m, a)), int(binom.isf(_RARE, m, a)) + 1)
    weights = binom.pmf(j, m, a)
    fewest = np.minimum(at_least[j], above[j + 1])
    most = at_least[j + 1]

    value = _share_found(scores, a)
    low = _mixed_quantile(weights, fewest, n - fewest + 1, level)
    high = _mixed_quantile(weights, most + 1, n - most, 1.0 - level)
    return Interval(value, min(low, value), max(high, value), confidence)


def auc_interval(scores: Scores, *, confidence: float) -> Interval:
    """Measure the AUC, with an interval by DeLong's method.

    The interval uses the variance of each record's rank among the other class (DeLong, DeLong &
    Clarke-Pearson 1988, Biometrics 44(3)). It is computed for the log odds, so it stays in [0, 1], with
    Student's t for the size of the smaller class.
    """
    level = _level(confidence)
    scores.check_not_constant()
    value = scores.auc()
    fewest = min(scores.members.size, scores.non_members.size)

    # Classes that do not overlap have a variance of 0.  The interval is then the exact one for disjoint pairs
    # that are all in order.
    if value in (0.0, 1.0) or fewest < 2:
        worst = float(least_rate(fewest, fewest, level))
        low = worst if value == 1.0 else 0.0
        high = 1.0 - worst if value == 0.0 else 1.0
        return Interval(value, low, high, confidence)

    variance = 0.0
    for part, other in ((scores.members, scores.non_members), (scores.non_members, scores.members)):
        ordered = np.sort(other)
        ranks = (np.searchsorted(ordered, part, side=side) for side in ("left", "right"))  # ties count half
        places = np.asarray(sum(ranks) / 2.0 / other.size, dtype=np.float64)
        variance += float(places.var(ddof=1)) / places.size
    reach = float(stdtrit(fewest - 1, 1.0 - level)) * math.sqrt(variance) / (value * (1.0 - value))
    odds = math.log(value / (1.0 - value))
    low, high = (1.0 / (1.0 + math.exp(-(odds + side * reach))) for side in (-1, 1))
    return Interval(value, low, high, confidence)


def operating_point(scores: Scores, false_positive_rate: float, *, confidence: float) -> OperatingPoint:
    """Choose a threshold for a false-positive rate, and measure its false- and true-positive rates.

    The threshold comes from a sample of non-members, so its true false-positive rate is only roughly the one
    that you asked for. Therefore *both* rates have an interval.

    **Guarantee**

    * Each interval contains the true rate of this threshold with probability at least ``confidence``. If
      several non-members have the same score, only the upper end of the interval for the false-positive rate
      is valid.

    Raises:
        InvalidInput: if ``false_positive_rate`` times the number of non-members is below 5.

    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000))
    >>> found = operating_point(scores, 0.1, confidence=0.95)
    >>> found.false_positive_rate.low < 0.1 < found.false_positive_rate.high
    True
    """
    n, m = scores.members.size, scores.non_members.size
    check_enough(false_positive_rate, m)
    scores.check_not_constant()
    level = _level(confidence)
    k = _allowed(false_positive_rate, m)
    below, low, high = -math.inf, 1.0, 1.0
    if k < m:
        below = float(np.partition(scores.non_members, m - k - 1)[m - k - 1])
        low, high = (float(betaincinv(k + 1, m - k, part)) for part in (level, 1.0 - level))
    falsely = float((scores.non_members > below).mean())
    return OperatingPoint(
        false_positive_rate,
        float(np.nextafter(below, math.inf)),
        Interval(falsely, min(low, falsely), max(high, falsely), confidence),
        clopper_pearson(int((scores.members > below).sum()), n, confidence=confidence),
    )


def _allowed(rate: float, non_members: int) -> int:
    """Return k, the largest number of non-members that may score above a threshold."""
    return math.floor(rate * non_members + 1e-9)


def _share_found(scores: Scores, rate: float) -> float:
    """Return the share of members at or above the threshold for ``rate``, which splits no tie.

    If ``rate`` allows no false positive, only members with a score above all non-members count.
    """
    x = np.sort(scores.non_members)[::-1]
    at_least = np.searchsorted(-x, -x, side="right")  # non-members at or above each
    fits = np.flatnonzero(at_least <= _allowed(rate, x.size))
    passed = scores.members >= x[fits[-1]] if fits.size else scores.members > x[0]
    return float(passed.mean())


def _mixed_quantile(weights: Array, hits: NDArray[np.int64], rest: NDArray[np.int64], level: float) -> float:
    """Return a quantile of the mixture of Beta(hits, rest): 0 where hits = 0, and 1 where rest = 0."""
    weights = weights / weights.sum()
    zero = hits == 0
    inside = ~(zero | (rest == 0))
    w, a, b = weights[inside], hits[inside], rest[inside]
    nought = float(weights[zero].sum())

    def above(t: float) -> float:
        return nought + float((w * betainc(a, b, t)).sum()) - level

    if above(0.0) >= 0.0:
        return 0.0
    if above(1.0) <= 0.0:
        return 1.0
    return float(brentq(above, 0.0, 1.0, xtol=1e-12))


# --- the error that shadow models add ---------------------------------------------------------------------

_HALVINGS = 8


def shadow_reach(
    without: Sequence[Scores],
    figure: Callable[[Scores], float],
    *,
    confidence: float,
    rng: np.random.Generator,
) -> float:
    """Return half the width of an interval for the error from the choice of shadow models.

    With other shadow models, the scores of all records would change.  Most of this change is independent from
    record to record, and intervals over records include it already.  The rest is shared by all records, and a
    jackknife over G groups of shadow models estimates it (Efron & Stein 1981, Annals of Statistics 9(3)).
    With a_g and b_g the metric on two random halves of the records, without group g, independent changes
    cancel in the covariance of the halves:

        V = (G - 1) / G  sum over g of (a_g - mean a) (b_g - mean b)

    ``without`` contains the scores of the same records without each group. The result is 0 if V <= 0.
    """
    sizes = {(scores.members.size, scores.non_members.size) for scores in without}
    if len(without) < 2 or len(sizes) != 1:
        raise InvalidInput(
            "`without` must have at least two Scores of the same records, each made without one group of "
            f"shadow models; got {len(without)} with {len(sizes)} different numbers of records."
        )
    n, m = sizes.pop()
    groups = len(without)
    covariances = []
    for _ in range(_HALVINGS):
        members, non_members = rng.permutation(n), rng.permutation(m)
        moved = []
        for start in (0, 1):
            a, b = members[start::2], non_members[start::2]
            values = np.array([figure(Scores(one.members[a], one.non_members[b])) for one in without])
            moved.append(values - values.mean())
        covariances.append(float((moved[0] * moved[1]).sum()) * (groups - 1) / groups)
    common = max(0.0, float(np.mean(covariances)))
    return float(stdtrit(groups - 1, (1.0 + confidence) / 2.0)) * math.sqrt(common)


def widened(interval: Interval, reach: float, *, low: float = 0.0, high: float = 1.0) -> Interval:
    """Widen ``interval`` for an independent error of up to ``reach`` in both directions, within [low, high].

    On each side, the new distance from the value is sqrt(old distance^2 + reach^2), as in Zou & Donner 2008,
    Statistics in Medicine 27(10).
    """
    return Interval(
        interval.value,
        max(low, interval.value - math.hypot(interval.value - interval.low, reach)),
        min(high, interval.value + math.hypot(interval.high - interval.value, reach)),
        interval.confidence,
    )
