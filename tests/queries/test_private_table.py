"""A private table charges first, answers once, refuses with reasons, and reveals no data in failures."""

from __future__ import annotations

import json
import math
import pickle
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from query_oracles import policy_of

from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal, UnsupportedEvent
from tacit.ledger import (
    ApproximateBudget,
    Budget,
    Column,
    Conflict,
    Ledger,
    Policy,
    PureBudget,
    Refused,
    RenyiBudget,
    StillRunning,
    ZeroConcentratedBudget,
)
from tacit.ledger.charges import Verdict
from tacit.ledger.records import Charge, LeaseLost
from tacit.queries import (
    Compare,
    Count,
    CountUnits,
    Histogram,
    Mean,
    Quantile,
    Query,
    Sum,
    Variance,
    register_table,
)
from tacit.queries.engines import Engine, EngineFailure
from tacit.queries.private_table import Answer, PrivateTable
from tacit.queries.statements import Statement

COLUMNS = {
    "age": Column(kind="number", lower=0, upper=100),
    "kids": Column(kind="integer", lower=0, upper=8, values=(0, 1, 2)),
    "ward": Column(kind="category", values=("north", "south", "closed")),
    "city": Column(kind="category"),
    "well": Column(kind="boolean"),
}
FRAME = pd.DataFrame(
    {
        "pid": [f"p{row % 150}" for row in range(300)],
        "age": [float(row % 100) for row in range(300)],
        "kids": [row % 3 for row in range(300)],
        "ward": ["north" if row % 3 else "south" for row in range(300)],
        "city": ["big"] * 290 + [f"village {row}" for row in range(10)],
        "well": [row % 2 == 0 for row in range(300)],
    }
)


def opened(budget: Budget, **fields: Any) -> Ledger:
    ledger = Ledger.create("sqlite://")
    given = {"unit": "visit", "adjacency": "add-remove", "columns": COLUMNS} | fields
    ledger.open_dataset("visits", Policy(budget=budget, **given))
    return ledger


def private(data: object, ledger: Ledger, *, block: str | None = None, noise: str = "own") -> PrivateTable:
    """A table that the curator has registered."""
    if isinstance(data, Broken):
        print_of_it = ledger.fingerprint(data.content())
        ledger.register_content("visits", print_of_it, block=block, verdict=Verdict())
    else:
        register_table(data, ledger=ledger, dataset="visits", block=block)
    return PrivateTable(data, ledger=ledger, dataset="visits", block=block, noise=noise)


def table_of(budget: Budget, data: object = FRAME, **fields: Any) -> PrivateTable:
    return private(data, opened(budget, **fields))


COUNT = Query((Count(),))


def test_the_number_of_rows_of_a_block_is_not_the_public_one() -> None:
    """An exchanged record may leave the block, so its number of rows is secret under replace-one too."""
    ledger = Ledger.create("sqlite://")
    rules = policy_of(
        {"x": Column(kind="integer", lower=0, upper=10)}, "replace-one", public=100, blocks=("a", "b")
    )
    ledger.open_dataset("visits", rules)
    frame = pd.DataFrame({"x": [1, 2, 3] * 10})
    register_table(frame, ledger=ledger, dataset="visits", block="a")
    table = PrivateTable(frame, ledger=ledger, dataset="visits", block="a")
    answer = table.ask(Query((Count(), Mean("x"))), epsilon=50.0)
    assert answer.epsilon == 50.0
    assert abs(answer.value("count") - 30) < 3


def test_an_answer_says_value_interval_cost_and_rest() -> None:
    answer = table_of(PureBudget(1.2)).ask(COUNT, epsilon=0.5)
    assert abs(answer.value() - 300) < 60
    assert (answer.epsilon, answer.delta, answer.remaining, answer.repeated) == (0.5, 0.0, 0.7, False)
    found = answer.estimate()
    assert not isinstance(found, tuple)
    assert (found.low, found.high) == (found.value - 6, found.value + 6)
    assert answer.mechanism == ("number of rows: discrete Laplace noise of scale 2, sensitivity 1",)
    text = answer.to_text()
    assert "Cost: epsilon 0.500. Left: epsilon 0.700." in text
    assert "95 %" in text
    data = json.loads(answer.to_json())
    assert data["rows"] == [{"keys": [], "values": [found.to_data()]}]
    assert "</td>" in answer._repr_html_()


