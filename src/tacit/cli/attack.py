"""``tacit attack`` and ``tacit audit``: membership attacks on a finished run, and a planted experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tacit.cli.terminal import (
    INTERRUPTED,
    AsJson,
    FinishedRun,
    Preparations,
    console,
    messages,
    option,
    print_json,
    show_line,
)
from tacit.errors import InvalidInput, check_integer, check_real


def command(
    run: FinishedRun,
    shadows: Annotated[
        int, typer.Option(help="Number of shadow models with DP, and of those without; 0 for the loss alone.")
    ] = 16,
    rate: Annotated[
        float | None,
        option(
            "False-positive rate to report; needs 5 / RATE test records. Default: those that the test "
            "records allow."
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    out: Annotated[Path | None, option("Folder of the report; default: RUN/private/attack.")] = None,
    as_json: AsJson = False,
) -> int:
    """Attack the model of a run: how many of its records are detected with and without DP, and the limit.

    Trains shadow models with the run's settings, so it takes about as long as that many runs; up to eight
    perceptrons are trained at the same time. Ctrl-C loses only the models in training: the same command
    continues with the others. Writes report.html, which needs no network, report.json and the charts. The
    report is confidential.

    Exit codes: 0 done, 1 an attack is above the limit, 2 bad usage or input, 130 interrupted.

    Example:  tacit attack runs/demo-1
    """
    _check_numbers(shadows, confidence)
    rates = None if rate is None else (check_real("rate", rate, low=0.0, high=1.0, open_low=True),)
    data = findings_of(run, shadows=shadows, rates=rates, confidence=confidence, canaries=0)
    return write_and_show(data, out or run / "private" / "attack", as_json=as_json)


def _check_numbers(shadows: int, confidence: float) -> None:
    """Check numbers of the command line at once, before torch is imported and the run is read."""
    check_real("confidence", confidence, low=0.5, high=1.0, open_high=True)
    if check_integer("shadows", shadows, low=0) == 2 or shadows % 2:
        raise InvalidInput(f"--shadows must be 0, or an even number from 4; got {shadows}. Take 16.")


def findings_of(
    run: Path, *, shadows: int, rates: tuple[float, ...] | None, confidence: float, canaries: int
) -> dict[str, Any] | None:
    """Attack a run, audit it unless ``canaries`` is 0, and return the findings; None after a Ctrl-C."""
    from tacit.runs.attack import attack_findings
    from tacit.runs.finished import audit_findings, finished_files, open_run
    from tacit.runs.people import people_findings

    rng = np.random.default_rng()
    try:
        with Preparations() as progress:
            of_people = finished_files(run)[0].data.rows_per_user is not None and canaries > 0
            opened = None if of_people else open_run(run, progress)
            data: dict[str, Any] = {}
            if canaries:
                data["audits"] = audit_findings(
                    run, canaries=canaries, confidence=confidence, rng=rng, progress=progress
                )
            if opened is None:
                findings = people_findings(run)
            else:
                findings = attack_findings(
                    opened, shadows=shadows, confidence=confidence, rng=rng, rates=rates, progress=progress
                )
    except KeyboardInterrupt:
        messages.print("Stopped. The same command continues with the shadow models that are done.")
        return None
    return findings | data


def write_and_show(data: dict[str, Any] | None, folder: Path, *, as_json: bool) -> int:
    """Write the report, print the findings, and return the exit code: 1 if they contradict the promise."""
    if data is None:
        return INTERRUPTED
    from tacit.report.pages.run_page import write_report
    from tacit.report.pages.run_summary import summary, verdict

    page = write_report(data, folder)
    contradicted, words = verdict(data)
    if as_json:
        print_json(data)
        return int(contradicted)
    show_line(words, "bold red" if contradicted else "bold")
    console.print()
    for kind, sentence in summary(data):
        show_line(f"{kind}: {sentence}", "bold red" if kind.endswith("!") else None)
        console.print()
    show_line(f"Report: {page}")
    console.print("It was computed from training and test records without noise: keep it confidential.")
    return int(contradicted)


_QUICK, _USUAL, _DEEP = (0, 1000), (16, 1000), (64, 5000)  # shadow models, canaries


def audit_command(
    run: FinishedRun,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use no shadow models: takes about as long as two runs.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Use 64 shadow models and 5,000 canaries.")] = False,
    confidence: Annotated[float, typer.Option(help="Confidence of bounds and intervals.")] = 0.95,
    out: Annotated[Path | None, option("Folder of the report; default: RUN/private/audit.")] = None,
    as_json: AsJson = False,
) -> int:
    """Say what a model reveals and whether its guarantee holds: limits, attacks, a planted experiment.

    Plants 1,000 canaries in a separate run of the same plan on made-up records, tests the claimed guarantee
    on them, and attacks the model with 16 shadow models. Writes report.html, which needs no network,
    report.json and the charts. The report is confidential. After a Ctrl-C, the same command continues. For a
    run that protects people with several rows, it plants made-up people, and makes no attacks on rows.

    Exit codes: 0 done, or a first suspicion was not confirmed; 1 the guarantee is contradicted or cannot be
    audited; 2 bad usage or input; 130 interrupted.

    Example:  tacit audit runs/demo-1
    """
    if quick and deep:
        raise InvalidInput("give one of --quick and --deep, or neither.")
    _check_numbers(0, confidence)
    shadows, canaries = _QUICK if quick else _DEEP if deep else _USUAL
    data = findings_of(run, shadows=shadows, rates=None, confidence=confidence, canaries=canaries)
    return write_and_show(data, out or run / "private" / "audit", as_json=as_json)
