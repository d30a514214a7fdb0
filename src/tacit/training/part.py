"""Parts of a session, which act before, within or after each of its steps.

The session holds a tuple of parts and calls them in order.  The order belongs to the guarantee
(:class:`tacit.training.PrivateSession`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tacit.noise.generator import Generator
from tacit.sampling.base import Indices


class Part:
    """The interface: a part overrides the methods that it needs; all ranks call each method together."""

    def before(self, step: int, indices: Indices) -> None:
        """Act before a step reads or computes anything; ``indices`` participate.  An error stops the step."""

    def released(self, step: int, gradients: dict[str, Tensor], thresholds: list[float]) -> dict[str, Tensor]:
        """Act before noisy ``gradients``, clipped to ``thresholds`` (G,), move the weights; return them."""
        return gradients

    def after(self, step: int, loss: float | None) -> None:
        """Act after the optimizer's step; ``loss`` is the noisy one."""

    def facts(self, key: bytes) -> dict[str, Any]:
        """Return facts in which a repeated step must agree with the first, in addition to the session's."""
        return {}

    def state(self, done: int) -> dict[str, Any]:
        """Return its entries of the resume state after ``done`` steps, under names of no other part."""
        return {}

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        """Restore a resume state, of a run that draws from ``generator``."""
