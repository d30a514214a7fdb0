"""Lines of text as characters, and documents of a corpus as tokens."""

from __future__ import annotations

import gzip
import json
import os
import string
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.columns.examples import (
    FIELDS,
    NAMED,
    Names,
    each_of,
    in_run_file,
    messages_of,
    proposed_fields,
)
from tacit.columns.tables import arrow_with_parquet, check_names
from tacit.datasets.dataset import (
    Dataset,
    Owner,
    Owners,
    Spelling,
    TensorPair,
    check_one_test,
    check_some,
    choose_people,
    choose_test,
)
from tacit.errors import InvalidInput, PrivacyRefusal, check_in, check_integer, without_values

END = 0
"""The number before the first and after the last character of a record."""
PADDING = -100
"""The target at positions after the end of a record, which the loss ignores."""


@final
@dataclass(frozen=True)
class Alphabet:
    """The declared characters of records, numbered from 1."""

    characters: str

    def __post_init__(self) -> None:
        twice = sorted({c for c in self.characters if self.characters.count(c) > 1})
        if len(self.characters) < 2 or twice or set(self.characters) & set("\r\n"):
            problem = f"{twice[0]!r} stands in it twice" if twice else f"got {self.characters!r}"
            raise InvalidInput(
                f"alphabet must have at least 2 characters, each once, and no line break; {problem}."
            )

    @property
    def tokens(self) -> int:
        """V, the number of tokens: the characters and the end."""
        return 1 + len(self.characters)

    def missing(self, text: str) -> int:
        """Return the position, from 1, of the first undeclared character in ``text``; 0 if there is none."""
        places = (place for place, character in enumerate(text, 1) if character not in self.characters)
        return next(places, 0)

    def encode(self, text: str) -> list[int]:
        if place := self.missing(text):
            raise InvalidInput(f"character {place} of the text is not in the alphabet {self.characters!r}.")
        return [1 + self.characters.index(character) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of character numbers, with ⏎ for an end."""
        return "".join("⏎" if token == END else self.characters[int(token) - 1] for token in tokens)


def token_pair(records: Sequence[str], alphabet: Alphabet, longest: int) -> TensorPair:
    """Return the inputs and targets of a language model, which predicts each character from those before.

    ``inputs`` (n, L) int64 begin with END, and ``targets`` (n, L) int64 end with it; L = ``longest`` + 1.
    """
    inputs = np.full((len(records), longest + 1), END, dtype=np.int64)
    targets = np.full((len(records), longest + 1), PADDING, dtype=np.int64)
    for row, record in enumerate(records):
        tokens = alphabet.encode(record)
        if len(tokens) > longest:
            raise InvalidInput(
                f"record {row} has more characters than longest = {longest}. Increase longest, or shorten "
                "each record by a rule that depends on that record alone."
            )
        inputs[row, 1 : len(tokens) + 1] = tokens
        targets[row, : len(tokens) + 1] = [*tokens, END]
    return TensorPair(torch.from_numpy(inputs), torch.from_numpy(targets))


def load_text(
    path: Path,
    *,
    alphabet: str,
    longest: int,
    test_fraction: float | None = None,
    test_path: Path | None = None,
    unit: str = "line",
) -> Dataset:
    """Read a text file in UTF-8, plain or .gz, with one record per line.

    Args:
        path: the file.
        alphabet: a string of all characters that a line may contain.
        longest: the largest number of characters in a line.
        test_fraction: the share of lines to use as test data. A hash of each line alone chooses them, so
            adding or removing a line moves no other line between training and test.
        test_path: a file of test lines, instead of ``test_fraction``.

    Returns:
        The dataset. Its inputs and targets are (n, longest + 1) int64.

    **Guarantee**

    * A record's numbers depend only on that record's line and on declared settings.

    Raises:
        InvalidInput: if a file cannot be read or is not UTF-8, or a line is empty, is too long or has a
            character outside the alphabet. The message names the line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "names.txt"
    >>> _ = path.write_text("anna\\nben\\n")
    >>> data = load_text(path, alphabet="abenr", longest=4, test_path=path)
    >>> data.train.inputs.tolist()
    [[0, 1, 4, 4, 1], [0, 2, 3, 4, 0]]
    """
    letters = Alphabet(alphabet)
    check_integer("longest", longest, low=1)
    check_one_test(test_fraction, test_path, "records")
    lines = list(stream_records(path, letters, longest))
    if test_path is not None:
        test_lines = list(stream_records(test_path, letters, longest))
    else:
        assert test_fraction is not None, "as was checked"
        marks = choose_test((line.encode() for line in lines), test_fraction)
        check_some(marks, test_fraction, what="record", instead="a file of test records")
        test_lines = [line for line, test in zip(lines, marks, strict=True) if test]
        lines = [line for line, test in zip(lines, marks, strict=True) if not test]
    return Dataset(
        path.name.split(".")[0],
        token_pair(lines, letters, longest),
        token_pair(test_lines, letters, longest),
        classes=(),
        source=f"text {path.name}, one record a line, {len(alphabet)} declared characters",
        unit=unit,
        alphabet=letters.characters,
    )


def _numbered_lines(path: Path, record: str) -> Iterator[tuple[int, bytes]]:
    """Yield the number, from 1, and the bytes of each line of a file, plain or .gz, which holds some."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                content = line.removeprefix(BOM_UTF8) if number == 1 else line
                if not content:
                    number = 0  # the file has only the byte order mark
                    break
                yield number, content
    except (OSError, EOFError) as problem:
        raise InvalidInput(f"cannot read {path}: {without_values(problem)}. Check the file.") from None
    if not number:
        raise InvalidInput(f"{path} is empty. Write one {record} per line.")


def stream_lines(path: Path) -> Iterator[str]:
    for number, line in _numbered_lines(path, "record"):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise InvalidInput(
                f"{path} is not UTF-8 in line {number}. Save it as UTF-8, one record a line."
            ) from None
        yield text.removesuffix("\n").removesuffix("\r")


def stream_records(path: Path, alphabet: Alphabet, longest: int) -> Iterator[str]:
    """Yield the records of a text file, each a line that fits; errors name a line, and print none of it."""
    for number, line in enumerate(stream_lines(path), 1):
        if not line:
            raise InvalidInput(f"line {number} of {path} is empty. Remove every empty line.")
        if len(line) > longest:
            raise InvalidInput(
                f"line {number} of {path} has more characters than longest = {longest}. Increase longest, or "
                "shorten each line by a rule that depends on that line alone."
            )
        if place := alphabet.missing(line):
            raise InvalidInput(
                f"character {place} of line {number} of {path} is not in the alphabet. Add it there, or "
                "replace it in the file."
            )
        yield line


NAMES_ALPHABET = " " + string.ascii_lowercase + string.digits
"""The characters of the names, and of secrets that experiments plant among them."""
NAMES_LONGEST = 15

_FILES = ("names.txt", "names.txt.gz")
_SOURCE = "https://github.com/karpathy/makemore"
_TEST_FRACTION = 0.2


def names_file(folder: Path | None = None) -> Path:
    """Return the file of first names in ``folder`` or else the folder that TACIT_DATA names, plain or .gz."""
    named = {"folder": folder, "the environment variable TACIT_DATA": os.environ.get("TACIT_DATA") or None}
    folders = {name: Path(path).expanduser() for name, path in named.items() if path is not None}
    for name, path in folders.items():
        if not path.is_dir():
            raise InvalidInput(f"{name} must name an existing folder; got {str(path)!r}.")
    for found in (place / file for place in folders.values() for file in _FILES):
        if found.is_file():
            return found
    places = ", ".join(map(str, folders.values())) or "no folder"
    raise InvalidInput(
        f"names.txt was not found in {places}. Take it from {_SOURCE}, put it in a folder, and name that "
        "with folder=... or the environment variable TACIT_DATA."
    )


def load_names(*, folder: Path | None = None) -> tuple[str, ...]:
    """Return 32,033 first names in lower case, a common example for small language models."""
    return tuple(stream_records(names_file(folder), Alphabet(NAMES_ALPHABET), NAMES_LONGEST))


def names_dataset(*, folder: Path | None = None) -> Dataset:
    """Return the first names as a dataset, with about 1 in 5 for testing, chosen by a hash."""
    data = load_text(
        names_file(folder),
        alphabet=NAMES_ALPHABET,
        longest=NAMES_LONGEST,
        test_fraction=_TEST_FRACTION,
        unit="name",
    )
    return replace(data, source=f"first names from {_SOURCE}, one a record")


@dataclass(frozen=True)
class Fields:
    """The fields or columns of a document's text, of its user or users, and of the day when it arrived.

    ``text`` is a tuple for examples that are no documents: the fields of a prompt and its completion, of a
    chat, or of two answers. A prompt may have several fields; all but the first may be empty.
    """

    text: str | tuple[Names, ...]
    user: str | Sequence[str] | None = None
    date: str | None = None

    @property
    def parts(self) -> tuple[Names, ...]:
        return (self.text,) if isinstance(self.text, str) else self.text

    @property
    def of_content(self) -> tuple[str, ...]:
        return tuple(name for names in self.parts for name in each_of(names))

    @property
    def may_be_empty(self) -> tuple[str, ...]:
        return tuple(name for names in self.parts for name in each_of(names)[1:])

    @property
    def users(self) -> list[str]:
        if self.user is None:
            return []
        return [self.user] if isinstance(self.user, str) else [*self.user]


@dataclass(frozen=True)
class Document:
    """A ``text``, with its ``user`` (or several users) and its ``date`` if the user declared their fields.

    An example that is no document has the values of its fields as ``parts``, and as JSON in ``text``.
    ``where`` names its line or row in messages.
    """

    text: str
    user: Owner | None = None
    date: object = None
    parts: tuple[Any, ...] = ()
    where: str = ""

    @property
    def owner(self) -> Owner:
        assert self.user is not None
        return self.user


def owner_of(values: Sequence[object], *, one: bool) -> Owner | None:
    """Return a document's owner, or a tuple of owners, from the values of its user fields.

    The result is None if there is no value, or a value is neither a string nor an integer. ``one`` says that
    the dataset has one user field.
    """
    entries = [name for value in values for name in (value if isinstance(value, list) else [value])]
    names = [name for name in entries if isinstance(name, str | int) and not isinstance(name, bool)]
    if not names or len(names) < len(entries):
        return None
    return names[0] if one and not isinstance(values[0], list) else tuple(names)


def _document(line: bytes, where: str, fields: Fields) -> Document:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):  # the error's text would show the line
        raise InvalidInput(
            f"{where} is not JSON in UTF-8. Write one object per line, such as "
            f'{{"{fields.of_content[0]}": "..."}}, and no empty lines.'
        ) from None
    if not isinstance(data, dict):
        raise InvalidInput(f"{where} is JSON, but not an object with fields. Write one object a line.")

    _check_form(data, where, fields)
    text, parts = _content(data, where, fields)
    date = fields.date
    when = None if date is None else data.get(date)
    if date is not None and not isinstance(when, str):
        raise InvalidInput(
            f'{where}: the field "{date}" is {"no text" if date in data else "missing"}. Set [data] date to '
            "the field with the day on which a document arrived, such as 2026-03-01."
        )

    owner = owner_of([data.get(field) for field in fields.users], one=isinstance(fields.user, str))
    if owner is None and fields.users:
        wrong = next(field for field in fields.users if owner_of([data.get(field)], one=True) is None)
        problem = "neither a text nor a whole number, nor a list of them" if wrong in data else "missing"
        raise InvalidInput(
            f'{where}: the field "{wrong}" is {problem}. Set [data] user to the field that identifies the '
            "user; every document needs one."
        )
    return Document(text, owner, when, parts, where)


