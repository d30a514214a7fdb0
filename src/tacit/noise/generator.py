"""The source of a run's randomness: AES in counter mode, where each word has an address."""

# A run has a key from the operating system.  Every random word that the run ever uses has an address
# ``(purpose, step, index, rank)`` and a position under that address.  AES encrypts the address and the number
# of a block to the words of that block (NIST SP 800-38A, section 6.5)::
#
#     bits    8       8         40     16     24      32
#     block   digit | purpose | step | rank | index | number of the block
#
# So no word is used twice, and a resumed run draws the same words as an uninterrupted one.  The result does
# not depend on threads or on the order of the calls.  If several machines share a run, each is a rank with
# separate addresses.
#
# ``digit`` is 0, except for numbers of which the first word is not precise enough: their further digits have
# separate addresses (:mod:`tacit.noise.gaussian`).
#
# A CUDA device draws its noise by another cipher, at the same addresses and under a key that is drawn from
# here (:mod:`tacit.noise.on_device`).
#
# **Guarantee**
#
# * Two different addresses never share a word: the address is the high 96 bits of the block counter, each of
#   its parts has separate bits, and a request for more blocks than the low 32 bits can number is refused.
# * Without the key the words cannot be distinguished from uniform ones (AES is a pseudo-random permutation).
# * A generator's ``secure`` says whether its key came from the operating system.
# * A key stays in its process, so that no copy draws the same words for other data.  A generator cannot be
#   copied or pickled, and draws nothing in a forked process.  Keys for tests may be used in a forked process.

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Hashable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal, check_integer

_KEY_BYTES = 16
_BLOCK_BYTES = 16
_WORDS_PER_BLOCK = 2
_DIGIT_BITS = 8
_PURPOSE_BITS = 8
_STEP_BITS = 40
_RANK_BITS = 16
_INDEX_BITS = 24
_BLOCK_BITS = 32
_STEPS_PER_BLOCK = 128
# Encrypting zeros gives the key stream; slices of one shared array save allocating zeros.
_ZEROS = memoryview(bytes(1 << 20))


class Purpose(IntEnum):
    """The use of a random word, which is part of the word's address; the numbers never change.

    >>> Purpose.NOISE, Purpose(2).name
    (<Purpose.NOISE: 1>, 'SAMPLING')
    """

    NOISE = 1
    SAMPLING = 2
    COUNT_NOISE = 3
    AUGMENTATION = 4
    MODEL = 5
    PREPARATION = 6
    INITIALISATION = 7
    READING = 8
    AUDIT = 9
    LEDGER = 10
    CANARIES = 11
    SCORE = 12
    DEVICE_KEY = 13
    TRUNCATION = 14
    SHARED = 15
    BINS = 16


