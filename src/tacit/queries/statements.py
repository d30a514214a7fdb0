"""The SQL that an engine runs: expressions on one row, and statements for the measures of a query."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tacit.columns.column import as_moment
from tacit.errors import InvalidInput, MissingExtra
from tacit.ledger.policy import Policy
from tacit.queries.measures import (
    Bins,
    Grid,
    Lifetimes,
    Measure,
    Present,
    Regular,
    Rows,
    Squares,
    Total,
    Units,
    most_groups,
)
from tacit.queries.query import And, Compare, In, IsNull, Not, Or, Predicate, Query

try:
    import sqlglot
    from sqlglot import exp as exp  # exported for all files of this package
except ImportError:
    raise MissingExtra("sqlglot", "query", "Asking a private table") from None

# The text of SQL here is fixed; names and values enter it only as nodes of a tree, which sqlglot quotes for
# the dialect of DuckDB, PostgreSQL or Spark. All engines must return the same result. So the trees rely only
# on semantics that the engines share: NaN is above infinity and equal to itself, CASE stops at the first true
# branch, doubles follow IEEE 754, and equal texts have equal MD5 digests.

SOURCE = "tacit_rows"
"""The name of the table in statements; an engine replaces it by the name of its table."""

_MOMENTS = {"date": "DATE", "datetime": "TIMESTAMP"}
_EXACT = 1 << 53  # integers up to this size are exact as doubles
_DIGITS = 6  # hexadecimal digits of u


# --- pieces ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    return sqlglot.parse_one(text)


def sql(text: str, **parts: Any) -> Any:
    """Parse a fixed SQL text, with ``parts`` in place of names such as ``:x``."""

    # A part is a tree, the name of a column, or a public number: an int becomes a whole literal, and a float
    # exactly this double.
    def filled(node: Any) -> Any:
        return _node(parts[node.name]) if isinstance(node, exp.Placeholder) else node

    return _parsed(text).transform(filled)


def _node(part: Any) -> Any:
    match part:
        case str():
            return field(part)
        case int():
            digits = exp.Literal.number(str(abs(part)))
            return exp.Neg(this=digits) if part < 0 else digits
        case float():  # the cast from text avoids a decimal type, which may round
            return exp.cast(exp.Literal.string(repr(part)), "DOUBLE")
    return part.copy() if part.parent else part  # a tree has one place; a second one takes a copy


def field(name: str) -> Any:
    return exp.column(name, quoted=True)


def alias(expression: Any, name: str) -> Any:
    return exp.alias_(expression, name, quoted=True)


def double(column: str) -> Any:
    return sql("CAST(:x AS DOUBLE)", x=column)


def present(column: str) -> Any:
    return sql("NOT :x IS NULL", x=column)


def or_else(test: Any, otherwise: str = "FALSE") -> Any:
    return sql(f"COALESCE(:test, {otherwise})", test=test)


def not_nan(column: str) -> Any:
    """Return a test that a number is neither NULL nor NaN; engines sort NaN above infinity."""
    return sql("CAST(:x AS DOUBLE) <= CAST('Infinity' AS DOUBLE)", x=column)


def has_fraction(column: str) -> Any:
    """Return a test that the number is not whole."""
    # Doubles beyond 2^53 are always whole. They are not tested, as Spark's FLOOR fails for the largest.
    text = "(:x >= :low AND :x <= :high AND :x <> FLOOR(:x))"
    return sql(text, x=double(column), low=float(-_EXACT), high=float(_EXACT))


def has_value(column: str, policy: Policy) -> Any:
    """Return a test that the column is not missing; for a number that is NULL, the test is NULL."""
    # In a column of integers, a number with a fraction counts as missing.
    declared = policy.columns[column]
    if not declared.is_number:
        return present(column)
    if declared.kind == "number":
        return not_nan(column)
    return exp.and_(not_nan(column), exp.Not(this=has_fraction(column)))


def is_text(column: str, policy: Policy) -> bool:
    return policy.columns[column].kind in ("category", "text")


def typed(column: str, policy: Policy) -> Any:
    """Return the column, cast to a type that all engines compare in the same way."""
    declared = policy.columns[column]
    if declared.is_number:
        return double(column)
    if is_text(column, policy):
        return sql("CAST(:x AS TEXT)", x=column)
    return exp.cast(field(column), _MOMENTS.get(declared.kind, "BOOLEAN"))


def literal(value: object, column: str, policy: Policy) -> Any:
    kind = policy.columns[column].kind
    if isinstance(value, bool):
        return exp.true() if value else exp.false()
    if isinstance(value, int | float) and policy.columns[column].is_number:
        return _node(float(value))
    if kind in _MOMENTS and isinstance(value, str | dt.date):
        return exp.cast(exp.Literal.string(str(as_moment("value", kind, value))), _MOMENTS[kind])
    if isinstance(value, str):
        return exp.Literal.string(value)
    raise InvalidInput(f"column {column!r} cannot be compared with {value!r}.")


def among(column: str, values: Sequence[object], policy: Policy) -> Any:
    literals = [literal(value, column, policy) for value in values]
    return exp.In(this=typed(column, policy), expressions=literals)


# --- the integers of a row -------------------------------------------------------------------------------


def _cell(column: str, grid: Grid) -> Any:
    """Return the integer k, as in :class:`~tacit.queries.measures.Grid`, of a value that is not missing."""
    return sql(
        "CASE WHEN :x <= :lower THEN :low WHEN :x >= :upper THEN :high "
        "ELSE CAST(FLOOR((:x / :step) + :half) AS BIGINT) END",
        x=double(column),
        lower=float(grid.lower),
        low=grid.low,
        upper=float(grid.upper),
        high=grid.high,
        step=float(grid.step),
        half=0.5,
    )


def _minus(expression: Any, value: int) -> Any:
    return expression - _node(value) if value >= 0 else expression + _node(-value)


def _summand(measure: Total | Squares, k: Any) -> Any:
    from_centre = _minus(k, measure.centre)
    if isinstance(measure, Total):
        return from_centre
    if not measure.shift:
        return sql("(:k) * (:k)", k=from_centre)
    unit = 1 << measure.shift
    return sql("CAST(((:k) * (:k) + :half) DIV :unit AS BIGINT)", k=from_centre, half=unit >> 1, unit=unit)


def _bin_of(measure: Bins | Regular | Lifetimes, policy: Policy) -> Any:
    if isinstance(measure, Lifetimes):
        event = typed(measure.event, policy)
        return sql(
            "CASE WHEN :time > :top OR (:time >= :top AND NOT :event) THEN :beyond WHEN :event THEN :bin + "
            ":shift ELSE :bin END",
            time=double(measure.time),
            top=measure.edges[-1],
            event=event > 0.5 if policy.columns[measure.event].is_number else event,
            beyond=measure.bins - 1,
            bin=exp.paren(_bin_of(measure.times, policy)),
            shift=len(measure.edges) - 1,
        )
    if isinstance(measure, Bins):
        return _bisected(double(measure.column), measure, 0, len(measure.edges))
    steps = _minus(_cell(measure.column, measure.grid), measure.grid.low - measure.stride // 2)
    nearest = sql("CAST((:steps) DIV :stride AS BIGINT)", steps=steps, stride=measure.stride)
    return sql("CASE WHEN :bin > :last THEN :last ELSE :bin END", bin=nearest, last=measure.bins - 1)


def _bisected(x: Any, measure: Bins, low: int, high: int) -> Any:
    """Return the bin of x by bisection, with about log2(number of edges) comparisons."""
    if low == high:
        return _node(low)
    middle = (low + high) // 2
    return sql(
        f"CASE WHEN :x {'<=' if measure.closed[middle] else '<'} :edge THEN :left ELSE :right END",
        x=x,
        edge=float(measure.edges[middle]),
        left=_bisected(x, measure, low, middle),
        right=_bisected(x, measure, middle + 1, high),
    )


# --- the tests of a row ----------------------------------------------------------------------------------

_COMPARISONS = {"=": exp.EQ, "!=": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}


def _holds(predicate: Predicate, policy: Policy) -> Any:
    """Return a test that is never NULL: a comparison is false if its column is missing."""
    match predicate:
        case And(parts):
            return exp.paren(exp.and_(*(_holds(part, policy) for part in parts)))
        case Or(parts):
            return exp.paren(exp.or_(*(_holds(part, policy) for part in parts)))
        case Not(part):
            return sql("NOT (:part)", part=_holds(part, policy))
        case IsNull(column):
            return exp.Not(this=or_else(has_value(column, policy)))
        case In(column, values):
            test = among(column, values, policy)
        case Compare(column, op, value):
            test = _COMPARISONS[op](this=typed(column, policy), expression=literal(value, column, policy))
        case _:
            raise InvalidInput(f"unknown predicate {predicate!r}.")
    is_number = policy.columns[column].is_number
    return or_else(exp.and_(has_value(column, policy), test) if is_number else test)


def _key_tests(column: str, policy: Policy) -> list[Any]:
    """Return the conditions on a row's key; a row with a missing or undeclared key is in no group."""
    declared = policy.columns[column]
    if declared.values is not None:
        return [among(column, declared.values, policy)]
    if not declared.is_number:
        return [present(column)]
    x = double(column)
    return [
        sql("CAST(:x AS DOUBLE) >= :low", x=column, low=float(-_EXACT)),
        sql("CAST(:x AS DOUBLE) <= :high", x=column, high=float(_EXACT)),
        sql(":x = FLOOR(:x)", x=x),
    ]


