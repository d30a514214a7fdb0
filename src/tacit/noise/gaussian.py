"""Normal tensors, drawn from the counter-mode generator by Box and Muller's transform of random words.

Letters: t tiles, each with 1,024 pairs of draws.
"""

# Words come in tiles of 12,288 bytes: 1,024 radii of 64 bits, then 1,024 angles of 32 bits, little-endian.
# A tile gives 2 x 1,024 draws, first the cosines, then the sines.  Draw k of an address is a function of
# the key, the address and k alone, so tiles may be drawn in any order.
#
# ``radius`` is the last 63 bits of its word and ``angle`` a signed integer (G. E. P. Box and M. E. Muller, "A
# note on the generation of random normal deviates", Ann. Math. Statist. 29, 1958, equation 1)::
#
#     the radius plus 1/2, divided by 2^63, is u          in (0, 1)
#     a = 2 pi (angle + 1/2) / 2^32                       in (-pi, pi)
#     draws = std sqrt(-2 ln u) (cos a, sin a)
#
# The 1/2 keeps u above zero, where the draw would be infinite.  These 63 bits alone would end at 9.4 standard
# deviations.  So if the first 31 of them are zeros, which happens to one pair in 2^31, ``radius`` gets more
# binary digits, 64 at a time, until 64 of them come after one that is not zero::
#
#     u = (radius digit 1 digit 2 ... + 1/2) / 2^(63 + 64 + 64 + ...)
#
# Digit d of pair p of tile t is word 1,024 t + p of the address whose ``digit`` is d.  With 255 digits the
# smallest u, 2^-16384, gives 150.7 standard deviations.  If a record moves a pair by s standard deviations,
# this end adds at most exp(-(150.7 - s)^2 / 2) to delta, which is below 1e-550 for s up to 100.  The radius
# is computed in double precision, because a single-precision u near 1 would leave gaps between small draws.
#
# Floats cannot have the ideal normal distribution.  This noise is for training, where the released values are
# sums of floats anyway, and not for exact queries.

from __future__ import annotations

import ctypes
import math
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from tacit import native
from tacit.errors import InvalidInput, check_integer, check_real
from tacit.noise.generator import Generator, Purpose, key_stream

PAIRS = 1024
DRAWS_PER_TILE = 2 * PAIRS
BYTES_PER_TILE = 12 * PAIRS
BLOCKS_PER_TILE = BYTES_PER_TILE // 16
"""The number of 16-byte cipher blocks in a tile."""

# NumPy's threads take turns at the interpreter between any two operations, and a waiting one wakes after tens
# of microseconds.  So chunks are large enough to make operations few and long, and no larger, because each
# tile takes 24 KiB.  With fewer tiles than _TILES_FOR_A_THREAD for each, two threads take longer than one,
# especially within a step, where torch's threads are awake.
MOST_TILES_IN_A_CHUNK = 96
_TILES_FOR_A_THREAD = 256
TILES_APART = 32
"""Tensors of at least this many tiles are drawn straight into their memory, the others together."""

_LAST_63_BITS = np.int64((1 << 63) - 1)
_NEAR_ZERO = 2.0**-31
"""Below this value u has further digits."""
_MOST_DIGITS = 255
DIGIT_BLOCKS_PER_TILE = PAIRS * 8 // 16
"""The number of cipher blocks that have one further digit of each radius of a tile."""

Digits: TypeAlias = Callable[[int, int, int], int]
"""Maps (row, pair, d) to digit d of a radius, 64 bits; ``row`` is the number of the tile within a room."""


def by_torch() -> bool:
    """Return whether torch's functions are faster than NumPy's on this processor."""
    return torch.backends.cpu.get_cpu_capability() == "AVX2"


