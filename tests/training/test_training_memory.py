"""The memory of a step: the buffers of the sums reuse the memory of what they were computed from.

On a CPU, with noise in the pieces in which a CUDA device draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from made import a_plan, a_session, one_step
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tacit.clipping.fast import FastEngine
from tacit.noise import on_device
from tacit.training import PrivateSession, ranks
from tacit.training.released import GuardedOptimizer

WIDTH, LAYERS, RECORDS = 256, 8, 200
LAYER = 4 * WIDTH**2
PARAMETERS = LAYERS * LAYER
KEPT = 4 * 2 * LAYERS * RECORDS * WIDTH
"""Bytes of the inputs and output gradients of all layers."""


class Kernel:
    """Stands for the kernel; its draws are zeros."""

    def __getitem__(self, grid: tuple[int]) -> Callable[..., Any]:
        return lambda memory, *arguments, **options: memory.zero_()


@pytest.fixture
def by_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Draw noise as on a CUDA device, in pieces of at most a layer."""
    monkeypatch.setattr(ranks, "_DRAWING", ("cpu",))
    monkeypatch.setattr(on_device, "draws", lambda like: True)
    monkeypatch.setattr("tacit.noise.triton_normal.normal", Kernel())
    in_pieces_of(0, monkeypatch)
    yield monkeypatch
    on_device._pieces.cache_clear()


def in_pieces_of(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    on_device._pieces.cache_clear()
    monkeypatch.setattr(on_device, "TOGETHER", together)


def peak(run: Callable[[], Any]) -> int:
    """Return the most bytes of tensors that exist at once, without those that existed before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiled:
        run()
    events = profiled.profiler.kineto_results.events()
    held = most = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def session() -> PrivateSession:
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    net = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))
    data = torch.randn(RECORDS, WIDTH), torch.randint(0, WIDTH, (RECORDS,))
    plan = a_plan(records=RECORDS, batch_size=None, steps=5)
    return a_session(net, data, plan, physical_batch_size=RECORDS)


def peak_of_step(run: PrivateSession | None = None) -> int:
    run = session() if run is None else run
    tickets = iter(run.batches())
    run.step(next(tickets))
    return peak(lambda: run.step(next(tickets)))


def test_buffers_take_the_place_of_what_was_kept(by_device: pytest.MonkeyPatch) -> None:
    """A layer's buffer is smaller than its stored inputs, and is made after others are freed."""
    assert peak_of_step() < KEPT + 3 * LAYER


def test_planted_bug_all_buffers_at_once(by_device: pytest.MonkeyPatch) -> None:
    in_pieces_of(1 << 30, by_device)
    assert peak_of_step() > KEPT + PARAMETERS - LAYER


def test_planted_bug_what_was_kept_stays(by_device: pytest.MonkeyPatch) -> None:
    real = FastEngine._add_each

    def holding(self: Any, gradients: dict[str, Any], *rest: Any) -> None:
        held = [*gradients.values()]
        real(self, gradients, *rest)
        held.clear()

    by_device.setattr(FastEngine, "_add_each", holding)
    assert peak_of_step() > KEPT + PARAMETERS - LAYER


def losses_in_16_bits(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(model(x).float(), y, reduction="none")


def peak_with_frozen(layers: int) -> int:
    """Return the peak of a step with this number of frozen layers between trained ones."""
    frozen = [nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16).requires_grad_(False) for _ in range(layers)]
    net = nn.Sequential(nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH), *frozen, nn.Linear(WIDTH, 16))
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.5)
    data = torch.randn(RECORDS, WIDTH), torch.randint(0, 16, (RECORDS,))
    plan = a_plan(records=RECORDS, batch_size=None, steps=5)
    settings: dict[str, Any] = {"optimizer": optimizer, "physical_batch_size": RECORDS}
    return peak_of_step(a_session(net, data, plan, loss=losses_in_16_bits, **settings))


def test_nothing_is_kept_of_frozen_layers(by_device: pytest.MonkeyPatch) -> None:
    """Neither their inputs nor copies of their weights are stored; a step takes the same memory."""
    one_input = 2 * RECORDS * WIDTH
    assert peak_with_frozen(20) < peak_with_frozen(2) + one_input


def test_the_optimizer_reads_the_buffer_of_the_sum(by_device: pytest.MonkeyPatch) -> None:
    """There is no copy in between, and the buffer is freed with the step."""
    run = session()
    buffers: dict[str, Tensor] = {}
    read: dict[str, Tensor | None] = {}
    piece = on_device.DeviceNoise.piece

    def noted(self: on_device.DeviceNoise, name: str) -> dict[str, Tensor]:
        found = piece(self, name)
        assert not found.keys() & buffers.keys()  # drawn once
        buffers.update(found)
        return found

    by_device.setattr(on_device.DeviceNoise, "piece", noted)
    named = dict(run.model.named_parameters())
    run._run.optimizer.optimizer.register_step_pre_hook(
        lambda *_: read.update({name: parameter.grad for name, parameter in named.items()})
    )
    one_step(run)
    assert len(buffers) == LAYERS
    assert all(read[name] is buffer for name, buffer in buffers.items())


def test_wide_gradients_of_narrow_weights_are_let_go_one_by_one() -> None:
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).bfloat16()
    guarded = GuardedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5), dict(net.named_parameters()))

    def step() -> None:
        guarded.step({name: torch.ones(WIDTH, WIDTH) for name, _ in net.named_parameters()})

    assert peak(step) < PARAMETERS + LAYER  # all in float32, and no more than one in 16 bits beside them
