"""The noise of an answer: only this module adds noise to integers."""

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

# Two samplers have one interface: Tacit's (:mod:`tacit.noise.discrete`) and OpenDP's, if it is installed.
# Both add exact discrete noise of the same distribution to exact integers. They differ only in the code that
# a user has to trust.

_LARGEST = 2**63 - 1  # the largest 64-bit integer


class Sampler(Protocol):
    """Adds independent discrete noise to integers.

    **Guarantee**

    * ``laplace`` returns value + k with P(k) proportional to exp(-|k| / scale). If the L1 distance between
      the vectors of neighbours is at most D, that is epsilon-DP with epsilon = D / scale.
    * ``gaussian`` returns value + k with P(k) proportional to exp(-k^2 / (2 sigma^2)). If the L2 distance
      is at most D, that is rho-zCDP with rho = (D / sigma)^2 / 2 (2004.00010, Theorem 4).
    """

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]:
        """Return ``values`` plus independent discrete Laplace noise of scale ``scale``."""
        ...

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]:
        """Return ``values`` plus independent discrete Gaussian noise of parameter ``sigma``."""
        ...


@final
class OwnSampler:
    """Tacit's sampler: integer arithmetic on the system's random bits (2004.00010, Algorithms 1 to 3)."""

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]:
        """Return ``values``, integers of any size, plus discrete Laplace noise."""
        return [x + k for x, k in zip(values, discrete_laplace(scale, len(values)), strict=True)]

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]:
        """Return ``values``, integers of any size, plus discrete Gaussian noise."""
        return [x + k for x, k in zip(values, discrete_gaussian(sigma**2, len(values)), strict=True)]


@final
class OpenDPSampler:
    """OpenDP's ``make_laplace`` and ``make_gaussian`` over 64-bit integers.

    This turns on OpenDP's feature "contrib" for the whole process. Values beyond 64 bits are clamped before
    noise is added, which increases no distance between them. Results beyond 64 bits are clamped too, which is
    post-processing. OpenDP's ``map`` returns the same cost as Tacit, rounded up by at most 2^-52 of it.
    """

    def __init__(self) -> None:
        self._dp = needed("opendp.prelude", "opendp", "Noise drawn by OpenDP")
        self._dp.enable_features("contrib")

    def laplace(self, values: Sequence[int], scale: Fraction) -> list[int]:
        """Return ``values`` plus discrete Laplace noise."""
        return self._noisy("laplace", scale, values)

    def gaussian(self, values: Sequence[int], sigma: Fraction) -> list[int]:
        """Return ``values`` plus discrete Gaussian noise; errors as for :meth:`laplace`."""
        return self._noisy("gaussian", sigma, values)

    def measurement(self, law: str, scale: Fraction) -> Any:
        """Return OpenDP's measurement.

        Its ``map(D)`` is epsilon for Laplace noise of L1 sensitivity D, and rho for Gaussian noise of L2
        sensitivity D.
        """
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
    choice = check_in("sampler", name, ("own", "opendp"))
    return OwnSampler() if choice == "own" else OpenDPSampler()


RawTable = dict[Measure, dict[Key, list[int]]]
"""For each measure and group, the integers without noise (one, or one per bin).

Never show, log or store them.
"""


@dataclass(frozen=True)
class Noisy:
    """The noisy integers of every release, for every shown group; these may be shown.

    Attributes:
        groups: the keys of the groups, in order.
        values: for each release, one tuple per group. It contains the noisy integers (one, or one per bin),
            multiplied by ``bound.factor``. For a choice it contains the index of the chosen candidate, and
            for a public number nothing.
    """

    groups: tuple[Key, ...]
    values: Mapping[Release, tuple[tuple[int, ...], ...]]


def collect(compiled: Compiled, results: Sequence[Sequence[tuple[Any, ...]]]) -> RawTable:
    """Collect the rows that the statements returned in one table; ``results`` is in their order.

    A sum that is larger than ``largest_table`` rows can give is clamped. Clamping never moves two sums
    further apart.
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

    * The function performs ``compiled.event`` on ``raw``. It performs each release once for every declared
      group, whether or not the group has rows. If groups are not declared, it adds noise to the number of
      units of every group, and performs the other releases only for groups that pass the threshold.
    * The order of the groups does not depend on the data: it is the policy's order, or the keys are sorted.
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
