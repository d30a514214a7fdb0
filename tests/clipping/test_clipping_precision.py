"""Narrow types, recomputation and whole models: autocast, bf16 parameters, checkpoints, benchmarks."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import (
    Kind,
    Loss,
    Maker,
    Of,
    Shape,
    Sums,
    both,
    by_definition,
    double,
    each,
    equal,
    equals_a_loop,
    plan,
    run,
    step,
    sums_of,
    waves,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.training import PrivateSession
from tacit.training import run as run_module
from tacit.training import step as step_module

C = 0.5


def squares(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.float().flatten(1).square().mean(1) + out.float().flatten(1).sum(1)


def under(dtype: torch.dtype) -> Loss:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return squares(model, x)

    return loss


NETWORKS: dict[str, tuple[Maker, Shape]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh()), (2, 6, 6)),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (5, 4)),
}
networks = pytest.mark.parametrize(("make", "shape"), NETWORKS.values(), ids=NETWORKS)


@networks
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_autocast_gives_the_gradients_that_autograd_gives_under_autocast(
    make: Maker, shape: Shape, narrow: torch.dtype
) -> None:
    model, x = make(), torch.randn(6, *shape)
    engine = FastEngine(model, under(narrow), FlatClipping(C))
    found, wanted = sums_of(engine, x), by_definition(model, under(narrow), (x,), C)
    assert engine.route == "fast"
    for name, value in wanted.items():
        error = float((found[name] - value).norm() / value.norm().clamp(min=0.05))
        assert error < (0.02 if narrow == torch.bfloat16 else 0.003), name


@networks
def test_parameters_in_bf16_are_summed_in_float32(make: Maker, shape: Shape) -> None:
    model, x = make().bfloat16(), torch.randn(6, *shape, dtype=torch.bfloat16)
    engine = FastEngine(model, squares, FlatClipping(C))
    found, wanted = sums_of(engine, x, dtype=torch.float32), by_definition(model, squares, (x,), C)
    for name, value in wanted.items():
        assert found[name].dtype == torch.float32
        assert float((found[name] - value).norm() / value.norm().clamp(min=0.05)) < 0.03, name
    for i in range(6):
        assert sum(float(v.double().square().sum()) for v in sums_of(engine, x[i : i + 1]).values()) <= C**2


def test_a_session_trains_bf16_parameters_with_noise_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Tensor] = []
    released = step_module.noisy_step

    def watched(*arguments: Any, **options: Any) -> Any:
        step = released(*arguments, **options)
        kept.extend(step.gradients.values())
        return step

    monkeypatch.setattr(run_module, "noisy_step", watched)
    model = nn.Linear(40, 50).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rows = torch.zeros(20, 40, dtype=torch.bfloat16)
    run(PrivateSession(model, optimizer, (rows,), plan(20, batch_size=5, steps=1), loss=squares))
    assert [g.dtype for g in kept] == [torch.float32, torch.float32]
    assert float(kept[0].std()) == pytest.approx(1.0 / 5, rel=0.1)
    assert len(set(kept[0].flatten().tolist())) > 1900  # bf16 has some hundred values there
    assert all(p.isfinite().all() for p in model.parameters())


def mixed(*layers: nn.Module) -> nn.Module:
    """Layers with parameters of several types, each fed in its own."""

    def forward(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            weight = next(layer.parameters(), None)
            x = layer(x if weight is None else x.to(weight.dtype))
        return x

    return Of(forward, layers=nn.ModuleList(layers))


MIXED: dict[str, tuple[Maker, Shape]] = {
    "float32, then float64": (lambda: mixed(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3).double()), (6,)),
    "float64, then float32": (lambda: mixed(nn.Linear(6, 5).double(), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "positions": (lambda: mixed(nn.Linear(6, 5), nn.LayerNorm(5).double(), nn.Linear(5, 3)), (7, 6)),
    "convolutions": (
        lambda: mixed(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3).double(), nn.Conv2d(3, 2, 2)),
        (2, 6, 6),
    ),
    "narrow and wide": (lambda: mixed(nn.Linear(6, 5).bfloat16(), nn.Linear(5, 3).double()), (6,)),
}


@both
@each("make, shape", MIXED)
def test_parameters_of_several_types_are_summed_each_in_its_own(
    make: Maker, shape: Shape, kind: Kind
) -> None:
    model, x = make(), double(6, *shape)
    engine = kind(model, squares, FlatClipping(C))
    wide = {name: torch.promote_types(p.dtype, torch.float32) for name, p in engine.parameters.items()}

    def summed(rows: Tensor) -> Sums:
        sums = {name: torch.zeros(p.shape, dtype=wide[name]) for name, p in engine.parameters.items()}
        return step(engine, rows, into=sums)[0]

    narrow = any(p.dtype == torch.bfloat16 for p in model.parameters())
    for name, value in by_definition(model, squares, (x,), C).items():
        equal(summed(x)[name].double(), value, 0.03 if narrow else 1e-5, 0.01 if narrow else 1e-6)
    for i in range(6):
        assert sum(float(v.double().square().sum()) for v in summed(x[i : i + 1]).values()) <= C**2


@both
def test_a_model_that_is_narrowed_later_is_clipped_by_what_its_new_type_rounds_to(
    kind: Kind,
) -> None:
    model, x = nn.Linear(40, 30).double(), torch.randn(50, 40)
    engine = kind(model, squares, FlatClipping(C))
    model.float()
    for i in range(50):
        sums = sums_of(engine, x[i : i + 1], dtype=torch.float32)
        assert sum(float(v.double().square().sum()) for v in sums.values()) <= C**2


def test_checkpoints_are_right() -> None:
    """Two layers that are computed anew in the backward pass, each time that they are used."""

    def forward(m: Any, x: Tensor) -> Any:
        h = m.first(x).tanh()
        for _ in range(2):
            h = h + checkpoint(m.again, h, use_reentrant=False)
        return h

    again = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
    model = Of(forward, first=nn.Linear(4, 4), again=again).double()
    equals_a_loop(FastEngine(model, waves, FlatClipping(C)), double(6, 4))


def test_groups_of_parameters_with_rates_of_their_own_are_trained_each_at_its_rate() -> None:
    """A frozen layer, its adapter, and a head with another learning rate."""
    model = Of(
        lambda m, x: m.head(m.base(x) + m.up(m.down(x))),
        base=nn.Linear(4, 4).requires_grad_(False),
        down=nn.Linear(4, 2, bias=False),
        up=nn.Linear(2, 4, bias=False),
        head=nn.Linear(4, 1),
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trained = [p for name, p in model.named_parameters() if "n.w" in name or "p.w" in name]
    still = model.get_submodule("head").parameters()
    optimizer = torch.optim.SGD([{"params": trained, "lr": 0.1}, {"params": still, "lr": 0.0}])
    run(PrivateSession(model, optimizer, (torch.randn(20, 4),), plan(20, batch_size=5), loss=squares))
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"down.weight", "up.weight"}


@pytest.mark.untraced
@pytest.mark.parametrize("name", ["MLP", "tanh CNN", "VGG", "GPT", "ResNet"])
def test_the_networks_of_the_benchmark_equal_the_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    load = importlib.import_module("workloads").make_workload(name, tiny=True)
    model, x = load.make().double(), load.inputs
    x = x.double() if x.is_floating_point() else x
    equals_a_loop(FastEngine(model, load.loss, FlatClipping(C)), x, load.targets)
