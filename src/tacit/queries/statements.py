"""Which SQL does an engine run? Statements built as trees from measures, never from text.

A :class:`Statement` selects the keys of a group and integers, from one table.  It belongs to no engine in
particular: sqlglot renders the tree in the dialect of DuckDB, PostgreSQL or Spark.  What the analyst has
typed is in it only as literals that sqlglot quotes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacit.errors import InvalidInput
from tacit.ledger.policy import Policy
from tacit.queries.contribution_bounding import UNIT, every, kept, left_out, named, ranks_groups, with_units
from tacit.queries.expressions import (
    bin_of,
    binned_column,
    cell_of,
    field,
    holds,
    integer,
    is_text,
    key_of,
    key_tests,
    summand,
    syntax,
    text_of,
    there,
    whole,
)
from tacit.queries.measures import Bins, Measure, Present, Regular, Rows, Squares, Total, Units
from tacit.queries.query import Query

if TYPE_CHECKING:
    from sqlglot import exp

SOURCE = "tacit_rows"
"""The name of the table in statements; an engine replaces it by that of its table."""

_KEY, _VALUE, _TOTAL = "key", "value", "total"  # names inside a statement; no user's name is used as an alias
_NO_UNIT = ("NaN", "nan", "")  # how engines write a missing identifier


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
        """The text for one engine, with its table in place of :data:`SOURCE`.

        >>> from tacit.ledger import PureBudget
        >>> from tacit.queries import Count
        >>> policy = Policy(unit="visit", adjacency="add-remove", budget=PureBudget(1.0))
        >>> count = statement((Rows(),), Query((Count(),)), policy)
        >>> count.sql("duckdb", syntax().to_table("visits"))
        'SELECT CAST(COUNT(*) AS BIGINT) FROM (SELECT 1 AS "row" FROM visits) AS "kept"'
        """
        expressions = syntax()

        def place(node: exp.Expression) -> Any:
            if isinstance(node, expressions.Collate) and dialect != "postgres":
                return node.this  # other engines already order texts by their bytes
            mine = isinstance(node, expressions.Table) and node.name == SOURCE
            return source.copy() if mine else node

        return str(self.tree.transform(place).sql(dialect=dialect))


def _key_name(place: int) -> str:
    return f"{_KEY}{place}"


def statement(measures: Sequence[Measure], query: Query, policy: Policy) -> Statement:
    """The statement that measures ``measures`` together; bins need a separate one.

    It keeps rows by the predicate, by declared keys, and then, per unit, by
    :mod:`~tacit.queries.contribution_bounding`.  Usually most units keep all their rows, so the statement
    subtracts what is left out from the sums over all rows, where it can: not from a number of units, nor
    where whole groups are left out.
    """
    binned = any(isinstance(measure, Bins | Regular) for measure in measures)
    if binned and len(measures) > 1:
        raise InvalidInput("bins need a separate statement.")
    keys = [_key_name(place) for place in range(len(query.by) + binned)]
    values = {column: f"{_VALUE}{place}" for place, column in enumerate(_summed(measures))}
    rows = _rows(measures, query, policy, keys, values)
    totals = [_total(measure, values, policy) for measure in measures]
    if policy.unit_column is None:
        tree = _grouped(keys, totals, rows)
        return Statement(tuple(measures), tree, len(keys), binned)
    columns, grouped = [UNIT, *keys, *values.values()], keys[: len(query.by)]
    texts = [key for key, column in zip(keys, query.by, strict=False) if is_text(column, policy)]
    if ranks_groups(policy, len(grouped)) or any(isinstance(measure, Units) for measure in measures):
        tree = _grouped(keys, totals, kept(columns, policy, grouped, texts))
    else:
        tree = _difference(keys, totals, every(columns), left_out(columns, policy, texts))
    tree = with_units(tree, rows, policy, len(grouped))
    return Statement(tuple(measures), tree, len(keys), binned)


def _summed(measures: Sequence[Measure]) -> list[str]:
    """The columns for which a row has an integer."""
    return list(
        dict.fromkeys(item.column for item in measures if isinstance(item, Present | Total | Squares))
    )


def _total(measure: Measure, values: Mapping[str, str], policy: Policy) -> Any:
    """The integer of a group, from its rows."""
    exp = syntax()
    match measure:
        case Units() if policy.unit_column is not None:
            return integer(exp.Count(this=exp.Distinct(expressions=[field(UNIT)])))
        case Rows() | Units() | Bins() | Regular():
            return integer(exp.Count(this=exp.Star()))
        case Present(column):
            return integer(exp.Count(this=field(values[column])))
        case Total(column) | Squares(column):
            total = exp.Sum(this=summand(measure, field(values[column])))
            return exp.func("COALESCE", total, whole(0))
    raise InvalidInput(f"unknown measure {measure!r}.")


def _grouped(keys: Sequence[str], totals: Sequence[Any], rows: Any) -> Any:
    """``totals`` of the rows of each group."""
    shown = [field(key) for key in keys]
    tree = syntax().select(*shown, *totals).from_(named(rows, "kept"), copy=False)
    return tree.group_by(*(key.copy() for key in shown), copy=False) if shown else tree


def _difference(keys: Sequence[str], totals: Sequence[Any], every: Any, left_out: Any) -> Any:
    """``totals`` of the rows of each group without those that are left out; 0 where none is left."""
    exp = syntax()
    names = [f"{_TOTAL}{place}" for place in range(len(totals))]
    more, less = (
        [exp.alias_(number, name, quoted=True) for number, name in zip(numbers, names, strict=True)]
        for numbers in (totals, [exp.Neg(this=exp.paren(total.copy())) for total in totals])
    )
    parts = exp.union(_grouped(keys, more, every), _grouped(keys, less, left_out), distinct=False, copy=False)
    return _grouped(
        keys, [exp.func("COALESCE", exp.Sum(this=field(name)), whole(0)) for name in names], parts
    )


# --- the rows that may count -----------------------------------------------------------------------------


def _rows(
    measures: Sequence[Measure], query: Query, policy: Policy, keys: list[str], values: Mapping[str, str]
) -> Any:
    """Unit, keys and integers of every row that the predicate and the declared keys let through."""
    exp = syntax()
    columns = [
        exp.alias_(key_of(column, policy), _key_name(place), quoted=True)
        for place, column in enumerate(query.by)
    ]
    tests = [test for column in query.by for test in key_tests(column, policy)]
    for column, value in values.items():
        columns.append(exp.alias_(cell_of(column, measures, policy), value, quoted=True))
    if len(keys) > len(query.by):
        (measure,) = measures
        columns.append(exp.alias_(bin_of(measure), keys[-1], quoted=True))
        tests.append(there(binned_column(measure), policy))
    if policy.unit_column is not None:
        columns.insert(0, exp.alias_(exp.column(policy.unit_column, quoted=True), UNIT, quoted=True))
        tests.extend(unit_tests(policy.unit_column))
    if query.where is not None:
        tests.append(holds(query.where, policy))
    columns = columns or [exp.alias_(whole(1), "row", quoted=True)]
    rows = exp.select(*columns).from_(exp.to_table(SOURCE), copy=False)
    return rows.where(*tests, copy=False) if tests else rows


def unit_tests(column: str) -> list[exp.Expression]:
    """Conditions on the unit: a row without one is dropped, as several units could share that value."""
    exp = syntax()
    unit = exp.column(column, quoted=True)
    return [
        unit.is_(exp.null()).not_(),
        exp.In(this=text_of(unit.copy()), expressions=[exp.Literal.string(name) for name in _NO_UNIT]).not_(),
    ]
