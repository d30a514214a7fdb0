"""Private training of a Lightning module by a callback."""

# The user writes the module, with manual optimisation. It gets the optimizer and takes each step from
# PrivateSteps. Lightning does the validation, logging, callbacks and checkpoints.

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal, check_integer
from tacit.integrations.loops import SessionStates, SteppedBySession, Tickets, ticket_of
from tacit.plan import Plan
from tacit.training import PrivateSession
from tacit.training.step import StepReport

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ImportError:
    raise MissingExtra("lightning", "lightning", "PrivateSteps") from None

__all__ = ["PrivateSteps"]


@final
class PrivateSteps(Callback):  # type: ignore[misc]  # Lightning is not read by mypy
    """A Lightning callback that takes private steps in the loop of a Trainer.

    In your module, set ``self.automatic_optimization = False``, return :attr:`optimizer` from
    ``configure_optimizers``, and call :meth:`step` with the batch in ``training_step``. Its report contains
    the noisy loss, which you may log. Give the Trainer ``callbacks=[private]`` and ``max_steps=plan.steps``,
    and pass :meth:`tickets` to ``fit`` as the training loader.

    Args:
        session: the :class:`tacit.training.PrivateSession` that trains the module's model.
        schedule: a schedule of ``torch.optim.lr_scheduler`` for the session's optimizer. It advances after
            each private step.
        state_folder: the folder for the session's resume states. Lightning must not write to it, because a
            state contains the secret key of the noise. Required unless checkpoints are off or save only
            weights.
        states_kept: the number of latest resume states to keep in the folder.

    **Guarantee**

    * Each step of the Trainer is one private step. A ``training_step`` that takes no private step raises an
      error, and so does a module with automatic optimisation.
    * The checkpoints do not contain the key of the noise. Only the session's resume states contain it, in a
      folder to which Lightning's checkpoints and loggers do not write.
    * A resumed run gives bitwise the result of an uninterrupted one, or raises an error.
    * Settings of the Trainer that would break one of these guarantees or contradict the plan raise an error
      that names each.

    **Not covered**

    * Anything else that the module computes from the training records, such as statistics without noise.
    * Folders that loggers create without telling Lightning.

    >>> import torch
    >>> from tacit import LossReport, Plan
    >>> from tacit.losses import regression
    >>> class Lines(LightningModule):
    ...     def __init__(self, private):
    ...         super().__init__()
    ...         self.automatic_optimization = False
    ...         self.private, self.model = private, private.session.model
    ...     def configure_optimizers(self):
    ...         return self.private.optimizer
    ...     def training_step(self, batch, batch_idx):
    ...         self.log("loss", self.private.step(batch).loss, batch_size=1)  # noisy
    >>> plan = Plan.calibrate(epsilon=3.0, delta=1e-3, records=100, batch_size=20, steps=10, clipping=1.0,
    ...                       adjacency="add-remove", unit="row", loss_report=LossReport())
    >>> model, rows = torch.nn.Linear(3, 1), (torch.randn(100, 3), torch.randn(100, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> private = PrivateSteps(PrivateSession(model, optimizer, rows, plan, loss=regression()))
    >>> trainer = Trainer(max_steps=plan.steps, callbacks=[private], accelerator="cpu", devices=1,
    ...                   logger=False, enable_checkpointing=False, enable_progress_bar=False,
    ...                   enable_model_summary=False)
    >>> trainer.fit(Lines(private), private.tickets())
    >>> trainer.global_step, private.session.epsilon <= 3.0
    (10, True)
    """

    def __init__(
        self,
        session: PrivateSession,
        *,
        schedule: Any = None,
        state_folder: Path | str | None = None,
        states_kept: int = 2,
    ) -> None:
        if schedule is not None and getattr(schedule, "optimizer", None) is not session.optimizer:
            raise InvalidInput("schedule= belongs to another optimizer. Make it from session.optimizer.")
        if session.ranks.ranks > 1:
            raise PrivacyRefusal(
                f"PrivateSteps does not support a session with {session.ranks.ranks} ranks. Write a loop "
                "over session.batches(), or make the session without ranks= for one process."
            )
        self.session = session
        self.schedule = schedule
        self._optimizer = SteppedBySession(session)
        self._folder = state_folder
        self._kept = check_integer("states_kept", states_kept, low=1)
        self._states: SessionStates | None = None
        self._resume_at: int | None = None
        self._trainer: Any = None
        self._module: Any = None

    @property
    def optimizer(self) -> SteppedBySession:
        """The optimizer to return from ``configure_optimizers``. Only the session takes its steps."""
        return self._optimizer

    def tickets(self) -> Tickets:
        """Return the training loader for ``Trainer.fit``.

        Each of its items is a ticket: it stands for one private step, and contains no records. The session
        itself draws the records of a step, because they must stay secret.
        """
        return Tickets(self.session, ended=self._end_early)

    def step(self, batch: object) -> StepReport:
        """Take one private step and return its report. Call this once in each ``training_step``.

        Args:
            batch: the ``batch`` argument of ``training_step``.

        Raises:
            PrivacyRefusal: if you call this outside ``Trainer.fit``, or if the loader is not that of
                :meth:`tickets`.
        """
        if self._module is None:
            raise PrivacyRefusal(
                "PrivateSteps.step was called outside Trainer.fit. Pass callbacks=[private] to the Trainer; "
                "without a Trainer, call session.step."
            )
        report = self.session.step(ticket_of(self.session, batch))
        self._module.optimizers().step()  # counts the step: trainer.global_step
        if self.schedule is not None:
            self.schedule.step()
        return report

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the settings before the Trainer reads or writes anything."""
        if stage != "fit":
            return
        # Lightning itself refuses gradient clipping and accumulation under manual optimisation.
        breaks = _breaking(trainer)
        lines = breaks + _contradicting(trainer, self.session.plan)
        if lines:
            kind = PrivacyRefusal if breaks else InvalidInput
            raise kind("private training refuses settings of the Trainer:\n- " + "\n- ".join(lines))
        check_module(pl_module, self.session)
        if self._folder is not None:
            self._states = SessionStates(self._folder, _output_folders(trainer))
        elif any(not getattr(saves, "save_weights_only", False) for saves in trainer.checkpoint_callbacks):
            raise InvalidInput(
                "checkpoints need state_folder=, a separate folder for the session's state with the secret "
                "key of the noise. Pass state_folder= to PrivateSteps. If you will not resume, use "
                "Trainer(enable_checkpointing=False) or ModelCheckpoint(save_weights_only=True)."
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the optimizer. To resume a run, load the session's state of the checkpoint."""
        if [*trainer.optimizers] != [self._optimizer]:
            raise PrivacyRefusal(
                "configure_optimizers must return only self.private.optimizer. Pass a schedule to "
                "PrivateSteps(schedule=...)."
            )
        if self._states is not None:
            # by now loggers report their folders
            self._states = SessionStates(self._states.folder, _output_folders(trainer))
        self._resume()
        if trainer.global_step != self.session.steps_done:
            raise InvalidInput(
                f"the Trainer is at step {trainer.global_step} and the session at {self.session.steps_done}. "
                "To resume, pass ckpt_path= to Trainer.fit. For a new run make a new session, which spends "
                "budget again."
            )
        self._trainer, self._module = trainer, pl_module

    def _resume(self) -> None:
        steps, self._resume_at = self._resume_at, None
        if steps is None:
            if self._states is not None and self.session.steps_done == 0:
                self._states.check_fresh("To resume it pass ckpt_path= to Trainer.fit.")
            return
        if self._states is None:
            raise InvalidInput(
                "PrivateSteps cannot resume without the session's state. Pass state_folder= of the "
                "interrupted run."
            )
        self._states.load(self.session, steps)
        self._optimizer.follow()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Raise an error unless ``training_step`` took exactly one private step for this batch."""
        after = int(batch["ticket"]) + 1 if isinstance(batch, dict) and "ticket" in batch else -1
        if not trainer.global_step == self.session.steps_done == after:
            raise PrivacyRefusal(
                f"training_step must take one private step: the session is at step "
                f"{self.session.steps_done} and the Trainer at {trainer.global_step}. Call "
                "self.private.step(batch) once in each training_step, and no other step."
            )

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write the session's state to ``state_folder``, before Lightning writes the checkpoint."""
        if self._states is not None:
            self._states.save(self.session)
            self._states.keep_last(self._kept)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Store the step of the checkpoint, to find the session's state of this step."""
        self._resume_at = int(checkpoint["global_step"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of ``schedule`` for a checkpoint. It contains nothing secret."""
        return {"schedule": None if self.schedule is None else self.schedule.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of ``schedule`` from a checkpoint."""
        if self.schedule is not None and state_dict["schedule"] is not None:
            self.schedule.load_state_dict(state_dict["schedule"])

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Forget the Trainer, so that the next call of fit checks all settings again."""
        self._trainer = self._module = None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget the Trainer at the end of fit."""
        self._trainer = self._module = None

    def _end_early(self) -> None:
        """Stop the Trainer because the ledger refused the next steps."""
        if self._trainer is not None:
            self._trainer.should_stop = True


def _output_folders(trainer: Trainer) -> dict[str, str]:
    folders = {
        f"{type(saves).__name__}'s dirpath": getattr(saves, "dirpath", None)
        for saves in trainer.checkpoint_callbacks
    }
    folders |= {
        f"{type(logger).__name__}'s log_dir": getattr(logger, "log_dir", None) for logger in trainer.loggers
    }
    return {name: str(folder) for name, folder in folders.items() if folder}


def _breaking(trainer: Any) -> list[str]:
    lines = []
    if not isinstance(trainer.strategy, SingleDeviceStrategy) or trainer.world_size > 1:
        lines.append(
            f"strategy={type(trainer.strategy).__name__} on {trainer.world_size} devices: the session trains "
            'on one device. Set strategy="auto", devices=1.'
        )
    if str(trainer.precision) != "32-true":
        lines.append(
            f"precision={str(trainer.precision)!r}: it converts the model after the session was made, or "
            'scales gradients before noise. Set "32-true", and convert the model before you make the '
            "session."
        )
    if trainer.overfit_batches:
        lines.append(
            f"overfit_batches={trainer.overfit_batches}: the plan does not account for repeated batches. "
            "Remove it."
        )
    return lines


def _contradicting(trainer: Any, plan: Plan) -> list[str]:
    lines = []
    if trainer.max_steps != plan.steps:
        lines.append(
            f"max_steps={trainer.max_steps}: the plan and its noise are for {plan.steps} steps. Set "
            f"max_steps={plan.steps}."
        )
    passes = -(-plan.steps // min(plan.steps_per_epoch, plan.steps))
    if trainer.max_epochs not in (None, -1) and trainer.max_epochs < passes:
        lines.append(
            f"max_epochs={trainer.max_epochs}: the plan's steps are {passes} passes over the records. Remove "
            "it."
        )
    if trainer.min_steps:
        lines.append(f"min_steps={trainer.min_steps}: a ledger may end the run earlier. Remove it.")
    if trainer.limit_train_batches != 1.0:
        lines.append(
            f"limit_train_batches={trainer.limit_train_batches}: the plan has {plan.steps_per_epoch} steps "
            "in a pass over the records. Remove it; for a short trial, plan few steps."
        )
    return lines


def check_module(module: Any, session: PrivateSession) -> None:
    name = type(module).__name__
    if module.automatic_optimization:
        raise PrivacyRefusal(
            f"{name} has automatic optimisation, so Lightning would step without noise. Set "
            "self.automatic_optimization = False in its __init__, and call self.private.step(batch) in "
            "training_step."
        )
    if not any(part is session.model for part in module.modules()):
        raise InvalidInput(
            f"{name} does not contain the session's model, {type(session.model).__name__}, so Lightning "
            "would validate and save another one. Make the session with a model that is part of the module."
        )
