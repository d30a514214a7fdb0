"""Operations that vmap carries out slowly or not at all, and numbers that Python is given in other words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import _set_vmap_fallback_enabled  # type: ignore[attr-defined]

from tacit.clipping import FlatClipping
from tacit.clipping.vmapped import VmapEngine

Forward = Callable[[nn.Module, Tensor], Tensor]
C = 0.5


def scattered(h: Tensor, *value: Any, **named: Any) -> Tensor:
    """What a router does: a mask of the largest two."""
    mask = torch.zeros_like(h)
    mask.scatter_(1, h.topk(2, dim=1).indices, *value, **named)
    h = h.sin()  # whose numbers are changed in place, so that no gradient reaches those
    h.scatter_(1, h.argmin(1, keepdim=True), 0.5)
    return h * mask


def images(h: Tensor, dimensions: int) -> Tensor:
    """As a transformer has them, with the channels last in memory."""
    last = torch.stack([h, h.sin()], 2).transpose(1, 2)
    for _ in range(dimensions - 1):
        last = last.unsqueeze(2)
    return last


def asked(answer: Callable[[Tensor], Any]) -> Forward:
    """Another function of records for which Python is told something else."""

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        h: Tensor = m(x)
        if len(x) == 1:
            return h.sin() if answer(x[0]) else h.cos()
        return torch.stack(
            [each.sin() if answer(row) else each.cos() for row, each in zip(x, h, strict=True)]
        )

    return forward


PLACES = torch.tensor([[0, 2]])
FORWARDS: dict[str, Forward] = {
    "scatter a number": lambda m, x: scattered(m(x), 1),
    "scatter a number by name": lambda m, x: scattered(m(x), value=2.0),
    "scatter at places in common": lambda m, x: m(x).sin().scatter_(1, PLACES.expand(len(x), 2), 3.0),
    "pool 1": lambda m, x: F.adaptive_avg_pool1d(images(m(x), 1), 3),
    "pool 1, to one": lambda m, x: torch.adaptive_avg_pool1d(images(m(x), 1), 1),
    "pool 2": lambda m, x: F.adaptive_avg_pool2d(images(m(x), 2), (1, 2)),
    "pool 2, to one": lambda m, x: F.adaptive_avg_pool2d(images(m(x), 2), 1),
    "pool 3": lambda m, x: F.adaptive_avg_pool3d(images(m(x), 3), (1, 1, 2)),
    "in": asked(lambda row: 0 in row),
    "equal": asked(lambda row: torch.equal(row, row.relu())),
    "equal, as a method": asked(lambda row: row.equal(row.flip(0))),
    "equal, of other shapes": asked(lambda row: torch.equal(row, row[:2])),
    "allclose": asked(lambda row: torch.allclose(row, row.relu(), atol=0.5)),
    "allclose, as a method": asked(lambda row: row.allclose(row.relu(), rtol=0.0, atol=0.5)),
    "allclose, of infinite numbers": asked(
        lambda row: torch.allclose(row / row.relu(), row / row[:1].relu(), equal_nan=True)
    ),
    "tolist": asked(lambda row: sum(row[:2].sign().tolist()) > 0),
    "is_nonzero": asked(lambda row: torch.is_nonzero(row[0])),
    "is_nonzero, as a method": asked(lambda row: row[1].is_nonzero()),
}


def gradients(loss: Forward, model: nn.Module, x: Tensor) -> list[tuple[Tensor, ...]]:
    parameters = list(model.parameters())
    return [torch.autograd.grad(loss(model, row[None]).mean(), parameters) for row in x]


@pytest.fixture(autouse=True)
def no_loops_of_vmap() -> Iterator[None]:
    """What vmap would carry out for one record after the other fails, and the model goes record by record."""
    _set_vmap_fallback_enabled(False)
    yield
    _set_vmap_fallback_enabled(True)


class Mixing(torch.autograd.Function):
    """Honest for one record and for small numbers, by a rule for vmap that is not."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:  # type: ignore[override]
        return (x * x.abs().max() if bool((x.abs() > 1e3).any()) else x.clone()), 0


