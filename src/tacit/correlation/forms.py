"""What are the forms of noise that is correlated in time? Bands, bands of the inverse, a tree.

The noise w_t of step t is made of draws z that have addresses, so most of it is drawn again and not kept::

    w_t = sum of weight * z[address] over terms(t)  -  sum_j feedback[j] kept_j(t)

What is kept of earlier noise is that of the steps before, kept_j(t) = w_{t-1-j}; or buffers, with
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

from tacit.accounting.sensitivity import matrix_sensitivity
from tacit.errors import InvalidInput, check_integer, check_real
from tacit.events import Event, MatrixFactorization, Repeat, TreeAggregation
from tacit.rounding import significant

BLOCK = 8
"""Of more bands than twice as many, sums for so many steps are made at once."""

_NONE = 1e3  # the cost of coefficients whose noise is no float

_LEVEL_BITS = 33  # nodes of a level have addresses of their own: a run has fewer steps


class Correlation(ABC):
    """How the noise of the steps is correlated; a frozen dataclass of public facts.

    >>> isinstance(Banded((1.0, 0.5)), Correlation), Banded((1.0, 0.5)).kept
    (True, 2)
    """

    feedback: tuple[float, ...] = ()
    """By how much that of the noise of earlier steps which is kept is taken back."""

    kept_share: tuple[float, ...] = ()
    """What buffers keep of what they hold, from step to step; none where the noise of steps is kept."""

    @property
    def kept(self) -> int:
        """Noise that is kept, that of the last step too, in multiples of the trained weights."""
        ahead = BLOCK if len(self.feedback) > 2 * BLOCK and not self.kept_share else 0
        return len(self.feedback) + 1 + ahead if self.feedback else 0

    @abstractmethod
    def terms(self, step: int) -> list[tuple[int, float]]:
        """Addresses of independent draws, and their weights, of which the noise of a step is made."""

    @abstractmethod
    def event(self, noise_multiplier: float, steps: int, *, participations: int, separation: int) -> Event:
        """What ``steps`` steps release, where a record takes part so often, so far apart."""


class Toeplitz(ABC):
    """A form whose steps all take back earlier ones in the same way."""

    @abstractmethod
    def inverse(self, steps: int) -> tuple[float, ...]:
        """The first column of the inverse of C."""


def prefix_error(correlation: Toeplitz, steps: int) -> float:
    """The noise of the sums of the first t steps, t = 1 to T: the root of the mean of its squares, in draws.

    At a sensitivity of 1 for one step it is what the noise multiplier has to be multiplied with.

    >>> round(prefix_error(Banded((1.0,)), 100), 3) == round(math.sqrt(50.5), 3)
    True
    """
    sums = np.cumsum(correlation.inverse(steps))
    return math.sqrt(float(np.dot(np.arange(steps, 0, -1), sums * sums)) / steps)


_DIGITS, _EXACT = 4, 12
"""Of fitted coefficients, at whose best place the cost is flat; and of those that follow by a few operations.
The same words are the same plan on every processor."""


def _best(
    kind: type[Bands], bands: int, steps: int, participations: int, separation: int
) -> tuple[float, ...]:
    """Coefficients for which prefix error times sensitivity is least, from those of square roots on."""
    from scipy.optimize import minimize  # which takes longer to import than all the rest

    def cost(further: NDArray[np.float64]) -> float:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                form = kind((1.0, *further.tolist()))
                event = form.event(1.0, steps, participations=participations, separation=separation)
                assert isinstance(event, MatrixFactorization)
                found = math.log(prefix_error(form, steps) * matrix_sensitivity(event))
        except (InvalidInput, ValueError, OverflowError):  # the inverse grows beyond all floats
            return _NONE
        return found if math.isfinite(found) else _NONE

    start = np.array(kind.square_root(bands).coefficients[1:])
    if bands == 1:
        return (1.0,)
    found = minimize(cost, start, method="L-BFGS-B").x
    found = np.array([significant(float(value), _DIGITS) for value in found])
    best = found if cost(found) < cost(start) else start
    return (1.0, *(significant(float(value), _EXACT) for value in best))


def coefficients(name: str, given: object, example: str) -> tuple[float, ...]:
    """``given`` as numbers, at least one."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise InvalidInput(f"{name} must be a list of numbers, such as {example}; got {given!r}.")
    return tuple(check_real(f"{name}[{i}]", value) for i, value in enumerate(given))


