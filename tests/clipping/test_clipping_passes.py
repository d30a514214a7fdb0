"""A batch in several passes: the same sum, norms and losses, in the same order, and the same cuts again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    Loss,
    Maker,
    Watched,
    clipped_sum,
    cross_entropy,
    double,
    each,
    equal,
    equals_a_loop,
    one_or_two_views,
    plan,
    squares,
    step,
)
from torch import Tensor, nn

from tacit.clipping import FAST, LEAN, ClippingRule, FlatClipping, MemoryBudget, PerLayerClipping, fast
from tacit.clipping.fast import FastEngine, Microbatches, forward_bytes, keep_memory
from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import PrivacyRefusal
from tacit.training import PrivateSession

TINY = replace(FAST, pass_bytes=1)
C = 0.3


def network(*, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Dropout(dropout), nn.Flatten(), nn.Dropout(dropout)]
    layers.append(nn.Linear(48, 3))
    return nn.Sequential(*layers).double()


def data(rows: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    return double(rows, 1, 6, 6), torch.arange(rows) % 3


def record_by_record(engine: FastEngine) -> FastEngine:
    """The engine with passes of one record each."""
    engine._cuts = Microbatches(1, 0, engine.views, engine.measured)
    return engine


@given(n=st.integers(1, 40), views=st.integers(1, 3), most=st.integers(1, 400))
def test_the_cuts_are_even_and_leave_records_whole(n: int, views: int, most: int) -> None:
    batch = (torch.arange(n * views, dtype=torch.int64), torch.zeros(n * views, 2))
    cuts = Microbatches(most, 0, views, {})
    parts = cuts.cut(batch, lambda rows: rows[0] + 1, "")  # 8 bytes a row
    sizes = [len(x) for x, _ in parts]
    assert torch.equal(torch.cat([x for x, _ in parts]), batch[0])
    assert all(size % views == 0 for size in sizes)
    assert max(sizes) - min(sizes) <= views
    assert len(parts) == min(n, -(-8 * views * n // most))


def test_parameters_set_the_least_size_of_a_pass() -> None:
    batch = (torch.zeros(10, dtype=torch.int64),)
    assert len(Microbatches(1, 0, 1, {}).cut(batch, lambda rows: rows[0] + 1, "")) == 10
    assert len(Microbatches(1, 5, 1, {}).cut(batch, lambda rows: rows[0] + 1, "")) == 2


def test_what_an_operation_makes_is_counted_once() -> None:
    x = torch.randn(4, 8)
    layer = nn.Linear(8, 16)
    of_layer = 4 * 16 * 4
    assert forward_bytes(lambda rows: layer(rows[0]), (x,)) == of_layer
    assert forward_bytes(lambda rows: layer(rows[0]).view(-1)[3:], (x,)) == of_layer
    assert forward_bytes(lambda rows: layer(rows[0]).relu_(), (x,)) == of_layer
    assert forward_bytes(lambda rows: layer(rows[0]).relu(), (x,)) == 2 * of_layer


def test_counting_leaves_random_numbers_as_they_were() -> None:
    before = torch.default_generator.get_state()
    forward_bytes(lambda rows: F.dropout(rows[0]), (torch.zeros(3),))
    assert torch.equal(before, torch.default_generator.get_state())


@one_or_two_views
@pytest.mark.parametrize("rule", [FlatClipping(C), PerLayerClipping(C)])
def test_passes_give_the_sum_norms_and_losses_of_one(views: int, rule: ClippingRule) -> None:
    batch = data(6 * views)
    model = network()
    fast = record_by_record(FastEngine(model, cross_entropy, rule, views=views))
    equals_a_loop(fast, *batch)
    assert len(fast._microbatches(batch)) == 6
    reference = ReferenceEngine(model, cross_entropy, rule, views=views)
    equal(step(fast, *batch)[1].raw_losses, step(reference, *batch)[1].raw_losses)


def test_a_record_that_is_not_finite_leaves_its_pass_alone() -> None:
    x, y = data(5)
    x[3, 0, 0, 0] = torch.inf
    model = network()
    engine = record_by_record(FastEngine(model, cross_entropy, FlatClipping(C)))
    sums, statistics = step(engine, x, y)
    keep = torch.arange(5) != 3
    assert statistics.raw_norms.isinf().flatten().tolist() == [False, False, False, True, False]
    equal(sums, step(engine, x[keep], y[keep])[0])


def session(path: Path | None = None, measured: dict[str, int] | None = None) -> PrivateSession:
    model = network(dropout=0.5).float()
    x, y = data(40)
    settings = plan(40, steps=4, clipping=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = PrivateSession(model, optimizer, (x.float(), y), settings, loss=cross_entropy, memory=TINY)
    if path is not None:
        run.load(path)
    run._run.engine.measured.update(measured or {})
    return run


def test_a_resumed_run_cuts_where_the_first_did(tmp_path: Path) -> None:
    first = session()
    turns = first.batches()
    first.step(next(turns))
    assert first._run.engine.measured
    first.save(tmp_path / "state")
    second = session(tmp_path / "state")
    assert second._run.engine.measured == first._run.engine.measured
    for turn in turns:
        first.step(turn)
    for turn in second.batches():  # under dropout other cuts would be another release, which is refused
        second.step(turn)
    for name, p in first.model.named_parameters():
        assert torch.equal(p, second.model.get_parameter(name))


def test_other_cuts_would_be_another_release(tmp_path: Path) -> None:
    first = session()
    turns = first.batches()
    first.step(next(turns))
    first.save(tmp_path / "state")
    first.step(next(turns))
    second = session(tmp_path / "state", dict.fromkeys(first._run.engine.measured, 1))
    with pytest.raises(PrivacyRefusal, match="but another result"):
        second.step(next(second.batches()))


FREED_BLOCKS = """
import ctypes, sys, torch
from torch import nn
from tacit.clipping import FAST, LEAN, FlatClipping
from tacit.clipping.fast import FastEngine

