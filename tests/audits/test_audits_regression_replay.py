"""L0: neighbours are replayed through the real constructor, and every planted bug of the sum is seen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from made import a_plan
from regression import Difference, NotedRows, Recorder, replay_on_neighbours
from torch import Tensor, nn

from tacit.clipping import AdaptiveClipping, AutomaticClipping, FlatClipping, PerLayerClipping, engine
from tacit.clipping.fast import FastEngine
from tacit.clipping.isolation import model_checks
from tacit.noise.generator import Generator
from tacit.plan import LossReport, Plan
from tacit.testing import seeded_generator
from tacit.training import FlipAndCrop, PrivateSession
from tacit.training import run as run_module
from tacit.training import step as step_module

N, D, STEPS, B, C = 12, 6, 4, 4, 1.0
KEYS = [seeded_generator(k) for k in (1, 2)]


def squares(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.flatten(1).square().sum(1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))  # type: ignore[no-any-return]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 3))


def linear() -> nn.Module:
    """A model with unbounded losses."""
    return nn.Linear(D, 3)


plan = partial(a_plan, records=N, batch_size=B, steps=STEPS, clipping=C)


def replayed(
    make: Callable[[], nn.Module] = mlp,
    *,
    the_plan: Plan | None = None,
    rows: Tensor | None = None,
    physical: int = 3,
    only: tuple[str, ...] = (),
    **settings: Any,
) -> Iterator[Difference]:
    """Replay with each probe, or with some by their names."""

    def build(noted: NotedRows, key: Generator) -> PrivateSession:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = make().double()
        optimizer = Recorder([p for p in net.parameters() if p.requires_grad])
        return PrivateSession(
            net,
            optimizer,
            noted,
            the_plan or plan(),
            generator=key,
            physical_batch_size=physical,
            **{"loss": squares, **settings},
        )

    with torch.random.fork_rng():
        torch.manual_seed(4)
        x = torch.randn(N, D, dtype=torch.float64) if rows is None else rows
        z = torch.randn(1, *x.shape[1:], dtype=torch.float64)
    probes = {
        **{f"scale {scale:g}": (scale * z,) for scale in (0.0, 1.0, 10.0, 1e3)},
        "aligned": (x.sum(0, keepdim=True),),
        "opposed": (-x.sum(0, keepdim=True),),
        "overflowing": (1e200 * z,),
        "NaN": (torch.full_like(z, math.nan),),
    }
    chosen = {name: probe for name, probe in probes.items() if not only or name in only}
    return replay_on_neighbours(build, (x,), chosen, keys=KEYS)


def differ(*given: Any, **more: Any) -> bool:
    """Return whether any replay differs, without those after it."""
    return any(True for _ in replayed(*given, **more))


def pictures() -> dict[str, Any]:
    rows = torch.randn(N, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return {
        "make": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
        "rows": rows,
        "the_plan": plan(views=2),
        "augmentation": FlipAndCrop(1),
    }


def half_frozen() -> nn.Module:
    net = mlp()
    net[0].weight.requires_grad_(False)  # type: ignore[index]
    return net


CORRECT: dict[str, dict[str, Any]] = {
    "flat": {},
    "reference engine": {"engine": "reference"},
    "tied": {"make": Tied},
    "frozen": {"make": half_frozen},
    "group norm": {"make": lambda: nn.Sequential(nn.Linear(D, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2))},
    "per layer": {"the_plan": plan(clipping=PerLayerClipping(C))},
    "automatic": {"the_plan": plan(clipping=AutomaticClipping(C))},
    "adaptive and a loss": {
        "the_plan": plan(clipping=AdaptiveClipping(C, count_noise=2.0), loss_report=LossReport())
    },
    "views": pictures(),
    "full batch": {"the_plan": plan(batch_size=N)},
}


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize("name", CORRECT)
def test_neighbours_differ_by_what_is_accounted_for(name: str) -> None:
    assert [*replayed(**CORRECT[name])] == []


# --- bugs of the sum: each a function of the per-record gradients ---------------------------------------


def clip(G: Tensor, norms: Tensor | None = None) -> Tensor:
    norms = G.norm(dim=1) if norms is None else norms
    return (C / norms).clamp(max=1.0)[:, None] * G


def finite(G: Tensor) -> Tensor:
    return G[G.square().sum(1).isfinite()]


def by_parts(G: Tensor, sizes: list[int]) -> Tensor:
    return torch.cat([clip(part) for part in torch.split(G, sizes, 1)], dim=1)


def microbatch_means(G: Tensor, sizes: list[int]) -> Tensor:
    pairs = torch.split(finite(G), 2)
    return (
        torch.stack([clip(p.mean(0, keepdim=True))[0] * len(p) for p in pairs]) if len(finite(G)) else G[:0]
    )


def last_only(G: Tensor, sizes: list[int]) -> Tensor:
    G = finite(G)
    return torch.cat([G[:-1], clip(G[-1:])])


def norm_without(*parts: int) -> Callable[[Tensor, list[int]], Tensor]:
    def combine(G: Tensor, sizes: list[int]) -> Tensor:
        G = finite(G)
        kept = [part for i, part in enumerate(torch.split(G, sizes, dim=1)) if i not in parts]
        return clip(G, torch.cat(kept, dim=1).norm(dim=1))

    return combine


def kept_if_all_finite(G: Tensor, sizes: list[int]) -> Tensor:
    return clip(G) if len(finite(G)) == len(G) else G[:0]


# parameters of mlp(): weight, bias, weight, bias
SUMS: dict[str, Callable[[Tensor, list[int]], Tensor]] = {
    "no clip": lambda G, sizes: finite(G),
    "clip after average": lambda G, sizes: len(finite(G)) * clip(finite(G).mean(0, keepdim=True)),
    "clip of microbatch means": microbatch_means,
    "last record of the microbatch only": last_only,
    "per-layer C called C": lambda G, sizes: by_parts(finite(G), sizes),
    "clip by the largest norm": lambda G, sizes: clip(
        finite(G), finite(G).norm(dim=1).amax().expand(len(finite(G)))
    ),
    "clip by the median norm": lambda G, sizes: clip(
        finite(G), finite(G).norm(dim=1).median().expand(len(finite(G)))
    ),
    "norm without biases": norm_without(1, 3),
    "norm without what was frozen": norm_without(0, 1),
    "overflow of the factor": lambda G, sizes: clip(G),
    "batch with a NaN skipped": kept_if_all_finite,
    "clamp at 2": lambda G, sizes: 2 * clip(finite(G)),
}


def rows_of_gradients(engine: FastEngine, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """(n, P) gradients of each record's own loss *within its batch*, and the (n,) losses."""
    parameters = list(engine.parameters.values())
    with torch.enable_grad():
        losses = engine.per_example_loss(engine.model, *batch).view(-1, engine.views).mean(1)
        each = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    return torch.stack([torch.cat([g.flatten() for g in grads]) for grads in each]), losses.detach()


