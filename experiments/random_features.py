"""Cosines of random projections, with which a linear model can use interactions of features.

Inner products of such rows approximate a Gaussian kernel, so a linear model on them approximates a kernel
method (Rahimi and Recht, "Random features for large-scale kernel machines", NeurIPS 2007).  The projections
are drawn from a public seed, and each row depends on its own record alone, so the rows cost no privacy.

Letters: n rows; k coordinates; m cosines.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.errors import InvalidInput, check_integer, check_real


class RandomCosines:
    """Maps rows (n, k), first scaled to norm 1, to rows (n, m) of norm 1.

    Inner products are about exp(-(scale |x - y|)^2 / 2), where x and y are the scaled rows.

    >>> cosines = RandomCosines(50, count=4096, scale=1.5)
    >>> rows = cosines(torch.randn(3, 50))
    >>> rows.shape, rows.norm(dim=1).round(decimals=4).tolist()
    (torch.Size([3, 4096]), [1.0, 1.0, 1.0])
    """

    def __init__(self, coordinates: int, *, count: int, scale: float, seed: int = 0) -> None:
        self.coordinates = check_integer("coordinates", coordinates, low=1)
        check_integer("count", count, low=1)
        check_real("scale", scale, low=0.0, open_low=True)
        generator = torch.Generator().manual_seed(seed)
        self._projections = torch.randn(coordinates, count, generator=generator) * scale
        self._phases = 2 * math.pi * torch.rand(count, generator=generator)

    def __call__(self, rows: Tensor) -> Tensor:
        """Map rows (n, k) to (n, m), each independently."""
        if rows.ndim != 2 or rows.shape[1] != self.coordinates:
            raise InvalidInput(f"rows must have shape (n, {self.coordinates}); got {tuple(rows.shape)}.")
        return F.normalize(torch.cos(F.normalize(rows, dim=1) @ self._projections + self._phases), dim=1)
