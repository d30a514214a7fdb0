"""How are costs computed by Renyi divergences? By accountants that use them at several orders.

* ``rdp``: the RDP accountant, at any real order.
* ``divergences``: Renyi divergences of the mechanisms.
* ``quadrature``: moments of the Poisson-sampled Gaussian, with a bound on the error.
* ``laws``: dominating pairs as lists of outcomes.
* ``selection``: the divergence of the best of a random number of runs.
* ``conversion``: from Renyi divergences to (epsilon, delta).
* ``moments``: the moments accountant of 2016, as published.
* ``zcdp``: zero-concentrated differential privacy, one number rho.
"""
