"""One file, one meaning: what a cell is to training, to questions and to the curator's check."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from query_oracles import policy_of

from tacit.cli.app import run
from tacit.cli.query import print_check
from tacit.columns.tables import numbers_of
from tacit.datasets import load_table
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.ledger import Column, Ledger, Policy, PureBudget
from tacit.ledger.charges import Verdict
from tacit.queries import (
    Answer,
    Compare,
    Count,
    Mean,
    PrivateTable,
    Query,
    Sum,
    check_table,
    register_table,
)
from tacit.queries.engines import DuckDBEngine
from tacit.queries.query import Aggregate
from tacit.queries.table_check import Finding, TableCheck
from tacit.report.certificate import make_certificate

MISSING, UNREADABLE = "missing", "unreadable"

# How a cell is written in the file, and what it is in a column of numbers.
_NO_NUMBERS = """
    "1,002"|"1.002,5"|1 002|1'002|1_000|1.2.3|--5|5-|$5|€5
    5 mg|5mg|5%|<5|>5|~5|5-7|5/7|#5|(5)|NA7|unknown|none
    n/a|NAN|TRUE|yes|-|.|e5|1e|x|inf|Infinity|-inf|1e999|0x1A|1d5|12:30|2020-01-01|٣|１２|½|−5|O|1e5.5
"""
NUMBERS: list[tuple[str, float | str]] = [
    *[("7", 7), ("7.5", 7.5), ("-7", -7), ("+7", 7), (".5", 0.5), ("7.", 7), ("007", 7), ("-0", 0)],
    *[("1e2", 100), ("1E+2", 100), ("1e-2", 0.01), (" 7", 7), ("7 ", 7), ("\t7", 7), ('"7"', 7)],
    *[('" 7 "', 7), ("7\u00a0", 7)],  # a space that does not break is a space
    *[(cell, MISSING) for cell in ("", " ", '""', "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?")],
    *[(cell, UNREADABLE) for line in _NO_NUMBERS.split("\n")[1:-1] for cell in line.strip().split("|")],
]
TRUTHS: list[tuple[str, bool | str]] = [
    *[(cell, True) for cell in ("true", "TRUE", "True", "t", "yes", "Y", "1", "1.0", " true ")],
    *[(cell, False) for cell in ("false", "F", "no", "n", "0", "0.0")],
    *[(cell, MISSING) for cell in ("", "NA", "null")],
    *[(cell, UNREADABLE) for cell in ("2", "1.5", "maybe", "on", "wahr", "truee")],
]
WORDS: list[tuple[str, str]] = [
    *[("a", "a"), (" a ", "a"), ('"a"', "a"), ('"b,c"', "b,c"), ("NA", "NA")],  # which is declared
    *[("", MISSING), ("null", MISSING), ("A", "outside"), ("d", "outside"), ('"a ""x"""', "outside")],
]
POLICY = Policy(
    unit="visit",
    adjacency="add-remove",
    budget=PureBudget(1e6),
    columns={
        "x": Column(kind="number", lower=-200, upper=200),
        "ok": Column(kind="boolean"),
        "word": Column(kind="category", values=("a", "b,c", "NA")),
        "n": Column(kind="integer", lower=0, upper=50),
    },
)
HEADER, GOOD = "x,ok,word,n", ["1,true,a,3", "2,false,a,4"]
EPSILON = 1e5


