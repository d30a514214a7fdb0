"""The same people have one budget: a content is refused under a second name, and as another block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.errors import InvalidInput
from tacit.events import ApproximateDP
from tacit.ledger import Conflict, Ledger, Policy, PureBudget

PEOPLE = Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger.create(tmp_path / "ledger.db")
    yield made
    made.close()


def kinds(ledger: Ledger, name: str) -> list[str]:
    return [entry.kind for entry in ledger.history(name)]


def test_content_is_recognised_and_versions_share_the_budget(ledger: Ledger, tmp_path: Path) -> None:
    other = Ledger.create(tmp_path / "other.db")
    first, second = ledger.fingerprint([b"a,b\n", b"1,2\n"]), ledger.fingerprint([b"a,b\n1,3\n"])
    assert ledger.fingerprint([b"a,b\n1,2\n"]) == first != second
    assert other.fingerprint([b"a,b\n1,2\n"]) != first, "a fingerprint tells nothing elsewhere"
    ledger.open_dataset("visits", PEOPLE, fingerprint=first)
    with pytest.raises(Conflict, match="already open as 'visits'"):
        ledger.open_dataset("again", PEOPLE, fingerprint=first)
    assert [status.name for status in ledger.datasets()] == ["visits"], "it was not opened"
    ledger.reserve("visits", ApproximateDP(0.5), key="q", request={})
    for _ in range(2):
        ledger.register_content("visits", second)
    assert ledger.status("visits").fingerprint == second
    assert ledger.status("visits").spent == (500_000_000_000,)
    assert kinds(ledger, "visits") == ["open", "content", "reserve", "content"]
    ledger.open_dataset("again", PEOPLE)
    for each in (first, second):  # of a version that was left behind there may be answers, too
        with pytest.raises(Conflict, match="already open as 'visits'"):
            ledger.register_content("again", each)
    for name in ("visits", "again"):
        assert ledger.verify(name).ok
    other.close()


@pytest.mark.parametrize("wrong", ["a,b", "", 7, "0" * 63, "G" * 64])
def test_what_is_no_fingerprint_is_refused(ledger: Ledger, wrong: str) -> None:
    with pytest.raises(InvalidInput, match="fingerprint must come"):
        ledger.open_dataset("visits", PEOPLE, fingerprint=wrong)
    ledger.open_dataset("visits", PEOPLE)
    with pytest.raises(InvalidInput, match="fingerprint must come"):
        ledger.register_content("visits", wrong)
    with pytest.raises(InvalidInput, match="no data set 'more' is open"):
        ledger.register_content("more", "0" * 64)


def test_data_sets_that_pay_into_one_budget_may_share_a_content(ledger: Ledger) -> None:
    print_of_all = ledger.fingerprint([b"all"])
    ledger.open_dataset("all", PEOPLE)
    for name in ("features", "sums"):
        ledger.open_dataset(name, replace(PEOPLE, parent="all"))
    ledger.register_content("features", print_of_all)
    assert kinds(ledger, "all") == ["open", "content"], "what a child has, the parent has"
    for name in ("sums", "all", "features"):
        ledger.register_content(name, print_of_all)
    ledger.open_dataset("else", PEOPLE)
    with pytest.raises(Conflict, match="already open as 'all'"):
        ledger.register_content("else", print_of_all)
    assert all(ledger.verify(status.name).ok for status in ledger.datasets())


def test_a_content_is_not_charged_to_two_blocks(ledger: Ledger) -> None:
    """Else its people would pay once for two answers about them."""
    one, two = ledger.fingerprint([b"one"]), ledger.fingerprint([b"two"])
    ledger.open_dataset("visits", replace(PEOPLE, blocks=("a", "b")))
    ledger.register_content("visits", one, block="a")
    with pytest.raises(Conflict, match="block 'b' of 'visits' has content that is registered as 'a'"):
        ledger.register_content("visits", one, block="b")
    ledger.register_content("visits", one)  # to charge more people than are in it is allowed
    ledger.register_content("visits", one, block="a")
    ledger.register_content("visits", two)
    with pytest.raises(Conflict, match="registered as the whole data set"):
        ledger.register_content("visits", two, block="b")
    with pytest.raises(InvalidInput, match="'c' is not one of the blocks"):
        ledger.register_content("visits", two, block="c")
    assert ledger.verify("visits").ok


def test_derived_data_sets_in_two_blocks_have_no_content_in_common(ledger: Ledger) -> None:
    same = ledger.fingerprint([b"same"])
    ledger.open_dataset("all", replace(PEOPLE, blocks=("train", "test")))
    for block in ("train", "test"):
        ledger.open_dataset(block, replace(PEOPLE, parent="all", parent_block=block))
    ledger.register_content("train", same)
    with pytest.raises(Conflict, match="block 'test' of 'all' has content that is registered as 'train'"):
        ledger.register_content("test", same)


def test_of_many_at_once_one_name_gets_the_content(ledger: Ledger) -> None:
    names = [f"copy{number}" for number in range(6)]
    for name in names:
        ledger.open_dataset(name, PEOPLE)
    same = ledger.fingerprint([b"same"])
    refused: list[str] = []
    together = threading.Barrier(len(names))

    def client(name: str) -> None:
        together.wait()
        try:
            ledger.register_content(name, same)
        except Conflict:
            refused.append(name)

    threads = [threading.Thread(target=client, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == len(names) - 1
    assert sum(status.fingerprint == same for status in ledger.datasets()) == 1
