"""Models and losses in which no record reaches another: they look like couplings, and must stay fast.

Letters: n records; T positions; d numbers at each; V tokens; m the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from coupling import ISOLATED, Batch, Coupling, vectors
from couplings_of_values import Net, head
from oracles import Loss
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


def model(*layers: Callable[[], nn.Module]) -> Callable[[], tuple[nn.Module, Loss]]:
    return lambda: (nn.Sequential(*(layer() for layer in layers)), outputs)


def outputs(m: nn.Module, x: Tensor) -> Tensor:
    found = m(x)
    found = found[0] if isinstance(found, tuple) else found
    return torch.as_tensor(found.flatten(1).sin().sum(1))


def loss_of(loss: Loss, kind: Callable[[], nn.Module] = Net) -> Callable[[], tuple[nn.Module, Loss]]:
    return lambda: (kind(), loss)


class Call(nn.Module):
    """Layers, and how they are called."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.call = nn.ModuleList(layers), call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layers, x)


def called(call: Callable[[Any, Tensor], Tensor], *layers: Callable[[], nn.Module]) -> Any:
    return lambda: (Call(call, *(layer() for layer in layers)), outputs)


class Language(nn.Module):
    """A small transformer whose table is its head as well."""

    def __init__(self, *, masked: bool = False) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(V, 8), nn.Parameter(torch.rand(6, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        mask = (x == 0) if self.masked else None
        h = self.layer(self.table(x) + self.places, src_key_padding_mask=mask)
        return torch.as_tensor(h @ self.table.weight.t())


def next_tokens(m: nn.Module, x: Tensor) -> Tensor:
    each = F.cross_entropy(m(x)[:, :-1].transpose(1, 2), x[:, 1:], reduction="none")
    kept = (x[:, 1:] != 0).to(each)
    return (each * kept).sum(1) / kept.sum(1).clamp(min=1)


def own_attention(m: Any, x: Tensor) -> Tensor:
    h = m[0](x)
    return F.scaled_dot_product_attention(h, h, h)


def own_top(m: Net, x: Tensor) -> Tensor:
    h = m.first(x)
    return head(m, h * (h >= h.topk(3, dim=1).values[:, -1:]))


def own_expert(m: Any, x: Tensor) -> Tensor:
    gate = m[0](x).softmax(1)
    best = gate * (gate >= gate.amax(1, keepdim=True))
    return torch.stack([layer(x) for layer in m[1:]], 1).mul(best[..., None]).sum(1)


def own_penalty(m: Net, x: Tensor) -> Tensor:
    return head(m, m.first(x)) + 0.1 * m.second.weight.square().sum()


def own_gather(m: Net, x: Tensor) -> Tensor:
    h = m.first(x)
    return torch.as_tensor(head(m, h) + h[torch.arange(len(x)), x.argmax(1)])


def counted() -> tuple[nn.Module, Loss]:
    calls: list[int] = []

    def loss(m: Net, x: Tensor) -> Tensor:
        calls.append(len(x))
        return head(m, m.first(x))

    return Net(), loss


def logged() -> tuple[nn.Module, Loss]:
    log: list[Tensor] = []

    def loss(m: Net, x: Tensor) -> Tensor:
        log.append(head(m, m.first(x)).detach())
        return head(m, m.first(x))

    return Net(), loss


def own_norm(m: Net, x: Tensor) -> Tensor:
    h = m.first(x)
    return head(m, h / (1 + h.norm(dim=1, keepdim=True)))


def noisy(m: Net, x: Tensor) -> Tensor:
    return head(m, m.first(x) + torch.randn(len(x), 6))


def recomputed(m: Net, x: Tensor) -> Tensor:
    return head(m, torch.as_tensor(checkpoint(m.first, x, use_reentrant=False)))


def scheduled() -> tuple[nn.Module, Loss]:
    """A number of the user's own, which is set between the steps."""
    weight = {"now": 0.5}
    return Net(), lambda m, x: head(m, m.first(x)) * weight["now"]


def normalised_weights(m: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.first.weight.copy_(F.normalize(m.first.weight.double()).float())
    return head(m, m.first(x))


def tied(m: Net, x: Tensor) -> Tensor:
    return F.linear(m.first(x).tanh(), m.first.weight.t()).sin().sum(1)


def positions_flat(m: Net, x: Tensor) -> Tensor:
    h = m.second(m.first(x.flatten(0, 1)).sin())
    return torch.as_tensor(h.view(len(x), -1).sin().sum(1))


def images(layer: Callable[[], nn.Module]) -> Callable[[], tuple[nn.Module, Loss]]:
    return model(lambda: nn.Conv2d(2, 4, 3), layer, nn.ReLU, lambda: nn.Conv2d(4, 2, 2))


FLOATS: dict[str, tuple[tuple[int, ...], Callable[[], tuple[nn.Module, Loss]]]] = {
    "perceptron": ((4,), model(lambda: nn.Linear(4, 6), nn.Tanh, lambda: nn.Linear(6, 3))),
    "ReLU, residual": (
        (4,),
        called(lambda m, x: x + m[1](m[0](x).relu()), lambda: nn.Linear(4, 6), lambda: nn.Linear(6, 4)),
    ),
    "convolutions": ((2, 7, 7), images(nn.Identity)),
    "GroupNorm": ((2, 7, 7), images(lambda: nn.GroupNorm(2, 4))),
    "InstanceNorm": ((2, 7, 7), images(lambda: nn.InstanceNorm2d(4, affine=True))),
    "max pooling": ((2, 8, 8), images(lambda: nn.MaxPool2d(2))),
    "LayerNorm": ((5, 4), model(lambda: nn.Linear(4, 6), lambda: nn.LayerNorm(6), lambda: nn.Linear(6, 3))),
    "BatchNorm in evaluation": (
        (4,),
        model(lambda: nn.Linear(4, 6), lambda: nn.BatchNorm1d(6).eval(), lambda: nn.Linear(6, 3)),
    ),
    "LSTM": ((5, 4), model(lambda: nn.LSTM(4, 6, batch_first=True))),
    "GRU": ((5, 4), model(lambda: nn.GRU(4, 6, batch_first=True))),
    "LSTM with time first": (
        (5, 4),
        called(lambda m, x: m[0](x.transpose(0, 1))[0].transpose(0, 1), lambda: nn.LSTM(4, 6)),
    ),
    "attention": ((5, 4), called(own_attention, lambda: nn.Linear(4, 4))),
    "MultiheadAttention": (
        (5, 4),
        called(
            lambda m, x: m[0](x, x, x, need_weights=False)[0],
            lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        ),
    ),
    "bare scale and shift": ((4,), loss_of(lambda m, x: head(m, m.first(x * (1 + m.table[0]) + m.table[1])))),
    "tied weights": ((4,), loss_of(tied)),
    "layer used twice": ((4,), called(lambda m, x: m[0](m[0](x).sin()), lambda: nn.Linear(4, 4))),
    "largest three of a record": ((4,), loss_of(own_top)),
    "softmax over a record": ((4,), loss_of(lambda m, x: head(m, m.first(x).softmax(1)))),
    "cumsum over positions": ((5, 4), loss_of(lambda m, x: head(m, m.first(x.cumsum(1)).mean(1)))),
    "sorted within a record": ((4,), loss_of(lambda m, x: head(m, m.first(x).sort(1).values))),
    "flipped in time": ((5, 4), loss_of(lambda m, x: head(m, m.first(x.flip(1)).mean(1)))),
    "divided by a record's own norm": ((4,), loss_of(own_norm)),
    "experts without a capacity": (
        (4,),
        called(own_expert, lambda: nn.Linear(4, 2), lambda: nn.Linear(4, 3), lambda: nn.Linear(4, 3)),
    ),
    "weight penalty in each loss": ((4,), loss_of(own_penalty)),
    "one number of each record": ((4,), loss_of(own_gather)),
    "positions flattened in order": ((5, 4), loss_of(positions_flat)),
    "centred on a record's own mean": (
        (5, 4),
        loss_of(lambda m, x: head(m, m.first(x - x.mean(1, keepdim=True)).mean(1))),
    ),
    "positions from a buffer along time": (
        (5, 4),
        loss_of(lambda m, x: head(m, m.first(x + m.waves[: x.shape[1]]).mean(1))),
    ),
    "padded by a constant": ((5, 4), loss_of(lambda m, x: head(m, m.first(F.pad(x, (0, 0, 1, 1))).mean(1)))),
    "counts its calls in a list": ((4,), counted),
    "logs its losses": ((4,), logged),
    "checkpoint": ((4,), loss_of(recomputed)),
    "weight from the user's schedule": ((4,), scheduled),
    "normalises its own weights": ((4,), loss_of(normalised_weights)),
    "large terms that cancel": ((4,), loss_of(lambda m, x: head(m, m.first(x)) + (len(x) - len(x)))),
    "frozen features": (
        (4,),
        called(
            lambda m, x: m[1](m[0](x).detach()),
            lambda: nn.Linear(4, 6).requires_grad_(False),
            lambda: nn.Linear(6, 3),
        ),
    ),
    "weight_norm": (
        (4,),
        called(lambda m, x: m[0](x), lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))),
    ),
    "einsum with a parameter": (
        (4,),
        loss_of(
            lambda m, x: torch.as_tensor(
                head(m, m.first(x)) + torch.einsum("bd,td->bt", x, m.table[:3]).sin().sum(1)
            )
        ),
    ),
}
DRAWS: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {
    "dropout": model(lambda: nn.Linear(4, 6), nn.Dropout, lambda: nn.Linear(6, 3)),
    "noise of each record": loss_of(noisy),
    "depth drawn for each record": loss_of(
        lambda m, x: head(m, m.first(x) * x.new_empty(len(x), 1).bernoulli_(0.8))
    ),
}
ISOLATED_MODELS = [
    Coupling(name, "none", make, ISOLATED, vectors(*shape)) for name, (shape, make) in FLOATS.items()
]
ISOLATED_MODELS += [Coupling(name, "none", make, ISOLATED, draws=True) for name, make in DRAWS.items()]
ISOLATED_MODELS += [
    Coupling(
        "embedding",
        "none",
        model(lambda: nn.Embedding(V, 4), lambda: nn.Linear(4, 3)),
        ISOLATED,
        tokens,
        one_token,
    ),
    Coupling(
        "language model",
        "none",
        lambda: (Language(), next_tokens),
        ISOLATED,
        tokens,
        one_token,
    ),
    Coupling(
        "attention masked by a record's own padding",
        "none",
        lambda: (Language(masked=True), next_tokens),
        ISOLATED,
        padded_tokens,
        one_token,
    ),
]
