"""Loader of text files, in which each line is a record: a row of character numbers.

The alphabet and the length of the longest line are declared. If they came from the data, the shape of the
model would reveal them.

Letters: n records; L numbers per record, for the longest line and its end.
"""

from __future__ import annotations

import gzip
import os
import string
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch

from tacit.datasets.dataset import Dataset, TensorPair, check_one_test, check_some, choose_test
from tacit.errors import InvalidInput, check_integer, without_values

END = 0
"""The number that stands before the first and after the last character of a record."""
PADDING = -100
"""The target at positions after the end of a record, which the loss ignores."""


@final
@dataclass(frozen=True)
class Alphabet:
    """The declared characters of records, numbered from 1.

    Raises:
        InvalidInput: if there are fewer than two characters, if one occurs twice, or if one ends a line.

    >>> letters = Alphabet("ab ")
    >>> letters.encode("ba b"), letters.decode([2, 1, 3, 2])
    ([2, 1, 3, 2], 'ba b')
    """

    characters: str

    def __post_init__(self) -> None:
        twice = sorted({c for c in self.characters if self.characters.count(c) > 1})
        if len(self.characters) < 2 or twice or set(self.characters) & set("\r\n"):
            problem = f"{twice[0]!r} stands in it twice" if twice else f"got {self.characters!r}"
            raise InvalidInput(
                f"alphabet must hold at least 2 characters, each once, and none that ends a line; {problem}."
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
        """Return the numbers of the characters of a text.

        Raises:
            InvalidInput: if a character is not in the alphabet.
        """
        if place := self.missing(text):
            raise InvalidInput(f"character {place} of the text is not in the alphabet {self.characters!r}.")
        return [1 + self.characters.index(character) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of character numbers, with ⏎ for an end."""
        return "".join("⏎" if token == END else self.characters[int(token) - 1] for token in tokens)


def token_pair(records: Sequence[str], alphabet: Alphabet, longest: int) -> TensorPair:
    """Return the inputs and targets of a language model, which predicts each character from those before.

    ``inputs`` (n, L) int64 begin with END, and ``targets`` (n, L) int64 end with it; L = ``longest`` + 1.

    >>> pair = token_pair(["ba"], Alphabet("ab"), 3)
    >>> pair.inputs.tolist(), pair.targets.tolist()
    ([[0, 2, 1, 0]], [[2, 1, 0, -100]])
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

    ``alphabet`` has every character that a line may contain, and ``longest`` is the most characters per line.
    Test records come from ``test_path``, or are a ``test_fraction`` of the lines, chosen by a hash of each
    line alone. So adding or removing a line never moves another one between training and test.

    The inputs and targets are (n, longest + 1) int64, as :func:`token_pair` makes them.

    **Guarantee**

    * A record's numbers depend only on that record's line and on declared settings.

    Raises:
        InvalidInput: if a file cannot be read or is not UTF-8, or a line is empty, too long or has an
            undeclared character. The message contains the line's number.

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
    test_lines = None if test_path is None else list(stream_records(test_path, letters, longest))
    return text_dataset(
        lines,
        test_lines,
        letters,
        longest,
        test_fraction=test_fraction,
        name=path.name.split(".")[0],
        source=f"text {path.name}, one record a line, {len(alphabet)} declared characters",
        unit=unit,
    )


def text_dataset(
    lines: Sequence[str],
    test_lines: Sequence[str] | None,
    alphabet: Alphabet,
    longest: int,
    *,
    test_fraction: float | None,
    name: str,
    source: str,
    unit: str,
) -> Dataset:
    """Return a data set of lines; without ``test_lines``, test on a ``test_fraction`` of the lines."""
    if test_lines is None:
        assert test_fraction is not None
        marks = choose_test((line.encode() for line in lines), test_fraction)
        check_some(marks, test_fraction, what="record", instead="a file of test records")
        test_lines = [line for line, test in zip(lines, marks, strict=True) if test]
        lines = [line for line, test in zip(lines, marks, strict=True) if not test]
    return Dataset(
        name,
        token_pair(lines, alphabet, longest),
        token_pair(test_lines, alphabet, longest),
        classes=(),
        source=source,
        unit=unit,
        alphabet=alphabet.characters,
    )


def stream_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file in UTF-8, plain or .gz.

    Raises:
        InvalidInput: if the file cannot be read, is not UTF-8, or is empty.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(BOM_UTF8) if number == 1 else line
                if not text:
                    number = 0  # the file has only the byte order mark
                    break
                yield text.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidInput(
            f"{path} is not UTF-8 in line {number}. Save it as UTF-8, one record a line."
        ) from None
    except (OSError, EOFError) as problem:
        raise InvalidInput(f"cannot read {path}: {without_values(problem)}. Check the file.") from None
    if not number:
        raise InvalidInput(f"{path} holds no line; it should hold one record a line.")


def stream_records(path: Path, alphabet: Alphabet, longest: int) -> Iterator[str]:
    """Yield the records of a text file, each a line that fits the declared settings.

    Raises:
        InvalidInput: if the file cannot be read or is not UTF-8, or a line is empty, too long or has an
            undeclared character. The message contains the line's number.
    """
    for number, line in enumerate(stream_lines(path), 1):
        if not line:
            raise InvalidInput(
                f"line {number} of {path} is empty, so it may or may not be a record. Remove every "
                "empty line."
            )
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


def load_names(*, folder: Path | None = None) -> tuple[str, ...]:
    """Return 32,033 first names in lower case, a common example for small language models.

    ``names.txt``, plain or gzipped, is searched for in ``folder``, then in the folder that the environment
    variable TACIT_DATA names, then in the user's cache.

    Raises:
        InvalidInput: if the file is not found, or is not text.
    """
    folders = _folders(folder)
    for path in (place / file for place in folders for file in _FILES):
        if path.is_file():
            names = tuple(line.strip() for line in stream_lines(path) if line.strip())
            if not names:
                raise InvalidInput(f"{path} has no line with a name. Take it from {_SOURCE} again.")
            return names
    places = ", ".join(str(place) for place in folders) or "no folder"
    raise InvalidInput(
        f"names.txt was not found in {places}. Take it from {_SOURCE}, put it in a folder, and name that "
        "with folder=... or the environment variable TACIT_DATA."
    )


def _folders(folder: Path | None) -> list[Path]:
    """Return the folders to search: ``folder``, then the one in the environment variable TACIT_DATA."""
    named = {"folder": folder, "the environment variable TACIT_DATA": os.environ.get("TACIT_DATA") or None}
    folders = {name: Path(path).expanduser() for name, path in named.items() if path is not None}
    for name, path in folders.items():
        if not path.is_dir():
            raise InvalidInput(f"{name} must name an existing folder; got {str(path)!r}.")
    return [*folders.values()]


def names_dataset(*, folder: Path | None = None) -> Dataset:
    """Return the names of :func:`load_names` as a data set; a hash of each picks about 1 in 5 to test."""
    return text_dataset(
        load_names(folder=folder),
        None,
        Alphabet(NAMES_ALPHABET),
        NAMES_LONGEST,
        test_fraction=_TEST_FRACTION,
        name="names",
        source=f"first names from {_SOURCE}, one a record",
        unit="name",
    )
