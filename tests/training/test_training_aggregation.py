"""Private averages of clients' updates: the law of noise and draws, the bound, the cost, and wrong input."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from made import a_ledger, a_plan
from numpy.typing import NDArray
from scipy import stats

from tacit.clipping import AdaptiveClipping, PerLayerClipping
from tacit.correlation import Banded
from tacit.errors import BudgetExceeded, InvalidInput, PrivacyRefusal
from tacit.events import Gaussian
from tacit.ledger import Ledger, RenyiBudget
from tacit.plan import LossReport, Plan, ScoreReport
from tacit.report import make_statement
from tacit.report.verification import verify_statement
from tacit.sampling import ByDate
from tacit.testing import seeded_generator
from tacit.training import PrivateAggregation, StepCharges
from tacit.training import aggregation as module
from tacit.training.resume import load_state, saved_generator

N, B, ROUNDS, C = 10, 5, 6, 0.5
Update = list[NDArray[Any]]
ZEROS: Update = [np.zeros((3, 2), np.float32), np.zeros(2)]


def plan(**changes: Any) -> Plan:
    settings = {"records": N, "batch_size": B, "steps": ROUNDS, "clipping": C, "unit": "client"}
    return a_plan(**{**settings, **changes})


def everyone(**changes: Any) -> Plan:
    """All clients in each round."""
    return plan(batch_size=None, **changes)


def of(the_plan: Plan, like: Any = ZEROS, **settings: Any) -> PrivateAggregation[Any]:
    return PrivateAggregation(the_plan, like, **{"generator": seeded_generator(3), **settings})


def update(seed: int, size: float = 1.0) -> Update:
    """An update of this norm, in a random direction."""
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(array.shape) for array in ZEROS]
    norm = math.sqrt(sum(float((array**2).sum()) for array in arrays))
    return [(size / norm * array).astype(like.dtype) for array, like in zip(arrays, ZEROS, strict=True)]


def flat(arrays: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(array, np.float64).ravel() for array in arrays])


def one_round(aggregation: PrivateAggregation[Any], updates: Mapping[int, Update]) -> Update:
    """Finish a round with the updates of those who were drawn."""
    drawn = aggregation.begin()
    released: Update = aggregation.finish({client: updates[client] for client in drawn if client in updates})
    return released


def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(generator: Any, shape: tuple[int, ...], *, dtype: torch.dtype, **address: Any) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    monkeypatch.setattr(module, "gaussian", zeros)


# --- what a round releases ---------------------------------------------------------------------------------


def by_definition(updates: Mapping[int, Update], bound: float, divisor: float) -> list[float]:
    """The sum of clipped updates in exact Python numbers, divided."""
    total = [0.0] * len(flat(ZEROS))
    for arrays in updates.values():
        values = [float(v) for array in arrays for v in array.ravel()]
        if not all(map(math.isfinite, values)):
            continue
        norm = math.sqrt(math.fsum(v * v for v in values))
        total = [t + v * min(1.0, bound / norm if norm else 1.0) for t, v in zip(total, values, strict=True)]
    return [t / divisor for t in total]


def test_a_round_is_the_mean_of_clipped_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    no_noise(monkeypatch)
    updates = {client: update(client, size=0.2 * client) for client in range(N)}
    aggregation = of(plan())
    for _ in range(ROUNDS):
        drawn = aggregation.begin()
        got = aggregation.finish({client: updates[client] for client in drawn})
        want = by_definition({client: updates[client] for client in drawn}, C, B)
        assert flat(got) == pytest.approx(want, abs=1e-7)  # one array is float32
        assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in ZEROS]


def test_the_order_of_the_answers_changes_nothing() -> None:
    updates = {client: update(client, size=0.3 * client) for client in range(N)}
    one, other = of(everyone()), of(everyone())
    one.begin()
    other.begin()
    backwards = dict(reversed(updates.items()))
    assert np.array_equal(flat(one.finish(updates)), flat(other.finish(backwards)))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_adds_nothing_and_nobody_hears_of_it(wrong: float) -> None:
    with_it = {client: update(client) for client in range(N)}
    with_it[4][1][0] = wrong
    with_it[5] = [np.full_like(array, np.finfo(array.dtype).max) for array in ZEROS]  # its norm overflows
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = one_round(of(everyone()), with_it)
    without = one_round(of(everyone()), {c: u for c, u in with_it.items() if c not in (4, 5)})
    assert np.array_equal(flat(got), flat(without))


def test_arrays_by_name_come_back_by_name() -> None:
    like = {"a.weight": ZEROS[0], "a.bias": ZEROS[1]}
    listed = one_round(of(everyone()), {0: update(0)})
    named = one_round(of(everyone(), like), {0: dict(zip(like, update(0), strict=True))})  # type: ignore[dict-item]
    assert list(named) == list(like)
    assert np.array_equal(flat([*named.values()]), flat(listed))  # type: ignore[attr-defined]


def test_layers_are_clipped_separately_if_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    no_noise(monkeypatch)
    like = {"a.weight": np.zeros(3), "b.weight": np.zeros(2)}
    rule = PerLayerClipping(0.5, (("a", 0.3), ("b", 0.4)))
    aggregation = of(everyone(clipping=rule), like)
    aggregation.begin()
    got = aggregation.finish({2: {"a.weight": np.array([3.0, 0.0, 4.0]), "b.weight": np.array([0.0, 0.1])}})
    assert got["a.weight"] * N == pytest.approx([0.18, 0.0, 0.24])
    assert got["b.weight"] * N == pytest.approx([0.0, 0.1])


def test_the_threshold_follows_the_noisy_count_of_norms_below_it() -> None:
    rule = AdaptiveClipping(1.0, quantile=0.5, learning_rate=1.0, count_noise=2.0)
    moved = []
    for size in (0.1, 10.0):
        aggregation = of(everyone(clipping=rule, records=900, steps=1), generator=seeded_generator(5))
        one_round(aggregation, {client: update(client, size) for client in range(300)})
        moved.append(math.log(aggregation.thresholds[0]))
    # 300 of 900 answer. All norms are below: the fraction is 1/2 + 150/900; none is: 1/2 - 150/900.
    assert moved[0] - moved[1] == pytest.approx(-1 / 3, abs=1e-9)
    assert abs(moved[0] + 1 / 6) < 5 * 2.0 / 900


# --- one client more or less -------------------------------------------------------------------------------


def largest_change(release: Callable[[Mapping[int, Update]], NDArray[np.float64]]) -> float:
    """Return the largest change of a noiseless sum by one client, over updates that try hard."""
    changes = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sizes = 10.0 ** rng.uniform(-3, 8, N)
        updates = {client: update(100 * seed + client, size) for client, size in enumerate(sizes)}
        for gone in range(N):
            less = {client: u for client, u in updates.items() if client != gone}
            changes.append(float(np.linalg.norm(release(updates) - release(less))))
    return max(changes)


def test_no_client_moves_the_sum_by_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    no_noise(monkeypatch)
    like = [array.astype(np.float64) for array in ZEROS]

    def release(updates: Mapping[int, Update]) -> NDArray[np.float64]:
        doubles = {c: [array.astype(np.float64) for array in u] for c, u in updates.items()}
        return N * flat(one_round(of(everyone(), like), doubles))

    change = largest_change(release)
    assert 0.999 * C < change <= C * (1 + 1e-9)


def clipped_after_the_sum(
    aggregation: PrivateAggregation[Any], sums: dict[str, NDArray[Any]], given: Any, scale: float
) -> float:
    """The bug: what is clipped is the mean so far, with this client's update in it."""
    for name, array in given.items():
        sums[name] += scale * array
    norm = np.linalg.norm(flat([*sums.values()])) / scale
    for name in sums:
        sums[name] *= min(1.0, C / norm)
    return 0.0


