"""Privacy loss distributions: tight, with a proven upper and lower end.

The loss of every base mechanism is put on a grid from above and from below (``grid``), all steps are
composed by one tilted FFT (``convolve``), and epsilon is where delta's bound crosses the target.  The
grid, the tilt and the window come from the saddle point of the exact cumulant function

    K(z) = sum_j T_j log E e^{z L_j},   log delta ~ K(c) - c eps - log c(c+1) - ...   at the saddle c

(Alghamdi et al. 2022, 2208.09595); they decide how tight the bounds are, never whether they hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from tacit.accounting.contour import Plain, Term
from tacit.accounting.convolve import Composition, Window, compose, directly
from tacit.accounting.curve import Price
from tacit.accounting.gaussian import GaussianPrice
from tacit.accounting.grid import Masses, aligned, bracket, lattice, snapped
from tacit.accounting.inversion import ContourPrice
from tacit.accounting.losses import LEAST_NOISE, directions, loss_of
from tacit.accounting.pair import Array, Branch, Direction
from tacit.accounting.roots import brent
from tacit.accounting.single import SinglePrice, is_single
from tacit.accounting.steps import Base, Steps, in_units_of, total_mu
from tacit.accounting.transform import Sampled
from tacit.accounting.twofold import SampledPair, TwofoldPrice
from tacit.events import Adjacency, BallsInBins, Gaussian, PoissonSampled

__all__ = ["estimate", "price"]

_TIGHTNESS = 4e-5  # wanted: the grid's own error in epsilon, relative
_WIDEST = 3.1e-5  # spacing, where that is affordable: a third of what is common elsewhere
_CHEAP = 1 << 14  # points that cost next to nothing, so are always taken
_LARGEST_SUM, _LARGEST_STEP = 1 << 21, 1 << 20  # points; beyond, the grid gets coarser, the bounds looser
_FAINT = 1e-290
_NEGLIGIBLE = 1e-200  # no effort is made to resolve a smaller delta
_ROUNDED_DOWN = 3e-4  # wanted: what rounding atoms down costs in epsilon, relative
_DIRECT = 1 << 12  # points of a lattice that are convolved directly
_FEW, _FEW_POINTS = 32, 1 << 14  # steps and points that are, where the transform has nothing to go by
_FINER = 8.0  # a second grid, where the first leaves much
_ALONE = 1e-4  # the grid of a mechanism that is performed once, against epsilon
_MANY_ATOMS = 4000  # for an estimate
_ROUNDS = 5
_ENDLESS = 1e12
_INFINITE_SLACK = 1e-11  # allowance on the mass at infinity, relative


@dataclass(frozen=True)
class Cumulant:
    """K and its first two derivatives, from weighted samples of each loss: (losses, log masses, count)."""

    parts: tuple[tuple[Array, Array, int], ...]

    def __call__(self, z: float) -> tuple[float, float, float]:
        value, slope, curvature = 0.0, 0.0, 0.0
        for losses, logs, count in self.parts:
            exponents = logs + z * losses
            top = float(exponents.max())
            weights = np.exp(exponents - top)
            total = float(weights.sum())
            mean = float(np.dot(weights, losses)) / total
            value += count * (top + math.log(total))
            slope += count * mean
            curvature += count * float(np.dot(weights, (losses - mean) ** 2)) / total
        return value, slope, curvature


@lru_cache(maxsize=64)
def _samples(base: Base, direction: Direction, tail: float) -> tuple[Array, Array]:
    """Losses and log masses of ``base`` for the estimates: by midpoints."""
    loss = loss_of(base, direction, tail)
    parts = [_midpoints(branch) for branch in loss.branches] + [_thinned(*loss.atoms.T)]
    losses, masses = (np.concatenate(column) for column in zip(*parts, strict=True))
    return losses[masses > 0.0], np.log(masses[masses > 0.0])


def _thinned(losses: Array, masses: Array) -> tuple[Array, Array]:
    """At most some thousand atoms: neighbours are merged at their mean."""
    if losses.size <= _MANY_ATOMS:
        return losses, masses
    place = ((losses - losses.min()) / float(np.ptp(losses)) * _MANY_ATOMS).astype(np.int64)
    total = np.bincount(place, masses).astype(np.float64)
    there = total > 0.0
    return np.bincount(place, masses * losses)[there] / total[there], total[there]


def _midpoints(branch: Branch) -> tuple[Array, Array]:
    edges = np.linspace(branch.panels[0], branch.panels[-1], min(1000, 8 * branch.panels.size))
    x = (edges[1:] + edges[:-1]) / 2.0
    return branch.value(x), (edges[1] - edges[0]) * branch.density(x)


def _cumulant(steps: Steps, direction: Direction, tail: float) -> Cumulant:
    return Cumulant(tuple((*_samples(base, direction, tail), count) for base, count in steps))


def _tail(steps: Steps, log_delta: float) -> float:
    """The P-mass of one loss to cut off at either end: a billionth of delta in all; rounded, to be cached."""
    log_tail = log_delta - math.log(1e9 * sum(count for _, count in steps))
    return float(10.0 ** math.floor(max(log_tail, math.log(_FAINT)) / math.log(10.0)))


@dataclass(frozen=True)
class Saddle:
    """An estimate: the point (epsilon, log delta) of the curve at the tilt ``tilt``."""

    tilt: float
    epsilon: float
    log_delta: float
    variance: float


def _saddle(cumulant: Cumulant, tilt: float) -> Saddle:
    value, slope, curvature = cumulant(tilt)
    epsilon = slope - 1.0 / tilt - 1.0 / (tilt + 1.0)
    spread = curvature + 1.0 / tilt**2 + 1.0 / (tilt + 1.0) ** 2
    log_delta = (
        value - tilt * epsilon - math.log(tilt * (tilt + 1.0)) - 0.5 * math.log(2.0 * math.pi * spread)
    )
    return Saddle(tilt, epsilon, log_delta, curvature)


def _find(cumulant: Cumulant, excess: Callable[[Saddle], float]) -> Saddle:
    """The saddle at which ``excess``, increasing in the tilt, vanishes; or the nearest end of the range."""
    low, high = math.log(1e-3), math.log(1e7)

    def at(log_tilt: float) -> float:
        return excess(_saddle(cumulant, math.exp(log_tilt)))

    if at(low) >= 0.0:
        return _saddle(cumulant, math.exp(low))
    if at(high) <= 0.0:
        return _saddle(cumulant, math.exp(high))
    return _saddle(cumulant, math.exp(brent(at, low, high, xtol=1e-3)))


def _saddle_at_delta(steps: Steps, way: Direction, delta: float) -> Saddle:
    cumulant = _cumulant(steps, way, _tail(steps, math.log(delta)))
    return _find(cumulant, lambda point: math.log(delta) - point.log_delta)


def _window(cumulant: Cumulant, tilt: float, rest: float = 1e-16) -> Window:
    """The losses outside of which less than ``rest`` of the tilted mass lies, by Chernoff's bound."""
    value, _, curvature = cumulant(tilt)
    wanted = -math.log(rest)
    unit = math.sqrt(2.0 * wanted / max(curvature, 1e-300))  # the best further tilt if all were Gaussian
    low, down, high, up = -math.inf, 0.0, math.inf, 0.0
    for further in unit * 2.0 ** np.arange(-8.0, 3.0):
        right = (cumulant(tilt + further)[0] - value + wanted) / further
        left = (value - cumulant(tilt - further)[0] - wanted) / further
        low, down = (left, float(further)) if left > low else (low, down)
        high, up = (right, float(further)) if right < high else (high, up)
    return Window(tilt, low, high, down, up)


