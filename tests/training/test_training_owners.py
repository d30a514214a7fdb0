"""A record is a person: a person's rows move a step by the bound at most, and each row has one person."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made import a_plan, a_session, one_step, sums_of
from regression import Recorder
from scipy import stats
from torch import Tensor, nn

from tacit.clipping import AdaptiveClipping, AutomaticClipping, PerLayerClipping
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import Gaussian, GroupPrivacy
from tacit.plan import LossReport, Plan
from tacit.sampling import CyclicPoissonSampling
from tacit.testing import seeded_generator
from tacit.training import AuditSlots, FlipAndCrop, PrivateSession, UserRecords
from tacit.training import run as run_module
from tacit.training.run import make_engine

D, USERS, B, C = 4, 12, 6, 0.5


def squares(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.flatten(1).square().sum(1)


def rows_of(counts: list[int], shape: tuple[int, ...] = (D,)) -> tuple[Tensor, list[int]]:
    """Return shuffled rows of users; user i has ``counts[i]`` of them."""
    draws = np.random.default_rng(5)
    owners = draws.permutation(np.repeat(np.arange(len(counts)), counts))
    x = torch.from_numpy(draws.normal(size=(len(owners), *shape)))
    return x, owners.tolist()


plan = partial(a_plan, records=USERS, batch_size=B, steps=3, unit="user")


def session(
    data: Any, *, the_plan: Plan | None = None, key: int = 1, loss: Any = squares, **settings: Any
) -> PrivateSession:
    torch.manual_seed(0)
    first = settings.pop("layer", nn.Linear(D, 3))
    model = nn.Sequential(first, nn.Tanh(), nn.Linear(3, 2)).double()
    given = {"optimizer": Recorder(model.parameters()), "generator": seeded_generator(key), **settings}
    return a_session(model, data, the_plan or plan(), loss=loss, **given)


COUNTS = [1, 3, 7, 2, 2, 9, 1, 4, 5, 3, 2, 6]
RULES: dict[str, dict[str, Any]] = {
    "flat": {},
    "per layer": {"the_plan": plan(clipping=PerLayerClipping(C))},
    "automatic": {"the_plan": plan(clipping=AutomaticClipping(C))},
    "adaptive, with a loss": {
        "the_plan": plan(clipping=AdaptiveClipping(C, count_noise=2.0), loss_report=LossReport(), steps=1)
    },
    "full batch": {"the_plan": plan(batch_size=USERS)},
    "truncated": {"the_plan": plan(records=USERS + 1, largest_batch=USERS + 1)},
    "small physical batches": {"physical_batch_size": 2},
    "by definition": {"engine": "reference"},
    "views": {
        "the_plan": plan(views=2),
        "augmentation": FlipAndCrop(1),
        "shape": (1, 2, 2),
        "layer": nn.Sequential(nn.Flatten(), nn.Linear(4, 3)),
    },
}


def moved(**settings: Any) -> float:
    """Return the largest change of a release by one user with all rows, in units of the bound."""
    shape = settings.pop("shape", (D,))
    x, owners = rows_of(COUNTS, shape)
    direction = torch.randn(7, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    largest = 0.0
    for key in (1, 2):
        without = session(UserRecords(x, owners, rows_per_user=3), key=key, **settings)
        released = sums_of(without)
        rule = without.plan.clipping
        bound = rule.sensitivity(rule.initial_thresholds(without._run.engine.names))
        for scale in (1e-3, 1.0, 1e3):
            both = torch.cat([x, scale * direction])  # the new user is the last: others keep their numbers
            with_user = session(
                UserRecords(both, [*owners, *[USERS] * 7], rows_per_user=3), key=key, **settings
            )
            differences = [a - b for a, b in zip(sums_of(with_user), released, strict=True)]
            largest = max(largest, *(float(one.norm()) / bound for one in differences))
    return largest


@pytest.mark.parametrize("rule", RULES)
def test_one_user_with_all_rows_moves_a_step_by_at_most_the_bound(rule: str) -> None:
    assert 0.5 < moved(**RULES[rule]) <= 1 + 1e-4


def moved_by_rows(**settings: Any) -> tuple[float, int]:
    """Return the same if a step draws rows, and the most rows of the user in one step."""
    x, owners = rows_of([min(count, 3) for count in COUNTS])
    direction = torch.randn(1, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    the_plan = plan(records=len(x), batch_size=len(x) // 2, rows_per_user=3, steps=8)
    largest, most = 0.0, 0
    for key in (1, 2):
        released = sums_of(
            session(UserRecords(x, owners, rows_per_user=3), the_plan=the_plan, key=key, **settings)
        )
        both = torch.cat([x, 1e3 * direction.expand(7, D)])  # the new user's rows come last
        made = session(
            UserRecords(both, [*owners, *[USERS] * 7], rows_per_user=3),
            the_plan=the_plan,
            key=key,
            **settings,
        )
        assert len(made._run.records) == len(x) + 3
        differences = [float((a - b).norm()) / C for a, b in zip(sums_of(made), released, strict=True)]
        largest = max(largest, *differences)
        drawn = [
            int((the_plan.sampling.indices(seeded_generator(key), step, len(x) + 3) >= len(x)).sum())
            for step in range(the_plan.steps)
        ]
        for moved_by, rows in zip(differences, drawn, strict=True):
            assert moved_by <= rows * (1 + 1e-4) + 1e-9
        most = max(most, *drawn)
    return largest, most


def test_rows_of_a_user_move_a_step_by_as_many_bounds_as_are_drawn() -> None:
    largest, most = moved_by_rows()
    assert most == 3
    assert 2.9 < largest <= 3 * (1 + 1e-4)


def test_planted_bug_the_cap_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UserRecords, "capped", lambda self: np.arange(self.rows))
    with pytest.raises(AssertionError):
        moved_by_rows()


def test_rows_are_priced_as_all_that_a_user_keeps() -> None:
    by_rows = plan(records=40, batch_size=4, rows_per_user=4, unit="user")
    assert by_rows.event == GroupPrivacy(plan(records=40, batch_size=4).event, 4)
    assert by_rows.event_between(1, 3) == GroupPrivacy(plan(records=40, batch_size=4).event_between(1, 3), 4)
    assert by_rows.epsilon > plan(records=40, batch_size=4).epsilon
    assert plan(records=40, batch_size=4, rows_per_user=1).event == plan(records=40, batch_size=4).event


@given(counts=st.lists(st.integers(1, 9), min_size=2, max_size=8), most=st.integers(1, 5))
def test_what_a_user_keeps_is_his_own_matter(counts: list[int], most: int) -> None:
    """No user has more than the cap, and one more user changes nothing of what the others keep."""
    _, owners = rows_of(counts)
    most = min(most, max(counts))
    data = UserRecords(torch.zeros(len(owners)), owners, rows_per_user=most)
    kept = data.capped()
    assert np.bincount([owners[row] for row in kept]).tolist() == [min(count, most) for count in counts]
    assert data.dropped == len(owners) - len(kept)
    more = UserRecords(torch.zeros(len(owners) + 3), [-1, *owners, -1, -1], rows_per_user=most).capped()
    assert [row - 1 for row in more if 0 < row <= len(owners)] == kept.tolist()


def test_rows_of_people_in_samples_of_parts_have_no_price() -> None:
    with pytest.raises(PrivacyRefusal, match="several parts of a cycle"):
        plan(records=40, batch_size=5, sampling=CyclicPoissonSampling(0.5, 4), rows_per_user=2)


def test_a_preparation_of_rows_has_no_price_for_people() -> None:
    with pytest.raises(PrivacyRefusal, match="the cost of preparation is known only if"):
        plan(records=40, rows_per_user=2, preparation=[Gaussian(8.0)])


def test_plan_and_data_must_agree_on_the_rows_of_a_user() -> None:
    x, owners = rows_of(COUNTS)
    the_plan = plan(records=len(x), rows_per_user=3)
    with pytest.raises(PrivacyRefusal, match="the data name no owners"):
        session(x, the_plan=the_plan)
    with pytest.raises(PrivacyRefusal, match="Give both the same number"):
        session(UserRecords(x, owners, rows_per_user=2), the_plan=the_plan)
    with pytest.raises(PrivacyRefusal, match="Audit a plan without rows_per_user"):
        session(UserRecords(x, owners, rows_per_user=3), the_plan=the_plan, audit=AuditSlots(2))


def test_planted_bug_rows_are_clipped_and_not_users(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = make_engine
    monkeypatch.setattr(run_module, "make_engine", lambda *arguments: real(*arguments[:-1], 1))
    assert moved() > 2


def test_the_definition() -> None:
    """The sum is over the drawn users' clipped mean gradients of all rows, if K fits every count."""
    x, owners = rows_of([1, 2, 3, 6, 2, 1])
    made = session(
        UserRecords(x, owners, rows_per_user=6), the_plan=plan(records=6, batch_size=6, noise_multiplier=1e-9)
    )
    expected = torch.zeros(sum(p.numel() for p in made.model.parameters()), dtype=torch.float64)
    for user in range(6):
        mine = x[torch.tensor(owners) == user]
        found = torch.autograd.grad(squares(made.model, mine).mean(), list(made.model.parameters()))
        flat = torch.cat([g.flatten() for g in found])
        expected += flat * min(1.0, C / float(flat.norm()))
    ticket = next(iter(made.batches()))
    made.step(ticket)
    recorder = made.optimizer
    assert isinstance(recorder, Recorder)
    released = torch.cat([g.flatten() for g in recorder.steps[0] if g is not None])
    assert torch.allclose(6 * released, expected, atol=1e-7)


