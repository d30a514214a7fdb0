"""The forms of noise that is correlated in time: bands of C, bands of its inverse, a binary tree."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self, final

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.flatten import matrix_sensitivity, sum_of_shifts
from tacit.errors import InvalidInput, check_integer, check_real
from tacit.events import Event, MatrixFactorization, Repeat, TreeAggregation
from tacit.rounding import significant

# The noise w_t of step t is a sum of draws z. A draw has an address, by which it can be drawn again instead
# of being stored:
#
#     w_t = sum of weight * z[address] over terms(t)  -  sum_j feedback[j] kept_j(t)
#
# The stored noise is the noise of earlier steps, kept_j(t) = w_{t-1-j}, or a buffer for each j with
# kept_j(t + 1) = kept_share[j] kept_j(t) + w_t.
#
# Letters: T steps; c the first column of the Toeplitz matrix C, d that of its inverse.

BLOCK = 8
"""The number of steps whose sums are computed together, if there are more than twice as many bands."""

_NONE = 1e3  # the cost of coefficients that give infinite noise

_LEVEL_BITS = 33  # an address is a level and a node below 2^33, which is more than the steps of any run


class Correlation(ABC):
    """The base class of noise that is correlated between steps.

    Each step adds new noise and subtracts part of the noise of earlier steps. So noise partly cancels when
    training sums the steps. The noise of all steps is C^-1 Z, with independent noise Z; the matrix C
    describes the correlation.

    >>> isinstance(Banded((1.0, 0.5)), Correlation), Banded((1.0, 0.5)).kept
    (True, 2)
    """

    feedback: tuple[float, ...] = ()
    """The factors with which a step subtracts the stored noise."""

    kept_share: tuple[float, ...] = ()
    """The decay of each buffer from step to step; empty if the noise of single steps is stored."""

    @property
    def kept(self) -> int:
        """The number of noise tensors to store, each as large as the trained weights."""
        ahead = BLOCK if len(self.feedback) > 2 * BLOCK and not self.kept_share else 0
        return len(self.feedback) + 1 + ahead if self.feedback else 0

    @abstractmethod
    def terms(self, step: int) -> list[tuple[int, float]]:
        """Return the random draws in the new noise of ``step``, as pairs (address, weight).

        The new noise is the sum of weight * draw. Steps that use the same address use the same draw.
        """

    @abstractmethod
    def event(self, noise_multiplier: float, steps: int, *, participations: int, separation: int) -> Event:
        """Return the event of a run of ``steps`` steps, for accounting.

        Args:
            noise_multiplier: the standard deviation of a draw, divided by the clipping norm.
            steps: the number of steps.
            participations: the largest number of steps in which one record takes part.
            separation: the smallest distance between two of them, in steps.
        """


class Toeplitz(ABC):
    """A correlation in which all steps subtract earlier noise with the same coefficients."""

    @abstractmethod
    def inverse(self, steps: int) -> tuple[float, ...]:
        """Return the weights with which a step's noise adds up the last ``steps`` draws, the newest first.

        They are the first column of C^-1 (see :class:`Correlation`).
        """


def prefix_error(correlation: Toeplitz, steps: int) -> float:
    """Compute the noise on the sum of the first t steps, as a root mean square over t = 1 to ``steps``.

    Args:
        correlation: the correlated noise, such as a :class:`Banded`.
        steps: the number of steps of the run.

    Returns:
        The standard deviation of this noise if each draw has standard deviation 1. In a run, multiply it by
        the noise multiplier and the clipping norm.

    >>> round(prefix_error(Banded((1.0,)), 100), 3) == round(math.sqrt(50.5), 3)
    True
    """
    sums = np.cumsum(correlation.inverse(steps))
    return math.sqrt(float(np.dot(np.arange(steps, 0, -1), sums * sums)) / steps)


_DIGITS, _EXACT = 4, 12
"""Significant digits of fitted coefficients, where the cost is flat, and of numbers computed from them.
Rounding lets every processor make the same plan from the same settings."""


def _best(
    kind: type[Bands], bands: int, steps: int, participations: int, separation: int
) -> tuple[float, ...]:
    """Fit the coefficients with the least prefix error times sensitivity, starting from the square root."""
    from scipy.optimize import minimize  # its import is slow

    def cost(further: NDArray[np.float64]) -> float:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                form = kind((1.0, *further.tolist()))
                event = form.event(1.0, steps, participations=participations, separation=separation)
                assert isinstance(event, MatrixFactorization)
                value = math.log(prefix_error(form, steps) * matrix_sensitivity(event))
        except (InvalidInput, ValueError, OverflowError):  # the inverse grows beyond all floats
            return _NONE
        return value if math.isfinite(value) else _NONE

    start = np.array(kind.square_root(bands).coefficients[1:])
    if bands == 1:
        return (1.0,)
    fit = minimize(cost, start, method="L-BFGS-B").x
    fit = np.array([significant(float(value), _DIGITS) for value in fit])
    best = fit if cost(fit) < cost(start) else start
    return (1.0, *(significant(float(value), _EXACT) for value in best))


def coefficients(name: str, values: object, example: str) -> tuple[float, ...]:
    """Return ``values`` as a non-empty tuple of floats, or raise."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise InvalidInput(f"{name} must be a list of numbers, such as {example}; got {values!r}.")
    return tuple(check_real(f"{name}[{i}]", value) for i, value in enumerate(values))


