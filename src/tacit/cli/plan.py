"""``tacit plan``: the batch size, steps and noise for a budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from tacit.cli.terminal import (
    Adjacency,
    AsJson,
    Delta,
    Epsilon,
    Figure,
    Preparations,
    argument,
    console,
    option,
    print_json,
    print_whole,
    say,
    show_line,
    table_of_figures,
)
from tacit.errors import InvalidInput
from tacit.events import event_from_json
from tacit.plan import Plan, Signal
from tacit.planner import PlanAdvice, PlanOption, PlanRequest, advise
from tacit.report.pages.canvas import figure_path
from tacit.report.pages.plan_figures import plot_advice
from tacit.runs.config import Config, read_config
from tacit.runs.plan import check_comparable, make_plan, ranked_ways, trained_weights

_T = TypeVar("_T")

_NEEDED = {
    "records": "how many records there are (under add-remove a public figure for it)",
    "unit": "what one record is, such as image or patient, since the promise names it",
    "epsilon": "the budget; or --advantage, or --true-positive-rate with --false-positive-rate",
    "delta": "the delta of the promise, below one over the number of records",
    "adjacency": "add-remove, replace-one or zero-out: what neighbouring data sets are",
}


def command(
    config: Annotated[
        Path | None, argument("A run file, for facts that no option states.", metavar="[RUN.toml]")
    ] = None,
    records: Annotated[float | None, option("N, a public figure.")] = None,
    unit: Annotated[str | None, option("What one record is: image, patient.")] = None,
    epsilon: Epsilon = None,
    advantage: Annotated[
        float | None, option("Or: largest true-positive less false-positive rate of an attack.")
    ] = None,
    true_positive_rate: Annotated[float | None, option("Or: most true positives of any attack,")] = None,
    false_positive_rate: Annotated[float | None, option("with this share of false positives.")] = None,
    delta: Delta = None,
    adjacency: Adjacency = None,
    epochs: Annotated[float | None, option("Microbatches over the records.")] = None,
    compute: Annotated[float | None, option("Or: per-record gradients, in all.")] = None,
    steps: Annotated[float | None, option("Or: steps, of any batch.")] = None,
    physical_batch: Annotated[float | None, option("Records that fit into memory at once.")] = None,
    largest_batch: Annotated[float | None, option("Cut larger Poisson samples to this many records.")] = None,
    batch_size: Annotated[list[float] | None, option("Compare this one; may be given several times.")] = None,
    weights: Annotated[
        float | None, option("Trained weights, to say if the model can learn; default: the run file's.")
    ] = None,
    preparation: Annotated[
        list[str] | None, option("Other release on the records, an event in JSON.")
    ] = None,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Accept a delta of 1/N or more.")
    ] = False,
    figure: Figure = None,
    as_json: AsJson = False,
) -> int:
    """Rank batch sizes, steps and noise for a privacy budget; reads no data.

    In the table, "noise" is that of the mean gradient of a step (σ/B, in clipping norms), and "total" that of
    the mean over all steps. "over" says how far the total is above that of the full batch. "2N", "2ε" and
    "2C" are the shares of the total that twice the records, epsilon or compute would remove. The arrow marks
    the recommendation. With --largest-batch, "cut" is the probability that a step's sample is larger; sizes
    that would be cut often are left out.

    Exit codes: 0 done, 1 refused by a privacy rule or the budget, 2 bad usage or input.

    With --advantage, or --true-positive-rate and --false-positive-rate, the budget is the most that any
    attack may find out about a record. Epsilon is then stated at this delta, and 2ε is twice that epsilon.

    A run file gives [privacy], epochs and steps, unless an option does. The last lines then say whether its
    model can learn under its own plan's noise. --weights does the same for a model with that many trained
    weights; without a run file, at the recommended batch.

    Example:  tacit plan --records 50000 --unit image --adjacency add-remove --epsilon 8 --delta 1e-5
    --epochs 30

    Example:  tacit plan --records 50000 --unit image --adjacency add-remove --advantage 0.1 --delta 1e-6
    --epochs 30
    """
    run_file = None if config is None else read_config(config)
    if run_file is not None:
        privacy, training = run_file.privacy, run_file.training
        check_comparable(str(config), run_file)
        records, unit = _first(records, privacy.records), _first(unit, privacy.unit)
        if (advantage, true_positive_rate) == (None, None):
            epsilon = _first(epsilon, privacy.epsilon)
        delta = _first(delta, privacy.delta)
        adjacency = _first(adjacency, privacy.adjacency)
        largest_batch = _first(largest_batch, training.largest_batch)
        if (epochs, compute, steps) == (None, None, None):
            epochs, steps = training.epochs, training.steps
    budget = next((b for b in (epsilon, advantage, true_positive_rate) if b is not None), None)
    facts = {"records": records, "unit": unit, "epsilon": budget, "delta": delta, "adjacency": adjacency}
    check_stated("a plan", _NEEDED, facts)
    assert records is not None and unit and delta is not None and adjacency  # noqa: PT018
    question = PlanRequest(
        records=whole("records", records),
        unit=unit,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        advantage=advantage,
        true_positive_rate=true_positive_rate,
        false_positive_rate=false_positive_rate,
        epochs=epochs,
        compute=compute,
        steps=None if steps is None else whole("steps", steps),
        largest_physical_batch=None if physical_batch is None else whole("physical_batch", physical_batch),
        largest_batch=None if largest_batch is None else whole("largest_batch", largest_batch),
        preparation=tuple(event_from_json(text) for text in preparation or ()),
        allow_large_delta=allow_large_delta,
    )
    sizes = [whole("batch_size", size) for size in batch_size or ()]
    target = None if figure is None else figure_path(figure)
    with Preparations() as progress:
        advice = advise(question, batch_sizes=sizes, progress=progress)
        signal = _signal(advice, run_file, weights)
        tuned = config is not None and run_file is not None and run_file.pretrained
        ways_to_tune = ranked_ways(config) if tuned and config is not None else []
    if target is not None:
        plot_advice(advice, target)
    if as_json:
        extras = {} if signal is None else {"signal": signal.as_data()}
        tune = {"tune": [one.as_data() for one in ways_to_tune]} if ways_to_tune else {}
        print_json(advice.as_data() | extras | tune)
    else:
        _show(advice)
        if signal is not None:
            console.print("\nCan it learn?\n", style="bold")
            say(signal.in_words())
        for one in ways_to_tune:
            share = f"about {one.signal.lost:.0%} of its gain lost to noise"
            show_line(f"  {one.name}: {one.weights:,} weights, {share}, {one.signal.verdict.value}")
        if target is not None:
            show_line(f"\nFigure: {figure}")
    return 0


def check_stated(question: str, needed: Mapping[str, str], facts: Mapping[str, object]) -> None:
    """Refuse a question that lacks a needed fact."""
    missing = [f"--{name} ({why})" if name else why for name, why in needed.items() if facts[name] is None]
    if missing:
        raise InvalidInput(
            f"{question} needs {'; '.join(missing)}. There is no default, because each of these changes "
            "what the promise means. For an example, see tacit plan --help."
        )


def whole(name: str, value: float) -> int:
    """Return ``value`` as a whole number, so that a user may write 1e6."""
    if not float(value).is_integer():
        raise InvalidInput("must be a whole number", argument=name, value=value)
    return int(value)


def _first(option: _T | None, from_file: _T | None) -> _T | None:
    """Return the value of the option, else that of the run file."""
    return from_file if option is None else option


def _show(advice: PlanAdvice) -> None:
    question = advice.question
    amount = next(
        f"{getattr(question, name):,.12g} {words}"
        for name, words in (
            ("epochs", "epochs"),
            ("compute", "gradients of one record"),
            ("steps", "steps"),
        )
        if getattr(question, name) is not None
    )
    say(
        f"{question.records:,} records (unit: {question.unit}), {question.budget_in_words} under "
        f"{question.adjacency}, {amount}"
    )
    console.print()
    print_whole(_table(advice))
    console.print()
    console.print(advice.in_words())


def _signal(advice: PlanAdvice, run_file: Config | None, weights: float | None) -> Signal | None:
    """Compute how well the run file's plan, or else the recommended one, can learn; None without weights."""
    count = None if weights is None else whole("weights", weights)
    if count is None and run_file is not None:
        count = trained_weights(run_file)
    if count is None:
        return None
    question, best = advice.question, advice.recommended
    if run_file is not None and _is_plan_of(question, run_file):
        return make_plan(run_file).signal(count)
    plan = Plan.with_noise(
        noise_multiplier=best.noise_multiplier, steps=best.steps, batch_size=best.batch_size,
        records=question.records, clipping=1.0, delta=question.delta, adjacency=question.adjacency,
        unit=question.unit, preparation=question.preparation, largest_batch=question.largest_batch,
        allow_large_delta=question.allow_large_delta,
    )  # fmt: skip
    return plan.signal(count)


