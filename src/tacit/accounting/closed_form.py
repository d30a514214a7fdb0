"""Costs with closed forms: Gaussians without sampling, pure epsilons, and mechanisms performed once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr

from tacit.accounting.flatten import Base, Steps, flatten, in_units_of, merged, total_mu
from tacit.accounting.price import (
    Array,
    Direction,
    ExactPrice,
    Price,
    brent,
    decimal,
    directions,
    least_epsilon,
)
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Adjacency,
    ApproximateDP,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    GroupPrivacy,
    Laplace,
    PoissonSampled,
    RandomizedResponse,
    SparseVector,
    WithoutReplacement,
    ZeroConcentratedDP,
)

# The analytic Gaussian mechanism: an exact closed form for compositions of Gaussians without sampling.
#
# Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy" (ICML 2018, 1805.06530),
# Theorem 8.  With mu = Delta / sigma,
#
#     delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu),
#
# and T compositions have mu^2 = sum_t mu_t^2 (Dong, Roth & Su 2019, 1905.02383, Corollary 3.3).

_MOST = 1e-12  # above any relative rounding error of delta
_SMALL, _ASYMPTOTIC = 0.5, 20.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Compute delta of a Gaussian at any real ``epsilon``; ``mu`` is the sensitivity divided by the noise."""
    # The result is relatively accurate, however small it is.  With a = eps/mu - mu/2 and b = eps/mu + mu/2
    # the two terms share the factor phi(a), so delta = phi(a) (R(a) - R(b)) with R(t) = Phi(-t)/phi(t).
    if mu == 0.0:
        return max(0.0, -math.expm1(epsilon))
    a, b = epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0
    if (
        mu < _SMALL and a > -1.0
    ):  # the difference of Mills ratios as an integral: no cancellation, however small mu
        fall = _mills_fall(a + mu * (1.0 + _NODES) / 2.0)
        return math.exp(-a * a / 2.0) / math.sqrt(2.0 * math.pi) * mu / 2.0 * float(_WEIGHTS @ fall)
    if a < 0.0:
        head = float(log_ndtr(-a))
        return math.exp(head) * -math.expm1(min(0.0, epsilon + float(log_ndtr(-b)) - head))
    mills = math.sqrt(math.pi / 2.0) * (float(erfcx(a / math.sqrt(2.0))) - float(erfcx(b / math.sqrt(2.0))))
    return math.exp(-a * a / 2.0) / math.sqrt(2.0 * math.pi) * mills


def gaussian_delta_above(epsilon: float, mu: float) -> float:
    """Bound :func:`gaussian_delta` from above, with an allowance for rounding of 64 + 6 a^2 units."""
    # phi(a) = e^{-a^2/2} is off by a^2 units, and 1 - t R(t), about 1/t^2, by some t^2 units.  A test
    # measures the rounding.
    a = epsilon / mu - mu / 2.0 if mu > 0.0 else 0.0
    slack = 2.0**-53 * (64.0 + 6.0 * a * a)
    return gaussian_delta(epsilon, mu) * (1.0 + min(slack, _MOST))


