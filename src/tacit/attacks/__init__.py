"""What does an attacker reach on a model? Attacks give scores, and metrics judge them.

``Scores`` holds an attack's answers for members and non-members, ``measure`` says how good they are, with
intervals.  The attacks on membership are in :mod:`tacit.attacks.membership`.
"""

from tacit.attacks.intervals import Interval, clopper_pearson, shadow_groups, shadow_reach
from tacit.attacks.metrics import (
    FoundAt,
    Measured,
    OperatingPoint,
    advantage_at_held_out_threshold,
    auc_interval,
    found_at,
    largest_advantage,
    measure,
    operating_point,
)
from tacit.attacks.scores import Roc, Scores

__all__ = [
    "FoundAt",
    "Interval",
    "Measured",
    "OperatingPoint",
    "Roc",
    "Scores",
    "advantage_at_held_out_threshold",
    "auc_interval",
    "clopper_pearson",
    "found_at",
    "largest_advantage",
    "measure",
    "operating_point",
    "shadow_groups",
    "shadow_reach",
]