# --- which rows ------------------------------------------------------------------------------------------


@given(
    counts=st.lists(st.integers(1, 9), min_size=2, max_size=8), K=st.integers(1, 5), seed=st.integers(0, 99)
)
def test_rows_are_the_users_own_and_none_twice_before_all(counts: list[int], K: int, seed: int) -> None:
    _, owners = rows_of(counts)
    K = min(K, max(counts))
    data = UserRecords(torch.zeros(len(owners)), owners, rows_per_user=K)
    users = np.flatnonzero(np.random.default_rng(seed).random(len(counts)) < 0.6)
    chosen = data.chosen(users, seed).reshape(len(users), K)
    for user, rows in zip(users, chosen, strict=True):
        assert {owners[row] for row in rows} <= {user}
        times = np.unique(rows, return_counts=True)[1]
        assert len(times) == min(K, counts[user])
        assert max(times) - min(times) <= 1


def test_each_row_of_a_user_is_as_likely() -> None:
    data = UserRecords(torch.zeros(9), [0] * 7 + [1] * 2, rows_per_user=3)
    seen = np.concatenate([data.chosen(np.array([0, 1]), seed)[:3] for seed in range(2000)])
    assert stats.chisquare(np.bincount(seen, minlength=7)).pvalue > 1e-4
    pairs = [tuple(sorted(data.chosen(np.array([0]), seed)[:2])) for seed in range(4200)]
    times = np.unique([10 * a + b for a, b in pairs], return_counts=True)[1]
    assert len(times) == 21
    assert stats.chisquare(times).pvalue > 1e-4


