"""zCDP, GDP, basic, advanced and optimal composition: against brute force, closed forms and each other."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from priced import curve_of

from tacit.accounting import account
from tacit.accounting.closed_form import pure_epsilon
from tacit.accounting.renyi import rho
from tacit.accounting.theorems import (
    Coins,
    _compose,
    advanced_composition,
    mechanism_epsilon,
    optimal_composition,
)
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    Compose,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GroupPrivacy,
    Laplace,
    PoissonSampled,
    RandomizedResponse,
    Repeat,
    SparseVector,
    WithoutReplacement,
    WithReplacement,
    ZeroConcentratedDP,
)

ADD, REPLACE, BLANK = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT


def epsilon(event: Event, method: str, delta: float = 1e-5, adjacency: str = "add-remove") -> float:
    return account(event, adjacency=adjacency, method=method).epsilon(delta)


# --- optimal composition -----------------------------------------------------------------------------------


def brute_force(parts: list[tuple[float, float, int]], eps: float) -> float:
    """sum over all outcomes of max(0, P - e^eps Q), for the product of the four-outcome pairs."""
    pairs = []
    for epsilon_t, delta_t, count in parts:
        heavy = (1 - delta_t) * math.exp(epsilon_t) / (1 + math.exp(epsilon_t))
        light = (1 - delta_t) / (1 + math.exp(epsilon_t))
        pairs += [[(delta_t, 0.0), (heavy, light), (light, heavy), (0.0, delta_t)]] * count
    total = 0.0
    for outcome in itertools.product(*pairs):
        p, q = math.prod(x for x, _ in outcome), math.prod(y for _, y in outcome)
        total += max(0.0, p - math.exp(eps) * q)
    return total


PARTS: list[list[tuple[float, float, int]]] = [
    [(0.3, 0.0, 6)],
    [(0.3, 1e-3, 2), (0.7, 0.01, 3)],
    [(2.0, 0.0, 2), (0.01, 0.05, 2), (0.5, 0.0, 2)],
    [(0.0, 0.01, 3), (1.0, 0.0, 1)],
]


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("eps", [0.05, 0.4, 1.1])
def test_optimal_composition_is_the_product_of_the_pairs(
    parts: list[tuple[float, float, int]], eps: float
) -> None:
    if eps > sum(epsilon_t * count for epsilon_t, _, count in parts):
        pytest.skip("delta is that of the mechanisms alone")
    exact = brute_force(parts, eps)
    assert eps * (1 - 1e-9) <= optimal_composition(parts, exact) == pytest.approx(eps, rel=1e-8)


def test_optimal_composition_is_the_formula_of_the_theorem() -> None:
    count, each = 40, 0.2
    for i in (3, 10, 19):
        top = sum(
            math.comb(count, k) * (math.exp((count - k) * each) - math.exp((count - 2 * i + k) * each))
            for k in range(i)
        )
        delta = top / (1 + math.exp(each)) ** count
        assert optimal_composition([(each, 0.0, count)], delta) == pytest.approx(
            (count - 2 * i) * each, rel=1e-9
        )


@settings(max_examples=60, deadline=None)
@given(
    each=st.floats(1e-4, 2.0),
    count=st.integers(1, 3000),
    other=st.floats(1e-4, 0.5),
    log_delta=st.floats(-30.0, -1.0),
)
def test_optimal_is_never_above_advanced_composition(
    each: float, count: int, other: float, log_delta: float
) -> None:
    delta = math.exp(log_delta)
    optimal = optimal_composition([(each, 0.0, count), (other, 0.0, 7)], delta)
    assert optimal <= advanced_composition([(each, count), (other, 7)], delta) * (1 + 1e-9)
    assert optimal >= optimal_composition([(each, 0.0, count)], delta) * (1 - 1e-9)


def test_many_different_epsilons_are_rounded_up() -> None:
    exact = optimal_composition([(0.01, 0.0, 20_000)], 1e-6)
    uneven = [(0.01 - 1e-9 * k, 0.0, 5_000) for k in range(4)]
    assert exact * (1 - 1e-5) <= optimal_composition(uneven, 1e-6) <= exact * 1.004


def test_delta_of_the_mechanisms_alone_can_be_too_much() -> None:
    assert optimal_composition([(0.1, 1e-6, 20)], 1e-5) == math.inf
    assert optimal_composition([(0.1, 1.0, 1)], 0.5) == math.inf
    for method in ("basic", "strong", "optimal"):
        curve = curve_of(Repeat(ApproximateDP(0.1, 1e-6), 20), method)
        assert curve.epsilon(1e-5) == math.inf
        assert curve.epsilon(3e-5) < math.inf
        assert curve.delta(0.1) >= 2e-5


def test_coins_between_losses() -> None:
    coins = Coins(np.array([-1.0, 1.0]), np.array([0.25, 0.75]), 0.0)
    assert coins.delta(0.5) == pytest.approx(0.75 * (1 - math.exp(-0.5)))
    assert coins.epsilon(coins.delta(0.5)) == pytest.approx(0.5)
    assert coins.epsilon(0.9) == 0.0
    assert _compose([]).epsilon(1e-5) == 0.0


@pytest.mark.parametrize("method", ["optimal", "strong", "basic"])
def test_compositions_of_a_guarantee_are_above_the_pairs(method: str) -> None:
    parts = [(0.4, 1e-3, 3), (0.2, 0.0, 2)]
    event = Compose((Repeat(ApproximateDP(0.4, 1e-3), 3), Repeat(ApproximateDP(0.2), 2)))
    curve = curve_of(event, method)
    for eps in (0.3, 0.9, 1.4):
        exact = brute_force(parts, eps)
        assert curve.delta(eps) >= exact * (1 - 1e-9)
        assert curve.epsilon(exact) >= eps * (1 - 1e-9)
    assert curve_of(event, "optimal").epsilon(0.01) == pytest.approx(
        optimal_composition(parts, 0.01), rel=1e-3
    )


def test_the_order_of_the_composition_theorems() -> None:
    event = Repeat(PoissonSampled(0.01, Gaussian(4.0)), 10_000)
    values = [epsilon(event, method) for method in ("pld", "rdp", "optimal", "strong", "basic")]
    assert values == sorted(values)
    assert values[2] == pytest.approx(12.447, abs=1e-3)


# --- one mechanism -----------------------------------------------------------------------------------------


def test_a_guarantee_at_another_delta_is_that_of_the_coin() -> None:
    for eps, spent in ((0.7, 0.0), (1.5, 0.02)):
        for wanted in (0.03, 0.2):
            found = mechanism_epsilon(ApproximateDP(eps, spent), wanted, ADD)
            assert brute_force([(eps, spent, 1)], found) == pytest.approx(wanted, rel=1e-9)
    assert mechanism_epsilon(ApproximateDP(1.0, 0.1), 0.05, ADD) == math.inf
    assert mechanism_epsilon(ApproximateDP(0.1, 0.0), 0.9, ADD) == 0.0


def test_pure_epsilons() -> None:
    assert pure_epsilon(RandomizedResponse(0.5, 2), REPLACE) == pytest.approx(math.log(3.0))
    assert pure_epsilon(RandomizedResponse(0.0, 2), REPLACE) is None
    assert pure_epsilon(DiscreteLaplace(4.0, 2), ADD) == pytest.approx(0.5)
    assert pure_epsilon(SparseVector(0.5, 0.25, 3), ADD) == pytest.approx(0.75)
    assert pure_epsilon(GroupPrivacy(PoissonSampled(0.5, Laplace(1.0)), 2), ADD) == pytest.approx(
        2 * math.log(0.5 + 0.5 * math.e)
    )
    assert pure_epsilon(PoissonSampled(0.5, Laplace(1.0)), REPLACE) is None
    assert pure_epsilon(WithoutReplacement(10, 1, Laplace(2.0)), REPLACE) == pytest.approx(
        math.log(0.9 + 0.1 * math.e)  # sensitivity 2 under replace-one
    )
    assert pure_epsilon(PoissonSampled(0.5, Laplace(0.01)), ADD) == pytest.approx(100.0 - math.log(2.0))


def test_a_group_of_a_sampled_mechanism() -> None:
    base = PoissonSampled(0.1, DiscreteGaussian(3.0))
    group = epsilon(GroupPrivacy(base, 3), "basic", 1e-3)
    alone = mechanism_epsilon(base, 1e-3 / 3, ADD)
    assert group > 3 * alone
    share = group / 3
    delta = curve_of(base, "basic").delta(share)
    assert delta * (math.exp(3 * share) - 1) / (math.exp(share) - 1) == pytest.approx(1e-3, rel=1e-4)


def test_sampling_without_replacement_by_itself() -> None:
    base = WithoutReplacement(1000, 10, Gaussian(2.0))
    inner = account(Gaussian(2.0), adjacency="replace-one").epsilon(1e-3)
    for adjacency in ("replace-one", "zero-out"):
        assert epsilon(base, "basic", 1e-5, adjacency) == pytest.approx(math.log1p(0.01 * math.expm1(inner)))
    assert epsilon(base, "basic", 0.02, "replace-one") == 0.0
    with pytest.raises(UnsupportedEvent, match="add-remove"):
        epsilon(base, "basic")


# --- zCDP --------------------------------------------------------------------------------------------------


def test_rho_of_every_kind() -> None:
    expected = [
        (Gaussian(2.0), 0.125),
        (DiscreteGaussian(4.0, 2), 0.125),
        (Laplace(2.0), 0.125),
        (ApproximateDP(0.5), 0.125),
        (ExponentialMechanism(0.5), 0.03125),
        (ZeroConcentratedDP(0.3), 0.3),
        (PoissonSampled(0.5, Laplace(1.0)), math.log(0.5 + 0.5 * math.e) ** 2 / 2),
    ]
    for base, value in expected:
        assert value <= rho(base, ADD) == pytest.approx(value, rel=1e-9)
    assert rho(GroupPrivacy(Laplace(2.0), 3), ADD) == pytest.approx(9 * 0.125)


@settings(max_examples=60, deadline=None)
@given(eps=st.floats(1e-3, 20.0), order=st.floats(1.001, 200.0))
def test_rho_is_above_the_renyi_divergence_of_what_it_stands_for(eps: float, order: float) -> None:
    with mp.workdps(40):
        a, e = mp.mpf(order), mp.mpf(eps)
        coin = mp.log((mp.exp(a * e) + mp.exp((1 - a) * e)) / (1 + mp.exp(e))) / (a - 1)
        assert coin <= a * mp.mpf(rho(ApproximateDP(eps), ADD))
        for share in (0.1, 0.37, 0.5, 0.63, 0.9):  # a bounded range: losses t and t - eps
            t = e * mp.mpf(share)
            p = (mp.exp(e) - mp.exp(t)) / (mp.exp(e) - 1)
            ranged = mp.log(p * mp.exp((a - 1) * t) + (1 - p) * mp.exp((a - 1) * (t - e))) / (a - 1)
            assert ranged <= a * mp.mpf(rho(ExponentialMechanism(eps), ADD))


@pytest.mark.parametrize("value", [1e-4, 0.01, 0.5, 10.0])
@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-12])
def test_zcdp_is_between_the_gaussian_and_the_paper(value: float, delta: float) -> None:
    found = epsilon(ZeroConcentratedDP(value), "zcdp", delta)
    assert found <= value + 2 * math.sqrt(value * math.log(1 / delta))
    assert found >= epsilon(Gaussian(math.sqrt(0.5 / value)), "gaussian", delta)


@pytest.mark.parametrize(
    "event", [PoissonSampled(0.01, Gaussian(1.0)), ApproximateDP(0.1, 1e-6), RandomizedResponse(0.0, 3)]
)
def test_what_is_not_zcdp_is_refused(event: Event) -> None:
    with pytest.raises(UnsupportedEvent, match=rf"method 'zcdp'.*{type(event).__name__}.*Use method"):
        account(Compose((Gaussian(1.0), event)), adjacency="replace-one", method="zcdp")


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_sampling_with_replacement_by_itself(kind: type[Gaussian] | type[Laplace]) -> None:
    """The mean over the draws, by multi-precision sums."""
    records, batch, noise = 50, 20, 30.0
    found = epsilon(WithReplacement(records, batch, kind(noise)), "basic", 1e-3, "replace-one")
    with mp.workdps(30):
        chance = 1 - (1 - mp.mpf(1) / records) ** batch
        eps = mp.log(1 + mp.expm1(mp.mpf(found)) / chance)
        delta = mp.mpf(0)
        for k in range(1, batch + 1):
            weight = mp.binomial(batch, k) * mp.mpf(1) / records**k * (1 - mp.mpf(1) / records) ** (batch - k)
            mu = 2 * k / mp.mpf(noise)
            if kind is Gaussian:
                one = mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)
            else:
                one = max(mp.mpf(0), 1 - mp.exp((eps - mu) / 2))
            delta += weight * one
        assert float(delta) <= 1e-3 * (1 + 1e-9)
        assert float(delta) == pytest.approx(1e-3, rel=1e-6)


def test_sampling_with_replacement_of_one_record_and_of_what_is_not_priced() -> None:
    alone = epsilon(WithReplacement(1, 3, Gaussian(30.0)), "basic", 1e-3, "replace-one")
    assert alone == pytest.approx(epsilon(Gaussian(10.0), "basic", 1e-3, "replace-one"))
    assert epsilon(WithReplacement(10**6, 100, Gaussian(9.0)), "basic", 1e-3, "zero-out") == 0.0
    huge = WithReplacement(1000, 500, Gaussian(20.0))
    assert (
        0.0
        < epsilon(huge, "basic", 1e-5, "replace-one")
        < epsilon(Gaussian(2.0), "basic", 1e-5, "replace-one")
    )
    for refused in (
        WithReplacement(10, 2, ApproximateDP(0.5)),
        WithoutReplacement(10, 2, RandomizedResponse(0.5, 2)),
        WithoutReplacement(10, 2, ApproximateDP(0.5)),  # stated for blanking, not for exchanging
        PoissonSampled(0.1, RandomizedResponse(0.5, 2)),
    ):
        with pytest.raises(UnsupportedEvent, match=type(refused).__name__):
            account(refused, adjacency="zero-out", method="basic")


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("method", ["optimal", "strong", "basic"])
@pytest.mark.parametrize(
    "event",
    [
        Repeat(Gaussian(0.6646503338604147), 28_139_951),
        Repeat(Gaussian(60.09206210745033), 77_416_559),
        Repeat(PoissonSampled(1e-5, Gaussian(0.3)), 10**9),
        Repeat(ApproximateDP(4.3, 1e-12), 1000),
    ],
)
def test_extreme_compositions_have_an_answer_and_its_inverse(method: str, event: Event) -> None:
    curve = curve_of(event, method)
    for delta in (0.05, 1.3e-9):
        found = curve.epsilon(delta)
        assert found > 0.0
        assert curve.delta(found) == pytest.approx(delta, rel=0.3)
