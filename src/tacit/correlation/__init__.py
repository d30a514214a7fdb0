"""How can the noise of a step help that of another? Noise that is correlated in time, as matrices of a run.

A run of T steps releases C g + Z for its sums g, with independent noise Z and a lower triangular matrix C;
its steps use g + C^-1 Z.  What is added in one step is taken back in later ones, so that sums over many
steps, which is what training is made of, have less noise (Denisov et al., 2202.08312; Choquette-Choo et al.,
2306.08153; DP-FTRL: Kairouz et al., 2103.00039).  It pays where sampling hides little: few batches, several
passes, streams.

* ``forms``: what a form says of itself; bands of C, bands of its inverse, the binary tree.
* ``buffered``: coefficients that are sums of few exponentials (BLT).
"""

from __future__ import annotations

from tacit.correlation.buffered import BLT
from tacit.correlation.forms import Banded, BandedInverse, Correlation, Tree, prefix_error

__all__ = ["BLT", "Banded", "BandedInverse", "Correlation", "Tree", "prefix_error"]
