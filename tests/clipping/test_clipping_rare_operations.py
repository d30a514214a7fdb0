"""Operations on records and parameters: the clipped sum is that of one backward pass for each record.

Letters: n records, each of 5 positions of 4 numbers; h what a linear layer makes of them; w a parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles import (
    Change,
    Forward,
    Maker,
    Of,
    Shape,
    custom,
    double,
    each,
    equals_a_loop,
    one_or_two_views,
    squares,
    waves,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import registry

Function = Callable[[Tensor, Tensor], Tensor]
RULE = FlatClipping(0.3)


def engine_of(function: Function, *shape: int, views: int = 1) -> GradientEngine:
    """A linear layer, and a function of a parameter and of its output."""
    model = Of(
        lambda m, x: function(m.weight, m.layer(x).tanh()),
        layer=nn.Linear(4, 4),
        weight=nn.Parameter(torch.rand(*shape)),
    )
    return FastEngine(model.double(), waves, RULE, views=views)


def by_head(w: Tensor, h: Tensor) -> Tensor:
    split = h.view(-1, 5, 2, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(split, split.sin(), split, attn_mask=w)


def by_window(w: Tensor, h: Tensor) -> Tensor:
    windows = h.reshape(-1, 2, 2)
    return F.scaled_dot_product_attention(query=windows, key=windows, value=windows, attn_mask=w).view(
        h.shape
    )


def in_turns(w: Tensor, h: Tensor) -> Tensor:
    h = h.clone()
    h += w
    h *= w
    h -= w
    return h


def entropies(w: Tensor, h: Tensor) -> Tensor:
    """Losses of positions and of rows, with class weights, classes left out and shares of classes."""
    losses = partial(F.cross_entropy, reduction="none", label_smoothing=0.1)
    labels = (h.detach()[..., 0] > 0).long()
    scores, weight = h @ w, torch.tensor([0.5, 2.0, 1.0], dtype=h.dtype)
    of_positions = losses(scores.transpose(1, 2), labels, weight=weight, ignore_index=1)
    of_rows = losses(scores.sum(1), h.detach()[:, 0, :3].softmax(1))
    likely = F.nll_loss(scores.mean(1).log_softmax(1), labels[:, 0], reduction="none")
    return of_positions.sin() + (of_rows * likely)[:, None]


def averaged(w: Tensor, h: Tensor) -> Tensor:
    """Means over one dimension: of records and parameters, of an embedding, and of a mean."""
    rows = F.embedding((5 * h.detach().abs()).long().flatten(1), w)
    return h.mean(1) * rows.mean(-2) + h.mean(-1, keepdim=True).mean(dim=1) + torch.mean(h * w[0], 1)


def looked_up(w: Tensor, h: Tensor) -> Tensor:
    return F.embedding((h.detach() > 0).long().flatten(0, 1), w).view(-1, 5, 16) * h.repeat(1, 1, 4)


OF_PARAMETERS: dict[str, tuple[Function, Shape]] = {
    "einsum": (lambda w, h: torch.einsum("btd,hde->bthe", h, w), (2, 4, 3)),
    "einsum by head": (lambda w, h: torch.einsum("bthd,hdp->btp", h.view(-1, 5, 2, 2), w), (2, 2, 3)),
    "einsum with dots, a parameter first": (lambda w, h: torch.einsum("dp,b...d->b...p", w, h), (4, 3)),
    "einsum of two of records": (lambda w, h: torch.einsum("btd,btd,tde->bte", h, h, w), (5, 4, 2)),
    "matrices by head": (lambda w, h: h.view(-1, 5, 2, 2).transpose(1, 2) @ w, (2, 2, 3)),
    "one matrix by head": (lambda w, h: h[:, None] @ w, (1, 4, 3)),
    "matrix on the left": (lambda w, h: w @ h, (3, 5)),
    "a vector": (lambda w, h: h @ w, (4,)),
    "a vector on the right": (lambda w, h: torch.mv(h.sum(1), w)[:, None], (4,)),
    "tensordot": (lambda w, h: torch.tensordot(h, w, dims=1), (4, 3)),
    "bilinear": (lambda w, h: F.bilinear(h, h.cos(), w), (3, 4, 4)),
    "bilinear with a bias": (lambda w, h: F.bilinear(h.sum(1), h.prod(1), w[1:], w[0, 0, :3]), (4, 4, 4)),
    "addmm of a part": (lambda w, h: torch.addmm(w[0, :3], h.sum(1), w[:, :3], beta=0.5), (4, 4)),
    "baddbmm": (lambda w, h: torch.baddbmm(w[0], h, w.expand(len(h), 4, 4)), (4, 4)),
    "in place": (in_turns, (4,)),
    "in place in part": (lambda w, h: h.clone().add_(w, alpha=2).div_(1 + w), (4,)),
    "added in part": (lambda w, h: torch.add(h, w, alpha=0.3) + torch.sub(w, h, alpha=2), (4,)),
    "flattened look-up": (looked_up, (2, 4)),
    "entropies": (entropies, (4, 3)),
    "averaged": (averaged, (8, 4)),
    "there and back": (lambda w, h: (h @ w).tanh() @ w.t(), (4, 6)),
    "turned in another shape": (
        lambda w, h: h @ w.view(2, 6, 4)[0].t() + h @ w.view(6, 8)[:, :4].t(),
        (12, 4),
    ),
    "turned kernel": (lambda w, h: F.conv1d(h.transpose(1, 2), w.permute(2, 1, 0)), (2, 4, 3)),
    "expanded": (lambda w, h: torch.cat([w.expand(len(h), -1, -1), h], 1), (1, 2, 4)),
    "repeated": (lambda w, h: torch.cat([w.repeat(len(h), 1, 1), h], 1), (1, 2, 4)),
    "tiled": (lambda w, h: h * w.tile(2), (2,)),
    "interleaved": (lambda w, h: torch.cat([torch.repeat_interleave(w, len(h), 0), h], 1), (1, 2, 4)),
    "repeated along positions": (lambda w, h: h + w.repeat(1, 5, 1), (1, 1, 4)),
    "a part": (lambda w, h: h * w[1:], (5,)),
    "in another type": (lambda w, h: h.type_as(w) * w.to(h, copy=True) + w, (4,)),
    "chosen": (lambda w, h: torch.where(h > 0.2, h, w) + w.where(h > 0.3, h.sin()), (5, 1)),
    "hidden by rows": (lambda w, h: h + torch.where(h[:, :1] > 0, w, -0.5), (1, 5, 4)),
    "filled": (lambda w, h: h * w.masked_fill(h > 0.1, 0.7), (5, 4)),
    "attention with a learned bias": (by_head, (2, 5, 5)),
    "attention with a learned bias for each key": (by_head, (2, 1, 5)),
    "attention in windows": (by_window, (1, 2, 2)),
    "attention to learned keys": (
        lambda w, h: F.scaled_dot_product_attention(h, w[None].expand_as(h), h, w @ w.t()),
        (5, 4),
    ),
    "complex": (
        lambda w, h: torch.view_as_real(torch.complex(h, h.sin()) * torch.view_as_complex(w)),
        (4, 2),
    ),
    "spectra": (lambda w, h: torch.fft.irfft(torch.fft.rfft(h) * w), (3,)),
    "read twice": (lambda w, h: torch.addcmul(h, w, w), (4,)),
    "windows": (lambda w, h: (h @ w).unfold(1, 3, 1), (4, 3)),
    "written": (lambda w, h: h.clone().index_fill_(1, torch.tensor([0]), 0.0) / (1 + w), (4,)),
}


@pytest.mark.thorough(cases="values")
@one_or_two_views
@each("function, shape", OF_PARAMETERS)
def test_operations_with_parameters_are_fast_and_right(function: Function, shape: Shape, views: int) -> None:
    equals_a_loop(engine_of(function, *shape, views=views), double(4 * views, 5, 4))


ONE_OF_EACH = torch.tensor([2, 0, 1, 3])
OF_RECORDS: dict[str, Change] = {
    "sums": lambda h: h.std(1) + h.amax(1) + h.logsumexp(1) + h.norm(dim=1) + h.prod(1),
    "along positions": lambda h: h.cumsum(1) + h.cumprod(1) + h.cummax(1).values + h.sort(1).values,
    "the middle": lambda h: h.median(1).values + h.kthvalue(2, 1).values + h.topk(2, 1)[0].sum(1),
    "halves": lambda h: F.glu(h, 2),
    "distances": lambda h: torch.cdist(h, h.sin()),
    "pooled": lambda h: F.lp_pool1d(h, 2, 2) + F.max_pool1d(h, 2) + F.adaptive_max_pool1d(h, 2),
    "sampled": lambda h: F.interpolate(h, scale_factor=2) + F.interpolate(h, size=8, mode="linear"),
    "grid": lambda h: F.grid_sample(h[:, None], h[:, None, :, :2].tanh(), align_corners=False),
    "padded": lambda h: F.pad(h, (1, 2), mode="reflect") + F.pad(h, (1, 2), mode="circular"),
    "patches": lambda h: F.unfold(h[:, None], 2),
    "channels shuffled": lambda h: F.channel_shuffle(h.transpose(1, 2)[..., None], 2),
    "norms": lambda h: F.rms_norm(h, (4,)) + F.instance_norm(h) + F.normalize(h, dim=2),
    "fixed batch norm": lambda h: F.batch_norm(h, torch.zeros(5).to(h), torch.ones(5).to(h)),
    "waves of pairs": lambda h: (
        F.huber_loss(h, h.sin(), reduction="none") + F.kl_div(h, h.exp(), reduction="none")
    ),
    "margins, swapped": lambda h: F.triplet_margin_loss(h, h.sin(), h.cos(), swap=True, reduction="none"),
    "divergence of logarithms": lambda h: F.kl_div(h, h.sin(), reduction="none", log_target=True),
    "margins": lambda h: F.triplet_margin_loss(h, h.sin(), h.cos(), reduction="none"),
    "cross-entropy": lambda h: F.cross_entropy(h.transpose(1, 2), h.argmax(2), reduction="none"),
    "gathered": lambda h: h.gather(1, h.argsort(1)[:, :3]) + h.take_along_dim(h.argmax(1, True), 1),
    "scattered": lambda h: (
        h.scatter_add(1, h.argsort(1), h) + torch.zeros_like(h).scatter(1, h.argsort(1), h)
    ),
    "one of each": lambda h: h[torch.arange(len(h)), h.argmax(1)[:, 0]],
    "by constant places": lambda h: h[:, ONE_OF_EACH].index_select(1, ONE_OF_EACH),
    "moved": lambda h: h.flip(1) + h.roll(1, 1) + h.tril() + h.movedim(1, 2).rot90(1, (1, 2)),
    "joined": lambda h: torch.cat([torch.stack([h, h], 1)[:, 0], h], 1).chunk(2, 1)[1],
    "matrices": lambda h: torch.linalg.inv(h[:, :4] + 9 * torch.eye(4)) + h[:, :4].matrix_exp(),
    "diagonals": lambda h: torch.diag_embed(h.diagonal(0, 1, 2)),
    "searched": lambda h: h + torch.bucketize(h.detach(), torch.linspace(-1, 1, 5).to(h)),
    "searched in records": lambda h: h + torch.searchsorted(h.detach().sort(2).values, h.detach()),
    "one-hot": lambda h: h[..., None] * F.one_hot((h > 0).long(), 2),
    "activations": lambda h: F.mish(h) + F.hardswish(h) + F.softplus(h) + F.logsigmoid(h),
    "16 bits": lambda h: h.bfloat16().to(h),
}


@each("function", OF_RECORDS)
def test_operations_within_records_are_fast_and_right(function: Change) -> None:
    equals_a_loop(engine_of(lambda w, h: function(h) * w, 1), double(5, 5, 4))


def attention(**call: Any) -> nn.Module:
    def forward(m: Any, x: Tensor) -> Any:
        mixed, weights = m.layer(x, x, x, **call)
        return mixed if weights is None else mixed + weights.flatten(1).sum(1)[:, None, None]

    return Of(forward, layer=nn.MultiheadAttention(4, 2, batch_first=True))


def connectionist(model: nn.Module, x: Tensor) -> Tensor:
    scores = model(x).log_softmax(2).transpose(0, 1)
    words = x.new_tensor([[1, 2]]).long().expand(len(x), 2)
    lengths = x[:, 0, 0].mul(0).long() + x.shape[1]
    return F.ctc_loss(scores, words, lengths, lengths.mul(0) + 2, reduction="none")


CAUSAL = torch.ones(5, 5).triu(1).bool()
MODELS: dict[str, tuple[Maker, Callable[..., Tensor], Shape]] = {
    "connectionist temporal": (lambda: nn.Linear(4, 3), connectionist, (5, 4)),
    "more inputs than a product adds": (lambda: nn.Linear(3000, 16), waves, (2, 3000)),
    "attention, causal": (
        lambda: attention(need_weights=False, is_causal=True, attn_mask=CAUSAL),
        waves,
        (5, 4),
    ),
    "attention, weights of each head": (lambda: attention(average_attn_weights=False), waves, (5, 4)),
}


@each("make, loss, shape", MODELS)
def test_rare_models_are_right(make: Maker, loss: Callable[..., Tensor], shape: Shape) -> None:
    equals_a_loop(FastEngine(make().double(), loss, RULE), double(6, *shape))


@pytest.mark.parametrize(("bins", "low", "high"), [(4, 0, 3), (7, -1, 1), (3, 0.25, 0.75)])
def test_counts_by_histc_are_those_of_torch(bins: int, low: float, high: float) -> None:
    """Mixtures of experts count their tokens by it; the smallest and the largest value count as well."""

    def counted(w: Tensor, h: Tensor) -> Tensor:
        edges = torch.tensor([low, high, 2.0 * high + 9.0]).to(h)
        counts = [torch.histc(torch.cat([row.detach().flatten(), edges]), bins, low, high) for row in h]
        return h * w * torch.stack(counts).cumsum(1).mean(1)[:, None, None]

    equals_a_loop(engine_of(counted, 4), double(6, 5, 4))


# --- operations without a batching rule, and odd ways to write a model --------------------------------------


def scattered(h: Tensor, *value: Any, **named: Any) -> Tensor:
    """Return a mask of the two largest values, like a router."""
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
}


doubled = custom("Doubled", lambda ctx, x: 2 * x, lambda ctx, g: 2 * g)
turned = custom("Reversed", lambda ctx, x, share: x.view_as(x), lambda ctx, g: (-0.5 * g, None))


def signs_of(ctx: Any, x: Tensor) -> Tensor:
    ctx.save_for_backward(x)
    return x.sign()


signs = custom("Signs", signs_of, lambda ctx, g: g * (ctx.saved_tensors[0].abs() < 1))


def map_of(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A linear map, and a sum; ``ctx`` has a tensor that is not saved."""
    ctx.save_for_backward(x, weight)
    ctx.mean = x.mean()
    return x @ weight.T, x.sum(1)


