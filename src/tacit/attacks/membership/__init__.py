"""Membership inference attacks, as functions that return scores.  Members should have higher scores.

``bavaria`` is the default attack.  ``loss_threshold`` needs no shadow models and is the baseline.
"""

from tacit.attacks.membership.likelihood_ratios import (
    bavaria,
    lira_offline,
    lira_online,
    loss_threshold,
    rmia_offline,
    rmia_online,
)
from tacit.attacks.membership.shadow_scores import (
    ShadowScores,
    by_chance,
    log_probability,
    logit_margin,
    ranked_and_reported,
    vulnerability,
)
from tacit.attacks.membership.shokri import shokri
from tacit.attacks.membership.suite import (
    DEFAULT_ATTACK,
    LOSS_THRESHOLD,
    Evidence,
    attack_all,
    attacks_without,
    without_each_group,
)

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
