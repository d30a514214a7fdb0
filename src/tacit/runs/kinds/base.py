"""What is a kind of data? How it is checked and loaded for a run, and makes a model's inputs of new records.

A kind is a class: what a run file says of it (``check``, ``load``, ``of``) belongs to the class; its objects
are the facts that go into the file of a model, and make records of what a user gives for prediction.

**Guarantee**

* What goes into the file of a model are public facts: settings of the configuration, and what is known of a
  standard data set; nothing is read from the records.
* A record's numbers depend on that record and on these facts alone.

Letters: n records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput, without_values
from tacit.runs.config import Config

if TYPE_CHECKING:  # a run file is checked without torch
    from torch import Tensor

    from tacit.datasets import Dataset

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called during long work, with (title, done, total)."""


def silent(*_: object) -> None:
    """No progress is shown."""


_SLACK = 1e-6  # of a range: float32 rounds


class Piece(NamedTuple):
    """Some records of a file: what each is called in the table of predictions, and ``inputs`` (n, ...)."""

    names: Sequence[str]
    inputs: Tensor


class Source(ABC):
    """One kind of data in a run file.

    Attributes:
        sources: the keys of ``[data]`` that name such data.
    """

    sources: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def check(cls, config: Config) -> None:
        """Refuse data that do not exist, or settings that do not go with them; no record is read.

        Raises:
            InvalidInput, PrivacyRefusal: naming the key.
        """

    @classmethod
    @abstractmethod
    def load(cls, config: Config, progress: Progress) -> Dataset:
        """The records, before any features are computed."""


class Kind(Source):
    """A kind of data of which Tacit itself makes a model's inputs, in training and for predictions.

    Attributes:
        kind: its name in the model's file.
        label: what ``names`` of a piece are.
        example: the name of a file with such data, for people.
    """

    kind: ClassVar[str]
    label: ClassVar[str] = "row"
    example: ClassVar[str]

    @classmethod
    @abstractmethod
    def of(cls, config: Config, data: Dataset) -> Kind:
        """What made the records of a run."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one record, before features are computed of it."""

    def to_data(self) -> dict[str, Any]:
        """The facts as plain data, without ``kind``."""
        return dict(vars(self))

    @classmethod
    @abstractmethod
    def from_data(cls, data: Mapping[str, Any]) -> Kind:
        """The same from plain data."""

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

    def lines(self) -> list[str]:
        """A line on each column that is read, with what is declared of it; none for other data."""
        return []

    def count(self, path: Path) -> int | None:
        """About how many records a file holds, if that can be said before it is read."""
        return None


_ABOUT_PATHS = "Check the path; it is relative to the folder in which the command is called."


def check_path(key: str, path: str | None, what: str) -> None:
    """Refuse the path of a key under ``[data]`` where there is nothing of that kind."""
    there = {"folder": Path.is_dir, "file or folder": Path.exists}.get(what, Path.is_file)
    if path is not None and not there(Path(path)):
        raise InvalidInput(f"[data] {key}: there is no {what} at {path}. {_ABOUT_PATHS}")


def check_no_pictures(config: Config, kind: str) -> None:
    """Refuse settings that need pictures."""
    views, features = config.training.views, config.data.features
    for said, given, usual in (
        (f"[training] views = {views} makes flipped and shifted copies, which", views > 1, "views = 1"),
        (f'[data] features = "{features}"', features != "raw", 'features = "raw"'),
    ):
        if given:
            raise InvalidInput(f"{said} needs pictures; the records are of a {kind}. Take {usual}.")


def check_loss(name: str | None, targets: str) -> None:
    """Refuse a loss that is of other targets: characters, tokens, classes, labels or numbers.

    Raises:
        InvalidInput: the loss of that name does not fit them.
    """
    own = {"classes": "classification", "labels": "multilabel", "numbers": "regression"}
    fits = own.get(targets, "causal")
    if name not in (None, fits):
        raise InvalidInput(
            f'[training] loss = "{name}" does not fit the data, whose targets are {targets}. Take '
            f'loss = "{fits}", or leave the key out.'
        )


def check_class_weights(weights: Mapping[str, float], classes: Sequence[str]) -> None:
    """Refuse weights of what is no class.

    Raises:
        InvalidInput: the data have no classes, or no class of that name; or all weights are 0.
    """
    if weights and not classes:
        raise InvalidInput(
            "[training] class_weights are for classes, and the targets of this run are none. Leave the key "
            "out."
        )
    if strange := [name for name in weights if name not in classes]:
        raise InvalidInput(
            f"[training] class_weights: {strange[0]!r} is not among the classes, {', '.join(classes)}. Name "
            "each class as it is declared."
        )
    if weights and all(weights.get(name, 1.0) == 0.0 for name in classes):
        raise InvalidInput(
            "[training] class_weights are all 0, so that nothing is learnt. Give those that are to count a "
            "weight above 0."
        )


def numbered(done: int, inputs: Tensor) -> Piece:
    """A piece whose records are called by their numbers, after ``done`` others."""
    return Piece([str(number) for number in range(done + 1, done + len(inputs) + 1)], inputs)


def as_array(records: Any, what: str) -> NDArray[Any]:
    """Numbers in memory as an array of at least one record.

    :raises InvalidInput: if they are none.
    """
    import torch

    if isinstance(records, torch.Tensor):
        records = records.detach().cpu()
        records = records.float() if records.is_floating_point() else records
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
    import torch

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
