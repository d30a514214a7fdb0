"""The SQL that an engine runs: trees over one row, and statements built from measures, never from text.

All engines must return the same result. So the trees rely only on semantics that the engines share: NaN is
above infinity and equal to itself, CASE stops at the first true branch, doubles follow IEEE 754, and equal
texts have equal MD5 digests. sqlglot renders a tree in the dialect of DuckDB, PostgreSQL or Spark. The
analyst's values occur in it only as literals that sqlglot quotes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.columns.column import as_moment
from tacit.errors import InvalidInput, MissingExtra
from tacit.ledger.policy import Policy
from tacit.queries.measures import (
    Bins,
    Grid,
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
    from sqlglot import exp as exp  # exported for all files of this package
except ImportError:
    raise MissingExtra("sqlglot", "query", "Asking a private table") from None

_MOMENTS = {"date": "DATE", "datetime": "TIMESTAMP"}
_EXACT = 1 << 53  # integers up to this size are exact as doubles


# --- integers of a row -----------------------------------------------------------------------------------


def cell_of(column: str, measures: Sequence[Measure], policy: Policy) -> Any:
    """Return the integer k of a row's value, or 1 if no measure sums the column; NULL for a missing value."""
    grids = [item.grid for item in measures if isinstance(item, Total | Squares) and item.column == column]
    value = _cell(column, grids[0]) if grids else whole(1)
    return _case([(has_value(column, policy), value)], exp.null())


def summand(measure: Measure, k: Any) -> Any:
    """Return the integer that a row with the integer ``k`` adds to a measure."""
    match measure:
        case Total(_, _, centre):
            return _minus(k, centre)
        case Squares(_, _, centre):
            root = exp.paren(_minus(k, centre))
            square: Any = root * root.copy()
            if not measure.shift:
                return square
            half = whole(1 << measure.shift >> 1)
            return integer(exp.IntDiv(this=exp.paren(square + half), expression=whole(1 << measure.shift)))
    raise InvalidInput(f"measure {measure!r} is not a sum over values.")


def _cell(column: str, grid: Grid) -> Any:
    """Return the integer k, as in :class:`~tacit.queries.measures.Grid`, of a value that is not missing."""
    x = double(column)
    step, half = number(grid.step), number(0.5)
    inside = integer(exp.func("FLOOR", exp.paren(x.copy() / step) + half))
    return _case(
        [
            (x.copy() <= number(grid.lower), whole(grid.low)),
            (x.copy() >= number(grid.upper), whole(grid.high)),
        ],
        inside,
    )


