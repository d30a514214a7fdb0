"""The noise that a promise needs: estimated for thousands of configurations, proven for the chosen one.

The search needs sigma at thousands of pairs of batch size and steps. :class:`NoiseTable` estimates it by the
central limit of Bu et al., "Deep learning with Gaussian differential privacy" (1911.11607),

    mu = q sqrt(T (exp(1 / sigma^2) - 1)),

times a correction: the ratio of the proven sigma to this estimate at a few grid points, interpolated between
them. No promise depends on it: :func:`noise_multiplier` calibrates the noise of each recommended
configuration.

Symbols: N records, B batch size, q = B / N sampling rate, T steps, sigma noise multiplier.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import numpy as np
from scipy.interpolate import RegularGridInterpolator
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from experiments.scaling.law import Floats
from tacit.accounting import calibrate
from tacit.accounting.calibrate import LooseBudget
from tacit.events import Adjacency, Event, Gaussian
from tacit.rounding import NOISE_DIGITS
from tacit.sampling import FullBatch, PoissonSampling, Sampling, TruncatedPoissonSampling

_RATES, _STEPS = 5, 3  # grid points of the table
_QUIET = 0.38  # at a smaller estimate of sigma, the tight accountant takes seconds to minutes


def accountant(rate: float, steps: int, epsilon: float, delta: float) -> str:
    """Choose the accountant of Poisson samples: "pld", which is tight, or "rdp" if "pld" takes minutes.

    "pld" is slow if little noise is needed and records are rarely drawn. There "rdp" needs up to a third more
    noise, and also keeps the promise.

    >>> accountant(0.0078, 9_600, 1.0, 1e-8), accountant(1e-6, 10_000, 1.0, 1e-8)
    ('pld', 'rdp')
    """
    guess = _central_limit(np.asarray(rate), np.asarray(steps), _gaussian_mu(epsilon, delta))
    return "rdp" if guess < _QUIET else "pld"


@lru_cache(maxsize=4096)
def noise_multiplier(
    records: int,
    batch_size: int,
    steps: int,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    *,
    largest_batch: int | None = None,
    method: str = "pld",
) -> float:
    """Compute sigma, the least noise with which ``steps`` steps keep the promise, by accountant ``method``.

    >>> round(noise_multiplier(10**7, 78_000, 9_600, 1.0, 1e-8, Adjacency.ADD_REMOVE), 2)
    3.99
    """
    rate = batch_size / records
    sampling: Sampling
    if largest_batch is not None:
        sampling = TruncatedPoissonSampling(rate, records, largest_batch)
    else:
        sampling = FullBatch() if batch_size == records else PoissonSampling(rate)

    def family(noise: float) -> Event:
        return sampling.event(Gaussian(noise), steps, adjacency)

    return calibrate(
        family, epsilon=epsilon, delta=delta, adjacency=adjacency, method=method, digits=NOISE_DIGITS
    )


class NoiseTable:
    """An estimate of sigma for any batch size and number of steps under one promise, within a few percent."""

    def __init__(
        self, records: int, epsilon: float, delta: float, adjacency: Adjacency, steps: tuple[float, float],
        least_batch: float,
    ) -> None:  # fmt: skip
        """
        Args:
            records: N.
            epsilon, delta, adjacency: the promise.
            steps: the range of T, as (least, largest).
            least_batch: the least B; the largest is N.
        """
        self._promise = (epsilon, delta, adjacency)
        self._records = records
        self._steps = np.log([max(1.0, steps[0]), max(steps[1], steps[0] + 1.0)])
        self._rates = np.log([min(max(1.0, least_batch), 0.5 * records) / records, 1.0])

    @cached_property
    def _mu(self) -> float:
        return _gaussian_mu(*self._promise[:2])

    @cached_property
    def _factor(self) -> RegularGridInterpolator:
        rates = np.linspace(self._rates[0], self._rates[1], _RATES)
        steps = np.linspace(self._steps[0], self._steps[1], _STEPS)
        factors = [[self._anchor(math.exp(rate), math.exp(count)) for count in steps] for rate in rates]
        return RegularGridInterpolator((rates, steps), np.array(factors), bounds_error=False, fill_value=None)

    def _anchor(self, rate: float, steps: float) -> float:
        """Compute the logarithm of the ratio of the proven sigma to the estimate, at one grid point."""
        epsilon, delta, adjacency = self._promise
        batch, count = min(self._records, max(1, round(rate * self._records))), max(1, round(steps))
        guess = _central_limit(np.asarray(batch / self._records), np.asarray(count), self._mu)
        tight = adjacency is not Adjacency.REPLACE_ONE  # under replace-one a grid point would take seconds
        method = accountant(batch / self._records, count, epsilon, delta) if tight else "rdp"
        try:
            proven = noise_multiplier(self._records, batch, count, epsilon, delta, adjacency, method=method)
        except LooseBudget as least:  # the budget is so large that hardly any noise is needed
            proven = least.noise
        return math.log(proven / float(guess))

    def __call__(self, batch_size: Floats, steps: Floats) -> Floats:
        """Compute sigma for arrays that broadcast together."""
        rates, counts = np.broadcast_arrays(np.asarray(batch_size) / self._records, steps)
        factor = self._factor((np.clip(np.log(rates), *self._rates), np.clip(np.log(counts), *self._steps)))
        sigma: Floats = _central_limit(rates, counts, self._mu) * np.exp(factor)
        return sigma


def _central_limit(rate: Floats, steps: Floats, mu: float) -> Floats:
    """Compute the sigma at which the central limit has this ``mu``."""
    sigma: Floats = 1.0 / np.sqrt(np.log1p((mu / rate) ** 2 / steps))
    return sigma


@lru_cache(maxsize=256)
def _gaussian_mu(epsilon: float, delta: float) -> float:
    """Compute mu of the Gaussian mechanism with (epsilon, delta) (Balle and Wang, 1805.06530, theorem 8)."""

    def excess(mu: float) -> float:
        spent = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))
        return float(spent) - delta

    return float(brentq(excess, 1e-6, 200.0))
