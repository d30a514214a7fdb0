"""The memory of a step's gradients: the same from step to step, and never one that somebody still reads."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import FAST, LEAN, MemoryBudget
from tacit.plan import Plan
from tacit.testing import seeded_generator
from tacit.training import PrivateSession
from tacit.training.step import GradientMemory

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (3,), (2, 3, 4))


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def session(memory: MemoryBudget) -> PrivateSession:
    torch.manual_seed(0)
    plan = Plan.with_noise(
        noise_multiplier=1.0, delta=1e-3, records=40, batch_size=10, steps=6, clipping=1.0,
        adjacency="add-remove", unit="row",
    )  # fmt: skip
    model = nn.Linear(50, 30)
    return PrivateSession(
        model, torch.optim.SGD(model.parameters(), lr=0.1),
        (torch.randn(40, 50), torch.randint(0, 30, (40,))), plan,
        loss=losses, memory=memory, generator=seeded_generator(1),
    )  # fmt: skip


def run(one: PrivateSession, keep: Any) -> tuple[list[list[int]], list[Any]]:
    """Where the gradients of each step were, and what ``keep`` kept of the weight's."""
    places, kept = [], []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [p.grad for p in optimizer.param_groups[0]["params"]]
        places.append([g.data_ptr() for g in gradients])
        kept.append(keep(gradients[0]))

    hook = one.optimizer.register_step_post_hook(look)
    for batch in one.batches():
        one.step(batch)
    hook.remove()
    return places, kept


def test_memory_comes_back_when_nothing_refers_to_it() -> None:
    memory = GradientMemory()
    for shape in SHAPES:
        for dtype in (torch.float32, torch.float64):
            name = f"{shape} {dtype}"
            first = memory.empty(name, shape, dtype)
            assert (first.shape, first.dtype, first.is_contiguous()) == (shape, dtype, True)
            place = first.data_ptr()
            del first
            assert memory.empty(name, shape, dtype).data_ptr() == place


def test_whatever_is_kept_of_a_gradient_stays_as_it_is() -> None:
    """A tensor, a view, a detached tensor, an array, or the storage alone."""
    ways = (
        lambda t: t,
        lambda t: t[1:],
        torch.Tensor.detach,
        torch.Tensor.numpy,
        torch.Tensor.untyped_storage,
    )
    for keep in ways:
        memory = GradientMemory()
        first = memory.empty("w", (3, 2), torch.float32).fill_(1.0)
        place, kept = first.data_ptr(), keep(first)
        del first
        second = memory.empty("w", (3, 2), torch.float32).fill_(2.0)
        assert second.data_ptr() != place
        del kept
        place = second.data_ptr()
        del second
        assert memory.empty("w", (3, 2), torch.float32).data_ptr() == place


def test_a_session_puts_gradients_where_they_were() -> None:
    places, _ = run(session(FAST), lambda gradient: None)
    assert all(place == places[0] for place in places)


def test_a_gradient_that_a_hook_keeps_is_not_written_over() -> None:
    one = session(FAST)
    places, kept = run(one, lambda gradient: (gradient.detach(), gradient.clone()))
    assert len({place[0] for place in places}) == len(places)
    assert all(torch.equal(held, copied) for held, copied in kept)
    assert all(p.grad is None for p in one.model.parameters())


def test_where_gradients_are_is_no_matter() -> None:
    models = []
    for memory in (FAST, LEAN):
        one = session(memory)
        run(one, lambda gradient: None)
        models.append(one.model.state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert session(LEAN)._gradients is None
