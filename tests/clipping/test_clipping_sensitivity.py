"""How far one record moves the sum: every layer, rule and mode, and what breaks the bound in other libraries.

The factor |sum(D) - sum(D less a record)| / C is at most 1 but for rounding, whatever the records hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
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
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import UnsupportedModel

Loss = Callable[..., Tensor]
Sums = dict[str, Tensor]
C = 0.5
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
RULES: dict[str, ClippingRule] = {
    "flat": FlatClipping(C),
    "per layer": PerLayerClipping(C),
    "automatic": AutomaticClipping(C),
    "adaptive": AdaptiveClipping(initial_norm=C),
}


def losses(model: nn.Module, x: Tensor) -> Tensor:
    """One loss per row, linear in the output with signs that take turns, so that like positions cancel."""
    result = model(x)
    out: Tensor = (result[0] if isinstance(result, tuple) else result).flatten(1)
    weights = torch.linspace(0.2, 1.0, 2 * out.shape[1], dtype=out.dtype)[out.shape[1] :]
    weights = (weights * (-1.0) ** torch.arange(out.shape[1])).to(out.device)
    return 10 * (out * weights).sum(1) + 0.1 * out.square().mean(1)


def add(engine: GradientEngine, x: Tensor, pieces: int = 1) -> Sums:
    """The clipped sum of rows, in some calls."""
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in engine.parameters.items()}
    thresholds = torch.tensor(engine.rule.initial_thresholds(engine.names), dtype=torch.float64)
    for part in (x[i::pieces] for i in range(pieces)):
        present = torch.ones(len(part) // engine.views, dtype=torch.bool)
        engine.add_clipped_sum(sums, (part,), present, thresholds)
    return sums


def factor(engine: GradientEngine, x: Tensor, left_out: range, pieces: int = 1) -> float:
    """The largest |sum(D) - sum(D less record i)| / C over the records to leave out."""
    bound = engine.rule.sensitivity(engine.rule.initial_thresholds(engine.names))
    assert bound <= C * (1 + 1e-12)
    whole, worst, K = add(engine, x, pieces), 0.0, engine.views
    for i in left_out:
        rest = add(engine, torch.cat([x[: i * K], x[(i + 1) * K :]]))
        moved = math.sqrt(sum(float((whole[name] - rest[name]).square().sum()) for name in whole))
        worst = max(worst, moved / bound)
    return worst


def floats(*shape: int) -> Callable[[], Tensor]:
    """Four records: small, large, the same at all positions, and half of it with the other sign."""

    def make() -> Tensor:
        x = torch.randn(4, *shape) * torch.tensor([0.1, 30.0, 300.0, 300.0]).view(-1, *[1] * len(shape))
        if len(shape) > 1:
            x[2:] = x[2:, :1]
        x[3].flatten()[::2] *= -1
        return x

    return make


def numbers(length: int, V: int) -> Callable[[], Tensor]:
    """Four records: mixed, mixed, one number at all positions, two numbers that take turns."""

    def make() -> Tensor:
        ids = torch.randint(0, V, (4, length))
        ids[2], ids[3, ::2], ids[3, 1::2] = 1, 2, 3
        return ids

    return make


class Calls(nn.Module):
    """Layers, and a function of them and of the batch."""

    def __init__(self, function: Callable[[nn.ModuleList, Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layers, x)


class Bare(nn.Module):
    """Parameters outside layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift, self.matrix = (nn.Parameter(torch.rand(*s)) for s in ((4,), (1, 4), (4, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale + self.shift) @ self.matrix


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


def attention(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), floats(6)),
    "linear, kept": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), floats(8, 3)),
    "linear, ghost": (lambda: nn.Linear(64, 64), floats(4, 64)),
    "linear, flattened": (
        lambda: Calls(lambda layers, x: layers[0](x.flatten(0, 1)).view(len(x), -1), nn.Linear(3, 4)),
        floats(4, 3),
    ),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1), floats(2, 8)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, 2), nn.Tanh(), nn.Conv2d(4, 2, 2)), floats(2, 7, 7)),
    "conv2d, few positions": (lambda: nn.Conv2d(64, 64, 3), floats(64, 4, 4)),
    "conv2d, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), floats(4, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2), floats(2, 3, 3, 3)),
    "conv transpose": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), floats(2, 4, 4)),
    "embedding": (lambda: nn.Embedding(7, 4, padding_idx=0), numbers(6, 7)),
    "embedding bag": (lambda: nn.EmbeddingBag(7, 4, mode="sum"), numbers(6, 7)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), floats(4, 4)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4)), floats(4, 4)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)), floats(2, 6, 6)),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True)), floats(2, 6, 6)
    ),
    "batch norm, evaluated": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval()), floats(4)),
    "rnn": (lambda: nn.RNN(3, 4, batch_first=True), floats(5, 3)),
    "lstm": (lambda: nn.LSTM(3, 4, batch_first=True, bidirectional=True), floats(5, 3)),
    "gru": (lambda: nn.GRU(3, 4, batch_first=True), floats(5, 3)),
    "lstm, layers": (lambda: nn.LSTM(3, 4, 2, batch_first=True, bias=False), floats(12, 3)),
    "weight norm": (
        lambda: nn.Sequential(weight_norm(nn.Linear(6, 5)), nn.Tanh(), weight_norm(nn.Linear(5, 3))),
        floats(6),
    ),
    "weight norm, positions": (lambda: weight_norm(nn.Linear(6, 5)), floats(4, 6)),
    "weight standardisation": (
        lambda: nn.Sequential(Standardised(2, 4, 3), nn.Tanh(), Standardised(4, 3, 3, stride=2)),
        floats(2, 8, 8),
    ),
    "weight standardisation, groups": (lambda: Standardised(4, 6, 3, groups=2), floats(4, 5, 5)),
    "weight norm, transposed": (lambda: weight_norm(nn.ConvTranspose2d(2, 3, 3)), floats(2, 4, 4)),
    "attention": (lambda: Calls(attention, nn.MultiheadAttention(4, 2, batch_first=True)), floats(6, 4)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), floats(6, 4)
    ),
    "prelu": (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(4)), floats(4)),
    "bilinear": (lambda: Calls(lambda layers, x: layers[0](x, x), nn.Bilinear(3, 3, 2)), floats(3)),
    "bare parameters": (Bare, floats(4, 4)),
    "heads": (Heads, floats(6, 4)),
    "adapter": (
        lambda: Calls(
            lambda layers, x: layers[0](x) + layers[2](layers[1](x)),
            nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False),
        ),
        floats(4, 6),
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.Linear(8, 2)), floats(4)),
}  # fmt: skip


