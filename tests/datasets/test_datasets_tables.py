"""Tables: encoding by a public schema, refusals, and a split that keeps neighbours neighbours."""

from __future__ import annotations

import gzip
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.columns import Column, Dialect, Encoder
from tacit.columns.tables import pieces
from tacit.datasets import Dataset, TensorPair, load_table
from tacit.datasets.dataset import choose_test
from tacit.errors import InvalidInput
from tacit.training import evaluate


def number(lower: float, upper: float, **facts: Any) -> Column:
    return Column(kind="number", lower=lower, upper=upper, **facts)


def category(*values: str, **facts: Any) -> Column:
    return Column(kind="category", values=values, **facts)


DATA = Path(os.environ.get("TACIT_DATA", "/nowhere"))
SCHEMA: dict[str, Column] = {
    "age": number(0, 100),
    "work": category("office", "field"),
    "rich": category("no", "yes"),
}
ROWS = "age,work,rich,note\n50,office,no,a\n150, field ,yes,b\n-3,sea,no,c\n"


def write(folder: Path, text: str, name: str = "people.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path, schema: dict[str, Column] = SCHEMA, target: str = "rich") -> Dataset:
    return load_table(path, target=target, schema=schema, test_path=path)


def test_encoding(tmp_path: Path) -> None:
    data = read(write(tmp_path, ROWS))
    assert data.features == ("age", "work=office", "work=field", "work=other")
    wanted = [[0.0, 1, 0, 0], [1.0, 0, 1, 0], [-1.0, 0, 0, 1]]  # clamped; "sea" was not declared
    assert torch.equal(data.train.inputs, torch.tensor(wanted))
    assert data.train.targets.tolist() == [0, 1, 0]
    assert data.classes == ("no", "yes")
    assert (data.name, data.unit) == ("people", "row")


def test_numeric_target_is_scaled_by_its_bounds(tmp_path: Path) -> None:
    data = read(write(tmp_path, ROWS), target="age")
    assert data.train.targets.tolist() == [[0.0], [1.0], [-1.0]]
    assert data.target_bounds == ((0.0, 100.0),)
    assert data.classes == ()


def test_a_byte_order_mark_and_empty_lines_do_no_harm(tmp_path: Path) -> None:
    data = read(write(tmp_path, "\ufeff" + ROWS.replace("\n", "\n\n")))
    assert len(data.train.inputs) == 3


def test_csv_gz_and_parquet_give_the_same(tmp_path: Path) -> None:
    plain = read(write(tmp_path, ROWS))
    (tmp_path / "people.csv.gz").write_bytes(gzip.compress(ROWS.encode()))
    frame = pd.DataFrame(
        {"age": [50, 150, -3], "work": ["office", "field", "sea"], "rich": ["no", "yes", "no"]}
    )
    frame.to_parquet(tmp_path / "people.parquet")
    for other in ("people.csv.gz", "people.parquet"):
        data = read(tmp_path / other)
        assert torch.equal(data.train.inputs, plain.train.inputs)
        assert torch.equal(data.train.targets, plain.train.targets)


def test_numbers_as_categories_in_parquet(tmp_path: Path) -> None:
    """A column of whole numbers becomes one of floats when a value is missing: 2.0 is still the value 2."""
    frame = pd.DataFrame(
        {"rooms": [1.0, 2.0, math.nan], "age": [1.0, math.nan, 3.0], "sold": [True, False, True]}
    )
    frame.to_parquet(tmp_path / "flats.parquet")
    schema: dict[str, Column] = {
        "rooms": category("1", "2", missing="other"),
        "age": number(1, 3, missing=2),
        "sold": category("False", "True"),
    }
    data = read(tmp_path / "flats.parquet", schema, "sold")
    assert data.train.inputs.tolist() == [[1, 0, 0, -1], [0, 1, 0, 0], [0, 0, 1, 1]]
    assert data.train.targets.tolist() == [1, 0, 1]


def test_an_encoded_row_depends_on_that_row_alone(tmp_path: Path) -> None:
    alone = read(write(tmp_path, "age,work,rich\n50,office,no\n"))
    crowd = read(write(tmp_path, "age,work,rich\n50,office,no\n99,sea,yes\n" + "0,field,no\n" * 20))
    assert torch.equal(alone.train.inputs[0], crowd.train.inputs[0])


def test_missing_values_are_refused_by_row_or_replaced(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS + "?,office,no,d\n20,,yes,e\nNaN,NA,yes,f\n")
    with pytest.raises(
        InvalidInput, match=r"2 of 6 rows lack a value, column 'age' of .* \(rows 4, 6\).*set missing"
    ):
        read(path)
    schema = SCHEMA | {
        "age": number(0, 100, missing=50),
        "work": category("office", "field", missing="indicator"),
    }
    data = read(path, schema)
    assert data.train.inputs[3:].tolist() == [
        [0, 1, 0, 0, 0],
        [pytest.approx(-0.6), 0, 0, 0, 1],
        [0, 0, 0, 0, 1],
    ]


def test_a_missing_word_may_be_a_declared_value(tmp_path: Path) -> None:
    schema = {**SCHEMA, "work": category("None", "office")}
    data = read(write(tmp_path, "age,work,rich\n1,None,no\n2,office,yes\n"), schema)
    assert data.train.inputs[:, 1:].tolist() == [[1, 0, 0], [0, 1, 0]]


def test_a_missing_target_is_refused_whatever_the_policy(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS + "20,office,?,d\n")
    with pytest.raises(InvalidInput, match=r"1 of 4 rows lack the target, column 'rich'"):
        read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,wrok,rich\n1,a,no\n", "no column 'work'; did you mean 'wrok'"),
        ("a,b,c\n1,2,3\n", "no column 'age'"),
        ("age,work,rich\n", "has no rows"),
        ("", "no column 'age', 'work', 'rich'; it has none"),
        ("age,work,rich\n1,office,no,\n2,field,yes,\n3,field,yes\n", "2 rows of .* do not have 3 cells"),
        ("age,work,rich\n1,office\n", "1 rows of .* do not have 3 cells"),
        ("age,work,rich,age\n1,office,no,2\n", "2 columns named 'age'"),
        ("age,work,rich\nNAN,office,no\n", "1 values in column 'age' .* are not numbers"),
        ('age,work,rich\n"1,a,no\n', "cannot be read to its end: after line 2"),
        ("age,work,rich\nold,office,no\n", "1 values in column 'age' .* are not numbers"),
        ("age,work,rich\n1,office,no.\n", r"1 labels in column 'rich' .* \(no, yes\): row 1\."),
    ],
)
def test_faulty_tables(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read(write(tmp_path, text))


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no table at"):
        read(tmp_path / "absent.csv")
    for name, form in (("x.parquet", "as Parquet"), ("x.csv.gz", "first line"), ("x.csv", "first line")):
        (tmp_path / name).write_bytes(b"\x00\xff\xfe not a table")
        with pytest.raises(InvalidInput, match=form):
            read(tmp_path / name)


def test_a_data_set_keeps_what_encoded_it(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("age;work;rich\n1.050,5;office;ja\n3;sea;nein\n", encoding="latin-1")
    schema = {
        "age": number(0, 2101),
        "work": category("office"),
        "rich": Column(kind="boolean", true=("ja",), false=("nein",)),
    }
    dialect = Dialect(separator=";", decimal=",", thousands=".", encoding="latin-1")
    data = load_table(path, target="rich", schema=schema, dialect=dialect, test_path=path)
    assert data.classes == ("nein", "ja")
    assert data.train.inputs[0].tolist() == [0, 1, 0]
    assert data.encoder is not None
    ((inputs, rows),) = data.encoder.chunks(path)
    assert torch.equal(torch.from_numpy(inputs), data.train.inputs)
    assert list(rows) == [1, 2]


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    with pytest.raises(InvalidInput, match="target, time and event must be declared columns"):
        read(path, target="wealth")
    with pytest.raises(InvalidInput, match="besides the target"):
        read(path, {"rich": SCHEMA["rich"]})
    with pytest.raises(InvalidInput, match="exactly one of test_fraction and test_path"):
        load_table(path, target="rich", schema=SCHEMA)
    with pytest.raises(InvalidInput, match="exactly one of test_fraction and test_path"):
        load_table(path, target="rich", schema=SCHEMA, test_fraction=0.2, test_path=path)
    with pytest.raises(InvalidInput, match="no row is left for testing"):
        load_table(path, target="rich", schema=SCHEMA, test_fraction=1e-9)


def test_one_record_more_moves_no_other_record() -> None:
    records = [str(number).encode() for number in range(2000)]
    marks = choose_test(records, 0.2)
    for left_out in (0, 77, 1999):
        fewer = choose_test(records[:left_out] + records[left_out + 1 :], 0.2)
        assert np.array_equal(fewer, np.delete(marks, left_out))
    assert abs(marks.mean() - 0.2) < 5 * math.sqrt(0.2 * 0.8 / 2000)
    assert np.array_equal(choose_test(records[::-1], 0.2), marks[::-1])


def test_split_of_a_table_keeps_neighbours_neighbours(tmp_path: Path) -> None:
    lines = [f"{number / 7},office,{'no' if number % 3 else 'yes'}" for number in range(300)]

    def train_rows(rows: list[str]) -> set[tuple[float, ...]]:
        path = write(tmp_path, "\n".join(["age,work,rich", *rows]))
        data = load_table(path, target="rich", schema=SCHEMA, test_fraction=0.3)
        assert 150 < len(data.train.inputs) < 270
        return {tuple(row) for row in data.train.inputs.tolist()}

    whole, fewer = train_rows(lines), train_rows(lines[1:])
    assert len(whole ^ fewer) <= 1


# --- large tables ------------------------------------------------------------------------------------------


def many_people(folder: Path) -> Path:
    rows = "".join(f"{i % 23},{20 + i % 71},{'fm'[i % 2]},{'yes' if i % 3 else 'no'}\n" for i in range(100))
    return write(folder, "who,age,sex,sick\n" + rows)


WHO = {"age": number(0, 100), "sex": category("f", "m"), "sick": Column(kind="boolean")}


@pytest.mark.parametrize("how", ["fraction", "people", "another file"])
def test_a_table_is_read_in_pieces_which_change_nothing(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = many_people(tmp_path)
    all_ways: dict[str, dict[str, Any]] = {
        "fraction": {"test_fraction": 0.3},
        "people": {"test_fraction": 0.3, "user": "who", "unit": "person"},
        "another file": {"test_path": path},
    }
    told = all_ways[how]
    whole = load_table(path, target="sick", schema=WHO, **told)
    rows, inputs = [], Encoder.inputs

    def counted(self: Encoder, cells: Any, **more: Any) -> Any:
        rows.append(len(cells["age"]))
        return inputs(self, cells, **more)

    monkeypatch.setattr(Encoder, "inputs", counted)
    monkeypatch.setattr("tacit.datasets.tables.pieces", partial(pieces, rows=7))
    found = load_table(path, target="sick", schema=WHO, **told)
    assert max(rows) == 7
    for one, other in ((found.train, whole.train), (found.test, whole.test)):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
    assert (found.owners, found.test_owners) == (whole.owners, whole.test_owners)


def test_a_large_table_is_kept_in_half_the_memory_by_its_public_number_of_records(tmp_path: Path) -> None:
    path = many_people(tmp_path)
    told: dict[str, Any] = {"target": "sick", "schema": WHO, "test_fraction": 0.3}
    usual, large = load_table(path, **told, records=100), load_table(path, **told, records=10**8)
    assert usual.train.inputs.dtype == torch.float32
    assert large.train.inputs.dtype == torch.float16
    assert torch.equal(large.train.inputs, usual.train.inputs.half())  # the same rows test
    assert torch.equal(large.test.targets, usual.test.targets)
    model = torch.nn.Linear(len(usual.features), 2)
    in_full = large.test.inputs.float()
    assert evaluate(model, *large.test).score == evaluate(model, in_full, large.test.targets).score


@pytest.mark.skipif(not (DATA / "adult.csv.gz").is_file(), reason="TACIT_DATA has no adult.csv.gz")
def test_adult() -> None:
    frame = pd.read_csv(DATA / "adult.csv.gz", nrows=5)
    target = str(frame.columns[-1])
    schema: dict[str, Column] = {
        "age": number(17, 90),
        str(frame.columns[1]): category("Private", "State-gov"),
        target: category("<=50K", ">50K"),
    }
    data = load_table(DATA / "adult.csv.gz", target=target, schema=schema, test_fraction=0.2, unit="person")
    assert len(data.train.inputs) + len(data.test.inputs) == 30_162
    assert data.train.inputs.shape[1] == 4
    assert 0.7 < float((data.train.targets == 0).float().mean()) < 0.8


# --- several targets -------------------------------------------------------------------------------------


def test_labels_of_a_table(tmp_path: Path) -> None:
    booleans = {name: Column(kind="boolean") for name in ("toxic", "spam", "new")}
    path = write(tmp_path, "age,toxic,spam,new\n50,1,0,no\n0,0,0,no\n100,1,1,yes\n")
    schema = {"age": number(0, 100), **booleans}
    data = load_table(path, target=["toxic", "spam"], schema=schema, test_path=path)
    assert (data.labels, data.classes, data.target_bounds) == (("toxic", "spam"), (), ())
    assert data.features == ("age", "new")
    assert data.train.targets.dtype == torch.float32
    assert data.train.targets.tolist() == [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    with pytest.raises(InvalidInput, match="'spam' identifies the user"):
        load_table(path, target=["toxic", "spam"], schema=schema, test_path=path, user="spam")
    with pytest.raises(InvalidInput, match="'spam' is the date"):
        load_table(path, target=["toxic", "spam"], schema=schema, test_path=path, date="spam")


def test_one_row_more_moves_no_other_between_the_parts_of_labels(tmp_path: Path) -> None:
    schema = {"age": number(0, 100), "a": Column(kind="boolean"), "b": Column(kind="boolean")}
    rows = [f"{i},{i % 2},{i % 3 // 2}" for i in range(90)]
    tests = []
    for name, lines in (("all.csv", rows), ("less.csv", rows[1:])):
        path = write(tmp_path, "\n".join(["age,a,b", *lines]), name)
        data = load_table(path, target=["a", "b"], schema=schema, test_fraction=0.3)
        tests.append({*data.test.inputs.flatten().tolist()})
    first = float(torch.tensor(-1.0))
    assert tests[0] - {first} == tests[1]
    assert 10 < len(tests[1]) < 50


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (torch.full((4, 2), 0.5), r"toy.train.targets must be labels 0 or 1; 8 of them are neither"),
        (torch.zeros(4, 3), r"a column for each of the 2 labels.*got shape \(4, 3\)"),
        (torch.tensor([0, 1, 1, 0]), r"must be float32 \(n, k\)"),
    ],
)
def test_targets_that_are_no_labels_are_refused(targets: torch.Tensor, words: str) -> None:
    pair = TensorPair(torch.zeros(4, 2), targets)
    with pytest.raises(InvalidInput, match=words):
        Dataset("toy", pair, pair, classes=(), source="made up", unit="row", labels=("a", "b"))