def map_back(ctx: Any, g: Tensor, of_sum: Tensor) -> tuple[Tensor, Tensor]:
    x, weight = ctx.saved_tensors
    return g @ weight + of_sum[:, None] * ctx.mean, g.T @ x


mapped = custom("Mapped", map_of, map_back)


def by_functions(m: Any, x: Tensor) -> Any:
    hidden = turned(signs(m.out(x)), 0.5)
    found = mapped(hidden, m.out.weight[:, :3])
    return found[0] * found[1][:, None]


def written(m: Any, x: Tensor) -> Tensor:
    hidden = torch.zeros(len(x), 4, dtype=x.dtype)
    hidden[:, :3] = m.out(x)
    return hidden


def written_into_weights(m: Any, x: Tensor) -> Any:
    weights = m.out.weight.repeat(len(x), 1, 1)
    weights[:, 0] = m.out(x)[:, :1] * x
    weights += x[:, None] * m.out.weight
    return (weights * weights).sum(2)


def added(m: Any, x: Tensor) -> Tensor:
    total = torch.zeros(len(x), 3, dtype=x.dtype)
    for rows in (x, x.sin()):
        total += m.out(rows)
    return total


OTHER = nn.Linear(3, 3).double()


ODD: dict[str, Forward] = {
    "generators": lambda m, x: torch.cat([*map(m.out, (row[None] for row in x))]),
    "in place": lambda m, x: m.out(x).add_(1).mul_(2),
    "the batch in place": lambda m, x: m.out(x.mul_(2)),
    "lent by functional_call": lambda m, x: torch.func.functional_call(
        m.out, {"weight": m.out.weight * 2}, (x,)
    ),
    "a weight without gradient": lambda m, x: m.out(x) * m.out.weight.detach().sum(),
    "rows written": written,
    "rows written into parameters": written_into_weights,
    "rows written in a checkpoint": lambda m, x: checkpoint(written, m, x, use_reentrant=False),
    "rows added": added,
    "a Parameter of the pass": lambda m, x: m.out(x) * nn.Parameter(m.out.weight.T).t().norm(),
    "parameters of another module": lambda m, x: m.out(x) @ OTHER.weight.t(),
    "a Function": lambda m, x: doubled(m.out(x)),
    "Functions": by_functions,
    "Functions in a checkpoint": lambda m, x: checkpoint(by_functions, m, x, use_reentrant=False),
}


