"""Per-record gradients G = sum_t left_t right_t^T on CUDA devices: their norms, and their weighted sum.

Letters: n records; T positions of a record; p, d widths of left and right; S = sum_t |left_t| |right_t|.
"""

# There are three kernels. Each program of a kernel computes one tile in registers and stores only the result:
#
# * ``ghost``: |G|^2 = sum_{t,u} (left_t . left_u)(right_t . right_u), T^2 (p + d) operations (Li et al.,
#   2110.05679).  The T x T matrices are never in memory. As they are symmetric, tiles below the diagonal
#   count twice and those above are skipped.
# * ``direct``: |G|^2 is the sum of the squares of tiles of G, 2 T p d operations; used if these are fewer.
# * ``contract``: sum_i f_i G_i from 16-bit numbers by tensor cores. Factors multiply the sums in float32,
#   not the inputs, which would have to be rounded to 16 bits again.
#
# **Rounding.** Positions may cancel: |G| may be far below S, and rounding errors are proportional to S. A
# proven bound on these errors is added to each norm, so that none is below the true one.  Let u = 2^-24.
# Errors are relative to the sum of the terms' absolute values:
#
# * float32 numbers are multiplied and added in IEEE arithmetic, never in TF32. The error is u per term.
# * Products of 16-bit numbers are exact. A tensor core aligns k of them and the sum so far to the largest. It
#   truncates the others below 2^-23 of the largest, and then the result too (Fasi et al., "Numerical
#   behavior of NVIDIA tensor cores", PeerJ CS 7:e330, 2021: k >= 4; later cores keep more bits). The error is
#   at most (k + 1) 2 u for k terms, or 2.5 u per term.
# * For norms, no such chain has more than ``DEPTH`` terms. Each starts from zero and is added in float32,
#   with an error of u per chain. ``max_num_imprecise_acc`` keeps Triton from merging them into one chain of
#   thousands.
# * From there on, products and squares for norms, and their sums, are in float64.
# * The weighted sum adds the T positions of a record in one chain, which is faster. The bound on its error,
#   :func:`_chained` (T) S, is added to the norm: 1.5e-4 S at T = 1,024.
#
# So an inner product of rows of width w is off by less than :func:`_rounding` (w) times the product of norms.

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tacit.native.cuda import runs_triton

GRAM_TILE: Final = 64
TILE: Final = 128
ROW_TILE: Final = 512
DEPTH: Final = {torch.float32: 32, torch.bfloat16: 64, torch.float16: 64}
CAPABILITY: Final = (8, 0)
"""The first capability with tensor cores for bfloat16."""
U: Final = 2.0**-24
PROGRAMS: Final = 512
"""Enough programs for any device. If a sum has fewer tiles, its records are split among more programs."""
FLOOR: Final = 2.0**-100
"""The allowance per number in a sum of squares; underflow loses less than ``U`` times this."""


def takes(left: Tensor, right: Tensor) -> bool:
    """Return whether the kernels, and the bound on their rounding, cover these tensors and their device."""
    return (
        left.is_cuda and left.dtype in DEPTH and right.dtype in DEPTH and runs_triton(left.device, CAPABILITY)
    )


def takes_16_bits(left: Tensor, right: Tensor) -> bool:
    """Return whether tensor cores can multiply these tensors unchanged, as :func:`gradients` requires."""
    return left.dtype == right.dtype != torch.float32 and takes(left, right)


def takes_rows(rows: Tensor) -> bool:
    """Return whether :func:`add_weighted_rows` takes these rows."""
    return (
        rows.is_cuda
        and rows.dtype == torch.float32
        and rows.is_contiguous()
        and runs_triton(rows.device, CAPABILITY)
    )


def squared_norms(left: Tensor, right: Tensor) -> Tensor:
    """Return |sum_t left_t right_t^T|^2, (n,) in float32, from (n, T, p) and (n, T, d), rounded up."""
    (n, T, p), d = left.shape, right.shape[2]
    if 0 in (n, T, p, d):
        return left.new_zeros(n, dtype=torch.float32)
    left, right = _alike(left, right)
    with torch.cuda.device_of(left):  # type: ignore[no-untyped-call]
        return (_ghost_norms if T * (p + d) < 2 * p * d else _direct_norms)(left, right).float()


def gradients(left: Tensor, right: Tensor) -> Tensor:
    """Return G, (n, p, d) in float32, from (n, T, p) and (n, T, d) in 16 bits.

    G is formed once, for norms and sum, so its rounding does not matter. torch computes it if it can.
    """
    if left.is_cuda and hasattr(torch.ops.aten.bmm, "dtype"):
        return torch.bmm(left.transpose(1, 2), right, out_dtype=torch.float32)
    return _contracted(left, right, torch.ones(1, device=left.device), 1)


