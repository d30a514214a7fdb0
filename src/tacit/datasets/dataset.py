"""The datasets that loaders return: tensors for training and testing, and facts for the statement."""

# Each test record is chosen independently, so that adding or removing a record never moves another one
# between training and test. A shuffle with a fixed seed does not ensure that, as the order depends on the
# number of records: with one more record, training would get quite different records, but the guarantee
# only covers a difference of one record.

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.columns import Encoder
from tacit.errors import InvalidInput, check_real

Owner: TypeAlias = str | int | tuple[str | int, ...]
"""The owner of a record, or a tuple of its owners if there are several."""
Owners: TypeAlias = Sequence[Owner]


class Spelling(Protocol):
    """An encoder of synthetic text, such as canaries, in the vocabulary of a dataset."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; raise InvalidInput for a character without a token."""

    def decode(self, tokens: list[int]) -> str:
        pass


class TensorPair(NamedTuple):
    """Records and their targets, which you can unpack: ``inputs, targets = data.train``.

    * For images and tables, ``inputs`` are (n, ...) float32, or float16 if there are very many features.
      ``targets`` are class numbers (n,) int64, or values or 0/1 labels (n, k) float32.
    * For text, ``inputs`` are token ids (n, L) int64, and ``targets`` the id of the next token at each
      position, (n, L) int64. A token can be a character.
    * For pairs of a chosen and a rejected answer, ``inputs`` and ``targets`` are (n, 2, L).

    >>> import torch
    >>> inputs, targets = TensorPair(torch.zeros(2, 3), torch.tensor([0, 1]))
    >>> inputs.shape, targets.tolist()
    (torch.Size([2, 3]), [0, 1])
    """

    inputs: Tensor
    targets: Tensor


TensorPair.inputs.__doc__ = "The records."
TensorPair.targets.__doc__ = "The target of each record, such as the number of its class."


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset that is ready for training, with public facts about it.

    A field that does not apply to a dataset is empty, 0 or None.

    * ``name``: the name of the dataset.
    * ``train``, ``test``: the records and targets for training and for the test.
    * ``classes``: the names of the classes; class number 0 comes first.
    * ``labels``: the names of the labels, if a record can have more than one.
    * ``alphabet``: for text as characters, a string of all characters. The first one has number 1.
    * ``vocabulary``: for text as tokens, the number of tokens in the vocabulary.
    * ``spelling``: for text as tokens, the encoder for canaries, the synthetic texts that an audit inserts.
    * ``source``: where the data come from, as one line for the privacy statement.
    * ``unit``: what the guarantee protects (the unit of privacy), such as "image", "row" or "person". It is
      one record, unless there are ``owners``.
    * ``features``: for tables, the names of the columns of ``inputs``.
    * ``encoder``: for tables, the encoder, which also encodes new rows.
    * ``owners``, ``test_owners``: the person of each record, if a person may have more than one record.
    * ``dates``: the arrival date of each training record, for training in the order of dates.
    * ``pictures``: the shape of the original images, if ``inputs`` are features of images.
    * ``target_bounds``: for regression, the declared ``(low, high)`` of each target. In ``targets``, low is
      -1 and high is 1.
    * ``time_edges``: for survival, the edges of the declared time bins. Targets (n, 2) are then the time and
      the event (0 or 1) of each record.

    Raises:
        InvalidInput: if the tensors do not fit together.

    >>> pair = TensorPair(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))
    >>> Dataset("toy", pair, pair, classes=("no", "yes"), source="made up", unit="row").input_shape
    (2,)
    """

    name: str
    train: TensorPair
    test: TensorPair
    classes: tuple[str, ...]
    source: str
    unit: str
    features: tuple[str, ...] = ()
    target_bounds: tuple[tuple[float, float], ...] = ()
    alphabet: str = ""
    encoder: Encoder | None = None
    vocabulary: int = 0
    spelling: Spelling | None = None
    owners: Owners | None = None
    test_owners: Owners | None = None
    dates: Sequence[Any] | None = None
    pictures: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()
    time_edges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for part, pair in (("train", self.train), ("test", self.test)):
            if self.tokens:
                inputs, targets = pair
                fits = (
                    inputs.dtype == targets.dtype == torch.int64
                    and inputs.ndim in (2, 3)
                    and inputs.shape == targets.shape
                    and len(inputs) > 0
                    and int(inputs.min()) >= 0
                    and max(int(inputs.max()), int(targets.max())) < self.tokens
                )
                if not fits:
                    raise InvalidInput(
                        f"{self.name}.{part} must be int64 tokens below {self.tokens} of shape (n, L) with n "
                        f">= 1, or (n, 2, L) for two answers; got {inputs.dtype} {tuple(inputs.shape)} and "
                        f"{targets.dtype} {tuple(targets.shape)}."
                    )
            else:
                _check_pair(f"{self.name}.{part}", pair, classes=len(self.classes))
                _check_labels(f"{self.name}.{part}", pair.targets, self.labels)
        if self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            raise InvalidInput(
                f"the records of {self.name} have shape {tuple(self.train.inputs.shape[1:])} in train but "
                f"{tuple(self.test.inputs.shape[1:])} in test; both parts must have the same shape."
            )

    @property
    def tokens(self) -> int:
        """The number of different tokens in text records; 0 if the records are not text."""
        return self.vocabulary or (1 + len(self.alphabet) if self.alphabet else 0)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record of ``inputs``, without the batch axis."""
        return tuple(self.train.inputs.shape[1:])


