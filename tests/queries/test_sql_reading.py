"""SQL is read into queries exactly, and what is not supported is refused with its place and a way out."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from typing import Any

import duckdb
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from query_oracles import truth

from tacit.errors import InvalidInput, PrivacyRefusal, TacitError
from tacit.ledger import Column, Ledger, Policy, PureBudget
from tacit.queries import PrivateTable, register_table
from tacit.queries.query import (
    And,
    Compare,
    Count,
    CountUnits,
    Histogram,
    In,
    IsNull,
    Mean,
    Not,
    Or,
    Quantile,
    Query,
    StandardDeviation,
    Sum,
    Variance,
    query_to_json,
)
from tacit.queries.sql import Reader, describe_columns, parse, read_select

POLICY = Policy(
    unit="patient",
    adjacency="add-remove",
    budget=PureBudget(1.0),
    unit_column="patient",
    columns={
        "age": Column(kind="number", lower=0, upper=120),
        "ward": Column(kind="category", values=("A", "B", "North wing", "it's")),
        "stays": Column(kind="integer", lower=0, upper=10),
        "code": Column(kind="integer", lower=0, upper=9, values=(1, 2, 3)),
        "smoker": Column(kind="boolean"),
        "note": Column(kind="category"),
        "weight": Column(kind="number"),
        "Date": Column(kind="number", lower=0, upper=1),
    },
)

READ: dict[str, Query] = {
    "SELECT count(*) FROM visits": Query((Count(),)),
    "select COUNT ( * ) from VISITS ;": Query((Count(),)),
    "SELECT count(1) FROM visits": Query((Count(),)),
    "SELECT count(age) FROM visits -- of those who tell it": Query((Count("age"),)),
    "SELECT count(DISTINCT patient) FROM visits": Query((CountUnits(),)),
    "SELECT sum(age), avg(AGE), mean(stays) FROM visits": Query((Sum("age"), Mean("age"), Mean("stays"))),
    "SELECT variance(age), var_pop(age) FROM visits": Query((Variance("age"), Variance("age", sample=False))),
    "SELECT var_samp(age) FROM visits": Query((Variance("age"),)),
    "SELECT stddev(age), stddev_pop(age) FROM visits": Query(
        (StandardDeviation("age"), StandardDeviation("age", sample=False))
    ),
    "SELECT median(age), max(age), min(age) FROM visits": Query(
        (Quantile("age", 0.5), Quantile("age", 1.0), Quantile("age", 0.0))
    ),
    "SELECT quantile(age, 0.9), quantile_cont(age, 0.25) FROM visits": Query(
        (Quantile("age", 0.9), Quantile("age", 0.25))
    ),
    "SELECT percentile_cont(0.75) WITHIN GROUP (ORDER BY age) FROM visits": Query((Quantile("age", 0.75),)),
    "SELECT histogram(age, [-1, 0.5, 60]) FROM visits": Query((Histogram("age", (-1, 0.5, 60)),)),
    "SELECT ward, count(*) FROM visits WHERE age > 65 GROUP BY ward": Query(
        (Count(),), Compare("age", ">", 65), by=("ward",)
    ),
    "SELECT count(*), code FROM visits GROUP BY ward, code": Query((Count(),), by=("ward", "code")),
    "SELECT count(*) FROM visits WHERE 65 <= age": Query((Count(),), Compare("age", ">=", 65)),
    "SELECT count(*) FROM visits WHERE ((age)) > (65)": Query((Count(),), Compare("age", ">", 65)),
    "SELECT count(*) FROM visits WHERE age == -1e2": Query((Count(),), Compare("age", "=", -100)),
    "SELECT count(*) FROM visits WHERE ward <> 'it''s'": Query((Count(),), Compare("ward", "!=", "it's")),
    'SELECT count(*) FROM "visits" WHERE "Date" < 0.5': Query((Count(),), Compare("Date", "<", 0.5)),
    "SELECT count(*) FROM visits WHERE smoker": Query((Count(),), Compare("smoker", "=", True)),
    "SELECT count(*) FROM visits WHERE NOT smoker": Query((Count(),), Compare("smoker", "=", False)),
    "SELECT count(*) FROM visits WHERE smoker = 1 AND 0 <> smoker": Query(
        (Count(),), And((Compare("smoker", "=", True), Compare("smoker", "!=", False)))
    ),
    "SELECT count(*) FROM visits WHERE smoker IN (0, 1)": Query((Count(),), In("smoker", (False, True))),
    "SELECT count(*) FROM visits WHERE smoker = FALSE": Query((Count(),), Compare("smoker", "=", False)),
    "SELECT count(*) FROM visits WHERE smoker IS NOT TRUE": Query(
        (Count(),), Not(Compare("smoker", "=", True))
    ),
    "SELECT count(*) FROM visits WHERE age IS NULL": Query((Count(),), IsNull("age")),
    "SELECT count(*) FROM visits WHERE NOT age IS NOT NULL": Query((Count(),), IsNull("age")),
    "SELECT count(*) FROM visits WHERE code IN (2, 1)": Query((Count(),), In("code", (1, 2))),
    "SELECT count(*) FROM visits WHERE note NOT IN ('x', 'ü')": Query(
        (Count(),), And((Not(In("note", ("x", "ü"))), Not(IsNull("note"))))
    ),
    "SELECT count(*) FROM visits WHERE age BETWEEN 1 AND 2.5": Query(
        (Count(),), And((Compare("age", ">=", 1), Compare("age", "<=", 2.5)))
    ),
    "SELECT count(*) FROM visits WHERE age NOT BETWEEN 1 AND 2": Query(
        (Count(),), Or((Compare("age", "<", 1), Compare("age", ">", 2)))
    ),
    "SELECT count(*) FROM visits WHERE NOT (age < 5 OR ward = 'A') AND stays = 1": Query(
        (Count(),),
        And((And((Compare("age", ">=", 5), Compare("ward", "!=", "A"))), Compare("stays", "=", 1))),
    ),
    "SELECT count(*) FROM visits WHERE NOT (NOT (((stays > 1))) AND smoker)": Query(
        (Count(),), Or((Compare("stays", ">", 1), Compare("smoker", "=", False)))
    ),
}


@pytest.mark.parametrize("text", READ)
def test_a_statement_is_read_as_the_query_that_it_says(text: str) -> None:
    assert query_to_json(parse(text, POLICY, table="visits")) == query_to_json(READ[text])


def test_names_are_the_aliases_and_else_the_usual_ones() -> None:
    query = parse('SELECT count(*) n, ward, avg(age) AS "mean age", sum(age) FROM v GROUP BY ward', POLICY)
    assert query.output_names == ("n", "mean age", "sum_age")
    assert query.table == "v"


def test_an_alias_and_the_way_of_writing_are_no_part_of_the_question() -> None:
    one = parse("SELECT count(*) AS n FROM visits WHERE age > 65 AND smoker", POLICY)
    other = parse("select count(*)\nfrom visits /* again */ where (SMOKER = true) and 65.0 < Age;", POLICY)
    assert query_to_json(one) == query_to_json(other)


# --- what is refused ---------------------------------------------------------------------------------------

MANY = "age = 1 OR " * 50
LONG = " OR ".join(["age = 1"] * 2_000)
REFUSED = """
SELECT age FROM visits | would show rows
SELECT * FROM visits | not a supported aggregate
SELECT count('x') FROM visits | Write count(*) to count rows
SELECT count(-1) FROM visits | Write count(*) to count rows
SELECT sum(age * 2) FROM visits | arithmetic on columns is not supported
SELECT sum(age * 3) FROM visits | age * 3 is not a column
SELECT sum(age = 2) FROM visits | age = 2 is not a column
SELECT sum(age) * 2 FROM visits | Arithmetic on the answer
SELECT count(*) FROM visits WHERE smoker = 2 | compare it with True or False
SELECT count(*) FROM visits WHERE smoker = -1 | compare it with True or False
SELECT patient, count(*) FROM visits GROUP BY patient | identifies the patient
SELECT ward FROM visits GROUP BY ward | no aggregate
SELECT ward, count(*) FROM visits | add it to GROUP BY
SELECT count(*), age FROM visits GROUP BY ward | would show rows
SELECT count(*) FROM visits; SELECT count(*) FROM visits | one query at a time
SELECT count(*) FROM visits; DROP TABLE visits | one query at a time
DROP TABLE visits | begins with SELECT
INSERT INTO visits VALUES (1) | begins with SELECT
UPDATE visits SET age = 1 | begins with SELECT
DELETE FROM visits | begins with SELECT
COPY visits TO 'x.csv' | begins with SELECT
PRAGMA database_list | begins with SELECT
ATTACH 'other.db' | begins with SELECT
SET enable_external_access = true | begins with SELECT
EXPLAIN SELECT count(*) FROM visits | begins with SELECT
DESCRIBE visits | begins with SELECT
FROM visits | begins with SELECT
VALUES (1) | begins with SELECT
WITH t AS (SELECT * FROM visits) SELECT count(*) FROM t | begins with SELECT
(SELECT count(*) FROM visits) | begins with SELECT
SELECT count(*) FROM visits JOIN beds USING (id) | one table
SELECT count(*) FROM visits, beds | one table
SELECT count(*) FROM visits a, visits b WHERE a.age = b.age | there is one table
SELECT quantile(age, .5) FROM visits | Begin a number with a digit
SELECT count(*) FROM visits CROSS JOIN beds | one table
SELECT count(*) FROM visits NATURAL JOIN beds | one table
SELECT count(*) FROM visits, LATERAL (SELECT 1) | one table
SELECT count(*) FROM visits POSITIONAL JOIN beds | one table
SELECT count(*) FROM (SELECT * FROM visits) | subqueries are not supported
SELECT count(*) FROM visits WHERE age = (SELECT max(age) FROM visits) | subqueries are not supported
SELECT count(*) FROM visits WHERE age IN (SELECT age FROM visits) | subqueries are not supported
SELECT count(*) FROM visits WHERE EXISTS (SELECT 1) | one table
SELECT count(*) FROM visits UNION SELECT count(*) FROM visits | one table
SELECT count(*) FROM visits EXCEPT SELECT 1 | one table
SELECT count(*) FROM visits INTERSECT SELECT 1 | one table
SELECT count(*) FROM visits GROUP BY ALL | list the columns
SELECT count(*) FROM visits GROUP BY ROLLUP (ward) | ROLLUP is not supported
SELECT count(*) FROM visits GROUP BY CUBE (ward) | CUBE is not supported
SELECT count(*) FROM visits GROUP BY GROUPING SETS ((ward), ()) | not supported
SELECT count(*) FROM visits GROUP BY 1 | is not a column
SELECT count(*) FROM visits GROUP BY (ward) | is not a column
SELECT count(*) FROM visits GROUP BY age + 1 | arithmetic on columns
SELECT count(*) FROM visits GROUP BY ward, ward | occurs twice
SELECT count(*) FROM visits GROUP BY nowhere | no column 'nowhere'
SELECT ward, count(*) FROM visits GROUP BY ward HAVING count(*) > 3 | filter the answer
SELECT ward, count(*) FROM visits GROUP BY ward ORDER BY ward | sort or shorten the answer
SELECT count(*) FROM visits LIMIT 1 | sort or shorten the answer
SELECT count(*) FROM visits OFFSET 1 | sort or shorten the answer
SELECT count(*) FROM visits QUALIFY true | window functions
SELECT count(*) OVER () FROM visits | window functions
SELECT count(*) FILTER (WHERE age > 3) FROM visits | after WHERE
SELECT DISTINCT count(*) FROM visits | units can be counted
SELECT count(DISTINCT ward) FROM visits | takes only the unit column
SELECT count(DISTINCT patient, ward) FROM visits | takes only the unit column
SELECT sum(DISTINCT age) FROM visits | units can be counted
SELECT count(ALL age) FROM visits | remove ALL
SELECT ALL count(*) FROM visits | remove ALL
SELECT count(*) INTO t FROM visits | only reads
SELECT count(*) FROM visits TABLESAMPLE 10% | one table
SELECT count(*) FROM visits USING SAMPLE 5 | one table
SELECT count(*) FROM ONLY visits | one table
SELECT count(*) FROM main.visits | bare name
SELECT count(*) FROM visits WHERE visits.age > 3 | bare name
SELECT count(*) FROM read_csv('/etc/passwd') | functions, files
SELECT count(*) FROM 'passwd.csv' | the table is called
SELECT count(*) FROM read_parquet(['a']) | functions, files
SELECT count(*) FROM glob('*') | GLOB is not supported|glob
SELECT count(*) FROM range(10) | not supported|functions, files
SELECT count(*) FROM beds | the table is called 'visits'
SELECT count(*) FROM visits v | alias not allowed here
SELECT count(*) FROM visits AS v (a, b) | alias not allowed here
SELECT count(*) | FROM is missing
SELECT | FROM is missing
SELECT FROM visits | no aggregate
SELECT count(*), FROM visits | Remove this comma
SELECT , count(*) FROM visits | Remove this comma
SELECT count(*) FROM visits GROUP BY ward, | Remove this comma
SELECT count(*),, sum(age) FROM visits | Remove this comma
SELECT quantile(age, 0.5,) FROM visits | Remove this comma
SELECT sum(age + 1) FROM visits | arithmetic on columns
SELECT sum(-age) FROM visits | arithmetic on columns
SELECT sum(age) / count(*) FROM visits | arithmetic on columns
SELECT sum(age) - 1 FROM visits | arithmetic on columns
SELECT sum(1) FROM visits | is not a column
SELECT sum(*) FROM visits | is not a column
SELECT sum(abs(age)) FROM visits | is not a column
SELECT avg(age::int) FROM visits | casts are not supported
SELECT sum(CAST(age AS int)) FROM visits | is not a column|keyword|not supported
SELECT sum(TRY_CAST(age AS int)) FROM visits | is not a column|not supported
SELECT sum(CASE WHEN age > 3 THEN 1 END) FROM visits | prepare the column
SELECT count() FROM visits | needs another argument
SELECT count(age, ward) FROM visits | expressions not allowed here
SELECT count(age ORDER BY age) FROM visits | sort or shorten
SELECT max(age, 3) FROM visits | not allowed here
SELECT max(patient) FROM visits | identifies the patient
SELECT count(patient) FROM visits | identifies the patient
SELECT sum(PATIENT) FROM visits | identifies the patient
SELECT sum(ward) FROM visits | needs a numeric column
SELECT avg(smoker) FROM visits | needs a numeric column
SELECT sum(weight) FROM visits | no bounds for 'weight'
SELECT median(weight) FROM visits | no bounds for 'weight'
SELECT sum(agee) FROM visits | did you mean 'age'
SELECT foo(age) FROM visits | no aggregate 'foo'
SELECT medain(age) FROM visits | did you mean 'median'
SELECT mode(age) FROM visits | not a supported aggregate|no aggregate
SELECT any_value(age) FROM visits | not a supported aggregate
SELECT string_agg(note, ',') FROM visits | not a supported aggregate
SELECT list(age) FROM visits | not supported
SELECT arg_max(age, stays) FROM visits | not a supported aggregate
SELECT corr(age, stays) FROM visits | not a supported aggregate
SELECT approx_count_distinct(ward) FROM visits | not a supported aggregate
SELECT first(age) FROM visits | not supported
SELECT sum(age IGNORE NULLS) FROM visits | not a supported aggregate
SELECT quantile(age) FROM visits | share is missing|cannot be parsed
SELECT quantile(age, 1.5) FROM visits | leaves a tenth above
SELECT quantile(age, [0.1, 0.2]) FROM visits | brackets are only allowed
SELECT quantile(age, stays) FROM visits | is not a number
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY age DESC) FROM visits | DESC is not supported
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY age, stays) FROM visits | one column
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY , age) FROM visits | Remove this comma
SELECT sum(age) WITHIN GROUP (ORDER BY age) FROM visits | belongs to a quantile
SELECT histogram(age) FROM visits | needs its edges
SELECT histogram(age, [3, 2]) FROM visits | strictly increasing
SELECT histogram(age, [1]) FROM visits | strictly increasing
SELECT histogram(age, [1, stays]) FROM visits | is not a number
SELECT histogram(age, [1, 2], 3) FROM visits | needs its edges
SELECT count(*), count(*) FROM visits | occurs twice
SELECT count(*) AS n, sum(age) AS N FROM visits | occurs twice
SELECT count(*) AS ward FROM visits GROUP BY ward | occurs twice
SELECT ward AS w, count(*) FROM visits GROUP BY ward | cannot have an alias
SELECT version(), count(*) FROM visits | not a supported aggregate|no aggregate
SELECT getenv('HOME') FROM visits | no aggregate
SELECT count(*) FROM visits WHERE patient = 'p1' | identifies the patient
SELECT count(*) FROM visits WHERE "PATIENT" IS NULL | identifies the patient
SELECT count(*) FROM visits WHERE patient IN ('p1') | identifies the patient
SELECT count(*) FROM visits WHERE agee > 3 | did you mean 'age'
SELECT count(*) FROM visits WHERE rowid = 3 | no column 'rowid'
SELECT count(*) FROM visits WHERE age = 'old' | compare it with a number
SELECT count(*) FROM visits WHERE age = TRUE | compare it with a number
SELECT count(*) FROM visits WHERE ward = 3 | compare it with a string
SELECT count(*) FROM visits WHERE ward = "A" | 'single quotes'
SELECT count(*) FROM visits WHERE ward = 'north wing' | did you mean 'North wing'
SELECT count(*) FROM visits WHERE ward < 'B' | has no order
SELECT count(*) FROM visits WHERE ward BETWEEN 'A' AND 'B' | has no order
SELECT count(*) FROM visits WHERE stays = 2.5 | contains integers
SELECT count(*) FROM visits WHERE stays > 99999999999999999999 | contains integers
SELECT count(*) FROM visits WHERE smoker > FALSE | has no order
SELECT count(*) FROM visits WHERE age = NULL | age IS NULL
SELECT count(*) FROM visits WHERE age IN (1, NULL) | age IS NULL
SELECT count(*) FROM visits WHERE age IN () | list after IN is empty
SELECT count(*) FROM visits WHERE age > 1e999 | too large
SELECT count(*) FROM visits WHERE age > 1e | not a number
SELECT quantile(age, 1e) FROM visits | not a number
SELECT count(*) FROM visits WHERE age BETWEEN 3 AND 1 | lower end first
SELECT count(*) FROM visits WHERE age BETWEEN SYMMETRIC 3 AND 1 | symmetric not allowed here
SELECT count(*) FROM visits WHERE age = stays | is not a literal
SELECT count(*) FROM visits WHERE age | not a condition
SELECT count(*) FROM visits WHERE 1 = 1 | is not a column
SELECT count(*) FROM visits WHERE age IS 3 | write IS NULL or IS TRUE
SELECT count(*) FROM visits WHERE TRUE | for all rows or for none
SELECT count(*) FROM visits WHERE age = 1 = 2 | is not a column
SELECT count(*) FROM visits WHERE (age, stays) = (1, 2) | is not a column
SELECT count(*) FROM visits WHERE abs(age) = 1 | is not a column
SELECT count(*) FROM visits WHERE 1 / 0 = 1 | arithmetic on columns
SELECT count(*) FROM visits WHERE error('x') | not a supported condition
SELECT count(*) FROM visits WHERE age > random() | where a|is not
SELECT count(*) FROM visits WHERE note LIKE 'a%' | list the values
SELECT count(*) FROM visits WHERE note ~ 'a' | list the values|~ is not supported
SELECT count(*) FROM visits WHERE note SIMILAR TO 'a' | list the values
SELECT count(*) FROM visits WHERE age IS DISTINCT FROM 3 | not supported
SELECT count(*) FROM visits WHERE age = ANY ([1, 2]) | not supported
SELECT count(*) FROM visits WHERE age > $1 | write the value itself
SELECT count(*) FROM visits WHERE age > ? | write the value itself
SELECT count(*) FROM visits WHERE note = E'\\n' | plain single quotes
SELECT count(*) FROM visits WHERE note = $$a$$ | plain single quotes
SELECT count(*) FROM visits WHERE age = date '2020-01-01' | keyword of SQL
SELECT count(*) FROM visits WHERE age = INTERVAL 1 DAY | not supported
SELECT count(*) FROM visits WHERE age - 3 > 4 | arithmetic on columns
SELECT count(*) FROM visits WHERE age > - -3 | only allowed before a number
SELECT count(*) FROM visits WHERE age > 0x1F | SQL cannot be parsed|is ignored here
SELECT count(*) FROM visits WHERE note = 'a' 'b' | is not a literal
SELECT count(*) FROM visits WHERE note IN 'a' | field not allowed here
SELECT count(*) FROM visits WHERE note = 'a' COLLATE NOCASE | not supported
SELECT count(*) FROM visits WHERE age > 3 OR | SQL cannot be parsed
SELECT count(*) FROM visits WHERE age > 1 2 | SQL cannot be parsed
SELECT count(*) FROM visits WHERE | SQL cannot be parsed
SELECT count(*) FROM visits WHERE note = 'a | is not closed
SELECT count(*) FROM visits WHERE {'a': 1} = 1 | not supported
SELECT count(*) FROM visits WHERE list_filter([1], x -> x) | not supported
""".strip().splitlines()


def test_a_name_with_a_space_or_a_sign_must_be_quoted() -> None:
    number = Column(kind="number", lower=0, upper=9)
    policy = dataclasses.replace(POLICY, columns={"tumour stage": number, "CRP mg/l": number})
    for name in ("tumour stage", "CRP mg/l"):
        with pytest.raises(InvalidInput, match=f'Write the column\'s name in double quotes: "{name}".$'):
            parse(f"SELECT avg({name}) FROM visits", policy)
        assert parse(f'SELECT avg("{name}") FROM visits', policy).aggregates == (Mean(name),)


@pytest.mark.parametrize("line", REFUSED, ids=[line.partition(" | ")[0] for line in REFUSED])
def test_hostile_and_unsupported_statements_are_refused_with_a_reason(line: str) -> None:
    text, _, reasons = line.partition(" | ")
    with pytest.raises(TacitError) as caught:
        parse(text, POLICY, table="visits")
    message = str(caught.value)
    assert any(reason.lower() in message.lower() for reason in reasons.split("|")), message
    assert message.endswith((".", "?"))
    assert isinstance(caught.value, PrivacyRefusal) == ("identifies the patient" in message)
    assert_points_at_the_text(message, text)


def test_none_of_them_leaves_a_trace_in_the_ledger() -> None:
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("visits", POLICY)
    types = {"patient": "str", "ward": "str", "note": "str", "smoker": "bool"}
    columns = ("patient", *POLICY.columns)
    frame = pd.DataFrame({name: pd.Series([], dtype=types.get(name, "float64")) for name in columns})
    register_table(frame, ledger=ledger, dataset="visits")
    before = ledger.status("visits").head_seq
    with PrivateTable(frame, ledger=ledger, dataset="visits") as table:
        for line in REFUSED:
            with pytest.raises(TacitError):
                table.sql(line.partition(" | ")[0], epsilon=0.1)
    assert ledger.status("visits").head_seq == before


def assert_points_at_the_text(message: str, text: str) -> None:
    """The second line is a piece of the statement, the third marks part of it."""
    _, shown, carets, *_ = message.splitlines()
    assert shown.strip() in text
    assert re.fullmatch(r" +\^+", carets)
    assert len(carets) <= len(shown)


def test_there_are_enough_of_them() -> None:
    assert len(REFUSED) > 150
    assert len(READ) > 25


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("SELECT count(*) FROM visits JOIN beds", "JOIN"),
        ("SELECT count(*)\nFROM visits\n\tWHERE agee > 3", "agee"),
        ("SELECT count(*) FROM visits WHERE note = 'ü' AND patient = 'p' AND age = 3", "patient"),
        (f"SELECT count(*) FROM visits WHERE {MANY}stais = 3 OR {MANY}age = 1", "stais"),
        ("SELECT count(*) FROM visits WHERE age = 'old'", "'old'"),
        ("SELECT sum(age), summ(age) FROM visits", "summ(age"),
    ],
    ids=["join", "third line", "behind an umlaut", "in a long line", "literal", "function"],
)  # fmt: skip
def test_the_carets_are_below_the_words_that_are_wrong(text: str, marked: str) -> None:
    with pytest.raises(TacitError) as caught:
        parse(text, POLICY)
    head, shown, carets, *_ = str(caught.value).splitlines()
    start = carets.index("^")
    assert shown[start : len(carets)] == marked
    line, column = map(int, re.findall(r"\d+", head)[:2])
    assert text.splitlines()[line - 1][column - 1 :].startswith(marked)
    assert len(shown) <= 80


@pytest.mark.parametrize(
    "text",
    ["", "   ", ";", "\0", "-- no", "SELECT count(*) FROM v WHERE note = '\0'", "SELECT \ud800", "(" * 5_000],
    ids=["nothing", "blanks", "semicolon", "nul", "comment", "nul in a string", "surrogate", "brackets"],
)  # fmt: skip
def test_texts_that_are_no_statement_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse(text, POLICY)


def test_long_statements_are_read_and_too_long_or_deep_ones_refused() -> None:
    def where(condition: str) -> Query:
        return parse(f"SELECT count(*) FROM visits WHERE {condition}", POLICY)

    assert isinstance(where(" OR ".join(["age = 1"] * 900)).where, Or)
    assert isinstance(where("(" * 30 + "smoker" + ")" * 30).where, Compare)
    for condition in (LONG, "age = " + "1" * 20_000, "(" * 50 + "smoker" + ")" * 50, "NOT " * 50 + "smoker"):
        with pytest.raises(InvalidInput):
            where(condition)
    with pytest.raises(InvalidInput, match="must be a string"):
        parse(3, POLICY)  # type: ignore[arg-type]


def test_no_message_shows_more_of_a_bad_character_than_a_blank() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse("SELECT count(*) FROM visits WHERE \x1b[31m age", POLICY)
    assert "\x1b" not in str(caught.value).splitlines()[1]


def test_a_unit_column_without_rows_of_its_own_cannot_be_counted() -> None:
    rows = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=POLICY.columns)
    with pytest.raises(InvalidInput, match="takes only the unit column"):
        parse("SELECT count(DISTINCT age) FROM visits", rows)


def test_letters_case_is_ignored_only_where_one_column_is_left() -> None:
    two = {"Age": Column(kind="number", lower=0, upper=1), "AGE": Column(kind="number", lower=0, upper=2)}
    policy = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=two)
    assert parse("SELECT sum(AGE) FROM v", policy).aggregates == (Sum("AGE"),)
    with pytest.raises(InvalidInput, match="no column 'age'"):
        parse("SELECT sum(age) FROM v", policy)


def test_columns_are_described_for_people() -> None:
    assert dict(describe_columns(POLICY)) == {
        "age": "number from 0 to 120",
        "ward": "category 'A', 'B', 'North wing', 'it's'",
        "stays": "integer from 0 to 10",
        "code": "integer from 0 to 9 1, 2, 3",
        "smoker": "boolean",
        "note": "category without declared keys",
        "weight": "number without bounds",
        "Date": "number from 0 to 1",
    }


# --- the checks hold without each other --------------------------------------------------------------------

DROPPED = [  # what the parser reads without complaint as something else, or keeps in an argument
    "SELECT count(ALL age) FROM visits",
    "SELECT count(*) FROM visits GROUP BY ALL",
    "SELECT count(*) FROM visits GROUP BY DISTINCT ward",
    "SELECT count(*) FROM visits HAVING true",
    "SELECT DISTINCT count(*) FROM visits",
    "SELECT count(*) FROM visits LIMIT 1",
    "SELECT count(*) FROM visits TABLESAMPLE 10%",
    "SELECT count(*) FROM visits JOIN beds ON true",
    "SELECT count(*) FROM ONLY visits",
    "SELECT count(*) FROM main.visits",
]


@pytest.mark.parametrize("text", DROPPED)
def test_the_words_alone_refuse_it(text: str) -> None:
    with pytest.raises(InvalidInput):
        Reader(text, POLICY).check_words()


@pytest.mark.parametrize(
    "text", [*DROPPED[3:], "SELECT count(*) FROM visits ORDER BY 1", "SELECT max(age, 3) FROM visits"]
)
def test_the_tree_alone_refuses_it(text: str) -> None:
    reader = Reader(text, POLICY)
    with pytest.raises(InvalidInput, match="not allowed here"):
        read_select(reader, reader.tree(), "visits")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(ALL age) FROM visits",
        "SELECT count(*), FROM visits",
        "SELECT count(*), FROM visits GROUP BY ward,",
        "SELECT histogram(age, list_value(0, 1)) FROM visits",
        "SELECT quantile_cont(age, 1 FROM visits",
    ],
)
def test_the_printed_words_alone_refuse_it(text: str) -> None:
    reader = Reader(text, POLICY)
    with pytest.raises(InvalidInput, match="ignored"):
        reader.check_all_printed(reader.tree())


def test_what_no_reader_has_seen_is_refused_though_every_reader_forgets_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted fault: readers that take what they know and ignore the rest."""

    def forgetful(self: Reader, node: Any, *names: str) -> None:
        self._read[id(node)] = node

    monkeypatch.setattr(Reader, "only", forgetful)
    for text in ("SELECT count(*) FROM visits HAVING count(*) > 3", "SELECT max(age, 3) FROM visits"):
        reader = Reader(text, POLICY)
        tree = reader.tree()
        read_select(reader, tree, "visits")
        with pytest.raises(InvalidInput, match="not supported here"):
            reader.check_all_read(tree)


