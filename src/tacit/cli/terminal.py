"""Functions that make options and arguments of commands, and options that several commands share."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self, TextIO, TypeAlias

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tacit.errors import InvalidInput, TacitError, launched
from tacit.rounding import finite, shown_epsilon

if TYPE_CHECKING:
    from tacit.plan import Plan
    from tacit.training.loop import MetricsRow
    from tacit.training.ranks import Ranks


def option(about: str, *names: str, **settings: Any) -> Any:
    """Make an option whose help shows no default."""
    return typer.Option(*names, help=about, show_default=False, **settings)


def argument(about: str, **settings: Any) -> Any:
    """Make an argument whose help shows no default."""
    return typer.Argument(help=about, show_default=False, **settings)


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunFolder = Annotated[Path, argument("The folder of a run, or a copy of it.")]
RunFile = Annotated[Path, argument("The run file, in TOML.", metavar="FILE")]
FinishedRun = Annotated[Path, argument("The folder of a finished run.")]
ReportFolder = Annotated[
    Path | None, option("Folder of the report; default: one in RUN/private.", metavar="DIR")
]
NoInput = Annotated[bool, typer.Option("--no-input", help="Ask no questions, even in a terminal.")]
Factory = Annotated[str | None, option('For your own model: the "module:function" that makes it.')]
Epsilon = Annotated[float | None, option("The privacy budget, epsilon.")]
Delta = Annotated[float | None, option("Failure probability, below 1 / records; no default.")]
Adjacency = Annotated[
    str | None, option("Neighbouring data sets: add-remove, replace-one or zero-out; no default.")
]
Figure = Annotated[Path | None, option("Draw the result to this file.")]
InDatabase = Annotated[str | None, option("Table in a database: table or schema.table.")]


def given_options(context: typer.Context, *names: str) -> list[str]:
    """Return those of the named parameters that the user has given, as they are written in a shell."""
    flags = {param.name: param.opts[0] for param in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in names}
    explicit = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
    return [flags[name] if flags[name].startswith("-") else "RUN.toml" for name in explicit]


def refuse(context: typer.Context, command: str, *names: str) -> None:
    """Refuse parameters that ``command``, as called, would ignore."""
    if options := given_options(context, *names):
        raise InvalidInput(
            f"{command} does not use {' or '.join(options)}. Remove it; see {context.command_path} --help."
        )


def words(context: typer.Context, **changed: object) -> list[str]:
    """Return the user's arguments as words for a shell, with those in ``changed`` and without ``--json``."""
    shell_words: list[str] = []
    for param in context.command.params:
        name, flag = str(param.name), param.opts[0]
        value = (
            changed[name]
            if name in changed
            else context.params[name]
            if given_options(context, name)
            else None
        )
        if value is None or value is False or name == "as_json":
            continue
        shell_words += [flag] if flag.startswith("-") else []
        shell_words += [] if value is True else [str(value)]
    return shell_words


INTERRUPTED = 130
"""The exit code after a Ctrl-C."""
console = Console(highlight=False, markup=False, emoji=False)
messages = Console(stderr=True, highlight=False, markup=False, emoji=False)


def say(text: RenderableType, style: str | None = None) -> None:
    """Print text, wrapped on a terminal but not in a file."""
    console.print(text, style=style, soft_wrap=not console.is_terminal)


def show_line(text: RenderableType, style: str | None = None) -> None:
    """Print one line, such as one with a path, that is never wrapped."""
    console.print(text, style=style, soft_wrap=True)


def note(text: str) -> None:
    """Print a remark on stderr."""
    messages.print(f"note: {text}", soft_wrap=True)


def can_ask(*, no_input: bool, as_json: bool) -> bool:
    """Return whether a command may ask questions: it runs in a terminal, and no option forbids it."""
    return not no_input and not as_json and sys.stdin.isatty() and messages.is_terminal


def plain_table(*names: str, **settings: Any) -> Table:
    """Make a table without a frame."""
    return Table(*names, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, **settings)


def table_of_figures(
    words: Sequence[str], figures: Sequence[str], padding: int | tuple[int, int] = (0, 1)
) -> Table:
    """Make a table without a frame, with columns of words, then right-aligned numbers; no cell is cut."""
    table = plain_table(padding=padding)
    for name in words:
        table.add_column(Text(name), no_wrap=True)
    for name in figures:
        table.add_column(Text(name), justify="right", no_wrap=True)
    return table


def print_whole(table: Table) -> None:
    """Print a table at its full width: a narrow terminal wraps the lines, and nothing is cut."""
    whole = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    Console(width=max(whole, 1)).print(table)


def progress_bar(*columns: str) -> Progress:
    """Make a bar with a count, the time left and further columns; hidden unless stderr is a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        *(TextColumn(column, markup=False) for column in columns),
        console=messages,
        disable=messages.quiet or not messages.is_terminal,
    )


class _Bar:
    """A bar that is shown within a ``with`` block."""

    def __init__(self, *columns: str) -> None:
        self._bar = progress_bar(*columns)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._bar.stop()


class Preparations(_Bar):
    """A bar for each long preparation: call it with (title, done, total).

    A file or a pipe gets a line at the start of each long one, and then at most one every ten seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tasks: dict[str, TaskID] = {}
        self._told = time.monotonic()

    def __call__(self, title: str, done: int, total: int) -> None:
        if is_new := title not in self._tasks:
            self._tasks[title] = self._bar.add_task(escape(title), total=total)
        self._bar.update(self._tasks[title], completed=done)
        now = time.monotonic()
        pause = 0.5 if is_new else 10.0  # seconds
        if not messages.is_terminal and done < total and now - self._told > pause:
            self._told = now
            messages.print(f"{title}: {done:,} of {total:,}", soft_wrap=True)

    def confirm(self, text: str, question: str) -> bool:
        """Show a text, ask a question, and return whether the answer is yes; the bars wait."""
        self._bar.stop()
        messages.print(text)
        try:
            answer = messages.input(f"\n{question} [y/N] > ", markup=False)
        except EOFError:
            answer = ""
        self._bar.start()
        return answer.strip().casefold() in ("y", "yes")


