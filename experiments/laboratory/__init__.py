"""Attacks and audits of the papers, beside those of the package: ``python -m experiments.laboratory``."""
