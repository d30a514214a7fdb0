"""What a model keeps of records, what mixes them in large batches or backwards alone, and other settings that
would bend the bound: all of it is refused, or computed record by record."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.state import Memory, differing
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import AdaptiveClipping, FlatClipping, PerLayerClipping
from tacit.errors import InvalidInput, PrivacyRefusal, UnsupportedModel

N, D, CLASSES = 48, 6, 4
ENGINES = [FastEngine, ReferenceEngine]


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(N, D, generator=generator) + 1, torch.arange(N) * CLASSES // N  # sorted by class
    x[0] *= 10
    return x, y


def clipped(kind: type[GradientEngine], model: nn.Module, *, loss: Any = losses, C: float = 1.0) -> Tensor:
    """The clipped sum over all records, and less that without the first: its sensitivity."""
    x, y = data()
    found = []
    for first in (0, 1):
        engine = kind(model, loss, FlatClipping(C))
        sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
        mask = torch.ones(N - first, dtype=torch.bool)
        engine.add_clipped_sum(sums, (x[first:], y[first:]), mask, torch.tensor([C]))
        found.append(torch.cat([total.flatten() for total in sums.values()]))
    return found[0] - found[1]


class Net(nn.Module):
    """A linear model that does something beside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, CLASSES)
        self.frozen = nn.Parameter(torch.zeros(D), requires_grad=False)
        self.seen: Any = None
        self.started = False

    def beside(self, x: Tensor) -> None:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        self.beside(x.detach())
        y: Tensor = self.linear(x)
        return y


class StartsFromData(Net):
    def beside(self, x: Tensor) -> None:
        if not self.started:
            with torch.no_grad():
                self.linear.bias.copy_(x.mean(0)[:CLASSES])
            self.started = True


class MovesFrozen(Net):
    def beside(self, x: Tensor) -> None:
        self.frozen.data.mul_(0.9).add_(x.mean(0))


class RegistersBuffer(Net):
    def beside(self, x: Tensor) -> None:
        if "mean" not in self._buffers:
            self.register_buffer("mean", x.mean(0))


class KeepsInput(Net):
    def beside(self, x: Tensor) -> None:
        self.seen = x


class KeepsNumber(Net):
    def beside(self, x: Tensor) -> None:
        self.seen = float(x.abs().max())


class KeepsQueue(Net):
    def beside(self, x: Tensor) -> None:
        self.seen = deque(maxlen=2) if self.seen is None else self.seen
        self.seen.append({"mean": x.mean(0).numpy()})


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (StartsFromData, "linear.bias"),
        (MovesFrozen, "frozen"),
        (RegistersBuffer, "mean"),
        (KeepsInput, "seen"),
        (KeepsNumber, "seen"),
        (KeepsQueue, "seen"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_would_keep_records_is_refused_and_keeps_nothing(
    engine: type[GradientEngine], kind: type[Net], place: str
) -> None:
    torch.manual_seed(0)
    model = kind()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    refusal = f"in the model: {place}\\.|writes values of records into a tensor"
    with pytest.raises(UnsupportedModel, match=refusal):
        clipped(engine, model)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.seen is None
    assert not model.started


class Harmless(Net):
    """Counts, makes a table when it is first needed, and normalises its own weights."""

    def beside(self, x: Tensor) -> None:
        self.seen = [] if self.seen is None else self.seen
        self.seen.append(len(self.seen))
        if not self.started:
            self.table = torch.arange(D).cos()
            self.started = True
        with torch.no_grad():
            self.linear.weight.copy_(F.normalize(self.linear.weight))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_does_not_hang_on_records_may_be_kept(engine: type[GradientEngine]) -> None:
    assert float(clipped(engine, Harmless()).norm()) <= 1 + 1e-5


class Relative:
    """Losses relative to the mean of the first ones, kept by itself or in what it has; or by their number."""

    def __init__(self, where: str) -> None:
        self.where, self.steps = where, 0
        self.first: Tensor | None = None
        self.space = SimpleNamespace(queue=deque[Tensor](maxlen=4))

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found = losses(model, x, y)
        self.steps += 1
        if self.where == "steps":
            return found * min(1.0, self.steps / 100)
        if self.where == "queue":
            self.space.queue.append(found.detach())
            return torch.as_tensor(found * self.space.queue[0].sum())
        if self.first is None:
            self.first = found.detach().mean()
        return found / self.first


def closed_over() -> Any:
    """The same in a variable around a function."""
    weights: Tensor | None = None

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal weights
        if weights is None:
            weights = 1 / (1 + torch.bincount(y, minlength=CLASSES))
        return losses(model, x, y) * weights[y]

    return loss


KEPT_WEIGHTS: dict[str, Tensor] = {}


def by_a_global(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    if "weights" not in KEPT_WEIGHTS:
        KEPT_WEIGHTS["weights"] = 1 / (1 + torch.bincount(y, minlength=CLASSES))
    return losses(model, x, y) * KEPT_WEIGHTS["weights"][y]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Relative("self"),
        lambda: Relative("queue"),
        lambda: partial(lambda kept, *batch: kept(*batch), Relative("self")),
        lambda: Relative("self").__call__,
        closed_over,
        lambda: by_a_global,
    ],
    ids=["attribute", "queue", "partial", "method", "closure", "global"],
)
def test_a_loss_that_keeps_records_for_later_is_refused(make: Callable[[], Any]) -> None:
    KEPT_WEIGHTS.clear()
    with pytest.raises(
        UnsupportedModel, match=r"kept of an earlier batch|keeps something of earlier batches"
    ):
        clipped(FastEngine, nn.Linear(D, CLASSES), loss=make())