def unit_tests(column: str) -> list[Any]:
    """Return the conditions that the unit is not missing; several units could share a missing value."""
    words = "'NaN', 'nan', ''"  # how engines write a missing identifier
    return [present(column), sql(f"NOT CAST(:x AS TEXT) IN ({words})", x=column)]


# --- statements ------------------------------------------------------------------------------------------
#
# Inside a statement, "tacit_counted" has the rows of the table that may count, before contribution bounding:
# "unit", the keys "key0", "key1", ... or "bin", and the integers "value0", ... "tacit_beyond" has the units
# with too many rows: "unit", "number" (n) and "start" (u).


@dataclass(frozen=True)
class Statement:
    """A tree that selects ``keys`` group columns, then one integer per measure.

    If there are bins, the last key is the bin. Groups without rows may be absent; their integers are 0.
    Without keys, the result is one row.
    """

    measures: tuple[Measure, ...]
    tree: exp.Select
    keys: int

    def sql(self, dialect: str, source: exp.Expression) -> str:
        """Return the text for one engine, with its table in place of :data:`SOURCE`."""

        def place(node: exp.Expression) -> Any:
            if isinstance(node, exp.Collate) and dialect != "postgres":
                return node.this  # other engines order texts by their bytes anyway
            mine = isinstance(node, exp.Table) and node.name == SOURCE
            return source.copy() if mine else node

        return str(self.tree.transform(place).sql(dialect=dialect))


