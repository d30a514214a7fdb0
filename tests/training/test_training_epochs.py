"""Training with each record once an epoch: plan and price, exact resume, users, slots, charges, statement."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import a_ledger, a_plan, a_session, finish, network, no_noise, table, weights
from numpy.typing import NDArray
from ran import make_statement
from run_files import digits_run
from scipy.special import logsumexp
from torch import Tensor

from tacit.accounting import account
from tacit.audits.one_run import audit_slots, plan_with_room
from tacit.correlation import Banded
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import BallsInBins, Gaussian, Repeat
from tacit.integrations.sklearn import PrivateClassifier
from tacit.ledger import RenyiBudget
from tacit.plan import Plan
from tacit.report.checklist import in_words
from tacit.report.verification import verify_statement
from tacit.runs.config import parse_config
from tacit.runs.plan import make_plan
from tacit.sampling import BallsInBinsSampling, FullBatch, PoissonSampling
from tacit.testing import seeded_generator
from tacit.training import AuditSlots, PrivateSession, StepCharges, UserRecords

N = 60

plan = partial(a_plan, sampling="epochs")  # four epochs of three steps


class Read(torch.utils.data.Dataset[Any]):
    """Counts how often each record was read."""

    def __init__(self) -> None:
        self.x, self.y = table(N)
        self.counts = np.zeros(N, np.int64)

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.counts[i] += 1
        return self.x[i], self.y[i]


def session(the_plan: Plan, data: Any = None, **more: Any) -> PrivateSession:
    settings = {"generator": seeded_generator(4), "physical_batch_size": 8, **more}
    return a_session(network(4, 2, seed=0), data or table(N), the_plan, **settings)


# --- the plan --------------------------------------------------------------------------------------------


def test_the_plan_is_priced_for_what_is_drawn() -> None:
    made = plan()
    assert made.sampling == BallsInBinsSampling(3)
    assert made.event == Repeat(BallsInBins(3, Gaussian(1.0)), 4)
    assert made == plan(steps=None, epochs=4)
    assert (made.charging_unit, made.steps_per_epoch, made.epochs) == (3, 3, 4.0)
    assert made.event_between(3, 9) == Repeat(BallsInBins(3, Gaussian(1.0)), 2)
    spent = made.epsilon_after([0, 1, 3, 4, 12])
    assert spent[0] == 0.0
    assert spent[1] == spent[2] < spent[3] < spent[4] == made.epsilon


def test_the_divisor_is_the_mean_size_of_a_batch() -> None:
    made = plan(batch_size=17)  # 60 / 17 is about 3.5
    assert (made.sampling, made.expected_batch_size) == (BallsInBinsSampling(4), 15.0)
    assert plan(batch_size=50).sampling == FullBatch()
    assert plan(batch_size=50).expected_batch_size == 60.0
    assert plan(batch_size=None).sampling == FullBatch()


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(
    ("epsilon", "batch", "epochs", "poisson", "bins"),
    [(1.0, 100, 10, 1.879, 1.811), (8.0, 500, 40, 1.423, 1.368)],
)
def test_it_needs_less_noise_than_poisson_sampling(
    epsilon: float, batch: int, epochs: int, poisson: float, bins: float
) -> None:
    settings: dict[str, Any] = {
        "epsilon": epsilon, "delta": 1e-5, "records": 5000, "batch_size": batch, "epochs": epochs,
        "clipping": 1.0, "adjacency": "add-remove", "unit": "row",
    }  # fmt: skip
    assert Plan.calibrate(**settings).noise_multiplier == pytest.approx(poisson, abs=6e-4)
    once = Plan.calibrate(**settings, sampling="epochs")
    assert once.noise_multiplier == pytest.approx(bins, abs=6e-4)
    assert once.epsilon <= epsilon
    assert (
        replace(once, noise_multiplier=once.noise_multiplier * 0.999, epsilon_budget=None).epsilon > epsilon
    )


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"steps": 13},
            InvalidInput,
            "steps: 13 is not a whole number of epochs of 3 steps.* Take 12 or 15",
        ),
        ({"steps": None, "epochs": 2.5}, InvalidInput, "steps: 8 .* Take 6 or 9 steps, or whole epochs"),
        ({"adjacency": "replace-one"}, PrivacyRefusal, "Use Poisson sampling"),
        ({"rows_per_user": 2}, PrivacyRefusal, "Sample people"),
        ({"correlation": Banded((1.0, 0.5))}, PrivacyRefusal, "sampling=CyclicPoissonSampling"),
        ({"largest_batch": 30}, InvalidInput, "largest_batch cannot be combined"),
        ({"sampling": "epoch"}, PrivacyRefusal, "must be one of .*BallsInBinsSampling.* got .epoch."),
        ({"sampling": BallsInBinsSampling(4)}, InvalidInput, "to that mean"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        plan(**changes)


def test_zero_out_is_priced_as_add_remove() -> None:
    assert plan(adjacency="zero-out").epsilon == plan().epsilon


# --- the price of what is drawn, by simulation ------------------------------------------------------------


def simulated_delta(
    epsilon: float, bins: int, epochs: int, sigma: float, *, same: bool = False
) -> tuple[float, float]:
    """Return delta and its standard error: each record of the sampler is one record with gradient 1."""
    count, sampler, generator = 100_000, BallsInBinsSampling(bins), seeded_generator(2)
    noise, ratios = np.random.default_rng(1), np.zeros((epochs, bins, count))
    for epoch in range(epochs):
        for batch in range(bins):
            x = sigma * noise.standard_normal(count)
            x[sampler.indices(generator, batch + (0 if same else epoch * bins), count)] += 1.0
            ratios[epoch, batch] = (x - 0.5) / sigma**2
    if same:  # then the bin is one for the whole run
        ratios = ratios.sum(axis=0, keepdims=True)
    loss: NDArray[np.float64] = (logsumexp(ratios, axis=1) - np.log(bins)).sum(axis=0)
    terms = np.maximum(1.0 - np.exp(epsilon - loss), 0.0)
    return float(terms.mean()), float(terms.std() / np.sqrt(count))


@pytest.mark.parametrize(("bins", "epochs", "sigma", "epsilon"), [(10, 3, 1.0, 1.5), (4, 2, 0.5, 6.0)])
def test_the_price_is_that_of_a_simulation(bins: int, epochs: int, sigma: float, epsilon: float) -> None:
    curve = account(Repeat(BallsInBins(bins, Gaussian(sigma)), epochs), adjacency="add-remove")
    lower, upper = curve.delta_bounds(epsilon)
    delta, error = simulated_delta(epsilon, bins, epochs, sigma)
    assert 3 * error < delta
    assert lower - 4 * error <= delta <= upper + 4 * error
    planted, error = simulated_delta(epsilon, bins, epochs, sigma, same=True)
    assert planted > upper + 4 * error


# --- the run ---------------------------------------------------------------------------------------------


def test_a_run_reads_each_record_once_an_epoch() -> None:
    read = Read()
    run = session(plan(), read)
    before = read.counts.copy()  # the checks of a new session read some
    for epoch in range(4):
        finish(run, steps=3 * (epoch + 1))
        assert (read.counts - before >= epoch + 1).all()
    drawn = np.concatenate([run._run.participants(step) for step in range(3)])
    assert sorted(drawn.tolist()) == list(range(N))
    assert not torch.equal(weights(run), weights(finish(session(plan(sampling=None)))))


@pytest.mark.parametrize("steps", [3, 4])
def test_resume_is_exact_and_for_the_same_sampler_only(steps: int, tmp_path: Path) -> None:
    whole = weights(finish(session(plan())))
    finish(session(plan()), steps=steps).save(tmp_path / "state.pt")
    run = session(plan())
    run.load(tmp_path / "state.pt")
    assert torch.equal(weights(finish(run)), whole)
    for other in (plan(batch_size=15), plan(sampling=None)):
        with pytest.raises(PrivacyRefusal):
            session(other).load(tmp_path / "state.pt")


def test_prefetched_batches_are_those_of_the_run() -> None:
    ahead = session(plan(), Read(), workers=1)
    assert torch.equal(weights(finish(ahead)), weights(finish(session(plan()))))


def test_people_are_drawn_with_their_rows() -> None:
    records = UserRecords(table(N), np.arange(N) % 20, rows_per_user=2)
    run = session(plan(records=20, batch_size=7, unit="person"), records)
    drawn = [run._run.participants(step) for step in range(3)]
    assert sorted(np.concatenate(drawn).tolist()) == list(range(20))
    assert finish(run).steps_done == 12


def test_a_ledger_is_charged_by_epochs() -> None:
    made, budget = plan(), RenyiBudget(epsilon=50.0, delta=1e-3)
    with closing(a_ledger(budget=budget)) as ledger:
        charges = StepCharges(ledger, "rows", made, chunk=1)
        assert charges.chunk == 3
        run = finish(session(made, generator=None, charges=charges), steps=4)
        assert run.steps_done == 4
        two = budget.price(made.event_after(6), made.adjacency)
        assert ledger.status("rows").spent == pytest.approx(two, rel=1e-9)


# --- slots -----------------------------------------------------------------------------------------------


def test_a_slot_takes_part_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    no_noise(monkeypatch)
    evidence = finish(session(plan(records=N), audit=AuditSlots(12))).slot_evidence()
    parts = evidence.observed.reshape(4, 3, 12).sum(axis=1)
    assert np.abs(parts - evidence.included).max() < 1e-4
    assert not (evidence.observed[:3] == evidence.observed[3:6]).all()


@pytest.mark.parametrize(("noise", "rejected"), [(1.0, False), (0.5, True)])
def test_an_audit_contradicts_a_run_with_half_of_the_noise(
    noise: float, rejected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rejected:  # the noise that the run behaves like takes longer to find than all the rest
        monkeypatch.setattr("tacit.audits.claim._least_contradicted_noise", lambda *_: None)
    monkeypatch.setattr("tacit.audits.claim._NOISE_HALVINGS", 1)  # each of them prices another event
    claimed = plan_with_room(plan(delta=1e-5), 1000)
    assert (claimed.records, claimed.event) == (5000, plan().event)
    ran = replace(claimed, noise_multiplier=noise)
    run = a_session(network(4, 2), table(100), ran, generator=seeded_generator(6), audit=AuditSlots(1000))
    found = audit_slots(finish(run).slot_evidence(), claimed, confidence=0.95, rng=np.random.default_rng(0))
    assert found.claim.claim_rejected == rejected
    assert found.claim.eps_lower > 1.0


# --- what it is called -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 7])
def test_the_statement_says_it_and_is_checked_against_it(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.report.statement._GROUPS", ())  # whose epsilons take longer than all the rest
    made = make_statement(plan(noise_multiplier=5.0), steps_done=steps)
    assert "each record once an epoch, in one of its 3 batches at random" in " ".join(made.to_text().split())
    found = verify_statement(made.data)
    assert found.agrees, found.contradictions
    mechanism = {**made.data["mechanism"], "sampler": PoissonSampling(20 / 60).describe()}
    assert not verify_statement({**made.data, "mechanism": mechanism}).agrees


def test_a_checklist_says_it_in_words() -> None:
    assert in_words(plan().event) == (
        "4 times: 3 steps, with each record in one of them at random, each step Gaussian noise of 1 times "
        "the sensitivity"
    )


FILE = digits_run("batch_size = 480; epochs = 4", privacy='epsilon = 3.0; sampling = "epochs"')


def test_a_run_file_names_the_sampler() -> None:
    made = make_plan(parse_config(FILE, "run.toml"))
    assert (made.sampling, made.steps) == (BallsInBinsSampling(3), 12)
    assert made.epsilon <= 3.0
    by_steps = FILE.replace("epochs = 4", "steps = 12")
    assert make_plan(parse_config(by_steps, "run.toml")) == made
    with pytest.raises(
        InvalidInput, match=r"^\[training\] steps: 13 is not a whole number.* Take 12 or 15 steps"
    ):
        make_plan(parse_config(by_steps.replace("steps = 12", "steps = 13"), "run.toml"))


def test_a_table_states_the_epochs() -> None:
    """The recipe of linear models counts steps on all records."""
    table = 'table = "rows.csv"\ntarget = "y"'
    text = FILE.replace('name = "digits"', table).replace('"logistic"', '"linear"')
    config = parse_config(text.replace("batch_size = 480\n", ""), "run.toml")
    assert config.training.batch_size == "auto"
    assert make_plan(config).sampling == BallsInBinsSampling(6)
    without = text.replace("epochs = 4\n", "")
    with pytest.raises(InvalidInput, match="exactly one of epochs and steps; got neither"):
        make_plan(parse_config(without, "run.toml"))


def test_an_estimator_takes_it_with_batch_size_and_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.report.statement._GROUPS", ())  # whose epsilons take longer than all the rest
    x = np.random.default_rng(0).normal(size=(1000, 3))
    y = (x[:, 0] > 0).astype(int)
    settings: dict[str, Any] = {
        "epsilon": 3.0, "delta": 1e-4, "unit": "row", "adjacency": "add-remove", "records": 1000,
        "classes": [0, 1], "bounds": (-5, 5), "sampling": "epochs",
    }  # fmt: skip
    model = PrivateClassifier(**settings, batch_size=500, epochs=6).fit(x, y)
    assert (model.plan_.sampling, model.plan_.steps) == (BallsInBinsSampling(2), 12)
    assert model.score(x, y) > 0.8
    for more, words in (
        ({"epochs": 6}, "batch_size is missing"),
        ({"batch_size": 200}, "epochs is missing"),
        ({"batch_size": 200, "epochs": 6, "sampling": "bins"}, "sampling must be one of poisson, epochs"),
        ({"head": "least-squares"}, "takes no sampling='epochs'"),
    ):
        with pytest.raises(InvalidInput, match=words):
            PrivateClassifier(**{**settings, **more}).fit(x, y)
