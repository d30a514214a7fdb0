"""The questions of the wizard: one for each public fact that is not stated yet."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tacit.columns.column import KINDS
from tacit.columns.sections import (
    bounds_from_text,
    by_column,
    check_column,
    refuse_two_meanings,
    values_from_text,
)
from tacit.columns.sniffing import REPEATS, FoundColumn, Sniffed, is_identifier, person_in
from tacit.errors import InvalidInput, TacitError, check_in
from tacit.ledger.policy import NO_COLUMN
from tacit.runs.init_file import BOUNDED, Facts, checked_promise, policy_columns, table_columns, usual_of

_BOUNDS = "the lowest and the highest possible value, such as 0:120"
_CODES = "; for codes without an order, all possible ones, such as 1,2,3"
_DAYS = "the first and the last possible day, such as 2015-01-01:2025-12-31"
_PERSON_COLUMN = (
    "does a person have several rows? Name the column of the person of each row, else none. Enter: {why}"
)
_PROMISE = {
    "unit": "what one row is, such as patient or visit; one of them is protected",
    "largest_table": "the most rows that any version of the table will have, a public number",
    "adjacency": (
        "what is hidden: add-remove, whether a {unit} is there at all; replace-one, what it says. The usual "
        "one is add-remove"
    ),
    "records": "about how many {rows} the table has, a public number; {part:g} of them train",
    "epsilon": "the most that may be revealed in total: 1 is strong, 3 is usual, above 10 promises little",
    "delta": "the probability that the promise fails: well below 1 / records",
    "note": "who approved this budget, when, why and until when; printed in every certificate",
}
_PERSON = "what a person is called, such as patient; one of them, with all rows, is protected"
_OF_RUN = ("unit", "adjacency", "records", "epsilon", "delta")
_OF_POLICY = ("unit", "largest_table", "adjacency", "epsilon", "delta", "note")
_COUNTS = ("records", "largest_table")


@dataclass(frozen=True)
class Question:
    """One question of the wizard.

    Attributes:
        key: the key of the fact, as in the file.
        about: the meaning of the fact, in one line.
        default: the answer for Enter; empty if Enter leaves the fact to be filled in.
        problem: why the last answer was refused; empty at first.
    """

    key: str
    about: str
    default: str = ""
    problem: str = ""


def ask_facts(
    sample: Sniffed, facts: Facts, ask: Callable[[Question], str], *, policy: bool = False
) -> Facts:
    """Ask about the facts that were not stated, and return the facts with the answers.

    Args:
        ask: a function that shows a question and returns the answer.  The answer "" leaves the fact to be
            filled in.  An EOFError leaves this fact and all later ones.

    >>> from tacit.columns.sniffing import FoundColumn
    >>> table = Sniffed(columns={"age": FoundColumn("integer"), "ill": FoundColumn("boolean")})
    >>> answers = {"target": "ill", "columns.age": "0:120", "epsilon": "3"}
    >>> facts = ask_facts(table, Facts(), lambda question: answers.get(question.key, ""))
    >>> facts.target, facts.bounds, facts.epsilon, facts.unit
    ('ill', {'age': (0, 120)}, 3.0, None)
    """
    wizard = _Wizard(sample, facts, ask)
    columns = policy_columns if policy else table_columns
    try:
        wizard.kinds()
        if not policy:
            wizard.target()
        wizard.person_column("unit_column" if policy else "user")
        wizard.usual(columns(sample, wizard.facts))
        for name in columns(sample, wizard.facts):
            wizard.column(name, policy=policy)
        for key in _OF_POLICY if policy else _OF_RUN:
            wizard.promise(key)
    except EOFError:
        pass  # the user leaves the rest to be filled in
    return wizard.facts


class _Wizard:
    """A dialogue that collects facts, and repeats a question after an invalid answer, with the reason."""

    def __init__(self, sample: Sniffed, facts: Facts, ask: Callable[[Question], str]) -> None:
        self.sample, self.facts, self._ask = sample, facts, ask

    def _take(self, question: Question, read: Callable[[str], Facts]) -> None:
        while answer := self._ask(question).strip() or question.default:
            try:
                facts = read(answer)
                table_columns(self.sample, facts)
            except TacitError as problem:
                question = replace(question, problem=str(problem))
            else:
                self.facts = facts
                return

    def _columns(self) -> dict[str, FoundColumn]:
        return table_columns(self.sample, self.facts)

    def kinds(self) -> None:
        """Ask for columns whose kind differs from the one proposed from the first rows."""
        question = Question(
            "kinds",
            (
                "is a kind wrong? Give NAME=KIND, several with commas; columns of text are not used. Enter: "
                "all are right"
            ),
        )

        def read(answer: str) -> Facts:
            kinds = by_column("--kind", values_from_text(answer), self.sample.columns)
            return replace(self.facts, kinds={**self.facts.kinds, **kinds})

        self._take(question, read)

    def target(self) -> None:
        if self.facts.target is None:
            names = ", ".join(name for name, column in self._columns().items() if column.kind != "text")
            self._take(
                Question("target", f"the column to predict: {names}"),
                lambda answer: replace(self.facts, target=check_column("target", answer, self._columns())),
            )

    def person_column(self, key: str) -> None:
        if getattr(self.facts, key) is not None:
            return
        names = [name for name in self._columns() if is_identifier(name)]
        likely = next(filter(self._identifies_people, names), NO_COLUMN)
        why = "no person has several" + f". By the names it may be {' or '.join(names)}" * bool(names)
        if likely != NO_COLUMN:
            why = f"{likely}, by its name and its repeated values"

        def read(answer: str) -> Facts:
            column = None if (key, answer) == ("user", NO_COLUMN) else answer
            return checked_promise(replace(self.facts, **{key: column}), self.sample)  # type: ignore[arg-type]

        self._take(Question(key, _PERSON_COLUMN.format(why=why), likely), read)

    def _identifies_people(self, name: str) -> bool:
        column = self._columns()[name]
        return bool(person_in(name)) and (column.kind, column.doubt) == ("text", REPEATS)

    def usual(self, columns: Mapping[str, FoundColumn]) -> None:
        """Offer the usual bounds of columns with well-known names, all in one question."""
        offered = {name: to for name, to in usual_of(columns).items() if name not in self.facts.bounds}
        if not offered:
            return

        def read(answer: str) -> Facts:
            wrong = {"all": (), NO_COLUMN: tuple(offered)}
            other = wrong[answer] if answer in wrong else values_from_text(answer)
            for name in other:
                check_column("bounds", name, offered)
            bounds = {name: (to.lower, to.upper) for name, to in offered.items() if name not in other}
            return replace(self.facts, bounds={**self.facts.bounds, **bounds})

        bounds_text = ", ".join(f"{name} {to}" for name, to in offered.items())
        about = (
            f"usual bounds for these names: {bounds_text}. Name those that are wrong or could be narrower. "
            "Enter: all fit"
        )
        self._take(Question("bounds", about, "all"), read)

    def column(self, name: str, *, policy: bool) -> None:
        """Ask for a column's kind and format if the first rows leave them open, then its bounds or values."""
        key = f"columns.{name}"

        def ask(fact: str, key: str, about: str, read: Callable[[str], object]) -> None:
            self._take(Question(key, about), lambda answer: self._with(fact, name, read(answer)))

        if not self._columns()[name].kind:
            about = f"its kind, which the rows do not show: {', '.join(KINDS)}"
            ask("kinds", key, about, lambda answer: check_in("kind", answer, KINDS))
        column = self._columns()[name]
        if column.formats:
            about = f"{' or '.join(column.formats)}: the first rows fit each of them"
            ask("formats", f"{key}.format", about, lambda answer: check_in("format", answer, column.formats))
        if column.kind in BOUNDED and name not in self.facts.bounds:
            about = _BOUNDS if column.kind in ("number", "integer") else _DAYS
            about += _CODES if column.kind == "integer" else ""
            self._take(
                Question(key, f"{column.kind}: {about}"),
                lambda answer: self._with_range(name, column.kind, answer),
            )
        if column.kind == "category" and name not in self.facts.values:
            about = "the values that may form a group" if policy else "its values"
            about = "the classes" if name in self.facts.targets else about
            about = f"category: {about}, all that are possible, such as f,m"
            ask("values", key, about, values_from_text)

    def _with(self, fact: str, name: str, value: object) -> Facts:
        changed: dict[str, Any] = {fact: {**getattr(self.facts, fact), name: value}}
        return replace(self.facts, **changed)

    def _with_range(self, name: str, kind: str, answer: str) -> Facts:
        """Return the facts with a column's bounds; codes such as 1,2,3 turn an integer into a category."""
        if kind != "integer" or ":" in answer or "," not in answer:
            form = {**self.sample.dialect, **self._columns()[name].settings}
            grouped = bool(form.get("thousands")) or form.get("decimal") == ","
            return self._with("bounds", name, bounds_from_text(kind, answer, grouped=grouped))
        codes = values_from_text(answer)
        if not all(re.fullmatch("-?[0-9]+", code) for code in codes):
            raise InvalidInput(f"codes must be whole numbers, such as 1,2,3; got {answer!r}.")
        kinds = {**self.facts.kinds, name: "category"}
        return replace(self.facts, kinds=kinds, values={**self.facts.values, name: codes})

    def promise(self, key: str) -> None:
        """Ask for one fact of the guarantee; the default follows from public facts stated so far."""
        facts = self.facts
        if getattr(facts, key) is not None:
            return
        default = ""
        about, most = _PROMISE[key], facts.records or facts.largest_table
        person_column = facts.user or (facts.unit_column if facts.unit_column != NO_COLUMN else None)
        if key == "unit" and person_column is not None:
            about, default = _PERSON, person_in(person_column)
        if key == "delta" and most is not None:
            default = f"{10.0 ** math.floor(-1.1 * math.log10(max(2, most))):g}"
            about += f". Enter: {default}, below 1 / {most:,}"
        part = 1.0 if facts.test_table else 1.0 - facts.test_fraction
        rows = "rows" if facts.user is None else "people"
        about = about.format(unit=facts.unit or "row", rows=rows, part=part)

        def read(answer: str) -> Facts:
            value = _value(key, answer)
            if key == "records" and isinstance(value, int):
                value = round(part * value)
            return checked_promise(replace(facts, **{key: value}), self.sample)

        self._take(Question(key, about, default), read)


def _value(key: str, answer: str) -> Any:
    if key not in ("epsilon", "delta", *_COUNTS):
        return answer
    if key in _COUNTS:
        refuse_two_meanings(key, answer)
        if re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+", answer):
            answer = answer.replace(",", "")
    try:
        number = float(answer)
    except ValueError:
        raise InvalidInput(f"{key} must be a number; got {answer!r}.") from None
    return int(number) if key in _COUNTS and number.is_integer() else number
