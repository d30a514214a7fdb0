"""``tacit plan``: the batch size, steps and noise for a budget.

With ``--language-model``, :mod:`tacit.cli.plan_language_model` also chooses the size of the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from tacit.cli.options import Adjacency, AsJson, Delta, Epsilon, Figure, argument, option, refuse
from tacit.cli.plan_language_model import check_stated, plan_language_model, whole
from tacit.cli.show import Preparations, console, print_json, print_whole, say, show_line, table_of_figures
from tacit.errors import InvalidInput
from tacit.events import event_from_json
from tacit.noise_in_time import InTime, Ways, compare_in_time
from tacit.people import Comparison, compare_ways
from tacit.plan import Plan, Signal
from tacit.planner import PlanAdvice, PlanOption, PlanRequest, advise
from tacit.planner.search import Progress
from tacit.report.pages.canvas import figure_path
from tacit.report.pages.plan_figures import plot_advice
from tacit.runs.config import Config, read_config
from tacit.runs.plan import check_comparable, make_plan
from tacit.runs.weights import ranked_ways, trained_weights

_T = TypeVar("_T")
_LM = "Language models"

_NEEDED = {
    "records": "how many records there are (under add-remove a public figure for it)",
    "unit": "what one record is, such as image or patient, since the promise names it",
    "epsilon": "the budget; or --advantage, or --true-positive-rate with --false-positive-rate",
    "delta": "the delta of the promise, below one over the number of records",
    "adjacency": "add-remove, replace-one or zero-out: what neighbouring data sets are",
}


_NOT_FOR_LM = (
    "config", "weights", "epochs", "compute", "steps", "physical_batch", "batch_size", "preparation", "users",
    "rows_per_user", "correlated", "advantage", "true_positive_rate", "false_positive_rate",
)  # fmt: skip
_FOR_LM = (
    "flops", "tokens", "sequence_length", "parameters", "runs", "compare_epsilon", "extrapolate",
)  # fmt: skip


def command(
    context: typer.Context,
    config: Annotated[
        Path | None, argument("A run file, for facts that no option states.", metavar="[RUN.toml]")
    ] = None,
    records: Annotated[float | None, option("N, a public figure.")] = None,
    users: Annotated[float | None, option("Or: people with several rows each, a public figure.")] = None,
    rows_per_user: Annotated[
        float | None, option("Rows of one of them: compare ways to train on people.")
    ] = None,
    correlated: Annotated[
        bool, typer.Option("--correlated", help="Also compare noise that is correlated in time.")
    ] = False,
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
    language_model: Annotated[
        bool,
        typer.Option("--language-model", help="Plan a language model by a scaling law.", rich_help_panel=_LM),
    ] = False,
    flops: Annotated[float | None, option("Compute for training, in all.", rich_help_panel=_LM)] = None,
    tokens: Annotated[
        float | None, option("Tokens of the corpus; or --records.", rich_help_panel=_LM)
    ] = None,
    sequence_length: Annotated[
        float | None, option("Tokens per sequence; default: 512, as in the law.", rich_help_panel=_LM)
    ] = None,
    parameters: Annotated[float | None, option("A fixed model size.", rich_help_panel=_LM)] = None,
    runs: Annotated[Path | None, option("CSV of your own runs, to fit a law.", rich_help_panel=_LM)] = None,
    compare_epsilon: Annotated[
        list[float] | None, option("Also draw this epsilon; several times.", rich_help_panel=_LM)
    ] = None,
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Search beyond the law's range.", rich_help_panel=_LM)
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

    With --users and --rows-per-user, the records are people. The last lines then compare two ways to train:
    drawing people, and clipping the mean of that many rows once; or drawing rows, at the price of all rows of
    a person.

    With --advantage, or --true-positive-rate and --false-positive-rate, the budget is the most that any
    attack may find out about a record. Epsilon is then stated at this delta, and 2ε is twice that epsilon.

    With --correlated, further lines compare ways to correlate the noise in time, at the recommended batch or
    at a single --batch-size: the noise of sums of many steps, relative to independent noise, and the memory
    that a run needs for it between steps.

    A run file gives [privacy], epochs and steps, unless an option does. The last lines then say whether its
    model can learn under its own plan's noise. --weights does the same for a model with that many trained
    weights; without a run file, at the recommended batch.

    Example:  tacit plan --records 50000 --unit image --adjacency add-remove --epsilon 8 --delta 1e-5
    --epochs 30

    Example:  tacit plan --records 50000 --unit image --adjacency add-remove --advantage 0.1 --delta 1e-6
    --epochs 30

    Example:  tacit plan --language-model --tokens 5e9 --unit sequence --adjacency add-remove --epsilon 4
    --delta 1e-8 --flops 1e19
    """
    if language_model:
        refuse(context, "tacit plan --language-model", *_NOT_FOR_LM)
        return plan_language_model(
            flops=flops, tokens=tokens, length=sequence_length, model_size=parameters,
            largest_batch=largest_batch, runs=runs, compare_epsilon=tuple(compare_epsilon or ()),
            extrapolate=extrapolate, records=records, unit=unit, epsilon=epsilon, delta=delta,
            adjacency=adjacency, allow_large_delta=allow_large_delta, figure=figure, as_json=as_json,
        )  # fmt: skip
    refuse(context, "tacit plan without --language-model", *_FOR_LM)
    if users is not None:
        by_risk = ("advantage", "true_positive_rate")
        refuse(context, "tacit plan --users, which compares ways at an epsilon,", *by_risk)
    records = _records(records, users, rows_per_user)
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
        ways = _ways(advice, rows_per_user)
        in_time = _in_time(advice, sizes, progress) if correlated else None
        signal = _signal(advice, run_file, weights)
        tuned = config is not None and run_file is not None and run_file.pretrained
        ways_to_tune = ranked_ways(config) if tuned and config is not None else []
    if target is not None:
        plot_advice(advice, target)
    if as_json:
        compared = {"ways": ways, "in_time": in_time, "signal": signal}
        extras = {name: one.as_data() for name, one in compared.items() if one is not None}
        tune = {"tune": [one.as_data() for one in ways_to_tune]} if ways_to_tune else {}
        print_json(advice.as_data() | extras | tune)
    else:
        _show(advice)
        _show_ways(ways)
        show_in_time(in_time)
        if signal is not None:
            console.print("\nCan it learn?\n", style="bold")
            say(signal.in_words())
        for one in ways_to_tune:
            share = f"about {one.signal.lost:.0%} of its gain lost to noise"
            show_line(f"  {one.name}: {one.weights:,} weights, {share}, {one.signal.verdict.value}")
        if target is not None:
            show_line(f"\nFigure: {figure}")
    return 0


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


