"""``tacit check``: check a table against its policy, or against the columns of a run file."""

from __future__ import annotations

import getpass
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import ROUND_FLOOR
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tacit.cli.terminal import (
    AsJson,
    InDatabase,
    argument,
    console,
    messages,
    option,
    plain_table,
    print_json,
    print_whole,
    refuse,
    refused_data,
    say,
    show_line,
    table_of_figures,
)
from tacit.columns.tables import first_few
from tacit.errors import InvalidInput
from tacit.report.canvas import figure_path

if TYPE_CHECKING:
    from tacit.ledger import Ledger, Policy
    from tacit.queries import Query
    from tacit.queries.engines import Engine
    from tacit.queries.private_table import Answer, PrivateTable, Quote
    from tacit.queries.table_check import TableCheck


AcceptMissing = Annotated[
    list[str] | None, option("Accept missing and unreadable cells of this column, as missing.")
]
AcceptOutside = Annotated[
    list[str] | None,
    option("Accept undeclared values of this column: numbers are clipped, other values are in no group."),
]


def check_command(
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
    """Check a table against its policy: missing, unreadable or out-of-bounds cells.

    This is for the data owner: the output is confidential, although it shows no value. tacit ledger register
    makes the same check, and allows queries of a clean table.

    For a run file, it reports declared columns that do not fit the table: values in another case, bounds in
    other units, day and month exchanged, several rows of one person, a wrong number of records.

    Exit codes: 0 all cells fit or are accepted; 1 some do not; 2 bad input.

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
    if config.data.source != "table":
        raise InvalidInput(
            f"the run file {path} names no table file. Give a run file that sets [data] table."
        )
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
    """Yield the file, or the table in a database, that ``data`` names, and close the connection after it."""
    from tacit.queries.engines import database_at

    engine = database_at(data, table or default)
    if engine is not None:
        with closing(engine):
            yield engine
        return
    if table is not None:
        raise InvalidInput("--table is only for databases. Remove it.")
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
            Text(first_few(each.rows, each.count) if each.rows else ""),
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
    lines = ["Row 1 is the first row below the header. Correct the table, or accept findings:"]
    if missing:
        options = " ".join(f"--accept-missing {shlex.quote(name)}" for name in dict.fromkeys(missing))
        lines.append(f"  {options}   counts such cells as missing")
    if outside:
        options = " ".join(f"--accept-outside {shlex.quote(name)}" for name in outside)
        lines.append(f"  {options}   clips numbers; other values are in no group")
    return lines if len(lines) > 1 else ["Correct the table; these findings cannot be accepted."]


_BAR = 40  # characters
_EXAMPLE = (
    "tacit query visits.parquet --ledger budget.db --dataset visits --epsilon 0.5 "
    '"SELECT count(*) FROM visits"'
)


def command(
    data: Annotated[str | None, argument("A .parquet, .csv or .tsv file, or the URL of a database.")] = None,
    statement: Annotated[str | None, argument("The query in SQL; a .sql file; - to read stdin.")] = None,
    ledger: Annotated[str | None, option("The ledger: a file, or postgresql+psycopg://...")] = None,
    dataset: Annotated[str | None, option("The data set's name, in the ledger and after FROM.")] = None,
    epsilon: Annotated[float | None, option("Epsilon of the whole answer.")] = None,
    rho: Annotated[float | None, option("Or: rho, for gaussian noise.")] = None,
    delta: Annotated[float | None, option("Delta, for gaussian noise or undeclared keys.")] = None,
    mechanism: Annotated[str, typer.Option(help="The noise: laplace or gaussian.")] = "laplace",
    block: Annotated[str | None, option("The declared block of the data set in DATA.")] = None,
    table: InDatabase = None,
    attempt: Annotated[int, typer.Option(min=1, help="2, 3, ...: a fresh answer, charged again.")] = 1,
    by: Annotated[str | None, option("The analyst; default: the user of the system.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the cost, and charge nothing.")] = False,
    columns: Annotated[bool, typer.Option("--columns", help="List the declared columns.")] = False,
    figure: Annotated[
        Path | None, option("Draw the curves of the answer: a .png, .svg or .pdf file.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Query a private table in SQL, charged to its budget in the ledger.

    It supports aggregates of one table: count(*), count(column), sum, avg, var_samp, stddev, median,
    quantile(column, 0.9), max, min, histogram(column, [0, 20, 40]), quantiles(column, [0.1, 0.9]),
    cdf(column), boxplot(column), survival(time, event), cumulative_hazard(time, event) and
    restricted_mean(time, event), with WHERE and GROUP BY. Repeating a query on the same data returns the
    stored answer, at no cost.

    Exit codes: 0 done, 1 refused by a privacy rule or the budget, 2 bad usage or input.

    Example:  tacit query visits.parquet --ledger budget.db --dataset visits --epsilon 0.5
    "SELECT ward, count(*) FROM visits WHERE age > 65 GROUP BY ward"
    """
    from tacit.ledger import Ledger

    if ledger is None or dataset is None:
        missing = [name for name, value in (("--ledger", ledger), ("--dataset", dataset)) if value is None]
        raise InvalidInput(f"a query needs {' and '.join(missing)}. For example:  {_EXAMPLE}")
    book = Ledger.open(ledger)
    if columns:
        _show_columns(book, dataset, as_json)
        return 0
    if data is None or statement is None:
        raise InvalidInput(
            f"a query needs DATA and SQL. For example:  {_EXAMPLE}\nTo see the declared columns, give "
            "--columns instead."
        )
    query = _parsed(book, dataset, statement)
    drawing = None if figure is None else _drawing(figure, query)
    terms: dict[str, Any] = {
        "epsilon": epsilon,
        "rho": rho,
        "delta": delta,
        "mechanism": mechanism,
        "attempt": attempt,
    }
    try:
        with _opened(book, dataset, data, block, table) as private:
            quote = private.price(query, **terms)
            if dry_run:
                return _show_price(book, dataset, quote, as_json)
            answer = _asked(private, query, terms, by or getpass.getuser())
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(*(stop.args or ("stopped before anything was charged.",))) from None
    if drawing is not None:
        from tacit.report.curves import plot_curves

        plot_curves(answer, drawing)
    if as_json:
        print_json({"dataset": dataset, **answer.to_data()})
    else:
        _show(book, dataset, answer, quote)
    return 0


def _drawing(figure: Path, query: Query) -> Path:
    """Return the path of a figure; refuse it before the charge if the answer will have no curve."""
    from tacit.queries import Cdf, CumulativeHazard, Quantiles, Survival

    if not any(isinstance(item, Cdf | CumulativeHazard | Quantiles | Survival) for item in query.aggregates):
        raise InvalidInput(
            "--figure draws curves: survival, cumulative_hazard, cdf and quantiles. Query one of them, or "
            "remove --figure."
        )
    return figure_path(figure)


def _parsed(ledger: Ledger, dataset: str, statement: str) -> Query:
    from tacit.queries.sql import parse

    if statement == "-":
        statement = sys.stdin.read()
    elif statement.lower().endswith(".sql"):
        try:
            statement = Path(statement).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InvalidInput(f"{statement} is not UTF-8 text. Save it in that encoding.") from None
    return parse(statement, ledger.policy(dataset), table=dataset)


@contextmanager
def _opened(
    ledger: Ledger, dataset: str, data: str, block: str | None, table: str | None
) -> Iterator[PrivateTable]:
    """Open the table and yield it; its content is read once, for its fingerprint."""
    from tacit.queries.private_table import PrivateTable

    with table_at(data, table, default=dataset) as source:
        with messages.status("reading the table"):
            opened = PrivateTable(source, ledger=ledger, dataset=dataset, block=block)
        with opened:
            yield opened


def _asked(private: PrivateTable, query: Query, terms: dict[str, Any], by: str) -> Answer:
    """Return the answer; a Ctrl-C says what became of the charge."""
    try:
        with messages.status("asking"):
            return private.ask(query, **terms, by=by)
    except KeyboardInterrupt:
        left = _after_interrupt(private.price(query, **terms), terms["attempt"])
        raise KeyboardInterrupt(left) from None


def _after_interrupt(quote: Quote, attempt: int) -> str:
    match quote.state:
        case None:
            return "stopped before anything was charged."
        case "SETTLED":
            return "stopped after the answer was stored: ask the same query again to see it at no cost."
    cost = _amount(quote.epsilon, quote.delta)
    return (
        f"stopped after {cost} was charged, and the charge stays, since the answer may have been seen. For "
        f"a new answer at the same cost, use --attempt {attempt + 1}."
    )


# --- what is shown -------------------------------------------------------------------------------------


def _show_columns(ledger: Ledger, dataset: str, as_json: bool) -> None:
    from tacit.queries.sql import describe_columns

    policy = ledger.policy(dataset)
    described = describe_columns(policy)
    if as_json:
        print_json({"dataset": dataset, "unit": policy.unit, "columns": dict(described)})
        return
    view = plain_table("column", "what is publicly known")
    for name, facts in described:
        view.add_row(Text(name), Text(facts))
    console.print(view if described else "The policy declares no columns: only count(*) is possible.")
    if policy.unit_column is not None:
        name = policy.unit_column if policy.unit_column.isidentifier() else f'"{policy.unit_column}"'
        console.print(f"\ncount(DISTINCT {name}) counts each {policy.unit} once.")


def _show_price(ledger: Ledger, dataset: str, quote: Quote, as_json: bool) -> int:
    """Show the cost of a dry run, and return the exit code: 1 if it does not fit the budget."""
    price, granted = quote.price, quote.price.fits or quote.asked_before
    if as_json:
        print_json(
            {
                "dataset": dataset,
                "epsilon": quote.epsilon,
                "delta": quote.delta,
                "fits": price.fits,
                "refused": refused_data(price.refusal),
                "asked_before": quote.asked_before,
                "remaining_epsilon": price.remaining,
                "mechanism": list(quote.mechanism),
                "foreseen": list(quote.foreseen),
            }
        )
        return 0 if granted else 1
    for line in quote.mechanism:
        show_line(line)
    if quote.foreseen:
        console.print("\nThe reach of the noise, in 95 % of all answers:")
    for line in quote.foreseen:
        console.print(f"  {line}")
    cost = _amount(quote.epsilon, quote.delta)
    console.print()
    if quote.asked_before:
        console.print(f"This query was asked before: the ledger has the answer, at no cost (then {cost}).")
        _show_bar(ledger, dataset)
    elif price.fits:
        console.print(f"It would cost {cost}. Nothing was charged.")
        _show_bar(ledger, dataset, more=price.cost)
    else:
        show_line(f"It would cost {cost}, and would be refused: {price.refusal}")
        _show_bar(ledger, dataset)
    return 0 if granted else 1


def _show(ledger: Ledger, dataset: str, answer: Answer, quote: Quote) -> None:
    head, *lines = answer.cells()
    keys = len(head) - len(answer.columns)
    table = table_of_figures(head[:keys], head[keys:])
    for line in lines:
        table.add_row(*map(Text, line))
    print_whole(table)
    if not answer.rows:
        console.print("No group has enough members to be shown.")
    console.print()
    for note in answer.notes()[:-1]:  # the last note is on the cost, which the bar shows below
        say(note)
    cost = _amount(answer.epsilon, answer.delta)
    if answer.repeated:
        console.print(f"Asked before: answered from the ledger, at no cost (then {cost}).")
    else:
        console.print(f"It cost {cost}.")
    _show_bar(ledger, dataset, paid=None if answer.repeated else quote.price.cost)


def _amount(epsilon: float, delta: float) -> str:
    from tacit.rounding import shown_epsilon

    return f"ε = {shown_epsilon(epsilon)}" + (f", δ = {delta:.3g}" if delta else "")


def _show_bar(
    ledger: Ledger, dataset: str, *, paid: tuple[int, ...] | None = None, more: tuple[int, ...] | None = None
) -> None:
    """Show the spent share of the budget as a bar, with the share just ``paid``, or with ``more`` added."""
    from tacit.report.spending import NOT_ADDED, counted_in, counts_epsilon, shares
    from tacit.rounding import shown_epsilon

    status = ledger.status(dataset)
    new = paid or more or tuple(0 for _ in status.spent)
    after = status.spent if more is None else tuple(a + b for a, b in zip(status.spent, more, strict=True))
    whole, part = shares(status.policy.budget, status.cap, [after, new])
    filled, old = (min(_BAR, round(_BAR * share)) for share in (whole, max(0.0, whole - part)))
    bar = Text.assemble(
        ("█" * old, "blue"), ("█" * (filled - old), "dark_orange"), ("░" * (_BAR - filled), "dim")
    )
    of = counted_in(status.policy.budget, status.cap, after)
    with_this = " with this" if more else ""
    words = f"{100 * whole:.3g} % of the budget{of}{with_this}; {shown_epsilon(status.spent_epsilon)} of ε = "
    words += f"{shown_epsilon(status.cap_epsilon)} spent"
    words += f", {shown_epsilon(status.remaining_epsilon, ROUND_FLOOR)} left"
    show_line(Text.assemble(f"{dataset}  ", bar, f"  {words}"))
    if sum(status.charges.values()) <= 1 and not counts_epsilon(status.policy.budget.mode):
        say(NOT_ADDED)  # once; `tacit ledger status` repeats it
