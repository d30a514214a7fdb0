"""The native noise kernel against its twin in NumPy, and both against multi-precision arithmetic."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from tacit import native
from tacit.noise import gaussian as kernel
from tacit.noise.gaussian import (
    BLOCKS_PER_TILE,
    BYTES_PER_TILE,
    DRAWS_PER_TILE,
    Digits,
    Room,
    StepNoise,
    gaussian,
    in_numpy,
    in_torch,
)
from tacit.noise.generator import Generator, Purpose, key_stream
from tacit.testing import seeded_generator

LIBRARY: Any = native.library()
LEVELS = range(1, LIBRARY.tacit_noise_level() + 1) if LIBRARY is not None else []
needs_kernel = pytest.mark.skipif(len(LEVELS) == 0, reason=f"no noise kernel: {native.why_not()}")
Transform = Callable[[NDArray[np.uint8], float], NDArray[np.floating]]


# The tile of which words are planted: its further digits come from this address.
TILE = 5
ADDRESS: dict[str, Any] = {"purpose": Purpose.NOISE, "step": 3, "index": 1, "rank": 2}
KEY = bytes(range(16))
COUNTER = Generator(KEY, secure=False).counter(**ADDRESS, first_block=TILE * BLOCKS_PER_TILE)


@cache
def digits_of_tile(d: int) -> NDArray[np.uint64]:
    """Digit d of each of the tile's radii, by OpenSSL."""
    words = np.empty(1024, "<u8")
    Generator(KEY, secure=False).fill(words.data, **ADDRESS, first_block=512 * TILE, digit=d)
    return words


def digit(row: int, pair: int, d: int) -> int:
    return int(digits_of_tile(d)[pair])


def without_kernel(transform: Callable[..., None], dtype: type[np.floating]) -> Transform:
    def of_a_tile(words: NDArray[np.uint8], std: float, digits: Digits = digit) -> NDArray[np.floating]:
        out = np.empty((1, 2, 1024), dtype)
        room = Room(1, out.dtype)
        room.words[0] = words
        transform(room, std, out, digits)
        return out.reshape(2, 1024)

    return of_a_tile


def native_at(level: int) -> Transform:
    def transform(words: NDArray[np.uint8], std: float) -> NDArray[np.floating]:
        out = np.empty((2, 1024), np.float32)
        LIBRARY.tacit_noise_transform(words.ctypes.data, KEY, COUNTER, std, out.ctypes.data, level)
        return out

    return transform


TRANSFORMS = {
    "numpy": without_kernel(in_numpy, np.float32),
    "torch": without_kernel(in_torch, np.float32),
    "double numpy": without_kernel(in_numpy, np.float64),
    "double torch": without_kernel(in_torch, np.float64),
} | {f"level {n}": native_at(n) for n in LEVELS}
# u around sqrt(1/2), where the kernel changes its formula, 1 minus that, 1/2, and at its ends; with and
# without the first bit, which is not used.
EDGES = [int(2**63 * u) + i for u in (1 - 0.5**0.5, 0.5**0.5, 0.5) for i in (-(1 << 40), -1, 0, 1, 1 << 40)]
EDGES += [0, 1, 2, 0xFFFFFFFF, 0x100000000, (1 << 63) - 1, (1 << 63) - 2, (1 << 63) - (1 << 32)]
EDGES += [edge - (1 << 63) for edge in EDGES]
radii = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from(EDGES),
    st.integers(0, 62).map(lambda bits: 1 << bits),
)
angles = st.integers(-(1 << 31), (1 << 31) - 1)


def tile(radius: list[int], angle: list[int]) -> NDArray[np.uint8]:
    """The bytes of a tile that begins with these words; the others are zero."""
    words = np.zeros(BYTES_PER_TILE, np.uint8)
    words[: 8 * len(radius)] = np.array(radius, np.int64).view(np.uint8)
    words[8 * 1024 : 8 * 1024 + 4 * len(angle)] = np.array(angle, np.int64).astype(np.int32).view(np.uint8)
    return words


def exact(radius: int, angle: int, more: Callable[[int], int]) -> tuple[float, float]:
    """The definition in 50 digits; ``more(d)`` is digit d of the radius."""
    value, bits = radius % 2**63, 63
    if value < 2**32:
        for d in range(1, 256):
            value, bits = value * 2**64 + more(d), bits + 64
            if value >= 2**64:
                break
    with mpmath.workdps(50):
        u = (mpmath.mpf(value) + 0.5) / mpmath.mpf(2) ** bits
        r, turn = mpmath.sqrt(-2 * mpmath.log(u)), 2 * mpmath.pi * (mpmath.mpf(angle) + 0.5) / 2**32
        return float(r * mpmath.cos(turn)), float(r * mpmath.sin(turn))


