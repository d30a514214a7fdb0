"""The rate at which both stages of an audit contradict a promise that holds, on simulated scores."""

from __future__ import annotations

import math
from functools import cache, partial

import numpy as np
import pytest

from tacit.audits import Claim, audit_slots
from tacit.audits import one_run as slot_audit
from tacit.audits.claim import AUDIT_LEVEL
from tacit.plan import Plan
from tacit.report.findings import ATTACKS, MEMORY
from tacit.runs import attack as slots
from tacit.runs.attack import PLANTED, confirms, judged, results_of, suspects
from tacit.runs.kinds import silent
from tacit.training.audit_slots import SlotEvidence

PLAN = Plan.with_noise(
    noise_multiplier=1.0, steps=1, records=2000, clipping=1.0, delta=1e-5, adjacency="add-remove", unit="row",
    allow_large_delta=True,
)  # fmt: skip
CANARIES = 200
claim_of = cache(Claim)


def evidence(rng: np.random.Generator, canaries: int = CANARIES, *, true_noise: float = 1.0) -> SlotEvidence:
    """The evidence of a run of the plan in its slots; with less noise than stated, if there is a bug."""
    coins = rng.random(canaries) < 0.5
    seen = coins + rng.normal(0.0, true_noise, (1, canaries))
    return SlotEvidence(seen.astype(np.float32), coins)


def audited(seed: int, *, true_noise: float = 1.0) -> tuple[bool, bool]:
    """Whether the first stage suspects a run, and whether the second one confirms it."""
    rng = np.random.default_rng(seed)
    found = audit_slots(evidence(rng, true_noise=true_noise), PLAN, confidence=0.95, rng=rng)
    if not suspects(found):
        return False, False
    fresh = evidence(rng, slots._MORE[0] * CANARIES, true_noise=true_noise)
    return True, confirms(fresh, PLAN, level=PLANTED, rng=rng)


def at_most(count: int, trials: int, rate: float) -> bool:
    """Return whether ``count`` of ``trials`` are compatible with a rate, at a false-alarm rate of 1e-4."""
    from scipy.stats import binom

    return bool(binom.sf(count - 1, trials, rate) > 1e-4)


