"""``tacit plan --language-model``: the model size, batch size and steps for a compute and privacy budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from tacit.cli.terminal import (
    Preparations,
    console,
    print_json,
    print_whole,
    say,
    show_line,
    table_of_figures,
)
from tacit.errors import InvalidInput, check_integer
from tacit.report.pages.canvas import figure_path
from tacit.report.pages.plan_figures import plot_language_model
from tacit.scaling import LanguageModelRequest, Law, advise_language_model
from tacit.scaling.answer import Configuration, LanguageModelAdvice
from tacit.scaling.law import parameters
from tacit.scaling.published import published_law, read_runs

_NEEDED = {
    "flops": "floating-point operations for training, such as 1e19",
    "unit": "what one record is, such as sequence or user, since the promise names it",
    "epsilon": "the budget",
    "delta": "the delta of the promise, below one over the number of records",
    "adjacency": "add-remove, replace-one or zero-out: what neighbouring data sets are",
    "": "exactly one of --records and --tokens: how much data there are",
}


def check_stated(question: str, needed: Mapping[str, str], facts: Mapping[str, object]) -> None:
    """Refuse a question that lacks a needed fact."""
    missing = [f"--{name} ({why})" if name else why for name, why in needed.items() if facts[name] is None]
    if missing:
        raise InvalidInput(
            f"{question} needs {'; '.join(missing)}. There is no default, because each of these changes "
            "what the promise means. For an example, see tacit plan --help."
        )


def plan_language_model(
    *,
    flops: float | None,
    tokens: float | None,
    length: float | None,
    model_size: float | None,
    largest_batch: float | None,
    runs: Path | None,
    compare_epsilon: tuple[float, ...],
    extrapolate: bool,
    records: float | None,
    unit: str | None,
    epsilon: float | None,
    delta: float | None,
    adjacency: str | None,
    allow_large_delta: bool,
    figure: Path | None,
    as_json: bool,
) -> int:
    """Plan the training of a language model, print and draw the plan, and return the exit code."""
    facts: dict[str, Any] = {
        "flops": flops, "unit": unit, "epsilon": epsilon, "delta": delta, "adjacency": adjacency,
    }  # fmt: skip
    data = {"": True if (records is None) != (tokens is None) else None}
    check_stated("a plan for a language model", _NEEDED, facts | data)
    target = None if figure is None else figure_path(figure)
    if target is None and compare_epsilon:
        raise InvalidInput("--compare-epsilon needs --figure FILE.png: it is for the figure.")
    law, tokens_each = _law(runs, None if length is None else whole("sequence_length", length))
    question = LanguageModelRequest(
        **facts,
        records=_records(records, tokens, tokens_each),
        sequence_length=tokens_each,
        model_size=model_size,
        largest_batch=None if largest_batch is None else whole("largest_batch", largest_batch),
        extrapolate=extrapolate,
        allow_large_delta=allow_large_delta,
    )
    with Preparations() as progress:
        advice = advise_language_model(question, law, progress=progress)
        if target is not None:
            plot_language_model(advice, target, epsilons=compare_epsilon, progress=progress)
    if as_json:
        print_json(advice.as_data())
    else:
        _show(advice)
        if target is not None:
            show_line(f"\nFigure: {figure}")
    return 0


def whole(name: str, value: float) -> int:
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
        return whole("records", records)
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
        parameters(other.model_size),
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
        parameters(configuration.model_size),
        f"{configuration.steps:,}",
        f"{configuration.batch_size:,}",
        f"{configuration.tokens_per_parameter:,.0f}",
        f"{configuration.noise_multiplier:.4g}",
        f"{configuration.noise_batch_ratio:.2e}",
        f"{configuration.loss:.2f}{'?' if configuration.beyond else ''}",
    ]
