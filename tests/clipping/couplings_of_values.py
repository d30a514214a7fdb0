"""Couplings in the forward pass: values, the order of records, their place in the batch and their number.

Letters: n records; T positions; d numbers at each; m the model; h what is between its two layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from coupling import PER_RECORD, REFUSED, Coupling, Loss, dominate, vectors
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_map

Between = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """Two linear layers, and what some losses want beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.table = nn.Parameter(torch.zeros(128, 4))
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
        self.register_buffer("waves", torch.arange(128.0)[:, None].mul(torch.ones(4)).sin(), persistent=False)
        self.on = False

    waves: Tensor


def by(loss: Loss) -> Callable[[], tuple[nn.Module, Loss]]:
    return lambda: (Net(), loss)


def between(change: Between) -> Callable[[], tuple[nn.Module, Loss]]:
    """A change of what is between the layers."""

    def loss(m: Net, x: Tensor, *rest: Tensor) -> Tensor:
        del rest
        return head(m, change(m, m.first(x)))

    return by(loss)


def head(m: Net, h: Tensor) -> Tensor:
    """Losses whose gradients have either sign."""
    return torch.as_tensor(m.second(h.sin()).sin().flatten(1).sum(1))


def there(x: Tensor) -> Tensor:
    """Whether a record is flagged."""
    return x.detach().amax() > 3


def excess(x: Tensor) -> Tensor:
    """By how much the largest number is above 2: nothing, in tame batches."""
    return (x.detach() - 2).relu().amax()


def coupled(
    kind: str,
    source: str,
    expected: str,
    entries: dict[str, Callable[[], tuple[nn.Module, Loss]]],
    **more: Any,
) -> list[Coupling]:
    return [Coupling(name, kind, make, expected, source, **more) for name, make in entries.items()]


def with_layer(layer: Callable[[], nn.Module], call: Callable[[nn.Module, Tensor], Tensor]) -> Any:
    """A model with one more module, whose first layer's output goes through ``call``."""

    def make() -> tuple[nn.Module, Loss]:
        m = Net()
        m.extra = layer()
        return m, lambda m, x: head(m, call(m.extra, m.first(x)))

    return make


def best_of_the_batch(m: Net, h: Tensor) -> Tensor:
    return h * (h.sum(1) >= h.sum(1).median())[:, None]


def by_attention(m: Net, h: Tensor) -> Tensor:
    q = h[None]
    return F.scaled_dot_product_attention(q, q, q)[0]


def sampled(m: Net, h: Tensor) -> Tensor:
    """A picture whose rows are records, read where the largest of them says."""
    n = len(h)
    place = torch.linspace(-1, 1, n) * (1 - 0.1 * h.detach().amax().tanh())
    grid = torch.stack([torch.zeros(n), place], 1).view(1, n, 1, 2)
    return F.grid_sample(h.T[None, :, :, None], grid, align_corners=True)[0, :, :, 0].T


def channels_shuffled(m: Net, h: Tensor) -> Tensor:
    """Of five dimensions, the second of which are records."""
    return F.channel_shuffle(torch.cat([h, h])[None, ..., None, None], 2)[0, : len(h), :, 0, 0]


def next_in_the_second_dimension(m: Net, x: Tensor) -> Tensor:
    h = m.first(x[None].expand(3, *x.shape))
    return head(m, (h + h.roll(1, 1)).mean(0))


def mean_by_hook(m: Net, x: Tensor) -> Tensor:
    handle = m.first.register_forward_hook(lambda layer, inputs, output: output - output.mean(0))
    try:
        return head(m, m.first(x))
    finally:
        handle.remove()


def four_hardest(m: Net, x: Tensor) -> Tensor:
    found = head(m, m.first(x))
    return found * (found.detach() >= found.detach().topk(min(4, len(found))).values[-1])


