"""Noise that a background thread draws on the processor while a GPU works.

While a GPU works, the processor is mostly idle.  A thread draws the step's noise there into page-locked
memory, and it is copied to the device when the step needs it, without blocking the host.  The cipher is that
of :mod:`tacit.noise.generator`, and the draws are the same to the bit on any device.

Training on the CPU does not use such a thread: its draws would compete with the forward and backward pass for
the same cores, and take only a few hundredths of their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final

import torch
from torch import Tensor

from tacit.errors import InvalidInput
from tacit.noise.gaussian import StepNoise
from tacit.noise.generator import Generator


@final
class NoiseAhead:
    """The noise of a step's parameters: :meth:`start` begins to draw it, and :meth:`take` returns it.

    Args:
        like: maps names to tensors of the shape, type and device that the noise is to have.  A tensor's
            position in the mapping is the ``index`` of its address.  Types narrower than float32 get float32
            noise.
        rank, ranks: as in :func:`tacit.noise.gaussian.gaussian`.

    The last parameters are drawn first, because the backward pass asks for them in this order.

    >>> from tacit.noise.gaussian import gaussian
    >>> generator, like = Generator.from_os(), {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}
    >>> ahead = NoiseAhead(generator, like)
    >>> ahead.start(step=7, std=2.0)
    >>> torch.equal(ahead.take("bias"), gaussian(generator, (3,), std=2.0, step=7, index=1))
    True
    """

    def __init__(
        self, generator: Generator, like: Mapping[str, Tensor], *, rank: int = 0, ranks: int = 1
    ) -> None:
        self._generator, self._rank, self._ranks = generator, rank, ranks
        self._like = {
            name: torch.empty(
                tensor.shape,
                dtype=torch.float64 if tensor.dtype == torch.float64 else torch.float32,
                device="meta",
            )
            for name, tensor in like.items()
        }
        self._devices = {name: tensor.device for name, tensor in like.items()}
        self._index = {name: index for index, name in enumerate(like)}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tacit-noise")
        self._draws: dict[str, Future[Tensor]] = {}

    def start(self, *, step: int, std: float) -> None:
        """Draw the noise of ``step``, and drop noise of the previous step that was not taken."""
        for future in self._draws.values():
            future.cancel()
        noise = StepNoise(self._generator, std=std, step=step, rank=self._rank, ranks=self._ranks)
        self._draws = {name: self._thread.submit(self._draw, name, noise) for name in reversed(self._like)}

    def take(self, name: str) -> Tensor:
        """Return the noise of one parameter, on its device; each name may be taken once in a step.

        The copy runs on the current stream, in order with the caller's other work there.
        """
        if name not in self._draws:
            raise InvalidInput(
                f"no noise is left for {name!r}: this step has used it already, or never drew it."
            )
        return self._draws.pop(name).result().to(self._devices[name], non_blocking=True)

    def _draw(self, name: str, noise: StepNoise) -> Tensor:
        on_gpu = self._devices[name].type == "cuda"
        draws = torch.empty_like(self._like[name], device="cpu", pin_memory=on_gpu)
        noise.fill(draws, self._index[name])
        return draws
