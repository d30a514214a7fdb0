"""Tests of the noise's and the sampler's law: every planted bug is found, the correct code is let through."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from experiments.laboratory.laws import noise_law, sampler_law
from tacit.errors import InvalidInput

Array = NDArray[np.float64]
Noise = dict[str, Array]
LEVEL = 1e-3
STD = 2.0
SHAPES = {"weight": (40, 60), "second": (40, 20), "bias": (40,)}
STEPS = 60


def correct(rng: np.random.Generator, std: float = STD) -> Noise:
    return {name: rng.normal(0.0, std, (STEPS, *shape)) for name, shape in SHAPES.items()}


def same_each_step(rng: np.random.Generator) -> Noise:
    return {name: np.broadcast_to(z[:1], z.shape) for name, z in correct(rng).items()}


def period_30(rng: np.random.Generator) -> Noise:
    return {name: np.concatenate([z[:30], z[:30]]) for name, z in correct(rng).items()}


def one_seed_for_tensors(rng: np.random.Generator) -> Noise:
    seed = int(rng.integers(2**31))
    made = {name: np.random.default_rng(seed) for name in SHAPES}
    return {
        name: np.stack([made[name].normal(0.0, STD, 2400)[: math.prod(shape)] for _ in range(STEPS)])
        for name, shape in SHAPES.items()
    }


def laplace(rng: np.random.Generator) -> Noise:
    return {name: rng.laplace(0.0, STD / math.sqrt(2), (STEPS, *shape)) for name, shape in SHAPES.items()}


def broadcast(rng: np.random.Generator) -> Noise:
    return {
        name: rng.normal(0.0, STD, (STEPS, 1)) * np.ones((1, math.prod(shape)))
        for name, shape in SHAPES.items()
    }


NOISE_BUGS: dict[str, Callable[[np.random.Generator], Noise]] = {
    "a fiftieth too little": lambda rng: correct(rng, STD / 1.02),
    "a tenth too little": lambda rng: correct(rng, STD / 1.1),
    "divided by the batch": lambda rng: correct(rng, STD / 64),
    "accumulated four times": lambda rng: correct(rng, 2.0 * STD),
    "same each step": same_each_step,
    "period 30": period_30,
    "one seed for tensors": one_seed_for_tensors,
    "bias without noise": lambda rng: correct(rng) | {"bias": np.zeros((STEPS, 40))},
    "broadcast scalar": broadcast,
    "Laplace of equal variance": laplace,
}


@pytest.mark.parametrize("name", NOISE_BUGS)
def test_every_bug_of_the_noise_is_found(name: str) -> None:
    assert noise_law(NOISE_BUGS[name](np.random.default_rng(1)), std=STD).rejects(LEVEL)


def test_correct_noise_is_let_through_as_often_as_stated() -> None:
    rng = np.random.default_rng(2)
    small = {"weight": (7, 5), "bias": (7,)}
    found = [
        noise_law({k: rng.normal(0.0, STD, (20, *s)) for k, s in small.items()}, std=STD).p_value
        for _ in range(1000)
    ]
    for level in (0.1, 0.02):
        alarms = int((np.array(found) < level).sum())
        assert stats.binom.sf(alarms - 1, 1000, level) > 1e-4
    assert (np.array(found) < 0.2).any(), "the p-values are not so large that nothing is ever found"
    assert not noise_law(correct(rng), std=STD).rejects(LEVEL)


def test_the_test_that_found_it_is_named() -> None:
    assert noise_law(NOISE_BUGS["bias without noise"](np.random.default_rng(0)), std=STD).worst.startswith(
        "bias"
    )


def test_noise_that_cannot_be_judged_is_refused() -> None:
    with pytest.raises(InvalidInput, match="needs at least two steps"):
        noise_law({"w": np.zeros((1, 3))}, std=1.0)
    with pytest.raises(InvalidInput, match="must be finite"):
        noise_law({"w": np.full((2, 3), math.nan)}, std=1.0)
    with pytest.raises(InvalidInput, match="the same number of steps"):
        noise_law({"a": np.ones((2, 3)), "b": np.ones((3, 3))}, std=1.0)
    with pytest.raises(InvalidInput, match="the same number of steps"):
        noise_law({}, std=1.0)


# --- the sampler ------------------------------------------------------------------------------------------

RATE, RECORDS, LONG = 0.05, 400, 400


def poisson(rng: np.random.Generator, rate: float = RATE) -> Array:
    return (rng.random((LONG, RECORDS)) < rate).astype(np.float64)


def shuffled(rng: np.random.Generator) -> Array:
    taken = np.zeros((LONG, RECORDS))
    per_epoch = round(1 / RATE)
    for step in range(LONG):
        if step % per_epoch == 0:
            order = rng.permutation(RECORDS).reshape(per_epoch, -1)
        taken[step, order[step % per_epoch]] = 1.0
    return taken


def shuffled_in_random_sizes(rng: np.random.Generator) -> Array:
    """Each record exactly once an epoch, in a step of its own: batch sizes look right."""
    taken = np.zeros((LONG, RECORDS))
    per_epoch = round(1 / RATE)
    for start in range(0, LONG, per_epoch):
        taken[start + rng.integers(0, per_epoch, RECORDS), np.arange(RECORDS)] = 1.0
    return taken


def fixed_size(rng: np.random.Generator) -> Array:
    order = np.argsort(rng.random((LONG, RECORDS)), axis=1)
    return (order < RATE * RECORDS).astype(np.float64)


def duplicate_record(rng: np.random.Generator) -> Array:
    taken = poisson(rng)
    taken[:, 7] = taken[:, 301]
    return taken


def twice_in_a_batch(rng: np.random.Generator) -> Array:
    taken = poisson(rng)
    taken[3, 5] = 2.0
    return taken


def resumed_from_the_start(rng: np.random.Generator) -> Array:
    taken = poisson(rng)
    return np.concatenate([taken[:300], taken[:100]])


SAMPLER_BUGS: dict[str, Callable[[np.random.Generator], Array]] = {
    "shuffle": shuffled,
    "shuffle, random sizes": shuffled_in_random_sizes,
    "fixed size": fixed_size,
    "duplicate record": duplicate_record,
    "twice in a batch": twice_in_a_batch,
    "rate of a wrong number of records": lambda rng: poisson(rng, 1.05 * RATE),
    "resumed from the start": resumed_from_the_start,
}


@pytest.mark.parametrize("name", SAMPLER_BUGS)
def test_every_bug_of_the_sampler_is_found(name: str) -> None:
    assert sampler_law(SAMPLER_BUGS[name](np.random.default_rng(1)), sampling_rate=RATE).rejects(LEVEL)


def test_poisson_samples_are_let_through_as_often_as_stated() -> None:
    rng = np.random.default_rng(3)
    found = np.array(
        [sampler_law(rng.random((60, 50)) < 0.1, sampling_rate=0.1).p_value for _ in range(1000)]
    )
    for level in (0.1, 0.02):
        assert stats.binom.sf(int((found < level).sum()) - 1, 1000, level) > 1e-4
    assert not sampler_law(poisson(rng), sampling_rate=RATE).rejects(LEVEL)


def test_counts_that_are_none_are_refused() -> None:
    for wrong in (np.zeros(3), np.full((3, 3), 0.5), np.full((3, 3), -1.0), np.full((3, 3), math.nan)):
        with pytest.raises(InvalidInput, match="whole numbers"):
            sampler_law(wrong, sampling_rate=0.5)
