"""Words to normal draws by Box and Muller's transform, in NumPy.

Words come in tiles of 12,288 bytes: 1024 radii of 64 bits, then 1024 angles of 32, little-endian.  A tile
makes 2 x 1024 draws, first the cosines, then the sines.  Draw k of an address is a function of the key, the
address and k alone: a longer buffer begins with a shorter one, and tiles may be drawn in any order.

With ``radius`` the last 63 bits of its word and ``angle`` a signed number (G. E. P. Box and M. E. Muller, "A
note on the generation of random normal deviates", Ann. Math. Statist. 29, 1958, equation 1)::

    u = (radius + 1/2) / 2^63                           in (0, 1)
    a = 2 pi (angle + 1/2) / 2^32                       in (-pi, pi)
    draws = std sqrt(-2 ln u) (cos a, sin a)

Half a unit keeps u off zero, where the radius would be infinite; the smallest u gives 9.4 standard
deviations.  The radius is computed in double precision, as a single-precision u near 1 would leave gaps in
small radii.

Letters: t tiles; 1024 pairs of draws in each.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCKS_PER_TILE", "BYTES_PER_TILE", "DRAWS_PER_TILE", "box_muller"]

PAIRS = 1024
DRAWS_PER_TILE = 2 * PAIRS
BYTES_PER_TILE = 12 * PAIRS
BLOCKS_PER_TILE = BYTES_PER_TILE // 16
"""Cipher blocks."""

_LAST_63_BITS = np.int64((1 << 63) - 1)


def box_muller(words: NDArray[np.uint8], std: float, out: NDArray[np.floating]) -> None:
    """``out`` (t, 2, 1024) becomes the draws of ``words`` (t, 12288), which are used up.

    >>> out = np.empty((1, 2, 1024))
    >>> box_muller(np.zeros((1, 12288), np.uint8), 1.0, out)
    >>> out[0, 0, 0].round(4)  # the largest draw there is: sqrt(2 * 64 ln 2)
    np.float64(9.4193)
    """
    radius, angle = words[:, : 8 * PAIRS].view("<i8"), words[:, 8 * PAIRS :].view("<i4")
    np.bitwise_and(radius, _LAST_63_BITS, out=radius)
    u = radius.astype(np.float64)
    u *= 2.0**-63
    u += 2.0**-64
    r = np.log(u, out=u).astype(out.dtype, copy=False)
    r *= out.dtype.type(-2.0)
    np.sqrt(r, out=r)
    r *= out.dtype.type(std)
    a = angle.astype(out.dtype)
    a += out.dtype.type(0.5)
    a *= out.dtype.type(math.pi * 2.0**-31)
    np.cos(a, out=out[:, 0])
    np.sin(a, out=out[:, 1])
    out *= r[:, np.newaxis]