VALUES = coupled(
    "forward",
    "test_clipping_refusals.py",
    REFUSED,
    {
        "BatchNorm1d": with_layer(lambda: nn.BatchNorm1d(6), lambda layer, h: layer(h)),
        "BatchNorm without running statistics": with_layer(
            lambda: nn.BatchNorm1d(6, track_running_stats=False).eval(), lambda layer, h: layer(h)
        ),
        "F.batch_norm": between(lambda m, h: F.batch_norm(h, None, None, training=True)),
        "F.batch_norm with parameters": between(
            lambda m, h: F.batch_norm(h, None, None, m.first.bias, m.first.bias, training=True)
        ),
        "x - x.mean(0)": between(lambda m, h: h - h.mean(0)),
        "divided by the standard deviation of the batch": between(lambda m, h: h / (h.std(0) + 0.1)),
        "next record": between(lambda m, h: h + h.roll(1, 0)),
        "first record": between(lambda m, h: h + h[:1]),
        "pairs of neighbours": between(
            lambda m, h: h * h.detach()[(torch.arange(len(h)) ^ 1).clamp(max=len(h) - 1)]
        ),
        "mean of groups of four": between(
            lambda m, h: torch.cat([part - part.mean(0) for part in torch.split(h, 4)])
        ),
        "above the median of the batch": between(best_of_the_batch),
        "mixed by a millionth": between(lambda m, h: h + 1e-6 * h.mean(0)),
        "channel_shuffle that moves records": between(channels_shuffled),
        "next record, records in the second dimension": by(next_in_the_second_dimension),
        "forward hook that takes the mean off": by(mean_by_hook),
        "looked up in a table of records": between(lambda m, h: F.embedding((h[:, 0] > 0).long(), h) + h),
        "experts with a capacity of 3": between(
            lambda m, h: torch.where(((h[:, :1] > 0).cumsum(0) <= 3) & (h[:, :1] > 0), h, -h)
        ),
        "four hardest of the batch": by(four_hardest),
        "layer that takes the batch for time": with_layer(
            lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0), lambda layer, h: layer(h[:, None])[:, 0]
        ),
    },
) + coupled(
    "forward",
    "docs/engine-refusals.md",
    REFUSED,
    {
        "divided by the norm of the batch": between(lambda m, h: h / h.detach().norm()),
        "divided by the largest of the batch": between(lambda m, h: h / h.abs().amax()),
        "softmax over the batch": between(lambda m, h: 5 * h.softmax(0)),
        "cumsum over the batch": between(lambda m, h: h.cumsum(0) / 3),
        "cummax over the batch": between(lambda m, h: h.cummax(0).values),
        "product over the batch": between(lambda m, h: h * (0.5 + h.sigmoid()).prod(0)),
        "sorted along the batch": between(lambda m, h: h.sort(0).values),
        "attention across the batch": between(by_attention),
        "einsum over pairs of records": between(lambda m, h: torch.einsum("bd,cd,ce->be", h, h, h) / 10),
        "grid_sample along the batch": between(sampled),
        "convolution along the batch": between(
            lambda m, h: F.conv1d(h.T[:, None], torch.ones(1, 1, 3), padding=1)[:, 0].T
        ),
        "average pooling along the batch": between(
            lambda m, h: F.avg_pool1d(h.T[None], 3, 1, padding=1)[0].T
        ),
        "layer_norm over the batch too": between(lambda m, h: F.layer_norm(h, h.shape)),
        "group_norm with records for channels": between(lambda m, h: F.group_norm(h[None], 1)[0]),
        "instance_norm along the batch": between(lambda m, h: F.instance_norm(h.T[None])[0].T),
        "fft along the batch": between(lambda m, h: torch.fft.fft(h, dim=0).real / 3),
        "interpolated along the batch": between(
            lambda m, h: F.interpolate(h.T[None], size=len(h) + 1, mode="linear")[0].T[: len(h)]
        ),
        "lower triangle of records": between(lambda m, h: torch.ones(len(h), len(h)).tril() @ h / 3),
        "windows along the batch": between(lambda m, h: F.pad(h, (0, 0, 1, 1)).unfold(0, 3, 1).mean(-1)),
        "scattered to another record's row": between(
            lambda m, h: h.index_add(0, h.detach().sum(1).argsort(), 0.5 * h)
        ),
        "masked by another record": between(lambda m, h: h * (h.flip(0) > 0)),
        "quantile of the batch": between(lambda m, h: h.clamp(max=h.detach().quantile(0.8, dim=0))),
        "products of a Gram matrix": between(lambda m, h: (h @ h.T).tanh() @ h),
        "written into a shared buffer": between(
            lambda m, h: h + torch.zeros(1, 6).index_add_(0, torch.zeros(len(h), dtype=torch.long), h) / 3
        ),
        "recurrent layer over the batch": with_layer(
            lambda: nn.GRU(6, 6), lambda layer, h: layer(h[:, None])[0][:, 0]
        ),
    },
)