def _check_pair(name: str, pair: TensorPair, *, classes: int) -> None:
    inputs, targets = pair
    if inputs.dtype not in (torch.float32, torch.float16) or inputs.ndim < 2:
        raise InvalidInput(
            f"{name}.inputs must be a float32 tensor (float16 to save memory) of shape (n, ...); got "
            f"{inputs.dtype} {tuple(inputs.shape)}."
        )
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise InvalidInput(
            f"{name} must have as many targets as inputs, and at least one; "
            f"got {len(inputs)} inputs and {len(targets)} targets."
        )
    required = (torch.int64, 1) if classes else (torch.float32, 2)
    if (targets.dtype, targets.ndim) != required:
        form = "int64 (n,) class numbers" if classes else "float32 (n, k) values"
        raise InvalidInput(f"{name}.targets must be {form}; got {targets.dtype} {tuple(targets.shape)}.")
    outside = int(((targets < 0) | (targets >= classes)).sum()) if classes else 0
    if outside:
        raise InvalidInput(
            f"{name}.targets must be class numbers in 0..{classes - 1}; {outside} of them are not."
        )


def _check_labels(name: str, targets: Tensor, labels: Sequence[str]) -> None:
    if not labels:
        return
    if targets.ndim != 2 or targets.shape[1] != len(labels):
        raise InvalidInput(
            f"{name}.targets must have a column for each of the {len(labels)} labels; got shape "
            f"{tuple(targets.shape)}."
        )
    if wrong := int(((targets != 0) & (targets != 1)).sum()):
        raise InvalidInput(f"{name}.targets must be labels 0 or 1; {wrong} of them are neither.")


def check_one_test(test_fraction: float | None, test_path: Path | None, subject: str) -> None:
    """Refuse both or neither of ``test_fraction`` and ``test_path``."""
    if (test_fraction is None) == (test_path is None):
        raise InvalidInput(f"give exactly one of test_fraction and test_path, to choose the test {subject}.")


def choose_test(records: Iterable[bytes], test_fraction: float) -> NDArray[np.bool_]:
    """Mark the test records: those whose SHA-256, read as a fraction in [0, 1), is below ``test_fraction``.

    On average, the share of test records is ``test_fraction``.

    **Guarantee**

    * A record's mark depends on its bytes alone. So if two datasets differ in one record, their training
      records differ in at most one. Equal records get the same mark.
    """
    fraction = check_real("test_fraction", test_fraction, low=0.0, high=1.0, open_low=True, open_high=True)
    limit = round(fraction * 2**64)
    marks = [int.from_bytes(hashlib.sha256(record).digest()[:8], "big") < limit for record in records]
    return np.asarray(marks, dtype=np.bool_)


def check_some(marks: NDArray[np.bool_], test_fraction: float, *, what: str, instead: str) -> None:
    """Refuse marks of :func:`choose_test` that leave no training record or no test record.

    The error names a record by ``what``, and suggests ``instead`` as another source of test records.
    """
    if marks.all() or not marks.any():
        part = "training" if marks.all() else "testing"
        raise InvalidInput(
            f"with test_fraction={test_fraction:g}, no {what} is left for {part} among {len(marks)} {what}s; "
            f"use another fraction, or {instead}."
        )


def choose_people(owners: Owners, test_fraction: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Mark the records of training people and of test people, split by a hash of their names.

    Records of both training and test people get neither mark.
    """
    names_of = [one if isinstance(one, tuple) else (one,) for one in owners]
    missing = sum(any(map(is_missing, all_of_one)) for all_of_one in names_of)
    if missing:
        raise missing_owners(missing)
    names = [*{name for all_of_one in names_of for name in all_of_one}]
    tests = dict(zip(names, choose_test((str(name).encode() for name in names), test_fraction), strict=True))
    marks = [[bool(tests[name]) for name in all_of_one] for all_of_one in names_of]
    return np.array([not any(one) for one in marks], bool), np.array([all(one) for one in marks], bool)


def is_missing(name: Any) -> bool:
    if isinstance(name, str):
        return not name.strip()
    return name is None or str(name) in ("<NA>", "NaT", "nan")  # pandas' NA is neither equal nor unequal


def missing_owners(count: int) -> InvalidInput:
    return InvalidInput(
        f"{count} rows have no owner (empty, None or NaN), but the guarantee protects owners. Remove these "
        "rows, or name the owner of each."
    )