class Info(ctypes.Structure):  # mallinfo2(3)
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
for name in sys.argv[1:]:
    budget = {"fast": FAST, "lean": LEAN}[name]
    FastEngine(nn.Linear(2, 2), lambda model, x: model(x).sum(1), FlatClipping(1.0), budget=budget)
before = mallinfo().fordblks
blocks = [torch.empty(5 * 2**20) for _ in range(8)]  # 20 MiB each
del blocks
print((mallinfo().fordblks - before) // 2**20)
"""


@pytest.mark.thorough(cases=1)
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about the allocator of glibc")
@pytest.mark.parametrize(
    ("engines", "chosen", "least", "most"),
    [
        (["fast"], {}, 155, 165),
        (["fast", "lean"], {}, 155, 165),
        ([], {}, -20, 65),
        (["fast"], {"MALLOC_TRIM_THRESHOLD_": "131072"}, -20, 65),
    ],
)
def test_freed_memory_stays_once_there_is_an_engine(
    engines: list[str], chosen: dict[str, str], least: int, most: int
) -> None:
    """Malloc keeps freed blocks once there is an engine; ``least`` and ``most`` are MiB out of 160."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FREED_BLOCKS, *engines]
    ran = subprocess.run(command, capture_output=True, check=True, env=environment | chosen)
    assert least <= int(ran.stdout) <= most


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ([LEAN.pass_bytes, FAST.pass_bytes, LEAN.pass_bytes], [2**27, 2**28]),
        ([1], [2**25]),
        ([2**40], [2**31 - 1]),
    ],
)
def test_malloc_keeps_the_largest_size_that_an_engine_requests(
    monkeypatch: pytest.MonkeyPatch, asked: list[int], kept: list[int]
) -> None:
    calls: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *call: calls.append(call))
    monkeypatch.setattr(fast, "_REQUESTS", set())
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    for most in asked:
        keep_memory(most)
    assert calls == [call for most in kept for call in ((-1, most), (-3, 2**25))]


# --- from step to step --------------------------------------------------------------------------------------

FIRST, LATER = 6, 1
"""How often a loss may be called in the first step, and is in each that follows."""


