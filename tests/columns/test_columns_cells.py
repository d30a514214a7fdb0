"""The reader of CSV files gives back what was written, in every declared dialect."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacit.columns import Dialect
from tacit.columns.tables import CsvFile, MalformedTable
from tacit.errors import InvalidInput

SIGNS = st.sampled_from(list(",;|\t:'\"~aé"))
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(TEXTS, TEXTS | st.sampled_from(["a;b", 'say "no"', "x\r\ny", ",", "\t"])), max_size=8
    ),
    signs=st.tuples(SIGNS, SIGNS).filter(lambda pair: pair[0] != pair[1] and "x" not in pair),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
    compressed=st.booleans(),
    size=st.integers(1, 5),
)
def test_written_cells_are_read_back(
    rows: list[tuple[str, str]],
    signs: tuple[str, str],
    encoding: str,
    quoting: Any,
    end: str,
    compressed: bool,
    size: int,
    tmp_path: Path,
) -> None:
    separator, quote = signs
    path = tmp_path / ("t.csv.gz" if compressed else "t.csv")
    opening = gzip.open if compressed else open
    with opening(path, "wt", encoding=encoding, newline="") as file:
        writer = csv.writer(file, delimiter=separator, quotechar=quote, quoting=quoting, lineterminator=end)
        writer.writerows([("x", "y"), *rows])
    declared = Dialect(separator=separator, quote=quote, encoding=encoding.removesuffix("-sig"))
    found = list(CsvFile(path, ["x", "y"], declared).chunks(size))
    assert all(len(piece["x"]) <= size for piece in found)
    assert [cell for piece in found for cell in piece["x"]] == [cell.strip() for cell, _ in rows]
    assert [cell for piece in found for cell in piece["y"]] == [cell.strip() for _, cell in rows]


@pytest.mark.parametrize(
    ("text", "dialect", "message"),
    [
        ("x;y\n1;2\n", {}, "contains ';' but no ','. Declare separator = \";\" in [table]"),
        ("x\ty\n1\t2\n", {}, 'Declare separator = "\\t" in [table]'),
        ("x,y\n", {"separator": ";"}, 'Declare separator = "," in [table]'),
        ("a;b\n", {"separator": ","}, "Declare separator"),
        ("z\n1\n", {}, "has no column 'x'; it has z"),
    ],
)
def test_another_separator_is_named(text: str, dialect: dict[str, str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        CsvFile(path, ["x"], Dialect.from_data(dialect))
    assert message in str(caught.value)


def test_a_name_with_a_separator_of_other_files_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1\n")
    assert list(CsvFile(path, ["a;b"]).chunks()) == [{"a;b": ["1"]}]


def test_pieces_before_a_ragged_row_are_given_and_then_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "1,2\n" * 4 + "1\n" + "1,2,3\n" * 20)
    pieces = CsvFile(path, ["x"]).chunks(2)
    assert [next(pieces), next(pieces)] == [{"x": ["1", "1"]}] * 2
    with pytest.raises(MalformedTable, match=r"21 rows of .* \(rows 5, 6, 7, .* and 11 more\)") as caught:
        next(pieces)
    assert (caught.value.rows, caught.value.places) == (21, tuple(range(5, 15)))
