"""One CSV file, one meaning: training, queries and the check read every dialect alike, or refuse it alike.

Each case is a file as some program writes it and the dialect that is declared for it.  The three readers get
their settings from the files of a user: a run file, a policy, and a policy at the command line.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tacit.cli.app import run
from tacit.columns import Column, Dialect
from tacit.columns.tables import Cells, MalformedTable, numbers_of
from tacit.errors import InvalidInput
from tacit.ledger.policy import parse_policy
from tacit.queries.engines import DuckDBEngine
from tacit.runs.config import parse_config
from tacit.runs.kinds import load_data

NUMBERS = (1234.5, 7.0, -3.25, 0.0)
WORDS = ("a", "b;c,d", "naïve", "é €")
DAYS = (dt.date(2020, 1, 31), dt.date(2021, 12, 1), dt.date(1999, 2, 28), dt.date(2024, 2, 29))
TRUTHS = (True, False, False, True)
LOW, HIGH = -2000.0, 2000.0
FIRST, LAST = dt.date(1990, 1, 1), dt.date(2030, 1, 1)
PLAIN = """x,word,day,ok
1234.5,a,2020-01-31,yes
7,"b;c,d",2021-12-01,no
-3.25,naïve,1999-02-28,no
0,é €,2024-02-29,yes
"""
QUOTED = """"x","word","day","ok"
"1234.5","a","2020-01-31","yes"
"7","b;c,d","2021-12-01","no"
"-3.25","naïve","1999-02-28","no"
"0","é €","2024-02-29","yes"
"""
REORDERED = """id,ok,day,word,x
1,yes,2020-01-31,a,1234.5
2,no,2021-12-01,"b;c,d",7
3,no,1999-02-28,naïve,-3.25
4,yes,2024-02-29,é €,0
"""
SEMICOLONS = PLAIN.replace('"b;c,d"', "bcd").replace(",", ";").replace("bcd", '"b;c,d"')
TABS = PLAIN.replace('"b;c,d"', "b;c|d").replace(",", "\t").replace("|", ",")
COMMAS = SEMICOLONS.replace("1234.5", "1234,5").replace("-3.25", "-3,25")


@dataclass(frozen=True)
class Case:
    """A file, what is declared for it and, if it is refused, the rows that a refusal names.

    Attributes:
        content: of the file; a text is written in UTF-8.
        table: ``[table]``.
        columns: facts of columns beside those that all cases declare.
        name: of the file.
        rows: numbers of the rows that are refused; None where all four are read.
        words: what each refusal of a whole file says.
    """

    content: str | bytes
    table: dict[str, str] = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    name: str = "rows.csv"
    rows: tuple[int, ...] | None = None
    words: str = ""


def german(text: str) -> str:
    for day in DAYS:
        text = text.replace(str(day), day.strftime("%d.%m.%Y"))
    return text


def american(text: str) -> str:
    for day in DAYS:
        text = text.replace(str(day), day.strftime("%m/%d/%y"))
    return text


LATIN = {"word": {"values": ["a", "b;c,d", "naïve", "é E"]}}
ISO = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})")
EURO = {"separator": ";", "decimal": ","}
CASES = {
    "commas": Case(PLAIN),
    "semicolons": Case(SEMICOLONS, {"separator": ";"}),
    "semicolons and decimal commas": Case(COMMAS, EURO),
    "decimal commas in quotes": Case(
        PLAIN.replace("1234.5", '"1234,5"').replace("-3.25", '"-3,25"'), {"decimal": ","}
    ),
    "tabs by the ending": Case(TABS, name="rows.tsv"),
    "tabs as declared": Case(TABS, {"separator": "\t"}),
    "bars": Case(PLAIN.replace('"b;c,d"', "b;c#d").replace(",", "|").replace("#", ","), {"separator": "|"}),
    "thousands with points": Case(COMMAS.replace("1234,5", "1.234,5"), EURO | {"thousands": "."}),
    "thousands with commas": Case(PLAIN.replace("1234.5", '"1,234.50"'), {"thousands": ","}),
    "thousands with apostrophes": Case(PLAIN.replace("1234.5", "1'234.5"), {"thousands": "'"}),
    "thousands with narrow spaces": Case(
        COMMAS.replace("1234,5", "1\u202f234,5"), EURO | {"thousands": "\u202f"}
    ),
    "numbers of one column in another form": Case(COMMAS, {"separator": ";"}, {"x": {"decimal": ","}}),
    "single quotes": Case(PLAIN.replace('"', "'"), {"quote": "'"}),
    "all cells in quotes": Case(QUOTED),
    "latin-1": Case(PLAIN.replace("é €", "é E").encode("latin-1"), {"encoding": "latin-1"}, LATIN),
    "cp1252": Case(PLAIN.encode("cp1252"), {"encoding": "cp1252"}),
    "utf-16": Case(PLAIN.encode("utf-16"), {"encoding": "utf-16"}),
    "utf-16 and tabs": Case(TABS.encode("utf-16"), {"encoding": "utf-16", "separator": "\t"}),
    "a byte order mark": Case("\ufeff" + PLAIN),
    "a byte order mark before quotes": Case("\ufeff" + PLAIN.replace("x,", '"x",', 1)),
    "spaces after commas": Case(PLAIN.replace(",", ", ").replace("b;c, d", "b;c,d")),
    "spaces on both sides": Case(PLAIN.replace(",", "  ,  ").replace('"b;c  ,  d"  ,', '"b;c,d",')),
    "a line end in quotes": Case(
        PLAIN.replace('"b;c,d"', '"b\nc"'), {}, {"word": {"values": ["a", "b\nc", "naïve", "é €"]}}
    ),
    "a quote in quotes": Case(
        PLAIN.replace('"b;c,d"', '"b ""c"""'), {}, {"word": {"values": ["a", 'b "c"', "naïve", "é €"]}}
    ),
    "line ends of Windows": Case(PLAIN.replace("\n", "\r\n")),
    "line ends of old Macs": Case(PLAIN.replace("\n", "\r")),
    "empty lines and no last line end": Case(PLAIN.replace("\n", "\n\n").rstrip("\n")),
    "German dates": Case(german(COMMAS), EURO, {"day": {"format": "%d.%m.%Y"}}),
    "American dates": Case(american(PLAIN), {}, {"day": {"format": "%m/%d/%y"}}),
    "dates with times": Case(ISO.sub(r"\1 00:00:00", PLAIN), {}, {"day": {"format": "%Y-%m-%d %H:%M:%S"}}),
    "gzip": Case(gzip.compress(PLAIN.encode()), name="rows.csv.gz"),
    "units": Case(PLAIN.replace("1234.5", "1234.5 kg").replace("7,", "7kg,", 1), {}, {"x": {"unit": "kg"}}),
    "limits of detection": Case(PLAIN.replace("7,", "< 7,", 1), {}, {"x": {"below": "<"}}),
    "words of another language": Case(
        PLAIN.replace(",yes", ",Ja").replace(",no", ",nein"), {}, {"ok": {"true": ["ja"], "false": ["nein"]}}
    ),
    "columns in another order, and more": Case(REORDERED),
    # --- refused, by all three ---
    "decimal commas, not declared": Case(COMMAS, {"separator": ";"}, rows=(1, 3)),
    "decimal points, where commas are declared": Case(SEMICOLONS, EURO, rows=(1, 3)),
    "thousands, not declared": Case(PLAIN.replace("1234.5", '"1,234.5"'), rows=(1,)),
    "thousands in the wrong places": Case(PLAIN.replace("1234.5", "12'34.5"), {"thousands": "'"}, rows=(1,)),
    "a unit, not declared": Case(PLAIN.replace("1234.5", "1234.5 kg"), rows=(1,)),
    "dates of another form": Case(german(PLAIN), rows=(1, 2, 3, 4)),
    "a day that is none": Case(PLAIN.replace("2021-12-01", "2021-11-31"), rows=(2,)),
    "words of another language, not declared": Case(PLAIN.replace(",yes", ",ja"), rows=(1, 4)),
    "a cell that is missing": Case(PLAIN.replace("naïve", ""), rows=(3,)),
    "a number that is missing": Case(PLAIN.replace("-3.25", "NA"), rows=(3,)),
    "ragged rows": Case(PLAIN.replace("7,", "7,8,", 1).replace("0,", "", 1) + "1,a\n", rows=(2, 4, 5)),
    "decimal commas between commas": Case(PLAIN.replace("-3.25", "-3,25"), {"decimal": ","}, rows=(3,)),
    "quotes that do not end": Case(
        PLAIN.replace("naïve", '"naïve'), rows=(4,), words="cannot be read to its end"
    ),
    "another encoding": Case(PLAIN.encode("cp1252"), rows=(1,), words="it is not CSV in utf-8"),
    "another separator": Case(SEMICOLONS, rows=(), words='Declare separator = ";" in [table]'),
    "half a gzip": Case(
        gzip.compress(PLAIN.encode() * 99)[:60], name="rows.csv.gz", rows=(), words="first line"
    ),
    "an encoding of two bytes, not declared": Case(PLAIN.encode("utf-16"), rows=(), words="as utf-8"),
}


