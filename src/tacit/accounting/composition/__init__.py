"""Composition of (epsilon, delta) guarantees, by theorems that use nothing else about a mechanism.

* ``per_mechanism``: the epsilon of one mechanism at a given delta, from which all theorems start.
* ``theorems``: basic, advanced ("strong") and optimal composition.
"""
