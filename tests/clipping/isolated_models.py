"""Models and losses in which no record reaches another: they look like couplings, and must stay fast.

Letters: n records; T positions; d numbers at each; V tokens; m the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from coupling import ISOLATED, Batch, vectors
from couplings_of_values import Make, Net, before, between, by, coupled, head, weighted
from oracles import Maker, Of, Trained, called
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

V = 11


def tokens(n: int) -> Batch:
    return (torch.randint(1, V, (n, 6)),)


def one_token(batch: Batch, i: int) -> None:
    batch[0][i] = 3


def padded_tokens(n: int) -> Batch:
    x = torch.randint(1, V, (n, 6))
    return (x * (torch.arange(6) < torch.randint(2, 7, (n, 1))),)


def model(*layers: Maker) -> Make:
    return lambda: (nn.Sequential(*(layer() for layer in layers)), outputs)


def outputs(m: nn.Module, x: Tensor) -> Any:
    found = m(x)
    found = found[0] if isinstance(found, tuple) else found
    return found.flatten(1).sin().sum(1)


def calls(call: Callable[[Any, Tensor], Any], *layers: Maker) -> Any:
    return lambda: (called(call, *layers)(), outputs)


def language(*, masked: bool = False) -> nn.Module:
    """A small transformer whose table is its head as well."""

    def forward(m: Any, x: Tensor) -> Any:
        h = m.layer(m.table(x) + m.places, src_key_padding_mask=(x == 0) if masked else None)
        return h @ m.table.weight.t()

    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    return Of(forward, table=nn.Embedding(V, 8), places=nn.Parameter(torch.rand(6, 8)), layer=layer)


def next_tokens(m: nn.Module, x: Tensor) -> Tensor:
    each = F.cross_entropy(m(x)[:, :-1].transpose(1, 2), x[:, 1:], reduction="none")
    kept = (x[:, 1:] != 0).to(each)
    return (each * kept).sum(1) / kept.sum(1).clamp(min=1)


def own_attention(m: Any, x: Tensor) -> Tensor:
    h = m[0](x)
    return F.scaled_dot_product_attention(h, h, h)


def own_expert(m: Any, x: Tensor) -> Tensor:
    gate = m[0](x).softmax(1)
    best = gate * (gate >= gate.amax(1, keepdim=True))
    return torch.stack([layer(x) for layer in m[1:]], 1).mul(best[..., None]).sum(1)


def noted(note: Callable[[Tensor], object]) -> Make:
    """The loss keeps a list of its own."""

    def make() -> Trained:
        notes: list[object] = []

        def loss(m: Net, x: Tensor) -> Any:
            found = head(m, m.first(x))
            notes.append(note(found))
            return found

        return Net(), loss

    return make


def normalised_weights(m: Net, x: Tensor) -> Any:
    with torch.no_grad():
        m.first.weight.copy_(F.normalize(m.first.weight.double()).float())
    return head(m, m.first(x))


def images(layer: Maker) -> Make:
    return model(lambda: nn.Conv2d(2, 4, 3), layer, nn.ReLU, lambda: nn.Conv2d(4, 2, 2))


SCHEDULE = {"now": 0.5}
"""A number of the user's own, which is set between the steps."""
ISOLATED_MODELS = coupled(
    "none",
    ISOLATED,
    {
        "perceptron": model(lambda: nn.Linear(4, 6), nn.Tanh, lambda: nn.Linear(6, 3)),
        "ReLU, residual": calls(
            lambda m, x: x + m[1](m[0](x).relu()), lambda: nn.Linear(4, 6), lambda: nn.Linear(6, 4)
        ),
        "BatchNorm in evaluation": model(
            lambda: nn.Linear(4, 6), lambda: nn.BatchNorm1d(6).eval(), lambda: nn.Linear(6, 3)
        ),
        "bare scale and shift": before(lambda m, x: x * (1 + m.table[0]) + m.table[1]),
        "tied weights": by(lambda m, x: F.linear(m.first(x).tanh(), m.first.weight.t()).sin().sum(1)),
        "layer used twice": calls(lambda m, x: m[0](m[0](x).sin()), lambda: nn.Linear(4, 4)),
        "largest three of a record": between(lambda m, h: h * (h >= h.topk(3, dim=1).values[:, -1:])),
        "softmax over a record": between(lambda m, h: h.softmax(1)),
        "sorted within a record": between(lambda m, h: h.sort(1).values),
        "divided by a record's own norm": between(lambda m, h: h / (1 + h.norm(dim=1, keepdim=True))),
        "experts without a capacity": calls(
            own_expert, lambda: nn.Linear(4, 2), lambda: nn.Linear(4, 3), lambda: nn.Linear(4, 3)
        ),
        "weight penalty in each loss": by(
            lambda m, x: head(m, m.first(x)) + 0.1 * m.second.weight.square().sum()
        ),
        "one number of each record": by(
            lambda m, x: head(m, h := m.first(x)) + h[torch.arange(len(x)), x.argmax(1)]
        ),
        "counts its calls in a list": noted(len),
        "logs its losses": noted(lambda found: found.detach()),
        "checkpoint": by(lambda m, x: head(m, checkpoint(m.first, x, use_reentrant=False))),
        "weight from the user's schedule": weighted(lambda x: SCHEDULE["now"]),
        "normalises its own weights": by(normalised_weights),
        "large terms that cancel": by(lambda m, x: head(m, m.first(x)) + (len(x) - len(x))),
        "frozen features": calls(
            lambda m, x: m[1](m[0](x).detach()),
            lambda: nn.Linear(4, 6).requires_grad_(False),
            lambda: nn.Linear(6, 3),
        ),
        "weight_norm": model(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))),
        "einsum with a parameter": by(
            lambda m, x: head(m, m.first(x)) + torch.einsum("bd,td->bt", x, m.table[:3]).sin().sum(1)
        ),
    },
)
ISOLATED_MODELS += coupled(
    "none",
    ISOLATED,
    {
        "LayerNorm": model(lambda: nn.Linear(4, 6), lambda: nn.LayerNorm(6), lambda: nn.Linear(6, 3)),
        "LSTM": model(lambda: nn.LSTM(4, 6, batch_first=True)),
        "GRU": model(lambda: nn.GRU(4, 6, batch_first=True)),
        "LSTM with time first": calls(
            lambda m, x: m[0](x.transpose(0, 1))[0].transpose(0, 1), lambda: nn.LSTM(4, 6)
        ),
        "attention": calls(own_attention, lambda: nn.Linear(4, 4)),
        "MultiheadAttention": calls(
            lambda m, x: m[0](x, x, x, need_weights=False)[0],
            lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        ),
        "cumsum over positions": before(lambda m, x: x.cumsum(1)),
        "flipped in time": before(lambda m, x: x.flip(1)),
        "positions flattened in order": by(
            lambda m, x: m.second(m.first(x.flatten(0, 1)).sin()).view(len(x), -1).sin().sum(1)
        ),
        "centred on a record's own mean": before(lambda m, x: x - x.mean(1, keepdim=True)),
        "positions from a buffer along time": before(lambda m, x: x + m.waves[: x.shape[1]]),
        "padded by a constant": before(lambda m, x: F.pad(x, (0, 0, 1, 1))),
    },
    records=vectors(5, 4),
)
ISOLATED_MODELS += coupled(
    "none",
    ISOLATED,
    {
        "convolutions": images(nn.Identity),
        "GroupNorm": images(lambda: nn.GroupNorm(2, 4)),
        "InstanceNorm": images(lambda: nn.InstanceNorm2d(4, affine=True)),
        "max pooling": images(lambda: nn.MaxPool2d(2)),
    },
    records=vectors(2, 8, 8),
)
ISOLATED_MODELS += coupled(
    "none",
    ISOLATED,
    {
        "dropout": model(lambda: nn.Linear(4, 6), nn.Dropout, lambda: nn.Linear(6, 3)),
        "noise of each record": between(lambda m, h: h + torch.randn(len(h), 6)),
        "depth drawn for each record": between(lambda m, h: h * h.new_empty(len(h), 1).bernoulli_(0.8)),
    },
    draws=True,
)
ISOLATED_MODELS += coupled(
    "none",
    ISOLATED,
    {
        "embedding": model(lambda: nn.Embedding(V, 4), lambda: nn.Linear(4, 3)),
        "language model": lambda: (language(), next_tokens),
    },
    records=tokens,
    rig=one_token,
)
ISOLATED_MODELS += coupled(
    "none",
    ISOLATED,
    {"attention masked by a record's own padding": lambda: (language(masked=True), next_tokens)},
    records=padded_tokens,
    rig=one_token,
)