@lru_cache(maxsize=24)
def _grid(base: Base, direction: Direction, h: float, tail: float) -> tuple[Masses, Masses]:
    loss = loss_of(base, direction, tail)
    lower, upper = bracket(loss, h)
    return (lower if loss.dominated is None else bracket(loss.dominated, h)[0]), upper


def _spacing(
    epsilon: float, variance: float, steps: int, window: Window, reach: float, atoms: Array, finer: float
) -> float:
    """h such that the error is small against epsilon; rounded, so that grids recur.

    The grid adds about h^2 / 6 to the variance of each loss, and epsilon moves by half the relative change.
    Atoms that are not on the grid are rounded down for the lower end, each by up to h.
    """
    epsilon = max(epsilon, 1e-3)
    wanted = min(_WIDEST, math.sqrt(_TIGHTNESS * min(epsilon, 12.0 * variance) / steps))
    width = window.high - window.low
    least = max(width / _LARGEST_SUM, reach / _LARGEST_STEP)
    h, cost = aligned(_rounded(max(min(wanted, width / _CHEAP) / finer, least)), atoms)
    if cost > _ROUNDED_DOWN * epsilon:
        h, _ = aligned(_rounded(max(h * _ROUNDED_DOWN * epsilon / cost, least)), atoms)
    return h


