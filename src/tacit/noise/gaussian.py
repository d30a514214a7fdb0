"""Normal tensors, drawn from the counter-mode generator.

:mod:`tacit.noise.box_muller` defines the transform from words to draws and computes it in NumPy.  In single
precision a native kernel (``native/noise.cpp``) does the same if it was built and the processor has AES
instructions: from the same words it makes the same values up to rounding.  The kernel takes about a fifth of
the time of ``Tensor.normal_``.  NumPy takes about as long as ``Tensor.normal_``, and two thirds of that for
millions of draws on two threads.

Floats cannot have the ideal normal distribution.  This noise is for training, where the released values are
sums of floats anyway, and not for exact queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from tacit.errors import InvalidInput, check_integer, check_real
from tacit.noise import kernel
from tacit.noise.box_muller import BLOCKS_PER_TILE, DRAWS_PER_TILE, Target, fill
from tacit.noise.generator import Generator, Purpose

# An address has 2^32 cipher blocks.
_MOST_DRAWS = (1 << 32) // BLOCKS_PER_TILE * DRAWS_PER_TILE


def gaussian(
    generator: Generator,
    shape: tuple[int, ...],
    *,
    std: float,
    step: int,
    index: int = 0,
    rank: int = 0,
    ranks: int = 1,
    purpose: Purpose = Purpose.NOISE,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Draw a tensor of independent normal numbers; the same address gives the same numbers.

    Args:
        std: standard deviation of the sum of all ranks' noise, in the units of the sum that it is added to; 0
            gives zeros.  Each rank draws ``N(0, std^2 / ranks)``.
        step, index, rank, purpose: the address; a training step uses one ``index`` per parameter.
        ranks: the number of machines that add noise to the same sum.
        dtype: float32 or float64.  Narrower types are refused, because they would round the noise away.
            Draws in float64 are not converted from float32, so their last bits vary too.

    **Guarantee**

    * Every draw is fresh: different addresses, and different ranks, give independent draws.
    * The tail ends at 150.7 standard deviations.  If a record moves a pair of draws by up to 100 of them,
      this adds less than 1e-550 to delta.
    * The scale is ``std / sqrt(ranks)``, and is never rounded to a type narrower than float32.
    * The result does not depend on the number of threads.

    >>> from tacit.noise.generator import Generator
    >>> gaussian(Generator.from_os(), (2, 3), std=1.0, step=0).shape
    torch.Size([2, 3])
    """
    check_integer("number of draws", math.prod(shape), low=0, high=_MOST_DRAWS)
    device = torch.device(device)
    # From page-locked memory the copy to the device does not stop the host.
    draws = torch.empty(shape, dtype=_checked(dtype), pin_memory=device.type == "cuda")
    noise = StepNoise(generator, std=std, step=step, rank=rank, ranks=ranks, purpose=purpose)
    noise.fill(draws, index)
    return draws if device.type == "cpu" else draws.to(device=device, non_blocking=True)


@final
class StepNoise:
    """The noise of one step for several tensors, each with an ``index``; common settings are checked once.

    Args:
        std, step, rank, ranks, purpose: as in :func:`gaussian`.
        threads: the number of threads; by default ``torch.get_num_threads()``.

    >>> out, generator = torch.empty(2, 3), Generator.from_os()
    >>> StepNoise(generator, std=1.0, step=4).fill(out, 2)
    >>> torch.equal(out, gaussian(generator, (2, 3), std=1.0, step=4, index=2))
    True
    """

    def __init__(
        self,
        generator: Generator,
        *,
        std: float,
        step: int,
        rank: int = 0,
        ranks: int = 1,
        purpose: Purpose = Purpose.NOISE,
        threads: int | None = None,
    ) -> None:
        check_integer("ranks", ranks, low=1)
        check_integer("rank", rank, low=0, high=ranks - 1)
        self._std = check_real("std", std, low=0.0) / math.sqrt(ranks)
        self._generator = generator
        self._purpose, self._step, self._rank = purpose, step, rank
        self._threads = torch.get_num_threads() if threads is None else threads
        self._native = kernel.loaded()

    def fill(self, out: Tensor, index: int) -> None:
        """Overwrite ``out``, a contiguous tensor on the CPU, with the noise of this index."""
        self.fill_each({index: out})

    def fill_each(self, outs: Mapping[int, Tensor]) -> None:
        """Overwrite each tensor with the noise of its index; small tensors are drawn faster together.

        >>> outs = {0: torch.empty(3), 7: torch.empty(2, 3)}
        >>> noise = StepNoise(Generator.from_os(), std=1.0, step=4)
        >>> noise.fill_each(outs)
        >>> noise.fill(other := torch.empty(2, 3), 7)
        >>> torch.equal(other, outs[7])
        True
        """
        for out in outs.values():
            check_integer("number of draws", out.numel(), low=0, high=_MOST_DRAWS)
            if not out.is_cpu or not out.is_contiguous():
                raise InvalidInput(
                    f"noise is drawn into contiguous tensors on the CPU; got one on {out.device}."
                )
        self._draw([(out.view(-1), index, 0) for index, out in outs.items()])

    def fill_part(self, out: Tensor, index: int, first: int) -> None:
        """Overwrite ``out``, a contiguous tensor on the CPU, with this index's draws from ``first`` on.

        They equal the draws that :meth:`fill` writes into the whole tensor.  So a process that holds a part
        of a tensor can draw the noise of that part alone, and the draws do not depend on how the tensor is
        split.

        >>> noise = StepNoise(Generator.from_os(), std=1.0, step=4)
        >>> noise.fill(whole := torch.empty(5000), 2)
        >>> noise.fill_part(part := torch.empty(700), 2, 3000)
        >>> torch.equal(part, whole[3000:3700])
        True
        """
        check_integer("first", first, low=0)
        check_integer("number of draws", first + out.numel(), low=0, high=_MOST_DRAWS)
        tile, before = divmod(first, DRAWS_PER_TILE)
        flat, head = out.view(-1), min(out.numel(), DRAWS_PER_TILE - before) if before else 0
        parts = [(flat[head:], index, tile + 1 if before else tile)] if head < out.numel() else []
        begun = torch.empty(before + head if head else 0, dtype=out.dtype)
        self._draw([*parts, (begun, index, tile)])
        flat[:head] = begun[before:]

    def _draw(self, parts: list[tuple[Tensor, int, int]]) -> None:
        """Overwrite flat tensors with draws; each part is a tensor, its index and its first tile."""
        targets: dict[torch.dtype, list[Target]] = {}
        for out, index, tile in parts:
            address: dict[str, Any] = {
                "purpose": self._purpose, "step": self._step, "index": index, "rank": self._rank
            }  # fmt: skip
            if _checked(out.dtype) == torch.float32 and self._native is not None:
                counter = self._generator.counter(**address, first_block=tile * BLOCKS_PER_TILE)
                self._native.fill(out, self._generator.secret_state()[0], counter, self._std, self._threads)
            else:
                words = partial(self._generator.fill, **address)
                targets.setdefault(out.dtype, []).append(Target(out.numpy(), words, tile))
        for of_type in targets.values():
            fill(of_type, self._std, self._threads)


def _checked(dtype: torch.dtype) -> torch.dtype:
    if dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"noise must be float32 or float64; got {dtype}. Add it in float32, then cast.")
    return dtype
