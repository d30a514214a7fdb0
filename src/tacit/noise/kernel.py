"""The native kernel behind :func:`tacit.noise.gaussian.gaussian`: whether it can be used, and its call."""

from __future__ import annotations

import ctypes
from functools import cache

from torch import Tensor

from tacit import native
from tacit.noise.box_muller import BYTES_PER_TILE

__all__ = ["fill", "why_not"]

# FIPS 197, appendix C.1: key, plain text, cipher text.
_FIPS_197 = (
    bytes.fromhex("000102030405060708090a0b0c0d0e0f"),
    bytes.fromhex("00112233445566778899aabbccddeeff"),
    bytes.fromhex("69c4e0d86a7b0430d8cdb78070b4c55a"),
)


def why_not() -> str | None:
    """Why the noise kernel is not used; None if it is."""
    library = native.library()
    return native.why_not() if library is None else _fault(library)


@cache
def _fault(library: ctypes.CDLL) -> str | None:
    level = library.tacit_noise_level()
    if level == 0:
        return "the processor lacks AES or AVX2 instructions"
    key, plain, cipher = _FIPS_197
    words = ctypes.create_string_buffer(BYTES_PER_TILE)
    library.tacit_noise_words(key, plain, 1, words, level)
    if words.raw[: len(cipher)] != cipher:
        return "its cipher fails the test of FIPS 197"
    return None


def fill(draws: Tensor, key: bytes, counter: bytes, std: float, threads: int) -> None:
    """``draws``, float32 and contiguous on the CPU, become N(0, std^2) from the address of ``counter``."""
    library = native.library()
    assert library is not None
    level = library.tacit_noise_level()
    library.tacit_noise(key, counter, std, draws.numel(), draws.data_ptr(), threads, level)
