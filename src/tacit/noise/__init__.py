"""The generator of a run's random numbers; ``noise.gaussian`` draws tensors from it."""

from tacit.noise.generator import Generator

__all__ = [
    "Generator",
]
