"""Both engines against a plain loop of one autograd.grad per record, for every layer, rule and view count."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from oracles import (
    Batch,
    Kind,
    Loss,
    Maker,
    Of,
    Shape,
    Sums,
    both,
    by_definition,
    called,
    clipped_sum,
    double,
    each,
    equal,
    equals_a_loop,
    is_refused,
    most_moved,
    one_or_two_views,
    step,
    sums_of,
    waves,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tacit.clipping import (
    FAST,
    LEAN,
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    MemoryBudget,
    PerLayerClipping,
)
from tacit.clipping.engine import GradientEngine
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


@dataclass(frozen=True)
class Case:
    """A model and its inputs."""

    make: Maker
    of: Shape | Callable[[], Batch]

    def inputs(self) -> Batch:
        return (double(ROWS, *self.of),) if isinstance(self.of, tuple) else self.of()


def tied() -> nn.Module:
    """A language model whose head is its embedding table."""
    model = nn.Sequential(nn.Embedding(9, 4, padding_idx=2), nn.Tanh(), nn.Linear(4, 9))
    model[2].weight = model[0].weight
    return model


def again(m: Any, x: Tensor) -> Any:
    """One layer applied twice."""
    return m[0](m[0](x).tanh())


def in_order(way: Callable[[Any, Tensor, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """A layer that sees the rows in another order, which is undone behind it."""

    def function(m: Any, x: Tensor) -> Tensor:
        order = x.sum(1).argsort()
        return way(m[0], x, order)

    return function


def block(expanded: bool) -> nn.Module:
    """A pre-norm transformer block, written out, with a token and a position table."""

    def forward(m: Any, ids: Tensor) -> Any:
        B, T = ids.shape
        places = torch.arange(T, device=ids.device)
        x = m.tokens(ids) + m.places(places.expand(B, T) if expanded else places)
        q, k, v = (t.view(B, T, 2, 4).transpose(1, 2) for t in m.qkv(m.norm1(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, 8)
        x = x + m.out(y)
        x = x + m.down(F.gelu(m.up(m.norm2(x))))
        return m.head(m.norm3(x))

    return Of(
        forward,
        tokens=nn.Embedding(11, 8),
        places=nn.Embedding(6, 8),
        norm1=nn.LayerNorm(8),
        norm2=nn.LayerNorm(8),
        norm3=nn.LayerNorm(8, bias=False),
        qkv=nn.Linear(8, 24),
        out=nn.Linear(8, 8),
        up=nn.Linear(8, 16),
        down=nn.Linear(16, 8),
        head=nn.Linear(8, 11, bias=False),
    )


def attention(kdim: int | None = None, *, other: bool = False, need: bool = False) -> nn.Module:
    """Multi-head attention in its variants."""

    def forward(m: Any, x: Tensor) -> Any:
        keys = x[..., :kdim].flip(1) if kdim is not None or other else x
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        padding[:, -1] = True
        out, weights = m.layer(x, keys, keys, key_padding_mask=padding, attn_mask=later, need_weights=need)
        return torch.cat([out, weights], dim=2) if need else out

    layer = nn.MultiheadAttention(4, 2, kdim=kdim, vdim=kdim, batch_first=True)
    nn.init.normal_(layer.in_proj_bias)
    return Of(forward, layer=layer)


def scan(cell: Maker) -> Maker:
    """A cell stepped by hand."""

    def forward(m: Any, x: Tensor) -> Any:
        state = None
        for x_t in x.unbind(1):
            state = m.cell(x_t, state)
        return state[0] if isinstance(state, tuple) else state

    return lambda: Of(forward, cell=cell())


def drawn(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(*shape))


def bare() -> nn.Module:
    """Parameters outside layers: scales, biases, a class token, a matrix, a position buffer."""

    def forward(m: Any, x: Tensor) -> Any:
        x = m.slope(x * m.scale + m.shift - 2 * m.scale)
        x = torch.cat([x + m.places(m.grid), m.token.expand(len(x), -1, -1)], dim=1)
        return (m.gain - x) @ m.matrix

    return Of(
        forward,
        scale=drawn(4),
        shift=drawn(1, 3, 1),
        token=drawn(1, 1, 4),
        matrix=drawn(4, 2),
        gain=nn.Parameter(torch.rand(())),
        slope=nn.PReLU(3),
        places=nn.Linear(2, 4),
        grid=torch.rand(3, 2),
    )


def heads() -> nn.Module:
    """One matrix for each head, and back, by ``einsum`` and by ``matmul``."""

    def forward(m: Any, x: Tensor) -> Any:
        found = torch.einsum("btd,hdk->bhtk", x, m.into) + x[:, None] @ m.into
        return torch.einsum("bhtk,hkd->btd", (found @ m.out @ m.into).sin(), m.out) + m.mix @ x

    return Of(forward, into=drawn(2, 4, 3), out=drawn(2, 3, 4), mix=drawn(6, 6))


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


def derived() -> nn.Module:
    """Two weights made of one parameter, and each of one more; the first parameter is used as it is, too."""

    def forward(m: Any, x: Tensor) -> Any:
        h = F.linear(x, m.weight**3 * m.scale.tanh(), m.bias).tanh()
        return F.linear(F.linear(h, m.weight), m.weight.t().exp() + m.shift)

    return Of(forward, weight=drawn(4, 4), bias=drawn(4), scale=drawn(4), shift=nn.Parameter(torch.rand(())))


def bypass() -> nn.Module:
    """Some parameters frozen, some unused."""
    parts = {"frozen": nn.Linear(5, 5), "used": nn.Linear(5, 4), "unused": nn.Linear(3, 3)}
    parts["frozen"].requires_grad_(False)
    parts["used"].bias.requires_grad_(False)
    return Of(lambda m, x: m.used(m.frozen(x).relu_()), **parts)


def learned_mask() -> nn.Module:
    """Attention with a learned bias of the scores."""
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    return Of(lambda m, x: m.layer(x, x, x, attn_mask=m.mask)[0], layer=layer, mask=drawn(5, 5))


def ids(length: int, numbers: int) -> Callable[[], Batch]:
    """Random numbers, with repetitions in a row."""
    return lambda: (torch.randint(0, numbers, (ROWS, length)),)


def frozen(model: nn.Module, name: str) -> nn.Module:
    """A model with one parameter frozen."""
    model.get_parameter(name).requires_grad_(False)
    return model


def padded(mode: Literal["reflect", "replicate", "circular"]) -> Case:
    """A convolution with a padding mode."""
    return Case(lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode), nn.Tanh()), (2, 5, 6))


CASES = {
    "linear": Case(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)), (5,)),
    "linear T": Case(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), (7, 5)),
    "linear ghost": Case(lambda: nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 50)), (2, 40)),
    "linear 4-D": Case(lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), (2, 3, 5)),
    "conv1d": Case(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Conv1d(4, 6, 2, groups=2)
        ),
        (2, 9),
    ),
    "conv2d": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 2, dilation=2)
        ),
        (2, 9, 8),
    ),
    "conv2d large": Case(
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3, bias=False)),
        (2, 18, 17),
    ),
    "conv2d groups": Case(
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, groups=2, padding=(1, 0)), nn.Tanh(), nn.Conv2d(6, 6, 2, groups=6)
        ),
        (4, 5, 6),
    ),
    "conv2d same": Case(lambda: nn.Conv2d(2, 3, (3, 4), padding="same", dilation=(1, 2)), (2, 6, 7)),
    "conv2d valid": Case(lambda: nn.Conv2d(2, 3, 3, padding="valid"), (2, 6, 7)),
    "conv3d": Case(
        lambda: nn.Sequential(nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding=1), nn.Tanh(), nn.Conv3d(3, 2, 2)),
        (2, 4, 5, 4),
    ),
    "conv2d reflect": padded("reflect"),
    "conv2d circular": padded("circular"),
    "conv2d replicate": padded("replicate"),
    "embedding": Case(lambda: nn.Embedding(7, 3, padding_idx=-2), ids(6, 7)),
    "embedding 1-D": Case(lambda: nn.Embedding(7, 3), lambda: (torch.randint(0, 7, (ROWS,)),)),
    "shift alone": Case(lambda: frozen(nn.LayerNorm(4), "weight"), (3, 4)),
    "scale alone": Case(lambda: frozen(nn.LayerNorm(4), "bias"), (3, 4)),
    "bias alone": Case(lambda: frozen(nn.Linear(4, 3), "weight"), (3, 4)),
    "conv bias alone": Case(lambda: frozen(nn.Conv1d(2, 3, 2), "weight"), (2, 4)),
    "layer norm": Case(
        lambda: nn.Sequential(nn.LayerNorm((3, 4)), nn.Tanh(), nn.LayerNorm(4, bias=False)), (3, 4)
    ),
    "rms norm": Case(lambda: nn.RMSNorm(4), (3, 4)),
    "group norm": Case(
        lambda: nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(inplace=True)), (2, 5, 5)
    ),
    "instance norm": Case(lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 4)),
    "batch norm eval": Case(lambda: nn.BatchNorm1d(4).eval(), (4,)),
    "rnn": Case(lambda: nn.RNN(3, 4, num_layers=2, batch_first=True), (5, 3)),
    "rnn relu": Case(lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False, batch_first=True), (5, 3)),
    "lstm": Case(lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True), (5, 3)),
    "gru": Case(lambda: nn.GRU(3, 4, bidirectional=True, batch_first=True), (5, 3)),
    "rnn cell": Case(scan(lambda: nn.RNNCell(3, 4)), (4, 3)),
    "rnn relu cell": Case(scan(lambda: nn.RNNCell(3, 4, bias=False, nonlinearity="relu")), (4, 3)),
    "lstm cell": Case(scan(lambda: nn.LSTMCell(3, 4)), (4, 3)),
    "gru cell": Case(scan(lambda: nn.GRUCell(3, 4)), (4, 3)),
    "attention": Case(attention, (5, 4)),
    "attention weights": Case(lambda: attention(need=True), (5, 4)),
    "attention keys": Case(lambda: attention(other=True), (5, 4)),
    "attention kdim": Case(lambda: attention(3), (5, 4)),
    "encoder layer": Case(lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True), (5, 4)),
    "decoder layer": Case(
        lambda: nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, batch_first=True),
        lambda: (double(ROWS, 5, 4), double(ROWS, 3, 4)),
    ),
    "gpt": Case(lambda: block(True), ids(6, 11)),
    "gpt places": Case(lambda: block(False), ids(5, 11)),
    "tied": Case(tied, ids(5, 9)),
    "reused linear": Case(called(again, lambda: nn.Linear(4, 4)), (4,)),
    "reused conv": Case(called(again, lambda: nn.Conv2d(2, 2, 3, padding=1)), (2, 4, 4)),
    "reused norm": Case(called(again, lambda: nn.LayerNorm(4)), (3, 4)),
    "autoencoder": Case(
        called(lambda m, x: F.linear(m[0](x).tanh(), m[0].weight.t()) - x, lambda: nn.Linear(5, 3)), (5,)
    ),
    "weight norm": Case(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (4,)),
    "two derived": Case(derived, (4,)),
    "bare": Case(bare, (3, 4)),
    "penalty": Case(
        called(lambda m, x: m[0](x) + 0.1 * m[0].weight.square().sum(), lambda: nn.Linear(5, 4)), (5,)
    ),
    "frozen": Case(bypass, (5,)),
    "learned state": Case(
        lambda: Of(
            lambda m, x: m.layer(x, m.start.repeat(1, len(x), 1))[0],
            layer=nn.GRU(3, 4, batch_first=True),
            start=drawn(1, 1, 4),
        ),
        (5, 3),
    ),
    "learned cell state": Case(
        lambda: Of(
            lambda m, x: m.layer(x, m.start.repeat(len(x), 1)), layer=nn.GRUCell(3, 4), start=drawn(1, 4)
        ),
        (3,),
    ),
    "learned mask": Case(learned_mask, (5, 4)),
    "gated": Case(
        called(
            lambda m, x: F.linear(x, m[0].weight * m[1](x.new_ones(1, 2)).squeeze()),
            lambda: nn.Linear(4, 3, bias=False),
            lambda: nn.Linear(2, 1),
        ),
        (4,),
    ),
    "time-first lstm": Case(
        called(lambda m, x: m[0](x.transpose(0, 1))[0].transpose(0, 1), lambda: nn.LSTM(3, 4)), (5, 3)
    ),
    "sorted": Case(called(in_order(lambda m, x, o: m(x[o])[o.argsort()]), lambda: nn.Linear(4, 3)), (4,)),
    "sorted select": Case(
        called(
            in_order(lambda m, x, o: m(x.index_select(0, o)).index_select(dim=0, index=o.argsort())),
            lambda: nn.Linear(4, 3),
        ),
        (4,),
    ),
    "flipped": Case(called(in_order(lambda m, x, o: m(x.flip(0)).flip(0)), lambda: nn.Linear(4, 3)), (4,)),
    "picked": Case(
        called(in_order(lambda m, x, o: m(x)[torch.arange(len(x)), :]), lambda: nn.Linear(4, 3)), (4,)
    ),
    "bilinear": Case(lambda: nn.Bilinear(4, 3, 2), lambda: (double(ROWS, 4), double(ROWS, 3))),
    "transposed": Case(lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 4, 4)),
    "time first": Case(
        called(lambda m, x: m[0](x.transpose(0, 1)).transpose(0, 1), lambda: nn.Linear(3, 4)), (5, 3)
    ),
    "flattened": Case(
        called(lambda m, x: m[0](x.flatten(0, 1)).view(*x.shape[:2], 4), lambda: nn.Linear(3, 4)),
        (5, 3),
    ),
    "heads": Case(heads, (6, 4)),
    "weight standardisation": Case(
        lambda: nn.Sequential(Standardised(2, 4, 3), nn.Tanh(), Standardised(4, 4, 3, stride=2, groups=2)),
        (2, 8, 8),
    ),
    "subclass with a forward pass": Case(lambda: Patched(4, 3), (4,)),
    "patched forward pass": Case(patched_forward, (4,)),
    "adapter": Case(
        called(
            lambda m, x: m[0](x) + m[2](m[1](x)),
            lambda: nn.Linear(6, 6).requires_grad_(False),
            lambda: nn.Linear(6, 2, bias=False),
            lambda: nn.Linear(2, 6, bias=False),
        ),
        (4, 6),
    ),
    "dropout of nothing": Case(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.ReLU(inplace=True)), (4,)
    ),
}


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@one_or_two_views
@each("rule", RULES)
@each("case", CASES)
def test_engines_equal_the_loop(case: Case, rule: ClippingRule, views: int) -> None:
    model, batch = case.make().double(), case.inputs()
    for kind in (FastEngine, ReferenceEngine):
        wanted = equals_a_loop(kind(model, waves, rule, views=views), *batch)
    assert all(value.any() or name.startswith("unused") for name, value in wanted.items())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@one_or_two_views
@pytest.mark.parametrize("rule", [RULES["flat"], RULES["per-layer"]], ids=["flat", "per-layer"])
@each("case", CASES)
def test_engines_on_cuda_equal_the_loop(case: Case, rule: ClippingRule, views: int) -> None:
    model, batch = case.make().double(), case.inputs()
    wanted = by_definition(model, waves, batch, rule, views)
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
@each("case", CASES)
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

    def found(broken: float) -> Sums:
        weights[1] = broken
        return step(FastEngine(model, losses, FlatClipping(0.3)), *batch, weights)[0]

    without, with_it = found(0.0), found(math.inf)  # in a batch of the same size, which rounds alike
    # Cells begin with zeros, by which nothing is proven: their batch goes in halves, which round otherwise.
    bound = 3e-2 if autocast and hasattr(model, "cell") else 1e-4
    equal(with_it, without, bound, bound / 10)


@pytest.mark.thorough(cases=32)
@pytest.mark.untraced
@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch's own, in float32
@pytest.mark.parametrize("joined", [False, True])
@one_or_two_views
@each("case", CASES)
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
        wanted = by_definition(model, waves, tuple(t[~broken] for t in batch), rule, views)
        equal(step(FastEngine(model, losses, rule, views=views), *batch, weights)[0], wanted, rtol, atol)


@pytest.mark.thorough(cases="values")
@one_or_two_views
@pytest.mark.parametrize("slack", [0.0, 1e9], ids=["ghost", "kept"])
@pytest.mark.parametrize(
    "case", ["linear T", "linear 4-D", "gpt", "lstm", "attention", "reused linear", "tied"]
)
def test_every_form_of_a_linear_layer_is_the_same(case: str, slack: float, views: int) -> None:
    model, batch = CASES[case].make().double(), CASES[case].inputs()
    budget = MemoryBudget(linear_slack=slack)
    equals_a_loop(FastEngine(model, waves, RULES["flat"], views=views, budget=budget), *batch)


def test_what_is_not_reached_has_gradients_of_zero() -> None:
    """An operation may stand in the graph and hand nothing on."""
    w, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    found = parameter._pulled([w.exp()], other, [torch.ones(5, 3)])
    assert torch.equal(found, torch.zeros(5, 2))


# --- one record moves the sum by at most the bound ----------------------------------------------------------

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def losses(model: nn.Module, *batch: Tensor) -> Tensor:
    """One loss per row, linear in the output with signs that take turns, so that like positions cancel."""
    result = model(*batch)
    out: Tensor = (result[0] if isinstance(result, tuple) else result).flatten(1)
    weights = torch.linspace(0.2, 1.0, 2 * out.shape[1], dtype=out.dtype)[out.shape[1] :]
    weights = (weights * (-1.0) ** torch.arange(out.shape[1])).to(out.device)
    return 10 * (out * weights).sum(1) + 0.1 * out.square().mean(1)


def factor(engine: GradientEngine, batch: Batch, records: range, pieces: int = 1) -> float:
    """By how many C a record moves the sum, which may be taken in some calls."""
    assert engine.rule.sensitivity(engine.rule.initial_thresholds(engine.names)) <= engine.rule.norm * (
        1 + 1e-12
    )
    if pieces > 1:
        parts = sum(clipped_sum(engine, *(t[i::pieces] for t in batch)) for i in range(pieces))
        equal(parts, clipped_sum(engine, *batch), atol=1e-9)
    return most_moved(engine, *batch, records=records)


def hard(case: Case) -> Batch:
    """Four records: small, large, the same at all positions, and half of it with the other sign.

    Of numbers of rows in a table: two that are mixed, one number at all positions, and two that take turns.
    """

    def one(t: Tensor) -> Tensor:
        x = t[:4].clone()
        if not x.is_floating_point():
            if x.dim() > 1:
                x[2], x[3, ::2], x[3, 1::2] = 1, 2, 3
            return x
        x *= torch.tensor([0.1, 30.0, 300.0, 300.0]).view(-1, *[1] * (x.dim() - 1))
        if x.dim() > 2:
            x[2:] = x[2:, :1]
        x[3].flatten()[::2] *= -1
        return x

    return tuple(map(one, case.inputs()))


def checkpointed(model: nn.Module) -> nn.Module:
    """A model that is computed anew in the backward pass."""
    return Of(lambda m, *batch: checkpoint(m.inside, *batch, use_reentrant=False), inside=model)


def cast(model: nn.Module, *batch: Tensor) -> Tensor:
    with torch.autocast(batch[0].device.type, dtype=torch.bfloat16):
        return losses(model, *batch).float()


@dataclass(frozen=True)
class Mode:
    """A way to train."""

    loss: Loss = losses
    views: int = 1
    pieces: int = 1
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model
    budget: MemoryBudget = FAST
    rules: tuple[str, ...] = ("flat", "per-layer")
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)


MODES = {
    "plain": Mode(rules=tuple(RULES), dtypes=(torch.float32, torch.float64)),
    "views": Mode(views=2, dtypes=(torch.float32, torch.float64)),
    "pieces": Mode(pieces=2, dtypes=(torch.float64,)),  # products of other sizes round differently
    "lean": Mode(budget=LEAN),
    "checkpointed": Mode(wrap=checkpointed),
    "autocast": Mode(loss=cast),
}


@pytest.mark.thorough(cases="values")
@pytest.mark.untraced
@pytest.mark.filterwarnings(
    "ignore:LSTM with projections", "ignore:Mismatch dtype"
)  # torch's own, for RMSNorm under autocast
@each("mode", MODES)
@each("case", CASES)
def test_one_record_moves_the_sum_by_at_most_the_bound(case: Case, mode: Mode) -> None:
    if mode.loss is cast:
        try:  # oneDNN has no LSTM in bfloat16 for processors without AVX-512
            cast(case.make(), *narrowed(case.inputs()))
        except RuntimeError as reason:
            pytest.skip(f"torch itself cannot carry it out on this processor: {reason}")
    check_bound(case, mode, "cpu")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:Mismatch dtype")
@each("mode", MODES)
@each("case", CASES)
def test_one_record_moves_the_sum_on_cuda_by_at_most_the_bound(
    case: Case, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # forward passes, of the model's own
    check_bound(case, mode, "cuda")


def narrowed(batch: Batch, dtype: torch.dtype = torch.float32) -> Batch:
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in batch)


def check_bound(case: Case, mode: Mode, device: str) -> None:
    """Measure what one record moves the sum by."""
    torch.manual_seed(0)
    for dtype in mode.dtypes:
        model = mode.wrap(case.make().to(device, dtype))
        batch = tuple(t.to(device).repeat_interleave(mode.views, 0) for t in narrowed(hard(case), dtype))
        for rule in mode.rules:
            engine = FastEngine(model, mode.loss, RULES[rule], views=mode.views, budget=mode.budget)
            assert 0.0 < factor(engine, batch, range(1, 4), mode.pieces) <= 1 + TOLERANCE[dtype]


@both
def test_a_branch_that_was_used_before_leaves_nothing(kind: Kind) -> None:
    which = 0
    model = Of(
        lambda m, x: m.get_submodule(f"branch{which}")(x), branch0=nn.Linear(4, 3), branch1=nn.Linear(4, 3)
    )
    engine, x = kind(model, losses, RULES["flat"]), torch.randn(4, 4) * 30
    for which in (0, 1, 0, 1):
        assert 0.5 < most_moved(engine, x) <= 1 + 1e-4
        sums = sums_of(engine, x)
        assert [name for name in sums if sums[name].any()] == [f"branch{which}.weight", f"branch{which}.bias"]


# --- rows, positions and tables in any order ----------------------------------------------------------------

C, V = 0.3, 11
Layout = Callable[[Any, Tensor], Any]


def engine_of(function: Layout, *layers: Maker, views: int = 1) -> FastEngine:
    return FastEngine(called(function, *layers)().double(), waves, FlatClipping(C), views=views)


def flat(layers: Any, x: Tensor) -> Any:
    h = x.flatten(0, 1)
    for layer in layers:
        h = layer(h)
    return h.view(*x.shape[:2], *h.shape[1:])


def time_first(layers: Any, x: Tensor) -> Any:
    h = layers[0](x.transpose(0, 1).flatten(0, 1))
    return h.view(x.shape[1], len(x), -1).transpose(0, 1)


def by_size(layers: Any, x: Tensor) -> Any:
    order = x.sum((1, 2)).argsort()
    return layers[0](x[order])[order.argsort()]


def tokens_by_size(layers: Any, x: Tensor) -> Any:
    tokens = x.flatten(0, 1)
    order = tokens.sum(1).argsort()
    out = tokens.new_zeros(len(tokens), 4).index_copy(0, order, layers[0](tokens[order]))
    return out.view(*x.shape[:2], -1)


def scaled_back(layers: Any, x: Tensor) -> Any:
    """Gradients divided by what was computed of the whole batch; the losses are those of each record."""
    h = layers[0](x)
    values = h.detach()
    return torch.add(values, (h - values) / values.norm())


def hooked(layers: Any, x: Tensor) -> Any:
    h = layers[0](x)
    if h.requires_grad:
        norm = h.detach().norm()
        h.register_hook(lambda g: g * (norm + g.mean()).sin())
    return h.sin()


def tabled(layers: Any, x: Tensor) -> Any:
    """Reads tables that are made in the forward pass, by constants and by what records say."""
    places = torch.linspace(-1.0, 1.0, 24, dtype=x.dtype).view(8, 3)
    near = places[(x[:, 0, :1] > 0).long() + torch.arange(4)]  # (B, 4, 3)
    return layers[0](x[:, :4] + near) + layers[0](places[:4])


def adapted(layers: Any, x: Tensor) -> Any:
    """A low-rank adapter that no gradient reaches at first, on rows in another order."""
    return layers[1](layers[0](x.flip(0)).flip(0)) + x.sum((1, 2))[:, None, None]


GONE = 9.0
"""Marks positions that are left out: not 0, so that records of zeros have all."""


def packed(layers: Any, x: Tensor) -> Any:
    kept = x[..., 0] != GONE
    out = x.new_zeros(*x.shape[:2], 4)
    out[kept] = layers[0](x[kept])
    return out


def linear() -> nn.Module:
    return nn.Linear(3, 4)


def zeroed() -> nn.Module:
    layer = nn.Linear(4, 4, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def frames() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 1, 2))


def positions() -> nn.Module:
    return nn.Sequential(linear(), nn.LayerNorm(4), nn.PReLU(), nn.Linear(4, 2))


LAYOUTS: dict[str, tuple[Layout, list[Maker], Shape]] = {
    "flattened": (flat, [positions], (5, 3)),
    "flattened frames": (flat, [frames], (3, 2, 5, 4)),
    "flattened cells": (flat, [lambda: nn.GRUCell(3, 4)], (5, 3)),
    "time first": (time_first, [linear], (5, 3)),
    "rows by size": (by_size, [linear], (5, 3)),
    "tokens by size": (tokens_by_size, [linear], (5, 3)),
    "scaled backwards": (scaled_back, [linear], (5, 3)),
    "a hook of the batch": (hooked, [linear], (5, 3)),
    "tables": (tabled, [linear], (5, 3)),
    "an adapter that begins at zero": (adapted, [linear, zeroed], (5, 3)),
}


@pytest.mark.thorough(cases="values")
@one_or_two_views
@each("function, layers, shape", LAYOUTS)
def test_layouts_are_fast_and_right(function: Layout, layers: list[Maker], shape: Shape, views: int) -> None:
    """With as many records as some other length, too."""
    engine = engine_of(function, *layers, views=views)
    for n in (1, 2, 3, 5):
        equals_a_loop(engine, double(n * views, *shape))
        for p in engine.model.parameters():
            nn.init.normal_(p)


def test_packed_positions_are_refused() -> None:
    is_refused("boolean mask depends", engine_of(packed, linear), double(4, 5, 3))


def gated(layers: Any, x: Tensor) -> Any:
    """The second layer reaches the loss of records that are large alone."""
    return layers[0](x) + (x[:, 0, 0] > 50)[:, None, None] * layers[1](x.flip(0)).flip(0)


def test_what_some_batches_have_and_others_do_not_is_right() -> None:
    engine = engine_of(gated, linear, linear)
    for large in (0, 0, 4, 1, 0, 1):
        x = double(4, 5, 3).clamp(-1, 1)
        x[4 - large :, 0, 0] = 60.0
        equals_a_loop(engine, x)


def recurrent(layer: Callable[[int, int], nn.Module], *, mixes: bool = False) -> nn.Module:
    """Time first, as layers are without ``batch_first``."""

    def forward(m: Any, tokens: Tensor) -> Any:
        h = m.table(tokens.t())
        h = m.norm(m.layer(input=h + h.roll(1, 1) if mixes else h)[0])
        h = torch.einsum("tbd,tbd->tbd", h, torch.add(h, other=h).sin())
        return m.head(h * m.scale).permute(1, 2, 0)

    parts = {"table": nn.Embedding(V, 4), "layer": layer(4, 6), "norm": nn.LayerNorm(6)}
    return Of(forward, scale=nn.Parameter(torch.rand(6)), head=nn.Linear(6, V), **parts)


def translator() -> nn.Module:
    def forward(m: Any, tokens: Tensor) -> Any:
        h = m.table(tokens.t()) - m.places[: tokens.shape[1]]
        out = m.layers(h, h.flip(2)) @ m.table.weight.t()
        return (out * (out @ m.pool)[..., None]).permute(1, 2, 0)

    return Of(
        forward,
        table=nn.Embedding(V, 4),
        layers=nn.Transformer(4, 2, 1, 1, 6, dropout=0.0),
        places=nn.Parameter(torch.rand(20, 1, 4)),
        pool=nn.Parameter(torch.rand(V)),
    )


def next_words(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens), tokens.roll(1, 1), reduction="none").mean(1)


TIME_FIRST: dict[str, Maker] = {
    "LSTM": lambda: recurrent(nn.LSTM),
    "GRU": lambda: recurrent(nn.GRU),
    "transformer": translator,
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@one_or_two_views
@each("make", TIME_FIRST)
def test_models_with_time_first_are_fast_right_and_bounded(make: Maker, views: int) -> None:
    model = make().double()
    engine = FastEngine(model, next_words, FlatClipping(C), views=views)
    for n, T in ((4, 7), (6, 6), (7, 3)):
        tokens = torch.randint(V, (n * views, T))
        equals_a_loop(engine, tokens)
        assert most_moved(engine, tokens, records=[0]) <= 1 + 1e-9


def test_a_model_with_time_first_that_mixes_records_is_refused() -> None:
    engine = FastEngine(recurrent(nn.GRU, mixes=True).double(), next_words, FlatClipping(C))
    is_refused("mixes records", engine, torch.randint(V, (4, 7)))
