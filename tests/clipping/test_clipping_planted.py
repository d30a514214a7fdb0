"""Planted bugs: each checker passes on the engine as it is, and fails on the engine with the bug in it.

The files on tied tables, weight norm, layers that are joined and Triton have those of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from couplings_of_values import Net, head
from oracles import (
    Batch,
    Loss,
    Maker,
    Of,
    Sums,
    clipped_sum,
    each,
    equal,
    equals_a_loop,
    loop,
    moved_by,
    norms_found,
    step,
    with_rule,
)
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped
from torch.autograd.graph import saved_tensors_hooks

from tacit.clipping import AdaptiveClipping, ClippingRule, FlatClipping, MemoryBudget, fast, rules
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import under_vmap
from tacit.clipping.isolation.under_vmap import Pass, _is_wrapped
from tacit.clipping.per_example import linear
from tacit.clipping.per_example.parameter import Gradient
from tacit.clipping.per_example.registry import RULES
from tacit.clipping.per_example.use import Kept, Use
from tacit.errors import UnsupportedModel

Patch = tuple[Any, Any, Callable[..., Any]]


def plant(patch: pytest.MonkeyPatch, *patches: Patch) -> None:
    for owner, name, bug in patches:
        (patch.setitem if isinstance(owner, dict) else patch.setattr)(owner, name, bug)


def squares(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return 10 * out.flatten(1).square().sum(1)


# --- sums that are wrong ------------------------------------------------------------------------------------


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    return model


def constants_with_records() -> nn.Module:
    """A scale, a bias for each record, and positions that are no record's."""

    def forward(m: Any, x: Tensor) -> Any:
        at = m.places(torch.arange(2))
        return (m.out(x.view(-1, 2, 3)) * m.scale.weight.T[0] + at).cumsum(1)

    return Of(forward, out=nn.Linear(3, 4), scale=nn.Linear(2, 4), places=nn.Embedding(5, 4))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))


MODELS: list[Maker] = [
    lambda: nn.Linear(6, 6),
    lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)),
    lambda: Of(lambda m, x: m.layer(x.view(-1, 2, 3)), layer=nn.Linear(3, 3)),
    tied,
    perceptron,
    constants_with_records,
]


def engine_for(make: Maker, C: float = 1.0, views: int = 1) -> FastEngine:
    torch.manual_seed(0)
    model = make().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return FastEngine(model, squares, FlatClipping(C), views=views, budget=MemoryBudget(linear_slack=0.0))


def rows() -> Tensor:
    return torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def sums_are_those_of_a_loop() -> None:
    """Compare sums in which all records are clipped, and sums in which none is."""
    for make in MODELS:
        for C, views in ((1.0, 1), (1e6, 1), (1.0, 2)):
            equals_a_loop(engine_for(make, C, views), rows(), rtol=1e-9, atol=1e-10)


def what_is_broken_or_padding_adds_nothing() -> None:
    engine, broken = engine_for(perceptron), rows()
    broken[2] = math.nan
    mask = torch.tensor([True] * 4 + [False] * 2)
    wanted = loop(engine.model, squares, (rows()[[0, 1, 3]],), 1.0)[0]
    equal(step(engine, broken, mask=mask)[0], wanted, atol=1e-9)


def each_record_draws_its_own() -> None:
    """Copies of one record all have different norms."""
    engine = engine_for(lambda: nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3)))
    assert len(set(norms_found(engine, rows()[:1].expand(8, 6)).tolist())) == 8


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
    return sum((use.squared_norms() for use in gradient._own), torch.zeros(n, dtype=torch.float64))


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
    engine: FastEngine, accumulator: Sums, batch: Batch, thresholds: Tensor, scale: float
) -> Any:
    apart = FastEngine(engine.model, engine.per_example_loss, engine.rule)
    for view in range(engine.views):
        part = tuple(t[view :: engine.views] for t in batch)
        found = FAST_ADD(apart, accumulator, part, thresholds, scale)
    return found


