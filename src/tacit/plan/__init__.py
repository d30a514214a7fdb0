"""What will a private run do, and what does it cost?

* ``plan``: the facts of a mechanism, its event and its price.
"""

from tacit.plan.plan import LossReport, Plan, ScoreReport

__all__ = ["LossReport", "Plan", "ScoreReport"]
