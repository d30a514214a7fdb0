"""SQL expression trees over one row: its integers, the test whether it counts, and its group.

All engines must return the same result. So the trees rely only on semantics that the engines share: NaN is
above infinity and equal to itself, CASE stops at the first true branch, doubles follow IEEE 754, and equal
texts have equal MD5 digests.
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