def test_costs_add_up_to_the_last_digit() -> None:
    """Ten answers of 0.1, each of three parts, use up 1.0 and not a hair more."""
    table = table_of(PureBudget(1.0))
    parts = Query((Count(), Sum("kids"), Count("city")))
    for attempt in range(1, 11):
        table.ask(parts, epsilon=0.1, attempt=attempt)
    with pytest.raises(Refused):
        table.ask(parts, epsilon=1e-6, attempt=11)


def test_the_same_question_is_answered_from_storage_for_nothing() -> None:
    table = table_of(PureBudget(1.0))
    where = Compare("age", ">", 65)
    first = table.ask(Query((Mean("age"),), where=where), epsilon=0.5)
    again = table.ask(Query((Mean("age"),), where=where, names=("m",)), epsilon=0.5)
    assert again.rows == first.rows
    assert (again.columns, again.repeated, again.remaining) == (("m",), True, 0.5)
    assert "at no cost" in again.to_text()
    assert table.price(Query((Mean("age"),), where=where), epsilon=0.5).asked_before
    other = table.ask(Query((Mean("age"),), where=where), epsilon=0.25)
    assert (other.repeated, other.remaining) == (False, 0.25), "another epsilon is another question"


def test_new_content_is_another_version_on_the_same_budget() -> None:
    ledger = opened(PureBudget(1.0))
    old = private(FRAME, ledger)
    same = private(FRAME.copy(), ledger)
    new = private(FRAME.iloc[1:], ledger)
    assert old.version == same.version != new.version
    old.ask(COUNT, epsilon=0.5)
    assert same.ask(COUNT, epsilon=0.5).repeated
    answer = new.ask(COUNT, epsilon=0.5)
    assert (answer.repeated, answer.remaining) == (False, 0.0)


def test_a_refusal_says_what_was_asked_what_is_left_and_what_would_fit() -> None:
    table = table_of(PureBudget(1.0))
    table.ask(COUNT, epsilon=0.75)
    with pytest.raises(Refused) as refused:
        table.ask(COUNT, epsilon=0.5)
    problem = refused.value
    assert (problem.requested, problem.remaining, problem.difference) == pytest.approx((0.5, 0.25, 0.25))
    assert problem.would_fit == 0.25
    assert (problem.dataset, problem.over) == ("visits", ("epsilon",))
    assert "1.25 would be spent with it, and the cap is 1" in str(problem)
    again = pickle.loads(pickle.dumps(problem))  # as between the processes of a pool
    assert (str(again), again.to_data()) == (str(problem), problem.to_data())
    assert table.price(COUNT, epsilon=0.5).price.refusal is not None
    table.ask(COUNT, epsilon=problem.would_fit)


def test_a_price_is_that_of_the_answer_alone_in_every_currency() -> None:
    table = table_of(RenyiBudget(4.0, 1e-6))
    quote = table.price(COUNT, epsilon=0.25)
    answer = table.ask(COUNT, epsilon=0.25)
    assert (quote.epsilon, quote.delta) == (answer.epsilon, answer.delta) == (0.25, 0.0)


def test_a_price_charges_nothing_and_reads_nothing() -> None:
    ledger = opened(PureBudget(1.0))
    engine = Broken()
    table = private(engine, ledger)
    quote = table.price(COUNT, epsilon=0.25)
    assert (quote.price.epsilon, quote.price.fits, quote.asked_before) == (0.25, True, False)
    assert (quote.epsilon, quote.delta) == (0.25, 0.0)
    assert quote.mechanism == ("number of rows: discrete Laplace noise of scale 4, sensitivity 1",)
    assert not table.price(COUNT, epsilon=2.0).price.fits
    assert (engine.asked, len(ledger.history("visits"))) == (0, 2)


