"""Conditions after WHERE, with SQL's meaning of NULL and NOT.

In SQL a row counts if its condition is TRUE, but not if it is unknown because of a NULL. The predicates of a
query have only two values. Both agree if no NOT stands above a comparison. So the reader moves NOT to the
leaves by De Morgan's laws, which hold in SQL's three-valued logic too: ``NOT (age < 5 OR ward = 'A')`` is
read as ``age >= 5 AND ward <> 'A'``, and a NULL satisfies neither form.
"""

from __future__ import annotations

from collections.abc import Callable

from tacit.errors import TacitError
from tacit.queries.query import And, Compare, In, IsNull, Not, Or, Predicate
from tacit.queries.sql.reader import Node, Reader, node_name
from tacit.queries.statements import exp

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}
_OPERATORS = {"EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_SUPPORTED = (
    "a condition compares a column with a literal (=, <>, <, <=, >, >=), or tests it with IN (...), BETWEEN "
    "... AND ..., IS NULL or IS TRUE; conditions are joined by AND, OR and NOT"
)


def read_condition(reader: Reader, node: Node, *, positive: bool = True) -> Predicate:
    """Return the predicate for rows where the condition is TRUE or, if not ``positive``, FALSE."""
    match node:
        case exp.Paren():
            return read_condition(reader, reader.child(node, "this"), positive=positive)
        case exp.Not():
            return read_condition(reader, reader.child(node, "this"), positive=not positive)
        case exp.And() | exp.Or():
            parts = tuple(read_condition(reader, part, positive=positive) for part in _chain(reader, node))
            return And(parts) if isinstance(node, exp.And) == positive else Or(parts)
        case exp.Boolean():
            raise reader.refusal(node, "this holds for all rows or for none", "leave it out")
    if (read := _READERS.get(type(node).__name__)) is not None:
        return read(reader, node, positive)
    raise reader.refusal(node, f"{node_name(node)} is no supported condition", _SUPPORTED)


def _chain(reader: Reader, node: Node) -> list[Node]:
    """Return the operands of a chain of ANDs, or of ORs, which the parser nests to the left."""
    kind = type(node)
    operands = []
    while type(node) is kind:
        reader.only(node, "this", "expression")
        operands.append(node.expression)
        node = node.this
    return [node, *reversed(operands)]


def _comparison(reader: Reader, node: Node, positive: bool) -> Predicate:
    reader.only(node, "this", "expression")
    column, literal = reader.bare(node.this), reader.bare(node.expression)
    op = _OPERATORS[type(node).__name__]
    if isinstance(column, exp.Column) and isinstance(literal, exp.Column):
        raise _two_columns(reader, node, column, literal)
    if isinstance(literal, exp.Column):
        column, literal, op = literal, column, _MIRRORED[op]
    if not isinstance(column, exp.Column):
        raise reader.refusal(column, "no column is compared here", _SUPPORTED)
    name = reader.column(column)
    if op not in ("=", "!="):
        _check_order(reader, column, name)
    return Compare(name, op if positive else _NEGATED[op], reader.value(literal, name))


def _two_columns(reader: Reader, node: Node, left: Node, right: Node) -> TacitError:
    reader.column(left)
    if not right.this.args.get("quoted"):
        reader.column(right)  # an unknown column has a separate error
    return reader.refusal(node, "two columns are compared", f"{_SUPPORTED}. Strings stand in 'single quotes'")


def _check_order(reader: Reader, column: Node, name: str) -> None:
    declared = reader.policy.columns[name]
    if not (declared.is_number or declared.is_moment):
        raise reader.refusal(column, f"{name!r} is a {declared.kind} and has no order", "use =, <> or IN")


def _between(reader: Reader, node: Node, positive: bool) -> Predicate:
    reader.only(node, "this", "low", "high")
    name = reader.column(node.this)
    _check_order(reader, node.this, name)
    low, high = (reader.value(node.args[side], name) for side in ("low", "high"))
    if low > high:  # type: ignore[operator]  # two numbers, or two dates in ISO form
        ends = [end if isinstance(end, str) else f"{end:g}" for end in (low, high)]
        problem = f"nothing lies between {ends[0]} and {ends[1]}"
        raise reader.refusal(node, problem, "write the lower end first")
    if positive:
        return And((Compare(name, ">=", low), Compare(name, "<=", high)))
    return Or((Compare(name, "<", low), Compare(name, ">", high)))


def _in(reader: Reader, node: Node, positive: bool) -> Predicate:
    reader.only(node, "this", "expressions")
    name = reader.column(node.this)
    if not node.expressions:
        raise reader.refusal(node, "the list after IN is empty", "list the values: IN ('A', 'B')")
    member = In(name, tuple(reader.value(value, name) for value in node.expressions))
    return member if positive else And((Not(member), Not(IsNull(name))))


def _is(reader: Reader, node: Node, positive: bool) -> Predicate:
    """Read ``IS NULL`` or ``IS TRUE``; these are never unknown, so a ``Not`` negates them."""
    reader.only(node, "this", "expression")
    name = reader.column(node.this)
    predicate: Predicate
    match node.expression:
        case exp.Null():
            reader.only(node.expression)
            predicate = IsNull(name)
        case exp.Boolean():
            predicate = Compare(name, "=", reader.value(node.expression, name))
        case other:
            raise reader.refusal(node, f"IS {node_name(other)} is not supported", "write IS NULL or IS TRUE")
    return predicate if positive else Not(predicate)


def _truth(reader: Reader, node: Node, positive: bool) -> Predicate:
    """Read a boolean column that is a condition on its own."""
    name = reader.column(node)
    kind = reader.policy.columns[name].kind
    if kind != "boolean":
        raise reader.refusal(node, f"{name!r} is a {kind}, no condition", _SUPPORTED)
    return Compare(name, "=", positive)


_READERS: dict[str, Callable[[Reader, Node, bool], Predicate]] = {
    **dict.fromkeys(_OPERATORS, _comparison),
    "Between": _between,
    "In": _in,
    "Is": _is,
    "Column": _truth,
}
"""The readers of conditions without AND, OR and NOT, by the class name of the node."""
