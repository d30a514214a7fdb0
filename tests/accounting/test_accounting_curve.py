"""The curve's further answers: trade-off function, what an attacker gains, groups, compositions."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from priced import curve_of
from scipy.stats import norm

from tacit.accounting import PrivacyCurve
from tacit.accounting.price import ErrorBudget, GroupPrice, Price, SumPrice
from tacit.accounting.tradeoff import false_negative_rates, largest_loss
from tacit.errors import InvalidInput, UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    Compose,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GroupPrivacy,
    Laplace,
    PoissonSampled,
    Repeat,
)

RATES = np.concatenate([[0.0, 1e-9, 1e-5, 1e-3], np.linspace(0.01, 0.99, 99), [0.999, 1 - 1e-6, 1.0]])
DP_SGD = Repeat(PoissonSampled(0.02, Gaussian(1.5)), 200)


def gaussian_trade_off(mu: float, rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """G_mu(a) = Phi(Phi^-1(1 - a) - mu), in the tails by the complement."""
    return np.asarray(norm.cdf(norm.isf(rates) - mu))


# --- the trade-off function ------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.003, 0.1, 1.0, 3.0, 12.0])
def test_trade_off_of_a_gaussian_is_met_from_below(mu: float) -> None:
    exact = gaussian_trade_off(mu, RATES)
    found = curve_of(Gaussian(1.0 / mu)).false_negative_rate(RATES)
    assert (found <= exact).all(), "f must never promise more misses than there are"
    np.testing.assert_allclose(found, exact, rtol=0.0, atol=1e-7)
    inside = (RATES > 0.0) & (RATES < 0.99) & (exact > 1e-6)  # true positives to relative accuracy
    np.testing.assert_allclose(1.0 - found[inside], 1.0 - exact[inside], rtol=0.02, atol=1e-12)


def test_trade_off_of_laplace() -> None:
    """Lap(0, b) against Lap(1, b), by the likelihood ratio: three pieces (Dong, Roth & Su 2019)."""
    ratio = math.exp(1.0 / 1.5)
    exact = np.where(
        0.5 / ratio > RATES,
        1.0 - ratio * RATES,
        np.where(RATES < 0.5, 0.25 / (ratio * np.maximum(RATES, 1e-300)), (1.0 - RATES) / ratio),
    )
    found = curve_of(Laplace(1.5)).false_negative_rate(RATES)
    assert (found <= exact + 1e-15).all()
    np.testing.assert_allclose(found, exact, rtol=0.0, atol=1e-7)


@pytest.mark.parametrize("event", [Gaussian(0.7), Laplace(0.3), DP_SGD, PoissonSampled(0.1, Gaussian(1.0))])
@pytest.mark.parametrize("method", ["pld", "basic"])
def test_trade_off_is_convex_decreasing_symmetric_and_between_the_trivial_curves(
    event: Event, method: str
) -> None:
    rates = np.linspace(0.0, 1.0, 21)
    curve = curve_of(event, method)
    f = curve.false_negative_rate(rates)
    assert (np.diff(f) <= 1e-12).all()
    assert (np.diff(f, 2) >= -1e-12).all(), "convex"
    assert (f <= 1.0 - rates).all()
    assert (f >= 0.0).all()
    for eps in (0.0, 0.5, 2.0):  # each (eps, delta) gives two lines below f
        delta = curve.delta(eps)
        lines = np.maximum(1.0 - delta - math.exp(eps) * rates, math.exp(-eps) * (1.0 - delta - rates))
        assert (f >= lines - 2e-6).all()
    again = curve.false_negative_rate(np.clip(f, 0.0, 1.0))
    assert (again <= rates + 2e-6).all(), "f(f(a)) <= a: swapping the roles gives the same curve"


def test_nothing_released_and_everything_released() -> None:
    rates = np.linspace(0.0, 1.0, 11)
    np.testing.assert_allclose(curve_of(Compose(())).false_negative_rate(rates), 1.0 - rates, atol=1e-11)
    bare = curve_of(Gaussian(1e-4))
    assert bare.false_negative_rate(0.5) == 0.0
    assert bare.advantage() == 1.0
    assert bare.success(0.3) == 1.0
    assert bare.posterior(0.3, delta=1e-6) == pytest.approx(1.0)
    assert bare.posterior(0.0, delta=1e-6) == 0.0


def test_the_lines_are_those_of_the_deltas_that_are_looked_at() -> None:
    """A planted bug, delta too small at one place only, would show: the search takes no delta on trust."""
    mu = 1.0

    def exact(epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(
            norm.cdf(mu / 2 - epsilons / mu) - np.exp(epsilons) * norm.cdf(-mu / 2 - epsilons / mu)
        )

    true = false_negative_rates(exact, lambda delta: 7.5, RATES)
    assert (true <= gaussian_trade_off(mu, RATES)).all()
    wrong = false_negative_rates(lambda eps: 0.9 * exact(eps), lambda delta: 7.5, RATES)
    assert (wrong > gaussian_trade_off(mu, RATES) + 1e-3).any()
    assert false_negative_rates(exact, lambda delta: math.inf, np.array([0.3]))[0] == pytest.approx(
        gaussian_trade_off(mu, np.array([0.3]))[0], abs=1e-6
    )


# --- advantage, success, posterior -----------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.01, 1.0, 5.0])
def test_advantage_and_success_of_a_gaussian(mu: float) -> None:
    curve = curve_of(Gaussian(1.0 / mu))
    assert curve.advantage() == pytest.approx(2.0 * norm.cdf(mu / 2.0) - 1.0, rel=1e-11)
    assert curve.success(0.5) == pytest.approx(norm.cdf(mu / 2.0), rel=1e-11)


@pytest.mark.parametrize("event", [Gaussian(1.0), Laplace(0.8)])
def test_success_is_that_of_the_best_test(event: Event) -> None:
    """Bayes' risk is the least of p f(a) + (1 - p) a, found by brute force."""
    curve = curve_of(event)
    rates = np.linspace(0.0, 1.0, 20_001)
    missed = curve.false_negative_rate(rates)
    priors = np.array([[0.0, 0.03], [0.3, 0.5], [0.8, 1.0]])
    found = curve.success(priors)
    for prior, success in zip(priors.ravel(), found.ravel(), strict=True):
        assert success == pytest.approx(1.0 - (prior * missed + (1.0 - prior) * rates).min(), abs=1e-6)
        assert success >= max(prior, 1.0 - prior)
    assert found.shape == priors.shape


