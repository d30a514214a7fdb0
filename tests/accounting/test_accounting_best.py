"""The least proven bound of all accountants: never above any of them, and it says whose it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from priced import curve_of

from tacit.accounting import METHODS, account, calibrate
from tacit.errors import UnsupportedEvent
from tacit.events import (
    Compose,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampled,
    Repeat,
    Shuffled,
    WithoutReplacement,
    ZeroConcentratedDP,
)
from tacit.plan import Plan

SAMPLED = Repeat(PoissonSampled(0.01, Gaussian(5.0)), 100)
EVENTS: list[tuple[Event, str, float, str]] = [
    (SAMPLED, "add-remove", 1e-5, "pld"),
    (
        Repeat(ExponentialMechanism(0.1), 100),
        "add-remove",
        1e-6,
        "rdp",
    ),  # whose pair covers every order of steps
    (SAMPLED, "add-remove", 1e-300, "rdp"),  # where a grid's rounding is above delta
    (Compose((ZeroConcentratedDP(0.1), SAMPLED)), "add-remove", 1e-5, "rdp"),
    (Repeat(Laplace(3.0), 4), "zero-out", 1e-6, "pld"),
    (Repeat(WithoutReplacement(1000, 10, Gaussian(2.0)), 20), "replace-one", 1e-6, "pld"),
    (Gaussian(1e-6), "add-remove", 1e-6, "pld"),
]


@pytest.mark.thorough(cases=5)
@pytest.mark.parametrize(("event", "adjacency", "delta", "road"), EVENTS)
def test_best_is_the_least_of_all_and_says_whose_it_is(
    event: Event, adjacency: str, delta: float, road: str
) -> None:
    best = account(event, adjacency=adjacency, method="best")
    found, proven = best.epsilon(delta), {}
    for method in METHODS:
        try:
            proven[method] = account(event, adjacency=adjacency, method=method).epsilon(delta)
        except UnsupportedEvent:
            continue
    least = min(proven.values())
    assert found <= least * (1 + 1e-6)
    assert best.best_method(delta) == road
    assert found == proven[road]
    lower, upper = best.epsilon_bounds(delta)
    assert 0.0 <= lower <= upper == found
    assert best.delta(found) <= delta * (1 + 1e-6)
    many = best.epsilon(np.array([delta, 0.1]))
    assert many[0] >= found * (1 - 1e-6)
    assert math.isfinite(many[0])


def test_what_no_accountant_proves_is_refused_by_name() -> None:
    event = Repeat(Shuffled(10, Laplace(2.0)), 2)
    with pytest.raises(UnsupportedEvent, match="Shuffled"):
        curve_of(event, "best")


def test_noise_for_the_best_bound_is_less_where_another_road_proves_less() -> None:
    noise = calibrate(
        lambda sigma: Repeat(PoissonSampled(0.01, Gaussian(sigma)), 100),
        epsilon=2.74,
        delta=1e-300,
        adjacency="add-remove",
        method="best",
    )
    event = Repeat(PoissonSampled(0.01, Gaussian(noise)), 100)
    assert curve_of(event, "best").epsilon(1e-300) <= 2.74
    assert curve_of(event).epsilon(1e-300) > 2.74


def test_a_plan_is_priced_by_the_least() -> None:
    plan = Plan.calibrate(
        epsilon=2.0,
        delta=1e-5,
        records=1000,
        batch_size=100,
        steps=20,
        clipping=1.0,
        adjacency="add-remove",
        unit="record",
    )
    assert (plan.curve.method, plan.curve.best_method(1e-5)) == ("best", "pld")
    assert plan.epsilon <= 2.0
