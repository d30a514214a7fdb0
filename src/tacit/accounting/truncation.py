"""What does a largest batch cost, whatever the noise? Sums of a plan, without the price of any mechanism.

A part A of delta goes to cut batches; the rest of it is for Poisson's price of the same steps, and A does not
depend on the noise (:mod:`tacit.accounting.pld.truncated` has the proof).  So the noise for truncated samples
is that for whole ones, at a smaller delta.  Where A is above a tenth of delta, the grid of the accountant
has a better bound, at a cost of seconds.
"""

from __future__ import annotations

from tacit.accounting.pld.truncated import delta_left, ever_kept, more_than
from tacit.events import Gaussian, TruncatedPoissonSampled

_MOST = 0.1  # of delta: what may go to cut batches


def chance_of_cut(sampling_rate: float, records: int, largest_batch: int) -> float:
    """Return the probability that a Poisson sample has more than ``largest_batch`` records, rounded up.

    >>> f"{chance_of_cut(0.01, 60_000, 750):.1e}"
    '1.3e-09'
    """
    return more_than(largest_batch, _step(sampling_rate, records, largest_batch))


def left_for_poisson(
    sampling_rate: float, records: int, largest_batch: int, steps: int, delta: float
) -> float | None:
    """Return the delta at which Poisson's epsilon bounds that of truncated samples at ``delta``.

    Args:
        sampling_rate: q in (0, 1).
        records: N, of which ``largest_batch`` at most are kept in a step.
        steps: T, all of them truncated.
        delta: of the truncated samples, in (0, 1).

    Returns:
        A number in [0.9 delta, delta], rounded down; None where more than a tenth of delta would go to cut
        batches.

    **Guarantee**

    * The epsilon of T Poisson samples at the result is an upper bound on that of T truncated ones at
      ``delta``, for every mechanism.

    >>> round(left_for_poisson(0.01, 60_000, 750, 1000, 1e-5), 8)
    9.98e-06
    >>> left_for_poisson(0.01, 60_000, 650, 1000, 1e-5) is None
    True
    """
    kept = ever_kept(((_step(sampling_rate, records, largest_batch), steps),))
    return delta_left(delta, kept) if kept <= _MOST * delta else None


def smallest_largest_batch(sampling_rate: float, records: int, steps: int, delta: float) -> int:
    """Return the least L for which at most a tenth of ``delta`` goes to cut batches; ``records`` is enough.

    >>> smallest_largest_batch(0.01, 60_000, 1000, 1e-5)
    732
    """
    low, high = 0, records
    while high - low > 1:
        middle = (low + high) // 2
        found = left_for_poisson(sampling_rate, records, middle, steps, delta)
        low, high = (middle, high) if found is None else (low, middle)
    return high


def _step(sampling_rate: float, records: int, largest_batch: int) -> TruncatedPoissonSampled:
    return TruncatedPoissonSampled(sampling_rate, records, largest_batch, Gaussian(1.0))
