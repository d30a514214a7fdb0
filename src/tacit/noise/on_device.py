"""How are normal tensors drawn on a CUDA device? By a counter-mode cipher, as on the processor.

A device draws a hundred times as fast as the processor, and nothing has to be copied to it.  AES needs tables
or instructions that devices lack, so the cipher here is ChaCha20 (RFC 8439), of 32-bit additions, rotations
and exclusive ors alone.  Its 256-bit key is drawn from the run's generator at a separate address, and the
last four words of its state are the address of the draws::

    word    12                    13, 14, 15
            number of the block   purpose | step | rank | index, as in tacit.noise.generator

Of the 16 words of a block each four make a radius of 63 bits and an angle of 32, and so two draws as in
:mod:`tacit.noise.box_muller`.  A tile is ``LANES`` blocks: first the cosines of each block's first pair, then
the sines, then those of the second, and so on.

The draws differ from the processor's, so a run must resume on the kind of device where it began.

Letters: P tensors; t tiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import check_integer, check_real
from tacit.native.cuda import runs_triton
from tacit.noise.generator import Generator, Purpose

LANES: Final = 256
DRAWS_PER_TILE: Final = 8 * LANES
ALIGNED: Final = 32
"""Numbers: each tensor begins at a multiple of 128 bytes."""
MOST_DRAWS: Final = (1 << 32) * 8
TOGETHER: Final = 1 << 20
"""Draws of small tensors in one launch, 4 MiB; more where a single tensor has more."""
CAPABILITY: Final = (7, 0)
"""What Triton compiles for."""
INDEX_BYTES: Final = slice(9, 12)
"""Of an address."""

Shapes: TypeAlias = tuple[tuple[str, torch.Size, torch.dtype], ...]


def draws(like: Mapping[str, Tensor]) -> bool:
    """Whether :class:`DeviceNoise` takes these tensors: all on one device, where it can be done.

    >>> draws({"weight": torch.zeros(3)})
    False
    """
    devices = {tensor.device for tensor in like.values()}
    return len(devices) == 1 and runs_triton(devices.pop(), CAPABILITY)


@final
class DeviceNoise:
    """The noise of one step for tensors on one device: N(0, std^2 / ranks), in pieces.

    Args:
        like: name to a tensor of the shape, type and device that the noise is to have; the position in the
            mapping is the ``index`` of the address.  Types narrower than float32 get float32 noise.
        std, step, rank, ranks, purpose: as in :func:`tacit.noise.gaussian.gaussian`.  The standard deviation
            is rounded up to float32.

    A piece is one launch, into memory that is allocated for it.  Small tensors share a piece, up to as many
    draws as the largest tensor has or :data:`TOGETHER`: so there are few, and memory is taken when it is
    needed.  What is drawn does not depend on the pieces.  The guarantee is that of
    :func:`tacit.noise.gaussian.gaussian`.
    """

    def __init__(
        self,
        generator: Generator,
        like: Mapping[str, Tensor],
        *,
        std: float,
        step: int,
        rank: int = 0,
        ranks: int = 1,
        purpose: Purpose = Purpose.NOISE,
    ) -> None:
        check_integer("ranks", ranks, low=1)
        check_integer("rank", rank, low=0, high=ranks - 1)
        self._scale = _rounded_up(check_real("std", std, low=0.0) / math.sqrt(ranks))
        device = next(iter(like.values())).device
        self._words = _words(generator, step, rank, purpose, len(like), device)
        self._pieces = _pieces(tuple((name, t.shape, t.dtype) for name, t in like.items()), device)

    def piece(self, name: str) -> dict[str, Tensor]:
        """Draw the piece in which this tensor is; give all that are in it, by name."""
        return self._pieces[name].filled(*self._words, self._scale)


def _rounded_up(std: float) -> float:
    """The smallest float32 that is not below ``std``: in this type the kernel takes it."""
    single = np.float32(std)
    return float(single if float(single) >= std else np.nextafter(single, np.float32(np.inf)))


def _words(
    generator: Generator, step: int, rank: int, purpose: Purpose, P: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The key, (8,), and the addresses, (P, 3), as 32-bit words on the device, sent there in one copy."""
    words = np.empty(32 + 12 * P, np.uint8)
    generator.fill(words[:32].data, purpose=Purpose.DEVICE_KEY, step=0)
    addresses = words[32:].reshape(P, 12)
    check_integer("number of tensors", P, low=1, high=1 << 24)
    counter = generator.counter(purpose=purpose, step=step, rank=rank)
    addresses[:] = np.frombuffer(counter, np.uint8)[:12]
    addresses[:, INDEX_BYTES] = np.arange(P, dtype=">u4").view(np.uint8).reshape(P, 4)[:, 1:]
    sent = torch.from_numpy(words.view("<i4").astype(np.int32)).to(device, non_blocking=True)
    return sent[:8].view(torch.uint32), sent[8:].view(torch.uint32)


