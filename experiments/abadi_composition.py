"""A comparison of composition theorems: the talk's table and Figure 2 of Abadi et al. (CCS 2016).

The cost of one run with sigma = 4, q = 1 %, T = 10,000 steps and delta = 1e-5 under add-remove is computed by
basic composition, strong composition, the moments accountant, Renyi differential privacy and privacy loss
distributions.  Rows marked "as published" contain the numbers printed in 2016, which are not bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.base import DELTA, Request, Row, write_results
from experiments.published_composition import (
    figure2_strong_composition,
    talk_table,
    valid_strong_composition,
)
from tacit.accounting import account, epsilon_schedule
from tacit.events import Event, Gaussian, PoissonSampled, Repeat
from tacit.report.canvas import BLUE, GREEN, GREY, ORANGE, new_figure, save_figure

_NAME = "abadi-composition"
_SIGMA, _RATE, _STEPS = 4.0, 0.01, 10_000
_STEPS_PER_EPOCH = 100
_ADJACENCY = "add-remove"


def _event(steps: int) -> Event:
    return Repeat(PoissonSampled(_RATE, Gaussian(_SIGMA)), steps)


def run(request: Request) -> list[Row]:
    """Return the rows of the table, and draw ``abadi-composition.png`` with epsilon over epochs."""
    rows = [
        _row(
            f"{item.name}{'' if item.is_bound else ' (as published, not a bound)'}", item.epsilon, item.delta
        )
        for item in talk_table()
    ]
    rows.append(
        _timed("strong, amplified by sampling (a valid bound)", lambda: valid_strong_composition(_STEPS))
    )
    for name, method in (
        ("moments accountant (2016)", "moments"),
        ("Rényi differential privacy", "rdp"),
        ("privacy loss distribution", "pld"),
    ):
        rows.append(_timed(name, partial(_price, method)))
    _draw(request)
    write_results(_NAME, rows, request, notes=["sigma = 4, q = 0.01, T = 10,000; no training is involved"])
    return rows


def _price(method: str) -> float:
    return account(_event(_STEPS), adjacency=_ADJACENCY, method=method).epsilon(DELTA)


def _timed(name: str, price: Callable[[], float]) -> Row:
    start = time.perf_counter()
    epsilon = price()
    return _row(name, epsilon, DELTA, time.perf_counter() - start)


def _row(accountant: str, epsilon: float, delta: float, seconds: float = 0.0) -> Row:
    return Row(
        experiment=_NAME,
        dataset="none",
        model="none",
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        noise_multiplier=_SIGMA,
        accuracy_mean=None,
        accuracy_std=None,
        seeds=0,
        wall_seconds=seconds,
        selection="",
        details={"sampling_rate": _RATE, "steps": _STEPS},
    )


def _draw(request: Request) -> None:
    epochs = [1, *range(10, 401, 10)]
    counts = [epoch * _STEPS_PER_EPOCH for epoch in epochs]
    figure = new_figure(7.0, 4.4)
    axes = figure.add_subplot()
    curves: list[tuple[str, str, Any, list[float]]] = [
        ("strong composition, a valid bound", GREY, ":", [valid_strong_composition(n) for n in counts]),
        ("strong composition, as published", GREY, "--", [figure2_strong_composition(n) for n in counts]),
    ]
    methods = (
        ("moments accountant (2016)", ORANGE, (0, (8, 2)), "moments"),
        ("RDP", GREEN, "-.", "rdp"),
        ("PLD", BLUE, "-", "pld"),
    )
    for done, (label, colour, style, method) in enumerate(methods, 1):
        values = epsilon_schedule(_event, counts, delta=DELTA, adjacency=_ADJACENCY, method=method)
        curves.append((label, colour, style, values))
        request.listener("curves", done, len(methods))
    for label, colour, style, values in curves:
        axes.plot(epochs, values, linestyle=style, color=colour, label=f"{label}: {values[-1]:.2f}")
    axes.legend(loc="center right", fontsize=8, title="ε after 400 epochs", title_fontsize=8)
    axes.set_yscale("log")
    axes.set_xlabel("epochs (100 steps each)")
    axes.set_ylabel("ε at δ = 1e-5")
    axes.set_title("One run by five accountants: σ = 4, q = 1 %", fontsize=10)
    axes.grid(alpha=0.25, which="both")
    save_figure(figure, request.folder / f"{_NAME}.png")
