"""How are long rows of numbers added up with factors? Each number by itself, in the order of the rows.

So what comes out depends neither on how the rows are cut into shards nor on the number of threads, which a
product of matrices by a library does not promise; nor on settings that let such a product be less precise.

Letters: K sums of J rows, of P numbers each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from tacit import native

_C_TYPES = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


def combine(
    outs: Sequence[Tensor],
    scales: Sequence[float],
    factors: Sequence[Sequence[float]],
    rows: Sequence[Tensor],
) -> None:
    """Each of the K ``outs`` becomes its scale times itself, plus the sum of its J factors times ``rows``.

    All are (P,), contiguous, of one type and on one device; none of ``rows`` is among ``outs``.  A processor
    reads each row once for all sums (``native/combine.cpp``).

    >>> out = torch.ones(2)
    >>> combine([out], [0.5], [[2.0, -1.0]], [torch.tensor([1.0, 2.0]), torch.tensor([0.0, 3.0])])
    >>> out
    tensor([2.5000, 1.5000])
    """
    library = native.library()
    level = 0 if library is None or not outs[0].is_cpu else _level(library)
    if library is None or level == 0:
        for out, scale, of_out in zip(outs, scales, factors, strict=True):
            if scale != 1.0:
                out.mul_(scale)
            for row, factor in zip(rows, of_out, strict=True):
                out.add_(row, alpha=factor)
        return
    _call(library, level, outs, scales, factors, rows)


@cache
def _level(library: ctypes.CDLL) -> int:
    """The instructions that the kernel uses, 0 for none; checked on each machine, as none has all of them."""
    level: int = library.tacit_combine_level()
    if level == 0:
        return 0
    given = (torch.arange(12 * 600, dtype=torch.float64).view(12, 600) * 0.7).sin()
    scales, factors = [1.0, 0.5, *[-1.0] * 7], given[:9, :3].tolist()
    want = torch.tensor(scales, dtype=torch.float64)[:, None] * given[:9] + given[:9, :3] @ given[9:]
    for dtype in _C_TYPES:
        rows = [row.to(dtype) for row in given]
        _call(library, level, rows[:9], scales, factors, rows[9:])
        if not torch.allclose(torch.stack(rows[:9]).double(), want, rtol=0, atol=16 * torch.finfo(dtype).eps):
            return 0
    return level


def _call(
    library: ctypes.CDLL,
    level: int,
    outs: Sequence[Tensor],
    scales: Sequence[float],
    factors: Sequence[Sequence[float]],
    rows: Sequence[Tensor],
) -> None:
    number = _C_TYPES[outs[0].dtype]
    flat = [factor for of_out in factors for factor in of_out]
    library.tacit_combine(
        _pointers(outs),
        (number * len(outs))(*scales),
        len(outs),
        (number * len(flat))(*flat),
        _pointers(rows),
        len(rows),
        outs[0].numel(),
        number is ctypes.c_double,
        torch.get_num_threads(),
        level,
    )


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