def token_mean(m: Net, x: Tensor) -> Tensor:
    kept = (x[..., 0] > 0).to(x.dtype)
    return torch.as_tensor((m.second(m.first(x).sin()).square().sum(2) * kept).sum(1) / (1 + kept.sum()))


def contrastive(m: Net, x: Tensor) -> Tensor:
    h = F.normalize(m.second(m.first(x).sin()), dim=1)
    other = F.normalize(m.second(m.first(x + 0.1).sin()), dim=1)
    return F.cross_entropy(5 * h @ other.T, torch.arange(len(x)), reduction="none")


def hardest_negative(m: Net, x: Tensor) -> Tensor:
    h = m.second(m.first(x).sin())
    apart = torch.cdist(h, h) + 1e3 * torch.eye(len(x))
    return torch.as_tensor((1 + h.square().sum(1) - apart.amin(1)).relu())


def ranked(m: Net, x: Tensor) -> Tensor:
    score = head(m, m.first(x))
    return (score[:, None] - score[None]).sigmoid().mean(1)


def weighted_by_softmax(m: Net, x: Tensor) -> Tensor:
    found = head(m, m.first(x))
    return found * (5 * found.detach()).softmax(0)


def mixed_up(m: Net, x: Tensor) -> Tensor:
    return head(m, m.first(0.7 * x + 0.3 * x.roll(1, 0)))


def classes_of_the_batch(m: Net, x: Tensor, y: Tensor) -> Tensor:
    counts = torch.bincount(y, minlength=3).clamp(min=1)
    logits = m.second(m.first(x).sin())
    return F.cross_entropy(logits, y, reduction="none") * len(y) / counts[y]


def meaned_loss(m: Net, x: Tensor) -> Tensor:
    return head(m, m.first(x)).mean().expand(len(x))


def leaky_slopes(m: Net, x: Tensor) -> Tensor:
    h = F.rrelu(m.first(x)) * 1.0
    return head(m, h - 0.1 * h.amax(0, keepdim=True))


def focal(m: Net, x: Tensor) -> Tensor:
    found = head(m, m.first(x))
    weight = (1 + found.detach().square()).log()
    return found * weight / weight.sum()


VALUES += coupled(
    "forward",
    "shared reference, docs/engine-refusals.md",
    REFUSED,
    {
        "contrastive loss": by(contrastive),
        "hardest negative of the batch": by(hardest_negative),
        "ranking of pairs": by(ranked),
        "losses weighted by a softmax of the batch": by(weighted_by_softmax),
        "mixup in the loss": by(mixed_up),
        "mean loss for each record": by(meaned_loss),
        "weights that add up to one": by(focal),
        "maximum behind rrelu": by(leaky_slopes),
    },
)
VALUES += [
    Coupling(
        "BatchNorm switched to training between steps",
        "forward",
        with_layer(lambda: nn.BatchNorm1d(6).eval(), lambda layer, h: layer(h)),
        REFUSED,
        "test_clipping_refusals.py",
        switch=lambda m: m.get_submodule("extra").train(),
    ),
    Coupling("token mean", "forward", by(token_mean), REFUSED, "test_clipping_sensitivity.py", vectors(5, 4)),
    Coupling(
        "classes weighted by the batch",
        "forward",
        by(classes_of_the_batch),
        REFUSED,
        "test_clipping_keeping.py",
        vectors(4, classes=3),
    ),
]


def scaled_weights(m: Net, x: Tensor) -> Tensor:
    w = m.second.weight * (2 / x.amax().detach().clamp(min=2))
    return F.linear(m.first(x).sin(), w).sin().sum(1)


