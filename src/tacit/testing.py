"""Fixed randomness for tests: for debugging and teaching, never for sensitive data.

A run that draws from it says "not private" in its statement, in its progress line and in its results, because
anyone who knows the seed can subtract the noise.
"""

from __future__ import annotations

import hashlib

from tacit.errors import check_integer
from tacit.noise.generator import Generator

__all__ = ["seeded_generator"]


def seeded_generator(seed: int) -> Generator:
    """Return a generator with a key derived from ``seed``, marked so that its run is not called private.

    >>> seeded_generator(1).secure
    False
    """
    check_integer("seed", seed, low=0)
    key = hashlib.sha256(f"tacit.testing {seed}".encode()).digest()[:16]
    return Generator(key, secure=False)
