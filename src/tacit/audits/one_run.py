"""Lower bounds from one run with many canaries, by guessing which of them are in the training set.

A slot is an entry of a parameter vector at which only one canary has a gradient. Letters: m canaries or
slots, r guesses, v of them right; T steps, q the sampling rate, C the clipping norm, s_j the sign of slot j.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, bdtrc, expit, logsumexp

from tacit.audits.claim import (
    AuditResult,
    Claim,
    NoiseFamily,
    check_confidence,
    claim_test,
    gaussian_epsilon,
    largest_contradicted,
)
from tacit.audits.scores import Scores
from tacit.clipping.rules import AdaptiveClipping
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer, check_real
from tacit.events import Compose, Event, Gaussian
from tacit.plan import Plan
from tacit.sampling import BallsInBinsSampling, FullBatch, PoissonSampling

if TYPE_CHECKING:
    from tacit.training.audit_slots import SlotEvidence


Array: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

# The shares of the canaries that are guessed, fixed beforehand; each gets a quarter of the error probability.
# Few guesses give the tightest bound for a correct run, and many show a gross bug best.
SHARES = (0.05, 0.2, 0.5, 1.0)
_UNFAIR = 1e-9  # a coin is not fair if its number of heads is less probable than this
_HALVINGS = 40
_MOST = 64.0  # an epsilon in nats, or a mu, that is larger than any number of canaries can show
_NORMAL = NormalDist()


def audit_one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float,
    rng: np.random.Generator,
    shares: tuple[float, ...] = SHARES,
    claim: Claim | None = None,
) -> AuditResult:
    """Compute a lower bound on the epsilon of one run, by planting records (canaries) at random.

    Before training, flip a fair coin for each of m canaries, and add those with heads to the training data.
    After training, compute a score for each canary. The audit guesses that the canaries with the highest
    scores were included, and those with the lowest were not. Many right guesses show that epsilon is large.
    You need not know the mechanism.

    Args:
        scores: the score of each canary, (m,), higher if it was more likely included.
        included: the coins, (m,) booleans: whether each canary was included. They must be fair and
            independent.
        delta: the delta of the bound, in [0, 1). Choose less than 0.01 / m, because the bound is weak
            otherwise.
        confidence: one minus the error probability, such as 0.95.
        rng: breaks ties between scores. It must be independent of the coins.
        shares: how many of the m canaries to guess, as shares of m. Each share is one attempt, and the error
            probability is split evenly among the attempts. Choose the shares before you see the scores.
        claim: the claimed privacy, if you want to test its epsilon.

    **Guarantee**

    * ``eps_lower`` exceeds the true epsilon with probability at most 1 - ``confidence``, for any scores, and
      even if the canaries influence each other.

    Raises:
        InvalidInput: if there are no canaries, a score is not finite, or the numbers of heads and tails
            differ too much for fair coins.

    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(1000) < 0.5
    >>> result = audit_one_run(coins + 0.0, coins, delta=0.0, confidence=0.95, rng=rng)
    >>> round(result.eps_lower, 2)  # 500 of 500 guesses are right
    4.73
    """
    canaries, level, guesses = _guesses(scores, included, confidence, shares, rng)
    check_real("delta", delta, low=0.0, high=1.0, open_high=True)
    epsilon = max(epsilon_from_guesses(canaries, *each, delta=delta, level=level) for each in guesses)
    claimed = None if claim is None else claim.curve.epsilon(delta) if delta > 0.0 else np.inf
    return AuditResult(
        method="one run",
        canaries=canaries,
        confidence=confidence,
        delta=delta,
        eps_lower=epsilon,
        eps_lower_any=epsilon,
        claimed_eps=claimed,
        claim_rejected=None if claimed is None else epsilon > claimed,
    )


def audit_one_run_by_tradeoff(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float,
    rng: np.random.Generator,
    shares: tuple[float, ...] = SHARES,
    claim: Claim | None = None,
) -> AuditResult:
    """Compute a lower bound on mu of any mu-GDP run, from m canaries, and test the claimed trade-off curve.

    The arguments are those of :func:`audit_one_run`.  ``mu_lower`` is converted to epsilon at ``delta``,
    which must be in (0, 1).

    **Guarantee**

    * ``mu_lower`` exceeds the true mu, or a true claim is rejected, with probability at most
      1 - ``confidence``.
    """
    canaries, level, guesses = _guesses(scores, included, confidence, shares, rng)
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    mu = max(mu_from_guesses(canaries, *each, level=level) for each in guesses)
    rejected = claim and any(
        tradeoff_contradicted(canaries, *each, claim.false_negatives, level=level) for each in guesses
    )
    return AuditResult(
        method="one run, by the trade-off curve",
        canaries=canaries,
        confidence=confidence,
        delta=delta,
        eps_lower=gaussian_epsilon(mu, delta),
        eps_lower_any=0.0,
        family="Gaussian differential privacy",
        mu_lower=mu,
        claimed_eps=None if claim is None else claim.curve.epsilon(delta),
        claim_rejected=rejected,
    )


# --- guesses ----------------------------------------------------------------------------------------------


def right_guesses(scores: Array, included: Bools, share: float, rng: np.random.Generator) -> tuple[int, int]:
    """Guess "in" for the highest scores and "out" for the lowest, and count all guesses and the right ones.

    The number of guesses is a ``share`` of the number of scores.  Equal scores are put in random order,
    because the order of the canaries may reveal their coins.
    """
    guessed = max(1, round(share * scores.size))
    order = np.lexsort((rng.random(scores.size), scores))
    out = guessed // 2
    right = int((~included[order[:out]]).sum() + included[order[scores.size - (guessed - out) :]].sum())
    return guessed, right


def _guesses(
    scores: ArrayLike,
    included: ArrayLike,
    confidence: float,
    shares: tuple[float, ...],
    rng: np.random.Generator,
) -> tuple[int, float, list[tuple[int, int]]]:
    """Return the number of canaries, the level for each share, and each share's guesses and right guesses."""
    check_confidence(confidence)
    score, coin = np.asarray(scores, dtype=np.float64), np.asarray(included)
    if coin.dtype != np.bool_ or score.ndim != 1 or coin.shape != score.shape:
        raise InvalidInput(
            f"included must be one boolean per score; got {coin.dtype} of shape {coin.shape} for scores of "
            f"shape {score.shape}."
        )
    if score.size == 0:
        raise InvalidInput(
            "there are no scores. Add canaries (records made for the audit) before training; 1,000 are "
            "enough."
        )
    if not np.isfinite(score).all():
        raise InvalidInput(f"{int((~np.isfinite(score)).sum())} of {score.size} scores are not finite.")
    fewer = min(int(coin.sum()), int((~coin).sum()))
    if 2.0 * float(bdtr(fewer, score.size, 0.5)) < _UNFAIR:
        raise InvalidInput(
            f"included is True for {int(coin.sum())} of {score.size} canaries; random halves are hardly ever "
            "so unequal. Decide by a fair coin for each canary whether to include it, or the audit proves "
            "nothing."
        )
    if not shares:
        raise InvalidInput(
            "shares must not be empty. Give the fraction of canaries to guess, such as shares=(0.1,)."
        )
    for share in shares:
        check_real("share", share, low=0.0, high=1.0, open_low=True)
    guesses = [right_guesses(score, coin, share, rng) for share in shares]
    return score.size, (1.0 - confidence) / len(shares), guesses


