"""Noise that is correlated in time, described by the matrix C of a run.

A run of T steps releases C g + Z for its sums g, with independent noise Z and a lower triangular matrix C;
its steps use g + C^-1 Z. Later steps subtract part of earlier noise, so sums over many steps have less noise,
and training depends on such sums (Denisov et al., 2202.08312; Choquette-Choo et al., 2306.08153; DP-FTRL:
Kairouz et al., 2103.00039). This helps where sampling amplifies privacy little: with few batches, with
several passes, or on streams.

The forms are bands of C, bands of its inverse, a binary tree, and sums of a few exponentials (BLT).
"""

from __future__ import annotations

from tacit.correlation.forms import BLT, Banded, BandedInverse, Correlation, Tree, prefix_error

__all__ = ["BLT", "Banded", "BandedInverse", "Correlation", "Tree", "prefix_error"]
