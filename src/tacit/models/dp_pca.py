"""Private principal components, from the Gram matrix with Gaussian noise (Analyze Gauss).

Letters: n rows, d columns, k components.
"""

# The method is that of Dwork, Talwar, Thakurta and Zhang, "Analyze Gauss" (STOC 2014).  Abadi et al.
# (1607.00133, section 4.1) use it before their first layer: a projection to the top 60 directions makes their
# MNIST network small.

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.errors import InvalidInput, check_integer, check_real
from tacit.events import Gaussian

GaussianNoise = Callable[[tuple[int, ...], float], Tensor]
"""A function ``gaussian(shape, std)`` that draws independent normal numbers from the run's generator."""

_CHUNK = 4096  # rows per matrix product


@dataclass(frozen=True, eq=False)
class DPPCA:
    """A projection onto principal components, learnt with differential privacy by :func:`fit_dp_pca`.

    ``projection`` (d, k) float32 has orthonormal columns, the strongest direction first. ``eigenvalues`` (k,)
    float32 is the strength of each direction, with noise. ``event`` describes the noise that was added:
    account for it together with the training.

    >>> projection = DPPCA(torch.eye(3)[:, :2], torch.tensor([2.0, 1.0]), Gaussian(4.0))
    >>> projection.transform(torch.tensor([[5.0, 6.0, 7.0]]))
    tensor([[5., 6.]])
    """

    projection: Tensor
    eigenvalues: Tensor
    event: Gaussian

    def transform(self, rows: Tensor) -> Tensor:
        """Return the coordinates (n, k) of rows (n, ...) along the k components. Each row has d values."""
        flat = rows.flatten(1) if rows.ndim > 1 else rows
        if flat.ndim != 2 or flat.shape[1] != len(self.projection):
            raise InvalidInput(
                f"rows must have {len(self.projection)} values each, as in the fit; "
                f"got shape {tuple(rows.shape)}."
            )
        return flat.to(torch.float32) @ self.projection.to(rows.device)

    def whiten(self, rows: Tensor) -> Tensor:
        """Return the coordinates of :meth:`transform`, scaled so that all of them train equally fast.

        Each coordinate is divided by sqrt(eigenvalue + ridge). Then one factor for all restores the scale of
        the first. The ridge is sqrt(2 d) times the noise multiplier, the largest eigenvalue of noise alone.
        So directions of pure noise are not amplified. Whitening is post-processing: it costs no budget.
        """
        ridge = math.sqrt(2.0 * len(self.projection)) * self.event.noise_multiplier
        scale = (self.eigenvalues.clamp(min=0.0) + ridge).rsqrt()
        return self.transform(rows) * (scale / scale[0]).to(rows.device)


def fit_dp_pca(rows: Tensor, *, components: int, noise_multiplier: float, gaussian: GaussianNoise) -> DPPCA:
    """Learn the first principal components of the rows with differential privacy.

    They are the top eigenvectors of the matrix ``sum_i x_i x_i^T`` plus noise, where each row x_i is scaled
    to norm 1. Rows are not centred, because their mean would cost budget too. Rows that are zero or not
    finite are ignored.

    Args:
        rows: the records (n, ...), with d values each.
        components: the number of principal components to learn, 1 to d.
        noise_multiplier: the standard deviation of the noise that is added to each entry of the matrix.
        gaussian: a function ``gaussian(shape, std)`` that returns Gaussian noise.

    **Guarantee**

    * The result is one release of the Gaussian mechanism with this noise multiplier, described by its
      ``event``. Account for it together with the training. Its eigenvectors and eigenvalues cost nothing
      more, nor does ``transform`` on public rows.
    * Adding or removing a row changes the matrix by at most 1 in Frobenius norm. Replacing a row changes it
      by at most sqrt 2; accountants assume 2.
    * Every entry of the matrix gets noise of standard deviation ``noise_multiplier``, and the sum is made
      symmetric. The noise is as secure as the random numbers of ``gaussian``.

    Raises:
        InvalidInput: if ``components`` is not between 1 and d, or ``gaussian`` returns another shape.

    >>> rows = torch.cat([torch.eye(3)[:1]] * 1000)
    >>> noise = lambda shape, std: std * torch.randn(shape)
    >>> pca = fit_dp_pca(rows, components=1, noise_multiplier=4.0, gaussian=noise)
    >>> bool(pca.projection[0, 0] > 0.9), pca.event
    (True, Gaussian(noise_multiplier=4.0))
    """
    if rows.ndim < 2:
        raise InvalidInput(f"rows must have shape (n, ...), a record per row; got {tuple(rows.shape)}.")
    flat = rows.flatten(1)
    width = flat.shape[1]
    check_integer("components", components, low=1, high=width)
    event = Gaussian(check_real("noise_multiplier", noise_multiplier, low=0.0, open_low=True))
    noise = symmetric_gaussian(width, event.noise_multiplier, gaussian)
    released = raw_gram_matrix(flat) + noise.to(flat.device)
    values, vectors = torch.linalg.eigh(released)  # ascending eigenvalues
    top = vectors[:, -components:].flip(1)
    # An eigenvector's sign is arbitrary.  Making its largest entry positive lets machines agree.
    signs = top.gather(0, top.abs().argmax(0, keepdim=True)).sign()
    return DPPCA(
        projection=(top * signs).to(torch.float32),
        eigenvalues=values[-components:].flip(0).to(torch.float32),
        event=event,
    )


def raw_gram_matrix(rows: Tensor) -> Tensor:
    """Return ``sum_i x_i x_i^T`` of the rows scaled to norm 1, before noise.

    Shapes: (n, d) to (d, d) float64.

    **Guarantee**

    * A row contributes a matrix of Frobenius norm at most 1 (its squared norm), whatever its values.
    """
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
    for begin in range(0, len(rows), _CHUNK):
        part = rows[begin : begin + _CHUNK].to(torch.float64)
        part = torch.where(torch.isfinite(part).all(1, keepdim=True), part, torch.zeros_like(part))
        # Dividing by the largest entry first keeps squares from overflow and underflow.
        largest = part.abs().amax(1, keepdim=True)
        part = torch.where(largest > 0, part / largest, torch.zeros_like(part))
        part = part / (part.norm(dim=1, keepdim=True) * (1 + 1e-12)).clamp(min=1.0)
        total += part.T @ part
    return total


def symmetric_gaussian(size: int, std: float, gaussian: GaussianNoise) -> Tensor:
    """Draw a matrix (size, size) distributed as ``(N + N^T) / 2``; ``std`` is that of N's entries."""
    # Adding N is the Gaussian mechanism for the Frobenius norm, and making the sum symmetric is
    # post-processing. This draws only the upper triangle, with standard deviation std on the diagonal and std
    # / sqrt 2 off it, which gives the same distribution.
    count = size * (size + 1) // 2
    draws = gaussian((count,), std).to(torch.float64)
    if draws.shape != (count,):
        raise InvalidInput(
            f"gaussian must return numbers of the requested shape ({count},); got {tuple(draws.shape)}."
        )
    upper = torch.zeros(size, size, dtype=torch.float64, device=draws.device)
    rows, columns = torch.triu_indices(size, size, device=draws.device)
    upper[rows, columns] = torch.where(rows == columns, draws, draws / math.sqrt(2))
    return upper + upper.triu(1).T
