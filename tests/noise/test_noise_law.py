"""The law of the noise: accepted as it is, rejected with each bug planted.

All keys are fixed, so that every verdict is the same in each run; a p-value below 1e-4 is a rejection.
``make check-noise`` runs the same tests on 1e8 draws.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit import native
from tacit.noise import gaussian as kernel
from tacit.noise.gaussian import DRAWS_PER_TILE, Room, box_muller, gaussian
from tacit.testing import seeded_generator

Floats = NDArray[np.floating]
DRAWS = 1024 * DRAWS_PER_TILE  # 2e6


def load(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


law: Any = load("noise_law")
ENGINES = [
    pytest.param(
        "1", id="kernel", marks=pytest.mark.skipif(kernel.why_not() is not None, reason="no kernel")
    ),
    pytest.param("0", id="numpy"),
]


def draw(count: int, *, step: int = 0, index: int = 0, rank: int = 0, ranks: int = 1) -> Floats:
    generator = seeded_generator(11)
    std = float(np.sqrt(ranks))
    drawn = gaussian(generator, (count,), std=std, step=step, index=index, rank=rank, ranks=ranks)
    return np.asarray(drawn)


@pytest.fixture(scope="module", params=ENGINES)
def draws(request: pytest.FixtureRequest) -> Floats:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TACIT_NATIVE", request.param)
        return draw(DRAWS)


def tiles(draws: Floats) -> Floats:
    return draws.reshape(-1, 2, DRAWS_PER_TILE // 2)


def accepted(p: float) -> bool:
    return p > 1e-4


def test_the_law_is_accepted(draws: Floats) -> None:
    ordered = np.sort(draws)
    p = {
        "scale": law.scale(draws),
        "Kolmogorov-Smirnov": law.kolmogorov_smirnov(ordered),
        "chi-square": law.chi_square(ordered),
        "pairs": law.pairs(tiles(draws)),
        "24 bits": law.radius_bits(tiles(draws), 24),
        "autocorrelation": law.autocorrelation(draws[: 1 << 20]),
    }
    p |= {f"tail {z}": law.tail(draws, z)[2] for z in (2.0, 3.0, 4.0, 4.5, 5.0, 5.5, 6.0)}
    assert {name: value for name, value in p.items() if not accepted(value)} == {}


def by_numpy(words: NDArray[np.uint8]) -> Floats:
    out = np.empty((1, 2, 1024), np.float32)
    room = Room(1, out.dtype)
    room.words[0] = words
    box_muller(room, 1.0, out, lambda row, pair, d: pair << 54)
    return out.reshape(2, 1024)


def by_kernel(words: NDArray[np.uint8]) -> Floats:
    library, out = native.library(), np.empty((2, 1024), np.float32)
    assert library is not None
    level, zeros = library.tacit_noise_level(), bytes(16)
    library.tacit_noise_transform(words.ctypes.data, zeros, zeros, 1.0, out.ctypes.data, level)
    return out


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("zeros", [0, 12, 20, 26, 31, 40])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_deep_tail_is_accepted(engine: str, zeros: int) -> None:
    """Up to 9 standard deviations, by words with leading zeros; test_noise_kernel.py goes on from there."""
    assert accepted(law.deep_tail(by_kernel if engine == "1" else by_numpy, zeros))


def test_streams_of_different_addresses_are_independent() -> None:
    streams = [
        draw(50_000, step=step, index=index, rank=rank, ranks=2)
        for step in range(3)
        for index in range(3)
        for rank in range(2)
    ]
    assert accepted(law.dependence(np.stack(streams)))
    assert accepted(law.autocorrelation(np.concatenate(streams)))


def test_the_ranks_together_add_the_noise_of_one() -> None:
    """Four ranks of N(0, 1/4) each make N(0, 1)."""
    generator = seeded_generator(12)
    parts = [
        gaussian(generator, (200_000,), std=1.0, step=0, rank=rank, ranks=4).numpy() for rank in range(4)
    ]
    assert accepted(law.scale(sum(parts)))
    assert accepted(law.kolmogorov_smirnov(np.sort(sum(parts))))
    for part in parts:
        assert accepted(law.scale(2 * part))
        assert not accepted(law.scale(part))


# --- planted bugs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.01, 0.99, 2 / 3, 3 / 2])
def test_planted_bug_wrong_scale(draws: Floats, factor: float) -> None:
    ordered = np.sort(draws * np.float32(factor))
    assert not accepted(law.scale(ordered))
    assert not accepted(law.kolmogorov_smirnov(ordered))
    assert not accepted(law.chi_square(ordered))


def planted(bits: int, count: int = DRAWS // 2) -> Floats:
    """Box and Muller's transform of a u with this number of bits."""
    random = np.random.default_rng(0)
    u = (random.integers(0, 1 << bits, (count // 1024, 1024)) + 0.5) * 2.0**-bits
    turn = random.random(u.shape) * 2 * np.pi
    r = np.sqrt(-2 * np.log(u))
    return np.stack([r * np.cos(turn), r * np.sin(turn)], axis=1).astype(np.float32)


def test_planted_bug_a_radius_of_few_bits() -> None:
    """24 bits pass every test of the body; the lattice in the tail gives them away."""
    wrong = planted(24)
    assert accepted(law.kolmogorov_smirnov(np.sort(wrong.ravel())))
    assert accepted(law.pairs(wrong))
    assert not accepted(law.radius_bits(wrong, 24))
    assert accepted(law.radius_bits(planted(53), 24))
    assert not accepted(law.radius_bits(planted(20), 20))


def test_planted_bug_a_tail_that_ends() -> None:
    """Noise that is clipped at 5.5 or 6.5 standard deviations fails in the deep tail."""

    def clipped(limit: float) -> Any:
        def transform(words: NDArray[np.uint8]) -> Floats:
            return by_numpy(words).clip(-limit, limit)

        return transform

    assert not accepted(law.deep_tail(clipped(5.5), 20))
    assert not accepted(law.deep_tail(clipped(6.5), 26))
    assert accepted(law.deep_tail(clipped(50.0), 26))


def test_planted_bug_a_block_of_the_counter_used_twice(draws: Floats) -> None:
    part = draws[: 1 << 20].copy()
    part[500_000:510_000] = part[100_000:110_000]
    assert not accepted(law.autocorrelation(part))
    shared_radius = tiles(draws[: 1 << 20]).copy()
    shared_radius[1::2] = -shared_radius[0::2, ::-1]  # another angle and the same radii: only squares see it
    assert not accepted(law.autocorrelation(shared_radius.ravel()))


def test_planted_bug_an_address_without_its_step() -> None:
    streams = np.stack([draw(50_000, step=0, index=index) for index in (0, 1, 1)])
    assert not accepted(law.dependence(streams))
    assert accepted(law.dependence(streams[:2]))
    assert not accepted(law.dependence(np.stack([streams[0], abs(streams[0]) * np.sign(streams[1])])))


def test_planted_bug_cosines_and_sines_of_unlike_radii(draws: Floats) -> None:
    wrong = np.stack([tiles(draws)[:, 0], tiles(draws)[:, 0][:, ::-1]], axis=1)
    wrong[:, 1] = wrong[:, 0] * np.sign(wrong[:, 1])
    assert not accepted(law.pairs(wrong))
