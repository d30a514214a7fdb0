"""Inversion along a contour: every term of its error against multi-precision, and the bracket itself."""

from __future__ import annotations

import math
from functools import cache

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.accounting.closed_form import gaussian_delta, gaussian_epsilon
from tacit.accounting.contour import (
    EDGES,
    MANY_PRODUCTS,
    ContourPrice,
    Line,
    Plain,
    _draw_once,
    bounds_along,
    draw,
    log_decay,
    saddle_at_delta,
    saddle_at_epsilon,
)
from tacit.accounting.price import Direction, ErrorBudget, Price
from tacit.accounting.transform import EXTENDED, Mixture, Saddle, TooDear

WAYS: list[Direction] = ["remove", "add"]


@cache
def exact_transform(term: Mixture, tilt: float, u: float) -> tuple[mp.mpf, mp.mpc]:
    """K(c) and phi(u) by Gauss-Legendre quadrature with 30 digits."""
    with mp.workdps(30):
        sigma, shifts, z = mp.mpf(term.sigma), [mp.mpf(s) for s in term.shifts], mp.mpf(tilt)
        shares = [mp.mpf(w) for w in term.shares[1:]]
        shares = [1 - mp.fsum(shares), *shares]
        reach = 13 * sigma + max(shifts)

        def m(x: mp.mpf) -> mp.mpf:
            ratios = [mp.exp(s * (2 * x - s) / (2 * sigma**2)) for s in shifts]
            return mp.fsum(w * ratio for w, ratio in zip(shares, ratios, strict=True))

        def moment(z: mp.mpf | mp.mpc) -> mp.mpc:
            def integrand(x: mp.mpf) -> mp.mpc:
                mixed = m(x) ** (-z if term.direction == "add" else 1 + z)
                return mp.npdf(x, 0, sigma) * mixed * (m(-x) ** -z if term.direction == "replace" else 1)

            far = (1 + tilt) * max(shifts) + 13 * sigma
            ends = (-far, far) if term.direction != "remove" else (-reach, far)
            pieces = 12 + int(abs(mp.im(z)) * float(ends[1] - ends[0]) * term.shifts[-1] / term.sigma**2 / 8)
            return mp.quad(integrand, mp.linspace(*ends, pieces + 1), method="gauss-legendre")

        value = moment(z)
        return mp.log(value), moment(mp.mpc(z, u)) / value


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("sines", [0, 1 << 30])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("q", "sigma", "tilt", "u"),
    [
        (0.01, 4.0, 15.0, 30.0),
        (0.01, 1.0, 6.0, 20.0),
        (0.5, 2.0, 2.0, 8.0),
        (1e-4, 0.6, 4.0, 30.0),
        (0.9, 0.7, 0.5, 5.0),
        (0.99998, 60.0, 430.0, 380.0),  # |phi| is 2e-9
    ],
)
def test_the_transform_is_within_its_error_of_the_exact_one(
    q: float, sigma: float, tilt: float, u: float, way: Direction, sines: int
) -> None:
    term = Mixture.poisson(q, sigma, way)
    tilted = term.tilted(tilt, u)
    value, phi = exact_transform(term, tilt, u)
    log_size, angle, error = (array[-1] for array in tilted.log_characteristic(u / 9.0, 10, sines))
    assert abs(tilted.log_value - value) <= tilted.log_error <= 1e-11
    assert abs(mp.exp(mp.mpc(log_size, angle)) - phi) <= error + 4e-16  # the logarithm's own rounding
    assert error <= 1e-11


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("way", ["remove", "add", "replace"])
@pytest.mark.parametrize(
    ("shares", "shifts", "sigma", "tilt", "u"),
    [
        ((0.9, 0.1), (0.0, 1.0), 1.5, 3.0, 9.0),
        ((0.9, 0.07, 0.03), (0.0, 1.0, 2.0), 3.0, 4.0, 12.0),
        ((0.2, 0.5, 0.3), (0.0, 0.5, 3.0), 2.0, 0.6, 4.0),
        ((0.9985, 1e-3, 5e-4), (0.0, 0.25, 1.5), 0.7, 3.0, 20.0),
    ],
)
def test_the_transform_of_a_mixture_is_within_its_error_of_the_exact_one(
    shares: tuple[float, ...], shifts: tuple[float, ...], sigma: float, tilt: float, u: float, way: Direction
) -> None:
    term = Mixture(shares, shifts, sigma, way)
    value, phi = exact_transform(term, tilt, u)
    for extended in (False, True):
        tilted = term.tilted(tilt, u, extended=extended)
        log_size, angle, error = (array[-1] for array in tilted.log_characteristic(u / 9.0, 10, 1 << 30))
        assert abs(tilted.log_value - value) <= tilted.log_error + 2.0**-53 * abs(value) <= 1e-11
        assert abs(mp.exp(mp.mpc(log_size, angle)) - phi) <= error + 4e-16
        assert error <= 1e-11
    bound = log_decay(term, tilt, float(value))
    assert np.log(float(abs(phi))) <= bound[np.searchsorted(EDGES, u, side="right") - 1]


