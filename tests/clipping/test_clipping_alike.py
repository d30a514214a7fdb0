"""What rounding decides is told from what other records do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tacit.clipping import FlatClipping, isolation
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import probe
from tacit.clipping.isolation.probe import DependsOnOthers, confirmed, moved

D = 4


class Kinked(nn.Module):
    """A ReLU, before which batches of other sizes are rounded otherwise, as a library's kernels may do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        rounded = self.first(x) + 1e-12 * torch.full((), len(x), dtype=x.dtype)
        return torch.as_tensor(self.second(torch.relu(rounded)))

    def at_the_kink(self, record: Tensor, n: int) -> None:
        """Let a number of the record be above 0 beside n records, and below beside one fewer."""
        with torch.no_grad():
            self.first.bias.sub_(self.first(record) + 1e-12 * (n - 0.5))


def losses(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.sum(1) + out.square().mean(1)


def add(engine: FastEngine, x: Tensor) -> dict[str, Tensor]:
    sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    present = torch.ones(len(x), dtype=torch.bool)
    engine.add_clipped_sum(sums, (x,), present, torch.tensor([0.3], dtype=torch.float64))
    return sums


def batches(sizes: list[int]) -> Iterator[Tensor]:
    torch.manual_seed(0)
    yield from (torch.randn(n, D, dtype=torch.float64) for n in sizes)


def train(model: Kinked, sizes: list[int]) -> FastEngine:
    """Batches of these sizes, in each of which the last record lies at the kink."""
    engine = FastEngine(model, losses, FlatClipping(0.3))
    for x in batches(sizes):
        model.at_the_kink(x[-1], len(x))
        before = [p.clone() for p in model.parameters()]
        add(engine, x)
        assert all(map(torch.equal, model.parameters(), before)), "a look leaves the model as it was"
    return engine


@pytest.mark.parametrize("sizes", [[6], [6, 7, 8, 9, 12]])
def test_what_rounding_decides_slows_no_run(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert train(Kinked().double(), sizes).route == "fast"
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)
    monkeypatch.setattr(probe, "AGAIN", 0)  # the planted bug: the first look is believed
    assert train(Kinked().double(), sizes[:1]).route.startswith("record by record")


def test_of_a_later_batch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a size that was not seen before, for which the records are compared again."""

    def late() -> str:
        torch.manual_seed(0)
        model = Kinked().double()
        engine = FastEngine(model, losses, FlatClipping(0.3))
        for number, x in enumerate(batches([6, 6, 6, 9])):
            if number == 3:
                model.at_the_kink(x[-1], len(x))
            add(engine, x)
        return engine.route

    assert late() == "fast"
    monkeypatch.setattr(probe, "AGAIN", 0)
    assert late().startswith("record by record")


class Scaled(nn.Linear):
    """With a buffer, which must be as wide as the weights."""

    def __init__(self) -> None:
        super().__init__(D, 2)
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.scale)


@pytest.mark.parametrize("n", [3, 6, 30])
def test_what_is_only_rounded_more_is_the_same_in_double_precision(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are rounded by a fiftieth here, otherwise for other numbers of records, as on some GPUs."""
    coarse, seen = [torch.float32], []

    def rounded(taken: Any, losses: Tensor, *others: Any) -> probe.Look:
        found = probe.look_of(taken, losses, *others)
        seen.append((losses.dtype, len(losses)))
        by = 1 + 0.02 * len(losses) if losses.dtype in coarse else 1.0
        return replace(found, norms=found.norms * by)

    monkeypatch.setattr(isolation, "look_of", rounded)
    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(n, D)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    engine = FastEngine(model, losses, FlatClipping(0.3))
    add(engine, x)
    assert engine.route == "fast"
    assert max(size for dtype, size in seen if dtype == torch.float64) <= isolation.IN_DOUBLE
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    coarse.append(torch.float64)  # then it is no rounding
    engine = FastEngine(Scaled(), losses, FlatClipping(0.3))
    add(engine, x)
    assert engine.route.startswith("record by record")


@pytest.mark.parametrize(("found", "looks"), [([True], 1), (["!", True], 2), (["!", "!", True], 3)])
def test_a_look_is_believed(found: list[object], looks: int) -> None:
    """What it returns, if it found nothing wrong (here "!"), at once or with other parameters."""
    assert look_at(found) == (found[-1], looks)


def test_what_is_wrong_with_all_parameters_is_wrong() -> None:
    with pytest.raises(DependsOnOthers, match="at first"):
        look_at(["at first", *["!"] * probe.AGAIN])


@pytest.mark.parametrize("in_double", [True, False])
def test_what_holds_in_double_precision_is_believed(in_double: bool) -> None:
    assert look_at(["!"], in_double) == (in_double, 1)


def look_at(found: list[object], in_double: bool | None = None) -> tuple[object, int]:
    looks, seeds = iter(found), []

    @contextmanager
    def elsewhere(seed: int) -> Iterator[None]:
        seeds.append(seed)
        yield

    def look() -> Any:
        if isinstance(what := next(looks), str):
            raise DependsOnOthers(what)
        return what

    result = confirmed(look, lambda: in_double, elsewhere)
    assert len(set(seeds)) == len(seeds), "parameters are moved another way each time"
    return result, 1 + len(seeds)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_parameters_are_moved_a_little_and_put_back(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(200, 3).to(dtype)), nn.Parameter(torch.zeros(2, dtype=dtype))]
    before, state = [p.detach().clone() for p in parameters], torch.get_rng_state()
    by: list[Tensor] = []
    for seed in (0, 1):
        with suppress(KeyboardInterrupt), moved(parameters, seed):
            by.append((parameters[0].detach().double() / before[0].double() - 1).abs())
            raise KeyboardInterrupt
        assert all(map(torch.equal, parameters, before))
    assert not torch.equal(by[0], by[1])
    assert torch.equal(torch.get_rng_state(), state)
    rounding = torch.finfo(dtype).eps
    assert all(2 * rounding < float(part.median()) < 20 * rounding**0.5 for part in by)
