"""Models and losses in which clipping would bound nothing: handled rightly, or refused with the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from oracles import Loss, both, clipped_sum, definition, moved_by
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from tacit.clipping import FlatClipping
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.model_checks import check_losses, check_model
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import InvalidInput, UnsupportedModel

C = 0.125
MIXES = "a record's loss in a batch differs from its loss alone"


def squares(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.flatten(1).square().mean(1) + out.flatten(1).sum(1)


class Function(nn.Module):
    """A linear layer, then a function of its output and of the module."""

    def __init__(self, function: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer, self.layer(x))


def of(function: Callable[[Tensor], Tensor]) -> Loss:
    """Losses of a linear layer whose output goes through the function."""
    return lambda model, x: squares(lambda x: function(model(x)), x)  # type: ignore[arg-type]


MIXING: dict[str, Loss] = {
    "centred on the batch": of(lambda h: h - h.mean(0)),
    "first row": of(lambda h: h + h[:1]),
    "pairs": of(lambda h: h * h.detach()[(torch.arange(len(h)) ^ 1).clamp(max=len(h) - 1)]),
    "mean": lambda m, x: squares(m, x) / len(x),
    "randn_like": of(lambda h: (h + torch.randn_like(h)) / len(h)),
    "numbers": of(lambda h: (h + torch.rand(len(h), 1, 1)) / len(h)),
    "integers": of(lambda h: h * torch.randint(1, 12, (len(h), 1, 1)) / len(h)),
    "a distribution": of(lambda h: torch.distributions.Normal(h, 0.1).rsample() / len(h)),
    "in place": of(lambda h: h * torch.empty_like(h).bernoulli_(0.5) / len(h)),
    "multinomial": of(lambda h: (h + torch.multinomial(h.detach()[:, 0].softmax(1), 1)[..., None]) / len(h)),
    "of positions": of(lambda h: (h + torch.randn(3 * len(h), 4).view(len(h), 3, 4)) / len(h)),
    "dropout": of(lambda h: F.dropout(h, 0.5) / len(h)),
    "dropout within": of(lambda h: F.scaled_dot_product_attention(h, h, h, dropout_p=0.5) / len(h)),
}
"""The coupling table (``couplings_of_values.py``) has more."""


@pytest.mark.thorough(cases="values")
@both
@pytest.mark.parametrize("loss", MIXING.values(), ids=MIXING)
@pytest.mark.parametrize("n", [3, 64])
def test_models_and_losses_that_mix_records_are_refused(
    kind: type[GradientEngine], loss: Loss, n: int
) -> None:
    with pytest.raises(UnsupportedModel, match=MIXES):
        clipped_sum(kind(nn.Linear(4, 4), loss, FlatClipping(C)), torch.randn(n, 3, 4), C=C)


def crowded(model: nn.Module, x: Tensor) -> Tensor:
    """An expert that takes the first nine records that want it, and leaves the others as they are."""
    wanted = x[:, 0] > 0
    taken = wanted & (torch.ones(len(x), len(x)).tril() @ wanted.float() <= 9)
    return torch.as_tensor(torch.where(taken[:, None], model(x), x)).square().sum(1)


def rounded_by_size(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = squares(model, x)
    return torch.where(x.max() > 1, found * (1 + 2**-22), found)


UNSEEN: dict[str, Loss] = {
    "a capacity": crowded,
    "a millionth": of(lambda h: h + 1e-6 * h.mean(0)),
    "less than rounding": of(lambda h: h + 1e-14 * h.mean(0)),
    "rounding": rounded_by_size,
}


@both
@pytest.mark.parametrize("loss", UNSEEN.values(), ids=UNSEEN)
def test_mixing_that_is_not_seen_moves_no_sum_by_more(kind: type[GradientEngine], loss: Loss) -> None:
    """It is trained as if each record were alone."""
    x = torch.rand(24, 4) * 1.5
    engine = kind(nn.Linear(4, 4), loss, FlatClipping(C))
    found = clipped_sum(engine, x, C=C)
    assert engine.route in ("fast", "reference")
    torch.testing.assert_close(found, definition(engine.model, loss, (x,), C), rtol=1e-4, atol=1e-5)
    assert moved_by(lambda: nn.Linear(4, 4), loss, [(x,)], 0, C, kind=kind) <= 1 + 1e-4


class Packed(nn.Module):
    """A recurrent layer on packed sequences; a record of zeros is of length ``least``."""

    def __init__(self, least: int = 1) -> None:
        super().__init__()
        self.words, self.layer, self.out = nn.Embedding(9, 4), nn.GRU(4, 3, batch_first=True), nn.Linear(3, 2)
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x != 0).sum(1).clamp(min=self.least)
        rows = pack_padded_sequence(self.words(x), lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.layer(rows)[1][0])  # type: ignore[no-any-return]


def sequences(n: int) -> Tensor:
    x = torch.randint(1, 9, (n, 7))
    return x * (torch.arange(7) < torch.randint(1, 8, (n, 1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_sequences_need_the_reference_engine(dtype: torch.dtype) -> None:
    model, x = Packed().to(dtype), sequences(24)
    found = clipped_sum(ReferenceEngine(model, squares, FlatClipping(C)), x, C=C)
    torch.testing.assert_close(
        found, definition(model, squares, (x,), C), atol=1e-4 if dtype == torch.float32 else 1e-12, rtol=0
    )
    with pytest.raises(UnsupportedModel, match="_pack_padded_sequence"):
        clipped_sum(FastEngine(model, squares, FlatClipping(C)), x, C=C)


@both
def test_models_that_fail_on_zeros_are_refused(kind: type[GradientEngine]) -> None:
    with pytest.raises(UnsupportedModel, match=r"records of zeros.*Length of all samples.*clamp"):
        clipped_sum(kind(Packed(least=0), squares, FlatClipping(C)), sequences(8), C=C)


@both
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.complex64])
def test_made_up_records_have_the_types_of_the_batch(kind: type[GradientEngine], dtype: torch.dtype) -> None:
    def masked(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        assert mask.dtype == dtype
        out: Tensor = model(x) * mask.abs().float() if mask.is_complex() else model(x) * mask
        return out.square().sum(1)

    batch = torch.randn(12, 4), torch.ones(12, 4).to(dtype)
    clipped_sum(kind(nn.Linear(4, 4), masked, FlatClipping(C)), *batch, C=C)


@both
def test_scalar_and_misshapen_losses_are_refused(kind: type[GradientEngine]) -> None:
    """And losses without a gradient, of which each step would be noise alone."""
    for wrong, message in (
        (lambda m, x: m(x).square().mean(), 'reduction="none"'),
        (lambda m, x: m(x).square(), 'reduction="none"'),
        (lambda m, x: m(x).square().sum(1, keepdim=True), 'reduction="none"'),
        (lambda m, x: m(x).argmax(1), 'reduction="none"'),
        (lambda m, x: m(x).detach().sum(1), "depend on no trainable parameter"),
    ):
        with pytest.raises(InvalidInput, match=message):
            clipped_sum(kind(nn.Linear(4, 4), wrong, FlatClipping(C)), torch.randn(6, 4), C=C)
    with pytest.raises(InvalidInput, match="must return a tensor"):
        check_losses(1.0, 3)


REFUSED = {
    "nothing to train": (nn.Linear(2, 2).requires_grad_(False), "no trainable parameters"),
    "batch norm": (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "'1' .BatchNorm1d.*make_private_ready"),
    "lone batch norm": (nn.BatchNorm2d(2), "the model .BatchNorm2d"),
    "no statistics": (nn.BatchNorm2d(2, track_running_stats=False).eval(), "BatchNorm2d"),
    "instance norm": (nn.InstanceNorm2d(2, affine=True, track_running_stats=True), "running statistics"),
    "table with max_norm": (nn.Embedding(3, 2, max_norm=1.0), "max_norm"),
    "table by frequency": (nn.Embedding(3, 2, scale_grad_by_freq=True), "scale_grad_by_freq"),
    "data parallel": (nn.DataParallel(nn.Linear(2, 2)), "model.module"),
}


@pytest.mark.parametrize(("model", "message"), REFUSED.values(), ids=REFUSED)
def test_models_refused_before_any_data(model: nn.Module, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        check_model(model)
    for kind in (FastEngine, ReferenceEngine):
        with pytest.raises(UnsupportedModel, match=message):
            kind(model, squares, FlatClipping(C))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models_are_right_and_traced_ones_refused() -> None:
    """The engine cannot see the operations of torch.jit."""
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), torch.randn(3, 4)
    twin = cast(nn.Module, torch.compile(model, backend="eager"))
    found = clipped_sum(FastEngine(twin, squares, FlatClipping(C)), x, C=C)
    torch.testing.assert_close(found, definition(model, squares, (x,), C), atol=1e-5, rtol=0)
    traced: nn.Module = torch.jit.trace(model, x)  # type: ignore[no-untyped-call]
    with pytest.raises(UnsupportedModel, match="records go through operations"):
        clipped_sum(FastEngine(traced, squares, FlatClipping(C)), x, C=C)


@both
def test_parameters_of_the_loss_get_no_gradient(kind: type[GradientEngine]) -> None:
    temperature = nn.Parameter(torch.ones(()))
    engine = kind(nn.Linear(4, 4), lambda m, x: m(x).sum(1) * temperature, FlatClipping(C))
    assert clipped_sum(engine, torch.randn(3, 4), C=C).any()
    assert temperature.grad is None


def written(m: nn.Linear, h: Tensor) -> Tensor:
    w = m.bias * 1.0
    before = h * w
    w[0] = 5.0
    return before + h * w


CHANGED: dict[str, Callable[[nn.Linear, Tensor], Tensor]] = {
    "by a rule": lambda m, h: F.linear(F.linear(h, w := m.weight * 1.0), w.mul_(2.0)),
    "lent": lambda m, h: h * (w := m.bias * 1.0) + h * w.mul_(2.0),
    "a view": lambda m, h: h * (w := m.bias * 1.0) + h * w[:2].mul_(2.0).sum() + h * w,
    "by an index": written,
}


@pytest.mark.parametrize("function", CHANGED.values(), ids=CHANGED)
def test_parameters_changed_in_place_are_refused(function: Callable[[nn.Linear, Tensor], Tensor]) -> None:
    def loss(m: nn.Linear, x: Tensor) -> Tensor:
        return torch.as_tensor(function(m, x).sin()).sum(1)

    engine = FastEngine(nn.Linear(4, 4), loss, FlatClipping(1e9))
    with pytest.raises(UnsupportedModel, match="computed from parameters is changed in place after its use"):
        clipped_sum(engine, torch.randn(3, 4), C=1e9)
