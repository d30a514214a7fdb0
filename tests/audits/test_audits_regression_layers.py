"""L1, L2 and L3 on real sessions: noise, sampler and accounting, slots; every planted bug is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import a_plan
from ran import make_statement
from regression import NotedRows, Recorder, check_accounting, noise_of_run, perform
from torch import Tensor, nn

from experiments.laboratory.laws import noise_law
from tacit.audits import Claim, Scores, audit_slots
from tacit.audits.claim import judged_counts
from tacit.audits.one_run import rehearsed_slot_scores, scores_of_slots
from tacit.noise import gaussian as gaussian_module
from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.sampling import PoissonSampling
from tacit.testing import seeded_generator
from tacit.training import AuditSlots, PrivateSession
from tacit.training import ranks as replicas
from tacit.training import session as session_module
from tacit.training.audit_slots import SlotEvidence
from tacit.training.released import GuardedOptimizer

LEVEL = 1e-3
N, D, B, STEPS = 200, 10, 40, 60
gaussian = gaussian_module.gaussian


def squares(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.square().sum(1)


plan = partial(a_plan, records=N, batch_size=B, steps=STEPS, clipping=0.7)


def made(the_plan: Plan, *, n: int = N, key: int = 5, physical: int = 16) -> tuple[PrivateSession, NotedRows]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 8)).double()
        rows = NotedRows((torch.randn(n, D, dtype=torch.float64),))
    run = PrivateSession(
        net, Recorder(net.parameters()), rows, the_plan,
        loss=squares, generator=seeded_generator(key), physical_batch_size=physical,
    )  # fmt: skip
    return run, rows


# --- L1: noise --------------------------------------------------------------------------------------------

Noise = Callable[..., Tensor]


def noise_rejected(physical: int = 16) -> bool:
    run, rows = made(plan(), physical=physical)
    releases = perform(run, rows)
    return noise_law(noise_of_run(run.model, squares, run.plan, rows, releases), std=1.0).rejects(LEVEL)


def with_std(factor: float) -> Noise:
    return lambda g, shape, *, std, **kw: gaussian(g, shape, std=std * factor, **kw)


def with_address(**address: int) -> Noise:
    return lambda g, shape, **kw: gaussian(g, shape, **{**kw, **address})


def same_on_all_ranks(g: Any, shape: Any, *, std: float, rank: int, ranks: int, **kw: Any) -> Tensor:
    """Four workers with one seed: their noises add up as one."""
    return sum(gaussian(g, shape, std=std, ranks=4, rank=0, **kw) for _ in range(4))  # type: ignore[return-value]


def one_number(g: Any, shape: Any, **kw: Any) -> Tensor:
    return gaussian(g, (1,), **kw).expand(shape).clone()


def none_on_biases(g: Any, shape: Any, **kw: Any) -> Tensor:
    return gaussian(g, shape, **kw) * (len(shape) > 1)


def none_on_one_parameter(g: Any, shape: Any, *, index: int, **kw: Any) -> Tensor:
    return gaussian(g, shape, index=index, **kw) * (index != 2)


def again_after_30_steps(g: Any, shape: Any, *, step: int, **kw: Any) -> Tensor:
    return gaussian(g, shape, step=step % 30, **kw)


def laplace(g: Any, shape: Any, *, std: float, step: int, index: int, **kw: Any) -> Tensor:
    words = torch.from_numpy(np.random.default_rng([step, index]).laplace(0.0, std / 2**0.5, shape))
    return words.to(kw["dtype"])


NOISE_BUGS: dict[str, Noise] = {
    "no noise": with_std(0.0),
    "sigma C / B on the sum": with_std(1 / B),
    "sigma / K instead of sigma / sqrt(K) for each of 4 workers": with_std(0.5),
    "noise for each microbatch": with_std(3**0.5),
    "sigma C on the mean": with_std(float(B)),
    "a tenth too little": with_std(1 / 1.1),
    "biases without noise": none_on_biases,
    "a parameter that was not registered, without noise": none_on_one_parameter,
    "fixed generator": with_address(step=0, index=0),
    "period of 30 steps": again_after_30_steps,
    "same noise each step": with_address(step=0),
    "seed shared by tensors": with_address(index=0),
    "equal seeds over ranks": same_on_all_ranks,
    "one number for a tensor": one_number,
    "Laplace": laplace,
}


def planted(bug: Noise) -> Callable[..., Any]:
    """Return a replacement of ``StepNoise`` in a step that has the bug's noise."""

    class Planted:
        def __init__(self, generator: Generator, **address: Any) -> None:
            self.generator, self.address = generator, address

        def fill_each(self, outs: Mapping[int, Tensor]) -> None:
            for index, out in outs.items():
                out.copy_(bug(self.generator, tuple(out.shape), index=index, dtype=out.dtype, **self.address))

    return Planted