def statement(measures: Sequence[Measure], query: Query, policy: Policy) -> Statement:
    """Return one statement that computes all ``measures``; a measure with bins needs a separate statement."""
    # The statement keeps rows that meet the predicate and have declared keys. Of these, contribution bounding
    # limits the rows per unit. As most units usually keep all their rows, the statement computes the sums
    # over all rows, and subtracts the rows left out. It cannot do so for a number of units, or if a unit is
    # left out of whole groups.
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

    columns = ["unit", *keys, *values.values()]
    texts = [key for key, column in zip(groups, query.by, strict=True) if is_text(column, policy)]
    if _ranks_groups(policy, groups) or any(isinstance(measure, Units) for measure in measures):
        tree = _grouped(keys, totals, counted_rows(columns, policy, groups, texts))
    else:
        tree = _difference(keys, totals, all_rows(columns), uncounted_rows(columns, policy, texts))

    most = min(most_groups(policy), policy.rows_per_unit) if groups else policy.rows_per_unit
    beyond = sql(
        'SELECT "unit", COUNT(*) AS "number", :start AS "start" FROM "tacit_counted" GROUP BY "unit" '
        "HAVING COUNT(*) > :most",
        start=_start(),
        most=most,
    )
    for name, select in (("tacit_counted", rows), ("tacit_beyond", beyond)):
        tree = tree.with_(exp.to_identifier(name, quoted=True), as_=select, copy=False)
    return Statement(tuple(measures), tree, len(keys))