@pytest.mark.parametrize("make", [lambda: Relative("self"), closed_over], ids=["attribute", "closure"])
def test_what_a_loss_keeps_of_its_first_records_is_of_zeros(make: Callable[[], Any]) -> None:
    """Where tensors are not followed: the first records that a loss sees are zeros."""
    assert float(clipped(ReferenceEngine, nn.Linear(D, CLASSES), loss=make()).norm()) <= 1 + 1e-5


def test_what_a_loss_keeps_of_its_last_records_is_seen_by_the_reference_engine() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"kept of an earlier batch|keeps something of earlier batches"
    ):
        clipped(ReferenceEngine, nn.Linear(D, CLASSES), loss=Relative("queue"))


CALLS = 0


class Counts:
    """Counts its calls in all places, beside a counter that no one else can set."""

    def __init__(self) -> None:
        self.true, self.calls, self.log = count(), 0, list[int]()
        self.space = SimpleNamespace(calls=0, table=None)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        self.calls += 1
        self.space.calls += 1
        self.log.append(next(self.true))
        if self.space.table is None:
            self.space.table = SimpleNamespace(ones=torch.ones(CLASSES))
        return torch.as_tensor(losses(model, x, y) * self.space.table.ones[y])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_counts_all_its_calls(engine: type[GradientEngine]) -> None:
    global CALLS
    CALLS, loss = 0, Counts()
    assert clipped(engine, nn.Linear(D, CLASSES), loss=loss).norm() < 1 + 1e-4
    calls = next(loss.true)
    assert calls > 10
    assert loss.log == list(range(calls))
    assert (CALLS, loss.calls, loss.space.calls) == (calls, calls, calls)


def test_lists_of_anything_are_left_alone() -> None:
    kinds: list[torch.dtype] = []
    calls = 0

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        kinds.append(x.dtype)
        return losses(model, x, y)

    clipped(FastEngine, nn.Linear(D, CLASSES), loss=loss)
    assert len(kinds) == calls > 10


@pytest.mark.parametrize("engine", ENGINES)
def test_a_log_of_losses_is_the_users_own(engine: type[GradientEngine]) -> None:
    log: list[Tensor] = []
    last: Tensor | None = None

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal last
        last = losses(model, x, y)
        log.append(last.detach())
        return last

    clipped(engine, nn.Linear(D, CLASSES), loss=loss)
    assert len(log) > 10


class MadeOnce:
    """What it makes in its first call, by whatever it keeps then."""

    def __init__(self, made: Any, *, counted: bool = False, first: Any = None) -> None:
        self.make, self.counted, self.calls = made, counted, 0
        self.kept: Any = first

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if self.calls == 0 if self.counted else self.kept is None:
            self.kept = SimpleNamespace(value=self.make(x))
        self.calls += 1
        return torch.as_tensor(losses(model, x, y) * self.kept.value)


def test_what_a_loss_makes_once_without_records_is_left_as_it_was_made() -> None:
    table = 2 * torch.ones(())
    loss = MadeOnce(lambda x: table)
    clipped(FastEngine, nn.Linear(D, CLASSES), loss=loss)
    first = loss.kept
    clipped(FastEngine, nn.Linear(D, CLASSES), loss=loss)
    assert loss.kept is first
    assert loss.kept.value is table


@pytest.mark.parametrize(
    ("counted", "first"), [(False, None), (True, None), (True, SimpleNamespace(value=1.0))]
)
def test_what_a_loss_makes_of_its_first_batch_is_refused(counted: bool, first: Any) -> None:
    loss = MadeOnce(lambda x: torch.as_tensor(x.square().mean() + 1), counted=counted, first=first)
    with pytest.raises(
        UnsupportedModel, match=r"kept of an earlier batch|keeps something of earlier batches"
    ):
        clipped(FastEngine, nn.Linear(D, CLASSES), loss=loss)
    assert float(loss.kept.value) == 1.0, "of zeros"


def alternating() -> Any:
    """Losses whose sign is another one in each call; each record is one, as Python asks for a number."""
    calls = 0

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        found = losses(model, x, y)
        return torch.as_tensor(found * (-1) ** calls * (1 if found.mean().item() > -1 else 2))

    return loss


