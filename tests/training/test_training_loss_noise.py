"""The noise that is printed with a noisy loss is that of the loss."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
from made import a_plan, a_session, network
from torch import Tensor, nn

from tacit import LossReport, Plan, PrivateSession
from tacit.training import train
from tacit.training.progress import SMOOTHING, loss_std, noisy, smoothed_std

STEPS = 200


def plan(batch: int) -> Plan:
    report = LossReport(bound=2.0, relative_noise=2.0)
    return a_plan(steps=STEPS, records=100, batch_size=batch, clipping=1.0, loss_report=report)


def no_loss(model: nn.Module, x: Tensor) -> Tensor:
    """Return losses of zero, the farthest from the centre: their sum varies most with the sample."""
    losses: Tensor = 0.0 * model(x).squeeze(1)
    return losses


def session(the_plan: Plan) -> PrivateSession:
    return a_session(network(2, 1), torch.zeros(100, 2), the_plan, lr=0.0, loss=no_loss)


@pytest.mark.parametrize("batch", [4, 50, 100], ids=["noise", "draws", "everybody"])
def test_the_deviation_is_that_of_the_losses_of_a_run(batch: int) -> None:
    """The deviation of noise alone, or of draws alone, is too small; the test rejects twice or half of it."""
    run = session(plan(batch))
    losses = [run.step(ticket).loss or 0.0 for ticket in run.batches()]
    said = loss_std(run.plan)
    assert said is not None
    assert math.isclose(statistics.stdev(losses) / said, 1.0, abs_tol=5 / math.sqrt(2 * STEPS))


def test_the_deviation_of_the_running_mean_is_that_of_its_weights() -> None:
    for count in (1, 2, 7, 300):
        weights = [SMOOTHING**age for age in range(count)]
        want = math.sqrt(sum(weight**2 for weight in weights)) / sum(weights)
        assert smoothed_std(1.0, 1.0 - SMOOTHING**count) == pytest.approx(want, rel=1e-12)
    assert smoothed_std(None, 0.5) is None
    assert smoothed_std(1.0, 0.0) is None


def test_the_lines_of_a_run_have_it() -> None:
    run = session(plan(4))
    history = train(run, rows=4, progress=False)
    std = smoothed_std(loss_std(run.plan), history.weight)
    assert history.rows[-1].loss_std == std is not None
    row = history.rows[-1]
    assert row.loss is not None
    assert f">{noisy(row.loss, row.loss_std)}</td>" in history._repr_html_()
    assert " ± " in run._repr_html_()


def test_without_a_loss_report_there_is_none() -> None:
    assert loss_std(replace(plan(4), loss_report=None)) is None
