"""Which batch size, steps and noise does a budget allow?

* ``search``: question, search and answer.
"""

from tacit.planner.search import NEAR_FLOOR, Advice, Option, Question, advise, noise_multiplier

__all__ = ["NEAR_FLOOR", "Advice", "Option", "Question", "advise", "noise_multiplier"]
