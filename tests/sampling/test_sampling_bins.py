"""Balls in bins: the law of the throws, their addresses, and the event that they are accounted for as."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.stats import chi2

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import Adjacency, BallsInBins, Gaussian, Repeat
from tacit.noise.generator import Generator, Purpose
from tacit.sampling import BallsInBinsSampling, PoissonSampling, Sampling
from tacit.sampling.samplers import Indices
from tacit.testing import seeded_generator

_LEVEL = 1e-6
Throws = NDArray[np.int64]


class SameInEachEpoch(BallsInBinsSampling):
    """Planted: the records are thrown once for the whole run."""

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        return super().indices(generator, step % self.bins, records)


class ByPosition(BallsInBinsSampling):
    """Planted: a permutation is cut into batches, so who joins moves others."""

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        epoch, batch = divmod(step, self.bins)
        order = generator.numpy(purpose=Purpose.BINS, step=epoch).permutation(records)
        return np.sort(np.array_split(order, self.bins)[batch]).astype(np.int64)


class Neighbours(BallsInBinsSampling):
    """Planted: two records share their bits."""

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        half = super().indices(generator, step, (records + 1) // 2)
        both = np.sort(np.concatenate([2 * half, 2 * half + 1]))
        return both[both < records]


class EachStepAlone(BallsInBinsSampling):
    """Planted: Poisson samples, which cost more."""

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        return PoissonSampling(1.0 / self.bins).indices(generator, step, records)


def epochs_of(sampler: BallsInBinsSampling, epochs: int, records: int) -> Iterator[list[Indices]]:
    generator = seeded_generator(7)
    for epoch in range(epochs):
        first = epoch * sampler.bins
        yield [sampler.indices(generator, first + batch, records) for batch in range(sampler.bins)]


def throws(sampler: BallsInBinsSampling, epochs: int, records: int) -> Throws:
    """Return the batch of each record in each epoch, (epochs, records); fail unless each has one."""
    table = np.full((epochs, records), -1)
    for epoch, batches in enumerate(epochs_of(sampler, epochs, records)):
        assert sum(map(len, batches)) == records
        for number, batch in enumerate(batches):
            table[epoch, batch] = number
    assert (table >= 0).all()
    return table


def p_value(first: Throws, second: Throws, bins: int) -> float:
    """Return Pearson's p-value that pairs of throws are uniform and independent, from both tails."""
    counts = np.bincount((first * bins + second).ravel(), minlength=bins * bins)
    mean = counts.sum() / bins**2
    statistic = float(((counts - mean) ** 2 / mean).sum())
    return 2.0 * float(min(chi2.sf(statistic, bins**2 - 1), chi2.cdf(statistic, bins**2 - 1)))


def law(sampler: BallsInBinsSampling) -> dict[str, float]:
    table = throws(sampler, epochs=200, records=1000)
    sizes = np.stack([np.bincount(row, minlength=sampler.bins) for row in table])
    mean = 1000 / sampler.bins
    statistic = float(((sizes - mean) ** 2 / mean).sum())
    freedom = len(table) * (sampler.bins - 1)
    return {
        "successive records": p_value(table[:, :-1], table[:, 1:], sampler.bins),
        "successive epochs": p_value(table[:-1], table[1:], sampler.bins),
        "distant epochs": p_value(table[:100], table[100:], sampler.bins),
        "sizes": 2.0 * float(min(chi2.sf(statistic, freedom), chi2.cdf(statistic, freedom))),
    }


@pytest.mark.parametrize("bins", [2, 3, 7, 50])
def test_throws_are_uniform_and_independent(bins: int) -> None:
    assert all(p > _LEVEL for p in law(BallsInBinsSampling(bins)).values())


@pytest.mark.parametrize(
    ("planted", "seen"),
    [
        (SameInEachEpoch, {"successive epochs", "distant epochs"}),
        (ByPosition, {"sizes"}),
        (Neighbours, {"successive records", "sizes"}),
    ],
)
def test_the_law_catches_planted_bugs(planted: type[BallsInBinsSampling], seen: set[str]) -> None:
    assert seen <= {name for name, p in law(planted(7)).items() if p < _LEVEL}


def test_the_count_catches_poisson_samples() -> None:
    with pytest.raises(AssertionError):
        throws(EachStepAlone(7), epochs=5, records=1000)


def moved(sampler: Sampling) -> int:
    """Count the records that another record moves to other steps."""
    generator, changed = seeded_generator(1), 0
    for step in range(20):
        small, large = (sampler.indices(generator, step, n) for n in (400, 401))
        changed += len(np.setxor1d(small, large[large < 400]))
    return changed


