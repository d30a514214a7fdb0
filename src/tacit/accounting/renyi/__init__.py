"""Accountants that use Renyi divergences at several orders.

* ``rdp``: the RDP accountant, at any real order.
* ``divergences``: Renyi divergences of the mechanisms, and of the best of a random number of runs.
* ``quadrature``: moments of the Poisson-sampled Gaussian and of balls in bins, with a bound on the error.
* ``laws``: dominating pairs as lists of outcomes.
* ``conversion``: from Renyi divergences to (epsilon, delta).
* ``moments``: the moments accountant of 2016, as published.
* ``zcdp``: zero-concentrated differential privacy, which has one number, rho.
"""
