"""The interface of the parts of a session, which act before, within or after each step.

The session calls its parts in a fixed order, which the guarantee depends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tacit.noise.generator import Generator
from tacit.sampling.samplers import Indices


class Part:
    """The interface of a part, which overrides the methods it needs.  All ranks call each method together."""

    idle = False
    """Whether steps skip the part, because it has only facts and state in this run."""

    def before(self, step: int, indices: Indices) -> None:
        """Act before a step reads or computes anything on its participants; an error stops the step."""

    def released(self, step: int, gradients: dict[str, Tensor], thresholds: list[float]) -> dict[str, Tensor]:
        """Act on the noisy gradients, clipped to ``thresholds`` (G,), before they move the weights."""
        return gradients

    def after(self, step: int, loss: float | None) -> None:
        """Act after the optimizer's step; ``loss`` is the noisy loss."""

    def facts(self, key: bytes) -> dict[str, Any]:
        """Return additional facts that must be unchanged when a step is repeated."""
        return {}

    def state(self, done: int) -> dict[str, Any]:
        """Return the part's entries of the resume state after ``done`` steps, under unique names."""
        return {}

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        """Restore the part from a resume ``state``; ``generator`` is the generator of the resumed run."""
