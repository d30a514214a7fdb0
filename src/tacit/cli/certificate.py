"""``tacit certificate``: what is promised for a data set, and why?"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.show import console, messages
from tacit.errors import InvalidInput
from tacit.ledger import Ledger
from tacit.report.certificate.certificate import make_certificate
from tacit.report.certificate.lines import STATEMENTS
from tacit.report.statement.described import read_statement

__all__ = ["command"]


def command(
    ledger: Annotated[
        str,
        typer.Argument(metavar="LEDGER", help="A file, or postgresql+psycopg://...", show_default=False),
    ],
    dataset: Annotated[str, typer.Option(help="The data set.", show_default=False)],
    run: Annotated[
        str | None,
        typer.Option(help="Show the part of this training run: its id, or its folder.", show_default=False),
    ] = None,
    statements: Annotated[
        Path | None,
        typer.Option(help="What the ledger cannot know: a TOML file of texts.", show_default=False),
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(help="Sign it with the private key in this file.", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write it as a page too.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="Write its JSON to this file.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> int:
    """Certify what was and will be released from a data set: one page of text, JSON or HTML.

    Every line is graded proved, assumed or not covered; a line that nobody filled in says NOT STATED. The
    file of --statements may state: {statements}.

    Example:  tacit certificate budget.db --dataset visits --out visits.json
    """
    given = None if statements is None else _read(statements)
    with messages.status("pricing the mechanisms"):
        certificate = make_certificate(Ledger.open(ledger), dataset, run=_run_id(run), statements=given)
    if sign is not None:
        certificate = certificate.signed(sign)
    if out is not None:
        out.write_text(certificate.to_json(), encoding="utf-8")
    if html is not None:
        html.write_text(certificate.to_html(), encoding="utf-8")
    typer.echo(certificate.to_json() if as_json else certificate.to_text(), nl=False)
    if not as_json:
        for path in filter(None, (out, html)):
            console.print(f"Written: {path}", soft_wrap=True)
    return 0


def _run_id(run: str | None) -> str | None:
    """A run's id; for a folder, the one that its statement names."""
    if run is None or not (Path(run) / "statement.json").is_file():
        return run
    charged = read_statement(Path(run) / "statement.json").get("ledger")
    if not isinstance(charged, dict) or not isinstance(charged.get("run"), str):
        raise InvalidInput(
            f"the run in {run} was not charged to a ledger and has no part in a certificate. Leave --run out."
        )
    return str(charged["run"])


command.__doc__ = str(command.__doc__).format(statements=", ".join(STATEMENTS))


def _read(path: Path) -> dict[str, str]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise InvalidInput(
            f"the statements {path} cannot be read: {problem}. Correct the path, or that place in the file."
        ) from None
