"""The generator of a run's random numbers; ``noise.gaussian`` draws tensors from it."""

from typing import TYPE_CHECKING

from tacit.moved import moved as _moved
from tacit.noise.generator import Generator

__all__ = [
    "Generator",
]

if not TYPE_CHECKING:  # a type checker would otherwise accept every name of the module
    __getattr__ = _moved(
        __name__,
        {
            "Purpose": "tacit.noise.generator.Purpose",
        },
    )
