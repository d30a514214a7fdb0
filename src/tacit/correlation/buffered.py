"""Buffered noise: coefficients that are sums of powers, so that a few buffers hold all earlier noise.

The coefficients of C are c_0 = 1 and c_i = sum_j scales[j] * decays[j]^(i-1). Each step subtracts a weighted
sum of the noise of all earlier steps. Buffers, one for each decay, hold these sums: in every step a
buffer is multiplied by its decay, and the step's noise is added (buffered linear Toeplitz matrices: Dvijotham
et al., 2404.16706; several participations: McMahan et al., 2408.08868).

Letters: T steps; d buffers; p and q the decays of C and of its inverse, which has the same form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.flatten import matrix_sensitivity, sum_of_shifts
from tacit.correlation.forms import Correlation, Toeplitz, coefficients, prefix_error
from tacit.errors import InvalidInput, check_integer, check_real
from tacit.events import Event, MatrixFactorization
from tacit.rounding import significant

_Array = NDArray[np.float64]

_MOST = 15  # buffers: with more, rounding spoils the fit, and nothing is gained

_NONE = 1e3  # the cost of parameters that do not give a valid matrix

_WINS_NOTHING = 1e-6
"""A buffer is not worth it if it lowers the logarithm of the cost by less than this."""
_DIGITS, _EXACT = 4, 12
"""Significant digits of the fitted rates, and of the numbers that are computed from them. The cost is flat at
the best rates, so that rounding adds a hundred-millionth to it. The computed numbers are rounded too, as
processors differ in their last digits."""

_STARTS = [(slow, fast) for slow in (0.03, 0.4, 2.0, 10.0) for fast in (0.6, 2.0, 4.0)]
"""Starts of the fit: the slowest rate, in units of 1 / T, and the fastest. Not every start finds the best."""


@final
@dataclass(frozen=True)
class BLT(Correlation, Toeplitz):
    """C with the coefficients 1, then sums of ``scales`` times powers of ``decays``; one buffer per decay.

    Three or four buffers are about as good as any coefficients. :meth:`optimised` finds them.

    >>> BLT((0.5,), (0.25,)).column(4)
    (1.0, 0.25, 0.125, 0.0625)
    """

    decays: tuple[float, ...]
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("decays", "scales"):
            object.__setattr__(self, name, coefficients(name, getattr(self, name), "[0.99, 0.5]"))
        if len(self.decays) != len(self.scales):
            raise InvalidInput(
                f"decays and scales have one number for each buffer; got {len(self.decays)} and "
                f"{len(self.scales)}."
            )
        for j, decay in enumerate(self.decays):
            check_real(f"decays[{j}]", decay, low=-1.0, high=1.0)  # else the buffer grows without bound

    @classmethod
    def optimised(cls, buffers: int, steps: int, *, participations: int = 1, separation: int = 1) -> BLT:
        """Find the buffers with the least noise in prefix sums at a fixed privacy cost.

        This takes a few seconds. The result has fewer buffers if one more would gain less than a millionth.
        Its numbers are rounded, so that every processor makes the same plan from the same settings.

        Args:
            buffers: the largest number of buffers.
            steps: T.
            participations: the largest number of steps in which a record takes part.
            separation: the least distance between two of these steps.
        """
        check_integer("buffers", buffers, low=1, high=_MOST)
        check_integer("steps", steps, low=1)
        best = fitted(buffers, np.arange(steps, 0, -1) / steps, participations, separation)
        independent = cls((0.0,) * buffers, (0.0,) * buffers)  # the best if a record takes part in all steps

        def cost(form: BLT) -> float:
            event = form.event(1.0, steps, participations=participations, separation=separation)
            assert isinstance(event, MatrixFactorization)
            return prefix_error(form, steps) * matrix_sensitivity(event)

        return min(best, independent, key=cost)

    @property
    def feedback(self) -> tuple[float, ...]:  # type: ignore[override]
        return self.scales

    @property
    def kept_share(self) -> tuple[float, ...]:  # type: ignore[override]
        return self.decays

    def terms(self, step: int) -> list[tuple[int, float]]:
        return [(step, 1.0)]

    def column(self, steps: int) -> tuple[float, ...]:
        """Return the first column of C."""
        return _column(self.decays, self.scales, steps)

    def inverse(self, steps: int) -> tuple[float, ...]:
        buffers, column = [0.0] * len(self.decays), [1.0]
        for _ in range(1, steps):
            buffers = [decay * value + column[-1] for decay, value in zip(self.decays, buffers, strict=True)]
            column.append(
                -math.fsum(scale * value for scale, value in zip(self.scales, buffers, strict=True))
            )
        return tuple(column)

    def event(self, noise_multiplier: float, steps: int, *, participations: int, separation: int) -> Event:
        return MatrixFactorization(noise_multiplier, self.column(steps), steps, participations, separation)


@lru_cache(maxsize=8)
def _column(decays: tuple[float, ...], scales: tuple[float, ...], steps: int) -> tuple[float, ...]:
    """Compute the first column of C. Powers are computed directly, with a relative error of an ulp or two."""
    both = list(zip(decays, scales, strict=True))
    later = (math.fsum(scale * decay**i for decay, scale in both) for i in range(steps - 1))
    return (1.0, *later)


def fitted(buffers: int, weights: _Array, participations: int, separation: int) -> BLT:
    """Fit at most ``buffers`` buffers for the least noise; see :func:`_fitted` for the arguments.

    Buffers that gain nothing are left out, as rounding alone would decide their decays.
    """
    best, cost = _fitted(buffers, weights, participations, separation)
    while len(best.decays) > 1:
        fewer, dearer = _fitted(len(best.decays) - 1, weights, participations, separation)
        if dearer > cost + _WINS_NOTHING:
            break
        best, cost = fewer, min(cost, dearer)
    return best


def _fitted(buffers: int, weights: _Array, participations: int, separation: int) -> tuple[BLT, float]:
    """Fit buffers with decays p_1 > q_1 > p_2 > q_2 > ... between 0 and 1, for the least noise.

    The fit minimises the noise of prefix sums at a fixed privacy cost. With decays in this order, all
    coefficients of C are positive and decrease, and those of its inverse are negative after the first
    (McMahan & Pillutla, 2504.21413). So steps only subtract earlier noise, and the privacy cost is exact.

    Args:
        buffers: the number of buffers.
        weights: (T,) the weights of the squared sums of the first t + 1 coefficients of the inverse: 1 for
            the noise of the last prefix sum, (T - t) / T for the mean over all prefix sums.
        participations, separation: as for :meth:`BLT.optimised`.

    Returns:
        The buffers, and the logarithm of their cost.
    """
    from scipy.optimize import minimize  # its import is slow

    steps = len(weights)
    times = min(participations, -(-steps // separation))

    def cost(numbers: _Array) -> float:
        p, q, of_p, of_q = _pair(numbers)
        change = sum_of_shifts(_powers(p, of_p, steps), times, separation)
        error = np.dot(weights, np.cumsum(_powers(q, of_q, steps)) ** 2)
        value = float(np.log(np.dot(change, change)) + np.log(error))
        return value if math.isfinite(value) else _NONE  # two decays are the same float

    def least(start: _Array, derivative: Literal["2-point", "3-point"], tolerance: float) -> Any:
        return minimize(
            cost,
            start,
            jac=derivative,
            method="L-BFGS-B",
            bounds=[(-45.0, 4.0)] * (2 * buffers),
            options={"maxiter": 500, "ftol": tolerance, "gtol": 1e-9},
        )

    with np.errstate(all="ignore"):
        starts = [np.geomspace(slow / steps, fast, 2 * buffers) for slow, fast in _STARTS]
        fits = [least(np.log(np.diff(np.sort(rates), prepend=0.0)), "2-point", 1e-7) for rates in starts]
        best = least(min(fits, key=lambda one: float(one.fun)).x, "3-point", 1e-16).x
    rounded = np.log([significant(float(apart), _DIGITS) for apart in np.exp(best)])
    rates, _, scales, _ = _pair(rounded)
    form = BLT(
        tuple(significant(math.exp(-rate), _EXACT) for rate in rates),
        tuple(significant(float(scale), _EXACT) for scale in scales),
    )
    return form, cost(rounded)


def _pair(numbers: _Array) -> tuple[_Array, _Array, _Array, _Array]:
    """Return the rates of the decays p and q, with decay = exp(-rate), and the scales of C and its inverse.

    ``numbers`` are the logarithms of the differences of the sorted rates. C has the generating function
    prod (1 - q x) / prod (1 - p x), and its scales are those of the partial fractions.
    """
    rates = np.cumsum(np.exp(numbers))
    p, q = rates[::2], rates[1::2]
    return p, q, _scales(p, q), _scales(q, p)


def _scales(own: _Array, other: _Array) -> _Array:
    """Compute prod_j (own_i - other_j) / prod_{j != i} (own_i - own_j) for the decays with these rates."""
    apart = np.exp(-own)[:, None] * -np.expm1(own[:, None] - other)
    among = np.exp(-own)[:, None] * -np.expm1(own[:, None] - own)
    np.fill_diagonal(among, 1.0)
    return np.asarray((apart / among).prod(axis=1))


def _powers(rates: _Array, scales: _Array, steps: int) -> _Array:
    """Compute (T,) coefficients: 1, then sum_j scales_j exp(-rate_j (i - 1)), by blocks of about sqrt(T)."""
    block = max(1, math.isqrt(steps))
    starts, inner = np.arange(0, steps, block), np.arange(block)
    table = (np.exp(-np.outer(starts, rates)) * scales) @ np.exp(-np.outer(rates, inner))
    return np.concatenate([[1.0], table.ravel()[: steps - 1]])
