"""Compositions of every family: reference values, exact sums of losses on a lattice, brute force."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from priced import curve_of

from tacit.accounting import account
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    BallsInBins,
    Compose,
    CyclicPoissonSampled,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    MatrixFactorization,
    Partitioned,
    PoissonSampled,
    PrivateSelection,
    RandomizedResponse,
    Repeat,
    Shuffled,
    SparseVector,
    TreeAggregation,
    TruncatedPoissonSampled,
    WithoutReplacement,
    WithReplacement,
    ZeroConcentratedDP,
)

WIDTH = 1e-3  # of every bracket, relative


def bounds(event: Event, adjacency: str, delta: float) -> tuple[float, float]:
    return account(event, adjacency=adjacency).epsilon_bounds(delta)


def assert_close(event: Event, adjacency: str, delta: float, truth: float, tolerance: float = 1e-6) -> None:
    lower, upper = bounds(event, adjacency, delta)
    assert lower <= truth * (1 + tolerance)
    assert truth * (1 - tolerance) <= upper <= lower * (1 + WIDTH)


# The reference page's figures, of Gaussians in units of the exchange of a record: half our multiplier
@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize(
    ("records", "batch", "sigma", "steps", "truth"),
    [
        (60_000, 600, 4.0, 10_000, 1.0392),
        (60_000, 600, 1.0, 1000, 2.1989),
        (60_000, 256, 1.12, 14_062, 2.9696),
        (1000, 100, 5.0, 1000, 2.8224),
        (1000, 500, 10.0, 100, 2.0405),
    ],
)
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_without_replacement(
    records: int, batch: int, sigma: float, steps: int, truth: float, adjacency: str
) -> None:
    event = Repeat(WithoutReplacement(records, batch, Gaussian(2 * sigma)), steps)
    assert_close(event, adjacency, 1e-5, truth, 5e-5)


@pytest.mark.parametrize(("largest", "truth"), [(800, 0.946868), (700, 0.947118), (660, 1.003971)])
def test_truncated_batches(largest: int, truth: float) -> None:
    event = Repeat(TruncatedPoissonSampled(0.01, 60_000, largest, Gaussian(4.0)), 10_000)
    assert_close(event, "add-remove", 1e-5, truth, 3e-6)


def test_truncated_batches_under_replace_one() -> None:
    event = Repeat(TruncatedPoissonSampled(0.01, 60_000, 700, Gaussian(4.0)), 10_000)
    assert_close(event, "replace-one", 1e-5, 1.993251, 2e-5)


def test_a_batch_that_is_never_cut_costs_what_poisson_costs() -> None:
    whole = Repeat(PoissonSampled(0.1, Gaussian(4.0)), 100)
    cut = Repeat(TruncatedPoissonSampled(0.1, 50, 50, Gaussian(4.0)), 100)
    assert bounds(cut, "add-remove", 1e-6) == bounds(whole, "add-remove", 1e-6)


def test_laplace() -> None:  # dp_accounting at a grid of 1e-5: 4.220347
    assert_close(Repeat(Laplace(10.0), 100), "add-remove", 1e-5, 4.220345, 1e-6)


# --- exact sums of losses on a lattice --------------------------------------------------------------------


def least_epsilon(losses: list[mp.mpf], masses: list[mp.mpf], delta: float) -> float:
    """The epsilon at which sum p (1 - e^{eps - L})_+ is ``delta``, by bisection."""

    def at(eps: mp.mpf) -> mp.mpf:
        return mp.fsum(p * (1 - mp.exp(eps - s)) for s, p in zip(losses, masses, strict=True) if s > eps)

    low, high = mp.mpf(0), max(losses)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) > delta else (low, middle)
    return float(high)


def of_coin(heavy: mp.mpf, light: mp.mpf, steps: int, delta: float, kept: float = 1.0) -> float:
    """``steps`` times a loss of +-log(heavy / light), the rest of the mass at 0; ``kept``: of each step."""
    unit = mp.log(heavy / light)
    rest = 1 - heavy - light
    pmf = [mp.mpf(0)] * (2 * steps + 1)
    for up in range(steps + 1):
        for down in range(steps + 1 - up):
            if rest > 0 or up + down == steps:
                ways = mp.factorial(steps) / (
                    mp.factorial(up) * mp.factorial(down) * mp.factorial(steps - up - down)
                )
                still = rest ** (steps - up - down) if steps > up + down else 1
                pmf[steps + up - down] += ways * heavy**up * light**down * still * kept**steps
    losses = [unit * (i - steps) for i in range(2 * steps + 1)]
    return least_epsilon(losses, pmf, delta - float(1 - kept**steps))


@pytest.mark.parametrize(
    ("noise", "categories", "steps", "delta"), [(0.5, 2, 20, 1e-6), (0.9, 10, 30, 1e-4), (0.5, 2, 100, 1e-6)]
)
def test_randomised_response(noise: float, categories: int, steps: int, delta: float) -> None:
    with mp.workdps(30):
        wrong = mp.mpf(noise) / categories
        rest = (categories - 2) * wrong
        heavy = 1 - mp.mpf(noise) + wrong
        assert abs(heavy + wrong + rest - 1) < mp.mpf(10) ** -25
        exact = of_coin(heavy, wrong if categories > 2 else 1 - heavy, steps, delta)
    event = Repeat(RandomizedResponse(noise, categories), steps)
    assert_close(event, "replace-one", delta, exact, 1e-8)
    assert bounds(event, "replace-one", delta)[1] <= exact * (1 + 1e-8)


@pytest.mark.parametrize(("epsilon", "leak"), [(0.1, 0.0), (0.1, 2e-8), (0.3, 1e-7)])
def test_approximate_dp_is_optimal_composition(epsilon: float, leak: float) -> None:
    with mp.workdps(30):
        e = mp.exp(mp.mpf(epsilon))
        exact = of_coin(e / (1 + e), 1 / (1 + e), 50, 1e-5, 1.0 - leak)
    event = Repeat(ApproximateDP(epsilon, leak), 50)
    assert_close(event, "replace-one", 1e-5, exact, 1e-8)
    assert bounds(event, "add-remove", 1e-5)[1] == pytest.approx(exact, rel=1e-8)


def test_a_leak_that_is_larger_than_delta_is_infinite() -> None:
    curve = account(Repeat(ApproximateDP(0.1, 1e-6), 100), adjacency="replace-one")
    assert curve.epsilon_bounds(1e-5) == (math.inf, math.inf)
    assert curve.delta(20.0) == pytest.approx(1e-4, rel=1e-4)
    assert account(Repeat(RandomizedResponse(0.0, 3), 2), adjacency="zero-out").delta(9.0) == 1.0
    both = Compose((RandomizedResponse(0.0, 3), Repeat(Laplace(3.0), 5)))
    assert account(both, adjacency="zero-out").epsilon_bounds(0.5) == (math.inf, math.inf)
    assert account(both, adjacency="zero-out").delta(0.5) == 1.0


@pytest.mark.parametrize("shift", [1, 2])
def test_discrete_gaussian(shift: int) -> None:
    """L is linear in k, so that the sum of k is enough: its pmf by direct convolution."""
    steps, scale, delta = 50, 3.0, 1e-6
    k = np.arange(-60, 61)
    pmf = np.exp(-(k**2) / (2 * scale**2))
    pmf /= pmf.sum()
    total = np.ones(1)
    for _ in range(steps):
        total = np.convolve(total, pmf)
    sums = np.arange(total.size) - 60 * steps + shift * steps  # under P, noise is around the shift
    losses = shift * (2.0 * sums - shift * steps) / (2 * scale**2)
    there = total > 1e-40
    with mp.workdps(30):
        exact = least_epsilon([mp.mpf(x) for x in losses[there]], [mp.mpf(x) for x in total[there]], delta)
    assert_close(Repeat(DiscreteGaussian(scale, shift), steps), "add-remove", delta, exact, 1e-8)
    if shift == 2:  # replace-one doubles the sensitivity
        assert_close(Repeat(DiscreteGaussian(scale, 1), steps), "replace-one", delta, exact, 1e-8)


def test_discrete_laplace() -> None:
    with mp.workdps(30):
        a = mp.exp(-mp.mpf(1) / 10)
        exact = of_coin(1 / (1 + a), a / (1 + a), 100, 1e-6)
    assert_close(Repeat(DiscreteLaplace(10.0), 100), "add-remove", 1e-6, exact, 1e-8)


def test_exponential_mechanism_twice() -> None:
    """Two steps with independent worst ranges: at most this, by quadrature of the product of the pairs."""
    epsilon, delta = 0.8, 1e-3
    with mp.workdps(20):

        def density(y: mp.mpf) -> mp.mpf:
            return mp.exp(y / 2) / (4 * mp.sinh(mp.mpf(epsilon) / 2))

        def one(x: mp.mpf) -> mp.mpf:  # the hockey stick of one step
            if x >= epsilon:
                return mp.mpf(0)
            if x <= -epsilon:
                return 1 - mp.exp(x)
            return (mp.exp(mp.mpf(epsilon) / 2) - mp.exp(x / 2)) ** 2 / mp.expm1(epsilon)

        def two(x: mp.mpf) -> mp.mpf:
            cuts = sorted({-epsilon, max(-epsilon, x - epsilon), min(epsilon, x + epsilon), epsilon})
            return mp.quad(lambda y: density(y) * one(x - y), cuts)

        exact = float(mp.findroot(lambda x: mp.log(two(x) / delta), (1.2, 1.5), solver="anderson", tol=1e-10))
    assert_close(Repeat(ExponentialMechanism(epsilon), 2), "add-remove", delta, exact, 1e-6)


def test_exponential_mechanism_costs_less_than_pure_privacy() -> None:
    ranged = bounds(Repeat(ExponentialMechanism(0.1), 100), "add-remove", 1e-5)[1]
    assert ranged < 0.6 * bounds(Repeat(ApproximateDP(0.1), 100), "add-remove", 1e-5)[0]


# --- events that are other events -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "same"),
    [
        (Partitioned(7, PoissonSampled(0.1, Gaussian(2.0))), PoissonSampled(0.1, Gaussian(2.0))),
        (TreeAggregation(3.0, leaves=8), Gaussian(1.5)),
        (MatrixFactorization(5.0, (3.0, 4.0), 10), Gaussian(1.0)),
        (
            CyclicPoissonSampled(0.1, 4, MatrixFactorization(5.0, (3.0, 4.0), 10)),
            Repeat(PoissonSampled(0.1, Gaussian(1.0)), 3),
        ),
        (GroupPrivacy(Gaussian(6.0), 3), Gaussian(2.0)),
        (GroupPrivacy(Repeat(Laplace(6.0), 2), 3), Repeat(Laplace(2.0), 2)),
        (GroupPrivacy(DiscreteGaussian(6.0, 2), 3), DiscreteGaussian(6.0, 6)),
        (GroupPrivacy(DiscreteLaplace(6.0), 3), DiscreteLaplace(6.0, 3)),
        (GroupPrivacy(ApproximateDP(0.5), 3), ApproximateDP(1.5)),
        (GroupPrivacy(ExponentialMechanism(0.5), 3), ExponentialMechanism(1.5)),
        (GroupPrivacy(SparseVector(0.25, 0.25, 2), 3), ApproximateDP(1.5)),
        (SparseVector(0.25, 0.25, 2, monotonic=True), ApproximateDP(0.5)),
        (GroupPrivacy(Partitioned(4, Gaussian(6.0)), 3), Gaussian(2.0)),
        (GroupPrivacy(Repeat(Laplace(2.0), 5), 1), Repeat(Laplace(2.0), 5)),
        (
            PoissonSampled(0.5, GaussianMixture(2.0, (0.0, 1.0), (0.5, 0.5))),
            GaussianMixture(2.0, (0.0, 1.0), (0.75, 0.25)),
        ),
        (WithoutReplacement(9, 9, Laplace(2.0)), Laplace(2.0)),
        (BallsInBins(1, Laplace(2.0), passes=3), Repeat(Laplace(2.0), 3)),
    ],
)  # fmt: skip
def test_equal_events_cost_the_same(event: Event, same: Event) -> None:
    adjacency = "zero-out" if isinstance(event, WithoutReplacement) else "add-remove"
    ours = bounds(Repeat(event, 2), adjacency, 1e-5)
    assert ours == pytest.approx(bounds(Repeat(same, 2), adjacency, 1e-5), rel=1e-9)


def test_group_of_two_samples_by_brute_force() -> None:
    """Both out of two sampled steps' participants, in the remove direction: sums over all outcomes."""
    q, sigma, eps = 0.3, 1.5, 0.9
    x = np.linspace(-14, 18, 1601)

    def density(mean: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.asarray(np.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)))

    with_group = (1 - q) ** 2 * density(0) + 2 * q * (1 - q) * density(1) + q * q * density(2)
    p, r = np.multiply.outer(with_group, with_group), np.multiply.outer(density(0), density(0))
    exact = float(np.maximum(p - math.exp(eps) * r, 0.0).sum() * (x[1] - x[0]) ** 2)
    event = Repeat(GroupPrivacy(PoissonSampled(q, Gaussian(sigma)), 2), 2)
    lower, upper = bounds(event, "add-remove", exact)
    assert lower <= eps * (1 + 1e-4)
    assert eps * (1 - 1e-4) <= upper <= lower * (1 + WIDTH)