def schema(case: Case) -> dict[str, dict[str, Any]]:
    facts: dict[str, dict[str, Any]] = {
        "x": {"kind": "number", "lower": LOW, "upper": HIGH},
        "word": {"kind": "category", "values": list(WORDS)},
        "day": {"kind": "date", "lower": str(FIRST), "upper": str(LAST)},
        "ok": {"kind": "boolean"},
    }
    return {name: column | case.columns.get(name, {}) for name, column in facts.items()}


def toml(case: Case) -> str:
    """``[table]`` and ``[columns.NAME]``, which a run file and a policy have in common."""

    def section(name: str, facts: dict[str, Any]) -> str:
        return f"[{name}]\n" + "".join(f"{fact} = {json.dumps(value)}\n" for fact, value in facts.items())

    return section("table", case.table) + "".join(
        section(f"columns.{name}", facts) for name, facts in schema(case).items()
    )


RUN = """
[data]
table = "{path}"
test_table = "{path}"
target = "ok"
[model]
name = "logistic"
[privacy]
epsilon = 1.0
delta = 1e-5
unit = "row"
adjacency = "add-remove"
records = 4
[optimizer]
learning_rate = 0.1
[training]
batch_size = 2
steps = 1
"""
POLICY = '[policy]\nunit = "row"\nadjacency = "add-remove"\n[budget]\nmode = "pure"\nepsilon = 1.0\n'