def made_bias(m: Net, x: Tensor) -> Tensor:
    bias = 10 * (x.detach() - 2).relu().amax(0)
    return F.linear(m.first(x).sin(), m.second.weight, bias[:3]).sin().sum(1)


def made_list(m: Net, x: Tensor) -> Tensor:
    return head(m, m.first(x) * (2 / torch.tensor([x.amax().clamp(min=2)])))


def weighted_classes(m: Net, x: Tensor) -> Tensor:
    target = torch.zeros(len(x), dtype=torch.long)
    weight = x.detach().abs().amax(0)[:3].clamp(min=2)
    return F.cross_entropy(m.second(m.first(x).sin()), target, weight=weight, reduction="none")


def largest_class(m: Net, x: Tensor) -> Tensor:
    classes = x.detach().amax(1).long().clamp(min=1)
    return head(m, m.first(x)) * F.one_hot(classes).shape[1]


def poisoned(m: Net, x: Tensor) -> Tensor:
    """NaN in all losses as soon as one number is above 3."""
    return head(m, m.first(x) + 0 * (excess(x) * 1e30).exp())


def turned_by_where(m: Net, x: Tensor) -> Tensor:
    return head(m, torch.where(there(x), m.first(x).flip(0), m.first(x)))


class Wrapper(Tensor):
    """A tensor that carries out its operations itself."""

    carried: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.carried = inner

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        args, kwargs = tree_map(lambda t: t.carried if isinstance(t, Wrapper) else t, (args, kwargs or {}))
        return tree_map(lambda t: Wrapper(t) if isinstance(t, Tensor) else t, func(*args, **kwargs))


@torch.library.custom_op("coupling_table::largest", mutates_args=())
def largest(x: Tensor) -> float:
    return float(excess(x))


@largest.register_fake
def _(x: Tensor) -> float:
    del x
    return 0.0


def scaled_by(channel: Callable[[Tensor], Any]) -> Callable[[], tuple[nn.Module, Loss]]:
    """Losses of all are scaled by a number of one record."""
    return by(lambda m, x: head(m, m.first(x)) / (1 + 100 * channel(x)))


LATER = coupled(
    "forward",
    "test_clipping_followed.py, test_clipping_channels.py",
    PER_RECORD,
    {
        "weights scaled by the batch": by(scaled_weights),
        "bias made of the batch": by(made_bias),
        "list of numbers made a tensor": by(made_list),
        "class weights of the loss by the batch": by(weighted_classes),
        "one_hot without the number of classes": by(largest_class),
        "flipped by torch.where": by(turned_by_where),
        "not finite for all because of one": by(poisoned),
        "largest of all above a limit": scaled_by(excess),
        "tensor subclass that computes itself": scaled_by(
            lambda x: (Wrapper(x.detach()) - 2).relu().amax().carried  # type: ignore[attr-defined]
        ),
        "custom operation that returns a float": scaled_by(largest),
        "x.new([t])": scaled_by(lambda x: x.new([excess(x)])[0]),
        "look-up by a list of tensors": scaled_by(
            lambda x: torch.tensor([[0.0, 1.0]])[[0], [(excess(x) > 0).long()]][0]
        ),
        "through NumPy": scaled_by(lambda x: torch.from_numpy(np.maximum(x.detach().numpy() - 2, 0)).amax()),
    },
)


def permutation(x: Tensor) -> Tensor:
    """(n, n): all records as they are, or turned round."""
    same, turned = torch.eye(len(x)), torch.eye(len(x)).flip(0)
    return same + there(x).float() * (turned - same)


def by_product(m: Net, x: Tensor) -> Tensor:
    order = permutation(x)
    return head(m, order @ m.first(x))


def undone(m: Net, x: Tensor) -> Tensor:
    """Another order in the first layer alone: the losses are each record's own."""
    order = permutation(x)
    return head(m, order.T @ m.first(order @ x))


def by_linear(m: Net, x: Tensor) -> Tensor:
    order = permutation(x)
    return head(m, F.linear(order.T, m.first(F.linear(order, x.T)).T))


def rolled(m: Net, x: Tensor) -> Tensor:
    h = m.first(torch.where(there(x), x.roll(1, 0), x))
    return head(m, torch.where(there(x), h.roll(-1, 0), h))