class Broken(Engine):
    """Fails with a reason that depends on the data."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self.asked = 0
        self.before = before

    @property
    def name(self) -> str:
        return "broken"

    def check(self, policy: Policy) -> None:
        return None

    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        self.asked += 1
        self.before()
        raise ArithmeticError("the record of John Doe overflows")

    def content(self) -> Iterable[bytes]:
        return [b"content"]

    def close(self) -> None:
        return None


def test_a_failure_after_the_charge_says_nothing_and_stays_charged() -> None:
    ledger = opened(PureBudget(1.0))
    engine = Broken(before=lambda: spent.append(ledger.status("visits").spent_epsilon))
    spent: list[float] = []
    table = private(engine, ledger)
    with pytest.raises(EngineFailure) as failure:
        table.ask(COUNT, epsilon=0.5)
    assert spent == [0.5], "charged before the engine is asked"
    assert str(failure.value) == str(EngineFailure())
    assert "John" not in "".join(traceback.format_exception(failure.value))
    status = ledger.status("visits")
    assert (status.spent_epsilon, status.charges["FORFEITED"]) == (0.5, 1)
    with pytest.raises(PrivacyRefusal, match="attempt=2"):
        table.ask(COUNT, epsilon=0.5)
    assert engine.asked == 1, "one charge, one try"
    with pytest.raises(EngineFailure):
        table.ask(COUNT, epsilon=0.5, attempt=2)
    assert ledger.status("visits").spent_epsilon == 1.0


def test_an_error_on_top_of_a_failure_does_not_carry_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease has ended when the engine fails: the second error must not show the first one below it."""

    def lost(self: Ledger, charge: Charge) -> Charge:
        raise LeaseLost("another process ended it.")

    monkeypatch.setattr(Ledger, "forfeit", lost)
    table = private(Broken(), opened(PureBudget(1.0)))
    with pytest.raises(LeaseLost) as problem:
        table.ask(COUNT, epsilon=0.5)
    assert "John" not in "".join(traceback.format_exception(problem.value))


def test_a_question_that_somebody_else_is_being_answered_is_not_run_twice() -> None:
    ledger = opened(PureBudget(1.0))
    problems: list[BaseException] = []

    def at_the_same_time() -> None:
        other = Broken()
        with pytest.raises(StillRunning) as problem:
            private(other, ledger).ask(COUNT, epsilon=0.5)
        assert other.asked == 0
        problems.append(problem.value)

    with pytest.raises(EngineFailure):
        private(Broken(at_the_same_time), ledger).ask(COUNT, epsilon=0.5)
    assert len(problems) == 1
    assert ledger.status("visits").spent_epsilon == 0.5


BEFORE: dict[str, Callable[[PrivateTable], object]] = {
    "epsilon 0": lambda t: t.ask(COUNT, epsilon=0.0),
    "epsilon negative": lambda t: t.ask(COUNT, epsilon=-1.0),
    "epsilon subnormal": lambda t: t.ask(COUNT, epsilon=5e-324),
    "epsilon nan": lambda t: t.ask(COUNT, epsilon=math.nan),
    "epsilon infinite": lambda t: t.ask(COUNT, epsilon=math.inf),
    "epsilon huge": lambda t: t.ask(COUNT, epsilon=1e300),
    "epsilon text": lambda t: t.ask(COUNT, epsilon="1"),  # type: ignore[arg-type]
    "no epsilon": lambda t: t.ask(COUNT),
    "rho for laplace": lambda t: t.ask(COUNT, rho=0.5),
    "delta for nothing": lambda t: t.ask(COUNT, epsilon=0.5, delta=1e-6),
    "delta 0": lambda t: t.ask(Query((Count(),), by=("city",)), epsilon=0.5, delta=0.0),
    "delta 1": lambda t: t.ask(Query((Count(),), by=("city",)), epsilon=0.5, delta=1.0),
    "no delta for undeclared keys": lambda t: t.ask(Query((Count(),), by=("city",)), epsilon=0.5),
    "gaussian without delta": lambda t: t.ask(COUNT, epsilon=0.5, mechanism="gaussian"),
    "gaussian by both": lambda t: t.ask(COUNT, epsilon=0.5, rho=0.1, mechanism="gaussian"),
    "gaussian on a pure budget": lambda t: t.ask(COUNT, rho=0.1, mechanism="gaussian"),
    "unknown mechanism": lambda t: t.ask(COUNT, epsilon=0.5, mechanism="uniform"),
    "attempt 0": lambda t: t.ask(COUNT, epsilon=0.5, attempt=0),
    "a text": lambda t: t.ask("SELECT count(*) FROM visits", epsilon=0.5),  # type: ignore[arg-type]
    "unknown column": lambda t: t.ask(Query((Sum("agee"),)), epsilon=0.5),
    "unknown column in where": lambda t: t.ask(Query((Count(),), where=Compare("a", "=", 1)), epsilon=0.5),
    "unknown column in by": lambda t: t.ask(Query((Count(),), by=("a",)), epsilon=0.5),
    "sum of texts": lambda t: t.ask(Query((Sum("ward"),)), epsilon=0.5),
    "histogram of texts": lambda t: t.ask(Query((Histogram("ward", (0, 1)),)), epsilon=0.5),
    "number as text": lambda t: t.ask(Query((Count(),), where=Compare("age", ">", "65")), epsilon=0.5),
    "text as number": lambda t: t.ask(Query((Count(),), where=Compare("ward", "=", 1)), epsilon=0.5),
    "boolean as number": lambda t: t.ask(Query((Count(),), where=Compare("well", "=", 1)), epsilon=0.5),
    "number as boolean": lambda t: t.ask(Query((Count(),), where=Compare("kids", "=", True)), epsilon=0.5),
    "order of texts": lambda t: t.ask(Query((Count(),), where=Compare("ward", "<", "b")), epsilon=0.5),
    "groups of numbers": lambda t: t.ask(Query((Count(),), by=("age",)), epsilon=0.5),
    "too many candidates": lambda t: t.ask(
        Query((Quantile("age", 0.5, candidates=tuple(range(2000))),)), epsilon=0.5
    ),
}


