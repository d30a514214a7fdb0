"""The encoding of table rows as numbers for a model, which depends only on the declared columns."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.columns.column import PART_NAMES, Column, Dialect, codes_of_part, no_data_bounds
from tacit.columns.tables import (
    ROWS,
    Cells,
    cells_of_frame,
    declared_missing,
    numbers_of,
    pieces,
    row_numbers,
    words_of,
)
from tacit.errors import InvalidInput, PrivacyRefusal

_FAULTS = {
    "number": "are not numbers",
    "integer": "are not numbers",
    "boolean": "are neither true nor false",
    "date": "are not dates",
    "datetime": "are not datetimes",
}
Floats = NDArray[np.float32]


def check_encodable(name: str, column: Column) -> None:
    if column.kind == "text":
        raise InvalidInput(
            f"column {name!r} is of kind text, which cannot be predicted. Declare another kind, such as "
            '"category".'
        )
    has_values = column.kind == "boolean" or column.values is not None or column.buckets is not None
    if column.lower is None and not has_values:
        facts = "values, or buckets," if column.kind == "category" else "lower and upper"
        raise PrivacyRefusal(f"column {name!r} lacks {facts}: {no_data_bounds('a column')}")


def _is_listed(column: Column) -> bool:
    return column.kind == "category" or (column.values is not None and column.lower is None)


def is_one_hot(column: Column) -> bool:
    """Return whether a column has one feature for each declared value; a boolean is a number."""
    return column.kind != "boolean" and _is_listed(column)


def classes_of(column: Column) -> tuple[str, ...]:
    """Return the classes of a target; empty if the target is a number."""
    if column.kind == "boolean":
        return (column.false or ("false",))[0], (column.true or ("true",))[0]
    return column.listed if _is_listed(column) else ()


def bounds_of(column: Column) -> tuple[float, float]:
    low, high = column.low, column.high
    assert low is not None, "checked when the encoder was made"
    assert high is not None, "checked with it"
    return low, high


def feature_names(name: str, column: Column) -> Iterator[str]:
    if is_one_hot(column):
        yield from (f"{name}={value}" for value in (*column.listed, "other"))
    else:
        yield name
    if edges := column.edges:
        yield f"{name} < {edges[0]:g}"
        yield from (f"{name} {low:g} to {high:g}" for low, high in itertools.pairwise(edges))
        yield f"{name} >= {edges[-1]:g}"
    for part in column.parts:
        yield from (f"{name} {part}={value}" for value in PART_NAMES[part])
    if column.missing == "indicator":
        yield f"{name} missing"


# --- cells ----------------------------------------------------------------------------------------------

_OF_NUMBERS = "its kind, the form of its numbers (decimal, thousands, unit, below)"
_OF_BOOLEANS = (
    'kind = "integer" with lower and upper, kind = "category" with values, or its words (true, false)'
)
_FIXES = {"number": _OF_NUMBERS, "integer": _OF_NUMBERS, "boolean": _OF_BOOLEANS}


@dataclass(frozen=True)
class _CellsOfColumn:
    """The cells of a column in some rows of a table; ``before`` is the number of rows above them."""

    name: str
    column: Column
    cells: Cells
    dialect: Dialect
    source: str
    before: int

    def __str__(self) -> str:
        return f"column {self.name!r} of {self.source}"

    def rows(self, places: NDArray[np.int64]) -> str:
        first = (places[:10] + 1 + self.before).tolist()
        return row_numbers(first, len(places))

    def features(self) -> Floats:
        block, lacking = self._one_hot() if is_one_hot(self.column) else self._scalar()
        match self.column.missing:
            case "refuse":
                self._refuse_missing(lacking)
            case "indicator":
                block[lacking] = 0.0
                block = np.concatenate([block, lacking[:, None].astype(np.float32)], axis=1)
        return block

    def targets(self) -> NDArray[np.int64] | Floats:
        column = self.column
        if column.kind == "boolean" or not _is_listed(column):
            values = self._numbers()
            self._refuse_missing(np.isnan(values), target=True)
            return values.astype(np.int64) if column.kind == "boolean" else _scaled(values, column)[:, None]
        codes, lacking = self._codes()
        self._refuse_missing(lacking, target=True)
        classes = classes_of(column)
        if len(strange := np.flatnonzero(codes == len(classes))):
            raise InvalidInput(
                f"{len(strange):,} labels in {self} are not among the declared classes "
                f"({', '.join(classes)}): {self.rows(strange)}. Declare every class, or correct the "
                "table."
            )
        return codes

    def times(self) -> NDArray[np.float64]:
        """Read the cells as times from the lower bound on; those beyond the upper bound are kept."""
        values, (low, _) = self._numbers(), bounds_of(self.column)
        self._refuse_missing(np.isnan(values), target=True)
        if len(early := np.flatnonzero(values < low)):
            raise InvalidInput(
                f"{len(early):,} times in {self} are below the declared lower bound {low:g} "
                f"({self.rows(early)}). Correct these rows, or the bound."
            )
        return values

    def _one_hot(self) -> tuple[Floats, NDArray[np.bool_]]:
        codes, lacking = self._codes()
        values, missing = self.column.listed, self.column.missing
        if missing not in ("refuse", "indicator"):
            value = str(int(missing) if isinstance(missing, float) else missing)
            codes[lacking] = values.index(value) if value in values else len(values)
        return np.eye(len(values) + 1, dtype=np.float32)[codes], lacking

    def _scalar(self) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the features (scaled value, bins, date parts), and whether each cell is missing."""
        column, values = self.column, self._numbers()
        lacking = np.isnan(values)
        if column.missing not in ("refuse", "indicator"):
            values = np.where(lacking, column.number_of(column.missing), values)
        blocks = [np.nan_to_num(_scaled(values, column), nan=0.0)[:, None]]
        if column.edges:
            codes = np.searchsorted(column.edges, np.clip(values, *bounds_of(column)), side="right")
            # NaN: refused or zeroed later
            blocks.append(np.eye(len(column.edges) + 1, dtype=np.float32)[codes])
        for part in column.parts:
            codes = codes_of_part(part, column.kind, values)
            blocks.append(np.eye(len(PART_NAMES[part]), dtype=np.float32)[codes])
        return np.concatenate(blocks, axis=1), lacking

    def _numbers(self) -> NDArray[np.float64]:
        """Read the cells as numbers, with NaN for missing ones, and refuse unreadable ones."""
        column = self.column
        try:
            values, wrong = numbers_of(self.cells, column, self.dialect)
        except InvalidInput as problem:  # the whole column is of another type
            raise InvalidInput(f"{self}: {problem} Declare its kind, or convert it.") from None
        fault = _FAULTS[column.kind]
        if column.kind == "integer" and not len(wrong):
            wrong = np.flatnonzero(np.isfinite(values) & (values != np.floor(values)))
            fault = "are no whole numbers"
        if len(wrong):
            form = f" of the form {column.format!r}" if column.format else ""
            raise InvalidInput(
                f"{len(wrong):,} values in {self} {fault}{form} ({self.rows(wrong)}). Correct the table or "
                f"the column's declaration: {_FIXES.get(column.kind, 'its kind, its format')}, or words for "
                "a missing value (missing_values)."
            )
        return values

    def _codes(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the index of each cell's value, and whether the cell is missing."""
        # All undeclared values share one index, the number of declared values.
        column, values = self.column, self.column.listed
        words: Sequence[str | None]
        if column.kind == "integer":
            words = [None if np.isnan(number) else str(int(number)) for number in self._numbers()]
        else:
            words = words_of(self.cells, values, declared_missing(column, self.dialect))
            if column.buckets is not None:
                # this hash is the same on every machine and in every version of Python
                hashes = (None if word is None else zlib.crc32(word.encode()) for word in words)
                words = [None if number is None else values[number % len(values)] for number in hashes]
        code_of = {value: code for code, value in enumerate(values)}
        codes = np.fromiter((code_of.get(word, len(values)) for word in words), np.int64, len(words))  # type: ignore[arg-type]
        return codes, np.fromiter((word is None for word in words), np.bool_, len(words))

    def _refuse_missing(self, lacking: NDArray[np.bool_], *, target: bool = False) -> None:
        if not lacking.any():
            return
        rows = np.flatnonzero(lacking)
        whole = not self.before and len(lacking) < ROWS  # this piece is the whole table
        read = f"{'' if whole else 'the first '}{self.before + len(lacking):,}"
        fix = (
            "since nothing can be learnt from them"
            if target
            else 'or set missing for the column: a public value to fill in, or "indicator"'
        )
        raise InvalidInput(
            f"{len(rows):,} of {read} rows lack {'the target' if target else 'a value'}, {self} "
            f"({self.rows(rows)}). Remove these rows, {fix}."
        )


def _scaled(values: NDArray[np.float64], column: Column) -> Floats:
    low, high = (0.0, 1.0) if column.kind == "boolean" else bounds_of(column)
    scaled: NDArray[np.float64] = 2.0 * (np.clip(values, low, high) - low) / (high - low) - 1.0
    return scaled.astype(np.float32)


@dataclass(frozen=True)
class TextColumn:
    """A text column; a pretrained model reads the first ``length`` tokens, L."""

    # ``tokens`` turns n texts into (n, L) token numbers, -1 after the end of a text. It must map each text
    # independently of the others. It is not part of the schema: who reads a saved schema gives it again.
    name: str
    length: int
    tokens: Callable[[Sequence[str]], Any] | None = field(default=None, compare=False, repr=False)

    def read(self, cells: Cells, source: str, before: int) -> Floats:
        """Return the tokens of some rows as float32 (n, L)."""
        assert self.tokens is not None, "the pretrained model is there before a row is read"
        texts = list(cells)
        missing = [row for row, text in enumerate(texts) if not _is_text(text)]
        if missing:
            raise InvalidInput(
                f"{len(missing):,} rows of column {self.name!r} in {source} have no text "
                f"({row_numbers([row + 1 + before for row in missing])}). Remove these rows, or write a "
                "text for them, such as (none)."
            )
        return np.asarray(self.tokens(texts), dtype=np.float32)


def _is_text(cell: object) -> bool:
    """Return whether a cell is a string that is not blank and can be encoded."""
    if not isinstance(cell, str):
        return False
    return bool(cell.strip()) and (cell.isascii() or cell.encode(errors="ignore").decode() == cell)


@dataclass(frozen=True)
class Encoder:
    """Encodes rows of a table as numbers in [-1, 1], for training and for prediction.

    The encoding uses only the schema, which is what you declare about the columns:

    * A number, a date or a datetime is one feature, clipped to its bounds and scaled to [-1, 1].
    * A boolean is -1 or 1.
    * A category is one-hot encoded, and so is an integer with values but no bounds. One more feature stands
      for all undeclared values.
    * Each bin of a number is one more feature. So is each weekday, month or hour that ``parts`` of a date
      declares.
    * ``missing = "indicator"`` adds a feature that is 1 if the cell is missing. The other features of the
      column are then 0.
    * Columns of kind text are left out.

    Args:
        columns: the declaration of each column, by name. The features are in the same order.
        target: what to predict: the name of a column, or a list of booleans (labels), or a list of numbers.
            For survival, a list of a time (a number with bins) and an event (a boolean). None for no target.
        dialect: the format of CSV files.
        text: a further column, with text. The tokens of the text are the first features.

    **Guarantee**

    * A row's encoding depends on that row and on the schema alone.
    * Error messages give row numbers and counts, and never the content of a cell.

    Raises:
        InvalidInput, PrivacyRefusal: if a column lacks bounds or values that it needs, or a list of targets
            mixes booleans and numbers.

    >>> columns = {"age": Column(kind="integer", lower=0, upper=120),
    ...            "sex": Column(kind="category", values=("f", "m"))}
    >>> encoder = Encoder(columns)
    >>> encoder.features
    ('age', 'sex=f', 'sex=m', 'sex=other')
    >>> encoder.inputs({"age": ["30", "300"], "sex": ["m", "x"]}).tolist()
    [[-0.5, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]]
    """

    columns: Mapping[str, Column]
    target: str | Sequence[str] | None = None
    dialect: Dialect = field(default_factory=Dialect)
    text: TextColumn | None = None

    def __post_init__(self) -> None:
        if self.target is not None and not isinstance(self.target, str):
            object.__setattr__(self, "target", tuple(self.target))
        _check_names(self.target, self.columns)
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        if self.text is not None and self.text.name in (*self.target_names, *self._declared):
            raise InvalidInput(
                f"column {self.text.name!r} contains the text that the model reads, so it cannot be the "
                'target or have another kind. Leave its section out, or declare kind = "text".'
            )
        if not self.inputs_of:
            raise InvalidInput(
                "there is no input column besides the target. Declare at least one whose kind is not text."
            )
        for name, column in self.columns.items():
            if column.kind != "text" or name in self.target_names:
                check_encodable(name, column)
        _check_several(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder.from_data, (self.to_data(),)

    def __eq__(self, other: object) -> bool:  # the order of the columns counts
        return isinstance(other, Encoder) and self.to_data() == other.to_data()

    def __hash__(self) -> int:
        return hash((tuple(self.columns.items()), self.target, self.dialect))

    @property
    def inputs_of(self) -> tuple[str, ...]:
        """The names of the columns that are encoded as features."""
        return (*(() if self.text is None else (self.text.name,)), *self._declared)

    @property
    def _declared(self) -> tuple[str, ...]:
        targets = self.target_names
        return tuple(
            name for name, column in self.columns.items() if name not in targets and column.kind != "text"
        )

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of the columns to predict; empty if there is no target."""
        match self.target:
            case None:
                return ()
            case str():
                return (self.target,)
        return tuple(self.target)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features, one for each column of the array from :meth:`inputs`."""
        tokens = () if self.text is None else range(1, self.text.length + 1)
        return (
            *(f"token {place}" for place in tokens),
            *(feature for name in self._declared for feature in feature_names(name, self.columns[name])),
        )

    @property
    def longest(self) -> float:
        """An upper bound on the L2 norm of a row's features, with a 1 appended for the bias."""
        # each of these features is at most 1 in size; in one row, at most one per bin and part differs from 0
        columns = [self.columns[name] for name in self._declared]
        return math.sqrt(1 + sum(1 + bool(column.edges) + len(column.parts) for column in columns))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by class number. Empty if the target is a number, a list or None."""
        return classes_of(self.columns[self.target]) if isinstance(self.target, str) else ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the target columns if the target is a list of booleans, else empty."""
        targets = () if isinstance(self.target, str) or self.time_edges else self.target_names
        return tuple(name for name in targets if self.columns[name].kind == "boolean")

    @property
    def target_bounds(self) -> tuple[tuple[float, float], ...]:
        """The declared (lower, upper) of each numeric target, which :meth:`targets` scales to -1 and 1."""
        if self.classes or self.labels or self.time_edges:
            return ()
        return tuple(bounds_of(self.columns[name]) for name in self.target_names)

    @property
    def time_edges(self) -> tuple[float, ...]:
        """For survival, the edges of the time bins, from the lower to the upper bound; else empty."""
        if isinstance(self.target, str) or len(self.target_names) != 2:
            return ()
        time, event = (self.columns[name] for name in self.target_names)
        if not time.edges or event.kind != "boolean":
            return ()
        low, high = bounds_of(time)
        return (low, *time.edges, high)

    def inputs(self, cells: Mapping[str, Cells], *, source: str = "the table", before: int = 0) -> Floats:
        """Return the features of some rows: float32 (n, d), for n rows and d features.

        Args:
            cells: for each column name, the cells: strings as in a file, a typed array or Python objects.
                Undeclared columns are ignored.
            source: the name of the table in error messages.
            before: the number of rows before these; error messages add it to row numbers.

        Raises:
            InvalidInput: if a column is absent, or a cell is unreadable, or a cell is missing in a column
                with ``missing = "refuse"``.
        """
        table = _table_of(cells, self.inputs_of, source)
        blocks = [self._cells(name, table, source, before).features() for name in self._declared]
        if self.text is not None:
            blocks.insert(0, self.text.read(table[self.text.name], source, before))
        return np.concatenate(blocks, axis=1)

    def targets(
        self, cells: Mapping[str, Cells], *, source: str = "the table", before: int = 0
    ) -> NDArray[np.int64] | Floats:
        """Return the targets of some rows; the arguments are those of :meth:`inputs`.

        * For a category, a boolean or an integer with values but no bounds: class numbers, int64 (n,).
        * For a number: values scaled to [-1, 1], float32 (n, 1).
        * For a list of k columns: float32 (n, k). Labels are 0 or 1; numbers are scaled to [-1, 1].
        * For survival: float32 (n, 2), the unscaled time and the event (0 or 1). A time beyond the last edge
          is replaced by that edge, and its event by 0.

        Raises:
            InvalidInput: if there is no target, or if a cell is missing, unreadable or not a declared class.
        """
        if self.target is None:
            raise InvalidInput("the encoder has no target. Set target.")
        table = _table_of(cells, self.target_names, source)
        if self.time_edges:
            time, event = (self._cells(name, table, source, before) for name in self.target_names)
            times, last = time.times(), self.time_edges[-1]
            ends = [np.minimum(times, last), event.targets() * (times <= last)]
            return np.column_stack(ends).astype(np.float32)
        blocks = [self._cells(name, table, source, before).targets() for name in self.target_names]
        return blocks[0] if isinstance(self.target, str) else np.column_stack(blocks).astype(np.float32)

    def groups(
        self, inputs: NDArray[Any], by: str, bands: Sequence[float] = ()
    ) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """Divide encoded rows into groups by the values of one column.

        The groups depend on the declarations alone. A category has one group for each declared value, and the
        group "other" for undeclared values. A number is divided at the ``bands``. With ``missing =
        "indicator"``, the rows with a missing cell are a group too.

        Args:
            inputs: encoded rows (n, d), from :meth:`inputs`.
            by: the name of the column, not the target.
            bands: for a number, where to divide it, in increasing order; ``[30, 60]`` makes three groups.

        Returns:
            The names of the groups, and the group number of each row (n,).

        Raises:
            InvalidInput: if ``by`` is not a declared input, or ``bands`` is missing or does not fit the
                column.

        >>> encoder = Encoder({"age": Column(kind="integer", lower=0, upper=120)})
        >>> names, numbers = encoder.groups(encoder.inputs({"age": ["30", "12"]}), "age", [30, 60])
        >>> names, numbers.tolist()
        (('under 30', '30 to under 60', '60 and over'), [1, 0])
        """
        if by not in self._declared:
            raise InvalidInput(
                "must be a declared input column, neither the target nor text",
                argument="by",
                value=by,
                fix=f"Take one of {', '.join(self._declared)}.",
            )
        column, later = self.columns[by], itertools.dropwhile(lambda name: name != by, self._declared)
        width, *others = (len([*feature_names(name, self.columns[name])]) for name in later)
        block = inputs[:, -width - sum(others) :][:, :width]
        names, codes = (*column.listed, "other"), block[:, : len(column.listed) + 1].argmax(1)
        if column.kind == "boolean":
            names, codes = classes_of(column), (block[:, 0] > 0).astype(np.int64)
        elif not is_one_hot(column):
            names = _bands(by, column, bands)
            edges = _scaled(np.array(bands, dtype=np.float64), column).astype(inputs.dtype)
            codes = np.searchsorted(edges, block[:, 0], side="right")
        if column.missing == "indicator":
            names, codes = (*names, "missing"), np.where(block[:, -1] > 0, len(names), codes)
        return names, codes

    def _cells(self, name: str, table: Mapping[str, Cells], source: str, before: int) -> _CellsOfColumn:
        return _CellsOfColumn(name, self.columns[name], table[name], self.dialect, source, before)

    def chunks(self, path: Path | str, rows: int = ROWS) -> Iterator[tuple[Floats, range]]:
        """Read a file piece by piece; yield the features of at most ``rows`` rows, and their row numbers.

        The file is CSV, Parquet or JSON Lines. It does not need the target column.

        Raises:
            InvalidInput: as for :meth:`inputs`, or if the file is damaged. Pieces before the fault are
                yielded first.
        """
        before = 0
        for piece in pieces(Path(path), self.inputs_of, self.dialect, rows):
            inputs = self.inputs(piece, source=str(path), before=before)
            yield inputs, range(before + 1, before + 1 + len(inputs))
            before += len(inputs)

    def frame(self, data: object, *, source: str = "the table") -> Floats:
        """Return the features of a pandas or Polars data frame, an Arrow table, or a mapping of arrays.

        Raises:
            InvalidInput: as for :meth:`inputs`.
        """
        return self.inputs(cells_of_frame(data, self.inputs_of, source), source=source)

    def to_data(self) -> dict[str, Any]:
        """Return the encoder as a dict for JSON; :meth:`from_data` reads it back."""
        return {
            "columns": [{"name": name} | column.to_data() for name, column in self.columns.items()],
            "target": self.target if self.target is None or isinstance(self.target, str) else [*self.target],
            "dialect": self.dialect.to_data(),
            **({} if self.text is None else {"text": self.text.name, "length": self.text.length}),
        }

    @classmethod
    def from_data(cls, data: object) -> Encoder:
        """Make an encoder from the dict that :meth:`to_data` returns.

        Raises:
            InvalidInput: if ``data`` does not describe an encoder.
        """
        text = None
        match data:
            case {"text": str(name), "length": int(length), **data}:
                text = TextColumn(name, length)
        match data:
            case {
                "columns": [*columns],
                "target": None | str() | [*_] as target,
                "dialect": dialect,
                **rest,
            } if not rest:
                pass
            case _:
                raise InvalidInput(
                    "an encoder's data must have the keys columns, target and dialect; with a text column, "
                    "also text and length."
                )
        by_name = {}
        for column in columns:
            match column:
                case {"name": str(name), **facts} if name not in by_name:
                    by_name[name] = Column.from_data(facts, f"column {name!r}")
                case _:
                    raise InvalidInput("columns of an encoder must have distinct names.")
        return cls(by_name, target, Dialect.from_data(dialect, "dialect"), text)


def _check_names(target: str | Sequence[str] | None, columns: Mapping[str, Column]) -> None:
    names = [] if target is None else [target] if isinstance(target, str) else [*target]
    for name in names:
        if name not in columns:
            raise InvalidInput(
                f"target, time and event must be declared columns ({', '.join(columns)}); got {name!r}."
            )
        if columns[name].buckets is not None:
            raise InvalidInput(
                f"the target {name!r} has buckets, and a model cannot tell the values of one bucket apart. "
                "Declare its values."
            )
        if names.count(name) > 1:
            raise InvalidInput(f"target contains {name!r} twice. Name it once.")
    if target is not None and not names:
        raise InvalidInput("target is an empty list. Name the columns to predict.")


def _check_several(encoder: Encoder) -> None:
    target, columns = encoder.target, encoder.columns
    if target is None or isinstance(target, str) or encoder.time_edges:
        return
    if len(encoder.labels) == len(target):
        return
    if any(classes_of(columns[name]) for name in target):
        got = ", ".join(f"{name!r} of kind {columns[name].kind}" for name in target)
        raise InvalidInput(
            f"target must list only booleans (labels) or only numbers; got {got}. Declare all as one of "
            "these, or predict each in a separate run."
        )


def _bands(by: str, column: Column, bands: Sequence[float]) -> tuple[str, ...]:
    low, high = bounds_of(column)
    edges = [low, *bands, high]
    if not (bands and column.is_number and all(one < two for one, two in itertools.pairwise(edges))):
        raise InvalidInput(
            f"of {by!r} must be increasing edges between the bounds {low:g} and {high:g} of a column of "
            "numbers",
            argument="bands",
            value=[*bands],
            fix="Declare them without the data, such as [30, 50] for an age.",
        )
    between = (f"{one:g} to under {two:g}" for one, two in itertools.pairwise(bands))
    return f"under {bands[0]:g}", *between, f"{bands[-1]:g} and over"


def _table_of(cells: Mapping[str, Cells], columns: Sequence[str], source: str) -> Mapping[str, Cells]:
    table = cells_of_frame(cells, columns, source)
    lengths = {name: len(cells) for name, cells in table.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInput(f"the columns of {source} must have equal lengths; got {lengths}.")
    return table
