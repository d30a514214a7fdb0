"""``tacit plan``: the batch size, steps and noise for a budget."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.table import Table

from tacit.accounting import METHODS
from tacit.cli.terminal import (
    Adjacency,
    AsJson,
    Delta,
    Epsilon,
    Figure,
    Preparations,
    argument,
    console,
    given_options,
    note,
    option,
    print_json,
    print_whole,
    say,
    show_line,
    table_of_figures,
)
from tacit.errors import InvalidInput, TacitError, check_integer, check_real
from tacit.events import Adjacency as Neighbours
from tacit.events import Compose, Event, Gaussian, PoissonSampled, Repeat, event_from_json
from tacit.plan import Plan, Signal
from tacit.report.canvas import figure_path, new_figure
from tacit.report.pricing import Pricing, Quote, price_event
from tacit.rounding import counted, round_up, shown_epsilon

if TYPE_CHECKING:
    from tacit.planner import PlanAdvice, PlanOption, PlanRequest
    from tacit.runs.config import Config

_T = TypeVar("_T")

_NEEDED = {
    "records": "number of records; under add-remove, a rough public number",
    "unit": "what one record is, such as image or patient",
    "epsilon": "privacy budget; or --advantage, or --true-positive-rate with --false-positive-rate",
    "delta": "failure probability, below 1 / records",
    "adjacency": "neighbouring data sets: add-remove, replace-one or zero-out",
}


def command(
    config: Annotated[
        Path | None, argument("A run file, for facts that no option states.", metavar="[RUN.toml]")
    ] = None,
    records: Annotated[float | None, option("Number of records, publicly known.")] = None,
    unit: Annotated[str | None, option("What one record is: image, patient.")] = None,
    epsilon: Epsilon = None,
    advantage: Annotated[float | None, option("Or: maximum TPR - FPR of any attack.")] = None,
    true_positive_rate: Annotated[
        float | None, option("Or: maximum true-positive rate of any attack,")
    ] = None,
    false_positive_rate: Annotated[float | None, option("at this false-positive rate.")] = None,
    delta: Delta = None,
    adjacency: Adjacency = None,
    epochs: Annotated[float | None, option("Passes over the records.")] = None,
    compute: Annotated[float | None, option("Or: per-record gradients, in all.")] = None,
    steps: Annotated[float | None, option("Or: steps, of any batch.")] = None,
    physical_batch: Annotated[float | None, option("Records that fit into memory at once.")] = None,
    largest_batch: Annotated[float | None, option("Cut larger Poisson samples to this many records.")] = None,
    batch_size: Annotated[list[float] | None, option("Compare this one; may be given several times.")] = None,
    weights: Annotated[
        float | None, option("Number of trained weights, to predict if the model can learn.")
    ] = None,
    preparation: Annotated[
        list[str] | None, option("Another release from the records, as an event in JSON.")
    ] = None,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Accept a delta of 1/N or more.")
    ] = False,
    figure: Figure = None,
    as_json: AsJson = False,
) -> int:
    """Rank batch sizes, steps and noise for a privacy budget; reads no data.

    In the table, "noise" is the noise on a step's mean gradient (σ/B, in clipping norms), and "total" that on
    the mean over all steps. "over" is the excess of total over the full batch's. "2N", "2ε" and "2C" show by
    how much doubling records, epsilon or compute would reduce the total. The arrow marks the recommendation.
    With --largest-batch, "cut" is the probability that a sample exceeds it; sizes often cut are omitted.

    Exit codes: 0 done, 1 refused by a privacy rule or the budget, 2 bad usage or input.

    With --advantage, or --true-positive-rate and --false-positive-rate, the budget limits the success of any
    attack on a record. Epsilon is then derived at this delta, and 2ε doubles it.

    A run file sets [privacy], epochs and steps; options override it. The last lines then say whether its
    model can learn under its plan's noise. --weights does the same for any model; without a run file, at the
    recommended batch.

    Example:  tacit plan --records 50000 --unit image --adjacency add-remove --epsilon 8 --delta 1e-5
    --epochs 30

    Example:  tacit plan --records 50000 --unit image --adjacency add-remove --advantage 0.1 --delta 1e-6
    --epochs 30
    """
    # Here, so that `tacit account` and `tacit risk` start without them.
    from tacit.planner import PlanRequest, advise
    from tacit.runs.config import read_config
    from tacit.runs.plan import batch_taken, check_comparable, make_plan, ranked_ways, with_poisson_samples

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
    _check_stated(facts)
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
        is_own = run_file is not None and not sizes and _is_plan_of(question, run_file)
        taken = batch_taken(config) if config is not None and is_own else None
        advice = advise(question, batch_sizes=sizes, taken=taken, progress=progress)
        signal = _signal(advice, run_file, weights)
        tuned = config is not None and run_file is not None and run_file.pretrained
        ways_to_tune = ranked_ways(config) if tuned and config is not None else []
    if target is not None:
        from tacit.report.plots import plot_advice

        plot_advice(advice, target)
    if as_json:
        extras = {} if signal is None else {"signal": signal.as_data()}
        tune = {"tune": [one.as_data() for one in ways_to_tune]} if ways_to_tune else {}
        print_json(advice.as_data() | extras | tune)
    else:
        _show(advice, config)
        if run_file is not None and run_file.privacy.sampling == "epochs":
            own = make_plan(run_file)
            poisson = with_poisson_samples(run_file, own)
            say(
                f"\nThe run file takes {own.sampling.describe()}: σ {own.noise_multiplier:.4g}, where "
                f"Poisson samples of the same size need {poisson.noise_multiplier:.4g}."
            )
        if signal is not None:
            console.print("\nCan it learn?\n", style="bold")
            say(signal.in_words())
        for one in ways_to_tune:
            share = f"about {one.signal.lost:.0%} of its gain lost to noise"
            show_line(f"  {one.name}: {counted(one.weights, 'weight')}, {share}, {one.signal.verdict.value}")
        if target is not None:
            show_line(f"\nFigure: {figure}")
    return 0


def _check_stated(facts: Mapping[str, object]) -> None:
    """Refuse a question that lacks a needed fact."""
    missing = [f"--{name} ({why})" for name, why in _NEEDED.items() if facts[name] is None]
    if missing:
        raise InvalidInput(
            f"a plan needs {'; '.join(missing)}. They have no defaults, because each changes the guarantee. "
            "For an example, see tacit plan --help."
        )


def whole(name: str, value: float) -> int:
    """Return ``value`` as a whole number, so that a user may write 1e6."""
    if not float(value).is_integer():
        raise InvalidInput("must be a whole number", argument=name, value=value)
    return int(value)


def _first(option: _T | None, from_file: _T | None) -> _T | None:
    """Return the value of the option, else that of the run file."""
    return from_file if option is None else option


def _show(advice: PlanAdvice, config: Path | None) -> None:
    from tacit.runs.config import read_text, reasons

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
        f"{counted(question.records, 'record')} (unit: {question.unit}), {question.budget_in_words} under "
        f"{question.adjacency}, {amount}"
    )
    console.print()
    print_whole(_table(advice))
    console.print()
    console.print(advice.in_words())
    chosen = [] if config is None else reasons(read_text(config))
    if chosen:
        say("\nThe run file leaves these to Tacit:\n")
    for line in chosen:
        say(f"  {line}")


def _signal(advice: PlanAdvice, run_file: Config | None, weights: float | None) -> Signal | None:
    """Compute how well the run file's plan, or else the recommended one, can learn; None without weights."""
    from tacit.runs.plan import make_plan, trained_weights

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
    """Format a probability with one digit; one below 1e-99 becomes ``<1e-99``."""
    return "<1e-99" if value < 1e-99 else f"{value:.0e}"


