"""Attacks on trained models, which compute scores of records, and metrics of these scores.

``Scores`` holds an attack's scores of members and non-members.  ``measure`` computes the metrics, with
confidence intervals.  The attacks on membership are in :mod:`tacit.attacks.membership`.
"""

from tacit.attacks.intervals import clopper_pearson
from tacit.attacks.metrics import Measured, found_at, measure, operating_point
from tacit.attacks.scores import Scores

__all__ = [
    "Measured",
    "Scores",
    "clopper_pearson",
    "found_at",
    "measure",
    "operating_point",
]