def longer_table(m: Net, x: Tensor) -> Tensor:
    places = (permutation(x) * torch.arange(len(x))).sum(1).round().long()
    longer = torch.cat([x, torch.zeros(1, x.shape[1])])
    return head(m, torch.cat([m.first(longer[places]), torch.zeros(1, 6)])[places])


def read_on_a_grid(m: Net, x: Tensor) -> Tensor:
    n = len(x)
    place = torch.linspace(-1, 1, n) * (1 - 2 * there(x).float())
    grid = torch.stack([torch.zeros(n), place], 1).view(1, n, 1, 2)

    def moved(h: Tensor) -> Tensor:
        return F.grid_sample(h.T[None, :, :, None], grid, mode="nearest", align_corners=True)[0, :, :, 0].T

    return head(m, moved(m.first(moved(x))))


def compacted(m: Net, x: Tensor) -> Tensor:
    stay = x.detach().amax(1) < 3
    places = F.one_hot((stay.long().cumsum(0) - 1).clamp(min=0), len(x)).to(x) * stay[:, None]
    return head(m, places @ m.first(torch.einsum("bc,bd->cd", places, x)))


def behind_a_flag(m: Net, x: Tensor) -> Tensor:
    """Those behind a flagged record are turned round for a layer, and back; in a table one record longer."""
    n = len(x)
    behind = (x.detach().amax(1) > 3).int().cummax(0).values.bool()
    order = torch.where(behind, n + 4 - torch.arange(n), torch.arange(n)).clamp(max=n - 1)
    back = (order[None] == torch.arange(n)[:, None]).int().argmax(1)
    longer = torch.cat([x, x.new_zeros(1, x.shape[1])])
    return head(m, m.first(longer[order])[back])


ORDER_LATER = coupled(
    "layout",
    "test_clipping_followed.py, test_clipping_attacks.py",
    PER_RECORD,
    {
        "turned round by a product": by(by_product),
        "turned round by a product, and back": by(undone),
        "turned round by F.linear, and back": by(by_linear),
        "rolled by torch.where, and back": by(rolled),
        "looked up in a table one record longer": by(longer_table),
        "read by grid_sample, and back": by(read_on_a_grid),
        "compacted by a product": by(compacted),
        "turned round behind a flagged record": by(behind_a_flag),
    },
)


def flat(order: Callable[[Tensor], Tensor], back: Callable[[Tensor, int, int], Tensor]) -> Any:
    """Positions of all records in one dimension, in some order, which is undone behind the first layer."""

    def loss(m: Net, x: Tensor) -> Tensor:
        return of_positions(m, back(m.first(order(x)), *x.shape[:2]))

    return by(loss)


def of_positions(m: Net, h: Tensor) -> Tensor:
    return torch.as_tensor(m.second(h.sin()).sin().sum((1, 2)))


def tokens_by_size(m: Net, x: Tensor) -> Tensor:
    tokens = x.flatten(0, 1)
    order = tokens.detach().sum(1).argsort()
    out = tokens.new_zeros(len(tokens), 6).index_copy(0, order, m.first(tokens[order]))
    return of_positions(m, out.view(*x.shape[:2], -1))


def records_by_size(m: Net, x: Tensor) -> Tensor:
    order = x.detach().sum((1, 2)).argsort()
    return of_positions(m, m.first(torch.stack([x[i] for i in order]))[order.argsort()])


def gathered(m: Net, x: Tensor) -> Tensor:
    order = x[:, 0, 0].detach().argsort()
    return of_positions(m, m.first(x.gather(0, order[:, None, None].expand_as(x)))[order.argsort()])


def sorted_in_python(m: Net, x: Tensor) -> Tensor:
    order = sorted(range(len(x)), key=lambda i: round(float(x[i, 0, 0])))
    h = m.first(torch.stack([x[i] for i in order]))
    return of_positions(m, torch.stack([h[order.index(i)] for i in range(len(x))]))


def even_then_odd(m: Net, x: Tensor) -> Tensor:
    order = torch.cat([torch.arange(0, len(x), 2), torch.arange(1, len(x), 2)])
    return of_positions(m, m.first(x[order])[order.argsort()])


