"""From measures to statements: the only SQL that an engine ever runs, built as a tree, never from text.

A :class:`Statement` selects the keys of a group and integers, from one table.  It is written for no engine in
particular: sqlglot renders the tree in the dialect of DuckDB, PostgreSQL or Spark.  What the person who asks
has typed is in it only as literals that sqlglot quotes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacit.errors import InvalidInput
from tacit.ledger.policy import Policy
from tacit.queries.algebra import Query
from tacit.queries.expressions import (
    alias,
    bin_of,
    binned_column,
    double,
    field,
    holds,
    integer,
    integer_of,
    key_of,
    key_tests,
    known,
    syntax,
    whole,
)
from tacit.queries.measures import Bins, Measure, Regular, Rows, Units, most_groups

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["SOURCE", "Statement", "statement", "syntax"]

SOURCE = "tacit_rows"
"""What statements call the table; an engine puts its own in this place."""

_UNIT, _KEY, _VALUE = "unit", "key", "value"  # names inside a statement; no user's name is used as an alias
_COUNTED, _BEYOND = "tacit_counted", "tacit_beyond"  # the rows that may count; units with too many of them
_NO_UNIT = ("NaN", "nan", "")  # how engines write an identifier that is none


@dataclass(frozen=True)
class Statement:
    """A tree that selects ``keys`` group columns (with the bin as the last one, if ``binned``) and one
    integer per measure, in this order.

    A group without rows may be absent: its integers are 0.  Under no ``by`` and no bins there is one row.
    """

    measures: tuple[Measure, ...]
    tree: exp.Select
    keys: int
    binned: bool

    def sql(self, dialect: str, source: exp.Expression) -> str:
        """The text for one engine, with its own table in place of :data:`SOURCE`.

        >>> from tacit.ledger import PureBudget
        >>> from tacit.queries import Count
        >>> policy = Policy(unit="visit", adjacency="add-remove", budget=PureBudget(1.0))
        >>> count = statement((Rows(),), Query((Count(),)), policy)
        >>> count.sql("duckdb", syntax().to_table("visits"))
        'SELECT CAST(COUNT(*) AS BIGINT) FROM (SELECT 1 AS "row" FROM visits) AS "kept"'
        """
        expressions = syntax()

        def place(node: exp.Expression) -> Any:
            mine = isinstance(node, expressions.Table) and node.name == SOURCE
            return source.copy() if mine else node

        return str(self.tree.transform(place).sql(dialect=dialect))


def _key_name(place: int) -> str:
    return f"{_KEY}{place}"


def statement(measures: Sequence[Measure], query: Query, policy: Policy) -> Statement:
    """The statement that measures ``measures`` together; bins stand alone.

    Rows are kept by the predicate, by declared keys, and then, per unit, by :func:`_bounded`.
    """
    exp = syntax()
    binned = any(isinstance(measure, Bins | Regular) for measure in measures)
    if binned and len(measures) > 1:
        raise InvalidInput("bins are measured in a statement of their own.")
    keys = [_key_name(place) for place in range(len(query.by) + binned)]
    values = [] if binned else [f"{_VALUE}{place}" for place in range(len(measures))]
    rows = _rows(measures, query, policy, keys, values)
    kept = rows if policy.unit_column is None else _bounded(rows, policy, keys, len(query.by))
    shown = [field(key) for key in keys]
    numbers = [_total(measure, f"{_VALUE}{place}", policy) for place, measure in enumerate(measures)]
    tree = exp.select(*shown, *numbers).from_(_named(kept, "kept"), copy=False)
    if shown:
        tree = tree.group_by(*(column.copy() for column in shown), copy=False)
    return Statement(tuple(measures), tree, len(keys), binned)


def _total(measure: Measure, value: str, policy: Policy) -> Any:
    """What a group's rows come to."""
    exp = syntax()
    match measure:
        case Units() if policy.unit_column is not None:
            return integer(exp.Count(this=exp.Distinct(expressions=[field(_UNIT)])))
        case Rows() | Units() | Bins() | Regular():
            return integer(exp.Count(this=exp.Star()))
        case _:
            return exp.func("COALESCE", exp.Sum(this=field(value)), whole(0))


# --- the rows that count ---------------------------------------------------------------------------------


def _rows(
    measures: Sequence[Measure], query: Query, policy: Policy, keys: list[str], values: list[str]
) -> Any:
    """Unit, keys and integers of every row that the predicate and the declared keys let through."""
    exp = syntax()
    columns = [
        exp.alias_(key_of(column, policy), _key_name(place), quoted=True)
        for place, column in enumerate(query.by)
    ]
    tests = [test for column in query.by for test in key_tests(column, policy)]
    for measure, value in zip(measures, values, strict=False):
        if not isinstance(measure, Rows | Units):
            columns.append(exp.alias_(integer_of(measure, policy), value, quoted=True))
    if len(keys) > len(query.by):
        (measure,) = measures
        columns.append(exp.alias_(bin_of(measure), keys[-1], quoted=True))
        tests.append(known(double(binned_column(measure))))
    if policy.unit_column is not None:
        columns.insert(0, exp.alias_(exp.column(policy.unit_column, quoted=True), _UNIT, quoted=True))
        tests.extend(_unit_tests(policy.unit_column))
    if query.where is not None:
        tests.append(holds(query.where, policy))
    columns = columns or [exp.alias_(whole(1), "row", quoted=True)]
    rows = exp.select(*columns).from_(exp.to_table(SOURCE), copy=False)
    return rows.where(*tests, copy=False) if tests else rows


