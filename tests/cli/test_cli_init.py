"""``tacit init``: what is written by flags and by the dialogue, and what a file with blanks left is told."""

from __future__ import annotations

import csv
import os
import pty
import select
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from shell import Shell

from tacit.cli.app import run
from tacit.columns import Encoder
from tacit.columns.sections import find_blanks
from tacit.columns.sniffing import Sniffed, sniff
from tacit.errors import InvalidInput
from tacit.ledger.policy import parse_policy
from tacit.runs.config import parse_config, read_config
from tacit.runs.init import Facts, Question, ask_facts, policy_text, run_text

MAIN = "from tacit.cli import main; main()"
TABLE = "patient_id;age;weight;sex;admitted;smoker\n" + "".join(
    f"P{i};{41 + i % 7};{57 + i % 9},25;{'FM'[i % 2]};{1 + i % 28}.3.2021;{'yes' if i % 3 else 'no'}\n"
    for i in range(60)
)
PROMISE = (
    "--unit", "patient", "--adjacency", "add-remove", "--records", "16000", "--epsilon", "3",
    "--delta", "1e-5",
)  # fmt: skip
COLUMNS = (
    "--bounds", "age=0:120", "--bounds", "weight=0:300", "--bounds", "admitted=2015-01-01:2025-12-31",
    "--values", "sex=F,M",
)  # fmt: skip
ALL = ("--target", "smoker", *PROMISE, *COLUMNS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("visits.csv").write_text(TABLE)
    return tmp_path


AGE = {"kind": "integer", "lower": 0, "upper": 120, "missing": "indicator"}


def test_numbers_get_bins_where_the_records_are_many_enough(shell: Shell) -> None:
    """Each costs noise, which few records drown in; the file leaves that to Tacit."""
    for records, bins in (("400", None), ("16000", 10)):
        out = f"{records}.toml"
        shell("init", "visits.csv", *ALL, "--records", records, "--delta", "1e-6", "--out", out)
        assert tomllib.loads(Path(out).read_text())["columns"]["age"] == AGE
        assert read_config(out).read_columns()["age"].bins == bins
    shell("init", "visits.csv", "--policy", "--unit", "visit", "--out", "policy.toml")
    assert "bins" not in Path("policy.toml").read_text()


# --- flags -------------------------------------------------------------------------------------------------


def test_without_facts_every_fact_is_left_to_be_filled_in(shell: Shell) -> None:
    text = shell("init", "visits.csv")
    written = Path("visits.toml").read_text()
    keys = {f"{blank.section} {blank.key}" for blank in find_blanks(written)}
    assert keys == {
        "data target", "privacy epsilon", "privacy delta", "privacy unit", "privacy adjacency",
        "privacy records",
        'columns.age lower', 'columns.age upper', 'columns.weight lower', 'columns.weight upper',
        'columns.sex values', 'columns.admitted lower', 'columns.admitted upper',
    }  # fmt: skip
    for blank in find_blanks(written):
        assert str(blank) in text
    for words in ("the first 60 rows", "become public", "Wrote visits.toml", "tacit train visits.toml"):
        assert words in text
    assert "fill in 13 public facts, never from the data" in text
    config = tomllib.loads(written)
    assert config["table"] == {"separator": ";", "encoding": "utf-8", "decimal": ","}
    assert config["columns"]["admitted"]["format"] == "%d.%m.%Y"
    assert config["columns"]["patient_id"] == {"kind": "text"}


def test_with_all_facts_nothing_is_left_and_training_takes_the_file(shell: Shell) -> None:
    assert "Next: tacit train visits.toml" in shell("init", "visits.csv", *ALL)
    text = Path("visits.toml").read_text()
    assert find_blanks(text) == []
    config = parse_config(text, "visits.toml")
    assert (config.privacy.records, config.privacy.epsilon, config.data.target) == (16000, 3.0, "smoker")
    columns = tomllib.loads(text)["columns"]
    assert columns["age"] == AGE
    assert columns["smoker"] == {"kind": "boolean", "true": ["yes"], "false": ["no"]}
    assert list(config.read_columns()) == ["patient_id", "age", "weight", "sex", "admitted", "smoker"]
    assert config.read_dialect().decimal == ","


def test_several_targets(shell: Shell) -> None:
    """Booleans are labels; each keeps the words of the table, and is no feature."""
    rows = "".join(f"{i % 50},{i % 2},{'yn'[i % 3 // 2]},{i % 40}\n" for i in range(60))
    Path("posts.csv").write_text("age,toxic,spam,length\n" + rows)
    told = ("--bounds", "age=0:120", "--bounds", "length=0:100", *PROMISE)
    shell("init", "posts.csv", "--target", "toxic", "--target", "spam", *told)
    text = Path("posts.toml").read_text()
    assert find_blanks(text) == []
    config = parse_config(text, "posts.toml")
    assert config.data.target == ["toxic", "spam"]
    encoder = Encoder(config.read_columns(), config.data.target, config.read_dialect())
    assert encoder.labels == ("toxic", "spam")
    columns = tomllib.loads(text)["columns"]
    assert columns["spam"] == {"kind": "boolean", "true": ["y"], "false": ["n"]}
    shell("init", "posts.csv", "--target", "age", "--target", "length", *told, "--out", "numbers.toml")
    columns = tomllib.loads(Path("numbers.toml").read_text())["columns"]
    assert columns["age"] == {"kind": "integer", "lower": 0, "upper": 120}
    said = shell("init", "posts.csv", "--target", "toxic", "--target", "age", "--out", "c.toml", code=2)
    assert "'toxic' is of kind boolean, 'age' is of kind integer" in said
    assert "--kind age=boolean" in said
    said = shell("init", "posts.csv", "--target", "toxic", "--target", "toxic", "--out", "c.toml", code=2)
    assert "--target toxic is given twice" in said
    assert not Path("c.toml").exists()


def test_people_with_several_rows(shell: Shell) -> None:
    shell("init", "visits.csv", "--user", "patient_id", *ALL)
    assert tomllib.loads(Path("visits.toml").read_text())["data"]["rows_per_user"] == 2
    assert find_blanks(Path("visits.toml").read_text()) == []
    shell("init", "visits.csv", "--user", "patient_id", "--rows-per-user", "4", *ALL, "--out", "b.toml")
    config = parse_config(Path("b.toml").read_text(), "b.toml")
    assert (config.data.user, config.data.rows_per_user) == ("patient_id", 4)
    assert "patient_id" not in config.read_columns()


def test_usual_bounds_are_offered_by_name_and_taken_only_when_asked_for(shell: Shell) -> None:
    """In the file a comment; by an option, bounds, of the columns of which none are stated."""
    assert "age 0 to 120 years, weight 0 to 300 kg. If all are right, use --usual-bounds" in shell(
        "init", "visits.csv", "--bounds", "admitted=2015-01-01:2025-12-31"
    )
    text = Path("visits.toml").read_text()
    assert 'lower = "FILL IN"                 # usual for this name: 0 to 120 years; ' in text
    shell("init", "visits.csv", "--usual-bounds", "--bounds", "weight=2:200", "--out", "b.toml")
    columns = tomllib.loads(Path("b.toml").read_text())["columns"]
    assert (columns["age"]["lower"], columns["age"]["upper"]) == (0, 120)
    assert (columns["weight"]["lower"], columns["weight"]["upper"]) == (2, 200)
    assert columns["admitted"]["lower"] == "FILL IN"
    assert "usual for this name: 0 to 300" not in Path("b.toml").read_text()
    shell("init", "visits.csv", "--policy", "--usual-bounds")
    assert tomllib.loads(Path("visits-policy.toml").read_text())["columns"]["age"]["upper"] == 120


def test_the_stated_column_of_people_raises_no_doubt(shell: Shell) -> None:
    Path("t.csv").write_text("pid,x\n" + "".join(f"P{i // 2},{i % 7}\n" for i in range(60)))
    assert "an identifier: not used, its values repeat" in " ".join(shell("init", "t.csv").split())
    text = " ".join(shell("init", "t.csv", "--policy", "--unit-column", "pid").split())
    assert "identifies the person of each row" in text
    assert "its values repeat" not in text


def test_usual_bounds_do_not_depend_on_the_cells(shell: Shell) -> None:
    for name, age in (("a", 30), ("b", 900)):
        Path(f"{name}.csv").write_text("age,x\n" + f"{age},2\n{age + 1},3\n" * 30)
        shell("init", f"{name}.csv", "--usual-bounds")
    assert Path("a.toml").read_text().replace("a.csv", "b.csv") == Path("b.toml").read_text()


def test_an_integer_of_few_codes_may_be_a_category(shell: Shell) -> None:
    """The comment says how, and what it says is read; wider bounds, a target and a policy have no comment."""
    rows = "".join(f"{i % 4},{i % 30},{i % 3}\n" for i in range(60))
    Path("t.csv").write_text("stage,score,grade\n" + rows)
    told = ("--bounds", "stage=0:3", "--bounds", "score=0:12", "--bounds", "grade=0:2", *PROMISE)
    shell("init", "t.csv", "--target", "grade", *told)
    text = Path("t.toml").read_text()
    said = [line.split("# ")[1] for line in text.splitlines() if "no order?" in line]
    assert said == ["no order? Then values = [0, 1, 2, 3] instead of lower, upper and bins"]
    assert tomllib.loads(text)["columns"]["stage"]["kind"] == "integer"
    stated = text.index("[columns.stage]"), text.index("[columns.score]")
    section = '[columns.stage]\nkind = "integer"\nvalues = [0, 1, 2, 3]\n\n'
    config = parse_config(text[: stated[0]] + section + text[stated[1] :], "t.toml")
    assert Encoder(config.read_columns(), "grade").features[:5] == (
        "stage=0", "stage=1", "stage=2", "stage=3", "stage=other",
    )  # fmt: skip
    shell("init", "t.csv", "--policy", *told[:6])
    assert "no order?" not in Path("t-policy.toml").read_text()


def asked_of(found: Sniffed, answers: dict[str, str], **options: bool) -> tuple[Facts, dict[str, Question]]:
    """The facts of a person who takes what is offered where nothing else is said, and the questions."""
    asked: dict[str, Question] = {}

    def answer(question: Question) -> str:
        assert question.problem == ""
        asked[question.key] = question
        return answers.get(question.key, "")

    return ask_facts(found, Facts(), answer, **options), asked


def test_a_column_of_people_is_offered_where_its_name_says_so_and_its_values_repeat() -> None:
    def table(head: str, *, repeats: int) -> Sniffed:
        rows = "".join(f"{i // repeats},{i // 9},{i}\n" for i in range(60))
        Path("t.csv").write_text(f"{head},shop_id,x\n{rows}")
        return sniff("t.csv")

    facts, asked = asked_of(table("Patient", repeats=3), {})
    assert (facts.user, asked["user"].default, asked["unit"].default) == ("Patient", "Patient", "patient")
    assert "by its name and its repeated values" in asked["user"].about
    assert facts.unit == "patient"
    assert "Patient" not in run_text(Path("t.csv"), sniff("t.csv"), facts).partition("[table]")[2]
    facts, asked = asked_of(sniff("t.csv"), {"user": "none"})
    assert (facts.user, facts.unit, asked["unit"].default) == (None, None, "")
    facts, asked = asked_of(table("customer_id", repeats=1), {"records": "100"})
    assert (facts.user, asked["user"].default, facts.records) == (None, "none", 80)
    assert "By the names it may be customer_id or shop_id" in asked["user"].about
    facts, asked = asked_of(sniff("t.csv"), {"user": "shop_id"})
    assert (facts.user, asked["unit"].default) == ("shop_id", "")
    facts, asked = asked_of(table("Patient", repeats=3), {}, policy=True)
    assert (facts.unit_column, facts.unit) == ("Patient", "patient")
    facts, asked = asked_of(table("age", repeats=1), {})
    assert asked["user"].default == "none"


def test_usual_bounds_are_one_question() -> None:
    Path("t.csv").write_text("age,month,height,ward\n41,2,160,3\n55,7,171,4\n")
    found = sniff("t.csv")
    facts, asked = asked_of(found, {})
    assert facts.bounds == {"age": (0, 120), "month": (1, 12), "height": (30, 250)}
    assert "columns.age" not in asked
    facts, asked = asked_of(found, {"bounds": "month, height", "columns.month": "1:3"})
    assert facts.bounds == {"age": (0, 120), "month": (1, 3)}
    facts, asked = asked_of(found, {"bounds": "none"})
    assert facts.bounds == {}
    assert "columns.age" in asked


def test_an_integer_is_bounds_or_codes() -> None:
    Path("t.csv").write_text("ward,size\n4,2\n5,3\n")
    facts, asked = asked_of(sniff("t.csv"), {"columns.ward": "1, 2,3", "columns.size": "0:9"})
    assert (facts.kinds, facts.values, facts.bounds) == (
        {"ward": "category"}, {"ward": ("1", "2", "3")}, {"size": (0, 9)},
    )  # fmt: skip
    assert "codes without an order" in asked["columns.ward"].about
    answers = ["1,x", ""]
    problems = []

    def answer(question: Question) -> str:
        if question.key != "columns.ward":
            return ""
        problems.append(question.problem)
        return answers.pop(0)

    assert ask_facts(sniff("t.csv"), Facts(), answer).values == {}
    assert "codes must be whole numbers" in problems[1]


def test_other_words_of_a_boolean_are_left_to_be_filled_in(shell: Shell) -> None:
    Path("ja.csv").write_text("age,fit,ill\n34,ja,yes\n61,nein,no\n27,ja,no\n")
    shell("init", "ja.csv", "--kind", "fit=boolean", "--kind", "ill=boolean", "--target", "age")
    blanks = find_blanks(Path("ja.toml").read_text())
    assert [blank.key for blank in blanks if blank.section == "columns.fit"] == ["true", "false"]
    assert not [blank for blank in blanks if blank.section == "columns.ill"]


def test_words_for_a_missing_value_are_proposed_and_read(shell: Shell) -> None:
    rows = "".join(f"{40 + i % 7 if i % 3 else 'n/a'},{'yes' if i % 2 else 'no'}\n" for i in range(60))
    Path("lab.csv").write_text("crp,ill\n" + rows)
    shell("init", "lab.csv", "--target", "ill", "--bounds", "crp=0:100", *PROMISE)
    text = Path("lab.toml").read_text()
    assert tomllib.loads(text)["columns"]["crp"]["missing_values"] == ["n/a"]
    config = parse_config(text, "lab.toml")
    encoder = Encoder(config.read_columns(), "ill", config.read_dialect())
    inputs = np.concatenate([inputs for inputs, _ in encoder.chunks("lab.csv")])
    assert inputs[:, encoder.features.index("crp missing")].tolist() == [float(i % 3 == 0) for i in range(60)]


def test_a_value_that_is_stated_is_no_word_for_a_missing_cell(shell: Shell) -> None:
    rows = "".join(
        f"{('light', 'unknown', '-', 'grave')[i % 4]},{'Yes' if i % 2 else 'No'}\n" for i in range(60)
    )
    Path("hurt.csv").write_text("wound,ill\n" + rows)
    for number, values in enumerate(("light,grave", "light,grave,unknown")):
        out = f"{number}.toml"
        shell("init", "hurt.csv", "--target", "ill", "--values", f"wound={values}", *PROMISE, "--out", out)
        text = Path(out).read_text()
        assert "these count as missing; remove any that are values" in text
        config = parse_config(text, out)
        encoder = Encoder(config.read_columns(), "ill", config.read_dialect())
        inputs = np.concatenate([inputs for inputs, _ in encoder.chunks("hurt.csv")])
        assert inputs[:, encoder.features.index("wound missing")].sum() == (30, 15)[number]
        assert encoder.classes == ("No", "Yes"), "predictions have the spelling of the table"


@pytest.mark.parametrize("answer", ["0:200.000", "-1.500:0"])
@pytest.mark.parametrize("cells", ["4", "1.5", '"1,234"', '"1,5"'])
def test_a_bound_with_two_meanings_is_asked_again(cells: str, answer: str) -> None:
    """A point before three digits is between thousands for half of the world."""
    Path("t.csv").write_text(f"pay,note\n{cells},a\n")
    found = sniff("t.csv")
    answers, problems = [answer, "0:200000"], []

    def answer_of(question: Question) -> str:
        if question.key != "columns.pay":
            return ""
        problems.append(question.problem)
        return answers.pop(0)

    facts = ask_facts(found, Facts(), answer_of)
    plain = cells == "1.5"  # a number in a table without thousands or decimal commas: 200.000 is 200
    assert facts.bounds == ({"pay": tuple(map(float, answer.split(":")))} if plain else {"pay": (0, 200000)})
    assert plain or "which may mean" in problems[1]


@pytest.mark.parametrize(("answer", "records"), [("20,000", 16000), ("20.000", None), ("1,5", None)])
def test_a_number_of_records_has_one_meaning(answer: str, records: int | None) -> None:
    answers = iter([answer, ""])
    facts = ask_facts(
        sniff("visits.csv"), Facts(), lambda question: next(answers) if question.key == "records" else ""
    )
    assert facts.records == records


def test_nothing_of_a_cell_is_in_the_file(shell: Shell) -> None:
    shell("init", "visits.csv")
    shell("init", "visits.csv", "--policy")
    for name in ("visits.toml", "visits-policy.toml"):
        text = Path(name).read_text()
        for cell in ("P1", "41", "57", "57,25", '"F"', "3.2021", "2021"):
            assert cell not in text.replace("20211201", ""), (name, cell)


def test_a_file_that_is_there_is_not_overwritten(shell: Shell) -> None:
    Path("visits.toml").write_text("mine")
    assert "never overwritten. Name another file" in shell("init", "visits.csv", code=2)
    assert Path("visits.toml").read_text() == "mine"
    assert "Wrote mine.toml" in shell("init", "visits.csv", "--out", "mine.toml")


def test_the_policy_has_the_same_columns(shell: Shell) -> None:
    budget = ("--adjacency", "add-remove", "--epsilon", "3", "--delta", "1e-6", "--largest-table", "1000")
    told = ("--unit", "patient", "--unit-column", "patient_id", "--note", "the board")
    text = shell("init", "visits.csv", "--policy", *budget, *told, *COLUMNS)
    assert "Next: tacit ledger open LEDGER --dataset NAME --policy visits-policy.toml" in text
    policy = parse_policy(Path("visits-policy.toml").read_text())
    assert (policy.unit, policy.unit_column) == ("patient", "patient_id")
    assert policy.budget.to_data()["epsilon"] == 3.0
    shell("init", "visits.csv", *ALL)
    columns = tomllib.loads(Path("visits.toml").read_text())["columns"]
    assert policy.largest_table == 1000
    assert {name: column.kind for name, column in policy.columns.items()} == {
        name: facts["kind"] for name, facts in columns.items() if name != "patient_id"
    }  # fmt: skip
    for command in (
        ("init", "b.db"),
        ("open", "b.db", "--dataset", "visits", "--policy", "visits-policy.toml"),
        ("register", "b.db", "visits.csv", "--dataset", "visits"),
    ):
        shell("ledger", *command)
    shell("init", "visits.csv", "--policy", "--out", "p.toml", "--unit-column", "none")
    assert "unit_column" not in tomllib.loads(Path("p.toml").read_text())["policy"]


def test_kinds_formats_and_columns_may_be_stated(shell: Shell) -> None:
    shell("init", "visits.csv", "--kind", "age=category", "--values", 'age=41, "42"',
        "--leave-out", "sex", "--format", "admitted=%m.%d.%Y", "--missing", "refuse",
        "--test-table", "new.csv",
    )  # fmt: skip
    config = tomllib.loads(Path("visits.toml").read_text())
    columns = config["columns"]
    assert columns["age"] == {"kind": "category", "values": ["41", "42"]}
    assert columns["admitted"]["format"] == "%m.%d.%Y"
    assert "sex" not in columns
    assert config["data"] == {"table": "visits.csv", "target": "FILL IN", "test_table": "new.csv"}


def test_any_name_of_a_column_is_written_so_that_it_is_read_again(shell: Shell) -> None:
    names = ['a "b" \\ ü\x7f', "a.b", "a = b # [c]", "2019", "'", "FILL IN"]
    with Path("odd.csv").open("w", newline="", encoding="utf-8") as table:
        csv.writer(table).writerows([names, *[["1.5"] * len(names)] * 3])
    bounds = [word for name in names for word in ("--bounds", f"{name}=0:9")]
    shell("init", "odd.csv", *PROMISE, *bounds, "--target", names[0])
    shell("init", "odd.csv", "--policy", *bounds)
    for file in ("odd.toml", "odd-policy.toml"):
        columns = tomllib.loads(Path(file).read_text(encoding="utf-8"))["columns"]
        assert list(columns) == names
    config = parse_config(Path("odd.toml").read_text(encoding="utf-8"), "odd.toml")
    assert list(config.read_columns()) == names


def test_json_says_what_was_found_and_what_is_left(shell: Shell) -> None:
    data = shell.data("init", "visits.csv", "--target", "smoker", *COLUMNS)
    assert data["file"] == "visits.toml"
    assert data["dialect"]["separator"] == ";"
    assert data["columns"]["weight"] == {"kind": "number"}
    assert [blank["key"] for blank in data["left_to_fill_in"]] == [
        "epsilon", "delta", "unit", "adjacency", "records",
    ]  # fmt: skip


WRONG: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no such table": (("none.csv",), 2, "there is no table at none.csv"),
    "a column that is none": (("visits.csv", "--bounds", "agee=0:1"), 2, "did you mean 'age'?"),
    "a target that is none": (("visits.csv", "--target", "smokes"), 2, "did you mean 'smoker'?"),
    "an identifier as target": (("visits.csv", "--target", "patient_id"), 2, "is of kind text"),
    "no name": (("visits.csv", "--values", "f,m"), 2, "--values must be NAME=WHAT, such as sex=f,m"),
    "twice": (
        ("visits.csv", "--kind", "age=number", "--kind", "age=integer"),
        2,
        "twice for column 'age'",
    ),
    "bounds of a category": (("visits.csv", "--bounds", "sex=0:1"), 2, "is of kind category"),
    "values of a number": (("visits.csv", "--values", "age=1,2"), 2, "is of kind integer"),
    "a format of a number": (
        ("visits.csv", "--format", "age=%Y"),
        2,
        "only a date or datetime can have a format",
    ),
    "bounds the wrong way": (("visits.csv", "--bounds", "age=120:0"), 2, "lower must be below upper"),
    "one bound": (("visits.csv", "--bounds", "age=120"), 2, "must be LOWER:UPPER, such as 0:120"),
    "bounds from the data": (("visits.csv", "--bounds", "age=min:max"), 2, "lower must be a number"),
    "a day that is none": (("visits.csv", "--bounds", "admitted=2015-02-30:2016-01-01"), 2, "must be a date"),
    "a kind that is none": (("visits.csv", "--kind", "age=int"), 2, "must be one of number, integer"),
    "bounds of a column that is left out": (
        ("visits.csv", "--bounds", "age=0:120", "--leave-out", "age"),
        2,
        "--leave-out age removes it",
    ),
    "bounds of the people": (
        ("visits.csv", "--bounds", "patient_id=0:9", "--user", "patient_id"),
        2,
        "--user patient_id removes it",
    ),
    "an integer with two meanings": (
        ("visits.csv", "--bounds", "age=0:120.000"),
        2,
        "upper is 120.000, which may mean 120000 or 120",
    ),
    "a unit that is a number": (("visits.csv", "--unit", "3"), 2, "unit must name what one row is"),
    "a column to leave out": (("visits.csv", "--leave-out", "Age"), 2, "did you mean 'age'?"),
    "an epsilon below 0": (("visits.csv", "--epsilon", "-1"), 2, "epsilon must be a real number"),
    "a delta above 1": (("visits.csv", "--delta", "2"), 2, "delta must be a real number"),
    "a large delta": (
        ("visits.csv", "--delta", "0.01", "--records", "1000"),
        1,
        "not below 1/records = 0.001",
    ),
    "an adjacency": (("visits.csv", "--adjacency", "add"), 2, "adjacency must be one of add-remove"),
    "a person's column that is none": (("visits.csv", "--user", "patient"), 2, "did you mean 'patient_id'?"),
    "rows of nobody": (("visits.csv", "--rows-per-user", "3"), 2, "--rows-per-user needs a column"),
    "a person in a policy": (("visits.csv", "--policy", "--user", "patient_id"), 2, "use --unit-column"),
    "a model": (
        ("visits.csv", "--model", "cnn"),
        2,
        "Name the folder or file of a public model",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_and_nothing_is_written(what: str, shell: Shell) -> None:
    arguments, code, words = WRONG[what]
    assert words in shell("init", *arguments, code=code)
    assert [path.name for path in Path.cwd().iterdir()] == ["visits.csv"]


# --- blanks ------------------------------------------------------------------------------------------------


def test_a_file_with_blanks_is_refused_by_line_and_key(shell: Shell) -> None:
    shell("init", "visits.csv")
    shell("init", "visits.csv", "--policy")
    run(["ledger", "init", "b.db"])
    for name, arguments in (
        ("visits.toml", ("train", "visits.toml")),
        ("visits.toml", ("plan", "visits.toml")),
        ("visits-policy.toml", ("ledger", "open", "b.db", "--dataset=v", "--policy=visits-policy.toml")),
    ):  # fmt: skip
        text = shell(*arguments, code=2)
        blanks = find_blanks(Path(name).read_text())
        assert f'{len(blanks)} facts are still "FILL IN"' in text
        assert all(str(blank) in text for blank in blanks)


@pytest.mark.untraced
def test_writing_a_file_and_refusing_its_blanks_load_no_torch() -> None:
    program = """
import sys
from tacit.cli.app import run
for verb, name, code in (("init", "visits.csv", 0), ("train", "visits.toml", 2), ("plan", "visits.toml", 2)):
    assert run([verb, name]) == code
    assert "torch" not in sys.modules, verb
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_a_plan_takes_what_the_run_file_says(shell: Shell) -> None:
    shell("init", "visits.csv", *ALL)
    text = shell("plan", "visits.toml", "--epochs", "5", "--batch-size", "1000")
    assert "16,000 records (unit: patient), ε = 3.00 at δ = 1e-05 under add-remove, 5 epochs" in text
    assert "ε = 1.00 at" in shell("plan", "visits.toml", "--epsilon", "1", "--batch-size", "1000")
    assert "epsilon must be" in shell("plan", "visits.toml", "--epsilon", "0", code=2)


def test_a_plan_prices_no_other_sampler_than_the_run_files(shell: Shell) -> None:
    shell("init", "visits.csv", *ALL)
    text = Path("visits.toml").read_text()
    Path("other.toml").write_text(text.replace("[privacy]", '[privacy]\nsampling = "shuffled"'))
    text = shell("plan", "other.toml", "--batch-size", "1000", code=2)
    assert '[privacy] sampling = "shuffled"' in text
    assert "tacit train prints the cost" in text


# --- the dialogue ------------------------------------------------------------------------------------------

ANSWERS = {
    "kinds": "age=number",
    "target": "smoker",
    "user": "none",
    "bounds": "weight",
    "columns.weight": "0:300",
    "columns.sex": "F,M",
    "columns.admitted": "2015-01-01:2025-12-31",
    "unit": "patient",
    "adjacency": "add-remove",
    "records": "20,000",
    "epsilon": "3",
}


def test_the_dialogue_asks_each_fact_once_and_none_that_is_stated() -> None:
    asked: list[Question] = []

    def answer(question: Question) -> str:
        asked.append(question)
        return ANSWERS.get(question.key, "")

    found = sniff("visits.csv")
    facts = ask_facts(found, Facts(unit="person"), answer)
    assert [question.key for question in asked] == [
        "kinds", "target", "user", "bounds", "columns.weight", "columns.sex", "columns.admitted", "adjacency",
        "records", "epsilon", "delta",
    ]  # fmt: skip
    assert (facts.unit, facts.kinds, facts.records, facts.delta) == ("person", {"age": "number"}, 16000, 1e-6)
    defaults = [question.default for question in asked if question.default]
    assert defaults == ["none", "all", "1e-06"]
    assert find_blanks(run_text(Path("visits.csv"), found, facts)) == []
    assert ask_facts(found, facts, answer) == facts


def test_no_default_is_made_from_the_records() -> None:
    def table(n: int) -> str:
        return "age,ward\n" + "".join(f"{n + i},{n}\n" for i in range(n))

    told = []
    for n in (200, 300):
        Path("t.csv").write_text(table(n))
        asked: list[Question] = []

        def answer(question: Question, asked: list[Question] = asked) -> str:
            asked.append(question)
            return ""

        ask_facts(sniff("t.csv"), Facts(), answer)
        told.append(asked)
    assert told[0] == told[1]


def test_a_wrong_answer_is_asked_again_with_the_reason_and_enter_leaves_it() -> None:
    answers = {
        "target": ["smokes", "patient_id", "smoker"],
        "bounds": ["wieght", "weight, age"],
        "columns.age": ["120:0", "min:max", "0:120"],
        "adjacency": ["add", "replace-one"],
        "delta": ["0.1", "1e-6"],
        "records": ["many", "1.5", "1000"],
    }
    problems: list[str] = []

    def answer(question: Question) -> str:
        problems.append(question.problem)
        return answers.get(question.key, [""]).pop(0) if answers.get(question.key) else ""

    facts = ask_facts(sniff("visits.csv"), Facts(), answer)
    given = (facts.target, facts.bounds, facts.adjacency, facts.delta)
    assert given == ("smoker", {"age": (0, 120)}, "replace-one", 1e-6)
    said_why = [problem for problem in problems if problem]
    assert len(said_why) == 9
    for words, problem in zip(
        ("did you mean", "kind text", "no column 'wieght'", "below upper", "must be a number",
         "one of add-remove", "must be a number", "must be an integer", "not below 1/records"),
        said_why, strict=True,
    ):  # fmt: skip
        assert words in problem


def test_what_the_rows_do_not_say_is_asked() -> None:
    Path("t.csv").write_text("day,empty\n01/02/2020,\n03/04/2020,\n")
    answers = {"columns.day.format": "%d/%m/%Y", "columns.empty": "category"}
    given = ask_facts(sniff("t.csv"), Facts(), lambda question: answers.get(question.key, ""))
    assert (given.formats, given.kinds) == ({"day": "%d/%m/%Y"}, {"empty": "category"})
    left = [blank.key for blank in find_blanks(run_text(Path("t.csv"), sniff("t.csv"), Facts()))]
    assert left[:5] == ["target", "lower", "upper", "format", "kind"]


def test_a_policy_is_asked_for_its_own_facts() -> None:
    answers = {"unit_column": "none", "unit": "patient", "epsilon": "3", "delta": "1e-6", "note": "the board"}
    answers["largest_table"] = "100,000"
    found = sniff("visits.csv")
    facts = ask_facts(
        found, Facts(), lambda question: ANSWERS.get(question.key, answers.get(question.key, "")), policy=True
    )
    assert parse_policy(policy_text(found, facts)).unit_column is None
    with pytest.raises(InvalidInput, match="1 fact is still"):
        parse_policy(policy_text(found, Facts(**{**vars(facts), "note": None})))


def terminal(*arguments: str, typed: Sequence[str]) -> tuple[int, str]:
    """The exit code, and all that a terminal showed, of a person who answers one question after the other."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"COLUMNS": "100", "LINES": "24", "TERM": "dumb", "NO_COLOR": "1"},
        start_new_session=True,
        preexec_fn=_at_a_terminal,
    )
    os.close(theirs)
    seen, answers, pressed, patience = "", iter(typed), "", 60
    while patience:
        if not select.select([ours], [], [], 1.0)[0]:
            patience -= 1
            if pressed == "\x03":  # unseen: it came between readline's prompt and its wait
                os.write(ours, pressed.encode())
            continue
        try:
            seen += os.read(ours, 65536).decode(errors="replace")
        except OSError:  # the other end was closed
            break
        if seen.endswith(" > "):
            pressed = next(answers)
            os.write(ours, pressed.encode())
    else:
        process.kill()
    os.close(ours)
    return process.wait(), seen


def _at_a_terminal() -> None:
    """Ctrl-C reaches the process, though these tests may run in the background, where it is ignored."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_person_at_a_terminal_types_public_facts_and_nothing_else() -> None:
    lines = ["", *(text for key, text in ANSWERS.items() if key != "kinds"), ""]
    code, seen = terminal("init", "visits.csv", typed=[f"{line}\n" for line in lines])
    assert code == 0, seen
    for words in ("column to predict", "0:120", "maximum is one", "[all] >"):
        assert words in seen
    assert find_blanks(Path("visits.toml").read_text()) == []


def test_ctrl_c_writes_nothing_and_ctrl_d_leaves_the_rest() -> None:
    code, seen = terminal("init", "visits.csv", typed=["\n", "smoker\n", "\x03"])
    assert (code, "Nothing was written" in seen) == (130, True), seen
    assert not Path("visits.toml").exists()
    code, seen = terminal("init", "visits.csv", typed=["\n", "smoker\n", "\n", "none\n", "\x04"])
    assert (code, "fill in 12 public facts" in " ".join(seen.split())) == (0, True)
    assert tomllib.loads(Path("visits.toml").read_text())["data"]["target"] == "smoker"


def test_no_input_asks_nothing_even_in_a_terminal() -> None:
    code, seen = terminal("init", "visits.csv", "--no-input", typed=[])
    assert (code, " > " in seen) == (0, False)