def test_the_bound_finds_a_client_that_is_clipped_after_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivateAggregation, "_add_clipped", clipped_after_the_sum)
    with pytest.raises(AssertionError):
        test_no_client_moves_the_sum_by_more_than_the_bound(monkeypatch)


# --- the noise and the draws -------------------------------------------------------------------------------


def test_the_noise_of_each_round_has_the_law_of_the_plan() -> None:
    rule = AdaptiveClipping(C, count_noise=3.0)
    for the_plan in (plan(noise_multiplier=2.0), plan(noise_multiplier=2.0, clipping=rule)):
        aggregation = of(the_plan, [np.zeros((40, 50)), np.zeros(2000, np.float32)])
        thresholds, rounds = [], []
        for _ in range(ROUNDS):
            thresholds.append(aggregation.thresholds[0])
            rounds.append(flat(one_round(aggregation, {})))
        z = 2.0 if the_plan.clipping is not rule else (2.0**-2 - (2 * 3.0) ** -2) ** -0.5
        scaled = [B * released / (z * bound) for released, bound in zip(rounds, thresholds, strict=True)]
        together = np.concatenate(scaled)
        assert stats.kstest(together, "norm").pvalue > 1e-3
        assert 1e-3 < scale_fits(together) < 1 - 1e-3
        assert not 1e-6 < scale_fits(1.05 * together) < 1 - 1e-6
        correlation = np.corrcoef(scaled)
        assert np.abs(correlation - np.eye(ROUNDS)).max() < 5 / math.sqrt(len(scaled[0]))
        halves = np.corrcoef(together.reshape(ROUNDS, 2, -1).swapaxes(0, 1).reshape(2, -1))
        assert abs(halves[0, 1]) < 5 / math.sqrt(together.size / 2)


