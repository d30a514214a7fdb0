"""How does a row of a table become a record? By the declared columns, as in training.

Letters: n rows; d features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from tacit.columns import Column, Encoder
from tacit.errors import InvalidInput
from tacit.runs.preprocessing.base import Piece, Preprocessing, about_lines


@final
@dataclass(frozen=True)
class TableInputs(Preprocessing):
    """Rows of a table, encoded by declared columns; the column that is predicted need not be there."""

    kind: ClassVar[str] = "table"
    example: ClassVar[str] = "new.csv"
    encoder: Encoder

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.encoder.features),)

    def to_data(self) -> dict[str, Any]:
        return {"encoder": self.encoder.to_data()}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> TableInputs:
        """The same from plain data."""
        return cls(Encoder.from_data(data["encoder"]))

    def describe(self) -> str:
        return (
            f"Tables (CSV, Parquet, data frames) with the columns {', '.join(self.encoder.inputs_of)}; "
            "others are not read."
        )

    def lines(self) -> list[str]:
        """A line on each column that is read, with what is declared of it."""
        return [f"`{name}`: {_declared(self.encoder.columns[name])}" for name in self.encoder.inputs_of]

    def inputs(self, records: Any) -> Tensor:
        if isinstance(records, np.ndarray | Tensor | list | tuple):
            raise InvalidInput(
                f"the model reads columns by their names ({', '.join(self.encoder.inputs_of)}): give a data "
                f"frame, a mapping of columns, or the path of a table; got {type(records).__name__}. For "
                "features that are encoded already, call predictor.model."
            )
        return _some(torch.from_numpy(self.encoder.frame(records, source="the table")), "the table")

    def count(self, path: Path) -> int | None:
        if path.suffix.lower() not in (".parquet", ".pq"):
            return about_lines(path)
        try:
            from pyarrow import ArrowException, parquet

            return int(parquet.read_metadata(path).num_rows)
        except (ImportError, OSError, ArrowException):  # reading it says what is wrong
            return None

    def pieces(self, path: Path, rows: int) -> Iterator[Piece]:
        found = False
        for inputs, numbers in self.encoder.chunks(path, rows):
            if len(inputs):
                found = True
                yield Piece([str(number) for number in numbers], torch.from_numpy(inputs))
        if not found:
            raise InvalidInput(f"{path} holds no rows to predict for.")


def _some(inputs: Tensor, source: str) -> Tensor:
    if not len(inputs):
        raise InvalidInput(f"{source} holds no rows to predict for.")
    return inputs


def _shown(bound: Any) -> str:
    return str(int(bound)) if isinstance(bound, float) and bound.is_integer() else str(bound)


def _declared(column: Column) -> str:
    facts = column.to_data()
    said = [str(facts.pop("kind"))]
    if "lower" in facts and "upper" in facts:
        said.append(f"{_shown(facts.pop('lower'))} to {_shown(facts.pop('upper'))}")
    if values := facts.pop("values", None):
        said.append("one of " + ", ".join(map(str, values)))
    said += [f"{name} {value}" for name, value in facts.items() if value is not None and name != "step"]
    return "; ".join(said)
