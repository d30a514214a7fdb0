"""Couplings in the forward pass: values, the order of records, their place in the batch and their number.

Letters: n records; T positions; d numbers at each; m the model; h what is between its two layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from coupling import ISOLATED, REFUSED, Batch, Coupling, dominate, vectors
from oracles import Loss, Maker, Of, Trained
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_map

Between = Callable[["Net", Tensor], Tensor]
Make = Callable[[], Trained]


class Net(nn.Module):
    """Two linear layers, and further parts that some losses need."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.table = nn.Parameter(torch.zeros(128, 4))
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
        self.register_buffer("waves", torch.arange(128.0)[:, None].mul(torch.ones(4)).sin(), persistent=False)
        self.on = False

    waves: Tensor


def switched_on(m: Any) -> None:
    m.on = True


def by(loss: Loss) -> Make:
    return lambda: (Net(), loss)


def between(change: Between) -> Make:
    """A change of what is between the layers."""
    return by(lambda m, x, *_: head(m, change(m, m.first(x))))


def before(change: Between) -> Make:
    """A change of the records before the first layer."""
    return by(lambda m, x: head(m, m.first(change(m, x))))


def weighted(weight: Callable[[Tensor], Any]) -> Make:
    return by(lambda m, x: head(m, m.first(x)) * weight(x))


def head(m: Net, h: Tensor) -> Tensor:
    """Losses whose gradients have either sign."""
    found: Tensor = m.second(h.sin())
    return found.sin().flatten(1).sum(1)


def there(x: Tensor) -> Tensor:
    """Whether a record is flagged."""
    return x.detach().amax() > 3


def excess(x: Tensor) -> Tensor:
    """By how much the largest number is above 2: nothing, in tame batches."""
    return (x.detach() - 2).relu().amax()


def outputs(m: nn.Module, x: Tensor) -> Any:
    return m(x)


def coupled(kind: str, expected: str, entries: dict[str, Make], **more: Any) -> list[Coupling]:
    return [Coupling(name, kind, make, expected, **more) for name, make in entries.items()]


def with_layer(layer: Maker, call: Callable[[nn.Module, Tensor], Tensor]) -> Make:
    """A model with one more module, whose first layer's output goes through ``call``."""

    def make() -> Trained:
        m = Net()
        m.extra = layer()
        return m, lambda m, x: head(m, call(m.extra, m.first(x)))

    return make


# --- values -------------------------------------------------------------------------------------------------


