"""Rows of a table, encoded by the declared columns, and numbers of a standard data set.

Letters: n rows; d features.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from tacit.columns import Column, Encoder
from tacit.columns.encoder import TextColumn
from tacit.columns.tables import Cells, CsvFile, cells_of_frame, is_csv, numbers_of, row_numbers
from tacit.errors import InvalidInput, check_in, spelled, without_values
from tacit.runs.config import Config
from tacit.runs.kinds.source import (
    Kind,
    Piece,
    Progress,
    about_lines,
    as_array,
    check_class_weights,
    check_loss,
    check_no_pictures,
    check_path,
    in_range,
    numbered,
)
from tacit.runs.kinds.texts import Text, check_characters
from tacit.runs.sections import DATA_SETS, LINEAR

if TYPE_CHECKING:  # a run file is checked without torch
    from torch import Tensor

    from tacit.datasets import Dataset


@final
@dataclass(frozen=True)
class Table(Kind):
    """Rows of a table, encoded by declared columns; for predictions, target columns may be missing."""

    kind: ClassVar[str] = "table"
    sources: ClassVar[tuple[str, ...]] = ("table", "database")
    example: ClassVar[str] = "new.csv"
    encoder: Encoder

    @classmethod
    def check(cls, config: Config) -> None:
        section = config.data
        if section.database is None:
            check_path("table", section.table, "table")
        check_path("test_table", section.test_table, "table")
        if section.predicted is None:
            raise InvalidInput(
                "[data] target is missing. Set it to the column (or list of columns) to predict, or set "
                "time and event."
            )
        check_no_pictures(config, "table")
        text = None if section.text is None else TextColumn(section.text, section.sequence_length or 1)
        if section.time is not None:
            _check_survival(config)
        encoder = Encoder(config.read_columns(), section.predicted, config.read_dialect(), text)
        targets = (
            "survival"
            if encoder.time_edges
            else "labels"
            if encoder.labels
            else "classes"
            if encoder.classes
            else "numbers"
        )
        check_loss(config.training.loss, targets)
        check_class_weights(config.training.class_weights, encoder.classes)
        if config.evaluation.by and not isinstance(encoder.target, str):
            raise InvalidInput(
                "[evaluation] by needs a single target, and [data] target is a list. Remove by."
            )
        with spelled(lambda argument, _: f"[evaluation] {argument}"):
            config.groups(encoder, np.zeros((0, len(encoder.features)), dtype=np.float32))
        begins = (
            "mean and spread" if encoder.target_bounds else "hazard in each bin" * bool(encoder.time_edges)
        )
        for place, value, needed in (
            ("[privacy] clipping", config.privacy.clipping, "flat"),
            ("[optimizer] name", config.optimizer.name, "sgd"),
        ):
            if begins and config.model.name in LINEAR and value != needed:
                raise InvalidInput(
                    f'{place} must be "{needed}" for [model] name = "{config.model.name}"; got "{value}". '
                    f"This linear model first estimates the target's {begins} from gradients that another "
                    'value would change. Remove the key, or set name = "mlp".'
                )

    @classmethod
    def load(cls, config: Config, progress: Progress) -> Dataset:
        from tacit.datasets import load_table

        section = config.data
        if section.database is not None:
            raise InvalidInput(
                "[data] database works only with `tacit train`. In Python, fit PrivateRegressor or "
                'PrivateClassifier on the table, with head="least-squares".'
            )
        text = None
        if section.text is not None:
            from tacit.runs.public_model import text_column  # imports transformers

            text = text_column(config, section.text)
        return load_table(
            Path(str(section.table)),
            target=section.predicted or "",
            schema=config.read_columns(),
            dialect=config.read_dialect(),
            test_fraction=section.test_fraction,
            test_path=None if section.test_table is None else Path(section.test_table),
            user=section.user,
            date=section.date,
            unit=config.privacy.unit,
            records=config.privacy.records * (section.rows_per_user or 1),
            text=text,
        )

    @classmethod
    def of(cls, config: Config, data: Dataset) -> Table:
        assert data.encoder is not None, "a table was loaded"
        return cls(data.encoder)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.encoder.features),)

    def to_data(self) -> dict[str, Any]:
        return {"encoder": self.encoder.to_data()}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Table:
        return cls(Encoder.from_data(data["encoder"]))

    def with_tokens(self, tokens: Callable[[Sequence[str]], Any]) -> Table:
        """Return the table with a tokenizer for its text column, if it has one."""
        text = self.encoder.text
        return self if text is None else Table(replace(self.encoder, text=replace(text, tokens=tokens)))

    def describe(self) -> str:
        return (
            f"Tables (CSV, Parquet, data frames) with the columns {', '.join(self.encoder.inputs_of)}; "
            "others are not read."
        )

    def lines(self) -> list[tuple[str, str]]:
        text = self.encoder.text
        first = [] if text is None else [(text.name, f"text, of which {text.length} tokens are read")]
        declared = self.encoder.inputs_of[len(first) :]
        return [*first, *((name, _declared(self.encoder.columns[name])) for name in declared)]

    def inputs(self, records: Any) -> Tensor:
        records = self._named(records)
        if not isinstance(records, Mapping) and not hasattr(records, "columns"):
            raise InvalidInput(
                f"the model reads columns by name ({', '.join(self.encoder.inputs_of)}); got "
                f"{type(records).__name__}. Give a data frame, a dict of columns, or a path to a table. For "
                "encoded features, call predictor.model."
            )
        inputs = self.encoder.frame(records, source="the table")
        if not len(inputs):
            raise InvalidInput("the table has no rows. Give at least one.")
        return _tensor(inputs)

    def _named(self, records: Any) -> Any:
        text, several = (
            self.encoder.text,
            not isinstance(records, Mapping) and not hasattr(records, "columns"),
        )
        if text is None or self.encoder.inputs_of != (text.name,) or not several:
            return records
        return {text.name: list(records)} if isinstance(records, Iterable) else records

    def count(self, path: Path) -> int | None:
        if path.suffix.lower() not in (".parquet", ".pq"):
            return about_lines(path)
        try:
            from pyarrow import ArrowException, parquet

            return int(parquet.read_metadata(path).num_rows)
        except (ImportError, OSError, ArrowException):  # the reader will report the problem
            return None

    def pieces(self, path: Path, rows: int) -> Iterator[Piece]:
        any_rows = False
        for inputs, numbers in self.encoder.chunks(path, rows):
            if len(inputs):
                any_rows = True
                yield Piece([str(number) for number in numbers], _tensor(inputs))
        if not any_rows:
            raise InvalidInput(f"{path} has no rows. Give at least one.")


def _check_survival(config: Config) -> None:
    """Refuse a time without declared bins, an event that is no boolean, and settings that do not fit."""
    section, columns = config.data, config.read_columns()
    time, event = columns.get(str(section.time)), columns.get(str(section.event))
    if time is not None and (not time.is_number or not time.edges):
        raise InvalidInput(
            f'[columns.{section.time}] is the time of a survival model, so it needs kind = "number" with '
            "lower, upper and bins, such as lower = 0, upper = 3650, bins = 20. Do not take them from the "
            "data, because bounds and quantiles reveal information about people."
        )
    if event is not None and event.kind != "boolean":
        raise InvalidInput(
            f'[columns.{section.event}] is the event of a survival model, so it needs kind = "boolean": true '
            f'if the event happened, false if the observation only ended (censored); got "{event.kind}".'
        )
    if config.privacy.test_noise is not None:
        raise InvalidInput(
            "[privacy] test_noise does not support survival models: their score compares pairs, so one "
            "record affects many. Remove it, and set test_table to records outside the ledger's data set."
        )
    if config.pretrained:
        raise InvalidInput(
            f"{config.model.public_key} cannot be used with [data] time: survival models read only declared "
            'columns. Set [model] name = "auto" or "mlp".'
        )


def _tensor(inputs: Any) -> Tensor:
    import torch

    return torch.from_numpy(inputs)


def _shown(bound: Any) -> str:
    return str(int(bound)) if isinstance(bound, float) and bound.is_integer() else str(bound)


def _declared(column: Column) -> str:
    facts = column.to_data()
    parts = [str(facts.pop("kind"))]
    if "lower" in facts and "upper" in facts:
        parts.append(f"{_shown(facts.pop('lower'))} to {_shown(facts.pop('upper'))}")
    if values := facts.pop("values", None):
        parts.append("one of " + ", ".join(map(str, values)))
    parts += [f"{name} {value}" for name, value in facts.items() if value is not None and name != "step"]
    return "; ".join(parts)


_NUMBER = Column(kind="number")


@final
@dataclass(frozen=True)
class Arrays(Kind):
    """Records of ``record_shape`` with numbers in [``low``, ``high``].

    ``scaling`` describes how the data set's numbers were scaled; ``features`` names the columns of a table.
    """

    kind: ClassVar[str] = "arrays"
    sources: ClassVar[tuple[str, ...]] = ("name",)
    example: ClassVar[str] = "new.npy"
    record_shape: tuple[int, ...]
    low: float
    high: float
    scaling: str
    features: tuple[str, ...] = ()

    @classmethod
    def check(cls, config: Config) -> None:
        check_in("[data] name", config.data.name, DATA_SETS)
        if config.data.name == "names":
            check_characters(config)

    @classmethod
    def load(cls, config: Config, progress: Progress) -> Dataset:
        from tacit.datasets import load

        section = config.data
        folder = None if section.folder is None else Path(section.folder)
        return load(str(section.name), folder=folder)

    @classmethod
    def of(cls, config: Config, data: Dataset) -> Kind:
        if data.alphabet:
            return Text.of(config, data)
        low = -1.0 if data.features else 0.0  # tables are scaled to [-1, 1], pixels to [0, 1]
        return cls(data.pictures or data.input_shape, low, 1.0, data.source, data.features)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.record_shape

    def to_data(self) -> dict[str, Any]:
        return {
            "shape": list(self.record_shape),
            "low": self.low,
            "high": self.high,
            "source": self.scaling,
            "features": list(self.features),
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Arrays:
        shape, features = tuple(map(int, data["shape"])), tuple(map(str, data["features"]))
        return cls(shape, float(data["low"]), float(data["high"]), str(data["source"]), features)

    def describe(self) -> str:
        columns = f" ({', '.join(self.features)})" if self.features else ""
        return (
            f"Arrays of shape (n, {', '.join(map(str, self.shape))}){columns}, of numbers in [{self.low:g}, "
            f"{self.high:g}], scaled as in training ({self.scaling})."
        )

    def inputs(self, records: Any) -> Tensor:
        if self.features and (isinstance(records, Mapping) or hasattr(records, "columns")):
            cells = cells_of_frame(records, self.features)
            return self._scaled(self._numbers(cells, "the table", 0))
        values = as_array(records, "records")
        if values.ndim < 2 or values.shape[1:] not in (self.shape, (math.prod(self.shape),)):
            raise InvalidInput(
                f"the model takes arrays of shape (n, {', '.join(map(str, self.shape))}) or (n, "
                f"{math.prod(self.shape)}); got shape {values.shape}. Give the same features as in training, "
                "in the same order."
            )
        return self._scaled(values)

    def _scaled(self, values: NDArray[Any]) -> Tensor:
        return in_range(values, self.low, self.high, self.scaling).reshape(-1, *self.shape)

    def count(self, path: Path) -> int | None:
        return about_lines(path) if is_csv(path) else len(_load(path))

    def pieces(self, path: Path, rows: int) -> Iterator[Piece]:
        done = 0
        for values in self._csv(path, rows) if is_csv(path) else _parts(_load(path), rows):
            if len(values):
                yield numbered(done, self.inputs(values))
                done += len(values)
        if not done:
            raise InvalidInput(f"{path} has no rows. Give at least one.")

    def _csv(self, path: Path, rows: int) -> Iterator[NDArray[np.float64]]:
        """Yield rows of the columns named in ``features``, or of all columns in their order."""
        names = list(self.features) or CsvFile(path, ()).header
        if len(names) != math.prod(self.shape):
            raise InvalidInput(
                f"{path} has {len(names)} columns, but the model takes {math.prod(self.shape)}. Give a "
                "header line and one column per feature, in the order of training."
            )
        done = 0
        for chunk in CsvFile(path, names).chunks(rows):
            values = self._numbers({name: chunk[name] for name in names}, str(path), done)
            yield values
            done += len(values)

    def _numbers(self, table: Mapping[str, Cells], source: str, before: int) -> NDArray[np.float64]:
        columns = []
        for name, cells in table.items():
            numbers, _ = numbers_of(cells, _NUMBER)
            if len(wrong := np.flatnonzero(np.isnan(numbers))):
                raise InvalidInput(
                    f"column {name!r} of {source} must contain numbers; non-numeric cells: {len(wrong):,} "
                    f"({row_numbers((wrong + 1 + before).tolist())}). Correct or remove these rows."
                )
            columns.append(numbers)
        return np.stack(columns, axis=1)


def _load(path: Path) -> NDArray[Any]:
    """Return the memory-mapped array of a .npy file, or a .npz file's only array or the one named ``x``."""
    if not path.is_file():
        raise InvalidInput(f"there is no file at {path}. Check the path.")
    if path.suffix not in (".npy", ".npz"):
        raise InvalidInput(f"{path} is not a .npy, .npz or .csv file. Save the array with numpy.save.")
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if path.suffix == ".npz":
            with values as archive:
                values = archive[_the_only(path, list(archive))]
    except (OSError, EOFError, zipfile.BadZipFile, ValueError) as problem:
        if isinstance(problem, InvalidInput):
            raise
        raise InvalidInput(
            f"cannot read {path} as an array of numbers ({without_values(problem)}). Save it with "
            "numpy.save; arrays of Python objects are not supported."
        ) from None
    array: NDArray[Any] = values
    return array


def _the_only(path: Path, names: list[str]) -> str:
    if len(names) != 1 and "x" not in names:
        raise InvalidInput(
            f"{path} contains {len(names)} arrays, and none is named x. Save the records alone, or as x."
        )
    return names[0] if len(names) == 1 else "x"


def _parts(values: NDArray[Any], rows: int) -> Iterator[NDArray[Any]]:
    if values.ndim == 0:
        raise InvalidInput("the file contains a single number. Save an array of records.")
    return (values[start : start + rows] for start in range(0, len(values), rows))
