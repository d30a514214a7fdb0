"""The plan of a question: the requested price, releases that match their events, stable requests."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from query_oracles import policy_of

from tacit.accounting.closed_form import pure_cost
from tacit.accounting.renyi import zcdp_cost
from tacit.errors import InvalidInput
from tacit.events import (
    Compose,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Repeat,
    ZeroConcentratedDP,
)
from tacit.ledger import Column, Policy
from tacit.queries.measures import Pair, Rows, Squares, Units, threshold
from tacit.queries.plan import Compiled, compile_query
from tacit.queries.query import (
    And,
    Compare,
    Count,
    CountUnits,
    Histogram,
    Mean,
    Quantile,
    Query,
    StandardDeviation,
    Sum,
    Variance,
)

COLUMNS = {
    "age": Column(kind="number", lower=0, upper=100),
    "stay": Column(kind="integer", lower=10, upper=21),
    "ward": Column(kind="category", values=("b", "a")),
    "city": Column(kind="category"),
    "well": Column(kind="boolean"),
    "year": Column(kind="integer", values=(2024, 2023)),
}
ONE: dict[str, Any] = {"rows_per_unit": 1}
THREE: dict[str, Any] = {"unit_column": "pid", "rows_per_unit": 3, "groups_per_unit": 2}


def policy(adjacency: str = "add-remove", **fields: Any) -> Policy:
    return policy_of(COLUMNS, adjacency, **fields)


QUERIES = {
    "count": Query((Count(),), where=Compare("age", ">", 65)),
    "count by": Query((Count(),), by=("ward",)),
    "units by": Query((CountUnits(),), by=("ward",)),
    "sum": Query((Sum("stay"),)),
    "mean": Query((Mean("age"),)),
    "variances": Query((Variance("age"), StandardDeviation("stay")), by=("well",)),
    "quantile": Query((Quantile("age", 0.9),), by=("ward",)),
    "many": Query(
        (Count(), Sum("stay"), Quantile("stay", 1.0), Histogram("age", (0, 50, 100)), CountUnits())
    ),
}
ADJACENCIES = ["add-remove", "replace-one", "zero-out"]
LIMITS: dict[str, dict[str, Any]] = {"one": ONE, "three": THREE}


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_costs_what_was_asked_and_never_more(name: str, adjacency: str, limit: str) -> None:
    rules = policy(adjacency, **LIMITS[limit])
    compiled = compile_query(QUERIES[name], rules, epsilon=0.7)
    if compiled.event == Compose(()):
        pytest.fail("none of these is public")
    found = pure_cost(compiled.event, rules.relation)
    assert found is not None
    assert Fraction(7, 10) * (1 - Fraction(1, 10**13)) <= found[0] <= Fraction(7, 10)
    assert found[1] == 0
    by_rho = compile_query(QUERIES[name], rules, rho=0.3, mechanism="gaussian")
    spent, leak = zcdp_cost(by_rho.event, rules.relation)
    assert 0.3 * (1 - 1e-9) <= spent <= 0.3 * (1 + 1e-9)
    assert leak == 0


def test_releases_are_what_their_events_say() -> None:
    compiled = compile_query(QUERIES["many"], policy(**THREE), epsilon=1.0)
    laws = [(release.law, type(release.event)) for release in compiled.releases]
    assert [law for law, _ in laws] == ["laplace", "laplace", "choice", "laplace", "laplace"]
    assert {kind for law, kind in laws if law == "laplace"} == {DiscreteLaplace}
    assert compiled.event == Compose(tuple(release.event for release in compiled.releases))
    choice = compiled.releases[2].event
    assert isinstance(choice, ExponentialMechanism)
    assert 0.2 * (1 - 1e-14) < choice.epsilon <= 0.2
    assert compiled.releases[0].event == DiscreteLaplace(15.0, 3), "3 rows of a unit, a fifth of epsilon"
    by_group = compile_query(QUERIES["units by"], policy(**THREE), rho=0.5, mechanism="gaussian")
    sigma = float(by_group.releases[0].scale)
    assert by_group.event == Repeat(DiscreteGaussian(sigma, 1), 2)
    assert sigma == pytest.approx(2**0.5), "the root of two groups"


def test_what_two_aggregates_need_is_measured_once() -> None:
    parts = compile_query(
        Query((Mean("age"), Variance("age"), StandardDeviation("age"), Count("age"))), policy(), epsilon=1.0
    )
    assert [type(release.measure) for release in parts.releases] == [Pair, Squares]
    assert {float(release.bound.whole / release.scale) for release in parts.releases} == {1 / 2}
    row_is_unit = compile_query(Query((Count(), CountUnits())), policy(), epsilon=1.0)
    assert [release.measure for release in row_is_unit.releases] == [Rows()]


def test_declared_groups_come_in_the_policys_order() -> None:
    compiled = compile_query(Query((Count(),), by=("ward", "well", "year")), policy(), epsilon=1.0)
    assert compiled.groups is not None
    assert compiled.groups[:3] == (("b", False, 2024), ("b", False, 2023), ("b", True, 2024))
    assert len(compiled.groups) == 8
    assert compile_query(Query((Count(),)), policy(), epsilon=1.0).groups == ((),)


def test_too_many_groups_are_refused() -> None:
    many = {f"c{n}": Column(kind="integer", values=tuple(range(100))) for n in range(3)}
    with pytest.raises(InvalidInput, match="1000000 groups"):
        compile_query(Query((Count(),), by=tuple(many)), policy(columns=many), epsilon=1.0)


def test_the_threshold_counts_units_in_all_their_groups() -> None:
    query = Query((Mean("age"),), by=("city", "ward"))
    compiled = compile_query(query, policy(**THREE), epsilon=1.0, delta=1e-6)
    gate = compiled.release(Units())
    assert compiled.groups is None
    assert compiled.threshold is not None
    assert (compiled.threshold.gate, gate.bound.whole, gate.bound.each) == (Units(), 2, 1)
    assert compiled.threshold.value == threshold("laplace", gate.scale, each=1, groups=2, delta=1e-6)
    found = pure_cost(compiled.event, policy().relation)
    assert found is not None
    assert found[1] == Fraction(1, 10**6)
    by_rho = compile_query(query, policy(**THREE), rho=0.5, delta=1e-6, mechanism="gaussian")
    assert by_rho.threshold is not None
    sigma = by_rho.release(Units()).scale
    assert by_rho.threshold.value == threshold("gaussian", sigma, each=1, groups=2, delta=1e-6)
    halves = compile_query(query, policy(**THREE), epsilon=1.0, delta=1e-6, mechanism="gaussian")
    assert halves.threshold is not None
    assert halves.threshold.delta == 5e-7
    assert halves.charge_delta == 1e-6


def requests(*compiled: Compiled) -> set[str]:
    return {json.dumps(each.request("v"), sort_keys=True) for each in compiled}


def test_the_same_question_makes_the_same_request() -> None:
    a, b = Compare("age", ">", 65), Compare("stay", "=", 12)
    same = requests(
        compile_query(Query((Count(),), where=And((a, b))), policy(), epsilon=1),
        compile_query(Query((Count(),), where=And((b, a)), table="t", names=("n",)), policy(), epsilon=1.0),
    )
    assert len(same) == 1
    one = Query((Count(),), where=a)
    different = [
        compile_query(one, policy(), epsilon=1.0),
        compile_query(one, policy(), epsilon=0.5),
        compile_query(one, policy(), epsilon=1.0, delta=1e-6, mechanism="gaussian"),
        compile_query(one, policy(), epsilon=1.0, delta=1e-7, mechanism="gaussian"),
        compile_query(one, policy(), rho=1.0, mechanism="gaussian"),
        compile_query(Query((Count(),), where=b), policy(), epsilon=1.0),
    ]
    assert len(requests(*different)) == len(different)
    first = different[0]
    others = [
        first.request("w"),
        first.request("v", block="east"),
        first.request("v", attempt=2),
        first.request("v"),
    ]
    assert len({json.dumps(each, sort_keys=True) for each in others}) == 4


@pytest.mark.parametrize(("adjacency", "moved"), [("add-remove", 1), ("replace-one", 2)])
def test_gaussian_noise_on_groups_is_charged_by_its_divergences(adjacency: str, moved: int) -> None:
    """rho (2 sigma^2) is the square of what neighbours differ by, for whoever is in several groups."""
    query = Query((Count(),), by=("ward",))
    plan = compile_query(query, policy(adjacency, **THREE), rho=0.125, mechanism="gaussian")
    (release,) = plan.releases
    assert (release.bound.squared, release.moved) == (9, moved)
    assert isinstance(plan.event, ZeroConcentratedDP)
    exact = Fraction(9 * moved**2) / (2 * release.scale**2)
    assert exact <= Fraction(plan.event.rho) <= exact * (1 + Fraction(1, 10**12))
    assert plan.event.rho <= 0.125 * (1 + 1e-12)
