"""Accounting: from an event to epsilon and delta, without torch.

``account`` computes what an event costs, ``calibrate`` the noise for a budget, ``largest_steps`` the number
of steps for a budget, and ``epsilon_schedule`` epsilon along a run.  Every accountant gives a
``PrivacyCurve``.

* ``account``: what an event costs, as a ``PrivacyCurve``: epsilon as a function of delta, and back.
* ``calibrate``: the inverse problems: noise and steps for a budget; epsilon along a run.
* ``goals``: the limits that ``calibrate`` accepts.
* ``methods``: the accountants by name.
* ``price``: the interface of all accountants; the least of several, groups, sums.
* ``flatten``: an event as a multiset of base mechanisms.
* ``scales``: the range of noise that can be accounted for.
* ``sensitivity``: the sensitivity of correlated noise.
* ``tradeoff``: what an attacker can reach.
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
