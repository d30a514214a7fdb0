"""Models and losses made to get more than the bound past the engine: each is clipped right, or refused.

Letters: n records, T positions, d numbers at each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from oracles import Loss, both, clipped_sum, definition, moved_by
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.errors import UnsupportedModel

C = 0.5


class Layers(nn.Module):
    """A linear layer on another, a bare table, and a loss that is given with them."""

    def __init__(self, d: int = 4, bias: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(d, d, bias=bias), nn.Linear(d, d, bias=bias)
        self.table = nn.Parameter(torch.randn(1, 1, d))


def check(make: Callable[[], nn.Module], loss: Loss, batch: tuple[Tensor, ...], i: int, rtol: float) -> None:
    """The sum of the first batch of a run is that of a loop, and record i moves it by no more than C."""
    torch.manual_seed(1)
    model = make()
    found = clipped_sum(FastEngine(model, loss, FlatClipping(C)), *batch, C=C)
    torch.testing.assert_close(found, definition(model, loss, batch, C), rtol=rtol, atol=rtol * C)
    assert moved_by(make, loss, [batch], i, C) <= 1 + 1e-4


def expanded(m: Layers, x: Tensor) -> Tensor:
    turned = x.transpose(0, 1)
    return torch.as_tensor((turned * m.table.expand(8, len(x), 4)).transpose(0, 1).square().sum((1, 2)))


def repeated(m: Layers, x: Tensor) -> Tensor:
    turned = x.transpose(0, 1)
    return torch.as_tensor((turned * m.table.repeat(8, len(x), 1)).transpose(0, 1).square().sum((1, 2)))


def in_16_bits(m: Layers, x: Tensor) -> Tensor:
    rows = x.to(torch.bfloat16) + m.bfloat16().table * torch.linspace(0, 1, 64)[None]
    return rows.flatten(1).square().sum(1)


def places(m: Layers, x: Tensor) -> Tensor:
    """As many positions as records."""
    return torch.as_tensor((x + m.first(torch.eye(16)[: x.shape[1], :4])).square().sum((1, 2)))


ATTACKS: dict[str, tuple[Loss, Callable[[], tuple[Tensor, ...]], int]] = {
    "copies along time, expanded": (expanded, lambda: (torch.randn(8, 8, 4) * 3,), 0),
    "copies along time, repeated": (repeated, lambda: (torch.randn(9, 8, 4) * 3,), 0),
    "as long as its records": (places, lambda: (torch.randn(16, 16, 4),), 3),
    "by chunks": (
        lambda m, x: m.first(x).square().sum(1) / -(-len(x) // 32), lambda: (torch.randn(129, 4),), 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "records", "i"), ATTACKS.values(), ids=ATTACKS)
def test_attacks_are_trained_as_if_each_record_were_alone(
    loss: Loss, records: Callable[[], tuple[Tensor, ...]], i: int
) -> None:
    check(Layers, loss, records(), i, 1e-3)


def test_norms_of_derived_weights_in_16_bits_are_not_rounded_to_16_bits() -> None:
    x = torch.randn(16, 5, 64) * 0.3 + 1
    for i in (0, 1):
        assert moved_by(lambda: Layers(64).bfloat16(), in_16_bits, [(x,)], i, C) <= 1 + 1e-4


def frozen_for_a_while(m: Layers, x: Tensor) -> Tensor:
    h = m.first(x)
    m.second.requires_grad_(False)
    against = -m.second(h).square().sum(1)
    m.second.requires_grad_(True)
    return torch.as_tensor(m.second(h.detach()).square().sum(1) + against)


def test_a_loss_that_freezes_layers_for_a_while_is_refused() -> None:
    engine = FastEngine(Layers(), frozen_for_a_while, FlatClipping(C))
    with pytest.raises(UnsupportedModel, match="requires_grad_"):
        clipped_sum(engine, torch.randn(9, 4), C=C)


def in_place(m: Layers, x: Tensor) -> Tensor:
    return torch.as_tensor(m.first(x.mul_(1.01)).square().sum(1))


@both
def test_what_works_in_place_is_given_copies(kind: type[GradientEngine]) -> None:
    model, x = Layers(), torch.randn(6, 4)
    before = x.clone()
    found = clipped_sum(kind(model, in_place, FlatClipping(C)), x, C=C)
    assert torch.equal(x, before)
    torch.testing.assert_close(found, definition(model, in_place, (x.clone(),), C), rtol=1e-4, atol=1e-5)


@both
def test_what_begins_to_work_in_place_ends_the_run(kind: type[GradientEngine]) -> None:
    losses: Loss = lambda m, x: m.first(x).square().sum(1)  # noqa: E731
    engine = kind(Layers(), lambda m, x: losses(m, x), FlatClipping(C))
    for _ in range(2):
        clipped_sum(engine, torch.randn(6, 4), C=C)
    losses = in_place
    with pytest.raises(UnsupportedModel, match="changes the batch in place, but not in the first pass"):
        clipped_sum(engine, torch.randn(6, 4), C=C)


def squares(m: nn.Module, x: Tensor) -> Tensor:
    return torch.as_tensor(m(x).abs().square().sum(1))


def test_parameters_with_hooks_and_complex_ones_are_refused() -> None:
    model = nn.Linear(4, 4)
    handle = model.weight.register_hook(lambda g: 2 * g)  # type: ignore[no-untyped-call]
    with pytest.raises(UnsupportedModel, match=r"'weight' has a hook.*Remove the hook"):
        FastEngine(model, squares, FlatClipping(C))
    handle.remove()
    clipped_sum(FastEngine(model, squares, FlatClipping(C)), torch.randn(3, 4), C=C)
    after = model.bias.register_post_accumulate_grad_hook(lambda p: None)  # type: ignore[no-untyped-call]
    with pytest.raises(UnsupportedModel, match="'bias' has a hook"):
        FastEngine(model, squares, FlatClipping(C))
    after.remove()
    with pytest.raises(UnsupportedModel, match=r"complex.*view_as_real"):
        FastEngine(nn.Linear(4, 4, dtype=torch.complex64), squares, FlatClipping(C))
