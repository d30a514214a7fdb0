"""The size of a language model for budgets of compute and privacy: ``python -m experiments.scaling``."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from experiments.scaling import LanguageModelRequest, Law, advise_language_model
from experiments.scaling.answer import Configuration, LanguageModelAdvice
from experiments.scaling.figure import plot_language_model
from experiments.scaling.law import parameters as size_in_words
from experiments.scaling.published import published_law, read_runs
from tacit.cli.app import in_shell
from tacit.cli.terminal import (
    Adjacency,
    AsJson,
    Delta,
    Epsilon,
    Figure,
    Preparations,
    console,
    messages,
    option,
    print_json,
    print_whole,
    say,
    show_line,
    table_of_figures,
)
from tacit.errors import InvalidInput, TacitError, check_integer, spelled
from tacit.report.canvas import figure_path

_NEEDED = {
    "flops": "floating-point operations for training, such as 1e19",
    "unit": "what one record is, such as sequence or user, since the promise names it",
    "epsilon": "the budget",
    "delta": "the delta of the promise, below one over the number of records",
    "adjacency": "add-remove, replace-one or zero-out: what neighbouring data sets are",
    "": "exactly one of --records and --tokens: how much data there are",
}


def main(arguments: list[str]) -> None:
    """Answer one question; exit with a code other than 0 after an error."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(no_args_is_help=True)(command)
    try:
        with spelled(in_shell(command)):
            app(arguments, prog_name="python -m experiments.scaling")
    except TacitError as problem:
        messages.print(f"error: {problem}", soft_wrap=not messages.is_terminal)
        sys.exit(problem.exit_code)


def command(
    records: Annotated[float | None, option("N, a public figure.")] = None,
    tokens: Annotated[float | None, option("Tokens of the corpus; or --records.")] = None,
    unit: Annotated[str | None, option("What one record is: sequence, user.")] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    adjacency: Adjacency = None,
    flops: Annotated[float | None, option("Compute for training, in all.")] = None,
    sequence_length: Annotated[
        float | None, option("Tokens per sequence; default: 512, as in the law.")
    ] = None,
    parameters: Annotated[float | None, option("A fixed model size.")] = None,
    largest_batch: Annotated[float | None, option("Cut larger Poisson samples to this many records.")] = None,
    runs: Annotated[Path | None, option("CSV of your own runs, to fit a law.")] = None,
    compare_epsilon: Annotated[list[float] | None, option("Also draw this epsilon; several times.")] = None,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Search beyond the law's range.")
    ] = False,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Accept a delta of 1/N or more.")
    ] = False,
    figure: Figure = None,
    as_json: AsJson = False,
) -> int:
    """Choose model size, batch size and steps of a language model by a scaling law; reads no data.

    Exit codes: 0 done, 1 refused by a privacy rule or the budget, 2 bad usage or input.

    Example:  python -m experiments.scaling --tokens 5e9 --unit sequence --adjacency add-remove --epsilon 4
    --delta 1e-8 --flops 1e19
    """
    facts: dict[str, Any] = {
        "flops": flops, "unit": unit, "epsilon": epsilon, "delta": delta, "adjacency": adjacency,
    }  # fmt: skip
    stated = facts | {"": True if (records is None) != (tokens is None) else None}
    missing = [f"--{name} ({why})" if name else why for name, why in _NEEDED.items() if stated[name] is None]
    if missing:
        raise InvalidInput(
            f"a plan for a language model needs {'; '.join(missing)}. There is no default, because each of "
            "these changes what the promise means."
        )
    target = None if figure is None else figure_path(figure)
    if target is None and compare_epsilon:
        raise InvalidInput("--compare-epsilon needs --figure FILE.png: it is for the figure.")
    law, tokens_each = _law(
        runs, None if sequence_length is None else _whole("sequence_length", sequence_length)
    )
    question = LanguageModelRequest(
        **facts,
        records=_records(records, tokens, tokens_each),
        sequence_length=tokens_each,
        model_size=parameters,
        largest_batch=None if largest_batch is None else _whole("largest_batch", largest_batch),
        extrapolate=extrapolate,
        allow_large_delta=allow_large_delta,
    )
    with Preparations() as progress:
        advice = advise_language_model(question, law, progress=progress)
        if target is not None:
            plot_language_model(advice, target, epsilons=compare_epsilon or (), progress=progress)
    if as_json:
        print_json(advice.as_data())
    else:
        _show(advice)
        if target is not None:
            show_line(f"\nFigure: {figure}")
    return 0


def _whole(name: str, value: float) -> int:
    """Return ``value`` as a whole number, so that a user may write 1e6."""
    if not float(value).is_integer():
        raise InvalidInput("must be a whole number", argument=name, value=value)
    return int(value)


def _law(runs: Path | None, length: int | None) -> tuple[Law, int]:
    """Return the scaling law, and the sequence length to plan for."""
    if length is not None:
        check_integer("sequence_length", length, low=1)
    if runs is None:
        law = published_law()
        return law, law.sequence_length if length is None else length
    if length is None:
        raise InvalidInput(
            "--runs needs --sequence-length: the number of tokens in a sequence decides what a step costs."
        )
    return Law.fit(read_runs(runs), sequence_length=length, source=str(runs)), length


def _records(records: float | None, tokens: float | None, length: int) -> int:
    if records is not None:
        return _whole("records", records)
    if tokens is None or not math.isfinite(tokens) or tokens < length:
        raise InvalidInput(
            f"must be at least one sequence of {length} tokens", argument="tokens", value=tokens
        )
    return int(tokens // length)


def _show(advice: LanguageModelAdvice) -> None:
    question = advice.question
    say(
        f"{question.records:,} records (unit: {question.unit}) of {question.sequence_length:,} tokens, "
        f"{question.flops:.3g} FLOPs, ε = {question.epsilon:g} at δ = {question.delta:g} under "
        f"{question.adjacency}"
    )
    console.print()
    print_whole(_table(advice))
    console.print()
    say(advice.in_words())
    say(
        f"\nThe law: {advice.law.source}. Its range: {advice.law.range.in_words()}. Another text or "
        "tokenizer shifts the loss: use it to compare plans."
    )
    for warning in advice.warnings:
        say(f"\nNote: {warning}")


def _table(advice: LanguageModelAdvice) -> Table:
    names = ("model", "steps", "batch", "tokens/model", "σ", "σ/batch", "loss")
    table = table_of_figures([""], names, padding=0)
    other = advice.non_private
    table.add_row("advised", *_cells(advice.best), style="bold")
    table.add_row(
        "without privacy",
        size_in_words(other.model_size),
        f"{other.steps:,}",
        f"{other.batch_size:,}",
        f"{other.tokens / other.model_size:,.3g}",
        "0",
        "0",
        "–" if other.loss is None else f"{other.loss:.2f}",
    )
    if other.with_privacy is not None:
        table.add_row("  with this promise", *_cells(other.with_privacy))
    return table


def _cells(configuration: Configuration) -> list[str]:
    return [
        size_in_words(configuration.model_size),
        f"{configuration.steps:,}",
        f"{configuration.batch_size:,}",
        f"{configuration.tokens_per_parameter:,.0f}",
        f"{configuration.noise_multiplier:.4g}",
        f"{configuration.noise_batch_ratio:.2e}",
        f"{configuration.loss:.2f}{'?' if configuration.beyond else ''}",
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
