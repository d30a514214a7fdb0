"""The curator's check of a table against its policy, and the verdict that a private table requires."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any

from tacit.columns.tables import MalformedTable, row_numbers
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.ledger import Ledger, Policy
from tacit.ledger.charges import Verdict
from tacit.queries.engines import Engine, EngineFailure, Places, engine_of
from tacit.queries.measures import count_of_units
from tacit.queries.query import CountUnits, Query
from tacit.queries.statements import (
    among,
    exp,
    field,
    has_fraction,
    has_value,
    is_text,
    literal,
    not_nan,
    or_else,
    present,
    sql,
    statement,
    typed,
    unit_tests,
)

# The content of a cell must not decide whether a question is refused, as a refusal is free and would reveal
# something of the cell. So the curator checks first: the check counts, per column, the cells that a question
# would misread. Its output is confidential. The ledger stores the verdict with the content's fingerprint.
# Without a verdict, the private table refuses every table with the same message, whatever it contains.

CONFIDENTIAL = (
    "Confidential: the following is about single records, without noise. Only the data owner may see it, to "
    "correct them."
)

_AS_MISSING = {
    "unreadable": "cannot be read as the declared kind",
    "type": "have another type than the declared kind",
    "fraction": "are not integers",
    "missing": "are missing",
    "empty": "are missing: the column has no value",
}
"""The kinds of findings whose cells count as missing if the curator accepts them, in words."""
FOUND = _AS_MISSING | {
    "outside": "lie outside the declared bounds or values",
    "malformed": "are rows whose number of cells differs from the header",
    "broken": "cannot be read as CSV in the declared encoding, or a quoted string is not closed",
    "too many": "are more rows than the policy's largest_table",
    "failed": "cannot be read by the engine",
}
"""All kinds of findings, in words that follow a number of cells."""


_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Finding:
    """The cells of a column with one kind of fault, or a fault of the whole table.

    >>> print(Finding("outside", "age", 3, (2, 7, 9)))
    column 'age': 3 lie outside the declared bounds or values (rows 2, 7, 9)
    """

    # ``unreadable``, ``type``, ``fraction``, ``missing``, ``empty``, ``outside``, ``failed``; for a whole
    # table ``malformed``, ``broken``, ``too many``, ``failed``
    kind: str
    column: str | None  # the column; None for the whole table
    count: int | None  # the number of rows; None if it is unknown
    rows: tuple[int, ...] = ()  # the numbers of the first few rows, from 1

    @property
    def counts_as_missing(self) -> bool:
        """Whether the curator may accept these cells as missing."""
        return self.kind in _AS_MISSING

    def __str__(self) -> str:
        where = "the table" if self.column is None else f"column {self.column!r}"
        cells = "some" if self.count is None else f"{self.count:,}"
        rows = f" ({row_numbers(self.rows, self.count)})" if self.rows else ""
        return f"{where}: {cells} {FOUND[self.kind]}{rows}"


@dataclass(frozen=True)
class TableCheck:
    """The confidential findings of a check.

    >>> import pandas as pd
    >>> from tacit.ledger import Column, PureBudget
    >>> policy = Policy(unit="visit", adjacency="add-remove", budget=PureBudget(1.0),
    ...                 columns={"age": Column(kind="number", lower=0, upper=120)})
    >>> check_table(pd.DataFrame({"age": [34.0, 300.0]}), policy, accept_outside=["age"]).clean
    True
    """

    findings: tuple[Finding, ...]  # all findings, column by column; empty if every cell is as declared
    accepted: Verdict  # the columns whose findings the curator accepts

    @property
    def left(self) -> tuple[Finding, ...]:
        """The findings that are not accepted."""
        return tuple(
            finding
            for finding in self.findings
            if not (finding.counts_as_missing and finding.column in self.accepted.missing)
            and not (finding.kind == "outside" and finding.column in self.accepted.outside)
        )

    @property
    def clean(self) -> bool:
        """Whether the table can be registered."""
        return not self.left

    def to_data(self) -> dict[str, Any]:
        left = set(self.left)
        findings = [
            vars(finding) | {"rows": list(finding.rows), "accepted": finding not in left}
            for finding in self.findings
        ]
        return {"clean": self.clean, "findings": findings}

    def __str__(self) -> str:
        if not self.findings:
            return "every cell is what its column declares"
        left = set(self.left)
        return "\n".join(f"{finding}{'' if finding in left else ' [accepted]'}" for finding in self.findings)


class UncleanTable(PrivacyRefusal):
    """Some cells do not match the policy; ``check`` lists them, and is confidential."""

    def __init__(self, dataset: str, check: TableCheck) -> None:
        super().__init__(
            f"the table is not registered as {dataset!r}: some cells do not match the policy. "
            f"{CONFIDENTIAL}\n"
            + "\n".join(map(str, check.left))
            + "\nCorrect the table, or accept the cells by column: accept_missing treats them as missing, "
            "accept_outside clips numbers to the bounds and puts other strings in no group."
        )
        self.check = check


def check_table(
    data: object,
    policy: Policy,
    *,
    accept_missing: Collection[str] = (),
    accept_outside: Collection[str] = (),
) -> TableCheck:
    """Check every cell of a table against its policy, and return what does not match.

    This is for the data owner only, because the result shows records. The check finds missing and unreadable
    cells, numbers outside the bounds, undeclared strings, fractions in integer columns, and Python objects of
    another type. It also finds empty columns, and rows that do not match the header.

    Args:
        data: a data frame, a file or an engine, as for :class:`~tacit.queries.PrivateTable`.
        policy: the policy of the data set.
        accept_missing: the columns whose missing, unreadable, fractional or mistyped cells you accept.
            Queries count such cells as missing.
        accept_outside: the columns whose numbers outside the bounds and undeclared strings you accept.
            Queries clip such numbers, and count such strings in no group.

    Raises:
        InvalidInput: if the table cannot be opened or lacks a column, or if ``accept_missing`` or
            ``accept_outside`` names an undeclared column.

    >>> import pandas as pd
    >>> from tacit.ledger import Column, PureBudget
    >>> policy = Policy(unit="visit", adjacency="add-remove", budget=PureBudget(1.0),
    ...                 columns={"age": Column(kind="number", lower=0, upper=120)})
    >>> print(check_table(pd.DataFrame({"age": [34.0, None, 300.0]}), policy))
    column 'age': 1 are missing (row 2)
    column 'age': 1 lie outside the declared bounds or values (row 3)
    """
    accepted = Verdict(tuple(accept_missing), tuple(accept_outside))
    _check_columns(accepted, policy)
    with _open_engine(data, policy) as engine:
        engine.check(policy)
        return TableCheck(tuple(_findings(engine, policy)), accepted)


def register_table(
    data: object,
    *,
    ledger: Ledger,
    dataset: str,
    block: str | None = None,
    accept_missing: Collection[str] = (),
    accept_outside: Collection[str] = (),
) -> TableCheck:
    """Check a table, and register it for queries if the check finds only what you accept.

    Afterwards, a :class:`~tacit.queries.PrivateTable` answers queries about it.

    This is for the data owner only: the error lists the findings and is confidential. Every later certificate
    of the data set names the findings that you accepted.

    Args:
        data, accept_missing, accept_outside: as for :func:`check_table`.
        ledger: the ledger in which the data set is open.
        dataset: the name of the data set.
        block: the block (a declared part of the data set) in the table; None for the whole data set.

    Raises:
        UncleanTable: if the check finds something that you don't accept; nothing is stored.
        Conflict: if the content is registered as another data set, or as another block.
        InvalidInput: as for :func:`check_table`, or if the whole table has another number of records than the
            policy's ``public_records``.

    >>> import pandas as pd
    >>> from tacit.ledger import Column, PureBudget
    >>> ledger = Ledger.create("sqlite://")
    >>> ledger.open_dataset("visits", Policy(unit="visit", adjacency="add-remove", budget=PureBudget(1.0),
    ...                                      columns={"age": Column(kind="number", lower=0, upper=120)}))
    >>> register_table(pd.DataFrame({"age": [34.0, 71.0]}), ledger=ledger, dataset="visits").clean
    True
    """
    policy = ledger.policy(dataset)
    with _open_engine(data, policy) as engine:
        fingerprint = ledger.fingerprint(engine.content())
        check = check_table(engine, policy, accept_missing=accept_missing, accept_outside=accept_outside)
        if not check.clean:
            raise UncleanTable(dataset, check)
        if block is None:
            _check_number(engine, policy)
        engine.check(policy)  # refuse a file that changed after the check
    ledger.register_content(dataset, fingerprint, block=block, verdict=check.accepted)
    return check


def _check_number(engine: Engine, policy: Policy) -> None:
    """Refuse a table whose number of records is not the public one, by which means are divided."""
    if policy.public_records is None:
        return
    ((number,),) = engine.rows(statement([count_of_units(policy)], Query((CountUnits(),)), policy))
    if number != policy.public_records:
        counted = "rows" if policy.unit_column is None else f"different values of {policy.unit_column!r}"
        raise InvalidInput(
            f"the table has {number:,} {counted}, but the policy states public_records = "
            f"{policy.public_records:,}, which enters means and totals. Register the whole table, or open "
            f"the data set with public_records = {number}."
        )


@contextmanager
def _open_engine(data: object, policy: Policy) -> Iterator[Engine]:
    """Open the engine that reads ``data``; close it afterwards unless the caller passed an engine."""
    engine = engine_of(data, policy)
    try:
        yield engine
    finally:
        if engine is not data:
            engine.close()


def _check_columns(accepted: Verdict, policy: Policy) -> None:
    for argument, columns in (("accept_missing", accepted.missing), ("accept_outside", accepted.outside)):
        for column in columns:
            if column not in policy.needed_columns:
                declared = ", ".join(policy.needed_columns) or "none"
                raise InvalidInput(
                    f"{argument} contains {column!r}, which is not a declared column: {declared}."
                )


def _findings(engine: Engine, policy: Policy) -> Iterator[Finding]:
    try:
        unreadable, mistyped = engine.unreadable()
        rows = engine.places(exp.true())
    except MalformedTable as problem:
        kind = "broken" if problem.rows is None else "malformed"
        yield Finding(kind, None, problem.rows, problem.places)
        return
    except EngineFailure:
        yield Finding("failed", None, None)
        return
    if rows.count > policy.largest_table:
        yield Finding("too many", None, rows.count)
    for column in policy.needed_columns:
        read = {"unreadable": unreadable.get(column), "type": mistyped.get(column)}
        try:
            yield from _column_findings(engine, column, policy, rows.count, read)
        except EngineFailure:
            yield Finding("failed", column, None)


def _column_findings(
    engine: Engine, column: str, policy: Policy, rows: int, read: Mapping[str, Places | None]
) -> Iterator[Finding]:
    recorded = {kind: places for kind, places in read.items() if places is not None}
    for kind, places in recorded.items():
        yield _finding(kind, column, places)
    may_be_missing = column != policy.unit_column and policy.columns[column].missing != "refuse"
    for kind, condition in _conditions(column, policy):
        places = engine.places(condition)
        if kind == "missing":
            for other in recorded.values():
                places = places.without(other)
            kind = "empty" if places.count == rows else kind
            if may_be_missing:
                continue
        if places.count:
            yield _finding(kind, column, places)


def _conditions(column: str, policy: Policy) -> Iterator[tuple[str, Any]]:
    if column == policy.unit_column:
        yield "missing", exp.Not(this=or_else(exp.and_(*unit_tests(column))))
        return
    declared = policy.columns[column]
    if declared.is_number:
        yield "missing", exp.Not(this=or_else(not_nan(column)))
        if declared.kind == "integer":
            yield "fraction", has_fraction(column)
    else:
        yield "missing", exp.Not(this=present(column))
    if is_text(column, policy):
        # No text has length -1, but the engine must create the text of every cell to know that.
        yield "failed", sql("LENGTH(CAST(:x AS TEXT)) = :never", x=field(column), never=-1.0)
    if outside := list(_outside(column, policy)):
        yield "outside", exp.and_(has_value(column, policy), exp.paren(exp.or_(*outside)))


def _outside(column: str, policy: Policy) -> Iterator[Any]:
    declared = policy.columns[column]
    if declared.is_number or declared.is_moment:
        # without bounds, each value must still be a finite number or a date
        least, most = (-_LARGEST, _LARGEST) if declared.is_number else (date.min, date.max)
        x = typed(column, policy)
        yield x < literal(least if declared.lower is None else declared.lower, column, policy)
        yield x.copy() > literal(most if declared.upper is None else declared.upper, column, policy)
    if declared.values is not None:
        yield exp.Not(this=among(column, declared.values, policy))


def _finding(kind: str, column: str, places: Places) -> Finding:
    rows = [] if places.rows is None else sorted(places.rows.tolist())[:10]
    return Finding(kind, column, places.count, tuple(row + 1 for row in rows))
