"""Costs in each budget, against oracles that share no code with it; and the rule over several orders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import mpmath
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.accounting.closed_form import pure_cost
from tacit.accounting.price import decimal
from tacit.accounting.renyi import renyi_cost, zcdp_cost
from tacit.errors import InvalidInput, UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    BallsInBins,
    Compose,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampled,
    Repeat,
    SparseVector,
    ZeroConcentratedDP,
)
from tacit.ledger import ApproximateBudget, Budget, PureBudget, RenyiBudget, ZeroConcentratedBudget
from tacit.ledger.policy import DELTA_UNIT, ENDLESS, UNIT, budget_from_data

ADD = Adjacency.ADD_REMOVE
BUDGETS = {
    "pure": PureBudget(1.0),
    "approximate": ApproximateBudget(1.0, 1e-6),
    "zcdp": ZeroConcentratedBudget(1.0, 1e-6, threshold_delta=5e-7),
    "one order": RenyiBudget(3.0, 1e-6, orders=(8.0,)),
    "renyi": RenyiBudget(1.0, 1e-6, threshold_delta=5e-7),
}


# --- prices, by quadrature and sums in multi-precision -----------------------------------------------------


def of_pair(p: list[Any], q: list[Any], order: float) -> Any:
    return mpmath.log(mpmath.fsum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))) / (
        order - 1
    )


def coin(epsilon: float, order: float) -> Any:
    heads = mpmath.exp(epsilon) / (1 + mpmath.exp(epsilon))
    return of_pair([heads, 1 - heads], [1 - heads, heads], order)


def geometric(scale: float, order: float) -> Any:
    ratio = mpmath.exp(-1 / mpmath.mpf(scale))
    masses = {k: (1 - ratio) / (1 + ratio) * ratio ** abs(k) for k in range(-700, 702)}
    return of_pair([masses[k - 1] for k in range(-600, 600)], [masses[k] for k in range(-600, 600)], order)


def laplace(scale: float, order: float) -> Any:
    def integrand(x: Any) -> Any:
        return mpmath.exp((-order * abs(x - 1) + (order - 1) * abs(x)) / scale) / (2 * scale)

    total = mpmath.quad(integrand, [-mpmath.inf, 0, 1, mpmath.inf])
    return mpmath.log(total) / (order - 1)


def sampled_gaussian(rate: float, sigma: float, order: float) -> Any:
    def integrand(x: Any) -> Any:
        plain = mpmath.npdf(x, 0, sigma)
        mixed = (1 - rate) * plain + rate * mpmath.npdf(x, 1, sigma)
        return mixed**order * plain ** (1 - order)

    total = mpmath.quad(integrand, [-20, -5, 0, 1, 5, 10, 20, 40])
    return mpmath.log(total) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 4.0, 16.0])
@pytest.mark.parametrize(
    ("event", "oracle"),
    [
        (Laplace(5.0), lambda order: laplace(5.0, order)),
        (DiscreteLaplace(3.0), lambda order: geometric(3.0, order)),
        (ApproximateDP(0.7), lambda order: coin(0.7, order)),
        (ApproximateDP(0.7, 1e-7), lambda order: coin(0.7, order)),
        (SparseVector(0.25, 0.5, hits=2), lambda order: coin(0.75, order)),
        (Gaussian(3.0), lambda order: mpmath.mpf(order) / 18),
        (PoissonSampled(0.01, Gaussian(1.5)), lambda order: sampled_gaussian(0.01, 1.5, order)),
        (Repeat(DiscreteGaussian(4.0, sensitivity=2), 3), lambda order: 3 * mpmath.mpf(order) / 8),
    ],
    ids=["laplace", "geometric", "pure", "approximate", "sparse", "gaussian", "sampled", "discrete"],
)
def test_renyi_prices_are_above_the_truth_and_near(
    event: Event, oracle: Callable[[float], Any], order: float
) -> None:
    with mpmath.workdps(30):
        truth = oracle(order)
    budget = RenyiBudget(30.0, 1e-3, orders=(order,))
    price = budget.price(event, ADD)[0]
    assert Fraction(price, UNIT) >= Fraction(str(truth))
    assert price / UNIT <= float(truth) * (1 + 1e-8) + 2e-12


def test_prices_are_decimals_where_people_wrote_decimals() -> None:
    tenth = Fraction(1, 10)
    for event in (
        ApproximateDP(0.1),
        ExponentialMechanism(0.1),
        Laplace(10.0),
        DiscreteLaplace(20.0, sensitivity=2),
        SparseVector(0.03, 0.07, hits=1),
    ):
        assert pure_cost(event, "add-remove") == (tenth, Fraction(0))
        assert BUDGETS["pure"].price(Repeat(event, 7), ADD) == (7 * UNIT // 10,)
    assert pure_cost(Laplace(10.0), "replace-one") == (2 * tenth, Fraction(0))
    assert decimal(1e-18) == Fraction(1, 10**18)
    assert zcdp_cost(ZeroConcentratedDP(0.1), "add-remove") == (tenth, Fraction(0))
    assert zcdp_cost(ApproximateDP(0.1, 1e-9), "add-remove") == (tenth**2 / 2, Fraction(1, 10**9))
    assert pure_cost(Gaussian(1.0), "add-remove") is None


def test_leaks_are_taken_out_and_added_up() -> None:
    event = Compose((Repeat(ApproximateDP(0.5, 1e-8), 3), ApproximateDP(0.0, 1e-9), ApproximateDP(0.5)))
    divergences, leak = renyi_cost(event, (4.0,), "add-remove")
    assert leak == Fraction(31, 10**9)
    with mpmath.workdps(30):
        assert divergences[0] == pytest.approx(float(4 * coin(0.5, 4.0)), rel=1e-9)
    sampled, part = renyi_cost(PoissonSampled(0.5, ApproximateDP(1.0, 1e-8)), (4.0,), "add-remove")
    assert float(part) == pytest.approx(5e-9)
    assert sampled[0] < renyi_cost(ApproximateDP(1.0), (4.0,), "add-remove")[0][0]


@pytest.mark.parametrize("name", ["pure", "zcdp", "renyi"])
def test_what_has_no_price_is_refused_by_name(name: str) -> None:
    unknown = {
        "pure": Gaussian(1.0),
        "zcdp": PoissonSampled(0.1, Gaussian(1.0)),
        "renyi": BallsInBins(10, Laplace(1.0)),
    }
    with pytest.raises(UnsupportedEvent, match=type(unknown[name]).__name__):
        BUDGETS[name].price(unknown[name], ADD)


def test_an_approximate_budget_asks_for_the_delta_of_gaussian_noise() -> None:
    budget = BUDGETS["approximate"]
    with pytest.raises(InvalidInput, match="delta=1e-7"):
        budget.price(Gaussian(8.0), ADD)
    epsilon, delta = budget.price(Gaussian(8.0), ADD, delta=1e-7)
    assert delta == 10**11
    with mpmath.workdps(30):  # Balle & Wang 2018, Theorem 8, with mu = 1/8
        at = mpmath.mpf(epsilon) / UNIT
        exact = mpmath.ncdf(mpmath.mpf(1) / 16 - 8 * at) - mpmath.exp(at) * mpmath.ncdf(
            -mpmath.mpf(1) / 16 - 8 * at
        )
    assert float(exact) == pytest.approx(1e-7, rel=1e-6)
    assert exact <= 1e-7
    assert budget.price(DiscreteGaussian(8.0), ADD, delta=1e-7)[0] >= epsilon, "by Renyi divergences"


# --- numbers that are none ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, 5e-324, 1e7, "1", True])
def test_budgets_of_impossible_epsilon_are_refused(value: Any) -> None:
    for kind in (PureBudget, lambda e: RenyiBudget(e, 1e-6), lambda e: ZeroConcentratedBudget(e, 1e-6)):
        with pytest.raises(InvalidInput, match="epsilon of a budget"):
            kind(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1e-6, 5e-324, 1.0])
def test_budgets_of_impossible_delta_are_refused(value: Any) -> None:
    for kind in (ApproximateBudget, RenyiBudget, ZeroConcentratedBudget):
        with pytest.raises(InvalidInput, match="delta of a budget"):
            kind(1.0, value)
    with pytest.raises(InvalidInput, match="threshold_delta"):
        RenyiBudget(1.0, 1e-6, threshold_delta=1e-6)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 50.0, 1e4])
@pytest.mark.parametrize("delta", [1e-18, 1e-6, 0.1])
def test_the_usual_orders_are_of_use_whatever_the_budget(epsilon: float, delta: float) -> None:
    budget = RenyiBudget(epsilon, delta)
    assert budget.would_fit((0,) * 6, budget.cap, ADD) > 0.9 * epsilon
    assert RenyiBudget(epsilon, delta, orders=budget.orders) == budget


def test_a_rho_below_the_unit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the smallest cost that the ledger can count"):
        ZeroConcentratedBudget(1e-6, 1e-18)


def test_orders_that_are_no_use_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"orders \[2.0\] are useless"):
        RenyiBudget(1.0, 1e-6, orders=(2.0, 64.0))
    for orders in ((8.0, 4.0), (8.0, 8.0)):
        with pytest.raises(InvalidInput, match="must be strictly increasing"):
            RenyiBudget(9.0, 1e-6, orders=orders)
    for order in (1.0, 0.5, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="order must be"):
            RenyiBudget(9.0, 1e-6, orders=(order,))


@pytest.mark.parametrize("name", BUDGETS)
def test_costs_are_whole_numbers_one_per_slot(name: str) -> None:
    budget = BUDGETS[name]
    zero = (0,) * len(budget.slots)
    assert budget.check_cost(list(zero)) == zero
    for bad in (zero[1:], (*zero, 0), (-1, *zero[1:]), (0.0, *zero[1:]), (True, *zero[1:]), ("0", *zero[1:])):
        with pytest.raises(InvalidInput, match="must be non-negative integers"):
            budget.check_cost(bad)


@pytest.mark.parametrize("name", BUDGETS)
def test_extreme_events_cost_something_or_do_not_fit(name: str) -> None:
    budget = BUDGETS[name]
    for tiny in (ApproximateDP(5e-324), Laplace(1e300), DiscreteLaplace(1e300), ExponentialMechanism(1e-300)):
        cost = budget.price(tiny, ADD)
        assert budget.admits(cost)
        assert all(part >= 1 for slot, part in zip(budget.slots, cost, strict=True) if slot != "delta")
    for huge in (ApproximateDP(1e300), Laplace(5e-324), DiscreteLaplace(1e-300, sensitivity=10**9)):
        assert not budget.admits(budget.price(huge, ADD))
    if name in ("zcdp", "renyi", "one order"):
        assert not budget.admits(budget.price(Gaussian(1e-150), ADD))
    assert budget.price(Compose(()), ADD) == (0,) * len(budget.slots), "nothing is released"


def test_an_order_without_a_bound_is_dead_and_the_others_live() -> None:
    budget = RenyiBudget(20.0, 1e-3, orders=(3.0, 8.0))
    dead = (ENDLESS, 5, 0)
    assert budget.admits(dead)
    assert math.isfinite(budget.epsilon_of(dead)[0])
    assert not budget.admits((ENDLESS, budget.cap[1] + 1, 0))
    assert math.isinf(budget.epsilon_of((ENDLESS, ENDLESS, 0))[0])


@pytest.mark.parametrize("name", BUDGETS)
def test_budgets_are_data(name: str) -> None:
    budget = BUDGETS[name]
    assert budget_from_data(budget.to_data()) == budget
    with pytest.raises(InvalidInput, match="unknown setting"):
        budget_from_data(budget.to_data() | {"epsilonn": 1})
    with pytest.raises(InvalidInput, match=r"mode must be one of|must be a section|lacks 'mode'"):
        budget_from_data({"mode": "advanced"})
    with pytest.raises(InvalidInput, match="lacks"):
        budget_from_data({"mode": budget.mode})


# --- caps --------------------------------------------------------------------------------------------------


@pytest.mark.untraced
@pytest.mark.parametrize("epsilon", [0.3, 8.0])
@pytest.mark.parametrize("order", [2.0, 12.0, 300.0])
def test_a_cap_of_one_order_is_the_conversion_and_no_more(epsilon: float, order: float) -> None:
    """The worst mechanism of a Renyi divergence is one bit; its delta at epsilon is the largest of all."""
    delta = 1e-2 if order == 2.0 else 1e-5
    try:
        cap = RenyiBudget(epsilon, delta, orders=(order,)).cap[0]
    except InvalidInput:
        closed = epsilon + math.log(order / (order - 1)) + (math.log(delta * order)) / (order - 1)
        assert closed <= 0.0, "the order is of some use by the closed form"
        return
    with mpmath.workdps(20):
        for total, holds in ((cap, True), (cap * 1.001, False)):
            assert (worst_delta(mpmath.mpf(total) / UNIT, order, epsilon) <= delta) == holds


def worst_delta(divergence: Any, order: float, epsilon: float) -> Any:
    """The largest p - e^eps q with p^a q^(1-a) + (1-p)^a (1-q)^(1-a) <= e^((a-1) divergence), over p."""
    bound = mpmath.exp((order - 1) * divergence)

    def excess(p: Any, q: Any) -> Any:
        return p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order) - bound

    def delta_at(log_p: Any) -> Any:
        p = mpmath.exp(log_p)
        low, high = mpmath.mpf(10) ** -60, p
        for _ in range(60):
            middle = mpmath.sqrt(low * high)
            low, high = (middle, high) if excess(p, middle) > 0 else (low, middle)
        return p - mpmath.exp(epsilon) * high

    left, right = mpmath.mpf(-40), mpmath.mpf("-1e-6")
    for _ in range(30):  # golden section: delta is concave along the constraint
        a, b = left + (right - left) * 0.382, left + (right - left) * 0.618
        left, right = (a, right) if delta_at(a) < delta_at(b) else (left, b)
    return delta_at((left + right) / 2)


def test_caps_are_rounded_down_and_prices_up() -> None:
    for epsilon in (1 / 3, 2 / 3):
        (cap,) = PureBudget(epsilon).cap
        (price,) = PureBudget(9.0).price(ApproximateDP(epsilon), ADD)
        assert Fraction(cap, UNIT) < decimal(epsilon) < Fraction(price, UNIT)
        assert price == cap + 1
    assert ApproximateBudget(1.0, 1.23e-17).cap[1] == 12


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(BUDGETS)), st.lists(st.floats(0.001, 0.4), max_size=20))
def test_what_is_admitted_is_within_the_limit(name: str, epsilons: list[float]) -> None:
    budget = BUDGETS[name]
    total = (0,) * len(budget.slots)
    for epsilon in epsilons:
        cost = budget.price(ApproximateDP(epsilon), ADD)
        after = tuple(a + b for a, b in zip(total, cost, strict=True))
        room = budget.would_fit(total, budget.cap, ADD)
        if epsilon <= room:
            assert budget.admits(after)
        if epsilon > room * (1 + 1e-9) + 1e-12:
            assert not budget.admits(after)
        if budget.admits(after):
            total = after
        spent, delta = budget.epsilon_of(total)
        assert spent <= budget.limit[0] * (1 + 1e-12)
        assert delta <= budget.limit[1]


# --- the rule over several orders, against every transcript ------------------------------------------------

CHOICES = (0.05, 0.2, 0.6, 1.2)  # epsilons of a randomised bit, the least private mechanism of its epsilon
ROUNDS = 9


def excess(budget: RenyiBudget, strategy: Mapping[tuple[int, ...], int], stretch: int = 1) -> float:
    """The exact largest P(S) - e^eps Q(S) over all sets S of transcripts of an adaptive analyst.

    ``strategy`` chooses by the answers so far; ``stretch`` multiplies the caps, as a planted bug.
    """
    cap = tuple(stretch * part for part in budget.cap)
    prices = [budget.price(ApproximateDP(epsilon), ADD) for epsilon in CHOICES]
    weight = math.exp(budget.epsilon)

    def play(history: tuple[int, ...], total: tuple[int, ...], p: float, q: float) -> float:
        if len(history) == ROUNDS:
            return max(0.0, p - weight * q)
        choice = strategy.get(history[-4:], len(history) % len(CHOICES))
        after = tuple(a + b for a, b in zip(total, prices[choice], strict=True))
        if not budget.admits(after, cap):
            return play((*history, 2), total, p, q)  # 2: refused
        heads = math.exp(CHOICES[choice]) / (1.0 + math.exp(CHOICES[choice]))
        first = play((*history, 0), after, p * heads, q * (1.0 - heads))
        return first + play((*history, 1), after, p * (1.0 - heads), q * heads)

    return play((), (0,) * len(budget.slots), 1.0, 1.0)


SMALL = RenyiBudget(1.0, 0.05, orders=(3.0, 6.0, 20.0))
HISTORIES = [h for n in range(5) for h in itertools.product((0, 1, 2), repeat=n)]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, len(CHOICES) - 1), min_size=len(HISTORIES), max_size=len(HISTORIES)))
def test_no_analyst_gets_past_the_rule(choices: list[int]) -> None:
    assert excess(SMALL, dict(zip(HISTORIES, choices, strict=True))) <= SMALL.delta


def test_the_check_of_the_rule_sees_caps_that_are_too_large() -> None:
    greedy = dict.fromkeys(HISTORIES, 2)
    assert 0.0 < excess(SMALL, dict.fromkeys(HISTORIES, 1)) <= SMALL.delta
    assert excess(SMALL, greedy) <= SMALL.delta < excess(SMALL, greedy, stretch=3)


@pytest.mark.parametrize("kind", ["renyi", "zcdp"])
def test_leaks_and_losses_together_stay_within_delta(kind: str) -> None:
    """Exactly (Kairouz, Oh & Viswanath 2015, Theorem 3.3): k mechanisms at the edge of (0.1, 1e-3)-DP."""
    budget: Budget = (
        RenyiBudget(1.0, 0.05, orders=(6.0, 20.0), threshold_delta=0.02)
        if kind == "renyi"
        else ZeroConcentratedBudget(1.0, 0.05, threshold_delta=0.02)
    )
    cost = budget.price(ApproximateDP(0.1, 1e-3), ADD)
    count = max(k for k in range(200) if budget.admits(tuple(k * part for part in cost)))
    assert count == 20, "the slot of leaks is full, exactly"
    heads = math.exp(0.1) / (1.0 + math.exp(0.1))
    kept = (1.0 - 1e-3) ** count
    lost = math.fsum(
        math.comb(count, k)
        * max(0.0, heads**k * (1 - heads) ** (count - k) - math.e * heads ** (count - k) * (1 - heads) ** k)
        for k in range(count + 1)
    )
    assert 1.0 - kept + kept * lost <= budget.limit[1]
    assert cost[-1] == DELTA_UNIT // 1000


@pytest.mark.parametrize("threshold", [0.0, 3e-7, 9.99e-7])
def test_the_parts_of_delta_add_up_to_no_more_than_delta(threshold: float) -> None:
    budget = RenyiBudget(8.0, 1e-6, orders=(6.0, 20.0, 64.0), threshold_delta=threshold)
    parts = 3 * Fraction(budget._order_delta) + Fraction(budget.cap[-1], DELTA_UNIT)
    assert Fraction(999_999, 10**12) <= parts <= Fraction(1, 10**6)
    whole, part = (ZeroConcentratedBudget(8.0, 1e-6, threshold_delta=t).cap[0] for t in (0.0, threshold))
    assert (part < whole) == (threshold > 0.0)
