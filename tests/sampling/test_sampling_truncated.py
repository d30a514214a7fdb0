"""Truncated Poisson samples have the law that their event is priced for, whatever the number of records."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from tacit.accounting.account import price_of
from tacit.accounting.pld import TruncatedPrice
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import Adjacency, Gaussian, Repeat, TruncatedPoissonSampled
from tacit.noise.generator import Generator, Purpose
from tacit.sampling import PoissonSampling, Sampling, TruncatedPoissonSampling
from tacit.sampling.samplers import Indices
from tacit.testing import seeded_generator

Law = dict[tuple[int, ...], float]
_STEPS = 20_000
_LEVEL = 1e-6


class FirstByPosition(TruncatedPoissonSampling):
    """Planted: a long sample loses its end."""

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        whole = PoissonSampling(self.sampling_rate).indices(generator, step, self.records)
        return whole[: self.largest_batch]


class NotCut(TruncatedPoissonSampling):
    """Planted: the truncation is forgotten."""

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        return PoissonSampling(self.sampling_rate).indices(generator, step, self.records)


class BySameWords(TruncatedPoissonSampling):
    """Planted: what is kept is decided by the bits that decided who is sampled, or by their last ones."""

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        whole = PoissonSampling(self.sampling_rate).indices(generator, step, self.records)
        words = generator.words(self.records, purpose=Purpose.SAMPLING, step=step)[whole]
        return np.sort(whole[np.argsort(words, kind="stable")[: self.largest_batch]])


class WithoutEmptySlots(TruncatedPoissonSampling):
    """Planted: the draw is among the records that there are, not among the public number."""

    def indices(self, generator: Generator, step: int, records: int) -> Indices:
        fewer = TruncatedPoissonSampling(self.sampling_rate, records, min(records, self.largest_batch))
        return fewer.indices(generator, step, records)


def enumerated(rate: float, slots: int, largest: int, records: int) -> Law:
    """The probability of every batch, from every sampled set and every way to cut it."""
    law: Law = {}
    for size in range(slots + 1):
        for sampled in combinations(range(slots), size):
            ways = list(combinations(sampled, min(size, largest)))
            for kept in ways:
                batch = tuple(slot for slot in kept if slot < records)
                law[batch] = law.get(batch, 0.0) + rate**size * (1 - rate) ** (slots - size) / len(ways)
    return law


def p_value(sampler: Sampling, law: Law, records: int) -> float:
    """Return the p-value of Pearson's statistic over all batches; 0 if an impossible one is drawn."""
    generator = seeded_generator(7)
    drawn = Counter(tuple(sampler.indices(generator, step, records).tolist()) for step in range(_STEPS))
    if not set(drawn) <= set(law):
        return 0.0
    expected = {batch: _STEPS * chance for batch, chance in law.items() if _STEPS * chance >= 5.0}
    rest = _STEPS - sum(expected.values())
    statistic = sum((drawn[batch] - mean) ** 2 / mean for batch, mean in expected.items())
    if rest >= 5.0:
        others = sum(count for batch, count in drawn.items() if batch not in expected)
        statistic += (others - rest) ** 2 / rest
    return float(chi2.sf(statistic, len(expected) - (rest < 5.0)))


LAWS = [(0.5, 6, 2, 6), (0.2, 5, 1, 5), (0.5, 6, 2, 4), (1.0, 4, 2, 3), (0.7, 3, 3, 3)]


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize(("rate", "slots", "largest", "records"), LAWS)
def test_every_batch_is_as_likely_as_enumeration_says(
    rate: float, slots: int, largest: int, records: int
) -> None:
    law = enumerated(rate, slots, largest, records)
    assert sum(law.values()) == pytest.approx(1.0)
    assert p_value(TruncatedPoissonSampling(rate, slots, largest), law, records) > _LEVEL


@pytest.mark.parametrize("planted", [FirstByPosition, NotCut])
def test_enumeration_catches_planted_bugs(planted: type[TruncatedPoissonSampling]) -> None:
    assert p_value(planted(0.5, 6, 2), enumerated(0.5, 6, 2, 6), 6) < _LEVEL


def test_enumeration_catches_a_draw_without_empty_slots() -> None:
    assert p_value(WithoutEmptySlots(0.5, 6, 2), enumerated(0.5, 6, 2, 4), 4) < _LEVEL


def inclusion(sampler: Sampling, records: int, steps: int) -> NDArray[np.float64]:
    generator, counts = seeded_generator(11), np.zeros(records)
    for step in range(steps):
        counts[sampler.indices(generator, step, records)] += 1.0
    return counts


