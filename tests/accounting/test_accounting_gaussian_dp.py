"""Gaussian DP of a curve: closed forms, a trade-off curve by other code, and the definition itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from tacit.accounting import account
from tacit.accounting import gaussian_dp as module
from tacit.events import ApproximateDP, Compose, Event, Gaussian, Laplace, PoissonSampled, Repeat


@given(mu=st.floats(0.003, 11.0))
@settings(max_examples=12, deadline=None)
def test_a_gaussian_mechanism_is_its_own_bound(mu: float) -> None:
    bound = account(Gaussian(1.0 / mu), adjacency="add-remove").gaussian_dp()
    assert mu <= bound.mu <= mu * (1 + 5e-5)
    assert bound.regret <= 1e-5


def test_laplace_noise_has_a_closed_form() -> None:
    # f of Laplace noise of scale 1 has a kink on the diagonal, at e^-1/2 / 2: there mu is least.
    bound = account(Laplace(1.0), adjacency="add-remove").gaussian_dp()
    rates = np.linspace(1e-6, 0.5, 200_001)
    least = np.maximum(1 - math.e * rates, np.where(rates < 0.5 / math.e, 0.0, 0.25 / math.e / rates))
    missed = np.where(rates < math.exp(-1) / 2, 1 - math.e * rates, least)
    exact = float((-ndtri(rates) - ndtri(missed)).max())
    assert exact <= bound.mu <= exact * (1 + 1e-4)


SAMPLED = [(9.4, 0.328, 2000), (0.8, 0.01, 1000), (1.5, 0.05, 1000)]


@pytest.mark.parametrize(("sigma", "rate", "steps"), SAMPLED)
def test_dp_sgd_against_the_deltas_of_other_code(sigma: float, rate: float, steps: int) -> None:
    bound = account(
        Repeat(PoissonSampled(rate, Gaussian(sigma)), steps), adjacency="add-remove"
    ).gaussian_dp()
    loss = theirs.from_gaussian_mechanism(
        standard_deviation=sigma, sampling_prob=rate, value_discretization_interval=5e-4
    ).self_compose(steps)

    def excess(mu: float) -> float:
        epsilons = np.linspace(0.0, mu * (6.3613 - mu / 2), 60)
        deltas = np.array(loss.get_delta_for_epsilon(epsilons))
        gaussian = ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons) * ndtr(-mu / 2 - epsilons / mu)
        return float((deltas / gaussian).max())

    assert excess(bound.mu) <= 1.0 + 1e-3  # theirs are upper bounds as well
    assert excess(bound.mu * 0.998) > 1.0


def test_published_figures() -> None:
    # Gomez et al. 2025 (2503.10945) and their package give 1.57 and 0.001.
    bound = account(Repeat(PoissonSampled(0.328, Gaussian(9.4)), 2000), adjacency="add-remove").gaussian_dp()
    assert bound.mu == pytest.approx(1.5685, abs=2e-4)
    assert bound.regret == pytest.approx(0.00103, abs=2e-5)


EVENTS: list[Event] = [
    Laplace(0.7),
    ApproximateDP(2.0, 1e-6),
    Compose((Gaussian(2.0), Laplace(3.0))),
    Repeat(PoissonSampled(0.05, Gaussian(1.1)), 200),
]


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("event", EVENTS, ids=repr)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_mu_and_regret_by_their_definitions(event: Event, adjacency: str) -> None:
    curve = account(event, adjacency=adjacency)
    bound = curve.gaussian_dp()
    rates = np.unique(np.concatenate([np.logspace(-10, -2, 300), np.linspace(0.01, 1 - 1e-10, 1500)]))
    missed = np.asarray(curve.false_negative_rate(rates))
    gaussian = ndtr(-ndtri(rates) - bound.mu)
    counted = missed > module.LEAST_RATE
    assert (missed[counted] >= gaussian[counted] * (1 - 1e-4)).all()

    # Some rate needs this mu, and some rate this regret.
    smaller = ndtr(-ndtri(rates) - bound.mu * 0.995)
    assert (missed[counted] < smaller[counted]).any()
    for shift, enough in ((bound.regret + 1e-5, True), (bound.regret - 1e-3, False)):
        moved = np.asarray(curve.false_negative_rate(np.clip(rates + shift, 0.0, 1.0))) - shift
        assert bool((moved <= gaussian + 1e-9).all()) is enough


def test_a_curve_that_no_mu_bounds() -> None:
    bound = account(Gaussian(0.05), adjacency="add-remove").gaussian_dp()
    assert (bound.mu, bound.regret) == (math.inf, 1.0)


def test_planted_bug_epsilons_too_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FINE", 9)
    bound = account(Gaussian(1.0), adjacency="add-remove").gaussian_dp()
    assert bound.mu > 1.001, "a coarse grid costs accuracy and never the bound"
