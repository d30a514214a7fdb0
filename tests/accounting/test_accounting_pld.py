"""The PLD accountant against reference values, multi-precision quadrature and dp_accounting."""

from __future__ import annotations

import pytest

from tacit.accounting import account
from tacit.events import Gaussian, PoissonSampled, Repeat

# accounting.md section 6: contour inversion, agreeing with an FFT bracket (q, sigma, T, delta, epsilon)
REFERENCE = [
    (0.01, 4.0, 10_000, 1e-5, 0.9468668007643641),
    (0.01, 4.0, 40_000, 1e-5, 2.0330652650449537),
    (0.01, 2.0, 10_000, 1e-5, 2.1627045906787785),
    (0.01, 1.0, 10_000, 1e-5, 6.187712389971516),
    (0.1, 0.5, 1000, 1e-5, 126.16656440581127),
    (1.0, 1.0, 1, 1e-5, 4.377178095681137),
]


@pytest.mark.parametrize(("q", "sigma", "steps", "delta", "truth"), REFERENCE)
def test_bounds_enclose_the_reference_value(
    q: float, sigma: float, steps: int, delta: float, truth: float
) -> None:
    event = Repeat(PoissonSampled(q, Gaussian(sigma)), steps)
    lower, upper = account(event, adjacency="add-remove").epsilon_bounds(delta)
    assert lower <= truth * (1 + 1e-10)
    assert truth * (1 - 1e-11) <= upper <= truth * (1 + 3e-5)
