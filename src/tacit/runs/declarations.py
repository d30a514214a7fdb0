"""Whether a table fits its declared columns, and whether each row is one unit of privacy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.columns import Column, Dialect, Encoder
from tacit.columns.encoder import TextColumn, bounds_of, is_one_hot
from tacit.columns.sniffing import is_identifier, repeated_in_file, unit_columns
from tacit.columns.tables import Cells, declared_missing, names_of_file, numbers_of, pieces, words_of
from tacit.datasets.dataset import Owners
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.runs.config import Config

_MANY = 0.1  # of the cells; a smaller share may well be "other" or outside the bounds
_WIDE = 50  # bounds this many times wider than the range of nearly all values are doubtful
_BINS = 1000
_FEW = 30  # a doubt needs at least this many cells

FIRST_ROWS = 50_000
"""The number of rows, from the first one on, that a run compares with its declarations."""
Degree: TypeAlias = Literal["remark", "wrong", "nowhere"]
"""A remark; a declaration that is wrong for many cells; one that fits no cell."""
_Problem: TypeAlias = tuple[str, Degree]

_HEAD = (
    "Confidential: this report is computed from records without noise. It is only for the "
    "data owner.\nMismatches between the declared columns and the first {rows:,} rows of the table (tacit "
    "check RUN.toml reads all of them):"
)


@dataclass(frozen=True)
class Doubt:
    """A mismatch between a declaration and the table.  Confidential."""

    column: str | None
    text: str
    degree: Degree = "remark"

    def __str__(self) -> str:
        return self.text if self.column is None else f"column {self.column!r}: {self.text}"


def doubts(config: Config, *, rows: int | None = None, trained: int | None = None) -> list[Doubt]:
    assert config.data.table is not None, "the run reads a table"
    path, dialect = Path(config.data.table), config.read_dialect()
    text = None if config.data.text is None else TextColumn(config.data.text, 1)
    encoder = Encoder(config.read_columns(), config.data.predicted, dialect, text)
    declared = [name for name in (*encoder.inputs_of, *encoder.target_names) if name in encoder.columns]
    identifiers = [name for name in names_of_file(path, dialect) if is_identifier(name)]
    owners = [config.data.user] if isinstance(config.data.user, str) else [*(config.data.user or ())]
    tallies: dict[str, _Words | _Numbers] = {}
    for name in declared:
        column = encoder.columns[name]
        kind = _Words if is_one_hot(column) else _Numbers
        tallies[name] = kind(column, dialect, name in encoder.target_names)
    people: dict[str, Counter[str]] = {
        name: Counter()
        for name in (*declared, *identifiers, *owners)
        if name in owners or name not in encoder.columns or encoder.columns[name].kind in ("integer", "text")
    }
    count = 0
    for piece in pieces(path, list(dict.fromkeys([*declared, *people])), dialect):
        if rows is None or count < rows:
            for name, tally in tallies.items():
                tally.add(piece[name])
        elif trained is not None:
            break  # the other rows matter only for their number
        for name, counts in people.items():
            if rows is None or count < rows or name in owners:
                counts.update(word for word in words_of(piece[name]) if word is not None)
        count += len(piece[declared[0]])
    findings = [Doubt(name, *problem) for name, tally in tallies.items() for problem in tally.doubts()]
    if not owners:
        findings += _repeated(people, count, encoder, config.privacy.unit)
    if trained is None:
        units = count if len(owners) != 1 else _kept(people[owners[0]], config)
        trained = round(units * (1.0 - (config.data.test_fraction or 0.0)))
    if config.data.date is not None or config.data.own_records:  # there are other rows, which are not read
        return findings
    return findings + _records(config.privacy.records, trained)


def about_declarations(config: Config, trained: int, owners: Owners | None) -> str:
    """Return the curator's report, based on the first rows of the table and the number of records."""
    people = owners is not None and config.data.rows_per_user is not None and config.data.draw == "users"
    units = len(set(owners or ())) if people else trained
    findings = doubts(config, rows=FIRST_ROWS, trained=units)
    lines = [f"* {doubt}" for doubt in findings] or ["No mismatch was found."]
    return "\n".join([_HEAD.format(rows=FIRST_ROWS), "", *lines, ""])


def _kept(rows_of: Counter[str], config: Config) -> int:
    if config.data.draw == "users":
        return len(rows_of)
    most = config.data.rows_per_user or 1
    return sum(min(rows, most) for rows in rows_of.values())


def _records(records: int, trained: int) -> list[Doubt]:
    if records / 2 <= trained <= 2 * records:
        return []
    return [
        Doubt(
            None,
            (
                f"[privacy] records = {records:,}, but there are {trained:,} training records. Batches, "
                "steps and delta depend on it: set it to the approximate, publicly known number."
            ),
            "wrong",
        )
    ]


