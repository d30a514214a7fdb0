"""The plan of a private run: the mechanism, its cost, and the signal that its noise leaves."""

from tacit.plan.facts import GroupScoreReport, LossReport, ScoreReport
from tacit.plan.plan import Plan, PlanSettings
from tacit.plan.signal import Signal

__all__ = ["GroupScoreReport", "LossReport", "Plan", "PlanSettings", "ScoreReport", "Signal"]
