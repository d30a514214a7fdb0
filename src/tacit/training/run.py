"""The state of a :class:`PrivateSession`, the checks of its arguments, and the order of its parts."""

from __future__ import annotations

import json
import math
import re
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tacit.accounting.flatten import LEAST_NOISE
from tacit.clipping.engine import GradientEngine, PerExampleLoss
from tacit.clipping.fast import FastEngine
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import InvalidInput, PrivacyRefusal, UnsupportedModel, check_in, check_integer
from tacit.events import event_to_json
from tacit.losses import per_record
from tacit.noise import on_device
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.sampling.samplers import Indices
from tacit.training.audit_slots import AuditSlots, Planted, WithCanaries
from tacit.training.by_record import Augmentation, check_by_record, check_items
from tacit.training.charges import Payment, StepCharges
from tacit.training.correlated import CorrelatedNoise
from tacit.training.dealt import Dealt, dealt
from tacit.training.lengths import lengths_of
from tacit.training.own_records import OwnRecords, contents_of, with_others
from tacit.training.part import Part
from tacit.training.progress import Falling, Progress
from tacit.training.ranks import Alone, Layout, Ranks, Together, check_one_process
from tacit.training.records import Collate, Data, DatasetRecords, DrawnRecords, Prefetcher, Records
from tacit.training.released import AveragedWeights, Divergence, GuardedOptimizer, NoiseReuse
from tacit.training.resume import Code, check_same_run, load_state, save_state
from tacit.training.shards import layout_of
from tacit.training.step import PhysicalBatch, PhysicalSize, device_of, fits, noisy_step, requests
from tacit.training.tensors import (
    check_loss_takes,
    floating_type,
    is_positional,
    naming_lost_device,
    with_record,
)
from tacit.training.users import (
    DatedRecords,
    UserRecords,
    are_of_users,
    check_columns,
    check_unit,
    records_for,
    rows_read,
    without_dates,
)

_CHECKED = 4  # the number of records on which data set and augmentation are checked
_KINDS: dict[str, tuple[type, str]] = {
    "model": (nn.Module, "a torch.nn.Module, such as nn.Sequential(...)"),
    "plan": (Plan, "a tacit.Plan; make one with Plan.calibrate(epsilon=..., delta=..., ...)"),
    "memory": (MemoryBudget, "tacit.clipping.FAST or LEAN"),
    "augmentation": (Augmentation, "a tacit.training.Augmentation, such as FlipAndCrop(4)"),
    "audit": (AuditSlots, "tacit.training.AuditSlots(1000), or None for none"),
    "charges": (StepCharges, "a tacit.training.StepCharges, or None without a ledger"),
    "ranks": (Ranks, "tacit.training.ProcessRanks() or Alone(), or None for one process"),
    "generator": (Generator, "left out; it is for tests, from tacit.testing"),
}
_NEEDED = ("model", "plan", "memory")


def check_kinds(arguments: object) -> None:
    for name, (kind, words) in _KINDS.items():
        value = getattr(arguments, name)
        if isinstance(value, kind) or (value is None and name not in _NEEDED):
            continue
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise InvalidInput(f"{name} must be {words}; got {got}.")


def check_layout(layout: Layout, *, ema_decay: object, audit: object) -> None:
    if layout.sharded and ema_decay is not None:
        raise InvalidInput(
            "ema_decay does not support a model sharded by fully_shard, which cannot be copied. Remove it, "
            "or average the weights of saved models."
        )
    if layout.sharded and audit is not None:
        raise InvalidInput(
            "audit does not support a model sharded by fully_shard. Remove it, or audit a run of the same "
            "plan without sharding."
        )


def check_ready(model: nn.Module, layout: Layout) -> None:
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise UnsupportedModel(
                f"parameter {name!r} has no shape yet, because its layer is lazy. Run the model once before "
                "you make the optimizer and the session: model(torch.zeros(2, ...))."
            )
        if parameter.is_meta:
            raise UnsupportedModel(
                f"parameter {name!r} is on the meta device and has no values. Make the model on a real "
                'device, or call model.to_empty(device="cpu") and load its weights.'
            )
        if parameter.is_inference():
            raise UnsupportedModel(
                f"parameter {name!r} was made under torch.inference_mode(), so it cannot be trained. Make or "
                "load the model outside of it."
            )
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise UnsupportedModel(
            f"the model is on several devices ({', '.join(devices)}), but a private step uses one. Load the "
            f'model with device_map={{"": 0}} instead of "auto", or without device_map and then '
            'model.to("cuda"). If it is too large for one device, shard it with '
            "torch.distributed.fsdp.fully_shard (docs/how-to/gpu-and-processes.md)."
        )
    _check_finite({name: layout.local(parameter.detach()) for name, parameter in model.named_parameters()})


