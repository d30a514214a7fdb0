"""Planted bugs: each checker passes on the engine as it is, and fails on the engine with the bug in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from oracles import sums_of
from torch import Tensor, nn

from tacit.clipping import AdaptiveClipping, ClippingRule, FlatClipping, MemoryBudget, fast, rules
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation.under_vmap import Pass
from tacit.clipping.per_example import linear
from tacit.clipping.per_example.parameter import Gradient
from tacit.clipping.per_example.use import Kept, Use

Checker = Callable[[], None]
Sums = dict[str, Tensor]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 6, bias=False), nn.Linear(6, 6)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))  # type: ignore[no-any-return]


def squares(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return 10 * out.flatten(1).square().sum(1)


def engine_for(model: nn.Module, rule: ClippingRule, views: int = 1) -> FastEngine:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return FastEngine(model.double(), squares, rule, views=views)


def norm(a: Sums) -> float:
    return math.sqrt(sum(float(v.square().sum()) for v in a.values()))


def minus(a: Sums, b: Sums) -> Sums:
    return {k: a[k] - b[k] for k in a}


def rows(n: int = 5) -> Tensor:
    return torch.randn(n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def one_record_moves_the_sum_by_at_most_the_bound() -> None:
    for model in (nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)), Tied()):
        engine = engine_for(model, FlatClipping(1.0))
        whole = sums_of(engine, rows())
        for i in range(5):
            rest = sums_of(engine, torch.cat([rows()[:i], rows()[i + 1 :]]))
            assert norm(minus(whole, rest)) <= 1.0 + 1e-9


def a_sum_does_not_depend_on_the_split() -> None:
    engine = engine_for(nn.Linear(6, 6), FlatClipping(1.0))
    parts = [sums_of(engine, rows()[:2]), sums_of(engine, rows()[2:])]
    assert norm(minus(sums_of(engine, rows()), {k: parts[0][k] + parts[1][k] for k in parts[0]})) < 1e-9


def a_large_threshold_gives_the_plain_gradient(model: nn.Module | None = None) -> None:
    engine = engine_for(nn.Linear(6, 6) if model is None else model, FlatClipping(1e9))
    plain = torch.autograd.grad(squares(engine.model, rows()).sum(), list(engine.model.parameters()))
    assert norm(minus(sums_of(engine, rows()), dict(zip(engine.names, plain, strict=True)))) < 1e-9


def plain_of_positions() -> None:
    def at_positions(model: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = model(x.view(-1, 2, 3))
        return out.square().sum((1, 2))

    model = nn.Linear(3, 3).double()
    engine = FastEngine(model, at_positions, FlatClipping(1e9), budget=MemoryBudget(linear_slack=0.0))
    sums = sums_of(engine, rows())
    plain = torch.autograd.grad(at_positions(model, rows()).sum(), list(model.parameters()))
    assert norm(minus(sums, dict(zip(engine.names, plain, strict=True)))) < 1e-9


def plain_of_tied() -> None:
    a_large_threshold_gives_the_plain_gradient(Tied())


def a_broken_record_leaves_the_others_as_they_are() -> None:
    engine = engine_for(nn.Linear(6, 6), FlatClipping(1.0))
    broken = rows()
    broken[2] = math.nan
    assert norm(minus(sums_of(engine, broken), sums_of(engine, rows()[[0, 1, 3, 4]]))) < 1e-9


def identical_views_count_once() -> None:
    one = sums_of(engine_for(nn.Linear(6, 6), FlatClipping(1.0)), rows())
    three = sums_of(engine_for(nn.Linear(6, 6), FlatClipping(1.0), views=3), rows().repeat_interleave(3, 0))
    assert norm(minus(one, three)) < 1e-9


def cancelling_positions_stay_within_the_bound() -> None:
    torch.manual_seed(0)
    up, same, small = torch.randn(1, 4, 64), torch.randn(20, 4, 64), 1e-5 * torch.randn(20, 4, 64)
    directions = torch.cat([up, -up], dim=1)
    x = 1e4 * torch.cat([same, same + small], dim=1)  # |g_i| about 13, but |x_t| |g_t| about 5e6

    def cancelling(model: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = model(x)
        return (out * directions).sum((1, 2))

    engine = FastEngine(nn.Linear(64, 64, bias=False), cancelling, FlatClipping(1.0))
    assert max(norm(sums_of(engine, x[i : i + 1])) for i in range(20)) <= 1.0


def the_threshold_follows_the_quantile() -> None:
    rule = AdaptiveClipping(initial_norm=1.0, quantile=0.7)
    up, down = rule.move(1.0, 0.2), rule.move(1.0, 0.9)
    assert down < rule.move(1.0, 0.7) == 1.0 < up
    z, s_b = 2.0, 5.0
    assert rules.split_noise(z, s_b) ** -2 + (2 * s_b) ** -2 == pytest.approx(z**-2)


def clip_skipped_for_one_layer(gradient: Gradient, accumulator: Tensor, factors: Tensor) -> None:
    bias = accumulator.dim() == 1
    for use in gradient._own:
        use.add_weighted(accumulator, torch.ones_like(factors) if bias else factors)


def clamp_at_twice_the_threshold(rule: ClippingRule, norms: Tensor, thresholds: Tensor) -> Tensor:
    return (2 * thresholds / norms).clamp(max=1.0)


def clamp_factors_at_two(rule: ClippingRule, norms: Tensor, thresholds: Tensor) -> Tensor:
    return (thresholds / norms).clamp(max=2.0)


def mean_for_sum(use: Any, accumulator: Tensor, factors: Tensor) -> None:
    accumulator.add_(torch.tensordot(factors, use.gradients(0, len(factors)), dims=1) / len(factors))


def tied_layer_counted_once(gradient: Gradient, n: int) -> Tensor | float:
    return gradient._own[0].squared_norms() if gradient._own else 0.0


def tied_squares_added(gradient: Gradient, n: int) -> Tensor | float:
    found = torch.zeros(n, dtype=torch.float64)
    for use in gradient._own:
        found = found + use.squared_norms()
    return found


def first_use_only(uses: Sequence[Use]) -> Use | None:
    return uses[0] if uses else None


def changed_divisor(
    engine: FastEngine, tape: Pass, accumulator: Sums, n: int, thresholds: Tensor, scale: float
) -> Tensor:
    part = {k: torch.zeros_like(v) for k, v in accumulator.items()}
    norms = FAST_ADD_FROM(engine, tape, part, n, thresholds, scale)
    for name, value in part.items():
        accumulator[name].add_(value, alpha=n / int(norms.isfinite().all(1).sum()))
    return norms


def broken_record_kept(norms: Tensor) -> Tensor:
    return torch.ones(len(norms), dtype=torch.bool)


def views_clipped_apart(
    engine: FastEngine, accumulator: Sums, batch: Any, thresholds: Tensor, scale: float
) -> Any:
    apart = FastEngine(engine.model, engine.per_example_loss, engine.rule)
    for view in range(engine.views):
        norms, losses = FAST_ADD(
            apart, accumulator, tuple(t[view :: engine.views] for t in batch), thresholds, scale
        )
    return norms, losses


def no_guard(left: Tensor, right: Tensor) -> Tensor:
    grams = (left @ left.transpose(1, 2)) * (right @ right.transpose(1, 2))
    return grams.sum((1, 2)).clamp(min=0.0)


def threshold_moves_the_wrong_way(threshold: float, noisy_fraction: float, **settings: float) -> float:
    return threshold * math.exp(settings["learning_rate"] * (noisy_fraction - settings["quantile"]))


def noise_not_split(noise_multiplier: float, count_noise: float) -> float:
    return noise_multiplier


FAST_ADD = FastEngine._add
FAST_ADD_FROM = FastEngine._add_from
Patch = tuple[Any, str, Callable[..., Any]]
SEPARATE: Patch = (linear, "merged", lambda uses: None)
bound = one_record_moves_the_sum_by_at_most_the_bound
split = a_sum_does_not_depend_on_the_split
plain = a_large_threshold_gives_the_plain_gradient
positions = plain_of_positions
broken = a_broken_record_leaves_the_others_as_they_are
cancelling = cancelling_positions_stay_within_the_bound
quantile = the_threshold_follows_the_quantile

PLANTS: dict[str, tuple[Checker, list[Patch]]] = {
    "clip skipped for one layer": (bound, [(Gradient, "add_weighted", clip_skipped_for_one_layer)]),
    "clamp at 2C": (bound, [(FlatClipping, "factors", clamp_at_twice_the_threshold)]),
    "factors up to 2": (plain, [(FlatClipping, "factors", clamp_factors_at_two)]),
    "mean for sum, weight": (split, [(linear.Pair, "add_weighted", mean_for_sum)]),
    "mean for sum, positions": (positions, [(linear.Outer, "add_weighted", mean_for_sum)]),
    "mean for sum, bias": (split, [(Kept, "add_weighted", mean_for_sum)]),
    "mean for sum, scale": (plain, [(linear.Pair, "add_weighted", mean_for_sum)]),
    "tied layer counted once": (bound, [SEPARATE, (Gradient, "squared_norms", tied_layer_counted_once)]),
    "squares of tied uses added": (bound, [SEPARATE, (Gradient, "squared_norms", tied_squares_added)]),
    "second use lost": (plain_of_tied, [(linear, "merged", first_use_only)]),
    "divisor follows dropped records": (
        broken,
        [(FastEngine, "_add_from", changed_divisor)],
    ),
    "broken record kept": (broken, [(fast, "_finite", broken_record_kept)]),
    "views clipped apart": (identical_views_count_once, [(FastEngine, "_add", views_clipped_apart)]),
    "no guard against cancellation": (cancelling, [(linear, "ghost_squared_norms", no_guard)]),
    "threshold moves the wrong way": (quantile, [(rules, "next_threshold", threshold_moves_the_wrong_way)]),
    "noise not split": (quantile, [(rules, "split_noise", noise_not_split)]),
}


@pytest.mark.untraced
@pytest.mark.parametrize(("checker", "patches"), PLANTS.values(), ids=PLANTS)
def test_the_planted_bug_is_seen(
    checker: Checker, patches: list[Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    checker()
    for owner, name, bug in patches:
        monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError):
        checker()
    monkeypatch.undo()
    checker()
