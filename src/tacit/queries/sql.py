"""SQL for a :class:`~tacit.queries.query.Query`: a closed subset, which is never executed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import sqlglot
from sqlglot.dialects import DuckDB
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError, TokenError

from tacit.columns.column import FALSE, TRUE, Column, as_moment, nearest
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError
from tacit.ledger.policy import Policy
from tacit.queries.query import (
    Aggregate,
    And,
    Cdf,
    Compare,
    Count,
    CountUnits,
    CumulativeHazard,
    Histogram,
    In,
    IsNull,
    Mean,
    Not,
    Or,
    Predicate,
    Quantile,
    Quantiles,
    Query,
    RestrictedMean,
    StandardDeviation,
    Sum,
    Survival,
    Value,
    Variance,
    check_aggregate,
    check_group,
    check_leaf,
    declaration,
)
from tacit.queries.statements import exp

# sqlglot parses the text, and the tree is read into a query, from which the engine's statement is built.
# Three checks make sure that nothing is ignored: each word must be of an allowed kind; each node must be
# read, by a function that refuses all of its arguments that it does not use; and the words of the tree,
# printed again, must be those of the text, so that the parser has dropped none.

Node = Any  # a node of sqlglot's tree; versions of sqlglot have its base class in different modules

_LONGEST = 20_000  # characters; far above any human question
_MOST_WORDS = 4_000
_DEEPEST = 40  # nested brackets, or NOTs; the parser is recursive
_SHOWN = 76  # characters of the line shown in an error
_QUIETLY: dict[str, Any] = {"comments": False, "unsupported_level": ErrorLevel.IGNORE}  # options of printing

_ONE_TABLE = (
    "a query reads one table: a join would repeat a person's rows, and the noise would no longer hide "
    "that person. Join the tables first, and open the result with a policy whose parent is the first table"
)
_NO_ROWS = "rows are never shown, only aggregates with noise"
_NO_ARITHMETIC = (
    "arithmetic on columns is not supported, because the result has no declared bounds: add a column with "
    "the result and declare it in the policy. Arithmetic on the answer is free"
)
_SORTED = "rows are sorted by their keys, which reveals nothing: sort or shorten the answer, which is free"

# For each reason to refuse, with its fix: sqlglot's kinds of words, and names of nodes and their arguments.
_REASONS = {
    _ONE_TABLE: "JOIN STRAIGHT_JOIN CROSS NATURAL LATERAL ASOF USING ON INNER OUTER LEFT RIGHT FULL SEMI "
    "ANTI POSITIONAL UNION EXCEPT INTERSECT WITH EXISTS RECURSIVE TABLE_SAMPLE PIVOT UNPIVOT UNNEST VALUES "
    "ONLY FINAL FROM JOINS",
    "a query only reads: it cannot write, set or load anything": "INTO COPY INSERT UPDATE DELETE CREATE "
    "DROP ALTER PRAGMA ATTACH DETACH SET COMMAND LOAD INSTALL EXECUTE TRUNCATE MERGE USE CALL RESET BEGIN "
    "COMMIT ROLLBACK",
    _NO_ROWS: "DESCRIBE SUMMARIZE SHOW EXPLAIN ANALYZE",
    _NO_ARITHMETIC: "PLUS SLASH DIV MOD CARET DPIPE AMP PIPE DSTAR ADD SUB MUL",
    "casts are not supported: the policy declares the kind of each column": "DCOLON CAST TRY_CAST TRYCAST",
    "write a date as a string: '2020-01-31'": "DATE TIMESTAMP DATETIME TIME",
    "patterns are not supported: list the values with IN": "LIKE ILIKE GLOB RLIKE SIMILAR_TO TILDE IRLIKE",
    "write the value itself into the query": "PARAMETER PLACEHOLDER COLON SESSION_PARAMETER",
    "write a string in plain single quotes, and double a quote inside it": "BYTE_STRING HEREDOC_STRING "
    "RAW_STRING "
    "HEX_STRING BIT_STRING NATIONAL_STRING UNICODE_STRING",
    f"window functions show single rows, and {_NO_ROWS}": "OVER WINDOW QUALIFY PARTITION_BY",
    _SORTED: "LIMIT OFFSET FETCH SORT_BY ORDER",
    "conditions contain only column names and literals: prepare the column beforehand": "CASE WHEN "
    "THEN ELSE END ANY SOME ARROW DARROW L_BRACE STRUCT MAP INTERVAL",
    "filter the answer instead, which is free: every group is released anyway": "HAVING",
    "write the condition after WHERE; for two conditions, ask two queries": "FILTER",
    "remove this comma, or write something next to it": "COMMA",
    "only units can be counted once each: count(DISTINCT unit_column)": "DISTINCT",
    "list the columns of GROUP BY by name, and remove ALL elsewhere": "ALL",
    "there is one table and no schema: write the bare name. Begin a number with a digit": "DOT",
    f"a minus is only allowed before a number; {_NO_ARITHMETIC}": "DASH NEG",
    "brackets are only allowed around lists of numbers: histogram(age, [0, 20, 40])": "L_BRACKET R_BRACKET "
    "BRACKET ARRAY",
    f"subqueries are not supported: {_ONE_TABLE}": "SELECT SUBQUERY",
    "ask one query at a time: each is charged separately": "SEMICOLON WHERE GROUP_BY",
}
_REASON_OF = {kind: reason for reason, kinds in _REASONS.items() for kind in kinds.split()}
_ONCE = frozenset(["SELECT", "FROM", "WHERE", "GROUP_BY"])
_PLAIN = (
    "VAR IDENTIFIER NUMBER STRING STAR COMMA L_PAREN R_PAREN L_BRACKET R_BRACKET DASH ALIAS DISTINCT "
    "ORDER_BY AND OR NOT IN IS NULL TRUE FALSE BETWEEN EQ NEQ LT LTE GT GTE"
)
_ALLOWED = _ONCE.union(_PLAIN.split())

_AGGREGATES = (
    "supported are count(*), count(column), sum, avg, var_samp, stddev, median, quantile(column, 0.9), max, "
    "min, histogram(column, [0, 10, 20]), quantiles(column, [0.25, 0.5]), cdf(column), boxplot(column), "
    "survival(time, event), cumulative_hazard(time, event) and "
    "restricted_mean(time, event)"
)
_NAMES = (
    "count sum avg mean variance var_samp var_pop stddev stddev_samp stddev_pop median quantile "
    "quantile_cont percentile_cont max min histogram quantiles cdf boxplot survival "
    "cumulative_hazard restricted_mean"
)
_CONDITIONS = (
    "a condition compares a column to a literal (=, <>, <, <=, >, >=), or tests it with IN (...), BETWEEN "
    "... AND ..., IS NULL or IS TRUE; conditions are joined by AND, OR and NOT"
)


def parse(text: str, policy: Policy, *, table: str | None = None) -> Query:
    """Parse one SQL statement of the supported subset, without running or charging it.

    FROM must name ``table``; if that is None, FROM may give any name.

    **Guarantee**

    * The outcome depends on the text and the policy, never on the data, and so does every error.
    * Every node of the tree and every word of the text is read into the query, or the text is refused.
    * No query contains the unit column, except as ``count(DISTINCT unit_column)``.

    Raises:
        InvalidInput: if the text cannot be parsed, or part of it is not in the subset or the policy; the
            message shows where.
        PrivacyRefusal: if the query is about the unit column.
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
        raise InvalidInput(f"the statement must be a string; got {text!r}.")

    reader = Reader(text, policy)
    reader.check_words()
    try:
        tree = reader.tree()
        query = read_select(reader, tree, table)
        reader.check_all_read(tree)
        reader.check_all_printed(tree)
    except RecursionError:
        raise InvalidInput("the statement is nested too deeply. Ask a simpler query.") from None
    return query


