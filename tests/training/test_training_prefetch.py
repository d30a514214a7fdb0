"""Reading records: one gather from arrays and maps, data sets that decode, and prefetching workers."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made import a_plan, a_session, finish, network, weights
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from tacit.errors import InvalidInput, UnsupportedModel
from tacit.testing import seeded_generator
from tacit.training.records import ArrayRecords, DatasetRecords, Prefetcher, Request

N, D = 40, 6
WORKERS = min(2, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else 1


@pytest.fixture(autouse=True)
def fixed_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    # The tests look at whether workers end: on a busy machine that takes them longer than conftest allows.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 5.0)


def table() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(N, D, generator=generator), torch.arange(N) % 2


class Decoded(Dataset[Any]):
    """Gives items that draw from all global generators, as data sets with augmentation do."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.x, self.y = table()
        self.fails_at = fails_at
        self.read = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if i == self.fails_at:
            raise OSError("truncated file")
        self.read += 1
        shift = random.random() + np.random.random() + torch.rand(())  # noqa: NPY002
        return self.x[i] + shift, self.y[i]


class Together(Decoded):
    """Gives the same items by ``__getitems__``."""

    count_off = 0

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        raise AssertionError("not asked for single items")

    def __getitems__(self, positions: list[int]) -> list[tuple[Tensor, Tensor]]:
        assert all(type(position) is int for position in positions)
        whole = super().__getitem__
        return [whole(i) for i in positions[self.count_off :]]


def run(
    data: Any, *, steps: int = 4, batch: int | None = 10, net: nn.Module | None = None, **more: Any
) -> Any:
    plan = a_plan(records=N, batch_size=batch, steps=6, clipping=1.0)
    settings = {"generator": seeded_generator(4), "physical_batch_size": 4, **more}
    return finish(a_session(net or network(D, 2, seed=0), data, plan, **settings), steps)


# --- arrays and memory maps ------------------------------------------------------------------------------


def stored(tmp_path: Path, kind: str) -> tuple[Any, Any]:
    x, y = table()
    if kind == "NumPy arrays":
        return x.numpy(), y.numpy()
    if kind == "torch.from_file":
        x.numpy().tofile(tmp_path / "x.bin")
        name = str(tmp_path / "x.bin")
        return torch.from_file(name, shared=False, size=N * D, dtype=torch.float32).view(N, D), y
    np.save(tmp_path / "x.npy", x.numpy())
    return np.load(tmp_path / "x.npy", mmap_mode="r" if kind == "read-only map" else "c"), y.numpy()


@pytest.mark.untraced
@pytest.mark.parametrize("kind", ["NumPy arrays", "torch.from_file", "read-only map", "map"])
@pytest.mark.parametrize("batch", [10, None])
def test_arrays_and_maps_give_the_run_of_tensors(tmp_path: Path, kind: str, batch: int | None) -> None:
    expected = weights(run(table(), batch=batch))
    assert torch.equal(weights(run(stored(tmp_path, kind), batch=batch)), expected)


@settings(max_examples=50, deadline=None)
@given(
    positions=st.lists(st.integers(0, N - 1), min_size=1, max_size=N),
    dtype=st.sampled_from(["uint8", "int64", "float16", "float32", "float64", "bool"]),
)
def test_a_batch_is_the_rows_at_its_positions(positions: list[int], dtype: str) -> None:
    """Positions may be in any order, with gaps and repetitions."""
    array = np.random.default_rng(0).integers(0, 2, (N, 2, 3)).astype(dtype)
    records = ArrayRecords((array, torch.arange(N)))
    for _ in range(2):
        rows, numbers = records.take(np.array(positions, dtype=np.int64), seed=0)
        assert np.array_equal(rows.numpy(), array[positions])
        assert numbers.tolist() == positions


def test_the_fingerprint_is_that_of_all_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.training.records._CHUNK_BYTES", 100)
    x, y = table()
    records = ArrayRecords((x, y))
    whole = f"{N}({N}, {D}) torch.float32".encode() + x.numpy().tobytes()
    whole += f"({N},) torch.int64".encode() + y.numpy().tobytes()
    assert records.fingerprint(b"key") == hashlib.blake2b(whole, key=b"key", digest_size=16).hexdigest()
    before = records.fingerprint(b"key")
    x[7, 0] += 1
    assert records.fingerprint(b"key") != before, "what was computed before is not the records any more"
    assert records.fingerprint(b"another") != records.fingerprint(b"key")


# --- a full batch is lent --------------------------------------------------------------------------------

ALL = np.arange(N)


def test_a_model_that_works_in_place_gets_copies(tmp_path: Path) -> None:
    """This holds for a read-only memory map too, where a write would end the process."""
    x, y = table()
    for data in ((x, y), stored(tmp_path, "read-only map")):
        before = x.clone()
        records = ArrayRecords(data)
        for indices in (ALL, ALL[3:9], ALL):
            (batch, _) = records.take(indices, seed=0)
            assert torch.equal(batch, before[torch.from_numpy(indices)])
            batch.sub_(1.0)
    assert torch.equal(x, table()[0])


class SometimesInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(D, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x.mul_(0.5) if self.calls > 6 else x)  # type: ignore[no-any-return]


def test_planted_bug_a_model_that_starts_to_work_in_place_is_noticed() -> None:
    with pytest.raises(UnsupportedModel, match="changes the batch in place"):
        run(table(), batch=None, net=SometimesInPlace(), steps=6)


# --- data sets that decode -------------------------------------------------------------------------------


def test_reading_draws_from_the_run_and_leaves_the_global_generators_alone() -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002
    first = weights(run(Decoded()))
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])
    torch.rand(3)
    assert torch.equal(weights(run(Decoded())), first), "a step done again sees the same augmented records"
    assert not torch.equal(weights(run(table())), first), "the items are random indeed"


def test_items_are_asked_for_together_where_the_data_set_can() -> None:
    assert torch.equal(weights(run(Together())), weights(run(Decoded())))
    part = Subset(Decoded(), range(N))
    assert torch.equal(weights(run(part)), weights(run(Decoded())))
    broken = Together()
    broken.count_off = 1
    with pytest.raises(InvalidInput, match="one item for each position, in order"):
        run(broken)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_item_that_cannot_be_read_is_named(workers: int) -> None:
    before = multiprocessing.active_children()  # of sessions that an earlier test's error still holds
    with pytest.raises(
        InvalidInput, match="record 11 of the dataset could not be read: OSError in test_training_prefetch"
    ):
        run(Decoded(fails_at=11), workers=workers)
    assert not {*multiprocessing.active_children()} - {*before}


def test_a_group_of_items_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"one of the records at .*: OSError"):
        run(Together(fails_at=11))


# --- workers ---------------------------------------------------------------------------------------------


def test_workers_change_nothing_but_time(tmp_path: Path) -> None:
    before = multiprocessing.active_children()
    state = torch.get_rng_state()
    whole = run(Decoded(), steps=6)
    ahead = run(Decoded(), steps=6, workers=WORKERS)
    assert torch.equal(weights(ahead), weights(whole))
    assert torch.equal(torch.get_rng_state(), state)
    part = run(Decoded(), steps=3, workers=1)
    part.save(tmp_path / "state.pt")
    again = run(Decoded(), steps=1, workers=1)  # its workers are at step 2; the state says step 4
    again.load(tmp_path / "state.pt")
    for turn in again.batches():
        again.step(turn)
    assert torch.equal(weights(again), weights(whole))
    del ahead, part, again
    assert not {*multiprocessing.active_children()} - {*before}, "workers end with the session"


def asked(count: int) -> list[Request]:
    return [Request(np.array([k, k + 1]), seed=k) for k in range(count)]


@pytest.fixture
def ahead() -> Iterator[tuple[Prefetcher, Decoded]]:
    data = Decoded()
    reader = Prefetcher(DatasetRecords(data), lambda: asked(30), workers=1)
    yield reader, data
    del reader


def test_workers_read_a_few_batches_ahead_and_no_more(ahead: tuple[Prefetcher, Decoded]) -> None:
    reader, data = ahead
    reader.take(asked(1)[0].indices, seed=0)
    while data.read.item() < 2 * 3:
        time.sleep(0.01)
    time.sleep(0.2)  # for what would be too much
    assert data.read.item() == 2 * 3, "the batch taken and two ahead, of two records each"


def test_a_batch_out_of_turn_is_read_all_the_same(ahead: tuple[Prefetcher, Decoded]) -> None:
    reader, _ = ahead
    direct = DatasetRecords(Decoded())
    for number in (0, 1, 0, 5, 0, 1):
        request = asked(30)[number]
        got = reader.take(request.indices, seed=request.seed)
        assert torch.equal(got[0], direct.take(request.indices, seed=request.seed)[0])


def test_planted_bug_a_batch_of_other_records_or_of_another_seed_is_not_the_one_asked_for() -> None:
    request = asked(3)[2]
    assert request.same(np.array([2, 3]), 2)
    assert not request.same(np.array([2, 4]), 2)
    assert not request.same(np.array([2]), 2)
    assert not request.same(np.array([2, 3]), 1)


def test_workers_leave_an_interrupt_to_the_main_process(ahead: tuple[Prefetcher, Decoded]) -> None:
    reader, _ = ahead
    reader.take(asked(1)[0].indices, seed=0)
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGINT)
    for request in asked(10)[1:]:
        reader.take(request.indices, seed=request.seed)
    assert worker.is_alive()


class Connection:
    """Crashes a process that deletes it without having made it, as DuckDB's connections do after a fork."""

    def __init__(self) -> None:
        self.itself = self  # only the garbage collector deletes it
        self.process = os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.process:
            os.abort()


class Collecting(Decoded):
    """Collects garbage for each item."""

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        gc.collect()
        return super().__getitem__(i)


def test_workers_do_not_collect_what_their_parent_left_behind() -> None:
    gc.disable()
    try:
        Connection()
        reader = Prefetcher(DatasetRecords(Collecting()), lambda: asked(4), workers=1)
        for request in asked(4):
            reader.take(request.indices, seed=request.seed)
    finally:
        gc.enable()