def table(folder: Path, *lines: str, name: str = "visits.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([HEADER, *GOOD, *lines]) + "\n", encoding="utf-8")
    return path


def policy(column: str) -> Policy:
    """Return a policy with one column, so that this column alone decides."""
    return Policy(
        unit="visit",
        adjacency="add-remove",
        budget=PureBudget(1e6),
        columns={column: POLICY.columns[column]},
    )


def opened(rules: Policy = POLICY) -> Ledger:
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("visits", rules)
    return ledger


def refusal(data: object, rules: Policy) -> str:
    with pytest.raises(PrivacyRefusal) as caught:
        PrivateTable(data, ledger=opened(rules), dataset="visits")
    return str(caught.value)


def accepted(data: object, column: str) -> PrivateTable:
    """The table after the curator has let pass what is in one column."""
    ledger = opened(policy(column))
    register_table(data, ledger=ledger, dataset="visits", accept_missing=[column], accept_outside=[column])
    return PrivateTable(data, ledger=ledger, dataset="visits")


def kinds(found: TableCheck) -> list[str]:
    return [each.kind for each in found.findings]


def test_there_are_enough_kinds() -> None:
    assert len({cell for cell, _ in NUMBERS}) == len(NUMBERS) >= 60
    assert len(NUMBERS) + len(TRUTHS) + len(WORDS) >= 90


def asked(folder: Path, column: str, cells: list[str], *aggregates: Aggregate) -> Answer:
    """All cells in one file, each in a group of its own, asked almost without noise."""
    path = folder / "cells.csv"
    lines = [f"{place},{cell}" for place, cell in enumerate(cells)]
    path.write_text("\n".join([f"row,{column}", *lines]) + "\n", encoding="utf-8")
    rows = Column(kind="integer", values=tuple(range(len(cells))))
    ledger = opened(replace(POLICY, columns={"row": rows, column: POLICY.columns[column]}))
    register_table(path, ledger=ledger, dataset="visits", accept_missing=[column])
    with PrivateTable(path, ledger=ledger, dataset="visits") as private:
        return private.ask(Query((Count(), *aggregates), by=("row",)), epsilon=EPSILON)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    cells = [cell for cell, _ in NUMBERS]
    return asked(tmp_path_factory.mktemp("numbers"), "x", cells, Count("x"), Sum("x"))


@pytest.mark.thorough(cases=40)
@pytest.mark.parametrize(("cell", "meaning"), NUMBERS)
def test_a_cell_of_numbers_has_one_meaning(
    cell: str, meaning: float | str, numbers: Answer, tmp_path: Path
) -> None:
    path = table(tmp_path, f"{cell},true,a,5")
    found = check_table(path, policy("x"))

    def trained(missing: float | str) -> float:
        schema = {
            "x": Column(kind="number", lower=-200, upper=200, missing=missing),
            "word": Column(kind="category", values=("a",)),
        }
        data = load_table(path, target="word", schema=schema, test_path=path)
        return float(data.train.inputs[2, 0]) * 200

    counts = [numbers.value(name, keys=(place_of(cell),)) for name in ("count", "count_x", "sum_x")]
    if not isinstance(meaning, str):
        assert found.clean
        assert trained("refuse") == pytest.approx(meaning, rel=1e-6, abs=1e-6)
        assert counts == [1, 1, pytest.approx(meaning, abs=0.5)]
        return
    assert (kinds(found), found.findings[0].rows) == ([meaning], (3,))
    with pytest.raises(InvalidInput, match="lack a value" if meaning == MISSING else "are not numbers"):
        trained("refuse")
    if meaning == MISSING:
        assert trained(0.0) == 0.0
    assert counts == [1, 0, pytest.approx(0, abs=0.5)]


def place_of(cell: str) -> int:
    return [each for each, _ in NUMBERS].index(cell)


@pytest.fixture(scope="module")
def truths(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    return asked(tmp_path_factory.mktemp("truths"), "ok", [cell for cell, _ in TRUTHS], Count("ok"))


@pytest.mark.parametrize("place", range(len(TRUTHS)))
def test_a_truth_value_has_one_meaning(place: int, truths: Answer, tmp_path: Path) -> None:
    cell, meaning = TRUTHS[place]
    found = check_table(table(tmp_path, f"3,{cell},a,5"), policy("ok"))
    assert kinds(found) == ([meaning] if isinstance(meaning, str) else [])
    assert truths.value("count_ok", keys=(place,)) == isinstance(meaning, bool)
    (value,), _ = numbers_of([cell], Column(kind="boolean"))
    assert value == meaning if isinstance(meaning, bool) else math.isnan(value)


@pytest.mark.parametrize(("cell", "meaning"), WORDS)
def test_a_word_has_one_meaning(cell: str, meaning: str, tmp_path: Path) -> None:
    path = table(tmp_path, f"3,true,{cell},5")
    assert kinds(check_table(path, policy("word"))) == ([meaning] if meaning in (MISSING, "outside") else [])
    answer = accepted(path, "word").ask(Query((Count(),), by=("word",)), epsilon=EPSILON)
    counts = {row.keys[0]: answer.value(keys=row.keys) for row in answer.rows}
    expected = {"a": 2, "b,c": 0, "NA": 0}
    if meaning in expected:
        expected[meaning] += 1
    assert counts == expected
    data = load_table(
        path,
        target="x",
        test_path=path,
        schema={"x": POLICY.columns["x"], "word": replace(POLICY.columns["word"], missing="other")},
    )
    place = {"a": 0, "b,c": 1, "NA": 2}.get(meaning, 3)
    assert int(data.train.inputs[2].argmax()) == place


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize(
    ("cell", "kind", "total"), [("7", None, 14), ("7.0", None, 14), ("1e1", None, 17), ("7.5", "fraction", 7)]
)
def test_a_fraction_in_a_column_of_integers_is_found_and_counts_as_missing(
    cell: str, kind: str | None, total: float, tmp_path: Path
) -> None:
    path = table(tmp_path, f"3,true,a,{cell}")
    frame = pd.DataFrame({"n": [3.0, 4.0, float(cell)]})
    frame.to_parquet(tmp_path / "visits.parquet")
    for data in (path, frame, tmp_path / "visits.parquet"):
        assert kinds(check_table(data, policy("n"))) == ([] if kind is None else [kind])
        private = accepted(data, "n")
        assert private.ask(Query((Sum("n"),)), epsilon=EPSILON).value() == total
        here = private.ask(Query((Count("n"),)), epsilon=EPSILON).value()
        where = private.ask(Query((Count(),), where=Compare("n", ">", 0)), epsilon=EPSILON).value()
        assert here == where == (3 if kind is None else 2)


def test_a_mean_that_left_out_every_value_from_a_thousand_up_is_not_told(tmp_path: Path) -> None:
    """Costs have a comma from 1,000 up, so only the smaller ones were numbers."""
    costs = np.random.default_rng(0).integers(0, 1800, 500)
    cells = [f'"{cost:,}"' if cost > 999 else str(cost) for cost in costs]
    path = tmp_path / "costs.csv"
    path.write_text("\n".join(["cost", *cells]))
    columns = {"cost": Column(kind="number", lower=0, upper=2000)}
    rules = Policy(unit="visit", adjacency="add-remove", budget=PureBudget(10.0), columns=columns)
    ledger = opened(rules)
    with pytest.raises(PrivacyRefusal, match="is not registered as 'visits'"):
        PrivateTable(path, ledger=ledger, dataset="visits").ask(Query((Mean("cost"),)), epsilon=1.0)
    with pytest.raises(PrivacyRefusal, match=r"column 'cost': 2\d\d cannot be read as the declared kind"):
        register_table(path, ledger=ledger, dataset="visits")
    assert len(ledger.history("visits")) == 1, "what was found leaves nothing in the ledger"
    path.write_text("\n".join(["cost", *map(str, costs)]))
    assert register_table(path, ledger=ledger, dataset="visits").clean
    answer = PrivateTable(path, ledger=ledger, dataset="visits").ask(Query((Mean("cost"),)), epsilon=1.0)
    assert answer.value() == pytest.approx(costs.mean(), rel=0.05)


# --- nothing is decided by what cells contain ------------------------------------------------------------

FRAMES = {
    "clean": [1.0, 2.0, 3.0],
    "None alone": [None, None, None],
    "mixed": [1.0, "x", 2.0],
    "texts": ["1", "2", "3"],
    "truths": [True, False, True],
    "a number that is too large": [1.0, 10**400, 2.0],
    "half a character": [1.0, "\ud800", 2.0],
    "anything": [object(), {}, []],
}
FILES = {
    "clean": b"x\n1\n2\n",
    "words": b"x\n1\nunknown\n",
    "ragged": b"x\n1\n2,3\n",
    "an open quote": b'x\n1\n"2\n',
    "latin-1": b"x\n1\n\xe9\n",
    "NUL": b"x\n1\n\x00\n",
    "empty": b"x\n",
}


def test_a_table_that_is_not_registered_is_refused_in_the_same_words_whatever_is_in_it(
    tmp_path: Path,
) -> None:
    told = set()
    for values in FRAMES.values():
        told.add(refusal(pd.DataFrame({"x": pd.Series(values, dtype=object)}), policy("x")))
        told.add(refusal(pd.DataFrame({"x": values}), policy("x")))  # whose type pandas infers
    told.add(refusal(pa.table({"x": pa.nulls(3)}), policy("x")))
    told.add(refusal(pl.DataFrame({"x": [None, None]}), policy("x")))
    for name, content in FILES.items():
        path = tmp_path / f"{name}.csv"
        path.write_bytes(content)
        told.add(refusal(path, policy("x")))
    for values in ([None, None], [1.0, math.nan], [1.0, 1e9], ["1", "x"]):
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.table({"x": pa.array(values)}), path)
        told.add(refusal(path, policy("x")))
    assert len(told) == 1, told


def test_a_price_needs_the_check_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, url = table(tmp_path), str(tmp_path / "budget.db")
    Ledger.create(url).open_dataset("visits", POLICY)
    asked = ["query", str(path), "--ledger", url, "--dataset", "visits", "--epsilon", "1", "--dry-run"]
    assert run([*asked, "SELECT count(*) FROM visits"]) == 1
    assert "is not registered as 'visits'" in " ".join(capsys.readouterr().err.split())
    assert run(["ledger", "register", url, str(path), "--dataset", "visits"]) == 0
    assert run([*asked, "SELECT count(*) FROM visits"]) == 0


def test_another_content_needs_another_check(tmp_path: Path) -> None:
    ledger = opened()
    register_table(table(tmp_path), ledger=ledger, dataset="visits")
    with pytest.raises(PrivacyRefusal, match="not registered"):
        PrivateTable(table(tmp_path, "3,true,a,5"), ledger=ledger, dataset="visits")


def test_a_file_that_changes_while_it_is_checked_is_not_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the ledger would store the verdict on the new cells with the fingerprint of the old ones."""
    path, ledger, load = table(tmp_path, "unknown,true,a,5"), opened(), DuckDBEngine.load

    def mended(engine: DuckDBEngine) -> None:
        table(tmp_path, "3,true,a,5555")
        load(engine)

    monkeypatch.setattr(DuckDBEngine, "load", mended)
    with pytest.raises(InvalidInput, match="has changed since it was opened"):
        register_table(path, ledger=ledger, dataset="visits", accept_outside=["n"])
    assert len(ledger.history("visits")) == 1


def test_content_that_training_registered_was_not_checked(tmp_path: Path) -> None:
    path, ledger = table(tmp_path), opened()
    ledger.register_content("visits", ledger.fingerprint([path.read_bytes()]))
    with pytest.raises(PrivacyRefusal, match="not registered"):
        PrivateTable(path, ledger=ledger, dataset="visits")
    register_table(path, ledger=ledger, dataset="visits")
    register_table(path, ledger=ledger, dataset="visits")
    PrivateTable(path, ledger=ledger, dataset="visits")
    assert [entry.kind for entry in ledger.history("visits")] == ["open", "content", "content"]
    assert ledger.verify("visits").ok


def test_planted_bug_a_door_that_does_not_ask_for_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a cell decides what an answer means, and nobody is told."""
    path = table(tmp_path, "unknown,true,a,5")
    monkeypatch.setattr(Ledger, "verdict", lambda *arguments: Verdict(missing=("x",)))
    answer = PrivateTable(path, ledger=opened(), dataset="visits").ask(Query((Count("x"),)), epsilon=EPSILON)
    assert answer.value() == 2


# --- what the check finds --------------------------------------------------------------------------------


def check_of(
    values: list[Any], column: Column, dtype: str = "object"
) -> list[tuple[str, int | None, tuple[int, ...]]]:
    rules = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns={"x": column})
    found = check_table(pd.DataFrame({"x": pd.Series(values, dtype=dtype)}), rules)
    return [(each.kind, each.count, each.rows) for each in found.findings]