def _unit_tests(column: str) -> list[exp.Expression]:
    """A row of nobody is dropped: it belongs to no unit, or to several that would be taken for one."""
    exp = syntax()
    unit = exp.column(column, quoted=True)
    text = exp.cast(unit.copy(), "TEXT")
    return [
        unit.is_(exp.null()).not_(),
        exp.In(this=text, expressions=[exp.Literal.string(name) for name in _NO_UNIT]).not_(),
    ]


def _bounded(rows: exp.Select, policy: Policy, keys: list[str], grouped: int) -> Any:
    """At most ``groups_per_unit`` groups of every unit, and of those at most ``rows_per_unit`` rows.

    Units with so few rows that they can pass no bound keep them all.  Only those beyond are ranked, which
    takes a sort and a digest of every row.  Whether a unit is one of them, its own rows alone decide.
    """
    exp = syntax()
    columns = [item.alias for item in rows.expressions]
    most = min(most_groups(policy), policy.rows_per_unit) if grouped else policy.rows_per_unit
    units = (
        _from_table(_COUNTED, [_UNIT]).group_by(field(_UNIT)).having(exp.Count(this=exp.Star()) > whole(most))
    )
    own = exp.column(_UNIT, table=_COUNTED, quoted=True).eq(exp.column(_UNIT, table=_BEYOND, quoted=True))
    beyond = exp.Exists(this=_from_table(_BEYOND, [_UNIT]).where(own))
    few = _from_table(_COUNTED, columns).where(exp.Not(this=beyond.copy()))
    many = _from_table(_COUNTED, columns).where(beyond)
    ranked = _ranked(many, policy, keys, columns, grouped)
    first = exp.select(*map(field, columns)).from_(_named(ranked, "first"), copy=False)
    kept = exp.union(few, first, distinct=False, copy=False)
    for name, select in ((_COUNTED, rows), (_BEYOND, units)):
        kept = kept.with_(exp.to_identifier(name, quoted=True), as_=select, copy=False)
    return kept


def _ranked(rows: Any, policy: Policy, keys: list[str], columns: list[str], grouped: int) -> Any:
    """The rows of every unit that come first, in its first groups.

    The rule sees the rows of that unit alone.  Equal rows of a unit are numbered; the MD5 of the unit, the
    row and its number puts them in an order that depends neither on the table nor on the engine, and in which
    every row of the unit has the same chance to come first.
    """
    exp = syntax()
    unit, *others = map(field, columns)
    copies = _window(exp.RowNumber(), [unit, *others], [unit])
    numbered = _from(rows, "rows").select(alias(copies, "copy"), copy=False)
    order = [_digest([unit, *others, field("copy")], "row"), *others, field("copy")]
    groups = most_groups(policy)
    if grouped and groups < policy.rows_per_unit:
        group = [field(key) for key in keys[:grouped]]
        rank = _window(exp.DenseRank(), [unit], [_digest([unit, *group], "group"), *group])
        chosen = _from(numbered, "numbered").select(alias(rank, "rank"), copy=False)
        numbered = _from(chosen, "chosen").where(field("rank") <= whole(groups), copy=False)
    place = _window(exp.RowNumber(), [unit], order)
    ranked = _from(numbered, "within").select(alias(place, "place"), copy=False)
    return _from(ranked, "ranked").where(field("place") <= whole(policy.rows_per_unit), copy=False)


def _from_table(name: str, columns: list[str]) -> Any:
    exp = syntax()
    return exp.select(*map(field, columns)).from_(exp.to_table(name), copy=False)


def _from(select: exp.Select, name: str) -> Any:
    exp = syntax()
    return exp.select("*").from_(_named(select, name), copy=False)


def _named(select: Any, name: str) -> Any:
    return select.subquery(syntax().to_identifier(name, quoted=True), copy=False)


def _window(function: Any, parts: list[Any], order: list[Any]) -> Any:
    exp = syntax()
    ordered = [exp.Ordered(this=item.copy(), nulls_first=False) for item in order]
    return exp.Window(
        this=function,
        partition_by=[part.copy() for part in parts],
        order=exp.Order(expressions=ordered),
    )


def _digest(parts: list[Any], purpose: str) -> Any:
    """MD5 over texts; a separator that two different rows share makes a tie, which costs fairness alone."""
    exp = syntax()
    texts = [exp.func("COALESCE", exp.cast(part.copy(), "TEXT"), exp.Literal.string("")) for part in parts]
    spaced = [piece for text in texts for piece in (exp.Literal.string("|"), text)]
    joined: Any = exp.Literal.string(purpose)
    for piece in spaced:
        joined = exp.DPipe(this=joined, expression=piece, safe=True)
    return exp.func("MD5", joined)
