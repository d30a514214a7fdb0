"""The native kernel behind :func:`tacit.noise.gaussian.gaussian`: whether it can be used, and its call."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import final

from torch import Tensor

from tacit import native
from tacit.noise.box_muller import BYTES_PER_TILE

__all__ = ["Kernel", "loaded", "why_not"]

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


@final
@dataclass(frozen=True)
class Kernel:
    """The kernel, at the best level of instructions that the processor has."""

    library: ctypes.CDLL
    level: int

    def fill(self, draws: Tensor, key: bytes, counter: bytes, std: float, threads: int) -> None:
        """``draws``, float32, contiguous, on the CPU, become N(0, std^2) from the address of ``counter``."""
        self.library.tacit_noise(key, counter, std, draws.numel(), draws.data_ptr(), threads, self.level)


def loaded() -> Kernel | None:
    """The kernel, or None; :func:`why_not` says why."""
    library = native.library()
    return None if library is None or _fault(library) is not None else _kernel(library)


@cache
def _kernel(library: ctypes.CDLL) -> Kernel:
    return Kernel(library, library.tacit_noise_level())
