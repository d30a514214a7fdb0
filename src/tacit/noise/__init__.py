"""Where do random numbers come from? From one kind of generator; ``noise.gaussian`` draws tensors from it."""

from tacit.noise.generator import Generator, Purpose

__all__ = ["Generator", "Purpose"]