class Checkpointed(nn.Module):
    """A model that is computed anew in the backward pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.model, x, use_reentrant=False)


def cast(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return losses(model, x).float()


@dataclass(frozen=True)
class Mode:
    """A way to train."""

    loss: Loss = losses
    views: int = 1
    pieces: int = 1
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model
    budget: MemoryBudget = FAST
    rules: tuple[str, ...] = ("flat", "per layer")
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)


MODES = {
    "plain": Mode(rules=tuple(RULES), dtypes=(torch.float32, torch.float64)),
    "views": Mode(views=2, dtypes=(torch.float32, torch.float64)),
    "pieces": Mode(pieces=2),
    "lean": Mode(budget=LEAN),
    "checkpointed": Mode(wrap=Checkpointed),
    "autocast": Mode(loss=cast),
}


@pytest.mark.untraced
@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # torch's own, for RMSNorm under autocast
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(("make", "inputs"), LAYERS.values(), ids=LAYERS)
def test_one_record_moves_the_sum_by_at_most_the_bound(
    make: Callable[[], nn.Module], inputs: Callable[[], Tensor], mode: Mode
) -> None:
    if mode.loss is cast:
        try:  # oneDNN has no LSTM in bfloat16 for processors without AVX-512
            cast(make(), inputs())
        except RuntimeError as reason:
            pytest.skip(f"torch itself cannot carry it out on this processor: {reason}")
    check_bound(make, inputs, mode, "cpu")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(("make", "inputs"), LAYERS.values(), ids=LAYERS)
def test_one_record_moves_the_sum_on_cuda_by_at_most_the_bound(
    make: Callable[[], nn.Module],
    inputs: Callable[[], Tensor],
    mode: Mode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # forward passes, of the model's own
    check_bound(make, inputs, mode, "cuda")


def check_bound(make: Callable[[], nn.Module], inputs: Callable[[], Tensor], mode: Mode, device: str) -> None:
    """Measure what one record moves the sum by."""
    torch.manual_seed(0)
    for dtype in mode.dtypes:
        model = mode.wrap(make().to(device, dtype))
        x = inputs().to(device)
        x = x.to(dtype) if x.is_floating_point() else x
        x = x.repeat_interleave(mode.views, 0) if mode.views > 1 else x
        for rule in mode.rules:
            engine = FastEngine(model, mode.loss, RULES[rule], views=mode.views, budget=mode.budget)
            assert 0.0 < factor(engine, x, range(1, 4), mode.pieces) <= 1 + TOLERANCE[dtype]


class Tie(nn.Module):
    """An autoencoder whose decoder is the transpose of its encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.layer(x).relu(), self.layer.weight.t())