def test_each_kind_of_finding_has_its_count_and_rows() -> None:
    number, integer = Column(kind="number", lower=0, upper=10), Column(kind="integer", values=(1, 2))
    assert check_of([1, None, 11, -1, 5], number) == [("missing", 1, (2,)), ("outside", 2, (3, 4))]
    assert check_of([1.0, math.nan, math.inf], number, "float64") == [
        ("missing", 1, (2,)),
        ("outside", 1, (3,)),
    ]
    assert check_of([None, None], number) == [("empty", 2, (1, 2))]
    assert check_of([1, "1", "x", True], number) == [("unreadable", 1, (3,)), ("type", 1, (4,))]
    assert check_of([1.0, 2.5, 3.0], integer, "float64") == [("fraction", 1, (2,)), ("outside", 1, (3,))]
    assert check_of(["a", 1, "b"], Column(kind="category", values=("a",))) == [
        ("type", 1, (2,)),
        ("outside", 1, (3,)),
    ]
    assert check_of([True, 1, 2, None], Column(kind="boolean")) == [("type", 1, (3,)), ("missing", 1, (4,))]
    assert check_of([math.inf, 1.0], Column(kind="number"), "float64") == [("outside", 1, (1,))]
    assert check_of([1.0] * 30 + [99.0] * 20, number, "float64") == [("outside", 20, tuple(range(31, 41)))]
    assert check_of([1.0, 2.0], number, "float64") == []


