"""Properties that hold for every event: more noise, fewer steps, less sampling and more delta cost less."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from priced import curve_of, dp_sgd, epsilon, hockey_stick_of

from tacit.accounting.closed_form import single_delta
from tacit.accounting.convolve import Window, compose
from tacit.accounting.grid import Masses, _shares, dominated, dominating
from tacit.accounting.losses import loss_of
from tacit.accounting.price import Direction
from tacit.events import Compose, Gaussian, Laplace, PoissonSampled, Repeat

INVERSE = 1e-2  # of delta: the inverse is asked of another grid
WIGGLE = 3e-4  # two grids may differ by this much, relative; each bound holds alone

rates = st.floats(0.005, 0.9)
noises = st.floats(0.6, 8.0)
counts = st.integers(1, 400)
log_deltas = st.floats(-25.0, -5.0)


@settings(max_examples=12, deadline=None)
@given(q=rates, sigma=noises, steps=counts, log_delta=log_deltas, factor=st.floats(1.05, 3.0))
@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_monotone(method: str, q: float, sigma: float, steps: int, log_delta: float, factor: float) -> None:
    delta = math.exp(log_delta)
    base = epsilon(dp_sgd(q, sigma, steps), delta, method) * (1 + WIGGLE) + 1e-9
    assert epsilon(dp_sgd(q, sigma * factor, steps), delta, method) <= base
    assert epsilon(dp_sgd(q / factor, sigma, steps), delta, method) <= base
    assert epsilon(dp_sgd(q, sigma, max(1, int(steps / factor))), delta, method) <= base
    assert epsilon(dp_sgd(q, sigma, steps), min(0.5, delta * factor), method) <= base


@settings(max_examples=25, deadline=None)
@given(q=rates, sigma=noises, steps=counts, log_delta=log_deltas)
def test_brackets_and_order(q: float, sigma: float, steps: int, log_delta: float) -> None:
    event, delta = dp_sgd(q, sigma, steps), math.exp(log_delta)
    curve = curve_of(event)
    lower, upper = curve.epsilon_bounds(delta)
    assert 0.0 <= lower <= upper
    assert upper <= lower * (1 + 0.02) + 2e-3
    assert upper <= epsilon(Repeat(Gaussian(sigma), steps), delta, "gaussian") * (1 + WIGGLE) + 1e-9
    assert 0.0 <= curve.delta(upper) <= 1.0


@settings(max_examples=8, deadline=None)
@given(q=rates, sigma=noises, steps=st.integers(2, 50), log_delta=log_deltas)
def test_replace_one_costs_at_least_add_remove(q: float, sigma: float, steps: int, log_delta: float) -> None:
    delta = math.exp(log_delta)
    added = epsilon(dp_sgd(q, sigma, steps), delta, "pld")
    assert added <= epsilon(dp_sgd(q, sigma, steps), delta, "pld", "replace-one") * (1 + WIGGLE) + 1e-9


parts = st.lists(st.tuples(rates, noises, st.integers(1, 200)), min_size=2, max_size=3)


@settings(max_examples=5, deadline=None)
@given(parts=parts, log_delta=log_deltas, data=st.data())
@pytest.mark.parametrize("method", ["pld", "rdp", "moments"])
def test_order_and_grouping_do_not_matter(
    method: str, parts: list[tuple[float, float, int]], log_delta: float, data: st.DataObject
) -> None:
    """Composition in any order, nested in any way, of n-fold events or lists of n: one and the same price."""
    delta = math.exp(log_delta)
    straight = Compose(tuple(dp_sgd(*part) for part in parts))
    shuffled = Compose(tuple(dp_sgd(*part) for part in data.draw(st.permutations(parts))))
    (q, sigma, steps), *others = parts
    first = data.draw(st.integers(0, steps - 1))
    split = (Repeat(PoissonSampled(q, Gaussian(sigma)), first),) if first else ()
    rest = (PoissonSampled(q, Gaussian(sigma)),) * (steps - first)
    nested = Compose((*split, Compose((*(dp_sgd(*part) for part in others), Compose(rest)))))
    price = epsilon(straight, delta, method)
    assert epsilon(shuffled, delta, method) == pytest.approx(price, rel=1e-8, abs=1e-10)
    assert epsilon(nested, delta, method) == pytest.approx(price, rel=1e-8, abs=1e-10)


@settings(max_examples=5, deadline=None)
@given(parts=parts, log_delta=log_deltas)
def test_more_of_anything_costs_more(parts: list[tuple[float, float, int]], log_delta: float) -> None:
    """A part of a composition costs no more than the whole, under every method."""
    delta = math.exp(log_delta)
    events = tuple(dp_sgd(*part) for part in parts)
    for method in ("pld", "rdp", "moments"):
        whole = epsilon(Compose(events), delta, method)
        assert all(epsilon(event, delta, method) <= whole * (1 + WIGGLE) + 1e-9 for event in events)


@settings(max_examples=12, deadline=None)
@given(q=rates, sigma=noises, steps=counts, log_delta=log_deltas)
@pytest.mark.parametrize("method", ["pld", "rdp", "moments"])
def test_curve_and_inverse_agree(method: str, q: float, sigma: float, steps: int, log_delta: float) -> None:
    """delta(epsilon(delta)) = delta wherever epsilon > 0, up to what either rounds up."""
    delta = math.exp(log_delta)
    curve = curve_of(dp_sgd(q, sigma, steps), method)
    price = curve.epsilon(delta)
    if 1e-6 < price < 600.0:
        assert curve.delta(price) == pytest.approx(delta, rel=INVERSE)
        assert curve.delta(price * (1 + 1e-3)) <= delta <= curve.delta(price * (1 - 1e-3))


@settings(max_examples=15, deadline=None)
@given(q=rates, sigma=noises, steps=counts, log_delta=log_deltas)
def test_pld_is_below_rdp_is_below_moments(q: float, sigma: float, steps: int, log_delta: float) -> None:
    event, delta = dp_sgd(q, sigma, steps), math.exp(log_delta)
    pld, rdp, moments = (epsilon(event, delta, method) for method in ("pld", "rdp", "moments"))
    assert pld <= rdp * (1 + WIGGLE) + 1e-9
    assert rdp <= moments * (1 + 1e-9) + 1e-9


# --- the grid ---------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    base=st.one_of(
        st.builds(PoissonSampled, st.floats(1e-4, 0.9), st.builds(Gaussian, st.floats(0.4, 6.0))),
        st.builds(Gaussian, st.floats(0.4, 6.0)),
        st.builds(Laplace, st.floats(0.4, 6.0)),
        st.builds(PoissonSampled, st.floats(1e-2, 0.9), st.builds(Laplace, st.floats(0.4, 6.0))),
    ),
    h=st.floats(1e-3, 0.2),
    eps=st.floats(0.0, 3.0),
)
def test_grid_brackets_one_step(base: Gaussian | Laplace | PoissonSampled, h: float, eps: float) -> None:
    """Guarantee of ``bracket``: the upper pmf is above the exact delta at every eps, the lower one below."""
    exact = single_delta(base, eps)  # attained in the remove direction
    loss = loss_of(base, "remove", 1e-16)
    lower, upper = dominated(loss, h), dominating(loss, h)
    assert hockey_stick_of(upper, h, eps) >= exact * (1 - 1e-9) - 1e-15
    assert hockey_stick_of(lower, h, eps) <= exact * (1 + 1e-11) + 1e-15
    assert lower.masses.sum() <= 1 + 1e-12
    assert (lower.masses >= 0.0).all()
    assert (upper.masses >= 0.0).all()


@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
def test_grid_keeps_both_masses(direction: Direction) -> None:
    """Connect the dots keeps P and Q: E_P e^{-L} = 1 up to rounding."""
    h = 1e-3
    upper = dominating(loss_of(PoissonSampled(0.1, Gaussian(1.0)), direction, 1e-18), h)
    losses = upper.origin + h * (upper.first + np.arange(upper.masses.size))
    assert upper.masses.sum() + upper.infinite == pytest.approx(1.0, abs=1e-12)
    assert float(np.dot(upper.masses, np.exp(-losses))) == pytest.approx(1.0, abs=1e-9)


def test_exchange_between_groups_is_cancelled_where_it_asks_for_too_much() -> None:
    # group 1 wants nine times its own share of group 2, which would leave group 2 with less than nothing
    from_right, from_left = np.array([0.0, 9.0, 0.0, 0.1]), np.array([0.0, 0.0, 0.0, 0.0])
    keep = _shares(from_right, from_left)
    assert (keep >= 0.0).all()
    assert (keep <= 1.0).all()
    assert from_right[1] == 0.0
    taken = np.zeros(4)
    taken[1:] += (keep * from_right)[:-1]
    taken[:-1] += (keep * from_left)[1:]
    np.testing.assert_allclose(keep + taken, 1.0)


@pytest.mark.parametrize("tilt", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("wide", [True, False])
def test_composition_brackets_the_exact_sum(tilt: float, wide: bool) -> None:
    """``compose`` allows for rounding, aliasing and the mass outside of the window."""
    h, rng = 0.05, np.random.default_rng(5)
    first, second = rng.random(17), rng.random(9)
    parts = [(Masses(-6, first / first.sum(), 0.0), 3), (Masses(-2, second / second.sum(), 1e-7), 2)]
    pmf = np.ones(1)
    for part, count in parts:
        for _ in range(count):
            pmf = np.convolve(pmf, part.masses)
    exact = Masses(3 * -6 + 2 * -2, pmf, 1.0 - (1.0 - 1e-7) ** 2)
    window = Window(tilt, -1.2, 2.6, 10.0, 10.0) if wide else Window(tilt, 0.3, 1.4, 10.0, 10.0)
    composed = compose(parts, h, window)
    for eps in (0.0, 0.21, 0.5, 0.9, 1.3):
        delta = hockey_stick_of(exact, h, eps)
        assert composed.upper(eps) >= delta
        assert composed.lower(eps) <= delta
        if wide and tilt == 3.0:
            assert composed.upper(eps) == pytest.approx(delta, rel=1e-4)
            assert composed.lower(eps) == pytest.approx(delta, rel=1e-4)
