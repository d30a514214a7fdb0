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
from tacit.rounding import round_up
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
        model: the module to train.  The session refuses a module that mixes records, as batch norm does, and
            names the layer.
        optimizer: any torch optimizer over the model's trainable parameters.
        data: the training data, with at most one record per person: arrays, tensors or lists (N, ...),
            including memory maps; mappings and tuples of these; data frames; a list of records; or a
            map-style dataset (``docs/how-to/large-data.md``).  Use :class:`~tacit.training.UserRecords` if a
            person may have several rows, and :class:`~tacit.training.DatedRecords` for a plan by date.
            Item i of a dataset must depend on record i alone; to check this, the session reads four items up
            to ten times before the first step.  Floats are cast to the dtype of the parameters, integers to
            int64.
        plan: how the steps draw records, clip gradients and add noise, and what they cost in privacy.
        loss: a function that returns one loss per record, without a mean: ``loss(model, *parts) -> (n,)``, or
            ``loss(model, **parts)`` if records are mappings.  Or one of :mod:`tacit.losses`, or a loss module
            of ``torch.nn``, whose reduction is ignored.  The session calls the loss once per forward pass, as
            if for one record, and a few more times in the first pass.  The number of calls does not depend on
            the records drawn, so count steps by :attr:`steps_done`, not by calls.
        collate: for records of varying length, a function that turns a list of one record into a batch of
            size 1, such as :func:`tacit.collate.pad`.
        engine: "fast", or "reference" for a loop over records.  The loop is many times slower, but can train
            models in which Python code reads values of records.  The guarantee of the loop assumes that loss
            and model store nothing of a record in Python.
        physical_batch_size: about the largest number of records in memory at once.  It affects only speed and
            memory.  Larger batches are split into parts of equal size.  A user counts as one record, with all
            rows that a step reads.  If CUDA runs out of memory, the session repeats the step with half the
            size, and warns once.  The warning may depend on the number of records drawn, so treat it as
            confidential, like step times.
            With ``"auto"``, the first step tries sizes on records of zeros, so that the size depends on
            public facts alone.  The size found is at most the expected batch size plus a margin, and leaves a
            sixteenth of the memory free.  On a CPU, ``"auto"`` is 512.
        augmentation: a function that makes ``plan.views`` views of the first tensor of each record.
        ema_decay: the decay of an exponential moving average of the weights, which :attr:`current_model` has;
            None for no average.
        workers: the number of processes that prefetch batches, for datasets that decode files.  With 0, the
            session reads each batch when its step begins.
        memory: how much memory the fast engine may use for speed: :data:`tacit.clipping.FAST`, or
            :data:`tacit.clipping.LEAN` for about the memory of a non-private step.
        audit: an :class:`AuditSlots`, to train on artificial records (canaries) too; :meth:`slot_evidence`
            then returns the data for an audit.  None for no audit.
        charges: the :class:`StepCharges` that charge this run to the ledger of the dataset; None without a
            ledger.  If the plan has a preparation (an earlier release), call ``charges.start()`` before you
            make it.  With several ranks, only the first rank charges.
        ranks: the processes that train this model together, as :class:`tacit.training.ProcessRanks`.  All
            must have the same model, plan and, unless ``own_records`` is set, records.  All get the weights
            and the key of the noise from rank 0.  ``torch.distributed.fsdp.fully_shard`` may have sharded the
            model.  Pass :class:`tacit.training.Alone` if this process trains alone although a launcher
            started others.
        generator: the source of random numbers, for tests only (:mod:`tacit.testing`).  Default: a generator
            with a fresh secret key from the system.

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
        """The number of steps that can be taken: all of the plan or, for dated records, those with data."""
        return self._run.steps

    @property
    def epsilon(self) -> float:
        """The epsilon spent so far, including the plan's preparation, at the plan's delta."""
        return self.plan.epsilon_after([self._run.done])[0]

    @property
    def route(self) -> str:
        """The engine: ``"fast"`` or ``"reference"``."""
        return self._run.engine.route

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The clipping threshold of each of the G groups of parameters in the next step, (G,).

        Adaptive clipping changes the thresholds in each step.
        """
        return tuple(self._run.thresholds)

    @property
    def private(self) -> bool:
        """Whether the noise is secret; False for a generator from :mod:`tacit.testing`."""
        return self._run.generator.secure

    @property
    def randomness(self) -> str:
        """The source of the random numbers, as the privacy statement names it."""
        name = self._run.generator.name
        return f"{name}; noise by ChaCha20 under a key drawn from it" if self._run.noise_on_device else name

    @property
    def current_model(self) -> nn.Module:
        """The model to evaluate and release.  With ``ema_decay``, a copy with the averaged weights."""
        return self.model if self._run.averaged is None else self._run.averaged.applied_to(self.model)

    @property
    def charges(self) -> StepCharges | None:
        """The :class:`StepCharges` of the run; None without a ledger, and on all ranks but the first."""
        return self._run.payment.charges

    @property
    def ranks(self) -> Ranks:
        """The processes that train this model together."""
        return self._run.ranks

    def content(self) -> Iterator[bytes | memoryview] | None:
        """Return the bytes by which a ledger recognises the records; None if they would need decoding."""
        return self._run.records.content()

    @property
    def of_people(self) -> bool:
        """True if the training data are :class:`~tacit.training.UserRecords`."""
        return self._run.of_people

    @property
    def stopped(self) -> str | None:
        """The reason why the ledger ended the run early; None if the ledger did not end it.

        The reason is public: a ledger's balance depends on requests, not on records.
        """
        return None if self.refusal is None else str(self.refusal)

    @property
    def falling(self) -> Falling:
        """The result of the check whether the loss falls, by the noisy losses of the first steps."""
        return self._run.falling

    @property
    def refusal(self) -> BudgetExceeded | None:
        """The error with which the ledger ended the run, with the epsilons; None if it did not end it."""
        return self._run.payment.refusal

    def batches(self, *, progress: bool | None = False) -> Iterator[StepTicket]:
        """Iterate over the remaining steps: all of the plan or, for dated records, those with complete data.

        The iterator has a length, for progress bars.  With ``charges``, it ends early if the ledger refuses
        the next chunk (the steps charged together); :attr:`stopped` then gives the reason.

        Args:
            progress: whether to show a progress bar; None shows it in a notebook or a terminal only.

        Raises:
            BudgetExceeded: the ledger refuses the first chunk of steps.
        """
        stop = self.steps_there
        return _Tickets(self._tickets(stop, "private training", progress), stop - self._run.done)

    def epoch(self, *, progress: bool | None = None) -> Iterator[StepTicket]:
        """Iterate over the steps of about one pass over the records, or over fewer if the plan ends before.

        The iterator has a length, for bars such as ``tqdm(session.epoch(progress=False))``.

        Args:
            progress: whether to show a progress bar; None shows it in a notebook or a terminal only.
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
            BudgetExceeded: all steps of the plan are taken, or the ledger refuses the step.
            Diverged: weights are NaN or infinite after the step.
            UnsupportedModel: the model, loss, augmentation or dataset mixes records.
            PrivacyRefusal: the step was taken before; other code left gradients on the parameters; the step
                would reuse noise with a different sum; or this rank's model or optimizer differs from that of
                rank 0.
            ProcessLost: another rank failed or ended.
            TacitError: the GPU failed; the step released nothing.
            InvalidInput: CUDA is out of memory even with one record at a time.
        """
        self._run.check_whole()
        if self._run.done >= self.plan.steps:
            raise BudgetExceeded(
                f"all {self.plan.steps} steps of the plan are done, and its epsilon of "
                f"{self.plan.epsilon:.4g} is spent. To train longer, plan more steps before the run starts."
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

        For each canary, they contain what every released sum has in the canary's slot (a parameter that no
        other record changes), and whether a secret coin flip included the canary in training.

        Raises:
            InvalidInput: the session has no ``audit``, or steps of the plan are left.
        """
        if self._run.slots is None:
            raise InvalidInput(
                "this run has no audit slots, and they cannot be added later. Make a session with "
                "audit=AuditSlots(1000), or audit another run of the same plan."
            )
        return self._run.slots.evidence(self._run.done)

    def save(self, path: Path | str, *, extra: dict[str, Any] | None = None) -> None:
        """Write the resume state: weights, optimizer, position and the *secret key of the noise*.

        Keep the file secret, because anyone who has it can subtract the noise.  An existing file is replaced
        atomically.  ``extra`` is a dictionary of plain values, which :meth:`load` returns.  All ranks must
        call this method, and must share a file system.  If the model is sharded, each rank writes its part to
        a folder next to the file; move file and folder together.

        Raises:
            PrivacyRefusal: the last step was interrupted while it changed the weights, or this rank's model
                or optimizer differs from that of rank 0.
        """
        self._run.save(Path(path), extra or {})

    def load(self, path: Path | str) -> dict[str, Any]:
        """Resume exactly where :meth:`save` stopped, and return the ``extra`` that was saved.

        Steps that were taken after the save run again, with the same noise.  If all else is unchanged too,
        they release nothing new.  The session therefore refuses another plan, dataset, model, optimizer,
        augmentation, collate function or loss.  It compares the code of a loss and the values that this code
        reads (:mod:`tacit.training.resume`).

        The session does not compare the learning-rate schedule, the mode of the model, values that a loss
        reads from files, the environment or clocks, or the contents of compiled extensions and library
        objects.  Of large tensors, it compares a sample.  If such a difference changes what a repeated step
        releases, the session detects this if the same process took the step before
        (:mod:`tacit.training.released`), but not if another process did.

        Raises:
            PrivacyRefusal: the state belongs to another run; the versions of Python or of a library differ;
                or the run is charged elsewhere.  The message names the difference.  Resuming would add the
                same noise to different sums, and anyone could subtract the two to remove the noise.
            ProcessLost: another rank failed.  All ranks must be able to read the file.
        """
        return self._run.ranks.each(lambda: self._run.load(Path(path)))
