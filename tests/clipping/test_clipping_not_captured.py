"""Passes that are not captured, steps in which a capture fails, and CUDA graphs on a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import recorded_operations as recorded
import torch
from captured_steps import GRAPHS, PLAIN, SCALE, SIZES, C, Net, batch, check, loss, make, plainly, step, warm
from oracles import definition, plan
from torch import Tensor, nn

from tacit.clipping import captured
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import FlatClipping
from tacit.testing import seeded_generator
from tacit.training import PrivateSession


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded.as_on_a_device(monkeypatch)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts them."""
    found, replay = list[int](), recorded.Operations.replay

    def count(operations: recorded.Operations) -> None:
        found.append(1)
        replay(operations)

    monkeypatch.setattr(recorded.Operations, "replay", count)
    return found


def waits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    assert isinstance(model, Net)
    return loss(model, x, y) * float(model.table.sum())


KEPT = deque[Tensor](maxlen=1)


def keeps(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    assert isinstance(model, Net)
    KEPT.append(model.table * 2)
    return loss(model, x, y) * KEPT[0].mean()


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (waits, "the processor waits for a number (aten::_local_scalar_dense)"),
        (keeps, "the model or the loss keeps tensors that a pass makes"),
    ],
)
def test_what_no_graph_can_do_is_named_and_goes_on_plainly(of: Callable[..., Tensor], why: str) -> None:
    engine = make(of)
    for number, n in enumerate(SIZES):
        check(engine, batch(n, number))
    assert engine.route == PLAIN + why


def test_hooks_are_called_in_each_step() -> None:
    engine, calls = make(), list[int]()
    engine.model.drop.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr]
    for number in range(5):
        step(engine, batch(18, number))
    assert engine.route == PLAIN + "a module has hooks, which a graph would not call"
    assert len(calls) >= 5


def test_a_hook_that_comes_later_is_called() -> None:
    engine, calls = warm(make()), list[int]()
    engine.model.drop.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr]
    step(engine, batch(18, 3))
    assert calls