_MOST_STEPS = 10**9 - 1
_ADJACENCIES = {
    "add-remove": "a record is present or not, and the number of records is secret",
    "replace-one": "a record is exchanged for another",
    "zero-out": "a record is blank or not, and the number of records is public",
}
_WITHOUT = {
    Neighbours.ADD_REMOVE: "if that record had been left out, or added",
    Neighbours.REPLACE_ONE: "if that record had been another",
    Neighbours.ZERO_OUT: "if that record had been blank",
}


def account_command(
    context: typer.Context,
    noise: Annotated[
        float | None, option("Noise multiplier: standard deviation divided by a record's norm bound.")
    ] = None,
    sampling_rate: Annotated[
        float | None, option("Probability that a record takes part in a step; 1 for all.")
    ] = None,
    records: Annotated[int | None, option("Number of records, publicly known.")] = None,
    batch_size: Annotated[int | None, option("Expected batch of Poisson sampling; needs --records.")] = None,
    steps: Annotated[int | None, option("Number of steps.")] = None,
    epochs: Annotated[float | None, option("Instead of --steps: epochs.")] = None,
    event: Annotated[
        list[Path] | None,
        option("A mechanism as JSON (- for stdin); several, or one with --noise, are composed."),
    ] = None,
    delta: Delta = None,
    adjacency: Annotated[
        str | None, option(f"Neighbouring data sets: {', '.join(_ADJACENCIES)}; no default.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help=(
                f"Comma-separated accountants: {', '.join(METHODS)}; best, the lowest proven bound of these; "
                "or all."
            )
        ),
    ] = "pld",
    figure: Figure = None,
    as_json: AsJson = False,
) -> int:
    """Compute the privacy cost of a mechanism: epsilon at a delta, and its meaning.

    The mechanism is DP-SGD, described by its noise, sampling and steps, or any event of tacit.events in a
    JSON file. Nothing is trained and no data is read.

    Exit codes: 0 done, 1 no accountant has a proven bound, 2 bad usage or input.

    Example:  tacit account --records 60000 --batch-size 600 --noise 4 --epochs 100 --delta 1e-5 --adjacency
    add-remove --method pld,rdp,moments --figure cost.png
    """
    if noise is None and (stray := given_options(context, "sampling_rate", "batch_size", "steps", "epochs")):
        raise InvalidInput(
            f"{', '.join(stray)} describe DP-SGD, but --noise is missing. Set it to the noise multiplier "
            "(standard deviation / clipping norm)."
        )
    target, relation = _stated_delta(delta), _stated_adjacency(adjacency)
    methods = [*METHODS] if method == "all" else [name.strip() for name in method.split(",")]
    drawing = None
    if figure is not None:
        drawing = figure_path(figure)
        new_figure(1.0, 1.0)  # fails before the long work begins, if there is no matplotlib
    mechanism = _event(event or (), noise, sampling_rate, records, batch_size, steps, epochs)
    with Preparations() as progress:
        pricing = price_event(
            mechanism,
            adjacency=relation,
            delta=target,
            methods=methods,
            skip_refusals=method == "all",
            progress=progress,
        )
        if drawing is not None:
            from tacit.report.plots import draw_pricing, prepare_drawing

            draw_pricing(prepare_drawing(pricing, progress), drawing)
    if as_json:
        print_json(pricing.to_data() | {"figure": None if figure is None else str(figure)})
        return 0
    _show_pricing(pricing)
    if drawing is not None:
        show_line(f"Figure: {figure}")
    if records is not None and target >= 1.0 / records:
        note(
            f"delta {target:g} is not below 1/{records}: publishing one random record in full would satisfy "
            "it. Choose a smaller delta."
        )
    return 0


