"""Batch size, steps and noise for a privacy budget.

* ``request``: the budget.
* ``search``: the batch sizes to compare, and the noise that each needs.
* ``answer``: the advice, in words and as data.
"""

from typing import TYPE_CHECKING

from tacit.moved import moved as _moved
from tacit.planner.answer import PlanAdvice, PlanOption
from tacit.planner.request import PlanRequest
from tacit.planner.search import advise, noise_multiplier

__all__ = ["PlanAdvice", "PlanOption", "PlanRequest", "advise", "noise_multiplier"]

if not TYPE_CHECKING:  # a type checker would then accept any name
    __getattr__ = _moved(
        __name__,
        {
            "Advice": "tacit.planner.PlanAdvice",
            "NEAR_FLOOR": "tacit.planner.answer.NEAR_FLOOR",
            "Option": "tacit.planner.PlanOption",
            "Question": "tacit.planner.PlanRequest",
        },
    )
