"""Where is noise added to what an engine counted? Only here, from integers to noisy integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.noise.discrete import exponential_choice
from tacit.queries.measures import Bins, Measure, Regular, largest_cell
from tacit.queries.noise import Sampler
from tacit.queries.plan import Compiled, Key, Release

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