# --- the question -----------------------------------------------------------------------------------------


def _event(
    files: Sequence[Path],
    noise: float | None,
    sampling_rate: float | None,
    records: int | None,
    batch_size: int | None,
    steps: int | None,
    epochs: float | None,
) -> Event:
    """Compose the events from the files with the one that the flags describe, in that order."""
    events = [read_event_file(path) for path in files]
    if noise is not None:
        rate = _rate(sampling_rate, records, batch_size)
        why = "1 is a usual value."
        sigma = check_real("noise", noise, low=0.0, open_low=True, why=why)
        events.append(Repeat(PoissonSampled(rate, Gaussian(sigma)), _steps(rate, steps, epochs)))
    if not events:
        raise InvalidInput(
            "no mechanism is given. Describe DP-SGD with --noise, --sampling-rate (or --records and "
            "--batch-size) and --steps (or --epochs), or give an event in JSON with --event FILE."
        )
    return events[0] if len(events) == 1 else Compose(tuple(events))


def _rate(sampling_rate: float | None, records: int | None, batch_size: int | None) -> float:
    if records is not None:
        check_integer("records", records, low=1)
    if sampling_rate is not None and batch_size is not None:
        raise InvalidInput(
            "--sampling-rate and --batch-size exclude each other. Give --sampling-rate, or --records and "
            "--batch-size."
        )
    if sampling_rate is not None:
        why = "It is the probability that a record takes part in a step."
        return check_real("sampling_rate", sampling_rate, low=0.0, high=1.0, why=why)
    if records is None or batch_size is None:
        raise InvalidInput(
            "the sampling rate is missing. Give --sampling-rate (1 for full batches), or both --records "
            "and --batch-size."
        )
    why = "Give a number from 1 to the number of records."
    return check_integer("batch_size", batch_size, low=1, high=records, why=why) / records


