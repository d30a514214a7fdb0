"""One noisy score on held-out records: its distribution, price and interval, and that a run has only one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made import a_ledger, a_plan, a_session, finish, network, one_step
from ran import make_statement
from scipy import stats
from torch import Tensor, nn

from tacit.errors import InvalidInput, PrivacyRefusal, UnsupportedModel
from tacit.events import Gaussian
from tacit.ledger import ApproximateBudget, Budget, Ledger, RenyiBudget, ZeroConcentratedBudget
from tacit.ledger.records import LeaseLost
from tacit.plan import Plan, ScoreReport
from tacit.report import make_statement as statement_of
from tacit.report.verification import against_its_ledger, verify_statement
from tacit.testing import seeded_generator
from tacit.training import Evaluation, PrivateSession, StepCharges, UserRecords, score_held_out, scoring
from tacit.training.evaluation import record_scores

N, NOISE, STEPS = 60, 7.0, 4
RENYI = RenyiBudget(epsilon=20.0, delta=1e-5, orders=(3.0, 6.0))
APPROXIMATE = ApproximateBudget(epsilon=20.0, delta=1e-2)


def records(count: int = N, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return x, (x.sum(1) > 0).long()


plan = partial(
    a_plan,
    noise_multiplier=2.0,
    steps=STEPS,
    clipping=1.0,
    unit="patient",
    score_report=ScoreReport(NOISE),
    batch_size=None,
)


def opened(path: Path, budget: Budget = RENYI) -> Ledger:
    return a_ledger(path / "budget.db", "d", unit="patient", budget=budget)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(opened(tmp_path)) as made:
        yield made


def score(run: PrivateSession, count: int = 40, seed: int = 7, **more: Any) -> Evaluation:
    """Return the one score of a run, on other records."""
    return score_held_out(run, *records(count, seed), **more)


def session(ledger: Ledger | None, *, seed: int = 1, which: Plan | None = None) -> PrivateSession:
    performed = which or plan()
    generator = seeded_generator(seed)
    charges = None if ledger is None else StepCharges(ledger, "d", performed, chunk=2, generator=generator)
    return a_session(network(4, 2), records(), performed, charges=charges, generator=generator)


# --- each record's score ----------------------------------------------------------------------------------


class Table(nn.Module):
    """A model that looks up outputs by the record's number."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = nn.Parameter(outputs)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.outputs[numbers[:, 0].long()]


