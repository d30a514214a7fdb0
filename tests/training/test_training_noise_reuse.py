"""The noise of a step is used for one sum: copies, forks, cut steps and second lives of a run are refused."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from made import a_plan, a_session, losses, network, one_step
from torch import Tensor, nn
from torch.utils.data import Dataset

from tacit.errors import PrivacyRefusal
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.noise.generator import Generator, Purpose
from tacit.testing import seeded_generator
from tacit.training import PrivateSession, StepCharges, select_candidate
from tacit.training import released as noise_reuse

N = 60
PLAN = a_plan(noise_multiplier=2.0, batch_size=None, steps=8)


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(N, 5), torch.arange(N) % 3


def session(rate: float = 0.1, *, net: nn.Module | None = None, **more: Any) -> PrivateSession:
    """Return a session with a fresh key."""
    net = network(5, 3) if net is None else net
    return a_session(net, data(), PLAN, lr=rate, **{"generator": None, **more})


def walk(run: PrivateSession, steps: int) -> list[Tensor]:
    """Take steps; return the noisy sums that moved the weights."""
    sums = []
    for _ in range(steps):
        before = torch.nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()
        one_step(run)
        after = torch.nn.utils.parameters_to_vector(run.model.parameters()).detach()
        sums.append((before - after) / run.optimizer.param_groups[0]["lr"] * N)
    return sums


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    found = Ledger.create("sqlite://")
    policy = Policy(unit="row", adjacency="add-remove", budget=RenyiBudget(epsilon=50.0, delta=1e-6))
    found.open_dataset("people", policy)
    yield found
    found.close()


def test_two_sessions_on_one_charge_are_refused(ledger: Ledger) -> None:
    charges = StepCharges(ledger, "people", PLAN)
    walk(session(0.1, charges=charges), 3)
    with pytest.raises(PrivacyRefusal, match=r"same noise.*its own StepCharges"):
        walk(session(1.0, charges=charges), 3)


def test_planted_bug_without_the_check_the_noise_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subtract two noisy sums that the check would refuse: their noise nearly cancels."""
    monkeypatch.setattr(noise_reuse, "_ROUNDING", float("inf"))
    generator = Generator.from_os()
    one, two = (walk(session(rate, generator=generator), 2)[1] for rate in (0.1, 1.0))
    assert float((one - two).std()) < 0.3 * 2.0 * 0.5 * 2**0.5


def go_back(run: PrivateSession, path: Path) -> None:
    walk(run, 2)
    run.save(path)
    walk(run, 2)
    run.load(path)


def test_steps_after_a_saved_one_are_taken_again_as_they_were(tmp_path: Path) -> None:
    run = session()
    go_back(run, tmp_path / "state")
    walk(run, 3)
    assert run.steps_done == 5


@pytest.mark.parametrize("change", ["rate", "loss", "records"])
def test_steps_after_a_saved_one_are_not_taken_otherwise(change: str, tmp_path: Path) -> None:
    run = session()
    go_back(run, tmp_path / "state")
    if change == "rate":
        run.optimizer.param_groups[0]["lr"] = 0.5
    elif change == "loss":
        run._run.engine.per_example_loss = lambda model, x, y: losses(model, x, y) / 100
    else:
        run._run.records = type(run._run.records)((-data()[0], data()[1]))  # type: ignore[call-arg]
    done = run.steps_done
    with pytest.raises(PrivacyRefusal, match="taken before, with the same noise but another result"):
        walk(run, 2)
    assert run.steps_done <= done + 1  # another rate shows in the step after


def released(generator: Generator, *, at: int | None = None, by: float = 0.0, step: int = 3) -> None:
    """Check a release of 40,000 numbers, of which one differs from that of the other calls."""
    weight, bias = torch.ones(39_990), torch.full((10,), 2.0)
    if at is not None:
        (weight if at < len(weight) else bias)[at % len(weight)] += by
    noise_reuse.check_release(generator, step, {"weight": weight, "bias": bias})


def test_no_number_of_a_release_may_differ() -> None:
    """1,024 evenly spaced numbers were compared: releases that differed in all others were accepted.

    The weights are random in each process; about one in 10^7 processes would accept one of these.
    """
    generator = Generator.from_os()
    released(generator)
    released(generator)
    released(generator, at=7, by=1e-5)  # the rounding of 40,000 numbers may add up to that
    for at in (0, 1, 2, 38, 39, 255, 256, 20_000, 39_900, 39_989, 39_990, 39_999):
        with pytest.raises(PrivacyRefusal, match="same noise"):
            released(generator, at=at, by=1.0)
    released(generator, at=1, by=1.0, step=4)


def test_other_records_are_refused_whichever_weights_they_move(tmp_path: Path) -> None:
    """Records with two columns exchanged: only weights between the numbers that were compared differ."""
    torch.manual_seed(1)
    x, y = torch.randn(N, 4096), torch.arange(N) % 3
    net = nn.Linear(4096, 3)
    nn.init.zeros_(net.weight)
    run = a_session(net, (x, y), PLAN, generator=None)
    run.save(tmp_path / "state")
    walk(run, 1)
    run.load(tmp_path / "state")
    exchanged = x.clone()
    exchanged[:, [1, 2]] = x[:, [2, 1]]
    run._run.records = type(run._run.records)((exchanged, y))  # type: ignore[call-arg]
    with pytest.raises(PrivacyRefusal, match="taken before, with the same noise but another result"):
        walk(run, 1)


