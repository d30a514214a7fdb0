"""How is noise drawn without the kernel? Many tiles at a time, as both libraries are slow at short rows.

Large tensors are drawn in chunks of tiles, straight to their place.  Small ones, and what a large one has
beyond its last whole tile, are drawn together and copied: an operation takes ten or twenty microseconds
within a step, however few numbers it has.  Each tensor has its own words, and so the same draws either way.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.noise.box_muller import BLOCKS_PER_TILE, DRAWS_PER_TILE, Room, box_muller, by_torch

# NumPy's threads take turns at the interpreter between any two operations, and a waiting one wakes after tens
# of microseconds.  So chunks are as large as makes the operations few and long, and no larger, as each tile
# takes 24 KiB.  Below so many tiles for each, two threads take longer than one; the more so within a step,
# where torch's threads are awake.
MOST_TILES_IN_A_CHUNK = 96
_TILES_FOR_A_THREAD = 256
TILES_APART = 32
"""So many are drawn straight to their place, and not together with others."""


@final
@dataclass(frozen=True)
class Target:
    """Draws to be made, and the words that they are made of.

    Attributes:
        out: (count,), float32 or float64.
        words: fills a memoryview with the bytes of its address, from ``first_block`` on.
        tile: which tile the draws begin with.
    """

    out: NDArray[np.floating]
    words: Callable[..., None]
    tile: int = 0

    @property
    def tiles(self) -> int:
        """How many, of which the last may be cut off."""
        return math.ceil(len(self.out) / DRAWS_PER_TILE)

    def part(self, start: int, stop: int) -> Target:
        """Its tiles from ``start`` to ``stop``."""
        out = self.out[start * DRAWS_PER_TILE : stop * DRAWS_PER_TILE]
        return Target(out, self.words, self.tile + start)


def fill(targets: Sequence[Target], std: float, threads: int) -> None:
    """All targets, which have one type, become draws of N(0, std^2), on so many threads."""
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
    """The tiles to draw at a time, such that ``parts`` threads take about as long."""
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
    """Draw chunks until none is left to do."""
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
    if len(chunk) == 1 and len(chunk[0].out) == ends[-1] * DRAWS_PER_TILE:
        box_muller(room, std, chunk[0].out.reshape(ends[-1], 2, -1))
        return
    draws = np.empty((ends[-1], 2, DRAWS_PER_TILE // 2), chunk[0].out.dtype)
    box_muller(room, std, draws)
    for target, end in zip(chunk, ends, strict=True):
        target.out[:] = draws[end - target.tiles : end].reshape(-1)[: len(target.out)]


_rooms = threading.local()


def _room(tiles: int, dtype: np.dtype[Any]) -> Room:
    """Room for at least so many tiles, of this thread; reused, as fresh memory costs about as much time."""
    kept: dict[str, Room] = _rooms.__dict__
    room = kept.get(dtype.char)
    if room is None or len(room.words) < tiles:
        room = kept[dtype.char] = Room(tiles, dtype)
    return room


@cache
def _helpers(process: int) -> ThreadPoolExecutor:
    """Threads of one process, as a fork does not inherit them.  They stay: starting one takes too long."""
    return ThreadPoolExecutor(os.cpu_count(), f"tacit-noise-{process}")


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    """Let torch use so many, where it makes the draws."""
    before = torch.get_num_threads()
    if threads == before or not by_torch():
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
