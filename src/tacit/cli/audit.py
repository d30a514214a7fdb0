"""``tacit audit``: limits, attacks and a planted experiment on a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.attack import findings_of, write_and_show
from tacit.cli.train import INTERRUPTED
from tacit.errors import InvalidInput

_QUICK, _USUAL, _DEEP = (0, 1000), (16, 1000), (64, 5000)  # shadow models, canaries


def command(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", show_default=False)],
    quick: Annotated[
        bool, typer.Option("--quick", help="No shadow models: about as long as two runs.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="64 shadow models and 5,000 canaries.")] = False,
    confidence: Annotated[float, typer.Option(help="Of bounds and intervals.")] = 0.95,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report; else RUN/private/audit.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> int:
    """Say what a model reveals and whether its guarantee holds: limits, attacks, a planted experiment.

    Plants 1,000 canaries in a separate run of the same plan on made-up records, tests the claimed guarantee
    on them, and attacks the model with 16 shadow models. Writes report.html, which needs no network,
    report.json and the charts. The report is confidential. The same command goes on after a Ctrl-C.

    Exit codes: 0 done, also where a first suspicion was not confirmed, 1 contradicted, or cannot be audited,
    2 bad usage or input, 130 interrupted.

    Example:  tacit audit runs/demo-1
    """
    if quick and deep:
        raise InvalidInput("give one of --quick and --deep, or neither.")
    shadows, canaries = _QUICK if quick else _DEEP if deep else _USUAL
    data = findings_of(run, shadows=shadows, rates=None, confidence=confidence, canaries=canaries)
    return (
        INTERRUPTED
        if data is None
        else write_and_show(data, out or run / "private" / "audit", as_json=as_json)
    )
