"""The parts and the state of a session, which are saved and loaded together."""

from __future__ import annotations

import json
import re
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from tacit.clipping.engine import PerExampleLoss
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.errors import InvalidInput, PrivacyRefusal, check_integer
from tacit.events import event_to_json
from tacit.losses import per_record
from tacit.noise import on_device
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.sampling.base import Indices
from tacit.training.augmentation import Augmentation
from tacit.training.data.arrays import floating_type
from tacit.training.data.dated import DatedRecords, participants_of
from tacit.training.data.prefetch import DrawnRecords, Prefetcher
from tacit.training.data.records import Collate, Data, Records
from tacit.training.data.structure import is_positional
from tacit.training.data.users import UserRecords, check_columns, check_unit, records_for
from tacit.training.memory import PhysicalBatch, PhysicalSize
from tacit.training.part import Part
from tacit.training.parts.audit_slots import AuditSlots, Planted, WithCanaries
from tacit.training.parts.correlated import CorrelatedNoise
from tacit.training.parts.falling import Falling
from tacit.training.parts.guarded_optimizer import GuardedOptimizer
from tacit.training.parts.ledger_charges import StepCharges
from tacit.training.parts.payment import Payment
from tacit.training.parts.progress import Progress
from tacit.training.parts.released import AveragedWeights, Divergence, NoiseReuse
from tacit.training.ranks.processes import Alone, Ranks, check_one_process
from tacit.training.ranks.replicas import Together
from tacit.training.ranks.shards import layout_of
from tacit.training.resume.state import Code, check_same_run, load_state, save_state
from tacit.training.setup import (
    FirstRecords,
    check_fit,
    check_kinds,
    check_layout,
    check_ready,
    key_of_run,
    loss_of,
    make_engine,
)
from tacit.training.step import device_of, fits, noisy_step, requests
from tacit.training.values import naming_lost_device


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
    """A run: the parts of a session, and how far it has come.

    ``done`` is the number of steps taken, ``thresholds`` (G,) are the clipping thresholds of the next step,
    and ``generator`` is that of the run.  ``torn`` is True if the last step was cut short while it changed
    the weights.
    """

    def __init__(self, arguments: Arguments) -> None:
        if arguments.ranks is None:
            check_one_process()
        check_kinds(arguments)
        self.model, self.plan, self.memory = arguments.model, arguments.plan, arguments.memory
        self._ranks_are_given = arguments.ranks is not None
        self.ranks = Alone() if arguments.ranks is None else arguments.ranks
        self.layout = layout_of(self.model, self.ranks)
        check_layout(self.layout, ema_decay=arguments.ema_decay, audit=arguments.audit)
        check_ready(self.model, self.layout)
        self.layout.copy_from_first(self.model)
        loss = per_record(arguments.loss, self.model)
        code = Code(self.model, loss, arguments.augmentation, arguments.collate)
        self.augmentation, self.done, self.torn = arguments.augmentation, 0, False
        self._take_data(arguments)
        self._take_key(arguments)
        self._make_engine(arguments, loss_of(loss, self.of_data, self._items))
        self._make_physical(arguments.physical_batch_size)
        self.thresholds = self.plan.clipping.initial_thresholds(self.engine.names)
        self._read_early(arguments)
        check_fit(self.plan, len(self.records), self.augmentation)
        self.optimizer = GuardedOptimizer(arguments.optimizer, self.trained)
        self._make_parts(arguments, code, loss)

    def _take_data(self, arguments: Arguments) -> None:
        data, self.who = participants_of(arguments.data, self.plan)
        check_columns(data, self.plan)
        floating = floating_type(self.model)
        self.of_data, self._items = records_for(data, self.plan, collate=arguments.collate, floating=floating)
        charges, self.records = arguments.charges, self.of_data  # until canaries are added
        owned_by = None if charges is None else charges.owned_by
        check_unit(self.plan, self.of_data, charged=charges is not None, owned_by=owned_by)
        self.who.check_length(len(self.of_data))

    def _take_key(self, arguments: Arguments) -> None:
        batches = self.of_data if isinstance(self.of_data, DrawnRecords) else None
        if check_integer("workers", arguments.workers, low=0) > 0 and batches is not None:
            raise InvalidInput(
                "workers cannot be used with batches drawn beforehand. The session prefetches these "
                "batches itself. Leave workers out."
            )
        self.payment = Payment(arguments.charges, batches, self.of_data.content, self.ranks)
        own = key_of_run(arguments.generator, self.plan, batches, self.payment.charges)
        self.generator = self.ranks.share_secret(own)

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

    def _make_physical(self, size: PhysicalSize) -> None:
        run, engine = weakref.proxy(self), self.engine
        self.physical = PhysicalBatch(
            size,
            self.plan.expected_batch_size,
            self.ranks,
            find=device_of(engine).type == "cuda",
            fits=lambda *trial: fits(run, *trial),
            draws=lambda: engine.draws,
        )

    def _read_early(self, arguments: Arguments) -> None:
        if arguments.workers > 0:
            run = weakref.proxy(self)  # the workers end with the session
            left = lambda: requests(run, range(run.done, run.who.steps))  # noqa: E731
            self.records = Prefetcher(self.records, left, workers=arguments.workers)

    def _make_parts(self, arguments: Arguments, code: Code, loss: PerExampleLoss) -> None:
        plan, layout, optimizer = self.plan, self.layout, arguments.optimizer
        decay, correlation = arguments.ema_decay, plan.correlation
        facts = weakref.WeakMethod(self._facts_of_run)
        self.together = Together(self.model, self.trained, optimizer, layout, self.ranks, facts, plan.steps)
        self.averaged = None if decay is None else AveragedWeights(self.model, decay)
        self.correlated = None if correlation is None else CorrelatedNoise(correlation)
        self.progress, self.falling = Progress(plan), Falling(plan)
        # The guarantee depends on this order.  Before a step reads anything, its days must have arrived and
        # the ledger must have committed its charge.  Before it computes, the ranks must agree on run and
        # model, and items must not mix records.  Before weights move, a resume state must hold the number of
        # records that the step had in memory at once; batches that were drawn for one run must be claimed;
        # the noise must not be that of another sum; and the canaries' entries must be removed.
        parts = (
            code,
            self.who,
            self.payment,
            self.together,
            FirstRecords(self.of_data, self._items, loss, self.augmentation, plan.views, self.ranks),
            self.physical,
            NoiseReuse(self.generator, layout),
            self.slots,
            self.averaged,
            self.correlated,
            self.progress,
            self.falling,
            Divergence(plan, self.trained, optimizer, layout),
        )
        self.parts: tuple[Part, ...] = tuple(part for part in parts if part is not None)

    def participants(self, step: int) -> Indices:
        """Return the participants of a step, as positions among the records."""
        return self.who.of_step(step, self.generator, len(self.records))

    @property
    def noise_on_device(self) -> bool:
        """True if the training device draws the noise."""
        return not self.layout.sharded and on_device.draws(self.trained)

    def step(self, step: int) -> float | None:
        """Take a private step and the optimizer's step with its gradients; return the noisy loss."""
        if not self._ranks_are_given:
            check_one_process()  # before the ledger is charged
        with naming_lost_device(step):
            return self._take(step)

    def _take(self, step: int) -> float | None:
        indices = self.participants(step)
        for part in self.parts:
            part.before(step, indices)
        released = noisy_step(self, step, indices)
        gradients = released.gradients
        for part in self.parts:
            gradients = part.released(step, gradients, self.thresholds)
        self.thresholds = released.thresholds
        self.done, self.torn = step + 1, True  # the step counts now, whatever happens
        self.optimizer.step(self.layout.gradients(gradients))
        self.torn = False
        for part in self.parts:
            part.after(step, released.loss)
        return released.loss

    def check_whole(self) -> None:
        """Refuse to continue after a step that was cut short while it changed the weights."""
        if self.torn:
            raise PrivacyRefusal(
                f"step {self.done - 1} was cut short while the optimizer changed the weights. It can "
                "neither be finished nor repeated, because its noise would be added to another sum. Go "
                "back to a saved state with session.load(path). Without one you may release the model as "
                "it is, at the cost of session.epsilon; further training needs a new run."
            )

    def save(self, path: Path, extra: dict[str, Any]) -> None:
        """Write the resume state; all ranks call this together."""
        self.check_whole()
        self.together.check_model()
        entries = self.layout.saved(path, self.model, self.optimizer.optimizer)
        self.ranks.from_first(lambda: self._write(path, entries | {"extra": extra}))
        self.who.unsaved, self.physical.stored = False, (path, self.generator.secret_state()[0])

    def _write(self, path: Path, entries: dict[str, Any]) -> None:
        key, secure = self.generator.secret_state()
        state = {
            "run": json.dumps(self.identity(key)),
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
        """Resume from a state of this run, and return the ``extra`` that was saved with it."""
        self.together.agreed = False
        state = load_state(path)
        before, done = json.loads(state["run"]), state["done"]
        self.who.begun(before, done)  # days that were begun must be finished first
        now = self.identity(state["key"])
        self.who.compared(before, now, done)
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
        """Return the facts that must be the same if a step is repeated."""
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
