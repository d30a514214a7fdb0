"""Both engines against a plain loop of one autograd.grad per record, for every layer, rule and view count."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from oracles import Loss, step, waves
from torch import Tensor, nn

from tacit.clipping import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    MemoryBudget,
    PerLayerClipping,
)
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import parameter
from tacit.clipping.reference import ReferenceEngine

RULES: dict[str, ClippingRule] = {
    "flat": FlatClipping(0.3),
    "per-layer": PerLayerClipping(0.4),
    "automatic": AutomaticClipping(0.3),
    "adaptive": AdaptiveClipping(initial_norm=0.2),
}
ROWS = 6


def loop_oracle(
    model: nn.Module, loss: Loss, rule: ClippingRule, batch: tuple[Tensor, ...], views: int
) -> dict[str, Tensor]:
    """The clipped sum by its definition: a loop of backward passes and the rules' formulas, written anew."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    total = {name: torch.zeros_like(model.get_parameter(name)) for name in names}
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    for i in range(len(batch[0]) // views):
        rows = tuple(t[i * views : (i + 1) * views] for t in batch)
        mean_loss = torch.stack([loss(model, *(r[j : j + 1] for r in rows))[0] for j in range(views)]).mean()
        grads = torch.autograd.grad(
            mean_loss, [model.get_parameter(n) for n in names], allow_unused=True, materialize_grads=True
        )
        split = {name: modules.index(name.rpartition(".")[0]) for name in names}
        if not isinstance(rule, PerLayerClipping):
            split = dict.fromkeys(names, 0)
        for group in sorted(set(split.values())):
            members = [(n, g) for n, g in zip(names, grads, strict=True) if split[n] == group]
            norm = math.sqrt(sum(float((g * g).sum()) for _, g in members))
            match rule:
                case FlatClipping(norm=C):
                    factor = 1.0 if norm <= C else C / norm
                case PerLayerClipping(norm=C):
                    C_g = C / math.sqrt(len(modules))
                    factor = 1.0 if norm <= C_g else C_g / norm
                case AutomaticClipping(norm=C, stability=s):
                    factor = C / (norm + s)
                case AdaptiveClipping(initial_norm=C):
                    factor = 1.0 if norm <= C else C / norm
                case _:
                    raise AssertionError(rule)
            for name, g in members:
                total[name] += factor * g
    return total


@dataclass(frozen=True)
class Case:
    """A model, its loss and its inputs; ``fast`` is False where the batch goes to the reference engine."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    fast: bool = True


def images(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    """Random rows of a shape."""
    return lambda: (torch.randn(ROWS, *shape, dtype=torch.float64),)


class Tied(nn.Module):
    """A language model whose head is its embedding table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, padding_idx=2)
        self.head = nn.Linear(4, 9)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).tanh())  # type: ignore[no-any-return]


class Call(nn.Module):
    """Layers, and how they are called."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layers, x)


def call(function: Callable[[Any, Tensor], Tensor], *layers: Callable[[], nn.Module]) -> Callable[[], Call]:
    return lambda: Call(function, *(make() for make in layers))


def again(m: Any, x: Tensor) -> Tensor:
    """One layer applied twice."""
    return m[0](m[0](x).tanh())  # type: ignore[no-any-return]


def in_order(way: Callable[[Any, Tensor, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """A layer that sees the rows in another order, which is undone behind it."""

    def function(m: Any, x: Tensor) -> Tensor:
        order = x.sum(1).argsort()
        return way(m[0], x, order)

    return function


def forces(m: Any, x: Tensor) -> Tensor:
    """Takes a gradient within its forward pass."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        slope = torch.autograd.grad(m[0](x).sin().sum(), x)[0]
    return m[0](slope.detach())  # type: ignore[no-any-return]


