"""Records of a table: its rows, encoded by the declared columns.

Letters: n rows; d features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from tacit.columns import Column, Encoder
from tacit.columns.encoder import TextColumn
from tacit.errors import InvalidInput
from tacit.runs.config import Config
from tacit.runs.kinds.source import (
    Kind,
    Piece,
    Progress,
    about_lines,
    check_class_weights,
    check_loss,
    check_no_pictures,
    check_path,
)
from tacit.runs.sections import LINEAR

if TYPE_CHECKING:
    from torch import Tensor

    from tacit.datasets import Dataset


@final
@dataclass(frozen=True)
class Table(Kind):
    """Rows of a table, encoded by declared columns; for predictions, target columns may be missing."""

    kind: ClassVar[str] = "table"
    sources: ClassVar[tuple[str, ...]] = ("table",)
    example: ClassVar[str] = "new.csv"
    encoder: Encoder

    @classmethod
    def check(cls, config: Config) -> None:
        section = config.data
        check_path("table", section.table, "table")
        check_path("test_table", section.test_table, "table")
        if section.target is None:
            raise InvalidInput("[data] target is missing: name the column to predict, or a list of columns.")
        check_no_pictures(config, "table")
        text = None if section.text is None else TextColumn(section.text, section.sequence_length or 1)
        encoder = Encoder(config.read_columns(), section.target, config.read_dialect(), text)
        targets = "labels" if encoder.labels else "classes" if encoder.classes else "numbers"
        check_loss(config.training.loss, targets)
        check_class_weights(config.training.class_weights, encoder.classes)
        learns_spread = bool(encoder.target_bounds) and config.model.name in LINEAR
        for place, value, needed in (
            ("[privacy] clipping", config.privacy.clipping, "flat"),
            ("[optimizer] name", config.optimizer.name, "sgd"),
        ):
            if learns_spread and value != needed:
                raise InvalidInput(
                    f'{place} must be "{needed}" for [model] name = "{config.model.name}"; got "{value}". A '
                    "linear model of a number first learns the target's mean and spread from its gradients, "
                    'and another value would change these. Leave the key out, or take name = "mlp".'
                )

    @classmethod
    def load(cls, config: Config, progress: Progress) -> Dataset:
        from tacit.datasets import load_table

        section = config.data
        text = None
        if section.text is not None:
            from tacit.runs.public_model import text_column  # imports transformers

            text = text_column(config, section.text)
        return load_table(
            Path(str(section.table)),
            target=section.target or "",
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
        """Return the table with a tokenizer for its column of texts, if it has one."""
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
                f"the model reads columns by their names ({', '.join(self.encoder.inputs_of)}): give a data "
                f"frame, a mapping of columns, or the path of a table; got {type(records).__name__}. For "
                "encoded features, call predictor.model."
            )
        inputs = self.encoder.frame(records, source="the table")
        if not len(inputs):
            raise InvalidInput("the table holds no rows to predict for.")
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
            raise InvalidInput(f"{path} holds no rows to predict for.")


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
