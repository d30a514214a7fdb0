"""Tables, and the standard datasets of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.columns import Column, Dialect, Encoder
from tacit.columns.encoder import Floats, TextColumn
from tacit.columns.tables import pieces, whole_table
from tacit.datasets.dataset import Dataset, Owners, TensorPair, check_one_test, choose_people, choose_test
from tacit.datasets.on_disk import OnDisk
from tacit.datasets.text import names_dataset
from tacit.errors import InvalidInput, check_in, needed

_Targets: TypeAlias = NDArray[np.int64] | Floats
Split: TypeAlias = Callable[[Floats, _Targets, int], Sequence[NDArray[np.bool_]]]
"""A function from a piece's inputs (n, d), targets and offset in the table to a mask (n,) for each part."""


def encoded_parts(
    path: Path, encoder: Encoder, split: Split, *, narrow: bool = False, on_disk: bool = False
) -> tuple[list[TensorPair], list[NDArray[np.bool_]]]:
    """Return the tensors of each part of a table, such as train and test, and a mask (n,) of its rows.

    With ``narrow``, inputs are stored in float16, which rounds a feature by at most 1 part in 2,000.  With
    ``on_disk``, they are stored in a file, so that memory does not grow with the table.
    """
    assert encoder.target_names, "a table is loaded with a target"
    parts: list[tuple[_Growing | OnDisk, _Growing | OnDisk, _Growing]] = []
    kind = OnDisk if on_disk else _Growing
    before = 0
    for piece in pieces(path, [*encoder.inputs_of, *encoder.target_names], encoder.dialect):
        inputs = encoder.inputs(piece, source=str(path), before=before)
        targets = encoder.targets(piece, source=str(path), before=before)
        marks = split(inputs, targets, before)
        inputs = inputs.astype(np.float16) if narrow else inputs
        parts = parts or [(kind(), kind(), _Growing()) for _ in marks]
        for grown, part in zip(parts, marks, strict=True):
            for whole, rows in zip(grown, (inputs[part], targets[part], part), strict=True):
                whole.append(rows)
        before += len(inputs)
    if not before:
        raise InvalidInput(f"the table {path} has no rows.")
    pairs = [TensorPair(inputs.tensor(), targets.tensor()) for inputs, targets, _ in parts]
    return pairs, [marks.array() for _, _, marks in parts]


class _Growing:
    """An array to which rows are appended. Its memory grows in place, and unfilled rows take none."""

    def __init__(self) -> None:
        self._array: NDArray[Any] | None = None
        self._count = 0

    def append(self, rows: NDArray[Any]) -> None:
        if self._array is None:
            self._array = np.empty_like(rows)
        count = self._count + len(rows)
        if count > len(self._array):
            room = max(count, 2 * len(self._array))
            self._array.resize((room, *rows.shape[1:]), refcheck=False)
        self._array[self._count : count] = rows
        self._count = count

    def array(self) -> NDArray[Any]:
        assert self._array is not None, "there were rows"
        self._array.resize((self._count, *self._array.shape[1:]), refcheck=False)
        return self._array

    def tensor(self) -> Tensor:
        return torch.from_numpy(self.array())


_LARGE = 1 << 29  # bytes of features in float32, from which on they are stored in float16
_LARGEST = 1 << 31  # bytes of features in float32, from which on they are stored in a file


