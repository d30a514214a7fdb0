"""Audits: lower bounds on what a run reveals, from experiments that are independent of the accounting.

``claim_test`` checks whether canaries contradict the accounted trade-off curve.  ``audit_one_run`` allows
canaries that depend on one another.  Each returns an ``AuditResult``.  ``audit_slots`` audits a run with
slots (unused entries of a parameter), and ``plan_with_room`` makes the plan of such a run.
"""

from tacit.audits.claim import claim_test
from tacit.audits.one_run import audit_one_run
from tacit.audits.result import AuditResult
from tacit.audits.slots import audit_slots, plan_with_room
from tacit.audits.tradeoff import Claim

__all__ = [
    "AuditResult",
    "Claim",
    "audit_one_run",
    "audit_slots",
    "claim_test",
    "plan_with_room",
]
