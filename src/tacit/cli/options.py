"""Functions that make options and arguments of commands, and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.errors import InvalidInput


def option(about: str, *names: str, **settings: Any) -> Any:
    """Make an option whose help shows no default."""
    return typer.Option(*names, help=about, show_default=False, **settings)


def argument(about: str, **settings: Any) -> Any:
    """Make an argument whose help shows no default."""
    return typer.Argument(help=about, show_default=False, **settings)


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunFolder = Annotated[Path, argument("The folder of a run, or a copy of it.")]
FinishedRun = Annotated[Path, argument("The folder of a finished run.")]
NoInput = Annotated[bool, typer.Option("--no-input", help="Ask no questions, even in a terminal.")]
Factory = Annotated[str | None, option('For a model of your own: "module:function" that makes it.')]
Epsilon = Annotated[float | None, option("The privacy budget, epsilon.")]
Delta = Annotated[float | None, option("Probability that the promise fails, below 1 / records; no default.")]
Adjacency = Annotated[
    str | None, option("Neighbouring data sets: add-remove, replace-one or zero-out; no default.")
]
Figure = Annotated[Path | None, option("Draw the result to this file.")]
InDatabase = Annotated[str | None, option("Table in a database: table or schema.table.")]


def given_options(context: typer.Context, *names: str) -> list[str]:
    """Return those of the named parameters that the user has given, as they are written in a shell.

    Args:
        context: the call of the command.
        names: the names of the parameters in Python.
    """
    flags = {param.name: param.opts[0] for param in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in names}
    explicit = [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]
    return [flags[name] if flags[name].startswith("-") else "RUN.toml" for name in explicit]


def refuse(context: typer.Context, command: str, *names: str) -> None:
    """Refuse parameters that ``command``, as called, would ignore."""
    if options := given_options(context, *names):
        raise InvalidInput(
            f"{command} takes no {' and no '.join(options)}. Leave it out; see {context.command_path} --help."
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