# --- bounds from right guesses ----------------------------------------------------------------------------


def chance_of_right_guesses(
    canaries: int, guessed: int, right: int, *, epsilon: float, delta: float
) -> float:
    """Bound the probability of at least ``right`` right guesses if the run is (epsilon, delta)-DP.

    With Q = e^eps / (1 + e^eps) (Steinke, Nasr & Jagielski 2023, 2305.08846, Theorem 5.2):

        Pr[right >= v] <= Pr[Bin(r, Q) >= v] + 2 m delta max_{1 <= i <= v} Pr[v - i <= Bin(r, Q) < v] / i
    """
    if right == 0:
        return 1.0
    q = float(expit(epsilon))
    tail = float(bdtrc(right - 1, guessed, q))
    if delta == 0.0:
        return tail
    i = np.arange(1, right + 1)
    below = bdtrc(right - i - 1.0, guessed, q)  # Pr[Bin >= v - i]
    below[-1] = 1.0
    return min(1.0, tail + 2.0 * canaries * delta * float(((below - tail) / i).max()))


@lru_cache(maxsize=4096)
def epsilon_from_guesses(canaries: int, guessed: int, right: int, *, delta: float, level: float) -> float:
    """Find the largest epsilon that the guesses (``right`` of ``guessed``) contradict at ``level``."""

    def contradicted(epsilon: float) -> bool:
        return chance_of_right_guesses(canaries, guessed, right, epsilon=epsilon, delta=delta) <= level

    return largest_contradicted(contradicted, _MOST, halvings=_HALVINGS)


