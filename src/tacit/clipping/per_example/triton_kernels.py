"""The Triton kernels of ``triton_outer``, with its letters and its bound on rounding."""

# Importing this module imports Triton if it is installed.  Each chain of 16-bit products starts from zero:
# ``max_num_imprecise_acc=1`` keeps Triton from adding products to earlier sums one by one.
#
# Triton compiles a kernel again, which takes seconds, if an integer argument becomes 1 or a multiple of 16.
# ``n``, the number of records, changes with each step, and the kernels gain nothing from its divisibility. So
# they are not specialised to it.

from __future__ import annotations

from tacit.native.jit import jit, tl


@jit
def ghost(
    left: tl.tensor,
    right: tl.tensor,
    sums: tl.tensor,
    spreads: tl.tensor,
    T: tl.tensor,
    p: tl.tensor,
    d: tl.tensor,
    left_record: tl.tensor,
    left_row: tl.tensor,
    left_column: tl.tensor,
    right_record: tl.tensor,
    right_row: tl.tensor,
    right_column: tl.tensor,
    left_floor: tl.tensor,
    right_floor: tl.tensor,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """Store record i's sum over tile (a, b) in ``sums`` (n, tiles, tiles), and a part of S in ``spreads``."""
    i, a, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if b > a:
        return
    t, u = a * TILE + tl.arange(0, TILE), b * TILE + tl.arange(0, TILE)
    gram_left = _gram(left + i.to(tl.int64) * left_record, t, u, T, p, left_row, left_column, TILE, DEPTH)
    gram_right = _gram(
        right + i.to(tl.int64) * right_record, t, u, T, d, right_row, right_column, TILE, DEPTH
    )
    tiles = tl.num_programs(1)
    count = tl.where(a == b, 1.0, 2.0)
    products = gram_left.to(tl.float64) * gram_right.to(tl.float64)
    tl.store(sums + (i * tiles + a).to(tl.int64) * tiles + b, count * tl.sum(tl.sum(products, 1), 0))
    if a == b:
        same = t[:, None] == u[None, :]
        left_squares = tl.sum(tl.where(same, gram_left, 0.0), 1) + left_floor
        right_squares = tl.sum(tl.where(same, gram_right, 0.0), 1) + right_floor
        lengths = tl.sqrt(left_squares.to(tl.float64) * right_squares.to(tl.float64))
        tl.store(spreads + i * tiles + a, tl.sum(tl.where(t < T, lengths, 0.0), 0))


@jit
def _gram(
    x: tl.tensor,
    t: tl.tensor,
    u: tl.tensor,
    T: tl.tensor,
    width: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
) -> tl.tensor:
    """Return x_t . x_u, (TILE, TILE), of rows t and u of x (T, width)."""
    gram = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, width, DEPTH):
        k = start + tl.arange(0, DEPTH)
        at_t = x + t.to(tl.int64)[:, None] * row + k.to(tl.int64)[None, :] * column
        at_u = x + u.to(tl.int64)[None, :] * row + k.to(tl.int64)[:, None] * column
        x_t = tl.load(at_t, mask=(t < T)[:, None] & (k < width)[None, :], other=0.0)
        x_u = tl.load(at_u, mask=(u < T)[None, :] & (k < width)[:, None], other=0.0)
        gram += tl.dot(x_t, x_u, input_precision="ieee", max_num_imprecise_acc=1)
    return gram