def _steps(rate: float, steps: int | None, epochs: float | None) -> int:
    if (steps is None) == (epochs is None):
        got = "neither" if steps is None else "both"
        raise InvalidInput(
            f"give exactly one of --steps and --epochs; got {got}. The cost depends on the number of steps."
        )
    if steps is not None:
        why = "Give at least 1, and fewer than 1e9."
        return check_integer("steps", steps, low=1, high=_MOST_STEPS, why=why)
    passes = check_real("epochs", epochs, low=0.0, open_low=True)
    if rate == 0.0:
        raise InvalidInput("--epochs needs a --sampling-rate above 0. Give --steps instead.")
    exact = passes / rate
    nearest = round(exact) if math.isfinite(exact) else exact
    # Rounding errors of the division must not remove a step, and a fraction of a step counts as a whole one.
    count = nearest if abs(exact - nearest) <= 1e-9 * exact else math.ceil(exact)
    if count > _MOST_STEPS:
        raise InvalidInput(
            f"--epochs {passes:g} at sampling rate {rate:g} means {count:g} steps; at most {_MOST_STEPS} are "
            "possible. Give fewer epochs or a larger batch."
        )
    return max(1, int(count))


def read_event_file(path: Path) -> Event:
    """Read the event from a JSON file, or from standard input if the path is "-"."""
    source = "the input" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8 text"
        raise InvalidInput(f"cannot read the event in {source}: {reason}. Check the path.") from None
    try:
        return event_from_json(text)
    except RecursionError:
        raise InvalidInput(
            f"the event in {source} has too many levels. Describe repetitions by one Repeat."
        ) from None
    except TacitError as problem:
        raise type(problem)(f"{source}: {problem}") from None


def _stated_delta(delta: float | None) -> float:
    why = (
        "Delta is the failure probability of the guarantee, without a default. Choose it far below 1 / "
        "records, such as --delta 1e-5."
    )
    if delta is None:
        raise InvalidInput("is missing", argument="delta", why=why)
    return check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True, why=why)


def _stated_adjacency(adjacency: str | None) -> Neighbours:
    try:
        return Neighbours.parse(adjacency)
    except InvalidInput:
        kinds = "; ".join(f"{name}: {meaning}" for name, meaning in _ADJACENCIES.items())
        problem = "is missing" if adjacency is None else f"{adjacency!r} is not known"
        raise InvalidInput(
            f"--adjacency {problem}: epsilon has no meaning without it. Choose one ({kinds})."
        ) from None


# --- the answer -------------------------------------------------------------------------------------------


def _show_pricing(pricing: Pricing) -> None:
    match pricing.event:
        case Repeat(PoissonSampled(rate, Gaussian(sigma)), count):
            show_line(f"{counted(count, 'step')}, sampling rate {rate:.6g}, noise multiplier {sigma:.6g}")
        case event:
            show_line(repr(event))
    console.print(f"{pricing.adjacency.value}, δ = {pricing.delta:.15g}")
    table = Table("accountant", "ε", "too large by at most")
    for quote in pricing.quotes:
        table.add_row(*_row(quote))
    console.print(table)
    for quote in pricing.quotes:
        if quote.refusal is not None:
            console.print(f"{quote.method}: {quote.refusal}")
    console.print(_meaning(pricing))


def _row(quote: Quote) -> tuple[str, str, str]:
    if quote.refusal is not None:
        return quote.method, "refused", ""
    known = quote.lower > 0.0 or quote.upper == 0.0
    gap = f"{quote.upper - quote.lower:.1e}" if known else "not known"
    return quote.method, shown_epsilon(quote.upper), gap


def _meaning(pricing: Pricing) -> str:
    """Describe what the best bound lets an attacker do."""
    epsilon, risk = pricing.epsilon, pricing.risk
    if not math.isfinite(epsilon):
        return (
            f"No finite epsilon is proven at delta {pricing.delta:g}. Use more noise, fewer steps or a "
            "larger delta."
        )
    factor = round_up(math.exp(epsilon), 3) if epsilon < 20 else f"e^{shown_epsilon(epsilon)}"
    accused = ", ".join(f"{100.0 * rate:g}" for rate, _ in risk.detected)
    detected = ", ".join(percent(rate) for _, rate in risk.detected)
    odds = " and ".join(f"{100.0 * before:g} % to {percent(after)}" for before, after in risk.posteriors)
    sentences = (
        f"Whatever anyone concludes or does is at most {factor} times as probable, plus δ, as it would be "
        f"{_WITHOUT[pricing.adjacency]}.",
        f"A test for membership that accuses {accused} % of the non-members detects at most {detected} of "
        "the members.",
        f"A guess whether it took part, at even odds, is right in at most {percent(risk.success)} of cases.",
        f"Except with probability δ, the probability of membership grows at most from {odds}.",
    )
    lines = [textwrap.fill(text, 78, initial_indent="  * ", subsequent_indent="    ") for text in sentences]
    return "\n".join([f"What it means for one record ({risk.method}):", *lines])


def percent(probability: float, digits: int = 4) -> str:
    """Format a probability in per cent, rounded up."""
    return f"{round_up(100.0 * probability, digits)} %"
