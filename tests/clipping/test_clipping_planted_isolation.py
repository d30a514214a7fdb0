"""Planted holes in what isolates records: with one, a record moves the sum by more than C, or it is wrong.

As the engine is, the same record moves it by at most C, or the model is refused.
``test_clipping_vmap.py`` has more planted bugs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import Loss, OwnRule, clipped_sum, moved_by
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped
from torch.autograd.graph import saved_tensors_hooks

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import under_vmap
from tacit.clipping.isolation.under_vmap import Pass, _is_wrapped
from tacit.errors import UnsupportedModel

C, N = 0.1, 8
Plant = Callable[[pytest.MonkeyPatch], None]


class Two(nn.Module):
    """Two layers, and places in which some losses store values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.passes, self.mean = 0, torch.zeros(4)


def head(m: Two, h: Tensor) -> Tensor:
    return torch.as_tensor(m.last(h.sin()).sin().sum(1) + m.last(h).square().sum(1))


def tame(seed: int, n: int = N) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)).clamp(-1.5, 1.5)


def flagged() -> Tensor:
    x = tame(2)
    x[:, 0] = x[:, 0].abs()
    x[0, 0] = -3.5
    return x


def moved(loss: Loss) -> float:
    """By how many C the flagged record moves the sums of its batch and of the one behind it."""
    return moved_by(Two, loss, [(tame(0),), (flagged(),), (tame(1),)], 0, C, changed=1)


def bounded(loss: Loss) -> bool:
    """Whether a record moves the sums by at most C, or none is returned."""
    try:
        return moved(loss) <= 1 + 1e-4
    except UnsupportedModel:
        return True


class Largest(OwnRule):
    """Scaled by the largest of all records."""

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor) -> Any:
        return x * (1 - 2 * (x.abs().amax() > 3)), dims[0]


def own_rule(m: Two, x: Tensor) -> Tensor:
    return head(m, m.first(Largest.apply(x)))  # type: ignore[no-untyped-call]


def saved(m: Two, x: Tensor) -> Tensor:
    """Tensors are kept with a sign of all."""

    def pack(t: Tensor) -> tuple[Tensor, Tensor]:
        return t, t.detach().amin()

    with saved_tensors_hooks(pack, lambda kept: kept[0] * (1 - 2.0 * (kept[1] < -3))):
        h = m.first(x)
    return head(m, h)


def off(owner: Any, name: str, result: Any = None) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(owner, name, lambda *_, **__: result)

    return plant


def told(m: Two, x: Tensor) -> Tensor:
    """Python reads a value of all records."""
    return head(m, m.first(x)) * (-1 if bool((x < -3).any()) else 1)


def reads_all(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: Python is given the largest value of all records."""
    right = Pass._carry_out

    def wrong(self: Pass, func: Any, args: Any, kwargs: Any) -> Any:
        if func is Tensor.__bool__ and self.is_batched(args[0]):
            return bool(get_unwrapped(args[0]).amax())
        return right(self, func, args, kwargs)

    patch.setattr(Pass, "_carry_out", wrong)


def reads_kept(patch: pytest.MonkeyPatch) -> None:
    """Tensors of earlier passes are read as if they were of this one."""

    def wrong(self: Pass, tensor: Tensor) -> tuple[bool, bool]:
        if _is_wrapped(tensor):
            return False, True
        return id(tensor) in self.sources, False

    patch.setattr(Pass, "_status", wrong)


PLANTS: dict[str, tuple[Loss, list[Plant]]] = {
    "a rule of the user's own": (own_rule, [off(under_vmap, "refuse_what_sees_all")]),
    "hooks on saved tensors": (saved, [off(Pass, "_check_hooks")]),
    "a value that Python reads": (told, [reads_all]),
}


@pytest.mark.parametrize(("loss", "plants"), PLANTS.values(), ids=PLANTS)
def test_planted_bug_one_record_moves_the_sum_by_more_than_the_bound(
    loss: Loss, plants: list[Plant], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bounded(loss)
    for plant in plants:
        plant(monkeypatch)
    assert moved(loss) > 1.05


class Teacher:
    """The outputs are joined with those of the batch before."""

    def __init__(self) -> None:
        self.before: Tensor | None = None

    def __call__(self, m: Two, x: Tensor) -> Tensor:
        h = m.first(x)
        before, self.before = self.before, h.detach().mean()
        return head(m, h if before is None else h * before)


def test_planted_bug_a_tensor_of_an_earlier_batch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def sums() -> list[Tensor]:
        found = []
        for first in (tame(0), flagged()):
            torch.manual_seed(0)
            engine = FastEngine(Two(), Teacher(), FlatClipping(C))
            clipped_sum(engine, first, C=C)
            found.append(clipped_sum(engine, tame(1), C=C))
        return found

    with pytest.raises(UnsupportedModel, match="stored tensor of an earlier batch"):
        sums()
    reads_kept(monkeypatch)
    monkeypatch.setattr("tacit.clipping.engine.check_records", lambda *_: None)  # it refuses them too
    one, other = sums()
    assert float((one - other).norm()) > 0.1 * C


def test_planted_bug_a_hook_sees_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(m: Two, x: Tensor) -> Tensor:
        h = m.first(x)
        if h.requires_grad:
            h.register_hook(lambda g: g * (1 - 2.0 * (g.abs().amax() > 99)))
        return head(m, h) * (1 + 1e4 * (x[:, 0] < -3))

    def whole(self: Pass, tensor: Tensor, hook: Callable[[Tensor], Tensor]) -> Any:
        return get_unwrapped(tensor).register_hook(hook)  # type: ignore[no-untyped-call]

    assert bounded(loss)
    monkeypatch.setattr(Pass, "_hook", whole)
    assert moved(loss) > 1.5
