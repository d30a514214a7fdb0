"""Derived data sets charge their parents; blocks are composed in parallel; all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tacit.errors import InvalidInput, UnsupportedEvent
from tacit.events import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampled,
)
from tacit.ledger import Conflict, Ledger, Policy, PureBudget, Refused, RenyiBudget, ZeroConcentratedBudget

TENTH = 10**11
PEOPLE = Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0))
EXCHANGED = replace(PEOPLE, adjacency="replace-one", public_records=1000)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    made = Ledger.create("sqlite://")
    yield made
    made.close()


def ask(ledger: Ledger, name: str, epsilon: float, block: str | None = None) -> None:
    key = str(len(ledger.history(name)))
    ledger.settle(ledger.reserve(name, ApproximateDP(epsilon), key=key, request={}, block=block), 1)


def spent(ledger: Ledger, name: str) -> int:
    return ledger.status(name).spent[0] // TENTH


def test_a_charge_is_charged_to_everything_above(ledger: Ledger) -> None:
    ledger.open_dataset("registry", replace(PEOPLE, budget=RenyiBudget(3.0, 1e-6)))
    ledger.open_dataset("visits", replace(PEOPLE, parent="registry"))
    ledger.open_dataset("features", replace(PEOPLE, parent="visits", budget=PureBudget(2.0)))
    ask(ledger, "features", 0.5)
    ask(ledger, "visits", 0.25)
    assert ledger.status("features").spent == (5 * TENTH,)
    assert ledger.status("visits").spent == (75 * TENTH // 10,)
    one, two = (ledger.price("registry", ApproximateDP(epsilon)).cost for epsilon in (0.5, 0.25))
    assert ledger.status("registry").spent == tuple(a + b for a, b in zip(one, two, strict=True))
    assert ledger.status("features").remaining_epsilon == 0.25, "what the parents allow counts"
    assert all(ledger.verify(name).ok for name in ("registry", "visits", "features"))
    assert ledger.status("registry").charges["SETTLED"] == 2
    mirror = ledger.history("registry")[1].body
    assert (mirror["key"], mirror["for"]["dataset"]) == ("@features/1", "features")


def test_what_does_not_fit_above_is_charged_nowhere(ledger: Ledger) -> None:
    ledger.open_dataset("registry", PEOPLE)
    ledger.open_dataset("train", replace(PEOPLE, parent="registry"))
    ledger.open_dataset("test", replace(PEOPLE, parent="registry"))
    ask(ledger, "train", 0.75)
    assert not ledger.price("test", Laplace(2.0)).fits
    with pytest.raises(Refused, match="'registry'") as caught:
        ask(ledger, "test", 0.5)
    assert caught.value.would_fit == 0.25
    assert ledger.status("test").spent == (0,)
    assert [entry.kind for entry in ledger.history("test")] == ["open", "refuse"]
    assert ledger.status("registry").spent == (75 * TENTH // 10,)


def test_the_price_above_is_in_the_mode_there_and_may_be_none(ledger: Ledger) -> None:
    ledger.open_dataset("registry", PEOPLE)
    ledger.open_dataset("images", replace(PEOPLE, parent="registry", budget=RenyiBudget(3.0, 1e-6)))
    with pytest.raises(UnsupportedEvent, match="pure budget"):
        ledger.reserve("images", Gaussian(2.0), key="q", request={})
    assert sum(ledger.status("images").spent) == 0


def test_a_parent_protects_the_same_people(ledger: Ledger) -> None:
    ledger.open_dataset("registry", replace(PEOPLE, blocks=("north", "south")))
    for wrong in (replace(PEOPLE, unit="visit", parent="registry"), replace(EXCHANGED, parent="registry")):
        with pytest.raises(Conflict, match="must be that of the parent"):
            ledger.open_dataset("part", wrong)
    with pytest.raises(InvalidInput, match="no data set 'nobody' is open"):
        ledger.open_dataset("part", replace(PEOPLE, parent="nobody"))
    with pytest.raises(InvalidInput, match="not a block of 'registry': north, south"):
        ledger.open_dataset("part", replace(PEOPLE, parent="registry", parent_block="west"))
    assert [status.name for status in ledger.datasets()] == ["registry"]


def test_blocks_are_paid_side_by_side(ledger: Ledger) -> None:
    """The lecture's example: 0.5 + 0.2 + max(0.25, 0.25) where the last two are on disjoint people."""
    ledger.open_dataset("visits", replace(PEOPLE, budget=PureBudget(0.95), blocks=("men", "women")))
    ask(ledger, "visits", 0.5)
    ask(ledger, "visits", 0.2)
    ask(ledger, "visits", 0.25, "men")
    ask(ledger, "visits", 0.25, "women")
    status = ledger.status("visits")
    assert status.spent == status.cap == (95 * TENTH // 10,)
    assert dict(status.blocks) == {"men": status.cap, "women": status.cap}
    with pytest.raises(Refused, match="block 'men'"):
        ask(ledger, "visits", 0.1, "men")
    with pytest.raises(InvalidInput, match="'children' is not one of the policy's blocks: men, women"):
        ask(ledger, "visits", 0.1, "children")


def test_a_charge_to_the_whole_counts_for_the_dearest_block(ledger: Ledger) -> None:
    ledger.open_dataset("visits", replace(PEOPLE, blocks=("a", "b")))
    ask(ledger, "visits", 0.8, "a")
    ask(ledger, "visits", 0.1, "b")
    with pytest.raises(Refused):
        ask(ledger, "visits", 0.3)
    ask(ledger, "visits", 0.2)
    assert spent(ledger, "visits") == 10
    assert ledger.price("visits", Laplace(10.0), block="a").remaining == 0.0
    assert ledger.price("visits", Laplace(10.0), block="b").remaining == 0.7


def test_derived_data_sets_may_lie_in_blocks(ledger: Ledger) -> None:
    ledger.open_dataset("all", replace(PEOPLE, blocks=("train", "test")))
    for name in ("train", "test"):
        ledger.open_dataset(name, replace(PEOPLE, parent="all", parent_block=name))
        ask(ledger, name, 1.0)
    assert spent(ledger, "all") == 10
    with pytest.raises(Refused):
        ask(ledger, "all", 0.1)


def test_two_blocks_count_where_people_are_exchanged(ledger: Ledger) -> None:
    ledger.open_dataset("visits", replace(EXCHANGED, blocks=("a", "b", "c")))
    for block, scale in (("a", 5.0), ("b", 10.0), ("c", 4.0)):  # twice 0.2, 0.1, 0.25
        ledger.reserve("visits", Laplace(scale), key=block, request={}, block=block)
    assert ledger.status("visits").spent == (9 * TENTH,), "0.4 + 0.5 of a and c"
    with pytest.raises(Refused):
        ledger.reserve("visits", Laplace(10.0), key="more", request={}, block="c")
    assert ledger.reserve("visits", Laplace(20.0), key="less", request={}, block="c").token
    alone = replace(EXCHANGED, blocks=("only",))
    ledger.open_dataset("one", alone)
    ledger.reserve("one", Laplace(2.0), key="q", request={}, block="only")
    assert ledger.status("one").spent == (10 * TENTH,)


def test_only_noise_on_sums_covers_a_record_that_leaves_its_block(ledger: Ledger) -> None:
    budget = RenyiBudget(8.0, 1e-6, threshold_delta=1e-7)
    ledger.open_dataset("visits", replace(EXCHANGED, budget=budget, blocks=("a", "b")))
    good = (Gaussian(9.0), DiscreteGaussian(9.0), DiscreteLaplace(9.0), PoissonSampled(0.1, Gaussian(9.0)))
    for number, event in enumerate(good):
        assert ledger.reserve("visits", event, key=str(number), request={}, block="a").token
    for bad in (ExponentialMechanism(0.1), ApproximateDP(0.1)):
        with pytest.raises(UnsupportedEvent, match="on one block"):
            ledger.reserve("visits", bad, key="q", request={}, block="a")
        assert ledger.reserve("visits", bad, key=str(bad), request={}).token


def test_the_noise_of_a_block_covers_a_record_that_leaves(ledger: Ledger) -> None:
    """Under replace-one sums differ by 2 Delta; a block that loses a record differs by Delta: less."""
    exchanged = PureBudget(9.0).price(DiscreteLaplace(10.0), EXCHANGED.relation)
    removed = PureBudget(9.0).price(DiscreteLaplace(10.0), PEOPLE.relation)
    assert exchanged == (2 * removed[0],)


def test_zero_out_people_stay_in_their_block(ledger: Ledger) -> None:
    blanked = replace(
        PEOPLE, adjacency="zero-out", budget=ZeroConcentratedBudget(2.0, 1e-6), blocks=("a", "b")
    )
    ledger.open_dataset("visits", blanked)
    for block in ("a", "b"):
        ledger.reserve("visits", Gaussian(5.0), key=block, request={}, block=block)
    assert ledger.status("visits").spent == ledger.price("visits", Gaussian(5.0)).cost
