"""Attacks on trained models, which give scores, and metrics that judge the scores.

``Scores`` holds an attack's answers for members and non-members.  ``measure`` computes how good they are,
with intervals.  The attacks on membership are in :mod:`tacit.attacks.membership`.
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

if not TYPE_CHECKING:  # else every name would be one of the module
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
