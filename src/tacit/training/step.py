"""One private step: sample, clip, sum, add noise, divide by the public B; and its physical batches.

Letters: n participants of the step; K views per record; P parameters; G clipping groups; B expected batch
size; C_g thresholds; z_g noise multiplier of the gradient sum
(:attr:`tacit.plan.Plan.gradient_noise_multiplier`).
"""

# Only this module and :mod:`tacit.training.shards` add noise to gradients.  The engine adds to buffers
# that already contain the noise, so the sum without noise never exists in memory that outlives the step.
#
# **Guarantee**
#
# * The step releases ``(sum of clipped gradients + N(0, (z_g C)^2 I)) / B``, the noisy count behind the
#   next thresholds, and the noisy loss.  Together they are one Gaussian release with
#   ``plan.noise_multiplier``.
# * The step draws its noise once, whatever the number of microbatches, and on an empty batch as well.
# * The divisor is the plan's public B, never the size of the batch that was drawn.  Sum and noise are
#   computed with the same float s = 1/B, so their ratio does not depend on its rounding.
# * Rank r of R adds the clipped sum of the participants r, r + R, r + 2R, ... to its share of the noise; a
#   rank with records of its own adds that of the participants among them, of which there may be none.  Count
#   and loss are summed over the ranks first, and then get their noise once.
# * A step's randomness is a function of (key, step), so a step repeated after a crash releases the same
#   values.
# * A step for which the device of any rank had too little memory is repeated from its start, with half as
#   many records at once.  Nothing of the first try is released, and model and loss keep nothing of it, as
#   Python sees no value of a record; with the reference engine this is assumed.
# * If the model draws random numbers, as in dropout, a record's numbers depend on the physical batch size.
#   So the resume state stores the sizes, and a resumed run of such a model changes none.

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, nn

from tacit.clipping.engine import GradientEngine, RawStatistics
from tacit.clipping.fast import cut
from tacit.clipping.rules import AdaptiveClipping
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.noise.gaussian import gaussian
from tacit.noise.generator import Generator, Purpose
from tacit.plan import LossReport, Plan
from tacit.sampling.samplers import Indices, TruncatedPoissonSampling
from tacit.training.audit_slots import Planted
from tacit.training.by_record import Augmentation, views_of
from tacit.training.correlated import CorrelatedNoise
from tacit.training.lengths import Lengths
from tacit.training.part import Part
from tacit.training.ranks import Layout, Ranks, Sums
from tacit.training.records import Prefetcher, Records, Request
from tacit.training.released import GuardedOptimizer
from tacit.training.resume import add_to_state
from tacit.training.tensors import lacks_memory, without_numbers

PhysicalSize: TypeAlias = int | Literal["auto"]
"""The most records in memory at once; "auto" lets the session find how many fit."""

_DEFAULT = 512
_OR_AUTO = 'It may also be "auto", which finds how many records fit.'
_SPARE = 16
"""``"auto"`` leaves 1/16 of the device's memory free."""


