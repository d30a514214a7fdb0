"""The claim test, which uses canaries to test the accounted trade-off curve of a run.

Letters: f a trade-off function, a and b the rates of false positives and false negatives, n members, m
non-members; in shapes, c intervals of a and x numbers of false positives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, gammaln, ndtr, ndtri

from tacit.accounting import PrivacyCurve, account
from tacit.accounting.price import halved
from tacit.audits.scores import Scores, largest_rate
from tacit.errors import InvalidInput, check_real
from tacit.events import Adjacency, Event, Gaussian

Array: TypeAlias = NDArray[np.float64]
Tradeoff: TypeAlias = Callable[[Array], Array]
Objective: TypeAlias = Callable[[Array, Array], Array]

AUDIT_LEVEL = 1e-3
"""The largest probability that any test of one audit rejects a true claim."""


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit: lower bounds on the privacy loss of a run, and the verdict on its claim.

    Attributes:
        method: the name of the audit.
        canaries: the number of trials: canaries (planted records), or the runs or numbers that were compared.
        confidence: the probability that all bounds are right.
        delta: the delta at which every epsilon is stated.
        eps_lower: a lower bound on epsilon, for mechanisms of ``family``.
        eps_lower_any: a lower bound on epsilon, for any mechanism.
        family: the kind of mechanism that ``eps_lower`` assumes, such as "Gaussian noise"; None if it assumes
            none.
        mu_lower: a lower bound on mu, the parameter of Gaussian DP (larger is less private).
        noise_at_most: an upper bound on the run's true noise multiplier.
        claimed_eps: the claimed epsilon; None if no claim was tested.
        claim_rejected: whether the audit refuted the claim; None if no claim was tested.
        suspected: whether the first test of an audit of two tests refuted the claim. The second decides.

    **Guarantee**

    * A true claim is rejected with probability at most 1 - ``confidence``.
    * With probability ``confidence``, all bounds of a result are right. A bound that assumes a ``family`` is
      valid only for mechanisms of this family.
    """

    method: str
    canaries: int
    confidence: float
    delta: float
    eps_lower: float
    eps_lower_any: float
    family: str | None = None
    mu_lower: float | None = None
    noise_at_most: float | None = None
    claimed_eps: float | None = None
    claim_rejected: bool | None = None
    # In an audit of two tests, claim_rejected is the verdict of both, and errs with probability AUDIT_LEVEL.
    suspected: bool | None = None

    def sentence(self) -> str:
        """Return the verdict on the claim, if there is one, and the lower bound, in sentences.

        >>> print(AuditResult("claim test", 1000, 0.95, 1e-5, 5.07, 3.1, "Gaussian noise", claimed_eps=6.33,
        ...                   claim_rejected=False).sentence())
        1,000 trials, claim test: the claim of 6.33 is not contradicted. With 95% confidence epsilon is at
        least 5.07 at delta 1e-05, given Gaussian noise (at least 3.10 for any mechanism). A small bound means
        a weak attack, not safety.
        """
        verdict, by = "", "with"
        if self.claim_rejected is not None:
            claim = "the claim" if self.claimed_eps is None else f"the claim of {self.claimed_eps:.2f}"
            verdict = f"{claim} is {self.judgement()} "
            by = "With"
        if self._unconfirmed:
            return f"{self.canaries:,} trials, {self.method}: {verdict.strip()}"
        assumption = ""
        if self.family is not None:
            assumption = f", given {self.family} (at least {self.eps_lower_any:.2f} for any mechanism)"
        words = (
            f"{self.canaries:,} trials, {self.method}: {verdict}{by} {100 * self.confidence:g}% confidence "
            f"epsilon is at least {self.eps_lower:.2f} at delta {self.delta:g}{assumption}."
        )
        if self.noise_at_most is not None:
            words += f" The run behaves as if its noise multiplier were at most {self.noise_at_most:.3g}."
        return f"{words} A small bound means a weak attack, not safety."

    @property
    def _unconfirmed(self) -> bool:
        """Whether the first test rejected the claim, but the second test, which decides, did not."""
        return bool(self.suspected) and not self.claim_rejected

    def judgement(self) -> str:
        """Return the verdict on the claim as a sentence.

        If the audit contradicts the claim, the sentence also says how rarely this happens by chance to a true
        claim. In an audit of two tests, the second one decides.

        >>> result = AuditResult("claim test", 9, 0.95, 1e-5, 5.0, 3.1, claim_rejected=False, suspected=True)
        >>> print(result.judgement())
        not contradicted: the second, larger test decides, and it found no violation.
        """
        once = round(1 / (1 - self.confidence))
        if self._unconfirmed:
            return "not contradicted: the second, larger test decides, and it found no violation."
        if not self.claim_rejected:
            return "not contradicted."
        if self.suspected is None:
            return (
                f"CONTRADICTED, do not release. At most one test in {once} says this by chance of a promise "
                "that holds."
            )
        return (
            f"CONTRADICTED in both stages of the audit, do not release. At most one audit in "
            f"{round(1 / AUDIT_LEVEL):,} says this by chance of a promise that holds; of n audits one does n "
            "times as often."
        )