def test_the_noise_of_a_run_follows_its_law() -> None:
    assert not noise_rejected()


@pytest.mark.parametrize("name", NOISE_BUGS)
def test_a_planted_bug_of_the_noise_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "StepNoise", planted(NOISE_BUGS[name]))
    assert noise_rejected(physical=64)  # in one pass


# --- L2: sampler and accountant ---------------------------------------------------------------------------


def accounting_differs(the_plan: Plan, *, n: int = N) -> list[str]:
    run, rows = made(the_plan, n=n)
    return check_accounting(run.plan.event, perform(run, rows), records=n, level=LEVEL).differences


def shuffled(sampling: Any, generator: Any, step: int, records: int) -> Any:
    size = round(sampling.sampling_rate * records)
    per_epoch = records // size
    order = np.random.default_rng(step // per_epoch).permutation(records)
    return np.sort(order.reshape(per_epoch, size)[step % per_epoch])


REAL_INDICES = PoissonSampling.indices


def last_batch_dropped(sampling: Any, generator: Any, step: int, records: int) -> Any:
    return REAL_INDICES(sampling, generator, step, records)[: int(sampling.sampling_rate * records)]


def duplicate(sampling: Any, generator: Any, step: int, records: int) -> Any:
    found = REAL_INDICES(sampling, generator, step, records)
    return np.sort(np.concatenate([found[found != 7], [7] * int(3 in found)])).astype(np.int64)


def rate_of_another_number(sampling: Any, generator: Any, step: int, records: int) -> Any:
    return REAL_INDICES(PoissonSampling(1.25 * sampling.sampling_rate), generator, step, records)


SAMPLER_BUGS: dict[str, Callable[..., Any]] = {
    "shuffle": shuffled,
    "last batch dropped": last_batch_dropped,
    "duplicate record": duplicate,
    "q from a wrong N": rate_of_another_number,
}


@pytest.mark.parametrize("settings", [{}, {"batch_size": 1, "records": 1000}, {"batch_size": N}], ids=str)
def test_what_is_done_is_what_is_accounted_for(settings: dict[str, Any]) -> None:
    """Also with batches that are empty, cut into microbatches, or full."""
    assert accounting_differs(plan(**{"delta": 1e-4, **settings})) == []


@pytest.mark.parametrize("name", SAMPLER_BUGS)
def test_a_planted_bug_of_the_sampler_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PoissonSampling, "indices", SAMPLER_BUGS[name])
    assert accounting_differs(plan(steps=140))


def test_steps_accounted_as_epochs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PoissonSampling.event

    def epochs(sampling: Any, mechanism: Any, steps: int, adjacency: Any) -> Any:
        return real(sampling, mechanism, max(1, round(steps * sampling.sampling_rate)), adjacency)

    monkeypatch.setattr(PoissonSampling, "event", epochs)
    assert "60 releases, 12 accounted for" in accounting_differs(plan())


def test_releases_for_each_microbatch_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = GuardedOptimizer.step

    def twice(guarded: GuardedOptimizer, gradients: Mapping[str, Tensor]) -> None:
        real(guarded, dict(gradients))  # which uses them up
        real(guarded, dict(gradients))

    monkeypatch.setattr(GuardedOptimizer, "step", twice)
    assert any("120 releases" in words for words in accounting_differs(plan()))


def resumed(path: Path) -> list[str]:
    run, rows = made(plan())
    done = perform(run, rows, 20)
    run.save(path)
    again, rows = made(plan(), key=6)
    again.load(path)
    done += perform(again, rows)
    return check_accounting(again.plan.event, done, records=N, level=LEVEL).differences


def test_a_resume_goes_on_with_the_account(tmp_path: Path) -> None:
    assert resumed(tmp_path / "state") == []


