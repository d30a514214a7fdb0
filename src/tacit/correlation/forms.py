"""The forms of noise that is correlated in time: bands of C, bands of its inverse, a binary tree.

The noise w_t of step t is a sum of draws z. A draw has an address, by which it can be drawn again instead of
being stored::

    w_t = sum of weight * z[address] over terms(t)  -  sum_j feedback[j] kept_j(t)

The stored noise is the noise of earlier steps, kept_j(t) = w_{t-1-j}, or a buffer for each j with
kept_j(t + 1) = kept_share[j] kept_j(t) + w_t.

Letters: T steps; c the first column of the Toeplitz matrix C, d that of its inverse.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.flatten import matrix_sensitivity
from tacit.errors import InvalidInput, check_integer, check_real
from tacit.events import Event, MatrixFactorization, Repeat, TreeAggregation
from tacit.rounding import significant

BLOCK = 8
"""The number of steps whose sums are computed together, if there are more than twice as many bands."""

_NONE = 1e3  # the cost of coefficients that give infinite noise

_LEVEL_BITS = 33  # an address is a level and a node below 2^33, which is more than the steps of any run


class Correlation(ABC):
    """The correlation of noise between steps, as a frozen dataclass of public facts.

    >>> isinstance(Banded((1.0, 0.5)), Correlation), Banded((1.0, 0.5)).kept
    (True, 2)
    """

    feedback: tuple[float, ...] = ()
    """The factors with which a step subtracts the stored noise."""

    kept_share: tuple[float, ...] = ()
    """The decay of each buffer from step to step; empty if the noise of single steps is stored."""

    @property
    def kept(self) -> int:
        """The memory for stored noise and that of the last step, in multiples of the trained weights."""
        ahead = BLOCK if len(self.feedback) > 2 * BLOCK and not self.kept_share else 0
        return len(self.feedback) + 1 + ahead if self.feedback else 0

    @abstractmethod
    def terms(self, step: int) -> list[tuple[int, float]]:
        """Return the addresses and weights of the independent draws in the noise of a step."""

    @abstractmethod
    def event(self, noise_multiplier: float, steps: int, *, participations: int, separation: int) -> Event:
        """Return the event of ``steps`` steps; the last two arguments are as in ``MatrixFactorization``."""


class Toeplitz(ABC):
    """A correlation in which all steps subtract earlier noise with the same coefficients."""

    @abstractmethod
    def inverse(self, steps: int) -> tuple[float, ...]:
        """Return the first column of the inverse of C."""


def prefix_error(correlation: Toeplitz, steps: int) -> float:
    """Compute the root mean square noise of the sums of the first t steps, t = 1 to T, in draws.

    Multiplied by the noise multiplier, it is the noise if one step has a sensitivity of 1.

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
                f"coefficients[0] must be above 0; got {self.coefficients[0]:g}. "
                "It scales the new noise of a step."
            )

    @classmethod
    def square_root(cls, bands: int) -> Self:
        """Return the first coefficients of the square root of the matrix of prefix sums (2202.11205).

        For :class:`BandedInverse` they are those of the inverse of this square root.
        """
        values = [1.0]
        for k in range(1, check_integer("bands", bands, low=1)):
            values.append(values[-1] * (2 * k - 2 - cls._half) / (2 * k))
        return cls(tuple(values))

    @classmethod
    def optimised(cls, bands: int, steps: int, *, participations: int = 1, separation: int = 1) -> Self:
        """Find the coefficients with the least noise in prefix sums at a fixed privacy cost.

        The fit takes about a second.

        Args:
            bands: the number of coefficients.
            steps: T.
            participations: the largest number of steps in which a record takes part; 1 for cyclic samples,
                whose privacy cost counts each participation separately.
            separation: the least distance between two of these steps.
        """
        return cls(_best(cls, bands, steps, participations, separation))


@final
class Banded(Bands):
    """Coefficients on the diagonals of C, the main diagonal first.

    The noise of one step is stored for each coefficient. With
    :class:`tacit.sampling.CyclicPoissonSampling`, there are at most as many coefficients as steps in a cycle.

    >>> Banded.square_root(3).coefficients
    (1.0, 0.5, 0.375)
    """

    _half = -1

    def inverse(self, steps: int) -> tuple[float, ...]:
        return _inverse(self.coefficients, steps)

    @property
    def feedback(self) -> tuple[float, ...]:  # type: ignore[override]
        return tuple(c / self.coefficients[0] for c in self.coefficients[1:])

    def terms(self, step: int) -> list[tuple[int, float]]:
        return [(step, 1.0 / self.coefficients[0])]

    def event(self, noise_multiplier: float, steps: int, *, participations: int, separation: int) -> Event:
        column = self.coefficients[:steps]
        return MatrixFactorization(noise_multiplier, column, steps, participations, separation)


@final
class BandedInverse(Bands):
    """Coefficients on the diagonals of the inverse of C (Kalinin et al., 2505.12128).

    The noise of a step is the weighted sum of one draw for each coefficient, and nothing is stored. Four
    draws per step with optimised coefficients are as good as 64 bands of the square root.

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
    """The binary tree of DP-FTRL: the sum of the first t steps has the noise of the tree nodes that cover it.

    Nothing is stored, and step t draws at most about 2 log2 t nodes. A new tree begins after
    ``restart_every`` steps, such as the steps of a pass. A record that takes part once in each pass then
    takes part only once in each tree.

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
        """Compute the result of :func:`prefix_error` from the number of nodes in each sum."""
        each = self.restart_every or steps
        nodes = (t // each * each.bit_count() + (t % each).bit_count() for t in range(1, steps + 1))
        return math.sqrt(sum(nodes) / steps)

    def event(self, noise_multiplier: float, steps: int, *, participations: int, separation: int) -> Event:
        """Return the event of successive trees, with a record in as many of them as possible."""
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
    """Compute the noise of one step, in draws: of the last, which subtracts most, or the mean for trees.

    >>> noise_of_step(None, 7), round(noise_of_step(Banded((1.0, 0.5)), 7), 3)
    (1.0, 1.155)
    """
    if form is None:
        return 1.0
    if isinstance(form, Toeplitz):
        return math.hypot(*form.inverse(steps))
    draws = (weight * weight for step in range(steps) for _, weight in form.terms(step))
    return math.sqrt(math.fsum(draws) / steps)
