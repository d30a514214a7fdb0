"""How are tables from CSV or Parquet loaded? Encoded by a public schema, and split into train and test.

Nothing is learnt from the rows: bounds, categories and classes are declared.  Bounds taken from the data
would be an unaccounted release: one extreme record would change every other record's scaled values.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.columns import Column, Dialect, Encoder
from tacit.columns.column import no_data_bounds
from tacit.columns.tables import whole_table
from tacit.datasets.dataset import Dataset, Owners, TensorPair
from tacit.datasets.splitting import choose_test
from tacit.errors import Deprecated, InvalidInput, PrivacyRefusal, check_in

__all__ = ["Categorical", "Numeric", "load_table", "with_missing_constant"]


def Numeric(low: float, high: float) -> Column:  # noqa: N802 (it was a class)
    """The old name of ``Column(kind="number", lower=..., upper=...)``."""
    warnings.warn(
        "tacit.datasets.Numeric is now tacit.columns.Column(kind='number', lower=..., upper=...).",
        Deprecated,
        stacklevel=2,
    )
    _check_stated(low, high)
    return Column(kind="number", lower=low, upper=high)


def Categorical(values: Sequence[str]) -> Column:  # noqa: N802 (it was a class)
    """The old name of ``Column(kind="category", values=...)``."""
    warnings.warn(
        "tacit.datasets.Categorical(values) is now tacit.columns.Column(kind='category', values=values).",
        Deprecated,
        stacklevel=2,
    )
    texts = [str(value) for value in values] if isinstance(values, tuple | list) else values
    _check_stated(texts)
    return Column(kind="category", values=texts)


def _check_stated(*facts: object) -> None:
    if any(fact is None for fact in facts):
        raise PrivacyRefusal(no_data_bounds("a column"))


def load_table(
    path: Path,
    *,
    target: str,
    schema: Mapping[str, Column],
    dialect: Dialect | None = None,
    test_fraction: float | None = None,
    test_path: Path | None = None,
    missing: str | None = None,
    user: str | None = None,
    date: str | None = None,
    unit: str = "row",
    name: str | None = None,
) -> Dataset:
    """Read a table from CSV (also .csv.gz) or Parquet and encode it by a public schema.

    Test rows come from ``test_path``, or are a ``test_fraction`` of the rows, each chosen by a hash of that
    row alone, so that one row more or less leaves all others in their part.

    Args:
        schema: the target and every column to use; other columns are not read.
        target: its values, or true and false, are the classes; a number becomes (n, 1) in [-1, 1].
        dialect: how CSV files are written.
        missing: the old form of the columns' own ``missing``.
        user: the column that says whose a row is.  Test rows are then those of other people, chosen by a hash
            of ``user`` alone.
        date: the column that says when a row arrived, for training by date.

    Returns:
        The data set, with the ``encoder`` that made it; inputs (n, d) float32.

    **Guarantee**

    * A row's encoding depends on that row and on the schema alone.

    Raises:
        InvalidInput: an unreadable or empty file; missing columns; cells that are missing or are not what
            their column declares; labels that were not declared; ``user`` is a column that is trained on.
        MissingExtra: Parquet without pyarrow.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("age,sex,sick\\n" + "30,f,no\\n60,m,yes\\n45,f,no\\n" * 2)
    >>> schema = {"age": Column(kind="integer", lower=0, upper=120),
    ...           "sex": Column(kind="category", values=("f", "m")), "sick": Column(kind="boolean")}
    >>> data = load_table(path, target="sick", schema=schema, test_path=path, unit="person")
    >>> data.features, data.train.inputs[0].tolist(), data.classes
    (('age', 'sex=f', 'sex=m', 'sex=other'), [-0.5, 1.0, 0.0, 0.0], ('false', 'true'))
    """
    if missing is not None:
        schema = with_missing_constant(schema, target, missing)
    encoder = Encoder(schema, target, dialect or Dialect())
    if (test_fraction is None) == (test_path is None):
        raise InvalidInput(
            "give exactly one of test_fraction and test_path, to say where the test rows come from."
        )
    if user in encoder.inputs_of or user == target:
        raise InvalidInput(
            f"the column {user!r} says whose a row is, and is trained on too: the model would learn who is "
            f"who. Take {user} out of the columns."
        )
    if date is not None and (date in (*encoder.inputs_of, target) or date == user):
        raise InvalidInput(
            f"the column {date!r} says in which step a row is trained on, and has another part too. Give "
            "the table one column for each."
        )
    train, (owners, dates) = _encode(Path(path), encoder, (user, date))
    test_owners: Owners | None = None
    if test_path is not None:
        test, (test_owners,) = _encode(Path(test_path), encoder, (user,))
    elif test_fraction is not None:
        keys = _bytes_of(train) if owners is None else (str(owner).encode() for owner in owners)
        marks = _marks(keys, test_fraction, "row" if owners is None else f"value of {user}")
        train, test = _cut(train, marks)
        (owners, test_owners), (dates, _) = _cut_column(owners, marks), _cut_column(dates, marks)
    read = len(encoder.inputs_of)
    return Dataset(
        name or Path(path).name.split(".")[0],
        train,
        test,
        classes=encoder.classes,
        source=f"table {Path(path).name}, {read} columns encoded by declared bounds and values",
        unit=unit,
        features=encoder.features,
        target_bounds=encoder.target_bounds,
        encoder=encoder,
        owners=owners,
        test_owners=test_owners,
        dates=dates,
    )


def with_missing_constant(schema: Mapping[str, Column], target: str, missing: str) -> dict[str, Column]:
    """The columns, where the whole table had one rule for missing cells: an old form.

    "constant" is the middle of the bounds for numbers and "other" for categories.
    """
    if check_in("missing", missing, ("refuse", "constant")) == "refuse":
        return dict(schema)
    warnings.warn(
        'missing = "constant" is now said by column: missing = a public value, or "indicator".',
        Deprecated,
        stacklevel=3,
    )
    return {name: column if name == target else _with_constant(column) for name, column in schema.items()}


def _with_constant(column: Column) -> Column:
    if column.kind == "category":
        return dataclasses.replace(column, missing="")
    if column.kind != "number" or column.low is None or column.high is None:
        return column
    return dataclasses.replace(column, missing=(column.low + column.high) / 2)


def _bytes_of(pair: TensorPair) -> Iterator[bytes]:
    inputs, targets = (part.numpy() for part in pair)
    return (row.tobytes() + label.tobytes() for row, label in zip(inputs, targets, strict=True))


def _marks(keys: Iterable[bytes], test_fraction: float, what: str) -> Tensor:
    """Which rows test, (n,) bool, each by its key alone."""
    marks = torch.from_numpy(choose_test(keys, test_fraction))
    if bool(marks.all()) or not bool(marks.any()):
        raise InvalidInput(
            f"test_fraction={test_fraction:g} leaves no {what} for "
            f"{'training' if marks.all() else 'testing'} among {len(marks)} rows. Use another fraction, or a "
            "file of test rows with test_path."
        )
    return marks


def _cut(pair: TensorPair, marks: Tensor) -> tuple[TensorPair, TensorPair]:
    train, test = (TensorPair(pair.inputs[part], pair.targets[part]) for part in (~marks, marks))
    return train, test


def _cut_column(cells: list[Any] | None, marks: Tensor) -> tuple[list[Any] | None, list[Any] | None]:
    if cells is None:
        return None, None
    marked = marks.tolist()
    train, test = ([c for c, m in zip(cells, marked, strict=True) if m is tests] for tests in (False, True))
    return train, test


def _encode(
    path: Path, encoder: Encoder, apart: Sequence[str | None]
) -> tuple[TensorPair, list[list[Any] | None]]:
    """Rows of one file as tensors, and the cells of the columns ``apart``, such as whose the rows are."""
    assert encoder.target is not None, "a table is loaded with a target"
    read = [*encoder.inputs_of, encoder.target, *(name for name in apart if name is not None)]
    table = whole_table(path, read, encoder.dialect)
    cells = [None if name is None else [*table.pop(name)] for name in apart]
    inputs = encoder.inputs(table, source=str(path))
    targets = torch.from_numpy(encoder.targets(table, source=str(path)))
    return TensorPair(torch.from_numpy(inputs), targets), cells
