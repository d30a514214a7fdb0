"""``tacit train``: train a model with differential privacy, from a configuration file."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.terminal import (
    INTERRUPTED,
    AsJson,
    NoInput,
    Preparations,
    TrainingBar,
    argument,
    can_ask,
    catching_interrupt,
    console,
    messages,
    note,
    one_voice,
    option,
    print_json,
    refused_data,
    show_line,
    torchrun,
    words,
)
from tacit.errors import check_integer

if TYPE_CHECKING:
    from tacit.ledger import DatasetStatus
    from tacit.runs import Outcome, Run
    from tacit.runs.checks import CheckedRun
    from tacit.runs.sections import LedgerSection
    from tacit.training.ranks.processes import Ranks


def command(
    context: typer.Context,
    config: Annotated[Path, argument("The configuration, a TOML file.")],
    out: Annotated[
        Path | None, option("Folder of the run; default: the configuration's, or runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in that folder.")] = False,
    ledger: Annotated[str | None, option("Charge the run to this ledger: a file or a database URL.")] = None,
    dataset: Annotated[str | None, option("The name of the data set in the ledger.")] = None,
    chunk: Annotated[int | None, option("Steps in one charge; default: a twentieth of all.")] = None,
    batches: Annotated[Path | None, option("The folder that `tacit batches` wrote.")] = None,
    no_input: NoInput = False,
    as_json: AsJson = False,
) -> int:
    """Train a model with differential privacy.

    The folder of the run gets the model, the privacy statement, an evaluation that compares the model with a
    constant answer, the metrics and pictures. Ctrl-C stops after the current step and saves. The same command
    with --resume continues exactly as if nothing had happened, also after a crash.

    With --ledger and --dataset, or a section [ledger] in the configuration, every chunk of steps is charged
    to the budget of the data set before it is performed. A plan that does not fit is refused before it
    starts. If others use up the budget during the run, it ends with the model so far, and exit code 1.

    A run by date, [privacy] sampling = "dates", ends with the last complete day. With --resume, and a later
    [data] until, it trains on the next days, under the same statement.

    If declared columns do not fit the table, or if a column such as patient_id repeats although the unit is a
    patient, a terminal says so before the first step, and asks whether to go on. With --no-input, or without
    a terminal, the run stops if a column fits nowhere, or if the unit may have several rows.

    Exit codes: 0 done, 1 refused by a privacy rule or the budget, 2 bad usage or input, 130 interrupted.

    torchrun --nproc-per-node 2 -m tacit train FILE trains in two processes: one run,
    one charge, one statement.

    Example:  tacit train digits.toml --out runs/first --ledger budget.db --dataset digits
    """
    with one_voice() as join:
        from tacit.runs.checks import check_run

        checked = check_run(
            config,
            out=out,
            resume=resume,
            ledger=_charged(ledger, dataset, chunk),
            batches=batches,
        )
        again = words(context, out=checked.folder, resume=True)
        asks = can_ask(no_input=no_input, as_json=as_json)
        ranks = join(checked.config.run.device)
        return _train(checked, ranks, again, config.stem, asks=asks, as_json=as_json)


def _charged(url: str | None, dataset: str | None, chunk: int | None) -> LedgerSection | None:
    """Return the ledger section from the command line; None leaves it to the configuration."""
    from tacit.runs.sections import LedgerSection

    if (url, dataset, chunk) == (None, None, None):
        return None
    if chunk is not None:
        check_integer("chunk", chunk, low=1)
    return LedgerSection(url=url, dataset=dataset, chunk=chunk)


def _train(
    checked: CheckedRun,
    ranks: Ranks | None,
    again: Sequence[str],
    title: str,
    *,
    asks: bool,
    as_json: bool,
) -> int:
    """Train in this process, together with ``ranks``, and return the exit code."""
    from tacit.runs.train import prepare_checked  # imports torch, so it comes after the checks

    with Preparations() as progress:
        confirm = progress.confirm if asks else None
        run = prepare_checked(checked, ranks=ranks, progress=progress, confirm=confirm)
    if not as_json:
        _announce(run)
    outcome = run_to_end(run, again, title)
    first = run.session.ranks.first
    if not run.ended:
        if as_json and first:
            done, steps = run.session.steps_done, run.plan.steps
            print_json({"folder": str(run.folder), "finished": False, "steps_done": done, "steps": steps})
        return INTERRUPTED
    if outcome is not None and as_json:
        refused = refused_data(run.session.refusal)
        print_json(as_data(outcome) | {"refused": refused, "balance": _balance(run)})
    elif outcome is not None:
        show_outcome(outcome)
        _show_balance(run, "Afterwards")
    return 0 if run.session.stopped is None else 1


def _status(run: Run) -> DatasetStatus | None:
    """Return the budget of the data set that a run is charged to; None for a run without a ledger."""
    charges = run.session.charges
    return None if charges is None else charges.ledger.status(charges.dataset)


def _balance(run: Run) -> dict[str, object] | None:
    """Return the budget of the data set that a run is charged to as plain data; None without a ledger."""
    if (status := _status(run)) is None:
        return None
    return {
        "dataset": status.name,
        "epsilon_spent": status.spent_epsilon,
        "epsilon_cap": status.cap_epsilon,
        "delta": status.cap_delta,
        "epsilon_left_for_a_query": status.remaining_epsilon,
    }


def _show_balance(run: Run, when: str) -> None:
    from tacit.rounding import round_up

    if (status := _status(run)) is not None:
        console.print(
            f"{when} the data set {status.name} has spent ε = {round_up(status.spent_epsilon)} of "
            f"{status.cap_epsilon:g} at δ = {status.cap_delta:g}."
        )


def run_to_end(run: Run, again: Sequence[str], title: str) -> Outcome | None:
    """Train with a progress bar; after a Ctrl-C, print how to resume and return None.

    ``again`` holds the arguments of ``tacit train`` that resume the run.
    """
    done = run.session.steps_done
    bar = TrainingBar(title, run.plan, done, private=run.session.private)
    with bar, catching_interrupt() as stop:
        outcome = run.start((bar,), stop)
    if not run.ended:
        command = shlex.join([*torchrun(), "train", *again])
        messages.print(
            f"Stopped after step {run.session.steps_done} of {run.plan.steps}; the state is saved in "
            f"{run.folder}. To resume:\n  {command}",
            soft_wrap=True,
        )
    return outcome


def _announce(run: Run) -> None:
    from tacit.plan.signal import Verdict
    from tacit.rounding import round_up
    from tacit.runs.config import reasons
    from tacit.runs.plan import trained_weights

    plan, done = run.plan, run.session.steps_done
    console.print(
        f"{run.data.name}: {plan.steps} steps, {plan.sampling.describe()}, noise multiplier "
        f"{plan.noise_multiplier:.4g}; the whole run costs ε = {round_up(plan.epsilon)} at δ = "
        f"{plan.delta:g} for one {plan.unit} ({plan.adjacency})."
    )
    weights = trained_weights(run.config)
    signal = None if weights is None else plan.signal(weights)
    if signal is not None and signal.verdict is Verdict.LITTLE:  # a session warns if it cannot learn
        note(signal.in_words())
    for line in reasons(run.config_text):
        console.print(line, markup=False)
    if plan.score_report is not None:
        console.print(
            f"The test records get one score, at the end, with noise of {plan.score_report.noise:g} records "
            "(standard deviation); its cost is in that epsilon."
        )
    if run.resumed:
        console.print(f"Resuming after step {done} of {plan.steps}.")
    _show_balance(run, "Before the run")


def show_outcome(outcome: Outcome) -> None:
    """Print the verdict on the model, the statement, the score and the paths of the files."""
    from tacit.report.evaluated import evaluation_text, score_line
    from tacit.rounding import round_up
    from tacit.runs.checks import declarations_file

    figures = outcome.figures
    console.print(figures["verdict"], style="bold red" if figures["useless"] else "bold")
    if remark_on_loss := figures.get("training_loss"):
        show_line(remark_on_loss)
    if table := evaluation_text(figures):
        console.print()
        show_line(table)
    console.print()
    show_line(outcome.statement.to_text())
    if outcome.stopped is not None:
        show_line(f"The ledger ended the run early: {outcome.stopped}")
    if outcome.days_left:
        show_line(f"{outcome.days_left} To continue with them, set [data] until, and say --resume.")
    cost = f" at ε = {round_up(outcome.statement.epsilon)}"
    console.print(score_line(figures, cost), style="bold red" if figures["useless"] else "bold")
    for remark in _about_score(outcome):
        show_line(remark)
    show_line(f"In {outcome.folder}:")
    console.print(textwrap.fill(", ".join(outcome.files), 79, initial_indent="  ", subsequent_indent="  "))
    console.print("  private/ holds the key of the noise, for resuming: do not release it")
    if (report := declarations_file(outcome.folder)).exists():
        show_line(f"  private/{report.name}, for you alone, says how the columns fit the table")
    own = [] if outcome.factory is None else ["--factory", outcome.factory]
    use = shlex.join(["tacit", "predict", str(outcome.folder), "DATA", "--out", "predictions.csv", *own])
    show_line(f"To use it:\n  {outcome.used_by or use}")
    if outcome.stopped is None and not outcome.days_left:
        show_line(outcome.how_to_test)
    for remark in outcome.remarks:
        note(remark)


def _about_score(outcome: Outcome) -> list[str]:
    """Return remarks that help to read a noisy score; empty for an exact score."""
    evaluation, done = outcome.evaluation, outcome.statement.data["mechanism"]["steps"]
    if evaluation.interval is None:
        return []
    remarks = ["The interval holds the score without noise in 95 % of all runs; epsilon includes the score."]
    if evaluation.steps != done:
        remarks.append(
            f"It is the score of the model after {evaluation.steps} steps: a run has one score, released "
            "then."
        )
    return remarks


def as_data(outcome: Outcome) -> dict[str, object]:
    """Return the outcome as plain data, for JSON."""
    return {
        "folder": str(outcome.folder),
        "finished": outcome.stopped is None and not outcome.days_left,
        "days_left": outcome.days_left,
        "stopped": outcome.stopped,
        "files": [str(outcome.folder / name) for name in outcome.files],
        "test_score": outcome.evaluation.score,
        "test_interval": outcome.evaluation.interval,
        "test_noise": outcome.evaluation.noise,
        "test_steps": outcome.evaluation.steps,
        "test_loss": outcome.evaluation.loss,
        "per_class": list(outcome.evaluation.per_class),
        "evaluation": outcome.figures,
        "rows": [vars(row) for row in outcome.rows],
        "statement": outcome.statement.data,
    }


def batches_command(
    config: Annotated[Path, argument("The configuration, a TOML file.")],
    out: Annotated[Path, option("The folder of the batches.")],
    master: Annotated[
        str | None, option("The address of Spark, such as local[8]; default: as configured.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Write the batches of a whole run on a corpus in Parquet, which `tacit train --batches` reads in order.

    Use it for a corpus that the training machine cannot read in random order. Spark cuts the documents into
    records, and gathers the records of each step. They are exactly those that the run would draw. The price
    is that of the run, and is charged when the run trains.

    The folder holds the records of each step and the key of the noise: it is as secret as the corpus. One run
    uses it, and can be resumed; another run needs its own batches.

    Exit codes: 0 done, 1 refused by a privacy rule, 2 bad usage or input, 130 interrupted.

    Example:  tacit batches corpus.toml --out batches --master "local[8]"
              tacit train corpus.toml --batches batches
    """
    from tacit.runs.batches import Spark, write_batches
    from tacit.runs.config import read_config

    with Preparations() as progress:
        spark: list[Spark] = []

        def engine() -> Spark:
            spark.append(Spark(master, progress))
            return spark[0]

        try:
            result = write_batches(read_config(config), out, engine, progress=progress)
        finally:
            for session in spark:
                session.stop()
    if as_json:
        print_json({"folder": str(out), "shards": result.shards, "bytes": result.bytes})
        return 0
    show_line(
        f"{out}: the batches of {result.plan.steps} steps, in {result.shards} files of "
        f"{result.bytes / 1e6:,.1f} MB in total. They are as secret as the corpus. To train:\n  tacit train "
        f"{shlex.quote(str(config))} --batches {shlex.quote(str(out))}"
    )
    return 0
