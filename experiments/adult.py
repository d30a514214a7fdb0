"""Loader of Adult: incomes above 50,000 dollars in the US census of 1994 (Becker and Kohavi, UCI)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.standard import search_folders
from tacit.columns import Column
from tacit.datasets.dataset import Dataset
from tacit.datasets.tables import load_table
from tacit.errors import InvalidInput

_HOME = "https://archive.ics.uci.edu/dataset/2/adult"


def _words(text: str) -> Column:
    return Column(kind="category", values=text.split())


def _number(lower: float, upper: float) -> Column:
    return Column(kind="number", lower=lower, upper=upper)


_SCHEMA: dict[str, Column] = {
    "age": _number(17, 90),
    "type_employer": _words(
        "Federal-gov Local-gov Private Self-emp-inc Self-emp-not-inc State-gov Without-pay"
    ),
    "education_num": _number(1, 16),
    "marital": _words(
        "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated Widowed"
    ),
    "occupation": _words(
        "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners "
        "Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support "
        "Transport-moving"
    ),
    "relationship": _words("Husband Not-in-family Other-relative Own-child Unmarried Wife"),
    "race": _words("Amer-Indian-Eskimo Asian-Pac-Islander Black Other White"),
    "sex": _words("Female Male"),
    "capital_gain": _number(0, 100_000),
    "capital_loss": _number(0, 5_000),
    "hr_per_week": _number(0, 100),
    "country": _words("United-States"),  # nine rows of ten have this value; the rest count as other
    "income": _words("<=50K >50K"),
}


_BINS: dict[str, tuple[float, ...]] = {
    "age": (20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70),
    "education_num": tuple(range(2, 16)),  # one bin for each level except the last two
    "capital_gain": (1, 1000, 3000, 5000, 7000, 10_000, 20_000),
    "capital_loss": (1, 1000, 1500, 1750, 2000, 2250, 2500),
    "hr_per_week": (10, 20, 30, 35, 40, 41, 45, 50, 60, 70),
}
"""Bin edges from common knowledge of ages, schools, tax forms and working weeks."""


def _with_bins() -> dict[str, Column]:
    return {
        name: Column(kind="number", lower=column.lower, upper=column.upper, bins=_BINS[name])
        if name in _BINS
        else column
        for name, column in _SCHEMA.items()
    }


def load_adult(folder: Path | None = None, *, test_fraction: float = 1 / 3, bins: bool = False) -> Dataset:
    """Return the 30,162 rows of Adult without missing values, encoded by public bounds and values.

    With ``bins``, each number also gives one feature for each of its public bins.

    ``adult.csv.gz`` or ``adult.csv``, with a header line, is searched for in ``folder``, then in the folder
    that the environment variable TACIT_DATA names, then in the user's cache.  The census weight
    ``fnlwgt`` and ``education``, which duplicates ``education_num``, are left out.

    Shapes: inputs (n, columns) float32; targets (n,), 1 for more than 50,000 dollars.

    Raises:
        InvalidInput: if the file is not found or is damaged.
    """
    return load_table(
        adult_path(folder),
        target="income",
        schema=_with_bins() if bins else _SCHEMA,
        test_fraction=test_fraction,
        unit="person",
        name="adult",
    )


def adult_frame() -> pd.DataFrame:
    """Return the columns that :func:`load_adult` uses, as a data frame."""
    frame: pd.DataFrame = pd.read_csv(adult_path(), skipinitialspace=True)[[*_SCHEMA]]
    return frame


def adult_path(folder: Path | None = None) -> Path:
    """Return the path of the file, in the first folder that has it.

    Raises:
        InvalidInput: if no folder has it.
    """
    places = search_folders(folder)
    for place in places:
        for name in ("adult.csv.gz", "adult.csv"):
            if (place / name).is_file():
                return place / name
    raise InvalidInput(
        f"adult.csv was not found in {', '.join(map(str, places)) or 'any folder'}. Get the table from "
        f"{_HOME}, add a header line that names the columns (needed are {', '.join(_SCHEMA)}), leave out "
        "rows with a missing value, put it into a folder, and name that with folder=... or the environment "
        "variable TACIT_DATA."
    )
