"""Rounding of numbers: up for epsilons in outputs, and to a few digits for calibrated settings of a plan."""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping
from typing import Any

NOISE_DIGITS = 6
"""Significant digits of a calibrated noise multiplier, few enough that all processors get the same value."""


def round_up(value: float, digits: int = 4) -> str:
    """Format ``value`` with ``digits`` significant digits, never less than ``value``.

    >>> round_up(2.00001), round_up(3.0), round_up(0.0), round_up(12345678.0)
    ('2.001', '3', '0', '12350000')
    """
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{context.create_decimal(repr(float(value))).normalize():f}"


def raised(value: float, digits: int) -> float:
    """Return the smallest number with ``digits`` significant digits that is at least ``value``.

    >>> raised(1.2345601, 6), raised(1.23456, 6), raised(0.99999999, 3)
    (1.23457, 1.23456, 1.0)
    """
    return float(round_up(value, digits))


def significant(value: float, digits: int) -> float:
    """Round to ``digits`` significant digits, so that results of different processors agree.

    >>> significant(0.1 + 0.2, 12), significant(123456.0, 3)
    (0.3, 123000.0)
    """
    return float(f"{value:.{digits - 1}e}")


def finite(value: Any) -> Any:
    """Replace infinities and NaN, which JSON cannot represent, by None in plain data.

    >>> finite({"epsilon": float("inf"), "rates": (0.5, float("nan"))})
    {'epsilon': None, 'rates': [0.5, None]}
    """
    match value:
        case Mapping():
            return {name: finite(item) for name, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value


def pair(figures: Mapping[str, Any], digits: int = 4) -> str:
    """Format an epsilon together with its delta, both rounded up.

    >>> pair({"epsilon": 1.00001, "delta": 1e-6})
    'ε = 1.001 at δ = 1e-06'
    """
    delta = f"{float(round_up(figures['delta'], 6)):.6g}" if figures["delta"] else "0"
    if figures["epsilon"] is None:
        return f"no finite ε at δ = {delta}"
    return f"ε = {round_up(figures['epsilon'], digits)} at δ = {delta}"