def weighted_sums(left: Tensor, right: Tensor, factors: Tensor, layers: int) -> Tensor:
    """Return sum_i factors_i G_(l n + i), (L, p, d) in float32, from 16-bit (L n, T, .); factors (n,).

    A record whose factor is 0 adds nothing, whatever its values are.
    """
    tiles = layers * _ratio(left.shape[2], TILE) * _ratio(right.shape[2], TILE)
    parts = max(1, min(len(factors), PROGRAMS // tiles))
    sums = _contracted(left, right, factors.float(), parts)
    return sums.view(layers, parts, *sums.shape[1:]).sum(1)


def add_weighted_rows(accumulator: Tensor, rows: Tensor, factors: Tensor) -> None:
    """Add sum_i factors_i rows_i, from (n, P) and (n,) in float32, to an accumulator of P numbers.

    A row whose factor is 0 adds nothing, whatever its values are.
    """
    from tacit.clipping.per_example.triton_kernels import weigh

    fits = accumulator.is_contiguous() and accumulator.dtype == torch.float32
    sums = accumulator if fits else torch.zeros_like(accumulator, dtype=torch.float32).contiguous()
    n, P = rows.shape
    if P:
        with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
            weigh[(_ratio(P, ROW_TILE),)](
                rows, factors.float().contiguous(), sums, n, P, RECORDS=8, TILE=ROW_TILE, num_warps=4
            )
    if not fits:
        accumulator.add_(sums)


def _contracted(left: Tensor, right: Tensor, factors: Tensor, parts: int) -> Tensor:
    """Return sums of factors_i G_i over every ``parts``-th of a layer's n records, (L parts, p, d)."""
    from tacit.clipping.per_example.triton_kernels import contract

    left, right = _alike(left, right)
    (N, T, p), d, n = left.shape, right.shape[2], len(factors)
    count = N // max(1, n) * parts
    if 0 in (N, T, p, d):
        return left.new_zeros(count, p, d, dtype=torch.float32)
    sums = left.new_empty(count, p, d, dtype=torch.float32)
    tile = _tile(p, d)
    with torch.cuda.device_of(left):  # type: ignore[no-untyped-call]
        contract[(count, _ratio(p, tile), _ratio(d, tile))](
            *(left, right, factors.contiguous(), sums, n, parts, T, p, d, *_strides(left, right)),
            TILE=tile,
            DEPTH=DEPTH[left.dtype],
            num_warps=8 if tile == TILE else 4,
        )
    return sums


def _alike(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    return (left, right) if left.dtype == right.dtype else (left.float(), right.float())


def _strides(left: Tensor, right: Tensor) -> tuple[int, ...]:
    return *left.stride(), *right.stride()


def _tile(p: int, d: int) -> int:
    return max(16, min(TILE, _power(max(p, d))))


def _power(x: int) -> int:
    """Return the smallest power of two that is not below x."""
    return 1 << (x - 1).bit_length()


def _ratio(x: int, y: int) -> int:
    """Return x / y rounded up."""
    return -(-x // y)


def _ghost_norms(left: Tensor, right: Tensor) -> Tensor:
    """Return squared ghost norms plus bounds on rounding, here and in the weighted sum.

    Entry (t, u) is off by at most kappa |left_t| |left_u| |right_t| |right_u|, which sum to kappa S^2.
    """
    from tacit.clipping.per_example.triton_kernels import ghost

    (n, T, p), d = left.shape, right.shape[2]
    tile = max(16, min(GRAM_TILE, _power(T)))
    tiles = _ratio(T, tile)
    sums = left.new_zeros(n, tiles, tiles, dtype=torch.float64)
    spreads = left.new_empty(n, tiles, dtype=torch.float64)
    spilling = tile == GRAM_TILE and left.dtype == torch.float32
    ghost[(n, tiles, tiles)](
        *(left, right, sums, spreads, T, p, d, *_strides(left, right), FLOOR * p, FLOOR * d),
        TILE=tile,
        DEPTH=DEPTH[left.dtype],
        num_warps=16 if spilling else 4,
    )
    a, b = _rounding(left.dtype, p), _rounding(left.dtype, d)
    kappa, spread = a + b + a * b, spreads.sum(1)
    norms = (sums.sum((1, 2)).clamp(min=0.0) + kappa * spread.square()).sqrt()
    return (norms + _chained(left.dtype, T) * spread).square()


def _direct_norms(left: Tensor, right: Tensor) -> Tensor:
    """Return squared norms of G plus bounds on rounding, here and in the weighted sum."""
    from tacit.clipping.per_example.triton_kernels import direct

    (n, T, p), d = left.shape, right.shape[2]
    tile = _tile(p, d)
    tiles = _ratio(p, tile), _ratio(d, tile)
    sums = left.new_empty(n, *tiles, dtype=torch.float64)
    direct[(n, *tiles)](
        *(left, right, sums, T, p, d, *_strides(left, right)),
        TILE=tile,
        DEPTH=DEPTH[left.dtype],
        num_warps=8 if tile == TILE else 4,
    )
    spread = _length(left) * _length(right)  # at least S (Cauchy and Schwarz)
    rounding = _rounding(left.dtype, T) + _chained(left.dtype, T)
    return (sums.sum((1, 2)).sqrt() + rounding * spread).square()


def _length(x: Tensor) -> Tensor:
    """Return an upper bound on the norm of each record's (T, width) values, (n,), in float64."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=(1, 2), dtype=torch.float32)
    return (norms.double().square() + FLOOR * x[0].numel()).sqrt()


def _rounding(dtype: torch.dtype, terms: int) -> float:
    """Return the largest error of a sum of ``terms`` products, relative to the sum of absolute values."""
    depth = DEPTH[dtype]
    a_term = 1.0 if dtype == torch.float32 else 2.5
    return 1.01 * U * (a_term * depth + _ratio(terms, depth))  # 1.01: second order, to 1e5 chains


def _chained(dtype: torch.dtype, terms: int) -> float:
    """Return the largest such error of the weighted sum, which adds a record's positions in one chain."""
    if dtype == torch.float32:  # torch sums in many lanes
        return _rounding(dtype, terms)
    return 1.01 * U * (2.5 * terms + 1)