def _repeated(people: dict[str, Counter[str]], count: int, encoder: Encoder, unit: str) -> Iterator[Doubt]:
    """Yield doubts about columns that seem to identify people with several rows, if the unit is a row."""
    for name, counts in people.items():
        used = name in encoder.inputs_of
        dense = used and _are_numbers_of_people(counts, count)
        if (is_identifier(name) or dense) and len(counts) < counts.total():
            model = "The model could memorise people by it, and " * used
            subject = f"a {unit} with several rows is" if not used else f"each row of a {unit} is"
            yield Doubt(
                name,
                (
                    f"its values repeat, so it may identify people with several rows. {model}{subject} "
                    "protected row by row, not as a whole. If it does identify people, set [data] user = "
                    f'"{name}" and rows_per_user, and remove it from the columns.'
                ),
            )


def _are_numbers_of_people(counts: Counter[str], count: int) -> bool:
    """Return whether there are many values and they cover most whole numbers in their range."""
    try:
        numbers = np.array([int(word) for word in counts])
    except ValueError:
        return False
    enough = len(numbers) > max(_FEW, count / 8)
    return bool(enough and len(numbers) > 0.8 * (numbers.max() - numbers.min() + 1))


# --- single columns --------------------------------------------------------------------------------------


def _degree(wrong: int, cells: int) -> Degree:
    return "nowhere" if wrong == cells >= _FEW else "wrong"


@dataclass
class _Tally:
    column: Column
    dialect: Dialect
    is_target: bool
    cells: int = 0
    missing: int = 0

    def about_missing(self) -> Iterator[_Problem]:
        if self.cells and self.missing == self.cells:
            yield "every cell is missing.", "wrong"
        elif self.missing and self.is_target:
            yield (
                f"{self.missing:,} of {self.cells:,} cells are missing, and the run refuses rows without a "
                "target. Remove these rows.",
                "remark",
            )
        elif self.missing and self.column.missing == "refuse":
            yield (
                f'{self.missing:,} of {self.cells:,} cells are missing, and missing = "refuse". Set missing '
                '= "indicator", or remove these rows.',
                "remark",
            )


@dataclass
class _Words(_Tally):
    other: int = 0
    in_other_case: int = 0
    occurrences: set[str] = field(default_factory=set)

    def add(self, cells: Cells) -> None:
        values = [str(value) for value in self.column.values or ()]
        folded = {value.casefold() for value in values}
        words = words_of(cells, values, declared_missing(self.column, self.dialect))
        present = [word for word in words if word is not None]
        strange = [] if self.column.buckets else [word for word in present if word not in values]
        self.cells += len(words)
        self.missing += len(words) - len(present)
        self.other += len(strange)
        self.in_other_case += sum(word.casefold() in folded for word in strange)
        self.occurrences.update(value for value in values if value in present)

    def doubts(self) -> Iterator[_Problem]:
        yield from self.about_missing()
        present = self.cells - self.missing
        if self.other > _MANY * present:
            why = " Most of them differ only in capital letters: write the values as the table does."
            cure = " Declare the other values that are publicly known."
            if self.in_other_case > self.other / 2:
                cure = why
            yield (
                f'{self.other:,} of {present:,} cells have undeclared values, and count as "other".' + cure,
                _degree(self.other, present),
            )
        elif present >= _FEW and (unseen := len(self.column.values or ()) - len(self.occurrences)):
            values = len(self.column.values or ())
            yield f"{unseen:,} of the {values:,} declared values do not occur.", "remark"


@dataclass
class _Numbers(_Tally):
    unreadable: int = 0
    outside: int = 0
    swapped: _Swapped | None = None
    shape: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, dtype=np.int64))

    def __post_init__(self) -> None:
        if self.column.is_moment and self.column.format and self.column.low is not None:
            self.swapped = _Swapped.of(self.column)

    def add(self, cells: Cells) -> None:
        values, wrong = numbers_of(cells, self.column, self.dialect)
        numbers = values[~np.isnan(values)]
        self.cells += len(values)
        self.unreadable += len(wrong)
        self.missing += len(values) - len(numbers) - len(wrong)
        if self.column.low is None:
            return
        low, high = bounds_of(self.column)
        self.outside += int(((numbers < low) | (numbers > high)).sum())
        self.shape += np.histogram(numbers, bins=_BINS, range=(low, high))[0]
        if self.swapped is not None:
            self.swapped.add(cells)

    def doubts(self) -> Iterator[_Problem]:
        yield from self.about_missing()
        readable = self.cells - self.missing - self.unreadable
        if self.unreadable:
            yield f"{self.unreadable:,} cells cannot be read as the declared {self.column.kind}.", "remark"
        if self.outside > _MANY * readable:
            yield (
                f"{self.outside:,} of {readable:,} values are outside the declared bounds, and count as the "
                "nearest bound. Are the bounds in the units of the table?",
                _degree(self.outside, readable),
            )
        elif readable >= _FEW and self._is_narrow():
            yield (
                f"nearly all values are in less than a {_WIDE}th of the declared range, so the model barely "
                "distinguishes them. Are the bounds in the units of the table?",
                "wrong",
            )
        if self.swapped is not None and self.swapped.is_likelier(self.outside):
            yield (
                f'the cells can also be read as "{self.swapped.format}", and fit the bounds better then: '
                "are day and month exchanged in format?",
                "wrong",
            )

    def _is_narrow(self) -> bool:
        if not self.column.is_number or not self.shape.sum():
            return False
        total = np.cumsum(self.shape) / self.shape.sum()
        first, last = np.searchsorted(total, [0.001, 0.999])
        return bool(last - first + 1 < _BINS / _WIDE)