class LanguageModel(nn.Module):
    """A table that is the head as well, directly or by a product with its transpose."""

    def __init__(self, *, transposed: bool, padding: int | None = None) -> None:
        super().__init__()
        self.table, self.middle = nn.Embedding(12, 6, padding_idx=padding), nn.Linear(6, 6)
        self.transposed = transposed

    def forward(self, ids: Tensor) -> Tensor:
        h = self.middle(self.table(ids)).tanh()
        return h @ self.table.weight.t() if self.transposed else F.linear(h, self.table.weight)


class Patched(nn.Linear):
    """A layer with a forward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight * 2).T + self.bias.exp()


class Branches(nn.Module):
    """Two layers of which one is used, the other after a change of its mind."""

    def __init__(self) -> None:
        super().__init__()
        self.branches, self.which = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)]), 0

    def forward(self, x: Tensor) -> Tensor:
        return self.branches[self.which](x)  # type: ignore[no-any-return]


def patched_forward() -> nn.Module:
    """A layer whose method was replaced on the instance."""
    layer = nn.Linear(4, 3)

    def forward(input: Tensor) -> Tensor:  # noqa: A002
        return F.linear(input.sin(), layer.weight * 3, layer.bias)

    layer.forward = forward  # type: ignore[method-assign]
    return layer


def penalised(model: nn.Module, x: Tensor) -> Tensor:
    return losses(model, x) + 10 * sum(p.square().sum() for p in model.parameters())


def functional(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """A weight that is used again by hand."""
    weight, bias = layers[0].parameters()
    return F.linear(layers[0](x), weight.sin(), bias)


def padded(mode: Literal["reflect", "replicate", "circular"]) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode)


def in_other_order() -> Tensor:
    """Numbers that do not lie in memory by row."""
    return numbers(6, 12)().T.contiguous().T


def again(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.Tanh(), layer)


HANDLED: dict[str, tuple[Callable[[], nn.Module], Loss, Callable[[], Tensor]]] = {
    "tied autoencoder": (Tie, losses, floats(4)),
    "tied table and head": (lambda: LanguageModel(transposed=False), losses, numbers(6, 12)),
    "tied table and transpose": (lambda: LanguageModel(transposed=True), losses, numbers(6, 12)),
    "tied table with padding": (lambda: LanguageModel(transposed=False, padding=1), losses, numbers(6, 12)),
    "reflect": (padded("reflect"), losses, floats(2, 5, 5)),
    "circular": (padded("circular"), losses, floats(2, 5, 5)),
    "replicate": (padded("replicate"), losses, floats(2, 5, 5)),
    "same": (lambda: nn.Conv2d(2, 3, (2, 3), padding="same", dilation=2), losses, floats(2, 5, 5)),
    "subclass with a forward pass": (lambda: Patched(4, 3), losses, floats(4)),
    "patched forward pass": (patched_forward, losses, floats(4)),
    "functional second use": (lambda: Calls(functional, nn.Linear(4, 4)), losses, floats(4)),
    "penalty": (lambda: nn.Linear(4, 3), penalised, floats(4)),
    "layer used again": (lambda: again(nn.Linear(4, 4)), losses, floats(4)),
    "convolution used again": (lambda: again(nn.Conv2d(2, 2, 3, padding=1)), losses, floats(2, 5, 5)),
    "norm used again": (lambda: again(nn.LayerNorm(4)), losses, floats(4, 4)),
    "grouped": (lambda: nn.Conv2d(4, 4, 3, groups=2), losses, floats(4, 5, 5)),
    "unused branch": (Branches, losses, floats(4)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), losses, floats(4)),
    "in place": (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True)), losses, floats(4)),
    "four dimensions": (lambda: nn.Linear(4, 3), losses, floats(2, 2, 4)),
    "norm without bias": (lambda: nn.LayerNorm(4, bias=False), losses, floats(4, 4)),
    "numbers not by row": (lambda: LanguageModel(transposed=False), losses, in_other_order),
}
both = pytest.mark.parametrize("kind", [FastEngine, ReferenceEngine])


@pytest.mark.untraced
@both
@pytest.mark.parametrize(("make", "loss", "inputs"), HANDLED.values(), ids=HANDLED)
def test_what_breaks_other_libraries_stays_within_the_bound(
    make: Callable[[], nn.Module], loss: Loss, inputs: Callable[[], Tensor], kind: type[GradientEngine]
) -> None:
    for dtype, tolerance in TOLERANCE.items():
        torch.manual_seed(0)
        model, x = make().to(dtype), inputs()
        x = x.to(dtype) if x.is_floating_point() else x
        engine = kind(model, loss, FlatClipping(C))
        assert 0.5 < factor(engine, x, range(4)) <= 1 + tolerance


def token_mean(model: nn.Module, x: Tensor) -> Tensor:
    kept = (x[..., 0] > 0).to(x.dtype)
    each: Tensor = model(x).square().sum(2) * kept
    return each.sum(1) / kept.sum()


def batch_norm(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return F.batch_norm(layers[0](x), None, None, training=True)


REFUSED: dict[str, tuple[Callable[[], nn.Module], Loss, Callable[[], Tensor], str]] = {
    "mean over the tokens of the batch": (lambda: nn.Linear(4, 3), token_mean, floats(5, 4), "sums over"),
    "centred on the batch": (
        lambda: Calls(lambda layers, x: layers[0](x) - layers[0](x).mean(0), nn.Linear(4, 3)),
        losses, floats(4), "x - x.mean",
    ),
    "functional batch norm": (lambda: Calls(batch_norm, nn.Linear(4, 3)), losses, floats(4), "batch_norm"),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), losses, floats(4), "make_private_ready"
    ),
}  # fmt: skip


@both
@pytest.mark.parametrize(("make", "loss", "inputs", "fix"), REFUSED.values(), ids=REFUSED)
def test_what_no_clipping_bounds_is_refused_with_the_fix(
    make: Callable[[], nn.Module],
    loss: Loss,
    inputs: Callable[[], Tensor],
    fix: str,
    kind: type[GradientEngine],
) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match=fix):
        add(kind(make(), loss, FlatClipping(C)), inputs())


@both
def test_a_branch_that_was_used_before_leaves_nothing(kind: type[GradientEngine]) -> None:
    torch.manual_seed(0)
    model = Branches()
    engine, x = kind(model, losses, FlatClipping(C)), floats(4)()
    for model.which in (0, 1, 0, 1):
        assert 0.5 < factor(engine, x, range(4)) <= 1 + 1e-4
        unused = f"branches.{1 - model.which}"
        assert not any(value.any() for name, value in add(engine, x).items() if name.startswith(unused))


@both
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e38])
def test_a_record_without_a_finite_gradient_adds_nothing(kind: type[GradientEngine], bad: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    engine = kind(model, lambda m, x: losses(m, x).square(), FlatClipping(C))  # 1e38 squared is infinite
    x = torch.randn(4, 4)
    x[1] = bad
    whole, rest = add(engine, x), add(engine, x[[0, 2, 3]])
    for name, value in rest.items():
        torch.testing.assert_close(whole[name], value, rtol=1e-6, atol=1e-7)
        assert value.any()
