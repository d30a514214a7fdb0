"""All attacks of the papers on a finished run: ``python -m experiments.laboratory RUN``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.laboratory.page import write_report
from experiments.laboratory.run_attack import laboratory_findings
from tacit.cli.attack import show_findings
from tacit.cli.terminal import INTERRUPTED, AsJson, FinishedRun, Preparations, messages, option
from tacit.errors import TacitError
from tacit.runs.attack import open_run


def main(arguments: list[str]) -> None:
    """Attack one run; exit with a code other than 0 after an error, or if its promise is contradicted."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(no_args_is_help=True)(command)
    try:
        app(arguments, prog_name="python -m experiments.laboratory")
    except TacitError as problem:
        messages.print(f"error: {problem}", soft_wrap=not messages.is_terminal)
        sys.exit(problem.exit_code)


def command(
    run: FinishedRun,
    shadows: Annotated[int, typer.Option(help="Number of shadow models with DP, and of those without.")] = 16,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    out: Annotated[Path | None, option("Folder of the report; default: RUN/private/laboratory.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run all attacks of the papers on a finished run, and write a report.

    They are those of tacit attack, further attacks on membership, the most exposed records, pictures
    reconstructed from a classifier, and what a language model recites. The report is confidential.

    Example:  python -m experiments.laboratory runs/demo-1
    """
    try:
        with Preparations() as progress:
            findings = laboratory_findings(
                open_run(run, progress),
                shadows=shadows,
                confidence=confidence,
                rng=np.random.default_rng(),
                progress=progress,
            )
    except KeyboardInterrupt:
        messages.print("Stopped. The same command continues with the shadow models that are done.")
        raise typer.Exit(INTERRUPTED) from None
    page = write_report(findings, out or run / "private" / "laboratory")
    raise typer.Exit(show_findings(findings, page, as_json=as_json))


if __name__ == "__main__":
    main(sys.argv[1:])
