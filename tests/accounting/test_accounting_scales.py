"""Noise too small or too large to be priced is refused at once by every accountant, with its value."""

from __future__ import annotations

import math

import numpy as np
import pytest
from priced import curve_of

from tacit.accounting import METHODS, account
from tacit.accounting.closed_form import gaussian_delta, gaussian_epsilon
from tacit.accounting.flatten import NoiseOutOfRange
from tacit.accounting.renyi import renyi_cost
from tacit.errors import UnsupportedEvent
from tacit.events import (
    BallsInBins,
    Compose,
    CyclicPoissonSampled,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    MatrixFactorization,
    Partitioned,
    PoissonSampled,
    PrivateSelection,
    Repeat,
    Shuffled,
    TreeAggregation,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
)


def sampled(noise: float, steps: int = 100) -> Event:
    return Repeat(PoissonSampled(0.3, Gaussian(noise)), steps)


def on_samples(noise: float) -> dict[str, Event]:
    """Mechanisms on a sample, of that noise against the sensitivity."""
    banded = MatrixFactorization(noise, coefficients=(1.0, 0.5), steps=100)
    return {
        "Poisson": sampled(noise),
        "Poisson, once": sampled(noise, 1),
        "Poisson, twice": sampled(noise, 2),
        "Poisson, Laplace": PoissonSampled(0.3, Laplace(noise)),
        "Poisson, discrete Gaussian": PoissonSampled(0.3, DiscreteGaussian(noise)),
        "Poisson, discrete Laplace": PoissonSampled(0.3, DiscreteLaplace(noise)),
        "among others": Compose((Gaussian(1.0), Laplace(2.0), sampled(noise))),
        "mixture": GaussianMixture(noise, (0.0, 1.0, 2.0), (0.81, 0.18, 0.01)),
        "truncated": TruncatedPoissonSampled(0.01, 10_000, 200, Gaussian(noise)),
        "without replacement": WithoutReplacement(1000, 10, Gaussian(noise)),
        "with replacement": WithReplacement(1000, 10, Gaussian(noise)),
        "bins": BallsInBins(10, Gaussian(noise)),
        "partitioned": Partitioned(10, PoissonSampled(0.1, Gaussian(noise))),
        "cyclic": CyclicPoissonSampled(0.1, 10, banded),
        "group": GroupPrivacy(sampled(noise), 3),
        "group, Laplace": GroupPrivacy(PoissonSampled(0.3, Laplace(noise)), 3),
        "selection": PrivateSelection(sampled(noise), "poisson", 10),
    }


def without_samples(noise: float) -> dict[str, Event]:
    return {
        "Gaussian": Repeat(Gaussian(noise), 10),
        "Laplace": Repeat(Laplace(noise), 10),
        "discrete Laplace": DiscreteLaplace(noise),
        "shuffled": Shuffled(10, Gaussian(noise)),
        "tree": TreeAggregation(noise, leaves=8),
        "matrix": MatrixFactorization(noise, coefficients=(1.0, 0.5), steps=10),
    }


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("noise", [1e-300, 1e-12, 1e-6, 3e-4, 1e-3, 1e-2, 0.0999, 1.3e6, 1e7, 1e300])
@pytest.mark.parametrize("name", list(on_samples(1.0)))
@pytest.mark.parametrize("method", list(METHODS))
def test_noise_on_samples_out_of_range_is_refused_by_every_accountant(
    method: str, name: str, noise: float
) -> None:
    for adjacency in ("add-remove", "replace-one", "zero-out"):
        with pytest.raises(NoiseOutOfRange) as refusal:
            account(on_samples(noise)[name], adjacency=adjacency, method=method)
        words = str(refusal.value)
        assert f"method {method!r} supports noise" in words
        assert refusal.value.too_small == (noise < 1.0) == ("Use more noise" in words)
        assert " got " in words


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("noise", [1e-300, 1e-100, 1e-12, 1e-3, 1e3, 1e6, 1e12, 1e300])
@pytest.mark.parametrize("method", list(METHODS))
def test_noise_without_sampling_has_a_price_or_is_refused_by_name(method: str, noise: float) -> None:
    priced = 0
    for event in without_samples(noise).values():
        try:
            curve = account(event, adjacency="replace-one", method=method)
        except UnsupportedEvent:
            continue
        found = curve.epsilon(1e-5)
        assert found > 1.0 if noise < 1.0 else 0.0 <= found < 1.0
        assert 0.0 <= curve.delta(1.0) <= 1.0
        assert 0.0 <= curve.false_negative_rate(0.05) <= 0.95
        priced += 1
    assert priced >= 3, "Gaussians, plain, shuffled or correlated, are priced by every accountant"


