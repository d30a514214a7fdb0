"""What may a plan cost at most? A figure of its privacy curve, with its limit, for a search for noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tacit.events import Event

TOLERANCE = 8e-5  # of the noise multiplier, relative
FINE = 8e-7  # the same for a risk
_TINY = 1e-15


@dataclass(frozen=True)
class Goal:
    """What a plan must stay within: a figure of its curve, that falls as noise grows, and its limit.

    ``figure`` is certified, ``near`` and ``rough`` are cheaper guesses.  ``least`` is the figure of a plan
    that tells nothing.  The noise is found to ``tolerance``, relative.
    """

    words: str  # with a figure in place of {}
    limit: float
    figure: Callable[[Event], float]
    near: Callable[[Event], float]
    rough: Callable[[Event], float]
    least: float = 0.0
    tolerance: float = TOLERANCE

    def excess(self, found: float) -> float:
        """log of how many times larger ``found`` is than the limit."""
        return math.log(max(_TINY, found - self.least) / (self.limit - self.least))

    def says(self, excess: float = 0.0, digits: str = "g") -> str:
        """The figure that has this excess, in words."""
        found = self.least + (self.limit - self.least) * math.exp(excess)
        return self.words.format(format(found, digits))