def load_table(
    path: Path,
    *,
    target: str | Sequence[str],
    schema: Mapping[str, Column],
    dialect: Dialect | None = None,
    test_fraction: float | None = None,
    test_path: Path | None = None,
    user: str | Sequence[str] | None = None,
    date: str | None = None,
    unit: str = "row",
    name: str | None = None,
    records: int | None = None,
    text: TextColumn | None = None,
) -> Dataset:
    """Read a table from a CSV (also .csv.gz) or Parquet file, and encode the rows as numbers.

    The encoding uses only the schema, which is what you declare about the columns. Test rows come from
    ``test_path``, or are a share of the rows (``test_fraction``). A hash of each row alone chooses them, so
    adding or removing a row moves no other row between training and test.

    Args:
        path: the file.
        schema: the declaration of each column to use, with the target. Other columns are not read.
        target: the column to predict, or a list of columns. A category gives one class per declared value; a
            boolean gives the classes false and true. A number gives targets (n, 1), scaled to [-1, 1]. A list
            of k columns gives (n, k): labels for booleans, targets for numbers. For a survival model, list a
            time (a number with bins) and an event (a boolean).
        dialect: the format of CSV files.
        user: the column with the owner of each row. If a row has several owners, such as sender and receiver,
            give several columns. With ``test_fraction``, a hash of each person's name chooses the test
            people. A row of both a training and a test person is dropped.
        date: the column with the arrival date of each row, for training by date.
        records: a public estimate of the number of training rows, which decides how features are stored.
            Above 0.5 GiB they are float16, which rounds each by at most 1 part in 2,000. Above 2 GiB they are
            in a temporary file in the current folder.
        text: a text column for a pretrained model. Its tokens are the first features.
        test_fraction: the share of rows to use as test data.
        test_path: a file of test rows, instead of ``test_fraction``.
        unit: what the guarantee protects (the unit of privacy), such as "person".
        name: the name of the dataset; by default the name of the file.

    Returns:
        The dataset, with its ``encoder``. The inputs are (n, d) float32, or float16.

    **Guarantee**

    * A row's encoding depends on that row and on the schema alone.

    Raises:
        InvalidInput: if a file is unreadable or empty, a column or a cell is missing, a cell contradicts the
            schema, or ``user`` is also a column to train on.
        MissingExtra: if the table is Parquet and pyarrow is not installed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("age,sex,sick\\n" + "30,f,no\\n60,m,yes\\n45,f,no\\n" * 2)
    >>> schema = {"age": Column(kind="integer", lower=0, upper=120),
    ...           "sex": Column(kind="category", values=("f", "m")), "sick": Column(kind="boolean")}
    >>> data = load_table(path, target="sick", schema=schema, test_path=path, unit="person")
    >>> data.features, data.train.inputs[0].tolist(), data.classes
    (('age', 'sex=f', 'sex=m', 'sex=other'), [-0.5, 1.0, 0.0, 0.0], ('false', 'true'))
    """
    encoder = Encoder(schema, target, dialect or Dialect(), text)
    check_one_test(test_fraction, test_path, "rows")
    for one in _columns_of(user):
        if one in (*encoder.inputs_of, *encoder.target_names):
            raise InvalidInput(
                f"column {one!r} identifies the user, so it cannot be an input: the model would learn to "
                f"tell people apart. Remove {one} from the columns."
            )
    if date is not None and date in (*encoder.inputs_of, *encoder.target_names, *_columns_of(user)):
        raise InvalidInput(
            f"column {date!r} is the date, so it cannot also be an input, target or user. Use a separate "
            "column for each role."
        )
    path = Path(path)
    size = 0 if records is None else 4 * records * len(encoder.features)
    narrow, on_disk = text is None and size > _LARGE, size > _LARGEST
    owners, test_owners = _owners(path, encoder.dialect, user), None
    dates = None if date is None else [*whole_table(path, [date], encoder.dialect)[date]]
    if test_path is not None:
        ((train,), _), ((test,), _) = (
            encoded_parts(Path(one), encoder, _all_rows, narrow=narrow, on_disk=on_disk)
            for one in (path, test_path)
        )
        test_owners = _owners(Path(test_path), encoder.dialect, user)
    elif test_fraction is not None:
        people = None if owners is None else choose_people(owners, test_fraction)
        split = _by_bytes(test_fraction) if people is None else _by_place(people)
        (train, test), (trains, tests) = encoded_parts(path, encoder, split, narrow=narrow, on_disk=on_disk)
        subject = "row" if user is None else f"value of {' and '.join(_columns_of(user))}"
        _check_some(trains, subject, "training", test_fraction)
        _check_some(tests, subject, "testing", test_fraction)
        dates = None if dates is None else [*compress(dates, trains)]
        if owners is not None:
            owners, test_owners = [*compress(owners, trains)], [*compress(owners, tests)]
    return Dataset(
        name or Path(path).name.split(".")[0],
        train,
        test,
        classes=encoder.classes,
        labels=encoder.labels,
        source=f"table {Path(path).name}, {_read(encoder)}",
        unit=unit,
        features=encoder.features,
        target_bounds=encoder.target_bounds,
        time_edges=encoder.time_edges,
        encoder=encoder,
        owners=owners,
        test_owners=test_owners,
        dates=dates,
    )


