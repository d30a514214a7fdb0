"""Rows of a large file are dealt by epoch: a step reads the same rows, in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import a_plan, network
from torch import nn

from tacit.sampling import PoissonSampling
from tacit.sampling.samplers import BallsInBinsSampling
from tacit.testing import seeded_generator
from tacit.training import PrivateSession, dealt
from tacit.training.dealt import Dealt
from tacit.training.own_records import OwnRecords
from tacit.training.ranks import Ranks
from tacit.training.records import ArrayRecords, as_records

N = 60


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return records in files, which count as large; a block holds 7 rows of one and 15 of the other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dealt, "_LARGE", 0)
    monkeypatch.setattr(dealt, "_AT_ONCE", 120)
    draws = np.random.default_rng(1)
    np.save("x.npy", draws.standard_normal((N, 4), dtype=np.float32))
    np.save("y.npy", draws.integers(0, 2, N))
    return np.load("x.npy", mmap_mode="r"), np.load("y.npy", mmap_mode="r")


def session(data: Any) -> PrivateSession:
    net = network(4, 3, 2)
    return PrivateSession(
        net, torch.optim.SGD(net.parameters(), lr=0.5), data, a_plan(sampling="epochs"),
        loss=nn.CrossEntropyLoss(), physical_batch_size=7, generator=seeded_generator(3),
    )  # fmt: skip


def weights(run: PrivateSession) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in run.model.parameters()]


def test_a_run_on_dealt_rows_is_that_on_rows_in_memory(maps: Any, tmp_path: Path) -> None:
    """So is a run that stops within an epoch and goes on."""
    runs = [session(maps), session(tuple(map(np.array, maps)))]
    assert [type(run._run.records) for run in runs] == [Dealt, ArrayRecords]
    for tickets in zip(*(run.batches() for run in runs), strict=True):
        for run, ticket in zip(runs, tickets, strict=True):
            run.step(ticket)
            if run is runs[0] and ticket.step == 4:  # epochs have 3 steps
                run.save(tmp_path / "state")
    assert runs[0].steps_done == 12
    again = session(maps)
    again.load(tmp_path / "state")
    for ticket in again.batches():
        again.step(ticket)
    for mine, other, resumed in zip(*map(weights, [*runs, again]), strict=True):
        assert torch.equal(mine, other)
        assert torch.equal(mine, resumed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "x.npy", "y.npy"]


def check_reads(maps: Any) -> None:
    """Check that each step reads its own rows, whatever part of them is asked for."""
    sampling, generator, records = BallsInBinsSampling(5), seeded_generator(4), as_records(maps)
    rows = dealt.dealt(records, sampling)
    assert rows is not None
    for step in (0, 3, 4, 5, 12, 1):
        found = sampling.indices(generator, step, N)
        rows.begin(step, found, generator)
        for part in (found, found[1::2], found[:0]):
            for mine, other in zip(rows.take(part, seed=0), records.take(part, seed=0), strict=True):
                assert torch.equal(mine, other)


def test_a_step_reads_its_own_rows(maps: Any) -> None:
    check_reads(maps)


@pytest.mark.parametrize("bug", ["the first epoch is read again", "batches change places"])
def test_planted_bugs(maps: Any, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    deal = Dealt._deal

    def planted(rows: Dealt, epoch: int) -> None:
        deal(rows, 0 if bug == "the first epoch is read again" else epoch)
        rows._epoch = epoch
        if bug == "batches change places":
            rows._starts = rows._starts[::-1]

    monkeypatch.setattr(Dealt, "_deal", planted)
    with pytest.raises((AssertionError, IndexError)):
        check_reads(maps)


def test_a_rank_deals_its_own_rows(maps: Any) -> None:
    """Here rank 1 of two, as rank 0 has as many rows."""

    class Second(Ranks):
        rank, ranks, own_records = 1, 2, True

        def gathered(self, function: Callable[[], Any]) -> list[Any]:
            return [function(), function()]

    sampling, generator, records = BallsInBinsSampling(5), seeded_generator(4), as_records(maps)
    whole = OwnRecords(records, [], Second())
    rows = dealt.dealt(whole, sampling)
    assert rows is not None
    found = sampling.indices_within(generator, 7, 2 * N, whole.own(2 * N))
    rows.begin(7, found, generator)
    for mine, other in zip(rows.take(found, seed=0), records.take(found - N, seed=0), strict=True):
        assert torch.equal(mine, other)


def test_other_rows_are_read_where_they_are(maps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dealt.dealt(as_records(maps), PoissonSampling(0.5)) is None
    assert dealt.dealt(as_records(tuple(map(np.array, maps))), BallsInBinsSampling(5)) is None
    monkeypatch.setattr(dealt, "_LARGE", 1 << 30)
    assert dealt.dealt(as_records(maps), BallsInBinsSampling(5)) is None
