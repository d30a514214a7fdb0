"""What do many independent trials prove? Whole runs, with and without a record, or the steps of one run.

By repetition, the oldest audit, and valid for anything that can be run often: (epsilon, delta)-DP bounds
the error rates of every test between the two kinds of run (Jagielski, Ullman & Oprea 2020, 2006.07709; Nasr
et al. 2021, 2101.04535).  What n runs can show is at most about log(n / 4).

By steps: Nasr et al. 2023, 2302.07956, section 5.  An attacker who sees the released gradients g of a run
and knows a canary's direction c sees <c, g> / C in every step: N(1, sigma^2) where the canary took part
with its full norm, N(0, sigma^2) where it did not.  Each step is a separate trial, so one run gives as many
as it has steps.  The bound is on *this* noise; the replay on neighbours tests that the rest of the step is
as accounted for.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.accounting import account
from tacit.attacks import Scores
from tacit.audits.claim import NoiseFamily
from tacit.audits.rates import bounded_rates, check_confidence, epsilons_shown, mus_shown
from tacit.audits.result import AuditResult
from tacit.audits.tradeoff import Claim, gaussian_epsilon
from tacit.errors import check_real
from tacit.events import Adjacency

Array: TypeAlias = NDArray[np.float64]


def audit_repeated_runs(
    scores: Scores,
    *,
    delta: float,
    confidence: float,
    rng: np.random.Generator,
    claim: Claim | None = None,
) -> AuditResult:
    """A lower bound on epsilon from one score per independent run, half of them with the record.

    Two thresholds are chosen on half of the runs, one for each direction of the bound; the four rates are
    bounded on the other half, at a quarter of the error probability each.

    :param scores: one of each run with the record (``members``) and without it (``non_members``).
    :param rng: splits the runs in halves; it must be independent of the scores.
    :param claim: if given, it is tested too, on the same bounds.

    Guarantee
    ---------
    * A bound exceeds the truth, or a true claim is rejected, with probability at most 1 - ``confidence``.

    :raises InvalidInput: if there are fewer than two runs of either kind.

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
    fpr = np.array([bounds.false_positives for bounds in both])
    fnr = np.array([bounds.false_negatives for bounds in both])
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


def audit_steps(
    projections: Scores,
    family: NoiseFamily,
    *,
    delta: float,
    adjacency: Adjacency | str,
    confidence: float,
    rng: np.random.Generator,
) -> AuditResult:
    """A lower bound on mu of one step, the noise that goes with it, and the epsilon of a run with that noise.

    :param projections: <c, g> / C of the steps with the canary (``members``) and without; g is the noisy
        *sum*, not divided by the batch size.
    :param family: the whole run as a function of the noise multiplier of its steps.
    :param delta: in (0, 1).

    Guarantee
    ---------
    * ``noise_at_most`` is below the true noise multiplier of the steps with probability at most
      1 - ``confidence``.

    :raises InvalidInput: if there are fewer than two steps of either kind.

    >>> from tacit.events import Gaussian, PoissonSampled, Repeat
    >>> run = NoiseFamily(lambda s: Repeat(PoissonSampled(0.1, Gaussian(s)), 200), claimed_noise=1.0,
    ...                   name="subsampled Gaussian steps")
    >>> rng = np.random.default_rng(1)
    >>> seen = Scores(rng.normal(1.0, 0.5, 1000), rng.normal(0.0, 0.5, 1000))  # half of the noise
    >>> found = audit_steps(seen, run, delta=1e-5, adjacency="add-remove", confidence=0.95, rng=rng)
    >>> found.claim_rejected, 0.5 < found.noise_at_most < 0.7
    (True, True)
    """
    check_confidence(confidence)
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    bounds = bounded_rates(projections, mus_shown, level=(1.0 - confidence) / 2.0, rng=rng)
    fpr, fnr = np.array([bounds.false_positives]), np.array([bounds.false_negatives])
    mu = float(mus_shown(fpr, fnr)[0])
    claimed = account(family.event(family.claimed_noise), adjacency=adjacency).epsilon(delta)
    noise = 1.0 / mu if mu > 0.0 else None
    epsilon = (
        0.0 if noise is None else account(family.event(noise), adjacency=adjacency).epsilon_bounds(delta)[0]
    )
    one_step = float(max(epsilons_shown(fpr, fnr, delta)[0], epsilons_shown(fnr, fpr, delta)[0]))
    return AuditResult(
        method="step by step",
        canaries=projections.members.size + projections.non_members.size,
        confidence=confidence,
        delta=delta,
        eps_lower=max(epsilon, one_step),
        eps_lower_any=one_step,
        family=family.name if epsilon > one_step else None,
        mu_lower=mu,
        noise_at_most=noise,
        claimed_eps=claimed,
        claim_rejected=mu > 1.0 / family.claimed_noise,
    )
