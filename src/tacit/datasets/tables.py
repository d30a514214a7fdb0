"""How are tables from CSV or Parquet encoded? By a public schema.

Nothing is learnt from the rows: bounds, categories and classes are declared.  Bounds taken from the data
would be an unaccounted release: one extreme record would change every other record's scaled values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.columns.cells import MISSING_WORDS, CsvFile, find_column, numbers_of, row_numbers
from tacit.datasets.dataset import Dataset, TensorPair
from tacit.datasets.splitting import choose_test
from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal, TacitError, check_in, check_real

__all__ = ["Categorical", "Column", "Numeric", "load_table", "parse_schema"]

_DATA_WORDS = frozenset({"auto", "data", "min", "max", "infer", "quantile"})


@dataclass(frozen=True)
class Numeric:
    """A number known to lie in [low, high]: values are clamped to it and scaled to [-1, 1].

    >>> Numeric(0, 120)
    Numeric(low=0.0, high=120.0)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if value is None or (isinstance(value, str) and value in _DATA_WORDS):
                raise PrivacyRefusal(_no_data_bounds("a numeric column"))
            object.__setattr__(self, name, check_real(name, value))
        if not self.low < self.high:
            raise InvalidInput(f"low must be below high; got low={self.low:g}, high={self.high:g}.")


@dataclass(frozen=True)
class Categorical:
    """One of the declared values: one-hot, with one more place for any other value.

    >>> Categorical(("yes", "no")).values
    ('yes', 'no')
    """

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        given: object = self.values
        if given is None or (isinstance(given, str) and given in _DATA_WORDS):
            raise PrivacyRefusal(_no_data_bounds("a categorical column"))
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise InvalidInput(f"values must be a list of the declared values; got {given!r}.")
        values = tuple(str(value) for value in given)
        if not values or len(set(values)) != len(values):
            raise InvalidInput(f"values must be at least one, and all different; got {values}.")
        object.__setattr__(self, "values", values)


Column: TypeAlias = Numeric | Categorical


def _no_data_bounds(what: str) -> str:
    return (
        f"{what} must have bounds or values that are declared, not taken from the data: the smallest and "
        "largest value, or the list of values, depend on single records, so using them would release "
        "something that no budget covers. Declare what is known without the data, such as Numeric(0, 120) "
        "for an age ({ low = 0, high = 120 } in a file) or Categorical(('yes', 'no')) "
        "({ values = ['yes', 'no'] })."
    )


def parse_schema(columns: Mapping[str, object]) -> dict[str, Column]:
    """Read a schema from a configuration file: ``{low, high}`` or ``[low, high]``, or ``{values}``.

    Errors: :class:`PrivacyRefusal` where bounds are left to the data; :class:`InvalidInput` otherwise.

    >>> parse_schema({"age": [17, 90], "sex": {"values": ["Female", "Male"]}})["age"]
    Numeric(low=17.0, high=90.0)
    """
    return {name: _parse_column(name, column) for name, column in columns.items()}


def _parse_column(name: str, column: Any) -> Column:
    try:
        match column:
            case Numeric() | Categorical():
                return column
            case {"low": low, "high": high, **rest} if not rest:
                return Numeric(low, high)
            case {"values": values, **rest} if not rest:
                return Categorical(values)
            case [low, high]:
                return Numeric(low, high)
            case None | str():
                raise PrivacyRefusal(_no_data_bounds("a column"))
            case _:
                raise InvalidInput(f"it must be {{ low, high }} or {{ values }}; got {column!r}.")
    except TacitError as problem:
        raise type(problem)(f"column {name!r}: {problem}") from None


