"""Who adds the noise of an answer, and how wide is it? Integers in, noisy integers out, and only here.

Two samplers with one interface: Tacit's (:mod:`tacit.noise.discrete`) and OpenDP's, where it is installed.
Both add exact discrete noise to exact integers; their noise has the same distribution, so the choice is one
of trust.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from importlib import metadata
from statistics import NormalDist
from typing import Any, Protocol, final

from tacit.errors import InvalidInput, MissingExtra, check_in, check_real
from tacit.noise.discrete import discrete_gaussian, discrete_laplace, exponential_choice
from tacit.queries.measures import Bins, Measure, Regular, largest_cell
from tacit.queries.plan import Compiled, Key, Release

_LARGEST = 2**63 - 1  # of a 64-bit integer
_SUMMED = 64  # sigma up to which the tail of a discrete Gaussian is summed term by term
_ROUNDING = 1e-9  # relative, of a probability computed here: the margin to the level


class Sampler(Protocol):
    """Adds independent discrete noise to integers.

    Guarantee
    ---------
    * ``laplace``: value + k with P(k) proportional to exp(-|k| / scale).  For vectors that differ by at most
      D in the sum of absolute values between neighbours that is (D / scale)-DP.
    * ``gaussian``: value + k with P(k) proportional to exp(-k^2 / (2 sigma^2)).  For vectors that differ by
      at most D in Euclidean length that is (D / sigma)^2 / 2-zCDP (2004.00010, Theorem 4).
    """

    @property
    def name(self) -> str:
        """The name that a certificate prints."""
        ...

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]:
        """``values`` plus discrete Laplace noise of this scale, in their units."""
        ...

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]:
        """``values`` plus discrete Gaussian noise of parameter sigma, in their units."""
        ...


@final
class OwnSampler:
    """Tacit's sampler: integer arithmetic on bits of the operating system (2004.00010, Algorithms 1 to 3).

    >>> len(OwnSampler().laplace([10, 0, -7], Fraction(2)))
    3
    """

    @property
    def name(self) -> str:
        """The name that a certificate prints."""
        return "Tacit, exact discrete noise (Canonne, Kamath & Steinke 2020), bits of the operating system"

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]:
        """``values`` plus discrete Laplace noise; no integer is too large."""
        return [x + k for x, k in zip(values, discrete_laplace(scale, len(values)), strict=True)]

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]:
        """``values`` plus discrete Gaussian noise; no integer is too large."""
        return [x + k for x, k in zip(values, discrete_gaussian(sigma**2, len(values)), strict=True)]


@final
class OpenDPSampler:
    """OpenDP's ``make_laplace`` and ``make_gaussian`` over 64-bit integers.  Turns on its feature "contrib",
    for the whole process.

    Values beyond 64 bits are clamped first, which moves no two of them apart; results beyond 64 bits are
    clamped too, which is post-processing.  OpenDP's own statement of the cost, ``map``, is the same number
    rounded up by at most a part in 2^52.

    :raises MissingExtra: where opendp is not installed.
    """

    def __init__(self) -> None:
        try:
            import opendp.prelude as dp
        except ImportError:
            raise MissingExtra("opendp", "opendp", "Noise drawn by OpenDP") from None
        dp.enable_features("contrib")
        self._dp: Any = dp
        self._version = metadata.version("opendp")

    @property
    def name(self) -> str:
        """The name that a certificate prints."""
        return f"OpenDP {self._version}, discrete noise over 64-bit integers"

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]:
        """``values`` plus discrete Laplace noise.

        :raises InvalidInput: if ``scale`` is not exactly a positive float: OpenDP takes no other.
        """
        return self._released(self.laplace_measurement(scale), values)

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]:
        """``values`` plus discrete Gaussian noise; errors as for :meth:`laplace`."""
        return self._released(self.gaussian_measurement(sigma), values)

    def laplace_measurement(self, scale: Fraction) -> Any:
        """OpenDP's measurement; its ``map(D)`` is epsilon for an L1 sensitivity of D."""
        domain, metric = self._vectors(), self._dp.l1_distance(T="i64")
        return self._dp.m.make_laplace(domain, metric, scale=_as_float("scale", scale))

    def gaussian_measurement(self, sigma: Fraction) -> Any:
        """OpenDP's measurement; its ``map(D)`` is rho for an L2 sensitivity of D."""
        domain, metric = self._vectors(), self._dp.l2_distance(T=float)
        return self._dp.m.make_gaussian(domain, metric, scale=_as_float("sigma", sigma))

    def _vectors(self) -> Any:
        return self._dp.vector_domain(self._dp.atom_domain(T="i64"))

    def _released(self, measurement: Any, values: Sequence[int]) -> list[int]:
        if not values:
            return []
        return list(measurement([min(max(x, -_LARGEST), _LARGEST) for x in values]))


