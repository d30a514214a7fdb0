"""Rounding of numbers: up for epsilons in outputs, and to a few digits for calibrated settings of a plan."""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping
from typing import Any

NOISE_DIGITS = 6
"""Significant digits of a calibrated noise multiplier, few enough that all processors get the same value."""


def round_up(value: float, digits: int = 4) -> str:
    """Format ``value`` with ``digits`` significant digits, never less than ``value``."""
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{context.create_decimal(repr(float(value))).normalize():f}"


def raised(value: float, digits: int) -> float:
    """Return the smallest number with ``digits`` significant digits that is at least ``value``."""
    return float(round_up(value, digits))


def significant(value: float, digits: int) -> float:
    """Round to ``digits`` significant digits, so that results of different processors agree."""
    return float(f"{value:.{digits - 1}e}")


def finite(value: Any) -> Any:
    """Replace infinities and NaN, which JSON cannot represent, by None in plain data."""
    match value:
        case Mapping():
            return {name: finite(item) for name, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value


def pair(figures: Mapping[str, Any], digits: int = 4) -> str:
    """Format an epsilon together with its delta, both rounded up."""
    delta = f"{float(round_up(figures['delta'], 6)):.6g}" if figures["delta"] else "0"
    if figures["epsilon"] is None:
        return f"no finite ε at δ = {delta}"
    return f"ε = {round_up(figures['epsilon'], digits)} at δ = {delta}"
