"""Norm and contraction rules, one file per family of layers."""