def test_posterior_of_a_gaussian_is_exceeded_as_rarely_as_stated() -> None:
    """Under P the loss is N(mu^2/2, mu^2)."""
    for mu, delta in ((0.5, 1e-6), (2.0, 1e-3)):
        after = curve_of(Gaussian(1.0 / mu)).posterior(0.2, delta=delta)
        loss = math.log(after / (1.0 - after)) - math.log(0.2 / 0.8)
        exact = mu * mu / 2.0 + mu * float(norm.isf(delta))
        assert exact <= loss <= exact * 1.2
        assert norm.sf((loss - mu * mu / 2.0) / mu) <= delta


def test_posterior_of_a_pure_mechanism_is_bayes_rule() -> None:
    priors = np.array([0.0, 0.01, 0.5, 1.0])
    after = curve_of(Laplace(0.5)).posterior(priors, delta=1e-12)
    exact = priors * math.e**2 / (priors * math.e**2 + 1.0 - priors)
    assert (after >= exact * (1.0 - 1e-15)).all()
    np.testing.assert_allclose(after, exact, rtol=1e-8)


def test_largest_loss_where_no_epsilon_is_finite() -> None:
    assert largest_loss(lambda deltas: np.full(deltas.shape, math.inf), 1e-6) == math.inf
    assert largest_loss(lambda deltas: np.zeros(deltas.shape), 1e-299) >= 0.0


# --- arrays, bounds ---------------------------------------------------------------------------------------


