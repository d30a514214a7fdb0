"""What do the slots of a run prove? Everything that its canaries show, in one call.

The scores are log-likelihood ratios under the run's own plan.  Under adaptive clipping or with a loss report
the gradients have more noise than the plan's multiplier says, because the count and the loss are released
too. The slots contain this noise, and the audit compares them with the accounted curve of all releases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.attacks import Scores
from tacit.audits.claim import NoiseFamily, claim_test
from tacit.audits.one_run import audit_one_run, audit_one_run_by_tradeoff
from tacit.audits.result import AuditResult
from tacit.audits.slots import rehearsed_slot_scores, slot_scores
from tacit.audits.tradeoff import Claim
from tacit.clipping.rules import AdaptiveClipping
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.events import Compose, Event, Gaussian
from tacit.plan import Plan
from tacit.sampling import FullBatch, PoissonSampling

if TYPE_CHECKING:
    from tacit.training.parts.audit_slots import SlotEvidence

_REHEARSAL_CELLS = 2e7  # steps times slots that a rehearsal simulates at most
_BUGS = (1.0, 1.25)  # too little noise by these factors is rehearsed
_RECORDS_PER_SLOT = 5


@dataclass(frozen=True, eq=False)
class SlotAudit:
    """``claim``: the claim test, which assumes that slots do not disturb one another; ``one_run`` and
    ``one_run_by_tradeoff``: bounds that assume nothing of the kind.  ``scores`` of the canaries, for
    pictures.

    >>> from tacit.training.parts.audit_slots import SlotEvidence
    >>> plan = Plan.with_noise(noise_multiplier=2.0, steps=1, records=1000, clipping=1.0, delta=1e-5,
    ...                        adjacency="add-remove", unit="row")
    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(200) < 0.5
    >>> seen = coins + rng.normal(0.0, 2.0, (1, 200))
    >>> found = audit_slots(SlotEvidence(seen.astype(np.float32), coins), plan, confidence=0.95, rng=rng)
    >>> found.claim.claim_rejected, found.one_run.eps_lower <= plan.epsilon
    (False, True)
    """

    claim: AuditResult
    one_run: AuditResult
    one_run_by_tradeoff: AuditResult
    scores: Scores


def scores_of_slots(evidence: SlotEvidence, plan: Plan) -> Scores:
    """The slots' scores by their coins: higher for canaries that seem to have taken part.

    :raises InvalidInput: if the evidence has another number of steps than the plan, or all coins are equal.

    >>> from tacit.training.parts.audit_slots import SlotEvidence
    >>> plan = Plan.with_noise(noise_multiplier=2.0, steps=10, records=1000, clipping=1.0, delta=1e-5,
    ...                        adjacency="add-remove", unit="row")
    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(200) < 0.5
    >>> seen = coins + rng.normal(0.0, 2.0, (10, 200))
    >>> scores = scores_of_slots(SlotEvidence(seen.astype(np.float32), coins), plan)
    >>> scores.auc() > 0.7
    True
    """
    if len(evidence.observed) != plan.steps:
        raise InvalidInput(
            f"the slots were observed in {len(evidence.observed)} steps and the plan has {plan.steps}: this "
            "is the evidence of another run."
        )
    values = slot_scores(
        evidence.observed,
        sampling_rate=_rate(plan),
        noise_multiplier=plan.gradient_noise_multiplier,
    )
    return Scores.of(values, evidence.included)


def audit_slots(
    evidence: SlotEvidence, plan: Plan, *, confidence: float, rng: np.random.Generator
) -> SlotAudit:
    """Audit a run of ``plan`` by its slots.

    :param rng: for halves, ties and rehearsals; it must be independent of the coins.

    Guarantee
    ---------
    * Of each result by itself, as of :func:`tacit.audits.claim_test` and :func:`tacit.audits.audit_one_run`:
      it errs with probability at most 1 - ``confidence``.

    :raises InvalidInput: if the evidence is not of this plan.

    >>> from tacit.training.parts.audit_slots import SlotEvidence
    >>> plan = Plan.with_noise(noise_multiplier=2.0, steps=10, records=1000, clipping=1.0, delta=1e-5,
    ...                        adjacency="add-remove", unit="row")
    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(200) < 0.5
    >>> seen = coins + rng.normal(0.0, 2.0, (10, 200))
    >>> found = audit_slots(SlotEvidence(seen.astype(np.float32), coins), plan, confidence=0.95, rng=rng)
    >>> found.claim.claim_rejected, found.claim.eps_lower > 2.0
    (False, True)
    """
    scores, claim = scores_of_slots(evidence, plan), Claim(plan.curve, delta=plan.delta)
    tested = claim_test(
        scores,
        claim,
        confidence=confidence,
        rng=rng,
        rehearsals=tuple(_rehearsal(plan, less_noise, rng) for less_noise in _BUGS),
        family=_family(plan),
    )
    values, coins = np.concatenate([scores.members, scores.non_members]), _coins(scores)
    return SlotAudit(
        claim=tested,
        one_run=audit_one_run(values, coins, delta=plan.delta, confidence=confidence, rng=rng, claim=claim),
        one_run_by_tradeoff=audit_one_run_by_tradeoff(
            values, coins, delta=plan.delta, confidence=confidence, rng=rng, claim=claim
        ),
        scores=scores,
    )


def plan_with_room(plan: Plan, slots: int) -> Plan:
    """The same mechanism, with the same curve, on just enough records for so many slots among them.

    For a separate run on made-up records, which costs no privacy: slots test the sampler, the clipping, the
    sum, the noise and the divisor, whatever the records are.

    >>> plan = Plan.with_noise(noise_multiplier=2.0, steps=10, records=1000, clipping=1.0, delta=1e-5,
    ...                        adjacency="add-remove", unit="row")
    >>> roomy = plan_with_room(plan, 400)
    >>> roomy.records, roomy.epsilon == plan.epsilon
    (2000, True)
    """
    check_integer("slots", slots, low=1)
    _rate(plan)  # refuses other samplers
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
        case FullBatch():
            return 1.0
    raise PrivacyRefusal(
        f"slots test Poisson samples and full batches, whose canaries are independent; got {plan.sampling!r}."
    )


def _coins(scores: Scores) -> NDArray[np.bool_]:
    return np.arange(scores.members.size + scores.non_members.size) < scores.members.size


def _rehearsal(plan: Plan, less_noise: float, rng: np.random.Generator) -> Scores:
    noise = plan.gradient_noise_multiplier
    return rehearsed_slot_scores(
        steps=plan.steps,
        sampling_rate=_rate(plan),
        noise_multiplier=noise,
        true_noise=noise / less_noise,
        rng=rng,
        slots=int(np.clip(_REHEARSAL_CELLS / plan.steps, 500, 10_000)),
    )


def _family(plan: Plan) -> NoiseFamily:
    def event(noise: float) -> Event:
        training = plan.sampling.event(Gaussian(noise), plan.steps, plan.adjacency)
        return Compose((*plan.beside, training)) if plan.beside else training

    return NoiseFamily(
        event, claimed_noise=plan.noise_multiplier, name=f"{plan.steps} steps of Gaussian noise"
    )
