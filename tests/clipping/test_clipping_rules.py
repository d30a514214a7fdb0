"""The rules as data: formulas, groups, sensitivity, adaptive threshold; no torch at import."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.clipping import AdaptiveClipping, AutomaticClipping, ClippingRule, FlatClipping, PerLayerClipping
from tacit.clipping.rules import next_threshold, split_noise
from tacit.errors import InvalidInput

NAMES = ["a.weight", "a.bias", "b.c.weight", "d"]
RULES: list[ClippingRule] = [
    FlatClipping(2.0),
    PerLayerClipping(2.0),
    PerLayerClipping(2.0, norms=(("a", 0.5), ("b.c", 1.0), ("", 1.0))),
    AutomaticClipping(2.0),
    AdaptiveClipping(initial_norm=2.0),
]


def test_the_rules_import_no_torch() -> None:
    code = "import sys, tacit.clipping; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_groups_thresholds_and_sensitivity(rule: ClippingRule) -> None:
    groups, thresholds = rule.groups(NAMES), rule.initial_thresholds(NAMES)
    assert sorted(name for group in groups for name in group) == sorted(NAMES)
    assert len(thresholds) == len(groups)
    assert rule.norm == 2.0
    assert rule.sensitivity(thresholds) <= 2.0 * (1 + 1e-12)
    assert rule.sensitivity(thresholds) == pytest.approx(math.sqrt(sum(c * c for c in thresholds)))
    assert hash(rule) == hash(type(rule)(**vars(rule)))


def test_per_layer_groups_are_modules() -> None:
    assert PerLayerClipping(1.0).groups(NAMES) == [["a.weight", "a.bias"], ["b.c.weight"], ["d"]]
    assert PerLayerClipping(3.0).initial_thresholds(NAMES) == [pytest.approx(math.sqrt(3))] * 3
    assert RULES[2].initial_thresholds(NAMES) == [0.5, 1.0, 1.0]


@given(
    st.sampled_from(RULES),
    st.lists(st.floats(0, 1e300) | st.sampled_from([math.inf, math.nan]), min_size=1, max_size=5),
    st.floats(1e-6, 1e6),
)
def test_scaled_norms_stay_below_the_threshold(rule: ClippingRule, norms: list[float], C: float) -> None:
    raw = torch.tensor(norms, dtype=torch.float64)[:, None]
    factors = rule.factors(raw, torch.tensor([C], dtype=torch.float64))
    assert factors.shape == raw.shape
    assert (factors >= 0).all()
    assert not factors[~raw.isfinite()].any()
    finite = raw.isfinite()
    assert (factors[finite] * raw[finite] <= C * (1 + 1e-12)).all()
    if not isinstance(rule, AutomaticClipping):
        assert (factors[finite & (raw <= C)] == 1).all()
        assert torch.allclose(factors[finite & (raw > C)] * raw[finite & (raw > C)], torch.tensor(C).double())


def test_automatic_clipping_is_the_papers_formula() -> None:
    factors = AutomaticClipping(3.0, stability=0.5).factors(torch.tensor([[0.0], [1.0]]), torch.tensor([3.0]))
    assert factors.flatten().tolist() == [6.0, 2.0]


def test_the_split_pays_for_the_count() -> None:
    for z in (0.3, 1.0, 4.0, 9.99):
        z_g = split_noise(z, 5.0)
        assert z_g**-2 + (2 * 5.0) ** -2 == pytest.approx(z**-2)
        assert z_g > z
    assert split_noise(0.0, 5.0) == 0.0
    for z in (10.0, 11.0):
        with pytest.raises(InvalidInput, match="Raise count_noise above"):
            split_noise(z, 5.0)


def test_the_threshold_moves_towards_the_quantile_and_stays_in_range() -> None:
    settings = {"quantile": 0.5, "learning_rate": 0.2, "low": 0.1, "high": 10.0}
    assert next_threshold(1.0, 0.9, **settings) == pytest.approx(math.exp(-0.2 * 0.4))
    assert next_threshold(1.0, 7.0, **settings) == pytest.approx(math.exp(-0.1))
    assert next_threshold(1.0, -7.0, **settings) == pytest.approx(math.exp(0.1))
    assert next_threshold(0.1, 1.0, **settings) == 0.1
    assert next_threshold(10.0, 0.0, **settings) == 10.0
    rule = AdaptiveClipping(initial_norm=4.0, quantile=0.3, learning_rate=0.1)
    assert rule.move(4.0, 0.7) == pytest.approx(4.0 * math.exp(-0.04))
    assert rule.count_std(100) == 5.0
    assert AdaptiveClipping(initial_norm=1.0, count_noise=3).count_std(100) == 3.0


def test_the_threshold_finds_the_quantile_of_fixed_norms() -> None:
    norms, C = [float(i) for i in range(1, 101)], 0.1
    rule = AdaptiveClipping(initial_norm=C, quantile=0.8)
    for _ in range(400):
        C = rule.move(C, sum(norm <= C for norm in norms) / 100)
    assert 75 <= C <= 85


@pytest.mark.parametrize(
    "make",
    [
        lambda value: FlatClipping(value),
        lambda value: PerLayerClipping(value),
        lambda value: PerLayerClipping(1.0, norms=(("a", value),)),
        lambda value: AutomaticClipping(value),
        lambda value: AutomaticClipping(1.0, stability=value),
        lambda value: AdaptiveClipping(value, low=1e-10),
        lambda value: AdaptiveClipping(1.0, low=value),
    ],
)
def test_bounds_so_small_that_squares_underflow_are_refused(make: Callable[[float], ClippingRule]) -> None:
    make(1e-10)
    for value in (9e-11, 1e-30, 1e-40):
        with pytest.raises(InvalidInput, match="1e-10"):
            make(value)


def test_values_that_make_no_sense_are_refused() -> None:
    for make in (
        lambda: FlatClipping(0.0),
        lambda: FlatClipping(math.inf),
        lambda: PerLayerClipping(-1.0),
        lambda: PerLayerClipping(1.0, norms=(("a", 0.0),)),
        lambda: PerLayerClipping(1.0, norms=(("a", 0.9), ("b", 0.9))),
        lambda: PerLayerClipping(1.0, norms=(("a", 0.1), ("a", 0.1))),
        lambda: PerLayerClipping(1.0, norms=(("a", 0.1),)).initial_thresholds(NAMES),
        lambda: AutomaticClipping(1.0, stability=0.0),
        lambda: AdaptiveClipping(initial_norm=1.0, quantile=1.5),
        lambda: AdaptiveClipping(initial_norm=1.0, learning_rate=0.0),
        lambda: AdaptiveClipping(initial_norm=1.0, count_noise=0.0),
        lambda: AdaptiveClipping(initial_norm=1.0, low=2.0),
        lambda: split_noise(1.0, 0.0),
        lambda: FlatClipping(1.0).sensitivity([math.nan]),
    ):
        with pytest.raises(InvalidInput):
            make()
