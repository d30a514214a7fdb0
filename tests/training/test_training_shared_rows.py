"""Rows with several owners: all rows of one person move a step by at most K bounds, also shared ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made import a_ledger, a_plan, a_session, one_step, sums_of
from ran import make_statement
from regression import Recorder
from torch import Tensor, nn

from tacit.clipping import AdaptiveClipping, AutomaticClipping, PerLayerClipping
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import GroupPrivacy
from tacit.ledger import RenyiBudget
from tacit.plan import LossReport, Plan
from tacit.report.verification import verify_statement
from tacit.testing import seeded_generator
from tacit.training import PrivateSession, StepCharges, UserRecords
from tacit.training.users import SharedRows

D, C, PEOPLE, M, MOST = 4, 0.5, 8, 40, 3


def messages(seed: int = 0, rows: int = M, people: int = PEOPLE) -> list[list[str]]:
    """Return the people of each message, one to three."""
    draws = np.random.default_rng(seed)
    sizes = draws.integers(1, 4, rows)
    return [[f"p{one}" for one in draws.choice(people, size, replace=False)] for size in sizes]


# --- which rows are kept: a plain loop over dictionaries, that shares no code with it ----------------------


def shuffled(row: int) -> int:
    """Return splitmix64 of the row's number, by whole numbers."""
    low = 2**64 - 1
    x = 0x9E3779B97F4A7C15 * (row + 1) & low
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & low
    x = (x ^ x >> 27) * 0x94D049BB133111EB & low
    return x ^ x >> 31


def kept_by_hand(owners: list[list[str]], most: int) -> list[int]:
    times: dict[str, int] = {}
    kept = []
    for row in sorted(range(len(owners)), key=lambda row: (len({*owners[row]}), shuffled(row))):
        if all(times.get(name, 0) < most for name in owners[row]):
            kept.append(row)
            for name in {*owners[row]}:
                times[name] = times.get(name, 0) + 1
    return sorted(kept)


LISTS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=2, max_size=25)


@given(owners=LISTS, most=st.integers(1, 4))
def test_nobody_has_more_than_the_cap_and_no_row_could_be_added(owners: list[list[int]], most: int) -> None:
    names = [[f"p{one}" for one in row] for row in owners]
    if any(all(name in row for row in names) for name in names[0]):
        return  # somebody has a part in all rows
    kept = SharedRows(names).capped(most).tolist()
    assert kept == kept_by_hand(names, most)
    times = {name: sum(name in names[row] for row in kept) for row in names for name in row}
    assert max(times.values()) <= most
    for row in set(range(len(names))) - set(kept):
        assert any(times[name] == most for name in names[row])


def test_how_owners_are_written_does_not_matter() -> None:
    """Sets of texts have another order in each process, and it must recognise the run all the same."""
    owners = messages()
    first = UserRecords(torch.zeros(M, D), owners, rows_per_user=2)
    written: list[Any] = [
        [frozenset(row) for row in owners],
        [tuple(reversed(row)) * 2 for row in owners],
        pd.Series([np.array(row) for row in owners]),
        np.array([row if len(row) != 2 else {*row} for row in owners], dtype=object),
    ]
    for other in written:
        again = UserRecords(torch.zeros(M, D), other, rows_per_user=2)
        assert again.capped().tolist() == first.capped().tolist()
        assert again.digest(b"key") == first.digest(b"key")
    exchanged = [owners[1], owners[0], *owners[2:]]
    assert UserRecords(torch.zeros(M, D), exchanged, rows_per_user=2).digest(b"key") != first.digest(b"key")


def test_without_one_person_others_may_keep_quite_other_rows() -> None:
    """Neighbours with one person more are refused: their sums differ by more than that person's rows."""

    def changed(owners: list[list[str]], without: str) -> int:
        rest = [row for row in owners if without not in row]
        left, right = (
            {tuple(sorted(which[row])) for row in kept_by_hand(which, 1)} for which in (owners, rest)
        )
        return len({row for row in left ^ right if without not in row})

    pairs = [[f"p{a}", f"p{b}"] for a, b in itertools.combinations(range(12), 2)]
    draws = np.random.default_rng(1)
    most = 0
    for _ in range(200):
        graph = [pairs[number] for number in draws.permutation(len(pairs))[:25]]
        most = max(most, *(changed(graph, f"p{person}") for person in range(12)))
    assert most >= 4