def _check_form(example: Mapping[str, Any], where: str, fields: Fields) -> None:
    """Refuse a field as a document's text if by its name it is a part of an example of another form."""
    if fields.text not in FIELDS or fields.text == "text":
        return
    if (proposed := proposed_fields(example)) and "text" not in proposed:
        raise InvalidInput(
            f'{where}: with [data] text = "{fields.text}" the model would learn this field alone, but the '
            f"line is a chat or has an answer. {_proposal(example)} To learn the field alone, rename it."
        )


def _content(example: Mapping[str, Any], where: str, fields: Fields) -> tuple[str, tuple[Any, ...]]:
    """Return the text of an example, and its parts if it is no document."""
    of_document = isinstance(fields.text, str)
    parts = [_part(example, names, where, fields) for names in fields.parts]
    text: str = parts[0] if of_document else json.dumps(parts, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can contain half of a pair that stands for one character
        raise InvalidInput(
            f'{where}: the field "{fields.of_content[0]}" contains an invalid character (half of a surrogate '
            "pair). Write the file again from the original text."
        ) from None
    return text, () if of_document else tuple(parts)


def _part(example: Mapping[str, Any], names: Names, where: str, fields: Fields) -> Any:
    """Return a text or a chat; the texts of several fields with an empty line between them."""
    if isinstance(names, str):
        messages = None if isinstance(fields.text, str) else messages_of(example.get(names))
        return _text(example, names, where, fields) if messages is None else messages

    texts = [
        _text(example, name, where, fields)
        for name in names
        if name not in fields.may_be_empty or example.get(name) not in (None, "")
    ]
    return "\n\n".join(texts)


def _text(example: Mapping[str, Any], name: str, where: str, fields: Fields) -> str:
    of_document = isinstance(fields.text, str)
    expected = ["text"] * (of_document or len(fields.of_content) > 1)
    expected += [] if of_document else ["list of messages with role and content"]
    value = example.get(name)
    if isinstance(value, str) and "text" in expected:
        return value
    problem = f"no {' and no '.join(expected)}" if name in example else "missing"
    of_this_form = any(other in example for other in fields.of_content)
    advice = "Correct the line, or remove it." if of_this_form else _proposal(example)
    raise InvalidInput(f'{where}: the field "{name}" is {problem}. {advice}')


def _proposal(example: Mapping[str, Any]) -> str:
    """Say what to set for an example, if its fields have names that tell nothing of it."""
    proposed = proposed_fields(example)
    if proposed and all(name in NAMED for names in proposed.values() for name in each_of(names)):
        return f"Set [data] {in_run_file(proposed)}."
    return (
        "Name the field of the text as [data] text, or those of another form, such as prompt and completion; "
        "leave lines without them out of the file."
    )


@final
@dataclass(frozen=True)
class CorpusPart:
    """One row group of a file, and the number of its first row in that file."""

    path: str
    group: int
    first_row: int


def corpus_parts(path: Path) -> list[CorpusPart]:
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise InvalidInput(f"{path} contains no .parquet file. Give the path of the corpus.")
    parts: list[CorpusPart] = []
    for file in files:
        metadata = _opened(str(file)).metadata
        row = 0
        for group in range(metadata.num_row_groups):
            parts.append(CorpusPart(str(file), group, row))
            row += metadata.row_group(group).num_rows
    return parts


def read_part(part: CorpusPart, fields: Fields) -> Iterator[Document]:
    """Yield the documents of one row group; errors name a row, and print none of its content."""
    file, date, users = _opened(part.path), fields.date, fields.users
    content = fields.of_content
    columns_needed = [*content, *users, *([] if date is None else [date])]
    types = {field.name: field.type for field in file.schema_arrow}
    for name in columns_needed:
        if name not in types:
            raise InvalidInput(
                f'{part.path} has no column "{name}". Correct [data] text, user or date, which name columns '
                "of this file."
            )
        if name == date and arrow_with_parquet().types.is_temporal(types[name]):
            continue
        if name in content and not isinstance(fields.text, str):
            continue  # a text or a chat, which the rows show
        _check_type(part.path, name, types[name], of_people=name in users)
    check_names(file.schema_arrow.names, columns_needed, part.path)
    _check_form({name: _like_cells(kind) for name, kind in types.items()}, part.path, fields)
    row = part.first_row
    try:
        for batch in file.iter_batches(row_groups=[part.group], columns=columns_needed):
            columns = [batch.column(name).to_pylist() for name in columns_needed]
            for cells in zip(*columns, strict=True):
                where = f"{part.path}, row {row}"
                for name, cell in zip(columns_needed, cells, strict=True):
                    if cell is None and name not in fields.may_be_empty:
                        raise InvalidInput(f'{where}: "{name}" is empty. Remove rows with empty values.')
                people = cells[len(content) : len(content) + len(users)]
                owner = owner_of(people, one=isinstance(fields.user, str))
                if users and owner is None:
                    raise InvalidInput(
                        f"{where}: a list of users is empty, or has an empty entry. Remove such rows from "
                        "the corpus."
                    )
                text, parts = _content(dict(zip(content, cells, strict=False)), where, fields)
                yield Document(text, owner, None if date is None else cells[-1], parts, where)
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


def _like_cells(kind: Any) -> object:
    """Return an empty chat for a column of lists of records, and an empty text for any other."""
    types = arrow_with_parquet().types
    listed = types.is_list(kind) or types.is_large_list(kind)
    return [{"role": "", "content": ""}] if listed and types.is_struct(kind.value_type) else ""


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


@final
@dataclass(frozen=True)
class Cutting:
    """A rule that cuts each document into sequences of tokens. Choose it without looking at the data.

    Args:
        length: the number of tokens in a sequence.
        keep: "first" for only the first sequence of each document, or "split" for all of them, without
            overlap.
        padding: the token that fills up short sequences. The loss ignores these positions.

    >>> cutting = Cutting(3, "split", padding=0)
    >>> list(cutting.pieces([5, 6, 7, 8])), list(Cutting(3, "first", padding=0).pieces([5, 6, 7, 8]))
    ([[5, 6, 7], [8]], [[5, 6, 7]])
    """

    length: int
    keep: Literal["first", "split"]
    padding: int

    def __post_init__(self) -> None:
        check_integer("length", self.length, low=2)
        check_in("keep", self.keep, ("first", "split"))

    def describe(self, path: Path) -> str:
        """Return a line for the privacy statement: how the documents in the file ``path`` are cut."""
        part = "the first sequence" if self.keep == "first" else "all sequences"
        return f"documents in {path.name}: {part} of {self.length} tokens of each"

    def pieces(self, tokens: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield the sequences of one document, without padding; yield nothing if it has no tokens."""
        stop = len(tokens) if self.keep == "split" else min(1, len(tokens))
        yield from (tokens[start : start + self.length] for start in range(0, stop, self.length))


def sequence_pair(sequences: Sequence[Sequence[int]], cutting: Cutting) -> TensorPair:
    """Return the inputs and targets of a language model, which predicts each token from those before it.

    ``inputs`` (n, T) int64 are the tokens. ``targets`` (n, T) int64 are the tokens that follow them, with
    -100 after the end.
    """
    inputs = np.full((len(sequences), cutting.length), cutting.padding, dtype=np.int64)
    for row, tokens in enumerate(sequences):
        inputs[row, : len(tokens)] = tokens
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    return with_targets(inputs, lengths)


def with_targets(inputs: NDArray[np.integer], lengths: NDArray[np.integer]) -> TensorPair:
    """Pair tokens (n, T) with the tokens that follow; only the first ``lengths`` (n,) of each row count."""
    targets = np.full(inputs.shape, PADDING, dtype=np.int64)
    targets[:, :-1] = inputs[:, 1:]
    targets[np.arange(1, inputs.shape[1] + 1) >= lengths[:, None]] = PADDING
    return TensorPair(torch.from_numpy(inputs.astype(np.int64, copy=False)), torch.from_numpy(targets))


@final
@dataclass(frozen=True)
class Answered:
    """The tokens of an example, and for each whether it counts in the loss; the prompt precedes the first."""

    tokens: Sequence[int]
    learned: Sequence[bool]

    @property
    def prompt(self) -> int:
        """The number of tokens of the prompt."""
        return self.learned.index(True) if True in self.learned else len(self.tokens)


def answered_pair(examples: Sequence[Sequence[Answered]], cutting: Cutting) -> TensorPair:
    """Return inputs and targets, as :func:`sequence_pair`, but with -100 for tokens that are not learned.

    They are (n, L), or (n, k, L) for examples of k > 1 answers.  Prompts are truncated at the start, equally
    within an example, so that the answers fit; longer answers are truncated at the end.

    >>> one = Answered([5, 6, 7, 8, 9], [False, False, False, True, True])
    >>> answered_pair([[one]], Cutting(4, "first", padding=0))
    TensorPair(inputs=tensor([[6, 7, 8, 9]]), targets=tensor([[-100,    8,    9, -100]]))
    """
    shape = (len(examples), len(examples[0]), cutting.length)
    inputs = np.full(shape, cutting.padding, dtype=np.int64)
    targets = np.full(shape, PADDING, dtype=np.int64)
    for row, answers in enumerate(examples):
        room = max(0, cutting.length - max(len(one.tokens) - one.prompt for one in answers))
        for place, one in enumerate(answers):
            start = max(0, one.prompt - room)
            kept = slice(start, start + cutting.length)
            tokens = np.array(one.tokens[kept], dtype=np.int64)
            following = np.where(one.learned[kept], tokens, PADDING)[1:]  # empty if there are no tokens
            inputs[row, place, : len(tokens)] = tokens
            targets[row, place, : len(following)] = following
    whole = TensorPair(torch.from_numpy(inputs), torch.from_numpy(targets))
    return whole if shape[1] > 1 else TensorPair(*(part[:, 0] for part in whole))


def load_documents(
    path: Path,
    *,
    text: str,
    encode: Callable[[str], Sequence[int]],
    vocabulary: int,
    cutting: Cutting,
    spelling: Spelling | None = None,
    user: str | Sequence[str] | None = None,
    several: bool = False,
    date: str | None = None,
    test_fraction: float | None = None,
    test_path: Path | None = None,
    unit: str = "document",
) -> Dataset:
    """Read documents from a JSON Lines file or from Parquet.

    In a JSON Lines file (plain or .gz), each line is one document: a JSON object with the fields that you
    name below. In a .parquet file, or a folder of them, each row is one document.

    Args:
        path: the file or folder.
        text: the field or column with the document's text.
        encode: a function from a string to its tokens. The result must depend only on this string.
        vocabulary: the number of tokens in the vocabulary.
        cutting: the rule that cuts a document into records, which are sequences of tokens.
        spelling: the encoder for canaries, the synthetic texts that an audit inserts.
        user: the field with the document's user. Without ``several``, a user may have only one record. With
            ``several``, you may name several fields, and a field may contain a list of users.
        several: whether a user may have more than one record. If True, the dataset contains the owners of
            each record, and ``test_fraction`` never gives a user both training and test records.
        date: the field with the day on which the document arrived, for training by date.
        test_fraction: the share of documents to use as test data. A hash of the text chooses them; with
            ``several``, a hash of the user.
        test_path: a file of test documents, instead of ``test_fraction``.
        unit: what the guarantee protects (the unit of privacy), such as "document".

    **Guarantee**

    * A record's tokens depend only on its document and on declared settings.
    * With ``user`` and without ``several``, no user has two training records, nor two test records.

    Raises:
        InvalidInput: if a file cannot be read, a line lacks one of these fields, or no record is left. The
            message names the line, but shows none of its content.
        PrivacyRefusal: if a user has more than one record, but ``several`` is False.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.jsonl"
    >>> _ = path.write_text('{"note": "abc"}\\n{"note": "b"}\\n')
    >>> data = load_documents(path, text="note", encode=lambda text: [ord(c) - 96 for c in text],
    ...                       vocabulary=27, cutting=Cutting(3, "first", padding=0), test_path=path)
    >>> data.train.inputs.tolist()
    [[1, 2, 3]]
    """
    return load_examples(
        path,
        Fields(text, user, date),
        partial(pair_of, encode=encode, cutting=cutting, several=several),
        source=cutting.describe(path),
        vocabulary=vocabulary,
        spelling=spelling,
        several=several,
        test_fraction=test_fraction,
        test_path=test_path,
        unit=unit,
    )


def load_examples(
    path: Path,
    fields: Fields,
    make: Callable[..., tuple[TensorPair, Owners | None, list[object]]],
    *,
    source: str,
    vocabulary: int,
    spelling: Spelling | None = None,
    several: bool = False,
    test_fraction: float | None = None,
    test_path: Path | None = None,
    unit: str,
) -> Dataset:
    """Read examples as :func:`load_documents` does; ``make`` is :func:`pair_of` or the like."""
    check_one_test(test_fraction, test_path, "documents")
    train = [*read_documents(path, fields)]
    if test_path is not None:
        test = [*read_documents(test_path, replace(fields, date=None))]
    else:
        assert test_fraction is not None
        tests = choose_test((document.text.encode() for document in train), test_fraction)
        trains = ~tests
        if several:
            trains, tests = choose_people([document.owner for document in train], test_fraction)
        train, test = [*compress(train, trains)], [*compress(train, tests)]
    trained_on, owners, dates = make(train, name="training")
    tested_on, test_owners, _ = make(test, name="testing")
    return Dataset(
        path.name.split(".")[0],
        trained_on,
        tested_on,
        classes=(),
        source=source,
        unit=unit,
        vocabulary=vocabulary,
        spelling=spelling,
        owners=owners,
        test_owners=test_owners,
        dates=None if fields.date is None else dates,
    )


def read_documents(path: Path, fields: Fields) -> Iterator[Document]:
    if not path.is_dir() and path.suffix != ".parquet":
        for number, line in _numbered_lines(path, "document"):
            yield _document(line, f"line {number} of {path}", fields)
        return

    empty = True
    for part in corpus_parts(path):
        for document in read_part(part, fields):
            yield document
            empty = False
    if empty:
        raise InvalidInput(f"{path} has no rows. Write one document per row.")


def pair_of(
    documents: Sequence[Document],
    encode: Callable[[str], Sequence[int]],
    cutting: Cutting,
    name: str,
    *,
    several: bool = False,
) -> tuple[TensorPair, Owners | None, list[object]]:
    """Return the records for training or testing, their owners if a user may have ``several``, and dates.

    Sequences of a single token are dropped, as they contain nothing to predict.
    """
    records = [
        (document, sequence) for document in documents for sequence in cutting.pieces(encode(document.text))
    ]
    if not several:
        check_users((document.user for document, _ in records if document.user is not None), name)
    records = [(document, sequence) for document, sequence in records if len(sequence) > 1]
    sequences = [sequence for _, sequence in records]
    if not sequences:
        raise InvalidInput(
            f"no document for {name} has at least two tokens. Take another test_fraction, or other files."
        )
    owners = [document.owner for document, _ in records] if several else None
    return sequence_pair(sequences, cutting), owners, [document.date for document, _ in records]


def answered_of(
    documents: Sequence[Document],
    encode: Callable[[Document], Sequence[Answered]],
    cutting: Cutting,
    name: str,
    *,
    several: bool = False,
) -> tuple[TensorPair, Owners | None, list[object]]:
    """Return one record for each example, in the form of :func:`pair_of`."""
    if not several:
        check_users((document.user for document in documents if document.user is not None), name)
    if not documents:
        raise InvalidInput(
            f"no example is left for {name}: a hash of an example, or of its user, decides whether it is for "
            "testing. Take another test_fraction, more examples, or a file of test examples."
        )
    pair = answered_pair([encode(document) for document in documents], cutting)
    if not bool((pair.targets != PADDING).any()):
        raise InvalidInput(
            f"no example for {name} has a token to learn. In chats, the roles must be user and assistant. "
            "Take a larger sequence_length, or other files."
        )
    owners = [document.owner for document in documents] if several else None
    return pair, owners, [document.date for document in documents]


def check_users(owners: Iterable[Owner], name: str, *, table: bool = False) -> None:
    """Refuse records if two of them have the same owner; ``owners`` has one entry per record."""
    counts = Counter(owners)
    if any(isinstance(owner, tuple) for owner in counts):
        raise InvalidInput(
            f"some records for {name} belong to several users, which needs a limit. Set [data] "
            "rows_per_user, the most records that one user may own."
        )
    if len({type(owner) for owner in counts}) > 1:
        raise InvalidInput(
            f"users for {name} are partly numbers and partly texts: 7 and '7' would be two users, though "
            "they may be one person. Write all as texts, or all as numbers."
        )
    several = sum(count > 1 for count in counts.values())
    if several:
        raise PrivacyRefusal(
            f"{several:,} of {len(counts):,} users have several records for {name}, up to "
            f"{max(counts.values()):,}. The guarantee is for one record, so it would protect such users less "
            f"than the statement says. {_OF_TABLE if table else _OF_DOCUMENTS}"
        )


_OF_TABLE = (
    "State [data] rows_per_user, the most rows of one user that a step reads, so that the unit is a user "
    "with all their rows; or leave user out and name the row as the unit."
)
_OF_DOCUMENTS = (
    "Join the documents of each user into one line of the file, whose first sequence is then the record "
    '(documents = "first"); or state rows_per_user, so that the unit is a user with several '
    "documents; or leave user out and name the document as the unit."
)
