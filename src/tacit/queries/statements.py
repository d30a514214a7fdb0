"""From measures to statements: the only SQL that an engine ever runs, built as a tree, never from text.

A :class:`Statement` selects the keys of a group and integers, from one table.  It is written for no engine in
particular: sqlglot renders the tree in the dialect of DuckDB, PostgreSQL or Spark.  What the person who asks
has typed is in it only as literals that sqlglot quotes.

What has to be the same in all engines is kept to what they agree on: NaN is above infinity and equal to
itself, CASE stops at the first true branch, doubles follow IEEE 754, texts have the same MD5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacit.errors import InvalidInput, MissingExtra
from tacit.ledger.policy import Policy
from tacit.queries.algebra import And, Compare, In, IsNull, Not, Or, Predicate, Query
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

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["SOURCE", "Statement", "statement", "syntax"]

SOURCE = "tacit_rows"
"""What statements call the table; an engine puts its own in this place."""

_UNIT, _KEY, _VALUE = "unit", "key", "value"  # names inside a statement; no user's name is used as an alias
_COUNTED, _BEYOND = (
    "tacit_counted",
    "tacit_beyond",
)  # the rows that may count; the units with too many of them
_EXACT = 1 << 53  # integers up to here are doubles
_NO_UNIT = ("NaN", "nan", "")  # how engines write an identifier that is none


def syntax() -> Any:
    """``sqlglot.exp``: the vocabulary of trees.

    Raises:
        MissingExtra: sqlglot is not installed.
    """
    try:
        from sqlglot import exp
    except ImportError:
        raise MissingExtra("sqlglot", "query", "Asking a private table") from None
    return exp


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
    shown = [_name(key) for key in keys]
    numbers = [
        _integer(exp.Count(this=exp.Star()))
        if isinstance(measure, Rows | Bins | Regular)
        else _integer(exp.Count(this=exp.Distinct(expressions=[_name(_UNIT)])))
        if isinstance(measure, Units) and policy.unit_column is not None
        else _integer(exp.Count(this=exp.Star()))
        if isinstance(measure, Units)
        else exp.func("COALESCE", exp.Sum(this=_name(f"{_VALUE}{place}")), _whole(0))
        for place, measure in enumerate(measures)
    ]
    tree = exp.select(*shown, *numbers).from_(_named(kept, "kept"), copy=False)
    if shown:
        tree = tree.group_by(*(column.copy() for column in shown), copy=False)
    return Statement(tuple(measures), tree, len(keys), binned)


# --- the rows that count ---------------------------------------------------------------------------------


def _rows(
    measures: Sequence[Measure], query: Query, policy: Policy, keys: list[str], values: list[str]
) -> Any:
    """Unit, keys and integers of every row that the predicate and the declared keys let through."""
    exp = syntax()
    columns = [
        exp.alias_(_key(column, policy), _key_name(place), quoted=True)
        for place, column in enumerate(query.by)
    ]
    tests = [test for column in query.by for test in _key_tests(column, policy)]
    for measure, value in zip(measures, values, strict=False):
        if not isinstance(measure, Rows | Units):
            columns.append(exp.alias_(_value(measure, policy), value, quoted=True))
    if len(keys) > len(query.by):
        (measure,) = measures
        columns.append(exp.alias_(_bin(measure), keys[-1], quoted=True))
        tests.append(_known(_double(_column_of(measure))))
    if policy.unit_column is not None:
        columns.insert(0, exp.alias_(exp.column(policy.unit_column, quoted=True), _UNIT, quoted=True))
        tests.extend(_unit_tests(policy.unit_column))
    if query.where is not None:
        tests.append(_test(query.where, policy))
    columns = columns or [exp.alias_(_whole(1), "row", quoted=True)]
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
        _from_table(_COUNTED, [_UNIT])
        .group_by(_name(_UNIT))
        .having(exp.Count(this=exp.Star()) > _whole(most))
    )
    own = exp.column(_UNIT, table=_COUNTED, quoted=True).eq(exp.column(_UNIT, table=_BEYOND, quoted=True))
    beyond = exp.Exists(this=_from_table(_BEYOND, [_UNIT]).where(own))
    few = _from_table(_COUNTED, columns).where(exp.Not(this=beyond.copy()))
    many = _from_table(_COUNTED, columns).where(beyond)
    ranked = _ranked(many, policy, keys, columns, grouped)
    first = exp.select(*map(_name, columns)).from_(_named(ranked, "first"), copy=False)
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
    unit, *others = map(_name, columns)
    copies = _window(exp.RowNumber(), [unit, *others], [unit])
    numbered = _from(rows, "rows").select(_as(copies, "copy"), copy=False)
    order = [_digest([unit, *others, _name("copy")], "row"), *others, _name("copy")]
    groups = most_groups(policy)
    if grouped and groups < policy.rows_per_unit:
        group = [_name(key) for key in keys[:grouped]]
        rank = _window(exp.DenseRank(), [unit], [_digest([unit, *group], "group"), *group])
        chosen = _from(numbered, "numbered").select(_as(rank, "rank"), copy=False)
        numbered = _from(chosen, "chosen").where(_name("rank") <= _whole(groups), copy=False)
    place = _window(exp.RowNumber(), [unit], order)
    ranked = _from(numbered, "within").select(_as(place, "place"), copy=False)
    return _from(ranked, "ranked").where(_name("place") <= _whole(policy.rows_per_unit), copy=False)


def _from_table(name: str, columns: list[str]) -> Any:
    exp = syntax()
    return exp.select(*map(_name, columns)).from_(exp.to_table(name), copy=False)


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


# --- integers of a row -----------------------------------------------------------------------------------


def _value(measure: Measure, policy: Policy) -> Any:
    exp = syntax()
    match measure:
        case Present(column):
            return _case([(_there(column, policy), _whole(1))], _whole(0))
        case Total(column, grid, centre):
            return _case([(_known(_double(column)), _minus(_cell(column, grid), centre))], _whole(0))
        case Squares(column, grid, centre):
            root = exp.paren(_minus(_cell(column, grid), centre))
            square: Any = root * root.copy()
            if measure.shift:
                half = _whole(1 << measure.shift >> 1)
                square = _integer(
                    exp.IntDiv(this=exp.paren(square + half), expression=_whole(1 << measure.shift))
                )
            return _case([(_known(_double(column)), square)], _whole(0))
    raise InvalidInput(f"measure {measure!r} is no sum over rows.")


def _cell(column: str, grid: Grid) -> Any:
    """k of :class:`~tacit.queries.measures.Grid`, for a value that is not missing."""
    exp = syntax()
    x = _double(column)
    step, half = _number(grid.step), _number(0.5)
    inside = _integer(exp.func("FLOOR", exp.paren(x.copy() / step) + half))
    return _case(
        [
            (x.copy() <= _number(grid.lower), _whole(grid.low)),
            (x.copy() >= _number(grid.upper), _whole(grid.high)),
        ],
        inside,
    )


def _bin(measure: Measure) -> Any:
    exp = syntax()
    match measure:
        case Bins(column, edges, closed):
            return _tree(_double(column), edges, closed, 0, len(edges))
        case Regular(column, grid, stride):
            place = exp.paren(_minus(_cell(column, grid), grid.low))
            quotient = _integer(exp.IntDiv(this=place, expression=_whole(stride)))
            beyond = place.copy() > exp.paren(quotient.copy()) * _whole(stride)
            return exp.paren(quotient) * _whole(2) + _case([(beyond, _whole(2))], _whole(1))
    raise InvalidInput(f"measure {measure!r} has no bins.")


def _tree(x: Any, edges: tuple[float, ...], closed: tuple[bool, ...], low: int, high: int) -> Any:
    """The bin of x by bisection: about log2 of the number of edges comparisons for a row."""
    if low == high:
        return _whole(low)
    middle = (low + high) // 2
    edge = _number(edges[middle])
    left = x.copy() <= edge if closed[middle] else x.copy() < edge
    return _case([(left, _tree(x, edges, closed, low, middle))], _tree(x, edges, closed, middle + 1, high))


def _column_of(measure: Measure) -> str:
    if isinstance(measure, Bins | Regular):
        return measure.column
    raise InvalidInput(f"measure {measure!r} has no bins.")


# --- predicates and keys ---------------------------------------------------------------------------------


def _test(predicate: Predicate, policy: Policy) -> Any:
    """True or false for every row: each leaf is false where its column is missing."""
    exp = syntax()
    match predicate:
        case And(parts):
            return exp.paren(exp.and_(*(_test(part, policy) for part in parts)))
        case Or(parts):
            return exp.paren(exp.or_(*(_test(part, policy) for part in parts)))
        case Not(part):
            return exp.Not(this=exp.paren(_test(part, policy)))
        case IsNull(column):
            return exp.Not(this=exp.func("COALESCE", _there(column, policy), exp.false()))
        case In(column, values):
            found = exp.In(
                this=_typed(column, policy), expressions=[_literal(v, column, policy) for v in values]
            )
            return _leaf(column, policy, found)
        case Compare(column, op, value):
            kinds = {"=": exp.EQ, "!=": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}
            return _leaf(
                column,
                policy,
                kinds[op](this=_typed(column, policy), expression=_literal(value, column, policy)),
            )
    raise InvalidInput(f"unknown predicate {predicate!r}.")


def _leaf(column: str, policy: Policy, test: Any) -> Any:
    exp = syntax()
    whole = exp.and_(_known(_double(column)), test) if _is_number(column, policy) else test
    return exp.func("COALESCE", whole, exp.false())


def _key(column: str, policy: Policy) -> Any:
    return _integer(_double(column)) if _is_number(column, policy) else _typed(column, policy)


def _key_tests(column: str, policy: Policy) -> list[Any]:
    """A row with a key that is missing or not declared is in no group."""
    exp = syntax()
    keys = policy.columns[column].keys
    if keys is not None:
        among = [_literal(key, column, policy) for key in keys]
        return [exp.In(this=_typed(column, policy), expressions=among)]
    if not _is_number(column, policy):
        return [_known_column(column)]
    x = _double(column)
    return [
        x >= _number(-_EXACT),
        x.copy() <= _number(_EXACT),
        x.copy().eq(exp.func("FLOOR", x.copy())),
    ]


def _is_number(column: str, policy: Policy) -> bool:
    return policy.columns[column].kind in ("number", "integer")


def _typed(column: str, policy: Policy) -> Any:
    """The column in the type of its kind, in which all engines compare alike."""
    exp = syntax()
    if _is_number(column, policy):
        return _double(column)
    return exp.cast(_column(column), "BOOLEAN" if policy.columns[column].kind == "boolean" else "TEXT")


def _literal(value: object, column: str, policy: Policy) -> Any:
    exp = syntax()
    if isinstance(value, bool):
        return exp.true() if value else exp.false()
    if isinstance(value, int | float) and _is_number(column, policy):
        return _number(value)
    if isinstance(value, str):
        return exp.Literal.string(value)
    raise InvalidInput(f"column {column!r} cannot be compared with {value!r}.")


# --- pieces ----------------------------------------------------------------------------------------------


def _key_name(place: int) -> str:
    return f"{_KEY}{place}"


def _name(name: str) -> Any:
    return syntax().column(name, quoted=True)


def _as(expression: Any, name: str) -> Any:
    return syntax().alias_(expression, name, quoted=True)


def _column(name: str) -> Any:
    return syntax().column(name, quoted=True)


def _double(column: str) -> Any:
    return syntax().cast(_column(column), "DOUBLE")


def _there(column: str, policy: Policy) -> Any:
    """The column is not missing; NULL, too, where it is NULL and a number."""
    return _known(_double(column)) if _is_number(column, policy) else _known_column(column)


def _known_column(column: str) -> Any:
    exp = syntax()
    return _column(column).is_(exp.null()).not_()


def _known(x: Any) -> Any:
    """Neither NULL nor NaN, which every engine puts above infinity."""
    exp = syntax()
    return x <= exp.cast(exp.Literal.string("Infinity"), "DOUBLE")


def _number(value: float) -> Any:
    """The double itself: read from its shortest text, not through a decimal type."""
    exp = syntax()
    return exp.cast(exp.Literal.string(repr(float(value))), "DOUBLE")


def _whole(value: int) -> Any:
    exp = syntax()
    return exp.Literal.number(str(value)) if value >= 0 else exp.Neg(this=exp.Literal.number(str(-value)))


def _minus(expression: Any, value: int) -> Any:
    return expression - _whole(value) if value >= 0 else expression + _whole(-value)


def _integer(expression: Any) -> Any:
    return syntax().cast(expression, "BIGINT")


def _case(branches: list[tuple[Any, Any]], otherwise: Any) -> Any:
    exp = syntax()
    ifs = [exp.If(this=condition, true=value) for condition, value in branches]
    return exp.Case(ifs=ifs, default=otherwise)
