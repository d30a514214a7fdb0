"""The form of a table is proposed from its first rows, and no part of a cell goes into the proposal."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tacit.columns import Column, Dialect, Encoder
from tacit.columns.sections import table_section
from tacit.columns.sniffing import SAMPLE_ROWS, Sniffed, sniff
from tacit.errors import InvalidInput


def written(folder: Path, text: str | bytes, name: str = "t.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return path


def kinds(found: Sniffed) -> dict[str, str]:
    return {name: column.kind for name, column in found.columns.items()}


# --- dialects ----------------------------------------------------------------------------------------------

DIALECTS: dict[str, tuple[str | bytes, str, dict[str, str]]] = {
    "commas": ("a,b\n1.5,x\n2,y\n", "t.csv", {"separator": ",", "decimal": ".", "thousands": ""}),
    "semicolons and decimal commas": ("a;b\n1,5;x\n2;y\n", "t.csv", {"separator": ";", "decimal": ","}),
    "tabs": ("a\tb\n1.5\tx\n", "t.tsv", {"separator": "\t"}),
    "tabs in a .csv": ("a\tb\n1.5\tx, y\n", "t.csv", {"separator": "\t"}),
    "commas in a .tsv": ("a,b\n1.5,x\n", "t.tsv", {"separator": ","}),
    "bars": ("a|b\n1.5|x\n", "t.csv", {"separator": "|"}),
    "spaces after the commas": ('a, b\n1, "x, y"\n2, z\n', "t.csv", {"separator": ",", "quote": '"'}),
    "commas in quotes": ('a,b\n1,"x; y, z"\n', "t.csv", {"separator": ",", "quote": '"'}),
    "apostrophes as quotes": ("a,b\n1,'x, y'\n2,'z'\n", "t.csv", {"separator": ",", "quote": "'"}),
    "apostrophes in words": ("a,b\n1,it's\n2,O'Hara\n", "t.csv", {"separator": ",", "quote": '"'}),
    "a new line in quotes": ('a,b\n1,"x\ny"\n2,z\n', "t.csv", {"separator": ",", "quote": '"'}),
    "semicolons, thousands points": ("a;b\n1.234,5;x\n2,5;y\n", "t.csv", {"decimal": ",", "thousands": "."}),
    "thousands commas in quotes": ('a,b\n"1,234.5",x\n"12",y\n', "t.csv", {"decimal": ".", "thousands": ","}),
    "a thousand in quotes": ('a,b\n"1,234",x\n"2,345",y\n', "t.csv", {"decimal": ".", "thousands": ","}),
    "thousands spaces": ("a;b\n1 234,5;x\n", "t.csv", {"decimal": ",", "thousands": " "}),
    "narrow spaces": ("a;b\n1\u202f234,5;x\n", "t.csv", {"decimal": ",", "thousands": "\u202f"}),
    "apostrophes for thousands": ("a;b\n1'234.5;x\n", "t.csv", {"decimal": ".", "thousands": "'"}),
    "a byte order mark": ("\ufeffa,b\n1,x\n", "t.csv", {"encoding": "utf-8"}),
    "UTF-16": ("a,b\n1,ü\n".encode("utf-16"), "t.csv", {"encoding": "utf-16"}),
    "Latin-1": ("a,b\n1,Köln\n".encode("latin-1"), "t.csv", {"encoding": "latin-1"}),
    "Windows": ("a,b\n1,Köln – 5 €\n".encode("cp1252"), "t.csv", {"encoding": "cp1252"}),
    "compressed": (gzip.compress(b"a;b\n1;x\n"), "t.csv.gz", {"separator": ";"}),
    "Windows' line ends": ("a;b\r\n1;x\r\n", "t.csv", {"separator": ";"}),
    "one column": ("a\n1\n2\n", "t.csv", {"separator": ","}),
    "only names": ("a;b;c\n", "t.csv", {"separator": ";"}),
    "empty lines": ("a;b\n\n1;x\n\n2;y\n", "t.csv", {"separator": ";"}),
    "a row too short": ("a;b\n1;x\n" * 1 + "2;y\n" * 20 + "3\n", "t.csv", {"separator": ";"}),
}  # fmt: skip


@pytest.mark.parametrize("what", DIALECTS)
def test_the_dialect_is_found(what: str, tmp_path: Path) -> None:
    text, name, expected = DIALECTS[what]
    found = sniff(written(tmp_path, text, name))
    assert expected.items() <= found.dialect.items()
    assert next(iter(found.columns)) == "a"


# --- kinds -------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "whole numbers": (["1", "-2", "", "30"], "integer", {}),
    "numbers": (["1", "2.5", "NA"], "number", {}),
    "numbers with exponents": (["1e5", "2"], "number", {}),
    "decimal commas in one column": (["1,5", "2,25"], "number", {"decimal": ",", "thousands": ""}),
    "kilograms": (["72 kg", "80.5 kg"], "number", {"unit": "kg"}),
    "dollars": (["$5", "$60"], "integer", {"unit": "$"}),
    "percent": (["5%", "6.5 %"], "number", {"unit": "%"}),
    "a limit of detection": (["<5", "7.5", "<5"], "number", {"below": "<"}),
    "a unit and a limit": (["<5 mg", "7 mg"], "integer", {"unit": "mg", "below": "<"}),
    "yes and no": (["yes", "No", "?"], "boolean", {}),
    "0 and 1": (["0", "1", "1"], "boolean", {}),
    "only ones": (["1", "1"], "boolean", {}),
    "only zeros": (["0", "", "0"], "boolean", {}),
    "only no": (["no", "No"], "boolean", {}),
    "only f, which may be one of f and m": (["f", "f"], "category", {}),
    "0, 1 and 2": (["0", "1", "2"], "integer", {}),
    "two words": (["f", "m"], "category", {}),
    "codes with zeros in front": (["01234", "99999"], "category", {}),
    "ISO dates": (["2020-01-31", "2021-12-01"], "date", {}),
    "points in dates": (["31.1.2020", "01.12.2021"], "date", {"format": "%d.%m.%Y"}),
    "days first": (["31/01/2020", "01/12/2021"], "date", {"format": "%d/%m/%Y"}),
    "months first": (["01/31/2020", "12/01/2021"], "date", {"format": "%m/%d/%Y"}),
    "dates without marks": (["20200131", "20211201"], "date", {"format": "%Y%m%d"}),
    "months by name": (["31 Jan 2020", "1 Dec 2021"], "date", {"format": "%d %b %Y"}),
    "ISO times": (["2020-01-31T10:00", "2020-01-31 10:00:05"], "datetime", {}),
    "times": (["31.01.2020 10:00", "01.12.2021 23:59"], "datetime", {"format": "%d.%m.%Y %H:%M"}),
    "times of half a day": (["01/31/2020 10:00 PM"], "datetime", {"format": "%m/%d/%Y %I:%M %p"}),
    "no cell": (["", "NA"], "", {}),
    "names": ([f"person {n}" for n in range(50)], "text", {}),
    "room numbers": (["A12", "A13"], "category", {}),
    "words with marks for a missing value": (
        ["f", "-", "m", "unknown", "-999"], "category", {"missing_values": ["-", "-999", "unknown"]},
    ),
    "answers, not marks": (["none", "peanut", "not applicable"], "category", {}),
}  # fmt: skip


@pytest.mark.parametrize("what", KINDS)
def test_the_kind_is_found(what: str, tmp_path: Path) -> None:
    cells, kind, settings = KINDS[what]
    rows = "".join(f"{cell}\t1.5\n" for cell in cells)
    column = sniff(written(tmp_path, f"a\tother\n{rows}", "t.tsv")).columns["a"]
    assert (column.kind, dict(column.settings)) == (kind, settings)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["Yes", "No", ""], ("Yes", "No")),
        (["YES", "YES"], ("YES", "NO")),
        (["yes", "No"], ("yes", "no")),
        (["True", "False"], ("True", "False")),
        (["F", "T"], ("T", "F")),
        (["1", "0"], ("1", "0")),
    ],
)
def test_words_of_a_boolean_have_the_case_of_the_table(
    cells: list[str], words: tuple[str, str], tmp_path: Path
) -> None:
    rows = "".join(f"{cell},{n}\n" for n, cell in enumerate(cells))
    column = sniff(written(tmp_path, f"a,other\n{rows}")).columns["a"]
    assert (column.kind, column.words) == ("boolean", words)


@pytest.mark.parametrize("name", ["id", "patient_id", "patientId", "UserID", "uuid", "case.id"])
def test_an_identifier_is_text_by_its_name(name: str, tmp_path: Path) -> None:
    assert kinds(sniff(written(tmp_path, f"{name},paid,x\n1,2,3\n"))) == {
        name: "text", "paid": "integer", "x": "integer",
    }  # fmt: skip


def test_people_by_name_are_text_and_what_may_be_a_property_of_them_is_not(tmp_path: Path) -> None:
    rows = "".join(f"{at // 2},{'yn'[at % 2]},{'AB'[at % 2]},{at // 3},u{at // 2},{at}\n" for at in range(60))
    found = sniff(written(tmp_path, "Patient,student,customer,nr,user,x\n" + rows))
    assert kinds(found) == {
        "Patient": "text", "student": "boolean", "customer": "category", "nr": "text", "user": "text",
        "x": "integer",
    }  # fmt: skip
    doubts = [name for name, column in found.columns.items() if "the person of each row" in column.doubt]
    assert doubts == ["Patient", "customer", "nr", "user"]


@pytest.mark.parametrize("name", ["n_children", "month", "visit_count", "Wochentag"])
def test_0_and_1_are_numbers_in_a_column_that_counts(name: str, tmp_path: Path) -> None:
    for cells in ("0 1 1", "0 0 0", "1 1 1"):
        rows = "".join(f"{cell},{cell}\n" for cell in cells.split())
        assert kinds(sniff(written(tmp_path, f"{name},ill\n{rows}"))) == {name: "integer", "ill": "boolean"}


def test_a_flag_is_a_boolean_however_the_table_is_sorted(tmp_path: Path) -> None:
    """The proposal reads the whole table; and what is no flag after all is named, without its cell."""
    flags = ["0"] * SAMPLE_ROWS + ["1"] * SAMPLE_ROWS
    for cells in (flags, flags[::-1], ["0", "1"] * SAMPLE_ROWS):
        path = written(tmp_path, "ill,x\n" + "".join(f"{cell},2\n" for cell in cells))
        found = sniff(path).columns["ill"]
        assert (found.kind, found.words) == ("boolean", ("1", "0"))
        assert ("only one value of a pair" in found.doubt) == (cells[0] == cells[SAMPLE_ROWS - 1])
        encoder = Encoder({"ill": Column(kind=found.kind)})
        assert sum(float(inputs.sum()) for inputs, _ in encoder.chunks(path)) == 0.0  # as many -1 as 1
    path = written(tmp_path, "ill,x\n" + "".join(f"{cell},2\n" for cell in [*flags, "737"]))
    with pytest.raises(InvalidInput, match=r"'ill' of .* are neither true nor false .row 2,001.") as no:
        list(Encoder({"ill": Column(kind="boolean")}).chunks(path))
    assert "737" not in str(no.value)
    assert 'kind = "integer" with lower and upper' in str(no.value)


def test_what_the_rows_do_not_decide_is_said_and_not_chosen(tmp_path: Path) -> None:
    found = sniff(written(tmp_path, "day;n\n01/02/2020;1.234\n03/04/2020;2.345\n")).columns
    assert (found["day"].kind, dict(found["day"].settings)) == ("date", {})
    assert found["day"].formats == ("%d/%m/%Y", "%m/%d/%Y")
    assert "between thousands? Both fit" in found["n"].doubt


def test_only_the_first_rows_are_looked_at(tmp_path: Path) -> None:
    first = "a,b\n" + "1,2020-01-31\n" * SAMPLE_ROWS
    found = sniff(written(tmp_path, first + "x;y;z\n\xff" * 9, encoding="latin-1"))
    assert found == sniff(written(tmp_path, first))
    assert found.rows == SAMPLE_ROWS


def test_a_sample_that_ends_in_a_quoted_cell(tmp_path: Path) -> None:
    text = "a,b\n" + '2,"x\ny"\n' * SAMPLE_ROWS
    assert kinds(sniff(written(tmp_path, text))) == {"a": "integer", "b": "category"}


READABLE = [what for what in (*DIALECTS, *KINDS) if what != "a row too short"]  # which no reader takes


@pytest.mark.parametrize("what", READABLE)
def test_the_proposal_reads_the_table(what: str, tmp_path: Path) -> None:
    if what in DIALECTS:
        text, name, _ = DIALECTS[what]
        path = written(tmp_path, text, name)
    else:
        rows = "".join(f"{cell}\t1.5\n" for cell in KINDS[what][0])
        path = written(tmp_path, f"a\tother\n{rows}", "t.tsv")
    found = sniff(path)
    columns = {}
    for name, column in found.columns.items():
        facts: dict[str, object] = {"kind": column.kind or "category", **column.settings}
        match facts["kind"]:
            case "category":
                facts["values"] = ["some value"]
            case "date" | "datetime":
                facts |= {"lower": "2000-01-01", "upper": "2030-01-01"}
            case "number" | "integer":
                facts |= {"lower": 0, "upper": 1000}
        missing = {} if facts["kind"] == "text" else {"missing": "indicator"}
        columns[name] = Column.from_data(facts | missing)
    encoder = Encoder(columns, None, Dialect.from_data(found.dialect))
    assert sum(len(inputs) for inputs, _ in encoder.chunks(path)) == found.rows


# --- the guarantee -----------------------------------------------------------------------------------------


def test_two_tables_of_one_form_have_one_proposal_and_no_cell_is_in_it(tmp_path: Path) -> None:
    def table(n: int, word: str) -> str:
        rows = [
            f"{n + i};{n + i},5;{word}{i % 3};{1 + i % 28}.{n}.20{n};{'yes' if i % 2 else 'no'};{n} kg"
            for i in range(30)
        ]
        return "age;dose;ward;day;alive;weight\n" + "\n".join(rows)

    one, other = (sniff(written(tmp_path, table(n, word))) for n, word in ((11, "secret"), (12, "hidden")))
    assert one == other
    said = repr(one) + table_section(one.dialect)
    assert not any(text in said for text in ("11", "12", "secret", "hidden"))


# --- what is refused ---------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "no header, numbers": ("t.csv", "34,m,yes\n35,f,no\n", "its cell 1 looks like data"),
    "no header, a date": ("t.csv", "m,2020-01-31\nf,2020-02-01\n", "its cell 2 looks like data"),
    "no header, words that come again": ("t.csv", "m,red\nf,blue\nm,green\n", "its cell 1 looks like data"),
    "two of one name": ("t.csv", "a,a\n1,2\n", "2 columns named 'a'"),
    "names equal but for case": ("t.csv", "PID,pid\n1,2\n", "'PID', 'pid', which differ only in case"),
    "no name at all": ("t.csv", ",,\n1,2,3\n", "has no column names"),
    "an empty file": ("t.csv", "", "is empty"),
    "bytes of no text": ("t.csv", b"a,b\n\x00\x01,2\n", "not a text file"),
    "a spreadsheet": ("t.xlsx", b"PK", "Save a spreadsheet as CSV"),
    "a list in JSON": ("t.json", b"[]", "one per line to a .jsonl file"),
    "no gzip": ("t.csv.gz", b"a,b\n", "cannot be read"),
    "no Parquet": ("t.parquet", b"a,b\n", "damaged, or not parquet"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_files_that_are_no_table_are_refused_without_a_cell(what: str, tmp_path: Path) -> None:
    name, text, reason = REFUSED[what]
    with pytest.raises(InvalidInput, match=reason) as problem:
        sniff(written(tmp_path, text, name))
    said = str(problem.value).replace(str(tmp_path), "")
    assert not any(cell in said for cell in ("34", "35", "2020", "red", "blue"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for name in ("t.csv", "t.parquet"):
        with pytest.raises(InvalidInput, match="there is no table at"):
            sniff(tmp_path / name)


def test_a_column_may_say_its_own_name(tmp_path: Path) -> None:
    assert kinds(sniff(written(tmp_path, "apple,pear\napple,\n,pear\napple,pear\n"))) == {
        "apple": "category", "pear": "category",
    }  # fmt: skip


def test_years_may_be_names_and_a_column_without_a_name_is_left_out(tmp_path: Path) -> None:
    found = sniff(written(tmp_path, ",2019,2020\n0,5,6\n1,7,8\n"))
    assert kinds(found) == {"2019": "integer", "2020": "integer"}
    assert found.unnamed == (1,)


# --- files with types --------------------------------------------------------------------------------------


def parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path)


def test_files_with_types_are_read_by_their_schema(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table(
        {
            "age": [871, 917], "dose": [3471.5, 9917.5], "ward": ["secret-a", "secret-b"],
            "alive": [True, False], "when": pa.array([1, 2], pa.timestamp("s")),
            "day": pa.array([1, 2], pa.date32()),
            "code": pa.array(["c", "c"]).dictionary_encode(), "patient_id": [1, 2], "list": [[1], [2]],
        }
    )  # fmt: skip
    for rows in (table, table.slice(0, 0)):
        parquet(rows, path)
        found = sniff(path)
        assert kinds(found) == {
            "age": "integer", "dose": "number", "ward": "category", "alive": "boolean", "when": "datetime",
            "day": "date", "code": "category", "patient_id": "text", "list": "",
        }  # fmt: skip
        assert dict(found.dialect) == {}


def test_a_parquet_file_has_the_kinds_of_the_same_table_in_csv(tmp_path: Path) -> None:
    table: dict[str, list[Any]] = {
        "target": ["yes", "no", "yes"], "flag": [1, 0, 1], "of_pandas": [0.0, 1.0, None],
        "age": [34, -999, 61], "dose": [0.5, 1.25, None], "ward": ["a", "b", "a"],
        "born": ["31.01.1980", "1.2.1999", "3.4.2001"],
        "price": ["1,50", "2,00", "3,25"], "code": ["007", "012", "n/a"], "lab": ["1.5", "n/a", "-"],
        "ill": [True, False, None],
    }  # fmt: skip
    as_csv = tmp_path / "t.csv"
    names = list(table)
    cells = [["" if row is None else str(row) for row in column] for column in table.values()]
    as_csv.write_text("\n".join(";".join(row) for row in [names, *zip(*cells, strict=True)]) + "\n")
    parquet(pa.table(table), tmp_path / "t.parquet")
    in_csv, typed = sniff(as_csv), sniff(tmp_path / "t.parquet")
    assert kinds(typed) == kinds(in_csv)
    assert kinds(typed) | {"target": "boolean", "flag": "boolean", "of_pandas": "boolean"} == kinds(typed)
    for name in ("age", "born", "lab"):
        assert typed.columns[name].settings == in_csv.columns[name].settings
    assert typed.columns["price"].settings == {"decimal": ",", "thousands": ""}


def test_counted_columns_have_names(tmp_path: Path) -> None:
    for first in ("0,1,2", "1,2,3"):
        assert kinds(sniff(written(tmp_path, f"{first}\n5,x,2.5\n6,y,3.5\n"))) == dict(
            zip(first.split(","), ("integer", "category", "number"), strict=True)
        )
    with pytest.raises(InvalidInput, match="must contain column names"):
        sniff(written(tmp_path, "0,2,1\n5,1,2.5\n"))


def test_one_name_may_be_a_value_too_and_is_asked_about(tmp_path: Path) -> None:
    found = sniff(written(tmp_path, "age,male,ward\n34,male,a\n61,female,b\n"))
    assert "its name is also a value" in found.columns["male"].doubt
    assert found.columns["age"].kind == "integer"
