"""How are groups shown whose names are not public? Only where the noisy number of units is high enough.

The names of the groups are then data: a group may exist because of one person.  Let D' have one unit more
than D, counted in at most G groups, ``each`` times in each.  Groups that exist for this unit alone have a
true count of at most ``each``, and one of them reaches the threshold t with probability at most

    p = P[each + Z >= t],   all together at most   delta = 1 - (1 - p)^G,                             (1)

the noise Z of every group being independent.  What is released of D' is therefore a mixture: with probability
at least 1 - delta none of these groups is shown, and then the groups and their counts are those of a
mechanism that sees the names of D only; its noise hides the unit as it does for public names.  Composing the
event of the noise with ``ApproximateDP(0, delta)`` stands for a mixture with weights 1 - delta and delta.
Under replace-one both data sets have such groups, each of its own unit, and the same holds for both.
"""

from __future__ import annotations

import math
from fractions import Fraction

from tacit.errors import check_integer, check_real

_ROUNDING = 1e-9  # relative, of a probability computed here
_SUMMED = 64  # sigma up to which the tail of a discrete Gaussian is added up


def laplace_threshold(scale: Fraction, *, each: int, groups: int, delta: float) -> int:
    """The smallest t that keeps (1) at ``delta`` for discrete Laplace noise of ``scale``.

    P[Z >= k] = r^k / (1 + r) for k >= 1, with r = exp(-1 / scale).

    >>> laplace_threshold(Fraction(1), each=1, groups=1, delta=1e-6)
    15
    """
    b = float(scale)
    log_ratio, log_rest = -1.0 / b, math.log1p(math.exp(-1.0 / b))
    most = _log_of_one(delta, groups)
    beyond = max(1, math.ceil((most + log_rest) / log_ratio))
    while beyond * log_ratio - log_rest > most:
        beyond += 1
    return check_integer("each", each, low=1) + beyond


def gaussian_threshold(sigma: Fraction, *, each: int, groups: int, delta: float) -> int:
    """The same for discrete Gaussian noise; above sigma = 64 by a bound that may cost one more.

    There P[Z >= k] <= P[N(0, sigma^2) > k - 1/2]: beyond sigma the weights are convex, so each is at most its
    mean over an interval of length 1, and all weights together are at least the integral (Poisson summation).

    >>> gaussian_threshold(Fraction(1), each=1, groups=1, delta=1e-6)
    7
    """
    most = _log_of_one(delta, groups)
    s = float(sigma)
    low, high = 0, 1
    while _log_gaussian_tail(high, s) > most:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _log_gaussian_tail(middle, s) > most else (low, middle)
    return check_integer("each", each, low=1) + high


def _log_of_one(delta: float, groups: int) -> float:
    """log p with 1 - (1 - p)^G = delta, rounded down."""
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    check_integer("groups", groups, low=1)
    return math.log(-math.expm1(math.log1p(-delta) / groups) * (1.0 - _ROUNDING))


def _log_gaussian_tail(k: int, s: float) -> float:
    """log P[Z >= k], k >= 1, rounded up."""
    if s <= _SUMMED:
        first = -((k / s) ** 2) / 2.0
        # exp(-((k+j)^2 - k^2) / 2s^2): beyond 12 s, or where k dominates, the terms are below 1e-30 of the
        # first
        rest = math.fsum(math.exp(-j * (2 * k + j) / (2.0 * s * s)) for j in range(math.ceil(12 * s) + 1))
        whole = 1.0 + 2.0 * math.fsum(
            math.exp(-((j / s) ** 2) / 2.0) for j in range(1, math.ceil(12 * s) + 1)
        )
        return first + math.log(rest / whole) + _ROUNDING
    if k - 0.5 < s:
        return 0.0
    z = (k - 0.5) / s / math.sqrt(2.0)
    tail = math.erfc(z)
    if tail < 1e-290:  # Chernoff: erfc(z) <= exp(-z^2)
        return -z * z - math.log(2.0)
    return math.log(tail / 2.0) + _ROUNDING
