"""Tables from CSV or Parquet, encoded by a public schema.

Nothing is learnt from the rows: bounds, categories and classes are declared.  Bounds taken from the data
would be an unaccounted release: one extreme record would move every other record's scaled values.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.datasets.dataset import Dataset, TensorPair
from tacit.datasets.splitting import choose_test
from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal, TacitError, check_in, check_real

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Categorical", "Column", "Numeric", "load_table", "parse_schema"]

_MISSING_WORDS = frozenset({"", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?"})
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
        "something that no budget paid for. Declare what is known without the data, such as Numeric(0, 120) "
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
      that row alone, so that one row more or less leaves all others where they are.
    * ``missing``: "refuse", or "constant": the middle of the bounds for numbers, "other" for categories.
      Empty cells, NA, NaN, null, None and ? count as missing, unless declared as a value.

    Shapes: inputs (n, d) float32, d = one per numeric column and values + 1 per categorical one.

    Guarantee: a row's encoding depends on that row and on the schema alone.

    Errors: :class:`InvalidInput` for an unreadable or empty file, missing columns or values, labels that
    were not declared; :class:`MissingExtra` without pandas, or without pyarrow for Parquet.

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
            f"among {len(marks)} rows; use another fraction, or a file of test rows with test_path."
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
    frame = _read(path, tuple(schema))
    blocks: list[NDArray[np.float32]] = []
    lacking = np.zeros(len(frame), dtype=np.bool_)
    for column, kind in schema.items():
        if column == target:
            continue
        match kind:
            case Numeric(low, high):
                numbers = _numbers(frame[column], path)
                blocks.append(np.nan_to_num(_scale(numbers, low, high), nan=0.0)[:, None])
                lacking |= np.isnan(numbers)
            case Categorical(values):
                codes, absent = _codes(frame[column], values)
                blocks.append(np.eye(len(values) + 1, dtype=np.float32)[codes])
                lacking |= absent
    if missing == "refuse" and lacking.any():
        raise InvalidInput(
            f"{int(lacking.sum())} of {len(frame)} rows of {path} lack a value. Remove these rows, or "
            'declare missing="constant", which puts a public constant in the place of a missing value.'
        )
    targets = _targets(frame[target], schema[target], path)
    return TensorPair(torch.from_numpy(np.concatenate(blocks, axis=1)), targets)


def _targets(series: pd.Series[Any], kind: Column, path: Path) -> torch.Tensor:
    match kind:
        case Numeric(low, high):
            numbers = _numbers(series, path)
            lacking = np.isnan(numbers)
            values = torch.from_numpy(_scale(numbers, low, high)[:, None])
        case Categorical(classes):
            codes, lacking = _codes(series, classes)
            strange = np.flatnonzero((codes == len(classes)) & ~lacking)
            if len(strange):
                raise InvalidInput(
                    f"{len(strange)} labels in column {series.name!r} of {path} are not among the declared "
                    f"classes ({', '.join(classes)}), such as {str(_words(series)[strange[0]])!r}. Declare "
                    "every class, or mend the file."
                )
            values = torch.from_numpy(codes)
    if lacking.any():
        raise InvalidInput(
            f"{int(lacking.sum())} of {len(series)} rows of {path} lack the target {series.name!r}; remove "
            "these rows, since nothing can be learnt from them."
        )
    return values


def _scale(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float32]:
    scaled: NDArray[np.float64] = 2.0 * (np.clip(values, low, high) - low) / (high - low) - 1.0
    return scaled.astype(np.float32)


def _numbers(series: pd.Series[Any], path: Path) -> NDArray[np.float64]:
    """The column as numbers, NaN where a value is missing."""
    if series.dtype.kind in "iufb":
        return series.to_numpy(dtype=np.float64, na_value=math.nan)
    import pandas as pd

    words = _words(series)
    known = ~np.isin(words, list(_MISSING_WORDS))
    numbers = np.full(len(words), math.nan)
    numbers[known] = pd.to_numeric(pd.Series(words[known]), errors="coerce").to_numpy(dtype=np.float64)
    wrong = int((np.isnan(numbers) & known).sum())
    if wrong:
        raise InvalidInput(
            f"{wrong} values in column {series.name!r} of {path} are not numbers; declare the column as "
            "Categorical, or mend the file."
        )
    return numbers


def _codes(series: pd.Series[Any], values: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The number of each value, ``len(values)`` for any other; and where a value is missing."""
    words = _words(series)
    numbers = {value: number for number, value in enumerate(values)}
    codes = np.fromiter((numbers.get(word, len(values)) for word in words), dtype=np.int64, count=len(words))
    return codes, np.isin(words, sorted(_MISSING_WORDS - set(values)))


def _words(series: pd.Series[Any]) -> NDArray[np.str_]:
    """The column as text without surrounding blanks; whole numbers without a decimal point."""
    values = series.astype(object).where(series.notna(), "")
    return np.array([_word(value) for value in values], dtype=np.str_)


def _word(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole and isinstance(value, float) else str(value).strip()


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """The named columns of a file, CSV cells as text."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtra("pandas", "tables", "Reading tables") from None
    if not path.is_file():
        raise InvalidInput(f"there is no table at {path}; check the path.")
    parquet = path.suffix in (".parquet", ".pq")
    try:
        if parquet:
            frame = _read_parquet(path, columns)
        else:
            _check_columns(
                path, tuple(map(str, pd.read_csv(path, nrows=0, skipinitialspace=True).columns)), columns
            )
            frame = pd.read_csv(
                path, usecols=list(columns), dtype=str, na_filter=False, skipinitialspace=True
            )
    except InvalidInput:
        raise
    except (OSError, EOFError, ValueError) as problem:  # parser and decoding errors are ValueErrors
        form = "Parquet" if parquet else "CSV with a header line, in UTF-8"
        raise InvalidInput(f"cannot read {path} as {form}: {problem}.") from None
    if frame.empty:
        raise InvalidInput(f"the table {path} holds no rows.")
    return frame


def _read_parquet(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "tables", "Reading Parquet files") from None
    _check_columns(path, tuple(parquet.read_schema(path).names), columns)
    frame: pd.DataFrame = parquet.read_table(path, columns=list(columns)).to_pandas()
    return frame


def _check_columns(path: Path, found: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    for column in wanted:
        if column not in found:
            near = difflib.get_close_matches(column, found, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(found) or 'none'}."
            raise InvalidInput(f"the table {path} has no column {column!r}; {hint}")