def scale_fits(draws: NDArray[np.float64]) -> float:
    """The probability of a smaller sum of squares."""
    return float(stats.chi2.cdf((draws**2).sum(), draws.size))


def test_clients_are_drawn_independently_at_the_rate_of_the_plan() -> None:
    rounds = 4000
    aggregation = of(plan(steps=rounds, batch_size=3), [np.zeros(1)])
    there = np.zeros((rounds, N))
    for row in there:
        row[aggregation.begin()] = 1
        aggregation.finish({})
    counts = there.sum(0)
    assert stats.binomtest(int(counts.sum()), there.size, 0.3).pvalue > 1e-3
    assert all(stats.binomtest(int(count), rounds, 0.3).pvalue > 1e-4 for count in counts)
    assert all(stats.binomtest(int(count), rounds, 0.35).pvalue < 1e-4 for count in counts)
    sizes = np.bincount(there.sum(1).astype(int), minlength=N + 1)
    law = stats.binom.pmf(np.arange(N + 1), N, 0.3) * rounds
    assert stats.chisquare([*sizes[:7], sizes[7:].sum()], [*law[:7], law[7:].sum()]).pvalue > 1e-3
    assert np.abs(np.corrcoef(there.T) - np.eye(N)).max() < 5 / math.sqrt(rounds)
    assert abs(np.corrcoef(there[1:].ravel(), there[:-1].ravel())[0, 1]) < 5 / math.sqrt(there.size)


# --- the cost ----------------------------------------------------------------------------------------------


def test_epsilon_is_that_of_another_accountant() -> None:
    aggregation = of(plan(noise_multiplier=1.5))
    for done in range(1, ROUNDS + 1):
        one_round(aggregation, {})
        if done not in (1, 2, ROUNDS):
            continue
        other = PLDAccountant()
        other.compose(SelfComposedDpEvent(PoissonSampledDpEvent(B / N, GaussianDpEvent(1.5)), done))
        assert aggregation.epsilon == pytest.approx(other.get_epsilon(aggregation.plan.delta), rel=2e-3)
    assert aggregation.epsilon == aggregation.plan.epsilon


def test_the_rounds_of_the_plan_are_all_there_are() -> None:
    aggregation = of(plan(steps=2))
    for _ in range(2):
        one_round(aggregation, {})
    with pytest.raises(BudgetExceeded, match=r"all 2 rounds .* plan more steps"):
        aggregation.begin()


