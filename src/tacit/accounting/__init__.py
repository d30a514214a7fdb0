"""Accounting: from an event to epsilon and delta, without torch.

``account`` computes the privacy curve of an event.  ``calibrate`` finds the noise for a budget, and
``largest_steps`` the number of steps.  ``epsilon_schedule`` computes epsilon along a run.

* ``account``: the cost of an event as a ``PrivacyCurve``, which maps delta to epsilon and epsilon to delta.
* ``calibrate``: the noise or the number of steps for a budget, and epsilon along a run.
* ``goals``: the privacy goals that ``calibrate`` accepts.
* ``methods``: the accountants by name.
* ``price``: the interface of all accountants, and prices that combine others (minimum, group, sum).
* ``flatten``: an event as a multiset of base mechanisms.
* ``scales``: the range of noise that the accountants support.
* ``sensitivity``: the sensitivity of a release with noise that is correlated over steps.
* ``tradeoff``: bounds on membership tests, from a privacy curve.
* ``additive``: costs that add up from release to release, for running totals.
* ``roots``: zeros of functions, without ``scipy.optimize``.
* ``closed_form``, ``pld``, ``renyi``, ``composition``: the accountants.
"""

from tacit.accounting.account import PrivacyCurve, account
from tacit.accounting.calibrate import calibrate, epsilon_schedule, largest_steps
from tacit.accounting.methods import METHODS

__all__ = [
    "METHODS",
    "PrivacyCurve",
    "account",
    "calibrate",
    "epsilon_schedule",
    "largest_steps",
]