def _read(encoder: Encoder) -> str:
    declared = len(encoder.inputs_of) - (encoder.text is not None)
    columns = f"{declared} columns encoded by declared bounds and values" if declared else ""
    if encoder.text is None:
        return columns
    first = f"column {encoder.text.name!r} as its first {encoder.text.length} tokens"
    return f"{first}; {columns}" if columns else first


# --- training and test rows -------------------------------------------------------------------------------


def _all_rows(inputs: Floats, _targets: NDArray[Any], _before: int) -> Sequence[NDArray[np.bool_]]:
    return (np.ones(len(inputs), dtype=np.bool_),)


def _by_bytes(test_fraction: float) -> Split:
    """Return a split that assigns each row by a hash of its features and target."""

    def split(inputs: Floats, targets: NDArray[Any], _before: int) -> Sequence[NDArray[np.bool_]]:
        keys = (row.tobytes() + label.tobytes() for row, label in zip(inputs, targets, strict=True))
        tests = choose_test(keys, test_fraction)
        return ~tests, tests

    return split


def _by_place(parts: Sequence[NDArray[np.bool_]]) -> Split:
    """Return a split that assigns each row by the given masks of the whole table."""
    return lambda inputs, _targets, before: [part[before : before + len(inputs)] for part in parts]


def _check_some(part: NDArray[np.bool_], what: str, name: str, test_fraction: float) -> None:
    if not part.any():
        raise InvalidInput(
            f"with test_fraction={test_fraction:g}, no {what} is left for {name} among {len(part)} rows. Use "
            "another fraction, or a file of test rows with test_path."
        )


def _columns_of(user: str | Sequence[str] | None) -> list[str]:
    return [] if user is None else [user] if isinstance(user, str) else [*user]


def _owners(path: Path, dialect: Dialect, user: str | Sequence[str] | None) -> Owners | None:
    if user is None:
        return None
    columns = _columns_of(user)
    cells = whole_table(path, columns, dialect)
    return [*cells[user]] if isinstance(user, str) else [*zip(*map(cells.__getitem__, columns), strict=True)]


_Bounds = tuple[tuple[float, float], ...]

_CELL_MEANS: _Bounds = (
    (0, 40), (0, 50), (0, 250), (0, 3000), (0, 0.25), (0, 0.5), (0, 0.5), (0, 0.25), (0, 0.4), (0, 0.1),
)  # fmt: skip
_CELL_ERRORS: _Bounds = (
    (0, 4), (0, 5), (0, 25), (0, 600), (0, 0.04), (0, 0.2), (0, 0.4), (0, 0.06), (0, 0.1), (0, 0.04),
)  # fmt: skip
_CELL_WORST: _Bounds = (
    (0, 50), (0, 60), (0, 300), (0, 5000), (0, 0.3), (0, 1.2), (0, 1.5), (0, 0.4), (0, 0.8), (0, 0.25),
)  # fmt: skip
_WINE: _Bounds = (
    (10, 16), (0, 6), (1, 4), (10, 32), (60, 170), (0, 4), (0, 6), (0, 1), (0, 4), (0, 14), (0, 2),
    (1, 5), (0, 1800),
)  # fmt: skip
_IRIS: _Bounds = ((4, 8), (2, 5), (1, 7), (0, 3))
# age, sex (1 or 2), body mass index, blood pressure, six blood serum measurements
_DIABETES: _Bounds = (
    (0, 100), (1, 2), (10, 60), (40, 180), (50, 400), (20, 300), (10, 120), (1, 12), (2, 8), (40, 200),
)  # fmt: skip
_PROGRESSION: _Bounds = ((0, 350),)

