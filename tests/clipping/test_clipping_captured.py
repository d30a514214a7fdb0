"""Passes as CUDA graphs, whose operations are recorded and done again on a CPU (recorded_operations.py).

A captured pass and the plain one agree to the last bit there, dropout included.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import recorded_operations as recorded
import torch
import torch.nn.functional as F
from captured_steps import GRAPHS, SCALE, SIZES, C, Net, batch, check, loss, make, plainly, step, warm
from oracles import definition
from torch import Tensor, nn

from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import FlatClipping


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


def test_captured_and_plain_passes_agree_whatever_the_size_within_a_padded_one(replays: list[int]) -> None:
    engine = warm(make())
    for seed, n in enumerate([17, 18, 17, 18]):
        check(engine, batch(n, 10 + seed), seed=seed)
    assert len(replays) == 1 + 4


def test_thresholds_are_read_anew_and_another_scale_is_another_graph(replays: list[int]) -> None:
    engine = warm(make())
    check(engine, batch(18, 3), threshold=0.01)
    check(engine, batch(18, 3), threshold=1e6)
    assert len(replays) == 3
    check(engine, batch(18, 3), scale=2.0)
    assert len(replays) == 3


def test_what_is_there_before_stays_and_the_sum_is_added_to_it() -> None:
    engine = warm(make())
    noise = {name: torch.randn_like(p) for name, p in engine.parameters.items()}
    found, _ = step(engine, batch(17, 4), into={name: value.clone() for name, value in noise.items()})
    alone, _ = step(engine, batch(17, 4))
    for name, value in noise.items():
        torch.testing.assert_close(found[name], value + alone[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("views", [1, 2])
def test_sums_are_those_of_the_definition(views: int) -> None:
    model = Net().eval()
    engine = FastEngine(model, loss, FlatClipping(C), views=views)
    for number, n in enumerate(SIZES):
        rows = batch(n * views, number)
        sums, raw = step(engine, rows)
        assert raw.raw_norms.shape == (n, 1)
        found = torch.cat([total.flatten() for total in sums.values()]).double() / SCALE
        torch.testing.assert_close(found, definition(model, loss, rows, C, views), rtol=1e-4, atol=1e-5)
    assert engine.route == GRAPHS


def nan_on_zeros(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Losses and gradients that are NaN where all numbers are 0, as those of padding are."""
    return loss(model, x / x.norm(dim=(1, 2), keepdim=True), y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("of", [loss, nan_on_zeros])
def test_a_padded_record_adds_exactly_nothing_even_if_its_numbers_are_nan(of: Callable[..., Tensor]) -> None:
    model = Net().eval()
    engine = make(of, model)
    for number in range(6):
        rows = batch(17, number)
        sums, raw = step(engine, rows)
        assert raw.raw_losses.isfinite().all()
        found = torch.cat([total.flatten() for total in sums.values()]).double() / SCALE
        torch.testing.assert_close(found, definition(model, of, rows, C), rtol=1e-4, atol=1e-5)
    assert engine.route == GRAPHS


def test_a_record_that_is_not_finite_adds_nothing_to_a_captured_sum() -> None:
    engine = warm(make(model=Net().eval()))
    x, y = batch(18, 5)
    x[3] = torch.inf
    sums, raw = step(engine, (x, y))
    rest, _ = plainly(engine, (x[torch.arange(18) != 3], y[torch.arange(18) != 3]))
    assert raw.raw_norms[3] == torch.inf
    for name, total in rest.items():
        torch.testing.assert_close(sums[name], total, rtol=1e-4, atol=1e-6)


def changed_storage(engine: FastEngine) -> None:
    weight = engine.parameters["first.weight"]
    weight.data = weight.data * 3


def changed_buffer(engine: FastEngine) -> None:
    engine.model.shift = torch.full((4,), 2.0)


def changed_table(engine: FastEngine) -> None:
    engine.model.table = torch.full((4,), 2.0)


def changed_number(engine: FastEngine) -> None:
    engine.model.rate = 0.25  # type: ignore[assignment]


def changed_count(engine: FastEngine) -> None:
    engine.model.times = 3  # type: ignore[assignment]


def changed_dropout(engine: FastEngine) -> None:
    assert isinstance(engine.model, Net)
    engine.model.drop.p = 0.9


def changed_flags(engine: FastEngine) -> None:
    engine.model.eval()


def changed_module(engine: FastEngine) -> None:
    assert isinstance(engine.model, Net)
    engine.model.drop = nn.Dropout(0.8)


@pytest.mark.parametrize(
    "change",
    [
        *(changed_storage, changed_buffer, changed_table, changed_number),
        *(changed_count, changed_dropout, changed_flags, changed_module),
    ],
)
def test_a_graph_is_stale_when_what_it_was_made_of_is_another(
    change: Callable[[FastEngine], None], replays: list[int]
) -> None:
    engine = warm(make())
    change(engine)
    check(engine, batch(18, 3))
    assert len(replays) == 1
    for seed in range(3):  # and there is another one soon
        check(engine, batch(17, 20 + seed))
    assert engine.route == GRAPHS
    assert len(replays) > 1


def test_numbers_written_in_place_are_read_anew(replays: list[int]) -> None:
    engine = warm(make())
    assert isinstance(engine.model, Net)
    with torch.no_grad():
        engine.model.first.weight.mul_(2)
        engine.model.table.fill_(0.3)
        engine.model.get_buffer("shift").fill_(0.7)
    check(engine, batch(18, 3))
    assert len(replays) == 2


def test_a_variable_around_the_loss_counts_in_the_next_step() -> None:
    smoothing = 0.0

    def of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, reduction="none", label_smoothing=smoothing)

    engine = warm(make(of))
    smoothing = 0.4
    check(engine, batch(18, 3))


def test_tensors_that_a_graph_reads_are_held() -> None:
    """An old weight's memory must not come to hold other records' numbers."""
    engine = warm(make())
    (graph,) = engine._captured.graphs.values()
    places = {storage.data_ptr() for storage in graph.storages.values()}
    assert {p.data_ptr() for p in engine.parameters.values()} <= places
    assert engine.model.get_buffer("shift").data_ptr() in places


def test_nothing_of_the_records_is_left_in_the_memory_of_a_graph() -> None:
    engine = warm(make())
    step(engine, batch(18, 3))
    (graph,) = engine._captured.graphs.values()
    left = [*graph.call.batch, *graph.results, *engine._captured._sums.values()]
    assert not any(bool(tensor.any()) for tensor in left)


class Failing(dict[str, Tensor]):
    """Buffers of which one is not there."""

    def __getitem__(self, name: str) -> Tensor:
        if name == "last.bias":
            raise KeyboardInterrupt
        return super().__getitem__(name)


def test_a_step_that_ends_half_way_leaves_no_sum_to_the_next() -> None:
    engine = warm(make())
    buffers = Failing({name: torch.zeros_like(p) for name, p in engine.parameters.items()})
    with pytest.raises(KeyboardInterrupt):
        engine._captured.take(buffers, batch(18, 4), torch.tensor([C]), SCALE, 5)
    for seed in range(4):
        check(engine, batch(18, seed))
