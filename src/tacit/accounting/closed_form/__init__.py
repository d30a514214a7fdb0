"""Costs with closed forms: single releases, and compositions of Gaussians without sampling.

* ``gaussian``: compositions of Gaussians without sampling, by the analytic Gaussian mechanism.
* ``pure``: the pure epsilon of one mechanism, and how sampling amplifies an epsilon.
* ``single``: one Gaussian or Laplace mechanism performed once, sampled or not, or of random sensitivity.
"""
