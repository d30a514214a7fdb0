"""What does a statement compute of one row? Its integers, whether it counts, its group, as trees of SQL.

Where all engines must agree, the trees use only what they agree on: NaN is above infinity and equal to
itself, CASE stops at the first true branch, doubles follow IEEE 754, texts have the same MD5.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from tacit.columns.moments import as_moment
from tacit.errors import InvalidInput, MissingExtra
from tacit.ledger.policy import Policy
from tacit.queries.measures import Bins, Grid, Measure, Regular, Squares, Total
from tacit.queries.predicates import And, Compare, In, IsNull, Not, Or, Predicate

_MOMENTS = {"date": "DATE", "datetime": "TIMESTAMP"}
_EXACT = 1 << 53  # integers up to here are doubles


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


# --- integers of a row -----------------------------------------------------------------------------------


def cell_of(column: str, measures: Sequence[Measure], policy: Policy) -> Any:
    """What ``measures`` need of a row's value: k if one of them sums it, else 1; NULL where it is missing."""
    exp = syntax()
    grids = [item.grid for item in measures if isinstance(item, Total | Squares) and item.column == column]
    value = _cell(column, grids[0]) if grids else whole(1)
    return _case([(there(column, policy), value)], exp.null())


def summand(measure: Measure, k: Any) -> Any:
    """What a row adds to a measure."""
    exp = syntax()
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
    """k of :class:`~tacit.queries.measures.Grid`, for a value that is not missing."""
    exp = syntax()
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
    """The bin that a row is counted in."""
    exp = syntax()
    match measure:
        case Bins(column, edges, closed):
            return _tree(double(column), edges, closed, 0, len(edges))
        case Regular(column, grid, stride):
            steps = exp.paren(_minus(_cell(column, grid), grid.low - stride // 2))
            nearest = integer(exp.IntDiv(this=steps, expression=whole(stride)))
            return _case([(nearest > whole(measure.last), whole(measure.last))], nearest.copy())
    raise InvalidInput(f"measure {measure!r} has no bins.")


def _tree(x: Any, edges: tuple[float, ...], closed: tuple[bool, ...], low: int, high: int) -> Any:
    """The bin of x by bisection: about log2 of the number of edges comparisons for a row."""
    if low == high:
        return whole(low)
    middle = (low + high) // 2
    edge = number(edges[middle])
    left = x.copy() <= edge if closed[middle] else x.copy() < edge
    return _case([(left, _tree(x, edges, closed, low, middle))], _tree(x, edges, closed, middle + 1, high))


def binned_column(measure: Measure) -> str:
    """The column whose values are put into bins."""
    if isinstance(measure, Bins | Regular):
        return measure.column
    raise InvalidInput(f"measure {measure!r} has no bins.")


# --- predicates and keys ---------------------------------------------------------------------------------


def holds(predicate: Predicate, policy: Policy) -> Any:
    """True or false for every row: each leaf is false where its column is missing."""
    exp = syntax()
    match predicate:
        case And(parts):
            return exp.paren(exp.and_(*(holds(part, policy) for part in parts)))
        case Or(parts):
            return exp.paren(exp.or_(*(holds(part, policy) for part in parts)))
        case Not(part):
            return exp.Not(this=exp.paren(holds(part, policy)))
        case IsNull(column):
            return exp.Not(this=exp.func("COALESCE", there(column, policy), exp.false()))
        case In(column, values):
            found = exp.In(
                this=typed(column, policy), expressions=[literal(v, column, policy) for v in values]
            )
            return _leaf(column, policy, found)
        case Compare(column, op, value):
            kinds = {"=": exp.EQ, "!=": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}
            return _leaf(
                column,
                policy,
                kinds[op](this=typed(column, policy), expression=literal(value, column, policy)),
            )
    raise InvalidInput(f"unknown predicate {predicate!r}.")


def _leaf(column: str, policy: Policy, test: Any) -> Any:
    exp = syntax()
    whole = exp.and_(there(column, policy), test) if is_number(column, policy) else test
    return exp.func("COALESCE", whole, exp.false())


def key_of(column: str, policy: Policy) -> Any:
    """The value that a row is grouped by: a whole number, a text or a truth value."""
    return integer(double(column)) if is_number(column, policy) else typed(column, policy)


def key_tests(column: str, policy: Policy) -> list[Any]:
    """The conditions on a key: a row whose key is missing or not declared is in no group."""
    exp = syntax()
    keys = policy.columns[column].values
    if keys is not None:
        among = [literal(key, column, policy) for key in keys]
        return [exp.In(this=typed(column, policy), expressions=among)]
    if not is_number(column, policy):
        return [_known_column(column)]
    x = double(column)
    return [
        x >= number(-_EXACT),
        x.copy() <= number(_EXACT),
        x.copy().eq(exp.func("FLOOR", x.copy())),
    ]


def is_number(column: str, policy: Policy) -> bool:
    """Whether a column is read as a number."""
    return policy.columns[column].is_number


def is_text(column: str, policy: Policy) -> bool:
    """Whether a column is read as text."""
    return policy.columns[column].kind in ("category", "text")


def typed(column: str, policy: Policy) -> Any:
    """The column in the type of its kind, which all engines compare in the same way."""
    declared = policy.columns[column]
    if declared.is_number:
        return double(column)
    if is_text(column, policy):
        return text_of(field(column))
    return syntax().cast(field(column), _MOMENTS.get(declared.kind, "BOOLEAN"))


def literal(value: object, column: str, policy: Policy) -> Any:
    """A public value that a column is compared with."""
    exp = syntax()
    if isinstance(value, bool):
        return exp.true() if value else exp.false()
    if isinstance(value, int | float) and is_number(column, policy):
        return number(value)
    kind = policy.columns[column].kind
    if kind in _MOMENTS and isinstance(value, str | dt.date):
        return exp.cast(exp.Literal.string(str(as_moment("value", kind, value))), _MOMENTS[kind])
    if isinstance(value, str):
        return exp.Literal.string(value)
    raise InvalidInput(f"column {column!r} cannot be compared with {value!r}.")


# --- pieces ----------------------------------------------------------------------------------------------


def field(name: str) -> Any:
    """A column by its name, which is always quoted."""
    return syntax().column(name, quoted=True)


def alias(expression: Any, name: str) -> Any:
    """An expression under a name."""
    return syntax().alias_(expression, name, quoted=True)


def collated(name: str) -> Any:
    """A column of texts, in the order of their bytes."""
    exp = syntax()
    return exp.Collate(this=field(name), expression=exp.to_identifier("C", quoted=True))


def text_of(expression: Any) -> Any:
    """An expression as text."""
    return syntax().cast(expression, "TEXT")


def double(column: str) -> Any:
    """A column of numbers, as doubles."""
    return syntax().cast(field(column), "DOUBLE")


def there(column: str, policy: Policy) -> Any:
    """The column is not missing; NULL, too, where it is NULL and a number.

    In a column of integers a number with a fraction is missing, as a text would be.
    """
    if not is_number(column, policy):
        return _known_column(column)
    if policy.columns[column].kind == "number":
        return known(double(column))
    return syntax().and_(known(double(column)), syntax().Not(this=has_fraction(column)))


def has_fraction(column: str) -> Any:
    """The number is not whole.  Doubles beyond 2^53 are whole; Spark's FLOOR does not reach far beyond."""
    exp = syntax()
    x = double(column)
    near = exp.and_(x >= number(-_EXACT), x.copy() <= number(_EXACT))
    return exp.paren(exp.and_(near, x.copy().neq(exp.func("FLOOR", x.copy()))))


def _known_column(column: str) -> Any:
    exp = syntax()
    return field(column).is_(exp.null()).not_()


def known(x: Any) -> Any:
    """Neither NULL nor NaN, which every engine puts above infinity."""
    exp = syntax()
    return x <= exp.cast(exp.Literal.string("Infinity"), "DOUBLE")


def number(value: float) -> Any:
    """A double as a literal that is exactly this double, not read through a decimal type."""
    exp = syntax()
    return exp.cast(exp.Literal.string(repr(float(value))), "DOUBLE")


def whole(value: int) -> Any:
    """An integer as a literal."""
    exp = syntax()
    return exp.Literal.number(str(value)) if value >= 0 else exp.Neg(this=exp.Literal.number(str(-value)))


def _minus(expression: Any, value: int) -> Any:
    return expression - whole(value) if value >= 0 else expression + whole(-value)


def integer(expression: Any) -> Any:
    """An expression as a 64-bit integer."""
    return syntax().cast(expression, "BIGINT")


def _case(branches: list[tuple[Any, Any]], otherwise: Any) -> Any:
    exp = syntax()
    ifs = [exp.If(this=condition, true=value) for condition, value in branches]
    return exp.Case(ifs=ifs, default=otherwise)
