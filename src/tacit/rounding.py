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


def shown_epsilon(value: float | None, rounding: str = decimal.ROUND_CEILING) -> str:
    """Format an epsilon with three significant digits, rounded up: the spelling of every text and page.

    What is left of a budget is rounded down, by ``decimal.ROUND_FLOOR``.

    >>> shown_epsilon(2.99991), shown_epsilon(0.5), shown_epsilon(16.841), shown_epsilon(None)
    ('3.00', '0.500', '16.9', 'no finite bound')
    """
    if value is None or not math.isfinite(value):
        return "no finite bound"
    number = decimal.Context(prec=3, rounding=rounding).create_decimal(repr(float(value)))
    return f"{number:.{max(0, 2 - number.adjusted())}f}" if number else "0"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Format a number of things.

    >>> counted(1, "fact"), counted(1200, "text"), counted(2, "query", "queries")
    ('1 fact', '1,200 texts', '2 queries')
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


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


def pair(figures: Mapping[str, Any]) -> str:
    """Format an epsilon together with its delta, both rounded up."""
    delta = f"{float(round_up(figures['delta'], 6)):.6g}" if figures["delta"] else "0"
    if figures["epsilon"] is None:
        return f"no finite ε at δ = {delta}"
    return f"ε = {shown_epsilon(figures['epsilon'])} at δ = {delta}"
