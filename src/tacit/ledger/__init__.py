"""A durable ledger of the budgets of data sets: runs and queries are charged before they read data."""

from tacit.columns import Column
from tacit.ledger.ledger import Ledger
from tacit.ledger.policy import (
    ApproximateBudget,
    Budget,
    Policy,
    PureBudget,
    RenyiBudget,
    ZeroConcentratedBudget,
)
from tacit.ledger.records import Anchor, Conflict, DatasetStatus, LedgerUnavailable, Refused, StillRunning

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
