"""What does the noise of one step prove? The step-level audit: bound it, and let the accountant compose.

By Nasr et al. 2023, 2302.07956, section 5.  An attacker who sees the released gradients g of a run and knows
a canary's direction c sees <c, g> / C in every step: N(1, sigma^2) where the canary took part with its full
norm, N(0, sigma^2) where it did not.  Each step is a separate trial, so one run gives as many as it has
steps.  The bound is on *this* noise; the replay on neighbours tests that the rest of the step is as accounted
for.
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
from tacit.errors import check_real
from tacit.events import Adjacency

Array: TypeAlias = NDArray[np.float64]


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
