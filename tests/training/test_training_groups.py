"""Figures by group: what a record adds, the noise on sums, the intervals, and which figures are hidden."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made import a_ledger, a_plan, a_session, finish, network
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from tacit.accounting import account
from tacit.errors import InvalidInput
from tacit.events import Gaussian
from tacit.ledger import Ledger, RenyiBudget
from tacit.plan import GroupScoreReport, Plan, ScoreReport
from tacit.testing import seeded_generator
from tacit.training import StepCharges, by_group, evaluate, score_held_out, scoring
from tacit.training.evaluation import Evaluation, record_tallies, tallies
from tacit.training.groups import FEWEST, Parts, of_column

GRID = 1000


# --- what a record adds -----------------------------------------------------------------------------------


def oracle(outputs: list[Any], truth: list[Any]) -> list[list[float]]:
    """The tallies of each record, by another way: no tensor, no axis."""
    rows = []
    for out, target in zip(outputs, truth, strict=True):
        if isinstance(target, float):
            error = max(-1.0, min(1.0, out)) - max(-1.0, min(1.0, target))
            rows.append([error**2 / 4, 1 - error**2 / 4, error / 4])
            continue
        chances = [math.exp(one - max(out)) for one in out]
        chances = [one / sum(chances) for one in chances]
        answer = out.index(max(out))
        if len(out) == 2:
            cells = [float((target, answer) == cell) for cell in ((0, 0), (0, 1), (1, 0), (1, 1))]
            rows.append([*cells, chances[1] - 0.5])
        else:
            rows.append([float(answer != target), float(answer == target), chances[answer] - 0.5])
    return rows


def made(kind: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    if kind == "numbers":
        return 2 * torch.randn(count, 1, generator=rng), torch.rand(count, 1, generator=rng) * 2 - 1
    classes = 2 if kind == "two" else 4
    return 3 * torch.randn(count, classes, generator=rng), torch.randint(classes, (count,), generator=rng)


@pytest.mark.parametrize("kind", ["two", "four", "numbers"])
def test_tallies_are_those_of_a_loop(kind: str) -> None:
    outputs, truth = made(kind, 50, 1)
    flat = (outputs.flatten(), truth.flatten()) if kind == "numbers" else (outputs, truth)
    wanted = oracle(*(one.double().tolist() if one.is_floating_point() else one.tolist() for one in flat))
    assert tallies(outputs, truth).numpy() == pytest.approx(np.array(wanted), abs=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["two", "four", "numbers"])
def test_outputs_that_are_no_numbers_add_no_more(bad: float, kind: str) -> None:
    outputs, truth = made(kind, 3, 1)
    outputs[0], outputs[1, 0] = bad, bad
    check_bounds(tallies(outputs, truth))


def check_bounds(rows: Tensor) -> None:
    cells, last = rows[:, :-1], rows[:, -1]
    assert bool((cells >= 0).all())
    assert bool((cells.sum(1) <= 1 + 1e-12).all())
    assert bool((last.abs() <= 0.5).all())


class Table(nn.Module):
    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = nn.Parameter(outputs)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.outputs[numbers[:, 0].long()]


def sums_of(
    rows: Tensor, groups: dict[str, tuple[list[str], np.ndarray[Any, Any]]], keep: Any, owners: Any = None
) -> Tensor:
    """All sums of a release as one vector, in records, of the rows that ``keep`` marks."""
    parts = [
        scoring._raw_group_sums(
            rows[keep], numbers[keep], len(names), None if owners is None else owners[keep]
        )
        for names, numbers in groups.values()
    ]
    return torch.cat([one.flatten() for one in parts]) / GRID


@st.composite
def cases(draw: Any) -> tuple[Tensor, dict[str, tuple[list[str], np.ndarray[Any, Any]]], int]:
    kind, seed = draw(st.sampled_from(["two", "four", "numbers"])), draw(st.integers(0, 2**30))
    rng, count = np.random.default_rng(seed), draw(st.integers(3, 20))
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    groups = {
        f"c{place}": ([str(name) for name in range(size)], rng.integers(0, size, count))
        for place, size in enumerate(sizes)
    }
    outputs, truth = made(kind, count, seed)
    return record_tallies(Table(outputs), torch.arange(float(count))[:, None], truth), groups, seed


def report(columns: int) -> GroupScoreReport:
    return GroupScoreReport(1.0, tuple(f"c{place}" for place in range(columns)))


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 2))
def test_one_record_changes_all_sums_together_by_at_most_the_length(case: Any, gone: int) -> None:
    """Adding or removing it; a replaced one, perhaps in other groups, changes them by at most twice that."""
    rows, groups, seed = case
    keep = np.arange(len(rows)) != gone
    whole = sums_of(rows, groups, np.ones(len(rows), bool))
    length = report(len(groups)).length
    assert float((whole - sums_of(rows, groups, keep)).norm()) <= length
    rng = np.random.default_rng(seed)
    replaced = rows.clone()
    replaced[gone] = rows[rng.integers(len(rows))]
    moved = {by: (names, numbers.copy()) for by, (names, numbers) in groups.items()}
    for names, numbers in moved.values():
        numbers[gone] = rng.integers(len(names))
    assert float((whole - sums_of(replaced, moved, np.ones(len(rows), bool))).norm()) <= 2 * length


def test_the_length_is_reached_and_no_shorter_one_would_do() -> None:
    """A record with a sure answer moves one cell and the last sum of each column; also planted bugs."""
    rows = tallies(torch.tensor([[-50.0, 50.0]]), torch.tensor([1]))
    for columns in (1, 2, 5):
        groups = {f"c{place}": (["a", "b"], np.array([1])) for place in range(columns)}
        moved = float(sums_of(rows, groups, np.ones(1, bool)).norm())
        assert moved == pytest.approx(report(columns).length, rel=1e-6)
        assert math.sqrt(1.25) < moved or columns == 1, "planted: the length of one column"
        assert math.sqrt(columns) < moved, "planted: without the probability"


def test_planted_bug_a_record_in_two_groups_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bands that overlap would let a record count twice; then removing one moves the sums by more."""

    def overlapping(numbers: Tensor, groups: int) -> Tensor:
        return (torch.arange(groups)[None, :] <= numbers[:, None]).long()

    monkeypatch.setattr(torch.nn.functional, "one_hot", overlapping)
    rows = torch.tensor([[0, 0, 0, 1, 0.5]])
    moved = sums_of(rows.double(), {"c0": (["a", "b"], np.array([1]))}, np.ones(1, bool))
    assert float(moved.norm()) > report(1).length


