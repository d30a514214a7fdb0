"""Noise that is correlated in time, described by the matrix C of a run.

A run of T steps releases C g + Z for its sums g, with independent noise Z and a lower triangular matrix C.
Its steps use g + C^-1 Z. Later steps subtract part of the noise of earlier ones, so that sums over many steps
have less noise, and training depends on such sums (Denisov et al., 2202.08312; Choquette-Choo et al.,
2306.08153; DP-FTRL: Kairouz et al., 2103.00039). This helps where sampling amplifies privacy little: with few
batches, with several passes, or on streams.

* ``forms``: the interface of a correlation, and three of them: bands of C, bands of its inverse, binary tree.
* ``buffered``: coefficients that are sums of a few exponentials (BLT).
"""

from __future__ import annotations

from tacit.correlation.buffered import BLT
from tacit.correlation.forms import Banded, BandedInverse, Correlation, Tree, prefix_error

__all__ = ["BLT", "Banded", "BandedInverse", "Correlation", "Tree", "prefix_error"]