def test_mixture_of_nothing_and_one_is_a_poisson_sample() -> None:
    mixture = Repeat(GaussianMixture(4.0, (0.0, 1.0), (0.99, 0.01)), 10_000)
    assert_close(mixture, "add-remove", 1e-5, 0.9468668007643641, 1e-8)
    assert_close(mixture, "replace-one", 1e-5, 1.993139, 1e-4)


# --- every family: count once, monotone width, refusals ---------------------------------------------------

FAMILIES: list[tuple[Event, str]] = [
    (Laplace(4.0), "add-remove"),
    (DiscreteGaussian(4.0), "add-remove"),
    (DiscreteLaplace(4.0, 3), "replace-one"),
    (RandomizedResponse(0.7, 4), "replace-one"),
    (ApproximateDP(0.3, 1e-9), "add-remove"),
    (ExponentialMechanism(0.3), "zero-out"),
    (SparseVector(0.1, 0.2, 4), "replace-one"),
    (GaussianMixture(4.0, (0.0, 1.0, 3.0), (0.5, 0.4, 0.1)), "add-remove"),
    (GaussianMixture(4.0, (0.0, 1.0, 3.0), (0.5, 0.4, 0.1)), "replace-one"),
    (PoissonSampled(0.1, Laplace(2.0)), "add-remove"),
    (PoissonSampled(0.1, Laplace(2.0)), "replace-one"),
    (PoissonSampled(0.1, DiscreteGaussian(2.0)), "zero-out"),
    (PoissonSampled(0.1, DiscreteLaplace(2.0)), "add-remove"),
    (PoissonSampled(0.1, ApproximateDP(0.5, 1e-8)), "add-remove"),
    (PoissonSampled(0.1, ExponentialMechanism(0.5)), "add-remove"),
    (PoissonSampled(0.1, SparseVector(0.2, 0.3, 1)), "add-remove"),
    (WithoutReplacement(100, 10, Laplace(4.0)), "replace-one"),
    (WithoutReplacement(100, 10, DiscreteGaussian(4.0)), "replace-one"),
    (WithoutReplacement(100, 10, ApproximateDP(0.5, 1e-8)), "replace-one"),
    (WithoutReplacement(100, 10, ExponentialMechanism(0.5)), "replace-one"),
    (TruncatedPoissonSampled(0.1, 100, 12, Gaussian(3.0)), "zero-out"),
    (TruncatedPoissonSampled(0.1, 100, 12, Gaussian(3.0)), "replace-one"),
    (GroupPrivacy(PoissonSampled(0.1, Gaussian(4.0)), 3), "add-remove"),
    (GroupPrivacy(PoissonSampled(0.1, Gaussian(4.0)), 3), "replace-one"),
    (GroupPrivacy(RandomizedResponse(0.8, 3), 2), "replace-one"),
    (Shuffled(5, Laplace(4.0)), "zero-out"),
]


