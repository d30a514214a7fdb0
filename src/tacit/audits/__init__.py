"""What is the least that a run reveals? Lower bounds from experiments, independent of the accounting.

``claim_test`` checks whether canaries contradict the accounted trade-off curve; ``audit_one_run`` and
``audit_one_run_by_tradeoff`` need no independence of the canaries; ``audit_steps`` observes single steps;
``audit_repeated_runs`` compares whole runs.  Each returns an ``AuditResult``; ``audit_slots`` makes those
of a run that was trained with slots.  ``noise_law`` and ``sampler_law`` test what no canary shows;
``audit_precision`` tests the low bits of released numbers.
"""

from tacit.audits.claim import NoiseFamily, claim_test
from tacit.audits.laws import LawTest, noise_law, sampler_law
from tacit.audits.one_run import audit_one_run, audit_one_run_by_tradeoff
from tacit.audits.precision import audit_precision, lowest_bits
from tacit.audits.repeated import audit_repeated_runs, audit_steps
from tacit.audits.result import AUDIT_LEVEL, AuditResult
from tacit.audits.slots import (
    SlotAudit,
    audit_slots,
    plan_with_room,
    rehearsed_slot_scores,
    scores_of_slots,
    slot_scores,
)
from tacit.audits.tradeoff import Claim

__all__ = [
    "AUDIT_LEVEL",
    "AuditResult",
    "Claim",
    "LawTest",
    "NoiseFamily",
    "SlotAudit",
    "audit_one_run",
    "audit_one_run_by_tradeoff",
    "audit_precision",
    "audit_repeated_runs",
    "audit_slots",
    "audit_steps",
    "claim_test",
    "lowest_bits",
    "noise_law",
    "plan_with_room",
    "rehearsed_slot_scores",
    "sampler_law",
    "scores_of_slots",
    "slot_scores",
]
