"""Image features for private linear models: scattering features, whitened by synthetic pictures.

The features are computed in four steps:

1. scattering maps of wavelets (:mod:`tacit.models.scattering`);
2. the square roots of the maps that are moduli, which evens out strong and weak maps;
3. whitening: each feature is standardised, and strong directions are shrunk, by the statistics of dead leaves
   (:mod:`tacit.models.public_pictures`);
4. scaling to norm 10, which is large compared with the constant 1 that a bias multiplies.

The covariance on dead leaves is a preconditioner of the linear model: after the directions in which all
pictures vary are shrunk, the loss is better conditioned, and few noisy steps suffice.  As all records have
the same norm, each uses its whole clipping norm.  No data set is read, so the features cost no privacy, and a
picture's features depend only on that picture.

Letters: n pictures or public rows; c colours; d features; k directions; s_i eigenvalues, decreasing;
lam = s_floor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import InvalidInput, check_integer
from tacit.models.public_pictures import dead_leaves
from tacit.models.scattering import CHANNELS, mirror_average, scattering_features


class PublicDirections:
    """The k principal directions of standardised public rows, and coordinates of other rows along them.

    ``values`` (k,) are the mean squared coordinates of the public rows, in decreasing order.

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
        # There are often fewer public rows than features, so the n x n Gram matrix is the smaller one.
        values, left = torch.linalg.eigh(rows @ rows.T / len(rows))
        self.values, left = values[-directions:].flip(0).clamp_min(1e-12), left[:, -directions:].flip(1)
        self.vectors = (rows.T @ left) / (self.values * len(rows)).sqrt()

    def standardise(self, rows: Tensor) -> Tensor:
        """Standardise (n, d) rows by public means and deviations, then scale each to norm 1."""
        return F.normalize((rows - self._mean) / self._scale, dim=1)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return (n, k) coordinates of (n, d) rows, each computed from its own row."""
        coordinates: Tensor = self.standardise(rows) @ self.vectors
        return coordinates


def shrinking(values: Tensor, *, floor: int, power: float = 0.5) -> Tensor:
    """Return factors (lam / (s_i + lam))^power, (k,), for eigenvalues ``values`` and lam = values[floor].

    >>> shrinking(torch.tensor([8.0, 1.0, 0.1]), floor=1)
    tensor([0.3333, 0.7071, 0.9535])
    """
    check_integer("floor", floor, low=0, high=len(values) - 1)
    factors: Tensor = (values[floor] / (values + values[floor])) ** power
    return factors


class PublicWhitening:
    """Standardises features and shrinks strong directions by public statistics, and returns rows of norm 1.

    Each of the strongest ``directions`` is scaled by sqrt(lam / (s_i + lam)).  The others do not change.

    >>> public = torch.randn(50, 8) * torch.arange(1, 9)
    >>> PublicWhitening(public, directions=8, floor=4)(torch.randn(3, 8)).norm(dim=1).round(decimals=4)
    tensor([1., 1., 1.])
    """

    def __init__(self, public: Tensor, *, directions: int = 1000, floor: int = 400) -> None:
        self._directions = PublicDirections(public, directions=directions)
        self._shrink = shrinking(self._directions.values, floor=floor) - 1

    def __call__(self, rows: Tensor) -> Tensor:
        """Return whitened (n, d) rows of norm 1, each computed from its own row."""
        standard, vectors = self._directions.standardise(rows), self._directions.vectors
        return F.normalize(standard + ((standard @ vectors) * self._shrink) @ vectors.T, dim=1)


NORM = 10.0
"""The norm of each row of features."""

_LARGEST = 32  # pixels of a side; larger pictures are averaged down
_DIRECTIONS = 1000
_PUBLIC = 4000
_CHUNK = 2000
_PROCESS = 32  # pixels of a side of dead leaves, before they are resized to the pictures' size


class PictureFeatures(nn.Module):
    """A layer that maps pictures of one size in [0, 1] to rows of norm 10, for a linear model with a bias.

    Train the linear model by DP-SGD with clipping norm 1, momentum 0.9 and a learning rate of about 0.3.

    Args:
        height, width: the size of the pictures, at least 8.  Larger pictures are averaged down to sides of
            at most 32, and all to multiples of 4.
        colours: c, 1 or 3.
        mirror: whether to average with the features of the mirrored picture, which suits photographs but not
            letters.  None means only for colour pictures.
        floor: the index of the eigenvalue on dead leaves that is lam; a smaller index shrinks less.  By
            default 400, or a third of the number of features if that is less.

    Shapes: (n, c, height, width), or (n, c height width), to (n, ``width_out``) float32.

    **Guarantee**

    * A picture's features depend only on that picture and on these arguments.

    Raises:
        InvalidInput: the size is too small, or a picture has another size.

    >>> features = PictureFeatures(8, 8)
    >>> rows = features(torch.rand(3, 1, 8, 8))
    >>> rows.shape, torch.allclose(rows.norm(dim=1), torch.tensor(10.0))
    (torch.Size([3, 324]), True)
    """

    def __init__(
        self,
        height: int,
        width: int,
        *,
        colours: int = 1,
        mirror: bool | None = None,
        floor: int | None = None,
    ) -> None:
        super().__init__()
        check_integer("height", height, low=8)
        check_integer("width", width, low=8)
        check_integer("colours", colours, low=1, high=3)
        self.shape, self.mirror = (colours, height, width), colours == 3 if mirror is None else mirror
        self.size = _inner_size(height, width)
        width_of_maps = self.size[1] // 4
        places = self.size[0] // 4 * ((width_of_maps + 1) // 2 if self.mirror else width_of_maps)
        self.width_out = CHANNELS * colours * places
        public = min(_PUBLIC, 3 * self.width_out)
        directions = min(_DIRECTIONS, public - 1, self.width_out)
        self.floor = min(400, self.width_out // 3) if floor is None else floor
        pictures = _public(public, colours, self.size)
        self._whitening = PublicWhitening(self._compressed(pictures), directions=directions, floor=self.floor)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return (n, d) features of norm 10."""
        return self.rows(pictures)

    def rows(self, pictures: Tensor, progress: Callable[[int, int], None] | None = None) -> Tensor:
        """Return (n, d) features of norm 10, and call ``progress(done, total)`` after each chunk."""
        pictures = pictures.reshape(-1, *self.shape) if pictures.ndim == 2 else pictures
        if pictures.ndim != 4 or tuple(pictures.shape[1:]) != self.shape:
            raise InvalidInput(
                f"pictures must have shape (n, {', '.join(map(str, self.shape))}); got "
                f"{tuple(pictures.shape)}."
            )
        out = torch.empty(len(pictures), self.width_out)
        with torch.no_grad():
            for start in range(0, len(pictures), _CHUNK):
                part = pictures[start : start + _CHUNK]
                out[start : start + len(part)] = self._whitening(self._compressed(part)) * NORM
                if progress is not None:
                    progress(start + len(part), len(pictures))
        return out

    def _compressed(self, pictures: Tensor) -> Tensor:
        """Return (n, d) features before whitening."""
        pictures = pictures.float()
        if tuple(pictures.shape[2:]) != self.size:
            pictures = F.interpolate(pictures, size=self.size, mode="area")
        maps = scattering_features(pictures)
        maps = mirror_average(maps) if self.mirror else maps
        moduli = torch.arange(maps.shape[1]) % CHANNELS > 0
        maps[:, moduli] = maps[:, moduli].clamp_min(0).sqrt()
        return maps.flatten(1)


def _inner_size(height: int, width: int) -> tuple[int, int]:
    """Return the size that pictures are resized to: multiples of 4, at least 8 and at most 32."""
    shrink = max(1.0, max(height, width) / _LARGEST)
    return max(8, 4 * int(height / shrink / 4)), max(8, 4 * int(width / shrink / 4))


def _public(count: int, colours: int, size: tuple[int, int]) -> Tensor:
    """Return (count, colours, *size) dead leaves."""
    pictures = dead_leaves(count, seed=0, size=_PROCESS)
    pictures = pictures if colours == 3 else pictures.mean(1, keepdim=True).expand(-1, colours, -1, -1)
    return F.interpolate(pictures, size=size, mode="area")
