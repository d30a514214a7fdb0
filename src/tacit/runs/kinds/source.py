"""The interface of a kind of data: it checks and loads the data of a run, and encodes new records.

Letters: n records.
"""

# Guarantee:
# * The file of a model gets only public facts: settings of the configuration, and facts about a standard data
#   set.  None is read from the records.
# * The encoding of a record depends only on that record and on these facts.

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
"""A function that is called during long work, with (title, done, total)."""


def silent(*_: object) -> None:
    """Show no progress."""


_SLACK = 1e-6  # relative to the range, for the rounding of float32


class Piece(NamedTuple):
    """Some records of a file, with their ``names`` for the table of predictions and ``inputs`` (n, ...)."""

    names: Sequence[str]
    inputs: Tensor


class Source(ABC):
    """One kind of data in a run file.

    Attributes:
        sources: the keys of ``[data]`` that name data of this kind.
    """

    sources: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def check(cls, config: Config) -> None:
        """Refuse data that do not exist, or settings that do not fit them; no record is read."""

    @classmethod
    @abstractmethod
    def load(cls, config: Config, progress: Progress) -> Dataset:
        """Load the records, before any features are computed."""


class Kind(Source):
    """A kind of data that Tacit itself encodes, in training and for predictions.

    Attributes:
        kind: the name of the kind in the model's file.
        label: the heading of the records' names in a table of predictions.
        example: the name of a file with such data, for documentation.
    """

    kind: ClassVar[str]
    label: ClassVar[str] = "row"
    example: ClassVar[str]

    @classmethod
    @abstractmethod
    def of(cls, config: Config, data: Dataset) -> Kind:
        """Return the kind, with the facts by which it encoded the records of a run."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one record, before features are computed."""

    def to_data(self) -> dict[str, Any]:
        """Return the facts as plain data, without ``kind``."""
        return dict(vars(self))

    @classmethod
    @abstractmethod
    def from_data(cls, data: Mapping[str, Any]) -> Kind:
        """Read the facts from plain data."""

    @abstractmethod
    def inputs(self, records: Any) -> Tensor:
        """Encode records in memory as (n, *shape)."""

    @abstractmethod
    def pieces(self, path: Path, rows: int) -> Iterator[Piece]:
        """Yield the encoded records of a file, ``rows`` at a time."""

    @abstractmethod
    def describe(self) -> str:
        """Describe in one sentence the data that this kind encodes."""

    def lines(self) -> list[tuple[str, str]]:
        """Return name and declaration of each input column; empty for data without columns."""
        return []

    def count(self, path: Path) -> int | None:
        """Estimate the number of records in a file without reading it; None if that is not possible."""
        return None


_ABOUT_PATHS = "Check the path; it is relative to the folder in which the command is called."


def check_path(key: str, path: str | None, kind: str) -> None:
    exists = {"folder": Path.is_dir, "file or folder": Path.exists}.get(kind, Path.is_file)
    if path is not None and not exists(Path(path)):
        raise InvalidInput(f"[data] {key}: there is no {kind} at {path}. {_ABOUT_PATHS}")


def check_no_pictures(config: Config, kind: str) -> None:
    views, features = config.training.views, config.data.features
    for setting, is_set, usual in (
        (f"[training] views = {views}", views > 1, "views = 1"),
        (f'[data] features = "{features}"', features != "raw", 'features = "raw"'),
    ):
        if is_set:
            raise InvalidInput(
                f"{setting} is only for images, but the records are from a {kind}. Set {usual}."
            )


def check_loss(name: str | None, targets: str) -> None:
    own = {
        "classes": "classification",
        "labels": "multilabel",
        "numbers": "regression",
        "survival": "survival",
        "pairs": "preference",
    }
    fits = own.get(targets, "causal")
    if name not in (None, fits):
        raise InvalidInput(
            f'[training] loss = "{name}" does not fit targets that are {targets}. Set loss = "{fits}", or '
            "remove it."
        )


def check_class_weights(weights: Mapping[str, float], classes: Sequence[str]) -> None:
    if weights and not classes:
        raise InvalidInput("[training] class_weights need targets that are classes. Remove them.")
    if strange := [name for name in weights if name not in classes]:
        raise InvalidInput(
            f"[training] class_weights: {strange[0]!r} is not among the classes, {', '.join(classes)}. Use "
            "the declared class names."
        )
    if weights and all(weights.get(name, 1.0) == 0.0 for name in classes):
        raise InvalidInput(
            "[training] class_weights are all 0, so nothing would be learned. Give at least one class a "
            "weight above 0."
        )


def numbered(done: int, inputs: Tensor) -> Piece:
    """Make a piece in which records are named by their numbers, counted from ``done + 1``."""
    return Piece([str(number) for number in range(done + 1, done + len(inputs) + 1)], inputs)


def as_array(records: Any, name: str) -> NDArray[Any]:
    """Convert numbers in memory to an array of at least one record."""
    import torch

    if isinstance(records, torch.Tensor):
        records = records.detach().cpu()
        records = records.float() if records.is_floating_point() else records
    try:
        values = np.asarray(records)
    except (ValueError, TypeError) as problem:
        raise InvalidInput(
            f"{name} must be one array of numbers ({without_values(problem)}). Stack the records; all need "
            "the same shape."
        ) from None
    if values.dtype.kind not in "fiub" or values.ndim == 0 or len(values) == 0:
        raise InvalidInput(
            f"{name} must be an array of numbers with at least one record; got {type(records).__name__} of "
            f"{values.dtype}, shape {values.shape}."
        )
    return values


def in_range(values: NDArray[Any], low: float, high: float, scaling: str) -> Tensor:
    """Convert values to float32, and check their range, as predictions on another scale would be wrong."""
    import torch

    numbers = torch.from_numpy(np.array(values, dtype=np.float32, order="C"))
    slack = _SLACK * (high - low)
    outside = int((~((numbers >= low - slack) & (numbers <= high + slack))).sum())
    if outside:
        raise InvalidInput(
            f"{outside:,} of {numbers.numel():,} values are outside [{low:g}, {high:g}], the range in "
            f"training ({scaling}). Scale them as in training."
        )
    return numbers


def about_lines(path: Path) -> int | None:
    """Estimate the number of a file's lines from its first megabyte; None for a compressed file."""
    if path.suffix == ".gz" or not path.is_file():
        return None
    with path.open("rb") as file:
        first = file.read(1 << 20)
    return round(first.count(b"\n") * path.stat().st_size / len(first)) if first else 0
