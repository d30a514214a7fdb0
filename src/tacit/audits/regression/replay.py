"""How far does one record change a release? L0: the same key on neighbours (the replay of 2602.17454).

Two sessions with one key draw the same noise and the same other participants.  The difference between what
they release is then the difference of two sums, without noise, and must be what the plan accounts for: at
most the norm bound where the record takes part, nothing where it does not.  The other releases of the step
(a noisy count, a noisy loss) are part of one Gaussian with the sum, so the bound is joint,

    |Δ sum|^2 / (z_g C)^2 + (Δ count / s_b)^2 + (Δ loss / s_l)^2 <= 1 / z^2.

Letters as in :mod:`tacit.plan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from tacit.audits.regression.recorder import NotedRows, Release, perform
from tacit.clipping.rules import AdaptiveClipping
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.training import PrivateSession

Build: TypeAlias = Callable[[NotedRows, Generator], PrivateSession]
"""Makes a session on these rows with this key: with the same weights each time, in float64, and a
:class:`~tacit.audits.regression.Recorder` for an optimizer."""

_TOLERANCE = 1e-3  # relative, of the bound
_NOTHING = 1e-9  # of the bound: a difference within floating-point error of 0


@dataclass(frozen=True)
class Difference:
    """A difference of neighbours beyond what is accounted for: the ``probe``, the step, the difference."""

    probe: str
    step: int
    what: str


def replay_on_neighbours(
    build: Build,
    rows: tuple[Tensor, ...],
    probes: Mapping[str, tuple[Tensor, ...]],
    *,
    keys: Sequence[Generator],
) -> list[Difference]:
    """Run with and without one more record, for each probe and key; return all differences that are too
    large.

    :param rows: tensors (N, ...), the records of both.
    :param probes: by name, tensors (1, ...), the additional record of one of them.
    :param keys: of the sessions, from :func:`tacit.testing.seeded_generator`.
    """
    found: list[Difference] = []
    for key in keys:
        without = _run(build, rows, key)
        for name, probe in probes.items():
            both = tuple(torch.cat([a, b.to(a)]) for a, b in zip(rows, probe, strict=True))
            found += [
                Difference(name, step, what)
                for step, what in _compared(without, _run(build, both, key), len(rows[0]))
            ]
    return found


@dataclass(frozen=True, eq=False)
class _Run:
    plan: Plan
    releases: list[Release]
    error: str | None = None


def _run(build: Build, tensors: tuple[Tensor, ...], key: Generator) -> _Run:
    rows = NotedRows(tensors)
    session = build(rows, key)
    one = isinstance(
        session.plan.clipping, AdaptiveClipping
    )  # whose later thresholds follow from the release
    try:
        return _Run(session.plan, perform(session, rows, 1 if one else None))
    except Exception as problem:  # noqa: BLE001 (any error: the other run must end in the same way)
        return _Run(session.plan, [], type(problem).__name__)


def _compared(without: _Run, added: _Run, number: int) -> Iterator[tuple[int, str]]:
    plan = without.plan
    if without.error != added.error:
        yield 0, f"one ends with {without.error}, the other with {added.error}"
        return
    if without.plan != added.plan:
        yield 0, "the plan depends on the records"
    if len(without.releases) != len(added.releases):
        yield 0, f"{len(without.releases)} releases and {len(added.releases)}"
    thresholds: Sequence[float] | None = None
    for step, (one, other) in enumerate(zip(without.releases, added.releases, strict=False)):
        if sorted(one.taken) != sorted(i for i in other.taken if i != number):
            yield step, "other records take part"
        if plan.loss_report is None and (one.loss is not None or other.loss is not None):
            yield step, "a loss is shown that was not accounted for"
        shift = plan.noise_multiplier * _shift(plan, one, other, thresholds)
        thresholds = one.thresholds
        if not math.isfinite(shift):
            yield step, "what is released is not finite"
        elif number not in other.taken and shift > _NOTHING:
            yield step, f"moves by {shift:.3g} of the bound without the record"
        elif shift > 1.0 + _TOLERANCE:
            yield step, f"moves by {shift:.4g} of the bound"


def _shift(plan: Plan, one: Release, other: Release, thresholds: Sequence[float] | None) -> float:
    """How far apart the centres of the two Gaussians are, in standard deviations of their noise."""
    rule, B = plan.clipping, plan.expected_batch_size
    used = one.thresholds if thresholds is None else thresholds
    if isinstance(rule, AdaptiveClipping):
        used = rule.initial_thresholds([])
    squares = [
        float((a - b).square().sum())
        for a, b in zip(one.gradients, other.gradients, strict=True)
        if a is not None and b is not None
    ]
    shift = B * math.sqrt(sum(squares)) / (plan.gradient_noise_multiplier * rule.sensitivity(used))
    return math.hypot(shift, _count_shift(plan, one, other), _loss_shift(plan, one, other))


def _count_shift(plan: Plan, one: Release, other: Release) -> float:
    rule = plan.clipping
    if plan.count_noise is None or not isinstance(rule, AdaptiveClipping):
        return 0.0
    moved = math.log(one.thresholds[0] / other.thresholds[0]) / rule.learning_rate
    return plan.expected_batch_size * moved / plan.count_noise


def _loss_shift(plan: Plan, one: Release, other: Release) -> float:
    if plan.loss_report is None or plan.loss_noise is None or one.loss is None or other.loss is None:
        return 0.0
    return plan.expected_batch_size * (one.loss - other.loss) / (plan.loss_report.bound * plan.loss_noise)