def test_rows_without_a_unit_are_findings() -> None:
    rules = Policy(
        unit="person", adjacency="add-remove", budget=PureBudget(1.0), unit_column="who", rows_per_unit=2
    )
    frame = pd.DataFrame({"who": pd.Series(["p1", None, 7, 1.5, ""], dtype=object)})
    found = check_table(frame, rules, accept_missing=["who"])
    assert [(each.kind, each.rows) for each in found.findings] == [("type", (4,)), ("missing", (2, 5))]
    assert found.clean


def test_the_order_of_rows_is_that_of_the_file_in_several_row_groups(tmp_path: Path) -> None:
    values = np.arange(300_000, dtype=float) % 100
    bad = [5, 123_456, 299_999]
    values[bad] = -1.0
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": values}), path, row_group_size=10_000)
    rules = Policy(
        unit="row",
        adjacency="add-remove",
        budget=PureBudget(1.0),
        columns={"x": Column(kind="number", lower=0, upper=100)},
    )
    (found,) = check_table(path, rules).findings
    assert found.rows == tuple(row + 1 for row in bad)


def test_a_file_that_is_no_table_is_found_and_cannot_be_accepted(tmp_path: Path) -> None:
    for name, content in FILES.items():
        path = tmp_path / f"{name}.csv"
        path.write_bytes(content)
        found = check_table(path, policy("x"), accept_missing=["x"])
        assert found.clean == (name in ("clean", "words", "NUL", "empty")), name
    path = table(tmp_path, "1,true,a", "1,true,a,2,3")
    assert [each.rows for each in check_table(path, POLICY).findings] == [(3, 4)]