@pytest.mark.parametrize("loss", [Relative("steps"), alternating()], ids=["steps", "sign"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_goes_by_its_number_of_calls_is_refused(engine: type[GradientEngine], loss: Any) -> None:
    """How often it is called depends on how many records there are: one more moves all others."""
    with pytest.raises(UnsupportedModel, match="goes by how often it was called"):
        clipped(engine, nn.Linear(D, CLASSES), loss=loss)


class Teacher(nn.Module):
    """With a mean teacher, which follows with each pass, as a schedule does that counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(D, CLASSES)
        self.teacher, self.steps = copy.deepcopy(self.student).requires_grad_(False), 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.steps += 1
        for mine, its in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.mul_(0.5).add_(its.detach() + 1, alpha=0.5)
        apart = (self.student(x) - self.teacher(x)).square().mean(1)
        return self.student(x), min(1.0, self.steps / 10) * apart


def taught(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits, apart = model(x)
    return F.cross_entropy(logits, y, reduction="none") + torch.as_tensor(apart)


def test_passes_of_a_proof_begin_alike() -> None:
    model = Teacher()
    engine = FastEngine(model, taught, FlatClipping(1.0))
    sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    for step in range(1, 5):
        engine.add_clipped_sum(sums, data(), None, torch.tensor([1.0]))
        assert engine.route == "fast"
        # the first is measured; it and the fourth are done once more when all is shown
        assert model.steps <= step + 3


class MakesTable(Net):
    """An object of constants that is made when it is first needed."""

    def beside(self, x: Tensor) -> None:
        self.seen = SimpleNamespace(table=torch.arange(D).cos()) if self.seen is None else self.seen
        x * self.seen.table


class MakesMean(Net):
    """One of records."""

    def beside(self, x: Tensor) -> None:
        self.other = SimpleNamespace(mean=x.mean(0))


@pytest.mark.parametrize("engine", ENGINES)
def test_objects_that_a_model_makes_when_they_are_needed(engine: type[GradientEngine]) -> None:
    assert float(clipped(engine, MakesTable()).norm()) <= 1 + 1e-5
    with pytest.raises(UnsupportedModel, match=r"in the model: other\.mean\."):
        clipped(engine, MakesMean())


def test_what_is_made_of_the_first_batch_out_of_sight_is_made_of_zeros() -> None:
    class Kept(nn.Linear):
        mean: Any = None

        def forward(self, x: Tensor) -> Tensor:
            type(self).mean = x.mean(0) if self.mean is None else self.mean
            return super().forward(x - self.mean)

    with pytest.raises(
        UnsupportedModel, match=r"kept of an earlier batch|keeps something of earlier batches"
    ):
        clipped(FastEngine, Kept(D, CLASSES))
    torch.testing.assert_close(Kept.mean, torch.zeros(D))


def test_memory_puts_back_whatever_was_changed() -> None:
    model = Net()
    model.seen = [1, {"a": np.ones(2)}, {3}, torch.zeros(2)]
    inner, kept = model.seen[3], Memory(model)
    assert kept.changes() == {}
    with torch.no_grad():
        model.linear.weight.add_(1)
        inner.add_(1)
    model.seen.append("more")
    model.started = True
    vars(model)["extra"] = 2.5
    changed = kept.changes()
    assert kept.names(set(changed)) == ["extra", "linear.weight", "seen", "started"]
    kept.restore()
    assert kept.changes() == {}
    assert not hasattr(model, "extra")
    assert differing(changed, {}) == set(changed)


def fewest_kept(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Hard examples alone, but 16 at least: nothing mixes in a small batch."""
    found = losses(model, x, y)
    hardest = found.detach().topk(min(16, len(found))).values[-1]
    return found * (found.detach() >= hardest)


def balanced(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Weights by the classes of the batch, whose first records are of one class where data is sorted."""
    counts = torch.bincount(y, minlength=CLASSES).clamp(min=1)
    return len(y) / (CLASSES * counts[y]) * losses(model, x, y)


@pytest.mark.parametrize("loss", [fewest_kept, balanced])
@pytest.mark.parametrize("engine", ENGINES)
def test_losses_that_mix_in_the_whole_batch_are_refused(engine: type[GradientEngine], loss: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"mixes records|with the number of records"):
        clipped(engine, nn.Linear(D, CLASSES), loss=loss)


@pytest.mark.parametrize("engine", ENGINES)
def test_autocast_around_the_step_is_refused(engine: type[GradientEngine]) -> None:
    """It would round the norms: the sum then changes by up to half a percent more than the bound."""
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(PrivacyRefusal, match="into the loss function"),
    ):
        clipped(engine, nn.Linear(D, CLASSES))


def test_bounds_that_floats_cannot_hold_are_refused() -> None:
    """Near 1e-44 numbers are multiples of 1.4e-45: the clipped sum changed by 7 % more than the bound."""
    for rule in (FlatClipping, AdaptiveClipping, PerLayerClipping):
        with pytest.raises(InvalidInput, match="1e-30"):
            rule(1e-40)
    with pytest.raises(InvalidInput, match="1e-30"):
        AdaptiveClipping(1.0, low=1e-40)
