"""The verbs, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import sys

import click
import typer
from rich.console import Console
from rich.text import Text

from tacit import __version__
from tacit.cli import demo, reproduce, train
from tacit.errors import TacitError

__all__ = ["app", "run"]

_INTERRUPTED = 130

app = typer.Typer(
    name="tacit",
    help="Deep learning with differential privacy: train, price and show the guarantee.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.command("train")(train.command)
app.command("demo")(demo.command)
app.command("reproduce")(reproduce.command)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Show the version and leave.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(arguments, standalone_mode=False)
    except TacitError as problem:
        return _fail("refused" if problem.exit_code == 1 else "error", str(problem), problem.exit_code)
    except click.ClickException as problem:
        problem.show()
        return 2
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", "Stopped at once. What was saved before is untouched.", _INTERRUPTED)
    except OSError as problem:
        full = (
            " Free some space; what was saved before is untouched." if problem.errno == errno.ENOSPC else ""
        )
        return _fail("error", f"{problem}.{full}", 2)
    return code if isinstance(code, int) else 0


def _fail(kind: str, message: str, code: int) -> int:
    console = Console(file=sys.stderr, highlight=False)
    console.print(Text.assemble((f"{kind}: ", "bold red"), message), soft_wrap=True)
    return code