def _rounded(h: float) -> float:
    return float(2.0 ** (math.floor(2.0 * math.log2(h)) / 2.0))


def _narrowest(cumulant: Cumulant, saddle: Saddle, steps: int) -> Window:
    """The window of the tilt, at or below the saddle's, that needs the fewest points.

    Where rare large losses meet a narrow bulk (tiny sampling rates), the saddle's tilt makes them common
    and the window wide.  A smaller tilt is taken as long as rounding, about 3e-14 a step, stays small
    against delta.
    """

    def rounding(tilt: float) -> float:  # log of its share of delta
        return cumulant(tilt)[0] - tilt * saddle.epsilon + math.log(3e-14 * steps) - saddle.log_delta

    top = saddle.tilt
    usual = 8.0 / math.sqrt(max(cumulant(0.0)[2], 1e-300))
    while top > usual and top * top * cumulant(top)[2] < 0.25 and rounding(top / 2.0) < math.log(1e-8):
        top /= 2.0  # all of the mass is in one point: nothing is gained by such a tilt
    best = _window(cumulant, top)
    for tilt in top * 0.7 ** np.arange(1.0, 9.0):
        if rounding(float(tilt)) > math.log(1e-5):
            break
        window = _window(cumulant, float(tilt))
        best = window if window.high - window.low < 0.9 * (best.high - best.low) else best
    return best


def _atoms(steps: Steps, way: Direction, tail: float) -> Array:
    """All atoms, of shape (n, 2): rows (loss, mass times count)."""
    parts = [loss_of(base, way, tail).atoms * (1.0, count) for base, count in steps]
    return np.concatenate(parts)


def _composition(
    steps: Steps, way: Direction, saddle: Saddle, end: Literal[0, 1], finer: float = 1.0
) -> Composition:
    """The lower (0) or upper (1) composition, made for the neighbourhood of ``saddle``."""
    tail = _tail(steps, saddle.log_delta)
    total = sum(count for _, count in steps)
    reach = max(float(np.ptp(_samples(base, way, tail)[0])) for base, _ in steps)
    atoms = _atoms(steps, way, tail)
    if total == 1:
        ((base, _),) = steps
        h, _ = aligned(_rounded(max(_ALONE * saddle.epsilon, reach / _LARGEST_STEP)), atoms)
        return directly(_grid(base, way, h, tail)[end], 1, h)
    exact = lattice(loss_of(steps[0][0], way, tail)) if len(steps) == 1 else 0.0
    if 0.0 < exact * _DIRECT > total * reach:
        return directly(_grid(steps[0][0], way, exact, tail)[end], total, exact)
    if len(steps) == 1 and total <= _FEW and saddle.tilt**2 * saddle.variance < 0.25:
        # all losses are next to their supremum, where no tilt helps
        h, _ = aligned(_rounded(total * reach / _FEW_POINTS), atoms)
        return directly(_grid(steps[0][0], way, h, tail)[end], total, h)
    cumulant = _cumulant(steps, way, tail)
    window = _narrowest(cumulant, saddle, total)
    h = exact or _spacing(saddle.epsilon, cumulant(window.tilt)[2], total, window, reach, atoms, finer)
    return compose([(_grid(base, way, h, tail)[end], count) for base, count in steps], h, window)