# --- the sensitivity -------------------------------------------------------------------------------------


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Return outputs of which a far row and its opposite have opposite gradients."""
    out: Tensor = model(x)
    return out.sum(1)


def plan(**changes: Any) -> Plan:
    """Return a plan for all rows that remain, with these ``changes``."""
    settings = {"records": len(kept_by_hand(messages(), MOST)), "rows_per_user": MOST, **changes}
    base = {"batch_size": settings["records"], "steps": 3, "clipping": C, "adjacency": "zero-out"}
    return a_plan(**{**base, "unit": "person", **settings})


def session(data: Any, the_plan: Plan, key: int = 1, **settings: Any) -> PrivateSession:
    """Return a session of a network without biases, so that a blank row has no gradient."""
    torch.manual_seed(0)
    first, last = nn.Linear(D, 3, bias=False), nn.Linear(3, 2, bias=False)
    model = nn.Sequential(first, nn.Tanh(), last).double()
    given = {"optimizer": Recorder(model.parameters()), "generator": seeded_generator(key), **settings}
    return a_session(model, data, the_plan, loss=outputs, **given)


RULES: dict[str, dict[str, Any]] = {
    "flat": {},
    "replaced": {"adjacency": "replace-one"},
    "sampled": {"batch_size": 9, "steps": 6},
    "per layer": {"clipping": PerLayerClipping(C)},
    "automatic": {"clipping": AutomaticClipping(C)},
    "adaptive, with a loss": {
        "clipping": AdaptiveClipping(C, count_noise=2.0), "loss_report": LossReport(), "steps": 1,
    },
}  # fmt: skip


def moved(**changes: Any) -> float:
    """Return the largest change of a release by one person's rows, in bounds, over their contents."""
    owners, the_plan = messages(), plan(**changes)
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(M, D, dtype=torch.float64, generator=draws)
    direction = torch.randn(D, dtype=torch.float64, generator=draws)
    largest = 0.0
    for key in (1, 2):

        def of(rows: Tensor, key: int = key) -> list[Tensor]:
            return sums_of(session(UserRecords(rows, owners, rows_per_user=MOST), the_plan, key))

        for person in range(PEOPLE):
            mine = torch.tensor([f"p{person}" in row for row in owners])
            one, other = x.clone(), x.clone()
            one[mine], other[mine] = 1e3 * direction, 0.0
            if the_plan.adjacency == "replace-one":
                other[mine] = -1e3 * direction
            pairs = zip(of(one), of(other), strict=True)
            bound = the_plan.clipping.sensitivity(
                the_plan.clipping.initial_thresholds(["0.weight", "2.weight"])
            )
            largest = max(largest, *(float((a - b).norm()) / bound for a, b in pairs))
    return largest


@pytest.mark.parametrize("rule", RULES)
def test_all_rows_of_one_person_move_a_step_by_as_many_bounds_as_one_keeps(rule: str) -> None:
    times = 2 if RULES[rule].get("adjacency") == "replace-one" else 1  # the accountant doubles it then
    found = moved(**RULES[rule])
    assert 0.7 * times * MOST < found <= times * MOST * (1 + 1e-4)


def test_planted_bug_rows_count_against_their_first_owner_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SharedRows.capped

    def kept(self: SharedRows, most: int) -> Any:
        first = SharedRows([row[:1] for row in messages()])
        return real(first, most)

    monkeypatch.setattr(SharedRows, "capped", kept)
    records = len(UserRecords(torch.zeros(M, D), messages(), rows_per_user=MOST).capped())
    assert moved(records=records) > 1.3 * MOST


def test_planted_bug_the_cap_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedRows, "capped", lambda self, most: np.arange(self.rows))
    assert moved(records=M) > 1.3 * MOST


