"""The page on scikit-learn is true: its blocks run, and its table says which transformers learn."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pages import blocks_of, comments_of, printed, text_of
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    StandardScaler,
)

PAGE = text_of("scikit-learn.md")
BLOCKS = blocks_of("scikit-learn.md")


def shown(code: str) -> list[str]:
    """Return the output in the comments; text after a colon or semicolon explains it."""
    return [re.split(r": |; ", said)[0] for said in comments_of(code)]


def test_the_programs_print_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code, lines in zip(BLOCKS, printed(BLOCKS, names), strict=True):
        assert lines.splitlines() == shown(code)
    assert sum(code.count("print(") for code in BLOCKS) == sum(map(len, map(shown, BLOCKS))) == 11
    first, again = names["visits"], names["visits"].copy()
    again.loc[0, ["ward", "age"]] = ["zzz", 10**6]
    encoded = [names["encode"].fit(table).transform(table) for table in (first, again)]
    np.testing.assert_array_equal(encoded[0][1:], encoded[1][1:])
    assert (encoded[0][0] != encoded[1][0]).any()


# --- which transformers learn ----------------------------------------------------------------------------

NAMES: dict[str, Any] = {
    "np": np, "PCA": PCA, "SimpleImputer": SimpleImputer, "FunctionTransformer": FunctionTransformer,
    "MinMaxScaler": MinMaxScaler, "Normalizer": Normalizer, "OneHotEncoder": OneHotEncoder,
    "StandardScaler": StandardScaler,
}  # fmt: skip
TRANSFORMERS = dict(re.findall(r"^\| `(\w+\(.*\))` \| (yes|no)\b", PAGE, flags=re.MULTILINE))


def tables(code: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two tables that differ in their first record alone."""
    random = np.random.default_rng(0)
    if "OneHotEncoder" in code:
        table: NDArray[Any] = random.choice(["a", "b"], (20, 1)).astype(object)
        extreme: list[Any] = ["zzz"]
    else:
        table, extreme = random.uniform(0, 1, (20, 3)), [1e6, 0, 0]
    if "SimpleImputer" in code:
        table[:, 1], table[1, 0], extreme = np.nan, np.nan, [1e6, 5, 5]
    other = table.copy()
    other[0] = extreme
    return table, other


def others(transformer: Any, table: NDArray[Any]) -> NDArray[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a column in which every cell is missing
        found = transformer.fit(table).transform(table)
    values: NDArray[Any] = found.toarray() if hasattr(found, "toarray") else found
    return values[1:]


@pytest.mark.parametrize("code", TRANSFORMERS)
def test_a_transformer_learns_where_the_table_says_so(code: str) -> None:
    transformer = eval(code, NAMES)
    one, other = (others(transformer, table) for table in tables(code))
    same = one.shape == other.shape and np.array_equal(one, other, equal_nan=True)
    assert same == (TRANSFORMERS[code] == "no")


def test_the_table_has_both() -> None:
    assert set(TRANSFORMERS.values()) == {"yes", "no"}
    assert len(TRANSFORMERS) == PAGE.split("| in front of")[1].split("\n\n")[0].count("\n") - 1