def test_a_replay_that_finds_other_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(body: Callable[[], None], *rest: Any) -> recorded.Operations:
        operations = recorded.record(body, *rest)
        operations.done = operations.done[: len(operations.done) // 2]
        return operations

    monkeypatch.setattr(captured, "record", forgetful)
    engine = make()
    for number, n in enumerate(SIZES):
        check(engine, batch(n, number), seed=number)
    assert engine.route == PLAIN + "a replay of the pass gives other results than the pass itself"


@pytest.mark.parametrize("error", [RuntimeError("not supported"), torch.OutOfMemoryError("full")])
def test_a_capture_that_fails_costs_nothing_but_the_graph(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(body: Callable[[], None], *rest: Any) -> recorded.Operations:
        if isinstance(error, torch.OutOfMemoryError):  # half way, else at once
            body()
        raise error

    monkeypatch.setattr(captured, "record", failing)
    engine = make()
    for number, n in enumerate(SIZES):
        check(engine, batch(n, number), seed=number)
    assert engine.route == f"{PLAIN}{type(error).__name__}: {error}"


def test_a_replay_that_fails_is_done_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = warm(make())

    def fails(operations: recorded.Operations) -> None:
        raise RuntimeError("refused")

    monkeypatch.setattr(recorded.Operations, "replay", fails)
    check(engine, batch(18, 3))
    assert engine.route == PLAIN + "RuntimeError: refused"


def test_whether_batches_are_padded_is_as_when_the_run_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout draws for a whole batch; a step that is done again must draw the same."""
    began = make()
    wanted, _ = step(began, batch(17, 1))
    monkeypatch.setenv("TACIT_CUDA_GRAPHS", "0")
    without = make()
    plain, _ = step(without, batch(17, 1))
    assert without.route == "fast"
    assert not torch.equal(plain["last.bias"], wanted["last.bias"])  # another size, other draws
    resumed = make()
    resumed.measured.update(began.measured)
    again, _ = step(resumed, batch(17, 1))
    assert resumed.route == PLAIN + "switched off since the run began"
    assert all(torch.equal(again[name], total) for name, total in wanted.items())
    monkeypatch.setenv("TACIT_CUDA_GRAPHS", "1")
    later = make()
    later.measured.clear()  # as a run that began without loads them
    later.measured.update(without.measured)
    unpadded, _ = step(later, batch(17, 1))
    assert later.route == "fast"
    assert all(torch.equal(unpadded[name], total) for name, total in plain.items())


def asks(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return loss(model, x, y) * (1.0 if float(x.sum()) > -1e9 else 2.0)


def test_models_that_read_numbers_of_records_are_neither_padded_nor_captured() -> None:
    model = Net().eval()
    engine = make(asks, model)
    for number, n in enumerate(SIZES):
        sums, _ = step(engine, batch(n, number))
    found = torch.cat([total.flatten() for total in sums.values()]).double() / SCALE
    torch.testing.assert_close(found, definition(model, asks, batch(17, 5), C), rtol=1e-4, atol=1e-5)
    assert engine.route == "fast"


def test_a_session_releases_the_same_with_graphs_and_without(replays: list[int]) -> None:
    """Noise is drawn once a step, outside of graphs."""

    def released(graphs: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        session = PrivateSession(
            *(model, optimizer, batch(64), plan(64, steps=14, batch_size=18)),
            loss=loss,
            generator=seeded_generator(3),
        )
        if not graphs:
            session._run.engine._captured._give_up(captured._NotCaptured("for comparison"))  # type: ignore[attr-defined]
        for ticket in session.batches():
            session.step(ticket)
        assert session.route == (GRAPHS if graphs else PLAIN + "for comparison")
        return model.state_dict()

    wanted = released(graphs=False)
    assert not replays
    found = released(graphs=True)
    assert len(replays) > 2
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def test_tensors_on_other_devices_cannot_be_captured() -> None:
    def why(body: Callable[[], object], device: str = "meta") -> str:
        watch = captured._Watch(torch.device(device))
        with watch:
            body()
        with pytest.raises(captured._NotCaptured) as reason:
            watch.check()
        return str(reason.value)

    there, here, rows = torch.zeros(3, device="meta"), torch.tensor(2.0), torch.zeros(3)
    assert why(lambda: there * here) == "a pass reads a tensor that is not on meta (aten::mul.Tensor)"
    assert "not on meta (aten::rand)" in why(lambda: torch.rand(()))
    assert "not on meta" in why(lambda: torch.tensor(2.0).to("meta"))
    assert "waits for a number (aten::index" in why(lambda: rows[rows > 0], "cpu")


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.cuda
@needs_cuda
def test_cuda_graphs_agree_with_plain_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("TACIT_CUDA_GRAPHS", "1")

    def of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return loss(model, x, y)

    def cuda(n: int, seed: int) -> tuple[Tensor, ...]:
        return tuple(t.cuda() for t in batch(n, seed))

    torch.manual_seed(0)
    engine = FastEngine(Net().cuda(), of, FlatClipping(C))
    for number, n in enumerate(SIZES):
        rows = cuda(n, number)
        (sums, raw), (wanted, plain) = step(engine, rows, number), plainly(engine, rows, number)
        torch.testing.assert_close(raw.raw_norms, plain.raw_norms, rtol=1e-2, atol=1e-4)
        for name, total in wanted.items():
            torch.testing.assert_close(sums[name], total, rtol=1e-2, atol=1e-2 * SCALE)
    assert engine.route.startswith("fast, ")  # by what, the device decides


@pytest.mark.cuda
@needs_cuda
def test_a_cuda_capture_that_fails_leaves_stream_and_generator_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    device, stream = torch.device("cuda", torch.cuda.current_device()), torch.cuda.current_stream()
    numbers = torch.rand(3, device=device)

    def waits_for_one() -> None:
        torch.rand(3, device=device)
        float(numbers[0])

    with pytest.raises(RuntimeError):
        captured.record(waits_for_one, device, [])
    assert torch.cuda.current_stream() == stream
    torch.cuda.manual_seed(3)
    first = torch.rand(3, device=device)
    torch.cuda.manual_seed(3)
    assert torch.equal(first, torch.rand(3, device=device))
