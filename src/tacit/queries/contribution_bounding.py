"""Which rows of a unit count? Those that contribution bounding keeps, as trees of SQL.

The rule reads only the rows of that unit, so no other unit changes which of them count.  A unit with so few
rows that no bound applies keeps them all.  Of the n rows of a unit that has more, in the order of their
values, the rule keeps those in the places p = 1..n with

    (p K + u) mod n < K                                                                                  (1)

These are K rows, evenly spread, because p K + u steps over a multiple of n exactly K times while p runs from
1 to n.  u comes from the name of the unit; if it is uniform, every row has the same chance K / n.  Equal rows
are adjacent, and it does not matter which of them is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tacit.ledger.policy import Policy
from tacit.queries.expressions import alias, collated, field, integer, syntax, text_of, whole
from tacit.queries.measures import most_groups

if TYPE_CHECKING:
    from sqlglot import exp

UNIT = "unit"
"""The column of :data:`COUNTED` that names the unit of a row."""

COUNTED = "tacit_counted"
"""The rows that may count, as a statement selects them from the table."""

_BEYOND = "tacit_beyond"  # the units that have too many rows: their number n, and their u
_NUMBER, _START, _PLACE, _RANK = "number", "start", "place", "rank"
_DIGITS = 6  # of u, in base 16


def with_units(tree: Any, rows: exp.Select, policy: Policy, grouped: int) -> Any:
    """``tree``, which reads the result of :func:`kept` or :func:`left_out`, after the rows and the units that
    they read."""
    exp = syntax()
    most = min(most_groups(policy), policy.rows_per_unit) if grouped else policy.rows_per_unit
    number = exp.Count(this=exp.Star())
    units = exp.select(field(UNIT), alias(number, _NUMBER), alias(_start(), _START))
    units = units.from_(_table(COUNTED), copy=False).group_by(field(UNIT), copy=False)
    units = units.having(number.copy() > whole(most), copy=False)
    for name, select in ((COUNTED, rows), (_BEYOND, units)):
        tree = tree.with_(exp.to_identifier(name, quoted=True), as_=select, copy=False)
    return tree


def every(columns: Sequence[str]) -> Any:
    """All rows, before contribution bounding."""
    return syntax().select(*map(field, columns)).from_(_table(COUNTED), copy=False)


def kept(columns: Sequence[str], policy: Policy, keys: Sequence[str], texts: Sequence[str]) -> Any:
    """The rows that count: those of units with few rows, and some of those of all others.

    Args:
        columns: of the rows: the unit, the keys, the values.
        keys: the keys of the groups; one unit may count in a limited number of groups.
        texts: the columns that are texts.
    """
    exp = syntax()
    few = every(columns).where(exp.Not(this=exp.Exists(this=_beyond())), copy=False)
    return exp.union(few, _placed(columns, policy, keys, texts, count=True), distinct=False, copy=False)


def left_out(columns: Sequence[str], policy: Policy, texts: Sequence[str]) -> Any:
    """The rows that do not count, where no group is left out as a whole: usually few, and none of the units
    that keep all."""
    return _placed(columns, policy, (), texts, count=False)


def ranks_groups(policy: Policy, grouped: int) -> bool:
    """Whether a unit may have rows in more groups than it may be counted in."""
    return bool(grouped) and most_groups(policy) < policy.rows_per_unit


def _beyond() -> Any:
    """The unit of a row is one that has too many rows."""
    exp = syntax()
    one, other = (exp.column(UNIT, table=name, quoted=True) for name in (COUNTED, _BEYOND))
    return exp.select(field(UNIT)).from_(_table(_BEYOND), copy=False).where(one.eq(other), copy=False)


def _placed(
    columns: Sequence[str], policy: Policy, keys: Sequence[str], texts: Sequence[str], *, count: bool
) -> Any:
    """The rows of units that have too many: those that count, or those that do not, by (1)."""
    exp = syntax()
    unit, *others = columns
    own = [exp.column(name, table=COUNTED, quoted=True) for name in columns]
    drawn = [field(_NUMBER), field(_START)]
    same = own[0].eq(exp.column(unit, table=_BEYOND, quoted=True))
    rows = exp.select(*own, *drawn).from_(_table(COUNTED), copy=False)
    rows = rows.join(_table(_BEYOND), on=same, copy=False)
    n: Any = field(_NUMBER)
    if ranks_groups(policy, len(keys)):
        rows = _in_first_groups(rows, policy, keys, texts)
        n = _window(exp.Count(this=exp.Star()), [])
    order = [collated(name) if name in texts else field(name) for name in others]
    place = _window(exp.RowNumber(), order)
    shown = [*map(field, columns), field(_START), alias(n, _NUMBER), alias(place, _PLACE)]
    placed = exp.select(*shown).from_(named(rows, "own"), copy=False)
    most = whole(min(policy.rows_per_unit, policy.largest_table))  # so that p K fits into 64 bits
    turn = exp.Mod(this=exp.paren(integer(field(_PLACE)) * most + field(_START)), expression=field(_NUMBER))
    counts = turn < most.copy() if count else turn >= most.copy()
    return (
        exp.select(*map(field, columns)).from_(named(placed, "placed"), copy=False).where(counts, copy=False)
    )


def _in_first_groups(rows: Any, policy: Policy, keys: Sequence[str], texts: Sequence[str]) -> Any:
    """The rows in the first groups of each unit, in an order by a digest of unit and group."""
    group = [collated(key) if key in texts else field(key) for key in keys]
    order = [_digest("group", [UNIT, *keys]), *group]
    exp = syntax()
    ranked = exp.select("*", alias(_window(exp.DenseRank(), order), _RANK))
    ranked = ranked.from_(named(rows, "joined"), copy=False)
    first = field(_RANK) <= whole(most_groups(policy))
    return exp.select("*").from_(named(ranked, "ranked"), copy=False).where(first, copy=False)


def _start() -> Any:
    """u of a unit: the first digits of the MD5 of its name, uniform among 16^6 numbers.

    Signs, points and zeros at the ends of the name are ignored: 0 and -0, 7 and 7.00 may be the same unit.
    """
    exp = syntax()
    name = exp.Trim(this=text_of(field(UNIT)), expression=exp.Literal.string("-.0"))
    digest = exp.func("MD5", exp.DPipe(this=exp.Literal.string("rows|"), expression=name, safe=True))
    digits = []
    for place in range(_DIGITS):
        digit = exp.Substring(this=digest.copy(), start=whole(place + 1), length=whole(1))
        value = exp.StrPosition(this=exp.Literal.string("123456789abcdef"), substr=digit)
        digits.append(value * whole(16**place))
    return sum(digits[1:], digits[0])


def _digest(purpose: str, columns: Sequence[str]) -> Any:
    """MD5 over texts; where two different rows contain the separator, a tie costs fairness alone."""
    exp = syntax()
    joined: Any = exp.Literal.string(purpose)
    for name in columns:
        for piece in (exp.Literal.string("|"), text_of(field(name))):
            joined = exp.DPipe(this=joined, expression=piece, safe=True)
    return exp.func("MD5", joined)


def _window(function: Any, order: list[Any]) -> Any:
    """Over the rows of one unit."""
    exp = syntax()
    ordered = [exp.Ordered(this=item, nulls_first=False) for item in order]
    by = exp.Order(expressions=ordered) if ordered else None
    return exp.Window(this=function, partition_by=[field(UNIT)], order=by)


def _table(name: str) -> Any:
    exp = syntax()
    return exp.Table(this=exp.to_identifier(name, quoted=True))


def named(select: Any, name: str) -> Any:
    """A select to select from."""
    return select.subquery(syntax().to_identifier(name, quoted=True), copy=False)