def sampler(name: str = "own") -> Sampler:
    """The sampler of this name: ``own`` or ``opendp``.

    :raises MissingExtra: if it is OpenDP's and opendp is not installed.

    >>> sampler("own").laplace([], Fraction(1))
    []
    """
    choice = check_in("sampler", name, ("own", "opendp"))
    return OwnSampler() if choice == "own" else OpenDPSampler()


# --- the width of the noise -------------------------------------------------------------------------------


def laplace_interval(scale: Fraction | int, level: float) -> int:
    """The smallest k with P(|noise| <= k) >= ``level``, for discrete Laplace noise.

    :param scale: > 0, in the units of k.
    :param level: 0.95 for a 95 % interval; at most 1 - 1e-9.
    :raises InvalidInput: if either is out of range.

    P(|noise| > k) = 2 exp(-(k + 1) / scale) / (1 + exp(-1 / scale)).

    Guarantee
    ---------
    * k is never too small.  It is the smallest for 1 - ``level`` lowered by a part in 1e9.

    >>> laplace_interval(10, 0.95)
    30
    """
    b = _positive("scale", scale)

    return _laplace_reach(b, level)


@lru_cache(maxsize=256)  # one per measure; an answer asks for it once per group
def _laplace_reach(b: Fraction, level: float) -> int:
    def beyond(k: int) -> float:
        return 2.0 * _exp_minus((k + 1) / b) / (1.0 + _exp_minus(1 / b))

    return _smallest(beyond, level)


def gaussian_interval(sigma: Fraction | int, level: float) -> int:
    """The same for discrete Gaussian noise of parameter ``sigma``; above 64 in the closed form of
    :func:`_gaussian_beyond`, and k may be one more than needed.

    >>> gaussian_interval(10, 0.95)
    20
    """
    return _gaussian_reach(_positive("sigma", sigma), level)


@lru_cache(maxsize=256)
def _gaussian_reach(s: Fraction, level: float) -> int:
    return _smallest(_gaussian_tail(s) if s <= _SUMMED else lambda k: _gaussian_beyond(k, s), level)


def _gaussian_tail(s: Fraction) -> Callable[[int], float]:
    """P(|noise| > k), summed term by term; terms beyond 12 sigma weigh less than 1e-30."""
    reach = math.ceil(12 * s) + 1
    weights = [_exp_minus((j / s) ** 2 / 2) for j in range(1, reach + 1)]
    total = 1.0 + 2.0 * math.fsum(weights)
    return lambda k: 2.0 * math.fsum(weights[k:]) / total


def _gaussian_beyond(k: int, s: Fraction) -> float:
    """P(|noise| > k) <= 2 P(N(0, s^2) > k + 1/2), up to exp(-19 s^2).

    f(j) = exp(-j^2 / 2s^2) is convex beyond s, so f(j) is at most its mean over [j - 1/2, j + 1/2] and the
    tail at most the integral from k + 1/2; within s it is concave, and the middle at least its integral.
    The sum of all f(j) is the integral times 1 + 2 exp(-2 pi^2 s^2) + ... (Poisson).
    """
    return math.erfc(float((k + Fraction(1, 2)) / s) / math.sqrt(2.0))


def _smallest(beyond: Callable[[int], float], level: float) -> int:
    """The smallest k with ``beyond(k)``, which falls, at most 1 - ``level``."""
    check_real("level", level, low=0.0, high=1.0 - 1e-9, open_low=True)
    missed = (1.0 - level) * (1.0 - _ROUNDING)
    low, high = -1, 0  # beyond(low) is above 1 - level, beyond(high) will be at most that
    while beyond(high) > missed:
        low, high = high, 2 * high + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if beyond(middle) > missed else (low, middle)
    return high


def _exp_minus(x: Fraction) -> float:
    return math.exp(-float(min(x, Fraction(1000))))


def _positive(name: str, value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, Fraction | int) or value <= 0:
        raise InvalidInput(f"{name} must be a positive Fraction or int; got {value!r}.")
    return Fraction(value)


def _as_float(name: str, value: Fraction) -> float:
    if 0 < value <= Fraction(sys.float_info.max) and Fraction(float(value)) == value:
        return float(value)
    raise InvalidInput(
        f"OpenDP takes {name} as a positive float; got {value!r}. Choose the nearest larger float, "
        "or Tacit's sampler (own), which takes any fraction."
    )