@lru_cache(maxsize=128)
def _profile(steps: Steps, way: Direction) -> tuple[Array, Array]:
    """Epsilons, increasing, and the deviation of the tilted sum of losses at the saddle of each."""
    cumulant = _cumulant(steps, way, _FAINT)
    points = [_saddle(cumulant, float(tilt)) for tilt in np.geomspace(1e-3, 1e7, 121)]
    epsilons = np.maximum.accumulate([point.epsilon for point in points])
    return epsilons, np.sqrt([max(point.variance, 0.0) for point in points])


def _anchor(steps: Steps, way: Direction, epsilon: float) -> float:
    """The epsilon for which the composition that serves ``epsilon`` is made: less than a deviation below."""
    known, deviations = _profile(steps, way)
    step = min(float(np.interp(epsilon, known, deviations)), epsilon / 8.0)
    if step < 1e-12 * epsilon or step < _FAINT:
        return epsilon
    step = 2.0 ** math.floor(math.log2(step))
    return step * math.floor(epsilon / step)


@lru_cache(maxsize=8)
def _around(
    steps: Steps, way: Direction, anchor: float, negligible: float, end: Literal[0, 1]
) -> Composition:
    """The composition for the neighbourhood of epsilon = ``anchor``, where deltas below ``negligible`` do not
    count.  The grid depends on delta, whose first estimate may be far off: then it is made again."""
    tail, best, made = _FAINT, 1.0, list[Composition]()
    while len(made) < _ROUNDS:
        saddle = _find(
            _cumulant(steps, way, tail),
            lambda point: max(point.epsilon - anchor, math.log(negligible) - point.log_delta),
        )
        guess = min(saddle.log_delta, math.log(best))
        made.append(_composition(steps, way, replace(saddle, epsilon=anchor, log_delta=guess), end))
        best = min(best, made[-1].upper(anchor))
        if best == 0.0 or (best < 0.5 and abs(math.log(best) - guess) < 0.5):
            break
        tail = _tail(steps, guess)
    if end == 1:
        return min(made, key=lambda composition: composition.upper(anchor))
    return max(made, key=lambda composition: composition.lower(anchor))


def _crossing(delta_at: Callable[[float], float], delta: float, start: float) -> tuple[float, float]:
    """Epsilons on either side of where the decreasing ``delta_at`` crosses ``delta``, 1e-9 apart."""

    def excess(epsilon: float) -> float:
        value = delta_at(epsilon)
        return math.log(value / delta) if value > 0.0 else -800.0

    step = 1e-3 * max(start, 1e-3)
    low, high = max(0.0, start - step), max(0.0, start) + step
    while low > 0.0 and excess(low) <= 0.0:
        low, high, step = max(0.0, low - 4.0 * step), low, 4.0 * step
    if low == 0.0 and excess(low) <= 0.0:
        return 0.0, 0.0
    while excess(high) > 0.0:
        low, high, step = high, high + 4.0 * step, 4.0 * step
        if high > _ENDLESS:  # what rounding and the tails add up to is above delta
            return 0.0, math.inf
    root = brent(excess, low, high, xtol=1e-13, rtol=1e-11)
    gap = 1e-10 * max(root, 1e-6)
    below, above = root - gap, root + gap
    while below > 0.0 and excess(below) < 0.0:
        below -= gap
    while excess(above) > 0.0:
        above += gap
    return max(below, 0.0), above


