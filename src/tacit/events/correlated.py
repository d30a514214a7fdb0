"""Events with noise that is correlated over steps: tree aggregation and matrix factorization.

A record takes part in at most ``participations`` of the steps, and any two of these are at least
``separation`` apart.  Which steps these are depends only on the record's public name (see ``Partitioned``),
not on the value of any record.  In each of them it contributes a vector of l2 norm at most Delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import InvalidInput
from tacit.events.base import Event


@dataclass(frozen=True)
class TreeAggregation(Event):
    """Sums over all dyadic intervals of ``leaves`` steps, each with noise N(0, (noise_multiplier Delta)^2 I).

    This is the binary tree of Dwork et al. (2010) and Chan, Shi & Song (2011), which DP-FTRL uses
    (2103.00039).  The intervals are [j 2^l, (j+1) 2^l).  Incomplete intervals are left out.

    >>> TreeAggregation(noise_multiplier=2.0, leaves=1024)
    TreeAggregation(noise_multiplier=2.0, leaves=1024, participations=1, separation=1)
    """

    noise_multiplier: float
    leaves: int
    participations: int = 1
    separation: int = 1


@dataclass(frozen=True)
class MatrixFactorization(Event):
    """``C g + Z`` for the ``steps`` sums g of a run.

    Z has independent entries N(0, (noise_multiplier Delta)^2).  C is the lower triangular Toeplitz matrix
    whose first column is ``coefficients`` followed by zeros (DP-MF: Denisov et al. 2022, 2202.08312; banded:
    Choquette-Choo et al. 2023, 2306.08153).  The run uses g + C^{-1} Z, a function of this event's output.
    The noise multiplier is that of Z.  C's columns are not normalised, so their norm is part of the cost.

    >>> MatrixFactorization(1.0, coefficients=(1.0, 0.5), steps=100).participations
    1
    """

    noise_multiplier: float
    coefficients: tuple[float, ...]
    steps: int
    participations: int = 1
    separation: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        column = self.coefficients
        if column[0] == 0.0:
            raise InvalidInput("coefficients[0] must not be 0: their matrix would have no inverse.")
        if not math.isfinite(math.hypot(*column)):
            raise InvalidInput(
                "coefficients are too large: their norm overflows. Scale them and the noise down."
            )
        if len(column) > self.steps:
            raise InvalidInput(
                f"there are {len(column)} coefficients for {self.steps} steps; give at most one a step."
            )
