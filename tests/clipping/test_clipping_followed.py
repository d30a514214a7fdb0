"""Models that mix records by what is in them, on batches that no probe looks at: known by how they compute.

Letters: n records, T positions, d numbers at each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import UnsupportedModel

C = 0.5
Loss = Callable[..., Tensor]


class Two(nn.Module):
    """Two linear layers; what is between them is given with the loss."""

    def __init__(self, d: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(d, d), nn.Linear(d, d)


def add(engine: GradientEngine, *batch: Tensor) -> Tensor:
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in engine.parameters.items()}
    engine.add_clipped_sum(sums, batch, None, torch.tensor([C], dtype=torch.float64))
    return torch.cat([value.flatten() for value in sums.values()])


def flagged(x: Tensor) -> Tensor:
    """Whether some record asks for another order: none of the first batch does."""
    return (x.amax((1, 2)) > 3).float().amax()


def permutation(x: Tensor) -> Tensor:
    """(n, n): all rows as they are, or turned round."""
    same, turned = torch.eye(len(x)), torch.eye(len(x)).flip(0)
    return same + flagged(x) * (turned - same)


def by_batched_product(m: Two, x: Tensor) -> Tensor:
    order = permutation(x).expand(x.shape[1], -1, -1)
    h = torch.bmm(order, m.first(x).transpose(0, 1)).sin()
    h = torch.as_tensor(m.second(h.transpose(0, 1)).transpose(0, 1))
    return torch.bmm(order.transpose(1, 2), h).transpose(0, 1)


def by_contraction(m: Two, x: Tensor) -> Tensor:
    order = permutation(x)
    h = torch.tensordot(order, m.first(x), dims=([1], [0])).sin()
    return torch.as_tensor(torch.tensordot(order, m.second(h), dims=([0], [0])))


def by_linear(m: Two, x: Tensor) -> Tensor:
    order = permutation(x)
    h = F.linear(order, m.first(x[:, 0]).T).sin()
    return F.linear(order.T, m.second(h).T)[:, None]


def by_choice(m: Two, x: Tensor) -> Tensor:
    turn = flagged(x) > 0
    h = m.first(x)
    h = m.second(torch.where(turn, h.flip(0), h).sin())
    return torch.where(turn, h.flip(0), h)


def by_rolling(m: Two, x: Tensor) -> Tensor:
    turn = flagged(x) > 0
    h = m.first(x)
    h = m.second(torch.where(turn, h.roll(1, 0), h).sin())
    return torch.where(turn, h.roll(-1, 0), h)


def by_sampling(m: Two, x: Tensor) -> Tensor:
    n = len(x)
    place = torch.linspace(-1, 1, n) * (1 - 2 * flagged(x))
    grid = torch.stack([torch.zeros(n), place], 1).view(1, n, 1, 2)

    def moved(h: Tensor) -> Tensor:
        return F.grid_sample(h.T[None, :, :, None], grid, mode="nearest", align_corners=True)[0, :, :, 0].T

    return moved(m.second(moved(m.first(x[:, 0])).sin()))[:, None]


def by_a_longer_table(m: Two, x: Tensor) -> Tensor:
    n = len(x)
    places = (permutation(x) * torch.arange(n)).sum(1).round().long()
    longer = torch.cat([m.first(x), torch.zeros(1, *x.shape[1:])])
    h = m.second(longer[places].sin())
    return torch.cat([h, torch.zeros(1, *x.shape[1:])])[places]


WAYS: list[Loss] = [
    by_batched_product,
    by_contraction,
    by_linear,
    by_choice,
    by_rolling,
    by_sampling,
    by_a_longer_table,
]


def second_batches(loss: Loss) -> tuple[float, str]:
    """By how many C the sum of a second batch is off, in which a record asks for another order."""
    torch.manual_seed(0)
    model, x = Two(), torch.randn(6, 5, 4).clamp(-2, 2)
    steep = torch.logspace(-2, 1, 6)

    def losses(m: Two, x: Tensor, steep: Tensor) -> Tensor:
        return steep * loss(m, x).square().sum((1, 2))

    engine, other = x, x.clone()
    other[2, 0, 0] = 3.5  # not twice as large as all before
    fast = FastEngine(model, losses, FlatClipping(C))
    add(fast, engine, steep)
    wanted = add(ReferenceEngine(model, losses, FlatClipping(C)), other, steep)
    return float((add(fast, other, steep) - wanted).norm()) / C, fast.route


@pytest.mark.untraced
@pytest.mark.parametrize("loss", WAYS)
def test_no_record_moves_others_in_a_batch_that_nothing_is_tried_on(loss: Loss) -> None:
    off, route = second_batches(loss)
    assert off < 1e-4
    assert route.startswith("reference: records mix in")


def test_a_model_that_begins_to_couple_records_takes_another_path() -> None:
    """A hook that clips gradients together from the third call of the model on."""
    torch.manual_seed(0)
    calls = [0]

    def losses(m: Two, x: Tensor) -> Tensor:
        calls[0] += 1
        h = m.first(x).sin()
        if calls[0] > begun[0] and h.requires_grad:
            h.register_hook(lambda g: g / g.norm().clamp(min=1.0))
        return torch.as_tensor(5 * m.second(h).square().sum((1, 2)))

    begun = [10**6]
    model, x = Two(), torch.randn(6, 5, 4)
    engine = FastEngine(model, losses, FlatClipping(C))
    add(engine, x)
    assert engine.route == "fast"
    begun[0] = calls[0]
    wanted = add(ReferenceEngine(model, losses, FlatClipping(C)), x)
    torch.testing.assert_close(add(engine, x), wanted, rtol=1e-4, atol=1e-6)
    assert engine.route.startswith("record by record: records mix in")


@pytest.mark.parametrize(
    ("read", "to"),
    [
        (lambda x: x.clamp(max=float(x.new_tensor(9.0))) * x.sum((1, 2)).tolist()[0], "tolist"),
        (lambda x: torch.from_numpy(x.sum((1, 2)).numpy())[:, None, None] * x, "numpy"),
        (lambda x: torch.full((1,), x.amax()) * x, "a number that is read"),
        (lambda x: x[x[:, 0, 0] > 0].sum() + x, "the shape of what index returns"),
    ],
)
def test_what_leaves_the_tensors_is_not_followed(read: Callable[[Tensor], Tensor], to: str) -> None:
    """In a loss that reads it after the last layer."""
    torch.manual_seed(0)

    def losses(m: Two, x: Tensor) -> Tensor:
        h = m.second(m.first(x))
        return torch.as_tensor((h * (1 + 0 * read(x.detach()))).square().sum((1, 2)))

    model, x = Two(), torch.randn(6, 5, 4)
    engine = FastEngine(model, losses, FlatClipping(C))
    torch.testing.assert_close(
        add(engine, x), add(ReferenceEngine(model, losses, FlatClipping(C)), x), rtol=1e-4, atol=1e-6
    )
    assert engine.route.startswith("reference: records are in")
    assert to in engine.route


def test_what_is_done_to_larger_batches_alone_is_seen() -> None:
    torch.manual_seed(0)

    def losses(m: Two, x: Tensor) -> Tensor:
        h = m.second(m.first(x).sin())
        if len(x) > 5:
            h = torch.where(flagged(x) > 0, h.flip(0), h)
        return torch.as_tensor(h.square().sum((1, 2)))

    model, x = Two(), torch.randn(8, 5, 4).clamp(-2, 2)
    engine = FastEngine(model, losses, FlatClipping(C))
    for flag in (0.0, 3.5):
        x[2, 0, 0] = flag
        wanted = add(ReferenceEngine(model, of_few, FlatClipping(C)), x)
        torch.testing.assert_close(add(engine, x), wanted, rtol=1e-4, atol=1e-6)
        assert engine.route.startswith("record by record")


def of_few(m: Two, x: Tensor) -> Tensor:
    return torch.as_tensor(m.second(m.first(x).sin()).square().sum((1, 2)))


def zeroed_if_nan(m: Two, x: Tensor) -> Tensor:
    h = m.first(x)
    if h.requires_grad:
        h.register_hook(lambda g: torch.zeros_like(g) if g.isnan().any() else g)
    return torch.as_tensor(m.second((h * 1e20).clamp(max=1e30).sqrt().nan_to_num(0.0)).sum((1, 2)))


def halved_if_large(m: Two, x: Tensor) -> Tensor:
    h = m.first(x)
    h = h / 2 if x.abs().max() > 3 else h
    return torch.as_tensor(m.second(h).square().sum((1, 2)))


def early_if_all_are_sure(m: Two, x: Tensor) -> Tensor:
    h = m.first(x)
    if (x.abs().amax((1, 2)) < 3).all():
        return torch.as_tensor(h.square().sum((1, 2)))
    return torch.as_tensor(m.second(h).square().sum((1, 2)))


def by_norm(m: Two, x: Tensor) -> Tensor:
    h = m.second(m.first(x).sin())
    return torch.as_tensor((h if x.norm() < 12 else 3 * h).square().sum((1, 2)))


def by_a_list(m: Two, x: Tensor) -> Tensor:
    scale = torch.tensor([x.amax()])
    return torch.as_tensor(m.second(m.first(x).sin() / scale).square().sum((1, 2)))


def by_scaled_weights(m: Two, x: Tensor) -> Tensor:
    w = m.second.weight * (2 / x.amax().detach().clamp(min=2))
    return torch.as_tensor(F.linear(m.first(x).sin(), w).square().sum((1, 2)))


def by_a_made_bias(m: Two, x: Tensor) -> Tensor:
    bias = x.detach().amax((0, 1))
    return torch.as_tensor(F.linear(m.first(x).sin(), m.second.weight, bias).square().sum((1, 2)))


def by_leaky_slopes(m: Two, x: Tensor) -> Tensor:
    h = F.rrelu(m.first(x)) * 1.0
    return torch.as_tensor(m.second(h - 0.1 * h.amax(0, keepdim=True)).square().sum((1, 2)))


def by_weighted_classes(m: Two, x: Tensor) -> Tensor:
    weight = x.detach().abs().amax((0, 1))
    target = torch.zeros(len(x), dtype=torch.long)
    return F.cross_entropy(m.second(m.first(x).sin()).sum(1), target, weight=weight, reduction="none")


def by_the_largest_class(m: Two, x: Tensor) -> Tensor:
    classes = x.detach().amax((1, 2)).long().clamp(min=0)
    return torch.as_tensor(m.second(m.first(x)).square().sum((1, 2)) * F.one_hot(classes).shape[1])


def by_fours(m: Two, x: Tensor) -> Tensor:
    k = 4 if len(x) % 4 == 0 else 1
    h = m.first(x).sin()
    scale = x.amax((1, 2)).view(-1, k).amax(1, keepdim=True).clamp(min=3).repeat(1, k).view(-1, 1, 1)
    return torch.as_tensor((m.second(h) * scale).square().sum((1, 2)))


@pytest.mark.parametrize(
    "loss",
    [
        zeroed_if_nan,
        halved_if_large,
        early_if_all_are_sure,
        by_norm,
        by_a_list,
        by_scaled_weights,
        by_a_made_bias,
        by_leaky_slopes,
        by_weighted_classes,
        by_the_largest_class,
        by_fours,
    ],
)
@pytest.mark.parametrize("place", [0, 5])
def test_a_record_of_a_later_batch_moves_no_other(loss: Loss, place: int) -> None:
    """What models do of their own accord to guard, scale or skip, where one record asks for it."""
    torch.manual_seed(0)
    model, x = Two(), torch.randn(8, 5, 4).clamp(-2, 2)
    engine = FastEngine(model, loss, FlatClipping(C))
    try:
        for _ in range(2):
            add(engine, x)
        other = x.clone()
        other[place, 0, 0] = 3.5
        with_it = add(engine, other)
        without = add(engine, torch.cat([other[:place], other[place + 1 :]]))
    except UnsupportedModel:
        return  # seen by its losses
    assert float((with_it - without).norm()) <= C * (1 + 1e-4)


@pytest.mark.parametrize("padded", [False, True])
def test_an_answer_that_changes_no_record_slows_nothing(padded: bool) -> None:
    """A mask is left out where it hides nothing, as in models of language; that depends on all records."""

    def losses(m: Two, x: Tensor, there: Tensor) -> Tensor:
        h = m.second(m.first(x).sin())
        if not there.all():
            h = h.masked_fill(~there[..., None], 0.0)
        assert not h.isnan().any()
        return torch.as_tensor(h.square().sum((1, 2)))

    torch.manual_seed(0)
    model, x, there = Two(), torch.randn(8, 5, 4), torch.ones(8, 5, dtype=torch.bool)
    there[3, 4] = there[5, 3:] = not padded
    engine = FastEngine(model, losses, FlatClipping(C))
    wanted = add(ReferenceEngine(model, losses, FlatClipping(C)), x, there)
    for _ in range(3):
        torch.testing.assert_close(add(engine, x, there), wanted, rtol=1e-4, atol=1e-6)
    assert engine.route == "fast"


def test_a_random_number_is_no_answer_of_the_batch() -> None:
    """As where layers are dropped with a rate of 0."""

    def losses(m: Two, x: Tensor) -> Tensor:
        h = m.first(x).sin()
        for _ in range(2):
            if torch.rand([]) < 0.0:
                continue
            h = m.second(h)
        return torch.as_tensor(h.square().sum((1, 2)))

    torch.manual_seed(0)
    model, x = Two(), torch.randn(6, 5, 4)
    engine = FastEngine(model, losses, FlatClipping(C))
    wanted = add(ReferenceEngine(model, losses, FlatClipping(C)), x)
    torch.testing.assert_close(add(engine, x), wanted, rtol=1e-4, atol=1e-6)
    assert engine.route == "fast"


def test_rows_that_share_memory_are_records_all_the_same() -> None:
    """Windows of a series, and one target for all."""

    def losses(m: Two, x: Tensor, y: Tensor) -> Tensor:
        return of_few(m, x) * y

    torch.manual_seed(0)
    model, series = Two(), torch.randn(48)
    x, y = series.as_strided((8, 5, 4), (4, 2, 1)), torch.ones(1).expand(8)
    engine = FastEngine(model, losses, FlatClipping(C))
    for begin in (0, 1):
        wanted = add(ReferenceEngine(model, losses, FlatClipping(C)), x[begin:], y[begin:])
        torch.testing.assert_close(add(engine, x[begin:], y[begin:]), wanted, rtol=1e-4, atol=1e-6)
        assert engine.route == "fast"
