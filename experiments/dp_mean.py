"""The private mean of rows by one noisy sum, for centring features.

Letters: n rows, d columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.errors import InvalidInput, check_integer, check_real
from tacit.events import Gaussian
from tacit.models.dp_pca import GaussianNoise


@dataclass(frozen=True, eq=False)
class DPMean:
    """A private ``mean`` (d,) float32, and the ``event`` of its release."""

    mean: Tensor
    event: Gaussian

    def centre(self, rows: Tensor) -> Tensor:
        """Subtract the mean from (n, d) rows, and scale them to norm 1 again."""
        return torch.nn.functional.normalize(rows - self.mean, dim=1)


def fit_dp_mean(rows: Tensor, *, expected: int, noise_multiplier: float, gaussian: GaussianNoise) -> DPMean:
    """Return the noisy sum of (n, d) rows clipped to norm 1, divided by the public number ``expected``.

    ``gaussian(shape, std)`` draws from the run's own generator.

    Guarantee:

    * This is one release of the Gaussian mechanism with ``noise_multiplier``, described by ``event``: adding
      or removing a row changes the sum by a vector of norm at most 1.  A row that is not finite counts as 0.
    * The divisor is public and never the number of rows.

    >>> rows = torch.ones(1000, 4) / 2
    >>> fit_dp_mean(rows, expected=1000, noise_multiplier=1e-6, gaussian=lambda s, t: t * torch.randn(s)).mean
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    if rows.ndim != 2:
        raise InvalidInput(f"rows must have shape (n, d); got {tuple(rows.shape)}.")
    check_integer("expected", expected, low=1)
    event = Gaussian(check_real("noise_multiplier", noise_multiplier, low=0.0, open_low=True))
    noisy = raw_sum(rows) + gaussian((rows.shape[1],), event.noise_multiplier).to(rows.device)
    return DPMean((noisy / expected).float(), event)


def raw_sum(rows: Tensor) -> Tensor:
    """Return the (d,) float64 sum of the rows clipped to norm 1, before noise.

    The rows are summed in chunks to save memory, and in float64 so that rounding stays far below the noise.
    """
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    for part in torch.split(rows, 4096):
        wide = part.double()
        norms = wide.norm(dim=1)
        factors = torch.where(norms.isfinite(), norms.clamp_min(1.0).reciprocal(), torch.zeros_like(norms))
        total += torch.where(factors[:, None] > 0, wide * factors[:, None], torch.zeros_like(wide)).sum(0)
    return total