class Net(nn.Module):
    """Two layers, and a weight that the user sets between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.rate = 0.5

    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x).sin())


def records(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


def engine_of(loss: Loss, make: Maker = Net) -> FastEngine:
    torch.manual_seed(0)
    return FastEngine(make(), loss, FlatClipping(C))


MODELS: dict[str, Maker] = {
    "perceptron": Net,
    "dropout": lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 3)),
}


@each("make", MODELS)
@pytest.mark.parametrize("n", [1, 2, 30])
def test_a_loss_is_called_once_in_later_steps_and_a_few_times_where_flags_are_new(
    make: Maker, n: int
) -> None:
    calls: list[int] = []

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        calls.append(len(x))
        return squares(m, x)

    engine, counts = engine_of(loss, make), []
    for number in range(12):
        engine.model.train(number not in (5, 6))
        calls.clear()
        clipped_sum(engine, records(n + number % 3, number))
        counts.append(len(calls))
    assert counts.pop(5) <= FIRST
    assert counts.pop(0) <= FIRST
    assert counts == [LATER] * 10
    assert engine.route == "fast"


def costs_of(steps: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count calls of the loss, backward passes, copies and comparisons of a parameter, and waits in steps."""
    run = Pass._run_backward

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        seen["forward"] += 1
        return squares(m, x) + m.get_buffer("table").sum()

    def backward(*args: Any) -> None:
        seen["backward"] += 1
        run(*args)

    def note(func: Any, args: Any, found: Any) -> None:
        name, given = func._overloadpacket.__name__, [t for t in args if isinstance(t, Tensor)]
        of_parameter = any(t.untyped_storage()._cdata in parameters for t in given)
        of_generator = given and given[0].dtype == torch.uint8  # its state, which lies with the processor
        seen["copied"] += name == "clone" and of_parameter
        seen["compared"] += name in ("equal", "eq", "ne") and of_parameter
        waits = name in ("equal", "nonzero", "is_nonzero") and not of_parameter and not of_generator
        seen["waits"] += bool(waits)

    monkeypatch.setattr(Pass, "_run_backward", backward)
    monkeypatch.setattr("tacit.clipping.engine.refuse_modes", lambda: None)  # the records are synthetic
    engine = engine_of(loss)
    engine.model.register_buffer("table", torch.ones(3))
    parameters = {p.untyped_storage()._cdata for p in engine.parameters.values()}
    for number in range(steps):
        seen = Counter[str]()
        with Watched(note):
            step(engine, records(9, number))
        yield +seen
    assert engine.route == "fast"


def test_a_first_step_takes_three_passes_more_and_copies_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The passes are of zeros, and of made-up records together and alone; later steps compare nothing."""
    first, *later = costs_of(3, monkeypatch)
    first.pop("waits", None)
    assert first == {"forward": 4, "backward": 2}
    assert later == [{"forward": 1, "backward": 1}] * 2


def scheduled(m: nn.Module, x: Tensor) -> Any:
    """Weighted by a number that the user changes between steps."""
    assert isinstance(m, Net)
    return squares(m, x) * m.rate + m.last.weight.norm() * 0.01 * m.rate


def test_a_number_of_a_schedule_counts_in_the_next_step() -> None:
    engine = engine_of(scheduled)
    assert isinstance(engine.model, Net)
    for number in range(4):
        engine.model.rate = 0.5 + 0.05 * number
        equals_a_loop(engine, records(5 + number, number), rtol=1e-4, atol=1e-6)


def calls_of(sizes: list[int], expected: int, kind: type[FastEngine] = FastEngine) -> list[int]:
    """The calls of the loss up to each batch, counted in a list, which holds what it likes."""
    calls: list[int] = []

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        calls.append(len(x))
        return squares(m, x)

    torch.manual_seed(0)
    engine = kind(Net(), loss, FlatClipping(C), budget=MemoryBudget(pass_bytes=400))
    engine.expected = expected
    found = []
    for n in sizes:
        clipped_sum(engine, records(n))
        found.append(len(calls))
    return found


def test_the_number_of_passes_depends_on_no_record() -> None:
    """A loss that counts its calls learns the public number of records alone, an empty batch among them."""
    wanted = calls_of([60, 60, 60, 60], expected=60)
    assert wanted[-1] - wanted[-2] > 1, "else one pass takes all"
    for sizes in ([61, 60, 60, 60], [60, 59, 1, 0], [0, 3, 300, 60], [0, 0, 0, 0]):
        assert calls_of(sizes, expected=60) == wanted


def test_passes_of_more_or_fewer_records_than_expected_add_the_same_sum() -> None:
    engine = FastEngine(Net(), squares, FlatClipping(C), budget=MemoryBudget(pass_bytes=400))
    engine.expected = 60
    for n in (60, 1, 3, 300, 0):
        equals_a_loop(engine, records(n), rtol=1e-4, atol=1e-5)
