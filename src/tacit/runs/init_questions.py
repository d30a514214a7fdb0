"""Which questions does a wizard ask? One for each public fact that is not stated yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tacit.columns.column import KINDS
from tacit.columns.kinds import FoundColumn
from tacit.columns.sections import bounds_from_text, by_column, check_column, values_from_text
from tacit.columns.sniffing import Sniffed
from tacit.errors import InvalidInput, TacitError, check_in
from tacit.ledger.policy_file import NO_COLUMN
from tacit.runs.init_file import BOUNDED, Facts, checked_promise, policy_columns, table_columns

_BOUNDS = "the least and the greatest that is possible, known without the data, such as 0:120"
_DAYS = "the first and the last day that is possible, such as 2015-01-01:2025-12-31"
_PROMISE = {
    "unit": "what one row is, such as patient or visit: the promise protects one of them",
    "rows_per_user": "the most rows of one person that a step reads, known without the data",
    "unit_column": f"the column that says whose a row is; {NO_COLUMN} if no unit has two rows",
    "largest_table": "the most rows that any version of the table will have, a public figure",
    "adjacency": "what is hidden: add-remove, whether a row is there at all; replace-one, what it says",
    "records": "about how many rows train the model, a public figure: {part:g} of those of the table",
    "epsilon": "what may be revealed in all: 1 is strong, 3 is usual, above 10 says little",
    "delta": "how likely the promise may fail: well below 1 / records",
    "note": "who approved this budget, when, why and until when: printed in every certificate",
}
_OF_RUN = ("unit", "adjacency", "records", "epsilon", "delta")
_OF_POLICY = ("unit", "largest_table", "adjacency", "epsilon", "delta", "note")
_COUNTS = ("records", "largest_table", "rows_per_user")


@dataclass(frozen=True)
class Question:
    """One question of the wizard.

    Attributes:
        key: of the fact, as in the file.
        about: what it means, in one line.
        default: what Enter takes; empty where Enter leaves the fact to be filled in.
        problem: why the last answer to it was not taken; empty at first.
    """

    key: str
    about: str
    default: str = ""
    problem: str = ""


def ask_facts(found: Sniffed, facts: Facts, ask: Callable[[Question], str], *, policy: bool = False) -> Facts:
    """The facts with the answers to the questions about what was not stated.

    Args:
        ask: shows a question and gives the answer; "" leaves the fact to be filled in, and an EOFError
            leaves it and all that follow.

    >>> from tacit.columns.kinds import FoundColumn
    >>> table = Sniffed(columns={"age": FoundColumn("integer"), "ill": FoundColumn("boolean")})
    >>> answers = {"target": "ill", "columns.age": "0:120", "epsilon": "3"}
    >>> facts = ask_facts(table, Facts(), lambda question: answers.get(question.key, ""))
    >>> facts.target, facts.bounds, facts.epsilon, facts.unit
    ('ill', {'age': (0, 120)}, 3.0, None)
    """
    wizard = _Wizard(found, facts, ask)
    try:
        wizard.kinds()
        if policy:
            wizard.promise("unit_column")  # of which nothing else is asked
        else:
            wizard.target()
            if facts.user is not None:
                wizard.promise("rows_per_user")
        columns = policy_columns if policy else table_columns
        for name in columns(found, wizard.facts):
            wizard.column(name, policy=policy)
        for key in _OF_POLICY if policy else _OF_RUN:
            wizard.promise(key)
    except EOFError:
        pass  # the user leaves the rest to be filled in
    return wizard.facts


class _Wizard:
    """The facts so far; an answer that cannot be one is asked for again, with the reason."""

    def __init__(self, found: Sniffed, facts: Facts, ask: Callable[[Question], str]) -> None:
        self.found, self.facts, self._ask = found, facts, ask

    def _take(self, question: Question, read: Callable[[str], Facts]) -> None:
        while answer := self._ask(question).strip() or question.default:
            try:
                facts = read(answer)
                table_columns(self.found, facts)
            except TacitError as problem:
                question = replace(question, problem=str(problem))
            else:
                self.facts = facts
                return

    def _columns(self) -> dict[str, FoundColumn]:
        return table_columns(self.found, self.facts)

    def kinds(self) -> None:
        """Kinds that are not what the first rows say."""
        question = Question(
            "kinds",
            "is one wrong? NAME=KIND, more after a comma (text is never used); Enter if all are right",
        )

        def read(answer: str) -> Facts:
            kinds = by_column("--kind", values_from_text(answer), self.found.columns)
            return replace(self.facts, kinds={**self.facts.kinds, **kinds})

        self._take(question, read)

    def target(self) -> None:
        """What is predicted."""
        if self.facts.target is None:
            names = ", ".join(name for name, column in self._columns().items() if column.kind != "text")
            self._take(
                Question("target", f"the column to predict: {names}"),
                lambda answer: replace(self.facts, target=check_column("target", answer, self._columns())),
            )

    def column(self, name: str, *, policy: bool) -> None:
        """The kind and format where the rows do not say them; then bounds or values."""
        key = f"columns.{name}"

        def take(fact: str, key: str, about: str, read: Callable[[str], object]) -> None:
            """Ask for one of the facts that are kept by column."""

            def with_answer(answer: str) -> Facts:
                changed: dict[str, Any] = {fact: {**getattr(self.facts, fact), name: read(answer)}}
                return replace(self.facts, **changed)

            self._take(Question(key, about), with_answer)

        if not self._columns()[name].kind:
            about = f"its kind, which no row says: {', '.join(KINDS)}"
            take("kinds", key, about, lambda answer: check_in("kind", answer, KINDS))
        column = self._columns()[name]
        if column.formats:
            about = f"{' or '.join(column.formats)}? The first rows fit each"
            take("formats", f"{key}.format", about, lambda answer: check_in("format", answer, column.formats))
        if column.kind in BOUNDED and name not in self.facts.bounds:
            about = _BOUNDS if column.kind in ("number", "integer") else _DAYS
            take("bounds", key, f"{column.kind}: {about}", partial(bounds_from_text, column.kind))
        if column.kind == "category" and name not in self.facts.values:
            about = "its values that may be a group" if policy else "its values"
            about = "the classes" if name in self.facts.targets else about
            about = f"category: {about}, all that are known without the data, such as f,m"
            take("values", key, about, values_from_text)

    def promise(self, key: str) -> None:
        """One fact of the promise; only delta has a default, from a public number of rows."""
        if getattr(self.facts, key) is not None:
            return
        default, most = "", self.facts.records or self.facts.largest_table
        if key == "delta" and most is not None:
            default = f"{10.0 ** math.floor(-1.1 * math.log10(max(2, most))):g}"
        part = 1.0 if self.facts.test_table else 1.0 - self.facts.test_fraction
        about = _PROMISE[key].format(part=part)
        self._take(
            Question(key, about, default),
            lambda answer: checked_promise(replace(self.facts, **{key: _value(key, answer)}), self.found),
        )


def _value(key: str, answer: str) -> Any:
    """The answer as a number, where the fact is one."""
    if key not in ("epsilon", "delta", *_COUNTS):
        return answer
    try:
        number = float(answer.replace(",", "") if key in _COUNTS else answer)
    except ValueError:
        raise InvalidInput(f"{key} must be a number; got {answer!r}.") from None
    return int(number) if key in _COUNTS and number.is_integer() else number