class Block(nn.Module):
    """A pre-norm transformer block, written out, with a token and a position table."""

    def __init__(self, expanded: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8, bias=False)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.expanded = expanded

    def forward(self, ids: Tensor) -> Tensor:
        B, T = ids.shape
        places = torch.arange(T, device=ids.device)
        x = self.tokens(ids) + self.places(places.expand(B, T) if self.expanded else places)
        q, k, v = (t.view(B, T, 2, 4).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, 8)
        x = x + self.out(y)
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(self.norm3(x))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Multi-head attention in its variants."""

    def __init__(self, *, kdim: int | None = None, other: bool = False, weights: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, kdim=kdim, vdim=kdim, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)
        self.kdim, self.other, self.weights = kdim, other, weights

    def forward(self, x: Tensor) -> Tensor:
        keys = x[..., : self.kdim].flip(1) if self.kdim is not None or self.other else x
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        padding[:, -1] = True
        out, weights = self.attention(
            x, keys, keys, key_padding_mask=padding, attn_mask=later, need_weights=self.weights
        )
        return torch.cat([out, weights], dim=2) if self.weights else out


class Scan(nn.Module):
    """A cell stepped by hand."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        assert state is not None
        return state[0] if isinstance(state, tuple) else state  # type: ignore[no-any-return]


class Bare(nn.Module):
    """Parameters outside layers: scales, biases, a class token, a matrix, a position buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(1, 3, 1))
        self.token, self.matrix = nn.Parameter(torch.rand(1, 1, 4)), nn.Parameter(torch.rand(4, 2))
        self.gain, self.slope = nn.Parameter(torch.rand(())), nn.PReLU(3)
        self.places = nn.Linear(2, 4)
        self.register_buffer("grid", torch.rand(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.slope(x * self.scale + self.shift - 2 * self.scale)
        x = torch.cat([x + self.places(self.grid), self.token.expand(len(x), -1, -1)], dim=1)
        return (self.gain - x) @ self.matrix


class Heads(nn.Module):
    """One matrix for each head, and back, by ``einsum`` and by ``matmul``."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.mix = (nn.Parameter(torch.rand(*s)) for s in ((2, 4, 3), (2, 3, 4), (6, 6)))

    def forward(self, x: Tensor) -> Tensor:
        heads = torch.einsum("btd,hdk->bhtk", x, self.into) + x[:, None] @ self.into
        return torch.einsum("bhtk,hkd->btd", (heads @ self.out @ self.into).sin(), self.out) + self.mix @ x


class Standardised(nn.Conv2d):
    """Weights of mean 0 and variance 1 for each output."""

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        weight = (self.weight - mean) / (variance + 1e-6).sqrt()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Patched(nn.Linear):
    """A layer with a custom forward pass, and a weight that is used again by hand."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight * 2).T + self.bias.exp() + F.linear(x, self.weight.sin(), self.bias)


def patched_forward() -> nn.Module:
    """A layer whose method was replaced on the instance."""
    layer = nn.Linear(4, 3)

    def forward(input: Tensor) -> Tensor:  # noqa: A002
        return F.linear(input.sin(), layer.weight * 3, layer.bias)

    layer.forward = forward  # type: ignore[method-assign]
    return layer


def cube(w: Tensor) -> Tensor:
    return w**3


class Derived(nn.Module):
    """Two weights made of one parameter, and each of one more; the first parameter is used as it is, too."""

    def __init__(self, cube: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
        self.scale, self.shift = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(()))
        self.cube = cube

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x, self.cube(self.weight) * self.scale.tanh(), self.bias).tanh()
        return F.linear(F.linear(h, self.weight), self.weight.t().exp() + self.shift)


class Bypass(nn.Module):
    """Some parameters frozen, some unused."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.used, self.unused = nn.Linear(5, 5), nn.Linear(5, 4), nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.used.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.frozen(x).relu_())  # type: ignore[no-any-return]


class LearnedState(nn.Module):
    """A recurrent layer that starts from a parameter."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.start = layer, nn.Parameter(torch.rand(1, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.GRUCell):
            return self.layer(x, self.start[0].repeat(len(x), 1))  # type: ignore[no-any-return]
        return self.layer(x, self.start.repeat(1, len(x), 1))[0]  # type: ignore[no-any-return]


class LearnedMask(nn.Module):
    """Attention with a learned bias of the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.mask = nn.Parameter(torch.rand(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, attn_mask=self.mask)[0]  # type: ignore[no-any-return]


def ids(length: int, numbers: int) -> Callable[[], tuple[Tensor, ...]]:
    """Random numbers, with repetitions in a row."""
    return lambda: (torch.randint(0, numbers, (ROWS, length)),)


def frozen(model: nn.Module, name: str) -> nn.Module:
    """A model with one parameter frozen."""
    model.get_parameter(name).requires_grad_(False)
    return model


def padded(mode: Literal["reflect", "replicate", "circular"]) -> Case:
    """A convolution with a padding mode."""
    return Case(
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode), nn.Tanh()), images(2, 5, 6)
    )


