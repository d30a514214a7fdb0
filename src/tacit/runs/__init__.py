"""Runs: from a configuration file to the folder of a trained model, predictions from it, and attacks on it.

Public names are imported on first use, so that a configuration can be checked without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.runs.config import read_config
    from tacit.runs.learners import Outcome
    from tacit.runs.train import Run, prepare

__all__ = ["Outcome", "Run", "prepare", "read_config"]

if not TYPE_CHECKING:  # type checkers see the imports above, and so find misspelt names

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = {"read_config": "config", "Outcome": "learners"}.get(name, "train")
        return getattr(importlib.import_module(f"tacit.runs.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