@final
class PhysicalBatch(Part):
    """The physical batch size of each step: the most records of the expected batch in memory at once.

    Args:
        find: whether ``"auto"`` tests how many records fit, because the device has separate memory.
        fits: a function that tests whether ``size`` records of zeros fit; all ranks call it together.
        draws: a function that tests whether the model or the loss may draw random numbers.
    """

    def __init__(
        self,
        size: PhysicalSize,
        expected: float,
        ranks: Ranks,
        *,
        find: bool,
        fits: Callable[[int, int, Indices], bool],
        draws: Callable[[], bool],
    ) -> None:
        self._request, self._ranks, self._fits, self._draws = size, ranks, fits, draws
        self._most = covering(expected / ranks.ranks)
        self._sizes: dict[int, int] = {}
        if size != "auto":
            self._sizes[0] = check_integer("physical_batch_size", size, low=1, why=_OR_AUTO)
        elif not find:
            self._sizes[0] = _DEFAULT
        self._resumed, self._unsure, self._changed = False, False, False
        self._failed_size: int | None = None  # the size that did not fit, until a warning has named it
        self.stored: tuple[Path, bytes] | None = None
        """The last file that this run was saved to or loaded from, and its key."""

    def at(self, step: int) -> int:
        begun = [first for first in self._sizes if first <= step]
        return self._sizes[max(begun)] if begun else _DEFAULT  # no record has taken part so far

    def before(self, step: int, indices: Indices) -> None:
        if self._sizes:
            return
        (without,) = self._ranks.total(lambda: (float(len(indices) == 0),))
        if not without:
            self._sizes[step] = largest(lambda size: self._fits(size, step, indices), self._most)
            self._changed = True
            empty_cache()

    def halve(self, step: int) -> None:
        size = self.at(step)
        if size == 1:
            raise InvalidInput(
                "CUDA is out of memory even with one record at a time. The step was not taken. (The first "
                "step needs more memory, to check the model.) Free the GPU of other processes. Or save "
                "memory: memory=tacit.clipping.LEAN, bfloat16 by torch.autocast in the loss, "
                "torch.utils.checkpoint with use_reentrant=False in the model, or fewer trained weights, as "
                "in LoRA."
            )
        self._failed_size = self._failed_size or size
        self._sizes = {first: now for first, now in self._sizes.items() if first < step} | {step: size // 2}
        self._changed, self._unsure = True, self._resumed

    def released(self, step: int, gradients: dict[str, Tensor], thresholds: list[float]) -> dict[str, Tensor]:
        if self._unsure:
            self._ranks.each(self._check_draws)
        if self._changed:
            self._ranks.only_first(lambda: self._write(step))
            self._changed, self._failed_size = False, None
        return gradients

    def _check_draws(self) -> None:
        if self._draws():
            raise PrivacyRefusal(
                "CUDA ran out of memory in a resumed run with dropout or other random numbers. They depend "
                "on the physical batch size, so a smaller one could add the same noise to another sum. Free "
                "the GPU of other processes, or load the saved state on a GPU with as much memory as before."
            )

    def _write(self, step: int) -> None:
        """Write the new size into the last saved state, then warn the user."""
        if self.stored is not None:
            add_to_state(*self.stored, self.state(step))
        if self._failed_size is not None:
            now = self.at(step)
            warnings.warn(
                f"CUDA ran out of memory with {self._failed_size} records at once. The session repeated the "
                f"step with the same random numbers and {now} at once, and continues with {now}. Set "
                f"physical_batch_size={now} to avoid the failed attempt.",
                UserWarning,
                stacklevel=2,
            )

    def facts(self, key: bytes) -> dict[str, Any]:
        return {"physical": self._request}

    def state(self, done: int) -> dict[str, Any]:
        return {"physical": dict(self._sizes)}

    def load(self, state: Mapping[str, Any], generator: Generator) -> None:
        self._sizes = dict(state["physical"])
        self._resumed, self._unsure, self._changed, self._failed_size = bool(self._sizes), False, False, None


def covering(expected: float) -> int:
    """Return a size that few samples of ``expected`` records on average exceed."""
    return math.ceil(expected + 4 * math.sqrt(expected))


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Find approximately the largest size up to ``most`` that ``fits``, or 1."""
    fitting, size = 0, 1
    while fitting < most and fits(size):
        fitting, size = size, min(2 * size, most)
    while fitting < most and size - fitting > max(1, fitting // 8):
        middle = (fitting + size) // 2
        fitting, size = (middle, size) if fits(middle) else (fitting, middle)
    return max(1, fitting)


def within_memory(function: Callable[[], tuple[float, ...]], numbers: int) -> tuple[float, ...]:
    """Return the results of ``function`` and a 0, or ``numbers`` zeros and a 1 if memory is short."""
    try:
        return (*function(), 0.0)
    except RuntimeError as problem:
        if not lacks_memory(problem):
            raise
    empty_cache()  # outside the handler: the error holds the frames that it passed, and they hold tensors
    return (*[0.0] * numbers, 1.0)


def empty_cache() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def spare(weights: list[Tensor], optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Allocate the margin that ``"auto"`` leaves free, and two numbers per weight, as AdamW needs."""
    if not weights[0].is_cuda:
        return []
    device = weights[0].device
    margin = torch.cuda.get_device_properties(device).total_memory // _SPARE
    reserve = [torch.empty(margin, dtype=torch.uint8, device=device)]
    return (
        reserve if optimizer.state else [*reserve, *(torch.empty_like(w) for w in weights for _ in range(2))]
    )


@dataclass(frozen=True)
class StepTicket:
    """The number of the next step, which :meth:`PrivateSession.step` takes.

    It does not contain the batch, because even the size of a batch may be secret.

    >>> StepTicket(step=3).step
    3
    """

    step: int

    def __iter__(self) -> NoReturn:
        raise InvalidInput(_NO_RECORDS)

    def __getitem__(self, part: object) -> NoReturn:
        raise InvalidInput(_NO_RECORDS)


_NO_RECORDS = (
    "a step ticket is not a batch: it contains no records, because the choice of records is secret. Write "
    "`for step in session.batches(): session.step(step)`; the session reads the records and computes "
    "their losses and gradients. To inspect records or to evaluate, use your own data, such as held-out "
    "records, outside this loop."
)


@dataclass(frozen=True)
class StepReport:
    """The public result of a step; ``loss`` is the noisy loss, or None without a loss report."""

    step: int
    loss: float | None


@dataclass(frozen=True)
class NoisyStep:
    """The release of a step; ``thresholds`` are those of the next step."""

    gradients: dict[str, Tensor]
    thresholds: list[float]
    loss: float | None


class Performed(Protocol):
    """The attributes of a :class:`tacit.training.run.Run` that its steps read."""

    plan: Plan
    engine: GradientEngine
    records: Records
    thresholds: list[float]
    generator: Generator
    physical: PhysicalBatch
    lengths: Lengths | None
    slots: Planted | None
    augmentation: Augmentation | None
    ranks: Ranks
    layout: Layout
    correlated: CorrelatedNoise | None
    trained: Mapping[str, nn.Parameter]
    optimizer: GuardedOptimizer

    def participants(self, step: int) -> Indices:
        """Return the positions of a step's participants, or of those among this rank's own records."""


def noisy_step(run: Performed, step: int, indices: Indices) -> NoisyStep:
    while True:
        release = _attempt(run, step, indices)
        if release is not None:
            return release
        run.physical.halve(step)


def _attempt(run: Performed, step: int, indices: Indices) -> NoisyStep | None:
    """Compute the step; if a rank has too little memory, return None and release nothing."""
    plan, engine, generator, thresholds = run.plan, run.engine, run.generator, run.thresholds
    records, augmentation = run.records, run.augmentation
    scale = 1.0 / plan.expected_batch_size
    std = scale * plan.gradient_noise_multiplier * plan.clipping.sensitivity(thresholds)
    device = device_of(engine)

    def draw(address: int) -> Sums:
        return run.layout.sums(engine.parameters, generator, std=std, step=address)

    buffers = draw(step) if run.correlated is None else run.correlated.begin(step, draw)
    limits = _limits(tuple(thresholds), device)
    # one for all physical batches: another record would move some records to the next of them
    engine.shared_seed = generator.word(purpose=Purpose.SHARED, step=step) >> 1
    seed = _reading_seed(generator, step)
    uniforms: Tensor | None = None
    if augmentation is not None:
        # Drawn for the whole step, so that they do not depend on its physical batches.
        shape = (len(indices), records.rows, plan.views, augmentation.draws)
        own = run.ranks.rank if run.ranks.own_records else 0  # records of its own get draws of their own
        draws = generator.numpy(purpose=Purpose.AUGMENTATION, step=step, index=own)
        numbers = draws.random(shape, dtype=np.float32)
        uniforms = torch.from_numpy(numbers)

    def own_share() -> tuple[float, ...]:
        raw_below, raw_loss = 0.0, 0.0
        for call in _calls(run, step, indices, seed):
            batch = tuple(tensor.to(device, non_blocking=True) for tensor in call.batch)
            if augmentation is not None and uniforms is not None:
                with without_numbers():
                    batch = _views(batch, uniforms[call.rows].flatten(0, 1), augmentation, plan.views)
            engine.expected = call.expected
            with _model_randomness(generator, step, call.number, device), without_numbers():
                raw = engine.add_clipped_sum(buffers, batch, None, limits, scale=scale)

            # The number of norms below the threshold, less half of all; and the clamped losses, centred.
            if isinstance(plan.clipping, AdaptiveClipping):
                raw_below += float(raw.raw_below.sum())
            if plan.loss_report is not None:
                raw_loss += _raw_centred_loss(raw, plan.loss_report)
        return raw_below, raw_loss

    with run.layout.whole():
        raw_below, raw_loss, lacking = run.ranks.total(lambda: within_memory(own_share, 2))
    if lacking:
        return None
    return NoisyStep(
        gradients=buffers.released(),
        thresholds=next_thresholds(plan, thresholds, raw_below, generator, step),
        loss=_noisy_loss(plan, raw_loss, generator, step),
    )


def fits(run: Performed, size: int, step: int, indices: Indices) -> bool:
    """Return whether steps of physical size ``size`` fit in memory at every rank, with a margin.

    The test uses records of zeros, more than most samples have.  One participant is read for its shape.
    """
    engine, plan, device = run.engine, run.plan, device_of(run.engine)
    reader = run.records.inner if isinstance(run.records, Prefetcher) else run.records
    one = reader.take(indices[:1], seed=_reading_seed(run.generator, step))

    def rehearsed() -> tuple[float, ...]:
        reserve = spare([run.layout.local(p.detach()) for p in run.trained.values()], run.optimizer.optimizer)
        sums = {
            name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            for name, p in engine.parameters.items()
        }
        for rows, records in _largest(run, one, size):
            batch = tuple(t.new_zeros(records * len(t), *t.shape[1:], device=device) for t in rows)
            if (augmentation := run.augmentation) is not None:
                draws = torch.zeros(len(batch[0]), plan.views, augmentation.draws)
                batch = _views(batch, draws, augmentation, plan.views)
            with _model_randomness(run.generator, step, 0, device):
                engine.add_clipped_sum(sums, batch, None, _limits(tuple(run.thresholds), device))
        del reserve
        return ()

    with run.layout.whole():
        (lacking,) = run.ranks.total(lambda: within_memory(rehearsed, 0))
    return not lacking


def _largest(run: Performed, one: tuple[Tensor, ...], size: int) -> Iterator[tuple[tuple[Tensor, ...], int]]:
    """Yield ``one`` record at each length, and a number of records that few engine calls exceed."""
    share, lengths = _public_share(run), run.lengths
    if lengths is None:
        # with a largest batch, no draw exceeds the share
        is_truncated = isinstance(run.plan.sampling, TruncatedPoissonSampling)
        most = share if is_truncated else covering(share)
        yield one, math.ceil(most / math.ceil(share / size))
        return
    for number, (calls, expected) in enumerate(lengths.calls(share, size)):
        rows = lengths.cut(one, run.records.template, number)
        yield rows, math.ceil(covering(calls * expected) / calls)


def device_of(engine: GradientEngine) -> torch.device:
    return next(iter(engine.parameters.values())).device


@lru_cache(maxsize=16)
def _limits(thresholds: tuple[float, ...], device: torch.device) -> Tensor:
    """Return the (G,) thresholds as a tensor; most runs have the same ones in each step."""
    return torch.tensor(thresholds, dtype=torch.float64, device=device)


@dataclass(frozen=True)
class _Part:
    """A physical batch: its ``rows`` among the step's participants, and its ``number`` over all ranks."""

    rows: slice
    number: int


def _parts(run: Performed, step: int, count: int) -> Iterator[_Part]:
    """Yield this rank's physical batches, equal parts of its share of the participants.

    Their number depends only on plan and physical batch size, because a loss may count its calls.
    """
    ranks = run.ranks
    batches = math.ceil(_public_share(run) / run.physical.at(step))
    own = range(count) if ranks.own_records else range(ranks.rank, count, ranks.ranks)
    for position in range(batches):
        part = own[len(own) * position // batches : len(own) * (position + 1) // batches]
        yield _Part(slice(part.start, part.stop, part.step), position * ranks.ranks + ranks.rank)


@dataclass(frozen=True)
class _Call:
    """A call of the engine: its ``batch``, and the public expected number of records.

    ``number`` counts the calls of all ranks.  ``rows`` are those of a physical batch.
    """

    batch: tuple[Tensor, ...]
    expected: int
    number: int
    rows: slice


def _calls(run: Performed, step: int, indices: Indices, seed: int) -> Iterator[_Call]:
    """Yield the engine calls of this rank: one for each physical batch, or several for each length.

    Their number is public.  With several lengths, the whole share is read first and then divided by length;
    otherwise each length would need a call for each physical batch.
    """
    share, size, lengths = _public_share(run), run.physical.at(step), run.lengths
    parts = _parts(run, step, len(indices))
    if lengths is None:
        for part in parts:
            batch = run.records.take(indices[part.rows], seed=seed)
            yield _Call(batch, min(size, share), part.number, part.rows)
        return

    by_length = []
    for part in parts:
        batch = run.records.take(indices[part.rows], seed=seed)
        slots = None if run.slots is None else batch[-1]
        by_length.append(lengths.split(batch, run.records.template, run.records.rows, slots))

    # The longest first: if they do not fit in memory, or a model has no place for them, the step ends early.
    number = run.ranks.rank
    calls = lengths.calls(share, size)
    for place in reversed(range(len(calls))):
        batch = tuple(map(torch.cat, zip(*(groups[place] for groups in by_length), strict=True)))
        for rows in cut(batch, calls[place][0], run.records.rows):
            yield _Call(rows, calls[place][1], number, slice(0))
            number += run.ranks.ranks


def _public_share(run: Performed) -> int:
    """Return the expected number of records of this rank in a step; with a largest batch, the most."""
    sampling = run.plan.sampling
    of_all = run.plan.expected_batch_size
    if isinstance(sampling, TruncatedPoissonSampling):
        of_all = sampling.largest_batch
    return max(1, math.ceil(of_all / run.ranks.ranks))


def _reading_seed(generator: Generator, step: int) -> int:
    """Return the 63-bit seed for reading a step's records."""
    return generator.word(purpose=Purpose.READING, step=step) >> 1


def requests(run: Performed, steps: range) -> Iterator[Request]:
    for step in steps:
        indices = run.participants(step)
        for part in _parts(run, step, len(indices)):
            yield Request(indices[part.rows], _reading_seed(run.generator, step))


def _views(
    batch: tuple[Tensor, ...], uniforms: Tensor, augmentation: Augmentation, views: int
) -> tuple[Tensor, ...]:
    """Turn (m, ...) tensors into (m*K, ...): views of the first tensor, and repetitions of the others."""
    return (
        views_of(augmentation, batch[0], uniforms),
        *(tensor.repeat_interleave(views, dim=0) for tensor in batch[1:]),
    )


@contextmanager
def _model_randomness(generator: Generator, step: int, index: int, device: torch.device) -> Iterator[None]:
    """Seed dropout and similar draws from the run's key; afterwards restore torch's generators."""
    seed = generator.word(purpose=Purpose.MODEL, step=step, index=index) >> 1
    with torch.random.fork_rng(devices=[device]) if device.type == "cuda" else nullcontext():
        before = torch.default_generator.get_state()
        try:
            torch.default_generator.manual_seed(seed)
            if device.type == "cuda":
                torch.cuda.manual_seed(seed)
            yield
        finally:
            torch.default_generator.set_state(before)


def _raw_centred_loss(raw: RawStatistics, report: LossReport) -> float:
    """Sum clamp(loss_i, 0, bound) / bound - 1/2 over the records; non-finite losses count as bound."""
    scaled = raw.raw_losses.double().nan_to_num(nan=report.bound).clamp(0.0, report.bound) / report.bound
    return float((scaled - 0.5).sum())


def _scalar_noise(generator: Generator, std: float, step: int, index: int) -> float:
    return float(gaussian(generator, (1,), std=std, step=step, index=index, purpose=Purpose.COUNT_NOISE))


def next_thresholds(
    plan: Plan, thresholds: list[float], raw_below: float, generator: Generator, step: int
) -> list[float]:
    rule = plan.clipping
    if not isinstance(rule, AdaptiveClipping) or (noise := plan.count_noise) is None:
        return thresholds
    noisy = 0.5 + (raw_below + _scalar_noise(generator, noise, step, 0)) / plan.expected_batch_size
    return [rule.move(threshold, noisy) for threshold in thresholds]


def _noisy_loss(plan: Plan, raw_loss: float, generator: Generator, step: int) -> float | None:
    report = plan.loss_report
    if report is None or (noise := plan.loss_noise) is None:
        return None
    mean = 0.5 + (raw_loss + _scalar_noise(generator, noise, step, 1)) / plan.expected_batch_size
    return report.bound * mean