def test_a_comment_behind_the_semicolon_is_no_second_statement() -> None:
    assert parse("SELECT count(*) FROM visits; -- all of them", POLICY) == parse(
        "SELECT count(*) FROM visits", POLICY
    )


# --- any text at all ---------------------------------------------------------------------------------------

PIECES = [
    "SELECT", "FROM", "visits", "WHERE", "GROUP", "BY", "count(*)", "count(", "sum(age)", ")", "(", ",",
    ";", "*", "age", "ward", "patient", "smoker", "=", "<>", "<", "AND", "OR", "NOT", "IS", "NULL", "IN",
    "BETWEEN", "1", "-2.5", "'A'", '"x"', "ALL", "DISTINCT", "JOIN", "HAVING", "::", ".", "[", "]", "/*",
    "*/", "--", "||", "$1", "AS",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join) | st.text(max_size=40))
def test_any_text_is_read_or_refused_in_the_house_way(text: str) -> None:
    with contextlib.suppress(TacitError):
        assert "patient" not in query_to_json(parse(text, POLICY))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(READ)), st.sampled_from(PIECES), st.integers(0, 60))
def test_a_word_more_changes_the_question_or_is_refused(text: str, piece: str, place: int) -> None:
    """No word is dropped in silence: read, it is an alias, a bracket, or another question."""
    words = text.partition("--")[0].split(" ")
    longer = " ".join([*words[: place % len(words)], piece, *words[place % len(words) :]])
    try:
        query = parse(longer, POLICY, table="visits")
    except TacitError:
        return
    before = parse(text, POLICY, table="visits")
    kept = query_to_json(query) == query_to_json(before) and query.names == before.names
    assert not kept or piece in (";", "--", "AS", "(", ")")


