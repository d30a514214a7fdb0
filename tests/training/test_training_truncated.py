"""Training on truncated Poisson batches: never more records, exact resume, prefetch, a true statement."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from made import a_plan, a_session, finish, network, weights
from ran import make_statement
from torch import Tensor

from tacit.accounting import account
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import Gaussian, Repeat, TruncatedPoissonSampled
from tacit.plan import Plan
from tacit.report.verification import verify_statement
from tacit.runs.config import parse_config
from tacit.runs.plan import make_plan
from tacit.sampling import FullBatch, PoissonSampling, TruncatedPoissonSampling
from tacit.testing import seeded_generator
from tacit.training import AuditSlots, PrivateSession

N, LARGEST = 60, 21


plan = partial(a_plan, largest_batch=LARGEST)


class Rows(torch.utils.data.Dataset[Any]):
    """Gives items one at a time, as from files."""

    def __init__(self, count: int) -> None:
        draws = torch.Generator().manual_seed(3)
        self.x, self.y = torch.randn(count, 4, generator=draws), torch.arange(count) % 2

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]


def session(the_plan: Plan, count: int = N, **more: Any) -> PrivateSession:
    settings = {"generator": seeded_generator(4), "physical_batch_size": 8, **more}
    return a_session(network(4, 2, seed=0), Rows(count), the_plan, **settings)


def test_the_plan_is_priced_for_what_is_sampled() -> None:
    made = plan()
    assert made.sampling == TruncatedPoissonSampling(20 / 60, N, LARGEST)
    event = Repeat(TruncatedPoissonSampled(20 / 60, N, LARGEST, Gaussian(1.0)), 12)
    assert made.event == event
    assert made.event_between(4, 6) == replace(event, count=2)
    assert plan(sampling=made.sampling, largest_batch=None) == made


def test_a_calibrated_plan_keeps_its_promise() -> None:
    given: dict[str, Any] = {
        "epsilon": 3.0, "delta": 1e-5, "records": 60_000, "batch_size": 600, "steps": 1000, "clipping": 1.0,
        "adjacency": "add-remove", "unit": "image",
    }  # fmt: skip
    cut, whole = Plan.calibrate(**given, largest_batch=760), Plan.calibrate(**given)
    assert cut.epsilon <= 3.0
    assert whole.noise_multiplier <= cut.noise_multiplier < 1.001 * whole.noise_multiplier
    assert cut.epsilon == account(cut.event, adjacency="add-remove").epsilon(1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"largest_batch": 12}, "largest_batch 12 is smaller than the expected .* Take at least 43"),
        ({"largest_batch": 61}, "largest_batch"),
        ({"sampling": PoissonSampling(1 / 3)}, "cannot be combined with sampling"),
        ({"sampling": TruncatedPoissonSampling(1 / 3, 61, 30), "largest_batch": None}, "its sampler 61"),
        (
            {"sampling": TruncatedPoissonSampling(0.5, N, 40), "largest_batch": None},
            "to that mean",
        ),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        plan(**changes)


def test_no_step_reads_more_records_than_it_may() -> None:
    run, sizes = session(plan()), []
    whole = PoissonSampling(20 / 60)
    for step in range(12):
        indices = run.plan.sampling.indices(seeded_generator(4), step, N)
        sizes.append((len(indices), len(whole.indices(seeded_generator(4), step, N))))
    assert any(before > LARGEST for _, before in sizes)
    assert all(after == min(before, LARGEST) for after, before in sizes)
    assert not torch.equal(weights(finish(run)), weights(finish(session(plan(largest_batch=None)))))


def test_resume_is_exact_and_for_the_same_sampler_only(tmp_path: Path) -> None:
    whole = weights(finish(session(plan())))
    finish(session(plan()), steps=5).save(tmp_path / "state.pt")
    run = session(plan())
    run.load(tmp_path / "state.pt")
    assert torch.equal(weights(finish(run)), whole)
    for other in (22, None):
        with pytest.raises(PrivacyRefusal):
            session(plan(largest_batch=other)).load(tmp_path / "state.pt")


def test_prefetched_batches_are_those_of_the_run() -> None:
    assert torch.equal(weights(finish(session(plan(), workers=1))), weights(finish(session(plan()))))


def test_more_records_than_the_public_number_are_refused_before_a_step() -> None:
    with pytest.raises(PrivacyRefusal, match=f"more records than the plan's public number, {N}"):
        session(plan(), count=N + 1)
    fewer = finish(session(plan(), count=N - 10), steps=2)
    assert fewer.steps_done == 2


def test_audit_slots_are_refused() -> None:
    with pytest.raises(PrivacyRefusal, match="would displace each other"):
        session(plan(), audit=AuditSlots(4))


@pytest.mark.parametrize("steps", [0, 7, 12])
def test_the_statement_says_it_and_is_checked_against_it(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.report.statement._GROUPS", ())  # whose epsilons take longer than all the rest
    made = make_statement(
        plan(largest_batch=56, noise_multiplier=5.0),
        steps_done=steps,
    )
    assert "truncated Poisson sampling, rate 0.333333 per step, at most 56 of 60" in " ".join(
        made.to_text().split()
    )
    found = verify_statement(made.data)
    assert found.agrees, found.contradictions
    if steps:
        mechanism = {**made.data["mechanism"], "sampler": PoissonSampling(20 / 60).describe()}
        assert not verify_statement({**made.data, "mechanism": mechanism}).agrees


FILE = """
[data]
name = "digits"
[model]
name = "logistic"
[privacy]
epsilon = 3.0
delta = 1e-4
unit = "image"
adjacency = "add-remove"
records = 1437
sampling = "truncated-poisson"
[optimizer]
learning_rate = 0.5
[training]
batch_size = 64
largest_batch = 120
steps = 40
"""


def test_a_run_file_names_the_sampler_and_the_largest_batch() -> None:
    made = make_plan(parse_config(FILE, "run.toml"))
    assert made.sampling == TruncatedPoissonSampling(64 / 1437, 1437, 120)
    assert made.epsilon <= 3.0
    everybody = FILE.replace("= 64", '= "full"').replace("= 120", "= 1437")
    whole = make_plan(parse_config(everybody, "run.toml"))
    assert whole.epsilon == pytest.approx(replace(whole, sampling=FullBatch()).epsilon)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("largest_batch = 120\n", "", r"\[training\] largest_batch go together"),
        ('sampling = "truncated-poisson"\n', "", r"\[training\] largest_batch go together"),
        ("largest_batch = 120", "largest_batch = 30", r"^\[training\] largest_batch 30 is smaller"),
        ("largest_batch = 120", "largest_batch = 1438", r"^\[training\] largest_batch must be"),
        ("largest_batch = 120", "largest_batch = 0", r"\[training\] largest_batch = 0"),
    ],
)
def test_a_wrong_run_file_is_told_the_key(old: str, new: str, words: str) -> None:
    assert FILE.count(old) == 1
    with pytest.raises(InvalidInput, match=words):
        make_plan(parse_config(FILE.replace(old, new), "run.toml"))
