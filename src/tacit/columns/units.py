"""A check for several rows of one unit of privacy, by the column that identifies the units.

If the unit is a patient and the values of ``patient_id`` repeat, a promise for one row is none for a patient.

**Guarantee**

* The result depends on single records.  It is only for the person who has the table, and nothing that is
  released may contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from tacit.columns.dialect import Dialect
from tacit.columns.names import identifies
from tacit.columns.reading import Cells, words_of
from tacit.columns.tables import cells_of_frame, kind_of_frame, names_of_file, names_of_frame, pieces
from tacit.errors import InvalidInput


def unit_columns(names: Sequence[str], unit: str, kinds: Mapping[str, str]) -> list[str]:
    """Return the columns that identify the units by their names.

    Args:
        names: the names of all columns.
        unit: the word for the unit of privacy.
        kinds: the kinds of the declared columns.  A category called ``patient`` may be a kind of patients.
    """
    return [name for name in names if identifies(name, unit, kinds.get(name, ""))]


def repeated_in_file(
    path: Path, unit: str, kinds: Mapping[str, str], dialect: Dialect | None = None
) -> str | None:
    """Return a column of a file that identifies the units and has repeated values; None if there is none."""
    columns = unit_columns(names_of_file(path, dialect), unit, kinds)
    return _repeated(columns, lambda: pieces(path, columns, dialect))


def has_column_names(data: object) -> bool:
    """Return whether the data are a data frame or a mapping.

    >>> has_column_names({"age": [60]}), has_column_names([[60]])
    (True, False)
    """
    try:
        kind_of_frame(data)
    except InvalidInput:
        return False
    return True


def repeated_in_frame(frame: object, unit: str, kinds: Mapping[str, str] | None = None) -> str | None:
    """Return a column of a data frame that identifies the units and has repeated values; None if none has.

    >>> repeated_in_frame({"patient_id": [1, 2, 1], "age": [60, 70, 61]}, "patient")
    'patient_id'
    >>> repeated_in_frame({"patient_id": [1, 2, 1], "age": [60, 70, 61]}, "visit")
    """
    columns = unit_columns(names_of_frame(frame), unit, kinds or {})
    return _repeated(columns, lambda: [cells_of_frame(frame, columns)])


def _repeated(columns: Collection[str], read: Callable[[], Iterable[Mapping[str, Cells]]]) -> str | None:
    if not columns:
        return None

    values: dict[str, set[str]] = {name: set() for name in columns}
    for piece in read():
        for name, before in values.items():
            words = [word for word in words_of(piece[name]) if word is not None]
            distinct = before.union(words)
            if len(distinct) < len(before) + len(words):
                return name
            values[name] = distinct
    return None
