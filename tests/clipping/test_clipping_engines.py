"""The guarantees of both engines: sums, sensitivity, padding, broken records, and an untouched model."""

from __future__ import annotations

import copy
import gc
import math
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    Kind,
    Of,
    Sums,
    both,
    cross_entropy,
    equal,
    equals_a_loop,
    is_refused,
    one_or_two_views,
    step,
)
from torch import Tensor, nn

from tacit.clipping import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
)
from tacit.clipping.fast import FastEngine
from tacit.clipping.per_example import linear
from tacit.clipping.reference import ReferenceEngine
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError, UnsupportedModel

RULES: list[ClippingRule] = [
    FlatClipping(0.5),
    PerLayerClipping(0.5),
    PerLayerClipping(1.0, norms=(("0", 0.3), ("3", 0.4), ("5", 0.2))),
    AutomaticClipping(0.5),
    AdaptiveClipping(initial_norm=0.5),
]


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten(1), nn.Linear(48, 5), nn.Tanh(), nn.Linear(5, 3)
    ).double()


def data(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 4, 4, generator=generator, dtype=torch.float64)
    return x * torch.logspace(-1.0, 1.0, n).view(-1, 1, 1, 1), torch.randint(0, 3, (n,), generator=generator)


def distance(a: Sums, b: Sums) -> float:
    return math.sqrt(sum(float((a[k] - b[k]).square().sum()) for k in a))


