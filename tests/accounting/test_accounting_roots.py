"""Brent's method against SciPy's: the same points are tried, and the same root is found."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import brentq

from tacit.accounting.price import brent

FUNCTIONS: dict[str, Callable[[float], float]] = {
    "line": lambda x: 3.0 * x,
    "cubic": lambda x: x**3 - 2.0 * x - 5.0,
    "flat": lambda x: math.copysign(abs(x - 0.3) ** 9, x - 0.3),
    "steep": lambda x: math.atan(1e6 * (x - 0.1)),
    "exponential": lambda x: math.exp(x) - 1e-7,
    "step": lambda x: 1.0 if x > 0.7 else -1.0,
    "infinite": lambda x: math.inf if x > 2.0 else x - 1.0,
    "decreasing": lambda x: math.cos(x) - x,
}


def traced(function: Callable[[float], float]) -> tuple[Callable[[float], float], list[float]]:
    seen: list[float] = []

    def seeing(x: float) -> float:
        seen.append(x)
        return function(x)

    return seeing, seen


@given(
    st.sampled_from(sorted(FUNCTIONS)),
    st.floats(-40.0, 0.0),
    st.floats(0.8, 40.0),
    st.sampled_from([(2e-12, 1e-15), (1e-300, 1e-14), (1e-9, 1e-15), (1e-2, 1e-15)]),
    st.booleans(),
)
def test_the_points_and_the_root_are_those_of_scipy(
    name: str, low: float, high: float, tolerances: tuple[float, float], swapped: bool
) -> None:
    function, (xtol, rtol) = FUNCTIONS[name], tolerances
    a, b = (high, low) if swapped else (low, high)
    assume(function(a) * function(b) < 0.0)
    ours, points = traced(function)
    theirs, others = traced(function)
    found = brent(ours, a, b, xtol=xtol, rtol=rtol)
    root, report = brentq(theirs, a, b, xtol=xtol, rtol=rtol, full_output=True, disp=False)
    assert points[: len(others)] == others
    if report.converged:
        assert (found, len(points)) == (float(root), len(others))
    width = xtol + rtol * abs(found)
    assert function(found - width) * function(found + width) <= 0.0


def test_an_end_that_is_a_root_is_returned() -> None:
    for low, high in ((0.0, 2.0), (-2.0, 0.0)):
        assert brent(lambda x: x, low, high) == 0.0


def test_the_search_ends_where_interpolation_does_not() -> None:
    """SciPy gives up on this one after 100 steps: tolerances near the smallest number there is."""

    def function(x: float) -> float:
        return x**3 if abs(x) > 1e-90 else math.copysign(1e-270, x - 1e-290)

    seeing, points = traced(function)
    found = brent(seeing, -1.0, 2.0, xtol=1e-300)
    assert found == pytest.approx(1e-290, rel=1e-9)
    assert 100 < len(points) < 2500


def test_what_has_no_root_is_refused() -> None:
    with pytest.raises(ArithmeticError, match=r"no change of sign between 1\.0 and 2\.0: 1\.0 and 4\.0"):
        brent(lambda x: x * x, 1.0, 2.0)
    with pytest.raises(ArithmeticError, match="NaN at 2"):
        brent(lambda x: x if x < 1.5 else math.nan, -1.0, 2.0)
