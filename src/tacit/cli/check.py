"""``tacit check``: check a table against its policy, or against the columns of a run file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tacit.cli.options import AsJson, InDatabase, argument, option, refuse
from tacit.cli.show import console, messages, plain_table, print_json, say, show_line
from tacit.columns.tables import first_few
from tacit.errors import InvalidInput

if TYPE_CHECKING:
    from tacit.ledger import Policy
    from tacit.queries.engines import Engine
    from tacit.queries.table_check import TableCheck

AcceptMissing = Annotated[
    list[str] | None, option("Accept missing and unreadable cells of this column; they count as missing.")
]
AcceptOutside = Annotated[
    list[str] | None,
    option(
        "Accept values of this column outside its declaration: numbers are moved to the nearest bound, "
        "other texts are in no group."
    ),
]


def command(
    context: typer.Context,
    data: Annotated[
        str, argument("A run file (.toml), a .parquet, .csv or .tsv file, or the URL of a database.")
    ],
    policy: Annotated[Path | None, option("The policy, a TOML file.")] = None,
    accept_missing: AcceptMissing = None,
    accept_outside: AcceptOutside = None,
    table: InDatabase = None,
    as_json: AsJson = False,
) -> int:
    """Check a table against its policy: rows with cells that are missing, unreadable or out of bounds.

    This is for the curator: the output is confidential, although it shows no value. tacit ledger register
    makes the same check, and stores that a table is clean; only then can the table be queried.

    For a run file, it reports declared columns that do not fit the table: values in another case, bounds in
    other units, day and month exchanged, several rows of one person, a wrong number of records.

    Exit codes: 0 every cell fits its declaration or is accepted; 1 some cells do not; 2 bad input.

    Example:  tacit check patients.csv --policy policy.toml
    """
    if data.lower().endswith(".toml"):
        refuse(context, "tacit check RUN.toml", "policy", "table", "accept_missing", "accept_outside")
        return _check_run(Path(data), as_json)
    from tacit.ledger.policy import read_policy
    from tacit.queries import check_table

    if policy is None:
        raise InvalidInput(
            "a check needs --policy, the TOML file that declares the columns: tacit check patients.csv "
            "--policy policy.toml"
        )
    declared = read_policy(policy)
    with table_at(data, table) as source, messages.status("reading the table"):
        check = check_table(
            source,
            declared,
            accept_missing=accept_missing or (),
            accept_outside=accept_outside or (),
        )
    if as_json:
        print_json(check.to_data())
    else:
        print_check(check, declared)
    return 0 if check.clean else 1


def _check_run(path: Path, as_json: bool) -> int:
    from tacit.queries.table_check import CONFIDENTIAL
    from tacit.runs.config import read_config
    from tacit.runs.declarations import doubts

    config = read_config(path)
    if config.data.table is None:
        raise InvalidInput(f"{path} trains on no table, so it declares no columns to check.")
    with messages.status("reading the table"):
        findings = doubts(config)
    if as_json:
        print_json(
            {
                "clean": not findings,
                "doubts": [{"column": doubt.column, "what": doubt.text} for doubt in findings],
            }
        )
    elif not findings:
        show_line(f"The declared columns fit {config.data.table}.")
    else:
        say(Text(CONFIDENTIAL, "bold"))
        console.print()
        for doubt in findings:
            say(Text(f"* {doubt}"))
    return 1 if findings else 0


@contextmanager
def table_at(data: str, table: str | None, *, default: str | None = None) -> Iterator[Path | Engine]:
    """Yield the file, or the table in a database, that ``data`` names, and close the connection at the end.

    Raises:
        InvalidInput: a database is given without the name of a table, or a file with one.
    """
    if data.startswith(("postgresql:", "postgresql+psycopg:", "postgres:")):
        from tacit.queries.dialects import PostgresEngine

        if (table_name := table or default) is None:
            raise InvalidInput("a database has many tables. Name one with --table.")
        schema, _, name = table_name.rpartition(".")
        with closing(PostgresEngine(data, name, schema=schema or "public")) as engine:
            yield engine
        return
    if table is not None:
        raise InvalidInput("--table is only for a database: a file has one table. Leave it out.")
    yield Path(data)


def print_check(check: TableCheck, policy: Policy) -> None:
    """Print the findings of a check as a table, and what to do about them."""
    from tacit.queries.table_check import CONFIDENTIAL, FOUND

    if not check.findings:
        columns = ", ".join(policy.columns) or "none is declared"
        show_line(f"Every cell is what its column declares ({columns}).")
        return
    say(Text(CONFIDENTIAL, "bold"))
    console.print()
    left = set(check.left)
    view = plain_table("column", "cells", "what", "rows")
    for each in check.findings:
        accepted = "" if each in left else " (accepted)"
        view.add_row(
            Text(each.column or "the table"),
            Text("some" if each.count is None else f"{each.count:,}", justify="right"),
            Text(FOUND[each.kind] + accepted),
            Text(first_few(each.rows, each.count)),
        )
    console.print(view)
    console.print()
    for line in _advice(check):
        say(line)


def _advice(check: TableCheck) -> list[str]:
    if check.clean:
        return ["All findings are accepted."]
    missing = [each.column for each in check.left if each.column is not None and each.counts_as_missing]
    outside = [each.column for each in check.left if each.column is not None and each.kind == "outside"]
    lines = ["Row 1 is the first row below the header. Correct the table, or accept what may stay:"]
    if missing:
        options = " ".join(f"--accept-missing {name}" for name in dict.fromkeys(missing))
        lines.append(f"  {options}   counts such cells as missing")
    if outside:
        options = " ".join(f"--accept-outside {name}" for name in outside)
        lines.append(f"  {options}   moves numbers to the nearest bound; other texts are in no group")
    return lines if len(lines) > 1 else ["Correct the table; these findings cannot be accepted."]
