"""From privacy to noise: never too little, and exactly what was asked where that is a short number."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import InvalidInput
from tacit.queries.measures import exact, gaussian_sigma, laplace_scale, rho_within, root_down, rounded_down

positive = st.fractions(Fraction(1, 10**9), 10**6).filter(bool)
sizes = st.integers(1, 1 << 60)


@given(sizes, positive)
def test_a_laplace_scale_costs_what_was_asked_to_twelve_digits(sensitivity: int, epsilon: Fraction) -> None:
    scale = laplace_scale(sensitivity, epsilon)
    assert Fraction(float(scale)) == scale, "a double holds it: the event says what the sampler does"
    assert sensitivity / scale <= epsilon
    assert sensitivity / scale >= epsilon * (1 - Fraction(1, 2**48))


@given(sizes, positive)
def test_a_gaussian_sigma_costs_what_was_asked(squared: int, rho: Fraction) -> None:
    sigma = gaussian_sigma(squared, rho)
    assert Fraction(float(sigma)) == sigma
    assert squared / (2 * sigma**2) <= rho
    assert squared / (2 * sigma**2) >= rho * (1 - Fraction(1, 2**46))


@given(positive)
def test_rounding_down_is_down(value: Fraction) -> None:
    assert value * (1 - Fraction(1, 2**48)) <= rounded_down(value) <= value
    root = root_down(value)
    assert value * (1 - Fraction(1, 2**46)) <= root**2 <= value


SHORT = [0.1, 0.2, 0.25, 0.3, 0.5, 0.7, 1, 1.2, 2]


@pytest.mark.parametrize("epsilon", SHORT)
def test_the_decimal_that_was_written_is_meant(epsilon: float) -> None:
    assert exact("epsilon", epsilon) == Fraction(str(epsilon))


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, 1e-10, 1e7, math.nan, math.inf, "1", None, True])
def test_parameters_out_of_range_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="epsilon"):
        exact("epsilon", value)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1), Fraction(8)])
def test_rho_keeps_epsilon_and_beats_the_textbook(epsilon: Fraction, delta: float) -> None:
    """min over a of rho a + log(1 - 1/a) - log(delta a) / (a - 1): Canonne, Kamath & Steinke, Cor. 13."""
    rho = rho_within(epsilon, delta)

    def at(a: mp.mpf) -> mp.mpf:
        return mp.mpf(float(rho)) * a + mp.log(1 - 1 / a) - mp.log(delta * a) / (a - 1)

    least = min(at(1 + mp.exp(mp.mpf(x) / 50)) for x in range(-200, 800))
    assert least <= epsilon * mp.mpf("1.001"), "the closed form proves nearly the same"
    textbook = float(rho) + 2 * math.sqrt(float(rho) * math.log(1 / delta))
    assert textbook > epsilon


def test_rho_is_not_too_generous() -> None:
    """The Gaussian mechanism of that rho, by its exact curve (Balle & Wang 2018, 1805.06530, Theorem 8)."""
    epsilon, delta = 1.0, 1e-6
    mu = math.sqrt(2 * float(rho_within(Fraction(1), delta)))

    def curve(mu: float) -> mp.mpf:
        return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)

    assert curve(mu) <= delta
    assert curve(1.25 * mu) > delta, "there is not much left to gain"
