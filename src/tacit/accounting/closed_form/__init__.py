"""Costs with closed forms, exact or nearly: single releases, and Gaussians without sampling.

* ``gaussian``: compositions of Gaussians without sampling, by the analytic Gaussian mechanism.
* ``pure``: pure differential privacy of one mechanism, and the amplification of an epsilon by sampling.
* ``single``: one Gaussian or Laplace mechanism performed once, sampled or not, also of random sensitivity.
"""
