"""The curator's view: who spent what adds up, and the page shows it to everybody."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tacit.events import DiscreteLaplace, Event, Gaussian, PoissonSampled, Repeat
from tacit.ledger import ApproximateBudget, Budget, Ledger, Policy, PureBudget, Refused, RenyiBudget
from tacit.ledger.records import current_user
from tacit.report.spending import curator_chart, curator_page, curator_view

COUNT = DiscreteLaplace(scale=20.0)
TRAINING = Repeat(PoissonSampled(0.01, Gaussian(2.0)), 100)


def opened(budget: Budget, **changes: Any) -> Ledger:
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=budget, **changes))
    return ledger


def spend(ledger: Ledger, event: Event, key: str, by: str = "", **more: Any) -> None:
    ledger.settle(ledger.reserve("visits", event, key=key, request={}, by=by, **more), 1)


def only(ledger: Ledger) -> dict[str, Any]:
    (view,) = curator_view(ledger)["datasets"]
    json.dumps(view, allow_nan=False)
    return dict(view)


def test_shares_add_up_to_what_is_spent_and_the_largest_comes_first() -> None:
    ledger = opened(RenyiBudget(3.0, 1e-6))
    spend(ledger, TRAINING, "training/r/1", "grace", label="model")
    for number in range(3):
        spend(ledger, COUNT, f"q{number}", "ada", label="wards" if number else "ages")
    spend(ledger, COUNT, "q9")
    view = only(ledger)
    assert sum(person["share"] for person in view["spenders"]) == pytest.approx(view["share"], rel=1e-12)
    assert [person["share"] for person in view["spenders"]] == sorted(
        (person["share"] for person in view["spenders"]), reverse=True
    )
    people = {person["by"]: person for person in view["spenders"]}
    assert set(people) == {"grace", "ada", current_user()}
    assert people["ada"]["charges"] == 3
    assert set(people["grace"]["labels"]) == {"run r"}
    assert people["ada"]["labels"]["wards"] == pytest.approx(2 * people["ada"]["labels"]["ages"])
    assert set(people[current_user()]["labels"]) == {"query"}
    assert view["spent"]["epsilon"] == ledger.status("visits").spent_epsilon


def test_a_full_budget_has_the_share_one() -> None:
    ledger = opened(PureBudget(0.2))
    for number in range(4):
        spend(ledger, COUNT, f"q{number}", "ada")
    with pytest.raises(Refused):
        spend(ledger, COUNT, "q4", "ada")
    view = only(ledger)
    assert view["share"] == 1.0
    assert view["remaining_epsilon"] == 0.0
    assert len(view["refusals"]) == 1
    assert [point["share"] for point in view["curve"]] == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])


def test_the_dearest_block_is_shown_and_the_slot_that_binds() -> None:
    ledger = opened(ApproximateBudget(1.0, 1e-6), blocks=("a", "b"))
    spend(ledger, COUNT, "q1", "ada", block="a")
    spend(ledger, COUNT, "q2", "ada", block="a")
    spend(ledger, COUNT, "q3", "bob", block="b")
    view = only(ledger)
    assert view["share"] == pytest.approx(0.1)
    spend(ledger, Gaussian(50.0), "q4", "eve", delta=9e-7)
    assert only(ledger)["share"] == pytest.approx(0.9)  # of delta, which is nearer to its cap than epsilon


def test_an_untouched_ledger_and_one_without_data_sets_are_shown() -> None:
    ledger = opened(PureBudget(1.0))
    view = only(ledger)
    assert view["share"] == 0.0
    assert view["spenders"] == []
    assert "Nothing is spent yet" in curator_page(curator_view(ledger))
    assert "No data set is open" in curator_page(curator_view(Ledger.create("sqlite://")))


def test_the_page_names_everybody_escapes_them_and_needs_no_network() -> None:
    ledger = opened(RenyiBudget(3.0, 1e-6))
    for number, name in enumerate(["ada", "bob", "grace", "<b>eve</b>", "joe"]):
        spend(ledger, COUNT, f"q{number}", name, label=f"question {number}")
    page = curator_page(curator_view(ledger))
    for words in (
        "ada",
        "bob",
        "grace",
        "&lt;b&gt;eve&lt;/b&gt;",
        "joe",
        "question 4",
        "color-scheme: light dark",
    ):
        assert words in page
    assert "<b>eve" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert page.count("<svg") == 2, "the logo and the curve"


def test_the_curve_of_many_charges_is_thinned_but_ends_where_it_ends() -> None:
    ledger = opened(PureBudget(100.0))
    for number in range(320):
        ledger.reserve("visits", DiscreteLaplace(scale=100.0), key=f"q{number}", request={})
    view = only(ledger)
    assert 100 <= len(view["curve"]) <= 110
    assert view["curve"][-1]["share"] == pytest.approx(view["share"])
    spent, cap = curator_chart(view).get_lines()
    assert np.size(spent.get_xdata()) == len(view["curve"]) + 1
    assert np.asarray(cap.get_ydata()).tolist() == [100.0, 100.0]
