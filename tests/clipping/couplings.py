"""The coupling table: every way that is known by which one record can reach the gradients of others."""

from __future__ import annotations

from coupling import Coupling
from couplings_of_steps import OF_STEPS
from couplings_of_values import OF_VALUES
from isolated_models import ISOLATED_MODELS

__all__ = ["COUPLINGS", "ISOLATED_MODELS"]

COUPLINGS: list[Coupling] = [*OF_VALUES, *OF_STEPS]