def tolerance(name: str, radius: NDArray[np.floating]) -> NDArray[np.floating]:
    """Rounding of the result; and that of u near 1 in double precision, which moves -2 ln u by 2e-16."""
    relative = (1e-14 if "double" in name else 4e-7) * radius
    return relative + (0 if name.startswith("level") else 3e-16 / np.maximum(radius, 1e-8))


@pytest.mark.untraced
@pytest.mark.parametrize("name", TRANSFORMS)
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(radii, angles), min_size=1, max_size=40), st.sampled_from([1.0, 1e-20, 7e20]))
def test_draws_are_those_of_the_definition(name: str, words: list[tuple[int, int]], std: float) -> None:
    got = TRANSFORMS[name](tile([w[0] for w in words], [w[1] for w in words]), std)[:, : len(words)] / std
    want = np.array([exact(*word, partial(digit, 0, pair)) for pair, word in enumerate(words)]).T
    assert np.all(abs(got - want) <= tolerance(name, np.hypot(*want)))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_radii_at_the_edges(name: str) -> None:
    got = TRANSFORMS[name](tile(EDGES, []), 1.0)[0, : len(EDGES)]
    want = np.array([exact(edge, 0, partial(digit, 0, pair))[0] for pair, edge in enumerate(EDGES)])
    assert np.all(abs(got - want) <= tolerance(name, want))
    assert got.max() > 9.42  # where the first 63 bits end
    assert got.min() < 2e-8  # 2^-31.5; from a u of 24 bits the smallest would be 0 or 3e-4


@pytest.mark.parametrize(
    "angle", [0, -1, (1 << 31) - 1, -(1 << 31), 1 << 29, (1 << 29) - 1, 3 << 29, -(1 << 29)]
)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_angles_at_the_quarters(name: str, angle: int) -> None:
    assert TRANSFORMS[name](tile([], [angle]), 1.0)[:, 0] == pytest.approx(
        exact(0, angle, partial(digit, 0, 0)), abs=3e-6
    )


@pytest.mark.parametrize("angle", [-2, -1, 0, 1])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_smallest_angles_are_half_a_unit_from_zero(name: str, angle: int) -> None:
    """No draw is exactly zero, and the law is symmetric."""
    sine = TRANSFORMS[name](tile([], [angle]), 1.0)[1, 0]
    assert sine == pytest.approx(exact(0, angle, partial(digit, 0, 0))[1], rel=1e-6)


def far_radii(name: str, planted: list[list[int]]) -> NDArray[np.floating]:
    """The radii whose first 63 bits and further digits are given; digits that are left out are zeros."""
    if name.startswith("level"):
        full = np.zeros((len(planted), 256), np.uint64)
        for row, of_one in zip(full, planted, strict=True):
            row[: len(of_one)] = of_one
        level = int(name.split()[1])
        return np.array([LIBRARY.tacit_noise_far_radius(row.ctypes.data, level) for row in full])
    transform: Any = TRANSFORMS[name]

    def digits(row: int, pair: int, d: int) -> int:
        if pair >= len(planted):
            return 1
        return planted[pair][d] if d < len(planted[pair]) else 0

    return np.asarray(transform(tile([of_one[0] for of_one in planted], []), 1.0, digits)[0, : len(planted)])


DIGITS = [0, 1, 2**32 - 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF]
PLANTED = [
    [0],
    [1],
    *([first, d] for first in (0, 1, 3, 2**31, 2**32 - 1) for d in DIGITS),
    *([0, d, e] for d in DIGITS for e in DIGITS),
    *([0] * zeros + [d, e] for zeros in (3, 4, 17, 254) for d in DIGITS for e in DIGITS),
]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_tail_goes_on_to_150_standard_deviations(name: str) -> None:
    """9.42 was the end: a release beyond it, in units of the noise, could come only with another record."""
    got = far_radii(name, PLANTED)
    full = [of_one + [0] * (256 - len(of_one)) for of_one in PLANTED]
    want = np.array([exact(of_one[0], 0, of_one.__getitem__)[0] for of_one in full])
    assert np.all(abs(got - want) <= tolerance(name, want))
    assert want.max() == pytest.approx(150.7085, abs=1e-4)