class Mixing(nn.Module):
    """A model whose outputs for a record depend on the others of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(x - x.mean(0))
        return found


def test_scores_of_classes_text_and_numbers_are_those_of_a_loop() -> None:
    rng = torch.Generator().manual_seed(3)
    numbers = torch.arange(12.0)[:, None]
    logits, classes = torch.randn(12, 3, generator=rng), torch.randint(0, 3, (12,), generator=rng)
    found = record_scores(Table(logits), numbers, classes)
    assert found.tolist() == [float(max(range(3), key=row.__getitem__) == c)
                              for row, c in zip(logits.tolist(), classes.tolist(), strict=True)]  # fmt: skip
    characters, said = torch.randint(0, 5, (12, 6), generator=rng), torch.randn(12, 6, 5, generator=rng)
    characters[3, 2:], characters[4, :] = -100, -100
    shares = []
    for row, wanted in zip(said.tolist(), characters.tolist(), strict=True):
        right = [max(range(5), key=scores.__getitem__) == c
                 for scores, c in zip(row, wanted, strict=True) if c != -100]  # fmt: skip
        shares.append(sum(right) / len(right) if right else 0.0)
    assert record_scores(Table(said), numbers.long(), characters).tolist() == pytest.approx(shares)
    targets, outputs = torch.rand(12, 2, generator=rng) * 2 - 1, 3 * torch.randn(12, 2, generator=rng)
    wanted_scores = [
        1 - sum((max(-1, min(1, o)) - t) ** 2 for o, t in zip(row, goal, strict=True)) / 2 / 4
        for row, goal in zip(outputs.tolist(), targets.tolist(), strict=True)
    ]
    assert record_scores(Table(outputs), numbers, targets).tolist() == pytest.approx(wanted_scores)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**30), gone=st.integers(0, 19))
def test_one_record_moves_the_sums_by_its_own_score_alone(seed: int, gone: int) -> None:
    x, y = records(20, seed)
    keep = torch.arange(20) != gone
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Mixing()
    parts = ((x, y), (x[keep], y[keep]), (x[~keep], y[~keep]))
    whole, without, alone = (scoring._raw_sums(record_scores(model, *part)) for part in parts)
    assert torch.equal(whole - without, alone)
    assert float(alone.double().norm()) <= scoring._GRID
    assert int(alone.sum()) == scoring._GRID


def test_a_model_shown_in_batches_moves_them_by_more() -> None:
    """A model that gets batches would fail the test above."""
    x, y = torch.linspace(-1.0, 1.0, 20)[:, None].repeat(1, 4), torch.ones(20, dtype=torch.int64)
    x[0] = 100.0
    model = Mixing()
    with torch.no_grad():
        model.last.weight.copy_(torch.tensor([[-1.0] * 4, [1.0] * 4]))
        model.last.bias.zero_()
    right = [int((model(a).argmax(1) == b).sum()) for a, b in ((x, y), (x[1:], y[1:]))]
    assert abs(right[0] - right[1]) > 1


class Poisoned(nn.Module):
    """A model that is wrong about each record after it saw a marked one, which it remembers in some way."""

    marked: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.how, self.calls, self.seen = how, 0, [0.0]
        self.register_buffer("marked", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(x) * 0.0
        hit = (x[:, 0] > 50).any()
        if self.how == "buffer":
            self.marked += hit
            wrong = self.marked
        elif self.how == "attribute":
            self.seen[0] += float(hit)
            wrong = torch.tensor(self.seen)
        elif self.how == "count":
            self.calls += 1
            wrong = torch.tensor([float(self.calls > 1)])
        else:
            torch.rand(7 if hit else 1)
            wrong = torch.rand(1)
        return found + torch.stack([wrong > 0.5, wrong <= 0.5], 1).float()


REASONS = {
    "buffer": "writes in place into a tensor from outside this forward pass",
    "attribute": r"float\(\).* hands a record's value to Python",
    "count": "counts its calls",
    "draws": r"bool\(\).* hands a record's value to Python",
}


@pytest.mark.parametrize("how", REASONS)
def test_a_model_that_keeps_state_in_evaluation_is_not_scored(how: str) -> None:
    """In a plain loop the marked record moves the sum of 100 scores to 0, where 1 is promised."""
    x, y = torch.zeros(101, 4), torch.ones(101, dtype=torch.int64)
    x[0] = 100.0
    with pytest.raises(UnsupportedModel, match=REASONS[how]):
        record_scores(Poisoned(how), x, y)


def test_records_that_a_model_keeps_in_its_code_reach_no_other_score() -> None:
    class Keeps(nn.Linear):
        def forward(self, x: Tensor, kept: list[Tensor] = []) -> Tensor:  # noqa: B006
            kept.append(x)
            return super().forward(x - 9 * kept[0])

    with pytest.raises(UnsupportedModel, match="reads a stored tensor"):
        record_scores(Keeps(4, 2), *records(20, 1))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_no_numbers_count_at_most_one_record(bad: float) -> None:
    outputs = torch.full((3, 1), bad)
    found = scoring._raw_sums(record_scores(Table(outputs), torch.arange(3.0)[:, None], torch.zeros(3, 1)))
    assert int(found.sum()) == 3 * scoring._GRID
    assert int(found.min()) >= 0


# --- the noise, the price -----------------------------------------------------------------------------------


def drawn(noise: float, count: int = 1500) -> np.ndarray[Any, Any]:
    raw = torch.tensor([180_000, 20_000])
    found = [scoring._noisy(raw, noise, seeded_generator(seed)) for seed in range(count)]
    moved: np.ndarray[Any, Any] = np.array(found) - raw.numpy()
    return moved


def test_the_noise_is_normal_of_the_stated_width_on_both_sums() -> None:
    noise = drawn(NOISE)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 5 / math.sqrt(len(noise))
    for column in noise.T:
        assert stats.kstest(column, stats.norm(0, NOISE * 1000).cdf).pvalue > 1e-6
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(column, stats.norm(0, wrong * NOISE * 1000).cdf).pvalue < 1e-6


def test_the_plan_costs_what_gaussians_of_both_kinds_cost_by_their_closed_form() -> None:
    """T Gaussians of z and one of s are one of mu^2 = T / z^2 + 1 / s^2 (Dong, Roth & Su 2022)."""
    found = plan()
    mu = math.sqrt(STEPS / 2.0**2 + 1 / NOISE**2)

    def delta(epsilon: float, mu: float) -> float:
        tail = stats.norm.cdf(-epsilon / mu - mu / 2)
        return float(stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * tail)

    assert delta(found.epsilon, mu) == pytest.approx(found.delta, rel=1e-6)
    assert delta(found.epsilon, math.sqrt(STEPS) / 2.0) < 0.99 * found.delta  # without the score
    assert found.epsilon > plan(score_report=None).epsilon


def test_calibration_takes_the_score_out_of_the_same_epsilon() -> None:
    same: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-3, "records": N, "steps": STEPS, "clipping": 1.0,
                            "adjacency": "add-remove", "unit": "patient"}  # fmt: skip
    plain, scored = (Plan.calibrate(**same, score_report=report) for report in (None, ScoreReport(20.0)))
    assert scored.epsilon == pytest.approx(1.0, rel=1e-3)
    assert scored.epsilon <= 1.0
    assert 1.0 < scored.noise_multiplier / plain.noise_multiplier < 1.05


def test_the_first_charge_pays_for_the_score_by_its_renyi_divergence(ledger: Ledger) -> None:
    run = session(ledger)
    finish(run)
    score(run)
    costs = [entry.body["cost"] for entry in ledger.history("d") if entry.kind == "reserve"]
    first, second, memo = costs
    assert memo == [0] * len(memo)
    extra = [a - b for a, b in zip(first, second, strict=True)]
    for order, units in zip(RENYI.orders, extra, strict=False):
        assert units == pytest.approx(order / (2 * NOISE**2) * 1e12, rel=1e-9)
    assert ledger.verify("d").ok


def test_a_score_of_a_plan_for_people_asks_whose_the_test_rows_are(ledger: Ledger) -> None:
    owners = [row % 10 for row in range(40)]
    which = plan(records=10)
    x, y = records(40)
    charges = StepCharges(ledger, "d", which, generator=seeded_generator(1))
    people = UserRecords((x, y), owners, rows_per_user=2)
    run = a_session(network(4, 2), people, which, charges=charges, generator=None)
    one_step(run)
    with pytest.raises(PrivacyRefusal, match="owners of the test rows are missing"):
        score(run)
    with pytest.raises(InvalidInput, match="40 test rows and 39 owners"):
        score(run, owners=owners[1:])
    score(run, owners=owners)


@pytest.mark.parametrize("noise", [0.0, 0.09, -1.0, math.nan, math.inf])
def test_noise_that_is_none_is_refused(noise: float) -> None:
    with pytest.raises(InvalidInput, match="noise"):
        ScoreReport(noise)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_a_score_needs_add_remove(adjacency: str) -> None:
    with pytest.raises(PrivacyRefusal, match="no guarantee under"):
        plan(adjacency=adjacency)


# --- once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budget", [RENYI, APPROXIMATE, ZeroConcentratedBudget(9.0, 1e-5)], ids=["renyi", "approximate", "zcdp"]
)
def test_a_run_has_one_score_whatever_is_asked_later(tmp_path: Path, budget: Budget) -> None:
    with closing(opened(tmp_path, budget)) as ledger:
        whole = plan()
        charges = StepCharges(ledger, "d", whole, generator=seeded_generator(1))
        run = finish(a_session(network(4, 2), records(), whole, charges=charges, generator=None))
        spent = ledger.status("d").spent
        one = score(run)
        assert ledger.status("d").spent == spent
        assert score(run) == one
        assert score(run, 30, 8) == one
        assert (one.steps, one.noise, one.loss, one.per_class) == (STEPS, NOISE, None, ())


def test_what_crashed_before_the_ledger_had_it_is_drawn_anew_and_later_stays(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = session(ledger)
    one_step(run)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "settle", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            score(run)
    found = score(run)
    assert found.steps == 1
    finish(run)
    assert score(run) == found  # of the model then: a run has one


def test_noise_is_fresh_for_a_run_with_a_key_of_the_system(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the run's key, a crash and another test set would give two sums with one noise."""
    seen: list[tuple[bytes, bool]] = []
    kept = scoring._noisy

    def noisy(raw: Tensor, noise: float, generator: Any) -> list[int]:
        seen.append(generator.secret_state())
        return kept(raw, noise, generator)

    monkeypatch.setattr(scoring, "_noisy", noisy)
    charges = StepCharges(ledger, "d", plan())
    run = a_session(network(4, 2), records(), plan(), charges=charges, generator=None)
    one_step(run)
    score(run)
    assert seen[0][1]
    assert seen[0][0] != charges.generator.secret_state()[0]


