"""Noise that is correlated in time, described by the matrix C of a run.

A run of T steps releases C g + Z. The rows of g are the gradient sums of the steps, Z is independent noise,
and C is a lower triangular matrix. The steps use g + C^-1 Z, which costs no additional privacy. So each step
subtracts part of the noise of earlier steps, and the sum over many steps has less noise. Training depends on
such sums (Denisov et al., 2202.08312; Choquette-Choo et al., 2306.08153; DP-FTRL: Kairouz et al.,
2103.00039). This helps where sampling amplifies privacy little: with few batches per epoch, with several
epochs, or on streams.

There are four forms: a few diagonals of C (:class:`Banded`), a few diagonals of its inverse
(:class:`BandedInverse`), a binary tree (:class:`Tree`), and sums of a few exponentials (:class:`BLT`).
"""

from __future__ import annotations

from tacit.correlation.forms import BLT, Banded, BandedInverse, Correlation, Tree, prefix_error

__all__ = ["BLT", "Banded", "BandedInverse", "Correlation", "Tree", "prefix_error"]
