"""The SQL that an engine runs: statements built as trees from measures, never from text.

A :class:`Statement` selects the keys and the integers of each group from one table. It does not depend on the
engine: sqlglot renders the tree in the dialect of DuckDB, PostgreSQL or Spark. The analyst's values occur in
it only as literals that sqlglot quotes.

The rule of contribution bounding decides which rows of a unit count. It reads only the rows of that unit, so
no other unit changes the choice. A unit with at most K rows keeps them all. If a unit has n > K rows, they
are ordered by their values and numbered p = 1..n, and those count for which

    (p K + u) mod n < K                                                                                  (1)

These are K rows, evenly spread, because p K + u steps over a multiple of n exactly K times while p runs from
1 to n. The number u is computed from the unit's identifier. If u is uniform, every row has the same
probability K / n. Equal rows are adjacent, and it does not matter which of them is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.errors import InvalidInput
from tacit.ledger.policy import Policy
from tacit.queries.expressions import (
    alias,
    bin_of,
    cell_of,
    collated,
    exp,
    field,
    has_value,
    holds,
    integer,
    is_text,
    key_of,
    key_tests,
    present,
    summand,
    text_of,
    whole,
)
from tacit.queries.measures import Bins, Measure, Present, Regular, Rows, Squares, Total, Units, most_groups
from tacit.queries.query import Query

SOURCE = "tacit_rows"
"""The name of the table in statements; an engine replaces it by the name of its table."""

COUNTED = "tacit_counted"
"""The name of the subquery with the rows of the table that may count, before contribution bounding."""

UNIT = "unit"
"""The name of the column of :data:`COUNTED` that identifies the unit of a row."""

_BEYOND = "tacit_beyond"  # the subquery of units with too many rows, with n and u
_NUMBER, _START, _PLACE, _RANK = "number", "start", "place", "rank"  # aliases contain no user's name
_DIGITS = 6  # hexadecimal digits of u
_NO_UNIT = ("NaN", "nan", "")  # how engines write a missing identifier


@dataclass(frozen=True)
class Statement:
    """A tree that selects ``keys`` group columns, then one integer per measure.

    If there are bins, the last key is the bin. A group without rows may be absent: its integers are 0. The
    result of a statement without keys is one row.
    """

    measures: tuple[Measure, ...]
    tree: exp.Select
    keys: int

    def sql(self, dialect: str, source: exp.Expression) -> str:
        """Return the text for one engine, with its table in place of :data:`SOURCE`.

        >>> from tacit.ledger import PureBudget
        >>> from tacit.queries import Count
        >>> policy = Policy(unit="visit", adjacency="add-remove", budget=PureBudget(1.0))
        >>> count = statement((Rows(),), Query((Count(),)), policy)
        >>> count.sql("duckdb", exp.to_table("visits"))
        'SELECT CAST(COUNT(*) AS BIGINT) FROM (SELECT 1 AS "row" FROM visits) AS "kept"'
        """

        def place(node: exp.Expression) -> Any:
            if isinstance(node, exp.Collate) and dialect != "postgres":
                return node.this  # other engines order texts by their bytes anyway
            mine = isinstance(node, exp.Table) and node.name == SOURCE
            return source.copy() if mine else node

        return str(self.tree.transform(place).sql(dialect=dialect))


def statement(measures: Sequence[Measure], query: Query, policy: Policy) -> Statement:
    """Return one statement that computes all ``measures``; a measure with bins needs a separate statement.

    The statement keeps rows that meet the predicate and have declared keys. Of these, contribution bounding
    limits the rows per unit. As most units usually keep all their rows, the statement computes the sums over
    all rows, and subtracts the rows left out. It cannot do so for a number of units, or if a unit is left out
    of whole groups.
    """
    binned = measures[0].binned
    if binned and len(measures) > 1:
        raise InvalidInput(
            f"a measure with bins must be alone in its statement; got {len(measures)} measures."
        )
    groups = [f"key{place}" for place in range(len(query.by))]
    keys = [*groups, "bin"] if binned else groups
    summed = dict.fromkeys(item.column for item in measures if isinstance(item, Present | Total | Squares))
    values = {column: f"value{place}" for place, column in enumerate(summed)}
    rows = _rows(measures, query, policy, keys, values)
    totals = [_total(measure, values, policy) for measure in measures]
    if policy.unit_column is None:
        return Statement(tuple(measures), _grouped(keys, totals, rows), len(keys))
    columns = [UNIT, *keys, *values.values()]
    texts = [key for key, column in zip(groups, query.by, strict=True) if is_text(column, policy)]
    if ranks_groups(policy, len(groups)) or any(isinstance(measure, Units) for measure in measures):
        tree = _grouped(keys, totals, counted_rows(columns, policy, groups, texts))
    else:
        tree = _difference(keys, totals, all_rows(columns), uncounted_rows(columns, policy, texts))
    most = min(most_groups(policy), policy.rows_per_unit) if groups else policy.rows_per_unit
    number: Any = exp.Count(this=exp.Star())
    units = exp.select(field(UNIT), alias(number, _NUMBER), alias(_start(), _START)).from_(_table(COUNTED))
    units = units.group_by(field(UNIT)).having(number.copy() > whole(most))
    for name, select in ((COUNTED, rows), (_BEYOND, units)):
        tree = tree.with_(exp.to_identifier(name, quoted=True), as_=select, copy=False)
    return Statement(tuple(measures), tree, len(keys))


def _total(measure: Measure, values: Mapping[str, str], policy: Policy) -> Any:
    """Return the tree that computes a measure's integer of one group from the group's rows."""
    match measure:
        case Units() if policy.unit_column is not None:
            return integer(exp.Count(this=exp.Distinct(expressions=[field(UNIT)])))
        case Rows() | Units() | Bins() | Regular():
            return integer(exp.Count(this=exp.Star()))
        case Present(column):
            return integer(exp.Count(this=field(values[column])))
        case Total(column) | Squares(column):
            return _sum(summand(measure, field(values[column])))
    raise InvalidInput(f"unknown measure {measure!r}.")


def _sum(number: Any) -> Any:
    return exp.func("COALESCE", exp.Sum(this=number), whole(0))


def _grouped(keys: Sequence[str], totals: Sequence[Any], rows: Any) -> Any:
    """Select ``totals`` of the rows of each group."""
    tree = exp.select(*map(field, keys), *totals).from_(_subquery(rows, "kept"), copy=False)
    return tree.group_by(*map(field, keys), copy=False) if keys else tree


def _difference(keys: Sequence[str], totals: Sequence[Any], everything: Any, excess: Any) -> Any:
    """Select ``totals`` of ``everything`` minus those of ``excess`` for each group; 0 if no row remains."""
    names = [f"total{place}" for place in range(len(totals))]
    less = [exp.Neg(this=exp.paren(total.copy())) for total in totals]
    parts = [
        _grouped(keys, list(map(alias, numbers, names)), rows)
        for numbers, rows in ((totals, everything), (less, excess))
    ]
    both = exp.union(*parts, distinct=False, copy=False)
    return _grouped(keys, [_sum(field(name)) for name in names], both)


def _rows(
    measures: Sequence[Measure], query: Query, policy: Policy, keys: list[str], values: Mapping[str, str]
) -> Any:
    """Select unit, keys and integers of every row that passes the predicate and the declared keys."""
    columns = [alias(key_of(column, policy), key) for column, key in zip(query.by, keys, strict=False)]
    columns += [alias(cell_of(column, measures, policy), value) for column, value in values.items()]
    tests = [test for column in query.by for test in key_tests(column, policy)]
    if isinstance(measures[0], Bins | Regular):
        columns.append(alias(bin_of(measures[0]), keys[-1]))
        tests.append(has_value(measures[0].column, policy))
    if policy.unit_column is not None:
        columns.insert(0, alias(field(policy.unit_column), UNIT))
        tests.extend(unit_tests(policy.unit_column))
    if query.where is not None:
        tests.append(holds(query.where, policy))
    rows = exp.select(*columns or [alias(whole(1), "row")]).from_(exp.to_table(SOURCE), copy=False)
    return rows.where(*tests, copy=False) if tests else rows


def unit_tests(column: str) -> list[Any]:
    """Return the conditions that the unit is not missing; several units could share a missing value."""
    nothing = [exp.Literal.string(name) for name in _NO_UNIT]
    return [present(column), exp.In(this=text_of(field(column)), expressions=nothing).not_()]


# --- contribution bounding -------------------------------------------------------------------------------


def all_rows(columns: Sequence[str]) -> Any:
    """Select all rows, before contribution bounding."""
    return exp.select(*map(field, columns)).from_(_table(COUNTED), copy=False)


def counted_rows(columns: Sequence[str], policy: Policy, keys: Sequence[str], texts: Sequence[str]) -> Any:
    """Select the rows that count: all of units with few rows, and some of all other units.

    Args:
        policy: the policy of the data set.
        columns: the columns to select: the unit, the keys and the values.
        keys: the columns that make the groups. A unit may count in a limited number of groups.
        texts: the keys that are texts.
    """
    one, other = (exp.column(UNIT, table=name, quoted=True) for name in (COUNTED, _BEYOND))
    beyond = exp.select(field(UNIT)).from_(_table(_BEYOND), copy=False).where(one.eq(other), copy=False)
    within = all_rows(columns).where(exp.Not(this=exp.Exists(this=beyond)), copy=False)
    return exp.union(
        within, _rows_by_place(columns, policy, keys, texts, count=True), distinct=False, copy=False
    )


def uncounted_rows(columns: Sequence[str], policy: Policy, texts: Sequence[str]) -> Any:
    """Select the rows that do not count, usually few; only for queries that leave out no whole groups."""
    return _rows_by_place(columns, policy, (), texts, count=False)


def ranks_groups(policy: Policy, grouped: int) -> bool:
    """Return whether a unit may have rows in more groups than it may be counted in."""
    return bool(grouped) and most_groups(policy) < policy.rows_per_unit


def _rows_by_place(
    columns: Sequence[str], policy: Policy, keys: Sequence[str], texts: Sequence[str], *, count: bool
) -> Any:
    """Select, from the units with too many rows, those that count by (1) or, if not ``count``, the others."""
    unit, *rest = columns
    qualified = [exp.column(name, table=COUNTED, quoted=True) for name in columns]
    same = qualified[0].eq(exp.column(unit, table=_BEYOND, quoted=True))
    rows: Any = exp.select(*qualified, field(_NUMBER), field(_START)).from_(_table(COUNTED), copy=False)
    rows = rows.join(_table(_BEYOND), on=same, copy=False)
    n: Any = field(_NUMBER)
    if ranks_groups(policy, len(keys)):
        rows = _in_first_groups(rows, policy, keys, texts)
        n = _window(exp.Count(this=exp.Star()), [])
    place = _window(exp.RowNumber(), _ordered(rest, texts))
    selected = [*map(field, columns), field(_START), alias(n, _NUMBER), alias(place, _PLACE)]
    placed = exp.select(*selected).from_(_subquery(rows, "own"), copy=False)
    most = whole(min(policy.rows_per_unit, policy.largest_table))  # so that p K fits into 64 bits
    turn = exp.Mod(this=exp.paren(integer(field(_PLACE)) * most + field(_START)), expression=field(_NUMBER))
    counts = turn < most.copy() if count else turn >= most.copy()
    return exp.select(*map(field, columns)).from_(_subquery(placed, "placed"), copy=False).where(counts)


def _in_first_groups(rows: Any, policy: Policy, keys: Sequence[str], texts: Sequence[str]) -> Any:
    """Select the rows in the first groups of each unit, ordered by a digest of unit and group."""
    order = [_digest("group", [UNIT, *keys]), *_ordered(keys, texts)]
    rank = alias(_window(exp.DenseRank(), order), _RANK)
    ranked = exp.select("*", rank).from_(_subquery(rows, "joined"), copy=False)
    first = field(_RANK) <= whole(most_groups(policy))
    return exp.select("*").from_(_subquery(ranked, "ranked"), copy=False).where(first, copy=False)


def _ordered(columns: Sequence[str], texts: Sequence[str]) -> list[Any]:
    return [collated(name) if name in texts else field(name) for name in columns]


def _start() -> Any:
    """Return the number u of a unit: the first digits of the MD5 of its identifier, one of 16^6 numbers.

    Signs, points and zeros at the ends of the identifier are ignored: 0 and -0, or 7 and 7.00, may be the
    same unit.
    """
    name = exp.Trim(this=text_of(field(UNIT)), expression=exp.Literal.string("-.0"))
    digest = exp.func("MD5", exp.DPipe(this=exp.Literal.string("rows|"), expression=name, safe=True))
    digits: list[Any] = []
    for place in range(_DIGITS):
        digit = exp.Substring(this=digest.copy(), start=whole(place + 1), length=whole(1))
        value = exp.StrPosition(this=exp.Literal.string("123456789abcdef"), substr=digit)
        digits.append(value * whole(16**place))
    return sum(digits[1:], digits[0])


def _digest(purpose: str, columns: Sequence[str]) -> Any:
    """Return the MD5 of joined texts; a separator in a text may cause a tie, which affects only fairness."""
    joined: Any = exp.Literal.string(purpose)
    for name in columns:
        for piece in (exp.Literal.string("|"), text_of(field(name))):
            joined = exp.DPipe(this=joined, expression=piece, safe=True)
    return exp.func("MD5", joined)


def _window(function: Any, order: list[Any]) -> Any:
    """Apply a window function over the rows of one unit."""
    ordered = [exp.Ordered(this=item, nulls_first=False) for item in order]
    by = exp.Order(expressions=ordered) if ordered else None
    return exp.Window(this=function, partition_by=[field(UNIT)], order=by)


def _table(name: str) -> Any:
    return exp.Table(this=exp.to_identifier(name, quoted=True))


def _subquery(select: Any, name: str) -> Any:
    """Return a select as a named subquery."""
    return select.subquery(exp.to_identifier(name, quoted=True), copy=False)
