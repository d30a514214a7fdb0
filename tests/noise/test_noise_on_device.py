"""Noise drawn on a device: the cipher against OpenSSL's, draws against NumPy, addresses, the law.

The kernel runs on a CUDA device where there is one, else in Triton's interpreter where Triton is installed
(tests/native/test_native_interpreter.py), else not at all; what is around it, everywhere.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from tacit.errors import InvalidInput
from tacit.noise import on_device
from tacit.noise.generator import Generator, Purpose
from tacit.noise.on_device import DeviceNoise
from tacit.testing import seeded_generator

CUDA = torch.cuda.is_available()
INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = INSTALLED and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if CUDA and not INTERPRETED else "cpu"
MANY = 10**8 if DEVICE == "cuda" else 10**5
needs_a_device = [
    pytest.mark.skipif(not (CUDA or INTERPRETED), reason="no CUDA device; not in the interpreter"),
    *([pytest.mark.cuda] if CUDA else []),
]


def device(test: Any) -> Any:
    for mark in needs_a_device:
        test = mark(test)
    return test


def parameters() -> dict[str, Tensor]:
    return {
        "weight": torch.zeros(70, 90, device=DEVICE),
        "half": torch.zeros(33, dtype=torch.bfloat16, device=DEVICE),
        "none": torch.zeros(0, 3, device=DEVICE),
        "double": torch.zeros(50, 41, dtype=torch.float64, device=DEVICE),
        "scalar": torch.zeros((), device=DEVICE),
    }


def draw(generator: Generator, like: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    """The noise of all of them, piece by piece."""
    noise, found = DeviceNoise(generator, like, **options), dict[str, Tensor]()
    for name in like:
        if name not in found:
            found |= noise.piece(name)
    return {name: found[name] for name in like}


def words_of(key: bytes, address: bytes, first: int, tiles: int) -> NDArray[np.uint64]:
    """The words of some tiles by OpenSSL's ChaCha20: (tile, pair, word, lane)."""
    L = on_device.LANES
    cipher = Cipher(algorithms.ChaCha20(key, (first * L).to_bytes(4, "little") + address), mode=None)
    stream = np.frombuffer(cipher.encryptor().update(bytes(64 * L * tiles)), "<u4")
    return stream.reshape(tiles, L, 4, 4).transpose(0, 2, 3, 1).astype(np.uint64)


def by_openssl(key: bytes, address: bytes, first: int, tiles: int, std: float) -> NDArray[np.float64]:
    """The draws of some tiles, by OpenSSL's ChaCha20 and NumPy."""
    words = words_of(key, address, first, tiles)
    radius = (words[:, :, 0] | words[:, :, 1] << np.uint64(32)) & np.uint64(2**63 - 1)
    u = (radius.astype(np.float64) + 0.5) / 2.0**63
    square = -2.0 * np.log(u)
    for at in map(tuple, np.argwhere(radius < 2**32).tolist()):
        value, bits, d = int(radius[at]), 63, 0
        while value < 2**64 and d < 255:
            d, bits = d + 1, bits + 64
            tile, pair, lane = at
            low, high = map(int, words_of(key, bytes([d]) + address[1:], first, tiles)[tile, pair, :2, lane])
            value = value * 2**64 + low + high * 2**32
        square[at] = 2.0 * ((bits + 1) * math.log(2.0) - math.log(2 * value + 1))
    a = 2 * math.pi * (words[:, :, 2].astype(np.uint32).view(np.int32) + 0.5) / 2.0**32
    r = std * np.sqrt(square)
    return np.stack([r * np.cos(a), r * np.sin(a)], 2).reshape(-1)


