"""Planted secrets, their exposure and its bound: known answers, planted bugs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_models import memoriser, table_model
from numpy.typing import NDArray
from scipy import stats

from tacit.accounting import account
from tacit.audits.attacks import (
    SecretSpace,
    exact_exposure,
    exposure_bound,
    greedy,
    log_likelihoods,
    next_log_probabilities,
    plant_canaries,
    planted_records,
    sampled_exposure,
)
from tacit.errors import InvalidInput
from tacit.events import Gaussian

Integers = NDArray[np.int64]
DIGITS = SecretSpace("0123456789", 3)
ALL = DIGITS.digits(np.arange(DIGITS.size))


# --- canaries ---------------------------------------------------------------------------------------------


@given(st.integers(0, 999))
def test_secrets_and_positions_are_inverse(position: int) -> None:
    assert DIGITS.position(DIGITS.secret(position)) == position == int(DIGITS.secret(position))
    assert DIGITS.digits(np.array([position]))[0].tolist() == [int(c) for c in DIGITS.secret(position)]


def test_canaries_are_uniform_and_their_coins_fair_and_independent() -> None:
    generator = np.random.default_rng(1)
    prefixes = [f"p{i} " for i in range(4000)]
    found = plant_canaries(DIGITS, prefixes, 4, generator)
    places = np.array([DIGITS.position(canary.secret) for canary in found])
    coins = np.array([canary.included for canary in found])
    assert stats.kstest(places / 1000, "uniform").pvalue > 1e-3
    assert stats.binomtest(int(coins.sum()), 4000).pvalue > 1e-3
    assert stats.ks_2samp(places[coins], places[~coins]).pvalue > 1e-3
    records = planted_records(found)
    assert len(records) == 4 * coins.sum()
    assert all(records.count(c.prefix + c.secret) == (4 if c.included else 0) for c in found[:20])


def test_bad_canaries_are_refused() -> None:
    generator = np.random.default_rng(0)
    with pytest.raises(InvalidInput, match="at least 2 distinct characters"):
        SecretSpace("01234567890", 3)
    with pytest.raises(InvalidInput, match="no entry twice"):
        plant_canaries(DIGITS, ["a", "a"], 1, generator)
    with pytest.raises(InvalidInput, match="copies"):
        plant_canaries(DIGITS, ["a"], 0, generator)
    for wrong in ("12", "12a", "1234"):
        with pytest.raises(InvalidInput, match="3 characters"):
            DIGITS.position(wrong)


# --- likelihoods ------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_likelihoods_are_the_product_of_the_tokens(seed: int, before: int, length: int) -> None:
    """Against a loop over single contexts; the law of all strings of a length sums to 1."""
    model, prefix = table_model(seed), np.arange(before) % 5
    strings = np.array(list(np.ndindex(*(5,) * length)))
    found = log_likelihoods(model, prefix, strings)
    assert np.exp(found).sum() == pytest.approx(1.0)
    for row in np.random.default_rng(seed).integers(len(strings), size=5):
        total = 0.0
        for t in range(length):
            z = model(np.array([[*prefix, *strings[row, :t]]], dtype=np.int64))[0]
            total += math.log(math.exp(z[strings[row, t]]) / sum(math.exp(v) for v in z))
        assert found[row] == pytest.approx(total, abs=1e-9)


def test_shared_contexts_are_asked_for_once() -> None:
    asked = []

    def model(contexts: Integers) -> NDArray[np.float64]:
        asked.append(len(contexts))
        return np.zeros((len(contexts), 10))

    assert np.allclose(log_likelihoods(model, [], ALL), math.log(1e-3))
    assert asked == [1, 10, 100]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_model_that_diverged_is_refused(bad: float) -> None:
    with pytest.raises(InvalidInput, match=r"NaN|not finite"):
        next_log_probabilities(lambda contexts: np.full((len(contexts), 3), bad), np.zeros((2, 1), np.int64))


def test_bad_models_and_strings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="one row of logits per context"):
        log_likelihoods(lambda contexts: np.zeros((1, 3, 3)), [], [[0]])
    with pytest.raises(InvalidInput, match="not among the model's 5"):
        log_likelihoods(table_model(0), [], [[7]])
    with pytest.raises(InvalidInput, match="must be an integer array"):
        log_likelihoods(table_model(0), [], [[0.5]])
    with pytest.raises(InvalidInput, match="at least one"):
        log_likelihoods(table_model(0), [], np.zeros((0, 3), int))


# --- exposure ---------------------------------------------------------------------------------------------


def test_a_memorised_secret_has_all_the_exposure_and_a_reversed_sign_none() -> None:
    scores = log_likelihoods(memoriser([9, 1, 2, 3]), [9], ALL)
    secret = DIGITS.position("123")
    assert exact_exposure(scores, secret) == pytest.approx(math.log2(1000))
    assert exact_exposure(-scores, secret) == 0.0, "lower = member would read memorisation as nothing"


def test_a_constant_model_exposes_nobody() -> None:
    """Counting only strictly better candidates would give every secret log2 R bits."""
    assert exact_exposure(np.zeros(1000), 17) == 0.0
    assert sampled_exposure(0.0, np.zeros(99)) == 0.0


@given(st.lists(st.integers(0, 30), min_size=1, max_size=64, unique=True), st.data())
def test_ranks_are_places_in_the_sorted_list(values: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    rank = sorted(values, reverse=True).index(values[place]) + 1
    assert exact_exposure(values, place) == pytest.approx(math.log2(len(values)) - math.log2(rank))
    others = values[:place] + values[place + 1 :]
    if others:
        assert sampled_exposure(values[place], others) == pytest.approx(exact_exposure(values, place))


def exceeds_chance(exposures: NDArray[np.float64]) -> bool:
    """Whether Pr[exposure >= e] <= 2^-e is refuted for some whole e."""
    bits = np.arange(1, 8)
    tests = [
        stats.binomtest(int((exposures >= e).sum()), exposures.size, 2.0**-e, alternative="greater").pvalue
        for e in bits
    ]
    return min(tests) < 1e-4


def test_without_the_secret_exposure_is_at_most_chance_and_a_rank_off_by_one_is_seen() -> None:
    generator = np.random.default_rng(3)
    scores = generator.normal(size=(4000, 128)).round(1)  # with ties
    exact = np.array([exact_exposure(row, 5) for row in scores])
    sample = np.array([sampled_exposure(row[5], np.delete(row, 5)[:31]) for row in scores])
    assert not exceeds_chance(exact)
    assert not exceeds_chance(sample)
    better = (scores > scores[:, 5:6]).sum(axis=1)
    off_by_one = np.log2(128 / np.maximum(better, 1))
    assert exceeds_chance(off_by_one), "the planted bug: ranks from 0"
    twice = np.log2(256 / (scores >= scores[:, 5:6]).sum(axis=1))
    assert exceeds_chance(twice), "the planted bug: R counts candidates that the rank does not"


def test_bad_scores_are_refused() -> None:
    with pytest.raises(InvalidInput, match="finite"):
        exact_exposure([0.0, math.nan], 0)
    with pytest.raises(InvalidInput, match="finite"):
        sampled_exposure(0.0, [])
    with pytest.raises(InvalidInput, match="secret"):
        exact_exposure([0.0, 1.0], 2)
    with pytest.raises(InvalidInput, match="secret"):
        sampled_exposure(math.nan, [0.0])


# --- the bound --------------------------------------------------------------------------------------------


def gaussian_f(mu: float) -> Any:
    return lambda rates: stats.norm.cdf(stats.norm.ppf(1.0 - rates) - mu)


def test_the_bound_of_one_and_of_several_copies_is_that_of_gaussians() -> None:
    """c copies of a Gaussian with mu are one with c mu (Dong, Roth and Su, 2019)."""
    bits = np.array([2.0, 5.0, 10.0])
    assert exposure_bound(gaussian_f(1.0), bits[1:]).round(3).tolist() == [0.194, 0.018]
    for copies in (1, 2, 4):
        exact = 1.0 - gaussian_f(copies * 0.7)(2.0**-bits)
        assert exposure_bound(gaussian_f(0.7), bits, copies=copies) == pytest.approx(exact, rel=1e-9)
    accounted = account(Gaussian(1.0), adjacency="add-remove").false_negative_rate
    assert exposure_bound(accounted, bits, copies=2) == pytest.approx(
        exposure_bound(gaussian_f(1.0), bits, copies=2), rel=1e-4
    )


@given(st.floats(0.0, 16.0), st.integers(1, 16))
@settings(max_examples=20, deadline=None)
def test_the_bound_grows_with_copies_and_never_falls_below_chance(bits: float, copies: int) -> None:
    fewer, more = (float(exposure_bound(gaussian_f(0.6), bits, copies=c)) for c in (copies, copies + 1))
    assert 2.0**-bits <= fewer + 1e-12
    assert fewer <= more + 1e-9
    assert more <= 1.0


def released_exposures(sigma: float, copies: int, trials: int, seed: int) -> NDArray[np.float64]:
    """A Gaussian mechanism that releases noisy counts of 32 secrets: the strongest case, with a known f."""
    generator = np.random.default_rng(seed)
    counts = np.zeros((trials, 32))
    secret = generator.integers(32, size=trials)
    counts[np.arange(trials), secret] = copies
    noisy = counts + sigma * generator.normal(size=counts.shape)
    return np.array([exact_exposure(row, int(place)) for row, place in zip(noisy, secret, strict=True)])


def test_a_gaussian_release_stays_below_its_bound_and_too_little_noise_does_not() -> None:
    bits = np.arange(0.0, 6.0)
    bound = exposure_bound(gaussian_f(1.0), bits, copies=2)

    def worst(exposures: NDArray[np.float64]) -> float:
        return min(
            stats.binomtest(int((exposures >= e).sum()), exposures.size, b, alternative="greater").pvalue
            for e, b in zip(bits, bound, strict=True)
        )

    assert worst(released_exposures(1.0, 2, 4000, seed=0)) > 1e-3
    assert worst(released_exposures(0.5, 2, 4000, seed=0)) < 1e-6, "half the noise"
    assert worst(released_exposures(1.0, 4, 4000, seed=0)) < 1e-6, "copies that are not counted"


def test_bad_exposures_are_refused() -> None:
    for wrong in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidInput, match="bits"):
            exposure_bound(gaussian_f(1.0), [wrong])
    with pytest.raises(InvalidInput, match="copies"):
        exposure_bound(gaussian_f(1.0), [1.0], copies=0)


# --- completion -------------------------------------------------------------------------------------------


def test_a_memorised_record_is_completed_verbatim() -> None:
    model = memoriser([9, 1, 2, 3], [8, 4, 4, 4])
    assert greedy(model, [9], 3).tolist() == [1, 2, 3]
    assert greedy(model, [8, 4], 2).tolist() == [4, 4]
    said, unsaid = log_likelihoods(model, [9], [[1, 2, 3], [1, 2, 4]])
    assert said > -1e-6 > -10.0 > unsaid
    with pytest.raises(InvalidInput, match="at least one token"):
        log_likelihoods(table_model(0), [1], [[]])
    with pytest.raises(InvalidInput, match="not among"):
        log_likelihoods(table_model(0), [1], [[9]])
    with pytest.raises(InvalidInput, match="must be an integer array"):
        greedy(table_model(0), [-1], 2)
