"""Normal tensors, drawn on a CUDA device by a counter-mode cipher.

Letters: P tensors; t tiles.
"""

# A device draws a hundred times as fast as the processor, and no noise has to be copied to it.  AES needs
# tables or instructions that devices lack.  So the cipher here is ChaCha20 (RFC 8439), which uses only
# additions, rotations and exclusive ors of 32-bit words.  Its 256-bit key is drawn from the run's generator
# at a separate address.  The last four words of its state hold the block number and the address of the
# draws::
#
#     word    12                    13, 14, 15
#             number of the block   digit | purpose | step | rank | index, as in tacit.noise.generator
#
# Every four of the 16 words of a block give a radius of 63 bits and an angle of 32 bits, and so a pair of
# draws as in :mod:`tacit.noise.gaussian`.  Digit d of a radius has the position of the radius, at the
# address whose ``digit`` is d.  A tile has the draws of ``LANES`` blocks: first the cosines of each block's
# first pair, then their sines, then the cosines of the second pairs, and so on.
#
# The draws differ from the processor's, so a run must resume on the kind of device where it began.

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
"""Each tensor begins at a multiple of this number of values, 128 bytes in float32."""
MOST_DRAWS: Final = (1 << 32) * 8
TOGETHER: Final = 1 << 20
"""The most draws of small tensors in one launch, 4 MiB in float32, or as many as the largest tensor has."""
CAPABILITY: Final = (7, 0)
"""The lowest compute capability that Triton compiles for."""
INDEX_BYTES: Final = slice(9, 12)
"""The position of the index within the bytes of an address."""

Shapes: TypeAlias = tuple[tuple[str, torch.Size, torch.dtype], ...]


def draws(like: Mapping[str, Tensor]) -> bool:
    """Return whether :class:`DeviceNoise` can draw for these tensors: all must be on one suitable device."""
    devices = {tensor.device for tensor in like.values()}
    return len(devices) == 1 and runs_triton(devices.pop(), CAPABILITY)


@final
class DeviceNoise:
    """The noise of one step for tensors on one device: N(0, std^2 / ranks), std rounded up to float32.

    ``like`` is as in :class:`tacit.noise.gaussian.NoiseAhead`.  A piece is drawn by one launch, into memory
    that is allocated for it; small tensors share one.  The draws do not depend on the pieces.
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
        """Draw the piece that contains this tensor, and return all tensors of the piece by name."""
        return self._pieces[name].filled(*self._words, self._scale)


def _rounded_up(std: float) -> float:
    """Return the smallest float32 that is not below ``std``, because the kernel takes this type."""
    single = np.float32(std)
    return float(single if float(single) >= std else np.nextafter(single, np.float32(np.inf)))


def _words(
    generator: Generator, step: int, rank: int, purpose: Purpose, P: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the key, (8,), and the addresses, (P, 3), as 32-bit words on the device, sent in one copy."""
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
    """The layout of several tensors' draws in one block of memory, and the kernel's tables for them."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]  # numbers allocated for each, a multiple of ALIGNED
    tables: tuple[Tensor, ...]  # owners (t,), and firsts, starts, counts (P,)
    dtype: torch.dtype

    def filled(self, key: Tensor, addresses: Tensor, std: float) -> dict[str, Tensor]:
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
    counts = np.array([shape.numel() for _, shape, _ in shapes], np.int64)
    for count in counts:
        check_integer("number of draws", int(count), low=0, high=MOST_DRAWS)
    tiles, sizes = -(-counts // DRAWS_PER_TILE), -(-counts // ALIGNED) * ALIGNED
    tables, groups = np.zeros((3, len(shapes)), np.int64), _grouped(counts, shapes)
    for of in groups:
        tables[:, of] = np.cumsum(tiles[of]) - tiles[of], np.cumsum(sizes[of]) - sizes[of], counts[of]
    sent, pieces = torch.from_numpy(tables).to(device), {}
    for of in groups:
        owners = torch.from_numpy(np.repeat(np.array(of, np.int32), tiles[of])).to(device)
        names, own, dtypes = zip(*(shapes[i] for i in of), strict=True)
        dtype = torch.float64 if dtypes[0] == torch.float64 else torch.float32
        piece = _Piece(names, own, tuple(map(int, sizes[of])), (owners, *sent), dtype)
        pieces.update(dict.fromkeys(names, piece))
    return pieces


def _grouped(counts: NDArray[np.int64], shapes: Shapes) -> list[list[int]]:
    """Group the indices of tensors into pieces of one noise type each, from the smallest tensor on."""
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