def test_numbers_and_arrays_give_the_same() -> None:
    curve = curve_of(Laplace(2.0))
    grid = np.array([[1e-3, 0.1], [0.3, 0.9]])
    asked: list[tuple[Callable[..., object], Callable[..., object]]] = [
        (curve.epsilon, curve.epsilon),
        (curve.delta, curve.delta),
        (curve.false_negative_rate, curve.false_negative_rate),
        (curve.success, curve.success),
        (lambda v: curve.posterior(v, delta=1e-3), lambda v: curve.posterior(v, delta=1e-3)),
    ]
    for one, many in asked:
        answers = np.asarray(many(grid))
        assert answers.shape == grid.shape
        for value, answer in zip(grid.ravel(), answers.ravel(), strict=True):
            alone = one(float(value))
            assert isinstance(alone, float)
            assert answer == pytest.approx(alone, abs=1e-9)
    for bounds in (curve.epsilon_bounds, curve.delta_bounds):
        lower, upper = bounds(grid)
        assert lower.shape == upper.shape == grid.shape
        assert [(a, b) for a, b in zip(lower.ravel(), upper.ravel(), strict=True)] == [
            bounds(float(value)) for value in grid.ravel()
        ]
    assert curve.epsilon(np.zeros((0, 3)) + 0.1).shape == (0, 3)


BAD: list[tuple[str, Callable[[PrivacyCurve], object]]] = [
    ("epsilon must be", lambda c: c.delta_bounds(-0.1)),
    ("epsilon must be", lambda c: c.delta(np.array([math.inf]))),
    ("false_positive_rate must be", lambda c: c.false_negative_rate(1.1)),
    ("prior must be", lambda c: c.success(-0.1)),
    ("prior must be", lambda c: c.posterior(np.array([2.0]), delta=1e-3)),
    ("delta must be", lambda c: c.posterior(0.5, delta=0.0)),
    ("delta must be", lambda c: c.error_budget(1.0)),
    ("delta must be", lambda c: c.by_direction(0.0)),
    ("size must be an integer", lambda c: c.group(0)),
    ("size must be an integer", lambda c: c.group(2.5)),  # type: ignore[arg-type]
    ("must be a PrivacyCurve", lambda c: c.compose(Gaussian(1.0))),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("words", "ask"), BAD)
def test_bad_questions_are_refused(words: str, ask: Callable[[PrivacyCurve], object]) -> None:
    with pytest.raises(InvalidInput, match=words):
        ask(curve_of(Gaussian(1.0)))


@pytest.mark.parametrize("event", [Gaussian(0.8), Laplace(2.0), PoissonSampled(0.1, Gaussian(1.0))])
@pytest.mark.parametrize("eps", [0.0, 0.05, 0.3])
def test_delta_bounds_bracket_the_closed_form(event: Event, eps: float) -> None:
    """The hockey-stick divergence by quadrature in 30 digits."""
    with mp.workdps(30):
        exact = float(hockey_stick(event, eps))
    lower, upper = curve_of(event).delta_bounds(eps)
    assert lower <= exact <= upper
    assert upper == pytest.approx(exact, rel=1e-8)
    assert lower == pytest.approx(exact, rel=1e-3)


def hockey_stick(event: Event, eps: float) -> mp.mpf:
    """int (p - e^eps q)_+ with p the density where the record may take part."""
    scale = 1.0
    match event:
        case PoissonSampled(rate, Gaussian(sigma)):
            rate_, width = mp.mpf(rate), mp.mpf(sigma)
        case Gaussian(sigma):
            rate_, width = mp.mpf(1), mp.mpf(sigma)
        case Laplace(scale):
            rate_, width = mp.mpf(1), None
        case _:
            raise AssertionError(event)

    def density(x: mp.mpf, at: int) -> mp.mpf:
        if width is not None:
            return mp.npdf(x, at, width)
        return mp.exp(-abs(x - at) / mp.mpf(scale)) / (2 * mp.mpf(scale))

    def excess(x: mp.mpf) -> mp.mpf:
        return (1 - rate_) * density(x, 0) + rate_ * density(x, 1) - mp.exp(eps) * density(x, 0)

    low = mp.findroot(excess, (0.0, 1.0), solver="illinois") if excess(mp.mpf(0)) < 0 else mp.mpf(-60)
    if width is None:  # kinks at 0 and 1
        return mp.quad(excess, [low, max(low, mp.mpf(1)), 90])
    while excess(low - 1) > 0 and low > -60:
        low -= 1
    if excess(mp.mpf(0)) >= 0:
        low = mp.findroot(excess, (-3.0, 0.5), solver="illinois")
    return mp.quad(excess, mp.linspace(low, low + 14 * width + 2, 9))