# --- SQL's NULLs -------------------------------------------------------------------------------------------

CELLS: dict[str, st.SearchStrategy[Any]] = {
    "age": st.sampled_from([None, 0.0, 1.5, 65.0, 200.0]),
    "ward": st.sampled_from([None, "A", "B", "it's", "elsewhere"]),
    "stays": st.sampled_from([None, 0, 1, 2]),
    "smoker": st.sampled_from([None, True, False]),
}
LEAVES = st.sampled_from(
    [
        "age > 1.5", "age <> 65", "1.5 <= age", "age BETWEEN 1 AND 70", "age NOT BETWEEN 1 AND 70",
        "age IS NULL", "age IS NOT NULL", "ward = 'A'", "ward <> 'it''s'", "ward IN ('A', 'B')",
        "ward NOT IN ('A')", "smoker", "smoker = FALSE", "smoker IS TRUE", "smoker IS NOT FALSE",
        "stays IN (0, 2)", "stays < 1", "stays = 1",
    ]
)  # fmt: skip
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: (
        inner.map("NOT ({})".format)
        | st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(
            lambda parts: "({} {} {})".format(*parts)
        )
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def plain() -> Any:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits (age DOUBLE, ward VARCHAR, stays BIGINT, smoker BOOLEAN)")
        yield connection


@settings(max_examples=100, deadline=None)
@given(CONDITIONS, st.lists(st.fixed_dictionaries(CELLS), max_size=8))
def test_a_condition_keeps_the_rows_that_it_keeps_in_sql(
    plain: Any, condition: str, rows: list[dict[str, Any]]
) -> None:
    text = f"SELECT count(*) FROM visits WHERE {condition}"
    plain.execute("DELETE FROM visits")
    for row in rows:
        plain.execute("INSERT INTO visits VALUES (?, ?, ?, ?)", [row[name] for name in CELLS])
    (expected,) = plain.execute(text).fetchone()
    where = parse(text, POLICY, table="visits").where
    assert where is not None
    assert sum(truth(where, row) for row in rows) == expected


def test_a_reader_that_keeps_not_above_its_leaves_would_not_keep_them() -> None:
    """The planted fault: the two-valued NOT keeps a row without an age."""
    row = {"age": None}
    read = parse("SELECT count(*) FROM visits WHERE NOT age < 5", POLICY).where
    assert read is not None
    assert truth(Not(Compare("age", "<", 5)), row)
    assert not truth(read, row)