@pytest.mark.thorough(cases=6)
@pytest.mark.untraced
@pytest.mark.parametrize(("event", "adjacency"), FAMILIES, ids=lambda value: repr(value)[:70])
def test_bracket_is_narrow_and_count_is_counted_once(event: Event, adjacency: str) -> None:
    repeated, listed = Repeat(event, 12), Compose((event,) * 12)
    lower, upper = bounds(repeated, adjacency, 1e-6)
    assert (lower, upper) == bounds(listed, adjacency, 1e-6)
    assert 0.0 < lower <= upper <= lower * (1 + WIDTH)
    assert upper > 1.5 * bounds(event, adjacency, 1e-6)[1]
    assert account(repeated, adjacency=adjacency).delta(upper) == pytest.approx(1e-6, rel=0.02)
    single_lower, single_upper = bounds(event, adjacency, 1e-6)
    assert 0.0 <= single_lower <= single_upper <= single_lower * (1 + WIDTH) + 1e-6


@pytest.mark.parametrize(
    ("event", "adjacency", "words"),
    [
        (RandomizedResponse(0.5, 2), "add-remove", "depends on the number of records"),
        (WithoutReplacement(10, 2, Gaussian(1.0)), "add-remove", "Use Poisson sampling"),
        (Shuffled(10, Gaussian(1.0)), "add-remove", "Use Poisson sampling"),
        (GroupPrivacy(Shuffled(10, Gaussian(1.0)), 2), "add-remove", "Use Poisson sampling"),
        (PoissonSampled(0.1, RandomizedResponse(0.5, 2)), "zero-out", "RandomizedResponse"),
        (PoissonSampled(0.1, RandomizedResponse(0.5, 2)), "replace-one", "RandomizedResponse"),
        (PoissonSampled(0.1, DiscreteGaussian(2.0)), "replace-one", "DiscreteGaussian"),
        (PoissonSampled(0.1, ApproximateDP(1.0)), "replace-one", "ApproximateDP"),
        (WithoutReplacement(10, 2, RandomizedResponse(0.5, 2)), "replace-one", "RandomizedResponse"),
        (WithoutReplacement(10, 2, RandomizedResponse(0.5, 2)), "zero-out", "RandomizedResponse"),
        (WithoutReplacement(10, 2, ApproximateDP(1.0)), "zero-out", "ApproximateDP"),
        (WithoutReplacement(10, 2, ExponentialMechanism(1.0)), "zero-out", "ExponentialMechanism"),
        (WithoutReplacement(10, 2, GroupPrivacy(ApproximateDP(1.0), 2)), "zero-out", "ApproximateDP"),
        (Shuffled(4, WithoutReplacement(10, 2, ApproximateDP(1.0))), "zero-out", "ApproximateDP"),
        (WithoutReplacement(10, 2, PoissonSampled(0.1, Gaussian(1.0))), "zero-out", "WithoutReplacement"),
        (TruncatedPoissonSampled(0.1, 10, 2, Laplace(1.0)), "add-remove", "TruncatedPoissonSampled"),
        (ZeroConcentratedDP(0.1), "add-remove", "rdp"),
        (BallsInBins(10, Gaussian(0.2)), "add-remove", "too long a tail"),
        (BallsInBins(10, Gaussian(0.4), passes=2), "zero-out", "too long a tail"),
        (BallsInBins(10, Laplace(1.0)), "add-remove", "BallsInBins"),
        (BallsInBins(10, PoissonSampled(0.5, Gaussian(2.0))), "add-remove", "BallsInBins"),
        (BallsInBins(10, Gaussian(1.0)), "replace-one", "under 'add-remove' or 'zero-out'"),
        (WithReplacement(10, 2, Gaussian(1.0)), "replace-one", "WithReplacement"),
        (WithReplacement(10, 2, Gaussian(1.0)), "add-remove", "depends on the number of records"),
        (PrivateSelection(ZeroConcentratedDP(0.1), "poisson", 2.0), "add-remove", "ZeroConcentratedDP"),
        (PoissonSampled(0.1, ZeroConcentratedDP(0.1)), "add-remove", "ZeroConcentratedDP"),
        (GroupPrivacy(PoissonSampled(0.1, Laplace(1.0)), 2), "add-remove", "GroupPrivacy"),
        (GroupPrivacy(Partitioned(3, PoissonSampled(0.1, Gaussian(1.0))), 2), "add-remove", "GroupPrivacy"),
        (GroupPrivacy(Partitioned(3, DiscreteGaussian(1.0)), 2), "add-remove", "GroupPrivacy"),
        (PoissonSampled(0.1, Gaussian(0.01)), "replace-one", "Use more noise"),
        (WithoutReplacement(10, 2, Laplace(0.01)), "replace-one", "Use more noise"),
        (DiscreteGaussian(1e6), "add-remove", "coarser unit"),
        (DiscreteLaplace(0.001), "add-remove", "Use more noise"),
        (GaussianMixture(0.1, (0.0, 1000.0), (0.5, 0.5)), "add-remove", "Use more noise"),
        (
            PoissonSampled(0.1, Repeat(DiscreteGaussian(1.0), 2)),
            "add-remove",
            "one random sample",
        ),
        (
            WithoutReplacement(10, 2, Repeat(Gaussian(1.0), 2)),
            "replace-one",
            "one random sample",
        ),
    ],
)
def test_what_has_no_proven_pair_is_refused_by_name(event: Event, adjacency: str, words: str) -> None:
    relation = Adjacency.parse(adjacency)
    with pytest.raises(UnsupportedEvent, match=words):
        account(Compose((Gaussian(1.0), Repeat(event, 2))), adjacency=relation)


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (Repeat(Laplace(1.8037793673492226), 11), 8.5e-12),
        (Repeat(Laplace(18.0), 7), 1.4e-8),
        (Repeat(PoissonSampled(0.116, ApproximateDP(1.0355, 3.8e-12)), 3), 1.1e-10),
        (Repeat(PoissonSampled(0.01, ExponentialMechanism(0.5)), 2), 1e-12),
    ],
)
def test_bracket_is_narrow_next_to_the_largest_loss(event: Event, delta: float) -> None:
    """No tilt makes the sum of a few bounded losses smooth there."""
    lower, upper = bounds(event, "add-remove", delta)
    assert 0.0 < lower <= upper <= lower * (1 + WIDTH)
    assert upper <= curve_of(event).epsilon(delta / 2)


def test_laplace_next_to_its_largest_loss_is_exact() -> None:
    """All T atoms of mass 1/2 at 1/b, and nothing within reach: 2^-T (1 - e^{eps - T/b}) = delta."""
    lower, upper = bounds(Repeat(Laplace(0.5), 3), "add-remove", 1e-9)
    exact = 6.0 + math.log1p(-8e-9)
    assert lower <= exact
    assert upper == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("delta", [0.0, 1e-9])
@pytest.mark.parametrize("epsilon", [50.0, 230.0, 600.0, 900.0, 5000.0])
@pytest.mark.parametrize("count", [2, 7, 40])
def test_losses_beyond_the_range_of_floats_are_not_lost(epsilon: float, count: int, delta: float) -> None:
    """e^1000 overflows, and 1000 nats are no guarantee; a curve that says 0 would be a false one."""
    event = Repeat(ApproximateDP(epsilon, delta), count)
    lower, upper = curve_of(event).epsilon_bounds(1e-6)
    assert epsilon * count * (1 - 1e-6) <= lower <= upper <= epsilon * count * (1 + 1e-9)
    assert curve_of(event).delta(1.0) >= 1.0 - 1e-9