class TrainingBar(_Bar):
    """A watcher of the loop that shows loss, spent epsilon and time left after each step.

    A terminal shows a bar; a file or a pipe gets one line for each row of metrics.
    """

    def __init__(self, title: str, plan: Plan, done: int, *, private: bool) -> None:
        super().__init__("{task.fields[loss]}", "ε ≤ {task.fields[epsilon]}", "{task.fields[test]}")
        self._plan = plan
        self._name = title if len(title) <= 16 else f"{title[:15]}…"
        if not private:
            self._name = f"NOT PRIVATE (test key) {self._name}"
        self._task = self._bar.add_task(
            escape(self._name), total=plan.steps, completed=done, loss="noisy loss –", epsilon="–", test=""
        )

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        """Move the bar."""
        from tacit.training.progress import SMOOTHING, loss_std, smoothed_std

        std = smoothed_std(loss_std(self._plan), 1.0 - SMOOTHING**steps)
        self._bar.update(self._task, completed=steps, loss=_loss(loss, std), epsilon=shown_epsilon(epsilon))

    def on_row(self, row: MetricsRow) -> None:
        """Show the newest test score."""
        score = "" if row.test_score is None else f"test {row.test_score:.3f}"
        self._bar.update(self._task, test=score)
        if not messages.is_terminal:
            messages.print(
                f"{self._name}: step {row.steps} of {self._plan.steps}, {_loss(row.loss, row.loss_std)}, "
                f"ε ≤ {shown_epsilon(row.epsilon)}, {score}".rstrip(", "),
                soft_wrap=True,
            )


def _loss(loss: float | None, std: float | None) -> str:
    from tacit.training.progress import noisy

    return "loss hidden" if loss is None else f"noisy loss {noisy(loss, std)}"


@contextlib.contextmanager
def catching_interrupt() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C or SIGTERM stop the loop after the current step, and the second one at once."""
    stop = threading.Event()

    def handler(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        with contextlib.suppress(RuntimeError):  # the signal interrupted another print
            messages.print("Stopping after this step; a second Ctrl-C stops immediately.")

    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop.is_set
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def print_json(data: dict[str, object]) -> None:
    """Print JSON and nothing else on stdout; NaN and infinite numbers become null."""
    typer.echo(json.dumps(finite(data), indent=2, allow_nan=False))


def refused_data(problem: TacitError | None) -> dict[str, object] | None:
    """Return a refusal as plain data: its message and, if a budget was exceeded, the budget's numbers."""
    from tacit.ledger.records import Refused

    if problem is None:
        return None
    return {"message": str(problem)} | (problem.to_data() if isinstance(problem, Refused) else {})


Join: TypeAlias = "Callable[[str, bool], Ranks | None]"
"""A function from the name of a device to the processes that train on it; None for a single process."""


@contextlib.contextmanager
def one_voice() -> Iterator[Join]:
    """Join the other processes of this command, if there are any, and let only the first one print.

    A launcher sends SIGTERM to all processes as soon as one ends with a code other than 0. Until the command
    is known to have failed, SIGTERM counts as a Ctrl-C. Afterwards it is ignored: it would cut the message.
    """
    launch = launched()
    if launch.processes == 1:
        yield _alone
        return
    from tacit.runs.train import Meeting  # imports torch

    console.quiet = messages.quiet = launch.rank > 0
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        meeting = Meeting(launch)
        with warnings.catch_warnings():
            if launch.rank > 0:
                warnings.simplefilter("ignore")  # the first process shows the same warnings
            try:
                yield meeting.join
            except BaseException as problem:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                messages.quiet = not meeting.should_print(problem)
                raise
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        meeting.leave()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def torchrun() -> list[str]:
    """Return the shell words that start this launch again, up to Tacit's arguments.

    They are complete only if all processes are on one machine.
    """
    launch = launched()
    if launch.processes == 1:
        return ["tacit"]
    machines = -(-launch.processes // launch.processes_here)
    where = [] if machines == 1 else ["--nnodes", str(machines), "..."]
    return ["torchrun", *where, "--nproc-per-node", str(launch.processes_here), "-m", "tacit"]


def _alone(device: str, own_records: bool) -> None:
    """Return None: there is no other process."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _OutlivingReader(io.FileIO):
    """A pipe that takes everything after its reader has gone, such as ``head``.

    So each command runs to its end, and its verdict alone decides the exit code.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def outliving_reader(stream: TextIO) -> TextIO:
    """Return the stream, or if it is a pipe, one that takes everything after the reader has gone."""
    if not isinstance(stream, io.TextIOWrapper) or not stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
        return stream
    pipe = io.BufferedWriter(_OutlivingReader(stream.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(
        pipe, encoding=stream.encoding, errors=stream.errors, line_buffering=stream.line_buffering
    )