@pytest.mark.thorough(cases=1)
@pytest.mark.untraced
@pytest.mark.skipif(not EXTENDED, reason="long doubles are doubles here")
@pytest.mark.parametrize("sines", [0, 1 << 30])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("q", "sigma", "tilt", "u"), [(1e-5, 2.0, 24.0, 60.0), (3e-4, 4.0, 214.875, 900.0), (0.3, 1.0, 3.0, 4.0)]
)
def test_long_doubles_keep_what_doubles_round_away(
    q: float, sigma: float, tilt: float, u: float, way: Direction, sines: int
) -> None:
    term = Mixture.poisson(q, sigma, way)
    tilted, plain = (term.tilted(tilt, u, extended=extended) for extended in (True, False))
    value, phi = exact_transform(term, tilt, u)
    log_size, angle, error = (array[-1] for array in tilted.log_characteristic(u / 9.0, 10, sines))
    assert abs(tilted.log_value - value) <= tilted.log_error + 2.0**-53 * abs(value)
    assert tilted.log_error <= 1e-3 * plain.log_error
    with mp.workdps(30):
        exact = mp.log(phi)
        allowed = 1.01 * error / abs(phi) + 2.0**-52 * abs(exact)
        assert abs(mp.mpc(log_size, angle) - exact) <= allowed
    assert error <= 1e-3 * plain.log_characteristic(u / 9.0, 10, sines)[2][-1]


@pytest.mark.untraced
@settings(max_examples=25, deadline=None)
@given(
    log_q=st.floats(math.log(1e-6), math.log(0.95)),
    log_sigma=st.floats(math.log(0.3), math.log(30.0)),
    reach=st.floats(0.1, 30.0),
    fine=st.booleans(),
    way=st.sampled_from([*WAYS, "replace"]),
    rows=st.sampled_from([1, 2, 3, 8]),
)
def test_no_characteristic_function_is_above_its_bound(
    log_q: float, log_sigma: float, reach: float, fine: bool, way: Direction, rows: int
) -> None:
    q, tilt = math.exp(log_q), reach * math.exp(log_sigma) / 4.0
    shares = tuple(math.comb(rows, k) * q**k * (1.0 - q) ** (rows - k) for k in range(rows + 1))
    term = Mixture(shares, tuple(map(float, range(rows + 1))), math.exp(log_sigma), way)
    bound = log_decay(term, tilt, term.tilted(tilt, 0.0).log_value, fine=fine)
    for last in np.geomspace(0.01, 300.0 * term.sigma / q**0.5, 12):
        try:
            tilted = term.tilted(tilt, float(last))
        except TooDear:
            break
        u = last / 80.0 * np.arange(81.0)
        log_size, _, error = tilted.log_characteristic(last / 80.0, 81, 1 << 16)
        u, log_size, error = u[40:], log_size[40:], error[40:]
        above = bound[np.searchsorted(EDGES, u, side="right") - 1]
        assert np.all(np.exp(log_size) <= np.exp(above) + error)
    assert np.all(bound <= 0.0)
    assert bound[-1] < math.log(0.5)


def plain_line(mu: float, delta: float) -> tuple[Line, Saddle, np.ndarray]:
    counts = np.array([mu * mu])
    saddle = saddle_at_delta((Plain(),), counts, math.log(delta))
    line = draw((Plain(),), counts, saddle)
    return line, saddle, counts[None]


