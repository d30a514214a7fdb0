"""Attacks on trained models, which compute scores of records, and metrics of these scores.

``Scores`` holds an attack's scores of members and non-members.  ``measure`` computes the metrics, with
confidence intervals.  The attacks on membership are in :mod:`tacit.attacks.membership`.
"""

from typing import TYPE_CHECKING

from tacit.attacks.intervals import clopper_pearson
from tacit.attacks.metrics import Measured, found_at, measure, operating_point
from tacit.attacks.scores import Scores
from tacit.moved import moved as _moved

__all__ = [
    "Measured",
    "Scores",
    "clopper_pearson",
    "found_at",
    "measure",
    "operating_point",
]

if not TYPE_CHECKING:  # so that type checkers do not accept every name
    __getattr__ = _moved(
        __name__,
        {
            "FoundAt": "tacit.attacks.metrics.FoundAt",
            "Interval": "tacit.attacks.intervals.Interval",
            "OperatingPoint": "tacit.attacks.metrics.OperatingPoint",
            "Roc": "tacit.attacks.scores.Roc",
            "advantage_at_held_out_threshold": "tacit.attacks.metrics.advantage_at_held_out_threshold",
            "auc_interval": "tacit.attacks.metrics.auc_interval",
            "shadow_groups": "tacit.attacks.intervals.shadow_groups",
            "shadow_reach": "tacit.attacks.intervals.shadow_reach",
        },
    )