@pytest.fixture(scope="module")
def uncharged() -> PrivateTable:
    return table_of(PureBudget(1.0))


@pytest.mark.parametrize("name", BEFORE)
def test_what_does_not_fit_is_refused_before_any_charge(name: str, uncharged: PrivateTable) -> None:
    with pytest.raises((InvalidInput, UnsupportedEvent)):
        BEFORE[name](uncharged)
    assert len(uncharged._ledger.history("visits")) == 2, "not even an entry"


def test_a_misspelt_column_is_guessed() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'age'"):
        table_of(PureBudget(1.0)).ask(Query((Sum("agee"),)), epsilon=0.5)


UNIT: dict[str, Query] = {
    "where": Query((Count(),), where=Compare("pid", "=", "p7")),
    "by": Query((Count(),), by=("pid",)),
    "count": Query((Count("pid"),)),
}


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("name", UNIT)
@pytest.mark.parametrize("declared", [True, False])
def test_the_unit_column_is_never_asked_about(name: str, declared: bool) -> None:
    columns = COLUMNS | ({"pid": Column(kind="category")} if declared else {})
    table = table_of(PureBudget(1.0), unit_column="pid", rows_per_unit=2, columns=columns)
    with pytest.raises(PrivacyRefusal, match="single visit"):
        table.ask(UNIT[name], epsilon=0.5)
    answer = table.ask(Query((CountUnits(), Count())), epsilon=1.0)
    assert abs(answer.value("units") - 150) < 60
    assert abs(answer.value("count") - 300) < 120


# --- groups ----------------------------------------------------------------------------------------------


def test_declared_keys_are_answered_whether_or_not_they_occur() -> None:
    table = table_of(PureBudget(1000.0))
    answer = table.ask(Query((Count(),), by=("ward", "well")), epsilon=500)
    keys = [row.keys for row in answer.rows]
    assert keys == [(ward, well) for ward in ("north", "south", "closed") for well in (False, True)]
    assert [row.values[0].value for row in answer.rows] == [100, 100, 50, 50, 0, 0]  # type: ignore[union-attr]
    noisy = [table.ask(Query((Count(),), by=("ward",)), epsilon=0.1, attempt=n).value(keys=("closed",))
             for n in range(1, 11)]  # fmt: skip
    assert len(set(noisy)) > 1, "an absent key gets noise like any other"


