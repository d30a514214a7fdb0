"""Estimators on a table that stays where it is: the model in memory, one charge, clear errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.accounting import account
from tacit.columns import Column
from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor
from tacit.ledger import ApproximateBudget, Ledger, Policy
from tacit.models.additive import Moments
from tacit.plan import LossReport, Plan
from tacit.queries.engines import DuckDBEngine, EngineFailure
from tacit.queries.moments import TableMoments
from tacit.training import least_squares
from tacit.training.least_squares import TableSession, noise_of_sums

ROWS = 4000
COLUMNS = {
    "age": {"kind": "number", "lower": 0, "upper": 100, "bins": 5},
    "ward": {"kind": "category", "values": ["a", "b"]},
}
SETTINGS: dict[str, Any] = {
    "epsilon": 1.0, "delta": 1e-6, "unit": "visit", "adjacency": "add-remove", "records": ROWS,
    "head": "least-squares", "columns": COLUMNS,
}  # fmt: skip


@pytest.fixture(scope="module")
def visits() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    age, ward = draw.uniform(-5, 110, ROWS), draw.choice(["a", "b", "c"], ROWS)
    cost = 3 * age / 100 + (ward == "a") + draw.normal(0, 0.2, ROWS)
    return pd.DataFrame(
        {"age": age, "ward": ward, "cost": cost, "dear": cost > 1.5, "person": draw.integers(0, 2000, ROWS)}
    )


@pytest.fixture(scope="module")
def file(visits: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("visits") / "visits.parquet"
    visits.to_parquet(path)
    return path


def no_noise(sigma: object, size: int, **_: object) -> list[int]:
    return [0] * size


def exact_weights(model: Any, visits: pd.DataFrame, targets: torch.Tensor, *, classes: bool) -> torch.Tensor:
    """The model in memory without noise: gradients of its loss over all records, as its one step takes."""
    inputs = torch.from_numpy(model.encoder_.frame(visits[list(COLUMNS)]))
    moments = Moments(inputs.shape[1], 2 if classes else 1, normalise=classes, classes=classes).double()
    moments(inputs.double(), targets).sum().backward()
    for weight in moments.parameters():
        assert weight.grad is not None
        weight.data = -weight.grad / ROWS
    solved = moments.solve(records=ROWS, noise_multiplier=model.plan_.noise_multiplier)
    weights: torch.Tensor = solved.linear.weight.detach()
    return weights


def test_without_noise_a_regressor_is_the_one_in_memory(
    visits: pd.DataFrame, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(least_squares, "rounded_gaussian", no_noise)
    model = PrivateRegressor(target_bounds=(-1, 6), **SETTINGS).fit(file, "cost")
    targets = torch.from_numpy((visits[["cost"]].clip(-1, 6).to_numpy() + 1) / 3.5 - 1)
    expected = exact_weights(model, visits, targets, classes=False)
    torch.testing.assert_close(model.model_.linear.weight.double(), expected.double(), rtol=1e-3, atol=1e-3)


def test_without_noise_a_classifier_is_the_one_in_memory(
    visits: pd.DataFrame, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(least_squares, "rounded_gaussian", no_noise)
    model = PrivateClassifier(classes=[True, False], **SETTINGS).fit(str(file), "dear")
    targets = torch.tensor(visits.dear.tolist()).long()
    expected = exact_weights(model, visits, targets, classes=True)
    torch.testing.assert_close(model.model_.linear.weight.double(), expected.double(), rtol=1e-3, atol=1e-3)
    assert model.classes_.tolist() == [False, True]


def test_with_noise_it_is_as_good_and_costs_the_same(visits: pd.DataFrame, file: Path) -> None:
    X = visits[list(COLUMNS)]
    near = PrivateRegressor(target_bounds=(-1, 6), **SETTINGS).fit(X, visits.cost)
    there = PrivateRegressor(target_bounds=(-1, 6), **SETTINGS).fit(file, "cost")
    assert there.plan_ == near.plan_
    assert there.epsilon_ == near.epsilon_ <= 1.0
    assert there.score(X, visits.cost) > near.score(X, visits.cost) - 0.05
    of_people = PrivateRegressor(target_bounds=(-1, 6), **SETTINGS | {"records": 2000}).fit(
        file, "cost", owners="person"
    )
    assert of_people.score(X, visits.cost) > 0.85
    assert [curve.name for curve in there.curves_] == list(COLUMNS)
    data, same = there.statement_.data, near.statement_.data
    assert {**data["guarantee"], **data["mechanism"]} == {**same["guarantee"], **same["mechanism"]}
    assert data["event"] == same["event"]
    assert data["data"] == "a table in DuckDB, as 9 features by declared columns"


@pytest.mark.parametrize("share", [0.5, 0.2])
@pytest.mark.parametrize("noise", [0.31, 3.73071, 250.0])
def test_the_noise_hides_what_one_unit_adds(noise: float, share: float) -> None:
    """No contribution with matrices of norm N moves the sums by more than 1 / noise, exactly."""
    bound = 1 << 30
    square, product, cross = noise_of_sums(noise, bound, share)
    most = Fraction(bound**2, min(square**2, 2 * product**2)) + Fraction(bound**2, cross**2)
    assert most <= 1 / Fraction(noise) ** 2
    assert float(most * Fraction(noise) ** 2) > 1 - 1e-6  # and not a step more than needed


def test_the_noise_is_on_each_sum(visits: pd.DataFrame, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many sums the noise has the scale of the plan's price, on squares and on products."""
    plan = Plan.with_noise(
        noise_multiplier=2.0,
        delta=1e-6,
        records=ROWS,
        steps=1,
        clipping=1.0,
        adjacency="add-remove",
        unit="v",
    )

    class Empty:
        bound, radii = 1 << 30, (1.0, 1.0)

        def describe(self) -> str:
            return "a table of zeros"

        def check(self) -> None: ...
        def content(self) -> list[bytes]:
            return []

        def sums(self) -> tuple[list[int], list[int]]:
            return [0] * (301 * 302 // 2), [0] * 301

    moments = Moments(300, 1)
    TableSession(Empty(), plan, moments).solve()
    gram = moments.gram.weight.detach().double() * ROWS / math.sqrt(0.5) * (1 + 1e-6) ** 2 / 2**30
    square = 2.0 / math.sqrt(0.5)
    assert torch.equal(gram, gram.T)
    assert float(gram.diagonal().std()) == pytest.approx(square, rel=0.2)
    assert float(gram[torch.tril_indices(301, 301, -1).unbind()].std()) == pytest.approx(
        square / math.sqrt(2), rel=0.03
    )
    cross = moments.cross.weight.detach().double() * ROWS / math.sqrt(0.5) * (1 + 1e-6) / 2**30
    assert float(cross.std()) == pytest.approx(square, rel=0.2)
    assert account(plan.event, adjacency="add-remove").epsilon(1e-6) == pytest.approx(plan.epsilon)


def test_a_plan_of_another_release_is_refused() -> None:
    settings: dict[str, Any] = {
        "noise_multiplier": 2.0, "delta": 1e-6, "records": 9, "clipping": 1.0, "adjacency": "add-remove",
        "unit": "v",
    }  # fmt: skip
    for more in ({"steps": 2}, {"steps": 1, "batch_size": 3}, {"steps": 1, "clipping": 2.0}):
        with pytest.raises(InvalidInput, match=r"steps=1 and clipping=1.0"):
            TableSession(None, Plan.with_noise(**settings | more), Moments(1, 1))  # type: ignore[arg-type]
    reporting = Plan.with_noise(**settings, steps=1, loss_report=LossReport(1.0))
    assert TableSession(None, reporting, Moments(1, 1)).plan.gradient_noise_multiplier > 2.0  # type: ignore[arg-type]


# --- the ledger, and what goes wrong ---------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[str]:
    url = str(tmp_path / "budget.db")
    opened = Ledger.create(url)
    for name, column in (("visits", None), ("people", "person")):
        policy = Policy(
            unit="visit", adjacency="add-remove", budget=ApproximateBudget(2.5, 1e-5), unit_column=column
        )
        opened.open_dataset(name, policy)
    yield url
    opened.close()


def spent(url: str, dataset: str = "visits") -> float:
    return float(Ledger.open(url).status(dataset).spent_epsilon)


def test_a_fit_is_one_charge(file: Path, ledger: str) -> None:
    model = PrivateRegressor(target_bounds=(-1, 6), **SETTINGS, ledger=ledger, dataset="visits")
    for fits in (1, 2):
        model.fit(file, "cost")
        assert spent(ledger) == pytest.approx(fits, rel=1e-4)
    assert model.statement_.data["ledger"]["steps"] == 1
    with pytest.raises(BudgetExceeded):
        model.fit(file, "cost")
    assert spent(ledger) == pytest.approx(2, rel=1e-4)


def test_owners_are_those_of_the_policy(file: Path, ledger: str) -> None:
    model = PrivateRegressor(target_bounds=(-1, 6), **SETTINGS, ledger=ledger, dataset="people")
    with pytest.raises(PrivacyRefusal, match="may have several"):
        model.fit(file, "cost")
    with pytest.raises(PrivacyRefusal, match="different people"):
        model.fit(file, "cost", owners="dear")
    assert spent(ledger, "people") == 0
    model.fit(file, "cost", owners="person")
    assert spent(ledger, "people") == pytest.approx(1, rel=1e-4)


def test_a_table_that_fails_in_the_middle_keeps_its_charge_and_shows_nothing(
    visits: pd.DataFrame, ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "visits.parquet"
    visits.to_parquet(path)
    sums = TableMoments.sums

    def broken(self: TableMoments) -> Any:
        path.write_bytes(path.read_bytes()[:-20_000])
        return sums(self)

    monkeypatch.setattr(TableMoments, "sums", broken)
    model = PrivateRegressor(target_bounds=(-1, 6), **SETTINGS, ledger=ledger, dataset="visits")
    with pytest.raises(EngineFailure, match="the charge stays"):
        model.fit(path, "cost")
    assert not hasattr(model, "model_")
    assert spent(ledger) == pytest.approx(1, rel=1e-4)


def test_a_file_that_changes_while_it_is_read_is_refused(
    visits: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "visits.parquet"
    visits.to_parquet(path)
    rows = DuckDBEngine.rows

    def changing(self: DuckDBEngine, statement: Any) -> Any:
        found = rows(self, statement)
        if len(statement.tree.expressions) > 20:
            visits.head(100).to_parquet(path)
        return found

    monkeypatch.setattr(DuckDBEngine, "rows", changing)
    with pytest.raises(InvalidInput, match="has changed since it was opened"):
        PrivateRegressor(target_bounds=(-1, 6), **SETTINGS).fit(path, "cost")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"age": [None, 1.0]}, r"1 of 2 rows lack a value in column 'age'"),
        ({"cost": [None, 1.0]}, r"1 of 2 rows lack a value in column 'cost'"),
        ({"age": [1e6, 2e6]}, r"2 of 2 rows lie outside the bounds of column 'age'"),
        ({"age": []}, "no rows"),
        ({"age": ["x", "1"]}, r"1 values of column 'age' cannot be read as declared"),
        ({"person": [None, "p"]}, r"1 of 2 rows have no value in the unit column"),
        ({"other": [1, 2]}, None),
    ],
)
def test_a_table_that_cannot_be_encoded_is_refused_before_any_charge(
    changed: dict[str, list[Any]], message: str | None, ledger: str, tmp_path: Path
) -> None:
    rows = len(next(iter(changed.values())))
    usual = {"age": [1.0, 2.0], "ward": ["a", "z"], "cost": [1.0, 2.0], "person": ["p", "q"]}
    path = tmp_path / "small.parquet"
    frame = pd.DataFrame({**usual, **(changed if rows else {})})
    frame.head(rows).to_parquet(path)
    model = PrivateRegressor(target_bounds=(-1, 6), **SETTINGS, ledger=ledger, dataset="people")
    if message is None:
        model.fit(path, "cost", owners="person")
        return
    with pytest.raises(InvalidInput, match=message):
        model.fit(path, "cost", owners="person")
    assert spent(ledger, "people") == 0