def test_of_two_processes_one_may_show_its_score(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = session(ledger), session(ledger)
    for run in (slow, fast):
        one_step(run) if run is fast else None
    kept = scoring._noisy

    def meanwhile(raw: Tensor, noise: float, generator: Any) -> list[int]:
        monkeypatch.setattr(scoring, "_noisy", kept)
        score(fast)
        return [1, 1]

    monkeypatch.setattr(scoring, "_noisy", meanwhile)
    with pytest.raises(LeaseLost):
        score(slow)


def test_a_score_that_is_not_paid_for_is_refused(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as ledger:
        with pytest.raises(PrivacyRefusal, match="is paid for with its first step"):
            score(session(ledger))
        with pytest.raises(InvalidInput, match="score_report"):
            score(session(ledger, which=plan(score_report=None)))
    with pytest.raises(InvalidInput, match="charges"):
        score(session(None))


# --- the interval -------------------------------------------------------------------------------------------


def coverage(share: float, *, claimed: float, true: float, count: int = 4000, n: int = 300) -> float:
    rng = np.random.default_rng(11)
    held = 0
    for x, y in np.rint(rng.normal(0, true * 1000, (count, 2))) / 1000:
        _, low, high = scoring.share_of(share * n + x, (1 - share) * n + y, claimed)
        held += low <= share <= high
    return held / count


@pytest.mark.parametrize("share", [0.0, 0.5, 0.93, 1.0])
def test_intervals_hold_the_share_in_95_of_100(share: float) -> None:
    found = coverage(share, claimed=9.0, true=9.0)
    assert 0.94 < found < 0.982  # at the ends, half of the misses are cut off
    assert coverage(share, claimed=6.0, true=9.0) < 0.93


def test_where_noise_swallows_the_records_nothing_is_said() -> None:
    assert scoring.share_of(-3.0, 2.0, 20.0) == (0.5, 0.0, 1.0)
    value, low, high = scoring.share_of(25.0, -3.0, 20.0)
    assert (value, high) == (1.0, 1.0)
    assert low == 0.0


# --- the statement ------------------------------------------------------------------------------------------


def scored_statement(ledger: Ledger) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(statement_of(finish(session(ledger))).to_json())
    return found


def test_the_statement_says_that_the_score_is_covered_and_is_verified(ledger: Ledger) -> None:
    data = scored_statement(ledger)
    assert any("one score on test records" in line for line in data["covered"])
    assert not any("exact" in line for line in data["not_covered"])
    assert verify_statement(data).agrees
    assert against_its_ledger(data, ledger) == []


def test_a_statement_that_hides_the_score_or_what_it_costs_is_found(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as ledger:
        whole = json.dumps(scored_statement(ledger))
    for change in ("none", "ScoreReport(noise=9.0)", "ScoreReport(noise=-1.0)"):
        data = json.loads(whole)
        data["mechanism"]["score_report"] = change
        assert verify_statement(data).verdict == "contradicts itself"
    data = json.loads(whole)
    plain = plan(score_report=None)
    data["event"] = json.loads(
        make_statement(plain, steps_done=STEPS, randomness="", private=False).to_json()
    )["event"]
    assert not verify_statement(data).agrees


def test_a_ledger_that_was_paid_for_the_steps_alone_does_not_pay_for_the_score(ledger: Ledger) -> None:
    run = session(ledger, which=plan(score_report=None))
    finish(run)
    assert run.charges is not None
    made = make_statement(
        plan(), steps_done=STEPS, randomness=run.randomness, private=False, ledger=run.charges.so_far()
    )
    assert any("its event costs" in text for text in against_its_ledger(made.data, ledger))


def test_the_event_is_the_release() -> None:
    assert ScoreReport(3.0).event == Gaussian(3.0)
    assert plan(preparation=[Gaussian(9.0)]).beside == (Gaussian(9.0), Gaussian(NOISE))