def by_training(path: Path, case: Case) -> list[tuple[Any, ...]]:
    """The rows as training reads them, back from the numbers that the model gets."""
    data = load_data(parse_config(RUN.format(path=path) + toml(case), "run.toml"))
    words = schema(case)["word"]["values"]
    rows = []
    for row, target in zip(data.train.inputs.tolist(), data.train.targets.tolist(), strict=True):
        number = LOW + (row[0] + 1.0) / 2.0 * (HIGH - LOW)
        word = words[row[1:5].index(1.0)]
        day = FIRST + dt.timedelta(round((row[6] + 1.0) / 2.0 * (LAST - FIRST).days))
        rows.append((pytest.approx(number, abs=1e-3), word, day, bool(target)))
    return rows


def by_queries(path: Path, case: Case) -> list[tuple[Any, ...]]:
    """The rows as the engine of queries reads them."""
    engine = DuckDBEngine(path, parse_policy(POLICY + toml(case)))
    engine.load()
    read = engine._read
    assert read is not None
    assert (read.unreadable, read.mistyped) == ({}, {})
    return list(
        zip(*(read.table.column(name).to_pylist() for name in ("x", "word", "day", "ok")), strict=True)
    )


def refusal_of_training(path: Path, case: Case) -> tuple[tuple[int, ...], str]:
    with pytest.raises(InvalidInput) as caught:
        by_training(path, case)
    text = str(caught.value)
    if isinstance(caught.value, MalformedTable):
        return caught.value.places, text
    named = re.search(r"\brows? ([0-9, ]+)", text)
    return (tuple(map(int, named[1].replace(" ", "").strip(",").split(","))) if named else ()), text