def test_another_record_moves_no_record() -> None:
    assert moved(BallsInBinsSampling(10)) == 0
    assert moved(ByPosition(10)) > 0


def test_words_of_the_cipher_decide() -> None:
    """By hand: AES of the address of epoch 3, and the bin by exact integers."""
    records, bins = 200_001, 1000  # more than are thrown at once
    key, secure = Generator.from_os().secret_state()
    counter = (16 << 40 | 3) << 72  # purpose, epoch; rank, index and block 0
    encryptor = Cipher(algorithms.AES(key), modes.CTR(counter.to_bytes(16, "big"))).encryptor()
    words = np.frombuffer(encryptor.update(bytes(8 * records)), np.uint64).tolist()
    expected = np.array([word * bins >> 64 for word in words])

    generator, sampler = Generator(key, secure=secure), BallsInBinsSampling(bins)
    for batch in (0, 1, 500, 999):
        drawn = sampler.indices(generator, 3 * bins + batch, records)
        assert drawn.tolist() == np.flatnonzero(expected == batch).tolist()
        assert drawn.dtype == np.int64


@pytest.mark.parametrize("bins", [1, 2, 3, 1000, 2**31 - 1, 2**31])
def test_bins_of_extreme_words(bins: int) -> None:
    words = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 2**32, 2**64 - 1]

    class Given(Generator):
        def fill(self, out: memoryview, **address: Any) -> None:
            out.cast("B")[:] = np.array(words, np.uint64).tobytes()

    thrown = BallsInBinsSampling(bins)._throw(Given(bytes(16), secure=False), 0, range(len(words)))
    assert thrown.tolist() == [word * bins >> 64 for word in words]


def test_any_step_can_be_asked_for_alone() -> None:
    sampler, together = BallsInBinsSampling(5), seeded_generator(1)
    in_order = [sampler.indices(together, step, 100).tolist() for step in range(25)]
    alone = [sampler.indices(seeded_generator(1), step, 100).tolist() for step in reversed(range(25))]
    assert in_order == alone[::-1]
    back_and_forth = seeded_generator(1)
    for step in (24, 0, 12, 7, 24, 3, 0):
        assert sampler.indices(back_and_forth, step, 100).tolist() == in_order[step]


def test_an_epoch_is_thrown_once_and_two_are_kept() -> None:
    sampler, filled = BallsInBinsSampling(4), []

    class Counting(Generator):
        def fill(self, out: memoryview, **address: Any) -> None:
            filled.append(address["step"])
            super().fill(out, **address)

    generator = Counting(bytes(16), secure=False)
    for step in (0, 1, 4, 2, 5, 3, 8, 6, 7, 9):  # as with a prefetcher, which is ahead
        sampler.indices(generator, step, 100)
    assert filled == [0, 1, 2]
    assert sum(kept.nbytes for kept in generator._kept.values()) <= 8 * 100


def test_it_names_its_own_event() -> None:
    sampler, noise = BallsInBinsSampling(4), Gaussian(2.0)
    for adjacency in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT):
        assert sampler.event(noise, 12, adjacency) == Repeat(BallsInBins(4, noise), 3)
        assert sampler.event(noise, 13, adjacency) == Repeat(BallsInBins(4, noise), 4)
    assert sampler.paid_together(12) == 4
    assert sampler.expected_batch(10) == 2.5
    with pytest.raises(PrivacyRefusal, match="no proven privacy cost under replace-one"):
        sampler.event(noise, 12, Adjacency.REPLACE_ONE)


@pytest.mark.parametrize(("steps", "fix"), [(3, "Take 4 steps"), (6, "Take 4 or 8 steps")])
def test_a_run_that_ends_within_an_epoch_is_refused(steps: int, fix: str) -> None:
    with pytest.raises(InvalidInput, match=fix):
        BallsInBinsSampling(4).check_steps(steps)


@pytest.mark.parametrize("bins", [0, -1, 2.5, 2**31 + 1, True])
def test_bins_are_checked(bins: int) -> None:
    with pytest.raises(InvalidInput, match="bins must be an integer"):
        BallsInBinsSampling(bins)


def test_no_records_and_it_describes_itself() -> None:
    assert len(BallsInBinsSampling(3).indices(Generator.from_os(), 4, 0)) == 0
    words = "each record once an epoch, in one of its 50 batches at random, anew in each epoch"
    assert BallsInBinsSampling(50).describe() == words
    assert math.isclose(BallsInBinsSampling(3).expected_batch(10), 10 / 3)
