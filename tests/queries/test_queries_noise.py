"""The two samplers draw one law and say one cost; intervals hold what they state."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from query_oracles import fix_bits
from scipy import stats

from tacit import accounting
from tacit.accounting.closed_form import pure_epsilon
from tacit.errors import InvalidInput, MissingExtra
from tacit.events import Adjacency, DiscreteGaussian, DiscreteLaplace, ZeroConcentratedDP
from tacit.queries import measures as pricing
from tacit.queries.measures import interval
from tacit.queries.plan import (
    OpenDPSampler,
    OwnSampler,
    Sampler,
    sampler,
)

fixed_bits = pytest.fixture(autouse=True)(fix_bits)

NAMES = ("own", "opendp")
LEVEL = 1e-7  # the bits of OpenDP cannot be fixed


# --- values plus noise ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_noise_is_added_to_each_value_anew(name: str) -> None:
    values = [10**6 * i for i in range(40)]
    one = sampler(name)
    for add, parameter in ((one.laplace, Fraction(50)), (one.gaussian, Fraction(50))):
        differences = [y - x for x, y in zip(values, add(values, parameter), strict=True)]
        assert all(type(k) is int for k in differences)
        assert max(map(abs, differences)) < 2000
        assert len(set(differences)) > 10
        assert add(values, parameter) != add(values, parameter)
        assert add([], parameter) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_scale_leaves_the_values(name: str) -> None:
    values = [3, -1, 0, 2**62]
    assert sampler(name).laplace(values, Fraction(2) ** -20) == values
    assert sampler(name).gaussian(values, Fraction(2) ** -20) == values


def test_own_noise_knows_no_largest_integer_and_opendp_stops_at_64_bits() -> None:
    values = [2**80, -(2**80)]
    assert all(
        abs(y - x) < 100 for x, y in zip(values, OwnSampler().laplace(values, Fraction(1)), strict=True)
    )
    clamped = OpenDPSampler().gaussian(values, Fraction(1))
    assert all(2**63 - 100 < abs(y) <= 2**63 for y in clamped)
    assert clamped[0] > 0 > clamped[1]


@pytest.mark.untraced
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_both_samplers_draw_one_law_and_the_test_sees_five_percent(law: str) -> None:
    def draws(of: Sampler, scale: Fraction) -> Sequence[int]:
        add = {"laplace": of.laplace, "gaussian": of.gaussian}[law]
        return add([0] * 60_000, scale)

    own, other = draws(OwnSampler(), Fraction(8)), draws(OpenDPSampler(), Fraction(8))
    assert same_law(own, other) > LEVEL
    assert same_law(own, draws(OwnSampler(), Fraction(42, 5))) < LEVEL


def same_law(a: Sequence[int], b: Sequence[int]) -> float:
    """p-value of two samples having one law: sizes on average, each size, and signs."""
    reach = int(np.quantile(np.abs(a), 0.995))
    sizes = [np.bincount(np.minimum(np.abs(draws), reach), minlength=reach + 1) for draws in (a, b)]
    signs = [[sum(k > 0 for k in draws), sum(k < 0 for k in draws)] for draws in (a, b)]
    tables = [float(stats.chi2_contingency(np.array(counts)).pvalue) for counts in (sizes, signs)]
    return 3 * min(*tables, float(stats.ttest_ind(np.abs(a), np.abs(b)).pvalue))


# --- one cost ---------------------------------------------------------------------------------------------

SCALES = [0.3, 1.0, 7.3, 1000.0, 2.3e6]
SENSITIVITIES = [1, 3, 17]


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
def test_opendp_states_the_cost_that_is_accounted_for(scale: float, sensitivity: int) -> None:
    """Its ``map`` is D / scale and (D / scale)^2 / 2, rounded up by a part in 2^52 at most."""
    opendp = OpenDPSampler()
    ratio = Fraction(sensitivity) / Fraction(scale)
    up = 1 + Fraction(1, 2**51)
    epsilon = Fraction(opendp.measurement("laplace", Fraction(scale)).map(sensitivity))
    rho = Fraction(opendp.measurement("gaussian", Fraction(scale)).map(float(sensitivity)))
    assert ratio <= epsilon <= ratio * up
    assert ratio**2 / 2 <= rho <= ratio**2 / 2 * up
    pure = pure_epsilon(DiscreteLaplace(scale, sensitivity), Adjacency.ADD_REMOVE)
    assert pure == pytest.approx(float(epsilon), rel=1e-9)
    gaussian = accounting.account(DiscreteGaussian(scale, sensitivity), adjacency="add-remove", method="zcdp")
    stated = accounting.account(ZeroConcentratedDP(float(rho)), adjacency="add-remove", method="zcdp")
    assert gaussian.epsilon(1e-6) == pytest.approx(stated.epsilon(1e-6), rel=1e-3)


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scale",
    [Fraction(1, 3), Fraction(2) ** 1024, Fraction(0), Fraction(-1)],
    ids=["third", "huge", "zero", "negative"],
)
def test_opendp_is_given_no_scale_that_it_would_round(scale: Fraction) -> None:
    for add in (OpenDPSampler().laplace, OpenDPSampler().gaussian):
        with pytest.raises(InvalidInput, match="OpenDP's noise scale"):
            add([1], scale)


def test_noise_of_opendp_stops_at_64_bits() -> None:
    drawn = OpenDPSampler().laplace([0] * 50, Fraction(2) ** 80)
    assert {x for x in drawn if -(2**62) < x < 2**62} == set(), "at one end or the other"
    assert all(-(2**63) <= x < 2**63 for x in drawn)


def test_own_noise_of_no_scale_is_refused() -> None:
    for bad in (Fraction(0), Fraction(-1), 0.5):
        with pytest.raises(InvalidInput):
            OwnSampler().laplace([1], bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        OwnSampler().gaussian([1], Fraction(0))


def test_an_unknown_sampler_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="own, opendp; got 'numpy'"):
        sampler("numpy")


def test_without_opendp_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(MissingExtra, match=r"\.\[opendp\]"):
        sampler("opendp")
    assert sampler("own").laplace([], Fraction(1)) == []


# --- intervals --------------------------------------------------------------------------------------------


def laplace_within(scale: Fraction, k: int) -> mpmath.mpf:
    with mpmath.workdps(60):
        p = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
        return 1 - 2 * p ** (k + 1) / (1 + p)


def gaussian_within(sigma: Fraction, k: int) -> mpmath.mpf:
    with mpmath.workdps(30):
        s2 = mpmath.mpf(sigma.numerator) ** 2 / mpmath.mpf(sigma.denominator) ** 2
        inner = mpmath.fsum(mpmath.exp(-(mpmath.mpf(j) ** 2) / (2 * s2)) for j in range(-k, k + 1))
        return inner / mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * s2)))


@settings(max_examples=200, deadline=None)
@given(st.fractions(min_value=Fraction(1, 1000), max_value=10**15), st.floats(0.01, 0.99999))
@example(Fraction(10), 0.95)
@example(Fraction(2) ** 70, 0.95)
@example(Fraction(1, 10**300), 0.95)
def test_a_laplace_interval_is_the_smallest_that_holds(scale: Fraction, level: float) -> None:
    k = interval("laplace", scale, level)
    assert laplace_within(scale, k) >= level
    assert k == 0 or laplace_within(scale, k - 1) < level + 2e-9 * (1 - level)


@settings(max_examples=60, deadline=None)
@given(st.fractions(min_value=Fraction(1, 100), max_value=300), st.floats(0.01, 0.99999))
@example(Fraction(64), 0.95)
@example(Fraction(65), 0.95)
@example(Fraction(65), 0.5)
@example(Fraction(100), 0.683)
@example(Fraction(1, 10**200), 0.95)
def test_a_gaussian_interval_is_the_smallest_that_holds_or_one_more(sigma: Fraction, level: float) -> None:
    k = interval("gaussian", sigma, level)
    assert gaussian_within(sigma, k) >= level
    slack = 2e-9 * (1 - level) if sigma <= 64 else 1e-4
    assert k == 0 or gaussian_within(sigma, k - 1) < level + slack


def test_a_gaussian_interval_of_a_large_sigma_is_the_continuous_one() -> None:
    sigma = Fraction(2) ** 50
    assert interval("gaussian", sigma, 0.95) / 2**50 == pytest.approx(float(stats.norm.ppf(0.975)), rel=1e-9)


@pytest.mark.untraced
@pytest.mark.parametrize(("scale", "level"), [(3, 0.95), (12, 0.95), (12, 0.8)])
def test_the_noise_is_within_the_interval_as_often_as_stated(scale: int, level: float) -> None:
    """Counts within what a binomial of the exact rate allows; of one scale with the interval of a tenth less
    they are not."""
    n = 20_000
    for name, within in (("laplace", laplace_within), ("gaussian", gaussian_within)):
        add, k = getattr(OwnSampler(), name), interval(name, Fraction(scale), level)
        inside = sum(abs(x) <= k for x in add([0] * n, Fraction(scale)))
        assert stats.binomtest(inside, n, float(within(Fraction(scale), k))).pvalue > LEVEL
        inside = sum(abs(x) <= k for x in add([0] * n, Fraction(6 * scale, 5)))
        assert stats.binomtest(inside, n, float(within(Fraction(scale), k))).pvalue < LEVEL


def test_planted_a_tail_without_the_half_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """P(|noise| > k) taken as 2 P(N > k + 1): intervals that are too small."""
    monkeypatch.setattr(
        pricing, "_log_normal_tail", lambda k, s: math.log(math.erfc(float(k / s) / math.sqrt(2.0)) / 2)
    )
    reach = interval.__wrapped__  # what it finds here is not for later tests
    small = [
        s
        for s in range(65, 300, 5)
        if gaussian_within(Fraction(s), reach("gaussian", Fraction(s), 0.95)) < 0.95
    ]
    assert small