@dataclass(frozen=True)
class _Piece:
    """The place of some tensors' draws in one block of memory; tables of the kernel."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]  # room for each, a multiple of ALIGNED
    tables: tuple[Tensor, ...]  # owners (t,), and firsts, starts, counts (P,)
    dtype: torch.dtype

    def filled(self, key: Tensor, addresses: Tensor, std: float) -> dict[str, Tensor]:
        """Draw them."""
        from tacit.noise.triton_normal import normal

        owners = self.tables[0]
        memory = torch.empty(sum(self.sizes), dtype=self.dtype, device=owners.device)
        if len(owners):
            with torch.cuda.device_of(memory):  # type: ignore[no-untyped-call]
                normal[(len(owners),)](memory, *self.tables, key, addresses, std, LANES=LANES, num_warps=4)
        parts = zip(self.names, self.shapes, memory.split_with_sizes(self.sizes), strict=True)
        return {name: part[: shape.numel()].view(shape) for name, shape, part in parts}


@lru_cache(maxsize=32)
def _pieces(shapes: Shapes, device: torch.device) -> dict[str, _Piece]:
    """The piece that each tensor is in."""
    counts = np.array([shape.numel() for _, shape, _ in shapes], np.int64)
    for count in counts:
        check_integer("number of draws", int(count), low=0, high=MOST_DRAWS)
    tiles, sizes = -(-counts // DRAWS_PER_TILE), -(-counts // ALIGNED) * ALIGNED
    tables, groups = np.zeros((3, len(shapes)), np.int64), _grouped(counts, shapes)
    for of in groups:
        tables[:, of] = np.cumsum(tiles[of]) - tiles[of], np.cumsum(sizes[of]) - sizes[of], counts[of]
    sent, found = torch.from_numpy(tables).to(device), {}
    for of in groups:
        owners = torch.from_numpy(np.repeat(np.array(of, np.int32), tiles[of])).to(device)
        names, own, dtypes = zip(*(shapes[i] for i in of), strict=True)
        dtype = torch.float64 if dtypes[0] == torch.float64 else torch.float32
        piece = _Piece(names, own, tuple(map(int, sizes[of])), (owners, *sent), dtype)
        found.update(dict.fromkeys(names, piece))
    return found


def _grouped(counts: NDArray[np.int64], shapes: Shapes) -> list[list[int]]:
    """The positions of the tensors of each piece, whose noise has one type; from the smallest tensor on."""
    most, groups = max(TOGETHER, int(counts.max())), list[list[int]]()
    for wide in (False, True):
        room = -1
        for i in map(int, np.argsort(counts, kind="stable")):
            if (shapes[i][2] == torch.float64) != wide:
                continue
            if counts[i] > room:
                groups.append([])
                room = most
            groups[-1].append(i)
            room -= int(counts[i])
    return groups