def _inverse(column: Sequence[float], length: int) -> tuple[float, ...]:
    """Compute the first column of the inverse of a lower triangular Toeplitz matrix."""
    later = np.asarray(column[1:][::-1], dtype=np.float64)
    inverse = np.zeros(length)
    inverse[0] = 1.0 / column[0]
    for t in range(1, length):
        reach = min(t, len(later))
        inverse[t] = -float(np.dot(later[len(later) - reach :], inverse[t - reach : t])) / column[0]
    return tuple(inverse.tolist())


@dataclass(frozen=True)
class Bands(Correlation, Toeplitz):
    """A correlation with a few coefficients on the diagonals of C or of its inverse, main diagonal first."""

    coefficients: tuple[float, ...]
    _half: ClassVar[int]
    """The coefficients of :meth:`square_root` are those of the power series of (1 - x)^(_half / 2)."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "coefficients", coefficients("coefficients", self.coefficients, "[1.0, 0.5]")
        )
        if self.coefficients[0] <= 0.0:
            raise InvalidInput(
                "coefficients[0] must be above 0, as the weight of a step's new noise; got "
                f"{self.coefficients[0]:g}."
            )

    @classmethod
    def square_root(cls, bands: int) -> Self:
        """Return a good choice without a fit: C is the square root of the matrix of prefix sums (2202.11205).

        The matrix of prefix sums is lower triangular, with ones. Only the first ``bands`` coefficients of its
        square root are used; for :class:`BandedInverse`, those of the inverse of its square root.
        """
        values = [1.0]
        for k in range(1, check_integer("bands", bands, low=1)):
            values.append(values[-1] * (2 * k - 2 - cls._half) / (2 * k))
        return cls(tuple(values))

    @classmethod
    def optimised(cls, bands: int, steps: int, *, participations: int = 1, separation: int = 1) -> Self:
        """Find the coefficients with the least noise in the sums of the first t steps, at a fixed cost.

        The fit takes about a second.

        Args:
            bands: the number of coefficients.
            steps: the number of steps of the run.
            participations: the largest number of steps in which one record takes part. Set 1 for
                :class:`tacit.sampling.CyclicPoissonSampling`, where the cost of each participation is
                counted separately.
            separation: the smallest distance between two of these steps, in steps.
        """
        return cls(_best(cls, bands, steps, participations, separation))


@final
class Banded(Bands):
    """Correlated noise from a matrix C with a few non-zero diagonals.

    The noise of all steps is C^-1 Z, with independent noise Z. Each diagonal of C has one value:
    ``coefficients`` lists them, the main diagonal first. Training stores the noise of one step for each
    coefficient. With :class:`tacit.sampling.CyclicPoissonSampling`, use at most as many coefficients as a
    cycle has steps.

    >>> Banded.square_root(3).coefficients
    (1.0, 0.5, 0.375)
    """

    _half = -1

    def inverse(self, steps: int) -> tuple[float, ...]:
        return _inverse(self.coefficients, steps)

    @property
    def feedback(self) -> tuple[float, ...]:  # type: ignore[override]
        """The factors on the noise of earlier steps when a step subtracts it, the latest step first."""
        return tuple(c / self.coefficients[0] for c in self.coefficients[1:])

    def terms(self, step: int) -> list[tuple[int, float]]:
        return [(step, 1.0 / self.coefficients[0])]

    def event(self, noise_multiplier: float, steps: int, *, participations: int, separation: int) -> Event:
        column = self.coefficients[:steps]
        return MatrixFactorization(noise_multiplier, column, steps, participations, separation)


@final
class BandedInverse(Bands):
    """Correlated noise that is a weighted sum of the last few random draws (Kalinin et al., 2505.12128).

    ``coefficients`` are the weights, the newest draw first. Training repeats earlier draws instead of storing
    them. Four coefficients from :meth:`optimised` are as good as 64 from :meth:`square_root`.

    >>> BandedInverse.square_root(3).coefficients
    (1.0, -0.5, -0.125)
    """

    _half = 1

    def inverse(self, steps: int) -> tuple[float, ...]:
        return (*self.coefficients[:steps], *(0.0,) * (steps - len(self.coefficients)))

    def terms(self, step: int) -> list[tuple[int, float]]:
        return [(step - j, d) for j, d in enumerate(self.coefficients[: step + 1])]

    def event(self, noise_multiplier: float, steps: int, *, participations: int, separation: int) -> Event:
        column = _inverse(self.coefficients, steps)
        return MatrixFactorization(noise_multiplier, column, steps, participations, separation)


@final
@dataclass(frozen=True)
class Tree(Correlation):
    """Correlated noise from a binary tree over the steps (DP-FTRL).

    Each node of the tree covers an interval of steps and has one random draw. The sum of the first t steps
    has the noise of the few nodes that together cover these steps. Nothing is stored, and step t needs at
    most about 2 log2 t draws.

    ``restart_every`` begins a new tree after that many steps. If this is one epoch, in which each record
    takes part once, a record takes part only once in each tree.

    >>> Tree().terms(0), Tree().terms(1)
    ([(0, 1.0)], [(8589934592, 1.0), (0, -1.0)])
    """

    restart_every: int | None = None

    def __post_init__(self) -> None:
        if self.restart_every is not None:
            check_integer("restart_every", self.restart_every, low=1)

    def terms(self, step: int) -> list[tuple[int, float]]:
        tree, own = (0, step) if self.restart_every is None else divmod(step, self.restart_every)
        now, before = self._nodes(tree, own + 1), self._nodes(tree, own)
        return [(node, 1.0) for node in now if node not in before] + [
            (node, -1.0) for node in before if node not in now
        ]

    def _nodes(self, tree: int, count: int) -> list[int]:
        """Return the addresses of the nodes that cover the first ``count`` steps of a tree."""
        nodes, start = [], 0
        for level in range(count.bit_length() - 1, -1, -1):
            if count >> level & 1:
                offset = tree * ((self.restart_every or 0) >> level)  # nodes of this level in earlier trees
                nodes.append((level << _LEVEL_BITS) | (offset + (start >> level)))
                start += 1 << level
        return nodes

    def prefix_error(self, steps: int) -> float:
        """Compute the noise on the sum of the first t steps, as a root mean square over t = 1 to ``steps``.

        The unit is the standard deviation of one draw.
        """
        each = self.restart_every or steps
        nodes = (t // each * each.bit_count() + (t % each).bit_count() for t in range(1, steps + 1))
        return math.sqrt(sum(nodes) / steps)

    def event(self, noise_multiplier: float, steps: int, *, participations: int, separation: int) -> Event:
        """Return the event of a run of ``steps`` steps, for accounting.

        It assumes that a record takes part in the most costly steps.

        Args:
            noise_multiplier: the standard deviation of the draw of a node, divided by the clipping norm.
            steps: the number of steps.
            participations: the largest number of steps in which one record takes part.
            separation: the smallest distance between two of them, in steps.
        """
        each = min(self.restart_every or steps, steps)
        trees = min(-(-steps // each), participations)
        times = min(participations, -(-each // separation))
        alone = TreeAggregation(noise_multiplier, each, times, separation)
        return alone if trees == 1 else Repeat(alone, trees)


def noise_of_sums(form: Correlation | None, steps: int) -> float:
    """Compute the root mean square noise of the sums of the first t steps, t = 1 to T, in draws.

    For independent noise (``form`` is None), it is sqrt((T + 1) / 2).

    >>> round(noise_of_sums(None, 7), 3), round(noise_of_sums(Tree(), 7), 3)
    (2.0, 1.309)
    """
    if form is None:
        return math.sqrt((steps + 1) / 2)
    if isinstance(form, Tree):
        return form.prefix_error(steps)
    assert isinstance(form, Toeplitz)
    return prefix_error(form, steps)


def noise_of_step(form: Correlation | None, steps: int) -> float:
    """Compute the noise of the last step, which subtracts most, in draws; for trees, of the mean step.

    >>> noise_of_step(None, 7), round(noise_of_step(Banded((1.0, 0.5)), 7), 3)
    (1.0, 1.155)
    """
    if form is None:
        return 1.0
    if isinstance(form, Toeplitz):
        return math.hypot(*form.inverse(steps))
    draws = (weight * weight for step in range(steps) for _, weight in form.terms(step))
    return math.sqrt(math.fsum(draws) / steps)


# Buffered noise: coefficients that are sums of powers, so that a few buffers hold all earlier noise.
#
# The coefficients of C are c_0 = 1 and c_i = sum_j scales[j] * decays[j]^(i-1). Each step subtracts a
# weighted sum of the noise of all earlier steps. Buffers, one for each decay, hold these sums: in every step
# a buffer is multiplied by its decay, and the step's noise is added (buffered linear Toeplitz matrices:
# Dvijotham et al., 2404.16706; several participations: McMahan et al., 2408.08868).
#
# Letters: T steps; d buffers; p and q the decays of C and of its inverse, which has the same form.


_Array = NDArray[np.float64]

_MOST = 15  # buffers: with more, rounding spoils the fit, and nothing is gained


_WINS_NOTHING = 1e-6
"""A buffer is not worth it if it lowers the logarithm of the cost by less than this."""

_STARTS = [(slow, fast) for slow in (0.03, 0.4, 2.0, 10.0) for fast in (0.6, 2.0, 4.0)]
"""Starts of the fit: the slowest rate, in units of 1 / T, and the fastest. Not every start finds the best."""


@final
@dataclass(frozen=True)
class BLT(Correlation, Toeplitz):
    """Correlated noise with a few buffers, each of which stores a decaying sum of all earlier noise (BLT).

    After each step, buffer j is multiplied by ``decays[j]``, and the noise of the step is added to it. The
    next step subtracts ``scales[j]`` times each buffer. Three or four buffers are about as good as any other
    correlation. :meth:`optimised` finds good decays and scales.

    >>> BLT((0.5,), (0.25,)).column(4)
    (1.0, 0.25, 0.125, 0.0625)
    """

    decays: tuple[float, ...]
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("decays", "scales"):
            object.__setattr__(self, name, coefficients(name, getattr(self, name), "[0.99, 0.5]"))
        if len(self.decays) != len(self.scales):
            raise InvalidInput(
                f"decays and scales must have the same length; got {len(self.decays)} and {len(self.scales)}."
            )
        for j, decay in enumerate(self.decays):
            check_real(f"decays[{j}]", decay, low=-1.0, high=1.0)  # else the buffer grows without bound

    @classmethod
    def optimised(cls, buffers: int, steps: int, *, participations: int = 1, separation: int = 1) -> BLT:
        """Find the decays and scales with the least noise in the sums of the first t steps, at a fixed cost.

        This takes a few seconds. The result has fewer than ``buffers`` buffers if one more would lower the
        noise by less than a millionth. It is rounded, so that every processor computes the same plan.

        Args:
            buffers: the largest number of buffers.
            steps: the number of steps of the run.
            participations: the largest number of steps in which one record takes part.
            separation: the smallest distance between two of these steps, in steps.
        """
        check_integer("buffers", buffers, low=1, high=_MOST)
        check_integer("steps", steps, low=1)
        best = fitted(buffers, np.arange(steps, 0, -1) / steps, participations, separation)
        independent = cls((0.0,) * buffers, (0.0,) * buffers)  # the best if a record takes part in all steps

        def cost(form: BLT) -> float:
            event = form.event(1.0, steps, participations=participations, separation=separation)
            assert isinstance(event, MatrixFactorization)
            return prefix_error(form, steps) * matrix_sensitivity(event)

        return min(best, independent, key=cost)

    @property
    def feedback(self) -> tuple[float, ...]:  # type: ignore[override]
        """The factors on the buffers when a step subtracts them: ``scales``."""
        return self.scales

    @property
    def kept_share(self) -> tuple[float, ...]:  # type: ignore[override]
        """The share of each buffer that remains after a step: ``decays``."""
        return self.decays

    def terms(self, step: int) -> list[tuple[int, float]]:
        return [(step, 1.0)]

    def column(self, steps: int) -> tuple[float, ...]:
        """Return the first ``steps`` entries of the first column of C, the matrix of :class:`Correlation`.

        Entry 0 is 1, and entry i + 1 is sum_j scales[j] * decays[j]^i.
        """
        return _column(self.decays, self.scales, steps)

    def inverse(self, steps: int) -> tuple[float, ...]:
        buffers, column = [0.0] * len(self.decays), [1.0]
        for _ in range(1, steps):
            buffers = [decay * value + column[-1] for decay, value in zip(self.decays, buffers, strict=True)]
            column.append(
                -math.fsum(scale * value for scale, value in zip(self.scales, buffers, strict=True))
            )
        return tuple(column)

    def event(self, noise_multiplier: float, steps: int, *, participations: int, separation: int) -> Event:
        return MatrixFactorization(noise_multiplier, self.column(steps), steps, participations, separation)


@lru_cache(maxsize=8)
def _column(decays: tuple[float, ...], scales: tuple[float, ...], steps: int) -> tuple[float, ...]:
    """Compute the first column of C. Powers are computed directly, with a relative error of an ulp or two."""
    both = list(zip(decays, scales, strict=True))
    later = (math.fsum(scale * decay**i for decay, scale in both) for i in range(steps - 1))
    return (1.0, *later)


def fitted(buffers: int, weights: _Array, participations: int, separation: int) -> BLT:
    """Fit at most ``buffers`` buffers for the least noise; see :func:`_fitted` for the arguments."""
    # Buffers that gain nothing are left out, as rounding alone would decide their decays.
    best, cost = _fitted(buffers, weights, participations, separation)
    while len(best.decays) > 1:
        fewer, dearer = _fitted(len(best.decays) - 1, weights, participations, separation)
        if dearer > cost + _WINS_NOTHING:
            break
        best, cost = fewer, min(cost, dearer)
    return best


def _fitted(buffers: int, weights: _Array, participations: int, separation: int) -> tuple[BLT, float]:
    """Fit buffers with decays p_1 > q_1 > p_2 > q_2 > ... between 0 and 1, for the least noise."""
    # The fit minimises the noise of prefix sums at a fixed privacy cost. With decays in this order, all
    # coefficients of C are positive and decrease, and those of its inverse are negative after the first
    # (McMahan & Pillutla, 2504.21413). So steps only subtract earlier noise, and the privacy cost is exact.
    #
    # buffers: the number of buffers.
    # weights: (T,) the weights of the squared sums of the first t + 1 coefficients of the inverse: 1 for
    #     the noise of the last prefix sum, (T - t) / T for the mean over all prefix sums.
    # participations, separation: as for :meth:`BLT.optimised`.
    #
    # The buffers, and the logarithm of their cost.
    from scipy.optimize import minimize  # its import is slow

    steps = len(weights)
    times = min(participations, -(-steps // separation))

    def cost(numbers: _Array) -> float:
        p, q, of_p, of_q = _pair(numbers)
        change = sum_of_shifts(_powers(p, of_p, steps), times, separation)
        error = np.dot(weights, np.cumsum(_powers(q, of_q, steps)) ** 2)
        value = float(np.log(np.dot(change, change)) + np.log(error))
        return value if math.isfinite(value) else _NONE  # two decays are the same float

    def least(start: _Array, derivative: Literal["2-point", "3-point"], tolerance: float) -> Any:
        return minimize(
            cost,
            start,
            jac=derivative,
            method="L-BFGS-B",
            bounds=[(-45.0, 4.0)] * (2 * buffers),
            options={"maxiter": 500, "ftol": tolerance, "gtol": 1e-9},
        )

    with np.errstate(all="ignore"):
        starts = [np.geomspace(slow / steps, fast, 2 * buffers) for slow, fast in _STARTS]
        fits = [least(np.log(np.diff(np.sort(rates), prepend=0.0)), "2-point", 1e-7) for rates in starts]
        best = least(min(fits, key=lambda one: float(one.fun)).x, "3-point", 1e-16).x
    rounded = np.log([significant(float(apart), _DIGITS) for apart in np.exp(best)])
    rates, _, scales, _ = _pair(rounded)
    form = BLT(
        tuple(significant(math.exp(-rate), _EXACT) for rate in rates),
        tuple(significant(float(scale), _EXACT) for scale in scales),
    )
    return form, cost(rounded)


def _pair(numbers: _Array) -> tuple[_Array, _Array, _Array, _Array]:
    """Return the rates of p and q, with decay = exp(-rate), and the scales of C and of its inverse."""
    # ``numbers`` are the logarithms of the differences of the sorted rates. C has the generating function
    # prod (1 - q x) / prod (1 - p x), and its scales are those of the partial fractions.
    rates = np.cumsum(np.exp(numbers))
    p, q = rates[::2], rates[1::2]
    return p, q, _scales(p, q), _scales(q, p)


def _scales(own: _Array, other: _Array) -> _Array:
    """Compute prod_j (own_i - other_j) / prod_{j != i} (own_i - own_j) for the decays with these rates."""
    apart = np.exp(-own)[:, None] * -np.expm1(own[:, None] - other)
    among = np.exp(-own)[:, None] * -np.expm1(own[:, None] - own)
    np.fill_diagonal(among, 1.0)
    return np.asarray((apart / among).prod(axis=1))


def _powers(rates: _Array, scales: _Array, steps: int) -> _Array:
    """Compute (T,) coefficients: 1, then sum_j scales_j exp(-rate_j (i - 1)), by blocks of about sqrt(T)."""
    block = max(1, math.isqrt(steps))
    starts, inner = np.arange(0, steps, block), np.arange(block)
    table = (np.exp(-np.outer(starts, rates)) * scales) @ np.exp(-np.outer(rates, inner))
    return np.concatenate([[1.0], table.ravel()[: steps - 1]])