def test_undeclared_keys_are_shown_where_they_are_many() -> None:
    table = table_of(ApproximateBudget(10.0, 1e-5))
    answer = table.ask(Query((Count(), Mean("age")), by=("city",)), epsilon=3.0, delta=1e-9)
    assert [row.keys for row in answer.rows] == [("big",)], "no village of one is named"
    assert abs(answer.value("count", ("big",)) - 290) < 40
    assert (answer.epsilon, answer.delta) == (3.0, 1e-9)
    assert "at least 15 (delta 1e-09)" in answer.mechanism[-1]
    assert "Groups whose noisy number of units (visit) is below 15 are not shown." in answer.notes()
    status = table._ledger.status("visits")
    assert status.spent == (3 * 10**12, 10**9)


def test_unknown_values_belong_to_no_group() -> None:
    frame = FRAME.assign(ward=pd.Series(["north", None, "elsewhere"] * 100))
    ledger = opened(PureBudget(1000.0))
    register_table(frame, ledger=ledger, dataset="visits", accept_missing=["ward"], accept_outside=["ward"])
    table = PrivateTable(frame, ledger=ledger, dataset="visits")
    answer = table.ask(Query((Count(),), by=("ward",)), epsilon=500)
    assert [row.values[0].value for row in answer.rows] == [100, 0, 0]  # type: ignore[union-attr]


def test_a_quantile_says_how_far_its_rank_may_be_off() -> None:
    answer = table_of(PureBudget(10.0)).ask(Query((Quantile("age", 0.5),)), epsilon=2.0)
    found = answer.estimate()
    assert not isinstance(found, tuple)
    assert (found.low, found.high) == (None, None)
    assert found.rank_error == 5
    assert "rank ± 5" in answer.to_text()
    assert not any("Intervals" in note for note in answer.notes())


# --- kinds of budgets and noise --------------------------------------------------------------------------

ALL = Query((Count(), Sum("kids"), Mean("age"), Variance("age"), Quantile("age", 0.5)), by=("ward",))
BUDGETS: dict[str, Budget] = {
    "pure": PureBudget(10.0),
    "approximate": ApproximateBudget(10.0, 1e-5),
    "zcdp": ZeroConcentratedBudget(20.0, 1e-5, 1e-6),
    "renyi": RenyiBudget(20.0, 1e-5),
}
WAYS: dict[str, dict[str, Any]] = {
    "laplace": {"epsilon": 1.0},
    "rho": {"rho": 0.1, "mechanism": "gaussian"},
    "gaussian": {"epsilon": 1.0, "delta": 1e-7, "mechanism": "gaussian"},
}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("way", WAYS)
def test_every_noise_on_every_budget(budget: str, way: str) -> None:
    table = table_of(BUDGETS[budget])
    if (budget, way) in (("pure", "rho"), ("pure", "gaussian"), ("approximate", "rho")):
        with pytest.raises((UnsupportedEvent, InvalidInput)):
            table.ask(ALL, **WAYS[way])
        return
    answer = table.ask(ALL, **WAYS[way])
    assert len(answer.rows) == 3
    assert table.ask(ALL, **WAYS[way]).repeated
    spent = table._ledger.status("visits").spent_epsilon
    assert spent > 0.0
    if "epsilon" in WAYS[way] and budget in ("pure", "approximate"):
        assert spent <= 1.0, "never more than was asked for"


def test_opendp_draws_the_noise_if_asked_to() -> None:
    ledger = opened(PureBudget(1000.0))
    try:
        table = private(FRAME, ledger, noise="opendp")
    except MissingExtra:
        pytest.skip("opendp is not installed")
    assert table.ask(COUNT, epsilon=500).value() == 300


def test_public_numbers_cost_nothing() -> None:
    table = table_of(PureBudget(1.0), adjacency="replace-one", public_records=300)
    answer = table.ask(COUNT, epsilon=0.5)
    found = answer.estimate()
    assert not isinstance(found, tuple)
    assert (found.value, found.low, found.high) == (300, 300, 300)
    assert (answer.epsilon, answer.remaining) == (0.0, 1.0)
    half = table.ask(Query((Count(),), where=Compare("age", ">=", 0)), epsilon=0.5)
    assert half.remaining == 0.5


def test_public_numbers_cost_no_delta() -> None:
    table = table_of(ApproximateBudget(1.0, 1e-6), adjacency="replace-one", public_records=300)
    table.ask(COUNT, epsilon=0.5, delta=1e-7, mechanism="gaussian")
    assert table._ledger.status("visits").spent == (0, 0)