@both
@one_or_two_views
def test_any_split_with_any_padding_gives_the_same_sum(kind: Kind, views: int) -> None:
    engine = kind(network(), cross_entropy, FlatClipping(0.5), views=views)
    x, y = data(12)
    whole, statistics = step(engine, x, y)
    K = 3 * views
    for size in (1, 2, 3, 4):
        parts = {k: torch.zeros_like(p) for k, p in engine.parameters.items()}
        below = torch.zeros(1, dtype=torch.float64)
        for rows, labels in zip(torch.split(x, size * views), torch.split(y, size * views), strict=True):
            padded = torch.cat([torch.full_like(x[:K], torch.nan), rows]), torch.cat([y[:K] * 0, labels])
            mask = torch.tensor([False] * 3 + [True] * (len(rows) // views))
            _, seen = step(engine, *padded, mask=mask, into=parts)
            assert not seen.raw_norms[:3].any()
            assert not seen.raw_losses[:3].any()
            below += seen.raw_below
        equal(parts, whole)
        equal(below, statistics.raw_below)


@pytest.mark.thorough(cases="values")
@both
@pytest.mark.parametrize("rule", RULES, ids=[f"{i} {type(r).__name__}" for i, r in enumerate(RULES)])
def test_a_scale_multiplies_the_sum_and_nothing_else(kind: Kind, rule: ClippingRule) -> None:
    """Also where a record is broken or left out: those go through the engines by other ways."""
    x, y = data(6)
    x[4] = torch.nan
    engine = kind(network(), cross_entropy, rule)
    thresholds = torch.tensor(rule.initial_thresholds(engine.names), dtype=torch.float64)
    for mask in (None, torch.tensor([True] * 5 + [False])):
        sums = {k: torch.ones_like(p) for k, p in engine.parameters.items()}
        seen = engine.add_clipped_sum(sums, (x, y), mask, thresholds, scale=0.125)
        whole, unscaled = step(engine, x, y, mask=mask)
        equal({k: 8 * (total - 1) for k, total in sums.items()}, whole)
        for field in ("raw_norms", "raw_losses", "raw_below"):
            torch.testing.assert_close(getattr(seen, field), getattr(unscaled, field), equal_nan=True)


@both
def test_half_a_record_is_refused(kind: Kind) -> None:
    with pytest.raises(InvalidInput, match="rows"):
        step(kind(network(), cross_entropy, FlatClipping(0.5), views=2), *data(5))


@both
def test_an_empty_batch_adds_nothing(kind: Kind) -> None:
    engine = kind(network(), cross_entropy, PerLayerClipping(0.5))
    x, y = data(4)
    for batch, mask in (((x[:0], y[:0]), None), ((x, y), torch.zeros(4, dtype=torch.bool))):
        sums, statistics = step(engine, *batch, mask=mask)
        assert not any(v.any() for v in sums.values())
        assert statistics.raw_norms.shape == (len(batch[0]), 3)
        assert statistics.raw_losses.shape == (len(batch[0]),)
        assert not statistics.raw_below.any()


@both
def test_statistics(kind: Kind) -> None:
    model, (x, y) = network(), data(6)
    engine = kind(model, cross_entropy, FlatClipping(0.5), views=2)
    equals_a_loop(engine, x, y)
    _, seen = step(engine, x, y)
    equal(seen.raw_losses, cross_entropy(model, x, y).detach().view(3, 2).mean(1))
    assert seen.raw_below.item() == (seen.raw_norms <= 0.5).sum() - 1.5


@both
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_a_broken_record_contributes_exactly_nothing(kind: Kind, bad: float) -> None:
    def steep(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        outputs: Tensor = model(x)
        return (
            F.cross_entropy(outputs, y, reduction="none")
            + (x.flatten(1).sum(1) > 1e200) * outputs.sum(1) ** 3 * 1e200
        )

    engine = kind(network(), steep, PerLayerClipping(0.5))
    x, y = data(6)
    broken = x.clone()
    broken[2, 0, 1, 1] = bad
    found, seen = step(engine, broken, y)
    keep = torch.arange(6) != 2
    wanted, without = step(engine, x[keep], y[keep])
    equal(found, wanted)
    assert seen.raw_norms[2].isinf().all() or bad == 1e300
    assert torch.equal(seen.raw_below, without.raw_below - 0.5)
    nothing, _ = step(engine, broken[2:3], y[2:3])
    assert not any(v.any() for v in nothing.values())


@pytest.mark.untraced
@settings(max_examples=25, deadline=None)
@given(
    rule=st.sampled_from(RULES),
    kind=st.sampled_from([FastEngine, ReferenceEngine]),
    views=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([1e-3, 1.0, 1e3, 1e8]),
    double=st.booleans(),
)
def test_sensitivity(
    rule: ClippingRule, kind: Kind, views: int, seed: int, scale: float, double: bool
) -> None:
    model = network() if double else network().float()
    engine = kind(model, cross_entropy, rule, views=views)
    bound = rule.sensitivity(rule.initial_thresholds(engine.names))
    assert bound <= rule.norm * (1 + 1e-12)
    (x, y), (other, label) = data(2 * views, seed), data(views, seed + 1)
    dtype = torch.float64 if double else torch.float32
    x, other = x.to(dtype), (other * scale).to(dtype)
    wide = {k: torch.zeros(p.shape, dtype=torch.float64) for k, p in engine.parameters.items()}

    def released(*parts: tuple[Tensor, Tensor]) -> Sums:
        joined = (torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]))
        return step(engine, *joined, into={k: v.clone() for k, v in wide.items()})[0]

    first, last = (x[:views], y[:views]), (x[views:], y[views:])
    rounding = 1e-12 if double else 1e-5 * bound
    assert distance(released((other, label)), wide) <= bound
    assert distance(released(first, last, (other, label)), released(first, last)) <= bound + rounding
    assert distance(released(first, last), released(first, (other, label))) <= 2 * bound + rounding


def test_norms_are_computed_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(left: Tensor, right: Tensor) -> Tensor:
        seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        return ghost(left, right)

    ghost = linear.ghost_squared_norms
    monkeypatch.setattr(linear, "ghost_squared_norms", watched)
    monkeypatch.setattr("tacit.clipping.engine._CUDA", True)  # where it is not there, nothing asks for TF32
    engine = FastEngine(nn.Linear(64, 64), lambda m, x: m(x).square().sum((1, 2)), FlatClipping(1.0))
    torch.set_float32_matmul_precision("high")
    try:
        step(engine, torch.randn(3, 4, 64))
        seen.clear()  # what a new trace is compared by
        step(engine, torch.randn(3, 4, 64))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {("highest", False)}
    assert torch.backends.cudnn.allow_tf32


@both
def test_flags_that_change_later_are_judged_anew(kind: Kind) -> None:
    def forward(m: Any, x: Tensor) -> Any:
        x = m.norm(m.layer(x))
        return x - x.mean(0) if m.training else x

    model = Of(forward, layer=nn.Linear(4, 4), norm=nn.BatchNorm1d(4)).eval()
    engine = kind(model, lambda m, x: m(x).square().sum(1), FlatClipping(1.0))
    step(engine, torch.randn(3, 4))
    model.train()
    is_refused("BatchNorm1d", engine, torch.randn(3, 4))
    model.get_submodule("norm").eval()
    is_refused("mixes records", engine, torch.randn(3, 4))


def snapshot(model: nn.Module) -> list[Any]:
    modules = []
    for module in model.modules():
        state = {k: v for k, v in vars(module).items() if not isinstance(v, dict)}
        state |= {k: list(v.items()) for k, v in vars(module).items() if isinstance(v, dict)}
        modules.append((id(module), type(module), state))
    tensors = [*model.parameters(), *model.buffers()]
    return [
        modules,
        [(id(t), t.detach().clone().tolist(), t.grad, t.requires_grad, t._backward_hooks) for t in tensors],
        [t._post_accumulate_grad_hooks for t in tensors],
    ]


def failing(model: nn.Module) -> Of:
    """A model with a buffer, flags in both states, and a reason to fail on demand."""

    def raised(g: Tensor) -> None:
        raise KeyError("backward")

    def forward(m: Any, x: Tensor) -> Any:
        out = m.rest(m.body(x + m.shift))
        if m.fail == "forward":
            raise KeyError("forward")
        if m.fail == "backward" and out.requires_grad:
            out.register_hook(raised)
        if m.fail == "buffer":
            m.shift.add_(out.detach().mean() * 0 + 1)
        if m.fail == "new buffer":
            m.shift = m.shift + 1
        return out

    made = Of(forward, body=model, rest=nn.Dropout(0.0).eval(), shift=torch.ones(1, dtype=torch.float64))
    vars(made)["fail"] = ""
    return made


@pytest.mark.thorough(cases="values")
@both
@pytest.mark.parametrize("fail", ["", "forward", "backward", "buffer", "new buffer"])
def test_the_model_is_left_as_it_was(kind: Kind, fail: str) -> None:
    model = failing(network())
    engine = kind(model, cross_entropy, FlatClipping(0.5))
    step(engine, *data(4))
    vars(model)["fail"] = fail
    before = snapshot(model)
    if not fail:
        step(engine, *data(4))
    elif "buffer" not in fail:
        by_name = (KeyError, UnsupportedModel) if kind is FastEngine else KeyError
        with pytest.raises(by_name, match=fail):
            step(engine, *data(4))
    else:
        with suppress(UnsupportedModel):  # or each record begins with the same buffers
            step(engine, *data(4))
    assert snapshot(model) == before
    sums, _ = step(kind(network(), cross_entropy, FlatClipping(1.0)), *data(2))
    assert not any(total.requires_grad for total in sums.values())


def test_the_first_step_draws_no_more_random_numbers_than_later_ones() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    engine = FastEngine(model, lambda m, x: m(x).square().sum(1), FlatClipping(1.0))
    x, sums = torch.randn(6, 4), []
    for _ in range(2):
        torch.manual_seed(3)
        sums.append(step(engine, x)[0])
    equal(sums[0], sums[1], 0.0, 0.0)


@both
def test_calls_that_do_not_fit_are_refused(kind: Kind) -> None:
    model = network()
    engine = kind(model, cross_entropy, FlatClipping(0.5))
    x, y = data(4)
    full, C = torch.ones(4, dtype=torch.bool), torch.ones(1)
    sums = {k: torch.zeros_like(p) for k, p in engine.parameters.items()}
    bad: list[tuple[str, Any]] = [
        ("mask", (sums, (x, y), full.long(), C)),
        ("mask", (sums, (x, y), full[None], C)),
        ("rows", (sums, (x[:3], y), full, C)),
        ("rows", (sums, (), full, C)),
        ("rows", (sums, (x, torch.tensor(1.0)), full, C)),
        ("thresholds", (sums, (x, y), full, torch.ones(2))),
        ("accumulator", ({}, (x, y), full, C)),
        ("accumulator", (sums | {"0.bias": torch.zeros(4)}, (x, y), full, C)),
        ("float32 or wider", (sums | {"0.bias": torch.zeros(3).half()}, (x, y), full, C)),
    ]
    for message, arguments in bad:
        with pytest.raises(InvalidInput, match=message):
            engine.add_clipped_sum(*arguments)
    model[0].weight.grad = torch.zeros_like(sums["0.weight"])
    with pytest.raises(PrivacyRefusal, match=r"0\.weight.*zero_grad"):
        engine.add_clipped_sum(sums, (x, y), full, C)
    model[0].weight.grad = None
    model[3].requires_grad_(False)
    with pytest.raises(UnsupportedModel, match=r"3\.bias"):
        engine.add_clipped_sum(sums, (x, y), full, C)
    model[3] = copy.deepcopy(model[3]).requires_grad_(True)
    with pytest.raises(UnsupportedModel, match="replaced"):
        engine.add_clipped_sum(sums, (x, y), full, C)
    with pytest.raises(TacitError, match="views"):
        kind(network(), cross_entropy, FlatClipping(0.5), views=0)


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.untraced
@both
def test_a_step_leaves_no_tensors_behind(kind: Kind) -> None:
    """Memory does not grow from step to step: graphs and records of a batch go with it."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    engine = kind(model, cross_entropy, FlatClipping(1.0))
    batch = (torch.randn(6, 1, 6, 6), torch.randint(0, 3, (6,)))
    counts = []
    for _ in range(4):
        step(engine, *batch)
        counts.append(live_tensors())
    assert counts[1] == counts[2] == counts[3]
