"""The audit of low bits, which checks what the last bits of released numbers reveal.

Noise that is added in floating point leaves traces.  A small noise value has low bits of very small value.
Its sum with an answer near 0 keeps them, but its sum with a larger answer loses them by rounding.  Therefore
one of two neighbouring answers has outcomes that the other cannot have, however small epsilon is (Mironov
2012, CCS; Haney, Desfontaines, Hartman, Shrestha & Hay 2022, 2207.13793).  A histogram does not show these
outcomes.

One half of the releases chooses an event of the form "the value is in one of these ranges, and its lowest set
bit is one of these".  The other half, which is independent of the choice, bounds the probability of this
event under either data set (Clopper-Pearson).  Run the mechanism on two data sets with different true answers
that are small compared to the noise.  Use 0 and 1 if you can, because floats are densest near 0.

Letters: n and m releases on the two data sets, u cells.  A cell is one range of values and one lowest set
bit.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.audits.claim import AuditResult, check_confidence
from tacit.audits.scores import largest_rate, least_rate
from tacit.errors import InvalidInput, check_real

Array: TypeAlias = NDArray[np.float64]
Cells: TypeAlias = NDArray[np.int64]

_RANGES = 16  # the number of ranges of values; each has the same number of releases
_FEWEST = 100  # the fewest releases on a data set
_ZERO = 1100  # stands for the lowest set bit of 0, which has none; it is larger than that of any float


def audit_precision(
    here: ArrayLike,
    there: ArrayLike,
    *,
    epsilon: float,
    delta: float,
    confidence: float,
    rng: np.random.Generator,
) -> AuditResult:
    """Bound epsilon from below by the values and low bits of numbers released on two neighbouring data sets.

    Args:
        here: (n,) independent releases on one data set, exactly as released.
        there: (m,) independent releases on its neighbour.
        epsilon: the claimed epsilon.
        delta: the delta of the claim and of the bound.
        confidence: one minus the error probability.
        rng: the generator that splits the releases into halves.  It must be independent of the releases.

    Raises:
        InvalidInput: if a data set has fewer than 100 releases, or a release is not finite.

    **Guarantee**

    * The bound exceeds the truth, or a true claim is rejected, with probability at most 1 - ``confidence``.

    >>> rng = np.random.default_rng(0)
    >>> noise = rng.laplace(0.0, 1.0, (2, 4000))
    >>> settings = {"epsilon": 1.0, "delta": 0.0, "confidence": 0.99, "rng": rng}
    >>> audit_precision(noise[0], noise[1] + 1.0, **settings).claim_rejected
    True
    >>> grid = np.round(noise * 2**20) / 2**20
    >>> audit_precision(grid[0], grid[1] + 1.0, **settings).claim_rejected
    False
    """
    check_real("epsilon", epsilon, low=0.0)
    check_real("delta", delta, low=0.0, high=1.0, open_high=True)
    level = (1.0 - check_confidence(confidence)) / 4.0  # two rates for each order of the data sets
    x, y = rng.permutation(_checked("here", here)), rng.permutation(_checked("there", there))
    n, m = x.size // 2, y.size // 2
    edges = np.quantile(np.concatenate([x[:n], y[:m]]), np.arange(1, _RANGES) / _RANGES)
    a, b = _cells(x, edges), _cells(y, edges)
    epsilon_shown = max(
        _shown(likely[k:], unlikely[i:], _event(likely[:k], unlikely[:i], delta, level), delta, level)
        for likely, unlikely, k, i in ((a, b, n, m), (b, a, m, n))
    )
    return AuditResult(
        method="low bits of the released numbers",
        canaries=x.size + y.size,
        confidence=confidence,
        delta=delta,
        eps_lower=epsilon_shown,
        eps_lower_any=epsilon_shown,
        claimed_eps=epsilon,
        claim_rejected=epsilon_shown > epsilon,
    )


def lowest_bits(values: ArrayLike) -> NDArray[np.int64]:
    """Return the exponent e of the lowest set bit: each value is an odd multiple of 2^e.  For 0, e is 1100.

    >>> lowest_bits([0.75, -12.0, 1.0, 0.1, 0.0]).tolist()
    [-2, 2, 0, -55, 1100]
    """
    fraction, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    whole = np.abs(np.ldexp(fraction, 53)).astype(np.int64)  # odd part times a power of 2, exactly
    lowest = np.frexp((whole & -whole).astype(np.float64))[1] - 1  # the position of that bit
    return np.where(whole == 0, _ZERO, exponent.astype(np.int64) - 53 + lowest)


def _cells(values: Array, edges: Array) -> Cells:
    """Encode the range and the lowest set bit of each release as one number."""
    cells: Cells = np.searchsorted(edges, values).astype(np.int64) * (4 * _ZERO) + lowest_bits(values)
    return cells


def _event(likely: Cells, unlikely: Cells, delta: float, level: float) -> Cells:
    """Choose the cells, at most u, whose union shows the largest epsilon on the half that chooses."""
    cells, index = np.unique(np.concatenate([likely, unlikely]), return_inverse=True)
    hits = np.bincount(index[: likely.size], minlength=cells.size)
    misses = np.bincount(index[likely.size :], minlength=cells.size)
    order = np.argsort(-(hits + 0.5) / (misses + 0.5), kind="stable")
    ratios = _log_ratio(
        least_rate(np.cumsum(hits[order]), likely.size, level),
        largest_rate(np.cumsum(misses[order]), unlikely.size, level),
        delta,
    )
    return cells[order[: int(np.argmax(ratios)) + 1]]


def _shown(likely: Cells, unlikely: Cells, event: Cells, delta: float, level: float) -> float:
    """Compute the epsilon that this event shows on the half that did not choose it."""
    hits, misses = np.isin(likely, event).sum(), np.isin(unlikely, event).sum()
    bounds = least_rate(hits, likely.size, level), largest_rate(misses, unlikely.size, level)
    return float(_log_ratio(*bounds, delta))


def _log_ratio(at_least: Array, at_most: Array, delta: float) -> Array:
    """Return max(0, log((P - delta) / Q)) for an event of probability P here and Q there.

    If the mechanism is (epsilon, delta)-DP, it is at most epsilon.
    """
    ratio: Array = np.log(np.maximum((at_least - delta) / at_most, 1.0))
    return ratio


def _checked(name: str, releases: ArrayLike) -> Array:
    values = np.asarray(releases, dtype=np.float64)
    if values.ndim != 1 or values.size < _FEWEST or not np.isfinite(values).all():
        raise InvalidInput(
            f"{name} must be a row of at least {_FEWEST} finite numbers; got shape {values.shape}, "
            f"{int((~np.isfinite(values)).sum())} of them not finite. Give one number per release."
        )
    return values