def laplace_sum_reach(scales: Sequence[float], missed: float) -> float:
    """The t with P(|noise| > t) = ``missed``, for a sum of independent continuous Laplace noises.

    The characteristic function is a product of 1 / (1 + (b_i x)^2), in partial fractions a sum, so that

        P(|noise| > t) = sum over i of exp(-t / b_i) b_i^(2 (m - 1)) / product over j != i of (b_i^2 - b_j^2).

    Scales that are too close to each other for that are increased, which increases t.

    >>> round(laplace_sum_reach([1.0], 0.05), 4) == round(math.log(20), 4)
    True
    """
    apart: list[float] = []
    for scale in sorted(scales):
        apart.append(max(scale, apart[-1] * 1.01) if apart else scale)
    weights = [
        math.prod(b * b / (b * b - c * c) for place, c in enumerate(apart) if place != i)
        for i, b in enumerate(apart)
    ]

    def beyond(t: float) -> float:
        return math.fsum(w * math.exp(-t / b) for w, b in zip(weights, apart, strict=True))

    low, high = 0.0, sum(apart) * (math.log(len(apart)) - math.log(missed))
    for _ in range(44):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) <= missed else (middle, high)
    return high


def normal_sum_reach(scales: Sequence[float], missed: float) -> float:
    """The same for normal noises.

    >>> round(normal_sum_reach([3.0, 4.0], 0.05), 3)
    9.8
    """
    return math.hypot(*scales) * NormalDist().inv_cdf(1.0 - missed / 2)


RawTable = dict[Measure, dict[Key, list[int]]]
"""Before noise: per measure and group its integers, one, or one per bin.  Never shown, logged or stored."""


@dataclass(frozen=True)
class Noisy:
    """What may be shown: for every shown group, the noisy integers of every release.

    Attributes:
        groups: the keys of the groups, in order.
        values: per release and group, the noisy integers (one, or one per bin), multiplied by
            ``bound.factor``; for a choice, the position of the candidate; for what is public, nothing.
    """

    groups: tuple[Key, ...]
    values: Mapping[Release, tuple[tuple[int, ...], ...]]


def collect(compiled: Compiled, results: Sequence[Sequence[tuple[Any, ...]]]) -> RawTable:
    """Collect the rows that the statements gave, in their order, in one table; clamp impossible values.

    A sum beyond ``largest_table`` rows is clamped: that moves no two sums further apart.
    """
    raw: RawTable = {}
    for statement, rows in zip(compiled.statements, results, strict=True):
        if statement.binned:
            (measure,) = statement.measures
            raw[measure] = _binned(measure, rows, compiled)
            continue
        for place, measure in enumerate(statement.measures):
            most = compiled.policy.largest_table * largest_cell(measure)
            raw[measure] = {
                tuple(row[: statement.keys]): [_clamped(int(row[statement.keys + place]), most)]
                for row in rows
            }
    return raw


def _binned(measure: Measure, rows: Sequence[tuple[Any, ...]], compiled: Compiled) -> dict[Key, list[int]]:
    width = bins_in(measure)
    table: dict[Key, list[int]] = {}
    for *key, place, count in rows:
        counts = table.setdefault(tuple(key), [0] * width)
        counts[int(place)] = _clamped(int(count), compiled.policy.largest_table)
    return table


def _clamped(value: int, most: int) -> int:
    return min(max(value, -most), most)


def bins_in(measure: Measure) -> int:
    """How many bins a measure has; 1 where it has none."""
    match measure:
        case Bins(_, edges):
            return len(edges) + 1
        case Regular():
            return measure.last + 1
    return 1


def release_all(compiled: Compiled, raw: RawTable, sampler: Sampler) -> Noisy:
    """Add the noise that ``compiled`` says, and keep the groups that may be shown.

    **Guarantee**

    * Performs ``compiled.event`` on ``raw``: each release once, for every declared group, whether or not it
      has rows; or for the groups that pass the threshold.
    * The order of the groups depends on no data: it is that of the policy, or of the names.
    """
    groups = compiled.groups
    values: dict[Release, tuple[tuple[int, ...], ...]] = {}
    if compiled.threshold is not None:
        gate = compiled.release(compiled.threshold.gate)
        found = sorted(raw[gate.measure])
        noisy = _released(gate, found, raw, sampler)
        shown = [place for place, (count,) in enumerate(noisy) if count >= compiled.threshold.value]
        groups = tuple(found[place] for place in shown)
        values[gate] = tuple(noisy[place] for place in shown)
    assert groups is not None
    for release in compiled.releases:
        if release not in values:
            values[release] = _released(release, groups, raw, sampler)
    return Noisy(groups, values)


def _released(
    release: Release, groups: Sequence[Key], raw: RawTable, sampler: Sampler
) -> tuple[tuple[int, ...], ...]:
    """The integers of every group with their noise."""
    if release.law == "public":
        return ((),) * len(groups)
    table, width = raw[release.measure], bins_in(release.measure)
    counts = [table.get(group, [0] * width) for group in groups]
    if release.choice is not None:
        choice = release.choice
        return tuple((exponential_choice(choice.losses(each), choice.rate),) for each in counts)
    flat = [release.bound.factor * count for each in counts for count in each]
    add = sampler.laplace if release.law == "laplace" else sampler.gaussian
    noisy = add(flat, release.scale)
    return tuple(tuple(noisy[place * width : (place + 1) * width]) for place in range(len(groups)))
