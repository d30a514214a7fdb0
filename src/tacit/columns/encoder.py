"""The encoding of a table's rows as numbers for a model, which depends only on the declared columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.columns.column import Column
from tacit.columns.dialect import Dialect
from tacit.columns.features import (
    Floats,
    Place,
    bounds_of,
    check_encodable,
    classes_of,
    feature_names,
    features_of,
    parts_of,
    targets_of,
)
from tacit.columns.reading import Cells
from tacit.columns.tables import ROWS, cells_of_frame, pieces, row_numbers
from tacit.errors import InvalidInput


@dataclass(frozen=True)
class TextColumn:
    """A column of texts, of which a pretrained model reads the first ``length`` tokens.

    Args:
        name: the name of the column.
        length: the number of tokens per text, L.
        tokens: a function that turns n texts into an array (n, L) of token numbers, with -1 after the end of
            a text. It must map each text independently of the others. It is not part of the schema, so code
            that reads a saved schema must give it again.
    """

    name: str
    length: int
    tokens: Callable[[Sequence[str]], Any] | None = field(default=None, compare=False, repr=False)

    def read(self, cells: Cells, source: str, before: int) -> Floats:
        """Return the tokens of some rows as float32 (n, L).

        Raises:
            InvalidInput: if rows have no text; the message gives their numbers.
        """
        assert self.tokens is not None, "the pretrained model is there before a row is read"
        texts = list(cells)
        missing = [row for row, text in enumerate(texts) if not _is_text(text)]
        if missing:
            raise InvalidInput(
                f"{len(missing):,} rows of column {self.name!r} in {source} hold no text "
                f"({row_numbers([row + 1 + before for row in missing])}). The model has nothing to read in "
                "them. Remove these rows, or write a text for them, such as (none)."
            )
        return np.asarray(self.tokens(texts), dtype=np.float32)


def _is_text(cell: object) -> bool:
    """Return whether a cell is a text that is not blank and has no lone surrogate, so it can be encoded."""
    if not isinstance(cell, str):
        return False
    return bool(cell.strip()) and (cell.isascii() or cell.encode(errors="ignore").decode() == cell)


@dataclass(frozen=True)
class Encoder:
    """Encodes rows of a table as numbers in [-1, 1] by a public schema, for training and for prediction.

    A number, a date or a datetime is one feature, clipped to its bounds and scaled to [-1, 1]. A boolean is
    -1 or 1. A category, or an integer with values but no bounds, has one feature for each value and one for
    all others. A part of a date has one feature for each weekday, month or hour. ``missing = "indicator"``
    adds a feature that is 1 if the cell is missing; the column's other features are then 0. Columns of kind
    text are left out.

    Args:
        columns: the columns by name, in the order of the features.
        target: the column to predict, or a list of them, or None. A list must contain only booleans, which
            are labels, or only numbers.
        dialect: the format of CSV files.
        text: an additional column of texts. Its tokens come first.

    **Guarantee**

    * A row's encoding depends on that row and on the schema alone.
    * Error messages give the numbers of rows, and never the content of a cell.

    Raises:
        InvalidInput, PrivacyRefusal: if a column lacks the bounds or values that it needs, or the targets of
            a list are neither all booleans nor all numbers.

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
                f"column {self.text.name!r} is the text and cannot also be the target or have another kind. "
                'Leave its section out, or declare kind = "text".'
            )
        if not self.inputs_of:
            raise InvalidInput(
                "an encoder needs at least one column besides the target. Declare one that is not of kind "
                "text."
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
        """The columns from which the features are made."""
        return (*(() if self.text is None else (self.text.name,)), *self._declared)

    @property
    def _declared(self) -> tuple[str, ...]:
        targets = self.target_names
        return tuple(
            name for name, column in self.columns.items() if name not in targets and column.kind != "text"
        )

    @property
    def target_names(self) -> tuple[str, ...]:
        """The columns to predict; empty if there is no target."""
        match self.target:
            case None:
                return ()
            case str():
                return (self.target,)
        return tuple(self.target)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features, in the order of the columns of :meth:`inputs`."""
        tokens = () if self.text is None else range(1, self.text.length + 1)
        return (
            *(f"token {place}" for place in tokens),
            *(feature for name in self._declared for feature in feature_names(name, self.columns[name])),
        )

    @property
    def longest(self) -> float:
        """An upper bound on the norm of a row of :meth:`inputs` to which a constant 1 is appended."""
        return math.sqrt(1 + sum(parts_of(self.columns[name]) for name in self._declared))

    @property
    def classes(self) -> tuple[str, ...]:
        """The target's classes in the order of their numbers; empty if the target is a number or a list."""
        return classes_of(self.columns[self.target]) if isinstance(self.target, str) else ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the targets if they are a list of booleans, else empty."""
        targets = () if isinstance(self.target, str) else self.target_names
        return tuple(name for name in targets if self.columns[name].kind == "boolean")

    @property
    def target_bounds(self) -> tuple[tuple[float, float], ...]:
        """The bounds of each target that is a number, which :meth:`targets` scales to -1 and 1."""
        if self.classes or self.labels:
            return ()
        return tuple(bounds_of(self.columns[name]) for name in self.target_names)

    def inputs(self, cells: Mapping[str, Cells], *, source: str = "the table", before: int = 0) -> Floats:
        """Return the features of some rows as float32 (n, d).

        Args:
            cells: for each column, the texts of a file, a typed array or Python objects. Columns that the
                schema does not declare are ignored.
            source: the name of the table in errors.
            before: the number of the table's rows that precede these, for row numbers in errors.

        Raises:
            InvalidInput: if a column is absent, a cell is unreadable, or a cell is missing in a column that
                refuses missing cells.
        """
        table = cells_of_frame(cells, self.inputs_of, source)
        _rows_of(table, source)
        blocks = [
            features_of(table[name], self.columns[name], Place(name, source, before), self.dialect)
            for name in self._declared
        ]
        if self.text is not None:
            blocks.insert(0, self.text.read(table[self.text.name], source, before))
        return np.concatenate(blocks, axis=1)

    def targets(
        self, cells: Mapping[str, Cells], *, source: str = "the table", before: int = 0
    ) -> NDArray[np.int64] | Floats:
        """Return the targets of some rows: class numbers as int64 (n,), or float32 (n, 1) in [-1, 1].

        A list of k targets gives float32 (n, k): 0 or 1 for labels, else numbers in [-1, 1].

        Raises:
            InvalidInput: if there is no target, or cells are missing, unreadable or not a declared class.
        """
        if self.target is None:
            raise InvalidInput("these columns have no target. Name it with target.")
        table = cells_of_frame(cells, self.target_names, source)
        _rows_of(table, source)
        blocks = [
            targets_of(table[name], self.columns[name], Place(name, source, before), self.dialect)
            for name in self.target_names
        ]
        return blocks[0] if isinstance(self.target, str) else np.column_stack(blocks).astype(np.float32)

    def chunks(self, path: Path | str, rows: int = ROWS) -> Iterator[tuple[Floats, range]]:
        """Yield the features of a file, ``rows`` rows at a time, with the numbers of these rows.

        The file is CSV, Parquet or JSON Lines, and need not have the target.

        Raises:
            InvalidInput: as for :meth:`inputs`, or if the file is damaged, perhaps after some pieces.
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
        """Return plain data for JSON; a list keeps the order of the columns."""
        return {
            "columns": [{"name": name} | column.to_data() for name, column in self.columns.items()],
            "target": self.target if self.target is None or isinstance(self.target, str) else [*self.target],
            "dialect": self.dialect.to_data(),
            **({} if self.text is None else {"text": self.text.name, "length": self.text.length}),
        }

    @classmethod
    def from_data(cls, data: object) -> Encoder:
        """Read an encoder from plain data.

        Raises:
            InvalidInput: if the data are not those of an encoder.
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
                    "these are not the data of an encoder: columns, target and dialect, and for a text "
                    "column also text and length."
                )
        by_name = {}
        for column in columns:
            match column:
                case {"name": str(name), **facts} if name not in by_name:
                    by_name[name] = Column.from_data(facts, f"column {name!r}")
                case _:
                    raise InvalidInput("each column of an encoder must have a different name.")
        return cls(by_name, target, Dialect.from_data(dialect, "dialect"), text)


def _check_names(target: str | Sequence[str] | None, columns: Mapping[str, Column]) -> None:
    """Check that targets are columns without buckets, and that a list is not empty and repeats none."""
    names = [] if target is None else [target] if isinstance(target, str) else [*target]
    for name in names:
        if name not in columns:
            raise InvalidInput(
                f"target must be one of the declared columns ({', '.join(columns)}); got {name!r}."
            )
        if columns[name].buckets is not None:
            raise InvalidInput(
                f"the target {name!r} has buckets and cannot be predicted: values in one bucket count as "
                "one. Declare its values."
            )
        if names.count(name) > 1:
            raise InvalidInput(f"target names {name!r} twice: a column is predicted once. Name it once.")
    if target is not None and not names:
        raise InvalidInput("target is an empty list. Name the columns to predict.")


def _check_several(encoder: Encoder) -> None:
    """Check that the targets of a list are all booleans or all numbers."""
    target, columns = encoder.target, encoder.columns
    if target is None or isinstance(target, str) or len(encoder.labels) == len(target):
        return
    if any(classes_of(columns[name]) for name in target):
        got = ", ".join(f"{name!r} of kind {columns[name].kind}" for name in target)
        raise InvalidInput(
            f"target must list only booleans (labels) or only numbers; got {got}. Declare all as one of "
            "these, or predict each in a separate run."
        )


def _rows_of(table: Mapping[str, Cells], source: str) -> int:
    lengths = {name: len(cells) for name, cells in table.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInput(f"the columns of {source} must have one length; got {lengths}.")
    return next(iter(lengths.values()))