def test_the_rows_of_a_user_move_no_other_users_choice() -> None:
    """Their rows are the same to the last bit."""
    few, many = ([0] * 5 + [1] * n + [2] * 6 for n in (2, 9))
    users = np.array([0, 1, 2])
    for seed in range(50):
        a, b = (
            UserRecords(torch.zeros(len(owners)), owners, rows_per_user=2).chosen(users, seed)
            for owners in (few, many)
        )
        assert a[:2].tolist() == b[:2].tolist()
        assert (a[4:] - 7).tolist() == (b[4:] - 14).tolist()


class Items(torch.utils.data.Dataset[Tensor]):
    """Gives the rows one by one."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, position: int) -> Tensor:
        return self.x[position]


def test_a_step_does_not_depend_on_physical_batches_or_workers() -> None:
    x, owners = rows_of(COUNTS)
    data = UserRecords(Items(x), owners, rows_per_user=3)
    whole = sums_of(session(data))
    others: tuple[dict[str, Any], ...] = ({"physical_batch_size": 2}, {"workers": 1})
    for settings in others:
        for a, b in zip(whole, sums_of(session(data, **settings)), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_a_run_goes_on_with_the_same_people_alone(tmp_path: Any) -> None:
    x, owners = rows_of(COUNTS)
    begun = session(UserRecords(x, owners, rows_per_user=3))
    one_step(begun)
    begun.save(tmp_path / "state")
    resumed = session(UserRecords(x, owners, rows_per_user=3))
    resumed.load(tmp_path / "state")
    exchanged = [owners[-1], *owners[1:-1], owners[0]]
    assert exchanged != owners
    for other in (UserRecords(x, exchanged, rows_per_user=3), UserRecords(x, owners, rows_per_user=2)):
        with pytest.raises(PrivacyRefusal, match="records"):
            session(other).load(tmp_path / "state")


def test_canaries_are_users_too() -> None:
    x, owners = rows_of([4] * 100)
    made = session(
        UserRecords(x, owners, rows_per_user=2),
        the_plan=plan(records=100, batch_size=100, noise_multiplier=1e-6),
        audit=AuditSlots(8),
    )
    sums_of(made)
    evidence = made.slot_evidence()
    strength = np.abs(evidence.observed[0])
    assert (strength[evidence.included] > 0.99).all()
    assert (strength[~evidence.included] < 0.01).all()


# --- bad input -------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a missing one": (lambda: ["a", None, "b"], "1 rows have no owner"),
    "not a number": (lambda: [1.0, float("nan"), 2.0], "1 rows have no owner"),
    "missing in pandas": (lambda: pd.Series(["a", pd.NA, "b"]), "1 rows have no owner"),
    "missing among texts": (lambda: ["a", pd.NA, "b"], "1 rows have no owner"),
    "missing among times": (lambda: [pd.NaT, "a", "b"], "1 rows have no owner"),
    "missing among categories": (lambda: pd.Categorical(["a", None, "b"]), "1 rows have no owner"),
    "lists for some": (lambda: np.array([["a", "b"], ["c", "d"], ["a", "b"]]), "a list of lists"),
    "a column of a frame": (lambda: pd.DataFrame({"owner": ["a", "b", "b"]}), "one owner per row"),
    "empty": (lambda: ["a", " ", "b"], "1 rows have no owner"),
    "mixed types": (lambda: np.array([7, "7", 8], dtype=object), r"several types \(int, text\)"),
    "mixed types in a list": (lambda: [1.0, "1", 2], r"several types"),
    "fractions": (lambda: [1.5, 2.0, 3.0], "strings, or integers"),
    "one owner": (lambda: ["a"] * 3, "all rows have one owner"),
    "too few": (lambda: ["a", "a"], "all rows have one owner"),
    "none": (list, "must not be empty"),
    "a table": (lambda: np.zeros((3, 2)), "one owner per row"),
    "dates": (lambda: np.array(["2026-01-01"] * 3, dtype="datetime64[D]"), "integers or strings"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_owners_are_refused(case: str) -> None:
    make, words = WRONG[case]
    with pytest.raises(InvalidInput, match=words):
        UserRecords(torch.zeros(3, D), make(), rows_per_user=1)


@pytest.mark.parametrize(
    "owners",
    [
        [3, 1, 3, 3], ["b", "a", "b", "b"], torch.tensor([3, 1, 3, 3]), pd.Series([3.0, 1.0, 3.0, 3.0]),
        pd.Series(["b", "a", "b", "b"], dtype="category"), [True, False, True, True],
        pd.Series(["b", "a", "b", "b"], dtype="string"),
    ],
)  # fmt: skip
def test_owners_may_be_numbers_or_texts(owners: Any) -> None:
    data = UserRecords(torch.zeros(4, D), owners, rows_per_user=2)
    assert (len(data), data.most_rows, data.rows) == (2, 3, 4)
    assert sorted(data.chosen(np.array([0]), 0)) == [1, 1]


def test_people_without_rows_are_nobody_here() -> None:
    """A column of categories may name people without rows, who are not counted."""
    names = pd.Categorical(["b", "a", "b", "b"], categories=["a", "b", "c", "d"])
    data = UserRecords(torch.zeros(4, D), names, rows_per_user=2)
    assert (len(data), data.most_rows) == (2, 3)


def test_more_rows_than_anybody_has_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no user has more than 2 rows"):
        UserRecords(torch.zeros(3, D), ["a", "b", "b"], rows_per_user=3)
    with pytest.raises(InvalidInput, match="rows_per_user"):
        UserRecords(torch.zeros(3, D), ["a", "b", "b"], rows_per_user=0)


def test_rows_and_owners_must_agree() -> None:
    with pytest.raises(InvalidInput, match="4 rows and 3 owners"):
        session(UserRecords(torch.zeros(4, D), ["a", "b", "b"], rows_per_user=1))
    with pytest.raises(InvalidInput, match="2 rows and 3 owners"):  # of one of whom there is no row
        session(UserRecords(torch.zeros(2, D), ["a", "b", "c"], rows_per_user=1))


def test_the_plan_must_speak_of_people() -> None:
    x, owners = rows_of(COUNTS)
    data = UserRecords(x, owners, rows_per_user=3)
    with pytest.raises(PrivacyRefusal, match="unit 'row' does not fit UserRecords"):
        session(data, the_plan=plan(unit="row"))
    with pytest.raises(InvalidInput, match="has 45 records and the data 12"):
        session(data, the_plan=plan(adjacency="replace-one", records=len(x), batch_size=len(x)))


@pytest.mark.parametrize("kind", ["mapping", "frame"])
def test_columns_that_name_a_unit_with_several_rows_are_refused(kind: str) -> None:
    """Without UserRecords, a row is a record, and the plan promises a patient."""
    x, numbers = torch.randn(60, 2), torch.arange(60) // 3
    columns: Any = {"x": x, "patient_id": numbers}
    if kind == "frame":
        columns = pd.DataFrame({"a": x[:, 0].numpy(), "b": x[:, 1].numpy(), "patient_id": numbers.numpy()})

    def begin(unit: str, data: Any) -> PrivateSession:
        plan = Plan.with_noise(
            noise_multiplier=1.0, steps=2, batch_size=10, records=60, clipping=1.0, delta=1e-4,
            adjacency="add-remove", unit=unit,
        )  # fmt: skip
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return PrivateSession(
            model, optimizer, data, plan, loss=lambda model, **parts: model(parts["x"]).square().sum(1)
        )

    with pytest.raises(PrivacyRefusal, match="column 'patient_id' of the data repeat"):
        begin("patient", columns)
    assert begin("visit", columns).steps_done == 0
    assert begin("patient", {"x": x, "patient_id": torch.arange(60)}).steps_done == 0
