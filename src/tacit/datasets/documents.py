"""Loader of documents for a language model, which cuts them into sequences by a declared rule.

No record contains tokens of two documents, as documents are not packed together. The sequence length is
declared, so that the shape of the records reveals nothing about the documents.

Letters: n records; T tokens per sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.datasets.corpus import Document, read_corpus, read_json_lines
from tacit.datasets.dataset import (
    Dataset,
    Owner,
    Owners,
    Spelling,
    TensorPair,
    check_one_test,
    choose_people,
    choose_test,
)
from tacit.datasets.text import PADDING
from tacit.errors import InvalidInput, PrivacyRefusal, check_in, check_integer


@final
@dataclass(frozen=True)
class Cutting:
    """The declared rule by which a document becomes sequences of ``length`` tokens.

    ``keep`` is "first" for only the first sequence, or "split" for all sequences, without overlap. Short
    sequences are padded with the token ``padding``, which does not count in the loss.

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
        """Return the privacy statement's line about the documents in ``path``."""
        part = "the first sequence" if self.keep == "first" else "all sequences"
        return f"documents in {path.name}: {part} of {self.length} tokens of each"

    def pieces(self, tokens: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield the sequences of one document; yield nothing if it has no tokens."""
        stop = len(tokens) if self.keep == "split" else min(1, len(tokens))
        yield from (tokens[start : start + self.length] for start in range(0, stop, self.length))


def sequence_pair(sequences: Sequence[Sequence[int]], cutting: Cutting) -> TensorPair:
    """Return the inputs and targets of a language model, which predicts each token from those before it.

    ``inputs`` (n, T) int64 are the tokens. ``targets`` (n, T) int64 are the tokens that follow them, with
    -100 after the end.

    >>> pair = sequence_pair([[5, 6, 7], [8, 9]], Cutting(3, "first", padding=0))
    >>> pair.inputs.tolist(), pair.targets.tolist()
    ([[5, 6, 7], [8, 9, 0]], [[6, 7, -100], [9, -100, -100]])
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
    """Read the documents in a JSON Lines file or a Parquet corpus.

    Each line of a JSON Lines file, plain or .gz, is one document, an object with the named fields. A Parquet
    corpus is a folder, or a file whose name ends in .parquet; each row is one document.

    Args:
        path: the file or folder.
        text: the field or column of the document's text.
        encode: a function that returns the tokens of a text; it must depend on the text alone.
        vocabulary: the number of tokens in the vocabulary.
        cutting: the declared rule that cuts a document into records.
        spelling: the encoder of made-up text, used only for canaries.
        user: the field of the document's user, who may have one record. With ``several``, it may contain a
            list of users, or be a list of fields.
        several: whether a user may have several records. The data set then has the owners of each record,
            and with ``test_fraction`` no user has both training and test records.
        date: the field of the document's arrival day, for training by date.
        test_fraction: the share of test documents. A hash of its text, or with ``several`` of its users,
            decides for each document.
        test_path: a file of test documents, in place of ``test_fraction``.
        unit: the unit of privacy.

    **Guarantee**

    * A record's tokens depend only on its document and on declared settings.
    * If ``user`` is given without ``several``, no user has two training records, nor two test records.

    Raises:
        InvalidInput: if a file cannot be read, a line is not such an object, or no record is left. The
            message contains the number of the line, but none of its content.
        PrivacyRefusal: if a user has several records, but ``several`` is False.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.jsonl"
    >>> _ = path.write_text('{"note": "abc"}\\n{"note": "b"}\\n')
    >>> data = load_documents(path, text="note", encode=lambda text: [ord(c) - 96 for c in text],
    ...                       vocabulary=27, cutting=Cutting(3, "first", padding=0), test_path=path)
    >>> data.train.inputs.tolist()
    [[1, 2, 3]]
    """
    check_one_test(test_fraction, test_path, "documents")
    train = [*read_documents(path, text=text, user=user, date=date)]
    if test_path is not None:
        test = [*read_documents(test_path, text=text, user=user)]
    else:
        assert test_fraction is not None
        tests = choose_test((document.text.encode() for document in train), test_fraction)
        trains = ~tests
        if several:
            trains, tests = choose_people([document.owner for document in train], test_fraction)
        train, test = [*compress(train, trains)], [*compress(train, tests)]
    trained_on, owners, dates = pair_of(train, encode, cutting, "training", several=several)
    tested_on, test_owners, _ = pair_of(test, encode, cutting, "testing", several=several)
    return Dataset(
        path.name.split(".")[0],
        trained_on,
        tested_on,
        classes=(),
        source=cutting.describe(path),
        unit=unit,
        vocabulary=vocabulary,
        spelling=spelling,
        owners=owners,
        test_owners=test_owners,
        dates=None if date is None else dates,
    )


def read_documents(
    path: Path, *, text: str, user: str | Sequence[str] | None, date: str | None = None
) -> Iterator[Document]:
    """Yield the documents of a file or a corpus; the errors are those of :func:`load_documents`."""
    if not path.is_dir() and path.suffix != ".parquet":
        return read_json_lines(path, text=text, user=user, date=date)
    return read_corpus(path, text=text, user=user, date=date)


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


def check_users(owners: Iterable[Owner], name: str, *, table: bool = False) -> None:
    """Refuse records if two of them have the same owner; ``owners`` has one entry per record.

    Raises:
        InvalidInput: if owners are partly numbers and partly texts, or if a record has several owners.
        PrivacyRefusal: if an owner has several records. The message contains only counts.
    """
    counts = Counter(owners)
    if any(isinstance(owner, tuple) for owner in counts):
        raise InvalidInput(
            f"some records for {name} are of several users. Without a limit, a user may own only one record. "
            "State [data] rows_per_user, the most records that one user may own."
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
            f"{max(counts.values()):,}. The guarantee is for one record, so a user with several would have "
            f"a weaker one than the statement says. {_OF_TABLE if table else _OF_DOCUMENTS}"
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