def test_keys_for_tests_may_be_used_again() -> None:
    for rate in (0.1, 1.0):
        walk(session(rate, generator=seeded_generator(3)), 2)


class Stop(BaseException):
    """An interruption from outside."""


def cut_short(run: PrivateSession) -> None:
    def stop(*_: object) -> None:
        raise Stop

    hook = run.optimizer.register_step_post_hook(stop)
    with pytest.raises(Stop):
        one_step(run)
    hook.remove()


@pytest.mark.parametrize("generator", [None, seeded_generator(4)], ids=["private", "test"])
def test_a_step_that_was_cut_short_is_spent_and_not_done_again(
    generator: Generator | None, tmp_path: Path
) -> None:
    run = session(generator=generator)
    walk(run, 2)
    run.save(tmp_path / "state")
    cut_short(run)
    assert run.steps_done == 3
    assert run.epsilon == PLAN.epsilon_after([3])[0]
    for go_on in (lambda: walk(run, 1), lambda: run.save(tmp_path / "other")):
        with pytest.raises(PrivacyRefusal, match="step 2 was interrupted"):
            go_on()
    run.load(tmp_path / "state")
    walk(run, 2)
    assert run.steps_done == 4


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"]
)
def test_the_key_is_not_copied(copied: Callable[[object], object]) -> None:
    with pytest.raises(PrivacyRefusal, match="cannot be copied or pickled"):
        copied(Generator.from_os())


def test_a_session_is_not_copied() -> None:
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(PrivacyRefusal, match="cannot be copied or pickled"):
            copied(session())


def _refused(generator: Generator) -> bool:
    try:
        generator.words(1, purpose=Purpose.NOISE, step=0)
    except PrivacyRefusal:
        return True
    return False


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.parametrize("secure", [True, False])
def test_what_a_fork_inherits_draws_nothing(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator.from_os() if secure else seeded_generator(5)
    assert not _refused(generator)
    monkeypatch.setattr("os.getpid", lambda: -1)  # what a child sees; a real fork of a threaded test may hang
    assert _refused(generator) is secure


def test_gradients_on_what_the_session_does_not_train_are_refused() -> None:
    """A group of parameters that joined the optimizer later would move by raw gradients."""
    run = session()
    other = nn.Linear(5, 1)
    run.optimizer.add_param_group({"params": list(other.parameters())})
    other(data()[0]).sum().backward()
    with pytest.raises(PrivacyRefusal, match="parameters of the optimizer that the session does not train"):
        walk(run, 1)


def test_a_selection_over_one_model_is_refused(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best would depend on all runs, and the charge covers one."""
    monkeypatch.setattr("tacit.training.scoring.draw_trials", lambda event: 2)
    net = network(5, 3)
    with pytest.raises(PrivacyRefusal, match="that an earlier run has trained"):
        select_candidate(
            [0.1, 0.2], lambda rate: session(rate, net=net), lambda net: 0.0,
            plan=PLAN, ledger=ledger, dataset="people", mean=4,
        )  # fmt: skip


class Items(Dataset[Any]):
    """Gives records one by one; the last ``changed`` of them are others."""

    def __init__(self, changed: int = 0) -> None:
        self.x, self.y = data()
        self.x[N - changed :] += 1.0

    def __len__(self) -> int:
        return N

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        return self.x[position], self.y[position]


def test_a_data_set_of_other_records_is_not_gone_on_with(tmp_path: Path) -> None:
    def run(records: Items) -> PrivateSession:
        net = network(5, 3)
        return PrivateSession(net, torch.optim.SGD(net.parameters(), lr=0.1), records, PLAN, loss=losses)

    first = run(Items())
    walk(first, 1)
    first.save(tmp_path / "state")
    run(Items()).load(tmp_path / "state")
    with pytest.raises(PrivacyRefusal, match="Different: the records"):
        run(Items(changed=N // 2 + 1)).load(tmp_path / "state")  # of 32, one at least is another


AWAKE = """
import time
import torch
from tacit.noise.generator import Generator
from tacit.training.released import check_release

torch.set_num_threads(1)  # its own threads wait for the next step for 10 ms after any large operation
generator, gradients = Generator.from_os(), {str(i): torch.ones(64) for i in range(400)}
for step in range(20):
    check_release(generator, step, gradients)
start = time.process_time()
time.sleep(0.05)
print(time.process_time() - start)
"""


def test_the_check_leaves_no_threads_awake() -> None:
    """Threads of NumPy's BLAS stay awake for tens of milliseconds and slow down the next step."""
    freely = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    run = [sys.executable, "-c", AWAKE]
    found = subprocess.run(run, env=freely, capture_output=True, text=True, check=True)
    assert float(found.stdout) < 0.01