def expected(generator: Generator, index: int, count: int, *, std: float, step: int, rank: int) -> Tensor:
    """The draws from the text of the module alone."""
    key = np.empty(32, np.uint8)
    generator.fill(key.data, purpose=Purpose.DEVICE_KEY, step=0)
    address = generator.counter(purpose=Purpose.NOISE, step=step, index=index, rank=rank)[:12]
    tiles = math.ceil(count / (8 * on_device.LANES))
    return torch.from_numpy(by_openssl(key.tobytes(), address, 0, tiles, std)[:count])


class Processor:
    """Does what the kernel is to do, tile by tile, where there is no Triton."""

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        return partial(self.launch, grid)

    def launch(self, grid: tuple[int], memory: Tensor, *arguments: Any, **options: int) -> None:
        assert options["LANES"] == on_device.LANES
        *tables, std = arguments
        owners, firsts, starts, counts, key, addresses = (t.numpy() for t in tables)
        assert grid == (len(owners),)
        for tile, o in enumerate(owners):
            number, size = int(tile - firsts[o]), 8 * on_device.LANES
            address = addresses[3 * o : 3 * o + 3].astype("<u4").tobytes()
            draws = by_openssl(key.astype("<u4").tobytes(), address, number, 1, std)
            wanted = draws[: max(0, int(counts[o]) - number * size)]
            at = int(starts[o]) + number * size
            memory[at : at + len(wanted)] = torch.from_numpy(wanted)


