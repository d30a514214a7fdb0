"""What is woven into the steps of a session? Parts: each does its piece before, within or after a step.

The session holds a tuple of parts and asks them in its order, which is a piece of the guarantee
(:class:`tacit.training.PrivateSession`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tacit.noise.generator import Generator
from tacit.sampling.base import Indices


class Part:
    """The interface: a part overrides what it has to do with; all ranks call each method together."""

    def before(self, step: int, indices: Indices) -> None:
        """Before a step reads or computes anything; ``indices`` take part.  What it raises stops the step."""

    def released(self, step: int, gradients: dict[str, Tensor], thresholds: list[float]) -> dict[str, Tensor]:
        """Before the noisy ``gradients``, clipped to ``thresholds`` (G,), move the weights; gives them on."""
        return gradients

    def after(self, step: int, loss: float | None) -> None:
        """After the optimizer's step; ``loss`` is the noisy one."""

    def facts(self, key: bytes) -> dict[str, Any]:
        """In what a repeated step must agree with its first time, beside what the session says."""
        return {}

    def state(self, done: int) -> dict[str, Any]:
        """What the resume state stores of it, after ``done`` steps, under names of its own."""
        return {}

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        """Go on from a resume state, of a run that draws from ``generator``."""
