"""Verbs on a finished run: what it reveals, by proof and by experiment, and what its model answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from tacit.accounting import account
from tacit.cli.plan import percent, read_event_file
from tacit.cli.terminal import (
    INTERRUPTED,
    AsJson,
    Factory,
    Figure,
    FinishedRun,
    Preparations,
    ReportFolder,
    RunFolder,
    argument,
    console,
    messages,
    option,
    print_json,
    progress_bar,
    say,
    show_line,
)
from tacit.errors import InvalidInput, check_integer, check_real
from tacit.events import Adjacency, ApproximateDP, Event
from tacit.report.canvas import figure_path
from tacit.report.risk import RiskSheet, risk_sheet
from tacit.report.verification import check_fields, read_event, read_statement
from tacit.rounding import counted, shown_epsilon


def command(
    run: FinishedRun,
    shadows: Annotated[
        int, typer.Option(help="Shadow models, each with and without DP; 0 for the loss attack alone.")
    ] = 16,
    rate: Annotated[
        float | None,
        option(
            "False-positive rate to report; needs 5 / RATE test records. Default: all that the test "
            "records allow."
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    out: ReportFolder = None,
    as_json: AsJson = False,
) -> int:
    """Run membership attacks on a run's model, with and without DP, and compare them with the proven limit.

    Trains shadow models with the run's settings, each taking about as long as the run. After Ctrl-C, the same
    command continues; only the model in training is lost. Writes report.html (self-contained), report.json
    and the charts. The report is confidential.

    Exit codes: 0 done, 1 an attack is above the limit, 2 bad usage or input, 130 interrupted.

    Example:  tacit attack runs/demo-1
    """
    _check_numbers(shadows, confidence)
    rates = None if rate is None else (check_real("rate", rate, low=0.0, high=1.0, open_low=True),)
    return _report(run, out or run / "private" / "attack", shadows, 0, confidence, as_json, rates=rates)


def _check_numbers(shadows: int, confidence: float) -> None:
    """Check numbers of the command line at once, before torch is imported and the run is read."""
    check_real("confidence", confidence, low=0.5, high=1.0, open_high=True)
    if check_integer("shadows", shadows, low=0) == 2 or shadows % 2:
        raise InvalidInput(f"--shadows must be 0, or even and at least 4; got {shadows}. Take 16.")


_QUICK, _USUAL, _DEEP = (0, 1000), (16, 1000), (64, 5000)  # shadow models, canaries


def audit_command(
    run: FinishedRun,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use no shadow models; takes about as long as two runs.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Use 64 shadow models and 5,000 canaries.")] = False,
    confidence: Annotated[float, typer.Option(help="Confidence of bounds and intervals.")] = 0.95,
    out: ReportFolder = None,
    as_json: AsJson = False,
) -> int:
    """Audit a run: proven limits, attacks, and a test of its guarantee with planted canaries.

    Plants 1,000 canaries in a separate run of the same plan on synthetic records, tests the claimed guarantee
    on them, and attacks the model with 16 shadow models. Writes report.html (self-contained), report.json and
    the charts. The report is confidential. After Ctrl-C, the same command continues. If the run protects
    people with several rows, it plants synthetic people, and skips attacks on rows.

    Exit codes: 0 no violation confirmed; 1 the guarantee is contradicted or cannot be audited; 2 bad usage or
    input; 130 interrupted.

    Example:  tacit audit runs/demo-1
    """
    if quick and deep:
        raise InvalidInput("give one of --quick and --deep, or neither.")
    _check_numbers(0, confidence)
    shadows, canaries = _QUICK if quick else _DEEP if deep else _USUAL
    return _report(run, out or run / "private" / "audit", shadows, canaries, confidence, as_json)


def _report(
    run: Path,
    folder: Path,
    shadows: int,
    canaries: int,
    confidence: float,
    as_json: bool,
    *,
    rates: tuple[float, ...] | None = None,
) -> int:
    """Make the findings, and write and print them."""
    from tacit.runs.attack import run_findings

    try:
        with Preparations() as progress:
            data = run_findings(
                run,
                shadows=shadows,
                canaries=canaries,
                confidence=confidence,
                rng=np.random.default_rng(),
                rates=rates,
                progress=progress,
            )
    except KeyboardInterrupt:
        messages.print("Stopped. The same command continues with the shadow models that are done.")
        return INTERRUPTED
    from tacit.report.run_page import write_report

    return show_findings(data, write_report(data, folder), as_json=as_json)


def show_findings(data: dict[str, Any], page: Path, *, as_json: bool) -> int:
    """Print the findings, and return the exit code: 1 if they contradict the promise."""
    from tacit.report.run_page import summary, verdict

    contradicted, words = verdict(data)
    if as_json:
        print_json(data)
        return int(contradicted)
    show_line(words, "bold red" if contradicted else "bold green")
    console.print()
    for kind, sentence in summary(data):
        show_line(f"{kind}: {sentence}", "bold red" if kind.endswith("!") else None)
        console.print()
    show_line(f"Report: {page}")
    console.print("Keep it confidential: it was computed from records without noise.")
    return int(contradicted)


# --- tacit risk -------------------------------------------------------------------------------------------


def risk_command(
    run: Annotated[Path | None, argument("The folder of a run, or its statement.json.")] = None,
    epsilon: Annotated[float | None, option("Instead of a run: an epsilon.")] = None,
    event: Annotated[Path | None, option("Instead of a run: a mechanism as JSON.")] = None,
    delta: Annotated[float | None, option("Delta, with --epsilon or --event.")] = None,
    adjacency: Annotated[str | None, option("Neighbouring data sets, with --epsilon or --event.")] = None,
    unit: Annotated[str, option("What one record is, with --epsilon or --event.")] = "record",
    figure: Figure = None,
    as_json: AsJson = False,
) -> int:
    """Show what a guarantee means for one person: upper bounds on any attack's success.

    The bounds come from the trade-off curve of the run's mechanism, which is much tighter than its epsilon
    and delta; the last column shows what epsilon and delta alone would allow.

    Exit codes: 0 done, 1 no proven bound, 2 bad usage or input.

    Example:  tacit risk runs/first --figure risk.png
    """
    if figure is not None:
        figure_path(figure)
    with messages.status("computing the limits"):
        sheet = _risk_sheet(run, epsilon, event, delta, adjacency, unit)
        if figure is not None:
            from tacit.report.plots import draw_risk

            draw_risk(sheet, figure)
    if as_json:
        print_json(sheet.to_data())
        return 0
    _show_risk(sheet)
    if figure is not None:
        show_line(f"Figure: {figure}")
    return 0


def _risk_sheet(
    run: Path | None,
    epsilon: float | None,
    event: Path | None,
    delta: float | None,
    adjacency: str | None,
    unit: str,
) -> RiskSheet:
    sources = {"RUN": run, "--epsilon": epsilon, "--event": event}
    names = [name for name, value in sources.items() if value is not None]
    if len(names) != 1:
        raise InvalidInput(
            f"give exactly one of RUN, --epsilon and --event; got {' and '.join(names) or 'none'}. If you "
            "have a run, it gives the tightest bounds: tacit risk runs/first"
        )
    if run is not None:
        if delta is not None or adjacency is not None:
            raise InvalidInput("the run already states delta and adjacency. Remove --delta and --adjacency.")
        data = read_statement(run / "statement.json" if run.is_dir() else run)
        check_fields(data)
        promise = data["guarantee"]
        relation = Adjacency.parse(promise["adjacency"])
        curve = account(read_event(data["event"]), adjacency=relation)
        return risk_sheet(curve, delta=promise["delta"], unit=promise["unit"])
    if delta is None or adjacency is None:
        raise InvalidInput("--epsilon also needs --delta and --adjacency. Set both.")
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    mechanism: Event
    if event is None:
        mechanism = ApproximateDP(check_real("epsilon", epsilon, low=0.0), delta)
    else:
        mechanism = read_event_file(event)
    return risk_sheet(account(mechanism, adjacency=adjacency), delta=delta, unit=unit, epsilon=epsilon)


def _show_risk(sheet: RiskSheet) -> None:
    for sentence in sheet.sentences():
        say(sentence)
        console.print()
    table = Table(
        "at most", "without the release", "with it", f"if only ε = {shown_epsilon(sheet.epsilon)} were known"
    )
    for chance in sheet.chances:
        most = (percent(chance.at_most, 3), percent(chance.pair_alone, 3))
        table.add_row(chance.question, f"{100 * chance.before:.4g} %", *most)
    console.print(table)
    show_line(
        f"From the trade-off curve ({sheet.curve.method}), adjacency {sheet.curve.adjacency}, "
        f"delta {sheet.delta:g}. {sheet.in_one_number()}"
    )


def predict_command(
    run: RunFolder,
    data: Annotated[Path, argument("New records of the kind that the model was trained on.")],
    out: Annotated[Path, typer.Option(help="The table of predictions, in CSV.")] = Path("predictions.csv"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing table.")] = False,
    factory: Factory = None,
    threshold: Annotated[
        float | None, option("Least probability to predict the second of two classes, or a label.")
    ] = None,
    keep: Annotated[
        list[str] | None, option("Copy this column to the predictions; may be repeated.", metavar="NAME")
    ] = None,
    device: Annotated[str, typer.Option(help="The device of the model, such as cuda.")] = "cpu",
    as_json: AsJson = False,
) -> int:
    """Predict for new records with the model of a run.

    Records have the same format as in training: a table (CSV, .csv.gz or Parquet) with the same
    columns, in which the target may be missing; a folder of images, or one image; text with one record per
    line; for a data set of Tacit's own, an array (.npy, .npz) or a CSV of scaled numbers. Files may exceed
    memory. The predictions have one line per record: its number or file name, the columns of --keep, such as
    an id, then the class and all class probabilities, or for each label, true or false and its probability.

    If one of two classes, or a label, is rare, few records have a probability above 0.5. --threshold 0.1
    finds more of them, at no privacy cost. Choose it from public knowledge, not from private records.

    It needs neither training data nor a ledger, and charges nothing. An unreadable record is an error that
    names its place in the file. After an error or Ctrl-C, no predictions are written.

    Exit codes: 0 done, 2 bad usage or input, 130 interrupted.

    Example:  tacit predict runs/patients new_patients.csv --out predictions.csv
    """
    from tacit.runs.predict import check_out, load, write_predictions

    check_out(out, data, overwrite=overwrite)
    predictor = load(run, factory=factory, device=device)
    with progress_bar() as bar:
        task = bar.add_task("predicting", total=None)
        try:
            count = write_predictions(
                predictor,
                data,
                out,
                overwrite=overwrite,
                threshold=threshold,
                keep=keep or (),
                progress=lambda done, total: bar.update(
                    task, completed=done, total=total and max(done, total)
                ),
            )
            bar.update(task, completed=count, total=count)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Stopped immediately. {out} was not written.") from None
    if as_json:
        print_json({"run": str(run), "data": str(data), "out": str(out), "records": count})
    else:
        show_line(f"Predictions for {counted(count, 'record')}: {out}")
    return 0


def export_command(
    run: RunFolder,
    to: Annotated[str, option("onnx or torch-export.", "--format")],
    out: Annotated[Path, option("The file to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    factory: Factory = None,
) -> int:
    """Export the model of a run as ONNX or with torch.export.

    The file contains only the network: its input "inputs" takes any number of records, encoded as in
    training, and its output "outputs" has the logits of the classes, or scaled numbers. Classes, columns,
    epsilon, delta and the unit of privacy are in its metadata, under the name tacit. The exported network is
    checked against the model first.

    Exit codes: 0 done, 2 bad usage or input, 130 interrupted.

    Example:  tacit export runs/patients --format onnx --out patients.onnx
    """
    from tacit.runs.predict import load

    load(run, factory=factory).export(out, format=to, overwrite=overwrite)
    show_line(f"Model as {to}: {out}")
    return 0


def generate_command(
    run: RunFolder,
    prompts: Annotated[
        Path | None, option("Prompts: a text file with one on each line, or objects in .jsonl.")
    ] = None,
    count: Annotated[int, typer.Option(help="Samples for each prompt.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the samples.", metavar="DIR")] = Path("texts"),
    max_new_tokens: Annotated[
        int | None, option("Maximum new tokens; default: up to the run's record length.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Below 1, likely tokens become likelier.")] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="Nucleus sampling: total probability of candidate tokens.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(help="A public seed.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Samples generated together.")] = 32,
    device: Annotated[str, typer.Option(help="The device of the model, such as cuda.")] = "cpu",
    as_json: AsJson = False,
) -> int:
    """Sample text from the language model of a run.

    This is post-processing: the statement of the run covers the samples, and they cost nothing. The folder
    gets a copy of the statement, the settings, and texts.jsonl, which has one object for each sample.

    Prompts must be public. In a text file each line is a prompt. In .jsonl each object has a "prompt", or
    "messages" for a model of chats; its other fields, such as a label, are copied. The sample is the
    "completion", or the last message; without prompts, the "text".

    After a Ctrl-C or a crash, the same command continues, and writes the same samples.

    Exit codes: 0 done, 2 bad usage or input, 130 interrupted.

    Example:  tacit generate runs/reviews --prompts prompts.jsonl --count 2500
    """
    from tacit.runs.generate import TEXTS, Generation, check_generation, write_texts

    asked = Generation(
        run,
        out,
        count=count,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        batch_size=batch_size,
        device=device,
    )
    wanted = check_generation(asked, prompts)
    done = 0
    with progress_bar() as bar:
        task = bar.add_task("writing", total=wanted.total)

        def progress(written: int) -> None:
            nonlocal done
            done = written
            bar.update(task, completed=written)

        try:
            write_texts(wanted, progress)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"Stopped immediately. {out / TEXTS} has {done:,} of {counted(wanted.total, 'sample')}; the "
                "same command continues."
            ) from None
    if as_json:
        print_json({"run": str(run), "out": str(out), "texts": done})
    else:
        show_line(f"{counted(done, 'sample')}: {out / TEXTS}")
        show_line(f"No privacy cost: {out / 'statement.json'}, a copy of the run's statement, covers them.")
    return 0
