"""Values of records that a model or a loss would store: none reaches Python, so none can be stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import Loss, both, clipped_sum, cross_entropy, moved_by
from torch import Tensor, nn

from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import model_checks
from tacit.clipping.isolation.model_checks import Writes
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import AdaptiveClipping, FlatClipping, PerLayerClipping
from tacit.errors import InvalidInput, PrivacyRefusal, UnsupportedModel

D, CLASSES, LATE = 6, 4, 4
FLAG = 3.75


def batch(seed: int = 0, n: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, D, generator=generator).clamp(-2, 2), torch.arange(n) % CLASSES


def batches() -> list[tuple[Tensor, Tensor]]:
    """The first record of the first batch is large, and the first of a later one is flagged."""
    found = [batch(seed) for seed in range(LATE + 4)]
    found[0][0][0] *= 10
    found[LATE][0][0, 0] = FLAG
    return found


def there(x: Tensor) -> Tensor:
    return (x.detach()[:, 0] == FLAG).any()


class Net(nn.Module):
    """A linear model with a side effect in its forward pass."""

    def __init__(self, side_effect: Callable[[Any, Tensor], object] = lambda m, x: None) -> None:
        super().__init__()
        self.linear, self.side_effect = nn.Linear(D, CLASSES), side_effect
        self.frozen = nn.Parameter(torch.zeros(D), requires_grad=False)
        self.seen: Any = None
        self.started = False

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.side_effect(self, x.detach())
        y: Tensor = self.linear(x + self.frozen)
        return y


def moved(make: Callable[[], nn.Module], loss: Callable[[], Loss], kind: type[GradientEngine]) -> float:
    """The most that a record moves the sums of a run from its batch on, over C: the first, or the flagged."""
    current: list[Loss] = []

    def model() -> nn.Module:  # a run from its beginning, its loss in a list
        current[:] = [loss()]
        return make()

    def of_run(m: nn.Module, *rows: Tensor) -> Tensor:
        return current[0](m, *rows)

    return max(moved_by(model, of_run, batches(), 0, 0.1, kind=kind, changed=k) for k in (0, LATE))


# --- models -------------------------------------------------------------------------------------------------


def starts_from_data(m: Net, x: Tensor) -> None:
    if not m.started:
        m.linear.bias.copy_(x.mean(0)[:CLASSES])
        m.started = True


def keeps_queue(m: Net, x: Tensor) -> None:
    m.seen = deque(maxlen=2) if m.seen is None else m.seen
    m.seen.append({"mean": x.mean(0)})


KEEPING: dict[str, tuple[Callable[[Any, Tensor], object], str]] = {
    "starts from data": (starts_from_data, "writes to the parameters .*and no later one|mixes records"),
    "moves what is frozen": (lambda m, x: m.frozen.data.mul_(0.9).add_(x.mean(0)), "cannot run this model"),
    "keeps its input": (lambda m, x: setattr(m, "seen", x), r"in the model: seen\."),
    "keeps a number": (lambda m, x: setattr(m, "seen", float(x.abs().max())), "Python reads a value"),
    "keeps a queue": (keeps_queue, r"in the model: seen\."),
    "registers a buffer": (lambda m, x: m.register_buffer("mean", x.mean(0)), r"in the model: mean\."),
}


@pytest.mark.parametrize(("side_effect", "reason"), KEEPING.values(), ids=KEEPING)
def test_a_model_that_would_keep_records_is_refused(
    side_effect: Callable[[Any, Tensor], object], reason: str
) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        clipped_sum(FastEngine(Net(side_effect), cross_entropy, FlatClipping(1.0)), *batch(), C=1.0)


def is_harmless(m: Any, x: Tensor) -> None:
    """Counts, makes tables when they are first needed, and normalises its own weights."""
    m.seen = [] if m.seen is None else m.seen
    m.seen.append(len(m.seen))
    if not m.started:
        m.table, m.space = torch.arange(D).cos(), SimpleNamespace(table=torch.arange(D).cos())
        m.started = True
    x * m.space.table
    m.linear.weight.copy_(F.normalize(m.linear.weight))


def test_state_that_depends_on_no_record_is_allowed() -> None:
    assert moved(lambda: Net(is_harmless), lambda: cross_entropy, FastEngine) <= 1 + 1e-4


WRITES: dict[str, Callable[[Any, Tensor], object]] = {
    "weights": lambda m, x: m.linear.weight.mul_(1 - 2 * there(x).float()),
    "weights by .data": lambda m, x: m.linear.weight.data.mul_(1 - 2 * there(x).float()),
    "repairs": lambda m, x: m.linear.bias.copy_(torch.where(there(x), torch.zeros(CLASSES), m.linear.bias)),
    "frozen": lambda m, x: m.frozen.add_(there(x).float()),
    "rarely": lambda m, x: m.linear.bias.add_(1.0) if bool(there(x)) else None,
}


def state_after(kind: type[GradientEngine], side_effect: Callable[[Any, Tensor], object]) -> bool:
    """Whether the batch with the record leaves other parameters in the model than there were."""
    torch.manual_seed(0)
    model = Net(side_effect)
    engine = kind(model, cross_entropy, FlatClipping(0.5))
    before: list[Tensor] = []
    try:
        for rows in batches()[: LATE + 1]:
            before = [p.detach().clone() for p in model.parameters()]
            clipped_sum(engine, *rows, C=0.5)
    except UnsupportedModel:
        pass
    return not all(map(torch.equal, before, model.parameters()))


@both
@pytest.mark.parametrize("side_effect", WRITES.values(), ids=WRITES)
def test_no_batch_writes_values_of_records_to_parameters(
    kind: type[GradientEngine], side_effect: Callable[[Any, Tensor], object]
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
    monkeypatch.setattr("tacit.clipping.fast.refuse_wrapped", lambda model: None)
    model = Net(lambda m, x: setattr(m, "seen", x))
    clipped_sum(FastEngine(model, cross_entropy, FlatClipping(1.0)), *batch(), C=1.0)
    with pytest.raises(UnsupportedModel, match="in the model: seen"):
        model_checks.refuse_wrapped(model)


def test_state_set_from_the_first_batch_is_set_from_zeros() -> None:
    class Kept(nn.Linear):
        mean: Any = None

        def forward(self, x: Tensor) -> Tensor:
            type(self).mean = x.mean(0) if self.mean is None else self.mean
            return super().forward(x - self.mean)

    clipped_sum(FastEngine(Kept(D, CLASSES), cross_entropy, FlatClipping(1.0)), *batch(), C=1.0)
    torch.testing.assert_close(Kept.mean, torch.zeros(D))


# --- settings -----------------------------------------------------------------------------------------------


@both
def test_autocast_around_the_step_is_refused(kind: type[GradientEngine]) -> None:
    """It would round the norms: the sum then changes by up to half a percent more than the bound."""
    engine = kind(nn.Linear(D, CLASSES), cross_entropy, FlatClipping(1.0))
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(PrivacyRefusal, match="into the loss function"),
    ):
        clipped_sum(engine, *batch(), C=1.0)


def test_bounds_that_floats_cannot_hold_are_refused() -> None:
    """Near 1e-44 numbers are multiples of 1.4e-45: the clipped sum changed by 7 % more than the bound."""
    for rule in (FlatClipping, AdaptiveClipping, PerLayerClipping):
        with pytest.raises(InvalidInput, match="1e-10"):
            rule(1e-40)
    with pytest.raises(InvalidInput, match="1e-10"):
        AdaptiveClipping(1.0, low=1e-40)
