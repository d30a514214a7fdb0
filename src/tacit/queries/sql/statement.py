"""The reader of a whole statement: SELECT with aggregates, FROM, WHERE and GROUP BY, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

from tacit.errors import InvalidInput
from tacit.ledger.policy import Policy
from tacit.queries.query import (
    Aggregate,
    Count,
    CountUnits,
    Histogram,
    Mean,
    Quantile,
    Query,
    StandardDeviation,
    Sum,
    Variance,
)
from tacit.queries.sql.conditions import read_condition
from tacit.queries.sql.reader import Node, Reader, node_name
from tacit.queries.sql.words import ONE_TABLE, SourceText, checked_words, closest
from tacit.queries.statements import exp

SUPPORTED = (
    "supported are count(*), count(column), sum, avg, var_samp, stddev, median, quantile(column, 0.9), max, "
    "min and histogram(column, [0, 10, 20])"
)
"""The supported aggregates, in words."""

_NAMES = (
    "count", "sum", "avg", "mean", "variance", "var_samp", "var_pop", "stddev", "stddev_samp", "stddev_pop",
    "median", "quantile", "quantile_cont", "percentile_cont", "max", "min", "histogram",
)  # fmt: skip
_INSTEAD = {
    "Mode": "count the groups of GROUP BY, and take the largest. ",
    "Mul": "Compute with the answer, which is free. ",
}
_OF_ONE_COLUMN: dict[type, Callable[[str], Aggregate]] = {
    exp.Sum: Sum,
    exp.Avg: Mean,
    exp.Variance: Variance,
    exp.VariancePop: partial(Variance, sample=False),
    exp.Stddev: StandardDeviation,
    exp.StddevSamp: StandardDeviation,
    exp.StddevPop: partial(StandardDeviation, sample=False),
    exp.Median: partial(Quantile, q=0.5),
    exp.Max: partial(Quantile, q=1.0),
    exp.Min: partial(Quantile, q=0.0),
}
"""The aggregates that take only a column."""


def parse(text: str, policy: Policy, *, table: str | None = None) -> Query:
    """Read one statement of the supported subset; nothing is run, charged or looked up in the data.

    ``table`` is the name that FROM must give. If it is None, FROM may give any name.

    **Guarantee**

    * The outcome depends on the text and the policy, never on the data, and so does every error.
    * Every node of the tree and every word of the text is read into the query, or the text is refused.
    * No query contains the unit column, except as ``count(DISTINCT unit_column)``.

    Raises:
        InvalidInput: if the text cannot be parsed, or a part of it is not in the subset or the policy; the
            message shows where.
        PrivacyRefusal: if the question is about the unit column.
        MissingExtra: if sqlglot is not installed.

    >>> from tacit.ledger import Column, Policy, PureBudget
    >>> age, ward = Column(kind="number", lower=0, upper=120), Column(kind="category", values=("A",))
    >>> columns = {"age": age, "ward": ward}
    >>> policy = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=columns)
    >>> query = parse("SELECT ward, avg(age) AS years FROM visits WHERE NOT age < 18 GROUP BY ward", policy)
    >>> query.aggregates, query.where, query.by, query.output_names
    ((Mean(column='age'),), Compare(column='age', op='>=', value=18), ('ward',), ('years',))
    """
    if not isinstance(text, str):
        raise InvalidInput(f"the statement must be a text; got {text!r}.")
    source = SourceText(text)
    reader = Reader(source, checked_words(source, policy.needed_columns), policy)
    try:
        tree = _tree(source)
        query = _select(reader, tree, table)
        reader.check_all_read(tree)
    except RecursionError:
        raise InvalidInput("the statement is nested too deeply. Ask a simpler question.") from None
    return query


def _tree(source: SourceText) -> Node:
    """Return the parsed statement; an error of the parser becomes a refusal that shows the position."""
    import sqlglot
    from sqlglot.errors import ErrorLevel, ParseError, SqlglotError

    try:
        trees = sqlglot.parse(source.text, read="duckdb", error_level=ErrorLevel.IMMEDIATE)
    except ParseError as problem:
        details = problem.errors[0] if problem.errors else {}
        line, column = int(details.get("line") or 1), int(details.get("col") or 1)
        end = sum(map(len, source.text.splitlines(keepends=True)[: line - 1])) + column
        start = max(0, end - len(str(details.get("highlight") or " ")))
        description = str(details.get("description") or "no description").partition(" for <class")[0]
        reason = f"this SQL cannot be parsed ({description.rstrip('.')})"
        raise source.refusal(start, max(end, start + 1), reason, "correct it here or just before") from None
    except SqlglotError as problem:
        raise InvalidInput(f"this SQL cannot be parsed: {problem}") from None
    (tree,) = [tree for tree in trees if tree is not None]  # only one: a semicolon inside is refused before
    return tree


def _select(reader: Reader, tree: Node, table: str | None) -> Query:
    if tree.args.get("joins"):
        raise reader.refusal(tree.args["joins"][0], "this is a second table", ONE_TABLE)
    reader.only(tree, "expressions", "from_", "where", "group")
    if tree.args.get("from_") is None:
        raise reader.refusal(tree, "FROM is missing", f"name the table: FROM {table or 'visits'}")
    name = _table(reader, tree.args["from_"], table)
    by = () if tree.args.get("group") is None else _group(reader, tree.args["group"])
    where = None
    if tree.args.get("where") is not None:
        where = read_condition(reader, reader.child(tree.args["where"], "this"))
    aggregates, names = _aggregates(reader, tree, by)
    return Query(aggregates=aggregates, where=where, by=by, table=name, names=names)


def _table(reader: Reader, clause: Node, table: str | None) -> str:
    source = reader.child(clause, "this")
    bare = isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier)
    if not bare or reader.source.text[reader.span(source)[0]] == "'":
        remedy = "no functions, no files and no subqueries"
        raise reader.refusal(source, "FROM takes only the name of the table", remedy)
    if source.args.get("alias") is not None:
        remedy = "leave it out: there is only one table"
        raise reader.refusal(source.args["alias"], "the table takes no other name", remedy)
    identifier = reader.child(source, "this")
    name = reader.identifier(identifier)
    if table is not None and name.lower() != table.lower():
        raise reader.refusal(identifier, f"there is no table {name!r}", f"the table is called {table!r}")
    return table or name


def _group(reader: Reader, clause: Node) -> tuple[str, ...]:
    reader.only(clause, "expressions")
    return _distinct_names(reader, [(node, reader.column(node)) for node in clause.expressions])


def _aggregates(
    reader: Reader, tree: Node, by: tuple[str, ...]
) -> tuple[tuple[Aggregate, ...], tuple[str, ...]]:
    """Return the aggregates and their names; the keys of GROUP BY may stand among them, in any order."""
    aggregates: list[Aggregate] = []
    aliases: list[tuple[Node, str | None]] = []
    for node in tree.expressions:
        if isinstance(node, exp.Column):
            _check_key(reader, node, by)
            continue
        inner, alias = node, None
        if isinstance(node, exp.Alias):
            reader.only(node, "this", "alias")
            inner, alias = node.this, reader.identifier(node.args["alias"])
        if isinstance(inner, exp.Column):
            raise reader.refusal(inner, "a key takes no other name", "leave the alias out")
        aggregate = read_aggregate(reader, inner)
        if aggregate in aggregates:
            remedy = "ask for it once: the two would share its epsilon"
            raise reader.refusal(inner, "this is asked for twice", remedy)
        aggregates.append(aggregate)
        aliases.append((node, alias))
    if not aggregates:
        raise reader.refusal(tree, "there is no aggregate", f"rows are never shown; {SUPPORTED}")
    defaults = Query(tuple(aggregates)).output_names
    names = [(node, alias or usual) for (node, alias), usual in zip(aliases, defaults, strict=True)]
    _distinct_names(reader, [*((tree, key) for key in by), *names])
    return tuple(aggregates), tuple(name for _, name in names)


def _check_key(reader: Reader, node: Node, by: tuple[str, ...]) -> None:
    name = reader.column(node)
    if name not in by:
        remedy = f"put it after GROUP BY, or ask for an aggregate of it; {SUPPORTED}"
        raise reader.refusal(node, f"the bare column {name!r} would show rows", remedy)


def _distinct_names(reader: Reader, pairs: Iterable[tuple[Node, str]]) -> tuple[str, ...]:
    """Return the names; refuse a name that occurs twice, even if upper and lower case differ."""
    names: dict[str, str] = {}
    for node, name in pairs:
        if name.lower() in names:
            raise reader.refusal(node, f"the name {name!r} occurs twice", "name every column once")
        names[name.lower()] = name
    return tuple(names.values())


def read_aggregate(reader: Reader, node: Node) -> Aggregate:
    """Return the aggregate of a node; refuse any other node with the list of supported aggregates."""
    if (aggregate := _OF_ONE_COLUMN.get(type(node))) is not None:
        return aggregate(_column(reader, node))
    match node:
        case exp.Count():
            return _count(reader, node)
        case exp.Quantile():
            return _quantile(reader, node, "quantile")
        case exp.PercentileCont() | exp.PercentileDisc():
            return _quantile(reader, node, "expression")
        case exp.WithinGroup():
            return _within_group(reader, node)
        case exp.Anonymous():
            return _by_name(reader, node)
    hint = _INSTEAD.get(type(node).__name__, "")
    raise reader.refusal(node, f"{node_name(node)} is no supported aggregate", hint + SUPPORTED)


def _column(reader: Reader, node: Node, *more: str) -> str:
    reader.only(node, "this", *more)
    return reader.numbers(node.this)


def _count(reader: Reader, node: Node) -> Aggregate:
    reader.only(node, "this", "big_int")  # big_int: set by the parser, not part of the text
    match node.this:
        case None:
            remedy = "write count(*) for rows, or count(column) for values that are not NULL"
            raise reader.refusal(node, "count needs an argument", remedy)
        case exp.Star():
            reader.only(node.this)
            return Count()
        case exp.Distinct():
            return _count_units(reader, node.this)
        case exp.Literal() as literal if not literal.is_string:  # count(1) counts rows, as count(*) does
            reader.number(literal)
            return Count()
        case exp.Literal() | exp.Boolean() | exp.Null() | exp.Neg():
            raise reader.refusal(node, "count takes no such constant", "write count(*) to count rows")
    return Count(reader.column(node.this))


def _count_units(reader: Reader, node: Node) -> Aggregate:
    reader.only(node, "expressions")
    unit = reader.policy.unit_column
    if len(node.expressions) != 1 or not reader.is_unit(node.expressions[0]):
        remedy = "count the groups of GROUP BY with noise instead"
        if unit is not None:
            each = f"count(DISTINCT {unit}) counts each {reader.policy.unit} once"
            remedy = f"{each}; for other columns, {remedy}"
        raise reader.refusal(node, "count(DISTINCT ...) takes only the unit column", remedy)
    return CountUnits()


def _quantile(reader: Reader, node: Node, share: str) -> Aggregate:
    """Read ``quantile(age, 0.9)``; ``share`` is the parser's name of the second argument."""
    name = _column(reader, node, share)
    if node.args.get(share) is None:
        raise reader.refusal(node, "the share is missing", "write for example quantile(age, 0.9)")
    return Quantile(name, _share(reader, node.args[share]))