@dataclass(frozen=True)
class PldPrice(Price):
    """``steps`` in units of the adjacency, more than one of them, not only Gaussians.

    ``finer``: by how much the grid that epsilon is found on is finer than usual, where that is affordable.
    """

    steps: Steps
    ways: tuple[Direction, ...]
    finer: float = 1.0

    def epsilon(self, delta: float) -> float:
        return max(self._epsilon(delta, way) for way in self.ways)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        return max(self._least_epsilon(delta, way) for way in self.ways), self.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        return self._delta(epsilon, 1)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        return self._delta(epsilon, 0), self._delta(epsilon, 1)

    def _epsilon(self, delta: float, way: Direction) -> float:
        if self.infinite(way) * (1.0 + _INFINITE_SLACK) >= delta:
            return math.inf
        ceiling = self._supremum(way)
        return min(ceiling, min(above for _, above in self._crossings(delta, way, 1, ceiling)))

    def _least_epsilon(self, delta: float, way: Direction) -> float:
        if self.infinite(way) * (1.0 + _INFINITE_SLACK) >= delta:
            return math.inf if self.infinite(way) * (1.0 - _INFINITE_SLACK) > delta else 0.0
        crossings = self._crossings(delta, way, 0, self._supremum(way))
        return max(0.0, max(below for below, _ in crossings) - self._snapped(way))

    def _crossings(
        self, delta: float, way: Direction, end: Literal[0, 1], ceiling: float
    ) -> Iterator[tuple[float, float]]:
        """Where the bound crosses delta; again from there, if the estimate to start from was far off."""
        saddle = _saddle_at_delta(self.steps, way, delta - self.infinite(way))
        for _ in range(_ROUNDS):
            composition = _composition(self.steps, way, saddle, end, self.finer)
            bound = composition.upper if end == 1 else composition.lower
            below, above = _crossing(bound, delta, min(max(saddle.epsilon, 0.0), ceiling))
            yield below, above
            found = min(above, ceiling)
            if abs(found - saddle.epsilon) <= 0.1 * found or not 0.0 < found < math.inf:
                return
            cumulant = _cumulant(self.steps, way, _tail(self.steps, math.log(delta)))
            again = _find(cumulant, lambda point, target=found: point.epsilon - target)  # type: ignore[misc]
            saddle = replace(again, epsilon=found, log_delta=math.log(delta))

    def _delta(self, epsilon: float, end: Literal[0, 1]) -> float:
        """The lower (0) or upper (1) bound on delta."""
        largest = 0.0
        for way in self.ways:  # what is far below the other direction's delta need not be resolved
            largest = max(largest, self._delta_of(epsilon, way, end, max(_NEGLIGIBLE, 1e-6 * largest)))
        return largest

    def _delta_of(self, epsilon: float, way: Direction, end: Literal[0, 1], negligible: float) -> float:
        infinite = self.infinite(way)
        if infinite == 1.0 or epsilon >= self._supremum(way):  # of the finite losses
            return min(1.0, infinite * (1.0 + (_INFINITE_SLACK if end == 1 else -_INFINITE_SLACK)))
        # a coarse figure, for neighbouring epsilons to ask for the same composition
        decades = 5.0 * math.floor(math.log10(max(negligible, 1e-9 * infinite)) / 5.0)
        composition = _around(self.steps, way, _anchor(self.steps, way, epsilon), 10.0**decades, end)
        if end == 1:
            return min(1.0, composition.upper(epsilon))
        return min(1.0, composition.lower(epsilon + self._snapped(way)))

    def _snapped(self, way: Direction) -> float:
        """By how much the sum of all losses may be below that on the lower grid."""
        return sum(count * snapped(loss_of(base, way, _FAINT)) for base, count in self.steps)

    def _supremum(self, way: Direction) -> float:
        return sum(count * loss_of(base, way, _FAINT).supremum for base, count in self.steps) * (1.0 + 1e-12)

    def infinite(self, way: Direction) -> float:
        """P(L = infinity): 1 - prod (1 - p)^T."""
        infinite = [(loss_of(base, way, _FAINT).infinite, count) for base, count in self.steps]
        if any(mass >= 1.0 for mass, _ in infinite):
            return 1.0
        return -math.expm1(sum(count * math.log1p(-mass) for mass, count in infinite))


@dataclass(frozen=True)
class LeastPrice(Price):
    """``tight``, with upper ends never above those of ``plain``, which dominates it."""

    tight: Price
    plain: Price

    def epsilon(self, delta: float) -> float:
        return min(self.tight.epsilon(delta), self.plain.epsilon(delta))

    def delta(self, epsilon: float) -> float:
        return min(self.tight.delta(epsilon), self.plain.delta(epsilon))

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        return self.tight.epsilon_bounds(delta)[0], self.epsilon(delta)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        return self.tight.delta_bounds(epsilon)[0], self.delta(epsilon)


