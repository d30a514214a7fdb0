"""Accounting by privacy loss distributions, with a proven upper and lower bound.

``accountant`` chooses the method: a closed form, inversion along a ``contour`` of the ``transform``, or
convolution on a ``grid`` (``losses``, ``pair``, ``bins``, ``convolve``, ``grid_price``).
"""