def test_labels_that_are_not_declared_are_refused(file: Path) -> None:
    with pytest.raises(InvalidInput, match=r"label in 'ward' that is not declared\. Declare every class"):
        PrivateClassifier(classes=["a", "b"], **SETTINGS | {"columns": {"age": COLUMNS["age"]}}).fit(
            file, "ward"
        )


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({"head": "dp-sgd"}, {}, 'head must be "least-squares"'),
        ({"records": None}, {}, "records must be declared"),
        ({"columns": None}, {}, "columns must be declared"),
        ({"normalise": True}, {}, "normalise does not apply to a table"),
        ({"rows_per_user": 3}, {"owners": "person"}, "rows_per_user does not apply to a table"),
        ({"model": "additive"}, {}, "additive"),
        ({"hidden": (3,)}, {}, "takes no hidden"),
        ({}, {"y": [1.0]}, "y must be the name of a column"),
        ({}, {"y": "age"}, "also an input in columns"),
        ({}, {"owners": [1]}, "owners must be the name of a column"),
        ({}, {"sample_weight": [1.0]}, "sample_weight does not apply to a table"),
        ({}, {"y": "price"}, "no column 'price'"),
        ({"columns": {"ward": {"kind": "category", "buckets": 8}}}, {}, "buckets"),
    ],
)
def test_settings_that_no_table_can_have_are_refused(
    settings: dict[str, Any], arguments: dict[str, Any], message: str, file: Path
) -> None:
    model = PrivateRegressor(target_bounds=(-1, 6), **SETTINGS | settings)
    with pytest.raises(InvalidInput, match=message):
        model.fit(file, **{"y": "cost", **arguments})


def test_an_engine_of_the_users_own_stays_open(file: Path, visits: pd.DataFrame) -> None:
    from tacit.ledger import PureBudget

    columns = {"age": Column(kind="number", lower=0, upper=100), "ward": Column(kind="category")}
    cost = {"cost": Column(kind="number", lower=-1, upper=6)}
    policy = Policy(unit="v", adjacency="add-remove", budget=PureBudget(1.0), columns=columns | cost)
    engine = DuckDBEngine(visits, policy)
    for _ in range(2):
        model = PrivateRegressor(target_bounds=(-1, 6), **SETTINGS).fit(engine, "cost")
    assert model.score(visits[list(COLUMNS)], visits.cost) > 0.8
