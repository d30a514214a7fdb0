"""Batch size, steps and noise for a privacy budget.

* ``request``: the budget.
* ``search``: the batch sizes to compare, and the noise that each needs.
* ``answer``: the advice, in words and as data.
"""

from tacit.planner.answer import PlanAdvice, PlanOption
from tacit.planner.request import PlanRequest
from tacit.planner.search import advise, noise_multiplier

__all__ = ["PlanAdvice", "PlanOption", "PlanRequest", "advise", "noise_multiplier"]
