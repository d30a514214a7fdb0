"""The privacy regression suite: checks that no change to the code may break, on real sessions.

* L0, :func:`replay_on_neighbours`: the same key on data sets that differ in one record.
* L1, :func:`noise_of_run`: what was released less the definition's sums, for :func:`tacit.audits.noise_law`.
* L2, :func:`check_accounting`: who took part, how often something was released, and what was accounted for.
* L3: a run with audit slots, by :func:`tacit.audits.audit_slots`.

No layer suffices alone.  Slots do not show a bound that only holds per layer, nor noise that is too large; a
replay does not show the noise at all.  They work for any function that makes a session, so a project can test
its own model, loss and settings.

The replay (2602.17454): Two sessions with one key draw the same noise and the same other participants.  The
difference between what they release is then the difference of two sums, without noise, and must be what the
plan accounts for: at most the norm bound where the record takes part, nothing where it does not.  The other
releases of the step (a noisy count, a noisy loss) are part of one Gaussian with the sum, so the bound is
joint,

    |Δ sum|^2 / (z_g C)^2 + (Δ count / s_b)^2 + (Δ loss / s_l)^2 <= 1 / z^2.

Letters as in :mod:`tacit.plan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.laboratory.laws import LawTest, sampler_law
from tacit.clipping.engine import PerExampleLoss
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import AdaptiveClipping
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import Compose, Event, Gaussian, PoissonSampled, Repeat
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.sampling.samplers import Indices
from tacit.training import PrivateSession
from tacit.training.records import Records


@final
class Recorder(torch.optim.Optimizer):
    """An optimizer that records the gradients it gets and changes nothing.

    As the weights stay, every step is a function of the same weights, and differs from the same step of
    another run by the records alone.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.steps: list[list[Tensor | None]] = []

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Record the gradients; ``closure`` is refused."""
        if closure is not None:
            raise InvalidInput("a recorder cannot use a closure. Call step() without one.")
        given = [p.grad for group in self.param_groups for p in group["params"]]
        self.steps.append([None if g is None else g.detach().double().cpu().clone() for g in given])


@final
class NotedRows(Records):
    """Tensors whose row i is record i, in any state, NaN included; ``taken`` records what a step reads."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors
        self.taken: list[int] = []

    def __len__(self) -> int:
        return len(self.tensors[0])

    @property
    def template(self) -> tuple[int, ...]:
        return tuple(range(len(self.tensors)))

    def take(self, indices: Indices, *, seed: int) -> tuple[Tensor, ...]:
        self.taken += indices.tolist()
        return tuple(tensor[torch.from_numpy(indices)] for tensor in self.tensors)

    def fingerprint(self, key: bytes) -> str:
        return ""

    def content(self) -> None:
        return None


@dataclass(frozen=True, eq=False)
class Release:
    """One step: mean gradients as the optimizer got them, the next thresholds, the loss, who took part."""

    gradients: tuple[Tensor | None, ...]
    thresholds: tuple[float, ...]
    loss: float | None
    taken: tuple[int, ...]


def perform(session: PrivateSession, rows: NotedRows, steps: int | None = None) -> list[Release]:
    """Take the remaining steps, or ``steps`` of them, and return a release for each step of the optimizer.

    Raises:
        InvalidInput: the session's optimizer is not a :class:`Recorder`.
    """
    optimizer = session.optimizer
    if not isinstance(optimizer, Recorder):
        raise InvalidInput(
            f"make the session with a Recorder for an optimizer; got {type(optimizer).__name__}."
        )
    found: list[Release] = []
    for batch in session.batches():
        before = len(optimizer.steps)
        rows.taken.clear()
        report = session.step(batch)
        found += [
            Release(tuple(gradients), session.thresholds, report.loss, tuple(rows.taken))
            for gradients in optimizer.steps[before:]
        ]
        if steps is not None and session.steps_done >= steps:
            break
    return found


Build: TypeAlias = Callable[[NotedRows, Generator], PrivateSession]
"""Makes a session on these rows with this key: with the same weights each time, in float64, and a
:class:`Recorder` for an optimizer."""

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
) -> Iterator[Difference]:
    """Run with and without one more record, for each probe and key; yield all differences that are too large.

    Args:
        build: makes a session.
        rows: tensors (N, ...), the records of both.
        probes: by name, tensors (1, ...), the additional record of one of them.
        keys: of the sessions, from :func:`tacit.testing.seeded_generator`.
    """
    for key in keys:
        without = _run(build, rows, key)
        for name, probe in probes.items():
            both = tuple(torch.cat([a, b.to(a)]) for a, b in zip(rows, probe, strict=True))
            for step, what in _compared(without, _run(build, both, key), len(rows[0])):
                yield Difference(name, step, what)


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
    """Return the distance of the centres of two Gaussians, in standard deviations of their noise."""
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