class Generator:
    """The cryptographic random number generator of a run.

    Make one with :meth:`from_os`. Every random word (a 64-bit integer) has an address: its ``purpose``, the
    ``step``, and an ``index``. The same address always gives the same words, in any order and after a
    restart, because the generator encrypts the address with a secret key (AES). Anyone who has the key can
    subtract the noise. The resume state of a run stores the key, separately from the model.

    >>> Generator.from_os().words(3, purpose=Purpose.NOISE, step=0).shape
    (3,)
    """

    __slots__ = ("_blocks", "_kept", "_key", "_process", "_secure")

    def __init__(self, key: bytes, *, secure: bool) -> None:
        if len(key) != _KEY_BYTES:
            raise InvalidInput(f"key must have {_KEY_BYTES} bytes; got {len(key)}.")
        self._key = key
        self._secure = secure
        self._blocks: dict[tuple[Purpose, int], tuple[int, NDArray[np.uint64]]] = {}
        self._kept: dict[Hashable, NDArray[np.uint32]] = {}
        self._process = os.getpid()

    def __reduce__(self) -> tuple[type[Generator], tuple[object, ...]]:
        raise PrivacyRefusal(
            "the key of a run's noise cannot be copied or pickled, because the copy would add the same noise "
            "to other sums. Make a new session for each run. To move a run to another process, use "
            "session.save(path) and session.load(path)."
        )

    @classmethod
    def from_os(cls) -> Generator:
        """Make a generator with a new random key from the operating system."""
        return cls(secrets.token_bytes(_KEY_BYTES), secure=True)

    @property
    def secure(self) -> bool:
        """True if the key came from the operating system, False if ``tacit.testing`` made it."""
        return self._secure

    @property
    def name(self) -> str:
        """The source of randomness, such as "AES-128-CTR, key from the operating system"."""
        origin = "key from the operating system" if self._secure else "FIXED TEST KEY, not private"
        return f"AES-128-CTR, {origin}"

    def secret_state(self) -> tuple[bytes, bool]:
        """Return the secret key, and :attr:`secure`, for the resume state of a run.

        Never store them with a released model.
        """
        return self._key, self._secure

    def counter(
        self,
        *,
        purpose: Purpose,
        step: int,
        index: int = 0,
        rank: int = 0,
        first_block: int = 0,
        digit: int = 0,
    ) -> bytes:
        """Return the 16 bytes that AES encrypts to make one block of random bytes; see :meth:`fill`."""
        if self._secure and self._process != os.getpid():
            raise PrivacyRefusal(
                "the noise key was made before the process was forked, so parent and child would add the "
                "same noise to different sums. Make the session, and its StepCharges, in the process that "
                "trains."
            )
        check_integer("step", step, low=0, high=(1 << _STEP_BITS) - 1)
        check_integer("index", index, low=0, high=(1 << _INDEX_BITS) - 1)
        check_integer("rank", rank, low=0, high=(1 << _RANK_BITS) - 1)
        check_integer("first_block", first_block, low=0, high=(1 << _BLOCK_BITS) - 1)
        check_integer("digit", digit, low=0, high=(1 << _DIGIT_BITS) - 1)
        address = digit << _PURPOSE_BITS | int(purpose)
        for part, bits in ((step, _STEP_BITS), (rank, _RANK_BITS), (index, _INDEX_BITS)):
            address = address << bits | part
        return (address << _BLOCK_BITS | first_block).to_bytes(_BLOCK_BYTES, "big")

    def fill(
        self,
        out: memoryview,
        *,
        purpose: Purpose,
        step: int,
        index: int = 0,
        rank: int = 0,
        first_block: int = 0,
        digit: int = 0,
    ) -> None:
        """Fill ``out`` with random bytes.

        The other arguments are the address: the same address always gives the same bytes.

        Args:
            out: the memory to fill.
            purpose: what the bytes are for.
            step: the step of the run.
            index: the number of the draw, if a step has several for the same purpose.
            rank: the number of the machine, if several share a run.
            first_block: skip this many blocks of 16 bytes.
            digit: 0, or 1, 2, ... for the further words of one random number.
        """
        check_integer("first_block", first_block, low=0, high=(1 << _BLOCK_BITS) - 1)
        most = _BLOCK_BYTES * ((1 << _BLOCK_BITS) - first_block)
        check_integer("count", out.nbytes, low=0, high=most)
        counter = self.counter(
            purpose=purpose, step=step, index=index, rank=rank, first_block=first_block, digit=digit
        )
        key_stream(self._key, counter, out.cast("B"))

    def words(
        self, count: int, *, purpose: Purpose, step: int, index: int = 0, first: int = 0
    ) -> NDArray[np.uint64]:
        """Return ``count`` uniform 64-bit words of the address (``purpose``, ``step``, ``index``).

        The result skips the ``first`` words of this address.
        """
        check_integer("count", count, low=0, high=(_BLOCK_BYTES << _BLOCK_BITS) // 8)
        block, skipped = divmod(check_integer("first", first, low=0), _WORDS_PER_BLOCK)
        words = np.empty(skipped + count, np.uint64)
        self.fill(words.data, purpose=purpose, step=step, index=index, first_block=block)
        return words[skipped:]

    def word(self, *, purpose: Purpose, step: int, index: int = 0) -> int:
        """Return one uniform 64-bit word for a step.

        To save time, 128 steps share one address: for step 130, the result is word 2 of step 1 in
        :meth:`words`. So if you call :meth:`word` for a purpose, do not call other methods for that purpose:
        they would return the same words.

        >>> generator = Generator.from_os()
        >>> words = generator.words(128, purpose=Purpose.MODEL, step=1)
        >>> generator.word(purpose=Purpose.MODEL, step=130) == int(words[2])
        True
        """
        block, position = divmod(check_integer("step", step, low=0), _STEPS_PER_BLOCK)
        entry = self._blocks.get((purpose, index))
        if entry is None or entry[0] != block:
            entry = block, self.words(_STEPS_PER_BLOCK, purpose=purpose, step=block, index=index)
            self._blocks[purpose, index] = entry
        return int(entry[1][position])

    def kept(self, name: Hashable, draw: Callable[[], NDArray[np.uint32]]) -> NDArray[np.uint32]:
        """Return ``draw()``, or the cached result of a recent call with the same ``name``.

        Steps that share a draw, such as those of an epoch, compute it only once. The last two results are
        cached. They are as secret as the key.
        """
        if name not in self._kept:
            while len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
            self._kept[name] = draw()
        return self._kept[name]

    def numpy(self, *, purpose: Purpose, step: int, index: int = 0) -> np.random.Generator:
        """Return a NumPy random number generator, seeded with the 256 random bits at an address.

        Use it for shuffles and augmentations.  Do not use it for noise or sampling, which must be secret.
        """
        words = self.words(4, purpose=purpose, step=step, index=index)
        return np.random.Generator(np.random.Philox(seed=[int(word) for word in words]))


def key_stream(key: bytes, counter: bytes, out: memoryview) -> None:
    """Write the encryption of ``counter`` and of the numbers after it to ``out``, 16 bytes each.

    >>> out = bytearray(16)
    >>> key_stream(bytes(range(16)), bytes.fromhex("00112233445566778899aabbccddeeff"), memoryview(out))
    >>> out.hex()  # FIPS 197, appendix C.1
    '69c4e0d86a7b0430d8cdb78070b4c55a'
    """
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        raise MissingExtra("cryptography", "torch", "cryptographic noise") from None
    encryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
    for start in range(0, len(out), len(_ZEROS)):
        part = out[start : start + len(_ZEROS)]
        encryptor.update_into(_ZEROS[: len(part)], part)
