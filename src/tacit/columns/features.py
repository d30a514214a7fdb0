"""The features of one column: a number in [-1, 1], or one feature for each declared value."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.columns.column import Column, no_data_bounds
from tacit.columns.dialect import Dialect
from tacit.columns.moments import PART_NAMES, codes_of_part
from tacit.columns.reading import Cells, declared_missing, numbers_of, words_of
from tacit.columns.tables import ROWS, row_numbers
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
    """Check that a column has the facts that a feature or a target needs.

    Raises:
        InvalidInput: if the column is of kind text.
        PrivacyRefusal: if the column lacks the bounds or values that it needs.
    """
    if column.kind == "text":
        raise InvalidInput(
            f'column {name!r} is text and cannot be predicted. Declare another kind, such as "category".'
        )
    has_values = column.kind == "boolean" or column.values is not None or column.buckets is not None
    if column.lower is None and not has_values:
        facts = "values, or buckets," if column.kind == "category" else "lower and upper"
        raise PrivacyRefusal(f"column {name!r} lacks {facts}: {no_data_bounds('a column')}")


def _is_listed(column: Column) -> bool:
    """Return whether a column has one feature or class for each declared value."""
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
    """Return the bounds of a column that must have them, as numbers."""
    low, high = column.low, column.high
    assert low is not None, "checked when the encoder was made"
    assert high is not None, "checked with it"
    return low, high


def feature_names(name: str, column: Column) -> Iterator[str]:
    """Yield the names of a column's features, in order."""
    if is_one_hot(column):
        yield from (f"{name}={value}" for value in (*column.listed, "other"))
    else:
        yield name
    yield from (f"{name} {words}" for words in _bin_names(column.edges))
    for part in column.parts:
        yield from (f"{name} {part}={value}" for value in PART_NAMES[part])
    if column.missing == "indicator":
        yield f"{name} missing"


def parts_of(column: Column) -> int:
    """Return how many features of a column can differ from 0 in one row; each is at most 1 in size."""
    return 1 + bool(column.edges) + len(column.parts)


def _bin_names(edges: Sequence[float]) -> Iterator[str]:
    if edges:
        yield f"< {edges[0]:g}"
        yield from (f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges))
        yield f">= {edges[-1]:g}"


# --- cells ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The position of cells in a table, for messages: column, source, and the number of rows before them."""

    column: str
    source: str
    before: int

    def __str__(self) -> str:
        return f"column {self.column!r} of {self.source}"

    def rows(self, places: NDArray[np.int64]) -> str:
        """Return a text with the numbers of the first few rows at these indices."""
        first = (places[:10] + 1 + self.before).tolist()
        return row_numbers(first, len(places))


def features_of(cells: Cells, column: Column, place: Place, dialect: Dialect) -> Floats:
    """Return the k features of one column as an array (n, k).

    Raises:
        InvalidInput: if cells are unreadable, or missing in a column that refuses this.
    """
    if is_one_hot(column):
        block, lacking = _one_hot(cells, column, place, dialect)
    else:
        block, lacking = _scalar(cells, column, place, dialect)
    match column.missing:
        case "refuse":
            _refuse_missing(lacking, place)
        case "indicator":
            block[lacking] = 0.0
            block = np.concatenate([block, lacking[:, None].astype(np.float32)], axis=1)
    return block


def _one_hot(
    cells: Cells, column: Column, place: Place, dialect: Dialect
) -> tuple[Floats, NDArray[np.bool_]]:
    codes, lacking = _codes(cells, column, place, dialect)
    if column.missing not in ("refuse", "indicator"):
        values = column.listed
        value = _text_of(column.missing)
        codes[lacking] = values.index(value) if value in values else len(values)
    return np.eye(len(column.listed) + 1, dtype=np.float32)[codes], lacking


def _text_of(value: object) -> str:
    return str(int(value)) if isinstance(value, float) else str(value)