def _words(text: str) -> list[Any]:
    """Return sqlglot's tokens, without comments and semicolons at the end."""
    words: list[Any] = DuckDB().tokenize(text)
    while words and words[-1].token_type.name == "SEMICOLON":
        words.pop()
    return words


def _spelling(text: str) -> list[tuple[str, str]]:
    """Return the kind of each word, with its text if it is a name or a literal; aliases need no AS."""
    # The name of a function has many spellings, so only its place counts: before a parenthesis.
    words = [(word.token_type.name, word.text.lower()) for word in _words(text)]
    spelling = []
    for (kind, name), (following, _) in zip(words, [*words[1:], ("", "")], strict=True):
        if kind == "VAR" and following == "L_PAREN":
            spelling.append(("FUNCTION", ""))
        elif kind in ("VAR", "IDENTIFIER"):
            spelling.append(("NAME", name))
        else:
            spelling.append((kind, name if kind in ("NUMBER", "STRING") else ""))
    return spelling


class Reader:
    """A parser of one SQL text under a policy; its errors show the place in the text."""

    def __init__(self, text: str, policy: Policy) -> None:
        self.text = text
        self.policy = policy
        self._read: dict[int, Node] = {}  # by identity; the values keep the nodes alive
        if len(text) > _LONGEST:
            raise InvalidInput(
                f"the statement has {len(text):,} characters, more than {_LONGEST:,}. Shorten it."
            )
        if "\0" in text:
            place = text.index("\0")
            raise self.refusal_at(place, place + 1, "a NUL character", "leave it out")
        try:
            self.words = _words(text)
        except TokenError:
            problem = "a string, a quoted name or a comment is not closed"
            raise self.refusal_at(0, len(text), problem, "close it") from None

    # --- errors -------------------------------------------------------------------------------------------

    def refusal_at(
        self, start: int, end: int, problem: str, remedy: str, kind: type[TacitError] = InvalidInput
    ) -> TacitError:
        line_start = self.text.rfind("\n", 0, start) + 1
        line = self.text[line_start:].partition("\n")[0]
        column = start - line_start
        cut = max(0, min(column - _SHOWN // 2, len(line) - _SHOWN))
        excerpt = "".join(letter if letter.isprintable() else " " for letter in line[cut : cut + _SHOWN])
        carets = "^" * max(1, min(end - start, len(line) - column, cut + _SHOWN - column))
        return kind(
            f"line {self.text.count(chr(10), 0, start) + 1}, column {column + 1}: {problem}\n"
            f"  {excerpt}\n"
            f"  {' ' * (column - cut)}{carets}\n"
            f"{remedy[:1].upper()}{remedy[1:]}{'' if remedy.endswith(('.', '?')) else '.'}{self._quoting()}"
        )

    def _quoting(self) -> str:
        """Return the advice to quote a name with a space or a sign, if the text contains one unquoted."""
        text = self.text.lower()
        for name in self.policy.needed_columns:
            if not name.isidentifier() and name.lower() in text and f'"{name.lower()}"' not in text:
                return f' Write the column\'s name in double quotes: "{name}".'
        return ""

    def refusal(
        self, node: Node, problem: str, remedy: str, kind: type[TacitError] = InvalidInput
    ) -> TacitError:
        """Return an error that points at a node; at the whole statement if the parser gives no place."""
        marks = [part.meta for part in node.walk() if "start" in part.meta]
        start = min((mark["start"] for mark in marks), default=self.words[0].start)
        end = max((mark["end"] for mark in marks), default=self.words[-1].end)
        return self.refusal_at(start, end + 1, problem, remedy, kind)

    def misplaced(self, node: Node, problem: str, remedy: str) -> TacitError:
        """Return an error for a node in the wrong place, with the reason for its kind."""
        text = " ".join(node.sql("duckdb", **_QUIETLY).split())[:40]
        reason = _REASON_OF.get(type(node).__name__.upper(), remedy)
        return self.refusal(node, f"{text} {problem}", reason)

    @contextmanager
    def at(self, node: Node, problem: str = "the policy does not allow this") -> Iterator[None]:
        """Make errors of the checks that Python queries share point at a node."""
        try:
            yield
        except (InvalidInput, PrivacyRefusal) as error:
            raise self.refusal(node, problem, str(error), type(error)) from None

    # --- the three checks ---------------------------------------------------------------------------------

    def check_words(self) -> None:
        """Refuse a word that is not of an allowed kind, a second clause of a kind, and too many words."""
        first = self.words[0].token_type.name if self.words else ""
        if first != "SELECT":
            remedy = _REASON_OF.get(first, "write, for example, SELECT count(*) FROM visits WHERE age > 65")
            end = self.words[0].end + 1 if self.words else 1
            raise self.refusal_at(0, end, "a statement begins with SELECT", remedy)
        if len(self.words) > _MOST_WORDS:
            raise InvalidInput(
                f"the statement has {len(self.words):,} words, more than {_MOST_WORDS:,}. Shorten it."
            )

        kinds = [word.token_type.name for word in self.words]
        columns = {name.lower(): name for name in self.policy.needed_columns}
        for place, (word, kind) in enumerate(zip(self.words, kinds, strict=True)):
            # GROUP BY DISTINCT is a False in the tree, which looks like an argument that is not there
            before = [each.text.lower() for each in self.words[max(0, place - 2) : place]]
            misplaced = kind == "DISTINCT" and before != ["count", "("]
            twice = kind in _ONCE and kind in kinds[:place]
            if kind not in _ALLOWED or misplaced or twice:
                text = self.text[word.start : word.end + 1]
                problem = f"{' '.join(text.split())[:40]} is not supported here"
                remedy = _REASON_OF.get(kind, "remove it; the docs on queries list what is supported")
                if text.lower() in columns:
                    problem = f"{text} is a keyword of SQL"
                    remedy = f'if you mean the column, write "{columns[text.lower()]}"'
                raise self.refusal_at(word.start, word.end + 1, problem, remedy)

        brackets = accumulate((kind == "L_PAREN") - (kind == "R_PAREN") for kind in kinds)
        if max(brackets) > _DEEPEST or " NOT" * (_DEEPEST + 1) in f" {' '.join(kinds)}":
            raise InvalidInput("parentheses or NOTs are nested too deeply. Ask a simpler query.")

    def check_all_read(self, tree: Node) -> None:
        for node in tree.walk():
            if id(node) not in self._read:
                raise self.misplaced(node, "is not supported here", "leave it out")

    def check_all_printed(self, tree: Node) -> None:
        """Refuse a text if the parser dropped or added a word."""
        # sqlglot turns WITHIN GROUP into DuckDB's own form, so it is printed in PostgreSQL's
        as_read = tree.transform(
            lambda node: (
                exp.var(node.sql("postgres", **_QUIETLY)) if isinstance(node, exp.WithinGroup) else node
            )
        )
        words = _spelling(self.text)
        printed = Counter(_spelling(as_read.sql("duckdb", **_QUIETLY)))
        dropped = Counter(words) - printed
        added = printed - Counter(words)
        for place, word in reversed(list(enumerate(words))):
            if word[0] != "ALIAS" and word in dropped:
                mark = self.words[place]
                text = self.text[mark.start : mark.end + 1]
                remedy = _REASON_OF.get(word[0], "leave it out")
                raise self.refusal_at(mark.start, mark.end + 1, f"{text} is ignored here", remedy)
        if set(added) - {("ALIAS", "")}:
            raise self.refusal(tree, "part of this is ignored", "write it more plainly")

    # --- nodes --------------------------------------------------------------------------------------------

    def tree(self) -> Node:
        try:
            text = self.text[: self.words[-1].end + 1]
            (tree,) = sqlglot.parse(text, read="duckdb", error_level=ErrorLevel.IMMEDIATE)
        except ParseError as problem:
            details = problem.errors[0] if problem.errors else {}
            line, column = int(details.get("line") or 1), int(details.get("col") or 1)
            end = sum(map(len, self.text.splitlines(keepends=True)[: line - 1])) + column
            start = max(0, end - len(str(details.get("highlight") or " ")))
            description = str(details.get("description") or "no description").partition(" for <class")[0]
            reason = f"this SQL cannot be parsed ({description.rstrip('.')})"
            raise self.refusal_at(
                start, max(end, start + 1), reason, "correct it here or just before"
            ) from None
        except SqlglotError as problem:
            raise InvalidInput(f"this SQL cannot be parsed: {problem}") from None
        return tree

    def only(self, node: Node, *names: str) -> None:
        """Mark a node as read; refuse any argument of it that is not in ``names``."""
        self._read[id(node)] = node
        for name, value in node.args.items():
            if name not in names and value not in (None, False, [], ""):
                word = name.strip("_")
                places = [*value] if isinstance(value, list) else [value]
                place = places[0] if isinstance(places[0], exp.Expression) else node
                remedy = _REASON_OF.get(word.upper(), "leave it out")
                raise self.refusal(place, f"{word.replace('_', ' ')} not allowed here", remedy)

    def child(self, node: Node, name: str) -> Node:
        self.only(node, name)
        return node.args[name]

    def bare(self, node: Node) -> Node:
        """Return the node inside parentheses, which change nothing around one side of a comparison."""
        while isinstance(node, exp.Paren):
            node = self.child(node, "this")
        return node

    # --- names and literals -------------------------------------------------------------------------------

    def identifier(self, node: Node) -> str:
        self.only(node, "this", "quoted")
        return str(node.this)

    def column(self, node: Node) -> str:
        """Return the name of a declared column, as the policy writes it; refuse the unit column."""
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise self.misplaced(node, "is not a column", "list the columns by name")
        name = self.spelled(self.identifier(self.child(node, "this")))
        quoted = "; write strings in 'single quotes'" if node.this.args.get("quoted") else ""
        with self.at(node, f"you cannot query this column{quoted}"):
            declaration(name, self.policy)
        return name

    def spelled(self, name: str) -> str:
        """Return a column's name as the policy writes it; ignore case unless that is ambiguous."""
        names = self.policy.needed_columns
        matches = [each for each in names if each.lower() == name.lower()]
        return matches[0] if len(matches) == 1 and name not in names else name

    def number(self, node: Node) -> int | float:
        sign = 1
        if isinstance(node, exp.Neg):
            sign, node = -1, self.child(node, "this")
        if not isinstance(node, exp.Literal) or node.is_string:
            raise self.misplaced(node, "is not a number", "write a number, like 65 or 1.5")

        self.only(node, "this", "is_string")
        digits = str(node.this)
        try:
            number = int(digits) if digits.isdecimal() and len(digits) <= 30 else float(digits)
        except ValueError:
            raise self.refusal(node, "this is not a number", "write a number, like 65 or 1.5") from None
        if not math.isfinite(number):
            raise self.refusal(node, "this number is too large", "write one below 1e308")
        return sign * number

    def value(self, node: Node, name: str) -> Value:
        """Return the value of a literal for the column ``name``; a later check tests whether it fits."""
        column = self.policy.columns[name]
        match node:
            case exp.Null():
                remedy = f"write {name} IS NULL, or {name} IS NOT NULL"
                raise self.refusal(node.parent, "nothing equals NULL", remedy)
            case exp.Boolean():
                self.only(node, "this")
                return bool(node.this)
            case exp.Literal() if node.is_string:
                self.only(node, "this", "is_string")
                return self._text_of(node, name, column)
            case exp.Literal() | exp.Neg():
                return self._number_of(node, name, column)
        remedy = "compare a column to a literal: a number, TRUE, or a string in 'single quotes'"
        raise self.misplaced(node, "is not a literal", remedy)

    def _text_of(self, node: Node, name: str, column: Column) -> str:
        text = str(node.this)
        if column.is_moment:
            with self.at(node):
                return str(as_moment(f"column {name!r}", column.kind, text))
        if column.kind == "category" and column.values is not None and text not in column.values:
            near = nearest(text, [str(key) for key in column.values], "its keys are", cutoff=0.6)
            remedy = f"{near} For rows with any other value, write {name} NOT IN (...) with every key"
            raise self.refusal(node, f"{text!r} is not a declared key of {name!r}", remedy)
        return text

    def _number_of(self, node: Node, name: str, column: Column) -> Value:
        number = self.number(node)
        if column.kind == "boolean":  # 1 and 0 may be words of a boolean
            words = dict.fromkeys(column.false or FALSE, False) | dict.fromkeys(column.true or TRUE, True)
            return number if isinstance(node, exp.Neg) else words.get(str(node.this), number)
        if column.kind == "integer" and (number != int(number) or abs(number) > 2**53):
            problem = f"{name!r} contains integers; got {number:g}"
            raise self.refusal(node, problem, "write an integer of at most 2**53 in size")
        return float(number) if column.kind == "number" else number


# --- the clauses -----------------------------------------------------------------------------------------


def read_select(reader: Reader, tree: Node, table: str | None) -> Query:
    reader.only(tree, "expressions", "from_", "where", "group")
    if tree.args.get("from_") is None:
        raise reader.refusal(tree, "FROM is missing", f"name the table: FROM {table or 'visits'}")
    name = _read_table(reader, tree.args["from_"], table)

    by: list[tuple[Node, str]] = []
    if (group := tree.args.get("group")) is not None:
        reader.only(group, "expressions")
        for node in group.expressions:
            by.append((node, reader.column(node)))
            with reader.at(node):
                check_group(by[-1][1], reader.policy)

    where = None
    if tree.args.get("where") is not None:
        where = read_condition(reader, reader.child(tree.args["where"], "this"))

    keys = [key for _, key in by]
    aggregates, names = _read_aggregates(reader, tree, keys)
    seen: set[str] = set()
    for node, written in (*by, *names):
        if written.lower() in seen:
            raise reader.refusal(node, f"the name {written!r} occurs twice", "give each column its own name")
        seen.add(written.lower())
    return Query(
        aggregates=tuple(aggregates),
        where=where,
        by=tuple(keys),
        table=name,
        names=tuple(name for _, name in names),
    )


def _read_table(reader: Reader, clause: Node, table: str | None) -> str:
    source = reader.child(clause, "this")
    if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
        remedy = "write the table's name; functions, files and subqueries are not supported"
        raise reader.refusal(source, "FROM takes only the name of the table", remedy)
    identifier = reader.child(source, "this")
    name = reader.identifier(identifier)
    if table is not None and name.lower() != table.lower():
        remedy = f"the table is called {table!r}"
        raise reader.refusal(identifier, f"there is no table {name!r}", remedy)
    return table or name


def _read_aggregates(
    reader: Reader, tree: Node, by: list[str]
) -> tuple[list[Aggregate], list[tuple[Node, str]]]:
    """Return the aggregates and their names; skip the keys of GROUP BY, in any order."""
    aggregates: list[Aggregate] = []
    aliases: list[tuple[Node, str]] = []
    for node in tree.expressions:
        inner, alias = node, ""
        if isinstance(node, exp.Alias):
            reader.only(node, "this", "alias")
            inner, alias = node.this, reader.identifier(node.args["alias"])
        if isinstance(inner, exp.Column):
            name = reader.column(inner)
            if name not in by:
                remedy = f"add it to GROUP BY, or use an aggregate of it; {_AGGREGATES}"
                raise reader.refusal(inner, f"the bare column {name!r} would show rows", remedy)
            if alias:
                raise reader.refusal(inner, "a key cannot have an alias", "remove the alias")
            continue

        aggregate = read_aggregate(reader, inner)
        with reader.at(inner):
            check_aggregate(aggregate, reader.policy)
        if aggregate in aggregates:
            remedy = "ask for it once: the two would share its epsilon"
            raise reader.refusal(inner, "this aggregate occurs twice", remedy)
        aggregates.append(aggregate)
        aliases.append((node, alias))
    if not aggregates:
        raise reader.refusal(tree, "there is no aggregate", f"rows are never shown; {_AGGREGATES}")

    usual = Query(tuple(aggregates)).output_names
    names = [(node, alias or name) for (node, alias), name in zip(aliases, usual, strict=True)]
    return aggregates, names


# --- aggregates ------------------------------------------------------------------------------------------

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


_OF_TIMES = {
    "survival": Survival,
    "cumulative_hazard": CumulativeHazard,
    "restricted_mean": RestrictedMean,
}


def read_aggregate(reader: Reader, node: Node) -> Aggregate:
    """Return the aggregate of a node; refuse any other node with the list of supported aggregates."""
    if (aggregate := _OF_ONE_COLUMN.get(type(node))) is not None:
        return aggregate(_numbers(reader, reader.child(node, "this")))
    match node:
        case exp.Count():
            return _read_count(reader, node)
        case exp.Quantile() | exp.PercentileCont() | exp.PercentileDisc():
            share = "quantile" if isinstance(node, exp.Quantile) else "expression"
            reader.only(node, "this", share)
            return _quantile(reader, node.this, node.args.get(share))
        case exp.WithinGroup():  # PostgreSQL's percentile_cont(0.9) WITHIN GROUP (ORDER BY age)
            reader.only(node, "this", "expression")
            order = node.expression
            is_quantile = isinstance(node.this, exp.PercentileCont | exp.PercentileDisc)
            if not is_quantile or not isinstance(order, exp.Order) or len(order.expressions) != 1:
                remedy = "write percentile_cont(0.9) WITHIN GROUP (ORDER BY age), or quantile(age, 0.9)"
                raise reader.refusal(node, "WITHIN GROUP belongs to a quantile of one column", remedy)
            (ordered,) = reader.child(order, "expressions")
            return _quantile(reader, reader.child(ordered, "this"), reader.child(node.this, "this"))
        case exp.Anonymous():
            return _named(reader, node)
    raise reader.misplaced(node, "is not a supported aggregate", _AGGREGATES)


def _named(reader: Reader, node: Node) -> Aggregate:
    """Return the aggregate of a function that SQL does not have."""
    name = str(node.this).lower()
    reader.only(node, "this", "expressions")
    match name, node.expressions:
        case "mean", [column]:
            return Mean(_numbers(reader, column))
        case "histogram", [column, exp.Array() as ends]:
            numbers = _list(reader, ends)
            with reader.at(ends, "these are not bin edges"):
                return Histogram(_numbers(reader, column), numbers)
        case "quantiles", [column, exp.Array() as shares]:
            qs = _list(reader, shares)
            with reader.at(shares, "these are not shares"):
                return Quantiles(_numbers(reader, column), qs)
        case "boxplot", [column]:
            return Quantiles(_numbers(reader, column))
        case "cdf", [column]:
            return Cdf(_numbers(reader, column))
        case "cdf", [column, exp.Array() as places]:
            points = _list(reader, places)
            with reader.at(places, "these are not points"):
                return Cdf(_numbers(reader, column), points)
        case "histogram", _:
            remedy = "write histogram(age, [0, 20, 40, 60])"
            raise reader.refusal(node, "a histogram needs its edges", remedy)
        case name, [time, exp.Column() as event, *rest] if name in _OF_TIMES and len(rest) < 2:
            edges = _list(reader, rest[0]) if rest and isinstance(rest[0], exp.Array) else None
            if (edges is None) == (not rest):
                with reader.at(node, "these are not times and events"):
                    return _OF_TIMES[name](_numbers(reader, time), reader.column(event), edges)
    if name in _OF_TIMES:
        remedy = f"write {name}(time, event) or {name}(time, event, [0, 6, 12]); rows have no weights"
        raise reader.refusal(node, "it takes a time, an event, and bin edges", remedy)
    if name in ("quantiles", "cdf", "boxplot"):
        remedy = "write quantiles(age, [0.25, 0.5, 0.75]), cdf(age), cdf(age, [18, 65]) or boxplot(age)"
        raise reader.refusal(node, "it takes a column and a list of numbers", remedy)
    near = nearest(name, _NAMES.split(), "there is no such function.", cutoff=0.6)
    raise reader.refusal(node, f"there is no aggregate {node.this!r}", f"{near} {_AGGREGATES}")


def _list(reader: Reader, node: Node) -> tuple[int | float, ...]:
    return tuple(reader.number(item) for item in reader.child(node, "expressions"))


def _numbers(reader: Reader, node: Node) -> str:
    """Return the name of a column; refuse a numeric column without bounds."""
    name = reader.column(node)
    column = reader.policy.columns[name]
    if column.is_number and (column.lower is None or column.upper is None):
        remedy = "declare public bounds in the policy; they are never read from the data"
        raise reader.refusal(node, f"the policy declares no bounds for {name!r}", remedy)
    return name


def _quantile(reader: Reader, column: Node, share: Node | None) -> Aggregate:
    name = _numbers(reader, column)
    if share is None:
        raise reader.refusal(column, "the share is missing", "write, for example, quantile(age, 0.9)")
    with reader.at(share, "0.5 is the median, and 0.9 leaves a tenth above"):
        return Quantile(name, float(reader.number(share)))


def _read_count(reader: Reader, node: Node) -> Aggregate:
    reader.only(node, "this", "big_int")  # big_int: set by the parser, not part of the text
    policy, inner = reader.policy, node.this
    match inner:
        case exp.Star():
            reader.only(inner)
            return Count()
        case exp.Literal() if not inner.is_string:  # count(1) counts rows, as count(*) does
            reader.number(inner)
            return Count()
        case None | exp.Literal() | exp.Boolean() | exp.Null() | exp.Neg():
            remedy = "write count(*) to count rows, or count(column) for values that are not NULL"
            raise reader.refusal(node, "count needs another argument", remedy)
        case exp.Distinct():
            unit = policy.unit_column
            columns = reader.child(inner, "expressions")
            is_one = len(columns) == 1 and isinstance(columns[0], exp.Column)
            if unit is None or not is_one or reader.spelled(columns[0].name) != unit:
                counts = (
                    f"count(DISTINCT {unit}) counts each {policy.unit} once"
                    if unit
                    else "the policy declares none"
                )
                remedy = f"{counts}. For other columns, count the groups of GROUP BY with noise"
                raise reader.refusal(node, "count(DISTINCT ...) takes only the unit column", remedy)
            reader.identifier(reader.child(columns[0], "this"))
            return CountUnits()
    return Count(reader.column(inner))


# --- conditions ------------------------------------------------------------------------------------------
#
# In SQL a row counts if its condition is TRUE, but not if it is unknown because of a NULL. The predicates of
# a query have only two values. Both agree if no NOT stands above a comparison. So the reader moves NOT to the
# leaves by De Morgan's laws, which hold in SQL's three-valued logic too: NOT (age < 5 OR ward = 'A') is read
# as age >= 5 AND ward <> 'A', and a NULL satisfies neither form.

_OPERATORS = {"EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}


def read_condition(reader: Reader, node: Node, *, positive: bool = True) -> Predicate:
    """Return the predicate for rows where the condition is TRUE or, if not ``positive``, FALSE."""
    leaf: Compare | In | IsNull
    match node:
        case exp.Paren():
            return read_condition(reader, reader.child(node, "this"), positive=positive)
        case exp.Not():
            return read_condition(reader, reader.child(node, "this"), positive=not positive)
        case exp.And() | exp.Or():
            operands = [read_condition(reader, part, positive=positive) for part in _chain(reader, node)]
            return And(tuple(operands)) if isinstance(node, exp.And) == positive else Or(tuple(operands))
        case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
            return _comparison(reader, node, positive)
        case exp.Between():
            return _between(reader, node, positive)
        case exp.In():
            return _in(reader, node, positive)
        case exp.Is():  # never unknown, so a Not negates it
            reader.only(node, "this", "expression")
            name = reader.column(node.this)
            match node.expression:
                case exp.Null():
                    reader.only(node.expression)
                    leaf = IsNull(name)
                case exp.Boolean():
                    leaf = Compare(name, "=", reader.value(node.expression, name))
                case other:
                    raise reader.refusal(other, "this is not supported", "write IS NULL or IS TRUE")
            _leaf(reader, node, leaf)
            return leaf if positive else Not(leaf)
        case exp.Column():
            leaf = Compare(reader.column(node), "=", positive)
            _leaf(reader, node, leaf, "this is not a condition")
            return leaf
        case exp.Boolean():
            raise reader.refusal(node, "this is true for all rows or for none", "leave it out")
    raise reader.misplaced(node, "is not a supported condition", _CONDITIONS)


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
    if not isinstance(column, exp.Column):
        column, literal, op = literal, column, _MIRRORED[op]
    if not isinstance(column, exp.Column):
        place = reader.bare(node.this)
        raise reader.misplaced(place, "is not a column", _CONDITIONS)

    name = reader.column(column)
    value = reader.value(literal, name)
    with reader.at(literal):
        leaf = Compare(name, op if positive else _NEGATED[op], value)
    _leaf(reader, literal, leaf)
    return leaf


def _between(reader: Reader, node: Node, positive: bool) -> Predicate:
    reader.only(node, "this", "low", "high")
    name = reader.column(node.this)
    low, high = (reader.value(node.args[end], name) for end in ("low", "high"))
    with reader.at(node):
        inside = (Compare(name, ">=", low), Compare(name, "<=", high))
    for leaf in inside:
        _leaf(reader, node, leaf)
    if low > high:  # type: ignore[operator]  # two numbers, or two dates in ISO form
        raise reader.refusal(node, f"nothing lies between {low} and {high}", "write the lower end first")
    return And(inside) if positive else Or((Compare(name, "<", low), Compare(name, ">", high)))


def _in(reader: Reader, node: Node, positive: bool) -> Predicate:
    reader.only(node, "this", "expressions")
    name = reader.column(node.this)
    if not node.expressions:
        raise reader.refusal(node, "the list after IN is empty", "list the values: IN ('A', 'B')")
    values = tuple(reader.value(value, name) for value in node.expressions)
    with reader.at(node):
        member = In(name, values)
    _leaf(reader, node, member)
    return member if positive else And((Not(member), Not(IsNull(name))))


def _leaf(
    reader: Reader,
    node: Node,
    leaf: Compare | In | IsNull,
    problem: str = "the policy does not allow this",
) -> None:
    with reader.at(node, problem):
        check_leaf(leaf, reader.policy)


# --- columns in words ------------------------------------------------------------------------------------


def describe_columns(policy: Policy) -> list[tuple[str, str]]:
    described = []
    for name, column in policy.columns.items():
        facts = [column.kind]
        if column.lower is not None and column.upper is not None:
            ends = [str(end) if column.is_moment else f"{end:.12g}" for end in (column.lower, column.upper)]
            facts.append(f"from {ends[0]} to {ends[1]}")
        elif column.is_number or column.is_moment:
            facts.append("without bounds")
        if column.values is not None:
            keys = [f"'{key}'" if isinstance(key, str) else str(key) for key in column.values]
            more = f" and {len(keys) - 12} more" if len(keys) > 12 else ""
            facts.append(", ".join(keys[:12]) + more)
        elif column.kind == "category":
            facts.append("without declared keys")
        described.append((name, " ".join(facts)))
    return described