@settings(max_examples=40, deadline=None)
@given(cases())
def test_a_person_with_several_rows_counts_once(case: Any) -> None:
    rows, groups, seed = case
    owners = np.random.default_rng(seed).integers(0, 3, len(rows))
    everybody = sums_of(rows, groups, np.ones(len(rows), bool), owners)
    for person in set(owners.tolist()):
        keep = owners != person
        if keep.any():
            moved = everybody - sums_of(rows, groups, keep, owners)
            assert float(moved.norm()) <= report(len(groups)).length


def test_the_sums_are_those_of_exact_arithmetic() -> None:
    outputs, truth = made("two", 30, 4)
    rows, numbers = tallies(outputs, truth), np.random.default_rng(4).integers(0, 3, 30)
    wanted = [[Fraction(0)] * 5 for _ in range(3)]
    for row, group in zip(rows.tolist(), numbers.tolist(), strict=True):
        for place, value in enumerate(row):
            wanted[group][place] += Fraction(math.trunc(Fraction(value) * GRID), GRID)
    found = scoring._raw_group_sums(rows, numbers, 3).tolist()
    assert found == [[float(value * GRID) for value in row] for row in wanted]


# --- the release ------------------------------------------------------------------------------------------

plan = partial(
    a_plan,
    noise_multiplier=2.0,
    steps=2,
    clipping=1.0,
    unit="patient",
    score_report=GroupScoreReport(5.0, ("sex", "age")),
    batch_size=None,
)