@pytest.mark.parametrize("zeros", [31, 63, 64, 90, 127, 128, 400])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_law_of_the_far_tail(name: str, zeros: int) -> None:
    """Given u < 2^-zeros, r^2 / 2 - zeros ln 2 is exponential.  The words are fixed."""
    random = Random(zeros)
    planted = []
    for _ in range(1000):
        u = random.getrandbits(63 + 64 * 8 - zeros)
        planted.append([u >> 512, *(u >> 64 * d & 2**64 - 1 for d in reversed(range(8)))])
    radii = far_radii(name, planted).astype(np.float64)
    assert stats.kstest(radii**2 / 2 - zeros * np.log(2), "expon").pvalue > 1e-4


@pytest.mark.parametrize("name", TRANSFORMS)
def test_releases_beyond_9_42_are_as_likely_as_stated(name: str) -> None:
    """At sigma 0.1 and delta 1e-6 epsilon is 96.7.  A record moves a draw by 10, so beyond 9.42 in most runs.

    Without the record such a draw is to be rare, but not impossible: its probability is sf(9.42).  It is
    estimated on draws with u < 2^-60, of which about one in 380 is so large.
    """
    random = np.random.default_rng(1)
    first = random.integers(0, 8, 60 * 1024)  # 63 bits, of which 60 are zeros
    angle = random.integers(-(1 << 31), 1 << 31, len(first))
    beyond = 0
    for start in range(0, len(first), 1024):
        part = slice(start, start + 1024)
        beyond += int((TRANSFORMS[name](tile(list(first[part]), list(angle[part])), 1.0)[0] > 9.42).sum())
    found = beyond / len(first) * 2.0**-60
    assert found == pytest.approx(float(stats.norm.sf(9.42)), rel=0.25)


# An address at which the first 31 bits of a radius are zeros, found by a search of 2e9 radii.
RARE = {"step": 88_447, "index": 5}
RARE_TILE, RARE_PAIR, RARE_RADIUS = 44, 706, 0x33BBA84A


