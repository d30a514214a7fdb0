"""Random nested events of every kind, under every adjacency: a bounded part of ``fuzz_events``.

The long run by hand is ``make fuzz-accounting``.
"""

from __future__ import annotations

import random
from typing import Any

import fuzz_events as fuzz
import pytest

from tacit.accounting import price
from tacit.events import Gaussian, PoissonSampled, Repeat


def check(*setting: Any, peers: bool = False) -> Any:
    """Check one setting: the event, the adjacency and delta."""
    return fuzz.check(*setting, peers=peers)


@pytest.mark.thorough(cases=13)
@pytest.mark.untraced
@pytest.mark.parametrize("seed", range(25))
def test_no_bound_of_any_event_is_wrong(seed: int) -> None:
    event, adjacency, delta = fuzz.random_setting(random.Random(seed))
    found = check(event, adjacency, delta)
    assert found is None or found.wrong == "", (event, adjacency, delta)


@pytest.mark.thorough(cases=3)
@pytest.mark.untraced
@pytest.mark.parametrize("seed", range(8))
def test_no_bound_is_looser_than_that_of_the_best_peer(seed: int) -> None:
    r = random.Random(seed)
    event = Repeat(PoissonSampled(r.choice([0.01, 0.3]), Gaussian(r.uniform(0.6, 3.0))), r.choice([1, 2, 20]))
    found = check(event, "add-remove", 1e-5, peers=True)
    assert found is not None
    assert found.peer is not None
    assert found.wrong == ""


def test_planted_bugs_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that is a tenth too small, and a best road that is not the least."""
    event = PoissonSampled(0.5, Gaussian(1.0))
    assert check(event, "add-remove", 1e-2).wrong == ""
    with monkeypatch.context() as planted:
        planted.setattr(
            price.LeastPrice, "best", lambda self, delta: (0.9 * self.first.epsilon(delta), "pld")
        )
        assert "Monte Carlo" in check(event, "add-remove", 1e-2).wrong
    with monkeypatch.context() as planted:
        planted.setattr(
            price.LeastPrice, "best", lambda self, delta: (1.1 * self.first.epsilon(delta), "pld")
        )
        assert "pld proves" in check(event, "add-remove", 1e-2).wrong
