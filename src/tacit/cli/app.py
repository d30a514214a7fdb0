"""The verbs of the command line, and the exit codes of errors."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import inspect
import io
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from rich.text import Text
from typer.core import TyperGroup
from typer.models import OptionInfo

from tacit import __version__
from tacit.cli.terminal import messages, print_json, refused_data
from tacit.errors import (
    LossWarning,
    PrivacyWarning,
    Spelling,
    TacitError,
    WeakSignalWarning,
    launched,
    reason_of,
    spelled,
)

# Newer versions of typer contain a copy of click, so the class comes from typer's public name.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_INTERRUPTED = 130
_GROUPS = ("ledger",)  # verbs with subcommands
_IN_FILE_OF = {  # verbs in the file of another verb
    "account": "plan",
    "predict": "attack",
    "generate": "attack",
    "export": "attack",
    "audit": "attack",
    "risk": "attack",
    "batches": "train",
    "check": "query",
    "certificate": "verify",
    "demo": "train",
    "playground": "train",
}
_WITHOUT_ARGUMENTS = ("demo", "playground")
_GROUPED = {
    "Start": {
        "demo": "Train a private model on bundled data.",
        "playground": "Watch a network train with and without privacy, in the browser.",
    },
    "Train": {
        "init": "Write a run file for your table, images or text.",
        "plan": "Rank batch sizes, steps and noise for a privacy budget.",
        "train": "Train a model with differential privacy from a run file.",
        "batches": "Write a run's batches from a large corpus, with Spark.",
    },
    "Use a model": {
        "predict": "Predict for new records.",
        "generate": "Sample text from a language model.",
        "export": "Export the model as ONNX or torch.export.",
    },
    "Test and prove": {
        "account": "Compute the privacy cost of a mechanism.",
        "risk": "Show what any attack can learn about one record.",
        "attack": "Run membership attacks on a model.",
        "audit": "Audit a model's guarantee with canaries, and attack it.",
        "verify": "Check a privacy statement or certificate.",
    },
    "Tables and budgets": {
        "check": "Check every cell of a table against its policy.",
        "query": "Query a private table in SQL, charged to its budget.",
        "ledger": "Keep one privacy budget for each data set.",
        "certificate": "Write a certificate of all releases from a data set.",
    },
}
_VERBS = {verb: summary for verbs in _GROUPED.values() for verb, summary in verbs.items()}
_SLOW = (
    "train",
    "batches",
    "predict",
    "generate",
    "export",
    "plan",
    "check",
    "risk",
    "attack",
    "audit",
    "verify",
)
"""The verbs whose imports and reading can take more than a second: they say at once what they read."""
_METAVARS = {"int": "N", "float": "X", "Path": "FILE", "str": "TEXT"}


class _Groups(TyperGroup):
    """A list of verbs in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        for title, verbs in _GROUPED.items():
            with formatter.section(title):
                formatter.write_dl([*verbs.items()])


def _name_values(command: Callable[..., int]) -> None:
    """Let the help of a verb name its values: FILE, N, RUN."""
    hints = get_type_hints(command, include_extras=True)
    for parameter, hint in hints.items():
        if get_origin(hint) is Annotated:
            kind, info = get_args(hint)[:2]
            name = next((name for one, name in _METAVARS.items() if one in str(kind)), None)
            info.metavar = info.metavar or (name if isinstance(info, OptionInfo) else parameter.upper())
    command.__annotations__ = hints  # evaluated, so that typer sees these objects


def make_app(arguments: list[str]) -> typer.Typer:
    """Make the application for these arguments. Only the called verb is loaded, since torch loads slowly."""
    app = typer.Typer(
        name="tacit",
        cls=_Groups,
        help="Deep learning with differential privacy. Start with:  tacit demo",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=True,
        rich_markup_mode=None,
        context_settings={"max_content_width": shutil.get_terminal_size().columns},
    )
    app.callback(invoke_without_command=True)(_version)
    for verb, summary in _VERBS.items():
        is_called = arguments[:1] == [verb]
        if is_called and verb in _GROUPS:
            app.add_typer(_group(verb), name=verb, short_help=summary)
            continue
        command = _guarded(_loaded(verb)) if is_called else _not_loaded
        app.command(verb, short_help=summary, no_args_is_help=verb not in _WITHOUT_ARGUMENTS)(command)
    return app


def _begin(arguments: list[str]) -> None:
    """Say what a slow verb reads, before its imports."""
    verb, *words = arguments or [""]
    named = "scikit-learn's digits" if verb == "demo" else next((w for w in words if Path(w).exists()), None)
    if verb in (*_SLOW, "demo") and named is not None and "--help" not in words:
        messages.print(f"Reading {named} …", soft_wrap=True)


def _loaded(verb: str) -> Callable[..., int]:
    module = importlib.import_module(f"tacit.cli.{_IN_FILE_OF.get(verb, verb)}")
    function: Callable[..., int] = getattr(module, f"{verb}_command", module.command)
    return function


