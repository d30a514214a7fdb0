"""Normal tensors from the counter-mode generator: Box and Muller's transform of its words.

The radius takes 63 random bits and the angle 32, so the tails reach 9.3 standard deviations.  All
arithmetic is in float32 or wider, whatever the type of the model.  Floats are not the ideal normal law:
this noise is for training, where the released values are sums of floats anyway, not for exact queries.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tacit.errors import InvalidInput, check_real
from tacit.noise.generator import Generator, Purpose

__all__ = ["gaussian"]

# A chunk's words and temporaries fit in the second-level cache; it fills whole cipher blocks.
_PAIRS_PER_CHUNK = 1 << 15
_BYTES_PER_PAIR = 12
_BLOCKS_PER_CHUNK = _PAIRS_PER_CHUNK * _BYTES_PER_PAIR // 16


def gaussian(
    generator: Generator,
    shape: tuple[int, ...],
    *,
    std: float,
    step: int,
    index: int = 0,
    purpose: Purpose = Purpose.NOISE,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Independent ``N(0, std^2)`` draws of the given shape, the same for the same address.

    Args:
        std: standard deviation, in the units of what it is added to; 0 gives zeros.
        step, index, purpose: the address; a training step uses one ``index`` per parameter.
        dtype: float32 or float64; narrower types would round the noise away and are refused.

    Guarantee
    ---------
    * Every draw is fresh: different addresses give independent draws.
    * The scale is ``std``, never rounded through a narrower type than float32.
    * The result does not depend on the number of threads.

    >>> from tacit.noise.generator import Generator
    >>> gaussian(Generator.from_os(), (2, 3), std=1.0, step=0).shape
    torch.Size([2, 3])
    """
    check_real("std", std, low=0.0)
    if dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"noise must be float32 or float64; got {dtype}. Add it in float32, then cast.")
    count = math.prod(shape)
    pairs = (count + 1) // 2
    normals = torch.empty(2 * pairs, dtype=torch.float32)
    for chunk, start in enumerate(range(0, pairs, _PAIRS_PER_CHUNK)):
        size = min(_PAIRS_PER_CHUNK, pairs - start)
        raw = generator.bytes(
            _BYTES_PER_PAIR * size,
            purpose=purpose,
            step=step,
            index=index,
            first_block=chunk * _BLOCKS_PER_CHUNK,
        )
        radius_words = torch.frombuffer(raw, dtype=torch.int64, count=size)
        angle_words = torch.frombuffer(raw, dtype=torch.int32, count=size, offset=8 * size)
        _box_muller(radius_words, angle_words, normals[2 * start : 2 * (start + size)], std)
    return normals[:count].view(shape).to(device=device, dtype=dtype)


def _box_muller(radius_words: Tensor, angle_words: Tensor, out: Tensor, std: float) -> None:
    """``out`` (2n,) <- std * sqrt(-2 ln u) * (cos a, sin a) for u in (0, 1], a in [-pi, pi)."""
    # Clearing the sign bit leaves 63 bits; half a unit keeps u off zero.  A float32 near zero is fine
    # enough for the tail, because its spacing shrinks with it.
    uniform = (radius_words & 0x7FFFFFFFFFFFFFFF).float().add_(0.5).mul_(2.0**-63)
    radius = uniform.log_().mul_(-2.0 * std * std).sqrt_()
    angle = angle_words.float().mul_(math.pi * 2.0**-31)
    half = len(radius)
    torch.mul(radius, torch.cos(angle), out=out[:half])
    torch.mul(radius, angle.sin_(), out=out[half:])