def _records(records: float | None, users: float | None, rows_per_user: float | None) -> float | None:
    """Return the number of records, or of people if each person has several rows."""
    if (users is None) != (rows_per_user is None):
        raise InvalidInput(
            "--users and --rows-per-user go together: how many people there are, and how many rows each "
            "has. Give both, or only --records if a record is a person."
        )
    if users is not None and records is not None:
        raise InvalidInput("--users already says how many records there are. Leave out --records.")
    return _first(users, records)


def _ways(advice: PlanAdvice, rows_per_user: float | None) -> Comparison | None:
    """Compare ways to train on people with several rows, at the recommended batch size."""
    if rows_per_user is None:
        return None
    rows = whole("rows_per_user", rows_per_user)
    return compare_ways(advice.question, advice.recommended.batch_size, rows)


def _in_time(advice: PlanAdvice, sizes: list[int], progress: Progress) -> Ways:
    """Compare ways to correlate the noise in time, at a single given batch size, else the recommended."""
    batch = sizes[0] if len(sizes) == 1 else advice.recommended.batch_size
    return compare_in_time(advice.question, batch, progress)


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


def _show_ways(ways: Comparison | None) -> None:
    if ways is None:
        return
    figures = ("batch", "σ", "noise, rows alike", "noise, rows unlike")
    table = table_of_figures(["a step draws"], figures, padding=0)
    names = (
        f"people, {ways.rows_per_user} rows of each",
        f"rows, at most {ways.rows_per_user} of each",
        "rows, by the group bound",
    )
    for name, way in zip(names, (ways.people, ways.rows, ways.group_bound), strict=True):
        noises = (_short(way.noise_alike), _short(way.noise_unlike))
        table.add_row(name, f"{way.batch_size:,}", f"{way.noise_multiplier:.4g}", *noises)
    console.print()
    print_whole(table)
    console.print()
    say(ways.in_words())


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


_BATCHES = {
    "poisson": "Poisson samples",
    "cyclic": "samples of {} parts",
    "parts": "{} whole parts",
    "full": "all",
}
_NOISE = {"banded": "banded, {}", "inverse": "inverse, {}", "blt": "BLT, {}", "tree": "tree, {} steps"}


def show_in_time(ways: Ways | None) -> None:
    """Print the ways to correlate the noise, and the run file's lines for the one with the least noise."""
    if ways is None:
        return
    figures = ("σ", "noise of sums", "relative", "kept")
    table = table_of_figures(["noise", "a step takes"], figures, padding=0)
    everything = [*ways.samples, *(way for way in ways.parts if way not in ways.samples)]
    best = min(everything, key=lambda way: way.relative)
    for way in everything:
        table.add_row(*_cells_in_time(way), style="bold" if way is best else None)
    console.print(f"\nNoise in time, {ways.steps:,} steps of {ways.batch_size:,}:\n")
    print_whole(table)
    console.print()
    say(ways.in_words())
    console.print(f"\n{ways.as_toml()}", markup=False, highlight=False)
    if ways.as_toml(stream=True) != ways.as_toml():
        console.print("\nIn a fixed order:\n")
        console.print(ways.as_toml(stream=True), markup=False, highlight=False)


def _cells_in_time(way: InTime) -> list[str]:
    return [
        _NOISE.get(way.noise, way.noise).format(way.size),
        _BATCHES[way.batches].format(way.cycle),
        f"{way.noise_multiplier:.4g}",
        f"{way.noise_of_sums:.3g}",
        f"{way.relative:.2f}",
        f"{way.memory} × weights" if way.memory else "nothing",
    ]