@final
class Room:
    """Memory for the words of ``tiles`` tiles and for intermediate values, reused for the next words.

    Attributes:
        words: (t, 12288) bytes, to be filled with random ones.

    >>> Room(2, np.float32).words.shape
    (2, 12288)
    """

    def __init__(self, tiles: int, dtype: DTypeLike) -> None:
        self.words = np.empty((tiles, BYTES_PER_TILE), np.uint8)
        self.u = np.empty((tiles, PAIRS), np.float64)
        self.a = np.empty((tiles, PAIRS), dtype)
        # All words are read before these two overwrite them.
        spent = self.words.reshape(-1).view(dtype)
        self.product = spent[: self.u.size].reshape(self.u.shape)
        self.r = self.u if dtype == np.float64 else spent[self.u.size : 2 * self.u.size].reshape(self.u.shape)


def box_muller(room: Room, std: float, out: NDArray[np.floating], digits: Digits) -> None:
    """Write the draws of the first t tiles of ``room.words`` to ``out`` (t, 2, 1024); overwrite the words.

    >>> room, out = Room(1, np.float64), np.empty((1, 2, 1024))
    >>> room.words[...] = 0
    >>> box_muller(room, 1.0, out, lambda row, pair, d: 0)
    >>> out[0, 0, 0].round(4)  # the largest draw there is: sqrt(2 * 16384 ln 2)
    np.float64(150.7085)
    """
    (in_torch if by_torch() else in_numpy)(room, std, out, digits)


def in_numpy(room: Room, std: float, out: NDArray[np.floating], digits: Digits) -> None:
    """Do what :func:`box_muller` does, with NumPy's functions."""
    u, a, far = _read(room, len(out), digits)
    number = out.dtype.type
    r, product = room.r[: len(out)], room.product[: len(out)]
    np.log(u, out=u)
    for place, log_u in far.items():
        u[place] = log_u
    np.copyto(r, u, casting="same_kind")
    r *= number(-2.0)
    np.sqrt(r, out=r)
    r *= number(std)
    for half, function in enumerate((np.cos, np.sin)):
        function(a, out=product)
        product *= r
        out[:, half] = product


def in_torch(room: Room, std: float, out: NDArray[np.floating], digits: Digits) -> None:
    """Do what :func:`box_muller` does, with torch's functions and threads."""
    *read, far = _read(room, len(out), digits)
    parts = (*read, room.r[: len(out)], room.product[: len(out)], out)
    u, a, r, product, draws = map(torch.from_numpy, parts)
    torch.log(u, out=u)
    for place, log_u in far.items():
        u[place] = log_u
    r.copy_(u).mul_(-2.0).sqrt_().mul_(std)
    for half, function in enumerate((torch.cos, torch.sin)):
        torch.mul(function(a, out=product), r, out=draws[:, half])


def _read(
    room: Room, tiles: int, digits: Digits
) -> tuple[NDArray[np.float64], NDArray[np.floating], dict[tuple[int, int], float]]:
    """Return u and a of the first tiles, and maps (row, pair) to ln u for each u that has further digits."""
    words, u, a = room.words[:tiles].view("<i8"), room.u[:tiles], room.a[:tiles]
    number = a.dtype.type
    np.copyto(a, words[:, PAIRS:].view("<i4"), casting="same_kind")
    a += number(0.5)
    a *= number(2 * math.pi * 2.0**-32)
    np.bitwise_and(words, _LAST_63_BITS, out=words)  # also masks the angles, which were read already
    np.copyto(u, words[:, :PAIRS])
    u *= 2.0**-63
    u += 2.0**-64
    far: dict[tuple[int, int], float] = {}
    if u.min() < _NEAR_ZERO:
        for row, pair in np.argwhere(u < _NEAR_ZERO).tolist():
            far[row, pair] = _log(int(words[row, pair]), partial(digits, row, pair))
    return u, a, far


def _log(radius: int, digit: Callable[[int], int]) -> float:
    """Return ln u for the 63 bits ``radius`` and the further digits, as the head of this file defines u."""
    bits = 63
    for d in range(1, _MOST_DIGITS + 1):
        radius = radius << 64 | digit(d)
        bits += 64
        if radius >> 64:
            break
    return math.log(2 * radius + 1) - (bits + 1) * math.log(2.0)