def inclusion_p_value(sampler: TruncatedPoissonSampling) -> float:
    """Return the p-value of the chi-square statistic of how often each of 1,000 records is in a batch."""
    steps = 2000
    counts = inclusion(sampler, 1000, steps)
    law = np.random.default_rng(3).binomial(sampler.records, sampler.sampling_rate, 400_000)
    chance = float(np.minimum(law, sampler.largest_batch).mean()) / sampler.records
    statistic = ((counts - steps * chance) ** 2 / (steps * chance * (1.0 - chance))).sum()
    return float(2.0 * min(chi2.sf(statistic, 1000), chi2.cdf(statistic, 1000)))


def test_all_of_a_thousand_records_are_included_alike() -> None:
    assert inclusion_p_value(TruncatedPoissonSampling(0.1, 1000, 100)) > _LEVEL
    for planted in (FirstByPosition, NotCut):
        assert inclusion_p_value(planted(0.1, 1000, 100)) < _LEVEL


def assert_kept_by_words_of_their_own(sampler: TruncatedPoissonSampling) -> None:
    """By hand: of the Poisson sample, those with the least words of the purpose of truncation."""
    generator = seeded_generator(5)
    whole = PoissonSampling(0.5).indices(generator, 3, 200).tolist()
    second = generator.words(200, purpose=Purpose.TRUNCATION, step=3).tolist()
    least = sorted(sorted(whole, key=lambda slot: second[slot])[:40])
    assert len(whole) > 40
    assert sampler.indices(generator, 3, 200).tolist() == least


def test_who_is_kept_does_not_depend_on_why_he_was_sampled() -> None:
    assert_kept_by_words_of_their_own(TruncatedPoissonSampling(0.5, 200, 40))
    with pytest.raises(AssertionError):
        assert_kept_by_words_of_their_own(BySameWords(0.5, 200, 40))


def test_a_record_alone_among_a_hundred_slots_is_kept_as_seldom_as_its_price_says() -> None:
    """Among records alone it would be in every second batch, and its price is of one in a hundred."""
    event = TruncatedPoissonSampled(0.5, 100, 1, Gaussian(1.0))
    price, steps = price_of(event, Adjacency.ADD_REMOVE, "pld"), 3000
    assert isinstance(price, TruncatedPrice)
    assert price.overflow == pytest.approx(0.01)
    for sampler, right in (
        (TruncatedPoissonSampling(0.5, 100, 1), True),
        (WithoutEmptySlots(0.5, 100, 1), False),
    ):
        batches = inclusion(sampler, 1, steps)[0]
        assert (abs(batches - 0.01 * steps) < 5 * math.sqrt(0.01 * steps)) == right


def test_small_samples_are_poisson_samples() -> None:
    generator = Generator.from_os()
    for step in range(5):
        cut = TruncatedPoissonSampling(0.1, 1000, 300).indices(generator, step, 1000)
        assert cut.tolist() == PoissonSampling(0.1).indices(generator, step, 1000).tolist()


def test_the_sample_is_a_function_of_key_and_step() -> None:
    generator, sampler = seeded_generator(1), TruncatedPoissonSampling(0.5, 100, 30)
    first = [sampler.indices(generator, step, 100).tolist() for step in range(4)]
    again = [sampler.indices(seeded_generator(1), step, 100).tolist() for step in (3, 2, 1, 0)]
    assert first == again[::-1]
    assert len({tuple(batch) for batch in first}) == 4
    assert all(len(batch) == 30 for batch in first)


def test_it_names_its_own_event() -> None:
    event = TruncatedPoissonSampling(0.1, 1000, 130).event(Gaussian(2.0), 7, Adjacency.ADD_REMOVE)
    assert event == Repeat(TruncatedPoissonSampled(0.1, 1000, 130, Gaussian(2.0)), 7)


def test_more_records_than_were_priced_are_refused() -> None:
    sampler = TruncatedPoissonSampling(0.1, 1000, 130)
    with pytest.raises(PrivacyRefusal, match="more records than the plan's public number, 1000") as caught:
        sampler.indices(Generator.from_os(), 0, 1001)
    assert "1001" not in str(caught.value)  # the true number is secret


@pytest.mark.parametrize(
    ("rate", "records", "largest", "words"),
    [
        (0.0, 10, 5, "sampling_rate"),
        (1.5, 10, 5, "sampling_rate"),
        (0.5, 0, 5, "records"),
        (0.5, 10, 0, "largest"),
        (0.5, 10, 11, "largest"),
    ],
)
def test_its_numbers_are_checked(rate: float, records: int, largest: int, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        TruncatedPoissonSampling(rate, records, largest)


def test_it_describes_itself() -> None:
    said = TruncatedPoissonSampling(0.01, 60_000, 750).describe()
    assert said == "truncated Poisson sampling, rate 0.01 per step, at most 750 of 60000 records"
