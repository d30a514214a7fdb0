"""The native noise kernel: a check that it computes correctly, and its call."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, partial
from typing import final

import numpy as np
from torch import Tensor

from tacit import native
from tacit.noise.box_muller import (
    BLOCKS_PER_TILE,
    BYTES_PER_TILE,
    DIGIT_BLOCKS_PER_TILE,
    DRAWS_PER_TILE,
    Room,
    box_muller,
)
from tacit.noise.generator import key_stream

# FIPS 197, appendix C.1: key, plain text, cipher text.
_FIPS_197 = (
    bytes.fromhex("000102030405060708090a0b0c0d0e0f"),
    bytes.fromhex("00112233445566778899aabbccddeeff"),
    bytes.fromhex("69c4e0d86a7b0430d8cdb78070b4c55a"),
)
_TOLERANCE = 1e-5
"""The largest difference between draws in single and in double precision, which are at most 12 here."""


def why_not() -> str | None:
    """Return why the noise kernel is not used, or None if it is used."""
    library = native.library()
    return native.why_not() if library is None else _fault(library)


@cache
def _fault(library: ctypes.CDLL) -> str | None:
    """Test the kernel on one tile and return what fails, or None; machines differ in their instructions."""
    level = library.tacit_noise_level()
    if level == 0:
        return "the processor lacks AES or AVX2 instructions"
    key, plain, cipher = _FIPS_197
    words = np.empty(BYTES_PER_TILE, np.uint8)
    library.tacit_noise_words(key, plain, 1, words.ctypes.data, level)
    if words[: len(cipher)].tobytes() != cipher:
        return "its cipher fails the test of FIPS 197"
    room, want = Room(1, np.float64), np.empty((1, 2, DRAWS_PER_TILE // 2))
    key_stream(key, plain, room.words[0].data)
    if not np.array_equal(words, room.words[0]):
        return "its key stream is not that of AES in counter mode"
    words.view("<i8")[:2] = room.words.view("<i8")[0, :2] = 0, 12345  # these two need further digits
    got = np.empty(DRAWS_PER_TILE, np.float32)
    library.tacit_noise_transform(words.ctypes.data, key, plain, 1.0, got.ctypes.data, level)
    box_muller(room, 1.0, want, partial(_digit, key, plain))
    if not np.allclose(got, want.reshape(-1), rtol=0, atol=_TOLERANCE):
        return "its draws are not those of Box and Muller's transform"
    return None


def _digit(key: bytes, counter: bytes, row: int, pair: int, d: int) -> int:
    """Return digit ``d`` of a radius of the tile in which the block of ``counter`` is."""
    tile = int.from_bytes(counter[12:], "big") // BLOCKS_PER_TILE + row
    block = tile * DIGIT_BLOCKS_PER_TILE + pair // 2
    words = bytearray(16)
    key_stream(key, bytes([d]) + counter[1:12] + block.to_bytes(4, "big"), memoryview(words))
    return int.from_bytes(words[pair % 2 * 8 :][:8], "little")


@final
@dataclass(frozen=True)
class Kernel:
    """The kernel, at the best level of instructions that the processor supports."""

    library: ctypes.CDLL
    level: int

    def fill(self, draws: Tensor, key: bytes, counter: bytes, std: float, threads: int) -> None:
        """Overwrite ``draws`` (float32, contiguous, on the CPU) with N(0, std^2) from ``counter`` on."""
        self.library.tacit_noise(key, counter, std, draws.numel(), draws.data_ptr(), threads, self.level)


def loaded() -> Kernel | None:
    """Return the kernel, or None if it is not used; :func:`why_not` says why."""
    library = native.library()
    return None if library is None or _fault(library) is not None else _kernel(library)


@cache
def _kernel(library: ctypes.CDLL) -> Kernel:
    return Kernel(library, library.tacit_noise_level())
