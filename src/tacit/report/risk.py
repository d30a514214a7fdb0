"""The meaning of a guarantee for one person, from the trade-off curve of the accounted run.

Letters: f(a) is the least false-negative rate at false-positive rate a, and k is the probability of guessing
a secret without the release.
"""

# The pair (epsilon, delta) alone allows far more than the mechanism does. At epsilon 8 and 1 % false
# alarms, the pair would let an attacker find nearly every member, while DP-SGD lets an attacker find about
# one in five. So the sheet starts from the curve f of the mechanism, and shows next to each bound the bound
# from the pair.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tacit.accounting import GaussianDP, PrivacyCurve
from tacit.errors import InvalidInput, check_real
from tacit.rounding import finite, round_up

Array: TypeAlias = NDArray[np.float64]
Detection: TypeAlias = Callable[[Array], Array]
"""A function from false-positive rates to the largest shares of members that a test finds at them."""

_RATES = (0.01, 0.001)
_SECRETS = (1e-3, 1e-6)
_GROUPS = (2, 5)
_WELL = 0.01  # the regret up to which mu alone describes a mechanism (Gomez et al. 2025, 2503.10945)


@dataclass(frozen=True)
class Chance:
    """One row of the sheet: an attacker's chance before the release, and its upper bound after the release.

    ``pair_alone`` is the upper bound that epsilon and delta alone give.
    """

    question: str
    before: float
    at_most: float
    pair_alone: float


