"""The reader of a statement's parts: it marks nodes as read, and resolves columns and literals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tacit.columns import Column
from tacit.columns.column import FALSE, TRUE, as_moment
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError
from tacit.ledger.policy import Policy
from tacit.queries.query import Value
from tacit.queries.sql.words import NO_ARITHMETIC, SourceText, Word, closest
from tacit.queries.statements import exp

Node = Any  # a node of sqlglot's tree; versions of sqlglot have its base class in different modules

# Words of the grammar, and the classes of nodes. Each such word makes exactly one such node.
_NODES = {
    "AND": "And Between", "OR": "Or", "NOT": "Not", "IN": "In", "IS": "Is", "BETWEEN": "Between",
    "NULL": "Null", "TRUE FALSE": "Boolean", "STAR": "Star", "DASH": "Neg", "EQ": "EQ", "NEQ": "NEQ",
    "LT": "LT", "LTE": "LTE", "GT": "GT", "GTE": "GTE", "DISTINCT": "Distinct",
}  # fmt: skip


_OPERATORS = {
    "Mul": "*", "EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=", "Neg": "-",
    "Paren": "a parenthesis",
}  # fmt: skip
"""For the class of a node, its sign in SQL; other classes have the name of the keyword."""


def describe_columns(policy: Policy) -> list[tuple[str, str]]:
    """Return the name and the public facts, in words, of each column that the policy declares.

    >>> from tacit.ledger import Column, Policy, PureBudget
    >>> age, ward = Column(kind="number", lower=0, upper=120), Column(kind="category", values=("A",))
    >>> columns = {"age": age, "ward": ward}
    >>> policy = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=columns)
    >>> describe_columns(policy)
    [('age', 'number from 0 to 120'), ('ward', "category 'A'")]
    """
    return [(name, _facts(column)) for name, column in policy.columns.items()]


def _facts(column: Column) -> str:
    facts = [column.kind]
    if column.lower is not None and column.upper is not None:
        ends = (column.lower, column.upper)
        facts.append("from {} to {}".format(*(str(e) if column.is_moment else f"{e:.12g}" for e in ends)))
    elif column.is_number or column.is_moment:
        facts.append("without bounds")
    if column.values is not None:
        facts.append(_key_list(column.values))
    elif column.kind == "category":
        facts.append("of undeclared keys")
    return " ".join(facts)


def _key_list(keys: Iterable[Value]) -> str:
    """Return some keys as SQL literals."""
    literals = [f"'{key}'" if isinstance(key, str) else str(key) for key in keys]
    return ", ".join(literals[:12]) + (f" and {len(literals) - 12} more" if len(literals) > 12 else "")


def node_name(node: Node) -> str:
    """Return the name of a node for a message."""
    match node:
        case exp.Anonymous():
            return f"{str(node.this).lower()}()"
        case exp.And() | exp.Or():
            return type(node).__name__.upper()
        case exp.Func():
            return f"{node.sql_name().lower()}()"
        case exp.Column() | exp.Literal() | exp.Identifier():
            return repr(node.name)
        case exp.Boolean() | exp.Null() | exp.Star():
            return str(node.sql())
        case _:
            name = type(node).__name__
            return _OPERATORS.get(name, name.upper())


class Reader:
    """The state of reading one statement: the nodes read so far, and the meaning of names and literals."""

    def __init__(self, source: SourceText, words: list[Word], policy: Policy) -> None:
        self.source = source
        self.words = words
        self.policy = policy
        self._read: dict[int, Node] = {}  # by identity; the values keep the nodes alive

    # --- nodes --------------------------------------------------------------------------------------------

    def only(self, node: Node, *names: str) -> None:
        """Mark a node as read; refuse any argument of it that is not in ``names``."""
        self._read[id(node)] = node
        for name, value in node.args.items():
            if name not in names and value not in (None, False, [], ""):
                words = name.strip("_").replace("_", " ")
                place = value if isinstance(value, exp.Expression) else node
                raise self.refusal(place, f"{node_name(node)} takes no {words} here", "leave it out")

    def child(self, node: Node, name: str) -> Node:
        """Return the argument ``name`` of a node, and refuse any other."""
        self.only(node, name)
        return node.args[name]

    def refusal(
        self, node: Node, problem: str, remedy: str, kind: type[TacitError] = InvalidInput
    ) -> TacitError:
        """Return an error that points at the node."""
        return self.source.refusal(*self.span(node), problem, remedy, kind)

    def span(self, node: Node) -> tuple[int, int]:
        """Return the start and end of a node in the text; of the whole statement if the parser gives none."""
        marks = [part.meta for part in node.walk() if "start" in part.meta]
        if not marks:
            return self.words[0].start, self.words[-1].end
        return min(mark["start"] for mark in marks), max(mark["end"] for mark in marks) + 1

    def check_all_read(self, root: Node) -> None:
        """Refuse a tree with an unread node, or a text with a word that belongs to no node."""
        for node in root.walk():
            if id(node) not in self._read:
                raise self.refusal(node, f"{node_name(node)} is not supported here", "leave it out")
        starts = {node.meta["start"] for node in self._read.values() if "start" in node.meta}
        for place, word in enumerate(self.words):
            has_content = word.kind in ("IDENTIFIER", "NUMBER", "STRING")
            if (
                has_content or (word.kind == "VAR" and not self._is_grammar(place))
            ) and word.start not in starts:
                raise self._meaningless(word)
        counts = Counter(type(node).__name__ for node in self._read.values())
        for kinds, nodes in _NODES.items():
            words = [word for word in self.words if word.kind in kinds.split()]
            if len(words) != sum(counts[node] for node in nodes.split()):
                raise self._meaningless(words[-1] if words else self.words[0])

    def _meaningless(self, word: Word) -> TacitError:
        text = self.source.text[word.start : word.end]
        return self.source.refusal(word.start, word.end, f"{text} has no meaning here", "leave it out")

    def _is_grammar(self, place: int) -> bool:
        """Return whether a word without quotes is the name of a function, or belongs to WITHIN GROUP."""
        following = self.words[place + 1 : place + 2]
        return any(
            word.kind == "L_PAREN"
            or (self.words[place].text.lower(), word.text.lower()) == ("within", "group")
            for word in following
        )

    def bare(self, node: Node) -> Node:
        """Return the node inside parentheses, which have no meaning around a column or a literal."""
        while isinstance(node, exp.Paren):
            node = self.child(node, "this")
        return node

    # --- names --------------------------------------------------------------------------------------------

    def column(self, node: Node) -> str:
        """Return the name of a declared column, as the policy writes it.

        Raises:
            PrivacyRefusal: if it is the unit column.
            InvalidInput: if it is unknown.
        """
        if not isinstance(node, exp.Column):
            problem = f"{node_name(node)} stands where a column should"
            raise self.refusal(node, problem, f"expressions are not supported: {NO_ARITHMETIC}")
        identifier = self.child(node, "this")
        if not isinstance(identifier, exp.Identifier):
            raise self.refusal(node, "this is no name of a column", "name the columns one by one")
        spelling = self.identifier(identifier)
        name = self._declared(spelling)
        unit = self.policy.unit_column
        if unit is not None and unit in (name, spelling):
            problem = f"{unit!r} identifies one {self.policy.unit}, so no answer may depend on it"
            remedy = f"ask about groups; count(DISTINCT {unit}) counts their members"
            raise self.refusal(identifier, problem, remedy, PrivacyRefusal)
        if name is None:
            raise self._unknown(identifier, spelling)
        return name

    def is_unit(self, node: Node) -> bool:
        """Return whether this is the unit column; mark it as read if it is."""
        unit = self.policy.unit_column
        if unit is None or not isinstance(node, exp.Column) or self._declared(node.name) != unit:
            return False
        self.identifier(self.child(node, "this"))
        return True

    def _declared(self, spelling: str) -> str | None:
        """Return the declared column of this name; ignore case if that leaves only one column."""
        names = self.policy.needed_columns
        if spelling in names:
            return spelling
        matches = [name for name in names if name.lower() == spelling.lower()]
        return matches[0] if len(matches) == 1 else None

    def _unknown(self, identifier: Node, spelling: str) -> TacitError:
        columns = "; ".join(f"{name} ({facts})" for name, facts in describe_columns(self.policy))
        quotes = "strings stand in 'single quotes'. " if identifier.args.get("quoted") else ""
        near = closest(spelling, self.policy.columns)
        remedy = f"{near or quotes}The policy declares {columns or 'no columns'}"
        return self.refusal(identifier, f"there is no column {spelling!r}", remedy)

    def identifier(self, node: Node) -> str:
        """Return the name as the statement spells it."""
        self.only(node, "this", "quoted")
        return str(node.this)

    def numbers(self, node: Node) -> str:
        """Return the name of a column that can be summed, as it has numbers with bounds."""
        name = self.column(node)
        column = self.policy.columns[name]
        if not column.is_number:
            numeric = [name for name, column in self.policy.columns.items() if column.is_number]
            remedy = f"columns of numbers are {', '.join(numeric) or 'declared nowhere in the policy'}"
            raise self.refusal(node, f"{name!r} is a {column.kind}, not a number", remedy)
        if column.lower is None or column.upper is None:
            remedy = "bounds are public facts that the policy states; they are never read from the data"
            raise self.refusal(node, f"the policy states no bounds of {name!r}", remedy)
        return name

    # --- literals -----------------------------------------------------------------------------------------

    def number(self, node: Node) -> int | float:
        """Return a finite number, with its sign."""
        sign, literal = (-1, self.child(node, "this")) if isinstance(node, exp.Neg) else (1, node)
        if not isinstance(literal, exp.Literal) or literal.is_string:
            problem = f"{node_name(node)} stands where a number should"
            raise self.refusal(node, problem, "write a number, like 65 or 1.5")
        self.only(literal, "this", "is_string")
        digits = str(literal.this)
        try:
            number = int(digits) if digits.isdecimal() and len(digits) <= 30 else float(digits)
        except ValueError:
            raise self.refusal(literal, "this is no number", "write a number, like 65 or 1.5") from None
        if not math.isfinite(number):
            raise self.refusal(literal, "this number is too large", "write one below 1e308")
        return sign * number

    def value(self, node: Node, name: str) -> Value:
        """Return the value of a literal, which must be of the kind of the column ``name``."""
        if isinstance(node, exp.Null):
            problem, remedy = "nothing equals NULL", f"write {name} IS NULL, or {name} IS NOT NULL"
            raise self.refusal(node.parent, problem, remedy)
        column = self.policy.columns[name]
        if column.kind == "boolean" and isinstance(node, exp.Literal) and not node.is_string:
            truth = _truth_of(str(node.this), column)
            if truth is not None:
                self.only(node, "this", "is_string")
                return truth
        kind, fits, remedy = _LITERALS[column.kind]
        remedy = remedy.format(name)
        if column.kind == "text":
            problem = f"{name!r} is a text that identifies persons: no answer may depend on its values"
            raise self.refusal(node, problem, remedy)
        if column.values is not None and column.kind == "category":
            remedy = f"its keys are {_key_list(column.values)}"
        if not fits(node):
            problem = f"{name!r} {kind}; {node_name(node)} is not"
            raise self.refusal(node, problem, remedy)
        if column.is_number:
            return self._number_of(node, name, column)
        self.only(node, "this", "is_string")
        if column.kind == "category":
            return self._key(node, name, column)
        if column.kind == "boolean":
            return bool(node.this)
        try:
            return str(as_moment(name, column.kind, str(node.this)))
        except InvalidInput:
            raise self.refusal(node, f"{name!r} {kind}; {node_name(node)} is not", remedy) from None

    def _number_of(self, node: Node, name: str, column: Column) -> float:
        number = self.number(node)
        if column.kind == "number":
            return float(number)
        if number != int(number) or abs(number) > 2**53:
            remedy = "write a whole number of at most 2**53 in size"
            raise self.refusal(node, f"{name!r} holds whole numbers; got {number:g}", remedy)
        return int(number)

    def _key(self, node: Node, name: str, column: Column) -> str:
        """Return the string; it must be a declared key if the column declares any."""
        value, keys = str(node.this), column.values
        if keys is not None and value not in keys:
            near = closest(value, map(str, keys))
            rest = f"for the rows of all other values, write {name} NOT IN (...) with every key"
            remedy = f"{near}The keys are {_key_list(keys)}; {rest}"
            raise self.refusal(node, f"{value!r} is no declared key of {name!r}", remedy)
        return value


def _is_string(node: Node) -> bool:
    return isinstance(node, exp.Literal) and bool(node.is_string)


def _is_number(node: Node) -> bool:
    return isinstance(node, exp.Neg | exp.Literal) and not _is_string(node)


def _truth_of(digits: str, column: Column) -> bool | None:
    """Return the meaning of a number, such as 1, if it is one of the words of a boolean column."""
    if digits in (column.true or TRUE):
        return True
    return False if digits in (column.false or FALSE) else None


_LITERALS: dict[str, tuple[str, Callable[[Node], bool], str]] = {
    "boolean": (
        "is true or false",
        lambda node: isinstance(node, exp.Boolean),
        "write {0} = TRUE, or just {0}",
    ),
    "number": ("is a number", _is_number, "write a number, without quotes"),
    "integer": ("is an integer", _is_number, "write a number, without quotes"),
    "category": ("holds strings", _is_string, "write a string in 'single quotes'"),
    "date": ("is a date", _is_string, "write '2020-01-31'"),
    "datetime": ("is a datetime", _is_string, "write '2020-01-31 14:05:00'"),
    "text": ("is a text", _is_string, "write {0} IS NULL or IS NOT NULL, or count({0})"),
}
"""For each kind of column: its values in words, the test for its literals, and the fix."""
