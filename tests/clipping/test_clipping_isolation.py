"""Nothing of a record reaches another: what is not refused is trained as if each record were alone.

The first batches do not use the way; a later one has one record that does. The coupling table
(``couplings_of_*.py``) has more; letters: m the model; h what is between its layers; T positions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from couplings_of_values import Net, head
from oracles import (
    Kind,
    Loss,
    Of,
    both,
    clipped_sum,
    cross_entropy,
    each,
    equals_a_loop,
    is_refused,
    moved_by,
)
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import model_checks
from tacit.clipping.isolation.model_checks import Writes
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import PrivacyRefusal, UnsupportedModel

C, T = 0.125, 40
"""As many positions as records, as each may be taken for the other."""


def one_large() -> Tensor:
    x = 1.2 * torch.rand(T, T, 4, generator=torch.Generator().manual_seed(1))
    x[0, ..., 0] = 6.3
    return x


def excess(x: Tensor) -> Tensor:
    """By how much the largest number is above 5: nothing, in the first batches."""
    return (x.detach() - 5).relu().amax()


def by(change: Callable[[Net, Tensor], Any]) -> Loss:
    """Losses of (n, T, 6) numbers between the layers, and of all positions."""
    return lambda m, x: head(m, change(m, x).mean(1))


def crowded(m: Net, x: Tensor) -> Tensor:
    """An expert that takes the first nine records that want it, and leaves the others as they are."""
    wanted = x[:, 0, 0] > 0.5
    taken = wanted & (torch.ones(len(x), len(x)).tril() @ wanted.float() <= 9)
    h = m.first(x)
    return torch.where(taken[:, None, None], h, -h)


def written(m: Net, x: Tensor) -> Any:
    table = torch.zeros(2)
    table[0] = excess(x)
    return m.first(x) / (1 + 100 * table[0])


def hooked(m: Net, x: Tensor) -> Any:
    """Gradients are scaled by the largest of all."""
    h = m.first(x)
    if h.requires_grad:
        h.register_hook(lambda g: g / (1e-3 + 100 * g.abs().amax()))
    return h.sin() * (1 + 100 * (x[:, :1, :1] > 5))


def along_time(copy: Callable[[Tensor, int], Tensor]) -> Callable[[Net, Tensor], Any]:
    """A scale for each position, copied for all records."""
    return lambda m, x: m.first((x.transpose(0, 1) * (1 + copy(m.table[:T, None], len(x)))).transpose(0, 1))


TABLE = torch.randn(T, 4, generator=torch.Generator().manual_seed(2))
ALONE: dict[str, Loss] = {
    "a capacity": by(crowded),
    "a millionth": by(lambda m, x: (h := m.first(x)) + 1e-6 * h.mean(0)),
    "less than rounding": by(lambda m, x: (h := m.first(x)) + 1e-14 * h.mean(0)),
    "rounding": lambda m, x: torch.where(x.max() > 5, 1 + 2**-22, 1.0) * head(m, m.first(x).mean(1)),
    "a scale along the batch": by(lambda m, x: m.first(x * (1 + m.table[: len(x), None]))),
    "a divisor in steps of 32": by(lambda m, x: m.first(x) / -(-len(x) // 32)),
    "states of zeros": by(lambda m, x: m.first(x + torch.zeros(len(x), 1, 4))),
    "large terms that cancel": by(lambda m, x: m.first((x + 1e4) - 1e4)),
    "a table as long as the batch": by(lambda m, x: m.first(x + TABLE[x[:, :1, 0].abs().long()])),
    "copies along time, expanded": by(along_time(lambda t, n: t.expand(T, n, 4))),
    "copies along time, repeated": by(along_time(lambda t, n: t.repeat(1, n, 1))),
    "as long as its records": by(lambda m, x: m.first(x) + m.first(torch.eye(T)[: x.shape[1], :4])),
    "a generator": by(lambda m, x: m.first(x) / (1 + 100 * max(excess(row) for row in x))),
    "a written constant": by(written),
    "a hook on an activation": by(hooked),
}


@both
@each("loss", ALONE)
def test_what_is_not_seen_is_trained_as_if_each_record_were_alone(kind: Kind, loss: Loss) -> None:
    x = one_large()
    tame, engine = x.clamp(max=1.2), kind(Net(), loss, FlatClipping(C))
    clipped_sum(engine, tame)
    equals_a_loop(engine, x, rtol=2e-3, atol=1e-5)
    assert moved_by(Net, loss, [(tame,), (x,)], 0, C, kind=kind) <= 1 + 1e-4


def test_norms_of_derived_weights_in_16_bits_are_not_rounded_to_16_bits() -> None:
    def in_16_bits(m: Any, x: Tensor) -> Any:
        rows = x.bfloat16() + m.table * torch.linspace(0, 1, 64)[None]
        return rows.flatten(1).square().sum(1)

    def make() -> nn.Module:
        return Of(lambda m, x: x, table=nn.Parameter(torch.randn(1, 1, 64).bfloat16()))

    x = torch.randn(16, 5, 64) * 0.3 + 1
    assert max(moved_by(make, in_16_bits, [(x,)], i, C) for i in (0, 1)) <= 1 + 1e-4


# --- the batch, the model and the settings stay as they are -------------------------------------------------


def in_place(m: Net, x: Tensor) -> Tensor:
    return head(m, m.first(x.mul_(1.01)))


@both
def test_what_works_in_place_is_given_copies(kind: Kind) -> None:
    x = torch.randn(6, 4)
    before = x.clone()
    equals_a_loop(kind(Net(), in_place, FlatClipping(C)), x, rtol=1e-4, atol=1e-5)
    assert torch.equal(x, before)


@both
def test_what_begins_to_work_in_place_ends_the_run(kind: Kind) -> None:
    losses: Loss = lambda m, x: head(m, m.first(x))  # noqa: E731
    engine = kind(Net(), lambda m, x: losses(m, x), FlatClipping(C))
    for _ in range(2):
        clipped_sum(engine, torch.randn(6, 4))
    losses = in_place
    is_refused("changes the batch in place", engine, torch.randn(6, 4))


@both
def test_autocast_around_the_step_is_refused(kind: Kind) -> None:
    """It would round the norms: the sum then changes by up to half a percent more than the bound."""
    engine = kind(nn.Linear(4, 3), cross_entropy, FlatClipping(C))
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(PrivacyRefusal, match="only inside the loss function"),
    ):
        clipped_sum(engine, torch.randn(6, 4), torch.arange(6) % 3)


def there(x: Tensor) -> Tensor:
    return (x.detach() == 3.75).any()


WRITES: dict[str, Callable[[Any, Tensor], object]] = {
    "weights": lambda m, x: m.linear.weight.mul_(1 - 2 * there(x).float()),
    "weights by .data": lambda m, x: m.linear.weight.data.mul_(1 - 2 * there(x).float()),
    "repairs": lambda m, x: m.linear.bias.copy_(torch.where(there(x), torch.zeros(3), m.linear.bias)),
    "frozen": lambda m, x: m.frozen.add_(there(x).float()),
    "rarely": lambda m, x: m.linear.bias.add_(1.0) if bool(there(x)) else None,
}


def with_effect(side_effect: Callable[[Any, Tensor], object]) -> nn.Module:
    """A linear model with a side effect in its forward pass."""

    def forward(m: Any, x: Tensor) -> Any:
        with torch.no_grad():
            side_effect(m, x.detach())
        return m.linear(x + m.frozen)

    return Of(forward, linear=nn.Linear(4, 3), frozen=nn.Parameter(torch.zeros(4), requires_grad=False))


def state_after(kind: Kind, side_effect: Callable[[Any, Tensor], object]) -> bool:
    """Whether the batch with the flagged record leaves other parameters in the model than there were."""
    model = with_effect(side_effect)
    engine, before = kind(model, cross_entropy, FlatClipping(C)), list[Tensor]()
    try:
        for flagged in (False, False, True):
            x = torch.randn(8, 4).clamp(-2, 2)
            x[0, 0] = 3.75 if flagged else x[0, 0]
            before = [p.detach().clone() for p in model.parameters()]
            clipped_sum(engine, x, torch.arange(8) % 3)
    except UnsupportedModel:
        pass
    return not all(map(torch.equal, before, model.parameters()))


@both
@each("side_effect", WRITES)
def test_no_batch_writes_values_of_records_to_parameters(
    kind: Kind, side_effect: Callable[[Any, Tensor], object]
) -> None:
    assert not state_after(kind, side_effect)


def test_planted_bug_without_the_check_a_record_is_in_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def trust(*_: object, **__: object):  # type: ignore[no-untyped-def]
        yield

    monkeypatch.setattr(Writes, "refused", trust)
    assert state_after(ReferenceEngine, WRITES["weights"]), "else this shows nothing"


def test_planted_bug_without_the_scan_a_model_keeps_a_tensor_of_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = with_effect(lambda m, x: setattr(m, "seen", x))
    engine, batch = (
        FastEngine(model, cross_entropy, FlatClipping(C)),
        (torch.randn(8, 4), torch.arange(8) % 3),
    )
    is_refused(r"in the model: seen\.", engine, *batch)
    monkeypatch.setattr("tacit.clipping.fast.refuse_wrapped", lambda model: None)
    clipped_sum(engine, *batch)
    with pytest.raises(UnsupportedModel, match="in the model: seen"):
        model_checks.refuse_wrapped(model)
