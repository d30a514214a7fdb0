"""What will a private run do, and what does it cost?

* ``facts``: the public facts of a mechanism, and what is refused of them.
* ``settings``: what a user says of a plan, from which the facts follow.
* ``signal``: whether the noise that it asks for leaves anything to learn.
* ``plan``: the event that the facts make, its price, and their JSON.
"""

from tacit.plan.facts import LossReport, ScoreReport
from tacit.plan.plan import Plan
from tacit.plan.settings import PlanSettings
from tacit.plan.signal import Signal

__all__ = ["LossReport", "Plan", "PlanSettings", "ScoreReport", "Signal"]