@given(mu=st.floats(0.05, 20.0), log_delta=st.floats(math.log(1e-15), math.log(0.05)))
@settings(max_examples=60, deadline=None)
def test_a_gaussian_is_inverted_to_its_closed_form(mu: float, log_delta: float) -> None:
    line, saddle, counts = plain_line(mu, math.exp(log_delta))
    lower, upper = line.epsilon(counts, log_delta, np.array([saddle.epsilon]))
    if upper[0] > 0.0:
        truth = gaussian_epsilon(math.exp(log_delta), mu)
        assert lower[0] <= truth * (1 + 2e-12) + 1e-12
        assert upper[0] >= truth * (1 - 2e-12) - 1e-12
        assert upper[0] - lower[0] <= 1e-7 * max(upper[0], mu)


def test_the_error_of_the_trapezoid_rule_is_one_sided_and_the_bound_on_it_is_sharp() -> None:
    # c = 1, h = 0.8, epsilon = 1, mu = 1: the rule is 3.8794e-4 too large, the bound on that 3.8835e-4
    line, _, counts = plain_line(1.0, 1e-3)
    wide = Line(
        1.0,
        0.8,
        0.8 * np.arange(60.0),
        -np.square(0.8 * np.arange(60.0))[None] / 2.0,
        0.8 * np.arange(60.0)[None] * 1.5,
        np.zeros((1, 60)),
        np.array([1.0]),
        np.array([0.0]),
        line.decay,
        tuple((c, np.array([c * (c + 1.0) / 2.0])) for c in (2.0, 4.0, 6.0, 8.0)),
    )
    lower, upper = (math.exp(float(bound[0])) for bound in wide.log_delta(counts, np.array([1.0])))
    truth = gaussian_delta(1.0, 1.0)
    assert upper - truth == pytest.approx(3.8794e-4, rel=1e-4)
    assert upper - lower == pytest.approx(3.8835e-4, rel=1e-3)
    assert lower <= truth


class NoGrid(Price):
    """A price that must not be asked."""

    def epsilon(self, delta: float) -> float:
        raise AssertionError("the grid was asked")

    def delta(self, epsilon: float) -> float:
        raise AssertionError("the grid was asked")

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        raise AssertionError("the grid was asked")


def sampled_price(q: float, sigma: float, steps: float) -> ContourPrice:
    return ContourPrice({way: (Mixture.poisson(q, sigma, way),) for way in WAYS}, (steps,), NoGrid())


# 30 and more digits by the same integral in multi-precision (mpmath), with other nodes
TRUTHS = [
    (0.01, 4.0, 1e4, 1e-5, 0.94686680076436),
    (0.01, 1.0, 1e4, 1e-5, 6.18771238997152),
]


@pytest.mark.parametrize(("q", "sigma", "steps", "delta", "truth"), TRUTHS)
def test_brackets_are_narrow_around_the_truth(
    q: float, sigma: float, steps: float, delta: float, truth: float
) -> None:
    lower, upper = sampled_price(q, sigma, steps).epsilon_bounds(delta)
    assert lower <= truth * (1 + 1e-13)
    assert upper >= truth * (1 - 1e-13)
    assert upper / lower - 1 <= 1e-9


@pytest.mark.untraced
@settings(max_examples=8, deadline=None)
@given(
    log_q=st.floats(math.log(1e-3), math.log(0.5)),
    log_sigma=st.floats(math.log(0.7), math.log(20.0)),
    log_steps=st.floats(math.log(100.0), math.log(1e5)),
    log_delta=st.floats(math.log(1e-12), math.log(1e-3)),
)
def test_brackets_are_within_one_in_a_million(
    log_q: float, log_sigma: float, log_steps: float, log_delta: float
) -> None:
    q, steps = math.exp(log_q), float(round(math.exp(log_steps)))
    price = sampled_price(q, math.exp(log_sigma), steps)
    wanted = 1e-6 if q * steps >= 1.0 else 1e-5  # a record that hardly ever takes part costs digits
    try:
        found = price._lines(math.exp(log_delta)).values()
    except TooDear:
        return
    lower, upper = max(drawn.lower for drawn in found), max(drawn.upper for drawn in found)
    if lower > 1e-3:
        assert 0.0 <= upper / lower - 1.0 <= wanted


def test_what_is_wrong_with_the_transform_moves_the_bracket_off_the_truth() -> None:
    """The oracle sees a planted bug: a sampling rate that is off by one in ten thousand."""
    q, sigma, steps, delta, truth = TRUTHS[0]
    lower, upper = sampled_price(q * 0.9999, sigma, steps).epsilon_bounds(delta)
    assert upper < truth
    assert lower < upper


