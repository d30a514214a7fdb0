"""Operations without a rule: fast by the record's own rows, or to the reference engine; right in both."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.provenance import Provenance
from tacit.clipping.isolation.trace import Kept
from tacit.clipping.per_example.recorder import Recorder, Unseen
from tacit.clipping.per_example.registry import HANDLERS
from tacit.clipping.per_example.vmap_fallback import vmap_fallback

C = 0.3
Function = Callable[[nn.Parameter, Tensor], Tensor]


class Model(nn.Module):
    """A linear layer, and a function of a parameter and of its output."""

    def __init__(self, function: Function, *shape: int) -> None:
        super().__init__()
        self.layer, self.weight, self.function = nn.Linear(4, 4), nn.Parameter(torch.rand(*shape)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.weight, self.layer(x).tanh())


def losses(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x).flatten(1)
    weights = torch.linspace(0.2, 1.0, out.shape[1], dtype=out.dtype)
    return (out * weights).sum(1) + out.square().mean(1)


def loop(model: nn.Module, x: Tensor, views: int) -> dict[str, Tensor]:
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for record in x.view(-1, views, *x.shape[1:]):
        gradients = torch.autograd.grad(losses(model, record).mean(), list(model.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        for name, g in zip(total, gradients, strict=True):
            total[name] += min(1.0, C / norm) * g
    return total


def add(engine: FastEngine, x: Tensor) -> dict[str, Tensor]:
    sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    present = torch.ones(len(x) // engine.views, dtype=torch.bool)
    engine.add_clipped_sum(sums, (x,), present, torch.tensor([C], dtype=torch.float64))
    return sums


def learned_bias(w: nn.Parameter, h: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None], w)[:, 0]


def by_head(w: nn.Parameter, h: Tensor) -> Tensor:
    split = h.view(-1, 5, 2, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(split, split.sin(), split, attn_mask=w)


def by_window(w: nn.Parameter, h: Tensor) -> Tensor:
    windows = h.reshape(-1, 2, 2)
    return F.scaled_dot_product_attention(query=windows, key=windows, value=windows, attn_mask=w).view(
        h.shape
    )


def learned_keys(w: nn.Parameter, h: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(h, w[None].expand_as(h), h, w @ w.t())


def doubled(w: nn.Parameter, h: Tensor) -> Tensor:
    turned = w.t()
    if turned.requires_grad:
        turned.register_hook(lambda g: 2 * g)  # type: ignore[no-untyped-call]
    return h @ turned


def doubled_before(w: nn.Parameter, h: Tensor) -> Tensor:
    turned = w.view(2, 6)
    if turned.requires_grad:
        turned.register_hook(lambda g: 2 * g)  # type: ignore[no-untyped-call]
    return h @ turned.view(4, 3)


def in_turns(w: nn.Parameter, h: Tensor) -> Tensor:
    h = h.clone()
    h += w
    h *= w
    h -= w
    return h


def complex_weight(w: nn.Parameter, h: Tensor) -> Tensor:
    return torch.view_as_real(torch.complex(h, h.sin()) * torch.view_as_complex(w))


def bags(w: nn.Parameter, h: Tensor) -> Tensor:
    numbers = (h.detach() > 0).long() + 2 * torch.arange(4)
    offsets = torch.arange(len(h) * 5 + 1) * 4
    found = F.embedding_bag(
        numbers.flatten(), w, offsets[::5], mode="sum", include_last_offset=True,
        per_sample_weights=torch.linspace(0, 1, 20).repeat(len(h)).to(w),
    )  # fmt: skip
    return found[:, None] + h


ALONE: dict[str, tuple[Function, tuple[int, ...]]] = {
    "einsum": (lambda w, h: torch.einsum("btd,hde->bthe", h, w), (2, 4, 3)),
    "einsum in another order": (lambda w, h: torch.einsum("btd,edh->bhte", [h, w]), (3, 4, 2)),
    "einsum of a parameter first": (lambda w, h: torch.einsum("dp, btd -> btp", w, h), (4, 3)),
    "einsum over two": (lambda w, h: torch.einsum("btd,td->b", h, w)[:, None], (5, 4)),
    "einsum by head": (lambda w, h: torch.einsum("bthd,hde->bthe", h.view(-1, 5, 2, 2), w), (2, 2, 3)),
    "einsum by head, in another order": (
        lambda w, h: torch.einsum("bdht,edh->bhte", h.view(-1, 5, 2, 2).transpose(1, 3), w),
        (3, 2, 2),
    ),
    "einsum by head to the width": (
        lambda w, h: torch.einsum("bthd,hdp->btp", h.view(-1, 5, 2, 2), w),
        (2, 2, 3),
    ),
    "einsum of one row by head": (lambda w, h: torch.einsum("bhd,hde->bhe", h, w), (5, 4, 3)),
    "einsum of one row": (lambda w, h: torch.einsum("bd,hde->bhe", h.sum(1), w), (2, 4, 3)),
    "einsum by head, one for all": (lambda w, h: torch.einsum("bhtd,hde->bhte", h[:, None], w), (2, 4, 3)),
    "einsum by head with dots": (lambda w, h: torch.einsum("b...d,hde->bh...e", h[:, None], w), (2, 4, 3)),
    "einsum with dots in both": (lambda w, h: torch.einsum("b...d,...de->b...e", h, w), (5, 4, 2)),
    "einsum by more heads": (lambda w, h: torch.einsum("btd,btd,tde->bte", h, h, w), (5, 4, 2)),
    "matrices by head": (lambda w, h: h[:, None] @ w, (2, 4, 3)),
    "matrices by head, apart": (lambda w, h: h.view(-1, 5, 2, 2).transpose(1, 2) @ w, (2, 2, 3)),
    "one matrix by head": (lambda w, h: h[:, None] @ w, (1, 4, 3)),
    "added in place": (lambda w, h: h.clone().add_(w), (5, 4)),
    "added in part": (lambda w, h: torch.add(h, w, alpha=0.3) + torch.sub(w, h, alpha=2), (4,)),
    "subtracted in part": (lambda w, h: torch.add(w, h, alpha=0.3) * h.sub(w, alpha=2), (5, 4)),
    "in place by turns": (in_turns, (4,)),
    "tiled by a method": (lambda w, h: h * w.tile(2), (2,)),
    "tensordot": (lambda w, h: torch.tensordot(h, w, dims=1), (4, 3)),
    "flattened look-up": (
        lambda w, h: (
            F.embedding((h.detach() > 0).long().flatten(0, 1), w).view(-1, 5, 16) * h.repeat(1, 1, 4)
        ),
        (2, 4),
    ),
    "a vector": (lambda w, h: h @ w, (4,)),
    "a vector on the right": (lambda w, h: torch.mv(h.sum(1), w)[:, None], (4,)),
    "bilinear": (lambda w, h: F.bilinear(h, h.cos(), w), (3, 4, 4)),
    "bilinear with a bias": (lambda w, h: F.bilinear(h.sum(1), h.prod(1), w[1:], w[0, 0, :3]), (4, 4, 4)),
    "bilinear in one operand": (lambda w, h: F.bilinear(h, w.expand_as(h), h.new_ones(2, 4, 4)), (4,)),
    "there and back": (lambda w, h: (h @ w).tanh() @ w.t(), (4, 6)),
    "turned in another shape": (
        lambda w, h: h @ w.view(2, 6, 4)[0].t() + h @ w.view(6, 8)[:, :4].t(),
        (12, 4),
    ),
    "turned in another shape, all": (lambda w, h: h @ w.view(6, 4).t() + h @ w.view(4, 6), (3, 8)),
    "there and back of one row": (lambda w, h: F.linear(F.linear(h.sum(1), w).tanh(), w.t()), (6, 4)),
    "matrix on the left": (lambda w, h: w @ h, (3, 5)),
    "matrix on the left of heads": (lambda w, h: w @ h.view(-1, 5, 2, 2).transpose(1, 2), (3, 5)),
    "einsum over positions": (lambda w, h: torch.einsum("btd,dp->bp", h, w), (4, 3)),
    "einsum with dots": (lambda w, h: torch.einsum("b...d,dp->b...p", h, w), (4, 3)),
    "einsum without a sum": (lambda w, h: torch.einsum("btd,p->btdp", h, w), (3,)),
    "expanded": (lambda w, h: torch.cat([w.expand(len(h), -1, -1), h], 1), (1, 2, 4)),
    "expanded as": (lambda w, h: w.expand_as(h) * h, (5, 1)),
    "broadcast": (lambda w, h: torch.cat([torch.broadcast_to(w, (len(h), 2, 4)), h], 1), (2, 4)),
    "repeated": (lambda w, h: torch.cat([w.repeat(len(h), 1, 1), h], 1), (1, 2, 4)),
    "repeated in the second place": (lambda w, h: w.repeat(1, len(h), 1).transpose(0, 1) * h, (5, 1, 4)),
    "tiled": (lambda w, h: torch.cat([torch.tile(w, (len(h), 1, 1)), h], 1), (2, 4)),
    "interleaved": (lambda w, h: torch.cat([torch.repeat_interleave(w, len(h), 0), h], 1), (1, 2, 4)),
    "a part repeated": (lambda w, h: torch.cat([w[:1, 1:].repeat(len(h), 1, 1), h], 1), (2, 3, 4)),
    "repeated along the positions": (lambda w, h: h + w.repeat(1, 5, 1), (1, 1, 4)),
    "two of each": (lambda w, h: h * w.repeat(2), (2,)),
    "turned": (lambda w, h: h @ w.t(), (3, 4)),
    "turned kernel": (lambda w, h: F.conv1d(h.transpose(1, 2), w.permute(2, 1, 0)), (2, 4, 3)),
    "scale in another shape": (lambda w, h: h * w.view(4) + w.flatten(), (2, 2)),
    "turned and as it is": (lambda w, h: h @ w.t() + h @ w, (4, 4)),
    "a part": (lambda w, h: h * w[1:], (5,)),
    "in the type of rows": (lambda w, h: h * w.type_as(h) + w.to(h, copy=True), (4,)),
    "in the type of a parameter": (lambda w, h: h.type_as(w) * h.to(w, non_blocking=True) + w, (4,)),
    "a hook on a view": (doubled, (3, 4)),
    "a hook on a view of a view": (doubled_before, (4, 3)),
    "bags by offsets": (bags, (8, 4)),
    "divided": (lambda w, h: h / (1 + w), (4,)),
    "mask token": (lambda w, h: torch.where(h > 0.2, h, w), (4,)),
    "hidden by rows": (lambda w, h: h + torch.where(h[:, :1] > 0, w, -0.5), (1, 5, 4)),
    "hidden by rows, by name": (lambda w, h: h + torch.where(h[..., :1] > 0, other=w, input=h), (5, 1)),
    "hidden by a constant": (lambda w, h: torch.where(torch.eye(5, 4).bool(), w, h), (4,)),
    "rows or a parameter": (lambda w, h: h.where(h.cos() > 0.7, w).sin(), (5, 1)),
    "a parameter or rows": (lambda w, h: w.where(h > 0.3, h), (1, 1, 4)),
    "a parameter filled": (lambda w, h: h * w.masked_fill(h > 0.1, 0.7), (5, 4)),
    "two parameters": (lambda w, h: h * torch.where(h > 0, w, w.sin()), (4,)),
    "attention with a learned bias": (learned_bias, (5, 5)),
    "attention with a learned bias for each head": (by_head, (2, 5, 5)),
    "attention with a learned bias for each head alone": (by_head, (1, 2, 5, 5)),
    "attention with a learned bias for each head and key": (by_head, (2, 1, 5)),
    "attention in windows with a learned bias": (by_window, (1, 2, 2)),
    "attention to learned keys": (learned_keys, (5, 4)),
    "read twice": (lambda w, h: torch.addcmul(h, w, w), (4,)),
}


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(("function", "shape"), ALONE.values(), ids=ALONE)
def test_operations_on_rows_are_fast_and_right(
    function: Function, shape: tuple[int, ...], views: int
) -> None:
    torch.manual_seed(0)
    model, x = Model(function, *shape).double(), torch.randn(4 * views, 5, 4, dtype=torch.float64)
    engine = FastEngine(model, losses, FlatClipping(C), views=views)
    found = add(engine, x)
    assert engine.route == "fast"
    for name, value in loop(model, x, views).items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=name)


ELSEWHERE: dict[str, tuple[Function, tuple[int, ...]]] = {
    "as many positions as rows": (lambda w, h: h + w.repeat(1, 5, 1), (1, 1, 4)),
    "added in place in part": (lambda w, h: h.clone().add_(w, alpha=2), (4,)),
    "in place": (lambda w, h: h.clone().div_(1 + w), (4,)),
    "complex": (complex_weight, (4, 2)),
    "complex rows": (lambda w, h: torch.fft.irfft(torch.fft.rfft(h) * w), (3,)),
    "time first": (lambda w, h: (h.transpose(0, 1) / (1 + w)).transpose(0, 1), (4,)),
    "written into rows": (lambda w, h: h.clone().index_fill_(1, torch.tensor([0]), 0.0) / (1 + w), (4,)),
}


@pytest.mark.parametrize(("function", "shape"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_other_operations_are_right(function: Function, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    for n in (4, 5):
        model, x = Model(function, *shape).double(), torch.randn(n, 5, 4, dtype=torch.float64)
        found = add(FastEngine(model, losses, FlatClipping(C)), x)
        for name, value in loop(model, x, 1).items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=name)


def squared_norms(function: Function, w: nn.Parameter, x: Tensor) -> Tensor:
    provenance = Provenance((x,), 1)
    recorder = Recorder([w], [], HANDLERS, rows=len(x), views=1, kept=Kept(), provenance=provenance)
    y = vmap_fallback(recorder, function, "function", (w, x), {})
    recorder.start_backward()
    y.sin().sum().backward()  # type: ignore[no-untyped-call]
    return recorder.uses[id(w)][0].squared_norms()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda w, h: (h - h.mean(0)) * w, "other values for a record alone"),
        (lambda w, h: h[torch.nonzero(h[:, 0, 0] < 9).squeeze(1)] * w, "cannot be carried out by record"),
        (lambda w, h: (h * w).sum(0), "other than rows"),
    ],
    ids=["centred", "counted", "summed"],
)
def test_operations_that_are_not_of_single_rows_are_seen(function: Function, message: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(Unseen, match=message):
        squared_norms(function, nn.Parameter(torch.rand(4)), torch.randn(6, 5, 4))
