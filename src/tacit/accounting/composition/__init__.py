"""Composition theorems that use only the (epsilon, delta) guarantee of each mechanism.

* ``per_mechanism``: the epsilon of one mechanism at a given delta, from which all theorems start.
* ``theorems``: basic, advanced ("strong") and optimal composition.
"""