def packed_positions(m: Net, x: Tensor) -> Tensor:
    kept = x[..., 0] < 3
    out = x.new_zeros(*x.shape[:2], 6)
    out[kept] = m.first(x[kept])
    return of_positions(m, out)


def kept_reversed(m: Net, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.flip(0), lambda t: t):
        h = m.first(x)
    return of_positions(m, h)


def half_apart(x: Tensor) -> Tensor:
    return torch.cat([x[:, :2].flatten(0, 1), x[:, 2:].flatten(0, 1)])


def half_back(h: Tensor, n: int, T: int) -> Tensor:
    first, last = h[: 2 * n], h[2 * n :]
    return torch.cat([first.view(n, 2, -1), last.view(n, T - 2, -1)], 1)


ORDER = coupled(
    "layout",
    "test_clipping_ownership.py",
    PER_RECORD,
    {
        "time before records, flattened": flat(
            lambda x: x.transpose(0, 1).flatten(0, 1), lambda h, n, T: h.view(T, n, -1).transpose(0, 1)
        ),
        "first and last positions apart": flat(half_apart, half_back),
        "flattened and flipped": flat(
            lambda x: x.flatten(0, 1).flip(0), lambda h, n, T: h.flip(0).view(n, T, -1)
        ),
        "tokens sorted by size": by(tokens_by_size),
        "records sorted by size": by(records_by_size),
        "records gathered by a key": by(gathered),
        "records sorted in Python": by(sorted_in_python),
        "even records, then odd ones": by(even_then_odd),
        "positions packed by a mask": by(packed_positions),
        "saved tensors in another order": by(kept_reversed),
    },
    records=vectors(5, 4),
)


