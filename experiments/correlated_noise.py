"""Noise that is correlated in time, compared with independent noise, on a stream (2103.00039).

Logistic regression is trained in 500 steps with one pass over a stream of pictures.  Each picture is in one
step, so there is no amplification by sampling.  The last row has independent noise on random samples of all
pictures, which a stream does not allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from experiments.base import (
    DELTA,
    Request,
    Row,
    classification_loss,
    percent,
    repeat,
    write_results,
)
from experiments.standard import load
from tacit.correlation import Banded, BandedInverse, Correlation, Tree
from tacit.datasets import Dataset
from tacit.models import Logistic
from tacit.plan import Plan
from tacit.report.canvas import BLUE, GREEN, GREY, MARKERS, ORANGE, PALE, new_figure, save_figure
from tacit.sampling import CyclicPoissonSampling
from tacit.training import Evaluation, PrivateSession, evaluate

_NAME = "correlated-noise"
_STEPS = 500
_EPSILONS = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class _Way:
    label: str
    correlation: Correlation | None
    stream: bool
    rates: tuple[float, float]
    """The learning rates for epsilon < 1 and for epsilon >= 1."""


def _ways() -> tuple[_Way, ...]:
    """Return the mechanisms to compare. The optimisation of their coefficients takes a second."""
    return (
        _Way("independent, a stream", None, True, (0.003, 0.01)),
        _Way("tree, a stream", Tree(), True, (0.01, 0.03)),
        _Way("inverse of 4 bands, a stream", BandedInverse.optimised(4, _STEPS), True, (0.03, 0.1)),
        _Way("64 bands, a stream", Banded.optimised(min(64, _STEPS), _STEPS), True, (0.03, 0.1)),
        _Way("independent, Poisson samples", None, False, (0.03, 0.03)),
    )


_NOTES = (
    "learning rates were chosen among 0.003, 0.01, 0.03 and 0.1 on the last 10,000 of the training images, "
    "at epsilon 0.5 and 2, by runs on the others that are not part of the stated epsilon",
)


_SELECTION = "the last 10,000 training images"


def run(request: Request) -> list[Row]:
    """Return a row per mechanism and epsilon, and draw ``correlated-noise.png``."""
    name = request.choose_dataset(("mnist", "fashion-mnist"))
    data, rows, ways = load(name), list[Row](), _ways()
    for epsilon in request.choose_epsilons(_EPSILONS):
        for way in ways:
            plan = _plan(data, way, epsilon)
            once = partial(_once, data, plan, way.rates[epsilon >= 1.0], request.device)
            found = repeat(f"{name}, ε = {epsilon:g}, {way.label}", request, plan, once)
            rows.append(
                found.row(
                    _NAME,
                    name,
                    f"logistic, {way.label}",
                    selection=_SELECTION,
                    correlation=type(way.correlation).__name__,
                )
            )
            write_results(_NAME, rows, request, notes=_NOTES)
    _draw(rows, ways, request)
    return rows


def _plan(data: Dataset, way: _Way, epsilon: float) -> Plan:
    records, more = len(data.train.inputs), dict[str, Any]()
    if way.stream:
        more["sampling"] = CyclicPoissonSampling(1.0, cycle=_STEPS)
    return Plan.calibrate(
        epsilon=epsilon,
        delta=DELTA,
        records=records,
        batch_size=round(records / _STEPS),
        steps=_STEPS,
        clipping=1.0,
        adjacency="add-remove",
        unit=data.unit,
        correlation=way.correlation,
        **more,
    )


def _once(data: Dataset, plan: Plan, rate: float, device: str, _: int) -> Evaluation:
    model = Logistic(data.train.inputs[0].numel(), len(data.classes), normalise=True).to(device)
    session = PrivateSession(
        model,
        torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
        data.train,
        plan,
        loss=classification_loss,
    )
    for step in session.batches():
        session.step(step)
    return evaluate(model, *data.test)


def _draw(rows: list[Row], ways: tuple[_Way, ...], request: Request) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    for number, (way, colour) in enumerate(zip(ways, (PALE, GREEN, ORANGE, BLUE, GREY), strict=True)):
        mine = [row for row in rows if row.model == f"logistic, {way.label}"]
        style = f"{MARKERS[number]}-" if way.stream else "x--"
        places, heights = [row.epsilon for row in mine], [percent(row.accuracy_mean) for row in mine]
        axes.plot(places, heights, style, color=colour, label=way.label)
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
    axes.minorticks_off()
    axes.set_xlabel("ε at δ = 1e-5")
    axes.set_ylabel("test accuracy, %")
    axes.legend()
    axes.grid(alpha=0.25)
    save_figure(figure, request.folder / f"{_NAME}.png")