@pytest.mark.parametrize(("step", "rank", "ranks"), [(0, 0, 1), (7, 1, 4), ((1 << 40) - 1, 0, 1)])
def test_each_tensor_gets_the_draws_of_its_own_address(
    step: int, rank: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is around the kernel: key, addresses, tables, scale."""
    monkeypatch.setattr("tacit.noise.triton_normal.normal", Processor())
    generator, like = Generator.from_os(), {name: t.cpu() for name, t in parameters().items()}
    found = draw(generator, like, std=3.0, step=step, rank=rank, ranks=ranks)
    assert list(found) == list(like)
    for index, (name, tensor) in enumerate(like.items()):
        wide = tensor.dtype == torch.float64
        there = expected(generator, index, tensor.numel(), std=3.0 / math.sqrt(ranks), step=step, rank=rank)
        assert found[name].dtype == (torch.float64 if wide else torch.float32)
        torch.testing.assert_close(
            found[name].double(), there.view(tensor.shape), rtol=1e-12 if wide else 1e-6, atol=1e-15
        )
    with pytest.raises(InvalidInput, match="std"):
        draw(generator, like, std=-1.0, step=0)
    for std in (1.0, 1.0 + 2.0**-40, 0.1, 1e-30):
        assert std <= on_device._rounded_up(std) <= std * (1 + 2.0**-22)


@pytest.fixture
def pieces_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Let small tensors share pieces of up to this number of draws."""

    def set_to(together: int) -> None:
        on_device._pieces.cache_clear()
        monkeypatch.setattr(on_device, "TOGETHER", together)

    yield set_to
    on_device._pieces.cache_clear()


def by_name(
    together: int, order: list[str], like: dict[str, Tensor], generator: Generator
) -> dict[str, Tensor]:
    """The noise of a step whose buffers are asked for in this order; each piece is drawn once and bounded."""
    noise, found = DeviceNoise(generator, like, std=2.0, step=5), dict[str, Tensor]()
    for name in order:
        if name not in found:
            piece = noise.piece(name)
            assert name in piece
            assert not piece.keys() & found.keys()
            assert sum(t.numel() for t in piece.values()) <= max(
                together, *(t.numel() for t in like.values())
            )
            found |= piece
    assert found.keys() == like.keys()
    return found


def check_pieces(pieces_of: Callable[[int], None]) -> None:
    generator, like = Generator.from_os(), {
        "more": torch.zeros(4097, device=DEVICE), **parameters(), "large": torch.zeros(90, 80, device=DEVICE)
    }  # fmt: skip
    pieces_of(10**6)
    whole = by_name(10**6, list(like), like, generator)
    for together in (0, 40, 5000):
        pieces_of(together)
        for order in (list(like), list(like)[::-1], sorted(like)):
            found = by_name(together, order, like, generator)
            assert all(torch.equal(found[name], whole[name]) for name in like)


def test_what_is_drawn_does_not_depend_on_the_pieces(
    pieces_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.noise.triton_normal.normal", Processor())
    monkeypatch.setattr(f"{__name__}.DEVICE", "cpu")
    check_pieces(pieces_of)


@device
def test_what_the_kernel_draws_does_not_depend_on_the_pieces(pieces_of: Callable[[int], None]) -> None:
    check_pieces(pieces_of)


def test_large_tensors_have_a_piece_each_and_small_ones_share() -> None:
    sizes = {"a": 1 << 20, "b": 3, "c": 1 << 20, "d": 1 << 19, "e": 5, "f": 1 << 19}
    like = {name: torch.empty(size, device="meta") for name, size in sizes.items()}
    shapes = tuple((name, t.shape, t.dtype) for name, t in like.items())
    pieces = on_device._pieces(shapes, torch.device("cpu"))
    assert {piece.names for piece in pieces.values()} == {("b", "e", "d"), ("f",), ("a",), ("c",)}


@device
@pytest.mark.parametrize(("step", "rank", "ranks"), [(0, 0, 1), (7, 1, 4), ((1 << 40) - 1, 0, 1)])
def test_draws_are_those_of_the_text(step: int, rank: int, ranks: int) -> None:
    generator, like = Generator.from_os(), parameters()
    found = draw(generator, like, std=3.0, step=step, rank=rank, ranks=ranks)
    assert list(found) == list(like)
    for index, (name, tensor) in enumerate(like.items()):
        here, std = found[name], 3.0 / math.sqrt(ranks)
        assert here.shape == tensor.shape
        assert here.dtype == (torch.float64 if name == "double" else torch.float32)
        there = expected(generator, index, tensor.numel(), std=std, step=step, rank=rank)
        # 32-bit angles make a cosine near 0 absolutely, not relatively, right
        assert (here.flatten().cpu().double() - there).abs().max() < 4e-6 if len(there) else True


@device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_address_at_which_further_digits_are_drawn(dtype: torch.dtype) -> None:
    """The first 31 bits of a radius are zeros there; a search of 5e7 radii found it."""
    generator, step, at = seeded_generator(60), 8723, 21 * on_device.DRAWS_PER_TILE + 104
    like = {"a": torch.zeros(22 * on_device.DRAWS_PER_TILE, dtype=dtype, device=DEVICE)}
    found = draw(generator, like, std=1.0, step=step)["a"].cpu()
    there = expected(generator, 0, len(found), std=1.0, step=step, rank=0)
    assert float((there[at] ** 2 + there[at + on_device.LANES] ** 2).sqrt()) > 6.5
    assert (found.double() - there).abs().max() < 4e-6
    assert float(found[at]) == pytest.approx(float(there[at]), rel=1e-6)


@pytest.mark.skipif(not INTERPRETED, reason="words are planted in the interpreter alone")
@pytest.mark.parametrize("zeros", [1, 2, 20, 254, 255, 256])
def test_the_tail_goes_on_to_150_standard_deviations(zeros: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first words of each radius are planted: zeros, and as many digits of zeros."""
    from tacit.noise import triton_normal

    def planted(key: Any, address: Any, digit: Any, block: Any) -> tuple[Any, ...]:
        value = 0 if int(digit) < zeros else 1
        x = block * 0
        return tuple(x + value if at % 4 < 2 else x for at in range(16))

    monkeypatch.setattr(triton_normal, "_block", planted)
    like = {"a": torch.zeros(on_device.DRAWS_PER_TILE, dtype=torch.float64, device=DEVICE)}
    found = draw(seeded_generator(1), like, std=1.0, step=0)["a"].view(4, 2, -1)
    digits = ([0] * zeros + [2**32 + 1] * 2)[:256]
    value, bits = sum(digit << 64 * k for k, digit in enumerate(reversed(digits))), 64 * len(digits) - 1
    want = math.sqrt(2.0 * ((bits + 1) * math.log(2.0) - math.log(2 * value + 1)))
    assert torch.allclose(found[:, 0], torch.tensor(want, dtype=torch.float64), rtol=1e-12)


@device
def test_the_same_address_gives_the_same_bits_and_others_others() -> None:
    generator, like = Generator.from_os(), {"a": torch.zeros(5000, device=DEVICE)}
    first = draw(generator, like, std=1.0, step=3)["a"]
    assert torch.equal(first, draw(generator, like, std=1.0, step=3)["a"])
    shorter = draw(generator, {"a": torch.zeros(3001, device=DEVICE)}, std=1.0, step=3)["a"]
    assert torch.equal(first[:3001], shorter)
    others = [
        draw(generator, like, std=1.0, step=4)["a"],
        draw(generator, like, std=1.0, step=3, rank=1, ranks=2)["a"] * math.sqrt(2),
        draw(generator, like, std=1.0, step=3, purpose=Purpose.AUDIT)["a"],
        draw(Generator.from_os(), like, std=1.0, step=3)["a"],
        draw(generator, {"z": like["a"], **like}, std=1.0, step=3)["a"],
    ]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([first, other]))[0, 1])) < 6 / math.sqrt(5000)


@device
def test_the_scale_is_never_below_what_was_asked_for() -> None:
    generator, like = Generator.from_os(), {"a": torch.zeros(4000, dtype=torch.float64, device=DEVICE)}
    std = 1.0 + 2.0**-40  # between two float32
    unit = draw(generator, like, std=1.0, step=0)["a"]
    scaled = draw(generator, like, std=std, step=0)["a"]
    assert bool((scaled.abs() >= unit.abs() * std * (1 - 1e-15)).all())
    assert not draw(generator, like, std=0.0, step=0)["a"].any()


@device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_law(dtype: torch.dtype) -> None:
    """Kolmogorov and Smirnov on a part; moments, tails and neighbours on all, at 1e-9 a test."""
    draws = draw(Generator.from_os(), {"a": torch.zeros(MANY, dtype=dtype, device=DEVICE)}, std=1.0, step=0)
    x = draws["a"].double()
    assert stats.kstest(x[: 10**6].cpu().numpy(), "norm").pvalue > 1e-9
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float(x.pow(power).mean()) - mean) < 6.2 * math.sqrt(variance / MANY)
    for sigmas in (3, 4, 5, 6):
        probability = 2 * float(stats.norm.sf(sigmas))
        beyond = int((x.abs() > sigmas).sum())
        assert stats.binomtest(beyond, MANY, probability).pvalue > 1e-9
    L = on_device.LANES
    for lag in (1, L, 2 * L, 8 * L):  # neighbours, sine and cosine, two pairs of a block, two tiles
        assert abs(float((x[lag:] * x[:-lag]).mean())) < 6.2 / math.sqrt(MANY - lag)
        assert abs(float((x[lag:].square() * x[:-lag].square()).mean()) - 1) < 6.2 * math.sqrt(8 / MANY)


@device
def test_wrong_arguments_are_refused() -> None:
    generator, like = Generator.from_os(), parameters()
    with pytest.raises(InvalidInput, match="std"):
        draw(generator, like, std=-1.0, step=0)
    with pytest.raises(InvalidInput, match="rank"):
        draw(generator, like, std=1.0, step=0, rank=2, ranks=2)
    with pytest.raises(InvalidInput, match="step"):
        draw(generator, like, std=1.0, step=1 << 40)


def test_it_is_for_cuda_devices_alone() -> None:
    assert not on_device.draws({"a": torch.zeros(3)})
    assert not on_device.draws({"a": torch.zeros(3), "b": torch.zeros(3, device="meta")})
