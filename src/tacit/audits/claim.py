"""The claim test, which checks whether a run is as private as its accounted trade-off curve.

Every test for membership with false-positive rate a has a false-negative rate of at least f(a), with f the
trade-off curve.  A test refutes the claim if it makes so few errors that they are unlikely at all pairs of
rates on or above f (:mod:`tacit.audits.counts`).  The canaries whose errors are counted must not choose the
threshold of the test.  The same counts also contradict

    every eps below eps_lower       of any (eps, delta)-DP mechanism
    every mu below mu_lower         of any mu-GDP mechanism
    every noise above sigma'        of the run's family of mechanisms

and one error probability covers all of these statements.

One half of the canaries chooses the threshold, and errors are counted on the other half.  If the experiment
can be simulated, each simulation, called a rehearsal, also chooses a threshold, and errors are counted on all
canaries.  Rehearsals get four fifths of the error probability, because they choose good thresholds.  The
halves get the rest, because they find faults that no rehearsal has simulated.  Rehearse the claimed noise,
which gives the largest bounds for a correct run, and the smallest bug that you want to find.

Given their coins, the scores of the canaries must be independent of one another.  This is true of the slots
of a Poisson-sampled run with independent noise.  For canaries that interfere use :mod:`tacit.audits.one_run`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.accounting import account
from tacit.attacks import Scores
from tacit.audits.counts import (
    ErrorCounts,
    check_confidence,
    counts_after_halving,
    counts_after_rehearsal,
    largest_contradicted,
    mus_shown,
)
from tacit.audits.result import AuditResult
from tacit.audits.tradeoff import Claim, gaussian_epsilon, gaussian_false_negatives, plain_false_negatives
from tacit.errors import check_real
from tacit.events import Event

Array: TypeAlias = NDArray[np.float64]

_REHEARSED = 0.8  # share of the error probability for the rehearsed thresholds
_HALVINGS = 12  # how often the interval around the result is halved
_LEAST_NOISE = 0.1  # the least noise multiplier with which a sampled composition can be accounted for
_STEP = 1.25  # a step of the search for the noise is this factor; accounting is slow with little noise
_NOISE_HALVINGS = 6  # how often such a step is halved, to 0.4 %
_AS_GOOD_AS_NONE = 24.0  # the epsilon, in nats, at which the search for the noise stops
_FARTHEST = 64.0  # the end of all searches: a multiple of the claimed noise, an epsilon in nats, or a mu


class NoiseFamily:
    """The event of a run for any noise multiplier, ``event(sigma)``, and the claimed noise multiplier.

    More noise must give more privacy.  This is true of Gaussian noise, even if it is sampled and composed.

    >>> from tacit.events import Gaussian
    >>> family = NoiseFamily(Gaussian, claimed_noise=2.0, name="Gaussian noise")
    >>> family.event(1.0), family.claimed_noise
    (Gaussian(noise_multiplier=1.0), 2.0)
    """

    def __init__(self, event: Callable[[float], Event], *, claimed_noise: float, name: str) -> None:
        """Set the fields.  ``name`` completes the sentence "epsilon is at least ..., given ..."."""
        self.event, self.name = event, name
        self.claimed_noise = check_real("claimed_noise", claimed_noise, low=0.0, open_low=True)


@dataclass(frozen=True)
class Judged:
    """The error counts at one threshold, and ``level``, their share of the error probability."""

    counts: ErrorCounts
    level: float

    def contradicts(self, tradeoff: Callable[[Array], Array]) -> bool:
        """Return whether the counts contradict ``tradeoff``."""
        return self.counts.contradicts(tradeoff, self.level)


def claim_test(
    scores: Scores,
    claim: Claim,
    *,
    confidence: float,
    rng: np.random.Generator,
    rehearsals: tuple[Scores, ...] = (),
    family: NoiseFamily | None = None,
) -> AuditResult:
    """Test ``claim`` on the scores of canaries that were in the training set and of canaries that were not.

    Args:
        scores: the scores of the canaries.
        claim: the claimed trade-off curve.
        confidence: one minus the error probability of all statements together.
        rng: the generator that splits the canaries into halves.  It must be independent of the scores.
        rehearsals: scores from simulations of the experiment with the claimed noise or with a planted bug.
            They must be independent of ``scores``.  :func:`tacit.audits.rehearsed_slot_scores` makes them for
            slots.
        family: the run's event for other noise multipliers.  If it is given, the result has an upper bound on
            the run's true noise multiplier.

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

    def contradicted(tradeoff: Callable[[Array], Array]) -> bool:
        return any(part.contradicts(tradeoff) for part in judged)

    any_mechanism = largest_contradicted(
        lambda eps: contradicted(lambda a: plain_false_negatives(a, eps, claim.delta)),
        _FARTHEST,
        halvings=_HALVINGS,
    )
    mu = largest_contradicted(
        lambda mu: contradicted(lambda a: gaussian_false_negatives(a, mu)), _FARTHEST, halvings=_HALVINGS
    )
    noise = None if family is None else _least_contradicted_noise(family, claim, contradicted)
    name, own = "Gaussian differential privacy", gaussian_epsilon(mu, claim.delta)
    if family is not None:
        curve = None if noise is None else account(family.event(noise), adjacency=claim.curve.adjacency)
        name, own = family.name, 0.0 if curve is None else curve.epsilon_bounds(claim.delta)[0]
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
) -> list[Judged]:
    """Return the error counts that :func:`claim_test` uses, from the same arguments."""
    check_confidence(confidence)
    error = 1.0 - confidence
    rehearsed = _REHEARSED * error / len(rehearsals) if rehearsals else 0.0
    halved = error - len(rehearsals) * rehearsed

    def choose(false_positives: Array, false_negatives: Array) -> Array:
        """Score each threshold by how clearly it refutes the claim.

        If none refutes it, the score is the mu of Gaussian DP that the threshold shows.
        """
        margin = claim.false_negatives(false_positives) - false_negatives
        return margin if (margin > 0.0).any() else mus_shown(false_positives, false_negatives)

    halving = counts_after_halving(scores, choose, level=halved, rng=rng)
    return [Judged(halving, halved)] + [
        Judged(counts_after_rehearsal(scores, rehearsal, choose, level=rehearsed), rehearsed)
        for rehearsal in rehearsals
    ]


def _least_contradicted_noise(
    family: NoiseFamily, claim: Claim, contradicted: Callable[[Callable[[Array], Array]], bool]
) -> float | None:
    """Find nearly the smallest noise multiplier that is contradicted.  Then all larger ones are too.

    The result is None if no multiplier up to 64 times the claimed one is contradicted."""

    def epsilon(noise: float) -> float:
        return account(family.event(noise), adjacency=claim.curve.adjacency).epsilon(claim.delta)

    def too_large(noise: float) -> bool:
        curve = account(family.event(noise), adjacency=claim.curve.adjacency)
        return contradicted(Claim(curve, delta=claim.delta, nodes=64).false_negatives)

    low = high = family.claimed_noise
    while not too_large(high):
        low, high = high, _STEP * high
        if high > _FARTHEST * family.claimed_noise:
            return None
    while low == high:
        low = high / _STEP
        if low < _LEAST_NOISE or epsilon(high) > _AS_GOOD_AS_NONE:
            return high
        if too_large(low):
            high = low
    for _ in range(_NOISE_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if too_large(middle) else (middle, high)
    return high