@jit
def direct(
    left: tl.tensor,
    right: tl.tensor,
    sums: tl.tensor,
    T: tl.tensor,
    p: tl.tensor,
    d: tl.tensor,
    left_record: tl.tensor,
    left_row: tl.tensor,
    left_column: tl.tensor,
    right_record: tl.tensor,
    right_row: tl.tensor,
    right_column: tl.tensor,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """Store the sum of squares of tile (a, b) of record i's G in ``sums`` (n, tiles, tiles)."""
    i, a, b = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    j, k = a * TILE + tl.arange(0, TILE), b * TILE + tl.arange(0, TILE)
    tile = tl.zeros((TILE, TILE), tl.float32)
    left += i * left_record
    right += i * right_record
    for start in range(0, T, DEPTH):  # each chain starts from zero, for the bound on rounding
        t = start + tl.arange(0, DEPTH)
        of_left = _columns(left, t, j, T, p, left_row, left_column)
        of_right = _rows(right, t, k, T, d, right_row, right_column)
        tile += tl.dot(of_left, of_right, input_precision="ieee", max_num_imprecise_acc=1)
    tile = tile.to(tl.float64)
    place = (i * tl.num_programs(1) + a) * tl.num_programs(2) + b
    tl.store(sums + place, tl.sum(tl.sum(tile * tile, 1), 0))


@jit(do_not_specialize=["n", "parts"])
def contract(
    left: tl.tensor,
    right: tl.tensor,
    factors: tl.tensor,
    sums: tl.tensor,
    n: tl.tensor,
    parts: tl.tensor,
    T: tl.tensor,
    p: tl.tensor,
    d: tl.tensor,
    left_record: tl.tensor,
    left_row: tl.tensor,
    left_column: tl.tensor,
    right_record: tl.tensor,
    right_row: tl.tensor,
    right_column: tl.tensor,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """Store tile (a, b) of sum_i f_i G_(l n + i) in ``sums`` (L parts, p, d).

    Program s sums the records i = s % parts, s % parts + parts, ... of layer l = s // parts.
    """
    s, a, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = (s // parts).to(tl.int64) * n
    j, k = a * TILE + tl.arange(0, TILE), b * TILE + tl.arange(0, TILE)
    tile = tl.zeros((TILE, TILE), tl.float32)
    for i in range(s % parts, n, parts):
        factor = tl.load(factors + i)
        if factor != 0:
            x, y = left + (first + i) * left_record, right + (first + i) * right_record
            of_record = tl.zeros((TILE, TILE), tl.float32)
            for start in range(0, T, DEPTH):  # one chain of all positions, which the compiler can pipeline
                t = start + tl.arange(0, DEPTH)
                of_record = tl.dot(
                    _columns(x, t, j, T, p, left_row, left_column),
                    _rows(y, t, k, T, d, right_row, right_column),
                    of_record,
                    input_precision="ieee",
                )
            tile += factor * of_record
    place = (s.to(tl.int64) * p + j.to(tl.int64)[:, None]) * d + k[None, :]
    tl.store(sums + place, tile, mask=(j < p)[:, None] & (k < d)[None, :])


@jit
def _rows(
    x: tl.tensor, t: tl.tensor, k: tl.tensor, T: tl.tensor, d: tl.tensor, row: tl.tensor, column: tl.tensor
) -> tl.tensor:
    """Return x[t, k], (DEPTH, TILE), of x (T, d)."""
    at = x + t.to(tl.int64)[:, None] * row + k.to(tl.int64)[None, :] * column
    return tl.load(at, mask=(t < T)[:, None] & (k < d)[None, :], other=0.0)


@jit
def _columns(
    x: tl.tensor, t: tl.tensor, j: tl.tensor, T: tl.tensor, p: tl.tensor, row: tl.tensor, column: tl.tensor
) -> tl.tensor:
    """Return x[t, j] at position (j, t), (TILE, DEPTH), of x (T, p)."""
    at = x + t.to(tl.int64)[None, :] * row + j.to(tl.int64)[:, None] * column
    return tl.load(at, mask=(t < T)[None, :] & (j < p)[:, None], other=0.0)


@jit(do_not_specialize=["n"])
def weigh(
    rows: tl.tensor,
    factors: tl.tensor,
    sums: tl.tensor,
    n: tl.tensor,
    P: tl.tensor,
    RECORDS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Add the sum of factors_i rows_i to one tile of ``sums`` (P,), ``RECORDS`` rows at once."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    total = tl.load(sums + at, mask=at < P, other=0.0)
    for start in range(0, n, RECORDS):
        i = start + tl.arange(0, RECORDS)
        factor = tl.load(factors + i, mask=i < n, other=0.0)
        inside = (factor != 0)[:, None] & (at < P)[None, :]
        row = tl.load(rows + i.to(tl.int64)[:, None] * P + at[None, :], mask=inside, other=0.0)
        total += tl.sum(factor[:, None] * row, 0)
    tl.store(sums + at, total, mask=at < P)
