"""The random number generator of a run; :mod:`tacit.noise.gaussian` draws tensors of noise from it."""

from tacit.noise.generator import Generator

__all__ = [
    "Generator",
]