def test_delta_bounds_of_a_long_composition_hold_the_bracket_of_epsilon() -> None:
    curve = curve_of(DP_SGD)
    lower, upper = curve.delta_bounds(1.0)
    assert 0.0 < lower <= upper
    assert lower > 0.99 * upper
    assert curve.epsilon_bounds(lower)[0] >= 1.0 - 1e-9, "there, even the lower end is above epsilon"
    assert curve_of(DP_SGD, "rdp").delta_bounds(1.0)[0] == 0.0, "RDP knows no lower end"


@pytest.mark.parametrize("method", ["pld", "rdp", "strong"])
def test_curve_and_inverse_agree(method: str) -> None:
    curve = curve_of(DP_SGD, method)
    for delta in (1e-3, 1e-7):
        assert curve.delta(curve.epsilon(delta)) == pytest.approx(delta, rel=1e-2)


def test_error_budget_holds_the_bracket() -> None:
    curve = curve_of(Laplace(1.0))
    budget = curve.error_budget(1e-3)
    assert isinstance(budget, ErrorBudget)
    assert (budget.lower, budget.upper) == curve.epsilon_bounds(1e-3)
    assert budget.width == budget.upper - budget.lower


# --- groups -----------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(size=st.integers(2, 6), sigma=st.floats(1.0, 30.0), log_delta=st.floats(-20.0, -3.0))
def test_group_of_a_gaussian_is_above_the_exact_one(size: int, sigma: float, log_delta: float) -> None:
    """k records move the sum by k Delta at most, which k/sigma prices exactly."""
    delta = math.exp(log_delta)
    group = curve_of(Gaussian(sigma)).group(size)
    exact = curve_of(Gaussian(sigma / size))
    assert group.records == size
    lower, upper = group.epsilon_bounds(delta)
    assert lower <= exact.epsilon(delta) <= upper == group.epsilon(delta)
    assert group.delta(0.7) >= exact.delta(0.7)
    assert (group.false_negative_rate(RATES) <= exact.false_negative_rate(RATES) + 1e-6).all()


def test_group_of_a_pure_mechanism_is_exact() -> None:
    """No delta: k records cost k epsilons, not one part more."""
    assert curve_of(Laplace(4.0)).group(3).epsilon(1e-250) == pytest.approx(0.75, rel=1e-6)
    assert curve_of(Laplace(4.0)).group(3).delta(0.7500001) == 0.0


def test_group_by_the_lemma() -> None:
    """Vadhan 2017, Lemma 2.2, written out; the sum of the deltas times powers of e^eps."""
    one = curve_of(Gaussian(2.0))
    four = GroupPrice(one._price, 4)
    for each in (0.4, 1.1):
        steps = one.delta(each) * sum(math.exp(i * each) for i in range(4))
        if steps < 1.0:
            assert four.delta(4 * each) == pytest.approx(min(steps, 4 * one.delta(0.0)), rel=1e-9)
    assert four.delta(0.0) == pytest.approx(4 * one.delta(0.0), rel=1e-9)


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_a_group_of_a_gaussian_costs_no_more_than_its_event(sigma: float) -> None:
    """k records move the sum by k: mu grows k-fold, and delta(eps) is known."""
    mu = 3.0 * math.sqrt(10.0) / sigma
    group = curve_of(Repeat(Gaussian(sigma), 10)).group(3)
    epsilon = group.epsilon(1e-6)
    with mp.workdps(30):
        delta = mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)
    assert float(delta) == pytest.approx(1e-6, rel=1e-6)
    assert group.epsilon(1e-6) == curve_of(GroupPrivacy(Repeat(Gaussian(sigma), 10), 3)).epsilon(1e-6)


