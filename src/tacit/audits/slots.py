"""Audits by slots.  A slot is an entry of a parameter vector at which only one canary has a gradient.

Letters: T steps, m slots, q the sampling rate, C the clipping norm, s_j the public sign of slot j.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.audits.claim import AuditResult, Claim, NoiseFamily, claim_test
from tacit.audits.one_run import audit_one_run, audit_one_run_by_tradeoff
from tacit.audits.scores import Scores
from tacit.clipping.rules import AdaptiveClipping
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer, check_real
from tacit.events import Compose, Event, Gaussian
from tacit.plan import Plan
from tacit.sampling import FullBatch, PoissonSampling

if TYPE_CHECKING:
    from tacit.training.audit_slots import SlotEvidence

Array: TypeAlias = NDArray[np.float64]


def slot_scores(observed: ArrayLike, *, sampling_rate: float, noise_multiplier: float) -> Array:
    """Compute the (m,) log-likelihood ratios.  The canary of a slot with a high ratio was likely in training.

    The model never uses the parameter vector of the slots.  If canary j takes part in a step, entry j of the
    clipped sum is s_j C, and otherwise it is 0.  The released entry, divided by s_j C, is

        x_tj = [j took part in step t] + N(0, sigma^2),

    so the best membership test, given sigma, is the log-likelihood ratio of a Poisson sample,

        LLR_j = sum over t of log(1 - q + q exp((x_tj - 1/2) / sigma^2)).

    A plain sum over the steps is far weaker.  A threshold of 0 is poor if the true noise is not sigma, so
    audits choose it from data.

    Args:
        observed: x, of shape (T, m): the slots' entries of the released noisy *sum*, divided by s_j C.
        sampling_rate: the claimed sampling rate q in (0, 1].
        noise_multiplier: the claimed noise multiplier sigma > 0.

    Raises:
        InvalidInput: if an entry is not finite, or nothing was observed.

    >>> slot_scores([[1.0, 0.0], [1.0, 0.5]], sampling_rate=1.0, noise_multiplier=1.0).tolist()
    [1.0, -0.5]
    """
    q = check_real("sampling_rate", sampling_rate, low=0.0, high=1.0, open_low=True)
    sigma = check_real("noise_multiplier", noise_multiplier, low=0.0, open_low=True)
    x = np.asarray(observed, dtype=np.float64)
    if x.ndim != 2 or x.size == 0:
        raise InvalidInput(f"observed must have a row per step and a column per slot; got shape {x.shape}.")
    if not np.isfinite(x).all():
        raise InvalidInput(
            f"observed must be finite; {int((~np.isfinite(x)).sum())} of {x.size} entries are not."
        )
    ratio = np.log(q) + (x - 0.5) / sigma**2
    stays = np.log1p(-q) if q < 1.0 else -np.inf
    total: Array = np.logaddexp(stays, ratio).sum(axis=0)
    return total


def rehearsed_slot_scores(
    *,
    steps: int,
    sampling_rate: float,
    noise_multiplier: float,
    rng: np.random.Generator,
    true_noise: float | None = None,
    slots: int = 10_000,
) -> Scores:
    """Simulate the scores of slots in a run with these settings, with half of the canaries in training.

    :func:`tacit.audits.claim_test` chooses a threshold from them, independently of the run.

    ``true_noise`` is the noise multiplier of the simulation, by default the claimed one; another value
    rehearses a bug.  More ``slots`` of either kind give a better threshold.

    >>> rng = np.random.default_rng(0)
    >>> scores = rehearsed_slot_scores(steps=5, sampling_rate=1.0, noise_multiplier=2.0, rng=rng)
    >>> 0.75 < scores.auc() < 0.82  # Phi(sqrt(5) / 2 / sqrt(2)) = 0.785
    True
    """
    check_integer("steps", steps, low=1)
    check_integer("slots", slots, low=1)
    sigma = noise_multiplier if true_noise is None else check_real("true_noise", true_noise, low=0.0)
    total = np.zeros(2 * slots)
    for _ in range(steps):  # one step at a time: a long run does not fit in one array
        part = np.concatenate([rng.random(slots) < sampling_rate, np.zeros(slots, dtype=np.bool_)])
        x = part + sigma * rng.standard_normal(2 * slots)
        total += slot_scores(x[None], sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
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

    With adaptive clipping or a loss report, the gradients have more noise than the plan's noise multiplier
    says, because the count or the loss is also released.  The slots have this larger noise, and the audit
    compares them with the accounted curve of all releases.
    """
    if len(evidence.observed) != plan.steps:
        raise InvalidInput(
            f"evidence must have the plan's {plan.steps} steps; got {len(evidence.observed)}. Pass the plan "
            "of the run that it is from."
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

    Args:
        evidence: the released slots and the coins.
        plan: the plan of the run.
        confidence: one minus the error probability of each result.
        rng: the generator for splits, ties and rehearsals.  It must be independent of the coins.

    **Guarantee**

    * Each single result errs with probability at most 1 - ``confidence``, in the sense of
      :func:`tacit.audits.claim_test` and :func:`tacit.audits.audit_one_run`.

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
    """Return a plan with the same mechanism and curve, and just enough records for ``slots`` slots.

    Use it for a separate run on made-up records, which costs no privacy.  This is enough, because slots test
    the sampler, the clipping, the sum, the noise and the divisor, which do not depend on the records' values.

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
        case FullBatch():
            return 1.0
    raise PrivacyRefusal(
        f"an audit by slots needs Poisson samples or full batches; got {plan.sampling!r}. Under other "
        "samplers, canaries are not independent."
    )
