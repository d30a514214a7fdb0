"""Models and losses made to get more than the bound past the engine: each is clipped right, or refused.

Letters: n records, T positions, d numbers at each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.probe import DependsOnOthers, Look
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import UnsupportedModel

C = 0.5
Loss = Callable[..., Tensor]
Batch = tuple[Tensor, ...]


class Layers(nn.Module):
    """A linear layer on another, a bare table, and a loss that is given with them."""

    def __init__(self, d: int = 4, bias: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(d, d, bias=bias), nn.Linear(d, d, bias=bias)
        self.table = nn.Parameter(torch.randn(1, 1, d))


def add(engine: GradientEngine, batch: Batch) -> Tensor:
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in engine.parameters.items()}
    engine.add_clipped_sum(sums, batch, None, torch.tensor([C], dtype=torch.float64))
    return torch.cat([value.flatten() for value in sums.values()])


def moved(make: Callable[[], nn.Module], loss: Loss, batch: Batch, i: int) -> float:
    """By how many C record i moves the sum of the first batch of a run."""
    found = []
    keep = [k for k in range(len(batch[0])) if k != i]
    for part in (batch, tuple(t[keep] for t in batch)):
        torch.manual_seed(1)
        found.append(add(FastEngine(make(), loss, FlatClipping(C)), part))
    return float((found[0] - found[1]).norm()) / C


def cancelling(n: int, T: int, d: int) -> Tensor:
    """Positions that are alike but for a part in 20,000, which alternate() leaves of them."""
    return 1000 * torch.randn(1, 1, d) + 0.05 * torch.randn(n, T, d)


def alternate(h: Tensor) -> Tensor:
    signs = (-1.0) ** torch.arange(h.shape[1])
    return (h * signs[:, None]).sum((1, 2))


def trimmed_by_slice(m: Layers, x: Tensor, lengths: Tensor) -> Tensor:
    return alternate(m.first(x[:, : lengths.max()]))


def trimmed_by_mask(m: Layers, x: Tensor, lengths: Tensor) -> Tensor:
    del lengths
    return alternate(m.first(x[:, (x != 0).any(2).any(0)]))


def trimmed_by_range(m: Layers, x: Tensor, lengths: Tensor) -> Tensor:
    places = torch.arange(lengths.max())  # type: ignore[call-overload]
    return alternate(m.first(x[:, places]))


def by_branch(m: Layers, x: Tensor, lengths: Tensor) -> Tensor:
    if (lengths == 4).all():
        return alternate(m.first(x[:, :4]))
    return alternate(torch.inner(x[:, :4], m.first.weight))


@pytest.mark.parametrize("loss", [trimmed_by_slice, trimmed_by_mask, trimmed_by_range, by_branch])
def test_no_record_decides_how_large_the_norms_of_others_come_out(loss: Loss) -> None:
    torch.manual_seed(0)
    n, T, d = 12, 40, 48
    x, lengths = torch.zeros(n, T, d), torch.full((n,), 4)
    x[:, :4] = cancelling(n, 4, d)
    x[0], lengths[0] = torch.randn(T, d), T
    assert moved(lambda: Layers(d, bias=False), loss, (x, lengths), 0) <= 1 + 1e-4


def test_how_the_first_batch_rounds_decides_nothing_about_norms() -> None:
    torch.manual_seed(0)
    n, d = 20, 48
    x, extra, lengths = cancelling(n, 4, d), torch.zeros(n, 40), torch.full((n,), 20)
    extra[:, :20] = 3e4 * torch.randn(n, 20)
    extra[0], lengths[0] = torch.randn(40), 40

    def loss(m: Layers, x: Tensor, extra: Tensor, lengths: Tensor) -> Tensor:
        padded = extra[:, (torch.arange(40) < lengths[:, None]).any(0)]
        return alternate(m.first(x)) + padded.sum(1)

    assert moved(lambda: Layers(d, bias=False), loss, (x, extra, lengths), 0) <= 1 + 1e-4


@pytest.mark.parametrize("times", ["expand", "repeat"])
@pytest.mark.parametrize("n", [8, 9])
def test_copies_along_time_are_not_taken_for_copies_along_rows(times: str, n: int) -> None:
    torch.manual_seed(0)
    T = 8
    x = torch.randn(n, T, 4) * torch.linspace(0.1, 10, n)[:, None, None]

    def loss(m: Layers, x: Tensor) -> Tensor:
        turned = x.transpose(0, 1)
        sizes = (T, len(x), 1) if times == "repeat" else (T, len(x), 4)
        return torch.as_tensor(
            (turned * getattr(m.table, times)(*sizes)).transpose(0, 1).square().sum((1, 2))
        )

    torch.manual_seed(1)
    model = Layers()
    wanted = add(ReferenceEngine(model, loss, FlatClipping(C)), (x,))
    engine = FastEngine(model, loss, FlatClipping(C))
    add(engine, (torch.randn(20, T, 4),))  # a way is proven of another size
    torch.testing.assert_close(add(engine, (x,)), wanted, rtol=1e-4, atol=1e-5)


def test_norms_of_derived_weights_in_16_bits_are_not_rounded_to_16_bits() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 5, 64) * 0.3 + 1

    def loss(m: Layers, x: Tensor) -> Tensor:
        rows = x.to(torch.bfloat16) + m.table * torch.linspace(0, 1, 64)[None]
        return rows.flatten(1).square().sum(1)

    assert max(moved(lambda: Layers(64).bfloat16(), loss, (x,), i) for i in (0, 1)) <= 1 + 1e-4


def hooked(hook: Callable[[Tensor], Tensor]) -> Loss:
    def loss(m: Layers, x: Tensor, steep: Tensor) -> Tensor:
        h = m.first(x).tanh()
        if h.requires_grad:
            h.register_hook(hook)
        out = m.second(h).sum(1)
        return torch.as_tensor(out + steep * (out - out.detach()))

    return loss


BACKWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "clipped together": lambda g: g * (3 / g.norm()).clamp(max=1.0),
    "in 16 whole steps": lambda g: (g / g.abs().amax() * 32767).round() / 32767 * g.abs().amax(),
    "standardised in large batches": lambda g: g / g.std() if len(g) > 40 else g,
}


@pytest.mark.parametrize("hook", BACKWARD.values(), ids=BACKWARD)
def test_what_the_backward_pass_does_in_large_batches_alone_is_seen_in_the_first(
    hook: Callable[[Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    x, steep = torch.randn(96, 4) * 0.1 + 1, torch.zeros(96)
    steep[7] = 3e5
    assert moved(Layers, hooked(hook), (x, steep), 7) <= 1 + 1e-4


def test_what_is_not_finite_hides_nothing_beside_it() -> None:
    """0 times the derivative of a root at 0 is NaN; records whose gradients are NaN are left out."""

    def look(norms: list[float]) -> Look:
        column = torch.tensor(norms, dtype=torch.float64)[:, None]
        return Look(column, {}, torch.ones(len(norms)), torch.zeros(1), in_16_bits=False)

    wanted = look([1.0, 1.0, 1.0])
    look([1.0, math.nan, 1.0]).check(wanted)
    with pytest.raises(DependsOnOthers):
        look([1.0, math.nan, 0.9]).check(wanted)


def test_rows_that_are_compacted_go_another_way() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    x[(x[:, 0] - 1).abs() < 0.01] = 0
    x[21, 0] = 1.0

    def loss(m: Layers, x: Tensor) -> Tensor:
        h, stay = m.first(x).tanh(), (x[:, 0] - 1).abs() > 0.005
        places = F.one_hot((stay.long().cumsum(0) - 1).clamp(min=0), len(x)).to(x) * stay[:, None]
        compact = torch.einsum("bc,bd->cd", places, h)
        return torch.as_tensor((h + places @ m.second(compact)).sum(1) * torch.where(x[:, 1] > 0, 1.0, 0.01))

    assert moved(Layers, loss, (x,), 21) <= 1 + 1e-4


@pytest.mark.parametrize("second", [False, True])
def test_rows_that_move_behind_a_record_are_seen_wherever_they_lie(second: bool) -> None:
    """Those behind a flagged one are turned round for a layer, and back; in a table one row longer."""
    torch.manual_seed(0)
    x = torch.randn(24, 5, 4)
    x[9, 0, 0] = 3.5

    def loss(m: Layers, x: Tensor) -> Tensor:
        n = len(x)
        behind = (x[:, 0, 0] > 3.2).int().cummax(0).values.bool()
        order = torch.where(behind, 32 - torch.arange(n), torch.arange(n)).clamp(max=n - 1)
        back = (order[None] == torch.arange(n)[:, None]).int().argmax(1)
        if second:
            h = m.first(x.transpose(0, 1)[:, order]).sin()
            return torch.as_tensor(h.transpose(0, 1)[back].square().sum((1, 2)))
        longer = torch.cat([x, x.new_zeros(1, 5, 4)])
        return torch.as_tensor(m.first(longer[order]).sin()[back].square().sum((1, 2)))

    torch.manual_seed(1)
    model = Layers()
    wanted = add(ReferenceEngine(model, loss, FlatClipping(C)), (x,))
    torch.testing.assert_close(
        add(FastEngine(model, loss, FlatClipping(C)), (x,)), wanted, rtol=1e-4, atol=1e-5
    )


def by_chunks(m: Layers, x: Tensor) -> Tensor:
    return torch.as_tensor(m.first(x).square().sum(1) / -(-len(x) // 32))


def in_place(m: Layers, x: Tensor) -> Tensor:
    return torch.as_tensor(m.first(x.mul_(1.01)).square().sum(1))


def frozen_for_a_while(m: Layers, x: Tensor) -> Tensor:
    h = m.first(x)
    m.second.requires_grad_(False)
    against = -m.second(h).square().sum(1)
    m.second.requires_grad_(True)
    return torch.as_tensor(m.second(h.detach()).square().sum(1) + against)


@pytest.mark.parametrize(
    ("loss", "message"),
    [(by_chunks, "how many others there are"), (frozen_for_a_while, "switched off")],
)
def test_losses_that_are_not_of_a_record_are_refused(loss: Loss, message: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match=message):
        add(FastEngine(Layers(), loss, FlatClipping(C)), (torch.randn(129, 4),))


def test_what_works_in_place_is_given_copies() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    before = x.clone()
    for kind in (FastEngine, ReferenceEngine):
        model = Layers()
        wanted = add(
            ReferenceEngine(model, lambda m, x: m.first(x * 1.01).square().sum(1), FlatClipping(C)), (x,)
        )
        torch.testing.assert_close(add(kind(model, in_place, FlatClipping(C)), (x,)), wanted)
        assert torch.equal(x, before)


def test_what_begins_to_work_in_place_ends_the_run() -> None:
    losses: Loss = lambda m, x: m.first(x).square().sum(1)  # noqa: E731
    engine = FastEngine(Layers(), lambda m, x: losses(m, x), FlatClipping(C))
    batch = (torch.randn(6, 4),)
    for _ in range(5):
        add(engine, batch)
    losses = in_place
    with pytest.raises(UnsupportedModel, match=r"did not at first|by its place"):
        add(engine, batch)


def squares(m: nn.Module, x: Tensor) -> Tensor:
    return torch.as_tensor(m(x).abs().square().sum(1))


def test_parameters_with_hooks_and_complex_ones_are_refused() -> None:
    model = nn.Linear(4, 4)
    handle = model.weight.register_hook(lambda g: 2 * g)  # type: ignore[no-untyped-call]
    with pytest.raises(UnsupportedModel, match=r"'weight' has a hook.*Remove it"):
        FastEngine(model, squares, FlatClipping(C))
    handle.remove()
    add(FastEngine(model, squares, FlatClipping(C)), (torch.randn(3, 4),))
    after = model.bias.register_post_accumulate_grad_hook(lambda p: None)  # type: ignore[no-untyped-call]
    with pytest.raises(UnsupportedModel, match="'bias' has a hook"):
        FastEngine(model, squares, FlatClipping(C))
    after.remove()
    with pytest.raises(UnsupportedModel, match=r"complex.*view_as_real"):
        FastEngine(nn.Linear(4, 4, dtype=torch.complex64), squares, FlatClipping(C))


def test_the_reference_engine_leaves_recurrent_layers_as_they_were() -> None:
    model = nn.GRU(4, 3, batch_first=True)
    before = [id(weight) for weight in model._flat_weights]
    engine = ReferenceEngine(model, lambda m, x: m(x)[0].square().sum((1, 2)), FlatClipping(C))
    add(engine, (torch.randn(3, 5, 4),))
    assert [id(weight) for weight in model._flat_weights] == before


def test_a_batch_as_long_as_its_records_is_like_any_other() -> None:
    torch.manual_seed(0)
    places = nn.Embedding(16, 4)

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return torch.as_tensor((x + m(torch.arange(x.shape[1]))).square().sum((1, 2)))

    engine, x = FastEngine(places, loss, FlatClipping(C)), torch.randn(16, 16, 4)
    wanted = add(ReferenceEngine(places, loss, FlatClipping(C)), (x,))
    for _ in range(2):
        torch.testing.assert_close(add(engine, (x,)), wanted, rtol=1e-4, atol=1e-5)
    assert engine.route == "fast"
    assert math.isclose(float(add(engine, (x[:9],)).norm()), float(wanted.norm()) * 9 / 16, rel_tol=0.5)
