"""Random numbers: one maker of generators; ``tacit.noise.gaussian`` draws tensors from it."""

from tacit.noise.generator import Generator, Purpose

__all__ = ["Generator", "Purpose"]
