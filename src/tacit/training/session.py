"""How does a user's own loop train privately? By a session, one long class: each private step is one call.

The session holds everything that the guarantee depends on (plan, records, key, position).  It gives out step
tickets, which hold no data: neither records nor values before noise pass through the user's loop.

**Guarantee**

* The session performs the plan's steps in order and each at most once: ``steps_done`` of them cost
  :attr:`PrivateSession.epsilon`.
* The session refuses a step past the plan.  As long as it lives, it also refuses steps of the optimizer that
  it does not take itself, and those of a second optimizer: only noisy gradients change the model.
* In one of several processes the session reads and releases nothing, except for ``ranks``: by these the
  processes take each step together, and release it once (:mod:`tacit.training.ranks.processes`).
* A resumed session draws the same participants and the same noise as the interrupted one would have.  With
  the next days of a stream it goes on only where all steps of the days before were taken and saved.
* The session adds the noise of a step to one sum only.  It refuses to repeat a step in this process if that
  would release something else; to go on after a step that was cut short while it changed the weights; and to
  go on from the state of a run with another loss.
* With ``charges``, the session takes no step before the ledger has committed the charge that covers it.
"""

from __future__ import annotations

import json
import re
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from tacit.clipping.engine import GradientEngine, PerExampleLoss
from tacit.clipping.fast import FastEngine
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal, check_in, check_integer
from tacit.events import event_to_json
from tacit.losses import per_record
from tacit.noise import on_device
from tacit.noise.generator import Generator
from tacit.notebook import facts
from tacit.plan import Plan
from tacit.rounding import round_up
from tacit.sampling import Indices
from tacit.training.arguments import check_arguments, check_layout, check_ready
from tacit.training.augmentation import Augmentation, check_by_record
from tacit.training.data.arrays import floating_type
from tacit.training.data.dated import DatedRecords, participants, records_and_dates
from tacit.training.data.items import check_items
from tacit.training.data.prefetch import Prefetcher, Request
from tacit.training.data.records import Collate, Data, DrawnRecords, Records
from tacit.training.data.structure import check_loss_takes, is_positional, with_record
from tacit.training.data.users import UserRecords, are_of_users, check_unit, records_for, rows_read
from tacit.training.parts.audit_slots import AuditSlots, Planted, SlotEvidence, WithCanaries
from tacit.training.parts.averaging import AveragedWeights
from tacit.training.parts.correlated import CorrelatedNoise
from tacit.training.parts.diverging import LossWatch, check_weights
from tacit.training.parts.guarded_optimizer import GuardedOptimizer
from tacit.training.parts.ledger_charges import StepCharges, resume_charges
from tacit.training.parts.noise_reuse import check_release
from tacit.training.parts.progress import KeptBar, loss_std, noisy, step_bar
from tacit.training.ranks.processes import Alone, Ranks, check_one_process
from tacit.training.ranks.replicas import check_of_replicas
from tacit.training.ranks.shards import layout_of
from tacit.training.resume.state import Identity, check_same_run, differences, load_state, save_state
from tacit.training.step import noisy_step, requests

_CHECKED = 4  # records on which the session checks a data set and an augmentation


@dataclass(frozen=True)
class StepTicket:
    """The number of the next step.  It holds no data: the size of a batch is a secret under add-remove.

    >>> StepTicket(step=3).step
    3
    """

    step: int

    def __iter__(self) -> NoReturn:
        raise InvalidInput(_NO_RECORDS)

    def __getitem__(self, part: object) -> NoReturn:
        raise InvalidInput(_NO_RECORDS)


_NO_RECORDS = (
    "a step ticket is not a batch: it holds no records, for which of them a step takes is secret. Write "
    "`for ticket in session.batches(): session.step(ticket)`; the session reads the records, and computes "
    "their losses and gradients itself. To look at records or to evaluate, take your own data, such as "
    "held-out records, outside this loop."
)