def _mills_fall(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute -R'(t) = 1 - t R(t) for t > -1; for large t, where it cancels, by an asymptotic series."""
    squared = 1.0 / np.square(np.clip(t, _ASYMPTOTIC, 1e150))  # the square of a larger t overflows
    series = np.ones_like(t)
    for odd in range(23, 1, -2):
        series = 1.0 - odd * squared * series
    near = np.minimum(t, _ASYMPTOTIC)
    return np.where(
        t > _ASYMPTOTIC,
        squared * series,
        1.0 - near * math.sqrt(math.pi / 2.0) * erfcx(near / math.sqrt(2.0)),
    )


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Find the smallest epsilon >= 0 with ``gaussian_delta(epsilon, mu) <= delta``, rounded up."""
    if mu == 0.0 or gaussian_delta_above(0.0, mu) <= delta:
        return 0.0
    if not math.isfinite(mu * mu):
        return math.inf
    high = mu * mu / 2.0 + mu * math.sqrt(2.0 * math.log(1.0 / delta)) + mu  # P(L > eps) <= delta
    high *= 1.0 + 1e-13  # if mu^2 is so large that rounding loses the other terms
    return least_epsilon(lambda epsilon: gaussian_delta_above(epsilon, mu), delta, high)


@dataclass(frozen=True)
class GaussianPrice(ExactPrice):
    """The cost of Gaussians, exact up to rounding.  Epsilon is rounded up."""

    mu: float

    def epsilon(self, delta: float) -> float:
        return gaussian_epsilon(delta, self.mu)

    def delta(self, epsilon: float) -> float:
        return gaussian_delta_above(epsilon, self.mu) if math.isfinite(self.mu) else 1.0

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        upper = self.epsilon(delta)
        lower = gaussian_epsilon(min(delta * (1.0 + 4.0 * _MOST), 0.5 + delta / 2.0), self.mu)
        return (lower * (1.0 - 1e-12) if math.isfinite(upper) else 0.0), upper


def gaussian_price(steps: Steps, adjacency: Adjacency) -> Price:
    """Compute the cost of Gaussians in closed form; refuse any other mechanism by name."""
    # * The price is exact: both ends of ``epsilon_bounds`` agree with the closed form to 1e-10.
    # * It is never below the closed form, as rounding goes up.
    units = in_units_of(adjacency, steps)
    for base, _ in units:
        if not isinstance(base, Gaussian):
            raise UnsupportedEvent(
                f"method 'gaussian' only supports Gaussian noise without sampling, not {base!r} under "
                f"adjacency {adjacency.value!r}. Use method 'pld'."
            )
    return GaussianPrice(total_mu(units))


# The pure epsilon of one mechanism, and how sampling amplifies an epsilon.

_UP = 1.0 + 1e-12


def pure_epsilon(base: Base, adjacency: Adjacency) -> float | None:
    """Return the epsilon at delta = 0 of ``base``, in units of ``adjacency``, rounded up; None if unknown."""
    match base:
        case Laplace(scale):
            return 1.0 / scale * _UP
        case DiscreteLaplace(scale, sensitivity):
            return sensitivity / scale * _UP
        case RandomizedResponse(noise, categories):  # (1 - p + p/k) / (p/k)
            return math.log1p((1.0 - noise) / noise * categories) * _UP if noise > 0.0 else None
        case ApproximateDP(epsilon, 0.0) | ExponentialMechanism(epsilon):
            return epsilon
        case SparseVector(threshold, queries):  # Lyu, Su & Li 2017 (1603.01699), Theorem 4
            return (threshold + queries) * _UP
        case GroupPrivacy(inner, size):
            pure = pure_epsilon(inner, adjacency)
            return None if pure is None else size * pure * _UP
        case PoissonSampled(rate, inner) if is_amplified(inner, adjacency):
            pure = pure_epsilon(inner, adjacency)
            return None if pure is None else amplified(pure, rate)
        case WithoutReplacement(records, batch, inner):
            unit = exchanged(inner, adjacency)
            pure = None if unit is None else pure_epsilon(unit, Adjacency.REPLACE_ONE)
            return None if pure is None else amplified(pure, batch / records)
    return None


def is_amplified(inner: Base, adjacency: Adjacency) -> bool:
    # The theorems are about a record that may be absent, so they do not cover replace-one.  They do not cover
    # randomised response either: it shows who does not report.
    return adjacency is not Adjacency.REPLACE_ONE and not isinstance(inner, RandomizedResponse)


def exchanged(inner: Base, adjacency: Adjacency) -> Base | None:
    """Return ``inner`` for an exchange of one record for another, as in batches of fixed size."""
    # Blanking a record is also an exchange.  The result is None for randomised response, whose reports show
    # their senders, and for a guarantee that was not stated under replace-one.
    abstract = isinstance(inner, ApproximateDP | ExponentialMechanism | ZeroConcentratedDP)
    if isinstance(inner, RandomizedResponse) or (abstract and adjacency is not Adjacency.REPLACE_ONE):
        return None
    ((unit, _),) = in_units_of(Adjacency.REPLACE_ONE, ((inner, 1),))
    return unit


def amplified(epsilon: float, rate: float, up: float = _UP) -> float:
    """Return log(1 + q (e^eps - 1)), rounded up: at rate q, (eps, delta) becomes (this epsilon, q delta)."""
    # This holds for Poisson sampling under add-remove, and for sampling without replacement under replace-one
    # (Balle, Barthe & Gaboardi 2018, 1807.01647, Theorems 8 and 9).
    grown = epsilon + math.log(rate) if epsilon > 700.0 else math.log1p(rate * math.expm1(epsilon))
    return grown * up


# Exact closed forms for one mechanism that is performed once.
#
# On a sample, e^eps' = 1 + q (e^eps - 1) and delta' = q delta(eps) under add-remove, and these are attained
# (Balle, Barthe & Gaboardi 2018, 1807.01647, Theorem 8; Li, Qardaji & Su 2012).
#
# For a Gaussian of random sensitivity, delta follows from the threshold of the best test, and epsilon from
# delta.  The losses are monotone in the noise x, so the best test is a threshold c.  Let
# m(x) = sum_i w_i e^{(2 s_i x - s_i^2) / (2 sigma^2)}, and let P and Q be the distributions with and without
# the record:
#
#   remove:   log m(c) = eps,             delta = P(x > c) - e^eps Q(x > c),  P = sum_i w_i N(s_i), Q = N(0);
#     add:      log m(c) = -eps,            delta = Q(x < c) - e^eps P(x < c);
#     replace:  log m(c) - log m(-c) = eps, delta = P(x > c) - e^eps P(x < -c), P against its mirror image.

_SINGLE_UP = 1.0 + 2e-13  # rounding goes towards more epsilon and more delta
_MIXED_UP = 1.0 + 1e-12  # the same for mixtures
_SLACK = 2.0**-46  # rounding of logarithms, relative
_ENDLESS = 1e5  # a larger epsilon counts as infinite
_FAR = 1e4  # the range of c, in standard deviations


def is_single(base: Base, adjacency: Adjacency) -> bool:
    """Return whether ``base`` has a closed form.  Sampled Laplace noise under replace-one has none."""
    match base:
        case Gaussian() | Laplace() | GaussianMixture() | PoissonSampled(_, Gaussian()):
            return True
        case PoissonSampled(_, Laplace()):
            return adjacency is not Adjacency.REPLACE_ONE
    return False


def single_delta(base: Base, epsilon: float) -> float:
    """Compute the smallest delta of ``base`` at ``epsilon`` >= 0, rounded up."""
    match base:
        case PoissonSampled(rate, (Gaussian() | Laplace()) as inner):
            # log(1 + (e^eps - 1) / q) inverts the amplification
            if epsilon > 30.0:
                whole = epsilon + math.log((1.0 - (1.0 - rate) * math.exp(-epsilon)) / rate)
            else:
                whole = math.log1p(math.expm1(epsilon) / rate)
            return rate * single_delta(inner, whole / _SINGLE_UP) * _SINGLE_UP
        case Gaussian(sigma):
            return min(1.0, gaussian_delta_above(epsilon, 1.0 / sigma) * _SINGLE_UP)
        case Laplace(scale):  # losses: 1/b w.p. 1/2, then density e^{-(1/b - l)/2} / 4
            return -math.expm1(min(0.0, (epsilon - 1.0 / scale) / 2.0)) * _SINGLE_UP
    raise _no_closed_form(base)


def single_epsilon(base: Base, delta: float) -> float:
    """Compute the smallest epsilon >= 0 of ``base`` at ``delta`` in (0, 1), rounded up."""
    match base:
        case PoissonSampled(rate, (Gaussian() | Laplace()) as inner):
            return (
                amplified(single_epsilon(inner, delta / rate / _SINGLE_UP), rate, _SINGLE_UP)
                if delta < rate
                else 0.0
            )
        case Gaussian(sigma):
            return gaussian_epsilon(delta, 1.0 / sigma)
        case Laplace(scale):
            return max(0.0, (1.0 / scale + 2.0 * math.log1p(-delta)) * _SINGLE_UP)
    raise _no_closed_form(base)


def _no_closed_form(base: Base) -> UnsupportedEvent:
    return UnsupportedEvent(f"Tacit has no closed form for {base!r}. Use method 'pld' or 'rdp'.")


@dataclass(frozen=True)
class SinglePrice(ExactPrice):
    base: Base
    adjacency: Adjacency

    @property
    def _mixture(self) -> GaussianMixture | None:
        match self.base:
            case PoissonSampled(rate, Gaussian(sigma)) if self.adjacency is Adjacency.REPLACE_ONE:
                return GaussianMixture(sigma, (0.0, 1.0), (1.0 - rate, rate))
        return self.base if isinstance(self.base, GaussianMixture) else None

    def epsilon(self, delta: float) -> float:
        if (mixture := self._mixture) is not None:
            return mixture_epsilon(mixture, delta, self.adjacency)
        return single_epsilon(self.base, delta)

    def delta(self, epsilon: float) -> float:
        if (mixture := self._mixture) is not None:
            return mixture_delta(mixture, epsilon, self.adjacency)
        return single_delta(self.base, epsilon)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        upper = self.epsilon(delta)
        if (mixture := self._mixture) is not None:
            return mixture_epsilon(mixture, delta, self.adjacency, side=-1.0), upper
        return upper * (1.0 - 1e-9), upper


def mixture_delta(base: GaussianMixture, epsilon: float, adjacency: Adjacency, side: float = 1.0) -> float:
    """Compute the delta of ``base`` at ``epsilon`` >= 0, rounded up, or rounded down if ``side`` is -1."""
    return max(_mixture_delta(base, epsilon, direction, side) for direction in directions(adjacency))


def _mixture_delta(base: GaussianMixture, epsilon: float, direction: Direction, side: float) -> float:
    sigma = base.noise_multiplier
    possible = [i for i, chance in enumerate(base.probabilities) if chance > 0.0]
    shifts = np.array(base.sensitivities)[possible]
    log_weights = np.log(np.array(base.probabilities)[possible])

    def log_m(x: float) -> float:
        y = shifts * (2.0 * x - shifts) / (2.0 * sigma * sigma)
        return _log_sum(y + log_weights)

    def log_above(c: float, sign: float) -> float:
        """Compute the log of the mass of sum_i w_i N(sign s_i) above c."""
        return _log_sum(log_ndtr((sign * shifts - c) / sigma) + log_weights)

    def excess(c: float) -> float:
        if direction == "remove":
            return log_m(c) - epsilon
        if direction == "add":
            return log_m(c) + epsilon
        return log_m(c) - log_m(-c) - epsilon

    far = _FAR * max(sigma, 1.0)
    low, high = -far, max(far, sigma * sigma * epsilon / max(float(shifts.max()), 1e-12))
    if excess(low) >= 0.0 or excess(high) <= 0.0:  # the loss does not reach epsilon
        return 0.0
    c = brent(excess, low, high, xtol=1e-15, rtol=1e-14)
    if direction == "remove":
        first, second = log_above(c, 1.0), float(log_ndtr(-c / sigma))
    elif direction == "add":
        first, second = float(log_ndtr(c / sigma)), log_above(-c, -1.0)
    else:
        first, second = log_above(c, 1.0), log_above(c, -1.0)
    gap = -math.expm1(min(0.0, second + epsilon - first))
    slack = _SLACK * (1.0 + abs(first) + abs(second) + epsilon)
    return min(1.0, math.exp(first) * max(0.0, gap + side * slack))


def _log_sum(logs: Array) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))


def mixture_epsilon(base: GaussianMixture, delta: float, adjacency: Adjacency, side: float = 1.0) -> float:
    """Compute the least epsilon of ``base`` at ``delta``, rounded up, or rounded down if ``side`` is -1."""

    def delta_at(epsilon: float) -> float:
        return mixture_delta(base, epsilon, adjacency, side)

    epsilon = least_epsilon(delta_at, delta, 0.1, most=_ENDLESS, side=side)
    return epsilon * _MIXED_UP if side > 0.0 else epsilon / _MIXED_UP


# Costs that add up from release to release, so that a ledger can keep a running total.
#
# If a total decides, in view of earlier answers, whether the next release may happen, it must be a sum of
# costs that are each fixed before their release (Rogers et al. 2016, 1605.08294): here a pure epsilon, in
# ``renyi`` rho and Renyi divergences at fixed orders.  A delta is split off as a *leak*: for any two
# neighbours, an (epsilon, delta)-DP mechanism is epsilon-DP with probability 1 - delta, and arbitrary
# otherwise (Kairouz, Oh & Viswanath 2015, 1311.0776, Theorem 3.2).  Numbers that state a guarantee, such as
# 0.1 in ``ApproximateDP(0.1)``, count as the decimals that they print as.

_LEAKED = 1.0 + 1e-9  # rounding goes towards more delta
_FEW_LEAKS = 64  # so few deltas are multiplied exactly


def pure_cost(event: Event, adjacency: Adjacency | str) -> tuple[Fraction, Fraction] | None:
    """Compute (epsilon, delta) of ``event`` as sums over its mechanisms.

    The sums are exact for mechanisms with a rational epsilon.  The result is None if one of them has
    no pure epsilon, like Gaussian noise.

    >>> from tacit.events import Repeat
    >>> pure_cost(Repeat(DiscreteLaplace(scale=10.0), 3), "add-remove")
    (Fraction(3, 10), Fraction(0, 1))
    """
    relation, steps, leak = with_leak(event, adjacency)
    parts = [(exactly_pure(base, relation), count) for base, count in steps]
    if any(epsilon is None for epsilon, _ in parts):
        return None
    return sum((count * epsilon for epsilon, count in parts if epsilon is not None), Fraction(0)), leak


def pure_claim(steps: Steps, adjacency: Adjacency) -> tuple[Fraction, Fraction] | None:
    """Compute the (epsilon, delta) of ``steps`` at the largest finite privacy loss; None if there is none."""
    # Epsilons add up.  No delta leaks with the product of the chances that each does not (Kairouz, Oh &
    # Viswanath 2015, 1311.0776, Theorem 3.3), so this delta is less than that of :func:`pure_cost`.
    pure, leaks = _without_leaks(steps, adjacency)
    total = Fraction(0)
    for base, count in pure:
        epsilon = exactly_pure(base, adjacency)
        if epsilon is None:
            return None
        total += count * epsilon
    if sum(count for _, count in leaks) <= _FEW_LEAKS:
        no_leak = math.prod(((1 - chance) ** count for chance, count in leaks), start=Fraction(1))
        return total, 1 - no_leak
    log_kept = sum(count * math.log1p(-float(chance)) for chance, count in leaks if chance < 1)
    leaked = -math.expm1(log_kept) * _LEAKED if all(chance < 1 for chance, _ in leaks) else 1.0
    return total, Fraction(min(1.0, leaked))


def with_leak(event: Event, adjacency: Adjacency | str) -> tuple[Adjacency, Steps, Fraction]:
    """Return the adjacency, the steps of ``event`` in its units without deltas, and the sum of deltas."""
    relation = Adjacency.parse(adjacency)
    steps, leaks = _without_leaks(flatten(event), relation)
    return relation, steps, sum((count * chance for chance, count in leaks), Fraction(0))


def _without_leaks(steps: Steps, adjacency: Adjacency) -> tuple[Steps, list[tuple[Fraction, int]]]:
    """Return ``steps`` without deltas, in units of ``adjacency``, and each delta with its count."""
    split = [(*_split(base, adjacency), count) for base, count in in_units_of(adjacency, steps)]
    leaks = [(chance, count) for _, chance, count in split if chance > 0]
    return merged((part, count) for part, _, count in split), leaks


def _split(base: Base, adjacency: Adjacency) -> tuple[Base, Fraction]:
    match base:
        case ApproximateDP(epsilon, delta) if delta > 0.0:
            return ApproximateDP(epsilon), decimal(delta)
        case PoissonSampled(rate, ApproximateDP(epsilon, delta)) if delta > 0.0 and is_amplified(
            base.event, adjacency
        ):  # Balle, Barthe & Gaboardi 2018 (1807.01647), Theorem 8
            return ApproximateDP(amplified(epsilon, rate)), Fraction(rate) * decimal(delta)
    return base, Fraction(0)


def exactly_pure(base: Base, adjacency: Adjacency) -> Fraction | None:
    match base:
        case Laplace(scale):
            return 1 / Fraction(scale)
        case DiscreteLaplace(scale, sensitivity):
            return sensitivity / Fraction(scale)
        case ApproximateDP(epsilon, 0.0) | ExponentialMechanism(epsilon):
            return decimal(epsilon)
        case SparseVector(threshold, queries):
            return decimal(threshold) + decimal(queries)
    bound = pure_epsilon(base, adjacency)
    if bound is None:
        return None
    if not np.isfinite(bound):
        raise UnsupportedEvent(f"{base!r} has an infinite epsilon: it protects nothing. Use more noise.")
    return Fraction(bound)
