"""Which batch size, steps and noise does a budget allow?

* ``request``: the budget that is asked about.
* ``search``: the batch sizes that are compared, and the noise that each needs.
* ``answer``: what was found, in words and as data.
"""

from typing import TYPE_CHECKING

from tacit.moved import moved as _moved
from tacit.planner.answer import PlanAdvice, PlanOption
from tacit.planner.request import PlanRequest
from tacit.planner.search import advise, noise_multiplier

__all__ = ["PlanAdvice", "PlanOption", "PlanRequest", "advise", "noise_multiplier"]

if not TYPE_CHECKING:  # else every name would be one of the module
    __getattr__ = _moved(
        __name__,
        {
            "Advice": "tacit.planner.PlanAdvice",
            "NEAR_FLOOR": "tacit.planner.answer.NEAR_FLOOR",
            "Option": "tacit.planner.PlanOption",
            "Question": "tacit.planner.PlanRequest",
        },
    )