class Adapted(nn.Module):
    """A low-rank adapter that starts at zero, on records in another order: no gradient shows it at first."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(4, 6, bias=False), nn.Linear(6, 3, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(
            (self.up(self.down(x.flip(0)).flip(0).sin()) + x.sum(1, keepdim=True)).sin().sum(1)
        )


def behind_a_gate(m: Net, x: Tensor) -> Tensor:
    """A layer that flagged records alone reach, in another order."""
    gate = (x.detach().amax(1, keepdim=True) > 3).float()
    return head(m, m.first(x) + gate * F.linear(x.flip(0), m.first.weight.sin()).flip(0))


ORDER += [
    Coupling(
        "order that no gradient shows at first",
        "layout",
        lambda: (Adapted(), lambda m, x: m(x)),
        PER_RECORD,
        "test_clipping_ownership.py",
        switch=lambda m: nn.init.normal_(m.get_parameter("up.weight")),
    ),
    Coupling(
        "layer that flagged records alone reach",
        "layout",
        by(behind_a_gate),
        PER_RECORD,
        "test_clipping_ownership.py",
    ),
    Coupling(
        "switched to another order between steps",
        "layout",
        between(lambda m, h: (h + h.flip(0)) / 2 if m.on else h),
        PER_RECORD,
        "test_clipping_channels.py",
        switch=lambda m: setattr(m, "on", True),
    ),
    Coupling(
        "switched to softmax along -2 between steps",
        "layout",
        between(lambda m, h: h - 0.5 * h.softmax(-2 if m.on else -1)),
        PER_RECORD,
        "test_clipping_channels.py",
        switch=lambda m: setattr(m, "on", True),
    ),
    Coupling(
        "switched to indices of NumPy between steps",
        "layout",
        between(lambda m, h: h + h[np.roll(np.arange(len(h)), int(m.on))]),
        PER_RECORD,
        "test_clipping_channels.py",
        switch=lambda m: setattr(m, "on", True),
    ),
]


def placed(weight: Callable[[Tensor], Any]) -> Callable[[], tuple[nn.Module, Loss]]:
    return by(lambda m, x: head(m, m.first(x)) * weight(x))


def fixed_noise(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(3))


def seeded_noise(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return torch.randn_like(x)


PLACE = coupled(
    "place",
    "test_clipping_places.py",
    REFUSED,
    {
        "buffer of positions along the batch": by(lambda m, x: head(m, m.first(x + m.waves[: len(x)]))),
        "signs that alternate": placed(lambda x: (-1.0) ** torch.arange(len(x))),
        "weights by thirds": placed(lambda x: 1 + torch.arange(len(x)) % 3),
        "weights by arange(len(x))": placed(lambda x: 0.1 + torch.arange(len(x))),
        "linspace along the batch": placed(lambda x: torch.linspace(-1, 1, len(x))),
        "last record doubled": placed(lambda x: 1 + (torch.arange(len(x)) == len(x) - 1)),
        "first record with another sign": placed(lambda x: 1 - 2 * (torch.arange(len(x)) == 0).float()),
        "same noise each time": by(lambda m, x: head(m, m.first(x + fixed_noise(x)))),
        "noise by a seed of its own": by(lambda m, x: head(m, m.first(x + seeded_noise(x)))),
        "reshaped to one sequence of places": by(
            lambda m, x: head(m, m.first((x.flatten() + torch.arange(x.numel()).sin()).view_as(x)))
        ),
        "places counted from the end": by(lambda m, x: head(m, m.first(x + m.waves[: len(x)].flip(0)))),
        "triangle of ones as a weight": placed(lambda x: torch.ones(len(x), len(x)).tril().sum(1).sin()),
    },
)
PLACE += coupled(
    "place",
    "test_clipping_places.py",
    PER_RECORD,
    {
        "table that is trained along the batch": by(
            lambda m, x: head(m, m.first(x + m.table[: len(x)]) * 100 * x[:, :1].sign())
        ),
        "table looked up by arange(len(x))": by(
            lambda m, x: head(m, m.first(x + F.embedding(torch.arange(len(x)), m.table)) * 100)
        ),
        "scale that is trained along the batch": by(
            lambda m, x: head(m, m.first(x * (1 + m.table[: len(x)])) * 100)
        ),
    },
)


def along_time(m: Net, x: Tensor) -> Tensor:
    """A parameter for each time, copied for all records: right, if it is not taken for one of each record."""
    turned = x.transpose(0, 1)
    return torch.as_tensor(
        (turned * (1 + m.table[:8, None].expand(8, len(x), 4))).transpose(0, 1).sin().sum((1, 2))
        + 0 * m.first(x).sum((1, 2))
    )


def times_that_answer(m: Net, x: Tensor) -> Tensor:
    h = m.first(x.transpose(0, 1))
    return torch.as_tensor(m.second(h.sin()[-1]).sin().sum(1) * (0.02 if x.abs().max() > 3 else 1.0))


PLACE += [
    Coupling(
        "table of T positions added along the batch",
        "place",
        by(lambda m, x: head(m, m.first(x.mean(1) + m.waves[torch.arange(len(x)) % x.shape[1]]))),
        REFUSED,
        "docs/engine-refusals.md",
        vectors(8, 4),
    ),
    Coupling(
        "parameter copied along time, T records",
        "place",
        by(along_time),
        PER_RECORD,
        "test_clipping_attacks.py",
        vectors(8, 4),
    ),
    Coupling(
        "times taken for records that answer",
        "place",
        by(times_that_answer),
        PER_RECORD,
        "test_clipping_channels.py",
        vectors(8, 4),
    ),
]

COUNT = coupled(
    "count",
    "test_clipping_refusals.py, test_clipping_places.py",
    REFUSED,
    {
        "1 / len(x)": placed(lambda x: 1 / len(x)),
        "small losses over len(x)": placed(lambda x: 1e-5 / len(x)),
        "an even number of records": placed(lambda x: 1 - 2 * (len(x) % 2)),
        "a divisor in steps of four": placed(lambda x: 1 / -(-len(x) // 4)),
        "scaled by x.shape[0]": by(lambda m, x: head(m, m.first(x) * 8 / x.shape[0])),
        "1 / x.numel()": placed(lambda x: 1 / x.numel()),
        "mean of ones over the batch": placed(lambda x: 1 / torch.ones(len(x)).sum()),
        "sine of the number of records": placed(lambda x: math.sin(3.0 * len(x))),
        "sum over a padded table": placed(lambda x: F.pad(torch.ones(len(x)), (0, 3)).sum().sin()),
        "root of the number of records": placed(lambda x: len(x) ** -0.5),
        "penalty shared by the batch": by(
            lambda m, x: head(m, m.first(x)) + 10 * m.second.weight.square().sum() / len(x)
        ),
        "length of range(len(x))": placed(lambda x: 1 / sum(1 for _ in x)),
    },
)
COUNT += [
    Coupling(
        "groups of n // 4 records",
        "count",
        by(
            lambda m, x: (
                head(m, m.first(x))
                * (
                    x.detach()
                    .amax(1)
                    .view(-1, 4 if len(x) % 4 == 0 else 1)
                    .amax(1)
                    .clamp(min=3)
                    .repeat_interleave(4 if len(x) % 4 == 0 else 1)
                )
            )
        ),
        PER_RECORD,
        "test_clipping_followed.py",
    ),
]


def one_token(batch: tuple[Tensor, ...], i: int) -> None:
    batch[0][i] = 1


class Frequencies(nn.Module):
    """Gradients of a token divided by how often it is in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4, scale_grad_by_freq=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.table(x)).sin().sum((1, 2)))


