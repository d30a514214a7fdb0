"""One run, from its configuration to its folder, in one process or in those of a launcher."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import final

import torch
from torch import distributed as dist
from torch import nn

from tacit.audits.attacks import Canary
from tacit.datasets import Dataset
from tacit.errors import InvalidInput, Launch, MissingExtra, ProcessLost
from tacit.files import remove_leftovers, write_atomically
from tacit.models.additive import released
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.report.evaluation import warn_if_public_is_better
from tacit.report.model_card import model_card
from tacit.report.statement import make_statement
from tacit.runs.build import (
    check_days,
    check_own_records,
    days_left,
    how_to_test,
    make_charges,
    make_session,
    notes_on,
    opened_batches,
    owned_by,
)
from tacit.runs.canaries import draw_canaries, save_canaries
from tacit.runs.checks import (
    CheckedRun,
    canary_file,
    check_empty,
    check_run,
    declarations_file,
    resume_state,
    slot_files,
    sole_user,
)
from tacit.runs.config import Config
from tacit.runs.declarations import Confirm, about_declarations, check_fit
from tacit.runs.kinds import Progress, silent
from tacit.runs.learners import MODEL, Outcome, learner_of
from tacit.runs.metrics import (
    DATA,
    PAGE,
    PICTURES,
    CsvWatcher,
    Tracker,
    draw_run,
    figures_of,
    public_parameters,
    trackers,
    write_evaluation,
)
from tacit.runs.model import Learner, Task, begin_step, task_of
from tacit.runs.sections import FEATURES, LedgerSection
from tacit.training.charges import StepCharges
from tacit.training.evaluation import Evaluation
from tacit.training.loop import History, MetricsRow, Watcher, train
from tacit.training.ranks import Alone, ProcessRanks, Ranks, check_one_process
from tacit.training.resume import saved_generator
from tacit.training.scoring import score_held_out
from tacit.training.session import PrivateSession

_PATIENCE = timedelta(seconds=3)  # the time that a failed process waits for the first one's error


@final
class Meeting:
    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._ranks: ProcessRanks | None = None
        try:
            self._store, self._rank, self._processes = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        except (ValueError, RuntimeError) as problem:
            reason = str(problem).strip().partition("\n")[0].rstrip(".")
            raise InvalidInput(
                f"process {launch.rank} of {launch.processes} cannot reach the others: {reason}. Start all "
                "with torchrun, which connects them."
            ) from None

    def join(self, device: str, own_records: bool) -> ProcessRanks:
        """Form the process group for training on ``device``: gloo for a CPU, NCCL for CUDA."""
        kind, _, number = device.partition(":")
        if kind == "cuda":
            if number:
                raise InvalidInput(
                    f'[run] device = "cuda:{number}" is one GPU, and each process needs its own. Set device '
                    '= "cuda" to give each process a GPU.'
                )
            here, gpus = self._launch.processes_here, torch.cuda.device_count()
            if here > gpus:
                raise InvalidInput(
                    f'[run] device = "cuda" needs one GPU per process, but {here} processes were started on '
                    f"a machine with {gpus} GPUs. Start {gpus or 'none'} there, or train on the CPU."
                )
            torch.cuda.set_device(self._launch.rank_here)
        elif kind != "cpu":
            raise InvalidInput(
                f'[run] device = "{device}": several processes need "cpu" or "cuda". Set one of these, or '
                "start one process."
            )
        dist.init_process_group(
            "nccl" if kind == "cuda" else "gloo",
            store=dist.PrefixStore("group", self._store),  # type: ignore[attr-defined]
            rank=self._rank,
            world_size=self._processes,
        )
        self._ranks = ProcessRanks(own_records=own_records)
        return self._ranks

    def leave(self) -> None:
        """Wait for all processes, since a launcher stops the others as soon as one ends with an error."""
        if self._ranks is not None:
            self._ranks.total(lambda: ())
            dist.destroy_process_group()

    def should_print(self, problem: BaseException) -> bool:
        """Return whether this process prints ``problem``.

        The first process always prints its error.  Others print theirs if it differs from that error, and is
        neither an interrupt nor the loss of a process.
        """
        text = str(problem)
        with contextlib.suppress(RuntimeError):  # the store is gone, or the first process had no error
            if self._rank == 0:
                self._store.set("error", text)
                return True
            self._store.wait(["error"], _PATIENCE)
            repeats = self._store.get("error").decode() == text
            return not (repeats or isinstance(problem, ProcessLost | KeyboardInterrupt))
        return True


# The folder of a run:
#
# model.safetensors     the weights, with all that is needed to predict, for release; a language model has
#     the files of :mod:`tacit.runs.language_model` instead
# config.toml           a copy of the configuration
# statement.txt, .json  the privacy statement: what is guaranteed, and what is not
# README.md             the model card: guarantee, what is not covered, how to use the model
# metrics.csv           steps, epsilon, noisy loss, test metrics
# evaluation.json, .html  the model compared with the baseline: matrix, curves, errors
# confusion.png         for classes: the confusion matrix
# columns.png           for a linear model of a table: the contribution of each column
# progress.png          epsilon and the test score over the steps; without such scores, the noisy loss
# privacy.png           epsilon as a function of delta
# slots.npy             with [audit] slots: the releases about the slots, step by step
# private/coins.npy     with [audit] slots: which slots took part, to audit the run
# private/canaries.json with [canaries]: the secrets, and which of them were planted
# private/declarations.txt  for a table: how its declared columns fail to fit it, for the curator alone
# private/resume.pt     the state to resume from, WITH THE KEY OF THE NOISE: never release it
_OUTPUTS = ("config.toml", "statement.txt", "statement.json", "README.md", "metrics.csv", DATA)


class Interrupted(KeyboardInterrupt):
    """A Ctrl-C before the first step of a run; the message states what was saved and charged."""


@dataclass(frozen=True)
class Run:
    """A run that is ready to start. :func:`prepare` makes it from a configuration and checks it.

    >>> import tempfile
    >>> import tacit.runs
    >>> demo, folder = Path(tacit.runs.__file__).with_name("demo.toml"), Path(tempfile.mkdtemp()) / "run"
    >>> run = prepare(demo, out=folder)
    >>> run.start(should_stop=lambda: True)  # asked after each step: it ends after the first
    >>> run.session.steps_done, run.plan.steps, run.ended
    (1, 30, False)
    >>> run = prepare(demo, out=folder, resume=True)
    >>> run.start().statement.epsilon <= 3.0
    True
    >>> run.ended
    True
    """

    config: Config
    config_text: str
    folder: Path
    data: Dataset
    session: PrivateSession
    history: History
    resumed: bool = False
    canaries: tuple[Canary, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.session.plan

    @property
    def ended(self) -> bool:
        """Whether the run can't take a step now. It is complete, or it needs more budget or later records."""
        return self.session.steps_done == self.session.steps_there or self.session.stopped is not None

    @property
    def _task(self) -> Task:
        return task_of(self.data)

    @cached_property
    def result(self) -> Learner:
        """The object that saves the run's model, in the form that suits the task."""
        return learner_of(self.config, self.data)

    def start(
        self, watchers: tuple[Watcher, ...] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Outcome | None:
        """Train to the end of the plan, write the run's folder, and return the outcome.

        If the ledger refuses the next steps, the run ends with the model so far. For a finished run,
        ``start`` only writes the folder again.

        After a stop by ``should_stop``, a crash or a full disk, ``prepare(..., resume=True)`` continues from
        the last saved state.

        In distributed training, call ``start`` in every process. Only the first process calls watchers,
        writes files and returns the outcome.

        Args:
            watchers: objects that follow the run, such as a progress line.
            should_stop: a function that the run calls after each step. If it returns True, training stops,
                and ``start`` returns None.
        """
        state, ranks = resume_state(self.folder), self.session.ranks
        with ExitStack() as stack:
            ranks.only_first(lambda: self._open(stack))
            self.session.save(state, extra=self.history.to_plain())
            ranks.only_first(self._write_declarations)
            all_watchers = ranks.only_first(lambda: (*watchers, *self._metric_writers(stack))) or ()
            self._begin_step()

            def after_a_step() -> bool:
                self._begin_step()
                return should_stop()

            history = train(
                self.session,
                evaluate=None if self.plan.score_report is not None else self._evaluate,
                rows=self.config.run.rows,
                watchers=all_watchers,
                checkpoint=state,
                checkpoint_every=self.config.run.checkpoint_every,
                history=self.history,
                should_stop=after_a_step,
                progress=False,  # the watchers show it
            )
            return ranks.only_first(lambda: self._finish(history.rows, all_watchers)) if self.ended else None

    def _begin_step(self) -> None:
        session = self.session
        begin_step(self.config, session.model, session.optimizer, session.steps_done, self.plan.steps)

    def _open(self, stack: ExitStack) -> None:
        """Lock and prepare the folder; ``stack`` releases the lock."""
        trackers(self.config)  # raises if one is not installed, before anything is written
        stack.enter_context(sole_user(self.folder))
        if self.session.charges is not None:
            stack.enter_context(closing(self.session.charges.ledger))
        if not self.resumed:
            check_empty(self.folder, self.config_text)
        names = (*_OUTPUTS, PAGE, *PICTURES, MODEL)
        for path in (resume_state(self.folder), *(self.folder / name for name in names)):
            remove_leftovers(path)
        write(self.folder / "config.toml", self.config_text)
        self.result.begin(self.folder, resumed=self.resumed)

    def _write_declarations(self) -> None:
        """Write the curator's report on whether the declared columns fit the first rows of the table."""
        if self.config.data.table is not None and Path(self.config.data.table).is_file():
            report = about_declarations(self.config, len(self.data.train.inputs), self.data.owners)
            write(declarations_file(self.folder), report)

    def _metric_writers(self, stack: ExitStack) -> Iterator[Watcher]:
        """Yield the writers of metrics, with the metrics so far already written.

        They are made after the first resume state, since a folder with files but no state is refused.
        """
        parameters, rows = public_parameters(self.config), self.history.rows
        for kind in trackers(self.config):
            yield stack.enter_context(closing(kind(self.folder, rows, parameters)))
        yield CsvWatcher(self.folder / "metrics.csv", rows)

    def _evaluate(self, model: nn.Module) -> Evaluation:
        """Evaluate the model exactly, on records that belong to no ledger's data set."""
        return self.result.evaluate(model)

    def _score(self, model: nn.Module) -> Evaluation:
        """Evaluate the final model on the test records, with noise if the plan has a score report."""
        if self.plan.score_report is None:
            return self._evaluate(model)
        owners = None if owned_by(self.config) is None else self.data.test_owners
        test = self._task.evaluated(self.data.test)
        groups = self.config.groups(self.data.encoder, test.inputs.numpy())
        return self._task.in_words(score_held_out(self.session, *test, owners=owners, groups=groups))

    def _finish(self, rows: list[MetricsRow], watchers: tuple[Watcher, ...]) -> Outcome:
        session, plan = self.session, self.plan
        model = released(session.current_model)
        about = self.result.stated(model)
        notes = (*self.config.notes, *about.pop("notes"))
        statement = make_statement(
            session,
            data_source=self.data.source,
            notes=(*notes, *notes_on(self.config, self.data, session, self.canaries)),
            owned_by=owned_by(self.config),
            **about,
        )
        model_files = self.result.save(model, statement, self.folder)
        write(self.folder / "statement.txt", statement.to_text())
        write(self.folder / "statement.json", statement.to_json())
        for tracker in watchers:
            if isinstance(tracker, Tracker):
                tracker.keep(self.folder / "statement.json")
        evaluation = self._score(model)
        if evaluation.interval is not None:  # exact scores are in the rows already
            at, score = evaluation.steps, evaluation.score
            rows = [replace(row, test_score=score) if row.steps == at else row for row in rows]
            CsvWatcher(self.folder / "metrics.csv", rows)
        figures = figures_of(
            evaluation,
            self.config,
            plan,
            self.data,
            model,
            private=session.private,
            loss_remark=session.falling.said(),
        )
        figures |= self.result.compared(model, exact=evaluation.interval is None)
        warn_if_public_is_better(figures)
        facts = replace(self.result.card_facts(statement), statements=self.config.card)
        card = model_card(statement.data, facts, figures)
        write(self.folder / "README.md", card)
        files, remarks = [*model_files, *_OUTPUTS], []
        if self.config.audit.slots and session.stopped is not None:
            remarks.append("the coins of the audit slots stay secret, because the plan has steps left.")
        elif self.config.audit.slots:
            observed, coins = slot_files(self.folder)
            session.slot_evidence().save(observed, coins)
            files.append(observed.name)
        if self.canaries:
            save_canaries(self.canaries, canary_file(self.folder))
        try:
            files += write_evaluation(figures, statement.data["guarantee"], self.folder)
            files += draw_run(figures, rows, session, self.data, self.folder)
        except MissingExtra as problem:
            remarks.append(str(problem))
        return Outcome(
            self.folder,
            rows,
            evaluation,
            figures,
            statement,
            tuple(files),
            tuple(remarks),
            session.stopped,
            self.config.model.factory,
            self.result.used_by,
            days_left(self.config, plan, session.steps_done),
            how_to_test(self.config, plan, self.folder, len(self.data.test.inputs)),
        )


def prepare(
    path: Path | str,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    ledger: LedgerSection | None = None,
    batches: Path | None = None,
    ranks: Ranks | None = None,
    generator: Generator | None = None,
    progress: Progress = silent,
) -> Run:
    """Read a configuration file and prepare its run.

    Preparation computes no exact statistic of the data.

    Args:
        path: the TOML file.
        out: the folder for the run. Default: the folder that the file names, or ``runs/<name of the file>``.
        resume: whether to continue the run that is in this folder.
        ledger: settings of the ledger, which override those in the file.
        batches: the folder of batches that ``tacit batches`` wrote for this configuration.
        ranks: in distributed training, a :class:`tacit.training.ProcessRanks`. Call ``prepare`` in every
            process.
        generator: for tests only, a generator of :mod:`tacit.testing`.
        progress: a function that long preparations call with (title, done, total).

    Raises:
        BudgetExceeded: if the plan costs more than the ledger has left.
        InvalidInput: if the file or the data contain a mistake, or if the folder already contains a run.
        PrivacyRefusal: if the plan or the model has no proven guarantee, or a resumed run has other settings.
        Interrupted: if you press Ctrl-C during the preparation; the message says what was saved and charged.

    >>> import tempfile
    >>> import tacit.runs
    >>> demo = Path(tacit.runs.__file__).with_name("demo.toml")
    >>> run = prepare(demo, out=Path(tempfile.mkdtemp()) / "run")  # on bundled images
    >>> run.start().statement.epsilon <= 3.0
    True
    """
    if ranks is None:
        check_one_process()
    checked = check_run(path, out=out, resume=resume, ledger=ledger, batches=batches)
    return prepare_checked(checked, ranks=ranks, generator=generator, progress=progress)


def prepare_checked(
    checked: CheckedRun,
    *,
    ranks: Ranks | None = None,
    generator: Generator | None = None,
    progress: Progress = silent,
    confirm: Confirm | None = None,
) -> Run:
    """Prepare the run of a checked configuration; see :func:`prepare` and :func:`check_fit`."""
    if ranks is None:
        check_one_process()
    together = Alone() if ranks is None else ranks
    config, folder, plan, resume = checked.config, checked.folder, checked.plan, checked.resume
    mine = (checked.text, checked.resume)
    first = together.from_first(lambda: mine)

    def check() -> None:
        if mine != first:
            raise InvalidInput(
                f"process {together.rank} differs from process 0 in its run file or --resume. Start all "
                "processes with the same file and options."
            )

    together.each(check)
    check_own_records(config, together)
    batches = together.each(lambda: opened_batches(checked.batches))
    if resume:
        generator = together.each(lambda: saved_generator(resume_state(folder)))
    elif batches is not None:
        generator = batches.generator_for(plan)
    shared = together.share_secret(Generator.from_os() if generator is None else generator)
    charges = together.only_first(
        lambda: make_charges(checked.ledger, plan, shared, together, owned_by=owned_by(config))
    )
    try:
        together.only_first(lambda: None if charges is None or resume else charges.check_fits())
        # A resumed run by date reads new days.
        if not resume or config.data.date is not None:
            if config.data.own_records:
                together.each(lambda: check_fit(config, confirm if together.first else None))
            else:
                together.only_first(lambda: check_fit(config, confirm))
        data, session = make_session(
            config,
            plan=plan,
            charges=charges,
            generator=shared,
            ranks=ranks,
            batches=batches,
            private=folder / "private",
            progress=progress,
        )
        history = History.from_plain(session.load(resume_state(folder))) if resume else History()
        check_days(config, data, session)
    except KeyboardInterrupt:
        raise Interrupted(_left_behind(folder, charges, resume=resume)) from None
    planted = draw_canaries(config, shared)
    return Run(config, checked.text, folder, data, session, history, resumed=resume, canaries=planted)


def _left_behind(folder: Path, charges: StepCharges | None, *, resume: bool) -> str:
    """Describe what was saved and charged after a Ctrl-C before the first step."""
    if resume:
        return f"Stopped before the next step. The run in {folder} is unchanged; resume it with --resume."
    if charges is None or not charges.charged():
        if any((folder / "private" / FEATURES).glob("*.npy")):
            charged = "" if charges is None else " Nothing was charged."
            return (
                "Stopped while features of the public model were computed. The features so far are saved: "
                f"run the same command again to continue.{charged}"
            )
        nothing = "Nothing was saved" if charges is None else "Nothing was saved, and nothing charged"
        return f"Stopped before the first step. {nothing}: there is nothing to resume. Start again."
    first, stop = charges.span(0)
    return (
        f"Stopped before the first step. Steps {first} to {stop - 1} are charged to {charges.dataset!r}, "
        "because the preparation may have read the records; the charge stays. Nothing was saved, so there "
        "is nothing to resume; a new run is charged again."
    )


def write(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))