def each_alone(engine: FastEngine, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return the same for each record alone."""
    alone = [rows_of_gradients(engine, tuple(t[i : i + 1] for t in batch)) for i in range(len(batch[0]))]
    return torch.cat([G for G, _ in alone]), torch.cat([loss for _, loss in alone])


def planted(
    combine: Callable[[Tensor, list[int]], Tensor], gradients: Callable[..., Any] = each_alone
) -> Callable[..., Any]:
    def add(
        engine: FastEngine, accumulator: Any, batch: Any, thresholds: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        G, losses = gradients(engine, batch)
        sizes = [p.numel() for p in engine.parameters.values()]
        if len(combined := combine(G, sizes)):
            for name, part in zip(engine.names, torch.split(scale * combined.sum(0), sizes), strict=True):
                accumulator[name].add_(part.view_as(accumulator[name]))
        return G.norm(dim=1)[:, None], losses

    return add


@pytest.mark.parametrize("name", SUMS)
def test_a_planted_bug_of_the_sum_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastEngine, "_add", planted(SUMS[name]))
    assert differ()


def test_a_right_sum_in_place_of_a_planted_one_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above detect the bugs, not the way in which they are planted."""
    monkeypatch.setattr(FastEngine, "_add", planted(lambda G, sizes: clip(finite(G))))
    assert not differ()


def test_a_norm_that_misses_a_tied_use_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def use_lost(G: Tensor, sizes: list[int]) -> Tensor:
        return clip(finite(G), finite(G)[:, sizes[0] :].norm(dim=1))

    monkeypatch.setattr(FastEngine, "_add", planted(use_lost))
    assert differ(Tied)


def test_views_as_records_of_their_own_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = FastEngine._add

    def apart(engine: FastEngine, accumulator: Any, batch: Any, thresholds: Tensor, scale: float) -> Any:
        single = FastEngine(engine.model, engine.per_example_loss, engine.rule)
        single._types, single._devices = engine._types, engine._devices
        parts = [tuple(t[k :: engine.views] for t in batch) for k in range(engine.views)]
        first, _ = (real(single, accumulator, part, thresholds, scale) for part in parts)
        return first

    monkeypatch.setattr(FastEngine, "_add", apart)
    assert differ(**pictures())


# --- models that mix records, let in --------------------------------------------------------------------


class Experts(nn.Module):
    """A mixture whose experts have room for half of the batch each."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.one, self.two = nn.Linear(D, 1), nn.Linear(D, 3), nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.gate(x)
        return torch.where(gate >= gate.median(), self.one(x) * gate, self.two(x))


def contrastive(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return (out @ out.T).square().mean(1)


MIXING: dict[str, dict[str, Any]] = {
    "batch norm": {
        "make": lambda: nn.Sequential(
            nn.Linear(D, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)
        )
    },
    "mixture of experts": {"make": Experts},
    "contrastive loss": {"loss": contrastive},
}


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_records_is_seen_if_it_is_let_in(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_checks, "check_module", lambda *_: None)
    monkeypatch.setattr(engine, "check_records", lambda *_: None)
    monkeypatch.setattr(FastEngine, "_add", planted(lambda G, sizes: clip(finite(G)), rows_of_gradients))
    found = replayed(physical=512, the_plan=plan(batch_size=N - 2), **MIXING[name])
    assert any(difference.probe.startswith("scale 1") for difference in found)


# --- bugs of the step and of the session ----------------------------------------------------------------

REAL_STEP = step_module.noisy_step


def raw_sum(engine: Any, records: Any, indices: Any, thresholds: list[float]) -> Any:
    sums = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
    if len(indices) == 0:
        return sums, 0.0
    mask, limits = torch.ones(len(indices), dtype=torch.bool), torch.tensor(thresholds, dtype=torch.float64)
    seen = engine.add_clipped_sum(sums, records.take(indices, seed=0), mask, limits)
    return sums, float(seen.raw_losses.nan_to_num(nan=0.0, posinf=0.0).mean())


def step_with(change: Callable[..., Any]) -> Callable[..., Any]:
    def noisy_step(run: Any, step: int, indices: Any) -> Any:
        out, plan, records = REAL_STEP(run, step, indices), run.plan, run.records
        taken = list(records.taken)
        sums, loss = raw_sum(run.engine, records, indices, run.thresholds)
        records.taken[:] = taken
        return change(out, plan, records, indices, sums, loss, step)

    return noisy_step


def scaled(out: Any, factor: float) -> Any:
    return dataclasses.replace(out, gradients={name: factor * g for name, g in out.gradients.items()})


def momentum_from_raw() -> Callable[..., Any]:
    past: dict[str, Tensor] = {}

    def change(out: Any, plan: Plan, records: Any, indices: Any, sums: Any, loss: float, step: int) -> Any:
        if step == 0:
            past.clear()
        for name, raw in sums.items():
            kept = past.get(name, torch.zeros_like(raw))
            out.gradients[name] += 0.9 * kept
            past[name] = 0.9 * kept + raw / plan.expected_batch_size
        return out

    return change


STEPS_CHANGED: dict[str, Callable[..., Any]] = {
    "momentum from the raw gradient": momentum_from_raw(),
    "realised batch as divisor": lambda out, plan, records, indices, *_: scaled(
        out, B / max(1, len(indices))
    ),
    "q len(data) as divisor": lambda out, plan, records, *_: scaled(out, N / len(records)),
    "training loss in the outputs": lambda out, plan, records, indices, sums, loss, step: dataclasses.replace(
        out, loss=loss
    ),
    "schedule by the training loss": lambda out, plan, records, indices, sums, loss, step: scaled(
        out, 1 / (1 + loss)
    ),
}


@pytest.mark.parametrize("name", STEPS_CHANGED)
def test_a_planted_bug_of_the_step_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "noisy_step", step_with(STEPS_CHANGED[name]))
    assert differ(linear)


def test_a_right_step_in_place_of_a_planted_one_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above detect the bugs, not the way in which they are planted."""
    monkeypatch.setattr(run_module, "noisy_step", step_with(lambda out, *_: out))
    assert not differ(linear)


def test_a_clip_of_the_last_microbatch_only_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of a batch come in threes; of all but the last three the whole gradient is added."""

    def noisy_step(run: Any, step: int, indices: Any) -> Any:
        out, records, engine = REAL_STEP(run, step, indices), run.records, run.engine
        if len(earlier := indices[: max(0, len(indices) - 1) // 3 * 3]):
            taken = list(records.taken)
            G = finite(each_alone(engine, records.take(earlier, seed=0))[0])
            records.taken[:] = taken
            left = torch.split((G - clip(G)).sum(0), [p.numel() for p in engine.parameters.values()])
            for name, part in zip(engine.names, left, strict=True):
                out.gradients[name] += part.view_as(out.gradients[name]) / run.plan.expected_batch_size
        return out

    monkeypatch.setattr(run_module, "noisy_step", noisy_step)
    assert differ()


def test_an_empty_batch_that_is_skipped_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def skipped(out: Any, plan: Plan, records: Any, indices: Any, *_: Any) -> Any:
        return scaled(out, 0.0) if len(indices) == 0 else out

    few: dict[str, Any] = {"the_plan": plan(batch_size=1, steps=20, records=30), "only": ("scale 10",)}
    assert not differ(**few)
    monkeypatch.setattr(run_module, "noisy_step", step_with(skipped))
    assert differ(**few)


def test_stopping_early_on_the_training_loss_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    last = {"loss": 0.0}

    def note(out: Any, plan: Plan, records: Any, indices: Any, sums: Any, loss: float, step: int) -> Any:
        last["loss"] = loss
        return out

    def stopping(session: PrivateSession) -> Iterator[Any]:
        last["loss"] = 0.0
        for batch in session._tickets(session.plan.steps, "", False):
            if last["loss"] > 50.0:
                return
            yield batch

    monkeypatch.setattr(run_module, "noisy_step", step_with(note))
    assert not differ(linear)
    monkeypatch.setattr(PrivateSession, "batches", stopping)
    assert any("releases" in found.what for found in replayed(linear))


def test_the_difference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlatClipping, "factors", lambda rule, norms, C: (2 * C / norms).clamp(max=1.0))
    assert any("moves by 2" in found.what for found in replayed())
