"""Which aggregates may stand after SELECT?"""

from __future__ import annotations

from itertools import pairwise

from tacit.queries.query import (
    Aggregate,
    Count,
    CountUnits,
    Histogram,
    Mean,
    Quantile,
    StandardDeviation,
    Sum,
    Variance,
)
from tacit.queries.sql.reader import Node, Reader, called
from tacit.queries.sql.words import closest

SUPPORTED = (
    "supported are count(*), count(column), sum, avg, var_samp, stddev, median, quantile(column, 0.9), max, "
    "min and histogram(column, [0, 10, 20])"
)
"""The supported aggregates, in words."""

_NAMES = (
    "count", "sum", "avg", "mean", "variance", "var_samp", "var_pop", "stddev", "stddev_samp", "stddev_pop",
    "median", "quantile", "quantile_cont", "percentile_cont", "max", "min", "histogram",
)  # fmt: skip
_INSTEAD = {"Mode": "count the groups of GROUP BY, and take the largest. "}


def read_aggregate(reader: Reader, node: Node) -> Aggregate:
    """The aggregate of a node; any other node is refused with the list of supported aggregates."""
    from sqlglot import exp

    match node:
        case exp.Count():
            return _count(reader, node)
        case exp.Sum():
            return Sum(_column(reader, node))
        case exp.Avg():
            return Mean(_column(reader, node))
        case exp.Variance() | exp.VariancePop():
            return Variance(_column(reader, node), sample=isinstance(node, exp.Variance))
        case exp.Stddev() | exp.StddevSamp() | exp.StddevPop():
            return StandardDeviation(_column(reader, node), sample=not isinstance(node, exp.StddevPop))
        case exp.Median() | exp.Max() | exp.Min():
            share = {"Median": 0.5, "Max": 1.0, "Min": 0.0}[type(node).__name__]
            return Quantile(_column(reader, node), share)
        case exp.Quantile():
            return _quantile(reader, node, "quantile")
        case exp.PercentileCont() | exp.PercentileDisc():
            return _quantile(reader, node, "expression")
        case exp.WithinGroup():
            return _within_group(reader, node)
        case exp.Anonymous():
            return _by_name(reader, node)
    hint = _INSTEAD.get(type(node).__name__, "")
    raise reader.refusal(node, f"{called(node)} is no supported aggregate", hint + SUPPORTED)


def _column(reader: Reader, node: Node, *others: str) -> str:
    reader.only(node, "this", *others)
    return reader.numbers(node.this)


def _count(reader: Reader, node: Node) -> Aggregate:
    from sqlglot import exp

    reader.only(node, "this", "big_int")  # big_int: a mark of the parser, no word of the text
    match node.this:
        case None:
            remedy = "write count(*) for rows, or count(column) for values that are not NULL"
            raise reader.refusal(node, "count of what?", remedy)
        case exp.Star():
            reader.only(node.this)
            return Count()
        case exp.Distinct():
            return _count_units(reader, node.this)
    return Count(reader.column(node.this))


def _count_units(reader: Reader, node: Node) -> Aggregate:
    reader.only(node, "expressions")
    unit = reader.policy.unit_column
    if len(node.expressions) != 1 or not reader.is_unit(node.expressions[0]):
        remedy = "count the groups of GROUP BY with noise instead"
        if unit is not None:
            remedy = (
                f"count(DISTINCT {unit}) counts each {reader.policy.unit} once; for other columns, {remedy}"
            )
        raise reader.refusal(node, "these values are not counted without repetition", remedy)
    return CountUnits()


def _quantile(reader: Reader, node: Node, share: str) -> Aggregate:
    """``quantile(age, 0.9)``, whose share the parser keeps under one name or another."""
    name = _column(reader, node, share)
    if node.args.get(share) is None:
        raise reader.refusal(node, "the share is missing", "write for example quantile(age, 0.9)")
    return Quantile(name, _share(reader, node.args[share]))


def _within_group(reader: Reader, node: Node) -> Aggregate:
    """``percentile_cont(0.9) WITHIN GROUP (ORDER BY age)``, as PostgreSQL writes it."""
    from sqlglot import exp

    reader.only(node, "this", "expression")
    order = node.expression
    remedy = "write percentile_cont(0.9) WITHIN GROUP (ORDER BY age), or quantile(age, 0.9)"
    quantile = isinstance(node.this, exp.PercentileCont | exp.PercentileDisc)
    if not quantile or not isinstance(order, exp.Order) or len(order.expressions) != 1:
        raise reader.refusal(node, "WITHIN GROUP belongs to a quantile of one column", remedy)
    reader.only(order, "expressions")
    (ordered,) = order.expressions
    reader.only(ordered, "this")
    return Quantile(reader.numbers(ordered.this), _share(reader, reader.child(node.this, "this")))


def _by_name(reader: Reader, node: Node) -> Aggregate:
    """Functions that the parser has no class for."""
    name = str(node.this).lower()
    reader.only(node, "this", "expressions")
    if name == "mean" and len(node.expressions) == 1:
        return Mean(reader.numbers(node.expressions[0]))
    if name == "histogram":
        return _histogram(reader, node)
    raise reader.refusal(node, f"there is no aggregate {name!r}", closest(name, _NAMES) + SUPPORTED)


def _histogram(reader: Reader, node: Node) -> Aggregate:
    from sqlglot import exp

    if len(node.expressions) != 2 or not isinstance(node.expressions[1], exp.Array):
        raise reader.refusal(node, "a histogram needs its edges", "write histogram(age, [0, 20, 40, 60])")
    column, array = node.expressions
    reader.only(array, "expressions")
    edges = tuple(reader.number(edge) for edge in array.expressions)
    if len(edges) < 2 or any(low >= high for low, high in pairwise(edges)):
        raise reader.refusal(node, "the edges are two or more growing numbers", "write [0, 20, 40, 60]")
    return Histogram(reader.numbers(column), edges)


def _share(reader: Reader, node: Node) -> float:
    share = float(reader.number(node))
    if not 0.0 <= share <= 1.0:
        problem = f"the share of a quantile lies between 0 and 1; got {share:g}"
        raise reader.refusal(node, problem, "0.5 is the median, 0.9 leaves a tenth above")
    return share
