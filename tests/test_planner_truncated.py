"""The planner with a largest batch: noise that the exact price allows, sizes left out, and the text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import binom

from tacit.accounting import account
from tacit.accounting.pld import chance_of_cut, left_for_poisson, smallest_largest_batch
from tacit.cli.app import run
from tacit.errors import InvalidInput
from tacit.events import Gaussian, PoissonSampled, Repeat, TruncatedPoissonSampled
from tacit.plan import Plan
from tacit.planner import PlanRequest, advise, noise_multiplier
from tacit.rounding import shown_epsilon

N, DELTA, STEPS = 10_000, 1e-5, 200
ASKED = PlanRequest(
    records=N, unit="row", epsilon=2.0, delta=DELTA, adjacency="add-remove", steps=STEPS, largest_batch=300
)
ASK = (
    "plan", "--records", str(N), "--unit", "row", "--epsilon", "2", "--delta", "1e-5", "--adjacency",
    "add-remove", "--steps", str(STEPS),
)  # fmt: skip


def test_the_part_of_delta_is_the_chance_to_be_kept_in_a_batch_that_was_cut() -> None:
    for rate, largest in ((0.02, 280), (0.02, 290), (0.022, 300)):
        over = float(binom.sf(largest, N, rate))
        kept = 1.0 - (1.0 - largest / N * over) ** STEPS
        assert chance_of_cut(rate, N, largest) == pytest.approx(over, rel=1e-9)
        left = left_for_poisson(rate, N, largest, STEPS, DELTA)
        assert left == pytest.approx((DELTA - kept) / (1.0 - kept), rel=1e-6)
    assert chance_of_cut(0.02, N, N) == 0.0


def test_the_smallest_largest_batch_is_where_a_tenth_of_delta_goes_to_cuts() -> None:
    largest = smallest_largest_batch(0.02, N, STEPS, DELTA)
    assert left_for_poisson(0.02, N, largest, STEPS, DELTA) is not None
    assert left_for_poisson(0.02, N, largest - 1, STEPS, DELTA) is None
    assert smallest_largest_batch(0.999, N, STEPS, DELTA) <= N


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("size", [200, 218])
def test_the_noise_is_enough_for_samples_that_are_cut(size: int) -> None:
    """By the accountant: a cut is rare at 200, where it needs no grid, and takes 2 % of delta at 218."""
    noise = noise_multiplier(ASKED, size)
    step = TruncatedPoissonSampled(size / N, N, 300, Gaussian(noise))
    curve = account(Repeat(step, STEPS), adjacency="add-remove")
    assert 1.99 < curve.epsilon(DELTA) <= 2.0


def test_the_noise_is_that_of_the_plan() -> None:
    plan = Plan.calibrate(
        epsilon=2.0, delta=DELTA, records=N, batch_size=200, steps=STEPS, clipping=1.0,
        adjacency="add-remove", unit="row", largest_batch=300,
    )  # fmt: skip
    assert noise_multiplier(ASKED, 200) == pytest.approx(plan.noise_multiplier, rel=1e-4)


def test_the_price_of_the_cuts_is_that_of_less_delta() -> None:
    advice = advise(ASKED, batch_sizes=[221])
    best = advice.recommended
    whole = account(
        Repeat(PoissonSampled(0.0221, Gaussian(best.noise_multiplier)), STEPS), adjacency="add-remove"
    )
    cut, not_cut = advice.epsilons
    assert not_cut == pytest.approx(whole.epsilon(DELTA), rel=1e-9)
    assert not_cut < cut <= 2.0
    assert f"and epsilon is {shown_epsilon(cut)} " in advice.in_words()
    assert best.cut == pytest.approx(float(binom.sf(300, N, 0.0221)), rel=1e-9)
    data = json.loads(json.dumps(advice.as_data(), allow_nan=False))
    assert (data["epsilon_cut"], data["epsilon_not_cut"]) == advice.epsilons
    assert data["question"]["largest_batch"] == 300


def test_no_size_is_recommended_that_would_be_cut_often() -> None:
    advice = advise(ASKED)
    sizes = [option.batch_size for option in advice.options]
    assert max(sizes) == ASKED.largest_size == advice.recommended.batch_size
    assert ASKED._delta_of(ASKED.largest_size) is not None
    assert ASKED._delta_of(ASKED.largest_size + 1) is None
    assert advice.elbow == advise(replace(ASKED, largest_batch=None)).elbow
    room = re.search(r"with a largest batch of ([\d,]+), would come", advice.in_words())
    assert room is not None
    larger = replace(ASKED, largest_batch=int(room[1].replace(",", "")))
    assert advice.elbow is not None
    assert larger._delta_of(advice.elbow) is not None


def test_a_largest_batch_of_all_records_cuts_nothing() -> None:
    nothing = replace(ASKED, largest_batch=N)
    assert noise_multiplier(nothing, 1000) == noise_multiplier(replace(ASKED, largest_batch=None), 1000)
    assert nothing.largest_size == N
    assert " instead of " in advise(nothing, batch_sizes=[1000]).in_words()


def test_what_is_cut_too_often_is_refused_with_what_would_do() -> None:
    with pytest.raises(InvalidInput, match="largest_batch 300 truncates batches of 250 too often") as refused:
        advise(ASKED, batch_sizes=[100, 250])
    enough = re.search(r"at least (\d+), or batches of at most (\d+)", str(refused.value))
    assert enough is not None
    assert advise(replace(ASKED, largest_batch=int(enough[1])), batch_sizes=[250]).options
    assert advise(ASKED, batch_sizes=[int(enough[2])]).options
    with pytest.raises(
        InvalidInput, match=r"largest_batch 1 truncates batches of 1 too often.* at least \d+\.$"
    ):
        advise(replace(ASKED, largest_batch=1))
    with pytest.raises(InvalidInput, match="largest_batch must be an integer in"):
        replace(ASKED, largest_batch=N + 1)


def test_the_truncation_is_priced_by_few_steps_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bisection over 60,000 sizes takes milliseconds and makes no table."""
    looked: list[int] = []
    price = PlanRequest._delta_of

    def counted(self: PlanRequest, size: int) -> float | None:
        looked.append(size)
        return price(self, size)

    monkeypatch.setattr(PlanRequest, "_delta_of", counted)
    asked = PlanRequest(
        records=60_000, unit="row", epsilon=3.0, delta=1e-5, adjacency="add-remove", steps=1000,
        largest_batch=750,
    )  # fmt: skip
    assert asked._delta_of(600) is not None
    assert asked.largest_size > 600
    assert 1 < len(looked) <= 20