def test_a_group_of_a_sampled_gaussian_costs_no_more_than_its_event() -> None:
    event = Repeat(PoissonSampled(0.01, Gaussian(1.0)), 1000)
    group, one = curve_of(event).group(3), GroupPrice(curve_of(event)._price, 3)
    assert group.epsilon(1e-6) == curve_of(GroupPrivacy(event, 3)).epsilon(1e-6) < 0.9 * one.epsilon(1e-6)


def test_a_group_of_many_claims_is_the_lesser_of_both_bounds() -> None:
    """Composition, then the lemma, or the lemma, then composition: neither is always the lesser."""
    curve = curve_of(Repeat(ApproximateDP(0.5, 1e-9), 50))
    group = curve.group(4)
    assert group.epsilon(1e-5) <= GroupPrice(curve._price, 4).epsilon(1e-5)
    assert group.epsilon(1e-5) <= curve_of(GroupPrivacy(curve.event, 4)).epsilon(1e-5)


# --- the largest privacy loss ----------------------------------------------------------------------------


def laplace_overlap(scales: tuple[float, ...], epsilon: float) -> float:
    """Compute E (1 - e^{eps - L})_+ of Laplace noises by sums over a fine grid of losses, which it splits."""
    mesh = 2.0**-10
    total, low = np.ones(1), 0.0
    for scale in scales:
        top = 1.0 / scale
        cells = round(2 * top / mesh)
        places = mesh * np.arange(cells + 1) - top
        edges = np.concatenate([places[:1], (places[1:] + places[:-1]) / 2.0, places[-1:]])
        masses = np.diff(np.exp(-(top - edges) / 2.0)) / 2.0  # density e^{-(top - l) / 2} / 4
        masses[-1] += 0.5
        masses[0] += math.exp(-top) / 2.0
        total, low = np.convolve(total, masses), low - top
    losses = low + mesh * np.arange(total.size)
    return float(np.dot(total, np.maximum(-np.expm1(epsilon - losses), 0.0)))


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("method", ["pld", "best", "optimal", "basic", "strong"])
@pytest.mark.parametrize(
    ("events", "most"),
    [
        ((Laplace(1.0), Laplace(2.0)), 1.5),
        ((Repeat(Laplace(1.0), 3), Repeat(Laplace(2.0), 2)), 4.0),
        ((DiscreteLaplace(1.0), DiscreteLaplace(2.0)), 1.5),
        ((ApproximateDP(0.1), ApproximateDP(0.2)), 0.3),
        ((ExponentialMechanism(0.7), Laplace(2.0)), 1.2),
    ],
)
def test_delta_is_0_at_the_largest_loss(method: str, events: tuple[Event, ...], most: float) -> None:
    curve = curve_of(Compose(events), method=method)
    assert curve.delta(most) == 0.0 < curve.delta(0.99 * most)
    assert curve.delta(np.array([most, 2.0 * most])).tolist() == [0.0, 0.0]
    assert curve.epsilon(0.0) == most
    assert curve.epsilon(np.array([0.0, 1e-250])).tolist() == [most, pytest.approx(most)]
    assert curve.group(3).epsilon(0.0) == pytest.approx(3.0 * most, rel=1e-11)


@pytest.mark.parametrize(
    "events", [(Laplace(1.0), Laplace(2.0)), (DiscreteLaplace(1.0), DiscreteLaplace(2.0))]
)
def test_delta_falls_up_to_the_largest_loss(events: tuple[Event, ...]) -> None:
    curve = curve_of(Compose(events))
    epsilons = [1.3, 1.499, 1.5 - 1e-6, 1.5 - 1e-12, 1.5]
    deltas = [curve.delta(epsilon) for epsilon in epsilons]
    assert deltas == sorted(deltas, reverse=True)
    if isinstance(events[0], Laplace):
        assert deltas[0] == pytest.approx(laplace_overlap((1.0, 2.0), 1.3), rel=1e-3)
        for epsilon, delta in zip(epsilons[1:], deltas[1:], strict=True):
            truth = -math.expm1(epsilon - 1.5) / 4.0  # both losses are the largest ones
            assert delta >= truth * (1.0 - 1e-9)