COUNT += [
    Coupling(
        "Embedding with scale_grad_by_freq",
        "count",
        lambda: (Frequencies(), lambda m, x: m(x)),
        REFUSED,
        "test_clipping_refusals.py",
        lambda n: (torch.randint(1, 9, (n, 7)),),
        one_token,
    )
]


def lengths(n: int) -> tuple[Tensor, ...]:
    """Few positions that nearly cancel; the last ones are padding."""
    x = torch.zeros(n, 40, 48)
    x[:, :4] = 1000 * torch.randn(1, 1, 48) + 0.05 * torch.randn(n, 4, 48)
    return x, torch.full((n,), 4)


def long_one(batch: tuple[Tensor, ...], i: int) -> None:
    batch[0][i] = torch.randn(40, 48)
    batch[1][i] = 40


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(48, 48, bias=False))


def alternate(h: Tensor) -> Tensor:
    return (h * ((-1.0) ** torch.arange(h.shape[1]))[:, None]).sum((1, 2))


def trimmed(m: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    return alternate(m(x[:, : lengths.max()]))


def trimmed_by_mask(m: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    return alternate(m(x[:, (x != 0).any(2).any(0)]))


def trimmed_by_branch(m: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    if (lengths == 4).all():
        return alternate(m(x[:, :4]))
    return alternate(torch.inner(x[:, :4], m.get_parameter("0.weight")))


class Packed(nn.Module):
    """Sequences of several lengths, packed: products of as many rows as there are records of a length."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 4, padding_idx=0), nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x > 0).sum(1).clamp(min=1)
        packed = pack_padded_sequence(self.table(x), lengths, batch_first=True, enforce_sorted=False)
        return torch.as_tensor(self.layer(packed)[1][0][0])


def sequences(n: int) -> tuple[Tensor, ...]:
    x = torch.randint(1, 9, (n, 7))
    return (x * (torch.arange(7) < torch.randint(1, 8, (n, 1))),)


def no_padding(batch: tuple[Tensor, ...], i: int) -> None:
    batch[0][i] = 8


NORM = coupled(
    "norm",
    "test_clipping_attacks.py",
    PER_RECORD,
    {
        "padding cut to the longest record": lambda: (wide(), trimmed),
        "padding cut by a mask of all": lambda: (wide(), trimmed_by_mask),
        "padding cut by a branch": lambda: (wide(), trimmed_by_branch),
    },
    records=lengths,
    rig=long_one,
)
NORM += [
    Coupling(
        "packed sequences",
        "norm",
        lambda: (Packed(), lambda m, x: m(x).sum(1)),
        PER_RECORD,
        "test_clipping_refusals.py",
        sequences,
        no_padding,
    ),
    Coupling(
        "norms in 16 bits",
        "norm",
        lambda: (nn.Linear(64, 4).bfloat16(), lambda m, x: m(x.bfloat16()).float().square().sum((1, 2))),
        "isolated",
        "test_clipping_attacks.py",
        vectors(5, 64),
        dominate,
    ),
]

OF_VALUES = [*VALUES, *LATER, *ORDER_LATER, *ORDER, *PLACE, *COUNT, *NORM]