def test_the_command_takes_a_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ["--largest-batch", "3e2", "--physical-batch", "64", "--batch-size", "200", "--batch-size", "90"]
    assert run([*ASK, *shown]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if re.match(r" *(→|\d+) ", line)]
    assert [(row[1], row[5]) for row in rows] == [("200", "1e-11"), ("90", "2e-69")]
    assert "Samples of more than 300 are truncated" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert run([*ASK, "--largest-batch", "300", "--batch-size", "290"]) == 2
    assert "largest_batch 300 truncates batches of 290 too often" in capsys.readouterr().err


RUN = """
[data]
name = "digits"
[model]
name = "logistic"
[privacy]
sampling = "truncated-poisson"
epsilon = 2.0
delta = 1e-5
unit = "row"
adjacency = "add-remove"
records = 10000
[optimizer]
learning_rate = 0.5
[training]
batch_size = 200
largest_batch = 300
steps = 200
"""


def test_a_run_file_gives_the_largest_batch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    assert run(["plan", str(path), "--batch-size", "200", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == advise(ASKED, batch_sizes=[200]).as_data()
    assert run(["plan", str(path), "--batch-size", "250", "--largest-batch", "400"]) == 0
    assert "Samples of more than 400 are truncated" in " ".join(capsys.readouterr().out.split())
    path.write_text(RUN.replace("largest_batch = 300\n", ""))
    assert run(["plan", str(path)]) == 2
    assert "[training] largest_batch go together" in " ".join(capsys.readouterr().err.split())
