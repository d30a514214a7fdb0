"""Claims of what other tools released: their price, by an accountant of others, and what a reader sees."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, LaplaceDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant

from tacit.cli.app import run
from tacit.errors import InvalidInput, UnsupportedEvent
from tacit.events import (
    ApproximateDP,
    DiscreteLaplace,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    ZeroConcentratedDP,
)
from tacit.ledger import (
    ApproximateBudget,
    Budget,
    Conflict,
    Ledger,
    Policy,
    PureBudget,
    Refused,
    RenyiBudget,
    ZeroConcentratedBudget,
)
from tacit.report.certificate import check_certificate, make_certificate
from tacit.report.registry import registry_record
from tacit.report.spending import curator_page, curator_view, spendings

BUDGETS = (
    ApproximateBudget(50.0, 1e-4),
    ZeroConcentratedBudget(50.0, 1e-5),
    RenyiBudget(50.0, 1e-5),
    RenyiBudget(50.0, 1e-5, orders=(6.0,)),
)
FACTS: dict[str, Any] = {"tool": "dpmm 0.1.9, MST", "unit": "patient", "adjacency": "add-remove"}


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    made = Ledger.create("sqlite://")
    yield made
    made.close()


def opened(ledger: Ledger, budget: Budget, adjacency: str = "add-remove") -> None:
    records = 1000 if adjacency == "replace-one" else None
    ledger.open_dataset(
        "visits", Policy(unit="patient", adjacency=adjacency, budget=budget, public_records=records)
    )


def claim(ledger: Ledger, event: Event, release: str = "synthetic", **changed: Any) -> Any:
    return ledger.claim("visits", event, release=release, **FACTS | changed)


# --- the price -------------------------------------------------------------------------------------------


def theirs(events: list[Event], adjacency: str, delta: float) -> float:
    """Return epsilon of these claims together, by dp_accounting."""
    # Under replace-one, an exchanged person changes a sum by up to twice what one person adds.
    change = 2.0 if adjacency == "replace-one" else 1.0
    known: list[DpEvent] = []
    for event in events:
        match event:
            case Gaussian(sigma):
                known.append(GaussianDpEvent(sigma / change))
            case Laplace(scale):
                known.append(LaplaceDpEvent(scale / change))
            case ZeroConcentratedDP(rho):  # this noise is rho-zCDP and no less
                known.append(GaussianDpEvent(math.sqrt(1.0 / (2.0 * rho))))
            case ApproximateDP(epsilon):  # this noise is epsilon-DP and no less
                known.append(LaplaceDpEvent(1.0 / epsilon))
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    return float(accountant.compose(ComposedDpEvent(known)).get_epsilon(delta))


def undercharged(budget: Budget, adjacency: str) -> bool:
    """Return whether some claims cost less in the ledger than by dp_accounting."""
    events: list[Event] = [Gaussian(4.0), Laplace(9.0), ZeroConcentratedDP(0.02), ApproximateDP(0.3)]
    for number in range(1, len(events) + 1):
        for some in (events[:number], [events[number - 1]]):
            with_delta = isinstance(budget, ApproximateBudget)
            ledger = Ledger.create("sqlite://")
            opened(ledger, budget, adjacency)
            for place, event in enumerate(some):
                delta = 1e-6 if with_delta and not isinstance(event, ApproximateDP | Laplace) else None
                claim(ledger, event, str(place), adjacency=adjacency, delta=delta)
            status = ledger.status("visits")
            ledger.close()
            # their figure is rounded up too, by less than this
            if status.spent_epsilon < theirs(some, adjacency, max(status.spent_delta, 1e-12)) * (1.0 - 1e-3):
                return True
    return False


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_claims_cost_no_less_than_by_dp_accounting(budget: Budget, adjacency: str) -> None:
    assert not undercharged(budget, adjacency)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_claim_below_its_price_is_found(adjacency: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Ledger.reserve

    def cheap(self: Ledger, name: str, event: Event, **rest: Any) -> Any:
        return honest(self, name, Gaussian(8.0) if event == Gaussian(4.0) else event, **rest)

    monkeypatch.setattr(Ledger, "reserve", cheap)
    assert undercharged(ApproximateBudget(50.0, 1e-4), adjacency)


@pytest.mark.parametrize("mode", ["zcdp", "pure"])
def test_the_price_is_the_claims_own_number(ledger: Ledger, mode: str) -> None:
    if mode == "zcdp":
        opened(ledger, ZeroConcentratedBudget(3.0, 1e-6))
        claim(ledger, ZeroConcentratedDP(0.05), "a")
        claim(ledger, Gaussian(5.0), "b")  # rho = 1 / (2 * 25)
        assert 0 <= ledger.status("visits").spent[0] - 7 * 10**10 <= 2  # each is rounded up
    else:
        opened(ledger, PureBudget(3.0))
        claim(ledger, ApproximateDP(0.3), "a")
        claim(ledger, Laplace(4.0), "b")
        assert ledger.status("visits").spent == (55 * 10**10,)


# --- once, and only as it fits ---------------------------------------------------------------------------


def test_a_release_is_charged_once(ledger: Ledger) -> None:
    opened(ledger, PureBudget(1.0))
    first = claim(ledger, ApproximateDP(0.25))
    assert claim(ledger, ApproximateDP(0.25)).id == first.id
    assert (first.state, first.answer) == ("SETTLED", {"claimed": FACTS["tool"]})
    assert ledger.status("visits").spent_epsilon == 0.25
    with pytest.raises(Conflict, match="'synthetic' of 'visits' was claimed before, with another"):
        claim(ledger, ApproximateDP(0.5))
    with pytest.raises(Conflict, match="was claimed before"):
        claim(ledger, ApproximateDP(0.25), tool="another")
    assert ledger.status("visits").spent_epsilon == 0.25
    assert claim(ledger, ApproximateDP(0.25), "another").id != first.id
    assert ledger.status("visits").spent_epsilon == 0.5


def test_a_claim_beyond_the_budget_charges_nothing(ledger: Ledger) -> None:
    opened(ledger, PureBudget(1.0))
    claim(ledger, ApproximateDP(0.75), "first")
    with pytest.raises(Refused, match="Nothing was charged"):
        claim(ledger, ApproximateDP(0.5))
    assert ledger.status("visits").spent_epsilon == 0.75
    assert ledger.history("visits")[-1].kind == "refuse"
    assert ledger.find("visits", "claimed/synthetic") is None
    assert ledger.verify("visits").ok


@pytest.mark.parametrize(
    ("budget", "name"),
    [(RenyiBudget(3.0, 1e-6), "threshold_delta"), (ApproximateBudget(3.0, 1e-6), "delta")],
)
def test_a_claim_whose_delta_is_too_large_says_so(ledger: Ledger, budget: Budget, name: str) -> None:
    opened(ledger, budget)
    limit = 0 if name == "threshold_delta" else 1e-6
    words = f"add up to 0.001 with this one, and the budget's {name}, .*is {limit:g}. Nothing was charged"
    with pytest.raises(Refused, match=words):
        claim(ledger, ApproximateDP(0.1, 1e-3))


def test_a_derived_data_set_charges_its_parent(ledger: Ledger) -> None:
    opened(ledger, PureBudget(1.0))
    part = Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0), parent="visits")
    ledger.open_dataset("part", part)
    ledger.claim("part", ApproximateDP(0.25), release="synthetic", **FACTS)
    assert ledger.status("visits").spent_epsilon == 0.25
    assert [spent.kind for spent in spendings(ledger.history("visits"))] == ["claimed"]


@pytest.mark.parametrize(
    ("event", "changed", "problem", "words"),
    [
        (ApproximateDP(0.1), {"unit": "row"}, Conflict, "unit of the claim is 'row'.*has 'patient'"),
        (
            ApproximateDP(0.1),
            {"adjacency": "replace-one"},
            Conflict,
            "adjacency of the claim is 'replace-one'",
        ),
        (ApproximateDP(0.1), {"adjacency": "bounded"}, InvalidInput, "adjacency"),
        (ApproximateDP(0.1), {"tool": " "}, InvalidInput, "tool must not be empty"),
        (ApproximateDP(0.1), {"release": ""}, InvalidInput, "release must not be empty"),
        (ApproximateDP(0.0), {}, InvalidInput, "costs nothing"),
        (ExponentialMechanism(0.1), {}, InvalidInput, "a claim must be"),
        (DiscreteLaplace(9.0), {}, InvalidInput, "a claim must be"),
        (Gaussian(9.0), {}, UnsupportedEvent, "Gaussian"),
    ],
)
def test_bad_claims(
    ledger: Ledger, event: Event, changed: dict[str, str], problem: type[Exception], words: str
) -> None:
    opened(ledger, PureBudget(1.0))
    facts = {"release": "synthetic"} | FACTS | changed
    with pytest.raises(problem, match=words):
        ledger.claim("visits", event, **facts)
    assert ledger.status("visits").spent == (0,)


# --- what a reader sees ----------------------------------------------------------------------------------


def test_a_claim_is_shown_as_claimed(ledger: Ledger) -> None:
    opened(ledger, ZeroConcentratedBudget(3.0, 1e-6))
    claim(ledger, Gaussian(9.0))
    paid = ledger.reserve("visits", Gaussian(9.0), key="q1", request={}, label="counts")
    ledger.settle(paid, 1)
    certificate = make_certificate(ledger, "visits")
    assert [group.get("claimed") for group in certificate.data["mechanisms"]] == [FACTS["tool"], None]
    lines = {line["name"]: line for line in certificate.data["lines"]}
    assert lines["Mechanism 1"]["grade"] == "assumed"
    assert "as claimed for 'dpmm 0.1.9, MST', which Tacit did not check" in lines["Mechanism 1"]["value"]
    assert (lines["Mechanism 2"]["grade"], "claimed" in lines["Mechanism 2"]["value"]) == ("proved", False)
    assert lines["Claimed releases"]["grade"] == "assumed"
    assert lines["Noise of training"]["value"].startswith("1 charge:")
    text = " ".join(certificate.to_text().split())
    assert "Claims of other tools, which Tacit did not check: 1 of the charges." in text
    assert check_certificate(certificate.data, ledger=ledger).agrees
    with pytest.raises(InvalidInput, match="product_type"):  # nothing here says what the tool released
        registry_record(certificate.data)
    view = curator_view(ledger)
    assert "claimed: dpmm 0.1.9, MST" in view["datasets"][0]["spenders"][0]["labels"]
    assert "claimed: dpmm 0.1.9, MST" in curator_page(view)


def test_a_certificate_without_claims_has_no_word_of_them(ledger: Ledger) -> None:
    opened(ledger, PureBudget(1.0))
    ledger.settle(ledger.reserve("visits", ApproximateDP(0.1), key="q1", request={}), 1)
    certificate = make_certificate(ledger, "visits")
    assert "claimed" not in certificate.to_json()
    assert "laims" not in certificate.to_text()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(tmp_path / "budget.db")
    with_budget = Ledger.create(where)
    opened(with_budget, ZeroConcentratedBudget(3.0, 1e-6))
    words = ["ledger", "claim", where, "--dataset", "visits", "--tool", "dpmm", "--unit", "patient"]
    words += ["--adjacency", "add-remove", "--release"]
    assert run([*words, "a", "--rho", "0.05"]) == 0
    assert "Charged a as claimed." in capsys.readouterr().out
    assert run([*words, "a", "--rho", "0.05"]) == 0
    assert "a was claimed before: nothing was charged." in capsys.readouterr().out
    assert run([*words, "b", "--gaussian", "5"]) == 0
    assert run([*words, "c", "--laplace", "10"]) == 0
    assert run([*words, "d", "--epsilon", "0.1"]) == 0
    spent = with_budget.status("visits").spent[0]
    assert 0 <= spent - 8 * 10**10 <= 4  # each is rounded up
    assert run([*words, "e", "--rho", "50"]) == 1
    for wrong in (["--rho", "-1"], [], ["--rho", "1", "--epsilon", "1"], ["--skellam", "1"]):
        assert run([*words, "e", *wrong]) == 2
    assert with_budget.status("visits").spent[0] == spent
    with_budget.close()
