"""Warnings about searches, which make many fits: each one spends epsilon on the same records.

A grid search calls fit often, and without a ledger nobody adds the costs up.  So the user is warned once, and
the statement of each fit names the search and what its fits have cost so far.  Whether a search is the caller
is read from Python's stack of calls, and nothing from the records.
"""

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
class _Made:
    """The fits that such callers made in this process without a ledger, and what they cost, added up."""

    fits: int = 0
    epsilon: float = 0.0
    delta: float = 0.0


_made, _lock = _Made(), threading.Lock()


def note_of_fit(ledger: str | None, plan: Plan) -> str:
    """Return the note on other fits for the statement of a fit.  Call this once, when its epsilon is spent.

    The first fit without a ledger that a search makes in this process warns.
    """
    frame = None if ledger is not None else _outermost()
    if frame is None:
        return _ALONE
    name = _name(frame)
    with _lock:
        _made.fits += 1
        _made.epsilon += plan.epsilon
        _made.delta += plan.delta
        fits, epsilon, delta = _made.fits, _made.epsilon, min(1.0, _made.delta)
    if fits == 1:
        warnings.warn(_warning(name, plan), PrivacyWarning, stacklevel=2)
        return (
            f"this is one of the fits that {name} makes of the same records, and covers this one alone: k "
            "such fits cost up to k times its epsilon at k times its delta"
        )
    return (
        f"this is fit number {fits} that {name} and the like made in one process, and covers this fit alone: "
        f"where they are of the same records they cost, together with those made elsewhere, up to the sums, "
        f"epsilon = {round_up(epsilon)} at delta = {round_up(delta)} so far"
    )


def _warning(name: str, plan: Plan) -> str:
    return (
        f"{name} calls fit many times, and each fit spends epsilon = {round_up(plan.epsilon)} of the records "
        "that it gets: for a search that is its settings times the folds, and once more for the last fit. "
        "epsilon_ and statement_ are of one fit alone; k fits of the same records cost up to k times its "
        "epsilon at k times its delta. Give the estimator ledger= and dataset=, so that each fit is charged "
        "and the budget kept; search on public data; or choose settings with tacit.training.select_candidate."
    )


def _outermost() -> FrameType | None:
    """The outermost call under way of something in scikit-learn that fits many times."""
    frame: FrameType | None = sys._getframe(1)
    outermost = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(_MANY) and _name(frame) not in _ONE:
            outermost = frame
        frame = frame.f_back
    return outermost


def _name(frame: FrameType) -> str:
    """The class whose method is called, or the function; of a part that is internal, what it is part of."""
    owner = frame.f_locals.get("self")
    name = frame.f_code.co_name if owner is None else type(owner).__name__
    return "cross-validation" if name.startswith(("_", "<")) else name
