"""How does a step get noise that is correlated in time? Draws of other steps again, and noise that is kept.

**Guarantee**

* The noise of a step is made before the engine adds the first gradient.
* The same step has the same noise, however often it is begun, and in a resumed run.

Letters: P numbers of a type in all parameters; b - 1 steps whose noise is kept, or d buffers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from tacit.correlation import Correlation
from tacit.training.layout import Sums

__all__ = ["CorrelatedNoise"]


@final
class CorrelatedNoise:
    """The noise of a run's steps, one after another; it keeps as much of it as ``correlation`` takes back.

    Of several ranks each has its own share of all draws, or those of its shards, and of what is kept.
    """

    def __init__(self, correlation: Correlation) -> None:
        self._correlation = correlation
        self._step = -1  # the last one whose noise was made
        self._kept: dict[torch.dtype, _Kept] = {}

    def begin(self, step: int, draw: Callable[[int], Sums]) -> Sums:
        """The buffers of a step, by ``draw``, which gives independent noise at an address.

        A step may be begun again, as after an error.
        """
        if self._correlation.feedback and step not in (self._step, self._step + 1):
            self._kept.clear()
            for earlier in range(step):  # of a resumed run: drawn again from the beginning
                self._made(earlier, draw)
        return self._made(step, draw)

    def _made(self, step: int, draw: Callable[[int], Sums]) -> Sums:
        (address, weight), *others = self._correlation.terms(step)
        buffers = draw(address)
        noise = [*buffers.noise.values()]
        with torch.no_grad():
            if weight != 1.0:
                for part in noise:
                    part.mul_(weight)
            for address, weight in others:
                for part, further in zip(noise, draw(address).noise.values(), strict=True):
                    part.add_(further, alpha=weight)
            if self._correlation.feedback:
                self._take_back(step, noise)
        self._step = step
        return buffers

    def _take_back(self, step: int, noise: list[Tensor]) -> None:
        for dtype in {part.dtype: None for part in noise}:
            parts = [part.view(-1) for part in noise if part.dtype == dtype]
            if dtype not in self._kept:
                kind = _Buffers if self._correlation.kept_share else _Steps
                self._kept[dtype] = kind(self._correlation, torch.cat(parts))
            whole = self._kept[dtype].less(step, parts)
            start = 0
            for part in parts:
                part.copy_(whole[start : start + part.numel()])
                start += part.numel()


class _Kept(ABC):
    """What is kept of earlier noise, all parameters of a type in one row: few long operations."""

    @abstractmethod
    def less(self, step: int, parts: list[Tensor]) -> Tensor:
        """(P,) ``parts`` without what the step takes back, which is kept for later steps."""


@final
class _Steps(_Kept):
    """The noise of the last b steps, with this one: that of step t is row t modulo b."""

    def __init__(self, correlation: Correlation, like: Tensor) -> None:
        self._feedback = correlation.feedback
        self._rows = like.new_empty(len(self._feedback) + 1, like.numel())

    def less(self, step: int, parts: list[Tensor]) -> Tensor:
        noise = torch.cat(parts, out=self._rows[step % len(self._rows)])
        for j, factor in enumerate(self._feedback[:step]):
            noise.sub_(self._rows[(step - 1 - j) % len(self._rows)], alpha=factor)
        return noise


@final
class _Buffers(_Kept):
    """Buffers with the noise before the last step, which comes to them when the next one begins."""

    def __init__(self, correlation: Correlation, like: Tensor) -> None:
        self._correlation, self._last, self._step = correlation, torch.zeros_like(like), -1
        self._rows = like.new_zeros(len(correlation.feedback), like.numel())

    def less(self, step: int, parts: list[Tensor]) -> Tensor:
        if step != self._step:
            for row, share in zip(self._rows, self._correlation.kept_share, strict=True):
                row.mul_(share).add_(self._last)
            self._step = step
        noise = torch.cat(parts, out=self._last)
        for row, factor in zip(self._rows, self._correlation.feedback, strict=True):
            noise.sub_(row, alpha=factor)
        return noise
