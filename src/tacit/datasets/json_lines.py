"""Which documents does a JSON Lines file hold? One a line, each an object with the fields that are named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.datasets.dataset import Owner
from tacit.errors import InvalidInput, without_values


@dataclass(frozen=True)
class Document:
    """A ``text``; the ``user`` whom it is of, or all of them, and its ``date``, where they are declared."""

    text: str
    user: Owner | None = None
    date: object = None

    @property
    def owner(self) -> Owner:
        """The user, who was declared."""
        assert self.user is not None
        return self.user


def owner_of(values: Sequence[object], *, one: bool) -> Owner | None:
    """Whose a document is, by what its fields hold: a name, or a list of names; None if one is no name."""
    held = [name for value in values for name in (value if isinstance(value, list) else [value])]
    names = [name for name in held if isinstance(name, str | int) and not isinstance(name, bool)]
    if not names or len(names) < len(held):
        return None
    return names[0] if one and not isinstance(values[0], list) else tuple(names)


def read_json_lines(
    path: Path, *, text: str, user: str | Sequence[str] | None = None, date: str | None = None
) -> Iterator[Document]:
    """The documents of a JSON Lines file one by one; errors as of ``load_documents``."""
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
    except (ValueError, RecursionError):  # whose message would show the line
        raise InvalidInput(
            f"{where} is not JSON in UTF-8. Write one object a line, such as "
            f'{{"{text}": "..."}}, and no empty lines.'
        ) from None
    if not isinstance(data, dict):
        raise InvalidInput(f"{where} is JSON, but no object with fields. Write one object a line.")
    if not isinstance(found := data.get(text), str):
        what = "no text" if text in data else "missing"
        raise InvalidInput(
            f'{where}: the field "{text}" is {what}. Name the field of the text as [data] text, and leave '
            "lines without it out of the file."
        )
    try:
        found.encode()
    except UnicodeEncodeError:  # JSON can hold half of a pair that stands for one character
        raise InvalidInput(
            f'{where}: the field "{text}" holds half of a surrogate pair, which is no character. Write the '
            "file again from the original text."
        ) from None
    when = None if date is None else data.get(date)
    if date is not None and not isinstance(when, str):
        raise InvalidInput(
            f'{where}: the field "{date}" is {"no text" if date in data else "missing"}. [data] date names '
            "the field of the day on which a document arrived, such as 2026-03-01."
        )
    if user is None:
        return Document(found, date=when)
    fields = [user] if isinstance(user, str) else [*user]
    owner = owner_of([data.get(field) for field in fields], one=isinstance(user, str))
    if owner is None:
        wrong = next(field for field in fields if owner_of([data.get(field)], one=True) is None)
        what = "neither a text nor a whole number, nor a list of them" if wrong in data else "missing"
        raise InvalidInput(
            f'{where}: the field "{wrong}" is {what}. [data] user names the field that tells users apart; '
            "every document needs one."
        )
    return Document(found, owner, when)
