"""Audits and attacks: empirical lower bounds on the privacy loss of a run.

``Scores`` contains the scores of a membership attack or of canaries, and ``measure`` computes their metrics.
:mod:`tacit.audits.attacks` contains the attack itself, and planted secrets for language models.
``claim_test`` tests the accounted trade-off curve with canaries. ``audit_one_run`` allows dependent canaries.
``audit_slots`` audits a run with slots (unused entries of a parameter), and ``plan_with_room`` makes the plan
of such a run. Each audit returns an ``AuditResult``.
"""

from tacit.audits.claim import AuditResult, Claim, claim_test
from tacit.audits.one_run import audit_one_run, audit_slots, plan_with_room
from tacit.audits.scores import Measured, Scores, clopper_pearson, found_at, measure, operating_point

__all__ = [
    "AuditResult",
    "Claim",
    "Measured",
    "Scores",
    "audit_one_run",
    "audit_slots",
    "claim_test",
    "clopper_pearson",
    "found_at",
    "measure",
    "operating_point",
    "plan_with_room",
]