def threshold_moves_the_wrong_way(threshold: float, noisy_fraction: float, **settings: float) -> float:
    return threshold * math.exp(settings["learning_rate"] * (noisy_fraction - settings["quantile"]))


def add_twice(engine: FastEngine, *args: Any) -> Any:
    ADD_PASS(engine, *args)
    return ADD_PASS(engine, *args)


def count_padding(engine: FastEngine, sums: Sums, batch: Batch, mask: Tensor | None, C: Tensor) -> object:
    return ADD_CLIPPED_SUM(engine, sums, batch, None, C)


def lose_what_is_lent(run: Pass, *args: Any) -> None:
    run._lent.clear()
    RUN_BACKWARD(run, *args)


FAST_ADD, FAST_ADD_FROM, ADD_PASS = FastEngine._add, FastEngine._add_from, FastEngine._add_pass
ADD_CLIPPED_SUM, RUN_BACKWARD, OF_LINEAR, OF_EACH = (
    FastEngine.add_clipped_sum, Pass._run_backward, RULES[F.linear], Pass.of_each,
)  # fmt: skip
SEPARATE: Patch = (linear, "merged", lambda uses: None)
Checker = Callable[[], None]
right, absent, quantile = (
    sums_are_those_of_a_loop,
    what_is_broken_or_padding_adds_nothing,
    the_threshold_follows_the_quantile,
)
PLANTS: dict[str, tuple[Checker, list[Patch]]] = {
    "clip skipped for one layer": (right, [(Gradient, "add_weighted", clip_skipped_for_one_layer)]),
    "clamp at 2C": (right, [(FlatClipping, "factors", clamp_at_twice_the_threshold)]),
    "factors up to 2": (right, [(FlatClipping, "factors", clamp_factors_at_two)]),
    "mean for sum, weight": (right, [(linear.Pair, "add_weighted", mean_for_sum)]),
    "mean for sum, positions": (right, [(linear.Outer, "add_weighted", mean_for_sum)]),
    "mean for sum, bias": (right, [(Kept, "add_weighted", mean_for_sum)]),
    "tied layer counted once": (right, [SEPARATE, (Gradient, "squared_norms", tied_layer_counted_once)]),
    "squares of tied uses added": (right, [SEPARATE, (Gradient, "squared_norms", tied_squares_added)]),
    "second use lost": (right, [(linear, "merged", first_use_only)]),
    "views clipped apart": (right, [(FastEngine, "_add", views_clipped_apart)]),
    "drop a gradient": (right, [(RULES, F.linear, lambda of, x, *rest: OF_LINEAR(of, x.detach(), *rest))]),
    "add twice": (right, [(FastEngine, "_add_pass", add_twice)]),
    # no rule and no copies: the gradients of all records reach the parameters at once
    "read past the interception": (right, [(Pass, "lent", lambda run, value: value)]),
    "lose what is lent": (right, [(Pass, "_run_backward", lose_what_is_lent)]),
    "divisor follows dropped records": (absent, [(FastEngine, "_add_from", changed_divisor)]),
    "broken record kept": (absent, [(fast, "_finite", broken_record_kept)]),
    "count padding": (absent, [(FastEngine, "add_clipped_sum", count_padding)]),
    "share random numbers": (
        each_record_draws_its_own,
        [(Pass, "of_each", lambda run, one, records: OF_EACH(run, one, records, randomness="same"))],
    ),
    "threshold moves the wrong way": (quantile, [(rules, "next_threshold", threshold_moves_the_wrong_way)]),
    "noise not split": (
        quantile,
        [(rules, "split_noise", lambda noise_multiplier, count_noise: noise_multiplier)],
    ),
}


@pytest.mark.untraced
@each("checker, patches", PLANTS)
def test_the_planted_bug_is_seen(
    checker: Checker, patches: list[Patch], monkeypatch: pytest.MonkeyPatch
) -> None:
    checker()
    plant(monkeypatch, *patches)
    with pytest.raises((AssertionError, UnsupportedModel)):
        checker()


# --- holes in what isolates records -------------------------------------------------------------------------

C = 0.1


def tame(seed: int) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)).clamp(-1.5, 1.5)