def by_attention(m: Net, h: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(h[None], h[None], h[None])[0]


def mean_by_hook(m: Net, x: Tensor) -> Tensor:
    handle = m.first.register_forward_hook(lambda layer, inputs, output: output - output.mean(0))
    try:
        return head(m, m.first(x))
    finally:
        handle.remove()


def contrastive(m: Net, x: Tensor) -> Tensor:
    h = F.normalize(m.second(m.first(x).sin()), dim=1)
    other = F.normalize(m.second(m.first(x + 0.1).sin()), dim=1)
    return F.cross_entropy(5 * h @ other.T, torch.arange(len(x)), reduction="none")


def hardest(least: int) -> Loss:
    def loss(m: Net, x: Tensor) -> Tensor:
        found = head(m, m.first(x))
        return found * (found.detach() >= found.detach().topk(min(least, len(found))).values[-1])

    return loss


def ranked(m: Net, x: Tensor) -> Tensor:
    score = head(m, m.first(x))
    return (score[:, None] - score[None]).sigmoid().mean(1)


def focal(m: Net, x: Tensor) -> Tensor:
    found = head(m, m.first(x))
    weight = (1 + found.detach().square()).log()
    return found * weight / weight.sum()


def token_mean(m: Net, x: Tensor) -> Any:
    kept = (x[..., 0] > 0).to(x.dtype)
    return (m.second(m.first(x).sin()).square().sum(2) * kept).sum(1) / (1 + kept.sum())


def classes_of_the_batch(m: Net, x: Tensor, y: Tensor) -> Tensor:
    counts = torch.bincount(y, minlength=3).clamp(min=1)
    return F.cross_entropy(m.second(m.first(x).sin()), y, reduction="none") * len(y) / counts[y]


MIXED = coupled(
    "forward",
    REFUSED,
    {
        "BatchNorm1d": with_layer(lambda: nn.BatchNorm1d(6), lambda layer, h: layer(h)),
        "F.batch_norm": between(lambda m, h: F.batch_norm(h, None, None, training=True)),
        "x - x.mean(0)": between(lambda m, h: h - h.mean(0)),
        "divided by the standard deviation of the batch": between(lambda m, h: h / (h.std(0) + 0.1)),
        "next record": between(lambda m, h: h + h.roll(1, 0)),
        "mean of groups of four": between(
            lambda m, h: torch.cat([part - part.mean(0) for part in torch.split(h, 4)])
        ),
        "above the median of the batch": between(lambda m, h: h * (h.sum(1) >= h.sum(1).median())[:, None]),
        "forward hook that takes the mean off": by(mean_by_hook),
        "looked up in a table of records": between(lambda m, h: F.embedding((h[:, 0] > 0).long(), h) + h),
        "softmax over the batch": between(lambda m, h: 5 * h.softmax(0)),
        "cumsum over the batch": between(lambda m, h: h.cumsum(0) / 3),
        "sorted along the batch": between(lambda m, h: h.sort(0).values),
        "attention across the batch": between(by_attention),
        "einsum over pairs of records": between(lambda m, h: torch.einsum("bd,cd,ce->be", h, h, h) / 10),
        "convolution along the batch": between(
            lambda m, h: F.conv1d(h.T[:, None], torch.ones(1, 1, 3), padding=1)[:, 0].T
        ),
        "layer_norm over the batch too": between(lambda m, h: F.layer_norm(h, h.shape)),
        "scattered to another record's row": between(
            lambda m, h: h.index_add(0, h.detach().sum(1).argsort(), 0.5 * h)
        ),
        "written into a shared buffer": between(
            lambda m, h: h + torch.zeros(1, 6).index_add_(0, torch.zeros(len(h), dtype=torch.long), h) / 3
        ),
        "recurrent layer over the batch": with_layer(
            lambda: nn.GRU(6, 6), lambda layer, h: layer(h[:, None])[0][:, 0]
        ),
        "layer that takes the batch for time": with_layer(
            lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0), lambda layer, h: layer(h[:, None])[:, 0]
        ),
        "four hardest of the batch": by(hardest(4)),
        "contrastive loss": by(contrastive),
        "ranking of pairs": by(ranked),
        "mixup in the loss": before(lambda m, x: 0.7 * x + 0.3 * x.roll(1, 0)),
        "mean loss for each record": by(lambda m, x: head(m, m.first(x)).mean().expand(len(x))),
        "weights that add up to one": by(focal),
    },
)
MIXED += [
    Coupling(
        "BatchNorm switched to training between steps",
        "forward",
        with_layer(lambda: nn.BatchNorm1d(6).eval(), lambda layer, h: layer(h)),
        REFUSED,
        switch=lambda m: m.get_submodule("extra").train(),
    ),
    Coupling("token mean", "forward", by(token_mean), REFUSED, vectors(5, 4)),
    Coupling(
        "classes weighted by the batch", "forward", by(classes_of_the_batch), REFUSED, vectors(4, classes=3)
    ),
]


def scaled_weights(m: Net, x: Tensor) -> Tensor:
    w = m.second.weight * (2 / x.amax().detach().clamp(min=2))
    return F.linear(m.first(x).sin(), w).sin().sum(1)


def made_bias(m: Net, x: Tensor) -> Tensor:
    bias = 10 * (x.detach() - 2).relu().amax(0)
    return F.linear(m.first(x).sin(), m.second.weight, bias[:3]).sin().sum(1)