def _rows(
    measures: Sequence[Measure], query: Query, policy: Policy, keys: list[str], values: Mapping[str, str]
) -> Any:
    columns = []
    tests = []
    if policy.unit_column is not None:
        columns.append(alias(field(policy.unit_column), "unit"))
    for column, key in zip(query.by, keys, strict=False):
        # an integer, a text or a boolean
        value = typed(column, policy)
        whole = sql("CAST(:key AS BIGINT)", key=value) if policy.columns[column].is_number else value
        columns.append(alias(whole, key))
        tests += _key_tests(column, policy)
    grids = {item.column: item.grid for item in measures if isinstance(item, Total | Squares)}
    for column, value in values.items():
        # the integer k, or 1 if the column is only counted
        k = _cell(column, grids[column]) if column in grids else 1
        cell = sql("CASE WHEN :test THEN :k ELSE NULL END", test=has_value(column, policy), k=k)
        columns.append(alias(cell, value))
    if isinstance(binned := measures[0], Bins | Regular | Lifetimes):
        columns.append(alias(_bin_of(binned, policy), keys[-1]))
        needed = (binned.time, binned.event) if isinstance(binned, Lifetimes) else (binned.column,)
        tests += [has_value(column, policy) for column in needed]
    if policy.unit_column is not None:
        tests += unit_tests(policy.unit_column)
    if query.where is not None:
        tests.append(_holds(query.where, policy))
    return exp.select(*columns or ['1 AS "row"']).from_(SOURCE, copy=False).where(*tests, copy=False)


def _total(measure: Measure, values: Mapping[str, str], policy: Policy) -> Any:
    match measure:
        case Units() if policy.unit_column is not None:
            return sql('CAST(COUNT(DISTINCT "unit") AS BIGINT)')
        case Rows() | Units() | Bins() | Regular() | Lifetimes():
            return sql("CAST(COUNT(*) AS BIGINT)")
        case Present(column):
            return sql("CAST(COUNT(:value) AS BIGINT)", value=values[column])
        case Total() | Squares():
            return _sum(_summand(measure, field(values[measure.column])))
    raise InvalidInput(f"unknown measure {measure!r}.")


def _sum(number: Any) -> Any:
    return or_else(sql("SUM(:x)", x=number), "0")


def _grouped(keys: Sequence[str], totals: Sequence[Any], rows: Any) -> Any:
    tree = exp.select(*map(field, keys), *totals).from_(_subquery(rows, "kept"), copy=False)
    return tree.group_by(*map(field, keys), copy=False) if keys else tree


def _difference(keys: Sequence[str], totals: Sequence[Any], everything: Any, excess: Any) -> Any:
    """Select ``totals`` of ``everything`` minus those of ``excess`` for each group; 0 if no row remains."""
    names = [f"total{place}" for place in range(len(totals))]
    less = [sql("-(:total)", total=total) for total in totals]
    parts = [
        _grouped(keys, list(map(alias, numbers, names)), rows)
        for numbers, rows in ((totals, everything), (less, excess))
    ]
    both = exp.union(*parts, distinct=False, copy=False)
    return _grouped(keys, [_sum(field(name)) for name in names], both)


def _subquery(select: Any, name: str) -> Any:
    return select.subquery(exp.to_identifier(name, quoted=True), copy=False)


# --- contribution bounding -------------------------------------------------------------------------------
#
# The rule decides which rows of a unit count. It reads only the rows of that unit, so no other unit changes
# the choice. A unit with at most K rows keeps them all. If a unit has n > K rows, they are ordered by their
# values and numbered p = 1..n, and those count for which
#
#     (p K + u) mod n < K                                                                              (1)
#
# These are K rows, evenly spread, because p K + u steps over a multiple of n exactly K times while p runs
# from 1 to n. The number u is computed from the unit's identifier. If u is uniform, every row has the same
# probability K / n. Equal rows are adjacent, and it does not matter which of them is kept.


def all_rows(columns: Sequence[str]) -> Any:
    return exp.select(*map(field, columns)).from_('"tacit_counted"')


