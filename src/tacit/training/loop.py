"""The training loop of a session, with evaluations, checkpoints and progress watchers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from tacit.errors import InvalidInput, check_integer
from tacit.notebook import grid
from tacit.rounding import round_up
from tacit.training.evaluation import Evaluation
from tacit.training.progress import SMOOTHING, loss_std, noisy, smoothed_std
from tacit.training.session import PrivateSession


@dataclass(frozen=True)
class MetricsRow:
    """One row of a run's metrics: the epsilon spent, and an evaluation, after ``steps`` steps.

    Everything is public or accounted for, except exact scores of test records.  ``loss`` is noisy and
    smoothed, with standard deviation ``loss_std`` from noise and sampling.  ``test_auc`` is for two classes.

    >>> MetricsRow(steps=100, epsilon=0.5, loss=1.2, test_score=0.8, test_loss=0.6).epsilon
    0.5
    """

    steps: int
    epsilon: float
    loss: float | None
    test_score: float | None
    test_loss: float | None
    loss_std: float | None = None
    test_auc: float | None = None


class Watcher(Protocol):
    """Receives the progress of a run from :func:`train`; the methods must return quickly.

    >>> class Printer:
    ...     def on_step(self, steps, epsilon, loss):
    ...         pass
    ...     def on_row(self, row):
    ...         print(row.steps, row.epsilon)
    >>> watcher: Watcher = Printer()
    >>> watcher.on_row(MetricsRow(100, 0.5, None, None, None))
    100 0.5
    """

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        """Receive the progress after each step.

        Args:
            steps: the number of steps done.
            epsilon: an upper bound on the epsilon spent; exact at a row of metrics.
            loss: the noisy training loss, smoothed; None without a loss report.
        """

    def on_row(self, row: MetricsRow) -> None:
        """Receive a new row of metrics."""


@dataclass
class History:
    """The rows of metrics so far, and the bias-corrected running mean of the loss."""

    rows: list[MetricsRow] = field(default_factory=list)
    smoothed: float | None = None
    weight: float = 0.0

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> History:
        return cls([MetricsRow(**row) for row in data["rows"]], data["smoothed"], data["weight"])

    def _repr_html_(self) -> str:
        head = ("steps", "epsilon", "noisy loss", "test score", "test loss")
        body = [
            (
                f"{row.steps:,}",
                round_up(row.epsilon),
                "" if row.loss is None else noisy(row.loss, row.loss_std),
                *map(_figure, (row.test_score, row.test_loss)),
            )
            for row in self.rows
        ]
        return grid("Metrics of a private run", head, body)

    def take(self, loss: float | None) -> None:
        if loss is None:
            return
        past = 0.0 if self.smoothed is None else self.smoothed * self.weight
        self.weight = SMOOTHING * self.weight + (1 - SMOOTHING)
        self.smoothed = (SMOOTHING * past + (1 - SMOOTHING) * loss) / self.weight


def train(
    session: PrivateSession,
    *,
    evaluate: Callable[[nn.Module], Evaluation] | None = None,
    rows: int = 20,
    watchers: tuple[Watcher, ...] = (),
    checkpoint: Path | None = None,
    checkpoint_every: int | None = None,
    history: History | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: bool | None = None,
) -> History:
    """Take all remaining steps of a session, and return the metrics of the run.

    The run ends early if the ledger has too little budget; ``session.stopped`` then gives the reason.  On
    :class:`DatedRecords`, it ends at the last day with complete data.  With several ranks, only rank 0
    evaluates the model, calls the watchers and returns metrics.

    Args:
        session: the session to train.
        evaluate: a function that takes the model and returns metrics. With ``ema_decay``, it gets the model
            with averaged weights.
        rows: how many times the loop evaluates and records metrics over the whole plan, evenly spaced.
        watchers: objects that receive the progress; see :class:`Watcher`.
        checkpoint: the path of the resume state; None for no file.
        checkpoint_every: the number of steps between saves.  Default: save at each row of metrics.
        history: the history of a run that you resume; None for a new run.
        should_stop: a function called after each step.  If it returns True, on any rank, the loop saves the
            state and ends.
        progress: whether to show a progress bar; None shows it in a notebook or terminal only.

    >>> from tacit import Plan, PrivateSession
    >>> import torch
    >>> model = nn.Linear(3, 2)
    >>> plan = Plan.with_noise(noise_multiplier=2.0, steps=2, records=64, clipping=1.0, delta=1e-3,
    ...                        adjacency="add-remove", unit="row")
    >>> def loss(model, x, y):
    ...     return nn.functional.cross_entropy(model(x), y, reduction="none")
    >>> data = torch.randn(64, 3), torch.arange(64) % 2
    >>> session = PrivateSession(model, torch.optim.SGD(model.parameters(), lr=0.1), data, plan, loss=loss)
    >>> history = train(session, rows=2, progress=False)
    >>> [row.steps for row in history.rows], history.rows[-1].epsilon >= session.epsilon
    ([1, 2], True)
    """
    _check_arguments(session, evaluate, watchers, checkpoint_every)
    plan = session.plan
    every = -(-plan.steps // check_integer("rows", rows, low=1))
    marks = sorted({*range(every, plan.steps + 1, every), plan.steps})
    spent = dict(zip(marks, plan.epsilon_after(marks), strict=True))
    lines = History() if history is None else history
    ranks = session.ranks

    def report_step() -> tuple[float]:
        """Report the step, and return whether this process wants to stop."""
        done = session.steps_done
        if ranks.first:
            for watcher in watchers:
                watcher.on_step(done, next(spent[mark] for mark in marks if mark >= done), lines.smoothed)
            if done in spent:
                _add_row(session, spent[done], lines, evaluate, watchers)
        return (float(should_stop()),)

    for step in session.batches(progress=progress):
        report = session.step(step)
        lines.take(report.loss)
        done = session.steps_done
        due = done in spent if checkpoint_every is None else done % checkpoint_every == 0
        stop = ranks.total(report_step)[0] > 0.0  # all stop after the same step
        if checkpoint is not None and (due or stop or done == plan.steps):
            session.save(checkpoint, extra=lines.to_plain())
        if stop:
            break
    if session.stopped is not None or session.steps_done == session.steps_there < plan.steps:
        _finish_early(session, lines, evaluate, watchers, checkpoint)
    return lines


def _check_arguments(session: object, evaluate: object, watchers: object, checkpoint_every: object) -> None:
    if not isinstance(session, PrivateSession):
        raise InvalidInput(f"session must be a tacit.PrivateSession; got {type(session).__name__}.")
    if evaluate is not None and not callable(evaluate):
        raise InvalidInput(
            "evaluate must be a function of the model, such as lambda model: tacit.evaluate(model, x, y); "
            f"got {type(evaluate).__name__}."
        )
    if not isinstance(watchers, tuple | list):
        raise InvalidInput(f"watchers must be a tuple of Watcher objects; got {type(watchers).__name__}.")
    if checkpoint_every is not None:
        check_integer("checkpoint_every", checkpoint_every, low=1)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _finish_early(
    session: PrivateSession,
    progress: History,
    evaluate: Callable[[nn.Module], Evaluation] | None,
    watchers: tuple[Watcher, ...],
    checkpoint: Path | None,
) -> None:
    """Add a row of metrics, and save the resume state, if a run ends before the end of its plan."""

    def add() -> None:
        if not progress.rows or progress.rows[-1].steps < session.steps_done:
            _add_row(session, session.epsilon, progress, evaluate, watchers)

    session.ranks.only_first(add)
    if checkpoint is not None:
        session.save(checkpoint, extra=progress.to_plain())


def _add_row(
    session: PrivateSession,
    epsilon: float,
    progress: History,
    evaluate: Callable[[nn.Module], Evaluation] | None,
    watchers: tuple[Watcher, ...],
) -> None:
    evaluation = None if evaluate is None else evaluate(session.current_model)
    row = MetricsRow(
        steps=session.steps_done,
        epsilon=epsilon,
        loss=progress.smoothed,
        test_score=None if evaluation is None else evaluation.score,
        test_loss=None if evaluation is None else evaluation.loss,
        loss_std=smoothed_std(loss_std(session.plan), progress.weight),
        test_auc=None if evaluation is None else evaluation.auc,
    )
    progress.rows.append(row)
    for watcher in watchers:
        watcher.on_row(row)
