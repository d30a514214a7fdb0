"""What do all kinds of preprocessing have in common? Records become tensors, from memory or piece by piece.

Letters: n records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InvalidInput, without_values

_SLACK = 1e-6  # of a range: float32 rounds
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Piece(NamedTuple):
    """Some records of a file: what each is called in the table of predictions, and ``inputs`` (n, ...)."""

    names: Sequence[str]
    inputs: Tensor


class Preprocessing(ABC):
    """What makes the model's inputs from one kind of data.

    Attributes:
        kind: its name in the model's file.
        label: what ``names`` of a piece are.
        example: the name of a file with such data, for people.
    """

    kind: ClassVar[str]
    label: ClassVar[str] = "row"
    example: ClassVar[str]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one record, before features are computed of it."""

    @abstractmethod
    def to_data(self) -> dict[str, Any]:
        """The facts as plain data, without ``kind``."""

    @abstractmethod
    def inputs(self, records: Any) -> Tensor:
        """(n, *shape) of records in memory.

        :raises InvalidInput: if they are not what the model was trained on.
        """

    @abstractmethod
    def pieces(self, path: Path, rows: int) -> Iterator[Piece]:
        """The records of a file, ``rows`` at a time.

        :raises InvalidInput: if the file cannot be read, or its records are not what the model was trained
        on.
        """

    @abstractmethod
    def describe(self) -> str:
        """One sentence on the data that it takes, for people."""

    def count(self, path: Path) -> int | None:
        """About how many records a file holds, if that can be said before it is read."""
        return None


def numbered(done: int, inputs: Tensor) -> Piece:
    """A piece whose records are called by their numbers, after ``done`` others."""
    return Piece([str(number) for number in range(done + 1, done + len(inputs) + 1)], inputs)


def as_array(records: Any, what: str) -> NDArray[Any]:
    """Numbers in memory as an array of at least one record.

    :raises InvalidInput: if they are none.
    """
    if isinstance(records, Tensor):
        records = records.detach().cpu()
        records = records.float() if records.dtype in _FLOATS else records
    try:
        values = np.asarray(records)
    except (ValueError, TypeError) as problem:
        raise InvalidInput(
            f"{what} must be an array of numbers, all records of one shape ({without_values(problem)}). "
            "Stack them first."
        ) from None
    if values.dtype.kind not in "fiub" or values.ndim == 0 or len(values) == 0:
        raise InvalidInput(
            f"{what} must be an array of numbers with at least one record; got {type(records).__name__} of "
            f"{values.dtype}, shape {values.shape}."
        )
    return values


def in_range(values: NDArray[Any], low: float, high: float, scaling: str) -> Tensor:
    """The values as float32; those of another scale would be predicted for without any sign of it.

    :raises InvalidInput: if some do not lie in [low, high].
    """
    numbers = torch.from_numpy(np.array(values, dtype=np.float32, order="C"))
    slack = _SLACK * (high - low)
    outside = int((~((numbers >= low - slack) & (numbers <= high + slack))).sum())
    if outside:
        raise InvalidInput(
            f"{outside:,} of {numbers.numel():,} numbers do not lie in [{low:g}, {high:g}], as those did "
            f"that the model was trained on ({scaling}). Scale them in the same way."
        )
    return numbers


def about_lines(path: Path) -> int | None:
    """About how many lines a file has, by those of its first megabyte; None for a compressed file."""
    if path.suffix == ".gz" or not path.is_file():
        return None
    with path.open("rb") as file:
        first = file.read(1 << 20)
    return round(first.count(b"\n") * path.stat().st_size / len(first)) if first else 0