@final
@dataclass(frozen=True)
class Target:
    """An array (count,) to fill with draws from its ``tile`` on, and the source of their random words."""

    out: NDArray[np.floating]
    words: Callable[..., None]
    tile: int = 0

    @property
    def tiles(self) -> int:
        return math.ceil(len(self.out) / DRAWS_PER_TILE)

    def part(self, start: int, stop: int) -> Target:
        out = self.out[start * DRAWS_PER_TILE : stop * DRAWS_PER_TILE]
        return Target(out, self.words, self.tile + start)

    def digit(self, row: int, pair: int, d: int) -> int:
        """Return digit ``d`` of a radius in tile ``row`` of this target."""
        both = np.empty(2, "<u8")
        block = (self.tile + row) * DIGIT_BLOCKS_PER_TILE + pair // 2
        self.words(both.data, first_block=block, digit=d)
        return int(both[pair % 2])


def fill(targets: Sequence[Target], std: float, threads: int) -> None:
    """Fill all targets, which have the same type, with draws of N(0, std^2), on ``threads`` threads."""
    tiles = sum(target.tiles for target in targets)
    parts = 1 if by_torch() else max(1, min(threads, tiles // _TILES_FOR_A_THREAD))
    todo = deque(_chunks(targets, parts))
    draw = partial(_draw_chunks, todo, std)
    helpers = [_helpers(os.getpid()).submit(draw) for _ in range(parts - 1)]
    with _torch_threads(threads):
        draw()
    for helper in helpers:
        if not helper.cancel():  # it has begun, and may still draw the last chunk
            helper.result()


def _chunks(targets: Sequence[Target], parts: int) -> Iterator[list[Target]]:
    """Yield chunks of tiles to draw at once, which keep ``parts`` threads busy for about equally long."""
    together: list[Target] = []
    for target in targets:
        whole = len(target.out) // DRAWS_PER_TILE
        if whole < TILES_APART:
            whole = 0
        turns = math.ceil(whole / (parts * MOST_TILES_IN_A_CHUNK))
        size = math.ceil(whole / max(1, parts * turns))
        yield from ([target.part(start, min(start + size, whole))] for start in range(0, whole, size or 1))
        rest = target.part(whole, target.tiles)
        if sum(other.tiles for other in together) + rest.tiles > MOST_TILES_IN_A_CHUNK:
            yield together
            together = []
        if rest.tiles:
            together.append(rest)
    if together:
        yield together


def _draw_chunks(todo: deque[list[Target]], std: float) -> None:
    while todo:
        try:
            chunk = todo.popleft()
        except IndexError:  # another thread was faster
            return
        _draw(chunk, std)


def _draw(chunk: list[Target], std: float) -> None:
    ends = np.cumsum([target.tiles for target in chunk]).tolist()
    room = _room(ends[-1], chunk[0].out.dtype)
    for target, end in zip(chunk, ends, strict=True):
        rows = room.words[end - target.tiles : end]
        target.words(rows.data, first_block=target.tile * BLOCKS_PER_TILE)

    def digits(row: int, pair: int, d: int) -> int:
        at = bisect_right(ends, row)
        target = chunk[at]
        return target.digit(row - ends[at] + target.tiles, pair, d)

    if len(chunk) == 1 and len(chunk[0].out) == ends[-1] * DRAWS_PER_TILE:
        box_muller(room, std, chunk[0].out.reshape(ends[-1], 2, -1), digits)
        return
    draws = np.empty((ends[-1], 2, DRAWS_PER_TILE // 2), chunk[0].out.dtype)
    box_muller(room, std, draws, digits)
    for target, end in zip(chunk, ends, strict=True):
        target.out[:] = draws[end - target.tiles : end].reshape(-1)[: len(target.out)]


_rooms = threading.local()


def _room(tiles: int, dtype: np.dtype[Any]) -> Room:
    """Return this thread's room for at least ``tiles`` tiles; new memory would take as long as the draws."""
    rooms: dict[str, Room] = _rooms.__dict__
    room = rooms.get(dtype.char)
    if room is None or len(room.words) < tiles:
        room = rooms[dtype.char] = Room(tiles, dtype)
    return room


@cache
def _helpers(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process, kept as starting one takes long; a forked process needs new ones."""
    return ThreadPoolExecutor(os.cpu_count(), f"tacit-noise-{process}")


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    """Let torch use this number of threads, if it makes the draws."""
    before = torch.get_num_threads()
    if threads == before or not by_torch():
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- the native kernel: a check that it computes correctly, and its call ----------------------------------

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
        self.library.tacit_noise(key, counter, std, draws.numel(), draws.data_ptr(), threads, self.level)


def loaded() -> Kernel | None:
    library = native.library()
    return None if library is None or _fault(library) is not None else _kernel(library)


@cache
def _kernel(library: ctypes.CDLL) -> Kernel:
    return Kernel(library, library.tacit_noise_level())


# --- draws ------------------------------------------------------------------------------------------------


# An address has 2^32 cipher blocks.
_MOST_DRAWS = (1 << 32) // BLOCKS_PER_TILE * DRAWS_PER_TILE


def gaussian(
    generator: Generator,
    shape: tuple[int, ...],
    *,
    std: float,
    step: int,
    index: int = 0,
    rank: int = 0,
    ranks: int = 1,
    purpose: Purpose = Purpose.NOISE,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Draw a tensor of independent normal numbers; the same address gives the same numbers.

    Args:
        std: the standard deviation of all ranks' noise together, in units of the sum; 0 gives zeros.  Each
            rank draws ``N(0, std^2 / ranks)``.
        step, index, rank, purpose: the address; a training step uses one ``index`` per parameter.
        ranks: the number of machines that add noise to the same sum.
        dtype: float32 or float64.  Narrower types are refused, because they would round the noise away.
            Draws in float64 are not converted from float32, so their last bits vary too.

    **Guarantee**

    * Every draw is fresh: different addresses, and different ranks, give independent draws.
    * The tail ends at 150.7 standard deviations.  If a record moves a pair of draws by up to 100 of them,
      this adds less than 1e-550 to delta.
    * The scale is ``std / sqrt(ranks)``, and is never rounded to a type narrower than float32.
    * The result does not depend on the number of threads.

    >>> from tacit.noise.generator import Generator
    >>> gaussian(Generator.from_os(), (2, 3), std=1.0, step=0).shape
    torch.Size([2, 3])
    """
    check_integer("number of draws", math.prod(shape), low=0, high=_MOST_DRAWS)
    device = torch.device(device)
    # From page-locked memory the copy to the device does not stop the host.
    draws = torch.empty(shape, dtype=_checked(dtype), pin_memory=device.type == "cuda")
    noise = StepNoise(generator, std=std, step=step, rank=rank, ranks=ranks, purpose=purpose)
    noise.fill(draws, index)
    return draws if device.type == "cpu" else draws.to(device=device, non_blocking=True)


@final
class StepNoise:
    """The noise of one step for several tensors, each with an ``index``; arguments as in :func:`gaussian`."""

    def __init__(
        self,
        generator: Generator,
        *,
        std: float,
        step: int,
        rank: int = 0,
        ranks: int = 1,
        purpose: Purpose = Purpose.NOISE,
        threads: int | None = None,
    ) -> None:
        check_integer("ranks", ranks, low=1)
        check_integer("rank", rank, low=0, high=ranks - 1)
        self._std = check_real("std", std, low=0.0) / math.sqrt(ranks)
        self._generator = generator
        self._purpose, self._step, self._rank = purpose, step, rank
        self._threads = torch.get_num_threads() if threads is None else threads
        self._native = loaded()

    def fill(self, out: Tensor, index: int) -> None:
        """Overwrite ``out``, a contiguous tensor on the CPU, with the noise of this index."""
        self.fill_each({index: out})

    def fill_each(self, outs: Mapping[int, Tensor]) -> None:
        """Overwrite each tensor with the noise of its index; small tensors are drawn faster together."""
        for out in outs.values():
            check_integer("number of draws", out.numel(), low=0, high=_MOST_DRAWS)
            if not out.is_cpu or not out.is_contiguous():
                raise InvalidInput(f"out must be a contiguous tensor on the CPU; got one on {out.device}.")
        self._draw([(out.view(-1), index, 0) for index, out in outs.items()])

    def fill_part(self, out: Tensor, index: int, first: int) -> None:
        """Overwrite ``out`` with this index's draws from ``first`` on, as :meth:`fill` draws them."""
        check_integer("first", first, low=0)
        check_integer("number of draws", first + out.numel(), low=0, high=_MOST_DRAWS)
        tile, before = divmod(first, DRAWS_PER_TILE)
        flat, head = out.view(-1), min(out.numel(), DRAWS_PER_TILE - before) if before else 0
        parts = [(flat[head:], index, tile + 1 if before else tile)] if head < out.numel() else []
        begun = torch.empty(before + head if head else 0, dtype=out.dtype)
        self._draw([*parts, (begun, index, tile)])
        flat[:head] = begun[before:]

    def _draw(self, parts: list[tuple[Tensor, int, int]]) -> None:
        """Overwrite flat tensors with draws; each part is a tensor, its index and its first tile."""
        targets: dict[torch.dtype, list[Target]] = {}
        for out, index, tile in parts:
            address: dict[str, Any] = {
                "purpose": self._purpose, "step": self._step, "index": index, "rank": self._rank
            }  # fmt: skip
            if _checked(out.dtype) == torch.float32 and self._native is not None:
                counter = self._generator.counter(**address, first_block=tile * BLOCKS_PER_TILE)
                self._native.fill(out, self._generator.secret_state()[0], counter, self._std, self._threads)
            else:
                words = partial(self._generator.fill, **address)
                targets.setdefault(out.dtype, []).append(Target(out.numpy(), words, tile))
        for of_type in targets.values():
            fill(of_type, self._std, self._threads)


def _checked(dtype: torch.dtype) -> torch.dtype:
    if dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"noise must be float32 or float64; got {dtype}. Add it in float32, then cast.")
    return dtype


# --- noise that a background thread draws on the processor while a GPU works ------------------------------
#
# While a GPU works, the processor is mostly idle.  A thread draws the step's noise there into page-locked
# memory, and it is copied to the device when the step needs it, without blocking the host.  The draws are
# the same to the bit on any device.  Training on the CPU does not use such a thread: its draws would compete
# with the forward and backward pass for the same cores, and take only a few hundredths of their time.


@final
class NoiseAhead:
    """The noise of a step's parameters: :meth:`start` begins to draw it, and :meth:`take` returns it.

    ``like`` maps names to tensors of the shape, type (at least float32) and device of the noise; the position
    is the ``index``.  The last parameters are drawn first, because the backward pass asks for them in this
    order.
    """

    def __init__(
        self, generator: Generator, like: Mapping[str, Tensor], *, rank: int = 0, ranks: int = 1
    ) -> None:
        self._generator, self._rank, self._ranks = generator, rank, ranks
        self._like = {
            name: torch.empty(
                tensor.shape,
                dtype=torch.float64 if tensor.dtype == torch.float64 else torch.float32,
                device="meta",
            )
            for name, tensor in like.items()
        }
        self._devices = {name: tensor.device for name, tensor in like.items()}
        self._index = {name: index for index, name in enumerate(like)}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tacit-noise")
        self._draws: dict[str, Future[Tensor]] = {}

    def start(self, *, step: int, std: float) -> None:
        """Draw the noise of ``step``, and drop noise of the previous step that was not taken."""
        for future in self._draws.values():
            future.cancel()
        noise = StepNoise(self._generator, std=std, step=step, rank=self._rank, ranks=self._ranks)
        self._draws = {name: self._thread.submit(self._draw, name, noise) for name in reversed(self._like)}

    def take(self, name: str) -> Tensor:
        """Return the noise of one parameter, copied on the current stream; each may be taken once a step."""
        if name not in self._draws:
            raise InvalidInput(f"the noise of {name!r} was already used in this step, or was never drawn.")
        return self._draws.pop(name).result().to(self._devices[name], non_blocking=True)

    def _draw(self, name: str, noise: StepNoise) -> Tensor:
        on_gpu = self._devices[name].type == "cuda"
        draws = torch.empty_like(self._like[name], device="cpu", pin_memory=on_gpu)
        noise.fill(draws, self._index[name])
        return draws
