"""The Triton kernel that ``on_device`` launches: ChaCha20 and Box and Muller's transform, tile by tile.

Importing this module imports Triton, if it is installed.
"""

from __future__ import annotations

from tacit.native.jit import jit, tl


@jit
def normal(
    out: tl.tensor,
    owners: tl.tensor,
    firsts: tl.tensor,
    starts: tl.tensor,
    counts: tl.tensor,
    key: tl.tensor,
    addresses: tl.tensor,
    std: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """Draw tile t - firsts[o] of tensor o = owners[t], in program t; its draws begin at out[starts[o]]."""
    tile = tl.program_id(0)
    owner = tl.load(owners + tile)
    address = addresses + 3 * owner
    number, lane = tile - tl.load(firsts + owner), tl.arange(0, LANES)
    block = (number * LANES + lane).to(tl.uint32)
    words = _block(key, address, 0, block)
    x0, x1, x2, _, x4, x5, x6, _, x8, x9, x10, _, x12, x13, x14, _ = words
    at, count = number.to(tl.int64) * (8 * LANES) + lane, tl.load(counts + owner)
    out += tl.load(starts + owner)
    _store_pair(out, at, count, _square(x0, x1), x2, std, LANES)
    _store_pair(out, at + 2 * LANES, count, _square(x4, x5), x6, std, LANES)
    _store_pair(out, at + 4 * LANES, count, _square(x8, x9), x10, std, LANES)
    _store_pair(out, at + 6 * LANES, count, _square(x12, x13), x14, std, LANES)
    # One u in 2^31 begins with 31 zeros.  Its pair is drawn again, so that no words stay in registers.
    if tl.min(tl.minimum(tl.minimum(_high(x1), _high(x5)), tl.minimum(_high(x9), _high(x13))), 0) == 0:
        for pair in range(4):
            _store_far(out, at + 2 * LANES * pair, count, key, address, block, pair, std, LANES)


@jit
def _store_pair(
    out: tl.tensor,
    at: tl.tensor,
    count: tl.tensor,
    square: tl.tensor,
    angle: tl.tensor,
    std: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """Store the cosine draw at ``at`` and the sine draw ``LANES`` after it, as in ``gaussian``."""
    kind = out.dtype.element_ty
    r = tl.sqrt(square).to(kind) * std
    a = (angle.to(tl.int32, bitcast=True).to(kind) + 0.5) * 1.4629180792671596e-09  # pi 2^-31
    tl.store(out + at, r * tl.cos(a), mask=at < count)
    tl.store(out + at + LANES, r * tl.sin(a), mask=at + LANES < count)


@jit
def _store_far(
    out: tl.tensor,
    at: tl.tensor,
    count: tl.tensor,
    key: tl.tensor,
    address: tl.tensor,
    block: tl.tensor,
    pair: tl.tensor,
    std: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """Store the draws of one pair of each block, where u has further digits."""
    low, high, angle = _pair(key, address, 0, block, pair)
    far = _high(high) == 0
    value, bits = _radius(low, high), _radius(low, high) * 0.0 + 63.0
    d, left = 1, 1
    while (left > 0) & (d < 256):
        low, high, _ = _pair(key, address, d, block, pair)
        more = value < 18446744073709551616.0  # 2^64
        digit = (low.to(tl.uint64) | (high.to(tl.uint64) << 32)).to(tl.float64)
        value = tl.where(more, value * 18446744073709551616.0 + digit, value)
        bits = tl.where(more, bits + 64.0, bits)
        left = tl.max((far & (value < 18446744073709551616.0)).to(tl.int32), 0)
        d += 1
    square = 1.3862943611198906 * bits - 2.0 * tl.log(value + 0.5)  # 2 ln 2
    _store_pair(out, at, tl.where(far, count, 0), square, angle, std, LANES)


@jit
def _pair(
    key: tl.tensor, address: tl.tensor, digit: tl.tensor, block: tl.tensor, pair: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return three words of a block's pair: both of the radius, and that of the angle."""
    words = _block(key, address, digit, block)
    x0, x1, x2, _, x4, x5, x6, _, x8, x9, x10, _, x12, x13, x14, _ = words
    early, even = pair < 2, pair % 2 == 0
    low = tl.where(early, tl.where(even, x0, x4), tl.where(even, x8, x12))
    high = tl.where(early, tl.where(even, x1, x5), tl.where(even, x9, x13))
    angle = tl.where(early, tl.where(even, x2, x6), tl.where(even, x10, x14))
    return low, high, angle


@jit
def _high(high: tl.tensor) -> tl.tensor:
    """Return the first 31 bits of u."""
    return (high & 0x7FFFFFFF).to(tl.int32)


@jit
def _radius(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Return the first 63 bits of u, as a float64."""
    return (low.to(tl.uint64) | ((high & 0x7FFFFFFF).to(tl.uint64) << 32)).to(tl.float64)


@jit
def _square(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Return -2 ln u, for a u without further digits."""
    u = _radius(low, high) * 1.0842021724855044e-19 + 5.421010862427522e-20  # 2^-63, 2^-64
    return -2.0 * tl.log(u)


@jit
def _block(key: tl.tensor, address: tl.tensor, digit: tl.tensor, block: tl.tensor) -> tuple[tl.tensor, ...]:
    """Return the 16 words of the key stream's block for each of the block numbers in ``block``."""
    zero = block ^ block
    c0, c1, c2, c3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    k0, k1, k2, k3 = _four(zero, key)
    k4, k5, k6, k7 = _four(zero, key + 4)
    n0, n1, n2 = zero + tl.load(address) + digit, zero + tl.load(address + 1), zero + tl.load(address + 2)
    x0, x1, x2, x3, x4, x5, x6, x7 = c0, c1, c2, c3, k0, k1, k2, k3
    x8, x9, x10, x11, x12, x13, x14, x15 = k4, k5, k6, k7, block, n0, n1, n2
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    # fmt: off
    return (
        x0 + c0, x1 + c1, x2 + c2, x3 + c3, x4 + k0, x5 + k1, x6 + k2, x7 + k3,
        x8 + k4, x9 + k5, x10 + k6, x11 + k7, x12 + block, x13 + n0, x14 + n1, x15 + n2,
    )
    # fmt: on


@jit
def _four(zero: tl.tensor, words: tl.tensor) -> tuple[tl.tensor, ...]:
    return (
        zero + tl.load(words),
        zero + tl.load(words + 1),
        zero + tl.load(words + 2),
        zero + tl.load(words + 3),
    )


@jit
def _quarter(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Compute the quarter round of RFC 8439, section 2.1."""
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d
