"""The sensitivity to one record of a release with noise that is correlated over steps.

The release is C g + Z with independent noise Z, so it is one Gaussian.  Its sensitivity is the largest norm
of a change of C g, in units of Delta.  A record may take part at most k times, at steps at least b apart.
Each time it adds any vector of norm at most 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tacit.events import MatrixFactorization, TreeAggregation

_UP = 1.0 + 1e-12

_ROUNDING = 2.0**-53


def column_norm(event: MatrixFactorization) -> float:
    """Compute the largest norm of a column of C, rounded up.

    It is that of the first column, as the others are cut off at the last step.

    >>> round(column_norm(MatrixFactorization(1.0, coefficients=(3.0, 4.0), steps=10)), 9)
    5.0
    """
    return math.hypot(*event.coefficients) * _UP


def matrix_sensitivity(event: MatrixFactorization) -> float:
    """Bound the norm of the change of C g, rounded up.

    With X = C^T C, X_ij = sum_{s < T-j} c_{s+j-i} c_s for i <= j.  For nonnegative coefficients the change is
    largest if the record adds the same vector each time.  It is then the root of the sum of X over all pairs
    of participations.  If the coefficients do not increase, X_ij only falls with j and with j - i, so the
    worst steps are 0, b, 2b, ... (Kalinin & Lampert 2024, 2405.13763).  Otherwise the bound uses the least
    nonincreasing sequence above the absolute values of the coefficients.

    **Guarantee**

    * The bound is never below the largest norm over all patterns of participation and all vectors.
    * It is exact for one participation, for at most b coefficients, and for nonnegative nonincreasing
      coefficients.

    >>> event = MatrixFactorization(1.0, coefficients=(1.0, 0.5), steps=4, participations=2, separation=1)
    >>> round(matrix_sensitivity(event) ** 2, 9)  # C (1, 1, 0, 0) = (1, 1.5, 0.5, 0)
    3.5
    """
    column = np.abs(np.array(event.coefficients, dtype=np.float64))
    times = min(event.participations, -(-event.steps // event.separation))
    if times == 1:
        return column_norm(event)
    if column.size > event.separation:
        column = np.maximum.accumulate(column[::-1])[::-1]
    whole = np.concatenate([column, np.zeros(event.steps - column.size)])
    change = sum_of_shifts(whole, times, event.separation)
    return float(np.linalg.norm(change)) * (_UP + (times + event.steps) * _ROUNDING)


def sum_of_shifts(column: NDArray[np.float64], times: int, separation: int) -> NDArray[np.float64]:
    """Apply C to a vector with ``times`` ones, at the steps 0, b, 2b, ...; ``column`` is C's first column.

    >>> sum_of_shifts(np.array([1.0, 0.5, 0.25, 0.0]), 2, 1)
    array([1.  , 1.5 , 0.75, 0.25])
    """
    steps = column.size
    if times * separation >= steps:  # ones in all steps 0, b, 2b, ...: cumulative sums
        rows = -(-steps // separation)
        table = np.zeros((rows, separation))
        table.ravel()[:steps] = column
        return table.cumsum(axis=0).ravel()[:steps]
    change: NDArray[np.float64] = np.zeros(steps)
    for start in range(0, times * separation, separation):
        change[start:] += column[: steps - start]
    return change


def tree_sensitivity(event: TreeAggregation) -> float:
    """Bound the norm of the change of all nodes of the tree, rounded up.

    A node on level l covers 2^l steps, so it counts a record at most min(k, ceil(2^l / b)) times.  The counts
    of a level's nodes add up to at most k, so their squares add up to at most k times that maximum.

    **Guarantee**

    * The bound is never below the largest norm over all patterns of participation and all vectors.
    * It is exact for one participation, where it is the root of the number of levels.

    >>> round(tree_sensitivity(TreeAggregation(1.0, leaves=1024)) ** 2, 9)
    11.0
    """
    times = min(event.participations, -(-event.leaves // event.separation))
    levels = range(event.leaves.bit_length())
    squares = sum(times * min(times, -(-(2**level) // event.separation)) for level in levels)
    return math.sqrt(squares) * _UP
