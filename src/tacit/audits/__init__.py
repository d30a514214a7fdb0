"""Audits: lower bounds on what a run reveals, from experiments that are independent of the accounting.

``claim_test`` checks whether canaries contradict the accounted trade-off curve.  ``audit_one_run`` allows
canaries that depend on one another.  ``audit_repeated_runs`` compares many runs with a record and without it.
Each returns an ``AuditResult``.  ``audit_slots`` audits a run with slots (unused entries of a parameter), and
``plan_with_room`` makes the plan of such a run.  ``noise_law`` and ``sampler_law`` find faults that no canary
shows.  ``audit_precision`` tests the low bits of released numbers.
"""

from tacit.audits.claim import claim_test
from tacit.audits.laws import noise_law, sampler_law
from tacit.audits.one_run import audit_one_run
from tacit.audits.precision import audit_precision
from tacit.audits.repeated import audit_repeated_runs
from tacit.audits.result import AuditResult
from tacit.audits.slots import audit_slots, plan_with_room
from tacit.audits.tradeoff import Claim

__all__ = [
    "AuditResult",
    "Claim",
    "audit_one_run",
    "audit_precision",
    "audit_repeated_runs",
    "audit_slots",
    "claim_test",
    "noise_law",
    "plan_with_room",
    "sampler_law",
]