def refusal_of_queries(path: Path, case: Case) -> tuple[tuple[int, ...], str]:
    """Return the rows that the loader refuses or reads as missing, and its message."""
    try:
        engine = DuckDBEngine(path, parse_policy(POLICY + toml(case)))
        engine.load()
    except MalformedTable as problem:
        return problem.places, str(problem)
    except InvalidInput as problem:
        return (), str(problem)
    assert engine._read is not None
    table = engine._read.table
    rows = {
        row
        for name in table.column_names
        for row, cell in enumerate(table.column(name).to_pylist(), 1)
        if cell is None
    }
    found = [places.rows for places in engine._read.unreadable.values() if places.rows is not None]
    unreadable = {int(row) + 1 for rows in found for row in rows}
    assert unreadable <= rows
    return tuple(sorted(rows)), ""


def checked(
    path: Path, case: Case, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, findings and message of ``tacit check``."""
    policy = path.parent / "policy.toml"
    policy.write_text(POLICY + toml(case), encoding="utf-8")
    capsys.readouterr()
    code = run(["check", str(path), "--policy", str(policy), "--json"])
    shown = capsys.readouterr()
    messages = "\n".join(line for line in shown.err.splitlines() if not line.startswith("Reading "))
    return code, json.loads(shown.out)["findings"] if shown.out else [], " ".join(messages.split())


def written(folder: Path, case: Case) -> Path:
    content = case.content.encode() if isinstance(case.content, str) else case.content
    (folder / case.name).write_bytes(content)
    return folder / case.name


def wanted(case: Case) -> list[tuple[Any, ...]]:
    return list(zip(NUMBERS, schema(case)["word"]["values"], DAYS, TRUTHS, strict=True))


def test_there_are_enough_dialects() -> None:
    assert sum(case.rows is None for case in CASES.values()) >= 15
    assert sum(case.rows is not None for case in CASES.values()) >= 10


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.rows is None])
def test_a_dialect_is_read_alike(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    path = written(tmp_path, case)
    assert by_training(path, case) == wanted(case)
    assert by_queries(path, case) == wanted(case)
    assert checked(path, case, capsys) == (0, [], "")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.rows is not None])
def test_a_file_is_refused_alike(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    path = written(tmp_path, case)
    training, queries = refusal_of_training(path, case), refusal_of_queries(path, case)
    code, findings, message = checked(path, case, capsys)
    assert training[0] == queries[0] == case.rows
    if findings:
        assert code == 1
        assert tuple(sorted({row for each in findings for row in each["rows"]})) == case.rows
    else:
        assert code == 2
        assert case.words in message
    if case.words:
        assert case.words in training[1]
        assert case.words in queries[1]
    said = training[1] + queries[1] + message
    assert not any(cell in said for cell in ("1234", "1,234", "naïve", "2020", "2021-11-31"))


def test_planted_bug_a_reader_that_forgets_the_dialect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["semicolons and decimal commas"]
    path = written(tmp_path, case)
    assert by_queries(path, case) == wanted(case)

    def forgetful(cells: Cells, column: Column, dialect: Dialect) -> Any:
        return numbers_of(cells, column)

    monkeypatch.setattr("tacit.queries.engines.numbers_of", forgetful)
    with pytest.raises(AssertionError):
        assert by_queries(path, case) == wanted(case)