@dataclass(frozen=True)
class RiskSheet:
    """Bounds on any attack on one ``unit``, whatever the attacker knows and computes.

    Attributes:
        unit: the unit of privacy.
        curve: the curve of the mechanism.
        delta, epsilon: the pair in the title of the sheet.
        guess: the chance of a right guess whether the unit took part, with prior probability 1/2.
        detections: for each false-positive rate, the share of members that a test finds.
        secrets: for each k, the probability of guessing a secret, an image or an attribute that an attacker
            could guess with probability k without the release (Hayes, Mahloujifar & Balle 2023, 2302.07225).
        groups: for each number of units, the chance of a right guess whether all of them took part.
        gaussian: the Gaussian mechanism that bounds the curve.

    **Guarantee**

    * Every ``at_most`` is an upper bound for the mechanism of the curve, rounded upwards.
    """

    unit: str
    curve: PrivacyCurve
    delta: float
    epsilon: float
    guess: Chance
    detections: tuple[Chance, ...]
    secrets: tuple[Chance, ...]
    groups: tuple[Chance, ...]
    gaussian: GaussianDP

    @property
    def chances(self) -> tuple[Chance, ...]:
        """All rows, in the order of the sheet."""
        return (self.guess, *self.detections, *self.secrets, *self.groups)

    def sentences(self) -> list[str]:
        """Write the sheet in plain words, with probabilities as frequencies."""
        one, tests = self.unit, []
        for chance in self.detections:
            falsely = _one_in(chance.before)
            tests.append(
                f"An attacker who wrongly names {falsely} of those who did not take part finds at most "
                f"{_frequency(chance.at_most)} of those who did. Without the release: {falsely}."
            )
        guess = self.guess.at_most
        return [
            f"Suppose that a coin decides whether one {one} takes part, and an attacker guesses. Without the "
            f"release the attacker is right 50 times in 100; with it at most {_times(guess)} times in 100.",
            *tests,
            *(
                f"A secret of one {one} that is guessed in 1 of {1 / chance.before:,.0f} tries without the "
                f"release is guessed in at most {_frequency(chance.at_most, 'tries')} with it."
                for chance in self.secrets
            ),
            f"These limits hold for every attack, also for future ones; known attacks do worse. They are for "
            f"one {one}. "
            + "; ".join(
                f"For {size} together, the guess is right at most {_times(chance.at_most)} times in 100"
                for size, chance in zip(_GROUPS, self.groups, strict=True)
            ).replace("; For", "; for")
            + ". The model may still learn what is true of many people alike, and is meant to.",
        ]

    def in_one_number(self) -> str:
        """Say how much noise one Gaussian release would need that reveals as much, with mu and its regret."""
        mu, regret = self.gaussian.mu, self.gaussian.regret
        if math.isinf(mu):
            return "No single Gaussian release with mu up to 12 reveals as much."
        less = " Attacks can do clearly less than that." if regret > _WELL else ""
        return (
            f"It reveals at most as much as one release whose Gaussian noise is {1 / mu:.3g} times the share "
            f"of one {self.unit} (mu-GDP with mu = {round_up(mu, 4)}, regret {round_up(regret, 2)}).{less}"
        )

    def to_data(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {
            "unit": self.unit,
            "adjacency": self.curve.adjacency.value,
            "method": self.curve.method,
            "epsilon": finite(self.epsilon),
            "delta": self.delta,
            "gaussian_dp": {"mu": finite(self.gaussian.mu), "regret": self.gaussian.regret},
            "in_one_number": self.in_one_number(),
            "chances": [
                {
                    "question": c.question,
                    "without_the_release": c.before,
                    "at_most": c.at_most,
                    "epsilon_and_delta_alone": c.pair_alone,
                }
                for c in self.chances
            ],
            "sentences": self.sentences(),
        }


def risk_sheet(
    curve: PrivacyCurve,
    *,
    delta: float,
    unit: str,
    epsilon: float | None = None,
    rates: Sequence[float] = _RATES,
    secrets: Sequence[float] = _SECRETS,
) -> RiskSheet:
    """Compute the sheet from ``curve``.

    Args:
        epsilon: the epsilon of the stated pair; by default that of the curve at delta.
        rates: false-positive rates in (0, 1).
        secrets: probabilities in (0, 1) of guessing a secret without the release.
    """
    if not unit.strip():
        raise InvalidInput("unit must name what one record is, such as 'person'; got ''. Set it.")
    for value in (*rates, *secrets):
        check_real("rate", value, low=0.0, high=1.0, open_low=True, open_high=True)
    epsilon = curve.epsilon(delta) if epsilon is None else epsilon
    pair = _pair_limit(epsilon, delta)

    def real(rates: Array) -> Array:
        # a -> 1 - f(a), rounded up
        return np.minimum(np.nextafter(1.0 - curve.false_negative_rate(rates), 2.0), 1.0)

    def shares(question: str, before: Sequence[float]) -> tuple[Chance, ...]:
        at = np.array(before)
        most = zip(before, real(at).tolist(), pair(at).tolist(), strict=True)
        return tuple(
            Chance(question.format(100 * a), a, min(one, by_pair), by_pair) for a, one, by_pair in most
        )

    return RiskSheet(
        unit=unit,
        curve=curve,
        delta=delta,
        epsilon=epsilon,
        guess=Chance("right 50/50 guess", 0.5, curve.success(0.5), _guess(pair, 1)),
        detections=shares("members found at {:.15g} % false alarms", rates),
        secrets=shares("secret guessed, prior {:.15g} %", secrets),
        groups=tuple(
            Chance(f"right 50/50 guess on {size} together", 0.5, _guess(real, size), _guess(pair, size))
            for size in _GROUPS
        ),
        gaussian=curve.gaussian_dp(),
    )


def two_worlds(curve: PrivacyCurve, bins: Array) -> tuple[Array, Array]:
    """Return the (n,) probabilities of n ``bins`` for the best test's evidence, without the unit and with it.

    The evidence is scaled so that it is standard normal without the unit: P(evidence > u) = Phi(-u). With the
    unit, P(evidence > u) = 1 - f(Phi(-u)). For Gaussian DP this is the normal distribution shifted by mu.
    """
    rates = ndtr(-bins)
    beyond = 1.0 - np.asarray(curve.false_negative_rate(rates))
    return -np.diff(rates), -np.diff(beyond)


def _pair_limit(epsilon: float, delta: float) -> Detection:
    """Return a -> 1 - f(a) for the f that epsilon and delta alone give (Wasserman & Zhou 2010)."""

    def largest_share(rates: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            steep = np.where(rates > 0.0, delta + rates * np.exp(epsilon), delta)
        most: Array = np.minimum(np.minimum(1.0, steep), 1.0 - np.exp(-epsilon) * (1.0 - delta - rates))
        return most

    return largest_share


def _guess(detection: Detection, size: int) -> float:
    """Bound the probability of a right 50/50 guess on ``size`` units.

    The bound is 1/2 + max over a of (t(...t(a)) - a) / 2, with t = 1 - f applied ``size`` times (Dong, Roth &
    Su 2019, 1905.02383, Theorem 2.14). t increases, so between two points of the grid it is at most its value
    at the right point.
    """
    grid = np.concatenate([[0.0], np.logspace(-9, -2, 60), np.linspace(0.01, 1.0, 500)[1:]])
    reached = grid
    for _ in range(size):
        reached = detection(reached)
    return float(min(1.0, 0.5 + (reached[1:] - grid[:-1]).max() / 2.0))


def _times(probability: float) -> str:
    """Write a probability as a number of times in a hundred, rounded up.

    >>> _times(0.7301), _times(1.0)
    ('74', '100')
    """
    return f"{math.ceil(min(100.0, 100.0 * probability - 1e-9)):d}"


def _one_in(probability: float) -> str:
    """Write ``1 in 1,000`` if the probability is the reciprocal of a whole number, otherwise a percentage."""
    every = 1.0 / probability
    return f"1 in {every:,.0f}" if abs(every - round(every)) < 1e-9 * every else f"{100 * probability:.3g} %"


def _frequency(probability: float, of: str = "") -> str:
    """Write a frequency, rounded up: ``7 in 100``, ``13 of 1,000 tries``, ``75 in 100,000``."""
    every = 100
    while every * probability < 2.0 and every < 10**9:
        every *= 10
    if probability >= 1.0 or every >= 10**9:
        return f"{round_up(100 * probability, 2)} % of {of or 'those'}"
    count = math.ceil(every * probability - 1e-9)
    return f"{count} of {every:,} {of}" if of else f"{count} in {every:,}"