def tradeoff_contradicted(
    canaries: int, guessed: int, right: int, tradeoff: Callable[[float], ArrayLike], *, level: float
) -> bool:
    """Return whether the guesses, of which ``right`` are right, contradict ``tradeoff`` at ``level``.

    The test is Algorithm 3 of Mahloujifar, Melis & Chaudhuri 2024, 2410.22235, for two classes.  Its
    variables r and h follow the joint probability of at least i right guesses and of a right (r) or wrong (h)
    i-th guess.  The trade-off function bounds how fast h grows.  For an f-DP run, r + h is at most
    guessed / canaries.
    """
    r, h = level * right / canaries, level * (guessed - right) / canaries
    for i in range(right - 1, -1, -1):
        higher = max(h, float(np.asarray(tradeoff(1.0 - r))))
        if higher == h:
            break
        r, h = min(1.0, r + i / (guessed - i) * (higher - h)), higher
    return r + h > guessed / canaries


@lru_cache(maxsize=4096)
def mu_from_guesses(canaries: int, guessed: int, right: int, *, level: float) -> float:
    """Find the largest mu for which the guesses contradict mu-GDP at ``level``."""

    def contradicted(mu: float) -> bool:
        def false_negative(rate: float) -> float:
            r = 1.0 - rate
            return _NORMAL.cdf(_NORMAL.inv_cdf(r) - mu) if 0.0 < r < 1.0 else float(r >= 1.0)

        return tradeoff_contradicted(canaries, guessed, right, false_negative, level=level)

    return largest_contradicted(contradicted, _MOST, halvings=_HALVINGS)


def slot_scores(
    observed: ArrayLike, *, sampling_rate: float, noise_multiplier: float, once_an_epoch: bool = False
) -> Array:
    """Compute the (m,) log-likelihood ratios of slots; high values suggest a canary in training.

    The model never uses the parameter vector of the slots.  If canary j takes part in a step, entry j of the
    clipped sum is s_j C, and otherwise it is 0.  The released entry, divided by s_j C, is

        x_tj = [j took part in step t] + N(0, sigma^2),

    so the best membership test, given sigma, is the log-likelihood ratio of a Poisson sample,

        LLR_j = sum over t of log(1 - q + q exp((x_tj - 1/2) / sigma^2)).

    If a canary takes part once an epoch, in one of its b = 1/q steps, the ratio is

        LLR_j = sum over epochs of log(mean over the epoch's steps t of exp((x_tj - 1/2) / sigma^2)).

    A plain sum over the steps is far weaker. If the true noise is not sigma, a threshold of 0 is poor, so
    audits choose it from data.

    Args:
        observed: x, of shape (T, m): the slots' entries of the released noisy *sum*, divided by s_j C.
        sampling_rate: the claimed sampling rate q in (0, 1].
        once_an_epoch: whether the claimed sampling is balls in bins; x then has whole epochs.
    """
    q = check_real("sampling_rate", sampling_rate, low=0.0, high=1.0, open_low=True)
    sigma = check_real("noise_multiplier", noise_multiplier, low=0.0, open_low=True)
    x = np.asarray(observed, dtype=np.float64)
    if x.ndim != 2 or x.size == 0:
        raise InvalidInput(f"observed must have shape (steps, slots); got {x.shape}.")
    if not np.isfinite(x).all():
        raise InvalidInput(
            f"observed must be finite; {int((~np.isfinite(x)).sum())} of {x.size} entries are not."
        )
    if once_an_epoch:
        epochs = ((x - 0.5) / sigma**2).reshape(-1, round(1.0 / q), x.shape[1])
        ratios: Array = logsumexp(epochs, axis=1) + np.log(q)
    else:
        stays = np.log1p(-q) if q < 1.0 else -np.inf
        ratios = np.logaddexp(stays, np.log(q) + (x - 0.5) / sigma**2)
    total: Array = ratios.sum(axis=0)
    return total


