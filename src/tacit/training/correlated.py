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
        self._kept: list[tuple[int, dict[str, Tensor]]] = []  # of the last steps, the latest first

    @property
    def kept(self) -> int:
        """Of how many steps before noise is taken back."""
        return len(self._correlation.feedback)

    def begin(self, step: int, draw: Callable[[int], Sums]) -> Sums:
        """The buffers of a step, by ``draw``, which gives independent noise at an address.

        The steps are begun in order, each as often as one likes.
        """
        self._kept = [(at, noise) for at, noise in self._kept if at < step]
        if self._kept and self._kept[0][0] != step - 1:
            self._kept.clear()
        missing = step if not self._kept and self.kept else 0
        for earlier in range(step - missing, step):  # of a resumed run: drawn again from the beginning
            self._keep(earlier, self._made(earlier, draw))
        buffers = self._made(step, draw)
        self._keep(step, buffers)
        return buffers

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
            for (_, noise), factor in zip(self._kept, self._correlation.feedback, strict=False):
                for name in buffers:
                    buffers[name].sub_(noise[name], alpha=factor)
        return buffers

    def _keep(self, step: int, buffers: Sums) -> None:
        if self.kept:
            copies = {name: buffers[name].clone() for name in buffers}
            self._kept = [(step, copies), *self._kept][: self.kept + 1]  # one more: the step may begin again
