"""Every accountant alone: closed forms, published figures, and the order between them."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from priced import curve_of, epsilon

from experiments.published_composition import (
    figure2_strong_composition,
    talk_table,
    valid_strong_composition,
)
from tacit.accounting import METHODS
from tacit.accounting.closed_form import gaussian_delta, gaussian_epsilon, single_delta, single_epsilon
from tacit.accounting.renyi import ORDERS, paper_moments
from tacit.accounting.theorems import advanced_composition
from tacit.events import Compose, Gaussian, Laplace, PoissonSampled, Repeat

ABADI = Repeat(PoissonSampled(0.01, Gaussian(4.0)), 10_000)


# --- the setting of the paper, and the order of the methods ----------------------------------------------


def test_the_setting_of_the_paper() -> None:
    moments, rdp, pld = (epsilon(ABADI, method=method) for method in ("moments", "rdp", "pld"))
    assert 1.25 <= moments <= 1.27  # the paper prints 1.26
    assert moments == pytest.approx(1.25857, abs=1e-5)
    assert 0.94 <= pld <= 0.96
    assert pld < rdp < moments
    assert rdp == pytest.approx(1.03538, abs=1e-5)  # 1.03549 at integer orders
    assert epsilon(Repeat(PoissonSampled(0.01, Gaussian(4.0)), 40_000), method="moments") == pytest.approx(
        2.5759, abs=1e-4
    )
    assert moments < epsilon(ABADI, method="strong") < epsilon(ABADI, method="basic")


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("count", [1, 10, 300])
def test_every_method_is_above_the_closed_form(method: str, count: int) -> None:
    exact = gaussian_epsilon(1e-5, math.sqrt(count) / 5.0)
    assert epsilon(Repeat(Gaussian(5.0), count), method=method) >= exact
    curve = curve_of(Repeat(Gaussian(5.0), count), method)
    assert curve.delta(1.0) >= gaussian_delta(1.0, math.sqrt(count) / 5.0)
    lower, upper = curve.epsilon_bounds(1e-5)
    assert lower <= exact <= upper == curve.epsilon(1e-5)


@pytest.mark.parametrize("method", ["pld", "rdp", "moments", "strong", "basic"])
@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 1.0, 100), (0.1, 5.0, 1000), (0.5, 2.0, 50)])
def test_every_method_is_above_the_lower_bound(method: str, q: float, sigma: float, steps: int) -> None:
    event = Repeat(PoissonSampled(q, Gaussian(sigma)), steps)
    lower, _ = curve_of(event).epsilon_bounds(1e-5)
    assert epsilon(event, method=method) >= lower
    curve = curve_of(event, method)
    assert curve.delta(lower) >= 1e-5 * (1 - 1e-6)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_epsilon_and_delta_are_inverse(method: str) -> None:
    event = Repeat(Gaussian(10.0), 20)
    curve = curve_of(event, method)
    for delta in (1e-3, 1e-8):
        assert curve.delta(curve.epsilon(delta)) == pytest.approx(delta, rel=1e-5)
    assert curve.epsilon(0.999999) == 0.0 or method in ("moments", "strong", "basic")


# --- gaussian --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.0, 0.3, 4.0, 60.0])
@pytest.mark.parametrize("mu", [1e-4, 0.1, 1.0, 9.0])
def test_gaussian_closed_form_to_1e_10(eps: float, mu: float) -> None:
    with mp.workdps(60):
        m, e = mp.mpf(mu), mp.mpf(eps)
        exact = mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
        exact_value = float(exact)
    assert gaussian_delta(eps, mu) == pytest.approx(exact_value, rel=1e-10, abs=1e-300)
    if 1e-250 < exact_value < 0.9 and eps > 0.0:
        assert gaussian_epsilon(exact_value, mu) == pytest.approx(eps, rel=1e-10)
        curve = curve_of(Gaussian(1.0 / mu), "gaussian")
        lower, upper = curve.epsilon_bounds(exact_value)
        assert lower <= eps <= upper * (1 + 1e-12)
        assert upper - lower <= 1e-10 * eps


def test_gaussian_without_noise_to_speak_of() -> None:
    tiny = curve_of(Gaussian(1e-200), "gaussian")
    assert tiny.epsilon(1e-5) == math.inf
    assert tiny.epsilon_bounds(1e-5) == (0.0, math.inf)
    assert tiny.delta(1.0) == pytest.approx(1.0)
    assert curve_of(Gaussian(1e-310), "gaussian").delta(1.0) == 1.0


def test_nothing_costs_nothing() -> None:
    for method in METHODS:
        curve = curve_of(Compose(()), method)
        assert curve.epsilon(1e-5) == 0.0
        assert curve.delta(0.0) <= 1e-12


# --- one step --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base", [Gaussian(1.3), Laplace(0.7), PoissonSampled(0.2, Laplace(0.5)), Laplace(0.02)]
)
def test_single_step_is_inverse(base: Gaussian | Laplace | PoissonSampled) -> None:
    for delta in (1e-2, 1e-6):
        eps = single_epsilon(base, delta)
        assert single_delta(base, eps) == pytest.approx(delta, rel=1e-4)
        assert curve_of(base).epsilon_bounds(delta) == pytest.approx((eps, eps), rel=1e-8)
        assert curve_of(base).delta(eps) == pytest.approx(delta, rel=1e-4)


def test_single_laplace_against_quadrature() -> None:
    # P = Lap(1), Q = Lap(0), scale 2: delta = int (p - e^eps q)_+
    x = np.linspace(-60.0, 60.0, 2_400_001)
    p, q = np.exp(-np.abs(x - 1.0) / 2.0) / 4.0, np.exp(-np.abs(x) / 2.0) / 4.0
    for eps in (0.1, 0.4):
        exact = float(np.maximum(p - math.exp(eps) * q, 0.0).sum() * (x[1] - x[0]))
        assert single_delta(Laplace(2.0), eps) == pytest.approx(exact, rel=1e-5)
        mixed = 0.3 * p + 0.7 * q
        sampled = float(np.maximum(mixed - math.exp(eps / 4) * q, 0.0).sum() * (x[1] - x[0]))
        assert single_delta(PoissonSampled(0.3, Laplace(2.0)), eps / 4) == pytest.approx(sampled, rel=1e-5)


def test_pure_step_has_no_delta_beyond_its_epsilon() -> None:
    assert single_epsilon(PoissonSampled(0.01, Gaussian(1.0)), 0.02) == 0.0
    assert single_delta(Laplace(2.0), 0.5) == 0.0
    far = PoissonSampled(0.01, Gaussian(0.1))  # epsilon beyond 30: the amplified epsilon in its other branch
    assert single_delta(far, single_epsilon(far, 1e-6)) == pytest.approx(1e-6, rel=1e-6)


# --- moments ---------------------------------------------------------------------------------------------


def test_moments_are_the_published_integrals() -> None:
    q, sigma = 0.01, 4.0
    alpha = paper_moments(PoissonSampled(q, Gaussian(sigma)))
    assert alpha.shape == ORDERS.shape == (32,)
    with mp.workdps(20):
        for order in (8, 32):

            def mixture(z: mp.mpf) -> mp.mpf:
                return (1 - q) * mp.npdf(z, 0, sigma) + q * mp.npdf(z, 1, sigma)

            def e1(z: mp.mpf, order: int = order) -> mp.mpf:
                return mp.npdf(z, 0, sigma) * (mp.npdf(z, 0, sigma) / mixture(z)) ** order

            def e2(z: mp.mpf, order: int = order) -> mp.mpf:
                return mixture(z) * (mixture(z) / mp.npdf(z, 0, sigma)) ** order

            points = mp.linspace(-90, 110, 20)
            exact = float(mp.log(max(mp.quad(e, points, method="gauss-legendre") for e in (e1, e2))))
            assert exact <= alpha[order - 1] <= exact + 1e-12


# --- basic, strong, published ----------------------------------------------------------------------------


def test_basic_adds_up() -> None:
    event = Compose((Gaussian(3.0), Laplace(5.0), Laplace(5.0), Laplace(5.0)))
    each = 1e-5 / 4
    expected = gaussian_epsilon(each, 1 / 3.0) + 3 * (0.2 + 2 * math.log1p(-each))
    assert epsilon(event, method="basic") == pytest.approx(expected, rel=1e-9)


def test_advanced_composition_is_the_theorem() -> None:
    eps, count, prime = 0.05, 400, 1e-6
    theorem = eps * math.sqrt(2 * count * math.log(1 / prime)) + count * eps * (math.exp(eps) - 1)
    assert advanced_composition([(eps, count)], prime) == pytest.approx(theorem, rel=1e-11)
    assert advanced_composition([(eps, 100), (eps, 300)], prime) == pytest.approx(theorem, rel=1e-11)
    assert advanced_composition([(2.0, 3)], prime) == pytest.approx(6.0)  # plain sum, where it is smaller
    assert advanced_composition([(800.0, 3)], prime) == 2400.0
    assert advanced_composition([], prime) == 0.0


def test_delta_where_no_epsilon_fits() -> None:
    assert curve_of(Gaussian(0.001), "basic").delta(0.0) == pytest.approx(1.0)
    assert curve_of(Repeat(Laplace(1.0), 50), "strong").delta(1e-3) > 0.99
    assert curve_of(Laplace(1.0), "basic").delta(1.1) <= 1e-299


def test_the_talk_table() -> None:
    rows = {row.name: row for row in talk_table()}
    assert rows["basic"].epsilon == pytest.approx(12_000, rel=1e-3)
    assert rows["basic"].is_bound
    assert rows["strong"].epsilon == pytest.approx(360, rel=1e-3)
    assert rows["basic"].delta == rows["strong"].delta == 0.1
    amplified = rows["strong, amplified by sampling"]
    assert amplified.epsilon == pytest.approx(10, rel=0.05)
    assert amplified.delta == 0.001
    assert not amplified.is_bound
    assert not rows["strong"].is_bound
    assert [row.printed for row in talk_table()] == ["12,000", "360", "10"]


def test_figure_2_as_published_and_as_proven() -> None:
    assert figure2_strong_composition(10_000) == pytest.approx(9.34, rel=2e-3)
    assert figure2_strong_composition(40_000) == pytest.approx(24.22, rel=2e-3)
    assert valid_strong_composition(10_000) == pytest.approx(16.844, abs=1e-3)
    assert valid_strong_composition(10_000) == epsilon(ABADI, method="strong")


@given(log_mu=st.floats(-18.0, 4.0), reach=st.floats(-6.0, 36.0))
@settings(max_examples=100, deadline=None)
def test_gaussian_rounding_is_within_its_allowance_however_small_the_sensitivity(
    log_mu: float, reach: float
) -> None:
    mu = math.exp(log_mu)
    eps = max(0.0, mu * reach + mu * mu / 2.0)
    with mp.workdps(60):
        e, m = mp.mpf(eps), mp.mpf(mu)
        exact = mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
        assume(exact > mp.mpf(10) ** -290)
        lower, upper = curve_of(Gaussian(1.0 / mu)).delta_bounds(eps)
        a = eps / mu - mu / 2.0
        assert abs(mp.mpf(gaussian_delta(eps, mu)) / exact - 1) <= 2.0**-53 * (64.0 + 6.0 * a * a)
        assert lower <= upper
        if 1.0 / (1.0 / mu) == mu:  # the event holds 1/mu, which is rounded too
            assert upper >= exact
