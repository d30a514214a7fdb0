"""How do (epsilon, delta) guarantees compose? By theorems that use nothing else of a mechanism.

* ``per_mechanism``: the epsilon of one mechanism at a given delta, which all theorems start from.
* ``theorems``: basic, advanced ("strong") and optimal composition.
"""
