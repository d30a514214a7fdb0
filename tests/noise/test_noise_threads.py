"""Noise without the kernel on several threads: the same bits, nothing left out, no error lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.noise.gaussian import (
    BYTES_PER_TILE,
    DRAWS_PER_TILE,
    MOST_TILES_IN_A_CHUNK,
    TILES_APART,
    StepNoise,
    Target,
    fill,
)
from tacit.noise.generator import Purpose
from tacit.testing import seeded_generator

LONGEST = 300 * DRAWS_PER_TILE
PATIENCE = 60  # seconds, after which a test that waits for a thread gives up
generator = seeded_generator(17)


def words(out: memoryview, *, first_block: int) -> None:
    generator.fill(out, purpose=Purpose.NOISE, step=3, first_block=first_block)


@pytest.fixture(scope="module", autouse=True, params=["numpy", "torch"])
def library(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both; and as many threads take part in some 100,000 draws as by default in a million."""
    with pytest.MonkeyPatch.context() as setting:
        setting.setattr("tacit.noise.gaussian._TILES_FOR_A_THREAD", 32)
        setting.setattr("tacit.noise.gaussian.by_torch", lambda: request.param == "torch")
        yield request.param


@pytest.fixture
def numpy_alone(library: str) -> None:
    if library == "torch":
        pytest.skip("torch has threads of its own")


@pytest.fixture(scope="module")
def by_one_thread(library: str) -> dict[torch.dtype, torch.Tensor]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TACIT_NATIVE", "0")
        draws = {dtype: torch.empty(LONGEST, dtype=dtype) for dtype in (torch.float32, torch.float64)}
        for out in draws.values():
            StepNoise(generator, std=2.0, step=3, threads=1).fill(out, 0)
    return draws


@settings(max_examples=25, deadline=None)
@given(
    st.one_of(st.integers(0, LONGEST), st.integers(0, 300).map(lambda tiles: tiles * DRAWS_PER_TILE)),
    st.integers(1, 9),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_any_number_of_threads_gives_the_same_bits(
    by_one_thread: dict[torch.dtype, torch.Tensor], count: int, threads: int, dtype: torch.dtype
) -> None:
    out = torch.full((count,), torch.nan, dtype=dtype)
    fill([Target(out.numpy(), words)], 2.0, threads)
    assert torch.equal(out, by_one_thread[dtype][:count])


class Meeting:
    """Words for which the caller's thread and a helper wait until both have asked for some."""

    def __init__(self, *, faulty: bool = False) -> None:
        self.caller = threading.current_thread()
        self.both = threading.Barrier(2)
        self.faulty = faulty
        self.names: set[str] = set()

    def __call__(self, out: memoryview, *, first_block: int) -> None:
        thread = threading.current_thread()
        if thread.name not in self.names:
            self.names.add(thread.name)
            self.both.wait(PATIENCE)
        if self.faulty and thread is not self.caller:
            raise MemoryError("no words")
        words(out, first_block=first_block)


@pytest.mark.usefixtures("numpy_alone")
def test_helpers_take_part() -> None:
    out = np.empty(LONGEST, np.float32)
    fill([Target(out, meeting := Meeting())], 1.0, 2)
    assert len(meeting.names) == 2


@pytest.mark.usefixtures("numpy_alone")
def test_the_error_of_a_helper_reaches_the_caller() -> None:
    """Its part of the noise is missing."""
    with pytest.raises(MemoryError, match="no words"):
        fill([Target(np.empty(LONGEST, np.float32), Meeting(faulty=True))], 1.0, 2)


@pytest.mark.usefixtures("numpy_alone")
def test_a_fork_has_helpers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are not inherited: to hand them work would be to wait for ever."""
    out = np.empty(LONGEST, np.float32)
    for process in (-16, -17):
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        fill([Target(out, meeting := Meeting())], 1.0, 2)
        [helper] = meeting.names - {meeting.caller.name}
        assert helper.startswith(f"tacit-noise-{process}")


@pytest.mark.usefixtures("numpy_alone")
def test_a_step_that_cannot_have_a_helper_is_drawn_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """All helper threads are busy with other noise."""

    class Busy:
        def submit(self, *_: Any) -> Any:
            return self

        def cancel(self) -> bool:
            return True

    monkeypatch.setattr("tacit.noise.gaussian._helpers", lambda process: Busy())
    out, want = np.full(LONGEST, np.nan, np.float32), np.empty(LONGEST, np.float32)
    fill([Target(out, words)], 1.0, 8)
    fill([Target(want, words)], 1.0, 1)
    assert np.array_equal(out, want)


def test_every_word_is_drawn_once() -> None:
    asked: list[tuple[int, int]] = []

    def note(out: memoryview, *, first_block: int) -> None:
        asked.append((16 * first_block, out.nbytes))
        words(out, first_block=first_block)

    for tiles in (1, 31, 64, 97, 193, 300):
        asked.clear()
        fill([Target(np.empty(tiles * DRAWS_PER_TILE - 5, np.float32), note)], 1.0, 3)
        ends = 0
        for start, length in sorted(asked):
            assert start == ends
            ends = start + length
        assert ends == tiles * BYTES_PER_TILE


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(0, 3 * DRAWS_PER_TILE),
            st.sampled_from([TILES_APART - 1, TILES_APART, MOST_TILES_IN_A_CHUNK, 130]).map(
                lambda tiles: tiles * DRAWS_PER_TILE
            ),
        ),
        max_size=12,
    ),
    st.integers(1, 3),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_tensors_that_are_drawn_together_are_as_each_alone(
    counts: list[int], threads: int, dtype: torch.dtype
) -> None:
    def noise() -> StepNoise:
        return StepNoise(generator, std=2.0, step=5, threads=threads)

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TACIT_NATIVE", "0")
        outs = {3 * k: torch.full((count,), torch.nan, dtype=dtype) for k, count in enumerate(counts)}
        noise().fill_each(outs)
        for index, together in outs.items():
            noise().fill(alone := torch.empty_like(together), index)
            assert torch.equal(together, alone)


def test_torch_has_the_threads_that_it_had(library: str) -> None:
    before = torch.get_num_threads()

    def failing(out: memoryview, *, first_block: int) -> None:
        assert torch.get_num_threads() == (before + 1 if library == "torch" else before)
        raise MemoryError("no words")

    with pytest.raises(MemoryError, match="no words"):
        fill([Target(np.empty(5, np.float32), failing)], 1.0, before + 1)
    assert torch.get_num_threads() == before
