"""Accounting by privacy loss distributions, with a proven upper and lower bound.

* ``accountant``: the choice of a method for a composition.

Dominating pairs:

* ``pair``: a dominating pair, its privacy loss and the effect of sampling; pairs of noise and of guarantees.
* ``pairs_mixture``: pairs of Gaussians of random sensitivity.
* ``pairs_bins``: the pair of an epoch of balls in bins; ``bins_sum``: the distribution of its sum.
* ``pairs_selection``: the loss of the best of a random number of runs.
* ``pairs_shuffle``: the loss of shuffled reports.
* ``losses``: the privacy loss of each base mechanism.

Convolution on a grid:

* ``grid``, ``grid_lower``: the loss on a grid, as a pair that dominates it and a pair that it dominates.
* ``convolve``: composition by an exponentially tilted FFT, with its errors bounded.
* ``composed``: the layout of the grid around a saddle point.
* ``saddle``: the saddle points of a composition.
* ``profile``: many deltas from one composition.
* ``grid_price``: the price by convolution.

Inversion along a contour, for compositions of Gaussians, sampled or not:

* ``transform``: the characteristic function of one step's loss, with a bound on its error.
* ``contour_saddle``: the place of the contour, and a bound on the characteristic function beyond its end.
* ``contour``: the integral along the contour and its errors.
* ``inversion``: the price by inversion.

``truncated`` prices Poisson samples that are cut to a largest batch.
"""
