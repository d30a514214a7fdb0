"""Lower bounds from one run with many canaries, from guesses of the coins that decided which of them are in.

Letters: m canaries, r guesses, v of them right.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, bdtrc, expit

from tacit.audits.claim import AuditResult, Claim, check_confidence, gaussian_epsilon, largest_contradicted
from tacit.errors import InvalidInput, check_real

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
    """Compute a lower bound on epsilon of any (epsilon, delta)-DP run, from m canaries.

    The auditor guesses "in" for the highest scores and "out" for the lowest.  The bound needs only fair and
    independent coins.  The canaries may interfere, and the mechanism may be unknown.

    Args:
        scores: (m,) scores, higher for canaries that seem to be in.
        included: (m,) booleans, the results of the coins.  The coins must be fair, independent and flipped
            before training.
        delta: the delta in [0, 1).  Keep m delta below 0.01, because the bound is weak otherwise.
        confidence: one minus the error probability.
        rng: the generator that puts equal scores in random order.  It must be independent of the coins.
        shares: the shares of the canaries to guess, chosen before the scores are seen.  The error probability
            is split evenly between them.
        claim: if it is given, its epsilon is tested too.

    **Guarantee**

    * ``eps_lower`` exceeds the true epsilon with probability at most 1 - ``confidence``, for any scores and
      any interference between canaries.

    Raises:
        InvalidInput: if there are no canaries, a score is not finite, or the coins cannot be fair.

    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(1000) < 0.5
    >>> result = audit_one_run(coins + 0.0, coins, delta=0.0, confidence=0.95, rng=rng)
    >>> round(result.eps_lower, 2)  # 500 of 500 right, at a level of 0.0125
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

    Raises:
        InvalidInput: if there are no canaries, a score is not finite, or the coins cannot be fair.

    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(1000) < 0.5
    >>> scores = coins + rng.normal(0.0, 1.0, 1000)  # each canary alone: mu is 1
    >>> result = audit_one_run_by_tradeoff(scores, coins, delta=1e-5, confidence=0.95, rng=rng)
    >>> 0.5 < result.mu_lower < 1.0
    True
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
            f"included must hold one boolean per score; got {coin.dtype} of shape {coin.shape} for scores of "
            f"shape {score.shape}."
        )
    if score.size == 0:
        raise InvalidInput("there are no canaries: plant some before training. 1,000 are enough.")
    if not np.isfinite(score).all():
        raise InvalidInput(f"{int((~np.isfinite(score)).sum())} of {score.size} scores are not finite.")
    fewer = min(int(coin.sum()), int((~coin).sum()))
    if 2.0 * float(bdtr(fewer, score.size, 0.5)) < _UNFAIR:
        raise InvalidInput(
            f"included has {int(coin.sum())} of {score.size} canaries: fair coins do not give that number. "
            "Let a fair coin decide for each canary whether it is included; otherwise they prove nothing."
        )
    if not shares:
        raise InvalidInput("shares must not be empty; give a share of the canaries to guess.")
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

    >>> round(chance_of_right_guesses(1000, 200, 160, epsilon=1.0, delta=1e-5), 6)
    0.015877
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
    """Find the largest epsilon that the guesses contradict at ``level``: ``right`` of ``guessed`` are right.

    >>> [round(epsilon_from_guesses(r, r, r, delta=0.0, level=0.05), 2) for r in (10, 100, 1000, 5000)]
    [1.05, 3.49, 5.81, 7.42]
    """

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
    """Find the largest mu for which the guesses contradict mu-GDP at ``level``.

    >>> round(mu_from_guesses(1000, 200, 160, level=0.05), 4)
    0.4402
    """

    def contradicted(mu: float) -> bool:
        def false_negative(rate: float) -> float:
            r = 1.0 - rate
            return _NORMAL.cdf(_NORMAL.inv_cdf(r) - mu) if 0.0 < r < 1.0 else float(r >= 1.0)

        return tradeoff_contradicted(canaries, guessed, right, false_negative, level=level)

    return largest_contradicted(contradicted, _MOST, halvings=_HALVINGS)
