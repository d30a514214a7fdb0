"""What does every loader return? Tensors, split into train and test, with the facts for a statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from tacit.columns import Encoder
from tacit.errors import InvalidInput

Owner: TypeAlias = str | int | tuple[str | int, ...]
"""Whose a record is; of several people, all of them."""
Owners: TypeAlias = Sequence[Owner]


class Spelling(Protocol):
    """How made-up text is written in the numbers of a data set: one number for each character."""

    def encode(self, text: str) -> list[int]:
        """The numbers of the characters of a text; InvalidInput where one has none."""

    def decode(self, tokens: list[int]) -> str:
        """The text of numbers."""


class TensorPair(NamedTuple):
    """Records and their targets; it unpacks: ``inputs, targets = data.train``.

    Shapes: ``inputs`` (n, ...) float32 (float16 for large features); ``targets`` (n,) int64 class
    numbers, or (n, k) float32.  Of text both are (n, L) int64: characters or tokens, and those that follow.

    >>> import torch
    >>> inputs, targets = TensorPair(torch.zeros(2, 3), torch.tensor([0, 1]))
    >>> inputs.shape, targets.tolist()
    (torch.Size([2, 3]), [0, 1])
    """

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set that is ready for training, and the public facts about it.

    * ``classes``: names of the classes in the order of their numbers; ``()`` for regression and text.
    * ``alphabet``: of text, the characters in the order of their numbers, from 1; else ``""``.
    * ``vocabulary``: of text in tokens, how many there are; else 0.
    * ``spelling``: of text in tokens, how made-up text is written in them; else None.
    * ``source``: one line for the privacy statement.
    * ``unit``: what one record is ("image", "row", "person"), that is, the unit of privacy.
    * ``features``: names of the columns of ``inputs`` for tables, else ``()``.
    * ``encoder``: what encoded a table, and encodes new rows in the same way; else None.
    * ``owners``, ``test_owners``: whose each record of ``train`` and ``test`` is, where a person may have
      several, and the unit is a person; else None.
    * ``dates``: when each record of ``train`` arrived, where they are trained on in this order; else None.
    * ``pictures``: the shape of a picture, where ``inputs`` are features of pictures; else None.
    * ``target_bounds``: for regression, the declared ``(low, high)`` of each target, which maps to [-1, 1].

    Errors: :class:`InvalidInput` where the tensors do not fit together.

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

    def __post_init__(self) -> None:
        for part, pair in (("train", self.train), ("test", self.test)):
            if self.tokens:
                _check_text(f"{self.name}.{part}", pair, tokens=self.tokens)
            else:
                _check_pair(f"{self.name}.{part}", pair, classes=len(self.classes))
        if self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            raise InvalidInput(
                f"the records of {self.name} have shape {tuple(self.train.inputs.shape[1:])} in train but "
                f"{tuple(self.test.inputs.shape[1:])} in test; both parts must have the same shape."
            )

    @property
    def tokens(self) -> int:
        """V: of text, how many different numbers its records hold; else 0."""
        return self.vocabulary or (1 + len(self.alphabet) if self.alphabet else 0)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record, without the record axis."""
        return tuple(self.train.inputs.shape[1:])


def _check_pair(name: str, pair: TensorPair, *, classes: int) -> None:
    inputs, targets = pair
    if inputs.dtype not in (torch.float32, torch.float16) or inputs.ndim < 2:
        raise InvalidInput(
            f"{name}.inputs must be float32 (n, ...), or float16 to save memory; "
            f"got {inputs.dtype} {tuple(inputs.shape)}."
        )
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise InvalidInput(
            f"{name} must hold as many targets as inputs, and at least one; "
            f"got {len(inputs)} inputs and {len(targets)} targets."
        )
    wanted = (torch.int64, 1) if classes else (torch.float32, 2)
    if (targets.dtype, targets.ndim) != wanted:
        form = "int64 (n,) class numbers" if classes else "float32 (n, k) values"
        raise InvalidInput(f"{name}.targets must be {form}; got {targets.dtype} {tuple(targets.shape)}.")
    outside = int(((targets < 0) | (targets >= classes)).sum()) if classes else 0
    if outside:
        raise InvalidInput(
            f"{name}.targets must lie in 0..{classes - 1}, one number per class; {outside} of them do not."
        )


def _check_text(name: str, pair: TensorPair, *, tokens: int) -> None:
    inputs, targets = pair
    fits = (
        inputs.dtype == targets.dtype == torch.int64
        and inputs.ndim == 2
        and inputs.shape == targets.shape
        and len(inputs) > 0
        and int(inputs.min()) >= 0
        and max(int(inputs.max()), int(targets.max())) < tokens
    )
    if not fits:
        raise InvalidInput(
            f"{name} must hold at least one record of text, as int64 numbers below {tokens} of shape (n, L); "
            f"got {inputs.dtype} {tuple(inputs.shape)} and {targets.dtype} {tuple(targets.shape)}."
        )