# --- trade-off functions ----------------------------------------------------------------------------------

_NODES = 256  # on either side of one half; half of them are geometric up to _SMALL, the rest evenly spaced
_LEAST, _SMALL = 1e-8, 0.02
_ROUNDING = 1e-13  # the rounding error of an extrapolated chord


@final
class Claim:
    """The privacy that a run claims, for :func:`claim_test`.

    Args:
        curve: the privacy curve of the run, such as ``plan.curve``.
        delta: the delta at which ``claim.epsilon`` is stated, in (0, 1).
        nodes: half the number of points between which :meth:`false_negatives` interpolates.

    **Guarantee**

    * At every false-positive rate, ``false_negatives`` is at most the curve's trade-off function. This
      function is the smallest false-negative rate of any membership test.

    >>> from tacit.events import PoissonSampled, Repeat
    >>> curve = account(Repeat(PoissonSampled(0.1, Gaussian(1.0)), 200), adjacency="add-remove")
    >>> claim = Claim(curve, delta=1e-5)
    >>> round(claim.epsilon, 2)
    9.97
    >>> bool(0.0 < curve.false_negative_rate(0.05) - claim.false_negatives(0.05) < 1e-4)
    True
    """

    def __init__(self, curve: PrivacyCurve, *, delta: float, nodes: int = _NODES) -> None:
        """Tabulate ``curve`` at about 2 ``nodes`` rates.  ``delta`` must be in (0, 1).

        Raises:
            InvalidInput: if the curve is of a group of records: canaries are single records.
        """
        check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
        if curve.records != 1:
            raise InvalidInput(
                f"curve is the guarantee for {curve.records} records together, but an audit tests it for "
                "one. Pass the curve of one record."
            )
        self.curve, self.delta = curve, delta
        self.epsilon: float = curve.epsilon(delta)
        small = np.geomspace(_LEAST, _SMALL, nodes // 2, endpoint=False)
        side = np.concatenate([small, np.linspace(_SMALL, 0.5, nodes // 2)])
        self._a = np.concatenate([[0.0], side, 1.0 - side[-2::-1], [1.0]])
        self._f = curve.false_negative_rate(self._a)
        slope = np.diff(self._f) / np.diff(self._a)
        self._before = np.concatenate([[0.0], slope[:-1]])  # the slope of the chord before each interval
        self._after = np.concatenate([slope[1:], [0.0]])  # the slope of the chord after each interval

    def false_negatives(self, rates: ArrayLike) -> Array:
        """Return the smallest false-negative rates that the claim allows, rounded down.

        If the claim is true, no membership test at these false-positive rates has fewer.

        Args:
            rates: the false-positive rates of the tests, in [0, 1].

        Returns:
            The false-negative rates, in the shape of ``rates``.
        """
        a = np.asarray(rates, dtype=np.float64)
        last = self._a.size - 2
        i = np.clip(np.searchsorted(self._a, a, side="right") - 1, 0, last)
        end = self._f[i + 1]
        before = np.where(i > 0, self._f[i] + self._before[i] * (a - self._a[i]), 0.0)
        after = np.where(i < last, end - self._after[i] * (self._a[i + 1] - a), end)
        return np.maximum(np.maximum(before, after) - _ROUNDING, end)


def gaussian_false_negatives(rates: ArrayLike, mu: float) -> Array:
    """Return f of N(0, 1) against N(mu, 1): Phi(Phi^-1(1 - a) - mu) (1905.02383, equation 6)."""
    value: Array = ndtr(-ndtri(np.asarray(rates, dtype=np.float64)) - mu)
    return value


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon at ``delta``, rounded down, of a Gaussian with sensitivity / noise = ``mu`` >= 0."""
    if mu <= 0.0:
        return 0.0
    return account(Gaussian(1.0 / mu), adjacency=Adjacency.ADD_REMOVE).epsilon_bounds(delta)[0]


def plain_false_negatives(rates: ArrayLike, epsilon: float, delta: float) -> Array:
    """Return f of (epsilon, delta)-DP: max(0, 1 - delta - e^eps a, e^-eps (1 - delta - a)).

    See 1905.02383, equation 5.
    """
    a = np.asarray(rates, dtype=np.float64)
    steep = 1.0 - delta - np.exp(epsilon) * a
    flat = np.exp(-epsilon) * (1.0 - delta - a)
    return np.asarray(np.maximum(0.0, np.maximum(steep, flat)), dtype=np.float64)


# --- what the errors of one test contradict ---------------------------------------------------------------

_QUANTILES = np.arange(1, 50) / 50.0  # these quantiles of the scores that choose are the thresholds to try
_SUMMED = 1e-9  # the relative rounding error of a probability that is summed here
_FIRST, _MOST, _ROUNDS = 33, 48, 40  # the first number of interval ends, most intervals, most halvings


@dataclass(frozen=True)
class ErrorCounts:
    """The errors of one test, which calls a record a member if its score is at least ``threshold``.

    With X of m non-members called members and Y of n members missed, X and Y are binomial with rates a and b.
    Let x and y be the observed counts, and w the ``weight``.  f is contradicted if so few errors are unlikely
    at all rates that it allows, b >= f(a):

        sup over a of  Pr[w X / m + Y / n <= w x / m + y / n  |  a, f(a)]  <=  level.

    This test is stronger than two separate bounds on the rates, each at half of the level.  Threshold and
    weight must not depend on the records whose errors are counted.
    """

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
        """
        ends = np.linspace(0.0, 1.0, _FIRST)
        low, high = ends[:-1], ends[1:]
        for _ in range(_ROUNDS):
            # The probability decreases in a and in b.  So between two values of a, it is at most the
            # probability for the smaller a and for f at the larger a.
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
        x = np.arange(0.0, min(m, np.floor(statistic * m / w + _SUMMED)) + 1.0)
        y = np.clip(np.floor(n * (statistic - w * x / m) + _SUMMED), 0.0, n)
        return x.size, y.astype(np.int64)

    def _chance(self, a: Array, b: Array) -> Array:
        """Return the (c,) probabilities of so few errors at (c,) rates ``a`` and ``b``, rounded up."""
        size, y = self._few
        mass = _binomial(size, self.non_members, a)
        below = np.cumsum(_binomial(int(y[0]) + 1, self.members, b), axis=1)
        total: Array = np.einsum("cx,cx->c", mass, below[:, y])
        return total * (1.0 + _SUMMED)

    def _one_by_one(self, a: Array, b: Array) -> Array:
        """Return a quick upper bound on :meth:`_chance`, from the largest value of each count alone."""
        size, y = self._few
        return np.minimum(bdtr(size - 1.0, self.non_members, a), bdtr(float(y[0]), self.members, b))


def _binomial(size: int, trials: int, rates: Array) -> Array:
    """Compute Pr[Bin(trials, rate) = k] for k < ``size`` and (c,) rates, of shape (c, size)."""
    k, rate = np.arange(float(size)), rates[:, None]
    ways = gammaln(trials + 1.0) - gammaln(k + 1.0) - gammaln(trials - k + 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = k * np.log(rate) + (trials - k) * np.log1p(-rate)
    edge = np.where(np.where(rate <= 0.0, k == 0.0, k == trials), 0.0, -np.inf)
    mass: Array = np.exp(ways + np.where((rate > 0.0) & (rate < 1.0), inside, edge))
    return mass


def count_errors(scores: Scores, choosing: Scores, choose: Objective, *, level: float) -> ErrorCounts:
    """Count the errors of ``scores`` at the threshold that other, independent scores choose.

    The chosen threshold maximises ``choose(a, b)``, with a and b upper bounds on the rates of false positives
    and false negatives, each at ``level`` / 2.
    """
    n, m = scores.members.size, scores.non_members.size
    pooled = np.concatenate([choosing.members, choosing.non_members])
    thresholds = np.unique(np.quantile(pooled, _QUANTILES, method="higher"))
    missed = np.searchsorted(np.sort(choosing.members), thresholds, side="left")
    passed = np.searchsorted(np.sort(choosing.non_members), thresholds, side="left")
    b = missed / choosing.members.size
    a = 1.0 - passed / choosing.non_members.size
    most = (
        largest_rate(np.round(m * a), m, level / 2.0),
        largest_rate(np.round(n * b), n, level / 2.0),
    )
    best = int(np.argmax(choose(*most)))

    # The weight of a false positive is -f'(a) of the Gaussian trade-off function through (a, b).
    falsely = ndtri((m * a[best] + 0.5) / (m + 1.0))
    misses = ndtri((n * b[best] + 0.5) / (n + 1.0))
    weight = float(np.clip(np.exp((falsely**2 - misses**2) / 2.0), 1.0 / 16.0, 16.0))
    return ErrorCounts(
        float(thresholds[best]),
        weight,
        int((scores.non_members >= thresholds[best]).sum()),
        m,
        int((scores.members < thresholds[best]).sum()),
        n,
    )


def mus_shown(false_positives: Array, false_negatives: Array) -> Array:
    """Return the largest mu for which the rates contradict mu-GDP: Phi^-1(1 - FPR) - Phi^-1(FNR), or 0."""
    with np.errstate(invalid="ignore"):
        mu = -ndtri(false_positives) - ndtri(false_negatives)
    return np.maximum(0.0, np.nan_to_num(mu, nan=0.0, neginf=0.0))


def largest_contradicted(contradicted: Callable[[float], bool], most: float, *, halvings: int) -> float:
    """Find the largest number up to ``most`` that is contradicted, or 0 if none is.

    If a number is contradicted, all smaller ones must be too.  The result is rounded down, by the width of
    the last interval after ``halvings`` halvings.
    """
    if not contradicted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < most and contradicted(high):
        low, high = high, 2.0 * high
    return halved(contradicted, low, high, halvings)[0]


def check_confidence(confidence: float) -> float:
    """Return ``confidence``, and refuse a value below one half, which would show nothing."""
    return check_real("confidence", confidence, low=0.5, high=1.0, open_high=True)


# --- the claim test ---------------------------------------------------------------------------------------

_REHEARSED = 0.8  # share of the error probability for the rehearsed thresholds
_HALVINGS = 12  # how often the interval around the result is halved
_LEAST_NOISE = 0.1  # the least noise multiplier with which a sampled composition can be accounted for
_STEP = 1.25  # a step of the search for the noise is this factor; accounting is slow with little noise
_NOISE_HALVINGS = 6  # how often such a step is halved, to 0.4 %
_AS_GOOD_AS_NONE = 24.0  # the epsilon, in nats, at which the search for the noise stops
_FARTHEST = 64.0  # the end of all searches: a multiple of the claimed noise, an epsilon in nats, or a mu


@dataclass(frozen=True)
class NoiseFamily:
    """The event of a run for any noise multiplier, ``event(sigma)``, and the claimed noise multiplier.

    More noise must give more privacy, as with Gaussian noise, even if sampled and composed. ``name``
    completes the sentence "epsilon is at least ..., given ...".
    """

    event: Callable[[float], Event]
    claimed_noise: float
    name: str


def claim_test(
    scores: Scores,
    claim: Claim,
    *,
    confidence: float,
    rng: np.random.Generator,
    rehearsals: tuple[Scores, ...] = (),
    family: NoiseFamily | None = None,
) -> AuditResult:
    """Test the privacy that a run claims, with canaries: planted records, some of which were trained on.

    The test guesses from the scores which canaries were trained on. A guess can be a false positive (not
    trained on) or a false negative (missed). The claim limits how low the two error rates can be together.
    The test refutes the claim if so few errors would be unlikely at every pair of rates that the claim
    allows. The same errors give these bounds:

        eps_lower_any    a lower bound on epsilon, for any mechanism
        eps_lower        a lower bound on epsilon, given ``family`` (by default Gaussian DP)
        mu_lower         a lower bound on mu, the parameter of Gaussian DP
        noise_at_most    an upper bound on the noise multiplier, if you pass ``family``

    The canaries must not influence each other: once it is fixed which of them are trained on, their scores
    must be independent. This is true of slots (:func:`tacit.audits.audit_slots`), if the noise of the steps
    is independent and the sampling is Poisson or ``BallsInBinsSampling``. Otherwise, use
    :func:`tacit.audits.audit_one_run`.

    Args:
        scores: the scores of the canaries.
        claim: the claimed privacy.
        confidence: one minus the error probability of all statements together, such as 0.95.
        rng: splits the canaries into halves. It must be independent of the scores.
        rehearsals: the scores of simulated runs, independent of ``scores``, which choose the thresholds.
            Simulate the claimed noise, which gives the largest bounds on a correct run, or the smallest bug
            that you want to find.
        family: the run's mechanism for any noise multiplier, which ``noise_at_most`` needs.

    **Guarantee**

    * A true claim is rejected, or a bound exceeds the truth, with probability at most 1 - ``confidence``.

    Raises:
        InvalidInput: if a class has fewer than two canaries.

    >>> from tacit.events import Gaussian
    >>> claim = Claim(account(Gaussian(1.0), adjacency="add-remove"), delta=1e-5)
    >>> rng = np.random.default_rng(0)
    >>> out = rng.normal(0.0, 1.0, 1000)
    >>> claim_test(Scores(rng.normal(1.0, 1.0, 1000), out), claim, confidence=0.95, rng=rng).claim_rejected
    False
    >>> claim_test(Scores(rng.normal(2.0, 1.0, 1000), out), claim, confidence=0.95, rng=rng).claim_rejected
    True
    """
    judged = judged_counts(scores, claim, confidence=confidence, rng=rng, rehearsals=rehearsals)

    def contradicted(tradeoff: Tradeoff) -> bool:
        return any(counts.contradicts(tradeoff, level) for counts, level in judged)

    any_mechanism = largest_contradicted(
        lambda eps: contradicted(lambda a: plain_false_negatives(a, eps, claim.delta)),
        _FARTHEST,
        halvings=_HALVINGS,
    )
    mu = largest_contradicted(
        lambda mu: contradicted(lambda a: gaussian_false_negatives(a, mu)), _FARTHEST, halvings=_HALVINGS
    )
    if family is None:
        noise = None
        name, own = "Gaussian differential privacy", gaussian_epsilon(mu, claim.delta)
    else:
        noise = _least_contradicted_noise(family, claim, contradicted)
        name, own = family.name, 0.0
        if noise is not None:
            curve = account(family.event(noise), adjacency=claim.curve.adjacency)
            own = curve.epsilon_bounds(claim.delta)[0]
    return AuditResult(
        method="claim test",
        canaries=scores.members.size + scores.non_members.size,
        confidence=confidence,
        delta=claim.delta,
        eps_lower=max(own, any_mechanism),
        eps_lower_any=any_mechanism,
        family=name if own > any_mechanism else None,
        mu_lower=mu,
        noise_at_most=noise,
        claimed_eps=claim.epsilon,
        claim_rejected=contradicted(claim.false_negatives),
    )


def judged_counts(
    scores: Scores,
    claim: Claim,
    *,
    confidence: float,
    rng: np.random.Generator,
    rehearsals: tuple[Scores, ...] = (),
) -> list[tuple[ErrorCounts, float]]:
    """Return the error counts that :func:`claim_test` uses, each with its share of the error probability.

    One half of the canaries chooses a threshold, and errors are counted on the other half.  Each rehearsal
    also chooses a threshold, and errors are counted on all canaries.  Rehearsals get four fifths of the error
    probability, because they choose good thresholds.  The halves get the rest, because they find faults that
    no rehearsal has simulated.
    """
    error = 1.0 - check_confidence(confidence)
    rehearsed = _REHEARSED * error / len(rehearsals) if rehearsals else 0.0
    rest = error - len(rehearsals) * rehearsed

    def choose(false_positives: Array, false_negatives: Array) -> Array:
        """Score each threshold by how clearly it refutes the claim; if none does, by the mu that it shows."""
        margin = claim.false_negatives(false_positives) - false_negatives
        return margin if (margin > 0.0).any() else mus_shown(false_positives, false_negatives)

    choosing, judging = scores.split(rng)
    return [(count_errors(judging, choosing, choose, level=rest), rest)] + [
        (count_errors(scores, rehearsal, choose, level=rehearsed), rehearsed) for rehearsal in rehearsals
    ]


def _least_contradicted_noise(
    family: NoiseFamily, claim: Claim, contradicted: Callable[[Tradeoff], bool]
) -> float | None:
    """Find nearly the smallest noise multiplier that is contradicted.  Then all larger ones are too.

    The result is None if no multiplier up to 64 times the claimed one is contradicted.
    """

    def curve(noise: float) -> PrivacyCurve:
        return account(family.event(noise), adjacency=claim.curve.adjacency)

    def too_large(noise: float) -> bool:
        return contradicted(Claim(curve(noise), delta=claim.delta, nodes=64).false_negatives)

    low = high = family.claimed_noise
    while not too_large(high):
        low, high = high, _STEP * high
        if high > _FARTHEST * family.claimed_noise:
            return None
    while low == high:
        low = high / _STEP
        if low < _LEAST_NOISE or curve(high).epsilon(claim.delta) > _AS_GOOD_AS_NONE:
            return high
        if too_large(low):
            high = low
    for _ in range(_NOISE_HALVINGS):
        middle = float(np.sqrt(low * high))
        if too_large(middle):
            high = middle
        else:
            low = middle
    return high
