"""Is a record a member, by its loss? If the loss is small (Yeom et al. 2018, 1709.01604).

It needs no other model, and fails at low false-positive rates: an easy record has a small loss either way.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]


def loss_threshold(losses: ArrayLike) -> Array:
    """Minus the target's loss on each record, of the shape of ``losses``.

    >>> loss_threshold([0.1, 2.0]).tolist()
    [-0.1, -2.0]
    """
    return -np.asarray(losses, dtype=np.float64)