@pytest.mark.parametrize("method", ["pld", "rdp", "moments", "strong", "basic"])
@pytest.mark.parametrize("noise", [0.1, 1e6])
def test_the_ends_of_the_range_have_a_price(method: str, noise: float) -> None:
    curve = curve_of(sampled(noise), method)
    found = curve.epsilon(1e-5)
    assert 1e3 < found < math.inf if noise < 1.0 else 0.0 <= found < 1.0


@pytest.mark.parametrize(
    "event",
    [
        sampled(1e6),
        Repeat(PoissonSampled(1e-6, Gaussian(1e3)), 1000),
        Repeat(PoissonSampled(0.01, Gaussian(1e5)), 2),
        Repeat(Laplace(1e9), 3),
        Repeat(PoissonSampled(0.1, DiscreteLaplace(1e6)), 3),
        Compose((sampled(1e6, 3), Laplace(1e9))),
    ],
)
def test_the_attacker_learns_next_to_nothing_where_next_to_nothing_is_lost(event: Event) -> None:
    """All losses together are too small for a saddle point at a positive epsilon."""
    curve = curve_of(event)
    rates = np.array([0.0, 1e-3, 0.05, 0.5])
    missed = curve.false_negative_rate(rates)
    assert (missed <= 1.0 - rates).all()
    assert missed[1:] == pytest.approx(1.0 - rates[1:], abs=1e-3)
    assert 0.5 <= curve.success(0.5) <= 0.51
    assert float(curve.epsilon(np.array([1e-5]))[0]) <= 1e-2


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("method", ["rdp", "zcdp"])
@pytest.mark.parametrize("noise", [3e5, 3e6, 1e8, 1e12])
def test_tiny_divergences_are_not_lost_in_rounding(method: str, noise: float) -> None:
    """The conversion solved for a point whose moment differs from 1 by less than floats tell: it said
    (0, 4.5e-13) of a Gaussian that is (0, 1.3e-7)-DP at best."""
    curve = curve_of(Gaussian(noise), method)
    for share in (0.0, 1e-3, 0.1, 1.0):
        epsilon = share / noise
        assert curve.delta(epsilon) >= gaussian_delta(epsilon, 1.0 / noise) * (1.0 - 1e-9)
    for delta in (0.3 / noise, 1e-2 / noise, 1e-4 / noise):
        assert curve.epsilon(delta) >= gaussian_epsilon(delta, 1.0 / noise) * (1.0 - 1e-9)


def test_tiny_divergences_of_samples_are_not_lost_either() -> None:
    event = PoissonSampled(1e-6, Gaussian(10.0))
    lower, _ = curve_of(event).delta_bounds(0.0)
    assert lower > 3.9e-8
    assert curve_of(event, "rdp").delta(0.0) >= lower


def test_balls_in_bins_with_much_noise_have_a_price() -> None:
    """Their moments underflowed where the noise is large."""
    curve = curve_of(BallsInBins(10, Gaussian(100.0)))
    assert 0.0 < curve.epsilon(1e-5) <= curve_of(Gaussian(100.0)).epsilon(1e-5)


def test_what_a_ledger_adds_up_has_the_same_range() -> None:
    with pytest.raises(UnsupportedEvent, match=r"from 0\.1; got 0\.001"):
        renyi_cost(sampled(1e-3), (2.0, 8.0), "add-remove")


def test_no_order_of_a_large_group_takes_all_memory() -> None:
    with pytest.raises(NoiseOutOfRange, match=r"largest sensitivity of a mixture from 0\.01"):
        curve_of(GroupPrivacy(sampled(1.0), 1000), "rdp")