@dataclass
class _Swapped:
    """Counts for the same cells, read with day and month exchanged."""

    column: Column
    format: str
    other: Column
    unreadable: int = 0
    outside: int = 0
    months: tuple[set[float], set[float]] = field(default_factory=lambda: (set(), set()))

    @classmethod
    def of(cls, column: Column) -> _Swapped | None:
        other = re.sub("%[dm]", lambda match: {"%d": "%m", "%m": "%d"}[match[0]], str(column.format))
        if other == column.format:
            return None
        facts = column.to_data() | {"format": other}
        return cls(column, other, Column.from_data(facts))

    def add(self, cells: Cells) -> None:
        as_declared, _ = numbers_of(cells, self.column)
        values, wrong = numbers_of(cells, self.other)
        low, high = bounds_of(self.column)
        self.unreadable += len(wrong)
        self.outside += int(((values < low) | (values > high)).sum())
        for months, read in zip(self.months, (as_declared, values), strict=True):
            numbers = np.unique(read[~np.isnan(read)])
            moments = numbers.astype("datetime64[D]" if self.column.kind == "date" else "datetime64[s]")
            months.update(moments.astype("datetime64[M]").astype(int).tolist())

    def is_likelier(self, outside: int) -> bool:
        """Return whether the cells are more likely to be written with day and month exchanged.

        All cells must be readable in that format.  In addition, fewer than half as many values must be
        outside the bounds, or the values must be in more than three times as many months.
        """
        declared, other = map(len, self.months)
        return not self.unreadable and (self.outside < outside / 2 or other > 3 * declared)


Confirm: TypeAlias = Callable[[str, str], bool]
"""A function that shows a finding and asks a question; it returns whether the answer is yes."""

_FOR_YOU = (
    "Confidential: the following is computed from records without noise. It is only for you, and no "
    "released file contains it."
)


def check_fit(config: Config, confirm: Confirm | None = None) -> None:
    """Stop a run whose unit may have several rows, or whose declared columns do not fit the table."""
    _check_unit(config, confirm)
    if config.data.table is None or not Path(config.data.table).is_file():
        return

    findings = [doubt for doubt in doubts(config, rows=FIRST_ROWS) if doubt.degree != "remark"]
    if findings and confirm is not None:
        text = "\n".join([_FOR_YOU, "", *(f"* {doubt}" for doubt in findings)])
        if not confirm(text, "Train anyway?"):
            raise InvalidInput(
                "stopped before the first step: the declarations do not fit the table. Nothing was trained, "
                "written or charged. Correct the run file."
            )
        return
    if nowhere := [str(doubt) for doubt in findings if doubt.degree == "nowhere"]:
        raise InvalidInput(
            "some declared columns match no cell of the table, so the run would learn nothing from them: "
            f"{' '.join(nowhere)} Correct or remove them, or start the run in a terminal to continue anyway."
        )


def _check_unit(config: Config, confirm: Confirm | None) -> None:
    data, unit = config.data, config.privacy.unit
    path = Path(str(data.table or data.corpus))
    one_row = config.privacy.one_record_per_unit or config.ledger.one_record_per_unit
    if data.user is not None or one_row or not path.is_file():
        return

    dialect = config.read_dialect()
    kinds = {name: column.kind for name, column in config.read_columns().items()}
    instead = (
        f'To protect single rows, set [privacy] unit = "row". If each row is a different {unit}, set '
        "[privacy] one_record_per_unit = true."
    )
    if data.date is not None:
        for name in unit_columns(names_of_file(path, dialect), unit, kinds):
            raise PrivacyRefusal(
                f"column {name!r} identifies the {unit} of [privacy] unit, and the same {unit} may appear in "
                f'the next file. Set [data] user = "{name}" and rows_per_user. Limit how often a {unit} '
                f"takes part with [privacy] participations and separation. {instead}"
            )
        return

    repeated = repeated_in_file(path, unit, kinds, dialect)
    if repeated is None:
        return
    problem = (
        f"{_FOR_YOU}\n\nThe unit is a {unit}, and column {repeated!r} has repeated values: a {unit} seems to "
        "have several rows, and each row would be protected separately."
    )
    if confirm is not None and confirm(problem, f"Is each row a different {unit}?"):
        return
    raise PrivacyRefusal(
        f'[privacy] unit = "{unit}", but values in column {repeated!r} repeat. A {unit} seems to have '
        f"several rows, and each row would be protected separately. To protect each {unit} as a whole, set "
        f'[data] user = "{repeated}" and rows_per_user. {instead}'
    )