def noise_of_run(
    model: nn.Module, loss: PerExampleLoss, plan: Plan, rows: NotedRows, releases: list[Release]
) -> dict[str, NDArray[np.float64]]:
    """(T, ...) noise of the sum by parameter, over its standard deviation, for ``noise_law(..., std=1)``.

    The sums come from the reference engine, record by record, on the records that were taken.  ``model`` has
    the weights that the releases were made with, and ``plan`` flat, automatic or per-layer clipping.

    Raises:
        InvalidInput: the plan has views, and the recorder does not record their random draws.
    """
    if plan.views > 1:
        raise InvalidInput(
            "the noise of a run with views cannot be separated from them. Audit it with one view."
        )
    engine = ReferenceEngine(model, loss, plan.clipping)
    thresholds = plan.clipping.initial_thresholds(engine.names)
    std = plan.gradient_noise_multiplier * plan.clipping.sensitivity(thresholds)
    noise: dict[str, list[NDArray[np.float64]]] = {name: [] for name in engine.names}
    given = (
        plan.clipping,
        loss,
        *(t.numpy().tobytes() for t in (*rows.tensors, *model.state_dict().values())),
    )
    for release in releases:
        key = (*given, release.taken)
        if key not in _SUMS:  # of many runs that differ in their noise alone
            _SUMS[key] = _sums_of(engine, rows, release.taken, thresholds)
        sums = _SUMS[key]
        for (name, total), gradient in zip(sums.items(), release.gradients, strict=True):
            if gradient is None:
                raise InvalidInput(f"nothing was released of {name}: its gradient is None.")
            excess = plan.expected_batch_size * gradient - total.double().cpu()
            noise[name].append((excess / std).numpy())
    return {name: np.stack(values) for name, values in noise.items()}


_SUMS: dict[tuple[Any, ...], dict[str, Tensor]] = {}


def _sums_of(
    engine: ReferenceEngine, rows: NotedRows, taken: tuple[int, ...], thresholds: Sequence[float]
) -> dict[str, Tensor]:
    sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    if taken:
        batch = tuple(tensor[torch.tensor(taken)] for tensor in rows.tensors)
        mask = torch.ones(len(taken), dtype=torch.bool)
        engine.add_clipped_sum(sums, batch, mask, torch.tensor(thresholds, dtype=torch.float64))
    return sums


@dataclass(frozen=True, eq=False)
class AccountingFindings:
    """``differences`` in words, none if all is well; ``sampler`` is None for full batches."""

    differences: list[str] = field(default_factory=list)
    sampler: LawTest | None = None


def check_accounting(
    event: Event, releases: list[Release], *, records: int, level: float
) -> AccountingFindings:
    """Check that there were as many releases as ``event`` says, on samples of its distribution.

    Args:
        event: a repetition of a Gaussian, Poisson-sampled or not, without the events before it.
        releases: of the run.
        records: N, the true number of records.
        level: the probability of calling a right sampler wrong.

    Raises:
        PrivacyRefusal: the event is another one.
    """
    rate, steps = _sampled(event)
    differences = []
    if len(releases) != steps:
        differences.append(f"{len(releases)} releases, {steps} accounted for")
    counts = np.zeros((len(releases), records))
    for row, release in zip(counts, releases, strict=True):
        np.add.at(row, np.array(release.taken, dtype=np.int64), 1.0)
    if rate == 1.0:
        if (counts != 1.0).any():
            differences.append("a record is not in every step exactly once")
        return AccountingFindings(differences)
    law = sampler_law(counts, sampling_rate=rate)
    if law.rejects(level):
        differences.append(f"samples are not Poisson at rate {rate:g}: {law.worst}")
    return AccountingFindings(differences, law)


def _sampled(event: Event) -> tuple[float, int]:
    match event:
        case Compose(events=(*_, last)):
            return _sampled(last)
        case Repeat(event=PoissonSampled(sampling_rate=rate, event=Gaussian()), count=count):
            return rate, count
        case Repeat(event=Gaussian(), count=count):
            return 1.0, count
    raise PrivacyRefusal(f"only repeated Gaussians, Poisson-sampled or not, can be checked; got {event!r}.")