def test_each_round_is_charged_before_its_clients_are_drawn() -> None:
    ledger = a_ledger(dataset="sites", unit="client")
    the_plan = plan()
    charges = StepCharges(ledger, "sites", the_plan, chunk=2, generator=seeded_generator(3))
    aggregation = PrivateAggregation(the_plan, ZEROS, charges=charges)
    assert charged(ledger) == (0, 0)
    aggregation.begin()
    assert charged(ledger) == (1, 0)
    aggregation.finish({})
    one_round(aggregation, {})
    assert charged(ledger) == (0, 1)
    while aggregation.steps_done < ROUNDS:
        one_round(aggregation, {})
    assert charged(ledger) == (0, 3)
    statement = make_statement(aggregation)
    assert statement.data["ledger"]["steps"] == ROUNDS
    assert verify_statement(statement.data).agrees


def test_a_ledger_with_too_little_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.report.statement._GROUPS", ())  # whose epsilons take longer than all the rest
    ledger = a_ledger(dataset="sites", unit="client", budget=RenyiBudget(epsilon=2.0, delta=1e-3))
    the_plan = plan(noise_multiplier=3.0)
    charges = StepCharges(ledger, "sites", the_plan, chunk=2)
    aggregation = PrivateAggregation(the_plan, ZEROS, charges=charges)
    one_round(aggregation, {})
    one_round(aggregation, {})
    other = plan(noise_multiplier=3.0, steps=1, batch_size=None)
    while charges_fit(ledger, other):
        one_round(PrivateAggregation(other, ZEROS, charges=StepCharges(ledger, "sites", other)), {})
    with pytest.raises(BudgetExceeded):
        aggregation.begin()
    assert aggregation.stopped is not None
    assert aggregation.steps_done == 2
    assert make_statement(aggregation).data["ledger"]["stopped"] == aggregation.stopped
    with pytest.raises(BudgetExceeded, match="Nothing was charged"):
        PrivateAggregation(the_plan, ZEROS, charges=StepCharges(ledger, "sites", the_plan)).begin()


def charged(ledger: Ledger) -> tuple[int, int]:
    """The numbers of reserved and settled charges."""
    charges = ledger.status("sites").charges
    return charges["RESERVED"], charges["SETTLED"]


def charges_fit(ledger: Ledger, the_plan: Plan) -> bool:
    return bool(ledger.price("sites", the_plan.event).fits)


def test_unit_and_adjacency_are_those_of_the_ledger() -> None:
    ledger = a_ledger(dataset="sites", unit="hospital")
    with pytest.raises(PrivacyRefusal, match="unit is 'client', but that of data set 'sites' is 'hospital'"):
        StepCharges(ledger, "sites", plan())


@pytest.mark.parametrize("sampled", [True, False])
def test_the_statement_is_about_clients_and_is_verified(sampled: bool) -> None:
    aggregation = PrivateAggregation(plan() if sampled else everyone(), ZEROS)
    one_round(aggregation, {})
    statement = make_statement(aggregation, data_source="five clinics", not_covered=["transport"])
    data = statement.data
    assert data["guarantee"]["unit"] == "client"
    assert data["mechanism"]["name"].startswith("DP-FedAvg: clipped updates of clients")
    assert data["mechanism"]["steps"] == 1
    assert statement.epsilon == pytest.approx(aggregation.epsilon)
    assert data["private"]
    assert verify_statement(data).agrees
    text = " ".join(statement.to_text().split())
    assert "if any one client had been left out" in text
    assert "the server, which sees the update of each client" in text
    assert ("who takes part in a round" in text) == sampled
    assert not make_statement(of(plan())).data["private"]


# --- resuming ----------------------------------------------------------------------------------------------


def rounds_of(aggregation: PrivateAggregation[Any], count: int = ROUNDS) -> list[Update]:
    updates = {client: update(client) for client in range(N)}
    return [one_round(aggregation, updates) for _ in range(count)]