def test_the_released_sum_is_that_of_the_rows_kept() -> None:
    owners = messages()
    x = torch.randn(M, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    made = session(UserRecords(x, owners, rows_per_user=MOST), plan(noise_multiplier=1e-9, steps=1))
    expected = torch.zeros(sum(p.numel() for p in made.model.parameters()), dtype=torch.float64)
    for row in kept_by_hand(owners, MOST):
        found = torch.autograd.grad(outputs(made.model, x[row : row + 1]).sum(), [*made.model.parameters()])
        flat = torch.cat([g.flatten() for g in found])
        expected += flat * min(1.0, C / float(flat.norm()))
    assert torch.allclose(sums_of(made)[0], expected, atol=1e-7)


# --- the promise -----------------------------------------------------------------------------------------


def data() -> UserRecords:
    return UserRecords(torch.zeros(M, D, dtype=torch.float64), messages(), rows_per_user=MOST)


@pytest.mark.parametrize(
    ("adjacency", "words"), [("zero-out", "been blank"), ("replace-one", "held something else")]
)
def test_the_statement_says_what_is_public(adjacency: str, words: str) -> None:
    the_plan = plan(adjacency=adjacency)
    assert isinstance(the_plan.event, GroupPrivacy)
    assert the_plan.event.size == MOST
    session(data(), the_plan)  # takes it
    statement = make_statement(the_plan, steps_done=3)
    said = " ".join(statement.to_text().split())
    assert f"if all training rows in which any one person has a part had {words}" in said
    assert "taken to be public which rows one person has a part in, and with whom" in said
    assert verify_statement(statement.data).verdict == "agrees"
    assert str(data().dropped) not in said.split()


def test_rows_that_one_has_alone_are_said_to_be_public_too() -> None:
    """Under zero-out such rows stay in their places."""
    said = make_statement(plan(records=30), steps_done=3).to_text()
    assert "is taken to be public" in " ".join(said.split())
    hidden = make_statement(plan(adjacency="add-remove"), steps_done=3)
    assert "if any one person had been left out" in " ".join(hidden.to_text().split())


def test_what_is_not_proven_is_refused() -> None:
    with pytest.raises(PrivacyRefusal, match='adjacency="zero-out" or "replace-one"'):
        session(data(), plan(adjacency="add-remove"))
    with pytest.raises(PrivacyRefusal, match=r"cannot be sampled by person.*rows_per_user=3 in the plan too"):
        session(data(), plan(rows_per_user=None, records=PEOPLE))
    with pytest.raises(PrivacyRefusal, match="cannot be sampled by person"):
        data().chosen(np.array([0]), 0)
    with pytest.raises(InvalidInput, match="records"):
        session(data(), plan(records=M))
    with pytest.raises(PrivacyRefusal, match="Give both the same number"):
        session(data(), plan(rows_per_user=2))


def test_lists_of_one_owner_are_lists() -> None:
    """The promise depends on the form of the owners, not on their number in a row."""
    owned = UserRecords(torch.zeros(4, D), [["a"], ["b"], ["a"], ["c"]], rows_per_user=1)
    assert (owned.shared, len(owned), owned.rows, owned.dropped, owned.most_rows) == (True, 3, 4, 1, 2)
    with pytest.raises(PrivacyRefusal, match="zero-out"):
        session(owned, plan(adjacency="add-remove", rows_per_user=1, records=3))


def test_a_ledger_takes_no_rows_of_several_owners() -> None:
    mail = {"unit": "person", "unit_column": "sender", "adjacency": "zero-out", "public_records": 100}
    budget = RenyiBudget(epsilon=99.0, delta=1e-3)
    ledger = a_ledger("sqlite://", "mail", budget=budget, **mail)
    charges = StepCharges(ledger, "mail", plan(), owned_by="sender")
    with pytest.raises(PrivacyRefusal, match="cannot be charged to a ledger"):
        session(data(), plan(), charges=charges, generator=None)


def test_a_run_goes_on_with_the_same_people_alone(tmp_path: Any) -> None:
    begun = session(data(), plan())
    one_step(begun)
    begun.save(tmp_path / "state")
    session(data(), plan()).load(tmp_path / "state")
    owners = messages()
    row = next(row for row in range(1, M) if len(owners[row]) == len(owners[0]) and owners[row] != owners[0])
    owners[0], owners[row] = owners[row], owners[0]
    other = UserRecords(torch.zeros(M, D, dtype=torch.float64), owners, rows_per_user=MOST)
    the_plan = plan(records=len(other.capped()))
    with pytest.raises(PrivacyRefusal, match="records"):
        session(other, the_plan).load(tmp_path / "state")


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "none for a row": (lambda: [["a"], [], ["b"]], "1 rows have no owner"),
    "one is missing": (lambda: [["a"], ["b", None], ["b"]], "1 rows have no owner"),
    "not a number": (lambda: [[1], [2, float("nan")], [2]], "1 rows have no owner"),
    "blank": (lambda: [["a", " "], ["b", ""], ["b"]], "2 rows have no owner"),
    "pandas": (lambda: [["a"], ["b", pd.NA], ["b"]], "1 rows have no owner"),
    "mixed types": (lambda: [["7"], [7], ["b"]], r"several types \(int, text\)"),
    "a name among lists": (lambda: [["a"], "b", ["b"]], "1 of 3 rows name their owner without a list"),
    "None among lists": (lambda: [["a"], None, ["b"]], "1 of 3 rows name their owner without a list"),
    "a part in all": (lambda: [["me", "a"], ["b", "me"], ["me"]], "one owner appears in all rows"),
    "lists of lists": (lambda: [[["a"], ["b", "c"]], [["b"]], [["a"]]], "some rows have a list of owners"),
    "more than any": (lambda: [["a"], ["b"], ["c", "a"]], "no user has more than 2"),
    "a table": (lambda: pd.DataFrame({"from": ["a", "b"], "to": ["b", "c"]}), "a list of lists"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_lists_of_owners_are_refused(case: str) -> None:
    make, words = WRONG[case]
    with pytest.raises(InvalidInput, match=words):
        UserRecords(torch.zeros(3, D), make(), rows_per_user=3)


def test_no_message_names_a_person() -> None:
    for make, _ in WRONG.values():
        with pytest.raises(InvalidInput) as caught:
            UserRecords(torch.zeros(3, D), make(), rows_per_user=3)
        assert "me" not in str(caught.value).replace("Leave them", "").split()
