"""Was this record in the training set?  Attacks as functions of scores, each of which is higher for members.

``bavaria`` is the default; ``loss_threshold`` needs no shadow models and is the yardstick of all others.
"""

from tacit.attacks.membership.bavaria import bavaria
from tacit.attacks.membership.lira import lira_offline, lira_online
from tacit.attacks.membership.loss import loss_threshold
from tacit.attacks.membership.rmia import rmia_offline, rmia_online
from tacit.attacks.membership.shadows import ShadowScores, log_probability, logit_margin
from tacit.attacks.membership.shokri import shokri
from tacit.attacks.membership.suite import (
    DEFAULT_ATTACK,
    LOSS_THRESHOLD,
    Evidence,
    attack_all,
    attacks_without,
    without_each_group,
)
from tacit.attacks.membership.vulnerability import by_chance, ranked_and_reported, vulnerability

__all__ = [
    "DEFAULT_ATTACK",
    "LOSS_THRESHOLD",
    "Evidence",
    "ShadowScores",
    "attack_all",
    "attacks_without",
    "bavaria",
    "by_chance",
    "lira_offline",
    "lira_online",
    "log_probability",
    "logit_margin",
    "loss_threshold",
    "ranked_and_reported",
    "rmia_offline",
    "rmia_online",
    "shokri",
    "vulnerability",
    "without_each_group",
]
