"""Readers of the documents of a corpus, in JSON Lines or Parquet, in the order of files and rows.

In JSON Lines each line is an object with the named fields. A Parquet corpus is a file or a folder of files.
It is read by row groups, so that each of several machines can read some of them. A document's number does not
depend on the machine that reads it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tacit.columns.tables import arrow_with_parquet, check_names
from tacit.datasets.dataset import Owner
from tacit.errors import InvalidInput, without_values


@dataclass(frozen=True)
class Document:
    """A ``text``, with its ``user`` (or several users) and its ``date`` if the user declared their fields."""

    text: str
    user: Owner | None = None
    date: object = None

    @property
    def owner(self) -> Owner:
        """The declared user."""
        assert self.user is not None
        return self.user


def owner_of(values: Sequence[object], *, one: bool) -> Owner | None:
    """Return a document's owner, or a tuple of owners, from the values of its user fields.

    The result is None if there is no value, or a value is neither a string nor an integer. ``one`` says that
    the data set has one user field."""
    entries = [name for value in values for name in (value if isinstance(value, list) else [value])]
    names = [name for name in entries if isinstance(name, str | int) and not isinstance(name, bool)]
    if not names or len(names) < len(entries):
        return None
    return names[0] if one and not isinstance(values[0], list) else tuple(names)


def read_json_lines(
    path: Path, *, text: str, user: str | Sequence[str] | None = None, date: str | None = None
) -> Iterator[Document]:
    """Yield the documents of a JSON Lines file; the errors are those of ``load_documents``."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield _document(line, f"line {number} of {path}", text, user, date)
    except (OSError, EOFError) as problem:
        raise InvalidInput(f"cannot read {path}: {without_values(problem)}. Check the file.") from None
    if not number:
        raise InvalidInput(f"{path} holds no line; it should hold one document a line, each a JSON object.")


def _document(
    line: bytes, where: str, text: str, user: str | Sequence[str] | None, date: str | None
) -> Document:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):  # the error's text would show the line
        raise InvalidInput(
            f"{where} is not JSON in UTF-8. Write one object a line, such as "
            f'{{"{text}": "..."}}, and no empty lines.'
        ) from None
    if not isinstance(data, dict):
        raise InvalidInput(f"{where} is JSON, but not an object with fields. Write one object a line.")
    if not isinstance(content := data.get(text), str):
        problem = "no text" if text in data else "missing"
        raise InvalidInput(
            f'{where}: the field "{text}" is {problem}. Name the field of the text as [data] text, and leave '
            "lines without it out of the file."
        )
    try:
        content.encode()
    except UnicodeEncodeError:  # JSON can contain half of a pair that stands for one character
        raise InvalidInput(
            f'{where}: the field "{text}" holds half of a surrogate pair, which is not a character. Write '
            "the file again from the original text."
        ) from None
    when = None if date is None else data.get(date)
    if date is not None and not isinstance(when, str):
        raise InvalidInput(
            f'{where}: the field "{date}" is {"no text" if date in data else "missing"}. [data] date names '
            "the field of the day on which a document arrived, such as 2026-03-01."
        )
    if user is None:
        return Document(content, date=when)
    fields = [user] if isinstance(user, str) else [*user]
    owner = owner_of([data.get(field) for field in fields], one=isinstance(user, str))
    if owner is None:
        wrong = next(field for field in fields if owner_of([data.get(field)], one=True) is None)
        problem = "neither a text nor a whole number, nor a list of them" if wrong in data else "missing"
        raise InvalidInput(
            f'{where}: the field "{wrong}" is {problem}. [data] user names the field that tells users apart; '
            "every document needs one."
        )
    return Document(content, owner, when)


@final
@dataclass(frozen=True)
class CorpusPart:
    """One row group of a file, and the number of its first row in that file."""

    path: str
    group: int
    first_row: int