_DIGITS = "UCI optical digits 8x8 (scikit-learn), pixels / 16; 80/20 split, stratified, with a public seed"
_SPLIT = "columns scaled to [-1, 1] by declared bounds; 80/20 split with a public seed"


def load(name: str, *, folder: Path | None = None) -> Dataset:
    """Load a small public dataset by name.

    ``digits``, ``breast-cancer``, ``wine``, ``iris`` and ``diabetes`` come with scikit-learn. ``names`` is a
    text file of first names, which is not included. Tacit looks for it in ``folder``, then in the folder that
    the environment variable TACIT_DATA names.

    The digits are images (n, 1, 8, 8) in [0, 1]. Other inputs from scikit-learn are (n, columns) in [-1, 1].
    The targets of diabetes are (n, 1), scaled to [-1, 1].

    Raises:
        InvalidInput: if the name is unknown, or a file is missing.
        MissingExtra: if scikit-learn is not installed.

    >>> data = load("digits")
    >>> data.input_shape, len(data.classes), data.unit
    ((1, 8, 8), 10, 'image')
    """
    check_in("name", name, NAMES)
    if name == "names":
        return names_dataset(folder=folder)
    bunch = _fetch(name)
    values = np.asarray(bunch.data, dtype=np.float64)

    if name == "digits":
        inputs = (values / 16.0).reshape(-1, 1, 8, 8)
        classes = tuple(str(digit) for digit in range(10))
        return _split(name, inputs, bunch.target, classes, _DIGITS, unit="image")

    bounds, unit, title = _TABLES[name]
    columns = tuple(str(feature) for feature in bunch.feature_names)
    inputs = _to_unit(values, bounds)
    source = f"{title} (scikit-learn), {_SPLIT}"
    if name == "diabetes":
        targets = _to_unit(np.asarray(bunch.target, dtype=np.float64)[:, None], _PROGRESSION)
        return _split(name, inputs, targets, (), source, unit=unit, features=columns)

    classes = tuple(str(label) for label in bunch.target_names)
    return _split(name, inputs, bunch.target, classes, source, unit=unit, features=columns)


_TABLES: dict[str, tuple[_Bounds, str, str]] = {
    "breast-cancer": (
        _CELL_MEANS + _CELL_ERRORS + _CELL_WORST,
        "person",
        "Breast Cancer Wisconsin (diagnostic), UCI",
    ),
    "wine": (_WINE, "row", "Wine recognition, UCI"),
    "iris": (_IRIS, "row", "Iris, Fisher 1936"),
    "diabetes": (_DIABETES, "person", "Diabetes progression, Efron et al. 2004"),
}
NAMES: tuple[str, ...] = ("digits", *_TABLES, "names")
"""The names that :func:`load` knows."""


def _fetch(name: str) -> Any:
    purpose = f"The bundled dataset {name!r}"
    datasets = needed("sklearn.datasets", "sklearn", purpose, package="scikit-learn")
    load = getattr(datasets, f"load_{name.replace('-', '_')}")
    return load(scaled=False) if name == "diabetes" else load()


def _to_unit(values: NDArray[np.float64], bounds: _Bounds) -> NDArray[np.float64]:
    """Clamp every column to its declared bounds, and scale the bounds to [-1, 1]."""
    low, high = np.asarray(bounds, dtype=np.float64).T
    scaled: NDArray[np.float64] = 2.0 * (np.clip(values, low, high) - low) / (high - low) - 1.0
    return scaled


def _split(
    name: str,
    inputs: NDArray[np.float64],
    targets: NDArray[Any],
    classes: tuple[str, ...],
    source: str,
    *,
    unit: str,
    features: tuple[str, ...] = (),
) -> Dataset:
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(inputs))
    parts = train_test_split(rows, test_size=0.2, stratify=targets if classes else None, random_state=0)
    kind = torch.int64 if classes else torch.float32
    train, test = (
        TensorPair(torch.tensor(inputs[part], dtype=torch.float32), torch.tensor(targets[part], dtype=kind))
        for part in parts
    )
    bounds = () if classes else _PROGRESSION
    return Dataset(name, train, test, classes, source, unit, features=features, target_bounds=bounds)
