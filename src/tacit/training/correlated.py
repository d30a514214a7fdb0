"""How does a step get noise that is correlated in time? Draws of other steps again, and noise that is kept.

**Guarantee**

* The buffers of a step hold its noise before the engine adds the first gradient.
* The same step has the same noise, however often it is begun, and in a resumed run.

Letters: b - 1 steps whose noise is taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from tacit.correlation import Correlation
from tacit.training.layout import Sums

__all__ = ["CorrelatedNoise"]


@final
class CorrelatedNoise:
    """The noise of a run's steps, one after another; it keeps that of as many as ``correlation`` takes back.

    Of several ranks each has its own share of all draws, and of what is kept.
    """

    def __init__(self, correlation: Correlation) -> None:
        self._correlation = correlation
        self._noise: dict[int, dict[str, Tensor]] = {}  # by step: the last, and those that it took back

    def begin(self, step: int, draw: Callable[[int], Sums]) -> Sums:
        """The buffers of a step, by ``draw``, which gives independent noise at an address.

        A step may be begun again, as after an error.
        """
        if any(before not in self._noise for before in self._before(step)):
            self._noise.clear()
            for earlier in range(step):  # of a resumed run: drawn again from the beginning
                self._store(earlier, self._made(earlier, draw))
        buffers = self._made(step, draw)
        self._store(step, buffers)
        return buffers

    def _before(self, step: int) -> range:
        """The steps whose noise this one takes back, the latest first."""
        return range(step - 1, max(0, step - len(self._correlation.feedback)) - 1, -1)

    def _made(self, step: int, draw: Callable[[int], Sums]) -> Sums:
        (address, weight), *others = self._correlation.terms(step)
        buffers = draw(address)
        with torch.no_grad():
            for name in buffers:
                buffers[name].mul_(weight)
            for address, weight in others:
                further = draw(address)
                for name in buffers:
                    buffers[name].add_(further[name], alpha=weight)
            for before, factor in zip(self._before(step), self._correlation.feedback, strict=False):
                for name in buffers:
                    buffers[name].sub_(self._noise[before][name], alpha=factor)
        return buffers

    def _store(self, step: int, buffers: Sums) -> None:
        if self._correlation.feedback:
            self._noise[step] = {name: buffers[name].clone() for name in buffers}
            needed = (*self._before(step), step)
            self._noise = {at: noise for at, noise in self._noise.items() if at in needed}