def test_blocks_are_charged_in_parallel() -> None:
    ledger = opened(PureBudget(1.0), blocks=("east", "west"))
    for block, frame in (("east", FRAME[:150]), ("west", FRAME[150:])):
        table = private(frame, ledger, block=block)
        assert table.ask(COUNT, epsilon=0.75).remaining == 0.25
    assert ledger.status("visits").spent_epsilon == 0.75
    with pytest.raises(Conflict, match="registered as 'east'"):
        PrivateTable(FRAME[:150], ledger=ledger, dataset="visits", block="west")
    with pytest.raises(Conflict, match="registered as 'east'"):
        register_table(FRAME[:150], ledger=ledger, dataset="visits", block="west")


def test_the_same_table_has_no_second_budget(tmp_path: Path) -> None:
    ledger = opened(PureBudget(1.0))
    ledger.open_dataset("again", ledger.policy("visits"))
    path = tmp_path / "visits.parquet"
    FRAME.to_parquet(path)
    for data in (FRAME, path):  # two contents: a file is known by its bytes
        table = private(data, ledger)
        table.price(COUNT, epsilon=0.25)
        for _ in range(2):
            table.ask(COUNT, epsilon=0.25)
        with pytest.raises(Conflict, match="already open as 'visits'"):
            register_table(data, ledger=ledger, dataset="again")
        with pytest.raises(PrivacyRefusal, match="not registered as 'again'"):
            PrivateTable(data, ledger=ledger, dataset="again")
    assert [entry.kind for entry in ledger.history("again")] == ["open"]
    kinds = [entry.kind for entry in ledger.history("visits")]
    assert kinds == ["open", *2 * ["content", "reserve", "settle"]]


# --- data ------------------------------------------------------------------------------------------------


def sources(folder: Path) -> dict[str, Callable[[], object]]:
    def written(name: str, write: Callable[[Path], object]) -> Path:
        write(folder / name)
        return folder / name

    return {
        "pandas": lambda: FRAME,
        "polars": lambda: pl.from_pandas(FRAME),
        "arrow": lambda: pa.Table.from_pandas(FRAME),
        "parquet": lambda: written("visits.parquet", FRAME.to_parquet),
        "csv": lambda: written("visits.csv", lambda path: FRAME.to_csv(path, index=False)),
        "tsv": lambda: str(written("visits.tsv", lambda path: FRAME.to_csv(path, index=False, sep="\t"))),
    }


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "parquet", "csv", "tsv"])
def test_the_answer_is_the_same_from_every_kind_of_table(kind: str, tmp_path: Path) -> None:
    query = Query((Count(), Sum("age"), Mean("kids"), CountUnits()), by=("ward", "well"))
    columns = COLUMNS | {"age": Column(kind="number", lower=0, upper=100, step=1)}
    table = table_of(
        PureBudget(1e6), sources(tmp_path)[kind](), unit_column="pid", rows_per_unit=2, columns=columns
    )
    with table:
        answer = table.ask(query, epsilon=1e6)
    assert [[item.value for item in row.values] for row in answer.rows] == EXPECTED  # type: ignore[union-attr]


def expected() -> list[list[float]]:
    rows = []
    for ward in ("north", "south", "closed"):
        for well in (False, True):
            part = FRAME[(FRAME.ward == ward) & (FRAME.well == well)]
            mean = part.kids.mean() if len(part) else 4.0
            rows.append([len(part), int(part.age.sum()), mean, part.pid.nunique()])
    return rows


EXPECTED = expected()


def test_an_answer_is_found_by_name_and_group() -> None:
    answer: Answer = table_of(PureBudget(1e6)).ask(
        Query((Count(), Histogram("age", (0, 50, 99))), by=("ward",), names=("n", "ages")), epsilon=1e5
    )
    assert answer.value("n", ("south",)) == 100
    assert answer.value("ages", ("north",)) == (100, 100)
    with pytest.raises(InvalidInput, match="n, ages"):
        answer.value("count", ("south",))
    with pytest.raises(InvalidInput, match="group"):
        answer.value("n", ("west",))
    lines = [line.split() for line in answer.to_text().splitlines()]
    assert lines[0] == ["ward", "bin", "n", "ages"]
    assert any(line[:3] == ["north", "[50,", "99]"] for line in lines)