def flagged() -> Tensor:
    x = tame(2)
    x[:, 0] = x[:, 0].abs()
    x[0, 0] = -3.5
    return x


def moved(loss: Loss) -> float:
    """By how many C the flagged record moves the sums of its batch and of the one behind it."""
    return moved_by(Net, loss, [(tame(0),), (flagged(),), (tame(1),)], 0, C, changed=1)


largest = with_rule("Largest", lambda info, dims, x: (x * (1 - 2 * (x.abs().amax() > 3)), dims[0]))


def saved(m: Net, x: Tensor) -> Tensor:
    """Tensors are kept with a sign of all."""

    def pack(t: Tensor) -> tuple[Tensor, Tensor]:
        return t, t.detach().amin()

    with saved_tensors_hooks(pack, lambda kept: kept[0] * (1 - 2.0 * (kept[1] < -3))):
        h = m.first(x)
    return head(m, h)


def told(m: Net, x: Tensor) -> Tensor:
    """Python reads a value of all records."""
    return head(m, m.first(x)) * (-1 if bool((x < -3).any()) else 1)


def in_a_hook(m: Net, x: Tensor) -> Tensor:
    h = m.first(x)
    if h.requires_grad:
        h.register_hook(lambda g: g * (1 - 2.0 * (g.abs().amax() > 99)))
    return head(m, h) * (1 + 1e4 * (x[:, 0] < -3))


CARRY_OUT = Pass._carry_out


def reads_all(run: Pass, func: Any, args: Any, kwargs: Any) -> Any:
    """Python is given the largest value of all records."""
    if func is Tensor.__bool__ and run.is_batched(args[0]):
        return bool(get_unwrapped(args[0]).amax())
    return CARRY_OUT(run, func, args, kwargs)


def hooks_all(run: Pass, tensor: Tensor, hook: Callable[[Tensor], Tensor]) -> Any:
    return get_unwrapped(tensor).register_hook(hook)  # type: ignore[no-untyped-call]


HOLES: dict[str, tuple[Loss, Patch]] = {
    "a rule of the user's own": (
        lambda m, x: head(m, m.first(largest(x))),
        (under_vmap, "_refuse_what_sees_all", lambda *_, **__: None),
    ),
    "hooks on saved tensors": (saved, (Pass, "_check_hooks", lambda *_, **__: None)),
    "a value that Python reads": (told, (Pass, "_carry_out", reads_all)),
    "a hook sees all records": (in_a_hook, (Pass, "_hook", hooks_all)),
}


@each("loss, patch", HOLES)
def test_planted_bug_one_record_moves_the_sum_by_more_than_the_bound(
    loss: Loss, patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with suppress(UnsupportedModel):
        assert moved(loss) <= 1 + 1e-4
    plant(monkeypatch, patch)
    assert moved(loss) > 1.05


class Teacher:
    """The outputs are joined with those of the batch before."""

    before: Tensor | None = None

    def __call__(self, m: Net, x: Tensor) -> Tensor:
        h = m.first(x)
        before, self.before = self.before, h.detach().mean()
        return head(m, h if before is None else h * before)


def reads_kept(run: Pass, tensor: Tensor) -> tuple[bool, bool]:
    """Tensors of earlier passes are read as if they were of this one."""
    return (False, True) if _is_wrapped(tensor) else (id(tensor) in run.sources, False)


def test_planted_bug_a_tensor_of_an_earlier_batch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def second_sum(first: Tensor) -> Tensor:
        torch.manual_seed(0)
        engine = FastEngine(Net(), Teacher(), FlatClipping(C))
        clipped_sum(engine, first)
        return clipped_sum(engine, tame(1))

    with pytest.raises(UnsupportedModel, match="stored tensor of an earlier batch"):
        second_sum(tame(0))
    plant(monkeypatch, (Pass, "_status", reads_kept))
    monkeypatch.setattr("tacit.clipping.engine.check_records", lambda *_: None)  # it refuses them too
    assert float((second_sum(tame(0)) - second_sum(flagged())).norm()) > 0.1 * C
