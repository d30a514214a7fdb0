"""The audit by repetition, which trains often with a record and without it, and compares the runs.

This is the oldest audit.  It is valid for every mechanism that can be run often, because (epsilon, delta)-DP
bounds the error rates of every test that distinguishes the two kinds of run (Jagielski, Ullman & Oprea 2020,
2006.07709; Nasr et al. 2021, 2101.04535).  n runs can show an epsilon of at most about log(n / 4).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.audits.claim import (
    AuditResult,
    Claim,
    Objective,
    check_confidence,
    count_errors,
    gaussian_epsilon,
    mus_shown,
)
from tacit.audits.scores import Scores, largest_rate
from tacit.errors import check_real

Array: TypeAlias = NDArray[np.float64]


def audit_repeated_runs(
    scores: Scores,
    *,
    delta: float,
    confidence: float,
    rng: np.random.Generator,
    claim: Claim | None = None,
) -> AuditResult:
    """Compute a lower bound on epsilon from independent runs with and without a record, with one score each.

    Half of the runs choose two thresholds, one for either direction of the inequality.  The other half bounds
    the resulting four rates, each at a quarter of the error probability.

    Args:
        scores: the scores of the runs with the record (``members``) and without it (``non_members``).
        delta: the delta of the bound.
        confidence: one minus the error probability.
        rng: the generator that splits the runs into halves.  It must be independent of the scores.
        claim: if it is given, the same bounds also test it.

    **Guarantee**

    * A bound exceeds the truth, or a true claim is rejected, with probability at most 1 - ``confidence``.

    Raises:
        InvalidInput: if there are fewer than two runs of either kind.

    >>> rng = np.random.default_rng(0)
    >>> apart = Scores(rng.normal(5.0, 1.0, 500), rng.normal(0.0, 1.0, 500))
    >>> 3.0 < audit_repeated_runs(apart, delta=0.0, confidence=0.95, rng=rng).eps_lower_any < 5.0
    True
    """
    check_confidence(confidence)
    check_real("delta", delta, low=0.0, high=1.0, open_high=True)
    level = (1.0 - confidence) / 4.0
    halving = int(rng.integers(2**63))  # both thresholds are chosen on the same half

    def straight(false_positives: Array, false_negatives: Array) -> Array:
        return epsilons_shown(false_positives, false_negatives, delta)

    def mirrored(false_positives: Array, false_negatives: Array) -> Array:
        return epsilons_shown(false_negatives, false_positives, delta)

    both = [
        bounded_rates(scores, choose, level=level, rng=np.random.default_rng(halving))
        for choose in (straight, mirrored)
    ]
    fpr, fnr = np.array(both).T
    epsilon = float(max(straight(fpr, fnr).max(), mirrored(fpr, fnr).max()))
    mu = float(mus_shown(fpr, fnr).max())
    gaussian = gaussian_epsilon(mu, delta) if delta > 0.0 else 0.0
    rejected = None
    if claim is not None:
        rejected = bool((fnr < claim.false_negatives(fpr)).any())
    return AuditResult(
        method="repeated runs",
        canaries=scores.members.size + scores.non_members.size,
        confidence=confidence,
        delta=delta,
        eps_lower=max(gaussian, epsilon),
        eps_lower_any=epsilon,
        family="Gaussian differential privacy" if gaussian > epsilon else None,
        mu_lower=mu,
        claimed_eps=None if claim is None else claim.epsilon,
        claim_rejected=rejected,
    )


def bounded_rates(
    scores: Scores, choose: Objective, *, level: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return upper Clopper-Pearson bounds on the rates of false positives and false negatives of one half.

    The other half chooses the threshold, because a threshold looks too good on the scores that chose it.

    Args:
        level: the largest probability with which each of the two bounds may fail.
    """
    choosing, judging = scores.split(rng)
    counts = count_errors(judging, choosing, choose, level=2.0 * level)
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