def counted_rows(columns: Sequence[str], policy: Policy, keys: Sequence[str], texts: Sequence[str]) -> Any:
    """Select the rows that count: all of units with few rows, and some of all other units."""
    beyond = 'SELECT "unit" FROM "tacit_beyond" WHERE "tacit_counted"."unit" = "tacit_beyond"."unit"'
    within = all_rows(columns).where(f"NOT EXISTS({beyond})", copy=False)
    beyond_limit = _rows_by_place(columns, policy, keys, texts, count=True)
    return exp.union(within, beyond_limit, distinct=False, copy=False)


def uncounted_rows(columns: Sequence[str], policy: Policy, texts: Sequence[str]) -> Any:
    """Select the rows that do not count, usually few; only for queries that leave out no whole groups."""
    return _rows_by_place(columns, policy, (), texts, count=False)


def _ranks_groups(policy: Policy, keys: Sequence[str]) -> bool:
    """Return whether a unit may have rows in more groups than it may be counted in."""
    return bool(keys) and most_groups(policy) < policy.rows_per_unit


def _rows_by_place(
    columns: Sequence[str], policy: Policy, keys: Sequence[str], texts: Sequence[str], *, count: bool
) -> Any:
    """Select, from the units with too many rows, those that count by (1) or, if not ``count``, the others."""
    own = [exp.column(name, table="tacit_counted", quoted=True) for name in columns]
    rows: Any = exp.select(*own, '"number"', '"start"').from_('"tacit_counted"')
    rows = rows.join('"tacit_beyond"', on='"tacit_counted"."unit" = "tacit_beyond"."unit"', copy=False)
    n = field("number")
    if _ranks_groups(policy, keys):
        # only the first groups of each unit count, ordered by a digest of unit and group
        order = [_digest("group", ["unit", *keys]), *_ordered(keys, texts)]
        rank = alias(_window(exp.DenseRank(), order), "rank")
        ranked = exp.select("*", rank).from_(_subquery(rows, "joined"), copy=False)
        first = sql('"rank" <= :most', most=most_groups(policy))
        rows = exp.select("*").from_(_subquery(ranked, "ranked"), copy=False).where(first, copy=False)
        n = _window(exp.Count(this=exp.Star()), [])

    place = _window(exp.RowNumber(), _ordered(columns[1:], texts))
    selected = [*map(field, columns), field("start"), alias(n, "number"), alias(place, "place")]
    placed = exp.select(*selected).from_(_subquery(rows, "own"), copy=False)
    most = min(policy.rows_per_unit, policy.largest_table)  # so that p K fits into 64 bits
    turn = 'MOD(CAST("place" AS BIGINT) * :most + "start", "number")'
    counts = sql(f"{turn} {'<' if count else '>='} :most", most=most)
    return exp.select(*map(field, columns)).from_(_subquery(placed, "placed"), copy=False).where(counts)


def _ordered(columns: Sequence[str], texts: Sequence[str]) -> list[Any]:
    """Return the columns to order by; strings in the collation by bytes."""
    return [sql(':x COLLATE "C"', x=name) if name in texts else field(name) for name in columns]


def _start() -> Any:
    """Return the number u of a unit: the first digits of the MD5 of its identifier, one of 16^6 numbers."""
    # Signs, points and zeros at the ends of the identifier are ignored: 0 and -0, or 7 and 7.00, may be the
    # same unit.
    digest = sql("""MD5('rows|' || TRIM('-.0' FROM CAST("unit" AS TEXT)))""")
    digit = "STR_POSITION('123456789abcdef', SUBSTRING(:digest, :at, 1)) * :power"
    digits = [sql(digit, digest=digest, at=place + 1, power=16**place) for place in range(_DIGITS)]
    return sum(digits[1:], digits[0])


def _digest(purpose: str, columns: Sequence[str]) -> Any:
    """Return the MD5 of joined strings; separators inside may cause ties, which only affect fairness."""
    joined: Any = exp.Literal.string(purpose)
    for name in columns:
        joined = sql(":joined || '|' || CAST(:x AS TEXT)", joined=joined, x=name)
    return exp.func("MD5", joined)


def _window(function: Any, order: list[Any]) -> Any:
    ordered = [exp.Ordered(this=item, nulls_first=False) for item in order]
    by = exp.Order(expressions=ordered) if ordered else None
    return exp.Window(this=function, partition_by=[field("unit")], order=by)