def weighted_classes(m: Net, x: Tensor) -> Tensor:
    target, weight = torch.zeros(len(x), dtype=torch.long), x.detach().abs().amax(0)[:3].clamp(min=2)
    return F.cross_entropy(m.second(m.first(x).sin()), target, weight=weight, reduction="none")


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


def scaled_by(channel: Callable[[Tensor], Any]) -> Make:
    """Losses of all are scaled by a number of one record: none that is made up, nor any tame one."""
    return by(lambda m, x: head(m, m.first(x)) / (1 + 100 * channel(x)))


LATER = coupled(
    "forward",
    ISOLATED,
    {
        "mixed by a millionth": between(lambda m, h: h + 1e-6 * h.mean(0)),
        "weights scaled by the batch": by(scaled_weights),
        "bias made of the batch": by(made_bias),
        "class weights of the loss by the batch": by(weighted_classes),
        "flipped by torch.where": by(
            lambda m, x: head(m, torch.where(there(x), m.first(x).flip(0), m.first(x)))
        ),
        "not finite for all because of one": by(
            lambda m, x: head(m, m.first(x) + 0 * (excess(x) * 1e30).exp())
        ),
        "largest of all above a limit": scaled_by(excess),
    },
) + coupled(
    "forward",
    REFUSED,
    {
        "list of numbers made a tensor": by(
            lambda m, x: head(m, m.first(x) * (2 / torch.tensor([x.amax().clamp(min=2)])))
        ),
        "one_hot without the number of classes": weighted(
            lambda x: F.one_hot(x.detach().amax(1).long().clamp(min=1)).shape[1]
        ),
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


# --- order --------------------------------------------------------------------------------------------------


def undone(m: Net, x: Tensor) -> Tensor:
    """All records as they are, or turned round, in the first layer alone: losses are each record's own."""
    same, turned = torch.eye(len(x)), torch.eye(len(x)).flip(0)
    order = same + there(x).float() * (turned - same)
    return head(m, order.T @ m.first(order @ x))


def of_positions(m: Net, h: Tensor) -> Any:
    return m.second(h.sin()).sin().sum((1, 2))


def time_first(m: Net, x: Tensor) -> Any:
    h = m.first(x.transpose(0, 1).flatten(0, 1))
    return of_positions(m, h.view(x.shape[1], len(x), -1).transpose(0, 1))


def tokens_by_size(m: Net, x: Tensor) -> Any:
    tokens = x.flatten(0, 1)
    order = tokens.detach().sum(1).argsort()
    out = tokens.new_zeros(len(tokens), 6).index_copy(0, order, m.first(tokens[order]))
    return of_positions(m, out.view(*x.shape[:2], -1))


def sorted_in_python(m: Net, x: Tensor) -> Any:
    order = sorted(range(len(x)), key=lambda i: round(float(x[i, 0, 0])))
    h = m.first(torch.stack([x[i] for i in order]))
    return of_positions(m, torch.stack([h[order.index(i)] for i in range(len(x))]))


def packed_positions(m: Net, x: Tensor) -> Any:
    kept = x[..., 0] < 3
    out = x.new_zeros(*x.shape[:2], 6)
    out[kept] = m.first(x[kept])
    return of_positions(m, out)


def kept_reversed(m: Net, x: Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.flip(0), lambda t: t):
        h = m.first(x)
    return of_positions(m, h)


def adapted() -> Trained:
    """A low-rank adapter that starts at zero, on records in another order: no gradient shows it at first."""

    def forward(m: Any, x: Tensor) -> Any:
        h = m.up(m.down(x.flip(0)).flip(0).sin()) + x.sum(1, keepdim=True)
        return h.sin().sum(1)

    down, up = nn.Linear(4, 6, bias=False), nn.Linear(6, 3, bias=False)
    nn.init.zeros_(up.weight)
    return Of(forward, down=down, up=up), outputs


def behind_a_gate(m: Net, x: Tensor) -> Tensor:
    """A layer that flagged records alone reach, in another order."""
    gate = (x.detach().amax(1, keepdim=True) > 3).float()
    return head(m, m.first(x) + gate * F.linear(x.flip(0), m.first.weight.sin()).flip(0))


ORDER = coupled(
    "layout",
    ISOLATED,
    {
        "turned round by a product, and back": by(undone),
        "layer that flagged records alone reach": by(behind_a_gate),
    },
)
ORDER += coupled(
    "layout",
    ISOLATED,
    {
        "time before records, flattened": by(time_first),
        "tokens sorted by size": by(tokens_by_size),
    },
    records=vectors(5, 4),
)
ORDER += coupled(
    "layout",
    REFUSED,
    {
        "records sorted in Python": by(sorted_in_python),
        "positions packed by a mask": by(packed_positions),
        "saved tensors in another order": by(kept_reversed),
    },
    records=vectors(5, 4),
)
ORDER += [
    Coupling(
        "order that no gradient shows at first",
        "layout",
        adapted,
        ISOLATED,
        switch=lambda m: nn.init.normal_(m.get_parameter("up.weight")),
    ),
    Coupling(
        "switched to another order between steps",
        "layout",
        between(lambda m, h: (h + h.flip(0)) / 2 if m.on else h),
        REFUSED,
        switch=switched_on,
    ),
]


# --- places and numbers of records --------------------------------------------------------------------------


def fixed_noise(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(3))


def seeded_noise(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return torch.randn_like(x)


def along_time(m: Net, x: Tensor) -> Any:
    """A parameter for each time, copied for all records: right, if it is not taken for one of each record."""
    scale = 1 + m.table[:8, None].expand(8, len(x), 4)
    h = (x.transpose(0, 1) * scale).transpose(0, 1).sin()
    return h.sum((1, 2)) + 0 * m.first(x).sum((1, 2))


def times_that_answer(m: Net, x: Tensor) -> Any:
    h = m.first(x.transpose(0, 1))
    return m.second(h.sin()[-1]).sin().sum(1) * (0.02 if x.abs().max() > 3 else 1.0)


PLACE = coupled(
    "place",
    REFUSED,
    {
        "buffer of positions along the batch": before(lambda m, x: x + m.waves[: len(x)]),
        "signs that alternate": weighted(lambda x: (-1.0) ** torch.arange(len(x))),
        "weights by arange(len(x))": weighted(lambda x: 0.1 + torch.arange(len(x))),
        "last record doubled": weighted(lambda x: 1 + (torch.arange(len(x)) == len(x) - 1)),
        "same noise each time": before(lambda m, x: x + fixed_noise(x)),
        "noise by a seed of its own": before(lambda m, x: x + seeded_noise(x)),
        "reshaped to one sequence of places": before(
            lambda m, x: (x.flatten() + torch.arange(x.numel()).sin()).view_as(x)
        ),
    },
)
PLACE += coupled(
    "place",
    ISOLATED,  # as the table is zero when it is looked at
    {
        "table that is trained along the batch": by(
            lambda m, x: head(m, m.first(x + m.table[: len(x)]) * 100 * x[:, :1].sign())
        ),
        "table looked up by arange(len(x))": by(
            lambda m, x: head(m, m.first(x + F.embedding(torch.arange(len(x)), m.table)) * 100)
        ),
    },
)
PLACE += [
    Coupling(
        "table of T positions added along the batch",
        "place",
        before(lambda m, x: x.mean(1) + m.waves[torch.arange(len(x)) % x.shape[1]]),
        REFUSED,
        vectors(8, 4),
    ),
    Coupling("parameter copied along time, T records", "place", by(along_time), ISOLATED, vectors(8, 4)),
    Coupling("times taken for records that answer", "place", by(times_that_answer), REFUSED, vectors(8, 4)),
]


def frequencies() -> Trained:
    """Gradients of a token divided by how often it is in the batch."""
    table = nn.Embedding(9, 4, scale_grad_by_freq=True)
    return nn.Sequential(table, nn.Linear(4, 3)), lambda m, x: m(x).sin().sum((1, 2))


def one_token(batch: Batch, i: int) -> None:
    batch[0][i] = 1


COUNT = coupled(
    "count",
    REFUSED,
    {
        "1 / len(x)": weighted(lambda x: 1 / len(x)),
        "small losses over len(x)": weighted(lambda x: 1e-5 / len(x)),
        "an even number of records": weighted(lambda x: 1 - 2 * (len(x) % 2)),
        "a divisor in steps of four": weighted(lambda x: 1 / -(-len(x) // 4)),
        "1 / x.numel()": weighted(lambda x: 1 / x.numel()),
        "penalty shared by the batch": by(
            lambda m, x: head(m, m.first(x)) + 10 * m.second.weight.square().sum() / len(x)
        ),
    },
)
COUNT += [
    Coupling(
        "Embedding with scale_grad_by_freq",
        "count",
        frequencies,
        REFUSED,
        lambda n: (torch.randint(1, 9, (n, 7)),),
        one_token,
    )
]


# --- the form of a norm -------------------------------------------------------------------------------------


def lengths(n: int) -> Batch:
    """Few positions that nearly cancel; the last ones are padding."""
    x = torch.zeros(n, 40, 48)
    x[:, :4] = 1000 * torch.randn(1, 1, 48) + 0.05 * torch.randn(n, 4, 48)
    return x, torch.full((n,), 4)


def long_one(batch: Batch, i: int) -> None:
    batch[0][i], batch[1][i] = torch.randn(40, 48), 40


def wide(loss: Loss) -> Make:
    return lambda: (nn.Sequential(nn.Linear(48, 48, bias=False)), loss)


def alternate(h: Tensor) -> Tensor:
    return (h * ((-1.0) ** torch.arange(h.shape[1]))[:, None]).sum((1, 2))


def trimmed_by_branch(m: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    if (lengths == 4).all():
        return alternate(m(x[:, :4]))
    return alternate(torch.inner(x[:, :4], m.get_parameter("0.weight")))


def packed() -> Trained:
    """Sequences of several lengths, packed: products of as many rows as there are records of a length."""

    def forward(m: Any, x: Tensor) -> Any:
        lengths = (x > 0).sum(1).clamp(min=1)
        rows = pack_padded_sequence(m.table(x), lengths, batch_first=True, enforce_sorted=False)
        return m.layer(rows)[1][0][0].sum(1)

    layer = nn.LSTM(4, 5, batch_first=True)
    return Of(forward, table=nn.Embedding(9, 4, padding_idx=0), layer=layer), outputs


def sequences(n: int) -> Batch:
    x = torch.randint(1, 9, (n, 7))
    return (x * (torch.arange(7) < torch.randint(1, 8, (n, 1))),)


def no_padding(batch: Batch, i: int) -> None:
    batch[0][i] = 8


NORM = [
    Coupling(
        "padding cut to the longest record",
        "norm",
        wide(lambda m, x, lengths: alternate(m(x[:, : lengths.max()]))),
        REFUSED,
        lengths,
        long_one,
    ),
    Coupling(
        "padding cut by a mask of all",
        "norm",
        wide(lambda m, x, lengths: alternate(m(x[:, (x != 0).any(2).any(0)]))),
        REFUSED,
        lengths,
        long_one,
    ),
    Coupling("padding cut by a branch", "norm", wide(trimmed_by_branch), REFUSED, lengths, long_one),
    Coupling(
        "packed sequences",
        "norm",
        packed,
        REFUSED,
        sequences,
        no_padding,
    ),
    Coupling(
        "norms in 16 bits",
        "norm",
        lambda: (nn.Linear(64, 4).bfloat16(), lambda m, x: m(x.bfloat16()).float().square().sum((1, 2))),
        ISOLATED,
        vectors(5, 64),
        dominate,
    ),
]

OF_VALUES = [*MIXED, *LATER, *ORDER, *PLACE, *COUNT, *NORM]