@pytest.mark.parametrize("rule", [C, AdaptiveClipping(C, count_noise=3.0)])
def test_a_resumed_run_goes_on_as_one_that_was_not_interrupted(tmp_path: Path, rule: Any) -> None:
    path, whole = tmp_path / "private" / "rounds", of(plan(clipping=rule))
    want = rounds_of(whole)
    got = rounds_of(of(plan(clipping=rule), state=path), 3)
    resumed = of(plan(clipping=rule), state=path, generator=None)
    assert resumed.steps_done == 3
    assert resumed.released is not None
    assert np.array_equal(flat(resumed.released), flat(got[-1]))
    assert not resumed.private
    got += rounds_of(resumed, 3)
    assert all(np.array_equal(flat(a), flat(b)) for a, b in zip(want, got, strict=True))
    assert resumed.thresholds == whole.thresholds
    with pytest.raises(BudgetExceeded, match="all 6 rounds"):
        of(plan(clipping=rule), state=path).begin()
    assert path.stat().st_mode & 0o077 == 0


def test_a_round_is_written_before_it_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies after it has written a round does not take it again, and loses nothing of it."""
    path = tmp_path / "rounds"
    aggregation = PrivateAggregation(plan(), ZEROS, state=path)
    drawn = aggregation.begin()
    monkeypatch.setattr(module, "save_state", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        aggregation.finish({client: update(client) for client in drawn})
    monkeypatch.undo()
    assert aggregation.steps_done == 0
    assert aggregation.released is None
    with pytest.raises(PrivacyRefusal, match="taken before, with the same noise but another result"):
        aggregation.finish({client: update(client + 1) for client in drawn})
    assert load_state(path)["done"] == 0
    released = aggregation.finish({client: update(client) for client in drawn})
    state = load_state(path)
    assert state["done"] == 1
    assert np.array_equal(flat([array.numpy() for array in state["released"].values()]), flat(released))


def test_only_the_newest_process_finishes_rounds(tmp_path: Path) -> None:
    path = tmp_path / "rounds"
    old = PrivateAggregation(plan(), ZEROS, state=path)
    one_round(old, {})
    new = PrivateAggregation(plan(), ZEROS, state=path)
    old.begin()
    with pytest.raises(PrivacyRefusal, match="another process has resumed the rounds"):
        old.finish({})
    one_round(new, {})
    assert new.steps_done == 2


@pytest.mark.parametrize(
    ("change", "like", "words"),
    [
        ({"noise_multiplier": 2.0}, ZEROS, "noise_multiplier was 1.0, is 2.0"),
        ({"steps": ROUNDS + 1}, ZEROS, "steps was 6, is 7"),
        ({}, [np.zeros((3, 2), np.float32), np.zeros(3)], "the model"),
        ({}, [np.zeros((3, 2)), np.zeros(2)], "the model"),
    ],
)
def test_the_state_of_another_run_is_refused(tmp_path: Path, change: Any, like: Any, words: str) -> None:
    path = tmp_path / "rounds"
    rounds_of(of(plan(), state=path), 1)
    with pytest.raises(PrivacyRefusal, match=words):
        of(plan(**change), like, state=path)


def test_a_resumed_run_goes_on_with_its_charges(tmp_path: Path) -> None:
    ledger, path, the_plan = a_ledger(dataset="sites", unit="client"), tmp_path / "rounds", plan()

    def again(**settings: Any) -> PrivateAggregation[Any]:
        charges = StepCharges(ledger, "sites", the_plan, chunk=4, **settings)
        return PrivateAggregation(the_plan, ZEROS, state=path, charges=charges)

    rounds_of(again(), 3)
    assert charged(ledger) == (1, 0)
    with pytest.raises(PrivacyRefusal, match="this session is charged to no ledger"):
        PrivateAggregation(the_plan, ZEROS, state=path)
    rounds_of(again(), 2)
    rounds_of(again(generator=saved_generator(path)), 1)
    assert charged(ledger) == (0, 2)


# --- wrong input -------------------------------------------------------------------------------------------


def test_rounds_are_begun_and_finished_in_turn() -> None:
    aggregation = of(plan())
    with pytest.raises(PrivacyRefusal, match="no round has begun"):
        aggregation.finish({})
    aggregation.begin()
    with pytest.raises(PrivacyRefusal, match="round 0 is not finished"):
        aggregation.begin()
    aggregation.finish({})
    with pytest.raises(PrivacyRefusal, match="no round has begun"):
        aggregation.finish({})


@pytest.mark.parametrize("client", [*range(N), -1, N, "north", None])
def test_a_client_that_was_not_drawn_is_refused(client: Any) -> None:
    aggregation = of(plan())
    if client not in aggregation.begin():
        with pytest.raises(PrivacyRefusal, match=rf"client {client!r} was not sampled in round 0.* Ask only"):
            aggregation.finish({client: update(0)})
    assert aggregation.steps_done == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([np.zeros((2, 3), np.float32), np.zeros(2)], "has array '0' as float32 of shape (2, 3); it must be"),
        ([np.zeros((3, 2)), np.zeros(2)], "as float64 of shape (3, 2); it must be float32 of shape (3, 2)"),
        (
            [np.zeros((3, 2), ">f4"), np.zeros(2)],
            "must be a NumPy array of float16, float32 or float64; got >f4",
        ),
        ([np.zeros((3, 2), np.float32)], "has array '1' as nothing"),
        ([*ZEROS, np.zeros(2)], "has array '2' as float64 of shape (2,); it must be nothing"),
        ({"0": ZEROS[0], "w": ZEROS[1]}, "has array '1' as nothing"),
        ([torch.zeros(3, 2), torch.zeros(2)], "got Tensor. Send only parameters"),
        ([np.zeros((3, 2), np.int64), np.zeros(2)], "got int64"),
        ([np.array([[None, 1.0]]), np.zeros(2)], "got object"),
        ([[1.0, 2.0]], "got list"),
        ([], "not empty; got list"),
        (None, "got NoneType"),
        (np.zeros(2), "got ndarray"),
    ],
)
def test_an_update_of_another_form_is_refused_and_the_round_stays_open(wrong: Any, words: str) -> None:
    aggregation = of(everyone())
    aggregation.begin()
    with pytest.raises(InvalidInput) as refused:
        aggregation.finish({0: update(0), 1: wrong})
    assert words in str(refused.value)
    assert "client 1" in str(refused.value)
    aggregation.finish({0: update(0)})
    assert aggregation.steps_done == 1


def test_arrays_that_no_update_could_have_are_refused_before_the_first_round() -> None:
    for like, words in (
        ({"count": np.zeros((), np.int64)}, "got int64. Send only parameters, not counters"),
        ({}, "like must be a list of NumPy arrays"),
        ("weights", "got str"),
        (torch.nn.Linear(1, 1).state_dict(), "like must be"),
    ):
        with pytest.raises(InvalidInput, match=words):
            of(plan(), like)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"correlation": Banded((1.0, 0.5)), "batch_size": None}, "correlation"),
        ({"loss_report": LossReport()}, "loss_report"),
        ({"score_report": ScoreReport(20.0)}, "score_report"),
        ({"rows_per_user": 2}, "rows_per_user"),
        ({"preparation": [Gaussian(8.0)]}, "preparation"),
        ({"views": 2}, "views"),
        ({"sampling": ByDate()}, "batches by date"),
    ],
)
def test_a_plan_that_needs_records_is_refused(changes: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=rf"does not support {words}.* Remove it from the plan"):
        of(plan(**changes))


def test_other_things_than_a_plan_are_refused() -> None:
    with pytest.raises(InvalidInput, match="plan must be"):
        PrivateAggregation(plan().event, ZEROS)  # type: ignore[arg-type]


def test_no_number_of_a_client_is_in_an_error() -> None:
    aggregation = of(everyone())
    aggregation.begin()
    for wrong in ([np.full((2, 2), 7654.25), np.zeros(2)], [np.full((3, 2), "Mallory7654"), np.zeros(2)]):
        with pytest.raises(InvalidInput) as refused:
            aggregation.finish({0: wrong})
        assert "7654" not in str(refused.value)
