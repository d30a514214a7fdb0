"""A durable ledger of the budgets of data sets: runs and queries are charged before they read data."""

from tacit.columns import Column
from tacit.ledger.budgets import ApproximateBudget, Budget, PureBudget
from tacit.ledger.chain import Anchor
from tacit.ledger.errors import Conflict, LedgerUnavailable, Refused, StillRunning
from tacit.ledger.ledger import Ledger
from tacit.ledger.policy import Policy
from tacit.ledger.records import DatasetStatus
from tacit.ledger.renyi import RenyiBudget, ZeroConcentratedBudget

__all__ = [
    "Anchor",
    "ApproximateBudget",
    "Budget",
    "Column",
    "Conflict",
    "DatasetStatus",
    "Ledger",
    "LedgerUnavailable",
    "Policy",
    "PureBudget",
    "Refused",
    "RenyiBudget",
    "StillRunning",
    "ZeroConcentratedBudget",
]
