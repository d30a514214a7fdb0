"""Tacit: deep learning with differential privacy, for PyTorch.

This module has the names that a user needs first.  Each is imported at its first use, so ``import tacit`` is
fast and does not import torch, and accounting works without torch.

>>> import tacit
>>> event = tacit.Repeat(tacit.PoissonSampled(0.01, tacit.Gaussian(noise_multiplier=4.0)), 10_000)
>>> round(tacit.account(event, adjacency="add-remove").epsilon(1e-5), 3)
0.947
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit import collate, losses
    from tacit.accounting import PrivacyCurve, account, calibrate
    from tacit.clipping import AdaptiveClipping, AutomaticClipping, FlatClipping, PerLayerClipping
    from tacit.errors import TacitError
    from tacit.events import Adjacency, Compose, Gaussian, Laplace, PoissonSampled, Repeat
    from tacit.models import make_private_ready
    from tacit.plan import LossReport, Plan, ScoreReport
    from tacit.report import make_statement
    from tacit.runs.predict import Predictor, load
    from tacit.sampling import FullBatch, PoissonSampling, ShuffledBatches, TruncatedPoissonSampling
    from tacit.training import PrivateSession, evaluate, train

__all__ = [
    "AdaptiveClipping",
    "Adjacency",
    "AutomaticClipping",
    "Compose",
    "FlatClipping",
    "FullBatch",
    "Gaussian",
    "Laplace",
    "LossReport",
    "PerLayerClipping",
    "Plan",
    "PoissonSampled",
    "PoissonSampling",
    "Predictor",
    "PrivacyCurve",
    "PrivateSession",
    "Repeat",
    "ScoreReport",
    "ShuffledBatches",
    "TacitError",
    "TruncatedPoissonSampling",
    "__version__",
    "account",
    "calibrate",
    "collate",
    "evaluate",
    "load",
    "losses",
    "make_private_ready",
    "make_statement",
    "train",
]

__version__ = "0.3.0"

_HOMES = {
    "accounting": ("PrivacyCurve", "account", "calibrate"),
    "clipping": ("AdaptiveClipping", "AutomaticClipping", "FlatClipping", "PerLayerClipping"),
    "errors": ("TacitError",),
    "events": ("Adjacency", "Compose", "Gaussian", "Laplace", "PoissonSampled", "Repeat"),
    "models": ("make_private_ready",),
    "plan": ("LossReport", "Plan", "ScoreReport"),
    "report": ("make_statement",),
    "runs.predict": ("Predictor", "load"),
    "sampling": ("FullBatch", "PoissonSampling", "ShuffledBatches", "TruncatedPoissonSampling"),
    "training": ("PrivateSession", "evaluate", "train"),
}
_MODULES = ("collate", "losses")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # type checkers see the imports above, and so find misspelt names

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"tacit.{name}")
        if name not in _HOME_OF:
            raise AttributeError(f"module 'tacit' has no attribute {name!r}")
        return getattr(importlib.import_module(f"tacit.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