@pytest.mark.parametrize(
    ("q", "sigma", "steps"), [(0.01, 4.0, 1e4), (0.5, 2.0, 50.0), (0.99, 3.0, 200.0), (1e-3, 1.0, 1e5)]
)
def test_the_larger_direction_is_found_in_whatever_order(q: float, sigma: float, steps: float) -> None:
    usual = sampled_price(q, sigma, steps)
    swapped = ContourPrice({way: usual.ways[way] for way in ("add", "remove")}, usual.counts, NoGrid())
    both = usual._lines(1e-6).values()
    larger = max(drawn.lower for drawn in both), max(drawn.upper for drawn in both)
    assert usual.epsilon_bounds(1e-6) == swapped.epsilon_bounds(1e-6) == larger


def test_lines_serve_the_next_steps_and_every_answer_is_certified() -> None:
    counts, before = np.arange(1000.0, 1200.0)[:, None], _draw_once.cache_info().misses
    lower, upper = bounds_along((Mixture.poisson(0.01, 1.0, "remove"),), counts, math.log(1e-5))
    assert _draw_once.cache_info().misses == before + 1
    assert np.all((lower <= upper) & (upper - lower <= 1e-7 * upper))
    assert np.all(np.diff(upper) > 0.0)
    for index in (0, 57, 199):
        fresh = sampled_price(0.01, 1.0, 1000.0 + index).epsilon_bounds(1e-5)
        assert fresh[0] <= upper[index]
        assert lower[index] <= fresh[1]


def test_the_profile_is_a_profile() -> None:
    price = sampled_price(0.01, 2.0, 2000.0)
    epsilons = np.linspace(0.0, 3.0, 40)
    deltas = price.deltas(epsilons)
    assert np.all(np.diff(deltas) < 0.0)
    assert np.all(np.diff(deltas, 2) > -1e-12)  # convex: a mixture of hockey sticks
    for epsilon, delta in zip(epsilons[1::8], deltas[1::8], strict=True):
        assert price.epsilon(float(delta)) == pytest.approx(float(epsilon), abs=1e-6)


def test_the_direction_of_adding_never_loses_more_than_its_largest_loss() -> None:
    price = ContourPrice({"add": (Mixture.poisson(0.01, 1.0, "add"),)}, (100.0,), NoGrid())
    assert price.delta(-100.0 * math.log1p(-0.01) + 0.01) <= 1e-20
    assert price.delta(2.0) <= 1e-200


def test_the_budget_of_errors_explains_the_width() -> None:
    price = sampled_price(0.01, 4.0, 1e4)
    budget = price.error_budget(1e-5)
    assert isinstance(budget, ErrorBudget)
    assert set(budget.parts) == {"discretisation", "truncation", "rounding"}
    assert budget.width == pytest.approx(sum(budget.parts.values()), rel=0.5)


def test_a_saddle_at_epsilon_is_where_its_delta_is() -> None:
    terms, counts = (Mixture.poisson(0.01, 4.0, "remove"),), np.array([1e4])
    there = saddle_at_epsilon(terms, counts, 0.946867)
    assert there.log_delta == pytest.approx(math.log(1e-5), abs=0.1)


@pytest.mark.parametrize("drawn_at", [600.0, 300.0, 30.0])
def test_far_from_its_own_epsilon_a_line_says_nothing_or_the_truth(drawn_at: float) -> None:
    """Sums over periods may be beyond all floats there; then nothing is left of the lower bound."""
    terms, counts = (Mixture.poisson(0.2, 0.5, "remove"),), np.array([40.0])
    epsilons = np.linspace(-5.0, 600.0, 40)
    line = draw(terms, counts, saddle_at_epsilon(terms, counts, drawn_at), MANY_PRODUCTS)
    lower, upper = line.log_delta(np.tile(counts, (epsilons.size, 1)), epsilons)
    for epsilon, below, above in zip(epsilons, lower, upper, strict=True):
        near = draw(terms, counts, saddle_at_epsilon(terms, counts, max(epsilon, 0.5)), MANY_PRODUCTS)
        least, most = near.log_delta(counts[None], np.array([epsilon]))
        assert below <= min(0.0, most[0]) + 1e-9
        assert above >= least[0] - 1e-9
