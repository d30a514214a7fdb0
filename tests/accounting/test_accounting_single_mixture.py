"""One Gaussian of random sensitivity, performed once, against quadrature and the closed form of sampling."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
from priced import curve_of

from tacit.accounting import account
from tacit.accounting.closed_form import mixture_delta, mixture_epsilon, single_delta, single_epsilon
from tacit.accounting.grid_price import PldPrice
from tacit.accounting.price import directions
from tacit.accounting.theorems import mechanism_epsilon
from tacit.events import Adjacency, Gaussian, GaussianMixture, PoissonSampled, Repeat

MIXTURES = [
    GaussianMixture(2.0, (0.0, 1.0, 2.0), (0.81, 0.18, 0.01)),
    GaussianMixture(1.0, (0.5, 1.5), (0.9, 0.1)),
    GaussianMixture(0.4, (0.0, 1.0), (0.999, 0.001)),
]


def hockey_stick(base: GaussianMixture, eps: float, sides: tuple[float, float]) -> float:
    """int (P - e^eps Q)_+, P and Q with the shifts times ``sides``."""
    with mp.workdps(20):
        sigma = mp.mpf(base.noise_multiplier)

        def density(x: mp.mpf, side: float) -> mp.mpf:
            parts = zip(base.probabilities, base.sensitivities, strict=True)
            return mp.fsum(w * mp.npdf(x, side * s, sigma) for w, s in parts)

        def gap(x: mp.mpf) -> mp.mpf:
            return density(x, sides[0]) - mp.exp(eps) * density(x, sides[1])

        reach = max(base.sensitivities) + 14 * float(sigma)
        points = [mp.mpf(x) for x in mp.linspace(-reach, reach, 40)]
        signs = [gap(x) > 0 for x in points]
        total = mp.mpf(0)
        for left, right, above, then in zip(points, points[1:], signs, signs[1:], strict=False):
            if above != then:
                kink = mp.findroot(gap, (left, right), solver="anderson", tol=1e-40)
                total += mp.quad(lambda x: max(mp.mpf(0), gap(x)), [left, kink, right])
            elif above:
                total += mp.quad(gap, [left, right], method="gauss-legendre")
        return float(total)


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("base", MIXTURES)
@pytest.mark.parametrize("eps", [0.05, 0.6, 2.0])
def test_delta_against_quadrature(base: GaussianMixture, eps: float) -> None:
    adding = max(hockey_stick(base, eps, (1.0, 0.0)), hockey_stick(base, eps, (0.0, 1.0)))
    exchanging = hockey_stick(base, eps, (1.0, -1.0))
    for adjacency, exact in ((Adjacency.ADD_REMOVE, adding), (Adjacency.REPLACE_ONE, exchanging)):
        value = mixture_delta(base, eps, adjacency)
        assert exact * (1 - 1e-10) <= value == pytest.approx(exact, rel=1e-8, abs=1e-25)
        if exact > 1e-20:
            assert mixture_epsilon(base, exact, adjacency) == pytest.approx(eps, rel=1e-6)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.3, 4.0), (1e-5, 0.3)])
def test_two_shifts_are_the_sampled_gaussian(rate: float, sigma: float) -> None:
    mixture, sampled = (
        GaussianMixture(sigma, (0.0, 1.0), (1 - rate, rate)),
        PoissonSampled(rate, Gaussian(sigma)),
    )
    for delta in (1e-3 * rate, 1e-8):
        exact = single_epsilon(sampled, delta)
        assert exact * (1 - 1e-11) <= mixture_epsilon(mixture, delta, Adjacency.ADD_REMOVE)
        assert mixture_epsilon(mixture, delta, Adjacency.ADD_REMOVE) == pytest.approx(exact, rel=1e-8)
    for eps in (0.1, 1.0):
        exact = single_delta(sampled, eps)
        assert mixture_delta(mixture, eps, Adjacency.ADD_REMOVE) == pytest.approx(exact, rel=1e-8, abs=1e-300)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("base", [*MIXTURES, PoissonSampled(0.05, Gaussian(1.0))])
def test_one_step_has_the_bracket_of_the_closed_form_inside_that_of_the_grid(
    base: GaussianMixture | PoissonSampled, adjacency: Adjacency
) -> None:
    lower, upper = account(base, adjacency=adjacency).epsilon_bounds(1e-5)
    least, most = PldPrice(((base, 1),), directions(adjacency)).epsilon_bounds(1e-5)
    assert least <= lower * (1 + 1e-9) <= upper * (1 + 2e-9) <= most * (1 + 3e-9)
    assert 0.0 < upper - lower <= 2e-9 * upper
    if isinstance(base, GaussianMixture):
        sides = [(1.0, -1.0)] if adjacency is Adjacency.REPLACE_ONE else [(1.0, 0.0), (0.0, 1.0)]
        above, below = (max(hockey_stick(base, eps, side) for side in sides) for eps in (lower, upper))
        assert below <= 1e-5 * (1 + 1e-12)
        assert above >= 1e-5 * (1 - 1e-12)


@pytest.mark.parametrize("sigma", [0.2277, 0.5])
def test_logarithms_of_thousands_are_rounded_outwards(sigma: float) -> None:
    """At delta 1e-100 and an epsilon of thousands, e^eps is no float and a logarithm is off by 1e-12."""
    base = GaussianMixture(sigma, (0.0, 1.0, 20.0), (0.5, 0.4, 0.1))
    lower, upper = curve_of(base).epsilon_bounds(1e-100)
    with mp.workdps(60):

        def delta(eps: float) -> mp.mpf:
            parts = [
                (mp.mpf(w), mp.mpf(s)) for w, s in zip(base.probabilities, base.sensitivities, strict=True)
            ]
            s2 = 2 * mp.mpf(sigma) ** 2

            def excess(x: mp.mpf) -> mp.mpf:
                return mp.log(mp.fsum(w * mp.exp((2 * s * x - s * s) / s2) for w, s in parts)) - eps

            c = mp.findroot(excess, (0, 100), solver="anderson", tol=1e-60, maxsteps=500)
            removed = mp.fsum(w * mp.ncdf((s - c) / mp.mpf(sigma)) for w, s in parts)
            return removed - mp.exp(eps) * mp.ncdf(-c / mp.mpf(sigma))

        assert delta(upper) <= mp.mpf("1e-100") <= delta(lower)
    assert upper - lower <= 1e-9 * upper


def test_just_below_the_largest_loss_the_grid_says_no_more_than_a_bit_further_down() -> None:
    """The largest loss of an added record is -T log(1 - q); a grid for that direction was useless at 1.0."""
    curve = curve_of(Repeat(PoissonSampled(1e-3, Gaussian(0.3)), 1000))
    values = [curve.delta(eps) for eps in (0.9, 1.0, 1.1)]
    assert values == sorted(values, reverse=True)
    assert values[0] < 0.19


def test_composition_takes_the_closed_form() -> None:
    sampled = PoissonSampled(0.05, Gaussian(1.0))
    found = mechanism_epsilon(sampled, 1e-5, Adjacency.REPLACE_ONE)
    assert account(sampled, adjacency="replace-one").epsilon(1e-5) == found
    assert curve_of(MIXTURES[0], "basic").epsilon(1e-5) == pytest.approx(
        mixture_epsilon(MIXTURES[0], 1e-5, Adjacency.ADD_REMOVE)
    )


def test_ends() -> None:
    assert mixture_delta(GaussianMixture(1.0, (0.0,), (1.0,)), 0.1, Adjacency.ADD_REMOVE) == 0.0
    assert mixture_epsilon(MIXTURES[0], 0.5, Adjacency.ADD_REMOVE) == 0.0
    assert (
        mixture_epsilon(GaussianMixture(1e-3, (0.0, 1.0), (0.5, 0.5)), 1e-9, Adjacency.ADD_REMOVE) == math.inf
    )
