"""Helpers for tests of accounting: the epsilon of an event, and the event of DP-SGD."""

from __future__ import annotations

from tacit.accounting import account
from tacit.events import Event, Gaussian, PoissonSampled, Repeat


def dp_sgd(q: float, sigma: float, steps: int) -> Event:
    return Repeat(PoissonSampled(q, Gaussian(sigma)), steps)


def epsilon(event: Event, delta: float = 1e-5, method: str = "pld", adjacency: str = "add-remove") -> float:
    return account(event, adjacency=adjacency, method=method).epsilon(delta)