def load_table(
    path: Path,
    *,
    target: str,
    schema: Mapping[str, Column],
    test_fraction: float | None = None,
    test_path: Path | None = None,
    missing: str = "refuse",
    unit: str = "row",
    name: str | None = None,
) -> Dataset:
    """Read a table from CSV (also .csv.gz) or Parquet and encode it by a public schema.

    * ``schema`` declares the target and every column to use; other columns are not read.
    * ``target``: if categorical, its values are the classes; if numeric, it becomes (n, 1) in [-1, 1].
    * Test rows come from ``test_path``, or are a ``test_fraction`` of the rows, each chosen by a hash of
      that row alone, so that one row more or less leaves all others in their part.
    * ``missing``: "refuse", or "constant": the middle of the bounds for numbers, "other" for categories.
      Empty cells, NA, NaN, null, None and ? count as missing, unless declared as a value.

    Shapes: inputs (n, d) float32, d = one per numeric column and values + 1 per categorical one.

    Guarantee: a row's encoding depends on that row and on the schema alone.

    Errors: :class:`InvalidInput` for an unreadable or empty file, missing columns or values, labels that
    were not declared, rows with missing cells; :class:`MissingExtra` for Parquet without pyarrow.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("age,sex,sick\\n" + "30,f,no\\n60,m,yes\\n45,f,no\\n" * 2)
    >>> schema = {"age": Numeric(0, 120), "sex": Categorical(("f", "m")), "sick": Categorical(("no", "yes"))}
    >>> data = load_table(path, target="sick", schema=schema, test_path=path, unit="person")
    >>> data.features, data.train.inputs[0].tolist()
    (('age', 'sex=f', 'sex=m', 'sex=other'), [-0.5, 1.0, 0.0, 0.0])
    """
    check_in("missing", missing, ("refuse", "constant"))
    if target not in schema:
        raise InvalidInput(f"target must be a column of the schema ({', '.join(schema)}); got {target!r}.")
    if len(schema) < 2:
        raise InvalidInput("the schema must declare at least one column beside the target.")
    if (test_fraction is None) == (test_path is None):
        raise InvalidInput(
            "give exactly one of test_fraction and test_path, to say where the test rows come from."
        )
    train = _encode(Path(path), target, schema, missing)
    if test_path is not None:
        test = _encode(Path(test_path), target, schema, missing)
    elif test_fraction is not None:
        train, test = _split(train, test_fraction)
    kind = schema[target]
    return Dataset(
        name or Path(path).name.split(".")[0],
        train,
        test,
        classes=kind.values if isinstance(kind, Categorical) else (),
        source=f"table {Path(path).name}, {len(schema) - 1} columns encoded by declared bounds and values",
        unit=unit,
        features=tuple(_feature_names(target, schema)),
        target_bounds=((kind.low, kind.high),) if isinstance(kind, Numeric) else (),
    )


def _split(pair: TensorPair, test_fraction: float) -> tuple[TensorPair, TensorPair]:
    inputs, targets = (part.numpy() for part in pair)
    rows = (row.tobytes() + label.tobytes() for row, label in zip(inputs, targets, strict=True))
    marks = torch.from_numpy(choose_test(rows, test_fraction))
    if bool(marks.all()) or not bool(marks.any()):
        raise InvalidInput(
            f"test_fraction={test_fraction:g} leaves no row for {'training' if marks.all() else 'testing'} "
            f"among {len(marks)} rows. Use another fraction, or a file of test rows with test_path."
        )
    train, test = (TensorPair(pair.inputs[part], pair.targets[part]) for part in (~marks, marks))
    return train, test


def _feature_names(target: str, schema: Mapping[str, Column]) -> list[str]:
    names: list[str] = []
    for column, kind in schema.items():
        if column == target:
            continue
        match kind:
            case Numeric():
                names.append(column)
            case Categorical(values):
                names += [f"{column}={value}" for value in (*values, "other")]
    return names


def _encode(path: Path, target: str, schema: Mapping[str, Column], missing: str) -> TensorPair:
    """Rows of one file as tensors."""
    table = _read(path, schema)
    count = len(table[target])
    blocks: list[NDArray[np.float32]] = []
    lacking = np.zeros(count, dtype=np.bool_)
    for column, kind in schema.items():
        if column == target:
            continue
        match kind:
            case Numeric(low, high):
                numbers = _numbers(table[column], f"column {column!r} of {path}")
                blocks.append(np.nan_to_num(_scale(numbers, low, high), nan=0.0)[:, None])
                lacking |= np.isnan(numbers)
            case Categorical(values):
                codes, absent = _codes(table[column], values)
                blocks.append(np.eye(len(values) + 1, dtype=np.float32)[codes])
                lacking |= absent
    if missing == "refuse" and lacking.any():
        raise InvalidInput(
            f"{int(lacking.sum())} of {count} rows of {path} lack a value. Remove these rows, or declare "
            'missing="constant", which puts a public constant in the place of a missing value.'
        )
    targets = _targets(table[target], schema[target], f"column {target!r} of {path}")
    return TensorPair(torch.from_numpy(np.concatenate(blocks, axis=1)), targets)


