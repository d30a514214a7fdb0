"""Words to normal draws by Box and Muller's transform, in NumPy.

Words of 32 bits come in tiles of 3 x 1024: the high bits of 1024 radii, their low bits, and 1024 angles.
A tile makes 2 x 1024 draws, first the cosines, then the sines.  Draw k of an address is a function of the
key, the address and k alone: a longer buffer begins with a shorter one, and tiles may be drawn in any order.

From the last 31 bits of ``high`` and of ``low``, and the whole of ``angle`` (G. E. P. Box and M. E. Muller,
"A note on the generation of random normal deviates", Ann. Math. Statist. 29, 1958, equation 1)::

    u = (2^31 high + low + 1/2) / 2^62                  in (0, 1)
    a = 2 pi (angle + 1/2) / 2^32                       in (-pi, pi)
    draws = std sqrt(-2 ln u) (cos a, sin a)

Half a unit keeps u off zero, where the radius would be infinite; the smallest u gives 9.3 standard
deviations.  The radius is computed in double precision, as a single-precision u near 1 would leave gaps in
small radii.

Letters: t tiles; 1024 pairs of draws in each.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCKS_PER_TILE", "DRAWS_PER_TILE", "WORDS_PER_TILE", "box_muller"]

PAIRS = 1024
DRAWS_PER_TILE = 2 * PAIRS
WORDS_PER_TILE = 3 * PAIRS
BLOCKS_PER_TILE = WORDS_PER_TILE // 4
"""Cipher blocks of 16 bytes."""

_LAST_31_BITS = np.int32(0x7FFFFFFF)


def box_muller(words: NDArray[np.int32], std: float, out: NDArray[np.floating]) -> None:
    """``out`` (t, 2, 1024) becomes the draws of ``words`` (t, 3, 1024), which are used up.

    >>> out = np.empty((1, 2, 1024))
    >>> box_muller(np.zeros((1, 3, 1024), np.int32), 1.0, out)
    >>> out[0, 0, 0].round(4)  # the largest draw there is: sqrt(2 * 63 ln 2)
    np.float64(9.3454)
    """
    high, low, angle = words[:, 0], words[:, 1], words[:, 2]
    np.bitwise_and(high, _LAST_31_BITS, out=high)
    np.bitwise_and(low, _LAST_31_BITS, out=low)
    uniform = np.multiply(high, 2.0**-31)
    uniform += np.add(low, 0.5) * 2.0**-62
    np.log(uniform, out=uniform)
    uniform *= -2.0
    radius = uniform.astype(out.dtype, copy=False)
    np.sqrt(radius, out=radius)
    radius *= out.dtype.type(std)
    turn = angle.astype(out.dtype)
    turn += out.dtype.type(0.5)
    turn *= out.dtype.type(math.pi * 2.0**-31)
    np.cos(turn, out=out[:, 0])
    np.sin(turn, out=out[:, 1])
    out *= radius[:, np.newaxis]