def _is_plan_of(question: PlanRequest, run_file: Config) -> bool:
    """Return whether the question is that of the run file, so that no option has changed it."""
    privacy, training = run_file.privacy, run_file.training
    values = (question.records, question.epsilon, question.delta, question.epochs, question.steps)
    return values == (privacy.records, privacy.epsilon, privacy.delta, training.epochs, training.steps)


def _table(advice: PlanAdvice) -> Table:
    passes = advice.question.largest_physical_batch is not None
    cut = advice.question.largest_batch is not None
    names = ["", "batch", "rate", "steps", *(["passes"] if passes else []), *(["cut"] if cut else [])]
    names += ["σ", "noise", "total", "over", "2N", "2ε", "2C"]
    table = table_of_figures([], names, padding=0)
    for one in advice.options:
        table.add_row(*_cells(one, passes), style="bold" if one.rank == 1 else None)
    return table


def _cells(option: PlanOption, passes: bool) -> list[str]:
    savings = (option.saved_by_twice_records, option.saved_by_twice_epsilon, option.saved_by_twice_compute)
    return [
        "→" if option.rank == 1 else str(option.rank),
        f"{option.batch_size:,}",
        f"{option.sampling_rate:.3g}",
        f"{option.steps:,}",
        *([f"{option.passes:,}"] if passes else []),
        *([] if option.cut is None else [_chance(option.cut)]),
        f"{option.noise_multiplier:.4g}",
        _short(option.noise_per_example),
        _short(option.total_noise),
        f"{max(0.0, option.above_floor):.1%}",
        *(f"{max(0.0, part):.0%}" for part in savings),
    ]


def _short(value: float) -> str:
    """Format a number with three digits, and an exponent without leading zeros."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _chance(value: float) -> str:
    """Format a probability with one digit; one below 1e-99 becomes ``<1e-99``.

    >>> _chance(1.3e-9), _chance(1e-300)
    ('1e-09', '<1e-99')
    """
    return "<1e-99" if value < 1e-99 else f"{value:.0e}"