CASES = {
    "linear": Case(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)), images(5)),
    "linear T": Case(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), images(7, 5)),
    "linear ghost": Case(
        lambda: nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 50)), images(2, 40)
    ),
    "linear 4-D": Case(lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), images(2, 3, 5)),
    "conv1d": Case(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Conv1d(4, 6, 2, groups=2)
        ),
        images(2, 9),
    ),
    "conv2d": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 2, dilation=2)
        ),
        images(2, 9, 8),
    ),
    "conv2d large": Case(
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3, bias=False)),
        images(2, 18, 17),
    ),
    "conv2d groups": Case(
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, groups=2, padding=(1, 0)), nn.Tanh(), nn.Conv2d(6, 6, 2, groups=6)
        ),
        images(4, 5, 6),
    ),
    "conv2d same": Case(lambda: nn.Conv2d(2, 3, (3, 4), padding="same", dilation=(1, 2)), images(2, 6, 7)),
    "conv2d valid": Case(lambda: nn.Conv2d(2, 3, 3, padding="valid"), images(2, 6, 7)),
    "conv3d": Case(
        lambda: nn.Sequential(nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding=1), nn.Tanh(), nn.Conv3d(3, 2, 2)),
        images(2, 4, 5, 4),
    ),
    "conv2d reflect": padded("reflect"),
    "conv2d circular": padded("circular"),
    "conv2d replicate": padded("replicate"),
    "embedding": Case(lambda: nn.Embedding(7, 3, padding_idx=-2), ids(6, 7)),
    "embedding 1-D": Case(lambda: nn.Embedding(7, 3), lambda: (torch.randint(0, 7, (ROWS,)),)),
    "shift alone": Case(lambda: frozen(nn.LayerNorm(4), "weight"), images(3, 4)),
    "scale alone": Case(lambda: frozen(nn.LayerNorm(4), "bias"), images(3, 4)),
    "bias alone": Case(lambda: frozen(nn.Linear(4, 3), "weight"), images(3, 4)),
    "conv bias alone": Case(lambda: frozen(nn.Conv1d(2, 3, 2), "weight"), images(2, 4)),
    "layer norm": Case(
        lambda: nn.Sequential(nn.LayerNorm((3, 4)), nn.Tanh(), nn.LayerNorm(4, bias=False)), images(3, 4)
    ),
    "rms norm": Case(lambda: nn.RMSNorm(4), images(3, 4)),
    "group norm": Case(
        lambda: nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(inplace=True)), images(2, 5, 5)
    ),
    "instance norm": Case(lambda: nn.InstanceNorm2d(3, affine=True), images(3, 4, 4)),
    "batch norm eval": Case(lambda: nn.BatchNorm1d(4).eval(), images(4)),
    "rnn": Case(lambda: nn.RNN(3, 4, num_layers=2, batch_first=True), images(5, 3)),
    "rnn relu": Case(lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False, batch_first=True), images(5, 3)),
    "lstm": Case(lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True), images(5, 3)),
    "gru": Case(lambda: nn.GRU(3, 4, bidirectional=True, batch_first=True), images(5, 3)),
    "rnn cell": Case(lambda: Scan(nn.RNNCell(3, 4)), images(4, 3)),
    "rnn relu cell": Case(lambda: Scan(nn.RNNCell(3, 4, bias=False, nonlinearity="relu")), images(4, 3)),
    "lstm cell": Case(lambda: Scan(nn.LSTMCell(3, 4)), images(4, 3)),
    "gru cell": Case(lambda: Scan(nn.GRUCell(3, 4)), images(4, 3)),
    "attention": Case(Attention, images(5, 4)),
    "attention weights": Case(lambda: Attention(weights=True), images(5, 4)),
    "attention keys": Case(lambda: Attention(other=True), images(5, 4)),
    "attention kdim": Case(lambda: Attention(kdim=3), images(5, 4)),
    "encoder layer": Case(
        lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True), images(5, 4)
    ),
    "decoder layer": Case(
        lambda: nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, batch_first=True),
        lambda: (images(5, 4)()[0], images(3, 4)()[0]),
    ),
    "gpt": Case(lambda: Block(expanded=True), ids(6, 11)),
    "gpt places": Case(lambda: Block(expanded=False), ids(5, 11)),
    "tied": Case(Tied, ids(5, 9)),
    "reused linear": Case(call(again, lambda: nn.Linear(4, 4)), images(4)),
    "reused conv": Case(call(again, lambda: nn.Conv2d(2, 2, 3, padding=1)), images(2, 4, 4)),
    "reused norm": Case(call(again, lambda: nn.LayerNorm(4)), images(3, 4)),
    "autoencoder": Case(
        call(lambda m, x: F.linear(m[0](x).tanh(), m[0].weight.t()) - x, lambda: nn.Linear(5, 3)), images(5)
    ),
    "weight norm": Case(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), images(4)),
    "two derived": Case(lambda: Derived(cube), images(4)),
    "bare": Case(Bare, images(3, 4)),
    "penalty": Case(
        call(lambda m, x: m[0](x) + 0.1 * m[0].weight.square().sum(), lambda: nn.Linear(5, 4)), images(5)
    ),
    "frozen": Case(Bypass, images(5)),
    "learned state": Case(lambda: LearnedState(nn.GRU(3, 4, batch_first=True)), images(5, 3)),
    "learned cell state": Case(lambda: LearnedState(nn.GRUCell(3, 4)), images(3)),
    "learned mask": Case(LearnedMask, images(5, 4)),
    "gated": Case(
        call(
            lambda m, x: F.linear(x, m[0].weight * m[1](x.new_ones(1, 2)).squeeze()),
            lambda: nn.Linear(4, 3, bias=False),
            lambda: nn.Linear(2, 1),
        ),
        images(4),
    ),
    "time-first lstm": Case(
        call(lambda m, x: m[0](x.transpose(0, 1))[0].transpose(0, 1), lambda: nn.LSTM(3, 4)), images(5, 3)
    ),
    "sorted": Case(call(in_order(lambda m, x, o: m(x[o])[o.argsort()]), lambda: nn.Linear(4, 3)), images(4)),
    "sorted select": Case(
        call(
            in_order(lambda m, x, o: m(x.index_select(0, o)).index_select(dim=0, index=o.argsort())),
            lambda: nn.Linear(4, 3),
        ),
        images(4),
    ),
    "flipped": Case(call(in_order(lambda m, x, o: m(x.flip(0)).flip(0)), lambda: nn.Linear(4, 3)), images(4)),
    "picked": Case(
        call(in_order(lambda m, x, o: m(x)[torch.arange(len(x)), :]), lambda: nn.Linear(4, 3)), images(4)
    ),
    "bilinear": Case(lambda: nn.Bilinear(4, 3, 2), lambda: (images(4)()[0], images(3)()[0])),
    "transposed": Case(lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), images(2, 4, 4)),
    "time first": Case(
        call(lambda m, x: m[0](x.transpose(0, 1)).transpose(0, 1), lambda: nn.Linear(3, 4)), images(5, 3)
    ),
    "flattened": Case(
        call(lambda m, x: m[0](x.flatten(0, 1)).view(*x.shape[:2], 4), lambda: nn.Linear(3, 4)), images(5, 3)
    ),
    "heads": Case(Heads, images(6, 4)),
    "weight standardisation": Case(
        lambda: nn.Sequential(Standardised(2, 4, 3), nn.Tanh(), Standardised(4, 4, 3, stride=2, groups=2)),
        images(2, 8, 8),
    ),
    "subclass with a forward pass": Case(lambda: Patched(4, 3), images(4)),
    "patched forward pass": Case(patched_forward, images(4)),
    "adapter": Case(
        call(
            lambda m, x: m[0](x) + m[2](m[1](x)),
            lambda: nn.Linear(6, 6).requires_grad_(False),
            lambda: nn.Linear(6, 2, bias=False),
            lambda: nn.Linear(2, 6, bias=False),
        ),
        images(4, 6),
    ),
    "dropout of nothing": Case(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.ReLU(inplace=True)), images(4)
    ),
}


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_engines_equal_the_loop(case: Case, rule: ClippingRule, views: int) -> None:
    model, batch = case.make().double(), case.inputs()
    wanted = loop_oracle(model, waves, rule, batch, views)
    fast = FastEngine(model, waves, rule, views=views)
    for engine in (fast, ReferenceEngine(model, waves, rule, views=views)):
        found = step(engine, *batch)[0]
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert value.abs().max() > 0 or name.startswith("unused"), name
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("rule", [RULES["flat"], RULES["per-layer"]], ids=["flat", "per-layer"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_engines_on_cuda_equal_the_loop(case: Case, rule: ClippingRule, views: int) -> None:
    model, batch = case.make().double(), case.inputs()
    wanted = loop_oracle(model, waves, rule, batch, views)
    there, moved = model.cuda(), tuple(t.cuda() for t in batch)
    fast = FastEngine(there, waves, rule, views=views)
    for engine in (fast, ReferenceEngine(there, waves, rule, views=views)):
        found = {name: value.cpu() for name, value in step(engine, *moved)[0].items()}
        for name, value in wanted.items():
            off = float((found[name] - value).norm() / value.norm().clamp(min=1e-3))
            bound = 1e-6 if case is CASES["weight norm"] else 1e-9  # torch's own rounds to float32 there
            assert off < bound, f"{name} by {type(engine).__name__}: {off:.1e}"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # torch's own, for RMSNorm under autocast
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_record_that_is_not_finite_leaves_the_others_on_cuda(
    case: Case, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    model, inputs = case.make().float().cuda(), tuple(t.cuda() for t in case.inputs())
    batch = tuple(t.float() if t.is_floating_point() else t for t in inputs)
    weights = torch.ones(len(batch[0]), device="cuda")

    def losses(model: nn.Module, *batch: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            return waves(model, *batch[:-1]).float() * batch[-1]

    def found(broken: float) -> dict[str, Tensor]:
        weights[1] = broken
        return step(FastEngine(model, losses, FlatClipping(0.3)), *batch, weights)[0]

    without, with_it = found(0.0), found(math.inf)  # in a batch of the same size, which rounds alike
    # Cells begin with zeros, by which nothing is proven: their batch goes in halves, which round otherwise.
    bound = 3e-2 if autocast and hasattr(model, "cell") else 1e-4
    for name, value in without.items():
        torch.testing.assert_close(with_it[name], value, rtol=bound, atol=bound / 10, msg=name)


@pytest.mark.thorough(cases=32)
@pytest.mark.untraced
@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch's own, in float32
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_record_that_is_not_finite_leaves_the_others_as_they_are(
    case: Case, views: int, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where as many small gradients are joined as on a CUDA device, in single precision."""
    dtype, rtol, atol = (torch.float32, 1e-3, 1e-4) if joined else (torch.float64, 1e-10, 1e-12)
    if joined:
        monkeypatch.setitem(parameter.SMALL, "cpu", parameter.SMALL["cuda"])
    model = case.make().to(dtype)
    batch = tuple(t.to(dtype) if t.is_floating_point() else t for t in case.inputs())
    weights = torch.ones(len(batch[0]), dtype=dtype)
    broken = torch.arange(len(weights)) // views == 1
    weights[broken] = torch.inf

    def losses(model: nn.Module, *batch: Tensor) -> Tensor:
        return waves(model, *batch[:-1]) * batch[-1]

    for rule in (RULES["flat"], RULES["per-layer"]):
        wanted = loop_oracle(model, waves, rule, tuple(t[~broken] for t in batch), views)
        found = step(FastEngine(model, losses, rule, views=views), *batch, weights)[0]
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=rtol, atol=atol, msg=name)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("slack", [0.0, 1e9], ids=["ghost", "kept"])
@pytest.mark.parametrize(
    "case", ["linear T", "linear 4-D", "gpt", "lstm", "attention", "reused linear", "tied"]
)
def test_every_form_of_a_linear_layer_is_the_same(case: str, slack: float, views: int) -> None:
    model, batch = CASES[case].make().double(), CASES[case].inputs()
    wanted = loop_oracle(model, waves, RULES["flat"], batch, views)
    budget = MemoryBudget(linear_slack=slack)
    engine = FastEngine(model, waves, RULES["flat"], views=views, budget=budget)
    found = step(engine, *batch)[0]
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=name)


def test_what_is_not_reached_has_gradients_of_zero() -> None:
    """An operation may stand in the graph and hand nothing on."""
    w, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    found = parameter._pulled([w.exp()], other, [torch.ones(5, 3)])
    assert torch.equal(found, torch.zeros(5, 2))