def test_a_text_that_cannot_be_made_is_found_before_a_question_fails_on_it() -> None:
    """A time so far away that it has no text: whether a question fails would tell of WHERE."""
    times = pa.array([0, 2**62], pa.timestamp("s"))
    rules = Policy(
        unit="row",
        adjacency="add-remove",
        budget=PureBudget(1.0),
        columns={"x": Column(kind="category")},
    )
    assert kinds(check_table(pa.table({"x": times}), rules)) == ["failed"]
    assert kinds(check_table(pa.table({"x": times[:1]}), rules)) == []


def test_more_rows_than_the_policy_allows_are_found() -> None:
    rules = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), largest_table=2)
    assert kinds(check_table(pd.DataFrame({"x": [1, 2, 3]}), rules)) == ["too many"]


def test_another_number_of_records_than_the_public_one_is_not_registered() -> None:
    """Means divide by it. Rows count if a row is a unit, else different units; a block has fewer."""
    frame = pd.DataFrame({"pid": ["a", "a", "b"], "x": [1.0, 2.0, 3.0]})
    people = {"x": Column(kind="number", lower=0, upper=10)}
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({}, 3, "3 rows"),
        ({"unit_column": "pid", "rows_per_unit": 2}, 2, "2 different values of 'pid'"),
    ]
    for fields, number, counted in cases:
        for stated in (2, 3):
            rules = policy_of(people, "replace-one", public=stated, **fields, blocks=("east", "west"))
            ledger = Ledger.create("sqlite://")
            ledger.open_dataset("visits", rules)
            if stated == number:
                assert register_table(frame, ledger=ledger, dataset="visits").clean
                continue
            with pytest.raises(InvalidInput, match=f"the table has {counted}.*public_records = {number}"):
                register_table(frame, ledger=ledger, dataset="visits")
            with pytest.raises(PrivacyRefusal, match="not registered"):
                PrivateTable(frame, ledger=ledger, dataset="visits")
            assert register_table(frame, ledger=ledger, dataset="visits", block="east").clean


