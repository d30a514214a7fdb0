"""The session: private training in a loop of your own, with one call per step."""

# It holds all that the guarantee depends on, and gives the loop step tickets, which hold no data.
#
# **Guarantee**
#
# * The session performs the plan's steps in order and each at most once.  The first ``steps_done`` steps
#   cost :attr:`PrivateSession.epsilon`.
# * While it exists, it refuses a step that other code takes with its optimizer or with a second optimizer,
#   so only noisy gradients change the model.
# * In one of several processes the session reads and releases nothing without ``ranks``.  With them, the
#   processes take each step together and release it once (:mod:`tacit.training.ranks`).
# * A resumed session draws the same participants and the same noise as an uninterrupted one.  It starts the
#   next days of a stream only if all steps of the days before were taken and saved.
# * The session adds the noise of a step to one sum only.  It refuses to repeat a step in this process if
#   that would release something else, to continue after a step that was cut short while it changed the
#   weights, and to resume from the state of a run with another loss.
# * With ``charges``, the session takes no step before the ledger has committed the charge that covers it.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from tacit.clipping.engine import PerExampleLoss
from tacit.clipping.memory import FAST, MemoryBudget
from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal
from tacit.models.additive import Moments
from tacit.noise.generator import Generator
from tacit.notebook import facts
from tacit.plan import Plan
from tacit.plan.signal import warn_if_drowned
from tacit.rounding import round_up, shown_epsilon
from tacit.training.audit_slots import AuditSlots, SlotEvidence
from tacit.training.by_record import Augmentation
from tacit.training.charges import StepCharges
from tacit.training.progress import Falling, loss_std, noisy
from tacit.training.ranks import Ranks
from tacit.training.records import Collate, Data, Records
from tacit.training.run import Arguments, Run
from tacit.training.step import StepReport, StepTicket
from tacit.training.users import DatedRecords, UserRecords


@dataclass
class _Tickets(Iterator[StepTicket]):
    """An iterator over step tickets with a fixed length."""

    tickets: Iterator[StepTicket]
    length: int

    def __next__(self) -> StepTicket:
        return next(self.tickets)

    def __len__(self) -> int:
        return max(0, self.length)


