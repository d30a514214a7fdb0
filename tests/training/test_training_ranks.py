"""Several processes take one step together: the sum, the noise and the charges of one process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_worker
from made import a_ledger
from rank_worker import KINDS, Pool
from scipy import stats

from tacit.errors import InvalidInput, PrivacyRefusal, ProcessLost
from tacit.ledger import Ledger, RenyiBudget
from tacit.training import Alone, PrivateSession, ProcessRanks


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


def test_what_a_step_needs_of_the_others(pool: Pool) -> None:
    want = {
        "sums": [[3.0], [30.0], [], [3.0], [3.0]],
        "copied": [[1, 1], True, [1.0, 1.0]],
        "total": (3.0, -4.0),
        "from first": 1,
        "told": "only here",
    }
    assert pool("primitives") == [want, want]


# --- the released sum ------------------------------------------------------------------------------------


def check_sum(pool: Pool, kind: str, bug: str | None = None, **changes: Any) -> None:
    """Check that two ranks release the same as one process, up to the order of summation."""
    alone, scalars = rank_worker.released(Alone(), kind=kind, **changes)
    assert np.abs(alone).max() > 0.01
    for found, numbers in pool("released", kind=kind, bug=bug, **changes):
        assert np.abs(found - alone).max() <= 1e-12
        for got, want in zip(numbers, scalars, strict=True):
            assert got == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_release_the_sum_of_one_process(pool: Pool, kind: str) -> None:
    check_sum(pool, kind, steps=12 if kind == "small batches" else 3)


@pytest.mark.parametrize("physical", [1, 3])
def test_the_cut_into_physical_batches_does_not_matter(pool: Pool, physical: int) -> None:
    check_sum(pool, "arrays", physical_batch_size=physical)


@pytest.mark.parametrize("bug", ["own key, unnoticed", "no sum", "mean for sum", "every rank takes all"])
def test_planted_bugs_in_the_sum(pool: Pool, bug: str) -> None:
    with pytest.raises(AssertionError):
        check_sum(pool, "arrays", bug)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("physical", [8, "auto"])
def test_all_ranks_do_a_step_again_that_one_has_no_memory_for(
    pool: Pool, rank: int, physical: int | str
) -> None:
    """All ranks have one size, searched or halved together; the weights are those of that size."""
    first, second = pool("short", rank=rank, physical=physical)
    size = 1 if physical == "auto" else 2  # a draw of 23 in 10 parts of up to 3
    assert (first[1], second[1]) == (size, size)
    wanted = pool("short", rank=None, physical=size)[0][0]
    assert (first[0] == wanted).all()
    assert (second[0] == wanted).all()


# --- the noise -------------------------------------------------------------------------------------------


def check_noise(pool: Pool, bug: str | None = None) -> None:
    """Check that the noise is N(0, (sigma C)^2) in steps in which no rank, one or both have a record."""
    settings: dict[str, Any] = {"kind": "small batches", "width": 200, "steps": 16}
    ((noisy, _), (same, _)) = pool("released", noise=True, bug=bug, **settings)
    assert (noisy == same).all()
    noise = (noisy - rank_worker.released(Alone(), **settings)[0]) / 0.5
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    for row in noise:  # each step by itself
        assert math.isclose(row.std(), 1.0, abs_tol=5 / math.sqrt(2 * row.size))
    together = np.corrcoef(noise)[np.triu_indices(len(noise), 1)]
    assert np.abs(together).max() < 5 / math.sqrt(noise.shape[1])


def test_the_noise_of_the_ranks_is_that_of_one_step(pool: Pool) -> None:
    check_noise(pool)


@pytest.mark.parametrize(
    "bug", ["full noise at each rank", "noise divided by R", "an empty slice adds no noise"]
)
def test_planted_bugs_in_the_noise(pool: Pool, bug: str) -> None:
    with pytest.raises(AssertionError):
        check_noise(pool, bug)


# --- a whole run -----------------------------------------------------------------------------------------


def test_two_ranks_go_on_with_the_next_days_of_a_stream(pool: Pool, tmp_path: Path) -> None:
    whole, _ = pool("trained", kind="stream")
    state = tmp_path / "state"
    pool("trained", kind="stream", dated="2026-01-11", save=state)  # ten days
    for continued in pool("trained", kind="stream", load=state):
        assert np.array_equal(continued, whole)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float32", "arrays"),
        ("float64", "arrays"),
        ("float32", "correlated"),
        ("float32", "stream"),
        ("float32", "lengths"),
    ],
)
def test_replicas_are_equal_to_the_last_bit_and_a_resumed_run_too(
    pool: Pool, dtype: str, kind: str, tmp_path: Path
) -> None:
    whole, other = pool("trained", dtype=dtype, kind=kind, stop=12)
    assert (whole == other).all()
    state = tmp_path / "state.pt"
    pool("trained", dtype=dtype, kind=kind, stop=5, save=state)
    for resumed in pool("trained", dtype=dtype, kind=kind, stop=12, load=state):
        assert (resumed == whole).all()


def test_the_state_of_two_ranks_is_refused_in_one_process(pool: Pool, tmp_path: Path) -> None:
    state = tmp_path / "state.pt"
    pool("trained", stop=2, save=state)
    with pytest.raises(PrivacyRefusal, match=r"the number of processes \(was 2, is 1\)"):
        rank_worker.session(Alone()).load(state)


def test_a_failure_at_one_rank_is_told_at_all(pool: Pool) -> None:
    for rank in (0, 1):
        told = pool("failing", rank=rank)
        assert [done for done, *_ in told] == [1, 1]
        assert all(unchanged for *_, unchanged in told)
        assert told[rank][1] == "InvalidInput"
        assert "Input/output error" in told[rank][2]
        assert told[1 - rank][1] == "ProcessLost"
        assert f"process {rank} of this run failed" in told[1 - rank][2]


@pytest.mark.parametrize(
    ("what", "words"),
    [("physical", "physical_batch_size"), ("plan", r"steps was 24, is 23"), ("engine", "the engine")],
)
def test_ranks_of_different_runs_are_refused(pool: Pool, what: str, words: str) -> None:
    first, second = pool("disagreeing", what=what)
    assert (first[0], second[0]) == ("ProcessLost", "PrivacyRefusal")
    assert "process 1 of this run differs from process 0" in second[1]
    assert words.replace("\\", "") in second[1]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("lr", "in its optimizer lr is 0.1, not 0.5"),
        ("schedule", "in its optimizer lr is 0.25, not 0.5"),
        ("weights", "its weights differ in 0.weight, with the same optimizer settings"),
        ("mode", "it is in another mode (model.train(), model.eval())"),
    ],
)
def test_copies_that_come_apart_are_refused_before_the_next_step_and_the_next_state(
    pool: Pool, tmp_path: Path, what: str, words: str
) -> None:
    """If copies differ, a record may change more than one bounded term of the sum."""
    first, second = pool("apart", what=what, save=tmp_path / "state")
    taken = 0 if what == "lr" else 1
    for call in ("save", "step"):
        assert first[call][:2] == (taken, "ProcessLost")
        assert second[call][:2] == (taken, "PrivacyRefusal")
        assert f"the model of process 1 differs from that of process 0: {words}. " in second[call][2]
        assert "Give each process the same optimizer, settings, schedule" in second[call][2]
    assert not [*tmp_path.iterdir()]


def test_copies_that_come_apart_in_the_last_step_are_refused(pool: Pool, tmp_path: Path) -> None:
    first, second = pool("apart", what="the end", save=tmp_path / "state")
    assert (first.keys(), second.keys()) == ({"step"}, {"step"})  # the state was saved before
    assert first["step"][:2] == (24, "ProcessLost")
    assert second["step"][:2] == (24, "PrivacyRefusal")


def test_a_rank_with_a_key_of_its_own_is_noticed(pool: Pool) -> None:
    """The planted bug is detected because the records' fingerprint is keyed, and differs."""
    with pytest.raises(ProcessLost):
        pool("released", bug="own key")
    with pytest.raises(PrivacyRefusal, match="differs from process 0 in: the"):
        pool.receive(1)