def _check_finite(parameters: Mapping[str, Tensor]) -> None:
    """Refuse NaN and infinite values, with one device synchronisation if all are finite."""
    real = [torch.view_as_real(p) if p.is_complex() else p for p in parameters.values()]
    sums = [p.sum(dtype=torch.float32).to(real[0].device) for p in real]
    if not sums or math.isfinite(torch.stack(sums).sum()):  # else a value is not finite, or the sum overflows
        return
    for name, parameter in parameters.items():
        if not bool(parameter.isfinite().all()):
            raise InvalidInput(
                f"parameter {name!r} contains NaN or infinite values before training. Initialise the model "
                "again, or load other weights."
            )


def loss_of(loss: PerExampleLoss, records: Records, items: DatasetRecords | None) -> PerExampleLoss:
    """Return the loss as engines call it; a dataset shows its structure in the first step."""
    if items is None:
        check_loss_takes(loss, records.template)
        if is_positional(records.template):
            return loss
    return with_record(loss, lambda: records.template)


def key_of_run(
    generator: Generator | None, plan: Plan, batches: DrawnRecords | None, charges: StepCharges | None
) -> Generator:
    """Return the generator of prepared batches, else of charges, else the given one, else a new one."""
    if batches is not None:
        drawn_by = batches.generator_for(plan)
        if generator is not None and generator.secret_state() != drawn_by.secret_state():
            raise PrivacyRefusal(
                "the batches were drawn with another key (the seed of the noise) than this run's. Continue "
                "with the batches of this run."
            )
        generator = drawn_by
    if charges is not None:
        generator = charges.generator_of(plan, generator)
    if generator is None:
        generator = Generator.from_os()
    if generator.secure and plan.noise_multiplier < LEAST_NOISE:
        raise PrivacyRefusal(
            f"must be at least {LEAST_NOISE:g} in a private session",
            argument="noise_multiplier",
            value=plan.noise_multiplier,
            why="With less, epsilon is in the hundreds, and a few records can change a sum by more than any "
            "noise that is drawn (150 standard deviations).",
            fix="Increase it; 1 is a usual value. To see what a model learns without noise, pass "
            "generator=tacit.testing.seeded_generator(0).",
        )
    return generator


def make_engine(
    name: str, model: nn.Module, loss: PerExampleLoss, plan: Plan, memory: MemoryBudget, rows: int
) -> GradientEngine:
    views = plan.views * rows
    if check_in("engine", name, ("fast", "reference")) == "fast":
        return FastEngine(model, loss, plan.clipping, views=views, budget=memory)
    if memory != FAST:
        raise InvalidInput(
            f'memory={memory} does not apply to the reference engine. Remove it, or use engine="fast".'
        )
    return ReferenceEngine(model, loss, plan.clipping, views=views)


@final
class FirstRecords(Part):
    """Checks on the first participants that items, loss and augmentation fit and do not mix records.

    ``check_padding`` gets tensors with the shapes and types of records; None for a single length.
    """

    def __init__(
        self,
        records: Records,
        items: DatasetRecords | None,
        loss: PerExampleLoss,
        augmentation: Augmentation | None,
        check_padding: Callable[[tuple[Tensor, ...]], None] | None,
        views: int,
        ranks: Ranks,
    ) -> None:
        self._records, self._items, self._loss = records, items, loss
        self._augmentation, self._check_padding = augmentation, check_padding
        self._views, self._ranks = views, ranks
        drawn = isinstance(records, DrawnRecords)
        self._waiting = drawn or any(one is not None for one in (items, augmentation, check_padding))

    def before(self, step: int, indices: Indices) -> None:
        if self._waiting:
            real = indices[indices < len(self._records)][:_CHECKED]
            self._waiting = any(self._ranks.gathered(lambda: self._check(step, real)))

    def _check(self, step: int, real: Indices) -> bool:
        """Check what this rank's participants allow, and return whether checks remain."""
        if isinstance(self._records, DrawnRecords):
            self._records.begin(step)
        if self._items is not None and len(real) > 0:
            check_items(self._items, rows_read(self._records, real)[:_CHECKED])
            check_loss_takes(self._loss, self._items.template)
            self._items = None
        if self._augmentation is not None:  # in the first step, whether or not a record takes part
            shape = self._records.take(real[:0], seed=0)[0]
            zeros = shape.new_zeros(()).expand(_CHECKED, *shape.shape[1:])
            check_by_record(self._augmentation, zeros, self._views)
            self._augmentation = None
        if self._check_padding is not None:
            self._check_padding(self._records.take(real[:0], seed=0))
            self._check_padding = None
        return isinstance(self._records, DrawnRecords) or self._items is not None


