"""The judgement of falling losses: false alarms, detections, its text, and resumed runs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit import LossReport, Plan, PrivateSession, train
from tacit.errors import LossWarning
from tacit.report import make_statement
from tacit.testing import seeded_generator
from tacit.training.progress import Fall, fall_of

SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "quick": lambda t: 1.0 - np.exp(-t / 0.15),
    "slow": lambda t: t,
    "late": lambda t: t**2,
    "root": np.sqrt,
}


def hardly(curve: np.ndarray, noise: float, *, start: float | None = None, runs: int = 1000) -> float:
    """Return the share of runs judged to have hardly fallen; half of the noise is from sampling."""
    rng = np.random.default_rng(0)
    found = [
        fall_of(list(curve + math.sqrt(2.0) * noise * rng.normal(size=len(curve))), noise, start=start)
        for _ in range(runs)
    ]
    return float(np.mean([one is not None and one.hardly for one in found]))


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", [7, 30])
def test_a_loss_that_falls_by_a_tenth_is_not_called_flat(steps: int, shape: str, noise: float) -> None:
    curve = 0.7 * (1.0 - 0.11 * SHAPES[shape](np.arange(steps) / (steps - 1)))
    assert hardly(curve, noise) <= 0.015  # 0.01, and the chance of a thousand runs


@pytest.mark.parametrize(("steps", "noise"), [(7, 0.003), (30, 0.008), (200, 0.02)])
def test_a_loss_that_stays_is_found(steps: int, noise: float) -> None:
    assert hardly(np.full(steps, 0.7), noise) >= 0.8
    assert hardly(np.linspace(0.7, 0.9, steps), noise) >= 0.95


def test_a_public_start_finds_it_under_more_noise() -> None:
    """The setting is 20 steps of 300 of 6,000 reviews at epsilon 8; the loss has noise 0.054."""
    flat = np.full(20, math.log(2))
    assert hardly(flat, 0.038) < 0.6
    assert hardly(flat, 0.038, start=math.log(2)) >= 0.8
    for shape in SHAPES.values():
        curve = math.log(2) * (1.0 - 0.2 * shape(np.arange(20) / 19))
        assert hardly(curve, 0.038, start=math.log(2)) <= 0.015


def test_of_few_losses_or_none_nothing_is_said() -> None:
    assert fall_of([0.7] * 5, 0.01) is None
    assert fall_of([0.7] * 9 + [math.nan], 0.01) is None
    assert hardly(np.full(20, 0.7), 1.0) < 0.05, "the noise hides a tenth"


def session(labels: str, **given: Any) -> PrivateSession:
    """Return a session of 60 steps on 2,000 records, with labels that can be learned or cannot."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(2000, 5, generator=rng)
    y = (x[:, 0] > 0).long() if labels == "learnt" else torch.randint(0, 2, (2000,), generator=rng)
    plan = Plan.with_noise(
        noise_multiplier=1.0, steps=60, records=2000, batch_size=1000, clipping=1.0, delta=1e-5,
        adjacency="add-remove", unit="row", loss_report=LossReport(bound=2.0),
    )  # fmt: skip
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    nn.init.zeros_(model.weight)
    return PrivateSession(
        model, torch.optim.SGD(model.parameters(), lr=0.5), (x, y), plan, loss=nn.CrossEntropyLoss(),
        generator=seeded_generator(3), **given,
    )  # fmt: skip


def steps_until(run: PrivateSession, enough: Callable[[], bool]) -> None:
    for ticket in run.batches():
        run.step(ticket)
        if enough():
            break


def test_a_run_that_learns_nothing_says_so_after_a_third_and_at_the_end(tmp_path: Path) -> None:
    run = session("none")
    run.falling.why = "The noise is stronger than any gradient."
    with pytest.warns(LossWarning, match=r"hardly fallen in the first third.* stronger than any") as said:
        steps_until(run, lambda: bool(said.list))
    assert run.steps_done == 20
    assert "remaining 40 steps" in str(said.list[0].message)
    run.save(tmp_path / "state")
    again = session("none")
    again.load(tmp_path / "state")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        train(again)
    assert isinstance(again.falling.fall, Fall)
    assert again.falling.fall == run.falling.fall
    assert any("hardly fallen" in note for note in make_statement(again).data["notes"])


def test_a_run_cut_before_its_third_is_judged_by_all_of_its_losses(tmp_path: Path) -> None:
    run = session("none")
    steps_until(run, lambda: run.steps_done == 12)
    run.save(tmp_path / "state")
    again, whole = session("none"), session("none")
    again.load(tmp_path / "state")
    for one in (again, whole):
        with pytest.warns(LossWarning, match="hardly fallen"):
            train(one)
    assert again.falling.fall == whole.falling.fall


def test_a_run_that_learns_says_nothing() -> None:
    run = session("learnt")
    train(run)
    assert run.falling.fall is not None
    assert not run.falling.fall.hardly
    assert run.falling.said() == ""
    assert make_statement(run).data["notes"] == []
