"""Who keeps the budget of a data set? A durable ledger: runs and queries charge it before they read data."""

from tacit.columns import Column
from tacit.ledger.budgets import ApproximateBudget, Budget, Cost, PureBudget
from tacit.ledger.chain import Anchor, Entry
from tacit.ledger.charged import ChargedRun, charge_key, charged_run, once_key
from tacit.ledger.contents import Verdict
from tacit.ledger.errors import Conflict, LeaseLost, LedgerUnavailable, Refused, StillRunning
from tacit.ledger.ledger import Ledger
from tacit.ledger.policy import Policy
from tacit.ledger.records import Charge, DatasetStatus, Price
from tacit.ledger.renyi import RenyiBudget, ZeroConcentratedBudget
from tacit.ledger.verification import Verification

__all__ = [
    "Anchor",
    "ApproximateBudget",
    "Budget",
    "Charge",
    "ChargedRun",
    "Column",
    "Conflict",
    "Cost",
    "DatasetStatus",
    "Entry",
    "LeaseLost",
    "Ledger",
    "LedgerUnavailable",
    "Policy",
    "Price",
    "PureBudget",
    "Refused",
    "RenyiBudget",
    "StillRunning",
    "Verdict",
    "Verification",
    "ZeroConcentratedBudget",
    "charge_key",
    "charged_run",
    "once_key",
]