def _within_group(reader: Reader, node: Node) -> Aggregate:
    """Read ``percentile_cont(0.9) WITHIN GROUP (ORDER BY age)``, the form of PostgreSQL."""
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
    """Read functions for which the parser has no class."""
    name = str(node.this).lower()
    reader.only(node, "this", "expressions")
    if name == "mean" and len(node.expressions) == 1:
        return Mean(reader.numbers(node.expressions[0]))
    if name == "histogram":
        return _histogram(reader, node)
    raise reader.refusal(node, f"there is no aggregate {name!r}", closest(name, _NAMES) + SUPPORTED)


def _histogram(reader: Reader, node: Node) -> Aggregate:
    if len(node.expressions) != 2 or not isinstance(node.expressions[1], exp.Array):
        raise reader.refusal(node, "a histogram needs its edges", "write histogram(age, [0, 20, 40, 60])")
    column, array = node.expressions
    reader.only(array, "expressions")
    edges = tuple(reader.number(edge) for edge in array.expressions)
    if len(edges) < 2 or any(low >= high for low, high in pairwise(edges)):
        raise reader.refusal(
            node, "the edges must be two or more increasing numbers", "write [0, 20, 40, 60]"
        )
    return Histogram(reader.numbers(column), edges)


def _share(reader: Reader, node: Node) -> float:
    share = float(reader.number(node))
    if not 0.0 <= share <= 1.0:
        problem = f"the share of a quantile must be from 0 to 1; got {share:g}"
        raise reader.refusal(node, problem, "0.5 is the median, 0.9 leaves a tenth above")
    return share
