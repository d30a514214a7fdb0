"""What makes features good for private linear models? Whitening with public statistics.

The covariance of features on public pictures is the preconditioner of the model above them.  Directions in
which all pictures vary are shrunk, so the loss is better conditioned and few noisy steps suffice; at norm 1
every record uses its whole clipping norm.  No private record is read here, so it costs no privacy.

Letters: n public rows; d features; k directions; s_i eigenvalues, falling; lam = s_floor.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.errors import InvalidInput, check_integer


class PublicDirections:
    """Where do public rows vary most? Coordinates in those k directions, of rows of standardised features.

    ``values`` (k,) are the public rows' mean squared coordinates, falling.

    >>> public = torch.randn(50, 8) * torch.arange(1, 9)
    >>> directions = PublicDirections(public, directions=5)
    >>> directions(torch.randn(3, 8)).shape, directions.values.shape
    (torch.Size([3, 5]), torch.Size([5]))
    """

    def __init__(self, public: Tensor, *, directions: int) -> None:
        if public.ndim != 2 or len(public) < 2:
            raise InvalidInput(f"public rows must have shape (n, d), n >= 2; got {tuple(public.shape)}.")
        check_integer("directions", directions, low=1, high=min(public.shape))
        self._mean, deviation = public.mean(0), public.std(0)
        self._scale = deviation + 0.1 * deviation.mean()
        rows = self.standardise(public)
        # The n x n Gram matrix, because there are often fewer public rows than features.
        values, left = torch.linalg.eigh(rows @ rows.T / len(rows))
        self.values, left = values[-directions:].flip(0).clamp_min(1e-12), left[:, -directions:].flip(1)
        self.vectors = (rows.T @ left) / (self.values * len(rows)).sqrt()

    def standardise(self, rows: Tensor) -> Tensor:
        """(n, d) rows to (n, d) of norm 1: each feature by its public mean and deviation."""
        return F.normalize((rows - self._mean) / self._scale, dim=1)

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, d) rows to (n, k) coordinates; each by itself."""
        coordinates: Tensor = self.standardise(rows) @ self.vectors
        return coordinates


def shrinking(values: Tensor, *, floor: int, power: float = 0.5) -> Tensor:
    """(k,) factors (lam / (s_i + lam))^power of directions with eigenvalues ``values``, lam = values[floor].

    >>> shrinking(torch.tensor([8.0, 1.0, 0.1]), floor=1)
    tensor([0.3333, 0.7071, 0.9535])
    """
    check_integer("floor", floor, low=0, high=len(values) - 1)
    factors: Tensor = (values[floor] / (values + values[floor])) ** power
    return factors


class PublicWhitening:
    """Rows to norm 1: standardise each feature, then shrink the strong directions; all by public rows.

    Direction i of the ``directions`` strongest is scaled by sqrt(lam / (s_i + lam)), the rest stay.

    >>> public = torch.randn(50, 8) * torch.arange(1, 9)
    >>> PublicWhitening(public, directions=8, floor=4)(torch.randn(3, 8)).norm(dim=1).round(decimals=4)
    tensor([1., 1., 1.])
    """

    def __init__(self, public: Tensor, *, directions: int = 1000, floor: int = 400) -> None:
        self._directions = PublicDirections(public, directions=directions)
        self._shrink = shrinking(self._directions.values, floor=floor) - 1

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, d) rows to (n, d) rows of norm 1; each by itself."""
        standard, vectors = self._directions.standardise(rows), self._directions.vectors
        return F.normalize(standard + ((standard @ vectors) * self._shrink) @ vectors.T, dim=1)