def test_a_resume_that_forgets_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = session_module.PrivateSession.load

    def forgetful(run: PrivateSession, path: Path | str) -> dict[str, Any]:
        found = real(run, path)
        run._run.done = 0
        return found

    monkeypatch.setattr(PrivateSession, "load", forgetful)
    found = resumed(tmp_path / "state")
    assert any("80 releases" in words for words in found)
    assert any("not Poisson" in words for words in found), "the first samples come twice"


# Of the PLD accountant of dp_accounting, at delta 1e-5.
GOLDEN = (
    ({"noise_multiplier": 1.0, "batch_size": 20, "steps": 200}, 9.97),
    ({"noise_multiplier": 4.0, "batch_size": N, "steps": 30}, 6.33),
)


def statement_differs(the_plan: Plan, epsilon: float) -> bool:
    data = make_statement(the_plan, steps_done=the_plan.steps, randomness="none", private=False).data
    stated = data["guarantee"]
    return (stated["delta"], stated["adjacency"]) != (1e-5, "add-remove") or abs(
        stated["epsilon"] - epsilon
    ) > 0.01


@pytest.mark.parametrize(("settings", "epsilon"), GOLDEN)
def test_the_report_says_what_was_asked_and_what_it_costs(
    settings: dict[str, Any], epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = plan(delta=1e-5, **settings)
    assert not statement_differs(right, epsilon)
    assert statement_differs(dataclasses.replace(right, delta=1e-4), epsilon)
    assert statement_differs(dataclasses.replace(right, adjacency="replace-one"), epsilon)  # type: ignore[arg-type]


# --- L3: slots --------------------------------------------------------------------------------------------

FULL = Plan.with_noise(
    noise_multiplier=4.0, steps=30, records=5000, clipping=1.0, delta=1e-5, adjacency="add-remove", unit="row"
)


def rejected_by_slots(confidence: float = 0.999) -> bool:
    """One run with 1,000 slots; 0.1 % of right runs are rejected."""
    net = nn.Linear(2, 1, bias=False)
    run = PrivateSession(
        net,
        Recorder(net.parameters()),
        (torch.zeros(5000, 2),),
        FULL,
        loss=squares,
        physical_batch_size=1500,
        audit=AuditSlots(1000),
        generator=seeded_generator(11),
    )
    for batch in run.batches():
        run.step(batch)
    return claim_rejected(run.slot_evidence(), FULL, confidence)


def claim_rejected(evidence: SlotEvidence, the_plan: Plan, confidence: float) -> bool:
    rng, noise = np.random.default_rng(0), the_plan.noise_multiplier
    claim = Claim(the_plan.curve, delta=the_plan.delta)
    scores: Scores = scores_of_slots(evidence, the_plan)
    rehearsals = tuple(
        rehearsed_slot_scores(
            steps=the_plan.steps,
            sampling_rate=1.0,
            noise_multiplier=noise,
            true_noise=noise / k,
            rng=rng,
            slots=3000,
        )
        for k in (1.0, 1.25)
    )
    seen = judged_counts(scores, claim, confidence=confidence, rng=rng, rehearsals=rehearsals)
    return any(part.contradicts(claim.false_negatives, level) for part, level in seen)


SLOT_BUGS = (
    "no noise",
    "sigma C / B on the sum",
    "sigma / K instead of sigma / sqrt(K) for each of 4 workers",
)


def test_slots_of_a_right_run_do_not_contradict_its_claim() -> None:
    assert not rejected_by_slots()


@pytest.mark.parametrize("name", SLOT_BUGS)
def test_a_planted_bug_of_the_noise_is_found_by_slots(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "StepNoise", planted(NOISE_BUGS[name]))
    assert rejected_by_slots()


def test_a_clip_left_out_is_found_by_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.clipping import FlatClipping

    monkeypatch.setattr(FlatClipping, "factors", lambda rule, norms, C: torch.ones_like(norms))
    assert rejected_by_slots()


def test_a_run_without_any_noise_is_audited_to_the_end() -> None:
    """The noise that it behaves like is below what has a price."""
    sampled = Plan.with_noise(
        noise_multiplier=1.0, steps=100, records=500, batch_size=100, clipping=1.0, delta=1e-5,
        adjacency="add-remove", unit="row",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    coins = rng.random(300) < 0.5
    seen = (coins & (rng.random((100, 300)) < 0.2)).astype(np.float32)
    found = audit_slots(SlotEvidence(seen, coins), sampled, confidence=0.95, rng=rng)
    assert found.claim.claim_rejected
    assert found.claim.eps_lower > sampled.epsilon
