"""The plan of a private run: the mechanism, its cost, and the signal that its noise leaves.

* ``facts``: the public facts of a mechanism, and checks that refuse mechanisms without a guarantee.
* ``settings``: the settings that a user gives, from which the facts follow.
* ``signal``: a prediction of how much of a model's gain the noise takes away.
* ``plan``: the event of the facts, its cost, and their JSON.
"""

from tacit.plan.facts import GroupScoreReport, LossReport, ScoreReport
from tacit.plan.plan import Plan, PlanSettings
from tacit.plan.signal import Signal

__all__ = ["GroupScoreReport", "LossReport", "Plan", "PlanSettings", "ScoreReport", "Signal"]