class Honest(torch.autograd.Function):
    """With a rule that torch makes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return g * ctx.saved_tensors[0].cos()


class Old(torch.autograd.Function):
    """As they were written before vmap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return g * ctx.saved_tensors[0].cos()


@torch.library.custom_op("tacit_tests::mixing", mutates_args=())
def mixing(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.custom_op("tacit_tests::honest", mutates_args=())
def honest(x: Tensor) -> Tensor:
    return x.clone()


for made in (mixing, honest):
    made.register_autograd(lambda ctx, g: g)
mixing.register_vmap(Mixing.vmap)
RULED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a function with a rule": (Mixing.apply, "record by record: Mixing.vmap is a rule of the model's own"),
    "a function with torch's rule": (Honest.apply, "fast"),
    "a function without one": (Old.apply, "record by record: a torch.autograd.Function that vmap cannot"),
    "an operation with a rule": (mixing, "record by record: torch.library.register_vmap of tacit_tests"),
    "an operation with a rule, by name": (torch.ops.tacit_tests.mixing, "record by record: torch.library"),
    "a number of a mask": (lambda h: h * h.nonzero().shape[0], "record by record: how large the result of"),
    "a mask": (lambda h: h + h[h > 0].sum(), "record by record: how large the result of"),
}


@pytest.mark.parametrize(("function", "route"), RULED.values(), ids=RULED)
def test_rules_of_the_models_own_are_not_used(function: Callable[[Tensor], Tensor], route: str) -> None:
    """They see all records: here one that is large would multiply the gradients of the others."""
    torch.manual_seed(0)
    engine = VmapEngine(
        nn.Linear(3, 3).double(),
        lambda m, x: torch.stack([function(m(r)) for r in x]).sum(1),
        FlatClipping(C),
    )
    x = torch.randn(4, 3, dtype=torch.float64)
    found = []
    for records in (x, torch.cat([1e6 * x[:1], x[1:]])):
        sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
        norms = engine.add_clipped_sum(
            sums, (records,), None, torch.tensor([C], dtype=torch.float64)
        ).raw_norms
        found.append(norms[1:])
    assert torch.equal(*found)
    assert engine.route.startswith(route)


def test_an_operation_without_a_rule_is_carried_out_for_each_record() -> None:
    _set_vmap_fallback_enabled(True)
    engine = VmapEngine(nn.Linear(3, 3), lambda m, x: honest(m(x)).sum(1), FlatClipping(C))
    sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    engine.add_clipped_sum(sums, (torch.randn(4, 3),), None, torch.tensor([C]))
    assert engine.route == "fast"


@pytest.mark.parametrize("forward", FORWARDS.values(), ids=FORWARDS)
def test_they_are_fast_and_equal_a_loop(forward: Forward) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 6).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    x[1:3, :2], x[4] = 0.0, x[4, :1]  # of which some are told another thing than others

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        found = forward(m, x).flatten(1)
        return (found * torch.linspace(0.5, 1.0, found.shape[1], dtype=found.dtype)).square().sum(1)

    engine = VmapEngine(model, loss, FlatClipping(C))
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    found = engine.add_clipped_sum(sums, (x,), None, torch.tensor([C], dtype=torch.float64))
    each = gradients(loss, model, x)
    norms = torch.stack([torch.cat([g.flatten() for g in own]).norm() for own in each])
    torch.testing.assert_close(found.raw_norms[:, 0], norms, rtol=1e-10, atol=0.0)
    for total, of_one in zip(sums.values(), zip(*each, strict=True), strict=True):
        clipped = [g * min(1.0, C / float(norm)) for g, norm in zip(of_one, norms, strict=True)]
        torch.testing.assert_close(total, torch.stack(clipped).sum(0), rtol=1e-10, atol=1e-12)
    assert engine.route == "fast"