@dataclass(frozen=True)
class StepReport:
    """What may be published of a step.  ``loss`` is noisy and accounted for; None without a loss report.

    >>> StepReport(step=0, loss=None)
    StepReport(step=0, loss=None)
    """

    step: int
    loss: float | None


class PrivateSession:
    """Private training of ``model`` on ``data`` by ``plan``, one step at a time.

    Args:
        model: any module that does not mix records; the session refuses others and names the part.
        optimizer: any torch optimizer over the model's trainable parameters.
        data: :class:`~tacit.training.UserRecords` where several rows may be of one person;
            :class:`~tacit.training.DatedRecords`, of rows or of these, for a plan by date.  Else records, of
            which no person has two: arrays, tensors or lists (N, ...), memory maps among them, mappings
            and tuples of them, data frames, a list of records, or a map-style data set; ``docs/records.md``
            lists them.  Row i is record i, and item i depends on record i alone.  To check that, the session
            reads four items of a data set up to ten times before the first step.  Floating numbers are cast
            to the type of the model's, integers to int64.
        plan: what the run does and what it costs.
        loss: ``loss(model, *parts) -> (n,)``, or ``loss(model, **parts)`` for records that are mappings: one
            loss per record, no mean; a loss module of ``torch.nn``, which is used without its reduction; or
            one of :mod:`tacit.losses`.  It is called once in each pass of a step, for one record by meaning,
            and three times more in the first; once more for each group where Python asks for numbers.
            Count steps by :attr:`steps_done`.
        collate: for records of varying length: makes of a list of one record a batch of leading dimension 1,
            such as :func:`tacit.collate.pad`.
        engine: "fast", or "reference" for the definition itself, a loop over records.
        physical_batch_size: most records in memory at once, owners with all rows that a step reads of them;
            it changes speed and memory only.
        augmentation: makes ``plan.views`` views of the first tensor of each record.
        ema_decay: keep averaged weights with this decay.
        workers: processes that read the next batches early, for data sets that decode; with 0 the session
            reads each batch when its step begins.
        memory: how much memory the fast engine may use for speed: :data:`tacit.clipping.FAST`, or
            :data:`tacit.clipping.LEAN` for about the memory of a plain step.
        audit: plant canaries among the records, to audit the run by :meth:`slot_evidence`; None for none.
        charges: what the run charges to the ledger of its data set; None for a run without a ledger.
            Where the plan has a preparation, call ``charges.start()`` before that.  Of several ranks the
            first alone charges, and those of the others are not used.
        ranks: the processes that train this model together, :class:`tacit.training.ProcessRanks`.  Each has
            the same model, records and plan; all get the weights and the key of rank 0.  The model may be
            one that ``torch.distributed.fsdp.fully_shard`` sharded over them.
            :class:`tacit.training.Alone` says that this process trains by itself though there are others.
        generator: only for tests, from :mod:`tacit.testing`; by default a fresh key from the system.

    >>> import torch.nn.functional as F
    >>> x, y = torch.randn(100, 4), torch.randint(0, 2, (100,))
    >>> plan = Plan.calibrate(epsilon=3.0, delta=1e-3, records=100, batch_size=20, epochs=2, clipping=1.0,
    ...                       adjacency="add-remove", unit="row")
    >>> model = nn.Linear(4, 2)
    >>> session = PrivateSession(
    ...     model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), plan,
    ...     loss=lambda model, x, y: F.cross_entropy(model(x), y, reduction="none"),
    ... )
    >>> for batch in session.batches():
    ...     report = session.step(batch)
    >>> session.steps_done, session.epsilon <= 3.0
    (10, True)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Data | UserRecords | DatedRecords | Records,
        plan: Plan,
        *,
        loss: PerExampleLoss | nn.Module,
        collate: Collate | None = None,
        engine: str = "fast",
        physical_batch_size: int = 512,
        augmentation: Augmentation | None = None,
        ema_decay: float | None = None,
        workers: int = 0,
        memory: MemoryBudget = FAST,
        audit: AuditSlots | None = None,
        charges: StepCharges | None = None,
        ranks: Ranks | None = None,
        generator: Generator | None = None,
    ) -> None:
        if ranks is None:
            check_one_process()
        self._ranks_are_given, self._ranks = ranks is not None, Alone() if ranks is None else ranks
        check_arguments(
            model,
            plan,
            augmentation=augmentation,
            memory=memory,
            audit=audit,
            charges=charges,
            ranks=ranks,
            generator=generator,
        )
        self._layout = layout_of(model, self._ranks)
        check_layout(self._layout, ema_decay=ema_decay, audit=audit)
        check_ready(model, self._layout)
        self._layout.copy_from_first(model)
        self.model = model
        self.plan = plan
        loss = per_record(loss, model)
        data, self._dates = records_and_dates(data, plan)
        self._records, self._unchecked = records_for(
            data, plan, collate=collate, floating=floating_type(model)
        )
        owned_by = None if charges is None else charges.owned_by
        check_unit(plan, self._records, charged=charges is not None, owned_by=owned_by)
        self._of_data = self._records  # before canaries come to them
        if self._dates is not None:
            self._dates.check_length(len(self._records))
        self._physical = check_integer("physical_batch_size", physical_batch_size, low=1)
        self._augmentation = augmentation
        self._augmentation_is_checked = augmentation is None
        self._code = {  # digests of now, before any call: a counter in the loss starts anew in each process
            "loss": Identity(loss, model),
            "code": Identity(model, model),
            "augmentation": Identity(augmentation, calls=("draws", "views")),
        }
        if collate is not None:
            self._code["collate"] = Identity(collate)
        loss = self._of_record(loss, self._records)
        self._charges = charges if self._ranks.first else None
        self._charged = self._ranks.from_first(lambda: charges is not None)
        self._refusal: BudgetExceeded | None = None
        self._drawn = self._records if isinstance(self._records, DrawnRecords) else None
        self._name = secrets.token_hex(16)  # of the run, under which it takes drawn batches
        if self._drawn is not None:
            if check_integer("workers", workers, low=0) > 0:
                raise InvalidInput(
                    "the session prefetches batches that are drawn already. Leave workers out."
                )
            drawn_by = self._drawn.generator_for(plan)
            if generator is not None and generator.secret_state() != drawn_by.secret_state():
                raise PrivacyRefusal(
                    "the batches were drawn with another key than that of this run. A run goes on with the "
                    "batches that it began with."
                )
            generator = drawn_by
        if self._charges is not None:
            generator = self._charges.generator_of(plan, generator)
        own = Generator.from_os() if generator is None else generator
        self._generator = self._ranks.share_secret(own)
        self._agreed = False  # whether the ranks are known to be of one run
        self._memory = memory
        self._slots: Planted | None = None
        if audit is not None:
            self._slots = Planted(audit, model, loss, plan, self._generator)
            self._records = WithCanaries(self._records, self._slots)
            model, loss = self._slots.model, self._slots.loss
        with self._layout.whole():
            self._engine = _make_engine(engine, model, loss, plan, memory, self._records.rows)
        trained = self._layout.trained(self._engine.parameters)
        self._trained = trained if self._slots is None else self._slots.without_slots(trained)
        self._thresholds = plan.clipping.initial_thresholds(self._engine.names)
        self._averaged = None if ema_decay is None else AveragedWeights(model, ema_decay)
        self._watch = LossWatch(plan)
        self._correlated = self._no_steps_yet()
        self._done = 0
        self._unsaved = False  # whether a state of these records, of further days, is still to be saved
        self._loss: float | None = None  # the noisy one of the last step, for a bar
        self._bar = KeptBar()
        self._torn = False
        if check_integer("workers", workers, low=0) > 0:
            session = weakref.proxy(self)  # the workers end with the session
            self._records = Prefetcher(self._records, lambda: session._requests(), workers=workers)
        self._check_fit()
        self._optimizer = GuardedOptimizer(optimizer, self._trained)

    def _of_record(self, loss: PerExampleLoss, records: Records) -> PerExampleLoss:
        """The loss as the engines call it, with the tensors of the records.

        A data set tells what a record is when its first item is read, which is not before the first step.
        """
        self._user_loss: PerExampleLoss | None = loss  # until it is known to take the records
        if self._unchecked is None:
            self._check_loss(records)
            if is_positional(records.template):
                return loss
        return with_record(loss, lambda: records.template)

    def _check_loss(self, records: Records) -> None:
        if self._user_loss is not None:
            check_loss_takes(self._user_loss, records.template)
        self._user_loss = None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer.  The loop may change its learning rates; only the session steps with it."""
        return self._optimizer.optimizer

    @property
    def steps_done(self) -> int:
        """Steps performed so far."""
        return self._done

    @property
    def steps_there(self) -> int:
        """Steps that can be taken with these data: all of the plan's, or of a stream those of its days so
        far."""
        return self.plan.steps if self._dates is None else self._dates.steps

    @property
    def epsilon(self) -> float:
        """Epsilon of the steps performed so far, and of the plan's preparation, at the plan's delta."""
        return self.plan.epsilon_after([self._done])[0]

    @property
    def route(self) -> str:
        """How batches are computed: ``"fast"``, ``"record by record: "`` and why, or ``"reference"``.

        It may depend on the records, as the time of a step does: it is for whoever trains; do not publish it.
        """
        return self._engine.route

    @property
    def thresholds(self) -> tuple[float, ...]:
        """(G,) clipping thresholds of the next step; those of adaptive clipping come from noisy counts."""
        return tuple(self._thresholds)

    @property
    def private(self) -> bool:
        """False if the generator came from :mod:`tacit.testing`."""
        return self._generator.secure

    @property
    def randomness(self) -> str:
        """Where the random numbers come from, for the statement."""
        name = self._generator.name
        return f"{name}; noise by ChaCha20 under a key drawn from it" if self._noise_on_device else name

    @property
    def _noise_on_device(self) -> bool:
        return not self._layout.sharded and on_device.draws(self._trained)

    @property
    def current_model(self) -> nn.Module:
        """The model to evaluate and release: a copy with averaged weights, if the session averages."""
        return self.model if self._averaged is None else self._averaged.applied_to(self.model)

    @property
    def charges(self) -> StepCharges | None:
        """What the run charges to a ledger; None without a ledger, and at other ranks than the first."""
        return self._charges

    @property
    def ranks(self) -> Ranks:
        """The processes that train this model."""
        return self._ranks

    def content(self) -> Iterator[bytes | memoryview] | None:
        """The records in bytes, for the fingerprint by which a ledger knows them; None for a data set whose
        records would each have to be decoded."""
        return self._records.content()

    @property
    def of_people(self) -> bool:
        """Whether the records are :class:`~tacit.training.UserRecords`, people with several rows."""
        return are_of_users(self._of_data)

    @property
    def stopped(self) -> str | None:
        """Why the ledger ended the run before the end of its plan; None if it did not.

        The reason is public: the balance of a data set depends on what was asked, not on its records.
        """
        return None if self._refusal is None else str(self._refusal)

    @property
    def refusal(self) -> BudgetExceeded | None:
        """The ledger's refusal that ended the run, with its numbers; None if there was none."""
        return self._refusal

    def batches(self, *, progress: bool | None = False) -> Iterator[StepTicket]:
        """The tickets of the steps that are left, to the end of the plan, or of the days of a stream so far.

        With ``charges`` they end where the ledger refuses the next chunk: see :attr:`stopped`.

        Args:
            progress: show a bar; None for one in a notebook and in a terminal only.

        Raises:
            BudgetExceeded: the ledger refuses the first chunk.
        """
        yield from self._tickets(self.steps_there, "private training", progress)

    def epoch(self, *, progress: bool | None = None) -> Iterator[StepTicket]:
        """The tickets of about one pass over the records, fewer at the end of the plan.

        Args:
            progress: show a bar; by default in a notebook and in a terminal only.
        """
        each = self.plan.steps_per_epoch
        title = f"epoch {self._done // each + 1} of {-(-self.plan.steps // each)}"
        stop = min(self._done + each, self.steps_there)
        yield from self._tickets(stop, title, progress, self._bar)

    def _tickets(
        self, stop: int, title: str, progress: bool | None, kept: KeptBar | None = None
    ) -> Iterator[StepTicket]:
        shown = progress if self._ranks.first else False
        steps = {"first": self._done, "stop": stop}
        with step_bar(title, **steps, plan=self.plan, progress=shown, kept=kept) as took:
            while (step := self._done) < stop and self._is_paid_for():
                yield StepTicket(step)
                if self._done == step:
                    raise InvalidInput(
                        f"batch {step} was given out and no step was taken with it. Call session.step(batch) "
                        "once for each batch."
                    )
                took(self._loss)

    def _is_paid_for(self) -> bool:
        """Whether the ledger has charged the next step; if it refuses, a run that has begun ends."""
        if not self._charged:
            return True
        try:
            self._ranks.from_first(self._pay)
        except BudgetExceeded as refusal:
            if self._done == 0:
                raise
            self._refusal = refusal
            self._check_same_model()
            return False
        self._refusal = None
        return True

    def _claim(self) -> None:
        """Take the batches that were drawn beforehand for this run, before it releases anything."""
        if self._drawn is not None:
            self._drawn.claim(self._name)

    def _pay(self) -> None:
        if self._drawn is not None:
            self._drawn.check_free(self._name)
        if self._charges is not None:
            self._charges.recognise(self.content)
            self._charges.before(self._done)

    def _agree(self) -> None:
        """Refuse to go on where the ranks do not belong to one run."""

        def facts_of_run() -> dict[str, Any]:
            return {**self._identity(self._generator.secret_state()[0]), "done": self._done}

        first = self._ranks.from_first(facts_of_run)

        def check() -> None:
            if differing := differences(first, facts_of_run()):
                raise PrivacyRefusal(
                    f"process {self._ranks.rank} of this run differs from process 0 in: "
                    f"{', '.join(differing)}. All add to one sum, and must do the same run. Give each "
                    "process the same script, records, plan and settings."
                )

        self._ranks.each(check)
        self._agreed = True

    def _same_model(self, weights: Mapping[str, nn.Parameter]) -> Callable[[], None]:
        """The check that ``weights``, mode and optimizer are those of rank 0; all ranks call it together."""
        if self._ranks.ranks == 1:
            return lambda: None
        whole = {} if self._layout.sharded else weights
        return check_of_replicas(self.model, whole, self.optimizer, self._ranks)

    def _check_same_model(self) -> None:
        self._ranks.each(self._same_model(dict(self.model.named_parameters())))

    def step(self, ticket: StepTicket) -> StepReport:
        """Take the private step of this ticket, and the optimizer's step with its noisy gradient.

        Raises:
            BudgetExceeded: all steps of the plan are taken, or the ledger refuses the step.
            Diverged: the step was taken, and weights are NaN or infinite after it.
            UnsupportedModel: model, loss, augmentation or the items of the data set mix records.
            PrivacyRefusal: the step of this ticket was taken before; or other code left gradients on the
                parameters; or the session would add noise that it has released to another sum; or the model
                or the optimizer of this rank is not that of rank 0.
            ProcessLost: another rank failed or ended.
        """
        self._check_ticket(ticket)
        if self._charged:
            self._ranks.from_first(self._pay)
        if self._ranks.ranks > 1 and not self._agreed:
            self._agree()
        indices = participants(self.plan, self._generator, len(self._records), self._dates)(self._done)
        self._ranks.each(self._same_model(self._trained))  # before anything is computed with it
        self._ranks.each(lambda: self._check_reading(indices))
        released = noisy_step(
            self._engine,
            self.plan,
            self._records,
            indices,
            self._thresholds,
            generator=self._generator,
            step=self._done,
            physical_batch_size=self._physical,
            augmentation=self._augmentation,
            ranks=self._ranks,
            layout=self._layout,
            correlated=self._correlated,
        )
        self._layout.together(lambda: check_release(self._generator, ticket.step, released.gradients))
        if self._drawn is not None:
            self._ranks.from_first(self._claim)
        gradients = self._without_slots(released.gradients)
        self._thresholds = released.thresholds
        self._loss = released.loss
        self._done, self._torn = self._done + 1, True  # from here on the step counts, whatever happens
        self._optimizer.step(self._layout.gradients(gradients))
        self._torn = False
        if self._averaged is not None:
            self._averaged.update(self.model, self._done)
        if self._charges is not None:
            self._charges.after(ticket.step)
        self._watch.take(released.loss)
        check_weights(self._trained, ticket.step, self.optimizer, self._layout)
        if self._done == self.plan.steps:
            self._check_same_model()
        return StepReport(step=ticket.step, loss=released.loss)

    def _repr_html_(self) -> str:
        trained = sum(p.numel() for p in self._trained.values())
        loss, std = self._loss, loss_std(self.plan)
        rows = [
            ("Model", f"{type(self.model).__name__}, {trained:,} trained parameters"),
            ("Optimizer", type(self.optimizer).__name__),
            ("Steps", f"{self._done:,} of {self.plan.steps:,}"),
            ("Epsilon spent", f"{round_up(self.epsilon)} of {round_up(self.plan.epsilon)}"),
            ("Protected", f"one {self.plan.unit}, adjacency {self.plan.adjacency}"),
            ("Noisy loss", "none" if loss is None else f"{noisy(loss, std)} in the last step"),
            ("Private", "yes" if self.private else "NO: the key of the noise is a fixed test key"),
            *([] if self.stopped is None else [("Stopped", self.stopped)]),
        ]
        return facts("Private session", rows)

    def _check_reading(self, indices: Indices) -> None:
        """Check once, on the first records drawn, that items and augmentation do not mix records."""
        self._records.begin(self._done)
        if self._unchecked is not None and len(real := rows_read(self._of_data, indices)) > 0:
            check_items(self._unchecked, real[:_CHECKED])
            self._check_loss(self._unchecked)
            self._unchecked = None
        if self._augmentation is None or self._augmentation_is_checked or len(indices) == 0:
            return
        first = self._records.take(indices[:_CHECKED], seed=0)
        check_by_record(self._augmentation, first[0], self.plan.views)
        self._augmentation_is_checked = True

    def _without_slots(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        return gradients if self._slots is None else self._slots.observe(gradients, self._thresholds[0])

    def slot_evidence(self) -> SlotEvidence:
        """The data for an audit of this run: the slots' part of every released sum, and the coins.

        Raises:
            InvalidInput: the session was made without ``audit``, or steps of the plan are left.
        """
        if self._slots is None:
            raise InvalidInput(
                "this run has no audit slots, which must be planted before it starts. Make the session with "
                "audit=AuditSlots(1000), or audit another run of the same plan."
            )
        if self._done < self.plan.steps:
            raise InvalidInput(
                f"{self._done} of the plan's {self.plan.steps} steps are done, and the coins stay sealed "
                "until the end: the claim to be tested is about the whole run. Take the steps that are left."
            )
        return self._slots.evidence()

    def _requests(self) -> Iterator[Request]:
        return requests(
            participants(self.plan, self._generator, len(self._records), self._dates),
            range(self._done, self.steps_there),
            self._generator,
            physical_batch_size=self._physical,
            ranks=self._ranks,
        )

    def save(self, path: Path | str, *, extra: dict[str, Any] | None = None) -> None:
        """Write the resume state: weights, optimizer, position and the *secret key of the noise*.

        Store it apart from what you release: whoever has it can subtract the noise.  The session replaces the
        file as a whole or not at all.  ``extra``, of plain values, comes back from :meth:`load`.
        Of several ranks the first writes, and all must call this.  The weights of a sharded model and its
        optimizer's state go to a folder beside the file, of which each rank writes its part: move both
        together.  All ranks must see one file system.

        Raises:
            PrivacyRefusal: the last step was cut short while it changed the weights; or the model or the
                optimizer of this rank is not that of rank 0.
        """
        self._check_whole()
        self._check_same_model()
        saved = self._layout.saved(Path(path), self.model, self.optimizer)
        self._ranks.from_first(lambda: self._save(Path(path), saved, extra))
        self._unsaved = False  # at every rank

    def _save(self, path: Path, saved: dict[str, Any], extra: dict[str, Any] | None) -> None:
        key, secure = self._generator.secret_state()
        save_state(
            path,
            {
                "run": json.dumps(self._identity(key)),
                "key": key,
                "secure": secure,
                "done": self._done,
                "thresholds": list(self._thresholds),
                "measured": dict(self._engine.measured),
                **saved,
                "averaged": None if self._averaged is None else self._averaged.weights,
                "slots": None if self._slots is None else self._slots.state(),
                "charges": None if self._charges is None else self._charges.state(),
                "name": self._name,
                "dates": None if self._dates is None else self._dates.state(self._done),
                "extra": extra or {},
            },
        )
        self._layout.clean(path, saved)

    def load(self, path: Path | str) -> dict[str, Any]:
        """Go on exactly where :meth:`save` stopped; returns its ``extra``.

        The session takes steps that were taken after the save again, with the same noise.  They are the same
        release as long as nothing has changed.  It refuses another plan, other records, another model,
        optimizer, augmentation, collate function or loss.  It compares losses by their code and by the values
        that they read, as these are when the session is made (:mod:`tacit.training.resume.state`).

        It does not compare the schedule of the learning rate and the mode of the model; what a loss reads
        from files, environment or clocks; what compiled extensions and objects of libraries hold; of large
        tensors that a loss reads, more than a sample.  Within one process the session notices another release
        all the same (:mod:`tacit.training.parts.noise_reuse`); it cannot know what another process released.

        Raises:
            PrivacyRefusal: the state belongs to another run, and the message says what differs.  Going on
                would add the same noise to different sums, and their difference has no noise.  Or the
                versions of Python or of the libraries differ; or the run is charged elsewhere.
            ProcessLost: another rank, each of which reads the file, could not.
        """
        self._agreed = False
        return self._ranks.each(lambda: self._load(path))

    def _load(self, path: Path | str) -> dict[str, Any]:
        state = load_state(Path(path))
        generator = Generator(state["key"], secure=state["secure"])
        before = json.loads(state["run"])
        there = before.get("steps there")
        if self._dates is not None and there is not None and state["done"] < there < self._dates.steps:
            self._dates.steps = there  # the days that were begun are finished first
        now = self._identity(state["key"])
        if self._dates is not None and state["done"] == there:
            self._unsaved = before != now
            for facts in (before, now):  # nothing of later days has been released
                for name in ("records", "steps there"):
                    facts.pop(name, None)
        check_same_run(path, before, now)
        if self._ranks.first:
            resume_charges(self._charges, state.get("charges"), generator)
        self._name = state.get("name", self._name)
        self._generator, self._correlated = generator, self._no_steps_yet()
        self._done, self._torn = state["done"], False
        self._thresholds = state["thresholds"]
        self._engine.measured.clear()
        self._engine.measured.update(state["measured"])
        self._optimizer.restore(self._layout.load(Path(path), state, self.model, self.optimizer))
        if self._dates is not None:
            self._dates.load(state["dates"])
        if self._averaged is not None:
            self._averaged.load(state["averaged"])
        if self._slots is not None:
            self._slots.load(state["slots"], generator)
        return dict(state["extra"])

    def _no_steps_yet(self) -> CorrelatedNoise | None:
        """Noise that is correlated in time, before any step: what is stored is of one key."""
        return None if self.plan.correlation is None else CorrelatedNoise(self.plan.correlation)

    def _identity(self, key: bytes) -> dict[str, Any]:
        """The facts in which a repeated step must agree with its first time."""
        shapes = {name: tuple(p.shape) for name, p in self._trained.items()}
        facts: dict[str, Any] = {
            "plan": repr(self.plan),
            "event": event_to_json(self.plan.event),
            "records": self._records.fingerprint(key),
            "parameters": repr(shapes),
            "model": re.sub(r" at 0x[0-9a-f]+", "", repr(self.model)),
            "optimizer": type(self.optimizer).__name__,
            "engine": self._engine.kind + ("" if self._memory == FAST else f", {self._memory}"),
            "physical": self._physical,
            **{name: identity.under(key) for name, identity in self._code.items()},
            "versions": {k: v for identity in self._code.values() for k, v in identity.versions.items()},
            "ema": None if self._averaged is None else self._averaged.decay,
            "slots": None if self._slots is None else repr(self._slots.request),
        }
        if self._dates is not None:
            facts["records"] += f", {self._dates.fingerprint(key)}"
            facts["steps there"] = self.steps_there
            facts["stream"] = self._dates.describe()
        if self._noise_on_device:
            facts["noise"] = "ChaCha20"
        if self._layout.sharded:
            facts["layout"] = self._layout.description
        if self._ranks.ranks > 1:
            facts["ranks"] = self._ranks.ranks
        if len(self._records) > 0 and not is_positional(self._records.template):
            facts["structure"] = repr(self._records.template)
        return facts

    def _check_fit(self) -> None:
        self.plan.check_records(len(self._records))
        if self._augmentation is None and self.plan.views > 1:
            raise InvalidInput(
                f"the plan has {self.plan.views} views per record. Pass an augmentation to make them."
            )

    def _check_whole(self) -> None:
        if self._torn:
            raise PrivacyRefusal(
                f"step {self._done - 1} was cut short while the optimizer changed the weights. It can "
                "neither be finished nor repeated, for its noise would be added to another sum. Go back to a "
                "saved state with session.load(path). Without one you may release the model as it is, at the "
                "cost of session.epsilon; further training needs a new run."
            )

    def _check_ticket(self, ticket: StepTicket) -> None:
        if not self._ranks_are_given:
            check_one_process()  # before the ledger is charged
        self._check_whole()
        if self._done >= self.plan.steps:
            raise BudgetExceeded(
                f"the plan's {self.plan.steps} steps are done and its epsilon of {self.plan.epsilon:.4g} is "
                "spent. Make a plan with more steps before the run starts."
            )
        if self._unsaved:
            raise PrivacyRefusal(
                "these are the records of further days. Call session.save(path) before their first step, so "
                "that the state belongs to them: resumed from the old one with yet other records, the same "
                "noise would be added to different sums."
            )
        if self._done >= self.steps_there:
            raise InvalidInput(
                f"the days of the first {self.steps_there} of the plan's {self.plan.steps} steps are done. "
                "Save the state, and go on from it in a session with the next days' records."
            )
        if not isinstance(ticket, StepTicket):
            raise InvalidInput(
                "step takes the ticket that session.batches() or session.epoch() gives; got "
                f"{type(ticket).__name__}."
            )
        if ticket.step != self._done:
            raise PrivacyRefusal(
                f"ticket {ticket.step} is not that of the session's next step, {self._done}. Pass each "
                "ticket of session.batches() to session.step once, in order."
            )
        self._optimizer.check_no_gradients()


def _make_engine(
    name: str, model: nn.Module, loss: PerExampleLoss, plan: Plan, memory: MemoryBudget, rows: int
) -> GradientEngine:
    views = plan.views * rows
    if check_in("engine", name, ("fast", "reference")) == "fast":
        return FastEngine(model, loss, plan.clipping, views=views, budget=memory)
    if memory != FAST:
        raise InvalidInput(
            f"memory={memory} limits what the fast engine stores, and the reference engine stores nothing. "
            'Leave it out, or take engine="fast".'
        )
    return ReferenceEngine(model, loss, plan.clipping, views=views)
