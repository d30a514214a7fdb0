"""Box and Muller's transform of random words to normal draws, in NumPy or torch.

Words come in tiles of 12,288 bytes: 1,024 radii of 64 bits, then 1,024 angles of 32 bits, little-endian.  A
tile gives 2 x 1,024 draws, first the cosines, then the sines.  Draw k of an address is a function of the key,
the address and k alone.  So a longer buffer begins with the draws of a shorter one, and tiles may be drawn in
any order.

``radius`` is the last 63 bits of its word and ``angle`` a signed integer (G. E. P. Box and M. E. Muller, "A
note on the generation of random normal deviates", Ann. Math. Statist. 29, 1958, equation 1)::

    u = (radius + 1/2) / 2^63                           in (0, 1)
    a = 2 pi (angle + 1/2) / 2^32                       in (-pi, pi)
    draws = std sqrt(-2 ln u) (cos a, sin a)

The 1/2 keeps u above zero, where the draw would be infinite.  These 63 bits alone would end at 9.4 standard
deviations.  So if the first 31 of them are zeros, which happens to one pair in 2^31, ``radius`` gets more
binary digits, 64 at a time, until 64 of them come after one that is not zero::

    u = (radius digit 1 digit 2 ... + 1/2) / 2^(63 + 64 + 64 + ...)

Digit d of pair p of tile t is word 1,024 t + p of the address whose ``digit`` is d.  With 255 digits the
smallest u, 2^-16384, gives 150.7 standard deviations.  If a record moves a pair by s standard
deviations, this end adds at most exp(-(150.7 - s)^2 / 2) to delta, which is below 1e-550 for s up to 100.

The radius is computed in double precision, because a single-precision u near 1 would leave gaps between
small draws.

In NumPy an operation on many short rows, such as the radii and angles of the words or the draws of a tile,
can take five times as long as one on contiguous memory.  So words are masked in one operation and copied to
contiguous memory, and draws are copied back.

Without AVX-512, NumPy computes logarithms in double precision one by one, and torch with two threads needs a
third of NumPy's time for all functions.  The two libraries differ in the last digit, so the choice between
them depends on the processor alone.

Letters: t tiles, each with 1,024 pairs of draws.

Both libraries are slow at short rows.  Therefore many tiles are drawn at a time.  Large tensors are drawn in
chunks of tiles, straight into their memory.  Small tensors, and the rest of a large one after its last whole
tile, are drawn together and copied, because an operation within a step takes ten or twenty microseconds even
for few numbers.  Each tensor has separate words, and so the same draws either way.
"""

from __future__ import annotations

import math
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

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
    """Do what :func:`box_muller` does, with NumPy's functions.

    >>> room, out = Room(1, np.float64), np.empty((1, 2, 1024))
    >>> room.words[...] = 0
    >>> in_numpy(room, 1.0, out, lambda row, pair, d: 0)
    >>> bool((out[0, 0] == out[0, 0, 0]).all())
    True
    """
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
    """Do what :func:`box_muller` does, with torch's functions and threads.

    >>> room, out = Room(1, np.float64), np.empty((1, 2, 1024))
    >>> room.words[...] = 0
    >>> in_torch(room, 1.0, out, lambda row, pair, d: 0)
    >>> bool((out[0, 0] == out[0, 0, 0]).all())
    True
    """
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
    """Return ln u for the 63 bits ``radius`` and the further digits, as the module's docstring defines u."""
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
    """An array to be filled with draws, and the source of their random words.

    Attributes:
        out: the array (count,), float32 or float64.
        words: a function that fills a memoryview with the bytes of an address, from ``first_block`` on, and
            of a ``digit``.
        tile: the number of the tile at which the array begins.
    """

    out: NDArray[np.floating]
    words: Callable[..., None]
    tile: int = 0

    @property
    def tiles(self) -> int:
        """The number of tiles, of which the last may be used in part."""
        return math.ceil(len(self.out) / DRAWS_PER_TILE)

    def part(self, start: int, stop: int) -> Target:
        """Return the target of the tiles ``start`` to ``stop`` - 1."""
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
    """Draw chunks until none is left."""
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
