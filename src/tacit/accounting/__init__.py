"""Accounting: from an event to epsilon and delta, without torch.

``account`` computes the privacy curve of an event.  ``calibrate`` finds the noise for a budget, and
``largest_steps`` the number of steps.  ``epsilon_schedule`` computes epsilon along a run.
"""

from tacit.accounting.account import METHODS, PrivacyCurve, account
from tacit.accounting.calibrate import calibrate, epsilon_schedule, largest_steps
from tacit.accounting.gaussian_dp import GaussianDP

__all__ = [
    "METHODS",
    "GaussianDP",
    "PrivacyCurve",
    "account",
    "calibrate",
    "epsilon_schedule",
    "largest_steps",
]
