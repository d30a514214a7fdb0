"""What the verbs show: a progress bar, a table, paths of pictures."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tacit.training.loop import Row

__all__ = ["Preparations", "TrainingBar", "catching_interrupt", "console", "progress_bar"]

console = Console(highlight=False)


def progress_bar(*columns: str) -> Progress:
    """A bar with a count, the time left and further columns of text; hidden where nobody watches."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        *(TextColumn(column) for column in columns),
        console=Console(stderr=True, highlight=False),
        disable=not Console(stderr=True).is_terminal,
    )


class Preparations:
    """A bar for each long preparation: call it with (title, done, total)."""

    def __init__(self) -> None:
        self._bar = progress_bar()
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Preparations:
        self._bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._bar.stop()

    def __call__(self, title: str, done: int, total: int) -> None:
        if title not in self._tasks:
            self._tasks[title] = self._bar.add_task(title, total=total)
        self._bar.update(self._tasks[title], completed=done)


class TrainingBar:
    """Loss, epsilon spent and time left, as the steps go by; a watcher of the loop."""

    def __init__(self, title: str, steps: int, done: int, *, private: bool) -> None:
        self._bar = progress_bar(
            "loss {task.fields[loss]}", "ε ≤ {task.fields[epsilon]}", "{task.fields[test]}"
        )
        mark = "" if private else " [NOT PRIVATE: test key]"
        self._task = self._bar.add_task(
            title + mark, total=steps, completed=done, loss="–", epsilon="–", test=""
        )

    def __enter__(self) -> TrainingBar:
        self._bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._bar.stop()

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        """Move the bar."""
        shown = "hidden" if loss is None else f"{loss:.3f}"
        self._bar.update(self._task, completed=steps, loss=shown, epsilon=f"{epsilon:.3f}")

    def on_row(self, row: Row) -> None:
        """Show the newest test score."""
        if row.test_score is not None:
            self._bar.update(self._task, test=f"test {row.test_score:.3f}")


class _Flag:
    def __init__(self) -> None:
        self.raised = False

    def __call__(self) -> bool:
        return self.raised


@contextmanager
def catching_interrupt() -> Iterator[_Flag]:
    """The first Ctrl-C asks the loop to stop after its step; the second stops at once."""
    flag = _Flag()

    def handler(_number: int, _frame: FrameType | None) -> None:
        if flag.raised:
            raise KeyboardInterrupt
        flag.raised = True
        console.print("\nStopping after this step; Ctrl-C again stops at once.")

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)