def _scalar(cells: Cells, column: Column, place: Place, dialect: Dialect) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the features (scaled value, bins, date parts), and whether each cell is missing."""
    values = _read_numbers(cells, column, place, dialect)
    lacking = np.isnan(values)
    if column.missing not in ("refuse", "indicator"):
        values = np.where(lacking, column.number_of(column.missing), values)
    parts = [codes_of_part(part, column.kind, values) for part in column.parts]
    blocks = [np.nan_to_num(_scaled(values, column), nan=0.0)[:, None]]
    if column.edges:
        codes = np.searchsorted(column.edges, np.clip(values, *bounds_of(column)), side="right")
        blocks.append(np.eye(len(column.edges) + 1, dtype=np.float32)[codes])  # NaN: refused or zeroed later
    blocks += [
        np.eye(len(PART_NAMES[part]), dtype=np.float32)[codes]
        for part, codes in zip(column.parts, parts, strict=True)
    ]
    return np.concatenate(blocks, axis=1), lacking


def _scaled(values: NDArray[np.float64], column: Column) -> Floats:
    low, high = (0.0, 1.0) if column.kind == "boolean" else bounds_of(column)
    scaled: NDArray[np.float64] = 2.0 * (np.clip(values, low, high) - low) / (high - low) - 1.0
    return scaled.astype(np.float32)


def _read_numbers(cells: Cells, column: Column, place: Place, dialect: Dialect) -> NDArray[np.float64]:
    """Read the cells as numbers, with NaN for missing ones, and refuse unreadable ones."""
    try:
        values, wrong = numbers_of(cells, column, dialect)
    except InvalidInput as problem:  # the whole column is of another type
        raise InvalidInput(f"{place}: {problem} Declare the kind that it has, or convert it.") from None
    fault = _FAULTS[column.kind]
    if column.kind == "integer" and not len(wrong):
        wrong = np.flatnonzero(np.isfinite(values) & (values != np.floor(values)))
        fault = "are no whole numbers"
    if len(wrong):
        form = f" of the form {column.format!r}" if column.format else ""
        raise InvalidInput(
            f"{len(wrong):,} values in {place} {fault}{form} ({place.rows(wrong)}). Correct the table, or "
            f"declare what the column is: {_FIXES.get(column.kind, 'its kind, its format')}, or words for a "
            "missing value (missing_values)."
        )
    return values


_OF_NUMBERS = "its kind, the form of its numbers (decimal, thousands, unit, below)"
_OF_BOOLEANS = (
    'kind = "integer" with lower and upper, kind = "category" with values, or its words (true, false)'
)
_FIXES = {"number": _OF_NUMBERS, "integer": _OF_NUMBERS, "boolean": _OF_BOOLEANS}


def _codes(
    cells: Cells, column: Column, place: Place, dialect: Dialect
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the index of each cell's value, and whether the cell is missing.

    All undeclared values share one index, the number of declared values.
    """
    values = column.listed
    words: Sequence[str | None]
    if column.kind == "integer":
        numbers = _read_numbers(cells, column, place, dialect)
        words = [None if np.isnan(number) else str(int(number)) for number in numbers]
    else:
        words = words_of(cells, values, declared_missing(column, dialect))
        if column.buckets is not None:
            words = [None if word is None else values[_hash(word) % len(values)] for word in words]
    number = {value: code for code, value in enumerate(values)}
    codes = np.fromiter((number.get(word, len(values)) for word in words), np.int64, len(words))  # type: ignore[arg-type]
    return codes, np.fromiter((word is None for word in words), np.bool_, len(words))


def _hash(word: str) -> int:
    """Hash a word to the same number on every machine and in every version of Python."""
    return zlib.crc32(word.encode())


def _refuse_missing(lacking: NDArray[np.bool_], place: Place, *, target: bool = False) -> None:
    if not lacking.any():
        return
    rows = np.flatnonzero(lacking)
    whole = not place.before and len(lacking) < ROWS  # this piece is the whole table
    read = f"{'' if whole else 'the first '}{place.before + len(lacking):,}"
    fix = (
        "since nothing can be learnt from them"
        if target
        else 'or declare missing for the column: a public value that takes its place, or "indicator"'
    )
    raise InvalidInput(
        f"{len(rows):,} of {read} rows lack {'the target' if target else 'a value'}, {place} "
        f"({place.rows(rows)}). Remove these rows, {fix}."
    )


# --- targets ---------------------------------------------------------------------------------------------


def targets_of(cells: Cells, column: Column, place: Place, dialect: Dialect) -> NDArray[np.int64] | Floats:
    """Return the class numbers (n,) of a column, or its values (n, 1) in [-1, 1].

    Raises:
        InvalidInput: if cells are missing, unreadable or not a declared class.
    """
    if column.kind == "boolean" or not _is_listed(column):
        values = _read_numbers(cells, column, place, dialect)
        _refuse_missing(np.isnan(values), place, target=True)
        return values.astype(np.int64) if column.kind == "boolean" else _scaled(values, column)[:, None]
    codes, lacking = _codes(cells, column, place, dialect)
    _refuse_missing(lacking, place, target=True)
    classes = classes_of(column)
    if len(strange := np.flatnonzero(codes == len(classes))):
        raise InvalidInput(
            f"{len(strange):,} labels in {place} are not among the declared classes ({', '.join(classes)}): "
            f"{place.rows(strange)}. Declare every class, or mend the table."
        )
    return codes