def test_the_certificate_names_accepted_findings(tmp_path: Path) -> None:
    ledger = opened()
    path = table(tmp_path, ",true,a,5", "300,true,a,5")
    with pytest.raises(InvalidInput, match="contains 'y', which is not a declared column"):
        register_table(path, ledger=ledger, dataset="visits", accept_missing=["y"])
    with pytest.raises(PrivacyRefusal, match=r"column 'x': 1 lie outside .* \(row 4\)"):
        register_table(path, ledger=ledger, dataset="visits", accept_missing=["x"])
    register_table(path, ledger=ledger, dataset="visits", accept_missing=["x"], accept_outside=["x"])
    (line,) = [line for line in make_certificate(ledger, "visits").data["lines"] if line["name"] == "Cells"]
    assert line["value"] == (
        "the curator checked every cell (fingerprints: 1 of 1); in x, missing and unreadable cells count as "
        "missing; in x, values outside the declaration are moved to the nearest bound, or belong to no group"
    )
    assert line["grade"] == "assumed"


# --- from the shell --------------------------------------------------------------------------------------

TOML = """
[policy]
unit = "visit"
adjacency = "add-remove"
[budget]
mode = "pure"
epsilon = 1
[columns.x]
kind = "number"
lower = 0
upper = 100
"""
SECRET = "P" + str(107604)


def test_the_check_from_a_shell_shows_rows_and_no_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.toml").write_text(TOML)
    Path("visits.csv").write_text(f"x\n1\n{SECRET}\n\n-48151\n2\n")
    check = ["check", "visits.csv", "--policy", "policy.toml"]
    assert run(check) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "Confidential" in out
    assert "x 1 cannot be read as the declared kind 2 x 1 lie outside the declared bounds or values 3" in out
    assert "--accept-missing x counts such cells as missing --accept-outside x clips numbers" in out
    assert SECRET not in out
    assert "48151" not in out
    assert run([*check, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [(f["column"], f["kind"], f["count"], f["rows"]) for f in data["findings"]] == [
        ("x", "unreadable", 1, [2]),
        ("x", "outside", 1, [3]),
    ]
    assert run([*check, "--accept-missing", "x", "--accept-outside", "x"]) == 0
    assert "All findings are accepted." in capsys.readouterr().out
    assert run(["check", "visits.csv"]) == 2
    assert "needs --policy" in capsys.readouterr().err
    assert run([*check, "--table", "t"]) == 2


def test_findings_without_rows_and_names_with_a_space_are_written_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A database has no row numbers."""
    policy = Policy(unit="visit", adjacency="add-remove", budget=PureBudget(1.0))
    print_check(TableCheck((Finding("missing", "CRP mg/l", 3),), Verdict()), policy)
    out = " ".join(capsys.readouterr().out.split())
    assert "CRP mg/l 3 are missing Row 1" in out
    assert "--accept-missing 'CRP mg/l' counts such cells as missing" in out


def test_registering_from_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.toml").write_text(TOML)
    Path("visits.csv.gz").write_bytes(gzip.compress(b"x\n1\nNA\n"))
    assert run(["ledger", "init", "budget.db"]) == 0
    assert run(["ledger", "open", "budget.db", "--dataset", "visits", "--policy", "policy.toml"]) == 0
    register = ["ledger", "register", "budget.db", "visits.csv.gz", "--dataset", "visits"]
    asked = ["query", "visits.csv.gz", "--ledger", "budget.db", "--dataset", "visits", "--epsilon", "0.5"]
    capsys.readouterr()
    assert run(register) == 1
    shown = capsys.readouterr()
    assert "Not registered" in shown.err
    assert "are missing" in shown.out
    assert run([*asked, "SELECT count(*) FROM visits"]) == 1
    assert run([*register, "--json"]) == 1
    capsys.readouterr()
    assert run([*register, "--accept-missing", "x"]) == 0
    assert "Registered as visits" in capsys.readouterr().out
    assert run([*asked, "SELECT count(*) FROM visits"]) == 0
    assert run([*register, "--accept-missing", "x", "--json"]) == 0
