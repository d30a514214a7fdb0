"""Small, public data sets, most from scikit-learn, for tests, examples and first steps.

Columns are scaled by public constants, never by statistics of the rows. Pixels of digits are divided by 16.
The other columns have round bounds, as a person who knows the quantity would declare without the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.datasets.dataset import Dataset, TensorPair
from tacit.datasets.text import names_dataset
from tacit.errors import check_in, needed

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
    """Load a small public data set by name.

    ``digits``, ``breast-cancer``, ``wine``, ``iris`` and ``diabetes`` come with scikit-learn. ``names``, a
    list of first names as text, is searched for in ``folder``, then in the folder that the environment
    variable TACIT_DATA names.

    Inputs of digits are (n, 1, 8, 8) in [0, 1]; those of tables are (n, columns) in [-1, 1]. The targets of
    diabetes are (n, 1), scaled from ``target_bounds`` to [-1, 1].

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
    purpose = f"The bundled data set {name!r}"
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