def corpus_parts(path: Path) -> list[CorpusPart]:
    """Return the row groups of a Parquet corpus, in order.

    Raises:
        InvalidInput: if there is no Parquet file, or a file cannot be read.
    """
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise InvalidInput(f"{path} holds no file whose name ends in .parquet. Give the path of the corpus.")
    parts: list[CorpusPart] = []
    for file in files:
        metadata = _opened(str(file)).metadata
        row = 0
        for group in range(metadata.num_row_groups):
            parts.append(CorpusPart(str(file), group, row))
            row += metadata.row_group(group).num_rows
    return parts


def read_corpus(
    path: Path, *, text: str, user: str | Sequence[str] | None = None, date: str | None = None
) -> Iterator[Document]:
    """Yield the documents of a Parquet corpus; the errors are those of :func:`read_part`."""
    count = 0
    for part in corpus_parts(path):
        for document in read_part(part, text=text, user=user, date=date):
            yield document
            count += 1
    if not count:
        raise InvalidInput(f"{path} holds no row; it should hold one document a row.")


def read_part(
    part: CorpusPart, *, text: str, user: str | Sequence[str] | None = None, date: str | None = None
) -> Iterator[Document]:
    """Yield the documents of one row group.

    Args:
        part: the row group to read.
        text: the column of the text, which contains strings.
        user: the column of the document's user, or several columns. They contain strings, integers or lists
            of them.
        date: the column of the document's arrival day, which contains dates, times or strings.

    Raises:
        InvalidInput: if a column is missing or has another type, or if a cell is empty. The message contains
            the number of the row, but none of its content.
    """
    file = _opened(part.path)
    user_columns = [] if user is None else [user] if isinstance(user, str) else [*user]
    columns_needed = [text, *user_columns, *([] if date is None else [date])]
    types = {field.name: field.type for field in file.schema_arrow}
    for name in columns_needed:
        if name not in types:
            raise InvalidInput(
                f'{part.path} has no column "{name}". [data] text, user and date name columns of the corpus.'
            )
        if name == date and arrow_with_parquet().types.is_temporal(types[name]):
            continue
        _check_type(part.path, name, types[name], of_people=name in user_columns)
    check_names(file.schema_arrow.names, columns_needed, part.path)
    row = part.first_row
    try:
        for batch in file.iter_batches(row_groups=[part.group], columns=columns_needed):
            columns = [batch.column(name).to_pylist() for name in columns_needed]
            for cells in zip(*columns, strict=True):
                if None in cells:
                    raise InvalidInput(
                        f'{part.path}, row {row}: "{columns_needed[cells.index(None)]}" is empty. Leave such '
                        "rows out of the corpus."
                    )
                owner = owner_of(cells[1 : 1 + len(user_columns)], one=isinstance(user, str))
                if user_columns and owner is None:
                    raise InvalidInput(
                        f"{part.path}, row {row}: a list of users is empty, or has an empty entry. Leave "
                        "such rows out of the corpus."
                    )
                yield Document(cells[0], owner, None if date is None else cells[-1])
                row += 1
    except (OSError, arrow_with_parquet().ArrowException) as problem:
        raise _unreadable(part.path, problem) from None


def _check_type(path: str, name: str, kind: Any, *, of_people: bool) -> None:
    types = arrow_with_parquet().types
    if of_people and (types.is_list(kind) or types.is_large_list(kind)):
        kind = kind.value_type
    value = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(value) or types.is_large_string(value):
        return
    if of_people and types.is_integer(value):
        return
    required = "strings or whole numbers" if of_people else "strings"
    raise InvalidInput(f'{path}: the column "{name}" is of type {kind}; it must hold {required}.')


def _opened(path: str) -> Any:
    arrow = arrow_with_parquet()
    try:
        return arrow.parquet.ParquetFile(path)
    except (OSError, arrow.ArrowException) as problem:
        raise _unreadable(path, problem) from None


def _unreadable(path: str, problem: Exception) -> InvalidInput:
    return InvalidInput(
        f"{path} cannot be read as a Parquet file: {without_values(problem)}. Check the file."
    )