@dataclass(frozen=True)
class Arguments:
    """A user's arguments to a session; :class:`tacit.training.PrivateSession` explains each."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: Data | UserRecords | DatedRecords | Records
    plan: Plan
    loss: PerExampleLoss | nn.Module
    collate: Collate | None
    engine: str
    physical_batch_size: PhysicalSize
    augmentation: Augmentation | None
    ema_decay: float | None
    workers: int
    memory: MemoryBudget
    audit: AuditSlots | None
    charges: StepCharges | None
    ranks: Ranks | None
    generator: Generator | None


@final
class Run:
    """A run: the parts of a session, and its position.

    ``thresholds`` (G,) are those of the next step.  ``torn``: the last step was interrupted while it changed
    weights.
    """

    def __init__(self, arguments: Arguments) -> None:
        if arguments.ranks is None:
            check_one_process()
        check_kinds(arguments)
        self.model, self.plan, self.memory = arguments.model, arguments.plan, arguments.memory
        self.augmentation, self.done, self.torn = arguments.augmentation, 0, False
        self.lengths = lengths_of(arguments.collate)
        if self.lengths is not None and self.augmentation is not None:
            raise InvalidInput(
                "augmentation does not support several lengths, because an augmentation may overwrite the "
                "padding. Pad to one length, or remove augmentation."
            )
        self._ranks_are_given = arguments.ranks is not None

        # The model, as all ranks have it.
        self.ranks = Alone() if arguments.ranks is None else arguments.ranks
        self.layout = layout_of(self.model, self.ranks)
        check_layout(self.layout, ema_decay=arguments.ema_decay, audit=arguments.audit)
        check_ready(self.model, self.layout)
        self.layout.copy_from_first(self.model)
        loss = per_record(arguments.loss, self.model)
        # Digests of the user's code, before its first call can change a value that it reads.
        code = Code(self.model, loss, arguments.augmentation, arguments.collate)

        # The records, and who takes part in a step.
        data, self.dates = without_dates(arguments.data, self.plan)
        check_columns(data, self.plan)
        self.of_data, items = records_for(
            data, self.plan, collate=arguments.collate, floating=floating_type(self.model)
        )
        charges = arguments.charges
        owned_by = None if charges is None else charges.owned_by
        check_unit(self.plan, self.of_data, charged=charges is not None, owned_by=owned_by)
        if self.dates is not None:
            self.dates.check_length(len(self.of_data))
        self.of_people = are_of_users(self.of_data)
        self.of_data = with_others(self.of_data, data, self.plan, self.ranks, dated=self.dates is not None)
        self.records = self.of_data

        # The key of the noise: that of batches drawn beforehand or of the charges, else a fresh one.
        batches = self.of_data if isinstance(self.of_data, DrawnRecords) else None
        if check_integer("workers", arguments.workers, low=0) > 0 and batches is not None:
            raise InvalidInput(
                "workers are not for batches drawn in advance, because the session prefetches them itself. "
                "Remove workers."
            )
        self.payment = Payment(charges, batches, partial(contents_of, self.of_data), self.ranks)
        own = key_of_run(arguments.generator, self.plan, batches, self.payment.charges)
        self.generator = self.ranks.share_secret(own)

        of_tensors = loss_of(loss, self.of_data, items)
        self._make_engine(arguments, of_tensors)
        self.thresholds = self.plan.clipping.initial_thresholds(self.engine.names)
        self.dealt: Dealt | None = None
        if self.slots is None and self.dates is None and arguments.workers == 0:
            self.dealt = dealt(self.of_data, self.plan.sampling)
            self.records = self.dealt or self.records
        run = weakref.proxy(self)  # workers and tries end with the session
        if arguments.workers > 0:
            self.records = Prefetcher(
                self.records,
                lambda: requests(run, range(run.done, run.steps)),
                workers=arguments.workers,
            )
        self.plan.check_records(len(self.records))
        if self.augmentation is None and self.plan.views > 1:
            raise InvalidInput(
                f"the plan has {self.plan.views} views per record. Pass an augmentation to make them."
            )
        self.optimizer = GuardedOptimizer(arguments.optimizer, self.trained)
        padding = None
        if (lengths := self.lengths) is not None:
            padding = partial(lengths.check_padding, self.model, of_tensors, self.of_data)
        first = FirstRecords(
            self.of_data, items, loss, self.augmentation, padding, self.plan.views, self.ranks
        )
        self._make_parts(arguments, code, first)

    def _make_engine(self, arguments: Arguments, loss: PerExampleLoss) -> None:
        self.slots, model = None, self.model
        if arguments.audit is not None:
            self.slots = Planted(arguments.audit, model, loss, self.plan, self.generator)
            self.records = WithCanaries(self.of_data, self.slots)
            model, loss = self.slots.model, self.slots.loss

        with self.layout.whole():
            rows = self.of_data.rows
            self.engine = make_engine(arguments.engine, model, loss, self.plan, self.memory, rows)
        self.engine.sources = self.of_data.held()
        trained = self.layout.trained(self.engine.parameters)
        self.trained = trained if self.slots is None else self.slots.without_slots(trained)

        run, engine = weakref.proxy(self), self.engine
        self.physical = PhysicalBatch(
            arguments.physical_batch_size,
            self.plan.expected_batch_size,
            self.ranks,
            find=device_of(engine).type == "cuda",
            fits=lambda *trial: fits(run, *trial),
            draws=lambda: engine.draws,
        )

    def _make_parts(self, arguments: Arguments, code: Code, first: FirstRecords) -> None:
        plan, layout, optimizer = self.plan, self.layout, arguments.optimizer
        decay, correlation = arguments.ema_decay, plan.correlation
        facts = weakref.WeakMethod(self._facts_of_run)
        self.together = Together(self.model, self.trained, optimizer, layout, self.ranks, facts, plan.steps)
        self.averaged = None if decay is None else AveragedWeights(self.model, decay)
        self.correlated = None if correlation is None else CorrelatedNoise(correlation)
        self.progress, self.falling = Progress(plan), Falling(plan)

        # The guarantee depends on this order.  Before a step reads anything, its days must have arrived, the
        # ranks must agree on run and model, and the ledger must have committed its charge.  Before it
        # computes, items must not mix records.  Before weights move, a resume state must hold the number of
        # records that the step had in memory at once; batches that were drawn for one run must be claimed;
        # the noise must not be that of another sum; and the canaries' entries must be removed.
        parts = (
            code,
            self.dates,
            self.together,
            self.payment,
            first,
            self.physical,
            NoiseReuse(self.generator, layout),
            self.slots,
            self.averaged,
            self.correlated,
            self.falling,
            Divergence(plan, self.trained, optimizer, layout),
        )
        self.parts: tuple[Part, ...] = tuple(part for part in parts if part is not None)
        acting = [part for part in self.parts if not part.idle]
        self._before = [part.before for part in acting if type(part).before is not Part.before]
        self._released = [part.released for part in acting if type(part).released is not Part.released]
        self._after = [part.after for part in acting if type(part).after is not Part.after]

    @property
    def steps(self) -> int:
        """The number of steps that have data: the whole plan, or a stream's days so far."""
        return self.plan.steps if self.dates is None else self.dates.steps

    def participants(self, step: int) -> Indices:
        """Return the participants of a step that this rank may read, as positions among all records."""
        if self.dates is not None:
            return self.dates.of_step(step)
        sampling, records = self.plan.sampling, len(self.records)
        if isinstance(self.of_data, OwnRecords):
            return sampling.indices_within(self.generator, step, records, self.of_data.own(records))
        return sampling.indices(self.generator, step, records)

    @property
    def noise_on_device(self) -> bool:
        return not self.layout.sharded and on_device.draws(self.trained)

    def step(self, step: int) -> float | None:
        if not self._ranks_are_given:
            check_one_process()  # before the ledger is charged
        with naming_lost_device(step):
            indices = self.participants(step)
            if self.dealt is not None:
                self.dealt.begin(step, indices, self.generator)
            for before in self._before:
                before(step, indices)

            release = noisy_step(self, step, indices)
            gradients = release.gradients
            for released in self._released:
                gradients = released(step, gradients, self.thresholds)

            # From here on the step counts, whatever happens.
            self.thresholds = release.thresholds
            self.done, self.torn = step + 1, True
            self.optimizer.step(self.layout.gradients(gradients))
            self.torn = False

            self.progress.loss = release.loss
            if self.progress.shown is not None:
                self.progress.update()
            for after in self._after:
                after(step, release.loss)
            return release.loss

    def check_whole(self) -> None:
        if self.torn:
            raise PrivacyRefusal(
                f"step {self.done - 1} was interrupted while the optimizer changed the weights, and "
                "repeating it would reuse noise. Restore a saved state with session.load(path). Without "
                "one, you may release the model as it is, at the cost of session.epsilon, but training "
                "needs a new run."
            )

    def save(self, path: Path, extra: dict[str, Any]) -> None:
        self.check_whole()
        self.together.check_model()
        identity = json.dumps(self.identity(self.generator.secret_state()[0]))
        entries = self.layout.saved(path, self.model, self.optimizer.optimizer)
        self.ranks.from_first(lambda: self._write(path, identity, entries | {"extra": extra}))
        self.physical.stored = path, self.generator.secret_state()[0]
        if self.dates is not None:
            self.dates.unsaved = False

    def _write(self, path: Path, identity: str, entries: dict[str, Any]) -> None:
        key, secure = self.generator.secret_state()
        state = {
            "run": identity,
            "key": key,
            "secure": secure,
            "done": self.done,
            "thresholds": list(self.thresholds),
            "measured": dict(self.engine.measured),
            **entries,
        }
        for part in self.parts:
            state.update(part.state(self.done))
        save_state(path, state)
        self.layout.clean(path, entries)

    def load(self, path: Path) -> dict[str, Any]:
        """Resume from a state of this run, and return its ``extra``."""
        self.together.agreed = False
        state = load_state(path)
        before, done = json.loads(state["run"]), state["done"]
        if self.dates is not None:
            self.dates.begun(before, done)  # days that were begun must be finished first
        now = self.identity(state["key"])
        if self.dates is not None:
            self.dates.compared(before, now, done)
        check_same_run(path, before, now)
        generator = Generator(state["key"], secure=state["secure"])
        for part in self.parts:
            part.load(state, generator)
        self.generator, self.done, self.torn = generator, done, False
        self.thresholds, self.physical.stored = state["thresholds"], (path, state["key"])
        self.engine.measured.clear()
        self.engine.measured.update(state["measured"])
        self.optimizer.restore(self.layout.load(path, state, self.model, self.optimizer.optimizer))
        return dict(state["extra"])

    def _facts_of_run(self) -> dict[str, Any]:
        return self.identity(self.generator.secret_state()[0]) | {"done": self.done}

    def identity(self, key: bytes) -> dict[str, Any]:
        shapes = {name: tuple(p.shape) for name, p in self.trained.items()}
        facts: dict[str, Any] = {
            "plan": repr(self.plan),
            "event": event_to_json(self.plan.event),
            "records": self.records.fingerprint(key),
            "parameters": repr(shapes),
            "model": re.sub(r" at 0x[0-9a-f]+", "", repr(self.model)),
            "optimizer": type(self.optimizer.optimizer).__name__,
            "engine": self.engine.kind + ("" if self.memory == FAST else f", {self.memory}"),
            "layout": self.layout.description,
            "ranks": self.ranks.ranks,
            "noise": "ChaCha20" if self.noise_on_device else "another",
        }
        if len(self.records) > 0 and not is_positional(self.records.template):
            facts["structure"] = repr(self.records.template)
        for part in self.parts:
            facts.update(part.facts(key))
        return facts
