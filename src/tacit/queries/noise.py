"""The noise of an answer: integers in, noisy integers out; no other module adds noise.

Two samplers have one interface: Tacit's (:mod:`tacit.noise.discrete`) and OpenDP's, where it is installed.
Both add exact discrete noise of the same distribution to exact integers. So the choice is one of trust.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, final

from tacit.errors import InvalidInput, check_in, needed
from tacit.noise.discrete import discrete_gaussian, discrete_laplace, exponential_choice
from tacit.queries.measures import Measure
from tacit.queries.plan import Compiled, Key, Release

_LARGEST = 2**63 - 1  # the largest 64-bit integer


class Sampler(Protocol):
    """Adds independent discrete noise to integers.

    **Guarantee**

    * ``laplace``: value + k with P(k) proportional to exp(-|k| / scale).  For vectors whose L1 distance
      between neighbours is at most D, that is (D / scale)-DP.
    * ``gaussian``: value + k with P(k) proportional to exp(-k^2 / (2 sigma^2)).  For vectors whose L2
      distance is at most D, that is (D / sigma)^2 / 2-zCDP (2004.00010, Theorem 4).
    """

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]:
        """Return ``values`` plus discrete Laplace noise of this scale, in their units."""
        ...

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]:
        """Return ``values`` plus discrete Gaussian noise of parameter sigma, in their units."""
        ...


@final
class OwnSampler:
    """Tacit's sampler: integer arithmetic on the system's random bits (2004.00010, Algorithms 1 to 3).

    >>> len(OwnSampler().laplace([10, 0, -7], Fraction(2)))
    3
    """

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]:
        """Return ``values`` plus discrete Laplace noise; no integer is too large."""
        return [x + k for x, k in zip(values, discrete_laplace(scale, len(values)), strict=True)]

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]:
        """Return ``values`` plus discrete Gaussian noise; no integer is too large."""
        return [x + k for x, k in zip(values, discrete_gaussian(sigma**2, len(values)), strict=True)]


@final
class OpenDPSampler:
    """OpenDP's ``make_laplace`` and ``make_gaussian`` over 64-bit integers.

    This turns on OpenDP's feature "contrib" for the whole process. Values beyond 64 bits are clamped first,
    which increases no distance between them. Results beyond 64 bits are clamped too, which is
    post-processing. The cost that OpenDP's ``map`` returns is the same number, rounded up by at most a part
    in 2^52.

    Raises:
        MissingExtra: if opendp is not installed.
    """

    def __init__(self) -> None:
        self._dp = needed("opendp.prelude", "opendp", "Noise drawn by OpenDP")
        self._dp.enable_features("contrib")

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]:
        """Return ``values`` plus discrete Laplace noise.

        Raises:
            InvalidInput: if ``scale`` is not exactly a positive float, which OpenDP needs.
        """
        return self._noisy("laplace", scale, values)

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]:
        """Return ``values`` plus discrete Gaussian noise; errors as for :meth:`laplace`."""
        return self._noisy("gaussian", sigma, values)

    def measurement(self, law: str, scale: Fraction) -> Any:
        """Return OpenDP's measurement; its ``map(D)`` is epsilon for L1 sensitivity D, or rho for L2."""
        if not 0 < scale <= Fraction(sys.float_info.max) or Fraction(float(scale)) != scale:
            raise InvalidInput(
                f"OpenDP takes the scale of noise as a positive float; got {scale!r}. Choose the nearest "
                "larger float, or Tacit's sampler (own), which takes any fraction."
            )
        dp = self._dp
        domain = dp.vector_domain(dp.atom_domain(T="i64"))
        if law == "laplace":
            return dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=float(scale))
        return dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=float(scale))

    def _noisy(self, law: str, scale: Fraction, values: Sequence[int]) -> list[int]:
        measurement = self.measurement(law, scale)
        clamped = [min(max(x, -_LARGEST), _LARGEST) for x in values]
        return list(measurement(clamped)) if clamped else []


def sampler(name: str = "own") -> Sampler:
    """Return the sampler of this name: ``own`` or ``opendp``.

    Raises:
        MissingExtra: if it is OpenDP's and opendp is not installed.

    >>> sampler("own").laplace([], Fraction(1))
    []
    """
    choice = check_in("sampler", name, ("own", "opendp"))
    return OwnSampler() if choice == "own" else OpenDPSampler()


RawTable = dict[Measure, dict[Key, list[int]]]
"""The integers of each measure and group before noise, one, or one per bin; never show, log or store them."""


@dataclass(frozen=True)
class Noisy:
    """The noisy integers of every release, for every shown group; these may be shown.

    Attributes:
        groups: the keys of the groups, in order.
        values: per release and group, the noisy integers (one, or one per bin), multiplied by
            ``bound.factor``; for a choice, the position of the candidate; for a public number, nothing.
    """

    groups: tuple[Key, ...]
    values: Mapping[Release, tuple[tuple[int, ...], ...]]


def collect(compiled: Compiled, results: Sequence[Sequence[tuple[Any, ...]]]) -> RawTable:
    """Collect the statements' rows, in order, in one table; clamp impossible values.

    A sum beyond ``largest_table`` rows is clamped, which moves no two sums further apart.
    """
    raw: RawTable = {}
    for statement, rows in zip(compiled.statements, results, strict=True):
        for place, measure in enumerate(statement.measures):
            table = raw.setdefault(measure, {})
            most = compiled.policy.largest_table * measure.largest
            for row in rows:
                key, number = row[: statement.keys], int(row[statement.keys + place])
                *group, at = key if measure.binned else (*key, 0)
                counts = table.setdefault(tuple(group), [0] * measure.bins)
                counts[int(at)] = min(max(number, -most), most)
    return raw


def release_all(compiled: Compiled, raw: RawTable, sampler: Sampler) -> Noisy:
    """Add the noise that ``compiled`` specifies, and keep the groups that may be shown.

    **Guarantee**

    * Performs ``compiled.event`` on ``raw``: each release once, for every declared group, whether or not it
      has rows; or for the groups that pass the threshold.
    * The order of the groups depends on no data: it is that of the policy, or of the names.
    """
    groups = compiled.groups
    values: dict[Release, tuple[tuple[int, ...], ...]] = {}
    if compiled.threshold is not None:
        gate = compiled.release(compiled.threshold.gate)
        candidates = sorted(raw[gate.measure])
        noisy = _noisy_values(gate, candidates, raw, sampler)
        passing = [place for place, (count,) in enumerate(noisy) if count >= compiled.threshold.value]
        groups = tuple(candidates[place] for place in passing)
        values[gate] = tuple(noisy[place] for place in passing)
    assert groups is not None
    for release in compiled.releases:
        if release not in values:
            values[release] = _noisy_values(release, groups, raw, sampler)
    return Noisy(groups, values)


def _noisy_values(
    release: Release, groups: Sequence[Key], raw: RawTable, sampler: Sampler
) -> tuple[tuple[int, ...], ...]:
    """Return the noisy integers of every group."""
    if release.law == "public":
        return ((),) * len(groups)
    table, width = raw[release.measure], release.measure.bins
    counts = [table.get(group, [0] * width) for group in groups]
    if release.choice is not None:
        choice = release.choice
        return tuple((exponential_choice(choice.losses(each), choice.rate),) for each in counts)
    flat = [release.bound.factor * count for each in counts for count in each]
    add = sampler.laplace if release.law == "laplace" else sampler.gaussian
    noisy = add(flat, release.scale)
    return tuple(tuple(noisy[place * width : (place + 1) * width]) for place in range(len(groups)))
