"""How do documents become records of a language model? By a declared rule that cuts them into sequences.

No record holds tokens of two documents: nothing is packed across them.  The length of a sequence is declared,
so that the shape of the records says nothing of the documents.

Letters: n records; T tokens of a sequence.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch

from tacit.datasets.dataset import Dataset, Spelling, TensorPair
from tacit.datasets.splitting import choose_test
from tacit.datasets.text import PADDING
from tacit.errors import InvalidInput, PrivacyRefusal, check_in, check_integer, without_values

__all__ = ["Cutting", "Document", "load_documents", "read_documents", "sequence_pair"]


@dataclass(frozen=True)
class Document:
    """A ``text``, and the ``user`` whom it is of, where one is declared."""

    text: str
    user: str | int | None = None


@final
@dataclass(frozen=True)
class Cutting:
    """The declared rule by which a document becomes sequences of ``length`` tokens.

    ``keep`` is "first" for its first sequence alone, or "split" for all, one after another without overlap.
    What is left of a short sequence is filled up with the token ``padding``, which costs no loss.

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

    def pieces(self, tokens: Sequence[int]) -> Iterator[Sequence[int]]:
        """The sequences of one document; of none of its tokens, none."""
        stop = len(tokens) if self.keep == "split" else min(1, len(tokens))
        yield from (tokens[start : start + self.length] for start in range(0, stop, self.length))


def sequence_pair(sequences: Sequence[Sequence[int]], cutting: Cutting) -> TensorPair:
    """The inputs and targets of a language model: each token, predicted from those before it.

    ``inputs`` (n, T) int64 are the tokens, ``targets`` (n, T) int64 those that follow; -100 where none does.

    >>> pair = sequence_pair([[5, 6, 7], [8, 9]], Cutting(3, "first", padding=0))
    >>> pair.inputs.tolist(), pair.targets.tolist()
    ([[5, 6, 7], [8, 9, 0]], [[6, 7, -100], [9, -100, -100]])
    """
    inputs = np.full((len(sequences), cutting.length), cutting.padding, dtype=np.int64)
    targets = np.full((len(sequences), cutting.length), PADDING, dtype=np.int64)
    for row, tokens in enumerate(sequences):
        inputs[row, : len(tokens)] = tokens
        targets[row, : len(tokens) - 1] = tokens[1:]
    return TensorPair(torch.from_numpy(inputs), torch.from_numpy(targets))


def load_documents(
    path: Path,
    *,
    text: str,
    encode: Callable[[str], Sequence[int]],
    vocabulary: int,
    cutting: Cutting,
    spelling: Spelling | None = None,
    user: str | None = None,
    test_fraction: float | None = None,
    test_path: Path | None = None,
    unit: str = "document",
) -> Dataset:
    """Read a JSON Lines file, plain or .gz: one document a line, an object with the fields that are named.

    Args:
        text: the field of the document's text.
        encode: its tokens; must depend on the text alone.
        vocabulary: how many tokens there are.
        cutting: the declared rule that makes records of a document.
        spelling: how made-up text is written in tokens; only for canaries.
        user: the field of the person whom a document is of; each person may have one record.
        test_fraction: the share of documents that test the model, each chosen by a hash of its text alone.
        test_path: a file of test documents instead.

    **Guarantee**

    * A record's tokens depend on its own document and on what was declared alone.
    * Where ``user`` is given, no user has two training records, nor two test records.

    Raises:
        InvalidInput: a file cannot be read, a line is no such object, or no record is left; the message gives
            the number of the line and nothing that it holds.
        PrivacyRefusal: a user has several records.
    """
    if (test_fraction is None) == (test_path is None):
        raise InvalidInput(
            "give exactly one of test_fraction and test_path, to say where the test documents come from."
        )
    train = list(read_documents(path, text=text, user=user))
    if test_path is not None:
        test = list(read_documents(test_path, text=text, user=user))
    else:
        assert test_fraction is not None
        marks = choose_test((document.text.encode() for document in train), test_fraction)
        test = [document for document, mark in zip(train, marks, strict=True) if mark]
        train = [document for document, mark in zip(train, marks, strict=True) if not mark]
    kept = "the first sequence" if cutting.keep == "first" else "all sequences"

    def pair(part: Sequence[Document], name: str) -> TensorPair:
        sequences = [[*cutting.pieces(encode(document.text))] for document in part]
        if user is not None:
            _check_users(part, sequences, name)
        return _pair([one for found in sequences for one in found], cutting, name)

    return Dataset(
        path.name.split(".")[0],
        pair(train, "training"),
        pair(test, "testing"),
        classes=(),
        source=f"documents in {path.name}: {kept} of {cutting.length} tokens of each",
        unit=unit,
        vocabulary=vocabulary,
        spelling=spelling,
    )


def _pair(sequences: Sequence[Sequence[int]], cutting: Cutting, name: str) -> TensorPair:
    """The records of one part; a single token predicts nothing and is no record."""
    sequences = [one for one in sequences if len(one) > 1]
    if not sequences:
        raise InvalidInput(
            f"no document is left for {name} that has two tokens. Take another test_fraction, or other files."
        )
    return sequence_pair(sequences, cutting)


def _check_users(documents: Sequence[Document], sequences: Sequence[Sequence[Any]], name: str) -> None:
    counts: Counter[str | int | None] = Counter()
    for document, found in zip(documents, sequences, strict=True):
        counts[document.user] += len(found)
    several = sum(count > 1 for count in counts.values())
    if several:
        raise PrivacyRefusal(
            f"{several:,} of {len(counts):,} users have several records for {name}, up to "
            f"{max(counts.values()):,}. The guarantee is for one record, so a user of several would have a "
            "weaker one than the statement says. Join the documents of each user into one line of the file, "
            'whose first sequence is then the record (documents = "first"); or leave user out and name the '
            "document as the unit."
        )


def read_documents(path: Path, *, text: str, user: str | None = None) -> Iterator[Document]:
    """The documents of a JSON Lines file one by one; errors as of :func:`load_documents`."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield _document(line, f"line {number} of {path}", text, user)
    except (OSError, EOFError) as problem:
        raise InvalidInput(f"cannot read {path}: {without_values(problem)}. Check the file.") from None
    if not number:
        raise InvalidInput(f"{path} holds no line; it should hold one document a line, each a JSON object.")


def _document(line: bytes, where: str, text: str, user: str | None) -> Document:
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
    if user is None:
        return Document(found)
    owner = data.get(user)
    if isinstance(owner, bool) or not isinstance(owner, str | int):
        what = "neither a text nor a whole number" if user in data else "missing"
        raise InvalidInput(
            f'{where}: the field "{user}" is {what}. [data] user names the field that tells users apart; '
            "every document needs one."
        )
    return Document(found, owner)
