"""Tacit: deep learning with differential privacy, for PyTorch."""

__version__ = "0.1.0"