def rehearsed_slot_scores(
    *,
    steps: int,
    sampling_rate: float,
    noise_multiplier: float,
    rng: np.random.Generator,
    true_noise: float | None = None,
    slots: int = 10_000,
    once_an_epoch: bool = False,
) -> Scores:
    """Simulate the slot scores of a run with these settings, with half of the canaries in training.

    :func:`tacit.audits.claim_test` chooses a threshold from them, independently of the run.

    ``true_noise`` is the noise multiplier of the simulation, by default the claimed one; another value
    rehearses a bug.  More ``slots`` of either kind give a better threshold.
    """
    check_integer("steps", steps, low=1)
    check_integer("slots", slots, low=1)
    sigma = noise_multiplier if true_noise is None else check_real("true_noise", true_noise, low=0.0)
    total = np.zeros(2 * slots)
    together = round(1.0 / sampling_rate) if once_an_epoch else 1
    for _ in range(steps // together):  # a step or an epoch at a time: a long run does not fit in one array
        part = np.zeros((together, 2 * slots))
        if once_an_epoch:
            part[rng.integers(together, size=slots), np.arange(slots)] = 1.0
        else:
            part[:, :slots] = rng.random(slots) < sampling_rate
        x = part + sigma * rng.standard_normal(part.shape)
        total += slot_scores(
            x, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, once_an_epoch=once_an_epoch
        )
    return Scores(total[:slots], total[slots:])


_REHEARSAL_CELLS = 2e7  # the largest number of steps times slots in a rehearsal
_BUGS = (1.0, 1.25)  # rehearsals have the claimed noise divided by each of these
_RECORDS_PER_SLOT = 5


@dataclass(frozen=True, eq=False)
class SlotAudit:
    """The results of an audit by slots, and the ``scores`` of the canaries, for plots.

    ``claim`` is the claim test, which assumes that slots do not interfere.  ``one_run`` and
    ``one_run_by_tradeoff`` are bounds without this assumption.
    """

    claim: AuditResult
    one_run: AuditResult
    one_run_by_tradeoff: AuditResult
    scores: Scores


def scores_of_slots(evidence: SlotEvidence, plan: Plan) -> Scores:
    """Compute the scores of the slots, and label them as members or non-members by their coins.

    With adaptive clipping or a loss report, the gradients have more noise than the plan's noise multiplier,
    because the count or the loss is also released. The audit uses this larger noise, and compares the slots
    with the accounted curve of all releases.
    """
    if len(evidence.observed) != plan.steps:
        raise InvalidInput(
            f"evidence has {len(evidence.observed)} steps, and the plan {plan.steps}. Pass evidence and plan "
            "of the same run."
        )
    values = slot_scores(
        evidence.observed,
        sampling_rate=_rate(plan),
        noise_multiplier=plan.gradient_noise_multiplier,
        once_an_epoch=isinstance(plan.sampling, BallsInBinsSampling),
    )
    return Scores.of(values, evidence.included)


def audit_slots(
    evidence: SlotEvidence, plan: Plan, *, confidence: float, rng: np.random.Generator
) -> SlotAudit:
    """Audit a run that trained with slots: extra weights that the model never reads, one for each canary.

    A fair coin decides whether a canary, a synthetic record, takes part in training. Its gradient changes
    only its slot. The audit guesses the coins from the noisy values of the slots. It compares its success
    with the privacy that ``plan`` claims.

    Args:
        evidence: the noisy values of the slots, and the coins.
        plan: the plan of the run.
        confidence: one minus the error probability of each result, such as 0.95.
        rng: for splits, ties and simulations. It must be independent of the coins.

    Returns:
        The results ``claim`` (from :func:`tacit.audits.claim_test`), ``one_run`` (from
        :func:`tacit.audits.audit_one_run`) and ``one_run_by_tradeoff`` (the same for the claimed trade-off
        curve instead of epsilon). Also the ``scores`` of the canaries.

    **Guarantee**

    * Each of the three results is wrong with probability at most 1 - ``confidence``, as these functions
      define it.

    Raises:
        InvalidInput: if the evidence is not from a run of this plan.

    >>> from tacit.training.audit_slots import SlotEvidence
    >>> plan = Plan.with_noise(noise_multiplier=2.0, steps=10, records=1000, clipping=1.0, delta=1e-5,
    ...                        adjacency="add-remove", unit="row")
    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(200) < 0.5
    >>> seen = coins + rng.normal(0.0, 2.0, (10, 200))
    >>> found = audit_slots(SlotEvidence(seen.astype(np.float32), coins), plan, confidence=0.95, rng=rng)
    >>> found.claim.claim_rejected, found.claim.eps_lower > 2.0
    (False, True)
    """
    scores = scores_of_slots(evidence, plan)
    claim = Claim(plan.curve, delta=plan.delta)
    noise = plan.gradient_noise_multiplier
    rehearsals = tuple(
        rehearsed_slot_scores(
            steps=plan.steps,
            sampling_rate=_rate(plan),
            noise_multiplier=noise,
            true_noise=noise / less_noise,
            rng=rng,
            once_an_epoch=isinstance(plan.sampling, BallsInBinsSampling),
            slots=int(np.clip(_REHEARSAL_CELLS / plan.steps, 500, 10_000)),
        )
        for less_noise in _BUGS
    )

    def event(noise: float) -> Event:
        training = plan.sampling.event(Gaussian(noise), plan.steps, plan.adjacency)
        return Compose((*plan.beside, training)) if plan.beside else training

    family = NoiseFamily(
        event, claimed_noise=plan.noise_multiplier, name=f"{plan.steps} steps of Gaussian noise"
    )
    tested = claim_test(scores, claim, confidence=confidence, rng=rng, rehearsals=rehearsals, family=family)

    values = np.concatenate([scores.members, scores.non_members])
    coins = np.arange(values.size) < scores.members.size
    one_run, by_tradeoff = (
        audit(values, coins, delta=plan.delta, confidence=confidence, rng=rng, claim=claim)
        for audit in (audit_one_run, audit_one_run_by_tradeoff)
    )
    return SlotAudit(tested, one_run, by_tradeoff, scores)


def plan_with_room(plan: Plan, slots: int) -> Plan:
    """Return a copy of ``plan`` with enough ``records`` for an audit with ``slots`` slots.

    A slot is an extra weight that the model never reads, with one canary. Train with the copy on synthetic
    records, which costs no privacy. The mechanism and the privacy curve stay the same. Slots test how a step
    samples, clips, sums, adds noise and divides, which does not depend on the values of the records.

    >>> plan = Plan.with_noise(noise_multiplier=2.0, steps=10, records=1000, clipping=1.0, delta=1e-5,
    ...                        adjacency="add-remove", unit="row")
    >>> roomy = plan_with_room(plan, 400)
    >>> roomy.records, roomy.epsilon == plan.epsilon
    (2000, True)
    """
    check_integer("slots", slots, low=1)
    _rate(plan)  # raises an error for samplers that slots cannot test
    records = _RECORDS_PER_SLOT * slots
    if isinstance(plan.clipping, AdaptiveClipping):  # its count needs large batches
        records = max(records, plan.records)
    return replace(
        plan,
        records=records,
        expected_batch_size=plan.sampling_rate * records,
        epsilon_budget=None,
        allow_large_delta=True,
    )


def _rate(plan: Plan) -> float:
    match plan.sampling:
        case PoissonSampling(sampling_rate=rate):
            return rate
        case BallsInBinsSampling(bins=bins):
            return 1.0 / bins
        case FullBatch():
            return 1.0
    raise PrivacyRefusal(
        f"this audit needs full batches, or Poisson or balls-in-bins sampling; got {plan.sampling!r}, which "
        "does not draw the canaries independently."
    )
