"""The influence of one record on the sum: every layer, rule and mode, and what breaks the bound elsewhere.

The factor |sum(D) - sum(D less a record)| / C is at most 1 but for rounding, whatever the records hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from oracles import Batch, Loss, Of, both, clipped_sum, each, equal, most_moved, sums_of
from test_clipping_layers import CASES, Case
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

C = 0.5
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
RULES: dict[str, ClippingRule] = {
    "flat": FlatClipping(C),
    "per layer": PerLayerClipping(C),
    "automatic": AutomaticClipping(C),
    "adaptive": AdaptiveClipping(initial_norm=C),
}


def losses(model: nn.Module, *batch: Tensor) -> Tensor:
    """One loss per row, linear in the output with signs that take turns, so that like positions cancel."""
    result = model(*batch)
    out: Tensor = (result[0] if isinstance(result, tuple) else result).flatten(1)
    weights = torch.linspace(0.2, 1.0, 2 * out.shape[1], dtype=out.dtype)[out.shape[1] :]
    weights = (weights * (-1.0) ** torch.arange(out.shape[1])).to(out.device)
    return 10 * (out * weights).sum(1) + 0.1 * out.square().mean(1)


def factor(engine: GradientEngine, batch: Batch, records: range, pieces: int = 1) -> float:
    """By how many C a record moves the sum, which may be taken in some calls."""
    assert engine.rule.sensitivity(engine.rule.initial_thresholds(engine.names)) <= C * (1 + 1e-12)
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
    rules: tuple[str, ...] = ("flat", "per layer")
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
def test_a_branch_that_was_used_before_leaves_nothing(kind: type[GradientEngine]) -> None:
    which = 0
    model = Of(
        lambda m, x: m.get_submodule(f"branch{which}")(x), branch0=nn.Linear(4, 3), branch1=nn.Linear(4, 3)
    )
    engine, x = kind(model, losses, FlatClipping(C)), torch.randn(4, 4) * 30
    for which in (0, 1, 0, 1):
        assert 0.5 < most_moved(engine, x) <= 1 + 1e-4
        sums = sums_of(engine, x)
        assert [name for name in sums if sums[name].any()] == [f"branch{which}.weight", f"branch{which}.bias"]