def _targets(cells: _Cells, kind: Column, where: str) -> torch.Tensor:
    match kind:
        case Numeric(low, high):
            numbers = _numbers(cells, where)
            lacking = np.isnan(numbers)
            values = torch.from_numpy(_scale(numbers, low, high)[:, None])
        case Categorical(classes):
            codes, lacking = _codes(cells, classes)
            strange = np.flatnonzero((codes == len(classes)) & ~lacking)
            if len(strange):
                raise InvalidInput(
                    f"{len(strange):,} labels in {where} are not among the declared classes "
                    f"({', '.join(classes)}): {row_numbers((strange + 1).tolist())}. Declare every class, or "
                    "mend the file."
                )
            values = torch.from_numpy(codes)
    if lacking.any():
        raise InvalidInput(
            f"{int(lacking.sum())} of {len(cells)} rows lack the target, {where}; remove these rows, since "
            "nothing can be learnt from them."
        )
    return values


def _scale(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float32]:
    scaled: NDArray[np.float64] = 2.0 * (np.clip(values, low, high) - low) / (high - low) - 1.0
    return scaled.astype(np.float32)


def _numbers(cells: _Cells, where: str) -> NDArray[np.float64]:
    """The cells as numbers, NaN where a value is missing."""
    if isinstance(cells, np.ndarray):
        return cells
    numbers, wrong = numbers_of(cells)
    if len(wrong):
        raise InvalidInput(
            f"{len(wrong):,} values in {where} are not numbers ({row_numbers((wrong + 1).tolist())}). "
            "Declare the column as Categorical, or correct the file."
        )
    return numbers


def _codes(cells: _Cells, values: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The number of each value, ``len(values)`` for any other; and where a value is missing."""
    numbers = {value: number for number, value in enumerate(values)}
    missing = MISSING_WORDS - set(values)
    words = [_word(cell) for cell in cells]
    codes = np.array([numbers.get(word, len(values)) for word in words], dtype=np.int64)
    return codes, np.array([word in missing for word in words], dtype=np.bool_)


def _word(cell: object) -> str:
    """A cell as text: nothing for a missing one, whole numbers without a decimal point."""
    match cell:
        case None:
            return ""
        case float() if math.isnan(cell):
            return ""
        case float() if cell.is_integer():
            return str(int(cell))
        case _:
            return str(cell).strip()


_Cells: TypeAlias = list[str] | NDArray[np.float64]
"""One column: text, or numbers with NaN for a missing one."""


def _read(path: Path, schema: Mapping[str, Column]) -> dict[str, _Cells]:
    """The columns of the schema."""
    if not path.is_file():
        raise InvalidInput(f"there is no table at {path}. Check the path.")
    parquet = path.suffix in (".parquet", ".pq")
    table = _read_parquet(path, schema) if parquet else _read_csv(path, schema)
    if not len(next(iter(table.values()))):
        raise InvalidInput(f"the table {path} holds no rows.")
    return table


def _read_csv(path: Path, schema: Mapping[str, Column]) -> dict[str, _Cells]:
    table: dict[str, list[str]] = {column: [] for column in schema}
    for chunk in CsvFile(path, schema).chunks():
        for column, cells in chunk.items():
            table[column] += cells
    return dict(table)


def _read_parquet(path: Path, schema: Mapping[str, Column]) -> dict[str, _Cells]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "tables", "Reading Parquet files") from None
    try:
        header = list(parquet.read_schema(path).names)
        for column in schema:
            find_column(path, header, column)
        raw = parquet.read_table(path, columns=list(schema))
    except (OSError, pyarrow.ArrowException):  # their texts may hold a value
        raise InvalidInput(f"cannot read {path} as Parquet: it is damaged, or no Parquet file.") from None
    table: dict[str, _Cells] = {}
    for column, kind in schema.items():
        cells = raw.column(column)
        text = pyarrow.types.is_string(cells.type) or pyarrow.types.is_large_string(cells.type)
        if isinstance(kind, Numeric) and not text:
            table[column] = cells.cast(pyarrow.float64()).to_numpy()
        else:
            table[column] = [_word(cell) for cell in cells.to_pylist()]
    return table
