"""What a run costs: from an event to epsilon and delta, without torch.

``account`` prices an event, ``calibrate`` finds the noise for a budget, ``largest_steps`` the number of
steps, ``epsilon_schedule`` follows a run.  One file per accountant; all return one ``PrivacyCurve``.
"""

from tacit.accounting.account import METHODS, account
from tacit.accounting.additive import renyi_cost
from tacit.accounting.calibrate import LooseBudget, calibrate, epsilon_schedule, largest_steps
from tacit.accounting.curve import PrivacyCurve
from tacit.accounting.scales import NoiseOutOfRange

__all__ = [
    "METHODS",
    "LooseBudget",
    "NoiseOutOfRange",
    "PrivacyCurve",
    "account",
    "calibrate",
    "epsilon_schedule",
    "largest_steps",
    "renyi_cost",
]
