"""A durable ledger of the budgets of data sets: runs and queries are charged before they read data."""

from typing import TYPE_CHECKING

from tacit.columns import Column
from tacit.ledger.budgets import ApproximateBudget, Budget, PureBudget
from tacit.ledger.chain import Anchor
from tacit.ledger.errors import Conflict, LedgerUnavailable, Refused, StillRunning
from tacit.ledger.ledger import Ledger
from tacit.ledger.policy import Policy
from tacit.ledger.records import DatasetStatus
from tacit.ledger.renyi import RenyiBudget, ZeroConcentratedBudget
from tacit.moved import moved as _moved

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
if not TYPE_CHECKING:  # a type checker would otherwise accept every name of the module
    __getattr__ = _moved(
        __name__,
        {
            "Charge": "tacit.ledger.records.Charge",
            "ChargedRun": "tacit.ledger.charged.ChargedRun",
            "Cost": "tacit.ledger.budgets.Cost",
            "Entry": "tacit.ledger.chain.Entry",
            "LeaseLost": "tacit.ledger.errors.LeaseLost",
            "Price": "tacit.ledger.records.Price",
            "Verdict": "tacit.ledger.contents.Verdict",
            "Verification": "tacit.ledger.verification.Verification",
            "charge_key": "tacit.ledger.charged.charge_key",
            "charged_run": "tacit.ledger.charged.charged_run",
            "once_key": "tacit.ledger.charged.once_key",
        },
    )