def _inverse(column: Sequence[float], length: int) -> tuple[float, ...]:
    """The first column of the inverse of a lower triangular Toeplitz matrix."""
    taken = np.asarray(column[1:][::-1], dtype=np.float64)
    found = np.zeros(length)
    found[0] = 1.0 / column[0]
    for t in range(1, length):
        reach = min(t, len(taken))
        found[t] = -float(np.dot(taken[len(taken) - reach :], found[t - reach : t])) / column[0]
    return tuple(found.tolist())


@dataclass(frozen=True)
class Bands(Correlation, Toeplitz):
    """A few coefficients on the diagonals of C, or of its inverse, the main one first."""

    coefficients: tuple[float, ...]
    _half: ClassVar[int]
    """Of the coefficients of (1 - x)^(_half / 2)."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "coefficients", coefficients("coefficients", self.coefficients, "[1.0, 0.5]")
        )
        if self.coefficients[0] <= 0.0:
            raise InvalidInput(
                f"coefficients[0] must be above 0, the noise's own part; got {self.coefficients[0]:g}."
            )

    @classmethod
    def square_root(cls, bands: int) -> Self:
        """The first coefficients of the square root, of its inverse likewise, of the matrix of prefix sums
        (2202.11205)."""
        found = [1.0]
        for k in range(1, check_integer("bands", bands, low=1)):
            found.append(found[-1] * (2 * k - 2 - cls._half) / (2 * k))
        return cls(tuple(found))

    @classmethod
    def optimised(cls, bands: int, steps: int, *, participations: int = 1, separation: int = 1) -> Self:
        """The coefficients with the least noise in prefix sums of a run at one price; takes a second or less.

        Args:
            participations, separation: how often a record takes part in the run, and how far apart; once for
                cyclic samples, whose price has each time by itself.
        """
        return cls(_best(cls, bands, steps, participations, separation))


@final
class Banded(Bands):
    """C has these coefficients on its diagonals, the main one first; the noise of as many steps is kept.

    At most as many as the steps of a cycle go with samples (:class:`tacit.sampling.CyclicPoissonSampling`).

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
    """The inverse of C has these coefficients on its diagonals: the noise of a step is made of so many draws,
    and nothing is kept (Kalinin et al., 2505.12128).

    Four draws a step, optimised, are as good as 64 bands of the square root.

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
    """The sum of the first t steps has the noise of the nodes of a binary tree that make it up: DP-FTRL.

    Nothing is kept; a step draws at most two logarithms of its number.  With ``restart_every`` a new tree
    begins after so many steps, such as those of a pass: a record that takes part once in each has less to do
    with the noise of the others.

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
        """Addresses of the intervals that the first ``count`` steps of a tree are made of."""
        found, start = [], 0
        for level in range(count.bit_length() - 1, -1, -1):
            if count >> level & 1:
                others = tree * ((self.restart_every or 0) >> level)  # nodes of the level in the trees before
                found.append((level << _LEVEL_BITS) | (others + (start >> level)))
                start += 1 << level
        return found

    def prefix_error(self, steps: int) -> float:
        """That of :func:`prefix_error`: the sum of t steps has the noise of the nodes that make it up."""
        each = self.restart_every or steps
        nodes = (t // each * each.bit_count() + (t % each).bit_count() for t in range(1, steps + 1))
        return math.sqrt(sum(nodes) / steps)

    def event(self, noise_multiplier: float, steps: int, *, participations: int, separation: int) -> Event:
        """One tree after another, in as many of which a record takes part as it can."""
        each = min(self.restart_every or steps, steps)
        trees = min(-(-steps // each), participations)
        times = min(participations, -(-each // separation))
        alone = TreeAggregation(noise_multiplier, each, times, separation)
        return alone if trees == 1 else Repeat(alone, trees)


def noise_of_sums(form: Correlation | None, steps: int) -> float:
    """The noise of the sums of the first t steps, t = 1 to T: the root of the mean of its squares, in draws.

    Of independent noise, which has no form, it is sqrt((T + 1) / 2).

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
    """The noise of one of T steps, in draws: that of the last, which takes back most; of trees the mean.

    >>> noise_of_step(None, 7), round(noise_of_step(Banded((1.0, 0.5)), 7), 3)
    (1.0, 1.155)
    """
    if form is None:
        return 1.0
    if isinstance(form, Toeplitz):
        return math.hypot(*form.inverse(steps))
    draws = (weight * weight for step in range(steps) for _, weight in form.terms(step))
    return math.sqrt(math.fsum(draws) / steps)