@pytest.fixture(autouse=True)
def _short_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take thresholds from 500 simulated canaries, which keep all levels, and state no noise: quicker."""
    monkeypatch.setattr(slot_audit, "_REHEARSAL_CELLS", 500)
    monkeypatch.setattr(slot_audit, "Claim", claim_of)  # all of one plan
    monkeypatch.setattr("tacit.audits.claim._least_contradicted_noise", lambda *_: None)


def test_the_levels_of_all_tests_of_an_audit_add_up_to_what_is_said() -> None:
    assert math.isclose(PLANTED + ATTACKS + MEMORY, AUDIT_LEVEL)


@pytest.mark.thorough(instead="test_the_second_stage_alone_errs_at_its_level_whatever_the_first_one_did")
def test_honest_runs_are_contradicted_once_in_a_thousand() -> None:
    """2,000 verdicts; of the first stage alone dozens would be wrong."""
    found = [audited(seed) for seed in range(2000)]
    suspected, confirmed = (sum(column) for column in zip(*found, strict=True))
    assert suspected >= 20, "else this shows nothing of the second stage"
    assert at_most(confirmed, 2000, PLANTED)
    assert not at_most(suspected, 2000, AUDIT_LEVEL)


def test_the_second_stage_alone_errs_at_its_level_whatever_the_first_one_did() -> None:
    """At a larger level, so that sixty trials show it."""
    rng = np.random.default_rng(1)
    wrong = sum(confirms(evidence(rng), PLAN, level=0.05, rng=rng) for _ in range(60))
    assert at_most(wrong, 60, 0.05)


@pytest.mark.parametrize("factor", [2.0, 1.5])
def test_planted_bug_too_little_noise_is_found_by_both_stages(factor: float) -> None:
    """At least as often as the first stage alone found it, but for one run in twenty."""
    found = [audited(seed, true_noise=1 / factor) for seed in range(20)]
    suspected, confirmed = (sum(column) for column in zip(*found, strict=True))
    assert confirmed >= suspected - 1
    assert suspected >= 14


def test_a_suspicion_that_is_not_confirmed_is_no_contradiction() -> None:
    rng = np.random.default_rng(3)
    found = audit_slots(evidence(rng, true_noise=0.4), PLAN, confidence=0.95, rng=rng)
    assert suspects(found)
    cleared, kept = judged(found, confirmed=False), judged(found, confirmed=True)
    assert not suspects(cleared)
    said = results_of(cleared)[0].sentence()
    assert "is not contradicted: the second, larger test decides, and it found no violation" in said
    assert (
        "CONTRADICTED in both stages of the audit, do not release. At most one audit in 1,000"
        in results_of(kept)[0].sentence()
    )


def test_own_slots_and_a_fresh_run_share_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[float] = []

    def confirms_nothing(*_: object, level: float, rng: object) -> bool:
        levels.append(level)
        return False

    monkeypatch.setattr(slots, "confirms", confirms_nothing)
    monkeypatch.setattr(slots, "rehearse_plan", lambda *_, **__: None)
    rng = np.random.default_rng(3)
    found = audit_slots(evidence(rng), PLAN, confidence=0.95, rng=rng)
    again = partial(slots._second_stage, found, None, PLAN, CANARIES)  # type: ignore[arg-type]
    again(False, silent, rng)
    assert sum(levels) == pytest.approx(PLANTED)
    levels.clear()
    again(True, silent, rng)
    assert levels == [PLANTED]


def test_where_there_is_no_time_for_a_fresh_run_own_slots_have_the_whole_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels: list[float] = []

    def confirms_nothing(*_: object, level: float, rng: object) -> bool:
        levels.append(level)
        return False

    monkeypatch.setattr(slots, "confirms", confirms_nothing)
    monkeypatch.setattr(slots, "MOST_WORK", 0.0)
    rng = np.random.default_rng(3)
    shown = evidence(rng)
    found = audit_slots(shown, PLAN, confidence=0.95, rng=rng)
    said = slots._second_stage(found, shown, PLAN, CANARIES, False, silent, rng)[1]
    assert levels == [PLANTED]
    assert said == "its own slots, at a smaller error probability"


def test_the_second_stage_performs_an_honest_plan_and_clears_it() -> None:
    """The real run of the plan: what the first stage saw was made up, with too little noise."""
    rng = np.random.default_rng(3)
    found = audit_slots(evidence(rng, true_noise=0.4), PLAN, confidence=0.95, rng=rng)
    assert suspects(found)
    again, said = slots._second_stage(found, evidence(rng), PLAN, 100, True, silent, rng)
    assert said == "800 fresh canaries in a separate run of the same plan"
    assert not suspects(again)
    assert results_of(again)[0].suspected


@pytest.mark.parametrize("own", [False, True])
def test_planted_bug_noise_scaled_by_a_half_is_confirmed_by_the_real_second_stage(
    monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """A fault of the code: each run of the plan has it."""
    real = Plan.gradient_noise_multiplier
    rng = np.random.default_rng(3)
    shown = evidence(rng, true_noise=0.5)
    found = audit_slots(shown, PLAN, confidence=0.95, rng=rng)
    perform = slots.rehearse_plan

    def faulty(plan: Plan, canaries: int, **options: object) -> SlotEvidence:
        with monkeypatch.context() as patched:
            halved = property(lambda self: real.__get__(self) / 2)
            patched.setattr(Plan, "gradient_noise_multiplier", halved)
            return perform(plan, canaries)

    monkeypatch.setattr(slots, "rehearse_plan", faulty)
    again, _ = slots._second_stage(found, shown, PLAN, 100, not own, silent, rng)
    assert suspects(again)