class PrivateSession:
    """Trains ``model`` on ``data`` with differential privacy, one step of ``plan`` at a time.

    Args:
        model: the module to train.  The session refuses layers that mix records, such as batch norm.
        optimizer: any torch optimizer over the model's trainable parameters.
        data: the training data, with at most one record per person.  Supported are arrays, tensors, memory
            maps and lists, (N, ...); tuples and mappings of these; data frames; lists of records; and
            map-style datasets (``docs/how-to/large-data.md``).  Floats are cast to the dtype of the
            parameters, integers to int64.  Pass :class:`~tacit.training.UserRecords` if a person may have
            several rows, and :class:`~tacit.training.DatedRecords` for a plan by date.
            Item i of a dataset must depend on record i alone.  To check this, the session reads four items
            several times before the first step.
        plan: how the steps draw records, clip gradients and add noise, and what they cost in privacy.
        loss: a function that returns one loss per record, without a mean: ``loss(model, *parts) -> (n,)``, or
            ``loss(model, **parts)`` if records are mappings.  You may pass one of :mod:`tacit.losses`, or a
            loss module of ``torch.nn``, whose reduction is ignored.  To count steps, use :attr:`steps_done`,
            because a step may call the loss several times.
        collate: for records of varying length, a function that turns a list of one record into a batch of
            size 1, such as :func:`tacit.collate.pad`.
        engine: "fast", or "reference", a slow loop over records.  The loop supports models in which Python
            code reads values of records.  Its guarantee holds only if model and loss store nothing about a
            record in Python objects.
        physical_batch_size: about the largest number of records in memory at once; it affects only speed and
            memory.  A user of ``UserRecords`` counts as one record.
            If CUDA runs out of memory, the session repeats the step with half the size, and warns once.  Keep
            this warning confidential, like step times: it may depend on the number of records drawn.
            With ``"auto"``, the first step tries sizes on dummy records, so the size depends only on public
            facts.  On a CPU, it is 512.
        augmentation: an :class:`Augmentation`, which makes ``plan.views`` views of each record's first
            tensor.
        ema_decay: the decay of an exponential moving average of the weights, such as 0.99, for
            :attr:`current_model`; None for no average.
        workers: the number of processes that prefetch batches, for datasets that decode files.  0 for none.
        memory: :data:`tacit.clipping.FAST` for speed, or :data:`tacit.clipping.LEAN` for about the memory of
            a non-private step.
        audit: an :class:`AuditSlots`, to train on artificial records (canaries) too, for an audit with
            :meth:`slot_evidence`; None for no audit.
        charges: the :class:`StepCharges` that charge this run to a ledger; None without a ledger.  If the
            plan has a ``preparation`` (a release before training, such as DP-PCA), call ``charges.start()``
            before it.
        ranks: the processes that train together, as :class:`ProcessRanks`.  All need the same model and plan
            and, unless ``own_records`` is set, the same records.  Rank 0 sends them its weights and the key
            of the noise.  The model may be sharded by ``fully_shard``.  If a launcher started several
            processes but this one trains alone, pass :class:`Alone`.
        generator: the source of random numbers, for tests only (:mod:`tacit.testing`).  Default: a fresh
            secret key.

    >>> import torch.nn.functional as F
    >>> x, y = torch.randn(100, 4), torch.randint(0, 2, (100,))
    >>> plan = Plan.calibrate(epsilon=3.0, delta=1e-3, records=100, batch_size=20, epochs=2, clipping=1.0,
    ...                       adjacency="add-remove", unit="row")
    >>> model = nn.Linear(4, 2)
    >>> session = PrivateSession(
    ...     model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), plan,
    ...     loss=lambda model, x, y: F.cross_entropy(model(x), y, reduction="none"),
    ... )
    >>> for step in session.batches():
    ...     report = session.step(step)
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
        physical_batch_size: int | Literal["auto"] = 512,
        augmentation: Augmentation | None = None,
        ema_decay: float | None = None,
        workers: int = 0,
        memory: MemoryBudget = FAST,
        audit: AuditSlots | None = None,
        charges: StepCharges | None = None,
        ranks: Ranks | None = None,
        generator: Generator | None = None,
    ) -> None:
        arguments = Arguments(
            model, optimizer, data, plan, loss, collate, engine, physical_batch_size, augmentation, ema_decay,
            workers, memory, audit, charges, ranks, generator,
        )  # fmt: skip
        self._run = Run(arguments)
        if self._run.ranks.first and not isinstance(model, Moments):  # moments are solved in one step
            weights = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
            signal = plan.signal(weights)
            self.falling.why = signal.reason
            warn_if_drowned(signal)

    @property
    def model(self) -> nn.Module:
        """The model that the session trains."""
        return self._run.model

    @property
    def plan(self) -> Plan:
        """The plan, which determines epsilon and the privacy statement."""
        return self._run.plan

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer.  You may change its learning rates, but only the session may take its steps."""
        return self._run.optimizer.optimizer

    @property
    def steps_done(self) -> int:
        """The number of steps taken so far."""
        return self._run.done

    @property
    def steps_there(self) -> int:
        """The number of steps that have data: ``plan.steps``, or fewer on :class:`DatedRecords`."""
        return self._run.steps

    @property
    def epsilon(self) -> float:
        """The epsilon spent so far, at the plan's delta, including releases before training."""
        return self.plan.epsilon_after([self._run.done])[0]

    @property
    def route(self) -> str:
        """The engine: ``"fast"`` or ``"reference"``."""
        return self._run.engine.route

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The clipping norm in the next step for each group of parameters, (G,).

        Flat clipping has one group.
        """
        return tuple(self._run.thresholds)

    @property
    def private(self) -> bool:
        """True if the noise is secret; False with a generator of :mod:`tacit.testing`."""
        return self._run.generator.secure

    @property
    def randomness(self) -> str:
        """The name of the random number generator, for the privacy statement."""
        name = self._run.generator.name
        return f"{name}; noise by ChaCha20 under a key drawn from it" if self._run.noise_on_device else name

    @property
    def current_model(self) -> nn.Module:
        """The model to evaluate and publish; with ``ema_decay``, a copy with the averaged weights."""
        return self.model if self._run.averaged is None else self._run.averaged.applied_to(self.model)

    @property
    def charges(self) -> StepCharges | None:
        """The :class:`StepCharges` that you passed; None without a ledger, and on ranks other than 0."""
        return self._run.payment.charges

    @property
    def ranks(self) -> Ranks:
        """The processes that train this model together."""
        return self._run.ranks

    def content(self) -> Iterator[bytes | memoryview] | None:
        """Return the records as bytes, by which a ledger recognises them; None for a map-style dataset."""
        return self._run.records.content()

    @property
    def of_people(self) -> bool:
        """True if the training data are :class:`~tacit.training.UserRecords`."""
        return self._run.of_people

    @property
    def stopped(self) -> str | None:
        """The reason why the ledger ended the run early; None if it did not.

        It is public, because the remaining budget depends on charges, not on records.
        """
        return None if self.refusal is None else str(self.refusal)

    @property
    def falling(self) -> Falling:
        """A check whether the noisy loss falls in the first third of the steps, with its result."""
        return self._run.falling

    @property
    def refusal(self) -> BudgetExceeded | None:
        """The ledger's error that ended the run early; None if there was none."""
        return self._run.payment.refusal

    def batches(self, *, progress: bool | None = False) -> Iterator[StepTicket]:
        """Iterate over the remaining steps; pass each to :meth:`step`.

        On :class:`DatedRecords`, the iterator ends after the last step with complete data.  With ``charges``,
        it ends if the ledger has too little budget for the next chunk (steps charged together);
        :attr:`stopped` then gives the reason.

        Args:
            progress: whether to show a progress bar; None shows it in a notebook or terminal only.

        Raises:
            BudgetExceeded: if the budget does not cover the first chunk.
        """
        stop = self.steps_there
        return _Tickets(self._tickets(stop, "private training", progress), stop - self._run.done)

    def epoch(self, *, progress: bool | None = None) -> Iterator[StepTicket]:
        """Iterate over the steps of about one pass over the records; fewer at the end of the plan.

        The iterator has a length, for bars such as ``tqdm(session.epoch(progress=False))``.

        Args:
            progress: whether to show a progress bar; None shows it in a notebook or terminal only.
        """
        each = self.plan.steps_per_epoch
        title = f"epoch {self._run.done // each + 1} of {-(-self.plan.steps // each)}"
        stop = min(self._run.done + each, self.steps_there)
        return _Tickets(self._tickets(stop, title, progress, keep=True), stop - self._run.done)

    def _tickets(self, stop: int, title: str, show: bool | None, keep: bool = False) -> Iterator[StepTicket]:
        visible = show if self._run.ranks.first else False
        with self._run.progress.bar(title, self._run.done, stop, progress=visible, keep=keep):
            while (step := self._run.done) < stop and self._is_paid_for():
                yield StepTicket(step)
                if self._run.done == step:
                    raise InvalidInput(
                        f"step {step} was skipped. Call session.step(step) once for each step of the loop."
                    )

    def _is_paid_for(self) -> bool:
        self._run.together.agree()  # ranks that differ are refused before anything is charged
        paid = self._run.payment.is_paid(self._run.done)
        if not paid:
            self._run.together.check_model()
        return paid

    def step(self, step: StepTicket) -> StepReport:
        """Compute this step's noisy gradient, and take the optimizer's step with it.

        Args:
            step: a step from :meth:`batches` or :meth:`epoch`.

        Raises:
            BudgetExceeded: if all steps of the plan are taken, or the ledger has too little budget left.
            Diverged: if weights are NaN or infinite after the step.
            UnsupportedModel: if the model, loss, augmentation or dataset mixes records.
            PrivacyRefusal: if the step was taken before, other code left gradients on the parameters, or this
                rank's model or optimizer differs from rank 0's.  Also if the step would add the noise of an
                earlier release to a different sum.
            ProcessLost: if another rank failed or ended.
            TacitError: if the GPU failed.  The step released nothing.
            InvalidInput: if CUDA has too little memory for a single record.
        """
        self._run.check_whole()
        if self._run.done >= self.plan.steps:
            raise BudgetExceeded(
                f"all {self.plan.steps} steps of the plan are done, and its epsilon of "
                f"{shown_epsilon(self.plan.epsilon)} is spent. To train longer, plan more steps before the "
                "run starts."
            )
        if not isinstance(step, StepTicket):
            raise InvalidInput(
                f"step must come from session.batches() or session.epoch(); got {type(step).__name__}."
            )
        if step.step != self._run.done:
            raise PrivacyRefusal(
                f"step {step.step} is out of order; the next one is {self._run.done}. Pass each step of "
                "session.batches() to session.step once, in order."
            )
        self._run.optimizer.check_no_gradients()

        return StepReport(step.step, loss=self._run.step(step.step))

    def __repr__(self) -> str:
        done = f"{self._run.done:,} of {self.plan.steps:,} steps done"
        return f"<PrivateSession of {type(self.model).__name__}: {done}; {self.plan}>"

    def _repr_html_(self) -> str:
        loss, trained = self._run.progress.loss, sum(p.numel() for p in self._run.trained.values())
        loss_text = "none" if loss is None else f"{noisy(loss, loss_std(self.plan))} in the last step"
        rows = [
            ("Model", f"{type(self.model).__name__}, {trained:,} trained parameters"),
            ("Optimizer", type(self.optimizer).__name__),
            ("Steps", f"{self._run.done:,} of {self.plan.steps:,}"),
            ("Epsilon spent", f"{round_up(self.epsilon)} of {round_up(self.plan.epsilon)}"),
            ("Protected", f"one {self.plan.unit}, adjacency {self.plan.adjacency}"),
            ("Noisy loss", loss_text),
            ("Private", "yes" if self.private else "NO: the noise has a fixed test key"),
            *([] if self.stopped is None else [("Stopped", self.stopped)]),
        ]
        return facts("Private session", rows)

    def slot_evidence(self) -> SlotEvidence:
        """Return the data for an audit with canaries, the artificial records of ``audit``.

        Each canary has a slot: a parameter that no other record changes.  The data contain what each step
        released for this slot, and whether the canary was included.

        Raises:
            InvalidInput: if the session has no ``audit``, or steps of the plan are left.
        """
        if self._run.slots is None:
            raise InvalidInput(
                "this run has no audit slots, and they cannot be added later. Make a session with "
                "audit=AuditSlots(1000), or audit another run of the same plan."
            )
        return self._run.slots.evidence(self._run.done)

    def save(self, path: Path | str, *, extra: dict[str, Any] | None = None) -> None:
        """Write the resume state: weights, optimizer, steps done and the *secret key of the noise*.

        Keep the file secret, because anyone who has it can subtract the noise.

        All ranks must call this method, and must share a file system.  If the model is sharded, each rank
        writes its part to a folder next to the file; move both together.

        Args:
            path: the file, which is replaced atomically.
            extra: a dictionary of plain values, which :meth:`load` returns.

        Raises:
            PrivacyRefusal: if the last step was interrupted while it changed the weights, or this rank's
                model or optimizer differs from rank 0's.
        """
        self._run.save(Path(path), extra or {})

    def load(self, path: Path | str) -> dict[str, Any]:
        """Resume from a file that :meth:`save` wrote, and return its ``extra``.

        Steps that were taken after the save run again, with the same noise.  If nothing else has changed,
        they repeat the same releases.  So the session refuses another plan, dataset, model, optimizer,
        augmentation, collate function or loss.  It compares the code of the loss, and the values that this
        code reads (:mod:`tacit.training.resume`).

        Not compared are the learning-rate schedule; the model's mode (train or eval); what a loss reads from
        files, the environment or clocks; and the contents of compiled extensions and library objects.  Of a
        large tensor, only a sample is compared.  Keep all of these unchanged for the repeated steps.  If a
        change alters what such a step releases, the session detects it only if the same process took the step
        before (:mod:`tacit.training.released`).

        Raises:
            PrivacyRefusal: if the state belongs to another run, the versions of Python or of a library
                differ, or the run has other charges; the message names the difference.  Resuming would add
                the same noise to different sums, and anyone could subtract the two to remove the noise.
            ProcessLost: if another rank failed.  All ranks must be able to read the file.
        """
        return self._run.ranks.each(lambda: self._run.load(Path(path)))
