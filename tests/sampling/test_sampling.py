"""Samplers draw what their events say."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import Adjacency, Gaussian, PoissonSampled, Repeat
from tacit.noise.generator import Generator
from tacit.sampling import FullBatch, PoissonSampling, Sampling, ShuffledBatches
from tacit.testing import seeded_generator


def test_each_sampler_names_its_own_event() -> None:
    mechanism = Gaussian(2.0)
    assert PoissonSampling(0.1).event(mechanism, 7, Adjacency.ADD_REMOVE) == Repeat(
        PoissonSampled(0.1, mechanism), 7
    )
    assert FullBatch().event(mechanism, 7, Adjacency.ADD_REMOVE) == Repeat(mechanism, 7)
    shuffled = ShuffledBatches(batch_size=30, records=100)
    assert shuffled.event(mechanism, 7, Adjacency.REPLACE_ONE) == Repeat(mechanism, 3)
    assert shuffled.event(mechanism, 6, Adjacency.ZERO_OUT) == Repeat(mechanism, 2)


def assert_not_priced_as_poisson(sampler: Sampling) -> None:
    """Fail for a shuffled sampler that is accounted for as Poisson."""
    event = sampler.event(Gaussian(1.0), 10, Adjacency.REPLACE_ONE)
    assert "PoissonSampled" not in repr(event)


def test_planted_bug_shuffled_accounted_as_poisson() -> None:
    class Planted(ShuffledBatches):
        def event(self, mechanism: Any, steps: int, adjacency: Adjacency) -> Any:
            return Repeat(PoissonSampled(self.batch_size / self.records, mechanism), steps)

    assert_not_priced_as_poisson(ShuffledBatches(batch_size=10, records=100))
    with pytest.raises(AssertionError):
        assert_not_priced_as_poisson(Planted(batch_size=10, records=100))


def test_shuffled_is_refused_under_add_remove() -> None:
    with pytest.raises(PrivacyRefusal, match="Poisson"):
        ShuffledBatches(batch_size=10, records=100).event(Gaussian(1.0), 1, Adjacency.ADD_REMOVE)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 5))
def test_shuffled_visits_each_record_at_most_once_an_epoch(records: int, batch: int, epoch: int) -> None:
    batch = min(batch, records)
    sampler, generator = ShuffledBatches(batch, records), seeded_generator(0)
    first = epoch * sampler.steps_per_epoch
    steps = [sampler.indices(generator, first + i, records) for i in range(sampler.steps_per_epoch)]
    seen = np.concatenate(steps)
    assert all(len(step) == batch for step in steps)
    assert len(set(seen.tolist())) == len(seen)
    assert set(seen.tolist()) <= set(range(records))


def test_shuffled_checks_the_number_of_records() -> None:
    with pytest.raises(InvalidInput, match="the plan is for 100 records"):
        ShuffledBatches(10, 100).indices(Generator.from_os(), 0, 101)
    with pytest.raises(InvalidInput, match="batch_size"):
        ShuffledBatches(101, 100)


def participation(sampler: Sampling, records: int, steps: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    generator = seeded_generator(5)
    table = np.zeros((steps, records), dtype=bool)
    for step in range(steps):
        table[step, sampler.indices(generator, step, records)] = True
    return table


def test_poisson_rate_independence_and_random_size() -> None:
    rate, records, steps = 0.2, 200, 400
    table = participation(PoissonSampling(rate), records, steps)
    spread = math.sqrt(rate * (1 - rate))
    assert abs(table.mean() - rate) < 5 * spread / math.sqrt(table.size)
    # Binomial sizes, not fixed ones: their variance is records q (1 - q), within 6 standard errors.
    sizes = table.sum(axis=1)
    variance = records * rate * (1 - rate)
    assert abs(sizes.var(ddof=1) - variance) < 6 * variance * math.sqrt(2 / steps)
    # Neither records nor steps go together.
    for centred in ((table - rate) / spread, (table.T - rate) / spread):
        correlation = centred.T @ centred / len(centred) - np.diag((centred**2).mean(axis=0))
        assert abs(correlation).max() < 6 / math.sqrt(len(centred))


def test_poisson_may_draw_no_record_and_all_records() -> None:
    generator = Generator.from_os()
    assert len(PoissonSampling(1e-12).indices(generator, 0, 100)) == 0
    assert PoissonSampling(1.0).indices(generator, 0, 100).tolist() == list(range(100))


def test_poisson_decision_of_one_record_does_not_depend_on_the_others() -> None:
    generator, sampler = Generator.from_os(), PoissonSampling(0.3)
    small, large = sampler.indices(generator, 4, 50), sampler.indices(generator, 4, 51)
    assert large[large < 50].tolist() == small.tolist()


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.1, float("nan")])
def test_poisson_rate_is_checked(bad: float) -> None:
    with pytest.raises(InvalidInput, match="sampling_rate"):
        PoissonSampling(bad)


def test_indices_are_addressed_by_step() -> None:
    generator, sampler = Generator.from_os(), PoissonSampling(0.5)
    assert np.array_equal(sampler.indices(generator, 9, 1000), sampler.indices(generator, 9, 1000))
    assert not np.array_equal(sampler.indices(generator, 9, 1000), sampler.indices(generator, 10, 1000))


def test_full_batch_takes_everybody() -> None:
    assert FullBatch().indices(Generator.from_os(), 0, 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("sampler", [PoissonSampling(0.5), FullBatch(), ShuffledBatches(2, 10)])
def test_samplers_describe_themselves(sampler: Sampling) -> None:
    assert sampler.describe()