@pytest.mark.parametrize("method", ["pld", "best", "optimal", "basic", "strong"])
def test_claims_compose_exactly_at_their_largest_loss(method: str) -> None:
    """Nothing leaks with probability .9 .8 = .72; then no loss is above 3."""
    curve = curve_of(Compose((ApproximateDP(1.0, 0.1), ApproximateDP(2.0, 0.2))), method=method)
    assert curve.epsilon(0.28) == 3.0
    assert curve.delta(3.0) == curve.delta(3.5) == pytest.approx(0.28, rel=1e-15)
    assert curve.delta(2.999) >= 0.28
    many = curve_of(Repeat(ApproximateDP(0.1, 1e-6), 1000), method=method)
    with mp.workdps(30):
        truth = 1 - (1 - mp.mpf("1e-6")) ** 1000
    assert truth <= many.delta(100.0) <= truth * (1.0 + 1e-8)
    with pytest.raises(InvalidInput, match=r"\(0, 1\)"):
        many.epsilon(0.0)


def test_no_delta_is_a_negative_0() -> None:
    for event in (Laplace(1.0), Compose((Laplace(1.0), Laplace(2.0))), PoissonSampled(0.1, Laplace(1.0))):
        curve = curve_of(event)
        for epsilon in (-0.0, 1.0, 5.0):
            assert math.copysign(1.0, curve.delta(epsilon)) == 1.0
        assert not np.signbit(curve.delta(np.array([-0.0, 1.0, 5.0]))).any()


def test_groups_of_groups_multiply_and_one_is_itself() -> None:
    curve = curve_of(Gaussian(20.0))
    assert curve.group(1) is curve
    assert curve.group(2).group(3).records == 6
    assert curve.group(2).group(3).epsilon(1e-6) >= curve_of(Gaussian(20.0 / 6)).epsilon(1e-6)


def test_group_of_what_protects_nothing_is_infinite_and_says_so() -> None:
    group = curve_of(Gaussian(1e-3)).group(1000)
    assert group.epsilon(1e-5) > 1e8
    assert 0.0 <= group.delta(1.0) <= 1.0
    assert GroupPrice(Endless(), 2).epsilon(1e-5) == math.inf


@dataclass(frozen=True)
class Endless(Price):
    """Proves nothing at all."""

    def epsilon(self, delta: float) -> float:
        return math.inf

    def delta(self, epsilon: float) -> float:
        return 1.0

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        return 0.0, math.inf


def test_a_curve_that_proves_nothing_promises_nothing() -> None:
    curve = PrivacyCurve("none", Adjacency.ADD_REMOVE, Gaussian(1.0), Endless())
    assert curve.delta_bounds(1.0) == (0.0, 1.0)
    assert (curve.false_negative_rate(RATES) == 0.0).all()
    assert (curve.advantage(), curve.success(0.1), curve.posterior(0.1, delta=1e-5)) == (1.0, 1.0, 1.0)
    assert curve.error_budget(1e-5).width == math.inf


# --- composition ------------------------------------------------------------------------------------------

parts = st.one_of(
    st.builds(Gaussian, st.floats(1.0, 20.0)),
    st.builds(Laplace, st.floats(1.0, 20.0)),
    st.builds(PoissonSampled, st.floats(0.01, 0.5), st.builds(Gaussian, st.floats(0.8, 5.0))),
)


@pytest.mark.untraced
@settings(max_examples=4, deadline=None)
@given(events=st.lists(parts, min_size=3, max_size=3), log_delta=st.floats(-15.0, -4.0))
def test_composition_in_any_order_costs_the_same_and_no_less_than_its_parts(
    events: list[Event], log_delta: float
) -> None:
    delta = math.exp(log_delta)
    a, b, c = (curve_of(event) for event in events)
    one = a.compose(b).compose(c)
    assert one.epsilon(delta) == pytest.approx(c.compose(a.compose(b)).epsilon(delta), rel=1e-9, abs=1e-12)
    assert one.epsilon(delta) == curve_of(Compose(tuple(events))).epsilon(delta)
    for part in (a, b, c):  # to forget the others is post-processing
        assert one.epsilon(delta) >= part.epsilon_bounds(delta)[0]
    assert one.epsilon(delta) <= sum(part.epsilon(delta / 3) for part in (a, b, c)) * (1 + 1e-3) + 1e-9