# --- the ledger ------------------------------------------------------------------------------------------


def check_charges(pool: Pool, folder: Path, bug: str | None = None, *, each: bool = True) -> None:
    url = f"sqlite:///{folder}/ledger.db"
    a_ledger(url, "people").close()
    found = pool("charged", url=url, bug=bug, each=each)
    assert [run["done"] for run in found] == [24, 24]
    with closing(Ledger.open(url)) as ledger:
        reserved = [entry for entry in ledger.history("people") if entry.kind == "reserve"]
        assert {entry.kind for entry in ledger.history("people")} >= {"reserve", "settle"}
        assert len(reserved) == 12  # chunks of a twentieth of the plan, rounded up to 2 steps
        assert ledger.status("people").charges["SETTLED"] == 12


@pytest.mark.parametrize("each", [True, False], ids=["every rank has charges", "the first has"])
def test_a_run_is_charged_once(pool: Pool, tmp_path: Path, each: bool) -> None:
    check_charges(pool, tmp_path, each=each)


def test_planted_bug_every_rank_charges(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="24 == 12"):
        check_charges(pool, tmp_path, "every rank charges")


def test_a_refusal_of_the_ledger_ends_the_run_at_all_ranks(pool: Pool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    a_ledger(url, "people", budget=RenyiBudget(epsilon=1.0, delta=1e-3)).close()
    told = []
    pool.send("charged", url=url)
    for rank in (0, 1):
        with pytest.raises(PrivacyRefusal, match="exceed the remaining budget of 'people'") as refusal:
            pool.receive(rank)
        told.append(str(refusal.value))
    assert told[0] == told[1]


# --- a process dies --------------------------------------------------------------------------------------


def test_when_a_rank_is_killed_the_others_stop_and_nothing_is_lost(pool: Pool, tmp_path: Path) -> None:
    state, doomed = tmp_path / "state.pt", Pool()
    doomed("trained", stop=4, save=state)
    doomed.send("trained", load=state)
    doomed.processes[1].kill()
    with pytest.raises(ProcessLost, match="another process of this run cannot be reached"):
        doomed.receive(0)
    doomed.close()
    whole, _ = pool("trained", stop=9)
    for resumed in pool("trained", load=state, stop=9):
        assert (resumed == whole).all()


# --- one process -----------------------------------------------------------------------------------------


def test_alone_is_one_process_whatever_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(PrivacyRefusal, match=r"ranks=tacit\.training\.Alone\(\)"):
        PrivateSession(None, None, None, None, loss=None)  # type: ignore[arg-type]
    alone = rank_worker.trained(Alone(), stop=3)
    monkeypatch.undo()
    assert (alone == rank_worker.trained(Alone(), stop=3)).all()


def test_without_a_process_group_there_are_no_ranks() -> None:
    with pytest.raises(InvalidInput, match=r"init_process_group\(\) before ProcessRanks"):
        ProcessRanks()
    with pytest.raises(InvalidInput, match=r"ranks must be tacit\.training\.ProcessRanks\(\)"):
        rank_worker.session(Alone(), given=2)
