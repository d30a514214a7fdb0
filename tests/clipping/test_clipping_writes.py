"""No forward pass writes to parameters what may hang on a record, in whichever batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.state import Writes
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import UnsupportedModel

ENGINES = [FastEngine, ReferenceEngine]
FLAG, LATE = 1.25, 4
Loss = Callable[[Any, Tensor], Tensor]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.second(self.first(x).tanh() * self.frozen).sum(1))


def there(x: Tensor) -> Tensor:
    """Whether one record is among them, which the first batches do not have."""
    return ((x[:, 0] - FLAG).abs() < 1e-6).any().float()


def flips(m: Layers, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.second.weight.mul_(1 - 2 * there(x))
    return torch.as_tensor(m(x))


def flips_data(m: Layers, x: Tensor) -> Tensor:
    m.second.weight.data.mul_(1 - 2 * there(x))
    return torch.as_tensor(m(x))


def repairs(m: Layers, x: Tensor) -> Tensor:
    """Weights are set to 0 when activations are large."""
    with torch.no_grad():
        m.first.bias.copy_(torch.where(there(x) > 0, torch.zeros(4), m.first.bias))
    return torch.as_tensor(m(x))


def freezes(m: Layers, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.frozen.add_(there(x))
    return torch.as_tensor(m(x))


def rarely(m: Layers, x: Tensor) -> Tensor:
    """Writes in no other batch at all."""
    out = m(x)
    if float(there(x)):
        with torch.no_grad():
            m.first.bias.add_(1.0)
    return torch.as_tensor(out)


def normalises(m: Layers, x: Tensor) -> Tensor:
    """Hangs on no record."""
    with torch.no_grad():
        m.first.weight.copy_(F.normalize(m.first.weight.double()).float())
    return torch.as_tensor(m(x))


def add(engine: GradientEngine, x: Tensor) -> None:
    sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    engine.add_clipped_sum(sums, (x,), None, torch.tensor([0.5]))


def train(kind: type[GradientEngine], loss: Loss) -> list[Tensor]:
    """Batches, of which the last has the record; return what the parameters are before it and after."""
    torch.manual_seed(0)
    model = Layers()
    engine = kind(model, loss, FlatClipping(0.5))
    kept: list[Tensor] = []
    try:
        for number in range(LATE + 1):
            x = torch.randn(8, 4)
            if number == LATE:
                x[3, 0] = FLAG
            kept = [p.detach().clone() for p in model.parameters()]
            add(engine, x)
    finally:
        train.changed = not all(map(torch.equal, kept, model.parameters()))  # type: ignore[attr-defined]
    return kept


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("loss", [flips, flips_data, repairs, freezes])
def test_what_a_later_batch_writes_is_refused_and_put_back(kind: type[GradientEngine], loss: Loss) -> None:
    refusal = r"writes to the parameters \['(second|first|frozen)|writes values of records into a tensor"
    with pytest.raises(UnsupportedModel, match=refusal):
        train(kind, loss)
    assert not train.changed  # type: ignore[attr-defined]


def test_a_write_that_no_other_batch_makes_is_counted() -> None:
    with pytest.raises(UnsupportedModel, match=r"first\.bias"):
        train(FastEngine, rarely)


@pytest.mark.parametrize("kind", ENGINES)
def test_what_hangs_on_no_record_may_be_written(kind: type[GradientEngine]) -> None:
    train(kind, normalises)


def test_planted_bug_without_the_look_the_record_is_in_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def trust(*_: object, **__: object):  # type: ignore[no-untyped-def]
        yield

    monkeypatch.setattr(Writes, "refused", trust)
    train(ReferenceEngine, flips)
    assert train.changed, "else this shows nothing"  # type: ignore[attr-defined]
