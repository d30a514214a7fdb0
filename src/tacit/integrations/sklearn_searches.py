"""Warnings about searches and ensembles, which call fit many times, each time spending epsilon again."""

from __future__ import annotations

import sys
import threading
import warnings
from dataclasses import dataclass
from types import FrameType

from tacit.errors import PrivacyWarning
from tacit.plan import Plan
from tacit.rounding import round_up

_MANY = (
    "sklearn.calibration", "sklearn.ensemble", "sklearn.feature_selection", "sklearn.inspection",
    "sklearn.model_selection", "sklearn.multiclass", "sklearn.multioutput", "sklearn.semi_supervised",
)  # fmt: skip
_ONE = ("FixedThresholdClassifier",)
_ALONE = "other calls of fit on the same records, as in cross-validation, are not covered: their costs add up"


@dataclass
class _Fits:
    """The number of fits that searches in this process made without a ledger, and their total cost."""

    fits: int = 0
    epsilon: float = 0.0
    delta: float = 0.0


_total, _lock = _Fits(), threading.Lock()


def note_of_fit(ledger: str | None, plan: Plan) -> str:
    """Return the statement's note on other fits of the same records.  Call this once per fit, after training.

    The first fit in this process that a search makes without a ledger also warns the user.
    """
    frame = None if ledger is not None else _outermost()
    if frame is None:
        return _ALONE
    name = _name(frame)
    with _lock:
        _total.fits += 1
        _total.epsilon += plan.epsilon
        _total.delta += plan.delta
        fits, epsilon, delta = _total.fits, _total.epsilon, min(1.0, _total.delta)
    if fits == 1:
        warnings.warn(_warning(name, plan), PrivacyWarning, stacklevel=2)
        return (
            f"{name} makes several fits of the same records, and this statement covers one of them: k fits "
            "cost up to k times its epsilon at k times its delta"
        )
    return (
        f"this statement covers fit number {fits} of {name} and other searches in this process alone: their "
        f"fits of the same records cost together up to epsilon = {round_up(epsilon)} at delta = "
        f"{round_up(delta)} so far, without those of other processes"
    )


def _warning(name: str, plan: Plan) -> str:
    return (
        f"{name} calls fit many times, and each fit spends epsilon = {round_up(plan.epsilon)} on its "
        "records. A search makes one fit for each setting and fold, and one more at the end. epsilon_ and "
        "statement_ are of one fit alone; k fits of the same records cost up to k times its epsilon at k "
        "times its delta. Give the estimator ledger= and dataset=, so that the ledger charges each fit and "
        "stops at the budget; search on public data; or choose settings with "
        "tacit.training.select_candidate."
    )


def _outermost() -> FrameType | None:
    """Return the outermost call on the stack in a module of scikit-learn that fits many times, or None."""
    frame: FrameType | None = sys._getframe(1)
    outermost = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(_MANY) and _name(frame) not in _ONE:
            outermost = frame
        frame = frame.f_back
    return outermost


def _name(frame: FrameType) -> str:
    """Return the class or function of a frame for messages; "cross-validation" if its name is private."""
    owner = frame.f_locals.get("self")
    name = frame.f_code.co_name if owner is None else type(owner).__name__
    return "cross-validation" if name.startswith(("_", "<")) else name
