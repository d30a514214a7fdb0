"""Which costs have closed forms, exact or nearly? Single releases, and Gaussians without sampling.

* ``gaussian``: compositions of Gaussians without sampling, by the analytic Gaussian mechanism.
* ``pure``: pure differential privacy of one mechanism, and what sampling makes of an epsilon.
* ``single``: one Gaussian or Laplace mechanism performed once, sampled or not, also of random sensitivity.
"""