def records(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long()


def groups_of(count: int) -> dict[str, tuple[list[str], np.ndarray[Any, Any]]]:
    return {
        "sex": (["f", "m"], np.arange(count) % 2),
        "age": (["young", "old", "none"], (np.arange(count) > 9).astype(np.int64)),
    }


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    budget = RenyiBudget(epsilon=20.0, delta=1e-5, orders=(3.0, 6.0))
    with closing(a_ledger(tmp_path / "budget.db", "d", unit="patient", budget=budget)) as made_here:
        yield made_here


def scored(ledger: Ledger, which: Plan, **given: Any) -> Evaluation:
    charges = StepCharges(ledger, "d", which, generator=seeded_generator(1))
    run = a_session(network(4, 2), records(60), which, charges=charges, generator=seeded_generator(1))
    finish(run)
    first = score_held_out(run, *records(40, 7), **given)
    assert score_held_out(run, *records(40, 7), **given) == first, "a run releases one score"
    return first


def test_a_run_releases_the_sums_of_all_groups_once(ledger: Ledger) -> None:
    found = scored(ledger, plan(), groups=groups_of(40))
    sex, age = found.groups
    assert (sex["by"], sex["names"], age["names"]) == ("sex", ["f", "m"], ["young", "old", "none"])
    assert sex["noise"] == age["noise"] == pytest.approx(5.0 * math.sqrt(2.5))
    assert [len(one["sums"]) for one in found.groups] == [2, 3]
    assert found.interval is not None
    figures = by_group(found, {})
    assert [one["by"] for one in figures["by_group"]] == ["sex", "age"]


@pytest.mark.parametrize("given", [{}, {"groups": {"sex": (["f", "m"], np.arange(40) % 2)}}])
def test_groups_must_be_those_that_the_plan_pays_for(given: Any, ledger: Ledger) -> None:
    with pytest.raises(
        InvalidInput, match=r"groups must name the columns of the plan's score report, \('sex', 'age'\)"
    ):
        scored(ledger, plan(), **given)


def test_groups_without_a_report_are_refused(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="groups must name the columns of the plan's score report"):
        scored(ledger, plan(score_report=ScoreReport(5.0)), groups=groups_of(40))


def test_score_and_groups_cost_two_gaussians() -> None:
    """Gaussians of noise s compose to one of s / sqrt(2), by the closed form."""
    event, one = GroupScoreReport(8.0, ("sex",)).event, Gaussian(8.0 / math.sqrt(2))
    found = [account(each, adjacency="add-remove").epsilon(1e-5) for each in (event, one)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    doubled = account(event, adjacency="replace-one").epsilon(1e-5)
    assert doubled == pytest.approx(
        account(Gaussian(8.0 / math.sqrt(8)), adjacency="add-remove").epsilon(1e-5), rel=1e-6
    )
    assert Plan.from_json(plan().to_json()) == plan()


def test_each_sum_has_noise_of_its_own_and_of_the_stated_width() -> None:
    rows, groups = torch.zeros(40, 5, dtype=torch.float64), groups_of(40)
    drawn = []
    for seed in range(400):
        generator = seeded_generator(seed)
        total = scoring._noisy(torch.zeros(2, dtype=torch.long), 7.0, generator)
        parts: list[Any] = [*scoring._noisy_groups(rows, groups, None, 7.0, generator)]
        values = [value for part in parts for row in part["sums"] for value in row]
        drawn.append([value / GRID for value in total] + values)
    noise: NDArray[np.float64] = np.array(drawn)
    assert np.abs(np.corrcoef(noise.T) - np.eye(noise.shape[1])).max() < 6 / math.sqrt(len(noise))
    flat = noise.flatten()
    assert stats.kstest(flat, stats.norm(0, 7.0).cdf).pvalue > 1e-6
    for wrong in (0.85, 1.15):
        assert stats.kstest(flat, stats.norm(0, wrong * 7.0).cdf).pvalue < 1e-6


# --- intervals --------------------------------------------------------------------------------------------


def coverage(noise: float, told: float, runs: int = 400) -> float:
    """The rate at which the interval of the error contains 0.2, for 500 records and the ``told`` noise."""
    rng, hits = np.random.default_rng(3), 0
    for _ in range(runs):
        wrong = rng.random(500) < 0.2
        rows = np.stack([wrong, ~wrong, np.zeros(500)], 1).astype(float)
        parts = (
            Parts([rows.sum(0, keepdims=True) + noise * rng.normal(size=3)], told) if told else Parts([rows])
        )
        [group] = of_column("site", ["all"], parts, ())["groups"]
        low, high = group["error_interval"]
        hits += low <= 0.2 <= high
    return hits / runs


@pytest.mark.parametrize("noise", [0.0, 3.0, 12.0])
def test_intervals_cover_at_their_rate(noise: float) -> None:
    """Fewer than 361 or more than 396 of 400 are once in 10,000; benchmarks/check_groups.py has more."""
    assert 361 / 400 <= coverage(noise, noise) <= 396 / 400


def test_planted_bug_an_interval_without_the_noise_covers_less() -> None:
    assert coverage(12.0, 1e-6) < 361 / 400


def test_an_exact_share_has_the_interval_of_wilson() -> None:
    for wrong, count in ((0, 30), (7, 30), (500, 1000)):
        rows = np.array([[1.0, 0.0, 0.1]] * wrong + [[0.0, 1.0, 0.1]] * (count - wrong))
        low, high = of_column("site", ["all"], Parts([rows]), ())["groups"][0]["error_interval"]
        wanted = stats.binomtest(wrong, count).proportion_ci(0.95, method="wilson")
        assert (low, high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


# --- who is hidden, who is served worse -------------------------------------------------------------------


def exact(counts: list[int], wrong: list[int]) -> list[dict[str, Any]]:
    outputs = torch.tensor([[1.0, 0.0, 0.0]]).repeat(sum(counts), 1)
    truth = [int(place < bad) for size, bad in zip(counts, wrong, strict=True) for place in range(size)]
    found = evaluate(nn.Identity(), outputs, torch.tensor(truth))
    names = [chr(97 + place) for place in range(len(counts))]
    column = np.repeat(np.arange(len(counts)), counts)
    rows: list[dict[str, Any]] = by_group(found, {"site": (names, column)})["by_group"][0]["groups"]
    return rows


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(lambda counts: sum(counts) > 0))
def test_no_figure_tells_of_fewer_than_twenty_people(counts: list[int]) -> None:
    rows = exact(counts, [count // 3 for count in counts])
    shown = [row["records"] for row in rows if row["error"] is not None]
    assert all(count >= FEWEST for count in shown)
    rest = sum(counts) - sum(shown)
    assert rest == 0 or not shown or rest >= FEWEST
    assert sorted("".join(row["group"] for row in rows).replace(" or ", "")) == [
        chr(97 + place) for place in range(len(counts))
    ]


def test_three_people_are_one_group_with_the_next_larger_one() -> None:
    assert [(row["group"], row["records"]) for row in exact([300, 3, 40], [30, 1, 4])] == [
        ("a", 300),
        ("b or c", 43),
    ]
    assert exact([300, 40, 3], [30, 4, 1])[1]["group"] == "b or c"  # in the declared order, not by size
    assert exact([3], [1])[0]["error"] is None


def test_the_rate_found_among_few_positives_is_hidden() -> None:
    truth = torch.tensor([0] * 97 + [1] * 3 + [0] * 50 + [1] * 50 + [0] * 50 + [1] * 50)
    found = evaluate(nn.Identity(), torch.eye(2)[truth], truth)
    groups = {"site": (["a", "b", "c"], np.repeat([0, 1, 2], 100))}
    rows = by_group(found, groups)["by_group"][0]["groups"]
    assert [row["found"] for row in rows] == [None, None, 1.0]
    assert [row["error"] for row in rows] == [0.0, 0.0, 0.0]


def test_a_group_is_served_worse_only_if_it_is_sure() -> None:
    for wrong, worse in ((30, []), (36, []), (90, ["error"])):
        assert [*exact([300, 300], [30, wrong])[1]["worse_than"]] == worse
    assert [*exact([300_000, 300_000], [30_000, 30_900])[1]["worse_than"]] == [], "too little to be told"


def test_private_and_plain_are_side_by_side() -> None:
    truth, groups = (
        torch.arange(400) % 2,
        {"site": np.unique(np.repeat(["a", "b"], [300, 100]), return_inverse=True)},
    )
    wrong = (torch.arange(400) % 4 == 0).long()
    private, plain = (
        evaluate(nn.Identity(), torch.eye(2)[one], truth) for one in ((truth + wrong) % 2, truth)
    )
    mixed = evaluate(nn.Identity(), torch.eye(2)[(truth + wrong * (torch.arange(400) % 8 == 0)) % 2], truth)
    assert by_group(private, groups)["sentences"] == []
    figures = by_group(private, groups, plain=mixed)
    small = figures["by_group"][0]["groups"][1]
    assert (small["error"], small["without_dp"]["error"]) == (0.25, 0.12)
    assert figures["sentences"] == [
        'In the smallest group, site "b", the error is 0.25, and without DP 0.12.'
    ]
    assert plain.score == 1.0


def test_numbers_have_errors_in_units() -> None:
    rng = np.random.default_rng(0)
    truth = rng.uniform(0, 100, 3000)
    predicted = truth + 5 + rng.normal(0, 3, 3000)
    scaled = [torch.from_numpy(one / 50 - 1)[:, None].float() for one in (predicted, truth)]
    found = evaluate(nn.Identity(), *scaled, target_bounds=[(0, 100)])
    column = np.arange(3000) % 3
    rows = by_group(found, {"site": (["a", "b", "c"], column)}, target_bounds=[(0, 100)])["by_group"][0][
        "groups"
    ]
    for group, row in enumerate(rows):
        error = np.clip(predicted, 0, 100)[column == group] - truth[column == group]
        assert row["error"] == pytest.approx(math.sqrt((error**2).mean()), rel=1e-4)
        assert row["calibration"] == pytest.approx(error.mean(), rel=1e-4)
        assert row["error_interval"][0] < row["error"] < row["error_interval"][1]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            {"site": (["a", "b"], np.arange(3) % 2)},
            r"groups\['site'\] must give each of 40 records one",
        ),
        ({"age": np.unique(np.linspace(0, 1, 40), return_inverse=True)}, "Cut floats into declared bands"),
    ],
)
def test_wrong_groups_are_refused(groups: Any, message: str) -> None:
    found = evaluate(nn.Identity(), torch.zeros(40, 2), torch.arange(40) % 2)
    with pytest.raises(InvalidInput, match=message):
        by_group(found, groups)


def test_labels_have_no_groups() -> None:
    found = evaluate(nn.Identity(), torch.randn(40, 2), torch.rand(40, 2) > 0.5)
    with pytest.raises(InvalidInput, match="classes or one number"):
        by_group(found, {"site": (["a"], np.zeros(40, dtype=np.int64))})
