"""Both engines against a plain loop of one autograd.grad per record, for every layer, rule and view count."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from tacit.clipping import (
    AdaptiveClipping,
    AutomaticClipping,
    ClippingRule,
    FlatClipping,
    PerLayerClipping,
)
from tacit.clipping.engine import GradientEngine
from tacit.clipping.fast import FastEngine
from tacit.clipping.reference import ReferenceEngine

Loss = Callable[..., Tensor]
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


def clipped_sum(engine: GradientEngine, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The clipped sum from an engine, all records present."""
    accumulator = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    thresholds = torch.tensor(engine.rule.initial_thresholds(engine.names), dtype=torch.float64)
    mask = torch.ones(len(batch[0]) // engine.views, dtype=torch.bool)
    engine.add_clipped_sum(accumulator, batch, mask, thresholds)
    return accumulator


@dataclass(frozen=True)
class Case:
    """A model, its loss and its inputs; ``fast`` is False where the batch goes to the reference engine."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    fast: bool = True


def squares(model: nn.Module, x: Tensor, *more: Tensor) -> Tensor:
    """A loss with a gradient of different size in each row."""
    result = model(x, *more)
    out: Tensor = result[0] if isinstance(result, tuple) else result
    weights = torch.linspace(0.2, 1.0, out[0].numel(), dtype=out.dtype)
    return (out.flatten(1) * weights).sum(1).sin() + (out.flatten(1) ** 2).mean(1)


def images(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    """Random rows of a shape."""
    return lambda: (torch.randn(ROWS, *shape, dtype=torch.float64),)


def padded(mode: str) -> Case:
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
}


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_engines_equal_the_loop(case: Case, rule: ClippingRule, views: int) -> None:
    torch.manual_seed(0)
    model, batch = case.make().double(), case.inputs()
    wanted = loop_oracle(model, squares, rule, batch, views)
    fast = FastEngine(model, squares, rule, views=views)
    for engine in (fast, ReferenceEngine(model, squares, rule, views=views)):
        found = clipped_sum(engine, batch)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert value.abs().max() > 0, name
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=name)
    assert (fast.route == "fast") == case.fast, fast.route