@pytest.mark.parametrize("engine", ["kernel", "numpy", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_address_at_which_further_digits_are_drawn(
    engine: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_NATIVE", "1" if engine == "kernel" else "0")
    monkeypatch.setattr("tacit.noise.gaussian.by_torch", lambda: engine == "torch")
    generator = seeded_generator(60)
    words = np.empty(BYTES_PER_TILE, np.uint8)
    address: dict[str, Any] = {"purpose": Purpose.NOISE, **RARE}
    generator.fill(words.data, **address, first_block=RARE_TILE * BLOCKS_PER_TILE)
    assert int(words.view("<i8")[RARE_PAIR]) % 2**63 == RARE_RADIUS
    angle = int(words[8192:].view("<i4")[RARE_PAIR])
    further = np.empty(1024, "<u8")
    generator.fill(further.data, **address, first_block=512 * RARE_TILE, digit=1)
    want = exact(RARE_RADIUS, angle, lambda d: int(further[RARE_PAIR]))

    noise, at = StepNoise(generator, std=1.0, step=RARE["step"]), RARE_TILE * DRAWS_PER_TILE + RARE_PAIR
    noise.fill(whole := torch.empty(64 * DRAWS_PER_TILE, dtype=dtype), RARE["index"])
    precise = 1e-12 if dtype == torch.float64 else 1e-6  # in double precision digit 1 changes the 11th digit
    assert (float(whole[at]), float(whole[at + 1024])) == pytest.approx(want, rel=precise)
    for first in (at, RARE_TILE * DRAWS_PER_TILE, 40 * DRAWS_PER_TILE + 77):
        noise.fill_part(part := torch.empty(20_000, dtype=dtype), RARE["index"], first)
        assert torch.equal(part, whole[first : first + 20_000])


@needs_kernel
@settings(max_examples=20, deadline=None)
@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**40 - 1), st.integers(0, 2**24 - 1))
def test_words_are_those_of_the_generator(key: bytes, step: int, index: int) -> None:
    """OpenSSL's AES is the oracle."""
    generator = Generator(key, secure=False)
    want = bytearray(3 * BYTES_PER_TILE)
    generator.fill(memoryview(want), purpose=Purpose.NOISE, step=step, index=index, rank=7)
    counter = generator.counter(purpose=Purpose.NOISE, step=step, index=index, rank=7)
    for level in LEVELS:
        got = ctypes.create_string_buffer(len(want))
        LIBRARY.tacit_noise_words(key, counter, 3, got, level)
        assert got.raw == want


@needs_kernel
@pytest.mark.parametrize("count", [0, 1, 2, 1023, 1024, 1025, 2047, 2048, 2049, 70_001])
def test_kernel_and_numpy_give_the_same_draws(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = seeded_generator(8)
    for level in LEVELS:
        monkeypatch.setattr(LIBRARY, "tacit_noise_level", lambda level=level: level)
        ours = gaussian(generator, (count,), std=3.0, step=1, index=2)
        with monkeypatch.context() as without:
            without.setenv("TACIT_NATIVE", "0")
            numpy = gaussian(generator, (count,), std=3.0, step=1, index=2)
        double = gaussian(generator, (count,), std=3.0, step=1, index=2, dtype=torch.float64)
        # NumPy's angle is rounded to 24 bits: at most 4e-7 of a radius that is hardly ever above 5.
        assert torch.allclose(ours, numpy, rtol=0, atol=3.0 * 3e-6)
        assert torch.allclose(ours.double(), double, rtol=0, atol=3.0 * 1e-6)


@needs_kernel
def test_all_processors_give_the_same_bits() -> None:
    words = np.random.default_rng(0).integers(0, 256, (200, BYTES_PER_TILE), np.uint8)
    words[:, :1024].view(np.int64)[...] >>= 40  # small u as well, and u near 1
    results = [[native_at(level)(one, 1.5) for one in words] for level in LEVELS]
    assert all(np.array_equal(results[0], other) for other in results)


@needs_kernel
def test_nothing_is_written_past_the_end() -> None:
    found = kernel.loaded()
    assert found is not None
    for count in (1, 1025, 2049, 5000):
        room = torch.full((count + 64,), 77.0)
        found.fill(room[:count], bytes(16), bytes(16), 1.0, 2)
        assert torch.all(room[count:] == 77.0)


class Faulty:
    """A library whose processor has no kernel, or whose kernel is wrong in one bit or one draw."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def tacit_noise_level(self) -> int:
        return 0 if self.fault == "lacks AES" else 1

    def tacit_noise_words(self, key: bytes, counter: bytes, tiles: int, out: int, level: int) -> None:
        words = bytearray(BYTES_PER_TILE)
        key_stream(key, counter, memoryview(words))
        words[{"FIPS 197": 0, "key stream": -1}.get(self.fault, 0)] ^= self.fault != "draws"
        ctypes.memmove(out, bytes(words), len(words))

    def tacit_noise_transform(
        self, words: int, key: bytes, counter: bytes, std: float, out: int, level: int
    ) -> None:
        given: Any = TRANSFORMS["numpy"]
        planted = np.array((ctypes.c_uint8 * BYTES_PER_TILE).from_address(words))
        made = given(planted, std, partial(kernel._digit, key, counter))
        made[1, -1] += 1e-3
        ctypes.memmove(out, made.ctypes.data, made.nbytes)


@pytest.mark.parametrize("fault", ["lacks AES", "FIPS 197", "key stream", "draws"])
def test_planted_bug_a_faulty_kernel_is_not_used(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator.from_os()
    with monkeypatch.context() as without:
        without.setenv("TACIT_NATIVE", "0")
        want = gaussian(generator, (100,), std=1.0, step=0)
    monkeypatch.setattr(native, "library", lambda: Faulty(fault))
    assert fault in str(kernel.why_not())
    assert kernel.loaded() is None
    assert torch.equal(gaussian(generator, (100,), std=1.0, step=0), want)


def test_draws_of_an_address_begin_alike_whatever_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator.from_os()
    for switch in ("0", "1"):
        monkeypatch.setenv("TACIT_NATIVE", switch)
        long = gaussian(generator, (200_001,), std=1.0, step=0)
        for count in (1, 1500, 2048, 2049, 131_072, 131_073, 200_000):
            assert torch.equal(gaussian(generator, (count,), std=1.0, step=0), long[:count])


@pytest.mark.parametrize(("kernels", "by_torch"), [("1", False), ("0", False), ("0", True)])
def test_threads_do_not_matter(kernels: str, by_torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_NATIVE", kernels)
    monkeypatch.setattr("tacit.noise.gaussian.by_torch", lambda: by_torch)
    generator, threads = Generator.from_os(), torch.get_num_threads()
    try:
        got = []
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            got.append(gaussian(generator, (4_000_003,), std=1.0, step=0))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(got[0], got[1])
    assert torch.equal(got[0], got[2])


def test_double_precision_is_random_to_the_last_bit() -> None:
    """A float32 that was widened would leave the last bits of what it is added to bare."""
    draws = gaussian(seeded_generator(0), (DRAWS_PER_TILE,), std=1.0, step=0, dtype=torch.float64)
    last = np.unique(draws.numpy().view(np.int64) & 0xFFFF)
    assert len(last) > 1900  # of 65,536; 2,048 draws leave about 2,016 different ones
    assert not (draws.float().double() == draws).any()


def test_a_tile_uses_its_blocks_up() -> None:
    assert BLOCKS_PER_TILE * 16 == BYTES_PER_TILE == DRAWS_PER_TILE // 2 * (8 + 4)