@each("forward", FORWARDS)
def test_what_has_no_batching_rule_is_fast_and_equals_a_loop(
    forward: Forward,
) -> None:
    x = double(5, 4)
    x[1:3, :2], x[4] = 0.0, x[4, :1]  # of which some are told another thing than others
    model = Of(lambda m, x: forward(m.layer, x), layer=nn.Linear(4, 6))
    equals_a_loop(FastEngine(model.double(), waves, RULE), x)


@each("forward", ODD)
def test_odd_models_equal_a_loop(forward: Forward) -> None:
    equals_a_loop(FastEngine(Of(forward, out=nn.Linear(6, 3)).double(), squares, RULE), double(5, 6))


@pytest.mark.parametrize(
    ("size_average", "reduce", "reduction"),
    [(None, False, "none"), (False, None, "sum")],
)
def test_older_flags_say_how_losses_are_reduced(
    size_average: bool | None, reduce: bool | None, reduction: str
) -> None:
    """They did nothing: the mean came in place of the sum."""
    a, b, c = torch.rand(3, 4, 5).log().unbind()
    found = registry._kl_div(a, b.exp(), size_average, reduce)
    torch.testing.assert_close(found, F.kl_div(a, b.exp(), reduction=reduction))
    margins = registry._triplet_margin_loss(a, b, c, size_average=size_average, reduce=reduce)
    torch.testing.assert_close(margins, F.triplet_margin_loss(a, b, c, reduction=reduction))
