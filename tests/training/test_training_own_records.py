"""Each process has records of its own: the steps of one process that has all, and what is refused."""

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
from rank_worker import CUT, OF_OWN, N, Pool
from scipy import stats

from tacit.errors import PrivacyRefusal
from tacit.ledger import Ledger
from tacit.noise.generator import Purpose
from tacit.sampling import PoissonSampling
from tacit.sampling.samplers import BallsInBinsSampling
from tacit.testing import seeded_generator
from tacit.training import Alone


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


# --- who takes part --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1, 6, 7])
def test_words_from_a_position_on_are_those_of_the_whole(first: int) -> None:
    generator = seeded_generator(1)
    whole = generator.words(20, purpose=Purpose.SAMPLING, step=3)
    assert (generator.words(20 - first, purpose=Purpose.SAMPLING, step=3, first=first) == whole[first:]).all()


@pytest.mark.parametrize("records", [5, 200_001])
@pytest.mark.parametrize("sampling", [PoissonSampling(0.3), BallsInBinsSampling(3)])
def test_draws_for_ranges_are_those_for_all(sampling: Any, records: int) -> None:
    generator = seeded_generator(2)
    ends = [0, 1, records // 3, records // 3, records]
    for step in (0, 4):
        parts = [sampling.indices_within(generator, step, records, range(*ends[i : i + 2])) for i in range(4)]
        assert np.array_equal(np.concatenate(parts), sampling.indices(generator, step, records))


# --- the released sum ------------------------------------------------------------------------------------


def check_sum(pool: Pool, kind: str, bug: str | None = None, **changes: Any) -> None:
    """Check that ranks with a part of the records each release what one process with all releases."""
    alone, scalars = rank_worker.released(Alone(), kind=kind, **changes)
    assert np.abs(alone).max() > 0.01
    for found, numbers in pool("released", kind=kind, bug=bug, own=True, **changes):
        assert np.abs(found - alone).max() <= 1e-12
        for got, want in zip(numbers, scalars, strict=True):
            assert got == pytest.approx(want, abs=1e-12)


@pytest.mark.thorough(cases=8)
@pytest.mark.parametrize("kind", OF_OWN)
def test_two_ranks_release_the_sum_of_one_process_with_all_records(pool: Pool, kind: str) -> None:
    check_sum(pool, kind, steps=12 if kind == "small batches" else 3)


@pytest.mark.parametrize("bug", ["same addresses", "own key, unnoticed", "no sum"])
def test_planted_bugs_in_the_sum(pool: Pool, bug: str) -> None:
    with pytest.raises(AssertionError):
        check_sum(pool, "arrays", bug)


@pytest.mark.parametrize("own", [np.arange(N), np.arange(0)], ids=["all", "none"])
def test_one_rank_may_have_no_records(pool: Pool, own: Any) -> None:
    alone, _ = rank_worker.released(Alone())
    other = np.setdiff1d(np.arange(N), own)
    for found, _ in pool("released", own=True, mine=[own, other]):
        assert np.abs(found - alone).max() <= 1e-12


# --- the noise -------------------------------------------------------------------------------------------


def check_noise(pool: Pool, bug: str | None = None) -> None:
    """Check that the noise is N(0, (sigma C)^2) in steps in which no rank, one or both have a record."""
    settings: dict[str, Any] = {"kind": "small batches", "width": 200, "steps": 16}
    ((noisy, _), (same, _)) = pool("released", noise=True, bug=bug, own=True, **settings)
    assert (noisy == same).all()
    noise = (noisy - rank_worker.released(Alone(), **settings)[0]) / 0.5
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    for row in noise:
        assert math.isclose(row.std(), 1.0, abs_tol=5 / math.sqrt(2 * row.size))


def test_the_noise_of_the_ranks_is_that_of_one_step(pool: Pool) -> None:
    check_noise(pool)


@pytest.mark.parametrize("bug", ["one rank forgets its noise", "an empty slice adds no noise"])
def test_planted_bugs_in_the_noise(pool: Pool, bug: str) -> None:
    with pytest.raises(AssertionError):
        check_noise(pool, bug)


# --- a whole run -----------------------------------------------------------------------------------------


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("kind", ["arrays", "once an epoch", "people"])
def test_a_resumed_run_is_equal_to_the_last_bit(pool: Pool, kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"kind": kind, "own": True, "dtype": "float64"}
    whole, other = pool("trained", stop=10, **settings)
    assert (whole == other).all()
    alone = rank_worker.trained(Alone(), stop=10, kind=kind)
    assert np.abs(whole - alone).max() > 1e-6  # the ranks draw other noise than one process

    state = tmp_path / "state.pt"
    pool("trained", stop=5, save=state, **settings)
    for resumed in pool("trained", stop=10, load=state, **settings):
        assert (resumed == whole).all()


@pytest.mark.parametrize("mine", ["moved", "swapped", "changed"])
def test_a_run_does_not_go_on_with_other_records(pool: Pool, mine: str, tmp_path: Path) -> None:
    state, every = tmp_path / "state.pt", np.arange(N)
    pool("trained", stop=2, save=state, own=True)
    parts = {
        "moved": [every[: CUT + 1], every[CUT + 1 :]],
        "swapped": [every[CUT:], every[:CUT]],
        "changed": [every[:CUT], every[CUT:][::-1].copy()],
    }[mine]
    pool.send("trained", stop=3, load=state, own=True, mine=parts)
    who = "process 1" if mine == "changed" else "processes 0, 1"
    for rank in (0, 1):
        with pytest.raises(PrivacyRefusal, match=rf"another run.*the records \(.*{who}"):
            pool.receive(rank)


# --- what is refused, before anything is charged ---------------------------------------------------------

REFUSED = {
    "too many": ("PrivacyRefusal", "more records than the plan's public number, 60.", "both"),
    "same": ("PrivacyRefusal", "processes 0 and 1 have the same records", "both"),
    "columns": ("InvalidInput", "process 0 in their columns: dose, age, not age, dose.", "second"),
    "structure": ("InvalidInput", "process 0 in their structure: {'x': 0, 'label': 1}, not {'x'", "second"),
    "tensors": ("InvalidInput", "process 0 in their tensors: (4,) torch.float64; ", "second"),
    "people": ("PrivacyRefusal", "the same person has rows at two processes", "both"),
    "not own": ("InvalidInput", "process 1 has own_records=False, but process 0 has True", "second"),
    "plan": ("PrivacyRefusal", "differs from process 0 in: the plan (clipping was", "second"),
    "loss": ("PrivacyRefusal", "differs from process 0 in: the loss", "second"),
    "dated": ("InvalidInput", "own_records cannot be used with records with dates", "both"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_ranks_that_do_not_fit_are_refused_before_anything_is_charged(
    pool: Pool, tmp_path: Path, what: str
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    a_ledger(url, "people").close()
    first, second = pool("unlike", what=what, url=url)
    kind, words, who = REFUSED[what]
    assert second[0] == kind
    assert words in second[1]
    assert str(2 * N) not in second[1]  # the true number of records
    assert first == (second if who == "both" else ("ProcessLost", first[1]))
    with closing(Ledger.open(url)) as ledger:
        assert not [entry for entry in ledger.history("people") if entry.kind in ("reserve", "content")]


# --- the ledger ------------------------------------------------------------------------------------------


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("each", [True, False], ids=["every rank has charges", "the first has"])
def test_a_run_is_charged_once_and_the_records_of_each_rank_are_recognised(
    pool: Pool, tmp_path: Path, each: bool
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    a_ledger(url, "people").close()
    assert [run["done"] for run in pool("charged", url=url, own=True, each=each)] == [24, 24]
    with closing(Ledger.open(url)) as ledger:
        kinds = [entry.kind for entry in ledger.history("people")]
        assert kinds.count("reserve") == 12
        assert kinds.count("content") == 2
