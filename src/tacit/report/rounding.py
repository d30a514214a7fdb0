"""How are figures shown to people? Rounded up: a page never shows less than was computed."""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from typing import Any

__all__ = ["pair", "round_up"]


def round_up(value: float, digits: int = 4) -> str:
    """``value`` with that many significant digits, never less than ``value``.

    >>> round_up(2.00001), round_up(3.0), round_up(0.0), round_up(12345678.0)
    ('2.001', '3', '0', '12350000')
    """
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{context.create_decimal(repr(float(value))).normalize():f}"


def pair(figures: Mapping[str, Any], digits: int = 4) -> str:
    """An epsilon with its delta, rounded up; there is no epsilon without one.

    >>> pair({"epsilon": 1.00001, "delta": 1e-6})
    'ε = 1.001 at δ = 1e-06'
    """
    delta = f"{float(round_up(figures['delta'], 6)):.6g}" if figures["delta"] else "0"
    if figures["epsilon"] is None:
        return f"no finite ε at δ = {delta}"
    return f"ε = {round_up(figures['epsilon'], digits)} at δ = {delta}"