def bin_of(measure: Measure) -> Any:
    """Return the bin in which a row is counted."""
    match measure:
        case Bins(column, edges, closed):
            return _tree(double(column), edges, closed, 0, len(edges))
        case Regular(column, grid, stride):
            steps = exp.paren(_minus(_cell(column, grid), grid.low - stride // 2))
            nearest = integer(exp.IntDiv(this=steps, expression=whole(stride)))
            last = whole(measure.bins - 1)
            return _case([(nearest > last, last.copy())], nearest.copy())
    raise InvalidInput(f"measure {measure!r} has no bins.")


def _tree(x: Any, edges: tuple[float, ...], closed: tuple[bool, ...], low: int, high: int) -> Any:
    """Return the bin of x by bisection, with about log2(number of edges) comparisons."""
    if low == high:
        return whole(low)
    middle = (low + high) // 2
    edge = number(edges[middle])
    left = x.copy() <= edge if closed[middle] else x.copy() < edge
    return _case([(left, _tree(x, edges, closed, low, middle))], _tree(x, edges, closed, middle + 1, high))


# --- predicates and keys ---------------------------------------------------------------------------------


def holds(predicate: Predicate, policy: Policy) -> Any:
    """Return a test that is never NULL: a comparison is false if its column is missing."""
    match predicate:
        case And(parts):
            return exp.paren(exp.and_(*(holds(part, policy) for part in parts)))
        case Or(parts):
            return exp.paren(exp.or_(*(holds(part, policy) for part in parts)))
        case Not(part):
            return exp.Not(this=exp.paren(holds(part, policy)))
        case IsNull(column):
            return exp.Not(this=exp.func("COALESCE", has_value(column, policy), exp.false()))
        case In(column, values):
            return _leaf(column, policy, among(column, values, policy))
        case Compare(column, op, value):
            kinds = {"=": exp.EQ, "!=": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}
            test = kinds[op](this=typed(column, policy), expression=literal(value, column, policy))
            return _leaf(column, policy, test)
    raise InvalidInput(f"unknown predicate {predicate!r}.")


def _leaf(column: str, policy: Policy, test: Any) -> Any:
    whole = exp.and_(has_value(column, policy), test) if policy.columns[column].is_number else test
    return exp.func("COALESCE", whole, exp.false())


def key_of(column: str, policy: Policy) -> Any:
    """Return the value that a row is grouped by: an integer, a text or a boolean."""
    return integer(double(column)) if policy.columns[column].is_number else typed(column, policy)


def key_tests(column: str, policy: Policy) -> list[Any]:
    """Return the conditions on a row's key; a row with a missing or undeclared key is in no group."""
    keys = policy.columns[column].values
    if keys is not None:
        return [among(column, keys, policy)]
    if not policy.columns[column].is_number:
        return [present(column)]
    x = double(column)
    return [x >= number(-_EXACT), x.copy() <= number(_EXACT), x.copy().eq(exp.func("FLOOR", x.copy()))]


def is_text(column: str, policy: Policy) -> bool:
    """Return whether a column is read as text."""
    return policy.columns[column].kind in ("category", "text")


def typed(column: str, policy: Policy) -> Any:
    """Return the column, cast to a type that all engines compare in the same way."""
    declared = policy.columns[column]
    if declared.is_number:
        return double(column)
    if is_text(column, policy):
        return text_of(field(column))
    return exp.cast(field(column), _MOMENTS.get(declared.kind, "BOOLEAN"))


def among(column: str, values: Sequence[object], policy: Policy) -> Any:
    """Return a test that the column is one of these public values."""
    literals = [literal(value, column, policy) for value in values]
    return exp.In(this=typed(column, policy), expressions=literals)


def literal(value: object, column: str, policy: Policy) -> Any:
    """Return the SQL literal of a public value that a column is compared with."""
    if isinstance(value, bool):
        return exp.true() if value else exp.false()
    if isinstance(value, int | float) and policy.columns[column].is_number:
        return number(value)
    kind = policy.columns[column].kind
    if kind in _MOMENTS and isinstance(value, str | dt.date):
        return exp.cast(exp.Literal.string(str(as_moment("value", kind, value))), _MOMENTS[kind])
    if isinstance(value, str):
        return exp.Literal.string(value)
    raise InvalidInput(f"column {column!r} cannot be compared with {value!r}.")


# --- pieces ----------------------------------------------------------------------------------------------


def field(name: str) -> Any:
    """Return a column by its name, always quoted."""
    return exp.column(name, quoted=True)


def alias(expression: Any, name: str) -> Any:
    """Return an expression with an alias."""
    return exp.alias_(expression, name, quoted=True)


def collated(name: str) -> Any:
    """Return a text column with the collation that orders texts by their bytes."""
    return exp.Collate(this=field(name), expression=exp.to_identifier("C", quoted=True))


def text_of(expression: Any) -> Any:
    """Return an expression as text."""
    return exp.cast(expression, "TEXT")


def double(column: str) -> Any:
    """Return a column of numbers, cast to doubles."""
    return exp.cast(field(column), "DOUBLE")


def has_value(column: str, policy: Policy) -> Any:
    """Return a test that the column is not missing; for a number that is NULL, the test is NULL.

    In a column of integers, a number with a fraction counts as missing.
    """
    if not policy.columns[column].is_number:
        return present(column)
    if policy.columns[column].kind == "number":
        return not_nan(double(column))
    return exp.and_(not_nan(double(column)), exp.Not(this=has_fraction(column)))


def has_fraction(column: str) -> Any:
    """Return a test that the number is not whole.

    Doubles beyond 2^53 are always whole. They are not tested, as Spark's FLOOR fails for the largest.
    """
    x = double(column)
    near = exp.and_(x >= number(-_EXACT), x.copy() <= number(_EXACT))
    return exp.paren(exp.and_(near, x.copy().neq(exp.func("FLOOR", x.copy()))))


def present(column: str) -> Any:
    """Return a test that the column is not NULL."""
    return field(column).is_(exp.null()).not_()


def not_nan(x: Any) -> Any:
    """Return a test that x is neither NULL nor NaN; every engine orders NaN above infinity."""
    return x <= exp.cast(exp.Literal.string("Infinity"), "DOUBLE")


def number(value: float) -> Any:
    """Return a literal of exactly this double; the cast from text avoids a decimal type, which may round."""
    return exp.cast(exp.Literal.string(repr(float(value))), "DOUBLE")


def whole(value: int) -> Any:
    """Return an integer as a literal."""
    return exp.Literal.number(str(value)) if value >= 0 else exp.Neg(this=exp.Literal.number(str(-value)))


def _minus(expression: Any, value: int) -> Any:
    return expression - whole(value) if value >= 0 else expression + whole(-value)


def integer(expression: Any) -> Any:
    """Return an expression as a 64-bit integer."""
    return exp.cast(expression, "BIGINT")


def _case(branches: list[tuple[Any, Any]], otherwise: Any) -> Any:
    ifs = [exp.If(this=condition, true=value) for condition, value in branches]
    return exp.Case(ifs=ifs, default=otherwise)


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
