"""What does a run cost? From an event to epsilon and delta, without torch.

``account`` prices an event, ``calibrate`` finds the noise for a budget, ``largest_steps`` the number of
steps, ``epsilon_schedule`` follows a run.  One file per accountant; all return one ``PrivacyCurve``.

* ``account``: what an event costs, and ``PrivacyCurve``: epsilon as a function of delta, and back.
* ``calibrate``: the inverse questions: how much noise, how many steps; epsilon along a run.
* ``goals``: what a plan may cost at most, for these.
* ``methods``: the accountants by name.
* ``price``: the interface of all accountants; the least of several, groups, sums.
* ``flatten``: an event as a multiset of base mechanisms.
* ``scales``: how much noise has a price.
* ``sensitivity``: the sensitivity of correlated noise.
* ``tradeoff``: what an attacker can do.
* ``additive``: costs that add up from release to release, for running totals.
* ``roots``: zeros of functions, without ``scipy.optimize``.
* ``closed_form``, ``pld``, ``renyi``, ``composition``: the accountants.
"""

from typing import TYPE_CHECKING

from tacit.accounting.account import PrivacyCurve, account
from tacit.accounting.calibrate import calibrate, epsilon_schedule, largest_steps
from tacit.accounting.methods import METHODS
from tacit.moved import moved as _moved

__all__ = [
    "METHODS",
    "PrivacyCurve",
    "account",
    "calibrate",
    "epsilon_schedule",
    "largest_steps",
]

if not TYPE_CHECKING:  # else every name would be one of the module
    __getattr__ = _moved(
        __name__,
        {
            "LooseBudget": "tacit.accounting.calibrate.LooseBudget",
            "NoiseOutOfRange": "tacit.accounting.scales.NoiseOutOfRange",
            "renyi_cost": "tacit.accounting.additive.renyi_cost",
        },
    )
