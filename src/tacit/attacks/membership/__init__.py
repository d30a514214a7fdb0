"""Was this record in the training set?  Attacks as functions of scores, each of which is higher for members.

``bavaria`` is the default; ``loss_threshold`` needs no shadow models and is the yardstick of all others.
"""

from tacit.attacks.membership.bavaria import bavaria
from tacit.attacks.membership.lira import lira_offline, lira_online
from tacit.attacks.membership.loss import loss_threshold
from tacit.attacks.membership.rmia import rmia_offline, rmia_online
from tacit.attacks.membership.shadows import ShadowScores, log_probability, logit_margin

__all__ = [
    "ShadowScores",
    "bavaria",
    "lira_offline",
    "lira_online",
    "log_probability",
    "logit_margin",
    "loss_threshold",
    "rmia_offline",
    "rmia_online",
]
