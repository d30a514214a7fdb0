"""Audits and attacks: lower bounds on what a run reveals, from experiments and not from the accounting.

``Scores`` holds the scores of a membership attack or of canaries, and ``measure`` computes their metrics.
The attack itself is in :mod:`tacit.audits.attacks`, as are planted secrets of language models.
``claim_test`` checks whether canaries contradict the accounted trade-off curve.  ``audit_one_run`` allows
canaries that depend on one another.  Each returns an ``AuditResult``.
``audit_slots`` audits a run with slots (unused entries of a parameter), and ``plan_with_room`` makes the plan
of such a run.
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