def _group(verb: str) -> typer.Typer:
    """Make a verb with subcommands."""
    module = importlib.import_module(f"tacit.cli.{verb}")
    group = typer.Typer(help=module.SUMMARY, no_args_is_help=True, rich_markup_mode=None)
    for name, command in module.COMMANDS.items():
        group.command(name, no_args_is_help=True)(_guarded(command))
    return group


class _StoppedAtOnce(Exception):
    """A Ctrl-C that no command caught. Typer would turn KeyboardInterrupt into a code without a message."""


def _guarded(command: Callable[..., int]) -> Callable[..., int]:
    _name_values(command)

    @functools.wraps(command)
    def guarded(*args: object, **options: object) -> int:
        try:
            with spelled(in_shell(command)):
                return command(*args, **options)
        except KeyboardInterrupt as stop:  # has a message if the command knows which state it leaves
            raise _StoppedAtOnce(*stop.args) from None

    return guarded


def in_shell(command: Callable[..., int]) -> Spelling:
    """Return a function that converts a command's argument names to its options, for use in errors."""
    options = inspect.signature(command).parameters

    def spell(name: str, value: str | None) -> str:
        if name not in options:
            return name if value is None else f"{name}={value}"
        flag = f"--{name.replace('_', '-')}"
        return flag if value in (None, "True") else f"{flag} {value}"

    return spell


def _not_loaded() -> None:
    """A placeholder for a verb in the list of verbs."""


def _version(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _completed() -> list[str]:
    """Return the words to complete, which the shell passes in the environment; empty in a usual call."""
    words = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return words.split()[1:] if "_TACIT_COMPLETE" in os.environ else []


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    _tolerate_narrow_encodings()
    try:
        if launched().rank == 0:
            _begin(arguments)
        with _notes():
            app = make_app(_completed() or arguments)
            code = app(arguments, prog_name="tacit", standalone_mode=False)
        if sys.stdout is not None:  # as it is after >&-
            sys.stdout.flush()
    except TacitError as problem:
        if problem.exit_code == 1 and "--json" in arguments and not messages.quiet:
            print_json({"refused": refused_data(problem)})
        return _fail("refused" if problem.exit_code == 1 else "error", str(problem), problem.exit_code)
    except _UsageError as problem:
        context = problem.ctx
        if type(problem).__name__.startswith("NoArgsIsHelp") or context is None:
            problem.show()  # the help
            return 2
        return _fail(
            "error", f"{problem.format_message().rstrip('.')}. See {context.command_path} --help.", 2
        )
    except (_StoppedAtOnce, KeyboardInterrupt, typer.Abort) as stop:
        return _fail("interrupted", str(stop) or _about_stop(arguments), _INTERRUPTED)
    except OSError as problem:
        return _fail("error", _about_files(problem, arguments), 2)
    except (MemoryError, RuntimeError) as problem:
        if not _lacks_memory(problem):
            raise
        hint = f"out of memory ({str(problem).partition(chr(10))[0]})"
        trains = arguments[:1] in (["train"], ["demo"], ["attack"])
        advice = "Lower [training] physical_batch_size; it changes no result" if trains else "Ask for less"
        return _fail("error", f"{hint}. {advice}.", 2)
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _notes() -> Iterator[None]:
    """Print each warning of Tacit once, on one line without the place in the code that raised it."""
    printed = set[str]()
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
            if issubclass(category, LossWarning | PrivacyWarning | WeakSignalWarning):
                if str(message) in printed:
                    return
                printed.add(str(message))
                messages.print(Text.assemble(("note: ", "bold"), str(message)), soft_wrap=True)
            else:
                usual(message, category, *place, **rest)

        warnings.simplefilter("always", PrivacyWarning)
        warnings.simplefilter("always", WeakSignalWarning)
        warnings.showwarning = show
        yield


def _about_stop(arguments: list[str]) -> str:
    text = "Stopped immediately. Saved files are unchanged, and charges stay charged."
    return (
        f"{text} If the run has saved a state, --resume continues from it." if "train" in arguments else text
    )


def _about_files(problem: OSError, arguments: list[str]) -> str:
    if isinstance(problem, IsADirectoryError):
        return f"{problem.filename} is a folder. Name a file."
    reason = reason_of(problem)
    where = f" ({problem.filename})" if problem.filename else ""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        then = "resume with --resume" if arguments[:1] == ["train"] else "start again"
        return (
            f"{reason}{where}: a file could not be written. What was saved before is unchanged. Free some "
            f"space, then {then}."
        )
    return f"{reason}{where}. What was saved before is unchanged. Correct the path, or its permissions."


def _lacks_memory(problem: BaseException) -> bool:
    text = str(problem).lower()
    return isinstance(problem, MemoryError) or "out of memory" in text or "can't allocate memory" in text


def _tolerate_narrow_encodings() -> None:
    """Print a question mark, not a traceback, for ε on a terminal or file that cannot encode it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _fail(kind: str, message: str, code: int) -> int:
    messages.print(Text.assemble((f"{kind}: ", "bold red"), message), soft_wrap=not messages.is_terminal)
    return code