def test_composition_of_gaussians_is_exact() -> None:
    composed = curve_of(Gaussian(3.0)).compose(curve_of(Gaussian(4.0)))
    assert composed.epsilon(1e-6) == pytest.approx(curve_of(Gaussian(2.4)).epsilon(1e-6), rel=1e-11)
    assert composed.event == Compose((Gaussian(3.0), Gaussian(4.0)))


def test_composition_between_methods_is_the_sum_and_holds() -> None:
    first, second = curve_of(Gaussian(5.0), "rdp"), curve_of(Laplace(3.0), "pld")
    both, turned = first.compose(second), second.compose(first)
    exact = curve_of(Compose((Gaussian(5.0), Laplace(3.0))))
    delta = 1e-8
    assert both.epsilon(delta) >= exact.epsilon_bounds(delta)[0]
    assert both.epsilon(delta) == pytest.approx(turned.epsilon(delta), rel=1e-9)
    assert both.epsilon(delta) <= first.epsilon(delta / 2) + second.epsilon(delta / 2) + 1e-9
    assert both.epsilon_bounds(delta)[0] <= exact.epsilon(delta)
    assert both.delta(1.0) >= exact.delta_bounds(1.0)[0]
    assert both.method == "rdp + pld"
    thrice = both.compose(turned)
    assert thrice.epsilon(1e-5) >= curve_of(Repeat(exact.event, 2)).epsilon_bounds(1e-5)[0]
    assert isinstance(SumPrice(Endless(), Endless()).epsilon(1e-5), float)


def test_composition_of_groups_is_the_group_of_the_composition() -> None:
    curve = curve_of(Gaussian(30.0))
    together = curve.group(3).compose(curve.group(3))
    assert together.records == 3
    assert together.epsilon(1e-6) == curve_of(Repeat(Gaussian(30.0), 2)).group(3).epsilon(1e-6)


@pytest.mark.parametrize(
    "other", [curve_of(Gaussian(1.0), adjacency="replace-one"), curve_of(Gaussian(1.0)).group(2)]
)
def test_composition_of_different_neighbours_is_refused(other: PrivacyCurve) -> None:
    with pytest.raises(UnsupportedEvent, match="same adjacency and group"):
        curve_of(Gaussian(1.0)).compose(other)


def test_few_steps_far_from_the_line_are_answered_without_a_warning() -> None:
    """exp overflows in the aliasing there: a lower bound that is no help, and no more than that."""
    curve = curve_of(Repeat(PoissonSampled(0.1, Gaussian(1.0)), 10))
    assert 0.0 < curve.false_negative_rate(0.001) < 0.999


def test_a_curve_shows_itself_in_a_line() -> None:
    curve = PrivacyCurve("pld", Adjacency.ADD_REMOVE, Gaussian(2.0), Endless(), 3)
    assert repr(curve) == (
        "PrivacyCurve(Gaussian(noise_multiplier=2.0), add-remove, by 'pld', for 3 records together)"
    )
    assert len(repr(curve_of(Compose((Gaussian(1.0), Laplace(1.0)) * 50)))) < 300


# --- what is imported -------------------------------------------------------------------------------------

IMPORT = "import json, sys, tacit.accounting; print(json.dumps(sorted(sys.modules)))"
CHEAP = {"fft", "special", "version"}  # optimize, stats, integrate and linalg take longer than all the rest


def test_accounting_imports_numpy_and_the_cheap_parts_of_scipy_only() -> None:
    """Under half a second of one core; counted in what is imported, which is where the time goes."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", IMPORT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = [name.split(".") for name in json.loads(done.stdout)]
    roots = {name[0] for name in modules} - set(sys.stdlib_module_names)
    own = {name for name in roots if not name.startswith(("_", "cython"))}  # parts of compiled modules
    assert own - {"charset_normalizer"} <= {"numpy", "scipy", "tacit"}  # NumPy's f2py takes it if it is there
    scipy = {name[1] for name in modules if name[0] == "scipy" and len(name) > 1}
    assert {name for name in scipy if not name.startswith("_")} <= CHEAP
    assert len(modules) < 1000
