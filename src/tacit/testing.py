"""Fixed random numbers for tests, debugging and teaching, never for sensitive data.

Anyone who knows the seed can subtract the noise.  So a run with such random numbers says "not private" in its
statement, its progress line and its results.
"""

from __future__ import annotations

import hashlib

from tacit.errors import check_integer
from tacit.noise.generator import Generator

__all__ = ["seeded_generator"]


def seeded_generator(seed: int) -> Generator:
    """Return a generator of random numbers that ``seed`` determines, for tests only.

    A run that uses the generator says "not private" in its statement and its results.

    >>> seeded_generator(1).secure
    False
    """
    check_integer("seed", seed, low=0)
    key = hashlib.sha256(f"tacit.testing {seed}".encode()).digest()[:16]
    return Generator(key, secure=False)