def _without_bins(steps: Steps) -> Steps:
    """``steps`` with the bin of every record known, which can only cost more: it releases the Gaussian."""
    plain: dict[Base, int] = {}
    for base, count in steps:
        known = base.event if isinstance(base, BallsInBins) else base
        plain[known] = plain.get(known, 0) + count
    return tuple(plain.items())


def price(steps: Steps, adjacency: Adjacency) -> Price:
    """Price any composition of mechanisms that have a dominating pair.

    Gaussians without sampling, and Gaussian or Laplace noise performed once, have closed forms.

    Guarantee
    ---------
    * ``epsilon`` and ``delta`` are upper bounds: connect the dots on the grid, with rounding, aliasing, the
      tails cut off and quadrature allowed for.
    * The lower ends of ``epsilon_bounds`` and ``delta_bounds`` are lower bounds for the dominating pair.
    * Under add-remove and zero-out both directions are composed, and the larger one counts.
    * What has no proven dominating pair is refused by name.
    """
    units = in_units_of(adjacency, steps)
    mu = total_mu(units)
    others: Steps = tuple((base, count) for base, count in units if not isinstance(base, Gaussian))
    if not others:
        return GaussianPrice(mu)
    if mu == 0.0 and sum(count for _, count in others) == 1 and is_single(others[0][0], adjacency):
        return SinglePrice(others[0][0])
    merged: Steps = ((Gaussian(1.0 / mu), 1), *others) if mu > 0.0 else others
    grid: Price = _twofold(merged, directions(adjacency)) or PldPrice(merged, directions(adjacency))
    ways = {way: contour_terms(merged, way) for way in directions(adjacency)}
    if all(terms is not None for terms in ways.values()):
        counts = ((mu * mu,) if mu > 0.0 else ()) + tuple(float(count) for _, count in others)
        fine = replace(grid, finer=_FINER) if isinstance(grid, PldPrice) else None
        return ContourPrice({way: terms for way, terms in ways.items() if terms}, counts, grid, fine)
    for way in ways:
        for base, _ in merged:
            loss_of(base, way, _FAINT)  # refuses what has no pair
    if any(isinstance(base, BallsInBins) for base, _ in units):
        return LeastPrice(grid, price(_without_bins(steps), adjacency))
    return grid


def _twofold(steps: Steps, ways: tuple[Direction, ...]) -> TwofoldPrice | None:
    """The price of just two steps of sampled Gaussians, which are harder than many."""
    flat = [base for base, count in steps for _ in range(min(count, 3))]
    match flat:
        case [PoissonSampled(q, Gaussian(sigma)), PoissonSampled(rate, Gaussian(noise))] if (
            min(sigma, noise) >= LEAST_NOISE
        ):
            return TwofoldPrice(
                tuple((SampledPair(q, sigma, way), SampledPair(rate, noise, way)) for way in ways)
            )
    return None


def contour_terms(steps: Steps, way: Direction) -> tuple[Term, ...] | None:
    """``steps`` as terms for the inversion along a contour; None if there is one that it cannot do."""
    terms: list[Term] = []
    for base, _ in steps:
        match base:
            case Gaussian(sigma) if sigma >= LEAST_NOISE:
                terms.append(Plain())
            case PoissonSampled(rate, Gaussian(sigma)) if way != "replace" and sigma >= LEAST_NOISE:
                terms.append(Sampled(rate, sigma, way))
            case _:
                return None
    return tuple(terms)


def estimate(steps: Steps, adjacency: Adjacency, delta: float) -> float:
    """epsilon by the saddle point alone: a few percent off on either side, in a millisecond.  Not a bound."""
    units = in_units_of(adjacency, steps)

    def one(way: Direction) -> float:
        infinite = PldPrice(units, (way,)).infinite(way)
        return _saddle_at_delta(units, way, delta - infinite).epsilon if infinite < delta else math.inf

    return max(0.0, *(one(way) for way in directions(adjacency))) if units else 0.0
